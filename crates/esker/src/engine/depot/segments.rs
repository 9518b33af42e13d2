//! Segment table: what each segment holds, and which ones are free (uDepot §4.1).
//!
//! # Invariants
//! - S1: a record is live while an index entry (or a tombstone's) points at it. A sealed segment
//!   without live records is free, unless one that was appended has not been entered yet.
//! - S2: the generation grows before the first byte of a reused segment is overwritten, or one of a free segment that is given
//!   back is lost. Who read a record and finds the generation unchanged since it looked the record up has read that record.
//! - S3: the newest record of a key, tombstone or not, is live, or has a durable copy that is; so what
//!   a free segment holds is older than something that is durable, and overwriting it loses nothing.
//! - S4: no segment is cleaned while a record of it has not been entered: nobody knows it to be live.
//!
//! # Concurrency
//! Counters are atomic; the free list has a short lock. The leader of the log and the cleaner take
//! segments. A backup may hold segments back that went free ([`super::hold`]).

mod counts;
mod expiring;
mod free;
#[cfg(test)]
mod tests;
mod victims;

pub(super) use self::counts::{Live, Written, link_bytes, record_bytes};
use self::expiring::Expiring;
pub(super) use self::free::Free;
use self::free::FreeList;
use self::victims::Roomy;
pub(super) use self::victims::Urgency;
use super::hold::Hold;
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, Version};
use esker_format::depot::{CheckpointSegment, SegmentHeader, Stream};
use esker_index::Link;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// What a segment is good for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Use {
    /// Free: on the free list, or on its way there with a checkpoint in it.
    Free = 0,
    /// The log is written here.
    Open = 1,
    /// Full.
    Sealed = 2,
}

/// Fewest segments that puts leave alone: the cleaner's, so that it can always begin, and some for
/// deletes, so that a full store can be emptied.
const RESERVE_MIN: usize = 3;
/// One segment of so many more is kept. It is room for garbage as well, so of a store that is nearly full, few.
const RESERVE_SHARE: usize = 256;
/// Segments that deletes leave alone: the cleaner's. Copies of a segment's records take less than that segment, so with one it
/// can always go on.
const CLEANER_RESERVE: usize = 1;

/// What readers look at is on a line that writers of records leave alone.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Segment {
    life: Life,
    state: AtomicU8,
    stream: AtomicU8,
    live_records: AtomicU32,
    /// Appends to the segment whose records have not been entered in the index yet.
    entering: AtomicU32,
    /// By the links of the records.
    live_bytes: AtomicU64,
    live_tombstones: AtomicU32,
    /// Tombstones that were written.
    tombstones: AtomicU32,
    /// Bytes of these beyond what their links stand for, which say nothing of their size.
    beyond_bytes: AtomicU64,
    /// Bytes of all records that went live here.
    written_bytes: AtomicU64,
    epoch: AtomicU64,
    /// Newest version that killed a record here.
    killed_by: AtomicU64,
    /// One more than the epoch in which it is not to be cleaned.
    aside: AtomicU64,
    /// The file system is known to have room for all of it: it was taken into use since the store was opened.
    has_room: AtomicBool,
    /// There were items here: of a cache's moved records, those that a repair moved. All others are notes of evictions.
    items: AtomicBool,
    /// When a GET last found a record here, in nanoseconds of the store's clock; in caches only.
    used_at: AtomicU64,
    expiring: Expiring,
}

/// What readers must know to check a record.
#[derive(Debug)]
#[repr(align(64))]
struct Life {
    salt: AtomicU64,
    /// Sequence number of the first record.
    base: AtomicU64,
    /// Device offset from which on records may be in memory only.
    unwritten_from: AtomicU64,
}

impl Default for Life {
    fn default() -> Self {
        let [salt, base] = Default::default();
        Life { salt, base, unwritten_from: AtomicU64::new(u64::MAX) }
    }
}

/// What identifies one incarnation of a segment to who reads its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Incarnation {
    pub(super) stream: Stream,
    pub(super) epoch: SegmentEpoch,
    pub(super) salt: u64,
    pub(super) base: Sequence,
}

impl From<&SegmentHeader> for Incarnation {
    fn from(header: &SegmentHeader) -> Self {
        let SegmentHeader { stream, epoch, salt, first_sequence: base, .. } = *header;
        Incarnation { stream, epoch, salt, base }
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Segments {
    segments: Box<[Segment]>,
    size_bytes: u64,
    /// Segments that puts leave alone.
    reserve: usize,
    free: Mutex<FreeList>,
    pub(super) hold: Hold,
    generation: AtomicU64,
    /// Times that a segment came to hold more than it did: taken into use, or set aside.
    grown: AtomicU64,
    roomy: Mutex<Roomy>,
}

impl Segments {
    /// A cache keeps no more in reserve than it needs.
    pub(super) fn new(count: u32, size_bytes: u64, cache: bool) -> Self {
        let share = usize::try_from(count).unwrap_or(0) / RESERVE_SHARE;
        Segments {
            reserve: RESERVE_MIN + if cache { 0 } else { share },
            segments: (0..count).map(|_| Segment::default()).collect(),
            size_bytes,
            free: Mutex::default(),
            hold: Hold::default(),
            generation: AtomicU64::new(0),
            grown: AtomicU64::new(0),
            roomy: Mutex::default(),
        }
    }

    fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.segments.get(usize::try_from(id.0).ok()?)
    }

    fn all(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        (0..).map(SegmentId).zip(self.segments.iter())
    }

    /// Counts reuses; see S2.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// S2: before the caller gives a free segment back.
    pub(super) fn begin_give_back(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Salt and first sequence number, for checking a record.
    pub(super) fn place(&self, id: SegmentId) -> (u64, Sequence) {
        self.get(id).map_or((0, Sequence(0)), |segment| {
            let salt = segment.life.salt.load(Ordering::Acquire);
            (salt, Sequence(segment.life.base.load(Ordering::Acquire)))
        })
    }

    /// Records of the segment from this device offset on may be in memory only; `None`: all are on the device.
    pub(super) fn unwritten_from(&self, id: SegmentId, offset: Option<u64>) {
        if let Some(segment) = self.get(id) {
            segment.life.unwritten_from.store(offset.unwrap_or(u64::MAX), Ordering::Release);
        }
    }

    /// Whether the record at a device offset, which the caller found in the index, may be in memory only.
    pub(super) fn is_unwritten(&self, id: SegmentId, offset: u64) -> bool {
        self.get(id)
            .is_some_and(|segment| offset >= segment.life.unwritten_from.load(Ordering::Acquire))
    }

    pub(super) fn epoch(&self, id: SegmentId) -> SegmentEpoch {
        SegmentEpoch(self.get(id).map_or(0, |segment| segment.epoch.load(Ordering::Acquire)))
    }

    pub(super) fn incarnation(&self, id: SegmentId) -> Incarnation {
        let stream = match self.get(id).map_or(0, |s| s.stream.load(Ordering::Acquire)) {
            1 => Stream::Warm,
            2 => Stream::Cold,
            3 => Stream::Checkpoint,
            _ => Stream::Fresh,
        };
        let (salt, base) = self.place(id);
        Incarnation { stream, epoch: self.epoch(id), salt, base }
    }

    /// Never cleans this incarnation of a segment again: something in it cannot be read, or whatever
    /// was live in it has gone elsewhere and is about to be uncounted.
    pub(super) fn set_aside(&self, id: SegmentId, epoch: SegmentEpoch) {
        if let Some(segment) = self.get(id) {
            self.grown.fetch_add(1, Ordering::Relaxed);
            segment.aside.store(epoch.0 + 1, Ordering::SeqCst);
        }
    }

    /// Records were appended to the open segment that are not entered in the index yet.
    pub(super) fn begin_entry(&self, id: SegmentId) {
        if let Some(segment) = self.get(id) {
            segment.entering.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Keeps a segment that may be cleaned from going free until [`Segments::end_entry`]; false if it may not be cleaned.
    pub(super) fn pin(&self, id: SegmentId) -> bool {
        // Whoever makes it free has this lock.
        let _held = self.hold.lock();
        let may = self.is_cleanable(id);
        if may {
            self.begin_entry(id);
        }
        may
    }

    /// They are entered now.
    pub(super) fn end_entry(&self, id: SegmentId) {
        let Some(segment) = self.get(id) else { return };
        if segment.entering.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.free_if_dead(id, segment, Version(0));
        }
    }

    /// Notes that a GET found a record in the segment.
    pub(super) fn used(&self, id: SegmentId, now: Duration) {
        if let Some(segment) = self.get(id) {
            let nanoseconds = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            segment.used_at.store(nanoseconds, Ordering::Relaxed);
        }
    }

    /// When a GET last found a record in the segment.
    pub(super) fn used_at(&self, id: SegmentId) -> u64 {
        self.get(id).map_or(0, |segment| segment.used_at.load(Ordering::Relaxed))
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

    pub(super) fn live_bytes(&self, id: SegmentId) -> u64 {
        self.get(id).map_or(0, Segment::live_bytes)
    }

    /// Bytes of all records that were written to a segment, at least: dead extents may count, or not.
    pub(super) fn written_bytes(&self, id: SegmentId) -> u64 {
        self.get(id).map_or(0, |segment| segment.written_bytes.load(Ordering::Relaxed))
    }

    pub(super) fn sealed(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.all().map(|(id, _)| id).filter(|id| self.state(*id) == Use::Sealed)
    }

    /// Number of free segments that puts leave alone.
    pub(super) fn reserve_of_puts(&self) -> usize {
        self.reserve
    }

    /// Number of segments that what is live leaves alone ([`Segments::is_crowded`]).
    pub(super) fn kept_of_live(&self, cache: bool) -> usize {
        self.reserve + if cache { 0 } else { 3 }
    }

    /// Number of free segments that deletes leave alone.
    pub(super) fn reserve_of_deletes(&self) -> usize {
        CLEANER_RESERVE
    }

    /// Segments in use.
    pub(super) fn in_use(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.all().map(|(id, _)| id).filter(|id| self.state(*id) != Use::Free)
    }

    /// What a checkpoint covers that begins now: all that records were appended to, in `open` ones up to these places. What
    /// is free and was not overwritten counts as well: it holds nothing that counts. One that is taken just now for records from `next` on
    /// has none yet, and will have some.
    pub(super) fn covered(
        &self,
        open: &[(SegmentId, u64)],
        next: Version,
    ) -> Vec<CheckpointSegment> {
        let is_ahead = |id: SegmentId| {
            let of = self.incarnation(id);
            let is_open = open.iter().any(|(open, _)| *open == id);
            of.stream == Stream::Fresh && of.base.0 >= next.0 && !is_open
        };
        let of_log = self.all().filter(|(id, segment)| {
            segment.epoch.load(Ordering::Acquire) > 0
                && self.incarnation(*id).stream != Stream::Checkpoint
                && !is_ahead(*id)
        });
        let covered = of_log.map(|(id, segment)| {
            let tail = open.iter().find(|(open, _)| *open == id);
            CheckpointSegment {
                id,
                epoch: self.epoch(id),
                covered_bytes: tail.map_or(self.size_bytes, |(_, position)| *position),
                written_bytes: segment.written_bytes.load(Ordering::Relaxed),
                tombstones: segment.tombstones.load(Ordering::Relaxed),
                beyond_bytes: segment.beyond_bytes.load(Ordering::Relaxed),
            }
        });
        covered.collect()
    }

    /// Says what a segment is: at recovery, and when it is taken into use.
    pub(super) fn restore(&self, id: SegmentId, state: Use, incarnation: Incarnation) {
        if let Some(segment) = self.get(id) {
            segment.epoch.store(incarnation.epoch.0, Ordering::Release);
            // In this order: who meets the new salt meets the new base.
            segment.life.base.store(incarnation.base.0, Ordering::Release);
            segment.life.salt.store(incarnation.salt, Ordering::Release);
            segment.stream.store(incarnation.stream as u8, Ordering::Release);
            segment.written_bytes.store(0, Ordering::Relaxed);
            segment.tombstones.store(0, Ordering::Relaxed);
            segment.beyond_bytes.store(0, Ordering::Relaxed);
            segment.killed_by.store(0, Ordering::Relaxed);
            segment.items.store(false, Ordering::Relaxed);
            segment.expiring.forget();
            segment.state.store(state as u8, Ordering::Release);
        }
    }

    /// Starts the reuse of a segment that was taken.
    pub(super) fn open(&self, id: SegmentId, incarnation: Incarnation) {
        // S2: before the caller writes the first byte.
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.grown.fetch_add(1, Ordering::Relaxed);
        self.restore(id, Use::Open, incarnation);
        self.note_room(id);
        self.begin_known(id);
    }

    /// Starts the reuse of a segment for a checkpoint: to everybody else it stays free, though on no list.
    pub(super) fn open_for_checkpoint(&self, id: SegmentId, incarnation: Incarnation) {
        // S2.
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.restore(id, Use::Free, incarnation);
        self.note_room(id);
    }

    fn note_room(&self, id: SegmentId) {
        if let Some(segment) = self.get(id) {
            segment.has_room.store(true, Ordering::Relaxed);
        }
    }

    fn has_known_room(&self, id: SegmentId) -> bool {
        self.get(id).is_some_and(|segment| segment.has_room.load(Ordering::Relaxed))
    }

    /// Marks a full segment; frees it if all its records are dead already.
    pub(super) fn seal(&self, id: SegmentId) {
        if let Some(segment) = self.get(id) {
            segment.state.store(Use::Sealed as u8, Ordering::SeqCst);
            self.free_if_dead(id, segment, Version(0));
        }
    }

    /// A record of the segment was superseded by the record of version `by`.
    pub(super) fn remove(&self, id: SegmentId, link: Link, by: Version) {
        self.remove_live(id, Live::of(link), by);
    }

    fn remove_live(&self, id: SegmentId, live: Live, by: Version) {
        let Some(segment) = self.get(id) else { return };
        segment.let_go(live);
        segment.killed_by.fetch_max(by.0, Ordering::SeqCst);
        if segment.live_records.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.free_if_dead(id, segment, by);
        }
    }

    /// Everything up to version `by` is dead.
    pub(super) fn clear(&self, by: Version) {
        for (id, segment) in self.all() {
            segment.live_bytes.store(0, Ordering::Relaxed);
            segment.live_tombstones.store(0, Ordering::Relaxed);
            // First: whoever finds nothing alive frees it, and asks for this.
            segment.killed_by.fetch_max(by.0, Ordering::SeqCst);
            segment.live_records.store(0, Ordering::SeqCst);
            self.free_if_dead(id, segment, by);
        }
    }

    fn free_if_dead(&self, id: SegmentId, segment: &Segment, by: Version) {
        let none = |count: &AtomicU32| count.load(Ordering::SeqCst) == 0;
        // In this order: once nobody enters anything, what was entered is counted.
        let is_dead = || none(&segment.entering) && none(&segment.live_records);
        if !is_dead() {
            return;
        }
        // Whoever turns the state wins; seal and remove may both come here.
        let (sealed, free) = (Use::Sealed as u8, Use::Free as u8);
        let order = Ordering::SeqCst;
        let mut held = self.hold.lock();
        // First: nothing is entered of a sealed one that was not counted when it was sealed.
        if segment.state.load(order) != sealed || !is_dead() {
            // Open, or pinned meanwhile: who seals it, or lets it go, comes here.
            return;
        }
        #[cfg(test)]
        tests::before_free();
        if segment.state.compare_exchange(sealed, free, order, order).is_ok() {
            let after = Version(segment.killed_by.load(Ordering::SeqCst)).max(by);
            let free = Free { after, ..Free::stale(id, segment.has_room.load(order)) };
            if let Some(free) = held.pass(free) {
                self.push_free(free);
            }
        }
    }

    /// Version from which on records of clients may be in segments that are not full.
    pub(super) fn open_from(&self) -> Version {
        let open = self.all().map(|(id, _)| id).filter(|id| self.state(*id) == Use::Open);
        let of = open.map(|id| self.incarnation(id));
        let fresh = of.filter(|of| of.stream == Stream::Fresh);
        Version(fresh.map(|of| of.base.0).min().unwrap_or(u64::MAX))
    }

    /// Full segments, and those that are free but held: recovery reads what is in them.
    pub(super) fn full_or_held(&self) -> Vec<SegmentId> {
        let held = self.hold.lock();
        self.sealed().chain(held.parked()).collect()
    }

    /// Segments in use, those that are free but held among them; with whether each is full.
    pub(super) fn in_use_or_held(&self) -> Vec<(SegmentId, bool)> {
        let held = self.hold.lock();
        let used = self.all().map(|(id, _)| (id, self.state(id)));
        let used = used.filter(|(_, state)| *state != Use::Free);
        let used = used.map(|(id, state)| (id, state == Use::Sealed));
        used.chain(held.parked().map(|id| (id, true))).collect()
    }

    /// Number of segments.
    pub(super) fn count(&self) -> usize {
        self.segments.len()
    }
}
