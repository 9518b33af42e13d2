//! The cleaner: moves live records out of segments so that these become free (uDepot §4.1).
//!
//! Records that were moved go to streams of their own, apart from what clients write: those that
//! survived once to one, those that survived again to another, so that segments fill with records
//! of one temperature (PACMAN §3.4). The victim is the segment with the best benefit for its cost
//! (PACMAN §3.3), to which what has expired is as good as dead ([`super::expire`]). Clients' writes slow
//! down smoothly with the debt of free segments.
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
//! A crash leaves originals, copies or both. A damaged record stays where it is, and its segment is not cleaned again; one that
//! the device fails to read is tried again later ([`super::unread`]). A failed write or flush makes the store read-only.

use super::moves::{Move, Mover, Steps};
use super::pace::{CLEANING_RATE_MIN, Tempo};
use super::place::GIVE_WAY;
use super::scan::{Source, Step, noted};
use super::segments::{Incarnation, Urgency, Use, record_bytes};
use super::tombstones::{TombstonePlace, unless_unread};
use super::unread::{FAILURES_MAX, Unread};
use super::{Depot, sites, spread};
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::depot::{RecordKind, Stream, SummaryRecord};
use esker_index::Link;
use esker_trt::sync::MutexGuard;
use std::time::Duration;

/// Free segments, beyond those that puts leave alone, below which the cleaner works: their number
/// and their share of the store. What is kept free does not dilute the garbage, so it is little.
const AHEAD_MIN: usize = 3;
const AHEAD_SHARE: usize = 64;
/// So many more, so that the cleaner is at work before anybody is held back.
pub(super) const HEAD_START: usize = 2;
/// A checkpoint is kept from writers as long as cleaning for it gains this share of a segment.
const CHECKPOINT_GAIN_SHARE: u64 = 4;

/// How often who waits for the cleaner looks whether there is room.
const ROOM_SLICE: Duration = Duration::from_micros(200);

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
    pub(super) unread: Unread,
    /// Where the last purge stopped, if it did not come to all tombstones.
    pub(super) purge_from: Option<TombstonePlace>,
    /// What the segments were like when a purge found nothing to drop: their generation, and how many were free.
    pub(super) purged_in_vain: Option<(u64, usize)>,
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
            unread: Unread::default(),
            purge_from: None,
            purged_in_vain: None,
        }
    }

    /// Where the two streams go on.
    pub(super) fn next_sequences(&self) -> [Sequence; 2] {
        [self.warm.next, self.cold.next]
    }

    /// Segments that are open for moved records, and how far they are written.
    pub(super) fn tails(&self) -> impl Iterator<Item = (SegmentId, u64)> {
        let tails = [&self.warm, &self.cold].into_iter().filter_map(|mover| mover.tail);
        tails.map(|tail| (tail.segment, tail.position))
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
        loop {
            if let Some(mut cleaner) = self.cleaner.try_lock() {
                return self.make_room_with(&mut cleaner, kept);
            }
            // Who has the lock may be making room, or be at something longer that began before.
            self.reserve_ahead();
            if self.has_room(kept) {
                return Ok(());
            }
            self.log.refuse()?;
            esker_trt::sleep(ROOM_SLICE);
        }
    }

    /// As [`Depot::make_room`], for who has the cleaner's lock.
    pub(super) fn make_room_with(&self, cleaner: &mut Cleaner, kept: usize) -> Result<()> {
        let limit = 4 * usize::try_from(self.layout.segment_count).unwrap_or(usize::MAX / 4);
        let frees = kept < self.segments.reserve_of_puts();
        let urgency = if frees { Urgency::Stuck } else { Urgency::Full };
        // Others may be faster to take what came free: that is no lack of room.
        let (mut tries, mut seen) = (0, self.log.next_version());
        let mut looks = self.looks_of_a_writer();
        cleaner.unread.begin_round();
        while tries < limit {
            let are_more = self.reserve_ahead();
            if self.has_room(kept) {
                return Ok(());
            }
            self.log.refuse()?;
            // Where too much is live, what matters is what has expired of it, or is a tombstone that nobody needs.
            let full = !self.segments.has_more_than(kept);
            // A backup that ends meanwhile leaves segments to clean.
            let held = full && self.segments.is_holding();
            if full && (are_more || self.fill_holes()) {
                continue;
            }
            if self.segments.is_stuck() {
                // Nobody may take what came free.
                break;
            }
            let freed = full && self.free_one(cleaner, urgency)?.is_some();
            if !freed && looks > 0 && self.look_further(cleaner)? {
                looks -= 1;
                continue;
            }
            let unheld = || full && self.segments.break_hold();
            let purged = |cleaner: &mut Cleaner| {
                let purged = self.purge_for_room(cleaner);
                unless_unread(cleaner, purged)
            };
            if !freed && !purged(cleaner)? && !unheld() && !held {
                break;
            }
            let now = self.log.next_version();
            tries = if now == seen { tries + 1 } else { 0 };
            seen = now;
        }
        if self.has_room(kept) {
            return Ok(());
        }
        let full = Error::new(ErrorKind::NoSpace, "write store");
        let (all, holes) = (self.layout.segment_count, self.segments.hole_count());
        Err(match (cleaner.unread.error(), holes) {
            (Some(error), _) => full.source(error.clone()),
            _ if self.segments.is_stuck() => {
                full.context("the file system has no room for the segment in which the log goes on")
            }
            (None, 0) => full.context(format!("all {all} segments hold live records")),
            (None, _) => full.context(format!(
                "the file system has no room for {holes} of {all} segments: the others hold live records"
            )),
        })
    }

    /// Whether a write that leaves so many free segments alone may take one.
    pub(super) fn has_room(&self, kept: usize) -> bool {
        self.segments.has_more_than(kept) && !self.is_crowded_for(kept)
    }

    /// Whether so much is live that such a write may not add to it. A cache moves next to nothing.
    pub(super) fn is_crowded_for(&self, kept: usize) -> bool {
        kept >= self.segments.reserve_of_puts()
            && !self.superblock.cache
            && self.segments.is_crowded(self.clock.now())
    }

    /// The cleaner, for who wants something done with it; the error of a write now, if the store takes none.
    pub(super) fn lock_cleaner(&self) -> Result<MutexGuard<'_, Cleaner>> {
        // Who is refused need not wait.
        self.log.refuse()?;
        let cleaner = self.cleaner.lock();
        // Whoever closes the store has covered all that was moved, once it had the lock: nothing may come behind that.
        self.log.refuse()?;
        Ok(cleaner)
    }

    /// Completes the segments that are open for copies, when the store is closed: the next session begins others, and a summary tells
    /// damage from an end. Nobody cleans any more; a flush must follow.
    pub(super) fn complete_open(&self) -> Result<()> {
        let cleaner = &mut *self.cleaner.lock();
        for mover in [&mut cleaner.warm, &mut cleaner.cold] {
            if let Some(tail) = mover.tail {
                self.complete_moved(mover, tail)?;
            }
        }
        Ok(())
    }

    /// Cleans up to `limit` segments, then drops tombstones; returns the number of segments.
    pub(super) fn clean_now(&self, limit: usize) -> Result<usize> {
        let mut cleaner = self.lock_cleaner()?;
        let mut cleaned = 0;
        if self.superblock.cache {
            // A cache moves nothing.
            self.purge_tombstones(&mut cleaner)?;
            return Ok(0);
        }
        // Every segment is worth it once; what the moves fill up is full.
        let limit = limit.min(self.segments.sealed().count());
        cleaner.unread.begin_round();
        let mut again = true;
        while cleaned < limit {
            match self.clean_one(&mut cleaner, Urgency::Full)? {
                Some(_) => cleaned += 1,
                None if self.look_further(&mut cleaner)? => {}
                // Somebody asked: what is passed over is tried, too.
                None if std::mem::take(&mut again) && cleaner.unread.retry() => {}
                None => break,
            }
        }
        let purged = self.purge_tombstones(&mut cleaner);
        unless_unread(&mut cleaner, purged)?;
        cleaner.unread.end_round(cleaned)
    }

    /// Cleans the full segment with this number among them, and drops no tombstones; false if there is none.
    pub(super) fn clean_full(&self, number: usize) -> Result<bool> {
        let mut cleaner = self.lock_cleaner()?;
        let mut full = self.segments.sealed().filter(|id| self.segments.is_cleanable(*id));
        let Some(victim) = full.nth(number) else { return Ok(false) };
        self.clean_segment(&mut cleaner, victim, false)?;
        Ok(true)
    }

    /// Number of free segments below which the cleaner works ahead of clients.
    pub(super) fn clean_below(&self) -> usize {
        let count = usize::try_from(self.layout.segment_count).unwrap_or(0);
        let share = if self.superblock.cache { 0 } else { count / AHEAD_SHARE };
        self.segments.reserve_of_puts() + AHEAD_MIN.max(share)
    }

    /// Free segments that clients may take before the cleaner is to work. While much of what it cleans is dead, those of the checkpoint are
    /// none of them: a checkpoint that steady writes take at once helps nobody.
    pub(super) fn free_ahead(&self) -> usize {
        self.segments.free_beside(!self.superblock.cache && self.pace.keeps_checkpoint())
    }

    /// Cleans ahead of the clients, until enough is free or `stop` says so.
    pub(super) fn clean_ahead(&self, stop: impl FnMut() -> bool) -> Result<()> {
        self.clean_while(|| self.free_ahead() < self.clean_below() + HEAD_START, stop)?;
        let mut cleaner = self.cleaner.lock();
        if self.purge_due(&mut cleaner) {
            self.purge_tombstones(&mut cleaner)?;
        }
        Ok(())
    }

    /// Cleans while it is `short` of segments, until nothing is worth it any more or `stop` says so.
    pub(super) fn clean_while(
        &self,
        short: impl Fn() -> bool,
        mut stop: impl FnMut() -> bool,
    ) -> Result<()> {
        // Of a stuck store no segment is taken, however many are free.
        while short() && !stop() && !self.segments.is_stuck() {
            let mut cleaner = self.cleaner.lock();
            if self.free_one_ahead(&mut cleaner)? {
                continue;
            }
            // While nobody writes, nobody needs the room.
            if self.log.has_written() && self.look_further(&mut cleaner)? {
                continue;
            }
            self.pace.clear();
            break;
        }
        Ok(())
    }

    /// Bytes that [`Depot::clean_idly`] would gain; none of a cache, which moves nothing.
    pub(super) fn idle_gain(&self) -> u64 {
        if self.superblock.cache {
            return 0;
        }
        let passed = self.passed_over(&self.cleaner.lock());
        self.segments.idle_gain(self.clock.now(), &passed)
    }

    /// Cleans while nobody writes, in no hurry, until no segment is worth it or `stop` says so; then drops the tombstones that stood for
    /// what went.
    pub(super) fn clean_idly(&self, stop: impl Fn() -> bool) -> Result<()> {
        while !stop() {
            let mut cleaner = self.cleaner.lock();
            if self.clean_one(&mut cleaner, Urgency::Idle)?.is_none() {
                self.purge_tombstones(&mut cleaner)?;
                break;
            }
        }
        Ok(())
    }

    /// Makes a segment free ahead of the clients, and says how fast that went; false if there is nothing to gain.
    fn free_one_ahead(&self, cleaner: &mut Cleaner) -> Result<bool> {
        let began = self.clock.monotonic();
        cleaner.rested = Duration::ZERO;
        let Some(gain) = self.free_one(cleaner, Urgency::Ahead)? else {
            self.pace.note_gain(false);
            return Ok(false);
        };
        let took = self.clock.monotonic().saturating_sub(began);
        let seconds = took.saturating_sub(cleaner.rested).as_secs_f64();
        let rate = gain as f64 / seconds.max(1e-6);
        self.pace.note_gain(gain >= self.layout.segment_size / CHECKPOINT_GAIN_SHARE);
        cleaner.rate = cleaner.rate.mul_add(0.75, rate * 0.25).max(CLEANING_RATE_MIN);
        self.pace.set(cleaner.rate);
        if self.free_ahead() >= self.clean_below() {
            self.pace.ask(0.0);
        }
        Ok(true)
    }

    /// Between two pieces of longer work of a cleaner: makes a segment free if clients are short of them; false if they are not, nobody cleans
    /// ahead of them, or nothing is to gain. Then it is not tried again before somebody took one: `in_vain` says since when.
    pub(super) fn clean_between(
        &self,
        cleaner: &mut Cleaner,
        in_vain: &mut Option<u64>,
    ) -> Result<bool> {
        let taken = self.segments.generation();
        let is_ahead = !self.background.is_running() || self.free_ahead() >= self.clean_below();
        if is_ahead || *in_vain == Some(taken) {
            return Ok(false);
        }
        let is_gain = self.free_one_ahead(cleaner)?;
        *in_vain = (!is_gain).then_some(taken);
        Ok(is_gain)
    }

    /// Makes a segment free, by moving what is live or by evicting it; says how many bytes that gained,
    /// `None` if there is nothing to gain.
    fn free_one(&self, cleaner: &mut Cleaner, urgency: Urgency) -> Result<Option<u64>> {
        if self.superblock.cache {
            self.evict_one(cleaner)
        } else {
            self.clean_one(cleaner, urgency)
        }
    }

    /// Cleans the best victim that can be read; says how many bytes that gained, `None` if there is no victim.
    fn clean_one(&self, cleaner: &mut Cleaner, urgency: Urgency) -> Result<Option<u64>> {
        for _ in 0..FAILURES_MAX {
            let passed = self.passed_over(cleaner);
            let next = self.log.next_epoch();
            let Some(victim) = self.segments.victim(next, self.clock.now(), urgency, &passed)
            else {
                break;
            };
            let epoch = self.segments.epoch(victim);
            match self.clean_segment(cleaner, victim, urgency.has_time()) {
                Ok(moved) => return Ok(Some(self.layout.segment_size.saturating_sub(moved))),
                // The reserve is for this; if it is used up, what is free now must do.
                Err(error) if error.kind() == ErrorKind::NoSpace => break,
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    tracing::warn!(%error, segment = victim.0, "a segment cannot be cleaned");
                    self.segments.set_aside(victim, epoch);
                    return Ok(Some(0));
                }
                Err(error) if error.kind() == ErrorKind::Io => {
                    self.pass_over(cleaner, (victim, epoch), error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Segments that the cleaner leaves alone for now, as they could not be read.
    pub(super) fn passed_over(&self, cleaner: &Cleaner) -> Vec<SegmentId> {
        cleaner.unread.passed(self.clock.monotonic(), &self.segments)
    }

    /// A segment could not be read; true if it has been so for long.
    pub(super) fn pass_over(
        &self,
        cleaner: &mut Cleaner,
        failed: (SegmentId, SegmentEpoch),
        error: Error,
    ) -> bool {
        cleaner.unread.note(failed, self.clock.monotonic(), error, &self.segments)
    }

    /// Returns how many bytes were moved.
    fn clean_segment(&self, cleaner: &mut Cleaner, victim: SegmentId, ahead: bool) -> Result<u64> {
        let of = self.segments.incarnation(victim);
        if !self.segments.is_cleanable(victim) {
            return Ok(0);
        }
        let now = self.clock.monotonic();
        let mut records = self.live_records(victim, of)?;
        if self.release_expired(cleaner, of.stream, &records)? {
            records.retain(|(record, link)| self.is_live(record, *link));
        }
        let bytes = |(record, link): &(SummaryRecord, Link)| record_bytes(*link, record.size_bytes);
        let live_bytes = records.iter().map(bytes).sum();
        if !self.fits_copies(cleaner.mover_from(of.stream), live_bytes) {
            return Err(Error::new(ErrorKind::NoSpace, "clean segment"));
        }
        let mut moving = Move::new(&self.pool, &self.layout, cleaner.mover_from(of.stream));
        moving.steps = Steps {
            all: records.len() as u64,
            gain: self.layout.segment_size.saturating_sub(live_bytes),
            done: 0,
        };
        moving.tempo = ahead.then(|| Tempo::new(now));
        let copied = self.copy_records(&mut moving, victim, of, &records);
        let rested = moving.tempo.as_ref().map_or(Duration::ZERO, |tempo| tempo.rested);
        let (moved, durable) = self.end_move(moving, copied);
        cleaner.rested += rested;
        for (count, moved) in moved.into_iter().enumerate() {
            if count % GIVE_WAY == 0 {
                esker_trt::yield_now();
            }
            if durable.is_err() || !self.follow(victim, of, &moved) {
                self.segments.remove(moved.to, moved.new, Version(0));
            }
        }
        self.pace.gained(0);
        if durable.is_err() {
            self.give_back(cleaner.mover_from(of.stream))?;
        }
        durable?;
        // Who superseded the rest meanwhile is about to say so.
        self.segments.set_aside(victim, of.epoch);
        Ok(live_bytes)
    }

    /// Whether there is room for copies of a segment's records of so many bytes: half of them would only be in the way. With one
    /// free segment there is, as they take less than what they are copies of.
    fn fits_copies(&self, mover: &Mover, bytes: u64) -> bool {
        // They are more than those of a record and of that in a summary.
        let with = |summary| self.layout.batch_with_summary(bytes, summary);
        let in_tail = mover
            .tail
            .is_some_and(|tail| tail.position + with(tail.summary) <= self.layout.trailer());
        in_tail || self.segments.has_more_than(0)
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
        self.every_record(id, of, &mut |record| {
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

    /// As [`Depot::each_record`], for who goes on as if there were no other records in the segment.
    ///
    /// # Errors
    /// `Corrupted` if there were more; some may have been visited by then.
    pub(super) fn every_record(
        &self,
        id: SegmentId,
        of: Incarnation,
        visit: &mut dyn FnMut(SummaryRecord),
    ) -> Result<()> {
        let base = self.layout.segment_offset(id);
        let source = self.source(sites::CLEAN_READ);
        let full = self.segments.state(id) == Use::Sealed;
        let (mut met, written) = (0, self.segments.written_bytes(id));
        let by_summary = self.each_record(&source, id, of, &mut |record| {
            let link = self.layout.link(record.kind, base + record.offset, record.size_bytes);
            met += link.map_or(0, |link| record_bytes(link, record.size_bytes));
            visit(record);
        })?;
        // A walk ends where nothing follows. A repair knows what is lost.
        let missing = full && !by_summary && self.repair.is_none() && met < written;
        if missing && self.segments.epoch(id) == of.epoch {
            let words = "a full segment has fewer records than were written";
            return Err(Error::corrupted("read log", words)
                .device(self.device.name())
                .at(base, self.layout.segment_size));
        }
        Ok(())
    }

    /// What the summary of a segment says, or a walk through it if it has none; whether it was the summary.
    pub(super) fn each_record(
        &self,
        source: &Source<'_>,
        id: SegmentId,
        of: Incarnation,
        visit: &mut dyn FnMut(SummaryRecord),
    ) -> Result<bool> {
        if source.summary(id, of, visit)?.is_some() {
            return Ok(true);
        }
        let base = self.layout.segment_offset(id);
        let over = self.repair.as_ref().map(|known| known.over(id, of.stream));
        source.walk_over(id, of, over, &mut |step| {
            match step {
                Step::Record(record, offset) => visit(noted(record, offset - base, &self.hasher)),
                Step::Damaged(record, offset) => {
                    let noted = noted(record, offset - base, &self.hasher);
                    let known = self.repair.as_ref();
                    if known.is_some_and(|known| known.confirms(&self.layout, base, &noted)) {
                        visit(noted);
                    }
                }
                Step::Batch { .. } => {}
            }
            Ok(())
        })?;
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
