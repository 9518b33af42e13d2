//! Checkpoints of the index (uDepot §4.4), with which recovery reads only what was written after them.
//!
//! The log is the truth; a checkpoint only saves reading it. One is written while clients rest, now and then while they do not, on
//! request, and at a clean stop. It begins with what it covers: every segment, the open ones up to their ends. Whatever counts
//! there is in the index then. Clients and the cleaner go on while the index is copied part by part: what of the copy stands
//! behind the ends, or in a segment that was begun later, is left out when it is loaded ([`load`]), since recovery reads those
//! segments from there on ([`super::overtaken`]).
//!
//! It stands in free segments, which stay on the free list behind all others. A checkpoint that lost one of them is none. Where there is
//! no room for one beside the last one, that one's segments are taken, too, but only if the new one surely fits: who closes a full
//! store leaves the last one as it is. What it takes is counted before it begins.
//!
//! # Invariants
//! - P1: of the records that it covers, the index that it holds has the newest one of each key that is still on media. For
//!   what had overtaken such a record when it began is covered too, or was a tombstone that was dropped, and that is only once
//!   nothing older is left.
//! - P2: a checkpoint vouches for itself: its batches have numbers and checksums, and its segments a number in common that no
//!   other checkpoint has. So one of any age is right, and none is needed: one that is not whole is left aside.
//! - P3: what it covers was durable before it was whole; a log that ends earlier is damaged. So is whatever made the index
//!   what it is while it was copied.
//!
//! # Concurrency
//! One at a time, under a lock that is held across I/O. The ends are taken with the locks of the cleaner and of the log. The thread that
//! cleans ahead of clients rests between the pieces of a checkpoint, and cleans in between when they are short of free segments.
//!
//! # Failure
//! A crash leaves the checkpoint before, or this one, or none. A failed write makes the store read-only.

pub(super) mod load;

use super::layout::Layout;
use super::pace::Tempo;
use super::place::Tail;
use super::segments::Incarnation;
use super::{Depot, sites};
use esker_base::Result;
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, Version};
use esker_format::depot::{
    BATCH_HEADER_SIZE, BatchKind, CheckpointEnd, CheckpointExtents, Stream, part_size, push_part,
};
use esker_index::Directory;
use std::io::IoSlice;

/// Most bytes of one batch of parts.
const BATCH_SIZE: usize = 1 << 20;
/// Bytes of an entry, with what stands around it, as a rule.
const ENTRY_SIZE: u64 = 9;
/// No batch begins where less than this share of a segment is left.
const REST_SHARE: u64 = 16;
/// Segments that a checkpoint beside writers leaves free besides: the index grows meanwhile.
pub(super) const GROWTH: usize = 1;

/// The state of the log when the checkpoint that is on media was begun, and the next epoch when it was whole.
pub(super) type Taken = Option<(Version, SegmentEpoch)>;

/// Where the batches of a checkpoint go, one behind the other.
trait Batches {
    /// Takes a batch; false if there is no segment for it.
    fn write(&mut self, kind: BatchKind, payload: &[u8]) -> Result<bool>;

    /// What a segment has room for, and what is left of the last one.
    fn room(&self) -> (u64, u64);

    /// Adds something of `size` bytes to the payload of batches of one kind, and writes what is full; false if there is no
    /// segment for it.
    fn add(
        &mut self,
        kind: BatchKind,
        payload: &mut Vec<u8>,
        size: usize,
        push: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool> {
        let (all, left) = self.room();
        // A batch ends where its segment does.
        let most = if left < all / REST_SHARE { all } else { left };
        let most = usize::try_from(most).unwrap_or(BATCH_SIZE);
        let full = BATCH_HEADER_SIZE + payload.len() + size > BATCH_SIZE.min(most);
        if full && !self.write_rest(kind, payload)? {
            return Ok(false);
        }
        push(payload);
        Ok(true)
    }

    /// Writes a payload that is not empty, and empties it; false if there is no segment for it.
    fn write_rest(&mut self, kind: BatchKind, payload: &mut Vec<u8>) -> Result<bool> {
        let written = payload.is_empty() || self.write(kind, payload)?;
        payload.clear();
        Ok(written)
    }
}

/// Counts the segments that batches take.
struct Count<'a> {
    layout: &'a Layout,
    segments: usize,
    left: u64,
}

impl Batches for Count<'_> {
    fn write(&mut self, _: BatchKind, payload: &[u8]) -> Result<bool> {
        esker_trt::yield_now();
        let total = self.layout.blocks((BATCH_HEADER_SIZE + payload.len()) as u64);
        if total > self.left {
            self.segments += 1;
            self.left = self.layout.room_behind(self.layout.first_batch());
        }
        let left = self.left.checked_sub(total);
        self.left = left.unwrap_or(0);
        Ok(left.is_some())
    }

    fn room(&self) -> (u64, u64) {
        (self.layout.batch_max(), self.left)
    }
}

/// Writes the batches of a checkpoint.
struct Writer<'a> {
    depot: &'a Depot,
    /// Free segments that it leaves alone. Those of the last checkpoint it takes last.
    kept: usize,
    tail: Option<Tail>,
    batches: u64,
    segments: Vec<SegmentId>,
    /// What its segments have in common: the epoch of the first one.
    group: SegmentEpoch,
    /// Of the thread that cleans ahead of clients.
    tempo: Option<Tempo>,
    /// As [`Depot::clean_between`] says.
    in_vain: Option<u64>,
}

impl Writer<'_> {
    /// Takes a segment; false if there is none.
    fn take(&mut self) -> Result<bool> {
        let depot = self.depot;
        depot.reserve_ahead();
        let taken = depot.with_room(|| depot.segments.take_spare(self.kept));
        let Some(free) = taken else { return Ok(false) };
        self.segments.push(free.id);
        if free.after >= depot.log.durable() {
            // PERSIST: what made the segment free must be durable before its header goes.
            depot.flush_published()?;
        }
        let epoch = depot.log.take_epoch();
        if self.segments.len() == 1 {
            self.group = epoch;
        }
        let salt = depot.random() ^ super::spread(epoch.0);
        let base = Sequence(self.batches);
        let incarnation = Incarnation { stream: Stream::Checkpoint, epoch, salt, base };
        depot.segments.open_for_checkpoint(free.id, incarnation);
        depot.write_header(free.id, incarnation, self.group)?;
        // PERSIST: the header, before what it declares dead is overwritten.
        depot.device.flush(sites::ROLL_FLUSH)?;
        depot.segments.renewed(free.id);
        self.tail = Some(Tail {
            segment: free.id,
            position: depot.layout.first_batch(),
            salt,
            session: salt,
            base,
            summary: 0,
            barrier_due: false,
            ends: false,
        });
        Ok(true)
    }

    /// Between two pieces: what the thread is there for comes first.
    fn give_way(&mut self) {
        let depot = self.depot;
        if self.tempo.is_none() || depot.background.is_stopping() {
            return;
        }
        depot.rest(&mut self.tempo);
        let mut clean = || depot.clean_between(&mut depot.cleaner.lock(), &mut self.in_vain);
        let cleaned = loop {
            match clean() {
                Ok(true) if !depot.background.is_stopping() => {}
                cleaned => break cleaned,
            }
        };
        if let Err(error) = cleaned {
            tracing::error!(%error, "cleaning failed");
        }
    }
}

impl Batches for Writer<'_> {
    fn write(&mut self, kind: BatchKind, payload: &[u8]) -> Result<bool> {
        let depot = self.depot;
        let layout = &depot.layout;
        let total = layout.blocks((BATCH_HEADER_SIZE + payload.len()) as u64);
        let fits = |tail: &Tail| tail.position + total <= layout.trailer();
        if !self.tail.as_ref().is_some_and(fits) && !self.take()? {
            return Ok(false);
        }
        let Some(tail) = self.tail.as_mut().filter(|tail| fits(tail)) else { return Ok(false) };
        let offset = layout.segment_offset(tail.segment) + tail.position;
        let number = Sequence(self.batches);
        let batch = depot.marker(kind, tail, offset, payload, number, number);
        depot.device.write_at(sites::CHECKPOINT_WRITE, offset, &[IoSlice::new(&batch)])?;
        tail.position += total;
        self.batches += 1;
        self.give_way();
        Ok(true)
    }

    fn room(&self) -> (u64, u64) {
        let layout = &self.depot.layout;
        let left = self.tail.map_or(0, |tail| layout.room_behind(tail.position));
        (layout.batch_max(), left)
    }
}

impl Depot {
    /// Writes a checkpoint; false if nothing was written since the last one, if one is under way, or if there is no room
    /// beside what the log needs.
    pub(super) fn write_checkpoint(&self) -> Result<bool> {
        self.write_checkpoint_at(None)
    }

    /// As [`Depot::write_checkpoint`], by the thread that cleans ahead of clients.
    pub(super) fn write_checkpoint_beside(&self) -> Result<bool> {
        self.write_checkpoint_at(Some(Tempo::new(self.clock.monotonic())))
    }

    fn write_checkpoint_at(&self, tempo: Option<Tempo>) -> Result<bool> {
        self.log.refuse()?;
        let Some(mut taken) = self.checkpoint.try_lock() else { return Ok(false) };
        // Nothing is written behind the last checkpoint, nor after the store was closed.
        self.log.refuse()?;
        if taken.is_some_and(|(version, _)| version == self.log.next_version()) {
            return Ok(false);
        }
        self.write_checkpoint_in(&mut taken, self.segments.reserve_of_puts(), GROWTH, tempo)
    }

    /// Writes a checkpoint at the end of a session, unless the last one says all there is to say, or there is no room: then the last one
    /// stays, if there still is one.
    pub(super) fn close_checkpoint(&self) -> Result<()> {
        let mut taken = self.checkpoint.lock();
        if *taken != Some((self.log.next_version(), self.log.next_epoch())) {
            self.write_checkpoint_in(&mut taken, 0, 0, None)?;
        }
        Ok(())
    }

    /// Writes a checkpoint that leaves so many free segments alone, and so many more at its begin.
    fn write_checkpoint_in(
        &self,
        taken: &mut Taken,
        kept: usize,
        more: usize,
        tempo: Option<Tempo>,
    ) -> Result<bool> {
        let mut end = self.cover()?;
        // Where there is much room, nobody need know how much it takes. What may be none is none: it would cost the last checkpoint.
        let mut needed = 2 * self.checkpoint_segments();
        let mut free = self.known_room(needed + kept + more);
        if free < needed + kept + more {
            needed = self.segments_for(&end)?;
            free = self.known_room(needed + kept + more);
        }
        if free < needed + kept + more {
            tracing::warn!(
                needed,
                free,
                "no room for a checkpoint of the index: the next open reads the log instead"
            );
            return Ok(false);
        }
        let mut writer = Writer {
            depot: self,
            kept,
            tail: None,
            batches: 0,
            segments: Vec::new(),
            group: SegmentEpoch(0),
            tempo,
            in_vain: None,
        };
        let written = self.write_index(&mut writer, &mut end);
        if matches!(written, Ok(false)) {
            tracing::warn!("writers left no room for a checkpoint of the index");
        }
        if written.as_ref().is_ok_and(|done| *done) {
            self.segments.keep_checkpoint(&writer.segments);
            *taken = Some((end.next_version, self.log.next_epoch()));
        } else {
            writer.segments.iter().for_each(|id| self.segments.add_stale(*id));
        }
        written.map_err(|error| self.poison(&error))
    }

    /// What a checkpoint covers that begins now; the index knows it when this returns.
    fn cover(&self) -> Result<CheckpointEnd> {
        let cleaner = self.cleaner.lock();
        let (end, in_flight) = {
            let mut guard = self.log.lock();
            let state = &mut *guard;
            state.check_failure()?;
            if self.writes_later() {
                self.end_piece(state);
            }
            let of_clients = state.tail.map(|tail| (tail.segment, tail.position));
            let open: Vec<_> = of_clients.into_iter().chain(cleaner.tails()).collect();
            let next_version = state.next_version();
            let end = CheckpointEnd {
                next_version,
                clear_version: state.clear_version(),
                moved: cleaner.next_sequences(),
                segments: self.segments.covered(&open, next_version),
                ..CheckpointEnd::default()
            };
            (end, state.in_flight.clone())
        };
        drop(cleaner);
        if sites::CHECKPOINT_SETTLED.disabled() {
            return Ok(end);
        }
        // Who appended to memory enters under the key's stripe.
        self.pending.pass_all();
        in_flight.map_or(Ok(()), |ticket| ticket.wait())?;
        Ok(end)
    }

    /// Segments that a checkpoint with this end takes now.
    fn segments_for(&self, end: &CheckpointEnd) -> Result<usize> {
        let mut count = Count { layout: &self.layout, segments: 0, left: 0 };
        let fits = self.write_parts(&mut count, &mut 0)?
            && count.write(BatchKind::CheckpointEnd, &end.encode())?;
        Ok(if fits { count.segments } else { usize::MAX / 2 })
    }

    /// Writes the index and the end; false if there is no room.
    fn write_index(&self, writer: &mut Writer<'_>, end: &mut CheckpointEnd) -> Result<bool> {
        if !self.write_parts(writer, &mut end.entries)? {
            return Ok(false);
        }
        if !sites::CHECKPOINT_COVERED.disabled() {
            // PERSIST: P3. Crash before: no checkpoint.
            self.flush_published()?;
        }
        end.batches = writer.batches;
        if !writer.write(BatchKind::CheckpointEnd, &end.encode())? {
            return Ok(false);
        }
        // PERSIST: this checkpoint, before what is left of the one before may be overwritten: or there may be none.
        self.device.flush(sites::SYNC_FLUSH)?;
        Ok(true)
    }

    /// Writes the index, and counts its entries; false if there is no room.
    fn write_parts(&self, out: &mut impl Batches, entries: &mut u64) -> Result<bool> {
        let mut payload = Vec::with_capacity(BATCH_SIZE);
        let mut cursor = 0;
        while let Some((part, next)) = self.index.export(cursor) {
            cursor = next;
            *entries += Directory::entries_of(&part);
            let push = |payload: &mut Vec<u8>| push_part(payload, &part);
            if !out.add(BatchKind::Checkpoint, &mut payload, part_size(&part), push)? {
                return Ok(false);
            }
        }
        if !out.write_rest(BatchKind::Checkpoint, &mut payload)? {
            return Ok(false);
        }
        // Also those whose keys' records are not there yet: these may come before the checkpoint is whole.
        for value in self.extents.export() {
            let size = CheckpointExtents::size_bytes(value.links.len());
            let push = |payload: &mut Vec<u8>| value.push(payload);
            if !out.add(BatchKind::CheckpointExtents, &mut payload, size, push)? {
                return Ok(false);
            }
        }
        out.write_rest(BatchKind::CheckpointExtents, &mut payload)
    }

    /// Segments that a checkpoint takes, about.
    pub(super) fn checkpoint_segments(&self) -> usize {
        let bytes = self.index.len() * ENTRY_SIZE + self.extents.count() * ENTRY_SIZE;
        let bytes = bytes + bytes / REST_SHARE;
        usize::try_from(bytes / self.layout.batch_max()).unwrap_or(usize::MAX).saturating_add(1)
    }
}
