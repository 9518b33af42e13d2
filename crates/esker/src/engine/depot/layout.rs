//! Where things lie on the device of a `depot`.

use esker_base::ids::SegmentId;
use esker_base::units::{MIB, round_down};
use esker_base::{Error, Result};
use esker_format::depot::{
    BATCH_HEADER_SIZE, GRAIN_SIZE_MAX, RECORD_HEADER_SIZE_MAX, RecordKind, SEGMENT_BLOCKS_MIN,
    SummaryGeometry, Superblock,
};
use esker_index::Link;
use esker_media::BlockGeometry;

/// Size of the segments of a new store that says nothing else, in bytes.
pub(super) const DEFAULT_SEGMENT_SIZE_BYTES: u64 = 32 * MIB;
/// Size of the segments of a small store, in bytes. With 4 MiB in place of it one of 64 MiB, of which six segments are in reserve or
/// being filled, is full at 55 % of its capacity, and to write over one of 256 MiB that is 85 % full takes six times the bytes.
const SEGMENT_SIZE_MIN_BYTES: u64 = MIB;
/// Number of segments that a store has if their size allows it.
const SEGMENT_COUNT_WANTED: u64 = 256;
/// Most bytes of a store: what the index can address.
pub(crate) const STORE_SIZE_MAX_BYTES: u64 = Link::GRAIN_END * GRAIN_SIZE_MAX as u64;
/// Fewest segments of a store: one in use for each of three streams, three in reserve so that cleaning
/// and deletes always work, and two.
pub(super) const SEGMENT_COUNT_MIN: u64 = 8;

/// Unit of the sizes that links tell, in bytes.
pub(super) const SIZE_UNIT_BYTES: u64 = 8;

/// Values are split if they take more than one of so many parts of a segment, or so many bytes.
const SEGMENT_SHARE: u64 = 8;
const INLINE_MAX: u64 = 7 * MIB / 2;

/// The arithmetic of a store's geometry. Everything in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) block: u64,
    pub(super) segment_size: u64,
    pub(super) segment_count: u32,
    /// Records start at multiples of it.
    pub(super) grain: u64,
    data_offset: u64,
}

impl Layout {
    /// For tests of what needs no segments.
    #[cfg(test)]
    pub(super) const fn of_blocks(block: u64, grain: u64) -> Self {
        Layout { block, segment_size: 1 << 20, segment_count: 8, grain, data_offset: 8192 }
    }

    pub(super) fn of(superblock: &Superblock) -> Self {
        Layout {
            block: u64::from(superblock.block_size_bytes),
            segment_size: superblock.segment_size_bytes,
            segment_count: superblock.segment_count,
            grain: u64::from(superblock.grain_size_bytes),
            data_offset: superblock.data_offset,
        }
    }

    /// The smallest grain with which links reach the end of a device, or the largest one there is.
    pub(super) fn grain_for(size_bytes: u64) -> u32 {
        let least = size_bytes.div_ceil(Link::GRAIN_END).next_power_of_two();
        u32::try_from(least).unwrap_or(u32::MAX).min(GRAIN_SIZE_MAX)
    }

    /// Data offset, segment size and number of segments for a new store on a device.
    pub(super) fn plan(
        geometry: BlockGeometry,
        segment_size: Option<u64>,
        grain: u32,
    ) -> Result<(u64, u64, u32)> {
        let block = u64::from(geometry.block_size_bytes);
        let wanted = segment_size.unwrap_or_else(|| {
            // Small stores get small segments, so that there are enough of them.
            let power = |bytes: u64| 1 << (63 - bytes.max(1).leading_zeros());
            power(geometry.size_bytes / SEGMENT_COUNT_WANTED)
                .clamp(SEGMENT_SIZE_MIN_BYTES, DEFAULT_SEGMENT_SIZE_BYTES)
                .min(power(geometry.size_bytes / 16))
        });
        let segment_size = round_down(wanted, block);
        let data_offset = if segment_size >= MIB { MIB } else { 8192_u64.max(2 * block) };
        let count = Self::segments_in(geometry.size_bytes, data_offset, segment_size, grain);
        if segment_size < SEGMENT_BLOCKS_MIN * block || count < SEGMENT_COUNT_MIN {
            return Err(Error::invalid(
                "format store",
                format!(
                    "{} bytes are too few: a store needs {SEGMENT_COUNT_MIN} segments of at least \
                     {} bytes and {data_offset} bytes before them",
                    geometry.size_bytes,
                    SEGMENT_BLOCKS_MIN * block
                ),
            ));
        }
        Ok((data_offset, segment_size, u32::try_from(count).unwrap_or(u32::MAX)))
    }

    /// Number of segments of a store with this geometry on a device of `size_bytes`.
    pub(super) fn segments_in(
        size_bytes: u64,
        data_offset: u64,
        segment_size: u64,
        grain: u32,
    ) -> u64 {
        let count = size_bytes.saturating_sub(data_offset) / segment_size.max(1);
        // Links address a limited number of grains.
        count.min(Link::GRAIN_END * u64::from(grain) / segment_size.max(1) - 1)
    }

    /// The entry of the index for a record at device offset `offset`, a multiple of the grain.
    pub(super) fn link(&self, kind: RecordKind, offset: u64, size_bytes: u64) -> Option<Link> {
        let grain = offset / self.grain;
        match kind {
            RecordKind::Put | RecordKind::Extent => {
                Link::record(grain, size_bytes.div_ceil(SIZE_UNIT_BYTES))
            }
            RecordKind::Large => Link::large(grain),
            RecordKind::Delete | RecordKind::Clear | RecordKind::Evict => Link::tombstone(grain),
        }
    }

    /// Device offset of the record that a link points at, in bytes.
    pub(super) fn offset_of(&self, link: Link) -> u64 {
        link.grain() * self.grain
    }

    pub(super) fn segment_offset(&self, id: SegmentId) -> u64 {
        self.data_offset + u64::from(id.0) * self.segment_size
    }

    /// The segment that a device offset lies in, if it lies in one.
    pub(super) fn segment_of(&self, offset: u64) -> Option<SegmentId> {
        let index = offset.checked_sub(self.data_offset)? / self.segment_size;
        u32::try_from(index).ok().filter(|index| *index < self.segment_count).map(SegmentId)
    }

    /// Where batches start in a segment: behind the header's block.
    pub(super) fn first_batch(&self) -> u64 {
        self.block
    }

    /// Where batches and summary end in a segment: here stands the trailer, behind it the copy of the
    /// header.
    pub(super) fn trailer(&self) -> u64 {
        self.segment_size - 2 * self.block
    }

    /// What is left of an open segment behind `position`.
    pub(super) fn room_behind(&self, position: u64) -> u64 {
        self.trailer().saturating_sub(position)
    }

    /// What is left of an open segment when the next one is to be readied.
    pub(super) fn half(&self) -> u64 {
        self.segment_size / 2
    }

    /// Where the copy of the header stands in a segment.
    pub(super) fn header_copy(&self) -> u64 {
        self.segment_size - self.block
    }

    /// Largest batch in bytes, with what it adds to the summary: a block is kept for a barrier.
    pub(super) fn batch_max(&self) -> u64 {
        self.trailer() - self.first_batch() - self.block
    }

    /// Bytes on media of a batch that uses `used` bytes, and of a summary of `summary` bytes.
    pub(super) fn batch_with_summary(&self, used: u64, summary: u64) -> u64 {
        self.blocks(used) + self.blocks(BATCH_HEADER_SIZE as u64 + summary)
    }

    /// Bytes of a large value in one extent: what a segment ends with that is too short for one is little.
    pub(super) fn extent_size(&self) -> u64 {
        round_down(self.segment_size / SEGMENT_SHARE, self.block).clamp(self.block, MIB)
    }

    /// Largest value in bytes that stands in the record of its key, one device read away: it is short
    /// beside a segment, and the index can tell its size.
    pub(super) fn inline_max(&self, key_size: usize) -> u64 {
        let share = (self.segment_size / SEGMENT_SHARE).min(INLINE_MAX).max(self.block);
        share.min(self.value_max(key_size))
    }

    /// Bytes that values can take in all, at most.
    pub(super) fn room(&self, kept: usize) -> u64 {
        u64::from(self.segment_count).saturating_sub(kept as u64) * self.batch_max()
    }

    /// Largest value in bytes with which a record still fits one batch.
    pub(super) fn value_max(&self, key_size: usize) -> u64 {
        let overhead = BATCH_HEADER_SIZE + RECORD_HEADER_SIZE_MAX + 8 + key_size;
        // The summary of a batch with one record fits a block.
        (self.batch_max() - self.block).saturating_sub(overhead as u64)
    }

    /// What summaries are read against.
    pub(super) fn of_summaries(&self) -> SummaryGeometry {
        let Layout { block, segment_size, grain, .. } = *self;
        SummaryGeometry { block, segment: segment_size, grain }
    }

    /// `bytes` in whole blocks.
    pub(super) fn blocks(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grains_are_as_small_as_the_device_allows() {
        let tib = 1_u64 << 40;
        let sizes = [1, tib, tib + 1, 3 * tib, 8 * tib, 9 * tib, u64::MAX];
        assert_eq!(sizes.map(Layout::grain_for), [1, 1, 2, 4, 8, 8, 8]);
    }

    #[test]
    fn links_reach_every_segment_that_a_store_has() {
        for (size, grain) in [(1_u64 << 40, 1), (1 << 43, 8), (1 << 50, 8)] {
            let segment = DEFAULT_SEGMENT_SIZE_BYTES;
            let count = Layout::segments_in(size, MIB, segment, grain);
            let layout = Layout {
                block: 4096,
                segment_size: segment,
                segment_count: u32::try_from(count).unwrap(),
                grain: u64::from(grain),
                data_offset: MIB,
            };
            let last = layout.segment_offset(SegmentId(layout.segment_count - 1)) + segment - 8;
            let link = layout.link(RecordKind::Put, last, 125).unwrap();
            assert_eq!(layout.offset_of(link), last);
            assert!(last > size.min(1 << 43) - 4 * segment);
        }
    }
}
