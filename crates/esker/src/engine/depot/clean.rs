//! The cleaner: moves live records out of segments so that these become free (uDepot §4.1).
//!
//! Records that were moved go to streams of their own, apart from what clients write: those that
//! survived once to one, those that survived again to another, so that segments fill with records
//! of one temperature (PACMAN §3.4). The victim is the segment with the best benefit for its cost
//! (PACMAN §3.3). Clients' writes slow down smoothly with the debt of free segments.
//!
//! # Invariants
//! - K1: an index entry moves to a copy only after the copy is durable, and only if it still points
//!   at the original. So a segment is free only when all its live records have durable copies.
//! - K2: a copy has the version of its original: recovery may take either.
//! - K3: an expired record is moved as a tombstone: older records of its key may be on media.
//!
//! # Concurrency
//! A backup that holds segments keeps them from being victims, until a writer finds no room.
//! One cleaner at a time, under a lock that tasks may hold across I/O: the background thread, or a
//! writer that finds no room. Reads and writes of clients go on; an entry changes under its key's
//! stripe.
//!
//! # Failure
//! A crash leaves originals, copies or both. A record that cannot be read stays where it is, and its
//! segment is not cleaned again. A failed write or flush makes the store read-only.

#[cfg(test)]
mod tests;

use super::batch::{Batch, Entry};
use super::layout::Layout;
use super::place::{GIVE_WAY, Tail, link_bytes};
use super::scan::{Source, Step, noted};
use super::segments::Incarnation;
use super::{Depot, sites, spread};
use esker_base::ids::{SegmentId, Sequence, Version};
use esker_base::units::{round_down, round_up};
use esker_base::{Error, ErrorKind, Result};
use esker_format::depot::{
    ExtentKey, LargeRef, Place, Record, RecordKind, RecordMeta, Stream, SummaryRecord, VersionForm,
};
use esker_index::{Link, SizeHint};
use esker_media::BufferPool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A batch of moved records takes no more once it is this long, in bytes.
const BATCH_SIZE_SOFT_MAX: u64 = 1 << 20;
/// Bytes read at once, and the gap between live records that is read over.
const READ_SIZE: u64 = 128 << 10;
const READ_GAP: u64 = 32 << 10;
/// Free segments, beyond those that puts leave alone, below which the cleaner works: their number
/// and their share of the store. What is kept free does not dilute the garbage, so it is little.
const AHEAD_MIN: usize = 3;
const AHEAD_SHARE: usize = 64;
/// So many more, so that the cleaner is at work before anybody is held back.
const HEAD_START: usize = 2;
/// Time that the cleaner rests for each time that it works, while its lead is whole, and at once at most.
const REST_SHARE: f64 = 3.0;
const REST_MAX: Duration = Duration::from_millis(5);
/// Most that a batch is held back, and the slowest cleaner that it is held back for, in bytes a
/// second.
const PACE_MAX: Duration = Duration::from_millis(20);
/// Least that a batch is held back; less is owed until it is enough.
const PACE_MIN: Duration = Duration::from_micros(100);
const CLEANING_RATE_MIN: f64 = 4e6;

/// The cleaner's place in its two streams.
#[derive(Debug)]
pub(super) struct Cleaner {
    warm: Mover,
    cold: Mover,
    /// Bytes a second that cleaning makes free.
    rate: f64,
    /// How long it has rested.
    rested: Duration,
    /// Tombstones there were after the last purge.
    pub(super) tombstones_kept: u64,
}

/// One stream of moved records.
#[derive(Debug)]
pub(super) struct Mover {
    stream: Stream,
    tail: Option<Tail>,
    summary: Vec<u8>,
    next: Sequence,
    durable: Sequence,
}

impl Mover {
    fn new(stream: Stream, next: Sequence) -> Self {
        Mover { stream, tail: None, summary: Vec::new(), next, durable: next }
    }
}

/// A record with a copy.
pub(super) struct Moved {
    hash: u64,
    /// Which extent it is, if it is one.
    extent: Option<LargeRef>,
    old: Link,
    pub(super) new: Link,
    pub(super) to: SegmentId,
}

/// The records of one victim on their way.
pub(super) struct Move<'a> {
    mover: &'a mut Mover,
    batch: Batch,
    /// The originals of the batch's records.
    originals: Vec<Link>,
    moved: Vec<Moved>,
    /// Of a cleaner ahead of its clients.
    tempo: Option<Tempo>,
}

/// How a cleaner that is in no hurry spends its time.
struct Tempo {
    /// Since when it has worked.
    since: Duration,
    rested: Duration,
}

impl<'a> Move<'a> {
    pub(super) fn new(pool: &BufferPool, layout: &Layout, mover: &'a mut Mover) -> Self {
        let batch = Batch::new(pool, layout, mover.next, VersionForm::Whole);
        Move { mover, batch, originals: Vec::new(), moved: Vec::new(), tempo: None }
    }
}

impl Cleaner {
    /// The stream that records from `stream` are moved to.
    pub(super) fn mover_from(&mut self, stream: Stream) -> &mut Mover {
        match stream {
            Stream::Fresh => &mut self.warm,
            Stream::Warm | Stream::Cold | Stream::Checkpoint => &mut self.cold,
        }
    }

    pub(super) fn new(warm: Sequence, cold: Sequence) -> Self {
        Cleaner {
            warm: Mover::new(Stream::Warm, warm),
            cold: Mover::new(Stream::Cold, cold),
            rate: 64e6,
            rested: Duration::ZERO,
            tombstones_kept: 0,
        }
    }

    /// Where the two streams go on.
    pub(super) fn next_sequences(&self) -> [Sequence; 2] {
        [self.warm.next, self.cold.next]
    }

    /// Segments that are open for moved records, with the summaries of what they hold.
    pub(super) fn open(&self) -> impl Iterator<Item = (SegmentId, Stream, &[u8])> {
        [&self.warm, &self.cold].into_iter().filter_map(|mover| {
            let tail = mover.tail?;
            Some((tail.segment, mover.stream, mover.summary.as_slice()))
        })
    }
}

impl Depot {
    /// Cleans until more than `kept` segments are free, for a writer that found no room.
    ///
    /// # Errors
    /// `NoSpace` if all the rest is live; what a failing device says.
    pub(super) fn make_room(&self, kept: usize) -> Result<()> {
        self.background.wake();
        self.make_room_with(&mut self.cleaner.lock(), kept)
    }

    /// As [`Depot::make_room`], for who has the cleaner's lock.
    pub(super) fn make_room_with(&self, cleaner: &mut Cleaner, kept: usize) -> Result<()> {
        let limit = 2 * usize::try_from(self.layout.segment_count).unwrap_or(usize::MAX);
        // Others may be faster to take what came free: that is no lack of room.
        let (mut tries, mut seen) = (0, self.log.next_version());
        while tries < limit {
            if self.segments.free_count() > kept {
                return Ok(());
            }
            self.log.refuse()?;
            // A backup that ends meanwhile leaves segments to clean.
            let held = self.segments.is_holding();
            if self.free_one(cleaner, true)?.is_none()
                && self.purge_tombstones(cleaner)? == 0
                && !self.segments.break_hold()
                && !held
            {
                break;
            }
            let now = self.log.next_version();
            tries = if now == seen { tries + 1 } else { 0 };
            seen = now;
        }
        if self.segments.free_count() > kept {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NoSpace, "write store")
            .context(format!("all {} segments hold live records", self.layout.segment_count)))
    }

    /// Cleans up to `limit` segments, then drops tombstones; returns the number of segments.
    pub(super) fn clean_now(&self, limit: usize) -> Result<usize> {
        self.log.refuse()?;
        let mut cleaner = self.cleaner.lock();
        let mut cleaned = 0;
        if self.superblock.cache {
            // A cache moves nothing.
            self.purge_tombstones(&mut cleaner)?;
            return Ok(0);
        }
        // Every segment is worth it once; what the moves fill up is full.
        let limit = limit.min(self.segments.sealed().count());
        while cleaned < limit && self.clean_one(&mut cleaner, true)?.is_some() {
            cleaned += 1;
        }
        self.purge_tombstones(&mut cleaner)?;
        Ok(cleaned)
    }

    /// Number of free segments below which the cleaner works ahead of clients.
    fn clean_below(&self) -> usize {
        let count = usize::try_from(self.layout.segment_count).unwrap_or(0);
        let share = if self.superblock.cache { 0 } else { count / AHEAD_SHARE };
        self.segments.reserve_of_puts() + AHEAD_MIN.max(share)
    }

    /// Cleans ahead of the clients, until enough is free or `stop` says so.
    pub(super) fn clean_ahead(&self, mut stop: impl FnMut() -> bool) -> Result<()> {
        while self.segments.free_count() < self.clean_below() + HEAD_START && !stop() {
            let mut cleaner = self.cleaner.lock();
            let began = self.clock.monotonic();
            cleaner.rested = Duration::ZERO;
            let Some(gain) = self.free_one(&mut cleaner, false)? else { break };
            let took = self.clock.monotonic().saturating_sub(began);
            let seconds = took.saturating_sub(cleaner.rested).as_secs_f64();
            let rate = gain as f64 / seconds.max(1e-6);
            cleaner.rate = cleaner.rate.mul_add(0.75, rate * 0.25).max(CLEANING_RATE_MIN);
            self.pace.set(cleaner.rate);
            if self.segments.free_count() >= self.clean_below() {
                self.pace.ask(0.0);
            }
        }
        let mut cleaner = self.cleaner.lock();
        if self.purge_due(&cleaner) {
            self.purge_tombstones(&mut cleaner)?;
        }
        Ok(())
    }

    /// Lets the clients' requests come to the device and the processor between two pieces of the cleaner's work. One that
    /// is ahead of them rests, the longer the larger its lead: so its work spreads over the time that it has, and does not
    /// come in bursts in which all else is slow.
    fn rest(&self, tempo: &mut Option<Tempo>) {
        esker_trt::yield_now();
        let Some(tempo) = tempo else { return };
        let now = self.clock.monotonic();
        let share = REST_SHARE * self.head_start();
        let rest = now.saturating_sub(tempo.since).mul_f64(share).min(REST_MAX);
        if rest > PACE_MIN {
            esker_trt::sleep(rest);
            tempo.since = self.clock.monotonic();
            tempo.rested += tempo.since.saturating_sub(now);
        }
    }

    /// How much of its head start the cleaner has, from 0 to 1.
    fn head_start(&self) -> f64 {
        let size = self.layout.segment_size as f64;
        let room = self.log.lock().tail.map_or(0, |tail| self.layout.room_behind(tail.position));
        let more = self.segments.free_count() as f64 - self.clean_below() as f64;
        ((more + room as f64 / size) / HEAD_START as f64).clamp(0.0, 1.0)
    }

    /// Holds a batch of `bytes` back by what the debt of free space asks for: not at all while the
    /// cleaner's lead is whole, at the cleaner's own pace when a third of it is left, slower below.
    /// `room` is what is left of the open segment.
    pub(super) fn pace(&self, bytes: u64, room: u64) {
        let owed = self.pace.owe(self.debt(room) * bytes as f64);
        if owed > PACE_MIN {
            esker_trt::sleep(owed.min(PACE_MAX));
        }
    }

    /// Seconds that a byte is held back.
    pub(super) fn debt(&self, room: u64) -> f64 {
        let kept = self.segments.reserve_of_puts();
        let (free, below) = (self.segments.free_count(), self.clean_below());
        if free >= below || !self.background.is_running() {
            return 0.0;
        }
        let size = self.layout.segment_size as f64;
        let lead = (below - kept) as f64 * size;
        let left = (free.saturating_sub(kept)) as f64 * size + room as f64;
        (1.5 * (1.0 - left / lead)).max(0.0) / self.pace.rate()
    }

    /// Holds a write to memory back by what is asked for its bytes, all writers together: records leave at the
    /// rate at which the cleaner makes room, and not in bursts.
    pub(super) fn pay(&self, bytes: u64) {
        let each = self.pace.asked();
        if each > 0.0 {
            let ahead = self.pace.spend(self.clock.monotonic(), each * bytes as f64);
            if ahead > PACE_MIN {
                esker_trt::sleep(ahead.min(PACE_MAX));
            }
        }
    }

    /// Makes a segment free, by moving what is live or by evicting it; says how many bytes that gained,
    /// `None` if there is nothing to gain.
    fn free_one(&self, cleaner: &mut Cleaner, greedy: bool) -> Result<Option<u64>> {
        if self.superblock.cache {
            self.evict_one(cleaner)
        } else {
            self.clean_one(cleaner, greedy)
        }
    }

    /// Cleans the best victim; says how many bytes that gained, `None` if there is no victim.
    pub(super) fn clean_one(&self, cleaner: &mut Cleaner, greedy: bool) -> Result<Option<u64>> {
        let Some(victim) = self.segments.victim(self.log.next_epoch(), greedy) else {
            return Ok(None);
        };
        let gain = self.layout.segment_size.saturating_sub(self.segments.live_bytes(victim));
        let epoch = self.segments.epoch(victim);
        match self.clean_segment(cleaner, victim, !greedy) {
            Ok(()) => Ok(Some(gain)),
            // The reserve is for this; if it is used up, what is free now must do.
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Io) => {
                tracing::warn!(%error, segment = victim.0, "a segment cannot be cleaned");
                self.segments.set_aside(victim, epoch);
                Ok(Some(0))
            }
            Err(error) => Err(error),
        }
    }

    fn clean_segment(&self, cleaner: &mut Cleaner, victim: SegmentId, ahead: bool) -> Result<()> {
        let of = self.segments.incarnation(victim);
        if !self.segments.is_cleanable(victim) {
            return Ok(());
        }
        let now = self.clock.monotonic();
        let records = self.live_records(victim, of)?;
        let mut moving = Move::new(&self.pool, &self.layout, cleaner.mover_from(of.stream));
        moving.tempo = ahead.then_some(Tempo { since: now, rested: Duration::ZERO });
        let copied = self.copy_records(&mut moving, victim, of, &records);
        let rested = moving.tempo.as_ref().map_or(Duration::ZERO, |tempo| tempo.rested);
        let (moved, durable) = self.end_move(moving, copied);
        cleaner.rested += rested;
        for (count, moved) in moved.into_iter().enumerate() {
            if count % GIVE_WAY == 0 {
                esker_trt::yield_now();
            }
            if durable.is_err() || !self.follow(victim, of, &moved) {
                self.segments.remove(moved.to, link_bytes(moved.new), Version(0));
            }
        }
        durable?;
        // Who superseded the rest meanwhile is about to say so.
        self.segments.set_aside(victim, of.epoch);
        Ok(())
    }

    /// Makes the copies durable, if all went well so far; returns what was written in any case.
    pub(super) fn end_move(
        &self,
        mut moving: Move<'_>,
        copied: Result<()>,
    ) -> (Vec<Moved>, Result<()>) {
        let written = copied.and_then(|()| self.write_moved(&mut moving));
        let Move { mover, moved, .. } = moving;
        let durable = match written {
            Ok(()) if moved.is_empty() || sites::MOVE_FLUSH.disabled() => Ok(()),
            // PERSIST: the copies. Crash before: the originals count. Crash after: either.
            Ok(()) => self.device.flush(sites::MOVE_FLUSH).map_err(|error| self.poison(&error)),
            Err(error) => Err(error),
        };
        if durable.is_ok() {
            mover.durable = mover.next;
        }
        (moved, durable)
    }

    /// The live records of a segment, by place.
    pub(super) fn live_records(
        &self,
        id: SegmentId,
        of: Incarnation,
    ) -> Result<Vec<(SummaryRecord, Link)>> {
        let base = self.layout.segment_offset(id);
        let mut live = Vec::new();
        let mut count = 0_usize;
        self.each_record(&self.source(sites::CLEAN_READ), id, of, &mut |record| {
            let link = self.layout.link(record.kind, base + record.offset, record.size_bytes);
            count += 1;
            if count.is_multiple_of(GIVE_WAY) {
                esker_trt::yield_now();
            }
            if let Some(link) = link.filter(|link| self.is_live(&record, *link)) {
                live.push((record, link));
            }
        })?;
        Ok(live)
    }

    /// Whether the record at `link` counts.
    fn is_live(&self, record: &SummaryRecord, link: Link) -> bool {
        match record.kind {
            RecordKind::Clear => false,
            RecordKind::Extent => self.extents.link(record.piece) == Some(link),
            RecordKind::Put | RecordKind::Large | RecordKind::Delete | RecordKind::Evict => {
                self.index.lookup(spread(record.hash)).iter().any(|found| found == link)
            }
        }
    }

    /// What the summary of a segment says, or a walk through it if it has none.
    pub(super) fn each_record(
        &self,
        source: &Source<'_>,
        id: SegmentId,
        of: Incarnation,
        visit: &mut dyn FnMut(SummaryRecord),
    ) -> Result<()> {
        if source.summary(id, of, visit)?.is_some() {
            return Ok(());
        }
        let base = self.layout.segment_offset(id);
        source.walk_over(id, of, self.lenient, &mut |step| {
            if let Step::Record(record, offset) = step {
                visit(noted(record, offset - base, &self.hasher));
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Reads the records in long pieces and copies them into batches.
    pub(super) fn copy_records(
        &self,
        moving: &mut Move<'_>,
        victim: SegmentId,
        of: Incarnation,
        records: &[(SummaryRecord, Link)],
    ) -> Result<()> {
        let block = self.layout.block;
        let base = self.layout.segment_offset(victim);
        let source = self.source(sites::CLEAN_READ);
        let mut rest = records;
        while let Some(((first, _), _)) = rest.split_first() {
            let start = round_down(first.offset, block);
            let mut end = first.offset + first.size_bytes;
            let joined = rest.iter().skip(1).take_while(|(record, _)| {
                let reach = record.offset + record.size_bytes;
                let near = record.offset <= end + READ_GAP && reach <= start + READ_SIZE;
                end = if near { reach } else { end };
                near
            });
            let (piece, others) = rest.split_at(joined.count() + 1);
            rest = others;
            let size = round_up(end, block).unwrap_or(end) - start;
            let mut buffer = self.pool.get(usize::try_from(size).unwrap_or(0));
            source.read(base + start, &mut buffer)?;
            for (count, (record, link)) in piece.iter().enumerate() {
                if count % GIVE_WAY == 0 {
                    self.rest(&mut moving.tempo);
                }
                let skip = usize::try_from(record.offset - start).unwrap_or(usize::MAX);
                let bytes = buffer.get(skip..).unwrap_or(&[]);
                let place = Place { salt: of.salt, offset: base + record.offset };
                let decoded = Record::decode(bytes, Version(of.base.0), Some(place));
                match decoded {
                    Ok(decoded) => self.copy_record(moving, record.hash, &decoded, *link)?,
                    // Overwritten meanwhile: not live any more. Else damaged.
                    Err(_) if self.segments.epoch(victim) != of.epoch => return Ok(()),
                    Err(flaw) => {
                        return Err(source.corrupted(place.offset, record.size_bytes, &flaw));
                    }
                }
            }
        }
        Ok(())
    }

    fn copy_record(
        &self,
        moving: &mut Move<'_>,
        hash: u64,
        record: &Record<'_>,
        link: Link,
    ) -> Result<()> {
        let mut meta = record.meta;
        let (mut key, mut value) = (record.key, record.value);
        let extent;
        if let (RecordKind::Extent, Ok(piece)) = (meta.kind, ExtentKey::decode(key)) {
            // As long as it has to be in this stream.
            let block = usize::try_from(self.layout.block).unwrap_or(4096);
            extent = piece.encode(VersionForm::Whole, block, value.len());
            key = &extent;
        }
        if self.is_expired(meta.expires_at) {
            // K3.
            meta = RecordMeta { kind: RecordKind::Delete, flags: 0, expires_at: None, ..meta };
            value = &[];
        }
        self.add_moved(moving, spread(hash), &meta, key, value, link)
    }

    /// Adds a copy of the record at `link`, or what stands in its place.
    pub(super) fn add_moved(
        &self,
        moving: &mut Move<'_>,
        hash: u64,
        meta: &RecordMeta,
        key: &[u8],
        value: &[u8],
        link: Link,
    ) -> Result<()> {
        let need = moving.batch.need([moving.batch.shape(meta, key, value)]);
        let full = need.used > BATCH_SIZE_SOFT_MAX
            || !self.fits_any(need)
            || self.ends_segment(moving.mover.tail.as_ref(), &moving.batch, need)
            || moving.batch.keeps_apart([meta.kind].into_iter());
        if full && !moving.originals.is_empty() {
            self.write_moved(moving)?;
        }
        moving.batch.push(&self.pool, hash, meta, key, value);
        moving.originals.push(link);
        Ok(())
    }

    /// Writes the batch of copies that formed.
    fn write_moved(&self, moving: &mut Move<'_>) -> Result<()> {
        if moving.originals.is_empty() {
            return Ok(());
        }
        let mover = &mut *moving.mover;
        let batch = &mut moving.batch;
        let plan = self.place(mover.stream, &mut mover.tail, batch)?;
        let durable = &mut mover.durable;
        self.write_batch(mover.stream, batch, &plan, &mut mover.summary, durable, false)
            .map_err(|error| self.poison(&error))?;
        mover.next = batch.end();
        for (entry, old) in batch.entries.iter().zip(moving.originals.drain(..)) {
            let Entry { hash, .. } = *entry;
            let Some(new) = self.link_of(&plan, entry) else { continue };
            // Counted as live from here on, so that a segment which fills up is not taken for free.
            self.segments.add(plan.segment(), link_bytes(new));
            let extent = (entry.kind == RecordKind::Extent).then(|| batch.piece(entry));
            moving.moved.push(Moved { hash, extent, old, new, to: plan.segment() });
        }
        *batch = Batch::new(&self.pool, &self.layout, mover.next, VersionForm::Whole);
        Ok(())
    }

    /// K1: lets the index entry follow its record; false if it points elsewhere by now.
    pub(super) fn follow(&self, victim: SegmentId, of: Incarnation, moved: &Moved) -> bool {
        let Moved { hash, extent, old, new, .. } = *moved;
        // Not an entry of the segment's next incarnation, which may look the same.
        let same = || self.segments.epoch(victim) == of.epoch || sites::MOVE_EPOCH.disabled();
        if let Some(piece) = extent {
            return same() && self.extents.follow(piece, old, new, || self.let_go(old, Version(0)));
        }
        let followed = self.pending.relocate(hash, old, Some(new), || {
            let followed = same() && self.index.replace(hash, old, new);
            if followed && new.size() == SizeHint::Large {
                self.extents.follow_head(old, new);
            }
            followed
        });
        if followed {
            if old.size() == SizeHint::Large && new.size() != SizeHint::Large {
                // Expired.
                self.release_large(old, Version(0));
            }
            self.let_go(old, Version(0));
            self.count_items(Some(old), new);
        }
        followed
    }
}

/// What writers owe the cleaner.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Bytes a second that cleaning makes free, as the bits of a number.
    rate: AtomicU64,
    /// Nanoseconds that batches were not held back, since each was too short.
    owed: AtomicU64,
    /// Seconds that a byte of a write to memory is held back, as the bits of a number.
    asked: AtomicU64,
    /// Until when the writes so far have spent the time, in nanoseconds.
    spent_until: AtomicU64,
}

impl Pace {
    fn set(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Ordering::Relaxed)).max(CLEANING_RATE_MIN)
    }

    /// What each byte of a write to memory is held back from now on, in seconds.
    pub(super) fn ask(&self, seconds: f64) {
        self.asked.store(seconds.to_bits(), Ordering::Relaxed);
    }

    fn asked(&self) -> f64 {
        f64::from_bits(self.asked.load(Ordering::Relaxed))
    }

    /// Spends `seconds` of the time that all writers share; how far that is ahead of `now`.
    fn spend(&self, now: Duration, seconds: f64) -> Duration {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cost = nanoseconds(Duration::try_from_secs_f64(seconds).unwrap_or(PACE_MAX));
        let now = nanoseconds(now);
        let most = now.saturating_add(nanoseconds(PACE_MAX));
        // Who finds the time all spent waits as long as anybody does, and no longer.
        let next = |until: u64| until.max(now).saturating_add(cost).min(most);
        let spent = |until| Some(next(until));
        let before = self.spent_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
        Duration::from_nanos(before.map_or(0, next).saturating_sub(now))
    }

    /// Adds `seconds`; returns what is owed, and forgets it if it is enough to be paid. Only the
    /// leader of the log comes here.
    fn owe(&self, seconds: f64) -> Duration {
        let owed = Duration::from_nanos(self.owed.load(Ordering::Relaxed));
        let owed = owed + Duration::try_from_secs_f64(seconds).unwrap_or(PACE_MAX);
        let kept = if owed > PACE_MIN { 0 } else { owed.as_nanos() };
        self.owed.store(u64::try_from(kept).unwrap_or(0), Ordering::Relaxed);
        owed
    }
}
