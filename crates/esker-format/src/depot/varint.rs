//! Numbers of variable length: seven bits a byte, the low ones first, the high bit says that more
//! follow (LEB128). Only the shortest form of a number is valid.

use crate::Flaw;

/// Largest size of a number in bytes.
pub(super) const VARINT_SIZE_MAX: usize = 10;

/// Bytes that `number` takes.
pub(crate) fn size(number: u64) -> usize {
    let bits = (u64::BITS - number.leading_zeros()).max(1);
    usize::try_from(bits.div_ceil(7)).unwrap_or(VARINT_SIZE_MAX)
}

/// The bytes of `number`, and how many they are.
pub(crate) fn encode(mut number: u64) -> ([u8; VARINT_SIZE_MAX], usize) {
    let mut bytes = [0; VARINT_SIZE_MAX];
    let length = size(number);
    for (place, byte) in bytes.iter_mut().take(length).enumerate() {
        let more = if place + 1 < length { 0x80 } else { 0 };
        let low = (number & 0x7F) as u8;
        *byte = low | more;
        number >>= 7;
    }
    (bytes, length)
}

/// Takes a number from the start of `rest`.
pub(crate) fn decode(rest: &mut &[u8]) -> Result<u64, Flaw> {
    let mut number = 0;
    for place in 0..VARINT_SIZE_MAX {
        let (byte, tail) = rest.split_first().ok_or(Flaw::TooShort)?;
        *rest = tail;
        let bits = u64::from(byte & 0x7F);
        let shift = 7 * u32::try_from(place).unwrap_or(0);
        if bits << shift >> shift != bits {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            let shortest = place == 0 || *byte != 0;
            return if shortest { Ok(number) } else { Err(Flaw::Field("number")) };
        }
    }
    Err(Flaw::Field("number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_take_what_size_says() {
        let near = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for number in near.chain([u64::MAX]) {
            let (bytes, length) = encode(number);
            assert_eq!(length, size(number));
            let mut rest = &bytes[..length];
            assert_eq!(decode(&mut rest), Ok(number));
            assert!(rest.is_empty());
            assert_eq!(decode(&mut &bytes[..length - 1]), Err(Flaw::TooShort));
        }
    }

    #[test]
    fn long_forms_and_too_large_numbers_are_refused() {
        for bytes in [&[0x80, 0x00][..], &[0xFF; 10], &[0x80; 11]] {
            assert_eq!(decode(&mut &bytes[..]), Err(Flaw::Field("number")));
        }
        let largest = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
        assert_eq!(decode(&mut &largest[..]), Ok(u64::MAX));
    }
}
