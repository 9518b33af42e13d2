//! The header of a chunk, which says what it is used for. It stands twice, and the copies change one after the
//! other: so a crash leaves at least one of them whole, and damage to one is no loss.

use super::{bound, mix};
use crate::{Flaw, bounded};
use esker_base::ids::StoreId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a chunk header in bytes: a cache line.
pub const CHUNK_HEADER_SIZE: usize = 64;
/// Where the content of a chunk begins, in bytes: behind both copies.
pub const CHUNK_START: u64 = 2 * CHUNK_HEADER_SIZE as u64;

const MAGIC: [u8; 4] = *b"ESKC";

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawChunk {
    pub(crate) magic: [u8; 4],
    pub(crate) checksum: U32,
    pub(crate) epoch: U64,
    pub(crate) born: U64,
    pub(crate) kind: U16,
    pub(crate) owner: U16,
    pub(crate) number: U32,
    pub(crate) lines: U32,
    pub(crate) chunks: U32,
    pub(crate) next_version: U64,
    pub(crate) reserved: [u8; 16],
}

const _: () = assert!(size_of::<RawChunk>() == CHUNK_HEADER_SIZE);

/// What a chunk is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ChunkKind {
    /// Nothing.
    Free = 1,
    /// Batches of a log.
    Log = 2,
    /// Blocks of one size for records that do not stand in the log.
    Blocks = 3,
    /// The first chunk of a record that takes whole chunks; those behind it keep stale headers.
    Large = 4,
    /// Part of an image of the index.
    Image = 5,
}

/// What a chunk is used for, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The incarnation: never used twice in a store.
    pub epoch: u64,
    /// Logs: the chunk holds no entry that had been overtaken before this version was given out. Images: a
    /// number that all parts share, higher than that of any earlier image.
    pub born: u64,
    /// What for.
    pub kind: ChunkKind,
    /// The core whose chunk it is.
    pub owner: u16,
    /// The chunk's own number.
    pub number: u32,
    /// Blocks: lines of each.
    pub lines: u32,
    /// Large: chunks of the record; images: number of the part.
    pub chunks: u32,
    /// All versions that had been given out when the header was written are lower; 0 in headers of builds that did not tell.
    pub next_version: u64,
}

impl ChunkHeader {
    /// The bytes of each copy.
    #[must_use]
    pub fn encode(&self, store_id: &StoreId) -> [u8; CHUNK_HEADER_SIZE] {
        let mut raw = RawChunk {
            magic: MAGIC,
            checksum: 0.into(),
            epoch: self.epoch.into(),
            born: self.born.into(),
            kind: (self.kind as u16).into(),
            owner: self.owner.into(),
            number: self.number.into(),
            lines: self.lines.into(),
            chunks: self.chunks.into(),
            next_version: self.next_version.into(),
            reserved: [0; 16],
        };
        raw.checksum = bound(&store_id.0, u64::from(self.number), raw.as_bytes()).into();
        let mut bytes = [0; CHUNK_HEADER_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a copy that stands in chunk `number`. `sound` says whether a checksum that does not match counts all
    /// the same: only a test build says yes.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(
        bytes: &[u8],
        store_id: &StoreId,
        number: u32,
        sound: impl Fn() -> bool,
    ) -> Result<Self, Flaw> {
        let (mut raw, _) = RawChunk::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        let checksum = raw.checksum.get();
        raw.checksum = 0.into();
        if bound(&store_id.0, u64::from(number), raw.as_bytes()) != checksum && !sound() {
            return Err(Flaw::Checksum);
        }
        let kind = match raw.kind.get() {
            1 => ChunkKind::Free,
            2 => ChunkKind::Log,
            3 => ChunkKind::Blocks,
            4 => ChunkKind::Large,
            5 => ChunkKind::Image,
            _ => return Err(Flaw::Field("kind")),
        };
        if raw.number.get() != number {
            return Err(Flaw::Foreign);
        }
        Ok(ChunkHeader {
            epoch: raw.epoch.get(),
            born: bounded("born", raw.born.get())?,
            kind,
            owner: raw.owner.get(),
            number,
            lines: raw.lines.get(),
            chunks: raw.chunks.get(),
            next_version: bounded("next_version", raw.next_version.get())?,
        })
    }

    /// What the checksums of the chunk's batches are mixed with.
    #[must_use]
    pub fn salt(&self, store_id: &StoreId) -> u64 {
        mix(mix(super::fold(&store_id.0), self.epoch), u64::from(self.number))
    }
}
