//! Segment table: what each segment holds, and which ones are free (uDepot §4.1).
//!
//! # Invariants
//! - S1: a record is live while an index entry (or a tombstone's) points at it. A sealed segment
//!   without live records is free.
//! - S2: the generation grows before the first byte of a reused segment is overwritten. Who read a
//!   record and finds the generation unchanged since it looked the record up has read that record.
//! - S3: the newest record of a key, tombstone or not, is live; so what a free segment holds is
//!   older than something that is durable, and overwriting it loses nothing.
//!
//! # Concurrency
//! Counters are atomic; the free list has a short lock. Only the leader of the log takes segments.

use esker_base::ids::{SegmentEpoch, SegmentId, Version};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What a segment is good for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Use {
    /// Free, and on the free list.
    Free = 0,
    /// The log is written here.
    Open = 1,
    /// Full.
    Sealed = 2,
}

/// Fewest segments that only deletes may use, so that a full store can be emptied.
const RESERVE_MIN: usize = 2;
/// One segment of so many is kept for deletes: a lone tombstone takes a block, and frees a segment
/// only with the last of the records there.
const RESERVE_SHARE: usize = 20;

#[derive(Debug, Default)]
struct Segment {
    state: AtomicU8,
    live_records: AtomicU32,
    live_bytes: AtomicU64,
    epoch: AtomicU64,
    salt: AtomicU64,
}

/// A segment on the free list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Free {
    pub(super) id: SegmentId,
    /// All of its extents were written once: flushes into it cost no file-system metadata.
    pub(super) prepared: bool,
    /// It may be overwritten once all records up to this version are durable: one of them made it
    /// free.
    pub(super) after: Version,
}

/// The table.
#[derive(Debug)]
pub(super) struct Segments {
    segments: Box<[Segment]>,
    free: Mutex<VecDeque<Free>>,
    generation: AtomicU64,
}

impl Segments {
    pub(super) fn new(count: u32) -> Self {
        Segments {
            segments: (0..count).map(|_| Segment::default()).collect(),
            free: Mutex::default(),
            generation: AtomicU64::new(0),
        }
    }

    fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.segments.get(usize::try_from(id.0).ok()?)
    }

    /// Counts reuses; see S2.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    pub(super) fn salt(&self, id: SegmentId) -> u64 {
        self.get(id).map_or(0, |segment| segment.salt.load(Ordering::Acquire))
    }

    pub(super) fn epoch(&self, id: SegmentId) -> SegmentEpoch {
        SegmentEpoch(self.get(id).map_or(0, |segment| segment.epoch.load(Ordering::Acquire)))
    }

    pub(super) fn state(&self, id: SegmentId) -> Use {
        match self.get(id).map_or(0, |segment| segment.state.load(Ordering::Acquire)) {
            1 => Use::Open,
            2 => Use::Sealed,
            _ => Use::Free,
        }
    }

    pub(super) fn live_records(&self, id: SegmentId) -> u32 {
        self.get(id).map_or(0, |segment| segment.live_records.load(Ordering::Acquire))
    }

    /// Number of free segments that only deletes may use.
    pub(super) fn reserve(&self) -> usize {
        (self.segments.len() / RESERVE_SHARE).max(RESERVE_MIN)
    }

    pub(super) fn free_count(&self) -> usize {
        self.free.lock().len()
    }

    /// Puts a segment on the free list that never held anything of this store, or whose content
    /// recovery found dead.
    pub(super) fn add_free(&self, id: SegmentId, prepared: bool) {
        self.free.lock().push_back(Free { id, prepared, after: Version(0) });
    }

    /// Puts the log's segment back in place at recovery.
    pub(super) fn restore(&self, id: SegmentId, state: Use, epoch: SegmentEpoch, salt: u64) {
        if let Some(segment) = self.get(id) {
            segment.epoch.store(epoch.0, Ordering::Release);
            segment.salt.store(salt, Ordering::Release);
            segment.state.store(state as u8, Ordering::Release);
        }
    }

    /// Takes the next free segment; it keeps its old salt until [`Segments::open`].
    pub(super) fn take(&self) -> Option<Free> {
        self.free.lock().pop_front()
    }

    /// Starts the reuse of a segment that was taken.
    pub(super) fn open(&self, id: SegmentId, epoch: SegmentEpoch, salt: u64) {
        // S2: before the caller writes the first byte.
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.restore(id, Use::Open, epoch, salt);
    }

    /// Marks a full segment; frees it if all its records are dead already.
    pub(super) fn seal(&self, id: SegmentId, now: Version) {
        if let Some(segment) = self.get(id) {
            segment.state.store(Use::Sealed as u8, Ordering::SeqCst);
            self.free_if_dead(id, segment, now);
        }
    }

    /// A record of the segment went live.
    pub(super) fn add(&self, id: SegmentId, bytes: u64) {
        if let Some(segment) = self.get(id) {
            segment.live_records.fetch_add(1, Ordering::SeqCst);
            segment.live_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A record of the segment was superseded by the record of version `by`.
    pub(super) fn remove(&self, id: SegmentId, bytes: u64, by: Version) {
        let Some(segment) = self.get(id) else { return };
        segment.live_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if segment.live_records.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.free_if_dead(id, segment, by);
        }
    }

    /// Everything up to version `by` is dead.
    pub(super) fn clear(&self, by: Version) {
        for (index, segment) in self.segments.iter().enumerate() {
            segment.live_bytes.store(0, Ordering::Relaxed);
            segment.live_records.store(0, Ordering::SeqCst);
            let id = SegmentId(u32::try_from(index).unwrap_or(u32::MAX));
            self.free_if_dead(id, segment, by);
        }
    }

    fn free_if_dead(&self, id: SegmentId, segment: &Segment, by: Version) {
        if segment.live_records.load(Ordering::SeqCst) > 0 {
            return;
        }
        // Whoever turns the state wins; seal and remove may both come here.
        let (sealed, free) = (Use::Sealed as u8, Use::Free as u8);
        let order = Ordering::SeqCst;
        if segment.state.compare_exchange(sealed, free, order, order).is_ok() {
            self.free.lock().push_back(Free { id, prepared: true, after: by });
        }
    }

    /// The first segments of the free list that are not prepared yet and come up soon.
    pub(super) fn unprepared(&self, ahead: usize) -> Option<SegmentId> {
        self.free.lock().iter().take(ahead).find(|free| !free.prepared).map(|free| free.id)
    }

    /// Takes a segment off the free list to prepare it; refuses when the log may need it now.
    pub(super) fn take_unprepared(&self, id: SegmentId) -> bool {
        let mut free = self.free.lock();
        let before = free.len();
        if before <= self.reserve() + 1 {
            return false;
        }
        free.retain(|free| free.id != id);
        free.len() < before
    }

    /// Puts a segment back on the free list: a ready one behind the other ready ones at its head.
    pub(super) fn put_back(&self, id: SegmentId, prepared: bool) {
        let mut free = self.free.lock();
        let ready = free.iter().take_while(|free| free.prepared).count();
        let place = if prepared { ready } else { free.len() };
        free.insert(place, Free { id, prepared, after: Version(0) });
    }

    /// Live records and bytes of all segments.
    pub(super) fn live(&self) -> (u64, u64) {
        self.segments.iter().fold((0, 0), |(records, bytes), segment| {
            let live = u64::from(segment.live_records.load(Ordering::Relaxed));
            (records + live, bytes + segment.live_bytes.load(Ordering::Relaxed))
        })
    }
}
