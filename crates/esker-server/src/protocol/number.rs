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

/// Reads the number that `incr` and `decr` find in a value, as C's `strtoull` does: blanks before it, and anything after a blank or
/// NUL behind it, are ignored, as `decr` itself leaves blanks behind and C's clients a NUL. One below zero wraps around, and
/// counts if that is no large one.
#[must_use]
pub fn parse_value(value: &[u8]) -> Option<u64> {
    let start = value.iter().position(|byte| !is_blank(*byte))?;
    let text = value.get(start..)?;
    let (text, is_negative) = match text.strip_prefix(b"-") {
        Some(text) => (text, true),
        None => (text.strip_prefix(b"+").unwrap_or(text), false),
    };
    let end = text.iter().position(|byte| *byte == 0 || is_blank(*byte)).unwrap_or(text.len());
    let number = parse_unsigned(text.get(..end)?, u64::MAX)?;
    match is_negative {
        true => Some(number.wrapping_neg()).filter(|number| *number <= i64::MAX as u64),
        false => Some(number),
    }
}

/// As C's `isspace`: a vertical tab is one, too.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0B
}
