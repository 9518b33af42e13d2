//! Records in DRAM, for devices that are slow to read: optional, and off unless asked for.
//!
//! A record never changes where it lies, as long as its segment lives; so what is kept goes by the
//! index's link and the salt of the segment's life. Nothing has to be told of writes: a record that was
//! replaced, moved or evicted is not asked for any more, and leaves as what is not used.
//!
//! # Invariants
//! - M1: what is kept under a link and a salt was verified against that salt, or written with it, so a hit is what a read
//!   would bring; whoever hits makes sure by the generation, like whoever reads (S2 of the segments).
//! - M2: records and what it takes to keep them stay below one budget of bytes.
//!
//! # Concurrency
//! Any thread; short locks of shards, never held across I/O.
//!
//! What does not fit any more is kept only if it was asked for before, as far as a table of marks remembers (a
//! doorkeeper, as TinyLFU's): a record that nobody asks for twice costs one mark. So it is from the start where memory
//! lies before the device anyway: there a read costs less than to keep what it brought.

use esker_base::striped::Striped;
use esker_index::Link;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// What an entry costs besides its bytes: key, counts, links and hash of the cache's table, and what memory of its
/// own costs.
const ENTRY_BYTES: u64 = 160;
/// A record longer than this share of the budget is not kept.
const RECORD_SHARE: u64 = 64;
/// Bytes of a usual entry, for the first size of the table and the number of marks.
const USUAL_BYTES: u64 = 256;
/// Most marks, which are there from the start, and most entries that the table has room for then.
const MARKS_MAX: usize = 1 << 26;
const FIRST_ENTRIES_MAX: usize = 1 << 22;
/// An odd number with its bits well mixed.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// Which record: its link, and the salt of its segment.
type Place = (Link, u64);

/// A hash of places: they are not chosen by anybody outside, and salts are random.
#[derive(Clone, Copy, Debug, Default)]
struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(MIX);
        self.0 = mixed ^ mixed >> 32;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(MIX)
    }
}

type Records = Cache<Place, Arc<[u8]>, Memory, BuildHasherDefault<PlaceHasher>>;

/// The weight of an entry is its memory.
#[derive(Clone, Debug)]
struct Memory;

fn weight_of(record: &[u8]) -> u64 {
    record.len() as u64 + ENTRY_BYTES
}

impl Weighter<Place, Arc<[u8]>> for Memory {
    fn weight(&self, _: &Place, record: &Arc<[u8]>) -> u64 {
        weight_of(record)
    }
}

#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Records in DRAM, as they stand on media.
#[derive(Debug)]
pub(super) struct RecordCache {
    records: Records,
    budget_bytes: u64,
    /// Weight of what was put in so far, until that is most of the budget; beyond it from the start if it is not eager.
    filled: AtomicU64,
    /// Of records that were asked for once: some bits of their hashes.
    marks: Box<[AtomicU16]>,
    counts: Striped<Counts>,
}

impl RecordCache {
    /// `None` for a budget of 0. `eager`: while there is room, keep what is read once.
    pub(super) fn new(budget_bytes: u64, eager: bool) -> Option<RecordCache> {
        let estimated = usize::try_from(budget_bytes / USUAL_BYTES).unwrap_or(usize::MAX);
        let marks: Box<[AtomicU16]> =
            (0..estimated.min(MARKS_MAX)).map(|_| AtomicU16::new(0)).collect();
        let capacity = budget_bytes.saturating_sub(size_of_val(&*marks) as u64);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(estimated.min(FIRST_ENTRIES_MAX))
            .weight_capacity(capacity)
            .build()
            .ok()
            .filter(|_| budget_bytes > 0)?;
        let (hasher, lifecycle) = (BuildHasherDefault::default(), DefaultLifecycle::default());
        Some(RecordCache {
            records: Cache::with_options(options, Memory, hasher, lifecycle),
            budget_bytes,
            filled: AtomicU64::new(if eager { 0 } else { u64::MAX }),
            marks,
            counts: Striped::default(),
        })
    }

    /// The record, if it is kept.
    pub(super) fn get(&self, place: Place) -> Option<Arc<[u8]>> {
        let found = self.records.get(&place);
        let counts = self.counts.here();
        let count = if found.is_some() { &counts.hits } else { &counts.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// As [`RecordCache::get`], for who does not count.
    pub(super) fn peek(&self, place: Place) -> Option<Arc<[u8]>> {
        self.records.get(&place)
    }

    /// Keeps a record that was read, if it is worth it.
    pub(super) fn keep(&self, place: Place, record: &[u8]) {
        let weight = weight_of(record);
        if weight > self.budget_bytes / RECORD_SHARE || !self.is_due(place, weight) {
            return;
        }
        self.records.insert(place, record.into());
    }

    /// Keeps a record that was written, if the one that it replaces is kept or there is room: whoever writes the key again
    /// reads it first.
    pub(super) fn wrote(&self, place: Place, replaced: Option<Place>, record: &[u8]) {
        let weight = weight_of(record);
        let follows = replaced.is_some_and(|old| self.records.remove(&old).is_some());
        if weight <= self.budget_bytes / RECORD_SHARE && (follows || self.has_room(weight)) {
            self.records.insert(place, record.into());
        }
    }

    /// Whether there is room that may be filled; the record takes it.
    fn has_room(&self, weight: u64) -> bool {
        let room = self.filled.load(Ordering::Relaxed) < self.budget_bytes / 8 * 7;
        if room {
            self.filled.fetch_add(weight, Ordering::Relaxed);
        }
        room
    }

    /// Whether there is room that may be filled, or the record was asked for before.
    fn is_due(&self, (link, salt): Place, weight: u64) -> bool {
        if self.has_room(weight) {
            return true;
        }
        let mut hasher = PlaceHasher::default();
        hasher.write_u64(salt);
        hasher.write_u64(link.grain());
        let hash = hasher.finish();
        let number = usize::try_from(hash % self.marks.len().max(1) as u64).unwrap_or(0);
        let bits = u16::try_from(hash >> 48).unwrap_or(0) | 1;
        self.marks.get(number).is_none_or(|mark| mark.swap(bits, Ordering::Relaxed) == bits)
    }

    /// Hits, misses, and bytes in use.
    pub(super) fn figures(&self) -> [u64; 3] {
        let sum = |count: fn(&Counts) -> &AtomicU64| {
            self.counts.iter().map(|counts| count(counts).load(Ordering::Relaxed)).sum()
        };
        let bytes = self.records.weight() + size_of_val(&*self.marks) as u64;
        [sum(|counts| &counts.hits), sum(|counts| &counts.misses), bytes]
    }
}
