//! What a scan sees of a segment: a piece of it in memory, and the batches that stand there.
//!
//! Where a log ends, and in what is damaged, anything may stand, and clients choose what: a value may claim at each of its blocks to be a
//! batch that takes all of the rest. Once what only claimed to be one was as much as a segment, the checksums of all blocks are taken, and
//! no claim is gone through any more to be refused.
//!
//! # Concurrency
//! None: a window is of one scan.
//!
//! # Failure
//! Reads only.

use super::scan::{SegmentEnd, Source};
use super::sites;
use esker_base::Result;
use esker_base::checksum::Stretches;
use esker_format::depot::{Batch, BatchHeader, BatchKind, Place};
use esker_media::IoBuf;

/// Bytes read at once.
const WINDOW_SIZE: u64 = 1 << 20;

/// A piece of a segment in memory.
pub(super) struct Window<'a> {
    source: Source<'a>,
    pub(super) base: u64,
    start: u64,
    pub(super) buffer: IoBuf,
    /// Offset in the segment behind what is looked at.
    pub(super) limit: u64,
    /// Bytes that were gone through for what was no batch.
    in_vain: u64,
    /// Checksums of the blocks from an offset in the segment on, once those were too many.
    blocks: Option<(u64, Stretches)>,
}

impl<'a> Window<'a> {
    pub(super) fn new(source: Source<'a>, base: u64) -> Self {
        let limit = source.layout.segment_size - source.layout.block;
        let buffer = source.pool.get(0);
        Window { source, base, start: 0, buffer, limit, in_vain: 0, blocks: None }
    }

    /// Makes `position..position + length` of the segment present; `fresh`: reads it again if it is.
    fn load(&mut self, position: u64, length: u64, fresh: bool) -> Result<()> {
        if let Some(skip) = position.checked_sub(self.start)
            && let Some(end) = skip.checked_add(length)
            && let (Ok(skip), Ok(end)) = (usize::try_from(skip), usize::try_from(end))
            && let Some(present) = self.buffer.get_mut(skip..end)
        {
            return if fresh { self.source.read(self.base + position, present) } else { Ok(()) };
        }
        let wanted = if fresh { length } else { length.max(WINDOW_SIZE) };
        let size = wanted.min(self.limit.saturating_sub(position));
        self.buffer = self.source.pool.get(usize::try_from(size).unwrap_or(0));
        self.start = position;
        self.source.read(self.base + position, &mut self.buffer)
    }

    fn bytes(&self, position: u64) -> &[u8] {
        let skip = usize::try_from(position.saturating_sub(self.start)).unwrap_or(usize::MAX);
        self.buffer.get(skip..).unwrap_or(&[])
    }

    pub(super) fn looks_like_batch(&mut self, position: u64) -> Result<bool> {
        let layout = self.source.layout;
        self.load(position, layout.block, false)?;
        let block = u32::try_from(layout.block).unwrap_or(u32::MAX);
        Ok(BatchHeader::peek(self.bytes(position), block).is_ok())
    }

    /// A barrier that is damaged right behind `end`, where a batch of its session follows, was there all the same.
    pub(super) fn skip_barrier(&mut self, end: &mut SegmentEnd, salt: u64) -> Result<()> {
        let layout = self.source.layout;
        let (at, position) = (end.position, end.position + layout.block);
        let block = u32::try_from(layout.block).unwrap_or(u32::MAX);
        let header = match self.looks_like_batch(position)? {
            true => self.batch(position, salt)?.map(|batch| batch.header),
            false => None,
        };
        let Some(header) = header
            .filter(|header| header.session != end.session && header.first_sequence >= end.next)
        else {
            return Ok(());
        };
        self.load(at, layout.block, false)?;
        if BatchHeader::was_barrier(self.bytes(at), block, header.session) {
            (end.position, end.session) = (position, header.session);
            end.next = header.first_sequence;
        }
        Ok(())
    }

    /// The batch at `position` of the segment, if it is of this kind.
    pub(super) fn marker(
        &mut self,
        position: u64,
        salt: u64,
        kind: BatchKind,
    ) -> Result<Option<Batch<'_>>> {
        // Its bytes and no more: nothing is read behind it.
        let layout = self.source.layout;
        self.load(position, layout.block, true)?;
        let block = u32::try_from(layout.block).unwrap_or(u32::MAX);
        if let Ok(header) = BatchHeader::peek(self.bytes(position), block) {
            let total = u64::from(header.total_bytes);
            if total > layout.block && position + total <= layout.trailer() {
                self.load(position, total, true)?;
            }
        }
        Ok(self.batch(position, salt)?.filter(|batch| batch.header.kind == kind))
    }

    /// The batch at `position` of the segment, or `None` if there is no valid one.
    pub(super) fn batch(&mut self, position: u64, salt: u64) -> Result<Option<Batch<'_>>> {
        let layout = self.source.layout;
        let block = u32::try_from(layout.block).unwrap_or(u32::MAX);
        let place = Place { salt, offset: self.base + position };
        let check = !sites::BATCH_CHECKSUM.disabled();
        if self.in_vain > self.limit && check && !self.is_known(position, place)? {
            return Ok(None);
        }
        for fresh in [false, true, true] {
            self.load(position, layout.block, fresh)?;
            let Ok(header) = BatchHeader::peek(self.bytes(position), block) else {
                if self.bytes(position).iter().take(64).all(|byte| *byte == 0) {
                    // Nothing was ever written here: no need to look again.
                    return Ok(None);
                }
                continue;
            };
            let total = u64::from(header.total_bytes);
            if position + total > self.limit {
                continue;
            }
            self.load(position, total, fresh)?;
            if Batch::decode(self.bytes(position), block, place, check).is_ok() {
                return Ok(Batch::decode(self.bytes(position), block, place, false).ok());
            }
            self.in_vain += total;
        }
        Ok(None)
    }

    /// Whether a batch stands at `position`, by the checksums of all blocks, which are taken the first time; true also if nobody knows.
    fn is_known(&mut self, position: u64, place: Place) -> Result<bool> {
        let block = self.source.layout.block;
        if self.blocks.is_none() {
            let Some(mut sums) = Stretches::new(usize::try_from(block).unwrap_or(4096)) else {
                return Ok(true);
            };
            let mut at = position;
            while at < self.limit {
                self.load(at, block, false)?;
                let bytes = self.bytes(at);
                sums.push(bytes);
                at += (bytes.len() as u64).max(block);
            }
            self.blocks = Some((position, sums));
        }
        self.load(position, block, false)?;
        let first = usize::try_from(block).ok().and_then(|block| self.bytes(position).get(..block));
        let (Some((start, sums)), Some(first)) = (&self.blocks, first) else { return Ok(true) };
        let Some(skipped) = position.checked_sub(*start) else { return Ok(true) };
        let next = usize::try_from(skipped / block).unwrap_or(usize::MAX).saturating_add(1);
        let behind = |head, blocks| sums.behind(head, next..next.saturating_add(blocks));
        Ok(BatchHeader::find(first, place, behind).is_some())
    }
}

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::super::{Depot, Layout};
    use super::*;
    use crate::options::Options;
    use esker_base::checksum::work;
    use esker_base::ids::{SegmentId, Sequence};
    use esker_format::depot::encode_batch;
    use esker_media::sim::{SimBlock, SimBlockOptions};
    use std::io::IoSlice;
    use std::sync::Arc;

    const SALT: u64 = 5;

    #[test]
    fn whatever_claims_to_be_a_batch_behind_a_log_is_gone_through_no_more_than_some_times() {
        const SEGMENT: u64 = 1 << 20;
        let mut options = Options::new("");
        options.testing.segment_size_bytes = Some(SEGMENT);
        options.testing.background = false;
        let device = Arc::new(SimBlock::new(SimBlockOptions::new(12 << 20, 1)));
        let store = Depot::open(device, &options).unwrap();
        let id = SegmentId(5);
        let first = store.layout.first_batch();
        let end = SegmentEnd {
            position: first,
            next: Sequence(0),
            durable: Sequence(0),
            session: SALT,
            sealed: false,
            batches: 0,
        };
        let layout: &Layout = &store.layout;
        let (base, block) = (layout.segment_offset(id), layout.block);
        for every in [u64::MAX, 300, 2] {
            // Blocks that claim to be batches, each of all the rest, but for whole ones that say each that one more record was durable.
            let is_whole = |place: u64| place % every == every - 1;
            let mut durable = 0;
            for place in 1..layout.trailer() / block {
                let whole = is_whole(place);
                durable += u64::from(whole);
                let total = if whole { block } else { layout.trailer() - place * block };
                let header = BatchHeader {
                    kind: BatchKind::Records,
                    total_bytes: u32::try_from(total).unwrap(),
                    payload_bytes: 1,
                    record_count: 1,
                    first_sequence: Sequence(durable),
                    durable_sequence: Sequence(durable),
                    session: SALT,
                };
                let mut bytes = vec![7; usize::try_from(block).unwrap()];
                let offset = base + place * block;
                encode_batch(&mut bytes, &header, Place { salt: SALT, offset });
                store.device.write_at(sites::PREPARE, offset, &[IoSlice::new(&bytes)]).unwrap();
            }
            work::take();
            let found = store.source(sites::RECOVER_READ).durable_behind(id, SALT, &end).unwrap();
            let gone_through = work::take();
            assert_eq!(found, Sequence(durable), "every {every}");
            assert!(gone_through < 8 * SEGMENT, "every {every}: {gone_through} bytes");
        }
    }
}
