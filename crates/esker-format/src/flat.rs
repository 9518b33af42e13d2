//! A `flat` store on persistent memory: root, chunks, log batches, records (`docs/format/flat.md`).
//!
//! ```text
//! store: | root chunk | chunk 1 | chunk 2 | ...
//! root:  | superblock | its copy | session word | clear slot | clear slot |
//! chunk: | header | its copy | log batches, or blocks of one size, or part of a value, or part of an image |
//! batch: | batch header | entry | entry | ... | zeros to the end of the line |
//! ```
//!
//! # Invariants
//! - P1: everything has a checksum that is bound to the store, to its place and to its time: chunk
//!   headers to store and chunk, batches to the salt of their chunk's incarnation and to their offset, records to
//!   store and offset.
//! - P2: no two incarnations of a chunk share an epoch: epochs begin with the number of the session, which
//!   is durable before its first epoch is used.

pub mod batch;
pub mod chunk;
pub mod entry;
pub mod image;
pub mod record;
pub mod root;

pub use batch::{BASE_VERSION_SIZE, BATCH_HEADER_SIZE, BatchHeader, BatchKind};
pub use chunk::{CHUNK_HEADER_SIZE, CHUNK_START, ChunkHeader, ChunkKind};
pub use entry::{
    Action, EncodeEntry, Entry, EntryAttributes, EntryBytes, EntryKey, EntrySink, Stamp,
};
pub use image::{ChunkState, IMAGE_HEADER_SIZE, ImageHeader, ImageKind, LogTail};
pub use record::{RECORD_HEADER_SIZE, Record};
pub use root::{
    CLEAR_OFFSETS, CLEAR_SIZE, Clear, IndexKind, MAKING, RESTORING, SESSION_OFFSET,
    SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, Session, Superblock,
};

use esker_base::checksum::Crc32c;

/// The format that this build writes. Others are refused by number.
pub const FORMAT_VERSION: u32 = 2;
/// Bytes of a cache line: batches and blocks are whole lines.
pub const LINE: usize = 64;
/// Longest key in bytes.
pub const KEY_SIZE_MAX_BYTES: usize = 64 << 10;
/// Longest value in bytes.
pub const VALUE_SIZE_MAX_BYTES: u64 = 4 << 30;
/// Longest value that stands in the log, in bytes (FlatStore §3.2).
pub const INLINE_VALUE_MAX: usize = 256;
/// Longest key that stands in the log, in bytes.
pub const INLINE_KEY_MAX: usize = 255;

/// CRC32C of `bytes` behind the identity of the store and a number of the place.
fn bound(store_id: &[u8; 16], place: u64, bytes: &[u8]) -> u32 {
    let mut checksum = Crc32c::new();
    checksum.update(store_id);
    checksum.update(&place.to_le_bytes());
    checksum.update(bytes);
    checksum.finish()
}

/// Mixes two numbers to 64 bits that depend on all of both.
fn mix(one: u64, other: u64) -> u64 {
    let mixed =
        (one ^ other.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// The two halves of an identity as one number.
fn fold(store_id: &[u8; 16]) -> u64 {
    let (mut low, mut high) = ([0; 8], [0; 8]);
    low.copy_from_slice(store_id.first_chunk::<8>().unwrap_or(&[0; 8]));
    high.copy_from_slice(store_id.last_chunk::<8>().unwrap_or(&[0; 8]));
    mix(u64::from_le_bytes(low), u64::from_le_bytes(high))
}

#[cfg(test)]
mod tests;
