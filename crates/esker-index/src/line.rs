//! A line: eight slots of a table in one cache line, compared at once.
//!
//! A lookup that has to wait for memory anyway should not also guess: which slot has the key, and
//! whether one has it, is random, so a loop that branches on each slot is as often mispredicted. Here
//! the sixteen bits of each slot that say whose it is are compared without a branch: with the
//! instructions that every x86-64 processor has, elsewhere one by one.
//!
//! # Safety invariants
//! 1. A reference to a line is valid for reading its 64 bytes, whoever else stores to them. Such a
//!    read is that of eight relaxed atomic loads: the processor reads aligned words of eight bytes
//!    whole (in vectors as well), and assembly is not subject to what the compiler assumes of its own
//!    loads.
//! 2. Every x86-64 processor has SSE2.

#![cfg_attr(
    all(target_arch = "x86_64", not(any(loom, feature = "shuttle", miri))),
    expect(unsafe_code, reason = "vector loads of atomics")
)]

use esker_base::sync::atomic::AtomicU64;

/// Slots of a line.
pub(crate) const SLOTS: usize = 8;

/// The line.
pub(crate) type Line = [AtomicU64; SLOTS];

/// The slots whose entries may belong to the key of a pattern (see `entry::matches`): a bit for each,
/// the first lowest. It may be out of date: who follows a bit looks again. What is read after it is
/// read after the line.
#[inline]
pub(crate) fn matching(line: &Line, pattern: u16) -> u32 {
    each::matching(line, pattern)
}

/// The free slots, likewise.
#[inline]
pub(crate) fn free(line: &Line) -> u32 {
    each::free(line)
}

#[cfg(all(target_arch = "x86_64", not(any(loom, feature = "shuttle", miri))))]
mod each {
    use super::Line;
    use crate::locks::acquire;
    use std::arch::asm;
    use std::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi16,
        _mm_cmpgt_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set1_epi16,
        _mm_setzero_si128, _mm_shuffle_ps, _mm_slli_epi32, _mm_srai_epi32, _mm_srli_epi16,
        _mm_sub_epi16, _mm_xor_si128,
    };

    /// The lowest sixteen bits of each slot.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn entries(line: &Line) -> __m128i {
        let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
        // SAFETY: 1. Without `readonly` the compiler moves no access to memory across it.
        unsafe {
            asm!(
                "movdqu {a}, [{line}]",
                "movdqu {b}, [{line} + 16]",
                "movdqu {c}, [{line} + 32]",
                "movdqu {d}, [{line} + 48]",
                line = in(reg) line.as_ptr(),
                a = out(xmm_reg) a,
                b = out(xmm_reg) b,
                c = out(xmm_reg) c,
                d = out(xmm_reg) d,
                options(nostack, preserves_flags),
            );
        }
        acquire();
        _mm_packs_epi32(lowest(a, b), lowest(c, d))
    }

    /// The lowest quarters of four words, sign-extended so that packing them keeps them.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn lowest(low: __m128i, high: __m128i) -> __m128i {
        let halves = _mm_shuffle_ps::<0b10_00_10_00>(_mm_castsi128_ps(low), _mm_castsi128_ps(high));
        _mm_srai_epi32::<16>(_mm_slli_epi32::<16>(_mm_castps_si128(halves)))
    }

    /// A bit for each of eight results.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn bits(each: __m128i) -> u32 {
        _mm_movemask_epi8(_mm_packs_epi16(each, _mm_setzero_si128())).cast_unsigned()
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn match_all(line: &Line, pattern: u16) -> u32 {
        let entries = entries(line);
        let differing = _mm_xor_si128(entries, _mm_set1_epi16(pattern.cast_signed()));
        let sentinels = _mm_and_si128(entries, _mm_sub_epi16(_mm_setzero_si128(), entries));
        bits(_mm_cmpgt_epi16(sentinels, _mm_srli_epi16::<1>(differing)))
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn free_all(line: &Line) -> u32 {
        // An entry has a tag, which is not 0.
        bits(_mm_cmpeq_epi16(entries(line), _mm_setzero_si128()))
    }

    #[inline]
    pub(super) fn matching(line: &Line, pattern: u16) -> u32 {
        // SAFETY: 2.
        unsafe { match_all(line, pattern) }
    }

    #[inline]
    pub(super) fn free(line: &Line) -> u32 {
        // SAFETY: 2.
        unsafe { free_all(line) }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(loom, feature = "shuttle", miri)))))]
mod each {
    use super::Line;
    use crate::entry::{FREE, matches};
    use esker_base::sync::atomic::Ordering;

    #[inline]
    fn bits(line: &Line, is: impl Fn(u64) -> bool) -> u32 {
        let slots = line.iter().enumerate();
        slots.map(|(place, slot)| u32::from(is(slot.load(Ordering::Acquire))) << place).sum()
    }

    #[inline]
    pub(super) fn matching(line: &Line, pattern: u16) -> u32 {
        bits(line, |entry| matches(entry, pattern))
    }

    #[inline]
    pub(super) fn free(line: &Line) -> u32 {
        bits(line, |entry| entry == FREE)
    }
}

#[cfg(all(test, not(any(loom, feature = "shuttle"))))]
mod tests {
    use super::*;
    use crate::entry::matches;
    use esker_base::rng::Rng;

    #[test]
    fn a_line_matches_where_its_entries_match_one_by_one() {
        let mut rng = Rng::from_seed(1);
        let (mut none, mut many) = (0, 0);
        for _ in 0..200_000 {
            let pattern = u16::try_from(rng.below(1 << 16)).unwrap() | 1;
            // Entries that share a random number of first bits with the pattern, or are free.
            let entries: [u64; SLOTS] = std::array::from_fn(|_| {
                let bits = rng.below(11);
                let other = rng.next_u64() & !0xFFFF | u64::from(pattern) ^ rng.below(1 << 10);
                let entry = other & !((2 << bits) - 1) | 1 << bits;
                if rng.chance(1, 8) { 0 } else { entry }
            });
            let line: Line = entries.map(AtomicU64::new);
            let expected: u32 =
                (0..SLOTS).map(|slot| u32::from(matches(entries[slot], pattern)) << slot).sum();
            assert_eq!(matching(&line, pattern), expected, "{entries:x?} {pattern:x}");
            let expected_free: u32 =
                (0..SLOTS).map(|slot| u32::from(entries[slot] == 0) << slot).sum();
            assert_eq!(free(&line), expected_free, "{entries:x?}");
            none += u32::from(expected == 0);
            many += u32::from(expected.count_ones() > 1);
        }
        assert!(none > 1000 && many > 1000);
    }
}
