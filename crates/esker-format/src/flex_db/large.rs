//! Large values: each by itself in the space, behind all intervals.
//!
//! A value begins with a head that says whose it is and how long; its bytes follow. A value that ends before its length was
//! not written whole: it counts as little as one that no pair names.

use super::{KEY_SIZE_MAX_BYTES, VALUE_SIZE_MAX_BYTES};
use crate::{Flaw, bounded};
use esker_base::checksum::Crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Size of a head without its key, in bytes.
pub const LARGE_HEAD_SIZE: usize = 32;
/// Stands where a run has its kind.
const KIND: u8 = 3;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawLarge {
    pub(crate) checksum: U32,
    pub(crate) kind: u8,
    pub(crate) reserved: [u8; 3],
    pub(crate) number: U64,
    pub(crate) length_bytes: U64,
    pub(crate) value_checksum: U32,
    pub(crate) key_size_bytes: U32,
}

const _: () = assert!(size_of::<RawLarge>() == LARGE_HEAD_SIZE);

/// What stands before a large value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeHead {
    /// Names the value; no two of a store have the same one.
    pub number: u64,
    /// Bytes of the value.
    pub length_bytes: u64,
    /// CRC32C of the value.
    pub value_checksum: u32,
    /// The key that it was put under.
    pub key: Vec<u8>,
}

fn checksum_of(raw: &RawLarge, key: &[u8]) -> u32 {
    let mut checksum = Crc32c::new();
    checksum.update(RawLarge { checksum: 0.into(), ..*raw }.as_bytes());
    checksum.update(key);
    checksum.finish()
}

impl LargeHead {
    /// The head as it lies in the space, its key at its end.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = RawLarge {
            kind: KIND,
            number: self.number.into(),
            length_bytes: self.length_bytes.into(),
            value_checksum: self.value_checksum.into(),
            key_size_bytes: u32::try_from(self.key.len()).unwrap_or(u32::MAX).into(),
            ..RawLarge::new_zeroed()
        };
        raw.checksum = checksum_of(&raw, &self.key).into();
        [raw.as_bytes(), &self.key].concat()
    }

    /// Whether a head begins here, rather than an interval.
    #[must_use]
    pub fn is_here(bytes: &[u8]) -> bool {
        bytes.get(4) == Some(&KIND)
    }

    /// Bytes of the head that begins here, of which at least [`LARGE_HEAD_SIZE`] were read.
    ///
    /// # Errors
    /// `TooShort`; `Field` if there is none, or if its key is too long.
    pub fn size(bytes: &[u8]) -> Result<usize, Flaw> {
        let (raw, _) = RawLarge::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let key_size = raw.key_size_bytes.get() as usize;
        if raw.kind != KIND {
            return Err(Flaw::Field("kind"));
        }
        if key_size > KEY_SIZE_MAX_BYTES {
            return Err(Flaw::Field("key_size_bytes"));
        }
        Ok(LARGE_HEAD_SIZE + key_size)
    }

    /// Reads a head.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        let size = LargeHead::size(bytes)?;
        let (raw, _) = RawLarge::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let key = bytes.get(LARGE_HEAD_SIZE..size).ok_or(Flaw::TooShort)?;
        if checksum_of(&raw, key) != raw.checksum.get() {
            return Err(Flaw::Checksum);
        }
        let length_bytes = raw.length_bytes.get();
        if length_bytes > VALUE_SIZE_MAX_BYTES {
            return Err(Flaw::Field("length_bytes"));
        }
        Ok(LargeHead {
            number: bounded("number", raw.number.get())?,
            length_bytes,
            value_checksum: raw.value_checksum.get(),
            key: key.to_vec(),
        })
    }
}
