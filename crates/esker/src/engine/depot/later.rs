//! Writes that are on media later: durability `periodic` and `none`.
//!
//! Nobody waits for such a write, so it need not wait for the device: its record gets its place in a
//! piece of the log that forms in memory, and is visible at once. A piece is written when it is full,
//! when somebody asks for durability, or when some time has passed; full ones by a thread of the store, so
//! that no writer waits for a device. Records that are not written yet are read from memory. Writers are held
//! back by the debt of free space record by record, not piece by piece.
//!
//! # Invariants
//! - W1: pieces are written in the order of their versions, by one writer at a time: a crash leaves
//!   a prefix of the writes.
//! - W2: a piece can be read from memory until it is on the device; so what the index points at can
//!   always be read.
//! - W3: at most [`QUEUE_MAX`] full pieces wait: memory is bounded, and who fills the next one
//!   writes.
//!
//! - W4: no version that anybody has seen is given again after a crash: before a record is visible, a header is durable that tells
//!   a higher version. Each header tells one that is not reached before the next one is durable, and a session begins with one.
//!
//! # Concurrency
//! Lock order: stripes, the log's state, the list of pieces, a piece. The writer's lock is held
//! across I/O, and taken before the log's state.
//!
//! # Failure
//! A failed write makes the store read-only. What was not written stays readable until it is closed.

use super::batch::{Batch, Entry, Need};
use super::commit::Item;
use super::log::State;
use super::place::Plan;
use super::read::{Bytes, Fetched};
use super::segments::Segments;
use super::{Depot, sites};
use crate::options::Durability;
use esker_base::ids::{SegmentId, Sequence, Version};
use esker_base::{ErrorKind, Result};
use esker_format::depot::{LargeRef, RecordKind, RecordMeta, Stream, VersionForm};
use esker_index::Link;
use esker_trt::sync::Mutex;
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::sync::Arc;

/// Full pieces that wait to be written.
const QUEUE_MAX: usize = 4;
/// A piece takes no more records once it is this long, in bytes.
const PIECE_SIZE_SOFT_MAX: u64 = 1 << 20;

/// Fewest bytes that a record takes, with its part of the summary.
const RECORD_SIZE_MIN: u64 = 16;

/// A piece of the log in memory.
#[derive(Debug)]
struct Piece {
    /// Device offset of its batch.
    offset: u64,
    segment: SegmentId,
    batch: RwLock<Batch>,
}

/// A piece and where it goes.
#[derive(Clone, Debug)]
pub(super) struct Forming {
    piece: Arc<Piece>,
    plan: Plan,
}

/// Pieces on their way, as part of the log's state.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub(super) forming: Option<Forming>,
    full: VecDeque<Forming>,
}

/// What readers and the writer know of pieces.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    pieces: RwLock<Vec<Arc<Piece>>>,
    writer: Mutex<()>,
}

impl Unwritten {
    fn add(&self, segments: &Segments, piece: &Arc<Piece>) {
        let mut pieces = self.pieces.write();
        pieces.push(Arc::clone(piece));
        tell(segments, &pieces, piece.segment);
    }

    fn remove(&self, segments: &Segments, piece: &Arc<Piece>) {
        let mut pieces = self.pieces.write();
        pieces.retain(|other| !Arc::ptr_eq(other, piece));
        tell(segments, &pieces, piece.segment);
    }
}

/// Tells readers from where on records of a segment are in memory, so that a reader of others takes no lock.
fn tell(segments: &Segments, pieces: &[Arc<Piece>], segment: SegmentId) {
    let of_segment = pieces.iter().filter(|piece| piece.segment == segment);
    segments.unwritten_from(segment, of_segment.map(|piece| piece.offset).min());
}

/// A record that was appended, and what the index says of it; nothing of what clears it.
type Appended = (Entry, Option<Link>);

/// Where records were appended.
struct Placed {
    segment: SegmentId,
    first: Appended,
    more: Vec<Appended>,
}

/// What became of a write.
pub(super) enum Later {
    /// Visible, as this version (the last one of several records). Whether a piece got full, and the bytes of keys
    /// and values.
    Done(Version, bool, u64),
    /// The superblock does not say that the cache is in doubt: say it and come again.
    Unsaid,
    /// Too many pieces wait: write them and come again.
    Busy,
    /// The segments are full: clean until more than so many are free, and come again.
    NoRoom(usize),
    /// The open found no room for a segment in which the log begins: begin it and come again.
    Unbegun,
}

impl Depot {
    /// Whether writes go to memory first.
    pub(super) fn writes_later(&self) -> bool {
        self.durability != Durability::Sync
    }

    /// How many versions may be given in memory before the next header of the clients' log is durable (W4): as many as there are
    /// records in what is left of the open segment, in the pieces that wait, and in those that form and are written.
    pub(super) fn given_ahead(&self) -> u64 {
        if !self.writes_later() {
            return 0;
        }
        (QUEUE_MAX as u64 + 3) * self.layout.segment_size / RECORD_SIZE_MIN
    }

    /// Makes durable that versions will be given from here on (W4): in the header of the segment in which the log goes on, or, if it
    /// begins a new one, in that of that one. It begins one also for who makes each write durable: else which versions were given, and what
    /// was cleared, may stand in a segment alone in which nothing counts any more, and whose header may go before those that were cleared.
    pub(super) fn reserve_versions(&self) -> Result<()> {
        let (tail, is_new) = {
            let state = self.log.lock();
            (state.tail, state.next_version == Version(1))
        };
        if !self.writes_later() && (tail.is_some() || is_new) {
            return Ok(());
        }
        if let Some(tail) = tail {
            let incarnation = self.segments.incarnation(tail.segment);
            self.renew_header(tail.segment, incarnation)?;
            // PERSIST: W4. Crash before: the header is what it was, but for that number.
            return self.device.flush(sites::ROLL_FLUSH);
        }
        if self.known_room(1) == 0 {
            // Who makes room for the first record takes a segment with a header of its own, durable before that.
            return Ok(());
        }
        let first = Sequence(self.log.next_version().0);
        let begun = self.begin_log(first)?;
        self.log.lock().tail = Some(begun);
        Ok(())
    }

    /// Begins a log for which an open found no room (W4), unless others have taken what there is now: the caller comes again, and hears
    /// that there is none.
    pub(super) fn begin_later(&self) -> Result<()> {
        let _writer = self.log.unwritten.writer.lock();
        let (plan, first) = {
            let state = self.log.lock();
            state.refuse()?;
            if state.tail.is_some() || state.pieces.forming.is_some() {
                return Ok(());
            }
            let first = Sequence(state.next_version().0);
            // Under the lock: whoever begins a checkpoint finds the segment as it was, or as it is to be.
            match self.begin_place(Stream::Fresh, &mut None, Need::default(), first) {
                Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(()),
                plan => (plan, first),
            }
        };
        // Whatever the device says of the header, and be it full: nobody knows what it has.
        let begun = plan.and_then(|plan| self.roll_to(plan, first));
        let begun = begun.map_err(|error| self.poison(&error))?;
        self.log.lock().tail = Some(begun);
        Ok(())
    }

    /// Appends records to the piece that forms and enters them in the index; `published` has the
    /// entries that their keys had. The caller holds the keys' stripes.
    pub(super) fn write_later(
        &self,
        items: &[Item<'_>],
        published: &[Option<Link>],
    ) -> Result<Later> {
        let (Placed { segment, first, more }, closed) = {
            let mut guard = self.log.lock();
            let state = &mut *guard;
            state.refuse()?;
            if self.doubt.is_unsaid() {
                return Ok(Later::Unsaid);
            }
            let mut closed = false;
            loop {
                if let Some(placed) = self.append_to_piece(state, items) {
                    break (placed, closed);
                }
                // Also if none forms: whoever asks for durability ends one, and waits.
                if state.pieces.full.len() >= QUEUE_MAX {
                    return Ok(Later::Busy);
                }
                if state.pieces.forming.is_some() {
                    self.end_piece(state);
                    closed = true;
                }
                if let Some(first) = self.begin_piece(state, items)? {
                    return Ok(first);
                }
            }
        };
        let mut version = first.0.version;
        for (((entry, link), item), published) in
            std::iter::once(first).chain(more).zip(items).zip(published)
        {
            version = entry.version;
            let Some(link) = link else { continue };
            let of_value = LargeRef::of(entry.kind, item.key, item.value).unwrap_or_default();
            match entry.kind {
                RecordKind::Clear => self.publish_clear(version),
                RecordKind::Extent => self.enter_extent(of_value, segment, link),
                _ => self.enter(&entry, of_value, link, *published),
            }
        }
        self.segments.end_entry(segment);
        let bytes = items.iter().map(|item| (item.key.len() + item.value.len()) as u64).sum();
        Ok(Later::Done(version, closed, bytes))
    }

    /// Appends records to the piece that forms, if there is one and they fit it.
    fn append_to_piece(&self, state: &mut State, items: &[Item<'_>]) -> Option<Placed> {
        let (Forming { piece, plan }, next_version) = state.forming()?;
        let mut batch = piece.batch.write();
        let shapes = items.iter().map(|item| batch.shape(&item.meta, item.key, item.value));
        let need = batch.need(shapes);
        // The first ones were asked for their room when the piece began.
        let fits = batch.entries.is_empty()
            || need.used <= PIECE_SIZE_SOFT_MAX
                && self.fits(Some(plan.tail()), need, batch.first)
                && !batch.keeps_apart(items.iter().map(|item| item.meta.kind));
        if !fits {
            return None;
        }
        let (first, others) = items.split_first()?;
        // The segment may be full and written before this thread enters what it appends.
        self.segments.begin_entry(piece.segment);
        let mut push = |item: &Item<'_>| {
            let meta = RecordMeta { version: *next_version, ..item.meta };
            next_version.0 += 1;
            let entry = batch.push(&self.pool, item.hash, &meta, item.key, item.value);
            let link = self.layout.link(entry.kind, piece.offset + entry.start(), entry.size());
            if let Some(link) = link.filter(|_| entry.is_live_at_once()) {
                // Here, where no other writer is: S1 of the segments.
                self.segments.add(piece.segment, link, entry.size());
            }
            (entry, link)
        };
        let first = push(first);
        let more: Vec<Appended> = others.iter().map(push).collect();
        let segment = piece.segment;
        drop(batch);
        let mut entries = std::iter::once(&first).chain(&more).map(|(entry, _)| entry);
        if let Some(clear) = entries.find(|entry| entry.kind == RecordKind::Clear) {
            // Before a header is written behind it: when its own segment goes, that one tells.
            state.clear_version = Version(clear.version.0 + 1);
        }
        Some(Placed { segment, first, more })
    }

    /// Starts a piece that these records fit; or says what is to be done first.
    fn begin_piece(&self, state: &mut State, items: &[Item<'_>]) -> Result<Option<Later>> {
        let first = Sequence(state.next_version().0);
        let batch = Batch::new(&self.pool, &self.layout, first, VersionForm::Distance);
        let shapes = items.iter().map(|item| batch.shape(&item.meta, item.key, item.value));
        let need = batch.need(shapes);
        self.check_need(need)?;
        if !self.fits(state.tail.as_ref(), need, first) {
            let kept = self.kept_for(items);
            if !self.has_room(kept) {
                return Ok(Some(Later::NoRoom(kept)));
            }
            if state.tail.is_none() {
                return Ok(Some(Later::Unbegun));
            }
        }
        let plan = self.begin_place(Stream::Fresh, &mut state.tail, need, first)?;
        let segment = plan.segment();
        let offset = self.layout.segment_offset(segment) + plan.tail().position;
        let piece = Arc::new(Piece { offset, segment, batch: RwLock::new(batch) });
        self.log.unwritten.add(&self.segments, &piece);
        state.pieces.forming = Some(Forming { piece, plan });
        Ok(None)
    }

    pub(super) fn end_piece(&self, state: &mut State) {
        if let Some(mut forming) = state.pieces.forming.take() {
            let batch = forming.piece.batch.read();
            self.end_place(&mut forming.plan, &mut state.tail, &batch);
            drop(batch);
            state.pieces.full.push_back(forming);
        }
    }

    /// Writes full pieces; with `wait`, also those that another writer has begun.
    pub(super) fn write_full(&self, wait: bool) -> Result<()> {
        let writer = if wait {
            self.log.unwritten.writer.lock()
        } else {
            match self.log.unwritten.writer.try_lock() {
                Some(writer) => writer,
                None => return Ok(()),
            }
        };
        loop {
            let (next, durable, room) = {
                let state = self.log.lock();
                state.check_failure()?;
                let room = state.tail.map_or(0, |tail| self.layout.room_behind(tail.position));
                (state.pieces.full.front().cloned(), state.durable(), room)
            };
            let Some(Forming { piece, plan }) = next else {
                drop(writer);
                return Ok(());
            };
            // The piece stays readable while its copy gets its checksums.
            let mut batch = piece.batch.read().copy(&self.pool);
            self.pace.ask(self.debt(room));
            let mut durable = Sequence(durable.0);
            let mut summary = self.log.take_summary();
            self.write_batch(Stream::Fresh, &mut batch, &plan, &mut summary, &mut durable, false)
                .map_err(|error| self.poison(&error))?;
            self.log.put_summary(summary);
            let mut state = self.log.lock();
            state.wrote_until(Version(batch.end().0), Version(durable.0));
            state.pieces.full.pop_front();
            drop(state);
            self.log.unwritten.remove(&self.segments, &piece);
        }
    }

    /// Brings everything to the device that is in memory only.
    pub(super) fn write_out(&self) -> Result<()> {
        if self.writes_later() {
            self.end_piece(&mut self.log.lock());
            self.write_full(true)?;
        }
        Ok(())
    }

    /// Whether the record at device offset `offset` is in memory only.
    pub(super) fn is_unwritten(&self, segment: SegmentId, offset: u64) -> bool {
        self.unwritten(segment, offset, |_, _| Some(())).is_some()
    }

    /// The record at device offset `offset`, if it is in memory only.
    pub(super) fn unwritten_record(&self, segment: SegmentId, offset: u64) -> Option<Fetched> {
        self.unwritten(segment, offset, |batch, entry| {
            let bytes = Bytes::copy_of(&self.pool, batch.bytes(entry));
            // In memory, a record does not tell its version.
            Fetched::decode(bytes, 0, entry.version, None).ok()
        })
    }

    fn unwritten<R>(
        &self,
        segment: SegmentId,
        offset: u64,
        see: impl FnOnce(&Batch, &Entry) -> Option<R>,
    ) -> Option<R> {
        if !self.segments.is_unwritten(segment, offset) {
            return None;
        }
        let pieces = self.log.unwritten.pieces.read();
        // Of pieces that begin before it, the last one has it, if one has.
        let piece = pieces.iter().filter(|piece| piece.offset <= offset);
        let piece = piece.max_by_key(|piece| piece.offset)?;
        let batch = piece.batch.read();
        see(&batch, batch.entry_at(offset - piece.offset)?)
    }
}

#[cfg(test)]
mod tests;
