//! What readers and the writer share: the tree, the segments, and the segment that is being written.
//!
//! # Invariants
//! - S1: `valid_bytes` of a segment is the number of bytes in it that extents of the tree point at.
//! - S2: the tree, the segments and the open segment change together, under one short lock: a reader sees
//!   all of an operation or nothing.
//! - S3: a block of the open segment that was written to the device does not change any more.

use super::filled::FilledSegment;
use esker_format::flex::{HOLE, Record, SegmentState, SpaceShape, seal_block};
use esker_index::FlexTree;
use esker_index::flex_tree::{Extent, MARK, Missing};
use esker_media::IoBuf;
use std::sync::Arc;

/// No space reaches this many bytes: twice as many as have an address, so that holes, each of which has up to 4 GiB, stay few.
pub(super) const SIZE_END: u64 = 1 << 48;

/// The segment that is being filled, whole in memory (FlexSpace §4.1).
#[derive(Debug)]
pub(super) struct OpenSegment {
    /// Its number; `None` before the first one is taken.
    pub(super) number: Option<u64>,
    pub(super) salt: u64,
    /// Its blocks. Only shared while they are being written to the device.
    pub(super) buffer: Arc<IoBuf>,
    /// Bytes of payload in it.
    pub(super) position: u64,
    /// Blocks that are on the device.
    pub(super) written_blocks: u64,
}

/// Where a byte of payload stands in a segment: its block, and its place there.
pub(super) fn place_of(shape: &SpaceShape, position: u64) -> (u64, usize) {
    let payload = shape.block_payload();
    (position / payload, usize::try_from(position % payload).unwrap_or(0))
}

/// Calls `visit` with each block that `length` bytes at `position` of a segment touch: the block, the
/// range in it, and the place in the whole.
pub(super) fn blocks_of(
    shape: &SpaceShape,
    position: u64,
    length: usize,
    mut visit: impl FnMut(u64, std::ops::Range<usize>, usize),
) {
    let payload = usize::try_from(shape.block_payload()).unwrap_or(usize::MAX);
    let mut done = 0;
    while done < length {
        let (block, start) = place_of(shape, position + done as u64);
        let count = (payload - start).min(length - done);
        visit(block, start..start + count, done);
        done += count;
    }
}

impl OpenSegment {
    /// Bytes of payload that still fit.
    pub(super) fn room(&self, shape: &SpaceShape) -> u64 {
        match self.number {
            Some(_) => shape.segment_payload() - self.position,
            None => 0,
        }
    }

    /// Whether there are blocks in it, or will be, that are not on the device.
    pub(super) fn is_in_part(&self, shape: &SpaceShape) -> bool {
        self.number.is_some() && self.written_blocks < shape.blocks()
    }

    /// Appends `data`, which fits, and seals the blocks that it fills; the address of the first byte.
    pub(super) fn append(&mut self, shape: &SpaceShape, data: &[u8]) -> Option<u64> {
        let number = self.number?;
        let (salt, first_block) = (self.salt, number * shape.blocks());
        let buffer = Arc::get_mut(&mut self.buffer)?;
        let size = shape.block_size_bytes as usize;
        let payload = usize::try_from(shape.block_payload()).unwrap_or(0);
        blocks_of(shape, self.position, data.len(), |block, range, at| {
            let start = usize::try_from(block).unwrap_or(0) * size;
            let Some(bytes) = buffer.get_mut(start..start + size) else { return };
            let full = range.end == payload;
            if let (Some(to), Some(from)) =
                (bytes.get_mut(range.clone()), data.get(at..at + range.len()))
            {
                to.copy_from_slice(from);
            }
            if full {
                seal_block(bytes, salt, first_block + block);
            }
        });
        let address = number * shape.segment_payload() + self.position;
        self.position += data.len() as u64;
        Some(address)
    }

    /// Ends the block that is partly filled: a block that was written is never written again.
    pub(super) fn end_block(&mut self, shape: &SpaceShape) -> Option<()> {
        let (_, start) = place_of(shape, self.position);
        if start > 0 {
            let rest = usize::try_from(shape.block_payload()).unwrap_or(0).saturating_sub(start);
            self.append(shape, &vec![0; rest])?;
        }
        Some(())
    }
}

/// Copies bytes at `position` of a segment that is in memory.
pub(super) fn copy_out(buffer: &IoBuf, shape: &SpaceShape, position: u64, to: &mut [u8]) {
    let size = shape.block_size_bytes as usize;
    blocks_of(shape, position, to.len(), |block, range, at| {
        let start = usize::try_from(block).unwrap_or(0) * size;
        let from = buffer.get(start + range.start..start + range.end);
        if let (Some(to), Some(from)) = (to.get_mut(at..at + range.len()), from) {
            to.copy_from_slice(from);
        }
    });
}

/// Why a record cannot be done.
#[derive(Debug)]
pub(super) enum Unfit {
    /// A node has to be loaded first; nothing changed.
    Missing(Missing),
    /// It makes no sense here.
    Wrong(&'static str),
}

impl From<Missing> for Unfit {
    fn from(missing: Missing) -> Self {
        Unfit::Missing(missing)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) tree: FlexTree,
    pub(super) segments: Vec<SegmentState>,
    pub(super) open: OpenSegment,
    /// Those that are full and not on the device, the oldest first (`filled`).
    pub(super) filled: Vec<FilledSegment>,
    /// Bytes that extents with addresses have, all together.
    pub(super) valid_bytes: u64,
    /// Segments that lost their last valid byte since the last commit.
    pub(super) dying: Vec<u64>,
}

impl Shared {
    /// Does what a record says. The same when it happens and when the log is replayed.
    pub(super) fn apply(&mut self, shape: &SpaceShape, record: Record) -> Result<(), Unfit> {
        let size = self.tree.size_bytes();
        match record {
            Record::Insert { offset, length, address } => {
                if offset > size || length == 0 || size.saturating_add(length) >= SIZE_END {
                    return Err(Unfit::Wrong("an insertion behind the end"));
                }
                self.check_address(shape, address, length)?;
                self.tree.insert(offset, length, address)?;
                self.add(shape, address, length);
            }
            Record::Map { offset, length, address } => {
                if length == 0 || offset.saturating_add(length) > size || address == HOLE {
                    return Err(Unfit::Wrong("a mapping behind the end"));
                }
                self.check_address(shape, address, length)?;
                let mut gone = Vec::new();
                self.tree.map(offset, length, address, |extent| gone.push(extent))?;
                self.add(shape, address, length);
                self.drop_all(shape, &gone);
            }
            Record::Collapse { offset, length } => {
                if length == 0 || offset.saturating_add(length) > size {
                    return Err(Unfit::Wrong("a removal behind the end"));
                }
                let mut gone = Vec::new();
                self.tree.collapse(offset, length, |extent| gone.push(extent))?;
                self.drop_all(shape, &gone);
            }
            Record::Take { segment, salt } => {
                let index = usize::try_from(segment).unwrap_or(usize::MAX);
                let state = self.segments.get_mut(index);
                let state = state.ok_or(Unfit::Wrong("a segment behind the end of the file"))?;
                if state.valid_bytes != 0 {
                    return Err(Unfit::Wrong("a segment with data was taken"));
                }
                state.salt = salt;
            }
        }
        Ok(())
    }

    fn check_address(&self, shape: &SpaceShape, address: u64, length: u64) -> Result<(), Unfit> {
        if address == HOLE {
            return Ok(());
        }
        let payload = shape.segment_payload();
        let address = address & !MARK;
        let inside = address % payload + length <= payload
            && length <= u64::from(shape.extent_size_bytes_max)
            && address / payload < self.segments.len() as u64;
        if inside { Ok(()) } else { Err(Unfit::Wrong("an address behind the end of the file")) }
    }

    fn add(&mut self, shape: &SpaceShape, address: u64, length: u64) {
        if address == HOLE {
            return;
        }
        let index =
            usize::try_from((address & !MARK) / shape.segment_payload()).unwrap_or(usize::MAX);
        if let Some(segment) = self.segments.get_mut(index) {
            // What a map says comes from media.
            let more = u32::try_from(length).unwrap_or(0);
            segment.valid_bytes = segment.valid_bytes.saturating_add(more);
            self.valid_bytes += length;
        }
    }

    fn drop_all(&mut self, shape: &SpaceShape, gone: &[Extent]) {
        for extent in gone.iter().filter(|extent| !extent.is_hole()) {
            let number = extent.place() / shape.segment_payload();
            let index = usize::try_from(number).unwrap_or(usize::MAX);
            let Some(segment) = self.segments.get_mut(index) else { continue };
            segment.valid_bytes = segment.valid_bytes.saturating_sub(extent.length);
            self.valid_bytes = self.valid_bytes.saturating_sub(u64::from(extent.length));
            if segment.valid_bytes == 0 && self.open.number != Some(number) {
                self.dying.push(number);
            }
        }
    }

    /// The next extent from `offset` on whose first byte is marked, or the last one of those that were looked at: so many, and none
    /// behind a node that is missing. `None` at the end.
    pub(super) fn next_marked(&self, offset: u64, most: usize) -> Result<Option<Extent>, Missing> {
        let mut last = None;
        for extent in self.tree.range(offset, u64::MAX).take(most) {
            match extent {
                Ok(extent) if extent.is_marked() => return Ok(Some(extent)),
                Ok(extent) => last = Some(extent),
                Err(missing) if last.is_none() => return Err(missing),
                Err(_) => break,
            }
        }
        Ok(last)
    }

    /// The blocks of a segment that is in memory because not all of it is on the device.
    #[inline]
    pub(super) fn buffer_of(&self, segment: u64) -> Option<&IoBuf> {
        if self.open.number == Some(segment) {
            return Some(&self.open.buffer);
        }
        let filled = self.filled.iter().find(|filled| filled.number == segment)?;
        Some(&filled.buffer)
    }

    /// Whether nothing in a segment counts.
    pub(super) fn is_empty(&self, segment: u64) -> bool {
        let index = usize::try_from(segment).unwrap_or(usize::MAX);
        self.segments.get(index).is_none_or(|segment| segment.valid_bytes == 0)
    }

    /// The salt of a segment.
    pub(super) fn salt(&self, segment: u64) -> Option<u64> {
        let index = usize::try_from(segment).unwrap_or(usize::MAX);
        self.segments.get(index).map(|segment| segment.salt)
    }
}
