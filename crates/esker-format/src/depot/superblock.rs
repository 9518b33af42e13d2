//! Root of a `depot` store: two copies, of which the one with the higher generation wins.
//!
//! One sector of 512 bytes, the smallest unit that a device writes whole; a torn format leaves
//! either copy valid or none.

use crate::Flaw;
use crate::head::Head;
use esker_base::ids::StoreId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Size of a superblock in bytes.
pub const SUPERBLOCK_SIZE: usize = 512;
/// Device offset of the second copy in bytes; the first stands at 0.
pub const SUPERBLOCK_COPY_OFFSET: u64 = 4096;
/// The format that this build writes. Others are refused by number.
pub const FORMAT_VERSION: u32 = 5;
/// Fewest blocks of a segment: header, trailer, copy of the header, and as many for a batch with its summary.
pub const SEGMENT_BLOCKS_MIN: u64 = 8;
/// Largest grain in bytes.
pub const GRAIN_SIZE_MAX: u32 = 8;
const HEAD: Head = Head { magic: *b"ESKDEPOT", format_version: FORMAT_VERSION };

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 8],
    pub(crate) format_version: U32,
    pub(crate) checksum: U32,
    pub(crate) store_id: [u8; 16],
    pub(crate) hash_key: [u8; 16],
    pub(crate) hash_mask: U64,
    pub(crate) device_size_bytes: U64,
    pub(crate) data_offset: U64,
    pub(crate) segment_size_bytes: U64,
    pub(crate) segment_count: U32,
    pub(crate) block_size_bytes: U32,
    pub(crate) generation: U64,
    pub(crate) created_unix_seconds: U64,
    pub(crate) mode: U32,
    pub(crate) grain_size_bytes: U32,
    pub(crate) reserved: [u8; 400],
}

const _: () = assert!(size_of::<Raw>() == SUPERBLOCK_SIZE);

/// Root of a store: its identity, hash key and geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity, drawn at format.
    pub store_id: StoreId,
    /// Key of the hash function of keys, drawn at format.
    pub hash_key: [u8; 16],
    /// Bits of the key hash that are used; all of them outside tests.
    pub hash_mask: u64,
    /// Bytes of the device that belong to the store.
    pub device_size_bytes: u64,
    /// Device offset of segment 0 in bytes.
    pub data_offset: u64,
    /// Size of each segment in bytes.
    pub segment_size_bytes: u64,
    /// Number of segments.
    pub segment_count: u32,
    /// Unit of writes in bytes; batches start and end at multiples of it.
    pub block_size_bytes: u32,
    /// Counts formats of this device: the higher copy is the newer one.
    pub generation: u64,
    /// Wall time of the format, for people.
    pub created_unix_seconds: u64,
    /// The store is a cache: when it is full it evicts. Records of a cache say whether they replace others,
    /// those of other stores do not, so a store is one or the other.
    pub cache: bool,
    /// A cache that was written to without each write being durable, and has not stopped since: after a crash keys may have older values, which
    /// nobody can tell, so whoever opens it forgets all.
    pub in_doubt: bool,
    /// Records start at multiples of this many bytes (uDepot's grain, here independent of the block), of which
    /// the index counts 2^40: a power of two up to [`GRAIN_SIZE_MAX`].
    pub grain_size_bytes: u32,
}

impl Superblock {
    /// The bytes on media.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        let raw = Raw {
            store_id: self.store_id.0,
            hash_key: self.hash_key,
            hash_mask: self.hash_mask.into(),
            device_size_bytes: self.device_size_bytes.into(),
            data_offset: self.data_offset.into(),
            segment_size_bytes: self.segment_size_bytes.into(),
            segment_count: self.segment_count.into(),
            block_size_bytes: self.block_size_bytes.into(),
            generation: self.generation.into(),
            created_unix_seconds: self.created_unix_seconds.into(),
            mode: (u32::from(self.cache) + u32::from(self.cache && self.in_doubt)).into(),
            grain_size_bytes: self.grain_size_bytes.into(),
            ..Raw::new_zeroed()
        };
        HEAD.sealed(raw.as_bytes())
    }

    /// Reads and checks a superblock.
    ///
    /// # Errors
    /// The first [`Flaw`] found; a newer version is named before its checksum is looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        let (bytes, _) = bytes.split_at_checked(SUPERBLOCK_SIZE).ok_or(Flaw::TooShort)?;
        HEAD.check(bytes)?;
        let raw = Raw::read_from_bytes(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.mode.get() > 2 {
            return Err(Flaw::Field("mode"));
        }
        let superblock = Superblock {
            store_id: StoreId(raw.store_id),
            hash_key: raw.hash_key,
            hash_mask: raw.hash_mask.get(),
            device_size_bytes: raw.device_size_bytes.get(),
            data_offset: raw.data_offset.get(),
            segment_size_bytes: raw.segment_size_bytes.get(),
            segment_count: raw.segment_count.get(),
            block_size_bytes: raw.block_size_bytes.get(),
            generation: raw.generation.get(),
            created_unix_seconds: raw.created_unix_seconds.get(),
            cache: raw.mode.get() > 0,
            in_doubt: raw.mode.get() > 1,
            grain_size_bytes: raw.grain_size_bytes.get(),
        };
        superblock.check()?;
        Ok(superblock)
    }

    /// Whether the geometry makes sense: no field is used before this passed.
    fn check(&self) -> Result<(), Flaw> {
        let block = u64::from(self.block_size_bytes);
        if !block.is_power_of_two() || !(512..=SUPERBLOCK_COPY_OFFSET).contains(&block) {
            return Err(Flaw::Field("block_size_bytes"));
        }
        if !self.grain_size_bytes.is_power_of_two() || self.grain_size_bytes > GRAIN_SIZE_MAX {
            return Err(Flaw::Field("grain_size_bytes"));
        }
        if !self.segment_size_bytes.is_multiple_of(block)
            || self.segment_size_bytes < SEGMENT_BLOCKS_MIN * block
            || self.segment_size_bytes > u64::from(u32::MAX)
        {
            return Err(Flaw::Field("segment_size_bytes"));
        }
        if !self.data_offset.is_multiple_of(block)
            || self.data_offset < SUPERBLOCK_COPY_OFFSET + SUPERBLOCK_SIZE as u64
        {
            return Err(Flaw::Field("data_offset"));
        }
        let end = self
            .segment_size_bytes
            .checked_mul(u64::from(self.segment_count))
            .and_then(|data| data.checked_add(self.data_offset));
        if self.segment_count == 0 || end.is_none_or(|end| end > self.device_size_bytes) {
            return Err(Flaw::Field("segment_count"));
        }
        Ok(())
    }
}
