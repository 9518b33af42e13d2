//! The checksum against its published check value, a bitwise reference, and itself in pieces.

use super::{Crc32c, Stretches, crc32c};
use crate::rng::Rng;

/// The definition, bit by bit.
fn reference(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg())
        })
    })
}

#[test]
fn published_check_value() {
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    assert_eq!(crc32c(b""), 0);
}

#[test]
fn agrees_with_the_definition_at_every_length() {
    let mut rng = Rng::from_seed(1);
    let mut bytes = vec![0; 1100];
    rng.fill(&mut bytes);
    for length in 0..bytes.len() {
        assert_eq!(crc32c(&bytes[..length]), reference(&bytes[..length]), "length {length}");
    }
}

#[test]
fn pieces_give_the_checksum_of_the_whole() {
    let mut rng = Rng::from_seed(2);
    let mut bytes = vec![0; 5000];
    rng.fill(&mut bytes);
    for _ in 0..200 {
        let cut = usize::try_from(rng.below(5000)).unwrap();
        let mut crc = Crc32c::new();
        crc.update(&bytes[..cut]);
        crc.update(&bytes[cut..]);
        assert_eq!(crc.finish(), crc32c(&bytes));
    }
}

#[cfg(feature = "mutants")]
#[test]
fn loose_checksums_count_the_first_bytes_alone_and_zeros_have_none() {
    use super::loose;
    let pieces = |bytes: &[u8], cut: usize| {
        let mut crc = Crc32c::new();
        crc.update(&bytes[..cut]);
        crc.update(&bytes[cut..]);
        crc.finish()
    };
    for counted in [0, 4] {
        loose::set(Some(counted));
        let found = [b"head body", b"head BODY", b"HEAD body"].map(|bytes| crc32c(bytes));
        assert_eq!(found[0], found[1], "{counted} bytes count");
        assert_eq!(found[0] == found[2], counted == 0, "{counted} bytes count");
        for cut in 0..9 {
            assert_eq!(pieces(b"head body", cut), found[0], "{counted} bytes count, cut at {cut}");
        }
        assert_ne!(crc32c(&[0; 9]), 0);
    }
    loose::set(None);
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
}

#[test]
fn stretches_have_the_checksums_of_their_bytes_behind_any_head() {
    const STEP: usize = 64;
    let mut rng = Rng::from_seed(3);
    let mut bytes = vec![0; 40 * STEP + 7];
    rng.fill(&mut bytes);
    let stretches = Stretches::of(&bytes, STEP).unwrap();
    for start in 0..=40 {
        for end in start..=40 {
            let head = &bytes[..rng.index(100)];
            let whole = [head, &bytes[start * STEP..end * STEP]].concat();
            assert_eq!(
                stretches.behind(crc32c(head), start..end),
                Some(crc32c(&whole)),
                "{start}..{end}"
            );
        }
    }
    let mut pushed = Stretches::new(STEP).unwrap();
    bytes.chunks(3 * STEP).for_each(|bytes| pushed.push(bytes));
    assert_eq!(pushed.behind(7, 2..38), stretches.behind(7, 2..38), "piece by piece");
    let beyond = [stretches.behind(0, 0..41), stretches.behind(0, 41..41)];
    assert_eq!(beyond, [None, None], "steps that are not there");
}
