//! What `depot` puts on a block device (`docs/format/depot.md`).
//!
//! ```text
//! | superblock | superblock copy | .. | segment 0 | segment 1 | ...
//! segment: | header | batch | batch | ... | seal | .. free .. | header copy |
//! batch:   | batch header | record | record | ... | zeros to the block's end |
//! record:  | record header | expiry? | key | value | zeros to the grain's end |
//! ```
//!
//! # Invariants
//! - F1: whoever validates a batch validates all its records: the checksum covers every byte.
//! - F2: a checksum binds its bytes to their place and time: the device offset and a salt drawn
//!   for this incarnation are part of it, so that stale or misdirected blocks never validate.
//! - F3: versions in the log are consecutive: a batch begins with the version after the last one of
//!   the batch before.

mod batch;
mod record;
mod segment;
mod superblock;

pub use batch::{BATCH_HEADER_SIZE, Batch, BatchHeader, BatchKind, encode_batch};
pub use record::{RECORD_HEADER_SIZE, Record, RecordKind, RecordMeta, encode_record, seal_record};
pub use segment::{SEGMENT_HEADER_SIZE, SegmentHeader};
pub use superblock::{FORMAT_VERSION, SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_SIZE, Superblock};

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

/// Records start at multiples of this many bytes (uDepot's grain, here independent of the block).
pub const GRAIN_SIZE_BYTES: u64 = 8;

#[cfg(test)]
mod tests;
