//! What `depot` puts on a block device (`docs/format/depot.md`).
//!
//! ```text
//! | superblock | superblock copy | .. | segment 0 | segment 1 | ...
//! segment: | header | batch | batch | ... | summary | .. free .. | trailer | header copy |
//! batch:   | batch header | record | record | ... | zeros to the block's end |
//! record:  | record header | key | value |, zeros to the next grain
//! ```
//!
//! # Invariants
//! - F1: whoever validates a batch validates all its records: the checksum covers every byte.
//! - F2: a checksum binds its bytes to their place and time: the device offset and a salt drawn
//!   for this incarnation are part of it, so that stale or misdirected blocks never validate.
//! - F3: sequence numbers in a stream are consecutive: a batch begins with the number after the last
//!   one of the batch before. In the stream of clients' writes they are the records' versions.

mod batch;
mod checkpoint;
mod extent;
mod record;
mod segment;
mod summary;
mod superblock;
mod varint;

pub use batch::{BATCH_HEADER_SIZE, Batch, BatchHeader, BatchKind, encode_batch};
pub use checkpoint::{
    CheckpointEnd, CheckpointExtents, CheckpointSegment, part_size, push_part, take_part,
};
pub use extent::{ExtentKey, LARGE_VALUE_SIZE, LargeValue};
pub use record::{
    DISTANCE_END, KEY_SIZE_MAX_BYTES, RECORD_HEADER_SIZE, RECORD_HEADER_SIZE_MAX, Record,
    RecordKind, RecordMeta, VersionForm, decode_evicted, decode_extent, encode_evicted,
    encode_record, seal_record,
};
pub use segment::{SEGMENT_HEADER_SIZE, SegmentHeader, Stream};
pub use summary::{
    LargeRef, Shape, SummaryGeometry, SummaryRecord, SummarySize, decode_trailer, encode_trailer,
    push_batch, push_record, read_summary,
};
pub use superblock::{
    FORMAT_VERSION, GRAIN_SIZE_MAX, SEGMENT_BLOCKS_MIN, SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_SIZE,
    Superblock,
};

/// Place of a record or batch: what its checksum binds it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Drawn at random for one incarnation of a segment, or one session inside it.
    pub salt: u64,
    /// Offset on the device in bytes.
    pub offset: u64,
}

impl Place {
    fn checksum(self) -> esker_base::checksum::Crc32c {
        let mut crc = esker_base::checksum::Crc32c::new();
        let mut place = [0; 16];
        let (salt, offset) = place.split_at_mut(8);
        salt.copy_from_slice(&self.salt.to_le_bytes());
        offset.copy_from_slice(&self.offset.to_le_bytes());
        crc.update(&place);
        crc
    }
}

/// Bits of a key's hash that the store uses.
pub const HASH_BITS: u32 = 48;

#[cfg(test)]
mod tests;
