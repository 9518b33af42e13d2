//! Numbers of the protocol: decimal digits, no sign unless asked for, no wrapping.

/// Reads an unsigned number up to `max`.
#[must_use]
pub fn parse_unsigned(text: &[u8], max: u64) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut number = 0_u64;
    for byte in text {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (number <= max).then_some(number)
}

/// Reads a number that may be negative.
#[must_use]
pub fn parse_signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => 0_i64.checked_sub_unsigned(parse_unsigned(digits, u64::MAX)?),
        None => i64::try_from(parse_unsigned(text, i64::MAX as u64)?).ok(),
    }
}

/// Reads the number that `incr` and `decr` find in a value: blanks before it, and anything after a
/// blank behind it, are ignored, as `decr` itself leaves blanks behind.
#[must_use]
pub fn parse_value(value: &[u8]) -> Option<u64> {
    let text = value.trim_ascii_start();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
    parse_unsigned(text.get(..end)?, u64::MAX)
}
