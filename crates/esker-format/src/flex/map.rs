//! The map of a checkpoint: what is known of each segment, and which slots of the tree file are in use.

use super::bound;
use crate::Flaw;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"ESKM";
/// Size of a map's header in bytes.
pub const MAP_HEADER_SIZE: usize = 32;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawMap {
    pub(crate) magic: [u8; 4],
    pub(crate) checksum: U32,
    pub(crate) generation: U64,
    pub(crate) segment_count: U64,
    pub(crate) slot_count: U64,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawSegment {
    pub(crate) salt: U64,
    pub(crate) valid_bytes: U32,
    pub(crate) reserved: U32,
}

const _: () = assert!(size_of::<RawMap>() == MAP_HEADER_SIZE && size_of::<RawSegment>() == 16);

/// What is known of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentState {
    /// Random number of its incarnation, part of the checksums of its blocks.
    pub salt: u64,
    /// Bytes in it that extents point at.
    pub valid_bytes: u32,
}

/// The map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Segments of the data file, in order.
    pub segments: Vec<SegmentState>,
    /// Slots of the tree file in use, from slot 0: the least significant bit of byte 0.
    pub slots: Vec<u8>,
}

/// Size in bytes of a map of so many segments and slots, or `None` if that is no number.
#[must_use]
pub fn size_of_map(segment_count: u64, slot_count: u64) -> Option<u64> {
    let segments = segment_count.checked_mul(size_of::<RawSegment>() as u64)?;
    segments.checked_add(slot_count.div_ceil(8))?.checked_add(MAP_HEADER_SIZE as u64)
}

impl Map {
    /// The bytes on media, and their checksum.
    #[must_use]
    pub fn encode(&self, space_id: &[u8; 16], generation: u64) -> (Vec<u8>, u32) {
        let mut raw = RawMap {
            magic: MAGIC,
            checksum: 0.into(),
            generation: generation.into(),
            segment_count: (self.segments.len() as u64).into(),
            slot_count: (self.slots.len() as u64 * 8).into(),
        };
        let mut bytes = raw.as_bytes().to_vec();
        for segment in &self.segments {
            let raw = RawSegment {
                salt: segment.salt.into(),
                valid_bytes: segment.valid_bytes.into(),
                reserved: 0.into(),
            };
            bytes.extend_from_slice(raw.as_bytes());
        }
        bytes.extend_from_slice(&self.slots);
        let checksum = bound(space_id, &bytes);
        raw.checksum = checksum.into();
        bytes.iter_mut().zip(raw.as_bytes()).for_each(|(to, from)| *to = *from);
        (bytes, checksum)
    }

    /// Generation, size in bytes and checksum of the map that begins here, as its header says: nothing is verified. `None` if none
    /// begins.
    #[must_use]
    pub fn peek(bytes: &[u8]) -> Option<(u64, u64, u32)> {
        let (raw, _) = RawMap::read_from_prefix(bytes).ok()?;
        let size = size_of_map(raw.segment_count.get(), raw.slot_count.get())?;
        (raw.magic == MAGIC).then_some((raw.generation.get(), size, raw.checksum.get()))
    }

    /// Reads the map of `generation`. `sound`: as for [`super::Header::decode`].
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(
        bytes: &[u8],
        space_id: &[u8; 16],
        generation: u64,
        checksum: u32,
        sound: impl Fn() -> bool,
    ) -> Result<Self, Flaw> {
        let (raw, rest) = RawMap::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        let mut copy = bytes.to_vec();
        copy.iter_mut().skip(4).take(4).for_each(|byte| *byte = 0);
        let computed = bound(space_id, &copy);
        if (computed != checksum || computed != raw.checksum.get()) && !sound() {
            return Err(Flaw::Checksum);
        }
        if raw.generation.get() != generation {
            return Err(Flaw::Foreign);
        }
        let size = size_of_map(raw.segment_count.get(), raw.slot_count.get());
        if size != Some(bytes.len() as u64) {
            return Err(Flaw::Field("segment_count"));
        }
        let count = usize::try_from(raw.segment_count.get()).map_err(|_| Flaw::TooShort)?;
        let (segments, slots) = <[RawSegment]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| Flaw::Field("segment_count"))?;
        let segment = |raw: &RawSegment| SegmentState {
            salt: raw.salt.get(),
            valid_bytes: raw.valid_bytes.get(),
        };
        Ok(Map { segments: segments.iter().map(segment).collect(), slots: slots.to_vec() })
    }
}
