//! Where a batch goes on media, and how it gets there.
//!
//! The part of the commit that touches the device: the leader places its batch behind the tail or in
//! a new segment, gives records and batch their checksums, writes them, and makes the records
//! visible. [`super::commit`] decides who leads and when.
//!
//! # Invariants
//! - B1: a batch is written where no valid batch of this incarnation of the segment stands.
//! - B2: seal and headers are durable before the first byte behind a new header is overwritten.
//! - B3: records are published in the order of their versions, by one leader at a time.
//!
//! # Failure
//! Each `PERSIST:` comment says what a crash before and after it leaves.

use super::commit::State;
use super::segments::Free;
use super::{Depot, sites};
use crate::options::Durability;
use esker_base::ids::{SegmentEpoch, SegmentId, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::depot::{
    BATCH_HEADER_SIZE, BatchHeader, BatchKind, GRAIN_SIZE_BYTES, Place, Record, RecordKind,
    SegmentHeader, encode_batch, seal_record,
};
use esker_index::Link;
use esker_media::IoBuf;
use std::io::IoSlice;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) hash: u64,
    pub(super) start: usize,
    pub(super) size: usize,
}

/// Where the next batch goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    pub(super) segment: SegmentId,
    /// Offset in the segment in bytes.
    pub(super) position: u64,
    pub(super) salt: u64,
    pub(super) session: u64,
    /// The log continues after an open: the next batch starts a session.
    pub(super) barrier_due: bool,
}

/// Where a batch goes, and what comes before it.
pub(super) struct Plan {
    seal: Option<Tail>,
    reuse: Option<(Free, SegmentEpoch)>,
    barrier: bool,
    tail: Tail,
    total: u64,
}

impl Depot {
    /// Chooses the place of a batch, and takes a segment if it needs one.
    pub(super) fn place(&self, state: &mut State, used: usize) -> Result<Plan> {
        let total = self.layout.blocks(used as u64);
        if state.fits(&self.layout, total)
            && let Some(tail) = state.tail
        {
            let barrier = tail.barrier_due;
            let session = if barrier { self.random() } else { tail.session };
            let position = tail.position + if barrier { self.layout.block } else { 0 };
            let here = Tail { position, session, barrier_due: false, ..tail };
            state.tail = Some(Tail { position: position + total, ..here });
            return Ok(Plan { seal: None, reuse: None, barrier, tail: here, total });
        }
        let Some(free) = self.segments.take() else {
            return Err(Error::new(ErrorKind::NoSpace, "write store"));
        };
        let seal = state.tail.take();
        let epoch = state.next_epoch;
        state.next_epoch.0 += 1;
        let salt = self.random();
        let here = Tail {
            segment: free.id,
            position: self.layout.first_batch(),
            salt,
            session: salt,
            barrier_due: false,
        };
        state.tail = Some(Tail { position: here.position + total, ..here });
        Ok(Plan { seal, reuse: Some((free, epoch)), barrier: false, tail: here, total })
    }

    /// Writes a batch to its place; returns the version below which everything is durable now.
    pub(super) fn write_batch(
        &self,
        mut buffer: IoBuf,
        used: usize,
        entries: &[Entry],
        first_version: Version,
        mut durable: Version,
        plan: &Plan,
    ) -> Result<(IoBuf, Version)> {
        if let Some((free, epoch)) = &plan.reuse {
            self.roll(plan, *free, *epoch, first_version, durable)?;
            durable = first_version;
        }
        let base = self.layout.segment_offset(plan.tail.segment);
        let offset = base + plan.tail.position;
        let total = usize::try_from(plan.total).map_err(|_| too_long())?;
        if let Some(padding) = buffer.get_mut(used..total) {
            padding.fill(0);
        }
        for entry in entries {
            let place = Place { salt: plan.tail.salt, offset: offset + entry.start as u64 };
            if let Some(record) = buffer.get_mut(entry.start..entry.start + entry.size) {
                seal_record(record, place);
            }
        }
        let header = BatchHeader {
            kind: BatchKind::Records,
            total_bytes: u32::try_from(total).map_err(|_| too_long())?,
            payload_bytes: u32::try_from(used - BATCH_HEADER_SIZE).map_err(|_| too_long())?,
            record_count: u32::try_from(entries.len()).map_err(|_| too_long())?,
            first_version,
            durable_version: durable,
            session: plan.tail.session,
        };
        buffer.truncate(total);
        encode_batch(&mut buffer, &header, Place { salt: plan.tail.salt, offset });
        let barrier = plan.barrier.then(|| {
            self.marker(
                BatchKind::Barrier,
                &plan.tail,
                offset - self.layout.block,
                first_version,
                durable,
            )
        });
        let slices = [barrier.as_deref().unwrap_or(&[]), &buffer].map(IoSlice::new);
        let (at, slices) = match &barrier {
            Some(block) => (offset - block.len() as u64, &slices[..]),
            None => (offset, slices.get(1..).unwrap_or(&[])),
        };
        // PERSIST: the batch. Crash before: a torn tail, which recovery drops; nobody heard of it.
        //          Crash after: all of it is there.
        let end = Version(first_version.0 + entries.len() as u64);
        match self.durability {
            Durability::Sync => {
                self.device.write_durable_at(sites::COMMIT_WRITE, at, slices)?;
                durable = end;
            }
            Durability::Periodic(_) | Durability::None => {
                self.device.write_at(sites::COMMIT_PLAIN_WRITE, at, slices)?;
            }
        }
        Ok((buffer, durable))
    }

    /// Completes the full segment and takes a new one into use.
    fn roll(
        &self,
        plan: &Plan,
        free: Free,
        epoch: SegmentEpoch,
        first_version: Version,
        durable: Version,
    ) -> Result<()> {
        if let Some(old) = &plan.seal {
            let offset = self.layout.segment_offset(old.segment) + old.position;
            let seal = self.marker(BatchKind::Seal, old, offset, first_version, durable);
            self.device.write_at(sites::ROLL_WRITE, offset, &[IoSlice::new(&seal)])?;
        }
        if free.after >= durable {
            // PERSIST: what made the segment free must be durable before its header goes.
            self.device.flush(sites::ROLL_FLUSH)?;
        }
        self.segments.open(free.id, epoch, plan.tail.salt);
        let header = SegmentHeader {
            segment_id: free.id,
            stream: 0,
            epoch,
            salt: plan.tail.salt,
            first_version,
            clear_version: self.log.clear_version(),
        };
        let mut block = self.pool.get_zeroed(usize::try_from(self.layout.block).unwrap_or(4096));
        let bytes = header.encode(self.superblock.store_id);
        if let Some(head) = block.get_mut(..bytes.len()) {
            head.copy_from_slice(&bytes);
        }
        let base = self.layout.segment_offset(free.id);
        for at in [base, base + self.layout.header_copy()] {
            self.device.write_at(sites::ROLL_WRITE, at, &[IoSlice::new(&block)])?;
        }
        // PERSIST: seal and headers, before a byte behind the header is overwritten. Crash before:
        //          the new segment still shows its old content, all of it dead, or is empty; the
        //          old one ends without a seal, and no later segment holds a batch.
        self.device.flush(sites::ROLL_FLUSH)?;
        if let Some(old) = &plan.seal {
            self.segments.seal(old.segment, first_version);
        }
        self.background.wake();
        Ok(())
    }

    /// A batch of one block without records.
    pub(super) fn marker(
        &self,
        kind: BatchKind,
        tail: &Tail,
        offset: u64,
        first_version: Version,
        durable_version: Version,
    ) -> IoBuf {
        let mut block = self.pool.get_zeroed(usize::try_from(self.layout.block).unwrap_or(4096));
        let header = BatchHeader {
            kind,
            total_bytes: u32::try_from(self.layout.block).unwrap_or(4096),
            payload_bytes: 0,
            record_count: 0,
            first_version,
            durable_version,
            session: tail.session,
        };
        encode_batch(&mut block, &header, Place { salt: tail.salt, offset });
        block
    }

    /// Makes the records of a written batch visible, in their order.
    pub(super) fn publish(&self, buffer: &IoBuf, entries: &[Entry], plan: &Plan) {
        let offset = self.layout.segment_offset(plan.tail.segment) + plan.tail.position;
        for entry in entries {
            let Some(record) = decode(buffer, entry) else { continue };
            let grain = (offset + entry.start as u64) / GRAIN_SIZE_BYTES;
            let version = record.meta.version;
            let link = match record.meta.kind {
                RecordKind::Put => Link::record(grain, entry.size as u64 / GRAIN_SIZE_BYTES),
                RecordKind::Delete => Link::tombstone(grain),
                RecordKind::Clear => {
                    self.publish_clear(version);
                    continue;
                }
            };
            let Some(link) = link else { continue };
            self.pending.publish(entry.hash, record.key, |published| {
                // The new record is counted before the old one is let go: S1 of the segments.
                self.segments.add(plan.tail.segment, link_bytes(link));
                match published {
                    Some(old) => {
                        let replaced = self.index.replace(entry.hash, old, link);
                        debug_assert!(replaced, "P1: a pending key's entry stays");
                        self.let_go(old, version);
                    }
                    None => self.index.insert(entry.hash, link),
                }
                self.count_items(published, link);
                Some(link)
            });
        }
    }

    fn publish_clear(&self, version: Version) {
        self.log.cleared(version);
        self.pending.forget_published();
        self.index.clear();
        self.segments.clear(version);
        self.forget_items();
    }
}

fn too_long() -> Error {
    Error::invalid("write store", "a batch is longer than a segment")
}

fn decode<'a>(buffer: &'a IoBuf, entry: &Entry) -> Option<Record<'a>> {
    Record::decode(buffer.get(entry.start..entry.start + entry.size)?, None).ok()
}

/// Bytes that a link stands for in the segment table: its hint, so that what was added can be
/// taken away again without reading the record.
pub(super) fn link_bytes(link: Link) -> u64 {
    match link.size() {
        esker_index::SizeHint::Grains(grains) => grains * GRAIN_SIZE_BYTES,
        esker_index::SizeHint::Tombstone => 32,
        esker_index::SizeHint::Large => 32 << 20,
    }
}
