//! The root: the first bytes of the space of a store.

use super::FORMAT_VERSION;
use crate::{Flaw, bounded};
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
    pub(crate) unfinished: U32,
    pub(crate) reserved: [u8; 4],
    pub(crate) capacity_bytes: U64,
}

const _: () = assert!(size_of::<RawRoot>() == ROOT_SIZE);

/// What makes a store no store until it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unfinished {
    /// Nothing.
    #[default]
    No,
    /// A restore.
    Restore,
    /// A repair: what is not mended yet cannot be read.
    Repair,
    /// A repair that looks for all keys, as it may be of any that something is not mended yet.
    RepairOfAll,
}

/// What a store says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Random, drawn when the store was made.
    pub store_id: [u8; 16],
    /// Logs up to this generation are in the space as a whole.
    pub committed_generation: u64,
    /// Highest version in the space.
    pub last_version: u64,
    /// What was done to the store and did not end: it is none until then.
    pub unfinished: Unfinished,
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
            unfinished: match self.unfinished {
                Unfinished::No => 0,
                Unfinished::Restore => 1,
                Unfinished::Repair => 2,
                Unfinished::RepairOfAll => 3,
            }
            .into(),
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
            committed_generation: bounded("committed_generation", raw.committed_generation.get())?,
            last_version: bounded("last_version", raw.last_version.get())?,
            unfinished: match raw.unfinished.get() {
                0 => Unfinished::No,
                1 => Unfinished::Restore,
                2 => Unfinished::Repair,
                3 => Unfinished::RepairOfAll,
                _ => return Err(Flaw::Field("unfinished")),
            },
            capacity_bytes: raw.capacity_bytes.get(),
        })
    }
}
