//! FlexSpace on media: data file, tree file, logical log (`docs/format/flex-space.md`).
//!
//! ```text
//! data: | segment 0 | segment 1 | ...        segment: | block | block | ...   block: | payload | checksum |
//! tree: | header at 0 | header at 4096 | .. | slot | slot | ...               slot: a node, or a part of the map
//! log:  | group | group | ...                group: | group header | record | record | ... | zeros |
//! ```
//!
//! # Invariants
//! - F1: everything has a checksum that is bound to the space, to its place and to its time: blocks to
//!   the salt of their segment, nodes to slot and generation, groups to position, generation and the
//!   group before.

pub mod header;
pub mod log;
pub mod map;
pub mod node;

pub use header::{HEADER_OFFSETS, HEADER_SIZE, Header, SpaceShape};
pub use log::{GROUP_HEADER_SIZE, Group, Packed, Record};
pub use map::{Map, SegmentState};
pub use node::{Branch, Node, StoredAt};

use esker_base::checksum::{Crc32c, crc32c};

/// The format that this build writes. Others are refused by number.
pub const FORMAT_VERSION: u32 = 2;
/// Bytes at the end of each block of the data file that are its checksum.
pub const BLOCK_TRAILER_SIZE: usize = 4;
/// The address of a range that maps to nothing: the largest of 48 bits.
pub const HOLE: u64 = (1 << 48) - 1;

/// What a block's checksum is mixed with, so that it only counts at its place and in its time.
fn place_of(salt: u64, block: u64) -> u32 {
    let mixed =
        (salt ^ block.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    u32::try_from(mixed >> 32).unwrap_or(0)
}

/// Puts the checksum behind the payload of a block. `block` is its number in the data file, `salt` that of
/// its segment.
pub fn seal_block(bytes: &mut [u8], salt: u64, block: u64) {
    let Some((payload, trailer)) = bytes.split_last_chunk_mut::<BLOCK_TRAILER_SIZE>() else {
        return;
    };
    *trailer = (crc32c(payload) ^ place_of(salt, block)).to_le_bytes();
}

/// Whether a block is what was written at its place in its segment's time.
#[must_use]
pub fn block_is_sound(bytes: &[u8], salt: u64, block: u64) -> bool {
    let Some((payload, trailer)) = bytes.split_last_chunk::<BLOCK_TRAILER_SIZE>() else {
        return false;
    };
    u32::from_le_bytes(*trailer) == crc32c(payload) ^ place_of(salt, block)
}

/// CRC32C of `bytes` behind the identity of the space.
fn bound(space_id: &[u8; 16], bytes: &[u8]) -> u32 {
    let mut checksum = Crc32c::new();
    checksum.update(space_id);
    checksum.update(bytes);
    checksum.finish()
}

#[cfg(test)]
mod tests;
