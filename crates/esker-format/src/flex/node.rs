//! A node of the tree file: extents, or pointers to children.

use super::bound;
use crate::Flaw;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"ESKN";
/// Size of a node's header in bytes.
pub const NODE_HEADER_SIZE: usize = 32;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawNode {
    pub(crate) magic: [u8; 4],
    pub(crate) checksum: U32,
    pub(crate) level: U16,
    pub(crate) count: U16,
    pub(crate) reserved: U32,
    pub(crate) slot: U64,
    pub(crate) generation: U64,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawExtent {
    pub(crate) partial_offset: [u8; 6],
    pub(crate) length_low: U16,
    pub(crate) address: [u8; 6],
    pub(crate) length_high: U16,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawBranch {
    pub(crate) pivot: I64,
    pub(crate) shift: I64,
    pub(crate) slot: U64,
    pub(crate) checksum: U32,
    pub(crate) reserved: U32,
}

const _: () = assert!(size_of::<RawNode>() == NODE_HEADER_SIZE);
const _: () = assert!(size_of::<RawExtent>() == 16 && size_of::<RawBranch>() == 32);

/// Extents that a leaf of this size has room for.
#[must_use]
pub const fn extents_max(node_size_bytes: usize) -> usize {
    (node_size_bytes - NODE_HEADER_SIZE) / size_of::<RawExtent>()
}

/// Children that an inner node of this size has room for.
#[must_use]
pub const fn branches_max(node_size_bytes: usize) -> usize {
    (node_size_bytes - NODE_HEADER_SIZE) / size_of::<RawBranch>()
}

/// Where something is stored in the tree file, and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredAt {
    /// Number of its (first) slot.
    pub slot: u64,
    /// Its checksum: whoever points at it knows it, so that an older node in the same slot is noticed.
    pub checksum: u32,
}

/// A pointer to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Where the child begins, relative to the node; 0 for the first.
    pub pivot: i64,
    /// What is added to the offsets below.
    pub shift: i64,
    /// The child.
    pub child: StoredAt,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Extents: partial offset (48 bits), length, address (48 bits).
    Leaf(Vec<(u64, u32, u64)>),
    /// Children, at this level (1 or more) above the leaves.
    Inner(u16, Vec<Branch>),
}

fn low_48(value: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = value.to_le_bytes();
    [a, b, c, d, e, f]
}

fn from_48([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

impl Node {
    /// Writes the node into `slot_bytes`, which is a slot, and returns its checksum.
    pub fn encode(
        &self,
        slot_bytes: &mut [u8],
        space_id: &[u8; 16],
        slot: u64,
        generation: u64,
    ) -> u32 {
        slot_bytes.fill(0);
        let mut body = Vec::with_capacity(slot_bytes.len());
        let (level, count) = match self {
            Node::Leaf(extents) => {
                for (offset, length, address) in extents {
                    let [a, b, c, d] = length.to_le_bytes();
                    let raw = RawExtent {
                        partial_offset: low_48(*offset),
                        length_low: U16::from_bytes([a, b]),
                        address: low_48(*address),
                        length_high: U16::from_bytes([c, d]),
                    };
                    body.extend_from_slice(raw.as_bytes());
                }
                (0, extents.len())
            }
            Node::Inner(level, branches) => {
                for branch in branches {
                    let raw = RawBranch {
                        pivot: branch.pivot.into(),
                        shift: branch.shift.into(),
                        slot: branch.child.slot.into(),
                        checksum: branch.child.checksum.into(),
                        reserved: 0.into(),
                    };
                    body.extend_from_slice(raw.as_bytes());
                }
                (*level, branches.len())
            }
        };
        let mut raw = RawNode {
            magic: MAGIC,
            checksum: 0.into(),
            level: level.into(),
            count: u16::try_from(count).unwrap_or(u16::MAX).into(),
            reserved: 0.into(),
            slot: slot.into(),
            generation: generation.into(),
        };
        let mut write = |raw: &RawNode| {
            let parts = raw.as_bytes().iter().chain(&body);
            slot_bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = *from);
        };
        write(&raw);
        let checksum = bound(space_id, slot_bytes);
        raw.checksum = checksum.into();
        slot_bytes.iter_mut().zip(raw.as_bytes()).for_each(|(to, from)| *to = *from);
        checksum
    }

    /// Reads the node of `level` at `at`. `sound`: as for [`super::Header::decode`].
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(
        slot_bytes: &[u8],
        space_id: &[u8; 16],
        at: StoredAt,
        level: u16,
        sound: impl Fn() -> bool,
    ) -> Result<Self, Flaw> {
        let (raw, body) = RawNode::read_from_prefix(slot_bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        let mut bytes = slot_bytes.to_vec();
        bytes.iter_mut().skip(4).take(4).for_each(|byte| *byte = 0);
        let computed = bound(space_id, &bytes);
        if (computed != raw.checksum.get() || computed != at.checksum) && !sound() {
            return Err(Flaw::Checksum);
        }
        if raw.slot.get() != at.slot || raw.level.get() != level {
            return Err(Flaw::Foreign);
        }
        let count = usize::from(raw.count.get());
        if level == 0 {
            let (extents, _) = <[RawExtent]>::ref_from_prefix_with_elems(body, count)
                .map_err(|_| Flaw::Field("count"))?;
            let extent = |raw: &RawExtent| {
                let length =
                    u32::from(raw.length_high.get()) << 16 | u32::from(raw.length_low.get());
                (from_48(raw.partial_offset), length, from_48(raw.address))
            };
            return Ok(Node::Leaf(extents.iter().map(extent).collect()));
        }
        let (branches, _) = <[RawBranch]>::ref_from_prefix_with_elems(body, count)
            .map_err(|_| Flaw::Field("count"))?;
        let branch = |raw: &RawBranch| Branch {
            pivot: raw.pivot.get(),
            shift: raw.shift.get(),
            child: StoredAt { slot: raw.slot.get(), checksum: raw.checksum.get() },
        };
        Ok(Node::Inner(level, branches.iter().map(branch).collect()))
    }
}
