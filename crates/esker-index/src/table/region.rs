//! A region of a table: what is known of some homes besides their entries, and their lock.
//!
//! # Invariants
//! - Bits are set before an entry is put where they send a lookup to, and cleared when nothing is there any more (H6 of the table);
//!   those of the overflow never are (H4).
//! - It is one cache line (H7), so that who finds the home's line and this one at hand mostly needs nothing else.
//!
//! # Concurrency
//! Bits change under the lock: they are set before the entry that they are for is published, cleared after it went, and read by
//! anyone without it.

use super::GEOMETRY;
use crate::line::SLOTS;
use crate::locks::Latch;
use esker_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A run of homes: what is known of them besides their entries, on one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Region {
    /// A bit for each home: set if an entry of it may be elsewhere than in its first line.
    beyond: [AtomicU64; Self::HOMES_MAX / 64],
    /// A bit for each two homes: set if an entry of theirs may be two lines away or more.
    far: [AtomicU64; Self::HOMES_MAX / 128],
    /// A bit for each line: set if the overflow may have an entry of its homes.
    pub(super) overflow: AtomicU32,
    /// Entries of these homes in slots. Changes under the lock.
    pub(super) entries: AtomicU32,
    pub(super) lock: Latch,
    /// Set once, under the lock: the entries of these homes are in the table's growth.
    pub(super) migrated: AtomicBool,
}
const _: () = assert!(cfg!(any(loom, feature = "shuttle")) || size_of::<Region>() == 64);
const _: () = assert!(1 << GEOMETRY.region_bits <= Region::HOMES_MAX);
const _: () = assert!(Region::HOMES_MAX / SLOTS <= 32, "a bit for each line");

impl Region {
    /// Homes of a region, at most.
    const HOMES_MAX: usize = 256;

    /// The bit of a home in words each of whose bits is for `1 << shift` homes of this region.
    #[inline]
    fn bit(words: &[AtomicU64], home: usize, shift: u32) -> Option<(&AtomicU64, u64)> {
        let place = (home % Self::HOMES_MAX) >> shift;
        words.get(place / 64).map(|word| (word, 1 << (place % 64)))
    }

    #[inline]
    fn is_set(bit: Option<(&AtomicU64, u64)>) -> bool {
        // Acquire: with the entries' Release it is at least what their writers made it.
        bit.is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Whether an entry of a home may be elsewhere than in its first line.
    #[inline]
    pub(super) fn reaches_beyond(&self, home: usize) -> bool {
        Self::is_set(Self::bit(&self.beyond, home, 0))
    }

    /// Whether one may be behind the second line of its neighbourhood.
    #[inline]
    pub(super) fn reaches_far(&self, home: usize) -> bool {
        Self::is_set(Self::bit(&self.far, home, 1))
    }

    pub(super) fn set_beyond(&self, home: usize) {
        set(Self::bit(&self.beyond, home, 0));
    }

    pub(super) fn set_far(&self, home: usize) {
        set(Self::bit(&self.far, home, 1));
    }

    /// No entry of a home is elsewhere than in its first line.
    pub(super) fn clear_beyond(&self, home: usize) {
        clear(Self::bit(&self.beyond, home, 0));
    }

    /// No entry of the two homes that share the bit is behind the second line of its neighbourhood.
    pub(super) fn clear_far(&self, home: usize) {
        clear(Self::bit(&self.far, home, 1));
    }

    /// Whether the overflow may have entries of the homes of these lines.
    pub(super) fn overflows(&self, lines: u32) -> bool {
        self.overflow.load(Ordering::Acquire) & lines != 0
    }

    pub(super) fn set_overflow(&self, lines: u32) {
        if self.overflow.load(Ordering::Relaxed) & lines == 0 {
            self.overflow.fetch_or(lines, Ordering::Release);
        }
    }
}

#[inline]
fn set(bit: Option<(&AtomicU64, u64)>) {
    if let Some((word, bit)) = bit
        && word.load(Ordering::Relaxed) & bit == 0
    {
        word.fetch_or(bit, Ordering::Release);
    }
}

fn clear(bit: Option<(&AtomicU64, u64)>) {
    if let Some((word, bit)) = bit {
        word.fetch_and(!bit, Ordering::Release);
    }
}
