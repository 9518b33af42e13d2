//! CRC32C of few bytes, as entries have: the processor's instruction, eight bytes at a time from the first byte on.
//!
//! # Safety invariants
//! 1. The instruction runs only where the processor says that it has it.

#![expect(unsafe_code, reason = "the CRC32C instruction")]

/// Bytes up to which this is the faster way.
pub(super) const SHORT_MAX: usize = 160;

/// The checksum of all before and `bytes`, whose state was `state`; `None` if the processor has no instruction for it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn add(state: u32, bytes: &[u8]) -> Option<u32> {
    if !std::arch::is_x86_feature_detected!("sse4.2") {
        return None;
    }
    // SAFETY: 1.
    Some(unsafe { run(state, bytes) })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
#[expect(clippy::cast_possible_truncation, reason = "the instruction gives 32 bits")]
fn run(state: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};
    let (words, rest) = bytes.as_chunks::<8>();
    let all = words
        .iter()
        .fold(u64::from(state), |state, word| _mm_crc32_u64(state, u64::from_le_bytes(*word)));
    let mut state = all as u32;
    let (fours, rest) = rest.as_chunks::<4>();
    if let Some(four) = fours.first() {
        state = _mm_crc32_u32(state, u32::from_le_bytes(*four));
    }
    let (twos, rest) = rest.as_chunks::<2>();
    if let Some(two) = twos.first() {
        state = _mm_crc32_u16(state, u16::from_le_bytes(*two));
    }
    rest.iter().fold(state, |state, byte| _mm_crc32_u8(state, *byte))
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn add(_state: u32, _bytes: &[u8]) -> Option<u32> {
    None
}
