//! The header of a tree file: two slots, written in turn, of which the newer valid one counts.

use super::FORMAT_VERSION;
use crate::head::Head;
use crate::{Flaw, bounded};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Size of a header in bytes: a sector.
pub const HEADER_SIZE: usize = 512;
/// Where the two slots are in the tree file, in bytes; generation `g` goes to slot `g mod 2`.
pub const HEADER_OFFSETS: [u64; 2] = [0, 4096];
/// Where node slots begin in the tree file, in bytes. Slot numbers count from the start of the file.
pub const SLOTS_OFFSET: u64 = 8192;

const HEAD: Head = Head { magic: *b"ESKFLEXT", format_version: FORMAT_VERSION };

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 8],
    pub(crate) format_version: U32,
    pub(crate) checksum: U32,
    pub(crate) space_id: [u8; 16],
    pub(crate) generation: U64,
    pub(crate) segment_size_bytes: U64,
    pub(crate) block_size_bytes: U32,
    pub(crate) node_size_bytes: U32,
    pub(crate) leaf_capacity: U32,
    pub(crate) children_max: U32,
    pub(crate) extent_size_bytes_max: U32,
    pub(crate) log_block_size_bytes: U32,
    pub(crate) root_slot: U64,
    pub(crate) root_shift: I64,
    pub(crate) root_checksum: U32,
    pub(crate) root_height: U32,
    pub(crate) size_bytes: U64,
    pub(crate) extent_count: U64,
    pub(crate) map_slot: U64,
    pub(crate) map_size_bytes: U64,
    pub(crate) map_checksum: U32,
    pub(crate) reserved: [u8; 380],
}

const _: () = assert!(size_of::<Raw>() == HEADER_SIZE);

/// Sizes of a space, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceShape {
    /// Size of a segment of the data file in bytes: whole blocks, at least four.
    pub segment_size_bytes: u64,
    /// Size of a block of the data file in bytes, checksum included: a power of two from 512 to 65,536.
    pub block_size_bytes: u32,
    /// Size of a slot of the tree file in bytes: a power of two from 512 to 4,096.
    pub node_size_bytes: u32,
    /// Most extents of a leaf.
    pub leaf_capacity: u32,
    /// Most children of an inner node.
    pub children_max: u32,
    /// Longest extent in bytes: at most a 32nd of a segment, or a block's payload if that is more.
    pub extent_size_bytes_max: u32,
    /// Groups of the log are multiples of this many bytes: a power of two from 512 to 4,096.
    pub log_block_size_bytes: u32,
}

impl SpaceShape {
    /// Blocks of a segment.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.segment_size_bytes / u64::from(self.block_size_bytes.max(1))
    }

    /// Bytes of data that a block holds.
    #[must_use]
    pub fn block_payload(&self) -> u64 {
        u64::from(self.block_size_bytes).saturating_sub(super::BLOCK_TRAILER_SIZE as u64)
    }

    /// Bytes of data that a segment holds. The address of a byte is its segment's number times this, and
    /// its place among them.
    #[must_use]
    pub fn segment_payload(&self) -> u64 {
        self.blocks().saturating_mul(self.block_payload())
    }

    /// Whether the sizes make sense.
    ///
    /// # Errors
    /// The field that does not.
    pub fn check(&self) -> Result<(), Flaw> {
        let power =
            |value: u32, most: u32| value.is_power_of_two() && (512..=most).contains(&value);
        if !power(self.block_size_bytes, 1 << 16) {
            return Err(Flaw::Field("block_size_bytes"));
        }
        let whole = self.segment_size_bytes.is_multiple_of(u64::from(self.block_size_bytes));
        if !whole || self.blocks() < 4 || self.segment_size_bytes > 1 << 30 {
            return Err(Flaw::Field("segment_size_bytes"));
        }
        if !power(self.node_size_bytes, 4096) {
            return Err(Flaw::Field("node_size_bytes"));
        }
        let node = self.node_size_bytes as usize;
        if !(4..=super::node::extents_max(node).min(60)).contains(&(self.leaf_capacity as usize)) {
            return Err(Flaw::Field("leaf_capacity"));
        }
        if !(4..=super::node::branches_max(node).min(31)).contains(&(self.children_max as usize)) {
            return Err(Flaw::Field("children_max"));
        }
        let longest = u64::from(self.extent_size_bytes_max);
        if longest == 0 || longest > (self.segment_size_bytes / 32).max(self.block_payload()) {
            return Err(Flaw::Field("extent_size_bytes_max"));
        }
        if !power(self.log_block_size_bytes, 4096) {
            return Err(Flaw::Field("log_block_size_bytes"));
        }
        Ok(())
    }
}

/// The root of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Identity of the space, drawn when it is made.
    pub space_id: [u8; 16],
    /// Counts checkpoints; groups of the log belong to one.
    pub generation: u64,
    /// Sizes.
    pub shape: SpaceShape,
    /// The root node; slot 0 if the space is empty.
    pub root: super::StoredAt,
    /// What is added to all offsets.
    pub root_shift: i64,
    /// Levels of inner nodes.
    pub root_height: u32,
    /// Bytes of the space.
    pub size_bytes: u64,
    /// Extents, holes among them.
    pub extent_count: u64,
    /// First slot of the map, and its checksum.
    pub map: super::StoredAt,
    /// Size of the map in bytes.
    pub map_size_bytes: u64,
}

impl Header {
    /// The bytes on media.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let raw = Raw {
            space_id: self.space_id,
            generation: self.generation.into(),
            segment_size_bytes: self.shape.segment_size_bytes.into(),
            block_size_bytes: self.shape.block_size_bytes.into(),
            node_size_bytes: self.shape.node_size_bytes.into(),
            leaf_capacity: self.shape.leaf_capacity.into(),
            children_max: self.shape.children_max.into(),
            extent_size_bytes_max: self.shape.extent_size_bytes_max.into(),
            log_block_size_bytes: self.shape.log_block_size_bytes.into(),
            root_slot: self.root.slot.into(),
            root_shift: self.root_shift.into(),
            root_checksum: self.root.checksum.into(),
            root_height: self.root_height.into(),
            size_bytes: self.size_bytes.into(),
            extent_count: self.extent_count.into(),
            map_slot: self.map.slot.into(),
            map_size_bytes: self.map_size_bytes.into(),
            map_checksum: self.map.checksum.into(),
            ..Raw::new_zeroed()
        };
        HEAD.sealed(raw.as_bytes())
    }

    /// Whether there is a header with its checksum, whatever its version.
    #[must_use]
    pub fn is_sealed(bytes: &[u8]) -> bool {
        bytes.get(..HEADER_SIZE).is_some_and(|bytes| HEAD.is_sealed(bytes))
    }

    /// Reads a header; `sound` says whether its checksum, which does not match, counts all the same: only
    /// a test build says yes.
    ///
    /// # Errors
    /// The first [`Flaw`] found; a newer version is named before its checksum is looked at.
    pub fn decode(bytes: &[u8], sound: impl Fn() -> bool) -> Result<Self, Flaw> {
        let (bytes, _) = bytes.split_at_checked(HEADER_SIZE).ok_or(Flaw::TooShort)?;
        match HEAD.check(bytes) {
            Err(Flaw::Checksum) if sound() => {}
            checked => checked?,
        }
        let raw = Raw::read_from_bytes(bytes).map_err(|_| Flaw::TooShort)?;
        let header = Header {
            space_id: raw.space_id,
            generation: bounded("generation", raw.generation.get())?,
            shape: SpaceShape {
                segment_size_bytes: raw.segment_size_bytes.get(),
                block_size_bytes: raw.block_size_bytes.get(),
                node_size_bytes: raw.node_size_bytes.get(),
                leaf_capacity: raw.leaf_capacity.get(),
                children_max: raw.children_max.get(),
                extent_size_bytes_max: raw.extent_size_bytes_max.get(),
                log_block_size_bytes: raw.log_block_size_bytes.get(),
            },
            root: super::StoredAt { slot: raw.root_slot.get(), checksum: raw.root_checksum.get() },
            root_shift: raw.root_shift.get(),
            root_height: raw.root_height.get(),
            size_bytes: raw.size_bytes.get(),
            extent_count: raw.extent_count.get(),
            map: super::StoredAt { slot: raw.map_slot.get(), checksum: raw.map_checksum.get() },
            map_size_bytes: raw.map_size_bytes.get(),
        };
        header.shape.check()?;
        if header.size_bytes >= 1 << 62 || (header.root.slot == 0) != (header.size_bytes == 0) {
            return Err(Flaw::Field("size_bytes"));
        }
        if header.extent_count > header.size_bytes {
            return Err(Flaw::Field("extent_count"));
        }
        if header.root_height > 20 {
            return Err(Flaw::Field("root_height"));
        }
        Ok(header)
    }
}
