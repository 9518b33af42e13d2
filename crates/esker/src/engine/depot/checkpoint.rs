//! Checkpoints of the index at a clean stop (uDepot §4.4).
//!
//! The log is the truth; a checkpoint only saves reading it. It stands in free segments, which are
//! free again once the store is open: nobody writes to them before the log needs them, and a
//! checkpoint that lost a segment is none.
//!
//! # Invariants
//! - P1: a checkpoint counts only if nothing happened after it: every segment that it names has the
//!   epoch that it names, no other segment has a higher one, and the clients' log ends where it says.
//! - P2: a checkpoint that is not whole, or that is not understood, is left aside.
//! - P3: what a checkpoint says of the clients' log was durable before it; a log that ends earlier is damaged.
//!
//! # Failure
//! A crash while it is written leaves a checkpoint without its end: none.

use super::place::Tail;
use super::recover::{Recovered, Scanned};
use super::scan::Source;
use super::segments::{Incarnation, Use};
use super::{Depot, sites};
use esker_base::Result;
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence};
use esker_format::depot::{
    BATCH_HEADER_SIZE, BatchKind, CheckpointEnd, CheckpointExtents, CheckpointSegment,
    SegmentHeader, Stream, part_size, push_part, take_part,
};
use esker_index::{Directory, Link};
use std::collections::HashMap;
use std::io::IoSlice;

/// Most bytes of one batch of parts.
const BATCH_SIZE: usize = 1 << 20;

/// Writes the batches of a checkpoint one behind the other.
struct Writer<'a> {
    depot: &'a Depot,
    tail: Option<Tail>,
    batches: u64,
}

impl Writer<'_> {
    /// Writes a batch; false if there is no segment for it.
    fn write(&mut self, kind: BatchKind, payload: &[u8]) -> Result<bool> {
        let depot = self.depot;
        let layout = &depot.layout;
        let total = layout.blocks((BATCH_HEADER_SIZE + payload.len()) as u64);
        let fits = |tail: &Tail| tail.position + total <= layout.trailer();
        if !self.tail.as_ref().is_some_and(fits) {
            self.tail = None;
            // The reserve too: it is free again once the store is open.
            let Some(free) = depot.segments.take() else { return Ok(false) };
            let epoch = depot.log.take_epoch();
            let salt = depot.random() ^ super::spread(epoch.0);
            let base = Sequence(self.batches);
            let incarnation = Incarnation { stream: Stream::Checkpoint, epoch, salt, base };
            depot.segments.open(free.id, incarnation);
            depot.write_header(free.id, incarnation)?;
            // PERSIST: the header, before what it declares dead is overwritten; and the end of the log,
            //          before a checkpoint can say that there is nothing behind it.
            depot.device.flush(sites::ROLL_FLUSH)?;
            let tail = Tail {
                segment: free.id,
                position: layout.first_batch(),
                salt,
                session: salt,
                base,
                summary: 0,
                barrier_due: false,
            };
            if !fits(&tail) {
                return Ok(false);
            }
            self.tail = Some(tail);
        }
        let Some(tail) = &mut self.tail else { return Ok(false) };
        let offset = layout.segment_offset(tail.segment) + tail.position;
        let number = Sequence(self.batches);
        let batch = depot.marker(kind, tail, offset, payload, number, number);
        depot.device.write_at(sites::CHECKPOINT_WRITE, offset, &[IoSlice::new(&batch)])?;
        tail.position += total;
        self.batches += 1;
        Ok(true)
    }
}

impl Depot {
    /// Writes the index beside the log, which must not go on afterwards; nothing if there is no room.
    pub(super) fn write_checkpoint(&self) -> Result<()> {
        let last_epoch = SegmentEpoch(self.log.next_epoch().0.saturating_sub(1));
        let cleaner = self.cleaner.lock();
        let mut end = CheckpointEnd {
            items: self.items(),
            next_version: self.log.next_version(),
            clear_version: self.log.clear_version(),
            last_epoch,
            moved: cleaner.next_sequences(),
            tail: self.log.lock().tail.map(|tail| (tail.segment, tail.position)),
            segments: self.segments.in_use().collect(),
            ..CheckpointEnd::default()
        };
        let mut writer = Writer { depot: self, tail: None, batches: 0 };
        let mut payload = Vec::with_capacity(BATCH_SIZE);
        let limit = BATCH_SIZE.min(usize::try_from(self.layout.batch_max()).unwrap_or(BATCH_SIZE));
        let mut cursor = 0;
        while let Some((part, next)) = self.index.export(cursor) {
            cursor = next;
            let full = BATCH_HEADER_SIZE + payload.len() + part_size(&part) > limit;
            if full && !payload.is_empty() {
                if !writer.write(BatchKind::Checkpoint, &payload)? {
                    return Ok(());
                }
                payload.clear();
            }
            push_part(&mut payload, &part);
        }
        if !payload.is_empty() && !writer.write(BatchKind::Checkpoint, &payload)? {
            return Ok(());
        }
        payload.clear();
        for value in self.extents.export() {
            let size = CheckpointExtents::size_bytes(value.links.len());
            if BATCH_HEADER_SIZE + payload.len() + size > limit && !payload.is_empty() {
                if !writer.write(BatchKind::CheckpointExtents, &payload)? {
                    return Ok(());
                }
                payload.clear();
            }
            value.push(&mut payload);
        }
        if !payload.is_empty() && !writer.write(BatchKind::CheckpointExtents, &payload)? {
            return Ok(());
        }
        end.batches = writer.batches;
        end.entries = self.index.len();
        // A flush follows. Crash before: the log is read instead.
        writer.write(BatchKind::CheckpointEnd, &end.encode())?;
        Ok(())
    }

    /// Fills index and segment table from a checkpoint.
    pub(super) fn adopt_checkpoint(&self, log: &Recovered, loaded: &CheckpointEnd) {
        let used: HashMap<SegmentId, &CheckpointSegment> =
            loaded.segments.iter().map(|segment| (segment.id, segment)).collect();
        for header in &log.headers {
            let id = header.segment_id;
            let Some(segment) = used.get(&id) else {
                self.segments.add_stale(id);
                continue;
            };
            let open = loaded.tail.is_some_and(|(tail, _)| tail == id);
            let state = if open { Use::Open } else { Use::Sealed };
            self.segments.restore(id, state, Incarnation::from(header));
            self.segments.restore_counts(segment);
            if !open {
                // The cleaner's last segments may hold nothing that counts.
                self.segments.seal(id);
            }
        }
        log.blank.iter().for_each(|id| self.segments.add_free(*id, false));
        for value in &log.large {
            self.extents.import(value);
        }
        self.restore_items(loaded.items);
    }
}

/// A checkpoint that was read.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) end: CheckpointEnd,
    pub(super) index: Directory,
    pub(super) large: Vec<CheckpointExtents>,
}

/// The newest checkpoint: its segments, and what its end says.
pub(super) struct Newest<'a> {
    of: Vec<&'a SegmentHeader>,
    pub(super) end: CheckpointEnd,
}

/// Finds the newest checkpoint, if there is one that fits the segments.
///
/// # Errors
/// What a failing device says.
pub(super) fn newest<'a>(
    source: &Source<'_>,
    headers: &'a [SegmentHeader],
) -> Result<Option<Newest<'a>>> {
    let mut of: Vec<_> = headers.iter().filter(|h| h.stream == Stream::Checkpoint).collect();
    of.sort_by_key(|header| header.epoch);
    let Some(newest) = of.last().map(|header| header.session_epoch) else { return Ok(None) };
    of.retain(|header| header.session_epoch == newest);
    Ok(read_end(source, &of, headers)?.map(|end| Newest { of, end }))
}

/// Reads a checkpoint, if it is whole.
///
/// # Errors
/// What a failing device says.
pub(super) fn load(source: &Source<'_>, newest: Newest<'_>) -> Result<Option<Loaded>> {
    let Newest { of, end } = newest;
    let index = Directory::with_capacity(end.entries);
    let mut batches = 0;
    let mut whole = true;
    let mut large = Vec::new();
    for header in &of {
        source.batches(header.segment_id, header.salt, &mut |batch| {
            if batch.header.kind == BatchKind::CheckpointEnd {
                return;
            }
            whole &= batch.header.first_sequence == Sequence(batches);
            batches += 1;
            let taken = match batch.header.kind {
                BatchKind::CheckpointExtents => take_extents(batch.payload, &mut large),
                _ => take_index(batch.payload, &index),
            };
            whole &= taken.is_some();
        })?;
    }
    let whole = whole && batches == end.batches && index.len() == end.entries;
    Ok(whole.then_some(Loaded { end, index, large }))
}

fn take_index(mut rest: &[u8], index: &Directory) -> Option<()> {
    while let Some(part) = take_part(&mut rest).ok()? {
        index.import(part).ok()?;
    }
    Some(())
}

fn take_extents(mut rest: &[u8], large: &mut Vec<CheckpointExtents>) -> Option<()> {
    while let Some(value) = CheckpointExtents::take(&mut rest).ok()? {
        Link::from_bits(value.head)?;
        large.push(value);
    }
    Some(())
}

/// The end of the checkpoint in these segments, if it fits the other segments (P1).
fn read_end(
    source: &Source<'_>,
    of: &[&SegmentHeader],
    headers: &[SegmentHeader],
) -> Result<Option<CheckpointEnd>> {
    let mut end = None;
    if let Some(last) = of.last() {
        source.batches(last.segment_id, last.salt, &mut |batch| {
            if batch.header.kind == BatchKind::CheckpointEnd {
                end = CheckpointEnd::decode(batch.payload).ok();
            }
        })?;
    }
    let Some(end) = end else { return Ok(None) };
    let log = headers.iter().filter(|header| header.stream != Stream::Checkpoint);
    let epochs: HashMap<SegmentId, SegmentEpoch> =
        log.map(|header| (header.segment_id, header.epoch)).collect();
    let named = |segment: &CheckpointSegment| epochs.get(&segment.id) == Some(&segment.epoch);
    let later = |header: &SegmentHeader| {
        header.stream != Stream::Checkpoint && header.epoch > end.last_epoch
    };
    let current = end.segments.iter().all(named) && !headers.iter().any(later);
    Ok((current || sites::CHECKPOINT_CURRENT.disabled()).then_some(end))
}

impl Newest<'_> {
    /// Whether the clients' log lacks records that the checkpoint knows: all of it was durable before.
    pub(super) fn is_cut_short(&self, tail: &Scanned) -> bool {
        let known = self.end.tail.map_or(0, |(_, position)| position);
        !sites::CHECKPOINT_CURRENT.disabled()
            && !tail.end.sealed
            && tail.end.position < known
            && tail.end.next.0 < self.end.next_version.0
    }

    /// Whether the clients' log ends where the checkpoint says (P1).
    pub(super) fn ends_at(&self, tail: Option<&Scanned>) -> bool {
        if sites::CHECKPOINT_CURRENT.disabled() {
            return true;
        }
        match (self.end.tail, tail) {
            (None, None) => true,
            (Some((_, position)), Some(scanned)) => {
                scanned.end.position == position
                    && !scanned.end.sealed
                    && scanned.end.next.0 <= self.end.next_version.0
            }
            _ => false,
        }
    }
}
