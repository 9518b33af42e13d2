//! The root chunk: superblock twice, the session word, and twice what was cleared.

use super::{FORMAT_VERSION, bound, fold, mix};
use crate::{Flaw, bounded};
use esker_base::checksum::crc32c;
use esker_base::ids::StoreId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a superblock in bytes.
pub const SUPERBLOCK_SIZE: usize = 256;
/// Where the two copies stand, in bytes.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 256];
/// Where the session word stands, in bytes: alone in its line.
pub const SESSION_OFFSET: u64 = 512;
/// Where the two slots of what was cleared stand, in bytes: each alone in its line. Both say the same, but for a crash between them.
pub const CLEAR_OFFSETS: [u64; 2] = [576, 640];
/// Size of a slot of a clear in bytes.
pub const CLEAR_SIZE: usize = 32;

const MAGIC: [u8; 8] = *b"ESKRFLAT";
/// What stands in place of a magic while a store is made.
pub const MAKING: [u8; 8] = *b"ESKMAKES";
/// The same while one is restored: nobody is to take it for a place where there never was a store.
pub const RESTORING: [u8; 8] = *b"ESKRESTR";
/// Bits of the checksum of a session word.
const SESSION_CHECK_BITS: u32 = 24;
/// Largest session number.
pub const SESSION_MAX: u64 = (1 << (63 - SESSION_CHECK_BITS)) - 1;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawSuperblock {
    pub(crate) magic: [u8; 8],
    pub(crate) format_version: U32,
    pub(crate) checksum: U32,
    pub(crate) store_id: [u8; 16],
    pub(crate) hash_key: [u8; 16],
    pub(crate) hash_mask: U64,
    pub(crate) size_bytes: U64,
    pub(crate) chunk_size_bytes: U64,
    pub(crate) chunk_count: U32,
    pub(crate) index: U32,
    pub(crate) created_unix_seconds: U64,
    pub(crate) reserved: [u8; 168],
}

const _: () = assert!(size_of::<RawSuperblock>() == SUPERBLOCK_SIZE);

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawClear {
    pub(crate) generation: U64,
    pub(crate) version: U64,
    pub(crate) checksum: U32,
    pub(crate) reserved: [u8; 12],
}

const _: () = assert!(size_of::<RawClear>() == CLEAR_SIZE);

/// Which index finds the entries. It is volatile; the number says what an open without a wish takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum IndexKind {
    /// Extendible hashing: no order.
    Cceh = 1,
    /// A trie of trees: ordered.
    Masstree = 2,
}

/// What a store is, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity, part of every checksum.
    pub store_id: StoreId,
    /// Key of the hash of keys.
    pub hash_key: [u8; 16],
    /// Bits of the hash that count.
    pub hash_mask: u64,
    /// Bytes of the store.
    pub size_bytes: u64,
    /// Bytes of a chunk: a power of two from 2 KiB to 1 GiB.
    pub chunk_size_bytes: u64,
    /// Number of chunks, the root chunk included.
    pub chunk_count: u32,
    /// The index.
    pub index: IndexKind,
    /// Wall time when it was made.
    pub created_unix_seconds: u64,
}

impl Superblock {
    /// The bytes on media.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = RawSuperblock {
            magic: MAGIC,
            format_version: FORMAT_VERSION.into(),
            checksum: 0.into(),
            store_id: self.store_id.0,
            hash_key: self.hash_key,
            hash_mask: self.hash_mask.into(),
            size_bytes: self.size_bytes.into(),
            chunk_size_bytes: self.chunk_size_bytes.into(),
            chunk_count: self.chunk_count.into(),
            index: (self.index as u32).into(),
            created_unix_seconds: self.created_unix_seconds.into(),
            reserved: [0; 168],
        };
        raw.checksum = crc32c(raw.as_bytes()).into();
        let mut bytes = [0; SUPERBLOCK_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a superblock.
    ///
    /// # Errors
    /// The first [`Flaw`] found; a newer version is named before its checksum is looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        let (mut raw, _) = RawSuperblock::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        if raw.format_version.get() != FORMAT_VERSION {
            return Err(Flaw::Version(raw.format_version.get()));
        }
        let checksum = raw.checksum.get();
        raw.checksum = 0.into();
        if crc32c(raw.as_bytes()) != checksum {
            return Err(Flaw::Checksum);
        }
        let superblock = Superblock {
            store_id: StoreId(raw.store_id),
            hash_key: raw.hash_key,
            hash_mask: raw.hash_mask.get(),
            size_bytes: raw.size_bytes.get(),
            chunk_size_bytes: raw.chunk_size_bytes.get(),
            chunk_count: raw.chunk_count.get(),
            index: match raw.index.get() {
                1 => IndexKind::Cceh,
                2 => IndexKind::Masstree,
                _ => return Err(Flaw::Field("index")),
            },
            created_unix_seconds: raw.created_unix_seconds.get(),
        };
        let chunk = superblock.chunk_size_bytes;
        if !chunk.is_power_of_two() || !(2048..=1 << 30).contains(&chunk) {
            return Err(Flaw::Field("chunk_size_bytes"));
        }
        let fits = chunk.checked_mul(u64::from(superblock.chunk_count));
        if superblock.chunk_count < 2 || fits.is_none_or(|bytes| bytes > superblock.size_bytes) {
            return Err(Flaw::Field("chunk_count"));
        }
        Ok(superblock)
    }
}

/// The session word: written in one piece, so that the flag of a clean stop is cleared and a new session begun
/// at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Counts openings.
    pub number: u64,
    /// Whether the session ended with an image of the index that counts.
    pub clean: bool,
}

impl Session {
    fn check(self, store_id: &StoreId) -> u64 {
        let body = self.number << 1 | u64::from(self.clean);
        mix(fold(&store_id.0), body) >> (64 - SESSION_CHECK_BITS)
    }

    /// The word on media.
    #[must_use]
    pub fn encode(self, store_id: &StoreId) -> u64 {
        let body = self.number << 1 | u64::from(self.clean);
        self.check(store_id) << (64 - SESSION_CHECK_BITS) | body
    }

    /// Reads the word.
    ///
    /// # Errors
    /// `Checksum`.
    pub fn decode(word: u64, store_id: &StoreId) -> Result<Self, Flaw> {
        let body = word << SESSION_CHECK_BITS >> SESSION_CHECK_BITS;
        let session = Session { number: body >> 1, clean: body & 1 == 1 };
        if session.encode(store_id) == word { Ok(session) } else { Err(Flaw::Checksum) }
    }
}

/// What was cleared: entries with versions below one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clear {
    /// Counts clears; 0: none yet.
    pub generation: u64,
    /// Entries with lower versions are gone.
    pub version: u64,
}

impl Clear {
    /// The bytes on media.
    #[must_use]
    pub fn encode(self, store_id: &StoreId) -> [u8; CLEAR_SIZE] {
        let mut raw = RawClear {
            generation: self.generation.into(),
            version: self.version.into(),
            checksum: 0.into(),
            reserved: [0; 12],
        };
        raw.checksum = bound(&store_id.0, 0, raw.as_bytes()).into();
        let mut bytes = [0; CLEAR_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a slot.
    ///
    /// # Errors
    /// `TooShort`, `Checksum`, `Field`.
    pub fn decode(bytes: &[u8], store_id: &StoreId) -> Result<Self, Flaw> {
        let (mut raw, _) = RawClear::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let checksum = raw.checksum.get();
        raw.checksum = 0.into();
        if bound(&store_id.0, 0, raw.as_bytes()) != checksum {
            return Err(Flaw::Checksum);
        }
        Ok(Clear {
            generation: bounded("generation", raw.generation.get())?,
            version: bounded("version", raw.version.get())?,
        })
    }
}
