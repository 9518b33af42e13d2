//! Writes that are on media later: durability `periodic` and `none`.
//!
//! Nobody waits for such a write, so it need not wait for the device: its record gets its place in a
//! piece of the log that forms in memory, and is visible at once. A piece is written when it is full,
//! when somebody asks for durability, or when some time has passed. Records that are not written yet
//! are read from memory.
//!
//! # Invariants
//! - W1: pieces are written in the order of their versions, by one writer at a time: a crash leaves
//!   a prefix of the writes.
//! - W2: a piece can be read from memory until it is on the device; so what the index points at can
//!   always be read.
//! - W3: at most [`QUEUE_MAX`] full pieces wait: memory is bounded, and who fills the next one
//!   writes.
//!
//! # Concurrency
//! Lock order: stripes, the log's state, the list of pieces, a piece. The writer's lock is held
//! across I/O, and taken before the log's state.
//!
//! # Failure
//! A failed write makes the store read-only. What was not written stays readable until it is closed.

use super::Depot;
use super::commit::{Item, State};
use super::place::{Batch, Plan, link_to};
use super::read::Fetched;
use crate::options::Durability;
use esker_base::ids::{SegmentId, Sequence, Version};
use esker_base::{Error, Result};
use esker_format::depot::{Record, RecordKind, RecordMeta, Stream, VersionForm};
use esker_index::Link;
use esker_trt::sync::Mutex;
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Full pieces that wait to be written.
const QUEUE_MAX: usize = 4;
/// A piece takes no more records once it is this long, in bytes.
const PIECE_SIZE_SOFT_MAX: u64 = 1 << 20;

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
    forming: Option<Forming>,
    full: VecDeque<Forming>,
}

/// What readers and the writer know of pieces.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    pieces: RwLock<Vec<Arc<Piece>>>,
    /// Length of the list, so that a reader of a store without any takes no lock.
    count: AtomicUsize,
    writer: Mutex<()>,
}

impl Unwritten {
    fn add(&self, piece: &Arc<Piece>) {
        let mut pieces = self.pieces.write();
        pieces.push(Arc::clone(piece));
        self.count.store(pieces.len(), Ordering::Release);
    }

    fn remove(&self, piece: &Arc<Piece>) {
        let mut pieces = self.pieces.write();
        pieces.retain(|other| !Arc::ptr_eq(other, piece));
        self.count.store(pieces.len(), Ordering::Release);
    }
}

/// What became of a write.
pub(super) enum Later {
    /// Visible, as this version (the last one of several records). Whether a piece got full.
    Done(Version, bool),
    /// Too many pieces wait: write them and come again.
    Busy,
    /// The segments are full: clean until more than so many are free, and come again.
    NoRoom(usize),
}

impl Depot {
    /// Whether writes go to memory first.
    pub(super) fn writes_later(&self) -> bool {
        self.durability != Durability::Sync
    }

    /// Appends records to the piece that forms and enters them in the index; `published` has the
    /// entries that their keys had. The caller holds the keys' stripes.
    pub(super) fn write_later(
        &self,
        items: &[Item<'_>],
        published: &[Option<Link>],
    ) -> Result<Later> {
        let (piece, first, version, closed) = {
            let mut guard = self.log.lock();
            let state = &mut *guard;
            state.refuse()?;
            let mut closed = false;
            if let Some(forming) = &state.pieces.forming {
                let batch = forming.piece.batch.read();
                let sizes = items.iter().map(|item| batch.sizes(&item.meta, item.key, item.value));
                let need = batch.need(sizes);
                let fits = need.used <= PIECE_SIZE_SOFT_MAX
                    && self.fits(Some(forming.plan.tail()), need, batch.first)
                    && !batch.keeps_apart(items.iter().map(|item| item.meta.kind));
                drop(batch);
                if !fits {
                    if state.pieces.full.len() >= QUEUE_MAX {
                        return Ok(Later::Busy);
                    }
                    self.end_piece(state);
                    closed = true;
                }
            }
            if state.pieces.forming.is_none()
                && let Some(kept) = self.begin_piece(state, items)?
            {
                return Ok(Later::NoRoom(kept));
            }
            let Some(Forming { piece, .. }) = state.pieces.forming.clone() else {
                return Err(Error::invalid("write store", "no piece of the log forms"));
            };
            let mut batch = piece.batch.write();
            let first = batch.entries.len();
            for item in items {
                let meta = RecordMeta { version: state.take_version(), ..item.meta };
                batch.push(&self.pool, item.hash, &meta, item.key, item.value);
            }
            let version = batch.entries.last().map_or(Version(0), |entry| entry.version);
            drop(batch);
            // The segment may be full and written before this thread comes to what is below.
            self.segments.begin_entry(piece.segment);
            (piece, first, version, closed)
        };
        let batch = piece.batch.read();
        let entries = batch.entries.iter().skip(first).take(items.len());
        for (entry, published) in entries.zip(published) {
            if entry.kind == RecordKind::Clear {
                self.publish_clear(entry.version);
            } else if let Some(link) =
                link_to(entry.kind, piece.offset + entry.start(), entry.size())
            {
                let of_value = batch.piece(entry);
                if entry.kind == RecordKind::Extent {
                    self.enter_extent(of_value, piece.segment, link);
                } else {
                    self.enter(entry, of_value, piece.segment, link, *published);
                }
            }
        }
        drop(batch);
        self.segments.end_entry(piece.segment);
        Ok(Later::Done(version, closed))
    }

    /// Starts a piece that these records fit; `Some` number of segments to keep if there is no room.
    fn begin_piece(&self, state: &mut State, items: &[Item<'_>]) -> Result<Option<usize>> {
        let first = Sequence(state.next_version().0);
        let batch = Batch::new(&self.pool, first, VersionForm::Distance);
        let sizes = items.iter().map(|item| batch.sizes(&item.meta, item.key, item.value));
        let need = batch.need(sizes);
        if !self.fits_any(need) {
            let words = format!("{} bytes are more than a batch can hold", need.used);
            return Err(Error::invalid("write store", words));
        }
        if !self.fits(state.tail.as_ref(), need, first) {
            let kept = self.kept_for(items);
            if self.segments.free_count() <= kept {
                return Ok(Some(kept));
            }
        }
        let plan = self.begin_place(Stream::Fresh, &mut state.tail, need, first)?;
        let segment = plan.segment();
        let offset = self.layout.segment_offset(segment) + plan.tail().position;
        let piece = Arc::new(Piece { offset, segment, batch: RwLock::new(batch) });
        self.log.unwritten.add(&piece);
        state.pieces.forming = Some(Forming { piece, plan });
        Ok(None)
    }

    fn end_piece(&self, state: &mut State) {
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
                let end = self.layout.trailer();
                let room = state.tail.map_or(0, |tail| end.saturating_sub(tail.position));
                (state.pieces.full.front().cloned(), state.durable(), room)
            };
            let Some(Forming { piece, plan }) = next else {
                drop(writer);
                return Ok(());
            };
            // The piece stays readable while its copy gets its checksums.
            let mut batch = piece.batch.read().copy(&self.pool);
            self.pace(batch.used as u64, room);
            let mut durable = Sequence(durable.0);
            let mut summary = self.log.take_summary();
            self.write_batch(Stream::Fresh, &mut batch, &plan, &mut summary, &mut durable, false)
                .map_err(|error| self.poison(&error))?;
            self.log.put_summary(summary);
            let mut state = self.log.lock();
            state.wrote_until(Version(batch.end().0), Version(durable.0));
            state.pieces.full.pop_front();
            drop(state);
            self.log.unwritten.remove(&piece);
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
    pub(super) fn is_unwritten(&self, offset: u64) -> bool {
        self.log.unwritten.count.load(Ordering::Acquire) > 0
            && self.unwritten_record(offset).is_some()
    }

    /// The record at device offset `offset`, if it is in memory only.
    pub(super) fn unwritten_record(&self, offset: u64) -> Option<Fetched> {
        if self.log.unwritten.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let pieces = self.log.unwritten.pieces.read();
        pieces.iter().find_map(|piece| {
            let batch = piece.batch.read();
            let entry = batch.entry_at(offset.checked_sub(piece.offset)?)?;
            let buffer = self.pool.copy_of(batch.bytes(entry));
            // In memory, a record does not tell its version.
            let record = Record::decode(&buffer, entry.version, None).ok()?;
            let (meta, ranges) = (record.meta, super::read::ranges(0, &record));
            Some(Fetched::new(buffer, meta, ranges))
        })
    }
}
