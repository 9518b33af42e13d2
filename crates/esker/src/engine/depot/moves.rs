//! Moves: records of a segment that is cleaned are copied to a stream of moved ones, and the index follows.
//!
//! # Invariants
//! Those of the cleaner (K1 to K3).
//!
//! # Concurrency
//! Under the cleaner's lock; an index entry changes under its key's stripe.
//!
//! # Failure
//! A crash leaves originals, copies or both.

use super::batch::{Batch, Entry};
use super::layout::Layout;
use super::pace::Tempo;
use super::place::{GIVE_WAY, Tail};
use super::segments::{Incarnation, link_bytes};
use super::{Depot, sites, spread};
use esker_base::Result;
use esker_base::ids::{SegmentId, Sequence, Version};
use esker_base::units::{round_down, round_up};
use esker_format::depot::{
    ExtentKey, LargeRef, Place, Record, RecordKind, RecordMeta, Stream, SummaryRecord, VersionForm,
};
use esker_index::{Link, SizeHint};
use esker_media::BufferPool;

/// A batch of moved records takes no more once it is this long, in bytes.
const BATCH_SIZE_SOFT_MAX: u64 = 1 << 20;
/// Bytes read at once, and the gap between live records that is read over.
const READ_SIZE: u64 = 128 << 10;
const READ_GAP: u64 = 32 << 10;

/// One stream of moved records.
#[derive(Debug)]
pub(super) struct Mover {
    pub(super) stream: Stream,
    pub(super) tail: Option<Tail>,
    pub(super) summary: Vec<u8>,
    pub(super) next: Sequence,
    durable: Sequence,
}

impl Mover {
    pub(super) fn new(stream: Stream, next: Sequence) -> Self {
        Mover { stream, tail: None, summary: Vec::new(), next, durable: next }
    }
}

/// A record with a copy.
pub(super) struct Moved {
    hash: u64,
    /// Which extent it is, if it is one.
    extent: Option<LargeRef>,
    pub(super) old: Link,
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
    pub(super) tempo: Option<Tempo>,
    pub(super) steps: Steps,
}

/// How far the records of a victim are copied, and the bytes that come free with the last one.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) done: u64,
    pub(super) all: u64,
    pub(super) gain: u64,
}

impl Steps {
    /// Bytes that the records so far are worth.
    fn gained(&self) -> u64 {
        self.gain.saturating_mul(self.done) / self.all.max(1)
    }
}

impl<'a> Move<'a> {
    pub(super) fn new(pool: &BufferPool, layout: &Layout, mover: &'a mut Mover) -> Self {
        let batch = Batch::new(pool, layout, mover.next, VersionForm::Whole);
        let (originals, moved) = (Vec::new(), Vec::new());
        Move { mover, batch, originals, moved, tempo: None, steps: Steps::default() }
    }
}

/// What stands in the place of a record that has expired (K3).
pub(super) fn tombstone_of(meta: RecordMeta) -> RecordMeta {
    RecordMeta { kind: RecordKind::Delete, flags: 0, expires_at: None, ..meta }
}

impl Depot {
    /// Makes the copies durable, if all went well so far; returns what was written in any case.
    pub(super) fn end_move(
        &self,
        mut moving: Move<'_>,
        copied: Result<()>,
    ) -> (Vec<Moved>, Result<()>) {
        let written = copied.and_then(|()| self.write_moved(&mut moving));
        let Move { mover, moved, .. } = moving;
        let durable = match written {
            // What a move before this one has written and given up is not durable yet.
            Ok(()) if moved.is_empty() => return (moved, Ok(())),
            Ok(()) if sites::MOVE_FLUSH.disabled() => Ok(()),
            // PERSIST: the copies. Crash before: the originals count. Crash after: either.
            Ok(()) => self.device.flush(sites::MOVE_FLUSH).map_err(|error| self.poison(&error)),
            Err(error) => Err(error),
        };
        if durable.is_ok() {
            mover.durable = mover.next;
        }
        (moved, durable)
    }

    /// Reads the records and copies them into batches.
    pub(super) fn copy_records(
        &self,
        moving: &mut Move<'_>,
        victim: SegmentId,
        of: Incarnation,
        records: &[(SummaryRecord, Link)],
    ) -> Result<()> {
        self.read_records(victim, of, records, &mut |count, record, noted, link| {
            if count.is_multiple_of(GIVE_WAY) {
                self.rest(&mut moving.tempo);
            }
            moving.steps.done += 1;
            self.pace.gained(moving.steps.gained());
            self.copy_record(moving, noted.hash, record, link)
        })
    }

    /// Reads records of a segment in long pieces and gives them to `visit`, until the segment is reused; with the number of
    /// each in its piece.
    pub(super) fn read_records(
        &self,
        id: SegmentId,
        of: Incarnation,
        records: &[(SummaryRecord, Link)],
        visit: &mut dyn FnMut(usize, &Record<'_>, &SummaryRecord, Link) -> Result<()>,
    ) -> Result<()> {
        let block = self.layout.block;
        let base = self.layout.segment_offset(id);
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
                let skip = usize::try_from(record.offset - start).unwrap_or(usize::MAX);
                let bytes = buffer.get(skip..).unwrap_or(&[]);
                let place = Place { salt: of.salt, offset: base + record.offset };
                let decoded = Record::decode(bytes, Version(of.base.0), Some(place));
                match decoded {
                    Ok(decoded) => visit(count, &decoded, record, *link)?,
                    // Overwritten meanwhile: not live any more. Else damaged.
                    Err(_) if self.segments.epoch(id) != of.epoch => return Ok(()),
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
            extent = piece.encode((VersionForm::Whole, meta.version), block, value.len());
            key = &extent;
        }
        if self.clock.is_expired(meta.expires_at) {
            // K3.
            meta = tombstone_of(meta);
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
            self.segments.add(plan.segment(), new, entry.size as u64);
            let extent = (entry.kind == RecordKind::Extent).then(|| batch.piece(entry));
            moving.moved.push(Moved { hash, extent, old, new, to: plan.segment() });
        }
        *batch = Batch::new(&self.pool, &self.layout, mover.next, VersionForm::Whole);
        Ok(())
    }

    /// After a move that failed: completes the segment that is open for copies if all of them are dead, so that it is free. It may have
    /// been the last free one, and what is left of it too little for the next victim.
    pub(super) fn give_back(&self, mover: &mut Mover) -> Result<()> {
        let is_dead = |tail: &Tail| self.segments.live_records(tail.segment) == 0;
        let Some(tail) = mover.tail.filter(is_dead).filter(|_| self.log.failure().is_none()) else {
            return Ok(());
        };
        self.complete_moved(mover, tail)
    }

    /// Completes the segment that is open for copies.
    pub(super) fn complete_moved(&self, mover: &mut Mover, tail: Tail) -> Result<()> {
        if mover.durable < mover.next {
            // PERSIST: a summary vouches for its records, so they are durable before it is. It is, itself, before the stream
            //          goes on elsewhere: who takes a segment flushes.
            self.device.flush(sites::SUMMARY_FLUSH).map_err(|error| self.poison(&error))?;
            mover.durable = mover.next;
        }
        let summary = std::mem::take(&mut mover.summary);
        self.complete(&tail, &summary, mover.next, mover.next)
            .map_err(|error| self.poison(&error))?;
        mover.tail = None;
        self.segments.seal(tail.segment);
        Ok(())
    }

    /// K1: lets the index entry follow its record; false if it points elsewhere by now.
    pub(super) fn follow(&self, victim: SegmentId, of: Incarnation, moved: &Moved) -> bool {
        let Moved { hash, extent, old, new, to } = *moved;
        // Not an entry of the segment's next incarnation, which may look the same.
        let same = || self.segments.epoch(victim) == of.epoch || sites::MOVE_EPOCH.disabled();
        if let Some(piece) = extent {
            return same()
                && self.extents.follow(piece, old, new, |expires_at| {
                    self.segments.expire(to, expires_at.map(|at| (at, link_bytes(new))));
                    self.let_go(old, Version(0));
                });
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

#[cfg(test)]
mod tests;
