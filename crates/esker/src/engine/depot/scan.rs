//! Reading one segment's log: its batches, where it ends, and whether it ends as it should; or its
//! summary, which tells the same of a full segment with one read (uDepot §4.4).
//!
//! Used by recovery, the cleaner and `check`. Reads in long pieces; a batch that does not validate is read
//! again by itself before it is believed, in case it was damaged on its way.

use super::layout::Layout;
use super::segments::Incarnation;
use super::whole::{Hole, Over};
use super::window::Window;
use super::{Depot, gather, sites, spread};
use esker_base::hash::KeyHasher;
use esker_base::ids::{SegmentId, Sequence, StoreId, Version};
use esker_base::{Error, ErrorKind, Result, Site};
use esker_format::Flaw;
use esker_format::depot::{
    BATCH_HEADER_SIZE, Batch, BatchHeader, BatchKind, ExtentKey, LargeRef, Record, RecordKind,
    RecordMeta, SEGMENT_HEADER_SIZE, SegmentHeader, Stream, SummaryRecord, VersionForm,
    decode_evicted, decode_trailer, read_summary,
};
use esker_media::{BlockDevice, BufferPool, IoBuf, Refused};

/// How often a failing read is tried.
const READ_TRIES: u32 = 3;

/// What a scan reads from.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) device: &'a dyn BlockDevice,
    pub(super) pool: &'a BufferPool,
    pub(super) layout: &'a Layout,
    pub(super) site: Site,
}

/// Where and how a segment's log ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentEnd {
    /// Offset in the segment behind the last good batch.
    pub(super) position: u64,
    /// Sequence number of the record that would come next.
    pub(super) next: Sequence,
    /// All records of the stream below are known to have been durable.
    pub(super) durable: Sequence,
    pub(super) session: u64,
    pub(super) sealed: bool,
    /// Number of batches with records.
    pub(super) batches: u64,
}

impl SegmentEnd {
    /// Whether a batch with this header goes on from here. Behind a hole numbers may be missing, and
    /// barriers: what is of another session may have been cut off by one.
    fn goes_on(&self, header: &BatchHeader, behind_hole: bool) -> bool {
        let of_session = header.kind == BatchKind::Barrier
            || header.session == self.session
            || sites::BATCH_SESSION.disabled();
        // A session may skip numbers: those that the last one gave to writes that were lost.
        let may_skip = behind_hole || header.kind != BatchKind::Records;
        let continues =
            header.first_sequence == self.next || (may_skip && header.first_sequence > self.next);
        of_session && continues
    }
}

/// What a walk meets.
pub(super) enum Step<'a> {
    /// A batch with records, at an offset in the segment.
    Batch {
        /// Offset in blocks.
        blocks: u32,
        header: BatchHeader,
    },
    /// A record of the last batch, at a device offset; or, over damage, one that is whole in a batch that is not.
    Record(&'a Record<'a>, u64),
    /// Over damage: what stands where a record must begin, at a device offset, and does not pass its checks.
    Damaged(&'a Record<'a>, u64),
}

/// How records of a stream tell their versions.
pub(super) fn form_of(stream: Stream) -> VersionForm {
    match stream {
        Stream::Fresh | Stream::Checkpoint => VersionForm::Distance,
        Stream::Warm | Stream::Cold => VersionForm::Whole,
    }
}

/// The hash, spread, that the note of an eviction has in place of a key.
pub(super) fn evicted_hash(key: &[u8]) -> u64 {
    spread(decode_evicted(key).unwrap_or_default())
}

/// What a summary says of a record that stands `offset` bytes into its segment.
pub(super) fn noted(record: &Record<'_>, offset: u64, hasher: &KeyHasher) -> SummaryRecord {
    let RecordMeta { kind, version, collides, replaces, .. } = record.meta;
    let hash = match (kind, ExtentKey::decode(record.key)) {
        (RecordKind::Extent, Ok(key)) => key.hash,
        (RecordKind::Evict, _) => gather(evicted_hash(record.key)),
        _ => hasher.hash(record.key),
    };
    SummaryRecord {
        hash,
        version,
        offset,
        size_bytes: record.size_bytes as u64,
        kind,
        collides,
        replaces,
        // A writer's mistake at most: the record passed its checks.
        piece: LargeRef::of(kind, record.key, record.value).unwrap_or_default(),
    }
}

impl Source<'_> {
    /// Reads, again if need be: a device that fails once may answer the next time (F10).
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut tries = 1;
        loop {
            match self.device.read_at(self.site, offset, buffer) {
                Err(error) if tries < READ_TRIES && error.kind() == ErrorKind::Io => tries += 1,
                result => return result,
            }
        }
    }

    /// The header of a segment: of its two copies that are valid the one with the higher epoch, or `None` if neither is.
    /// Both were durable before the segment's first batch; so with a copy that is older than the other, as after a write
    /// that never reached the medium, the records are those of the other. One that cannot be read is as good as one
    /// that is not valid, as long as the other is.
    ///
    /// # Errors
    /// `Corrupted` if neither is valid and one was: a crash leaves no such header, and what stands in the segment is lost without it.
    pub(super) fn header(&self, store_id: StoreId, id: SegmentId) -> Result<Option<SegmentHeader>> {
        self.header_and_damage(store_id, id).map(|(header, _)| header)
    }

    /// As [`Source::header`], and the device offset of a copy that is damaged, beside one that is not.
    pub(super) fn header_and_damage(
        &self,
        store_id: StoreId,
        id: SegmentId,
    ) -> Result<(Option<SegmentHeader>, Option<u64>)> {
        self.header_and_other(store_id, id, None).map(|(header, _, damaged)| (header, damaged))
    }

    /// As [`Source::header`], and the device offsets of a copy that says something else, or nothing, beside the one that counts, and of one
    /// that is damaged, as one is that was `refused`. A copy of a store in use may just be written.
    pub(super) fn header_and_other(
        &self,
        store_id: StoreId,
        id: SegmentId,
        refused: Option<&Refused>,
    ) -> Result<(Option<SegmentHeader>, Option<u64>, Option<u64>)> {
        let base = self.layout.segment_offset(id);
        let block = usize::try_from(self.layout.block).unwrap_or(4096);
        let places = [base, base + self.layout.header_copy()];
        let mut copies = [self.pool.get(block), self.pool.get(block)];
        let [one, other] = &mut copies;
        let [at, copy_at] = places;
        let mut reads = [(at, &mut **one), (copy_at, &mut **other)];
        // Both at once, so that an open waits for one.
        let mut failed = None;
        if self.device.read_many_at(self.site, &mut reads).is_err() {
            for (place, copy) in places.into_iter().zip(&mut copies) {
                if let Err(error) = self.read(place, copy) {
                    copy.fill(0);
                    failed = Some(error);
                }
            }
        }
        let decode = |copy: &IoBuf| {
            let bytes = copy.get(..SEGMENT_HEADER_SIZE).unwrap_or(&[]);
            SegmentHeader::decode(bytes, store_id, id).ok()
        };
        let header = copies
            .iter()
            .filter_map(decode)
            .max_by_key(|header| (header.epoch, header.next_version));
        let is_damaged = |copy: &IoBuf| {
            SegmentHeader::is_damaged(copy, store_id, id)
                || refused.is_some_and(|refused| refused.is_one(copy))
        };
        let damaged = places.iter().zip(&copies).find(|(_, copy)| is_damaged(copy));
        let damaged = damaged.map(|(place, _)| *place);
        match (header, failed, damaged) {
            (None, Some(error), _) => Err(error),
            (None, None, Some(place)) => {
                let words = format!("both headers of segment {} are damaged", id.0);
                Err(Error::corrupted("read segment", words)
                    .device(self.device.name())
                    .at(place, self.layout.block))
            }
            (Some(_), None, _) => {
                let other = places.iter().zip(&copies).find(|(_, copy)| decode(copy) != header);
                Ok((header, other.map(|(place, _)| *place), damaged))
            }
            // What the device refuses is not written over.
            (header, ..) => Ok((header, None, damaged)),
        }
    }

    /// The records of a full segment by its summary: `None` if trailer or summary are not there.
    /// `visit` is given each record.
    pub(super) fn summary(
        &self,
        id: SegmentId,
        of: Incarnation,
        visit: &mut dyn FnMut(SummaryRecord),
    ) -> Result<Option<SegmentEnd>> {
        let mut window = Window::new(*self, self.layout.segment_offset(id));
        let Some(trailer) = window.marker(self.layout.trailer(), of.salt, BatchKind::Trailer)?
        else {
            return Ok(None);
        };
        let Some(position) = decode_trailer(trailer.payload) else { return Ok(None) };
        let inside = position < self.layout.trailer() && position >= self.layout.first_batch();
        if !inside || !position.is_multiple_of(self.layout.block) {
            return Ok(None);
        }
        let Some(list) = window.marker(position, of.salt, BatchKind::Summary)? else {
            return Ok(None);
        };
        let (mut records, geometry) = (Vec::new(), self.layout.of_summaries());
        let batches = read_summary(list.payload, form_of(of.stream), geometry, |record| {
            records.push(record);
        });
        let Ok(batches) = batches else { return Ok(None) };
        let end = SegmentEnd {
            position,
            next: list.header.first_sequence,
            durable: list.header.durable_sequence,
            session: list.header.session,
            sealed: true,
            batches,
        };
        records.into_iter().for_each(visit);
        Ok(Some(end))
    }

    /// The block at the end of a full segment that says where its summary is, in the session that completed it.
    pub(super) fn trailer(&self, id: SegmentId, of: Incarnation) -> Result<Option<IoBuf>> {
        let mut window = Window::new(*self, self.layout.segment_offset(id));
        let trailer = window.marker(self.layout.trailer(), of.salt, BatchKind::Trailer)?;
        Ok(trailer.is_some().then_some(window.buffer))
    }

    /// Walks the batches of a segment from its start, and gives each step to `visit`.
    pub(super) fn walk(
        &self,
        id: SegmentId,
        of: Incarnation,
        visit: &mut dyn FnMut(Step<'_>) -> Result<()>,
    ) -> Result<SegmentEnd> {
        self.walk_over(id, of, None, visit)
    }

    /// As [`Source::walk`]; `over` goes on behind what is no batch, as long as there are batches of the
    /// same session or of later ones, with the whole records of what stands there.
    pub(super) fn walk_over(
        &self,
        id: SegmentId,
        of: Incarnation,
        over: Option<Over>,
        visit: &mut dyn FnMut(Step<'_>) -> Result<()>,
    ) -> Result<SegmentEnd> {
        let mut window = Window::new(*self, self.layout.segment_offset(id));
        self.walk_window(&mut window, of, over, visit)
    }

    /// As [`Source::walk`], through `bytes` that were read from the segment's start on, and no further; returns them, too. A
    /// batch that does not validate is read again into its place.
    pub(super) fn walk_through(
        &self,
        id: SegmentId,
        of: Incarnation,
        bytes: IoBuf,
        visit: &mut dyn FnMut(Step<'_>) -> Result<()>,
    ) -> Result<(SegmentEnd, IoBuf)> {
        let mut window = Window::new(*self, self.layout.segment_offset(id));
        window.limit = window.limit.min(bytes.len() as u64);
        window.buffer = bytes;
        let end = self.walk_window(&mut window, of, None, visit)?;
        Ok((end, window.buffer))
    }

    fn walk_window(
        &self,
        window: &mut Window<'_>,
        of: Incarnation,
        over: Option<Over>,
        visit: &mut dyn FnMut(Step<'_>) -> Result<()>,
    ) -> Result<SegmentEnd> {
        let base = window.base;
        let mut end = SegmentEnd {
            position: self.layout.first_batch(),
            next: of.base,
            durable: Sequence(0),
            session: of.salt,
            sealed: false,
            batches: 0,
        };
        let mut position = end.position;
        let grain = usize::try_from(self.layout.grain).unwrap_or(1);
        while position < self.layout.trailer().min(window.limit) && !end.sealed {
            if position == end.position + self.layout.block && over.is_some() {
                window.skip_barrier(&mut end, of.salt)?;
            }
            let behind_hole = position > end.position;
            let batch = match behind_hole && !window.looks_like_batch(position)? {
                true => None,
                false => window.batch(position, of.salt)?,
            };
            let follows =
                batch.as_ref().is_some_and(|batch| end.goes_on(&batch.header, behind_hole));
            let Some(batch) = batch.filter(|_| follows) else {
                if over.is_some() {
                    position += self.layout.block;
                    continue;
                }
                break;
            };
            let header = batch.header;
            if behind_hole {
                let bytes = end.position..position;
                let hole = Hole { bytes, missing: end.next..header.first_sequence };
                self.walk_hole(of, base, &hole, visit)?;
            }
            end.position = position;
            end.durable = end.durable.max(header.durable_sequence);
            end.session = header.session;
            end.sealed = header.kind == BatchKind::Summary;
            if header.kind == BatchKind::Records {
                end.batches += 1;
                let blocks = u32::try_from(end.position / self.layout.block).unwrap_or(u32::MAX);
                visit(Step::Batch { blocks, header })?;
            }
            let start = base + end.position + BATCH_HEADER_SIZE as u64;
            let mut used = 0;
            for _ in 0..header.record_count {
                let bytes = batch.payload.get(used..).unwrap_or(&[]);
                let record = Record::decode(bytes, Version(of.base.0), None)
                    .map_err(|flaw| self.corrupted(start + used as u64, 0, &flaw))?;
                visit(Step::Record(&record, start + used as u64))?;
                used = (used + record.size_bytes).next_multiple_of(grain);
            }
            let next = header.first_sequence.0.saturating_add(u64::from(header.record_count));
            end.next = Sequence(next);
            end.position += u64::from(header.total_bytes);
            position = end.position;
        }
        if let Some(Over { reach, next }) = over.filter(|over| over.reach > end.position) {
            let bytes = end.position..reach.min(self.layout.trailer());
            self.walk_hole(of, base, &Hole { bytes, missing: end.next..next }, visit)?;
            end.next = end.next.max(next);
        }
        Ok(end)
    }

    /// Gives the batches of a segment of a checkpoint to `visit`.
    pub(super) fn batches(
        &self,
        id: SegmentId,
        salt: u64,
        visit: &mut dyn FnMut(&Batch<'_>),
    ) -> Result<()> {
        let mut window = Window::new(*self, self.layout.segment_offset(id));
        let mut position = self.layout.first_batch();
        while position < self.layout.trailer() {
            let Some(batch) = window.batch(position, salt)? else { break };
            position += u64::from(batch.header.total_bytes);
            visit(&batch);
        }
        Ok(())
    }

    /// Looks behind the end of an unsealed segment for proof that more was durable than `end` shows:
    /// then what stands at the end is damage, not a torn tail.
    pub(super) fn durable_behind(
        &self,
        id: SegmentId,
        salt: u64,
        end: &SegmentEnd,
    ) -> Result<Sequence> {
        let mut window = Window::new(*self, self.layout.segment_offset(id));
        let mut durable = Sequence(0);
        let mut position = end.position + self.layout.block;
        while position <= self.layout.trailer() {
            if window.looks_like_batch(position)?
                && let Some(batch) = window.batch(position, salt)?
            {
                durable = durable.max(batch.header.durable_sequence);
                position += u64::from(batch.header.total_bytes);
            } else {
                position += self.layout.block;
            }
        }
        Ok(durable)
    }

    /// Whether something is refused of the batch that may have stood behind the end of an unsealed segment.
    pub(super) fn is_end_refused(
        &self,
        id: SegmentId,
        end: &SegmentEnd,
        refused: &Refused,
    ) -> Result<bool> {
        let block = self.layout.block;
        let room = self.layout.trailer().saturating_sub(end.position);
        let first = block.min(room);
        let read = |size: u64| -> Result<IoBuf> {
            let mut bytes = self.pool.get(usize::try_from(size).unwrap_or(0));
            self.read(self.layout.segment_offset(id) + end.position, &mut bytes)?;
            Ok(bytes)
        };
        let head = BatchHeader::peek(&read(first)?, u32::try_from(block).unwrap_or(u32::MAX));
        let size = head.map_or(first, |header| u64::from(header.total_bytes)).min(room);
        Ok(refused.is_in(&read(size)?))
    }

    pub(super) fn corrupted(&self, offset: u64, length: u64, flaw: &Flaw) -> Error {
        Error::corrupted("read log", flaw.to_string()).device(self.device.name()).at(offset, length)
    }
}

impl Depot {
    pub(super) fn source(&self, site: Site) -> Source<'_> {
        Source { device: &*self.device, pool: &self.pool, layout: &self.layout, site }
    }
}
