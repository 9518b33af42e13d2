//! Records in DRAM, for devices that are slow to read: optional, and off unless asked for.
//!
//! A record never changes where it lies, as long as its segment lives; so what is kept goes by the
//! index's link and the salt of the segment's life. Nothing has to be told of writes: a record that was
//! replaced, moved or evicted is not asked for any more, and leaves as what is not used.
//!
//! # Invariants
//! - M1: what is kept under a link and a salt was verified against that salt, so a hit is what a read
//!   would bring; whoever hits makes sure by the generation, like whoever reads (S2 of the segments).
//! - M2: records and what it takes to keep them stay below one budget of bytes.
//!
//! # Concurrency
//! Any thread; short locks of shards, never held across I/O.

use super::read::Fetched;
use esker_base::Result;
use esker_index::Link;
use esker_media::BufferPool;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What an entry costs besides its bytes: key, counts, links and hash of the cache's table.
const ENTRY_BYTES: u64 = 160;
/// A record longer than this share of the budget is not kept.
const RECORD_SHARE: u64 = 64;
/// Bytes of a usual entry, for the first size of the table.
const USUAL_BYTES: u64 = 512;

/// Which record: its link, and the salt of its segment.
type Place = (Link, u64);

/// The weight of an entry is its memory.
#[derive(Clone, Debug)]
struct Memory;

impl Weighter<Place, Arc<Fetched>> for Memory {
    fn weight(&self, _: &Place, record: &Arc<Fetched>) -> u64 {
        record.memory_bytes() + ENTRY_BYTES
    }
}

/// Records in DRAM.
#[derive(Debug)]
pub(super) struct RecordCache {
    records: Cache<Place, Arc<Fetched>, Memory>,
    budget_bytes: u64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl RecordCache {
    /// `None` for a budget of 0.
    pub(super) fn new(budget_bytes: u64) -> Option<RecordCache> {
        let estimated = usize::try_from(budget_bytes / USUAL_BYTES).unwrap_or(usize::MAX);
        (budget_bytes > 0).then(|| RecordCache {
            records: Cache::with_weighter(estimated, budget_bytes, Memory),
            budget_bytes,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// A copy of the record, if it is kept; else `read` brings it, and it is kept.
    pub(super) fn get_or(
        &self,
        pool: &BufferPool,
        place: Place,
        admit: &mut dyn FnMut(u64) -> Result<()>,
        read: impl FnOnce(&mut dyn FnMut(u64) -> Result<()>) -> Result<Fetched>,
    ) -> Result<Fetched> {
        if let Some(record) = self.records.get(&place) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            admit(record.memory_bytes())?;
            return Ok(record.copy(pool));
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let record = read(admit)?;
        if record.size_bytes() as u64 <= self.budget_bytes / RECORD_SHARE {
            // Of a copy, since a read brings the blocks around the record as well.
            let kept = record.copy(pool);
            self.records.insert(place, Arc::new(kept));
        }
        Ok(record)
    }

    /// Hits, misses, and bytes in use.
    pub(super) fn figures(&self) -> [u64; 3] {
        let [hits, misses] = [&self.hits, &self.misses].map(|count| count.load(Ordering::Relaxed));
        [hits, misses, self.records.weight()]
    }
}
