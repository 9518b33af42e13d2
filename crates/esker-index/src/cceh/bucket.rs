//! A bucket: one cache line with four entries and the header that orders access to them.
//!
//! ```text
//! header  | fingerprints 4 x 8 | version 27 | reach 3 | stashed 1 | locked 1 |      from the top
//! uppers  three words: the upper 48 bits of the first three hashes, each below 16 bits of the fourth
//! words   four: | distance 3 | word 61 |, 0: free
//! ```
//!
//! The fingerprint of an entry is bits 8 to 15 of its hash. The lowest 8 bits are not stored: they
//! are the number of the home, which is the bucket's number less the distance. So a line keeps
//! four whole hashes and four words. (Where tests have fewer homes, see [`SMALL`], a second line has the lowest bits.)
//!
//! # Invariants
//! - B1: the words of a bucket, its fingerprints and uppers change only under its lock, and so does the
//!   reach of a home: no entry of the home is farther away.
//! - B2: the version rises, and the word of the slot is 0, before anything else of a slot changes.
//!   So a reader that finds the header as it was has read entries that stood there.
//! - B3: the version of a home rises also after an entry of it has come, wherever that stands, and before any
//!   other is removed. So a reader of several buckets that finds the home's header as it was has not
//!   missed both what came and what then went.
//!
//! # Concurrency
//! Readers take nothing and wait for nobody; a header that changed makes them read again. 2^27
//! changes of one bucket within one reading would deceive them.

use crate::locks::{Wait, acquire, release};
use esker_base::sync::atomic::{AtomicU64, Ordering};

/// Buckets where an entry may stand, from its home on.
pub(super) const WINDOW: usize = 8;
/// Entries of a bucket.
pub(super) const SLOTS: usize = 4;
/// Whether segments have four homes, 16 slots, so that they split after a few entries: in explorations, by shuttle and of crashes.
pub(super) const SMALL: bool = cfg!(any(feature = "shuttle", feature = "small"));
/// Hashes of which the home does not say the lowest 8 bits.
const LOWS: usize = if SMALL { SLOTS } else { 0 };
const LOW: u64 = 0xFF;

const LOCKED: u64 = 1;
const STASHED: u64 = 1 << 1;
const REACH_SHIFT: u32 = 2;
const REACH: u64 = 7 << REACH_SHIFT;
const VERSION: u64 = 1 << 5;
const VERSIONS: u64 = (1 << 32) - VERSION;
const PRINTS_SHIFT: u32 = 32;
const DISTANCE_SHIFT: u32 = 61;
const WORD: u64 = (1 << DISTANCE_SHIFT) - 1;
const UPPER_BITS: u32 = 48;
const UPPER: u64 = (1 << UPPER_BITS) - 1;
/// A byte's lowest bits in each of four bytes.
const ONES: u64 = 0x0101_0101;
const SEVENS: u64 = 0x7F7F_7F7F;
const _: () = assert!(WINDOW == (REACH >> REACH_SHIFT) as usize + 1);
const _: () = assert!(crate::Word::END == WORD + 1);

/// A header that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header(u64);

impl Header {
    /// How many buckets after the home may hold its entries.
    #[inline]
    pub(super) fn reach(self) -> usize {
        usize::try_from((self.0 & REACH) >> REACH_SHIFT).unwrap_or(0)
    }

    /// Whether the stash may hold entries of this home.
    #[inline]
    pub(super) fn stashed(self) -> bool {
        self.0 & STASHED != 0
    }

    /// Whether entries of this home may stand elsewhere.
    #[inline]
    pub(super) fn is_wide(self) -> bool {
        self.0 & (REACH | STASHED) != 0
    }

    /// Slots whose fingerprint agrees with the hash: bit 7 of each one's byte.
    #[inline]
    fn matches(self, hash: u64) -> u64 {
        let differing = (self.0 >> PRINTS_SHIFT) ^ ((hash >> 8 & 0xFF) * ONES);
        !(((differing & SEVENS) + SEVENS) | differing | SEVENS) & 0xFFFF_FFFF
    }
}

/// An entry as it stands in a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) slot: usize,
    /// The hash without its lowest 8 bits.
    pub(super) rest: u64,
    pub(super) distance: usize,
    pub(super) word: u64,
    /// The lowest 8 bits, if the home does not say them.
    low: Option<u64>,
}

impl Entry {
    /// The hash, given the number of the home.
    #[inline]
    pub(super) fn hash(&self, home: usize) -> u64 {
        self.rest << 8 | self.low.unwrap_or(home as u64)
    }
}

/// The bucket.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Bucket {
    header: AtomicU64,
    uppers: [AtomicU64; 3],
    words: [AtomicU64; SLOTS],
    lows: [AtomicU64; LOWS],
}
const _: () = assert!(SMALL || size_of::<Bucket>() == 64);

impl Bucket {
    #[inline]
    pub(super) fn header(&self) -> Header {
        Header(self.header.load(Ordering::Acquire))
    }

    /// Whether what was read since `header` was read stood there.
    #[inline]
    pub(super) fn unchanged(&self, header: Header) -> bool {
        acquire();
        (self.header.load(Ordering::Relaxed) ^ header.0) & !LOCKED == 0
    }

    /// Waits for the lock.
    #[inline]
    pub(super) fn lock(&self) -> Lock<'_> {
        let mut wait = Wait::default();
        loop {
            let header = self.header.load(Ordering::Relaxed);
            let attempt = |header| {
                let locked = header | LOCKED;
                let (won, lost) = (Ordering::Acquire, Ordering::Relaxed);
                self.header.compare_exchange(header, locked, won, lost).is_ok()
            };
            if header & LOCKED == 0 && attempt(header) {
                return Lock(self);
            }
            wait.turn();
        }
    }

    #[inline]
    fn upper(&self, slot: usize) -> u64 {
        if let Some(upper) = self.uppers.get(slot) {
            return upper.load(Ordering::Relaxed) & UPPER;
        }
        let sixteen = |upper: &AtomicU64| upper.load(Ordering::Relaxed) >> UPPER_BITS;
        let [first, second, third] = &self.uppers;
        sixteen(first) | sixteen(second) << 16 | sixteen(third) << 32
    }

    /// The lowest 8 bits of the hash in a slot, if the home does not say them.
    #[inline]
    fn low(&self, slot: usize) -> Option<u64> {
        self.lows.get(slot).map(|low| low.load(Ordering::Relaxed))
    }

    /// Gives slot and word of each entry with this hash and distance to `found`.
    #[inline]
    pub(super) fn search(
        &self,
        header: Header,
        hash: u64,
        distance: usize,
        mut found: impl FnMut(usize, u64),
    ) {
        let mut matches = header.matches(hash);
        while matches != 0 {
            let slot = usize::try_from(matches.trailing_zeros() / 8).unwrap_or(0);
            matches &= matches - 1;
            let Some(word) = self.words.get(slot) else { return };
            // Acquire: whoever sees a word sees the hash that was stored before it (B2).
            let word = word.load(Ordering::Acquire);
            let agrees = word >> DISTANCE_SHIFT == distance as u64 && word & WORD != 0;
            let same_low = self.low(slot).is_none_or(|low| low == hash & LOW);
            if agrees && same_low && self.upper(slot) == hash >> 16 {
                found(slot, word & WORD);
            }
        }
    }

    /// The entries. They count if the header is unchanged afterwards.
    #[inline]
    pub(super) fn entries(&self, header: Header) -> impl Iterator<Item = Entry> + '_ {
        self.words.iter().enumerate().filter_map(move |(slot, word)| {
            let word = word.load(Ordering::Acquire);
            let print = header.0 >> PRINTS_SHIFT >> (8 * slot) & 0xFF;
            (word & WORD != 0).then(|| Entry {
                slot,
                rest: self.upper(slot) << 8 | print,
                distance: usize::try_from(word >> DISTANCE_SHIFT).unwrap_or(0),
                word: word & WORD,
                low: self.low(slot),
            })
        })
    }

    /// Whether the slot holds an entry of another segment, left there by a split: its hash and this
    /// one, which belongs here, differ in their first `depth` bits.
    #[inline]
    fn is_foreign(&self, slot: usize, hash: u64, depth: u32) -> bool {
        (self.upper(slot) ^ hash >> 16) >> (UPPER_BITS - depth) != 0
    }

    /// A slot that is free, or that a split has left (lazy deletion). The caller holds the lock.
    #[inline]
    pub(super) fn free(&self, hash: u64, depth: u32) -> Option<usize> {
        let free = self.words.iter().position(|word| word.load(Ordering::Relaxed) & WORD == 0);
        free.or_else(|| (0..SLOTS).find(|slot| self.is_foreign(*slot, hash, depth)))
    }

    /// The entries that belong to the segment of this hash. The caller holds the lock, or that of the home of those that it asks about.
    pub(super) fn own(&self, hash: u64, depth: u32) -> impl Iterator<Item = Entry> + '_ {
        self.entries(self.header()).filter(move |entry| !self.is_foreign(entry.slot, hash, depth))
    }

    /// Puts an entry into a free slot. The caller holds the lock.
    #[inline]
    pub(super) fn put(&self, slot: usize, hash: u64, distance: usize, word: u64) {
        let Some(place) = self.words.get(slot) else { return };
        // B2: first nothing stands there, then the version rises (with the fingerprint, which
        // means nothing without a word), then the hash comes, and last the word.
        place.store(0, Ordering::Relaxed);
        let header = self.header.load(Ordering::Relaxed);
        let shift = PRINTS_SHIFT + 8 * u32::try_from(slot).unwrap_or(0);
        let prints = header & !(0xFF << shift) | (hash >> 8 & 0xFF) << shift;
        self.header.store(risen(prints), Ordering::Release);
        release();
        let upper = hash >> 16;
        match self.uppers.get(slot) {
            Some(place) => {
                let fourth = place.load(Ordering::Relaxed) & !UPPER;
                place.store(fourth | upper, Ordering::Relaxed);
            }
            None => {
                for (place, shift) in self.uppers.iter().zip([0, 16, 32]) {
                    let other = place.load(Ordering::Relaxed) & UPPER;
                    place.store(other | (upper >> shift) << UPPER_BITS, Ordering::Relaxed);
                }
            }
        }
        if let Some(low) = self.lows.get(slot) {
            low.store(hash & LOW, Ordering::Relaxed);
        }
        place.store((distance as u64) << DISTANCE_SHIFT | word, Ordering::Release);
    }

    /// Gives the entry in a slot another word, or frees the slot with 0. The caller holds the lock.
    #[inline]
    pub(super) fn set(&self, slot: usize, distance: usize, word: u64) {
        let tagged = if word == 0 { 0 } else { (distance as u64) << DISTANCE_SHIFT | word };
        if let Some(place) = self.words.get(slot) {
            place.store(tagged, Ordering::Release);
        }
    }

    /// Says, before an entry of this home is put that far away, that one will be there. The caller holds
    /// the lock.
    #[inline]
    pub(super) fn reach_to(&self, distance: usize) {
        let header = self.header.load(Ordering::Relaxed);
        let reach = header & REACH;
        let reach = reach.max((distance as u64) << REACH_SHIFT);
        self.header.store(risen(header & !REACH | reach), Ordering::Release);
    }

    /// Says, after an entry of this home was put somewhere, that one has come: readers of this home that
    /// missed it, and the one that it replaces as well, read again. The caller holds the lock.
    #[inline]
    pub(super) fn touch(&self) {
        let header = self.header.load(Ordering::Relaxed);
        self.header.store(risen(header), Ordering::Release);
    }

    /// Says that entries of this home stand no farther away. The caller holds the lock.
    pub(super) fn reach_only_to(&self, distance: usize) {
        let header = self.header.load(Ordering::Relaxed);
        let reach = (distance as u64) << REACH_SHIFT;
        self.header.store(risen(header & !REACH | reach), Ordering::Release);
    }

    /// Says, before an entry of this home goes to the stash, that one will be there. The caller
    /// holds the lock.
    pub(super) fn mark_stashed(&self) {
        let header = self.header.load(Ordering::Relaxed);
        self.header.store(risen(header | STASHED), Ordering::Release);
    }
}

fn risen(header: u64) -> u64 {
    header & !VERSIONS | header.wrapping_add(VERSION) & VERSIONS
}

/// A locked bucket, until it is dropped.
#[derive(Debug)]
pub(super) struct Lock<'a>(&'a Bucket);

impl Drop for Lock<'_> {
    #[inline]
    fn drop(&mut self) {
        // Nobody else stores to the header of a locked bucket.
        let header = self.0.header.load(Ordering::Relaxed);
        self.0.header.store(header & !LOCKED, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(not(any(loom, feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_version_goes_round_without_touching_its_neighbours() {
        for others in [0, !VERSIONS, REACH | LOCKED, 0xA5 << PRINTS_SHIFT] {
            let last = others & !VERSIONS | VERSIONS;
            assert_eq!(risen(last), others & !VERSIONS);
            assert_eq!(risen(risen(last)), others & !VERSIONS | VERSION);
        }
        let bucket = Bucket::default();
        bucket.header.store(VERSIONS, Ordering::Relaxed);
        let before = bucket.header();
        bucket.put(0, 0x1234_5678_9ABC_DEF0, 0, 7);
        assert!(!bucket.unchanged(before), "the change is seen");
        let mut words = Vec::new();
        bucket.search(bucket.header(), 0x1234_5678_9ABC_DEF0, 0, |_, word| words.push(word));
        assert_eq!(words, [7]);
    }
}
