//! Where a batch goes on media, and how it gets there.
//!
//! The part of a write that touches the device, for every stream: a batch is placed behind the
//! stream's tail or in a new segment, gets its checksums and is written; a full segment is completed
//! with a summary of its records. [`super::commit`] decides about clients' batches, [`super::clean`]
//! about those of moved records.
//!
//! # Invariants
//! - B1: a batch is written where no valid batch of this incarnation of the segment stands.
//! - B2: summary, trailer and headers are durable before the first byte behind a new header is
//!   overwritten.
//! - B3: one writer at a time for each stream; records are published in the order of their sequence.
//! - B4: a segment always has room for the summary of what it holds.
//!
//! # Failure
//! Each `PERSIST:` comment says what a crash before and after it leaves.

use super::batch::{Batch, Entry, Need};
use super::segments::{Free, Incarnation};
use super::{Depot, gather, sites};
use crate::options::Durability;
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, Version};
use esker_base::{Error, ErrorKind, Result, Site};
use esker_format::depot::{
    BATCH_HEADER_SIZE, BatchHeader, BatchKind, DISTANCE_END, LargeRef, Place, RecordKind,
    SegmentHeader, Stream, SummaryRecord, VersionForm, encode_batch, encode_trailer, push_batch,
    push_record, seal_record,
};
use esker_index::{Link, SizeHint};
use esker_media::IoBuf;
use std::io::IoSlice;

/// Bytes that are written at once where nobody waits for them.
const WRITE_STEP: usize = 64 << 10;
/// Records after which a thread that nobody waits for gives way to others of its core.
pub(super) const GIVE_WAY: usize = 64;
/// Records of a batch for which the index comes from memory while those before them are made visible.
const FETCHED_AHEAD: usize = 12;

/// The open segment of a stream: where the next batch goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    pub(super) segment: SegmentId,
    /// Offset in the segment in bytes.
    pub(super) position: u64,
    pub(super) salt: u64,
    pub(super) session: u64,
    /// Sequence number of the segment's first record.
    pub(super) base: Sequence,
    /// Bytes of the summary so far.
    pub(super) summary: u64,
    /// The log continues after an open: the next batch starts a session.
    pub(super) barrier_due: bool,
    /// A checkpoint covers what stood behind, which is no more: no batch goes there, but the segment is completed before
    /// the log goes on elsewhere, or it would be one whose end is missing.
    pub(super) ends: bool,
}

/// Where a batch goes, and what comes before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    seal: Option<Tail>,
    reuse: Option<(Free, SegmentEpoch)>,
    barrier: bool,
    tail: Tail,
    total: u64,
}

impl Depot {
    /// Whether a batch that starts with `first` fits behind the tail (B4).
    pub(super) fn fits(&self, tail: Option<&Tail>, need: Need, first: Sequence) -> bool {
        tail.is_some_and(|tail| {
            let barrier = if tail.barrier_due { self.layout.block } else { 0 };
            let with = self.layout.batch_with_summary(need.used, tail.summary + need.summary);
            // Records tell their versions by the distance; a batch has fewer than half as many.
            let far = first.0.saturating_sub(tail.base.0) > u64::from(DISTANCE_END / 2);
            tail.position + barrier + with <= self.layout.trailer() && !far && !tail.ends
        })
    }

    /// Whether a batch fits behind the tail also when it is cut before the record with this number.
    pub(super) fn fits_cut(&self, tail: Option<&Tail>, batch: &Batch, from: usize) -> bool {
        let [one, other] = batch.needs_of_parts(from);
        tail.is_some_and(|tail| {
            let first = tail.behind(self.layout.blocks(one.used), one.summary);
            self.fits(Some(&first), other, batch.first)
        })
    }

    /// Whether the batch should go as it is, since it fits behind the tail and with more would not: so
    /// segments get full.
    pub(super) fn ends_segment(&self, tail: Option<&Tail>, batch: &Batch, need: Need) -> bool {
        self.fits(tail, batch.need([]), batch.first) && !self.fits(tail, need, batch.first)
    }

    /// Whether a batch fits any segment.
    pub(super) fn fits_any(&self, need: Need) -> bool {
        self.layout.batch_with_summary(need.used, need.summary) <= self.layout.batch_max()
    }

    /// Chooses the place of a batch behind the tail of its stream, and takes a segment if it needs
    /// one.
    pub(super) fn place(
        &self,
        stream: Stream,
        tail: &mut Option<Tail>,
        batch: &Batch,
    ) -> Result<Plan> {
        let mut plan = self.begin_place(stream, tail, batch.need([]), batch.first)?;
        self.end_place(&mut plan, tail, batch);
        Ok(plan)
    }

    /// Chooses where a batch starts that has this need at least, and may grow while it fits. Nothing
    /// else of the stream has a place until [`Depot::end_place`].
    pub(super) fn begin_place(
        &self,
        stream: Stream,
        tail: &mut Option<Tail>,
        need: Need,
        first: Sequence,
    ) -> Result<Plan> {
        if self.fits(tail.as_ref(), need, first)
            && let Some(open) = tail
        {
            let barrier = open.barrier_due;
            let session = if barrier { self.random() } else { open.session };
            let position = open.position + if barrier { self.layout.block } else { 0 };
            let here = Tail { position, session, barrier_due: false, ..*open };
            return Ok(Plan { seal: None, reuse: None, barrier, tail: here, total: 0 });
        }
        let Some(free) = self.with_room(|| self.segments.take()) else {
            return Err(Error::new(ErrorKind::NoSpace, "write store"));
        };
        let seal = tail.take();
        let epoch = self.log.take_epoch();
        // Of another incarnation also where, in tests, randomness repeats.
        let salt = self.random() ^ super::spread(epoch.0);
        self.segments.open(free.id, Incarnation { stream, epoch, salt, base: first });
        let here = Tail {
            segment: free.id,
            position: self.layout.first_batch(),
            salt,
            session: salt,
            base: first,
            summary: 0,
            barrier_due: false,
            ends: false,
        };
        Ok(Plan { seal, reuse: Some((free, epoch)), barrier: false, tail: here, total: 0 })
    }

    /// Takes a segment into use in which the clients' log begins, or goes on behind a complete one.
    pub(super) fn begin_log(&self, first: Sequence) -> Result<Tail> {
        let nothing = Need::default();
        let plan = self.begin_place(Stream::Fresh, &mut None, nothing, first)?;
        self.roll_to(plan, first)
    }

    /// Makes the header durable of a segment that was taken for the clients' log.
    pub(super) fn roll_to(&self, plan: Plan, first: Sequence) -> Result<Tail> {
        if let Some((free, epoch)) = plan.reuse {
            self.roll(Stream::Fresh, &plan, (free, epoch), &[], first, first)?;
        }
        Ok(plan.tail)
    }

    /// The batch will not grow any more: the next one goes behind it.
    pub(super) fn end_place(&self, plan: &mut Plan, tail: &mut Option<Tail>, batch: &Batch) {
        plan.total = self.layout.blocks(batch.used as u64);
        let behind = plan.tail.behind(plan.total, batch.summary.bytes());
        *tail = Some(behind);
        let is_late = |tail: &Tail| self.layout.room_behind(tail.position) <= self.layout.half();
        if is_late(&behind) && !is_late(&plan.tail) {
            // Time to ready the next segment.
            self.background.wake();
        }
    }

    /// Writes a batch to its place, `durably` or not; whatever the stream's earlier records are by
    /// then, `durable` says so, and is raised. `summary` is that of the stream's open segment. A panic is a failed write (C4).
    pub(super) fn write_batch(
        &self,
        stream: Stream,
        batch: &mut Batch,
        plan: &Plan,
        summary: &mut Vec<u8>,
        durable: &mut Sequence,
        durably: bool,
    ) -> Result<()> {
        let _panics = Panics(self);
        if let Some((free, epoch)) = &plan.reuse {
            let complete = std::mem::take(summary);
            self.roll(stream, plan, (*free, *epoch), &complete, batch.first, *durable)?;
            *durable = batch.first;
        }
        self.touch_segment(plan.tail.segment);
        let base = self.layout.segment_offset(plan.tail.segment);
        let offset = base + plan.tail.position;
        let total = usize::try_from(plan.total).map_err(|_| too_long())?;
        if let Some(padding) = batch.buffer.get_mut(batch.used..total) {
            padding.fill(0);
        }
        self.seal_records(batch, plan, offset, summary, durably)?;
        let header = BatchHeader {
            kind: BatchKind::Records,
            total_bytes: u32::try_from(total).map_err(|_| too_long())?,
            payload_bytes: u32::try_from(batch.used - BATCH_HEADER_SIZE).map_err(|_| too_long())?,
            record_count: u32::try_from(batch.entries.len()).map_err(|_| too_long())?,
            first_sequence: batch.first,
            durable_sequence: *durable,
            session: plan.tail.session,
        };
        batch.buffer.truncate(total);
        encode_batch(&mut batch.buffer, &header, Place { salt: plan.tail.salt, offset });
        let barrier = plan.barrier.then(|| {
            let at = offset - self.layout.block;
            self.marker(BatchKind::Barrier, &plan.tail, at, &[], batch.first, *durable)
        });
        let slices = [barrier.as_deref().unwrap_or(&[]), &batch.buffer].map(IoSlice::new);
        let (at, slices) = match &barrier {
            Some(block) => (offset - block.len() as u64, &slices[..]),
            None => (offset, slices.get(1..).unwrap_or(&[])),
        };
        // PERSIST: the batch. Crash before: a torn tail, which recovery drops; nobody heard of it.
        //          Crash after: all of it is there.
        match (durably, stream) {
            (true, _) => {
                self.device.write_durable_at(sites::COMMIT_WRITE, at, slices)?;
                *durable = batch.end();
            }
            (false, Stream::Fresh) => self.write_in_steps(sites::COMMIT_PLAIN_WRITE, at, slices)?,
            (false, _) => self.write_in_steps(sites::MOVE_WRITE, at, slices)?,
        }
        self.note_expiries(batch, plan);
        Ok(())
    }

    /// Writes what nobody waits for: a short piece at a time, so that a client's read waits for no long one.
    fn write_in_steps(&self, site: Site, mut at: u64, slices: &[IoSlice<'_>]) -> Result<()> {
        for step in slices.iter().flat_map(|slice| slice.chunks(WRITE_STEP)) {
            self.device.write_at(site, at, &[IoSlice::new(step)])?;
            at += step.len() as u64;
        }
        Ok(())
    }

    /// Completes the records now that their place is known, and notes them in the summary. With `hurry`, clients wait.
    fn seal_records(
        &self,
        batch: &mut Batch,
        plan: &Plan,
        offset: u64,
        summary: &mut Vec<u8>,
        hurry: bool,
    ) -> Result<()> {
        let blocks =
            u32::try_from(plan.tail.position / self.layout.block).map_err(|_| too_long())?;
        let count = u32::try_from(batch.entries.len()).map_err(|_| too_long())?;
        let common = batch.summary.common();
        push_batch(summary, blocks, count, batch.first, common);
        let mut before = Version(0);
        for (count, entry) in batch.entries.iter().enumerate() {
            if !hurry && count % GIVE_WAY == GIVE_WAY - 1 {
                esker_trt::yield_now();
            }
            let distance = match batch.form {
                VersionForm::Whole => None,
                VersionForm::Distance => {
                    let distance = entry.version.0.saturating_sub(plan.tail.base.0);
                    let told = u32::try_from(distance).ok().filter(|told| *told < DISTANCE_END);
                    Some(told.ok_or_else(too_long)?)
                }
            };
            let piece = batch.piece(entry);
            let place = Place { salt: plan.tail.salt, offset: offset + entry.start as u64 };
            if let Some(record) = batch.buffer.get_mut(entry.start..entry.start + entry.size) {
                seal_record(record, distance, place);
            }
            let noted = SummaryRecord {
                hash: gather(entry.hash),
                version: entry.version,
                offset: plan.tail.position + entry.start as u64,
                size_bytes: entry.size as u64,
                kind: entry.kind,
                collides: entry.collides,
                replaces: entry.replaces,
                piece,
            };
            push_record(summary, batch.form, common, &noted, before);
            before = entry.version;
        }
        Ok(())
    }

    /// Completes the full segment of a stream and takes a new one into use.
    fn roll(
        &self,
        stream: Stream,
        plan: &Plan,
        (free, epoch): (Free, SegmentEpoch),
        summary: &[u8],
        first: Sequence,
        durable: Sequence,
    ) -> Result<()> {
        if let Some(old) = &plan.seal {
            if durable < first {
                // PERSIST: a summary vouches for its records, so they are durable before it is.
                self.device.flush(sites::SUMMARY_FLUSH)?;
            }
            // Of a log that goes on elsewhere after an open: it ends before the numbers that a crash took back.
            let durable = if old.barrier_due { durable.min(first) } else { first };
            self.complete(old, summary, first, durable)?;
        }
        if free.after >= self.log.durable() {
            // PERSIST: what made the segment free must be durable before its header goes. It stands
            //          in the clients' stream before the batch that takes the segment there.
            if stream != Stream::Fresh {
                self.write_out()?;
            }
            self.device.flush(sites::ROLL_FLUSH)?;
        }
        let tail = &plan.tail;
        let incarnation = Incarnation { stream, epoch, salt: tail.salt, base: first };
        self.write_header(free.id, incarnation, self.session_epoch)?;
        // PERSIST: summary, trailer and headers, before a byte behind the header is overwritten.
        //          Crash before: the new segment still shows its old content, all of it dead, or is
        //          empty; the old one ends without a summary, and no later one holds a batch.
        self.device.flush(sites::ROLL_FLUSH)?;
        self.segments.renewed(free.id);
        if let Some(old) = &plan.seal {
            self.segments.seal(old.segment);
        }
        self.reserve_ahead();
        self.background.wake();
        Ok(())
    }

    /// Writes both copies of a new segment's header. `session_epoch` is what segments of one session have in common, or those of
    /// one checkpoint. A repair writes the rest of the segment as well: what stood there was not read, an open reads on behind the end of
    /// what is written, and not every device can read what was not.
    pub(super) fn write_header(
        &self,
        id: SegmentId,
        incarnation: Incarnation,
        session_epoch: SegmentEpoch,
    ) -> Result<()> {
        self.header_writes(id, incarnation, session_epoch).collect::<Result<()>>()?;
        if self.repair.is_none() {
            return Ok(());
        }
        // PERSIST: the header, before what it declares dead is overwritten.
        self.device.flush(sites::ROLL_FLUSH)?;
        let (start, end) = (self.layout.first_batch(), self.layout.header_copy());
        let zeros = self.pool.get_zeroed(usize::try_from(end - start).unwrap_or(0));
        let base = self.layout.segment_offset(id);
        self.device.write_at(sites::BLANK_WRITE, base + start, &[IoSlice::new(&zeros)])
    }

    /// Writes the copies of a segment's header anew of which one at least is valid: one tells what both would.
    pub(super) fn renew_header(&self, id: SegmentId, incarnation: Incarnation) -> Result<()> {
        let writes = self.header_writes(id, incarnation, self.session_epoch);
        let (written, failed): (Vec<_>, Vec<_>) = writes.partition(Result::is_ok);
        for error in failed.into_iter().filter_map(Result::err) {
            let is_of_place = matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Io);
            if written.is_empty() || !is_of_place {
                return Err(error);
            }
            tracing::warn!(%error, segment = id.0, "a header's copy stays as it was");
        }
        Ok(())
    }

    /// Writes a copy of a header with each step.
    fn header_writes(
        &self,
        id: SegmentId,
        incarnation: Incarnation,
        session_epoch: SegmentEpoch,
    ) -> impl Iterator<Item = Result<()>> {
        let header = SegmentHeader {
            segment_id: id,
            stream: incarnation.stream,
            epoch: incarnation.epoch,
            salt: incarnation.salt,
            first_sequence: incarnation.base,
            clear_version: self.log.clear_version(),
            next_version: Version(self.log.next_version().0 + self.given_ahead()),
            session_epoch,
        };
        let mut block = self.pool.get_zeroed(usize::try_from(self.layout.block).unwrap_or(4096));
        let bytes = header.encode(self.superblock.store_id);
        if let Some(head) = block.get_mut(..bytes.len()) {
            head.copy_from_slice(&bytes);
        }
        let base = self.layout.segment_offset(id);
        let places = [base, base + self.layout.header_copy()];
        let write = move |at| self.device.write_at(sites::ROLL_WRITE, at, &[IoSlice::new(&block)]);
        places.into_iter().map(write)
    }

    /// Writes the summary of a segment, and the trailer that says where it is. All records below `durable` are.
    pub(super) fn complete(
        &self,
        old: &Tail,
        summary: &[u8],
        next: Sequence,
        durable: Sequence,
    ) -> Result<()> {
        let base = self.layout.segment_offset(old.segment);
        let offset = base + old.position;
        let list = self.marker(BatchKind::Summary, old, offset, summary, next, durable);
        self.device.write_at(sites::ROLL_WRITE, offset, &[IoSlice::new(&list)])?;
        let at = base + self.layout.trailer();
        let position = encode_trailer(old.position);
        let trailer = self.marker(BatchKind::Trailer, old, at, &position, next, durable);
        self.device.write_at(sites::ROLL_WRITE, at, &[IoSlice::new(&trailer)])
    }

    /// A batch without records.
    pub(super) fn marker(
        &self,
        kind: BatchKind,
        tail: &Tail,
        offset: u64,
        payload: &[u8],
        first_sequence: Sequence,
        durable_sequence: Sequence,
    ) -> IoBuf {
        let total = self.layout.blocks((BATCH_HEADER_SIZE + payload.len()) as u64);
        let mut block = self.pool.get_zeroed(usize::try_from(total).unwrap_or(4096));
        if let Some(body) = block.get_mut(BATCH_HEADER_SIZE..BATCH_HEADER_SIZE + payload.len()) {
            body.copy_from_slice(payload);
        }
        let header = BatchHeader {
            kind,
            total_bytes: u32::try_from(total).unwrap_or(4096),
            payload_bytes: u32::try_from(payload.len()).unwrap_or(0),
            record_count: 0,
            first_sequence,
            durable_sequence,
            session: tail.session,
        };
        encode_batch(&mut block, &header, Place { salt: tail.salt, offset });
        block
    }

    /// The entry of the index for a record of a written batch.
    pub(super) fn link_of(&self, plan: &Plan, entry: &Entry) -> Option<Link> {
        let offset = self.layout.segment_offset(plan.tail.segment) + plan.tail.position;
        self.layout.link(entry.kind, offset + entry.start as u64, entry.size as u64)
    }

    /// Puts a client's record, which is counted as live, in its key's place in index and segment table.
    /// `published` is the entry that the key had. The caller holds the key's stripe.
    pub(super) fn enter(
        &self,
        entry: &Entry,
        piece: LargeRef,
        link: Link,
        published: Option<Link>,
    ) {
        if entry.kind == RecordKind::Large {
            self.extents.adopt(piece.id, link);
        }
        let replaces = |old: &Link| {
            let replaces = self.index.replace(entry.hash, *old, link);
            // Two keys of one hash may have taken the place of one record that nobody could read.
            debug_assert!(replaces || self.superblock.cache, "P1: a pending key's entry stays");
            replaces
        };
        let published = published.filter(replaces);
        match published {
            Some(old) => {
                if old.size() == SizeHint::Large {
                    self.release_large(old, entry.version);
                }
                self.let_go(old, entry.version);
            }
            None => self.index.insert(entry.hash, link),
        }
        self.count_items(published, link);
    }

    /// Makes the records of a client's written batch visible, in their order.
    pub(super) fn publish(&self, batch: &Batch, plan: &Plan) {
        let fetch = |entry: &Entry| self.index.prefetch(entry.hash);
        batch.entries.iter().take(FETCHED_AHEAD).for_each(fetch);
        for (place, entry) in batch.entries.iter().enumerate() {
            batch.entries.get(place + FETCHED_AHEAD).into_iter().for_each(fetch);
            if entry.kind == RecordKind::Clear {
                self.publish_clear(entry.version);
                continue;
            }
            let link = self.link_of(plan, entry);
            let (Some(link), Some(record)) = (link, batch.record(entry, plan.tail.base)) else {
                continue;
            };
            let (piece, segment) = (batch.piece(entry), plan.tail.segment);
            if entry.kind == RecordKind::Extent {
                self.enter_extent(piece, segment, link);
                continue;
            }
            let mut replaced = None;
            self.pending.publish(entry.hash, record.key, |published| {
                // The new record is counted before the old one is let go: S1 of the segments.
                self.segments.add(segment, link, entry.size as u64);
                self.enter(entry, piece, link, published);
                replaced = published;
                Some(link)
            });
            if let Some(cache) = &self.record_cache {
                let place_of = |link: Link| {
                    let segment = self.layout.segment_of(self.layout.offset_of(link))?;
                    Some((link, self.segments.place(segment).0))
                };
                let replaced = replaced.and_then(place_of);
                cache.wrote((link, plan.tail.salt), replaced, batch.bytes(entry));
            }
        }
    }

    pub(super) fn publish_clear(&self, version: Version) {
        self.log.cleared(version);
        self.pending.forget_published();
        self.index.clear();
        self.extents.clear(|| self.segments.clear(version));
        self.forget_items();
    }

    /// Whether a client's batch is written durably, or only by a later flush.
    pub(super) fn commits_durably(&self) -> bool {
        self.durability == Durability::Sync
    }
}

impl Tail {
    fn behind(self, total: u64, summary: u64) -> Tail {
        Tail { position: self.position + total, summary: self.summary + summary, ..self }
    }
}

impl Plan {
    /// Where the batch goes.
    pub(super) fn segment(&self) -> SegmentId {
        self.tail.segment
    }

    /// The stream's tail as the batch finds it.
    pub(super) fn tail(&self) -> &Tail {
        &self.tail
    }
}

fn too_long() -> Error {
    Error::invalid("write store", "a batch is longer than a segment")
}

/// Refuses writes behind a panic in the midst of one: nobody knows what it left half done.
struct Panics<'d>(&'d Depot);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.note_failure(&Error::new(ErrorKind::Panicked, "write store"));
        }
    }
}
