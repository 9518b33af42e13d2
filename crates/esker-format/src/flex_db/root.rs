//! The root: the first bytes of the space of a store.

use super::FORMAT_VERSION;
use crate::Flaw;
use esker_base::checksum::crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"ESKFLEXD";
/// Size of the root in bytes.
pub const ROOT_SIZE: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawRoot {
    pub(crate) magic: [u8; 8],
    pub(crate) format_version: U32,
    pub(crate) checksum: U32,
    pub(crate) store_id: [u8; 16],
    pub(crate) committed_generation: U64,
    pub(crate) last_version: U64,
    pub(crate) is_restoring: U32,
    pub(crate) reserved: [u8; 4],
    pub(crate) capacity_bytes: U64,
}

const _: () = assert!(size_of::<RawRoot>() == ROOT_SIZE);

/// What a store says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Random, drawn when the store was made.
    pub store_id: [u8; 16],
    /// Logs up to this generation are in the space as a whole.
    pub committed_generation: u64,
    /// Highest version in the space.
    pub last_version: u64,
    /// A restore of the store did not end: it is none.
    pub is_restoring: bool,
    /// Bytes that the store may have; 0 in stores that were made before this was kept.
    pub capacity_bytes: u64,
}

impl Root {
    /// The root as it lies in the space.
    #[must_use]
    pub fn encode(&self) -> [u8; ROOT_SIZE] {
        let mut raw = RawRoot {
            magic: MAGIC,
            format_version: FORMAT_VERSION.into(),
            checksum: 0.into(),
            store_id: self.store_id,
            committed_generation: self.committed_generation.into(),
            last_version: self.last_version.into(),
            is_restoring: u32::from(self.is_restoring).into(),
            reserved: [0; 4],
            capacity_bytes: self.capacity_bytes.into(),
        };
        raw.checksum = crc32c(raw.as_bytes()).into();
        let mut bytes = [0; ROOT_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a root.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(bytes: &[u8], sound: impl Fn() -> bool) -> Result<Self, Flaw> {
        let (raw, _) = RawRoot::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        if raw.format_version.get() != FORMAT_VERSION {
            return Err(Flaw::Version(raw.format_version.get()));
        }
        let computed = crc32c(RawRoot { checksum: 0.into(), ..raw }.as_bytes());
        if computed != raw.checksum.get() && !sound() {
            return Err(Flaw::Checksum);
        }
        Ok(Root {
            store_id: raw.store_id,
            committed_generation: raw.committed_generation.get(),
            last_version: raw.last_version.get(),
            is_restoring: raw.is_restoring.get() != 0,
            capacity_bytes: raw.capacity_bytes.get(),
        })
    }
}
