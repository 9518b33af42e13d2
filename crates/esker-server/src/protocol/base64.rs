//! Keys in base64, as the flag `b` of the meta commands has them.
//!
//! Decoding follows memcached's, which leaves out bytes that are not of the alphabet: what a client
//! of memcached may send has the same meaning here.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Not in the alphabet.
const NONE: u8 = 0xFF;

/// What each byte means; the padding counts as zero.
const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut index = 0_usize;
    while index < 64 {
        #[allow(clippy::indexing_slicing, reason = "evaluated by the compiler, which checks it")]
        #[allow(clippy::arithmetic_side_effects, reason = "evaluated by the compiler")]
        #[allow(clippy::cast_possible_truncation, reason = "below 64")]
        {
            values[ALPHABET[index] as usize] = index as u8;
            index += 1;
        }
    }
    #[allow(clippy::indexing_slicing, reason = "evaluated by the compiler, which checks it")]
    {
        values[b'=' as usize] = 0;
    }
    values
};

/// A decoded key, in place: nothing is allocated.
#[derive(Clone, Copy, Debug)]
pub struct Decoded {
    bytes: [u8; super::KEY_BYTES_MAX],
    length: usize,
}

impl Decoded {
    /// The key.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    fn push(&mut self, byte: u8) -> Option<()> {
        *self.bytes.get_mut(self.length)? = byte;
        self.length = self.length.saturating_add(1);
        Some(())
    }
}

/// Decodes `text`; `None` if that is not base64 of at least one byte and at most a key's length.
#[must_use]
pub fn decode(text: &[u8]) -> Option<Decoded> {
    let value = |byte: &u8| VALUES.get(usize::from(*byte)).copied().unwrap_or(NONE);
    let known = text.iter().filter(|byte| value(byte) != NONE).count();
    if known == 0 || !known.is_multiple_of(4) {
        return None;
    }
    let mut decoded = Decoded { bytes: [0; super::KEY_BYTES_MAX], length: 0 };
    let (mut group, mut count, mut padding) = (0_u32, 0_u32, 0_usize);
    for byte in text {
        let bits = value(byte);
        if bits == NONE {
            continue;
        }
        if *byte == b'=' {
            padding = padding.saturating_add(1);
        }
        group = group << 6 | u32::from(bits);
        count = count.saturating_add(1);
        if count < 4 {
            continue;
        }
        if padding > 2 {
            return None;
        }
        let [_, bytes @ ..] = group.to_be_bytes();
        for byte in bytes.iter().take(3_usize.saturating_sub(padding)) {
            decoded.push(*byte)?;
        }
        if padding > 0 {
            break;
        }
        (group, count) = (0, 0);
    }
    (decoded.length > 0).then_some(decoded)
}

/// Encodes `bytes`, piece by piece.
pub fn encode(bytes: &[u8], mut push: impl FnMut(&[u8])) {
    let letter = |bits: u32| {
        let index = usize::try_from(bits & 63).unwrap_or(0);
        ALPHABET.get(index).copied().unwrap_or(b'=')
    };
    for group in bytes.chunks(3) {
        let mut three = [0; 3];
        for (to, from) in three.iter_mut().zip(group) {
            *to = *from;
        }
        let [a, b, c] = three;
        let bits = u32::from_be_bytes([0, a, b, c]);
        let mut four = [letter(bits >> 18), letter(bits >> 12), letter(bits >> 6), letter(bits)];
        let used = group.len().saturating_add(1);
        for pad in four.iter_mut().skip(used) {
            *pad = b'=';
        }
        push(&four);
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn encoded(bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        encode(bytes, |piece| text.extend_from_slice(piece));
        text
    }

    #[test]
    fn every_length_comes_back() {
        let bytes: Vec<u8> = (0..187).collect();
        for length in 1..=bytes.len() {
            let bytes = bytes.get(..length).expect("in range");
            let text = encoded(bytes);
            assert_eq!(text.len(), length.div_ceil(3) * 4);
            assert_eq!(decode(&text).expect("valid").bytes(), bytes);
        }
        assert_eq!(encoded(b"foo"), b"Zm9v");
        assert_eq!(encoded(b"fo"), b"Zm8=");
        assert_eq!(encoded(b"f"), b"Zg==");
    }

    #[test]
    fn what_is_no_base64_is_none() {
        let long = b"AAAA".repeat(84);
        for bad in [&b""[..], b"A", b"AB", b"ABC", b"ABCDE", b"A===", b"!!!!", &long] {
            assert!(decode(bad).is_none(), "{bad:?}");
        }
        assert_eq!(decode(b"Z-m9_v").expect("other bytes are left out").bytes(), b"foo");
        assert_eq!(decode(b"Zg==Zm9v").expect("ends at the padding").bytes(), b"f");
    }
}
