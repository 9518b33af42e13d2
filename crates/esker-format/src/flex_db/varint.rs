//! Numbers in base 128, low digits first: seven bits a byte, the eighth says that more follow.

/// Longest encoding in bytes.
pub const SIZE_MAX: usize = 10;

/// Appends `value`.
#[inline]
pub fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7F) as u8);
}

/// Bytes that `value` takes.
#[must_use]
#[inline]
pub fn size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Takes a number off the front; `None` if there is none that fits 64 bits.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    if *first < 0x80 {
        *bytes = rest;
        return Some(u64::from(*first));
    }
    take_long(bytes)
}

#[inline]
fn take_long(bytes: &mut &[u8]) -> Option<u64> {
    let Some(word) = bytes.first_chunk().map(|chunk| u64::from_le_bytes(*chunk)) else {
        return take_slowly(bytes);
    };
    // The first byte that nothing follows.
    let ends = !word & 0x8080_8080_8080_8080;
    if ends == 0 {
        return take_slowly(bytes);
    }
    let size = ends.trailing_zeros() / 8 + 1;
    *bytes = bytes.get(size as usize..)?;
    // Digits of 7 bits each become ones of 14, 28 and 56.
    let value = word & (ends ^ (ends - 1)) & 0x7F7F_7F7F_7F7F_7F7F;
    let value = value & 0x007F_007F_007F_007F | (value & 0x7F00_7F00_7F00_7F00) >> 1;
    let value = value & 0x0000_3FFF_0000_3FFF | (value & 0x3FFF_0000_3FFF_0000) >> 2;
    Some(value & 0x0FFF_FFFF | (value & 0x0FFF_FFFF_0000_0000) >> 4)
}

/// Digit by digit: numbers at the end of what there is, and long ones.
#[cold]
fn take_slowly(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(SIZE_MAX) {
        let digit = u64::from(byte & 0x7F);
        let shift = 7 * u32::try_from(index).ok()?;
        if shift == 63 && digit > 1 {
            return None;
        }
        value |= digit << shift;
        if byte & 0x80 == 0 {
            *bytes = bytes.get(index + 1..)?;
            return Some(value);
        }
    }
    None
}
