//! Images: what DRAM knew, in parts of a chunk each (FlatStore §3.5).
//!
//! Of a clean stop: parts with the states of chunks come first, then those with entries of the index, in its order. The
//! image counts if the session word says so and all its parts are whole. Of an open store: the tails of the logs, then
//! entries of the index. It counts whenever all its parts are whole, for what stands before the tails of logs that
//! are still there.

use super::bound;
use crate::{Flaw, bounded};
use esker_base::ids::StoreId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of the header of a part in bytes.
pub const IMAGE_HEADER_SIZE: usize = 64;
const MAGIC: [u8; 4] = *b"ESKI";

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawImage {
    pub(crate) magic: [u8; 4],
    pub(crate) checksum: U32,
    pub(crate) session: U64,
    pub(crate) part: U32,
    pub(crate) parts: U32,
    pub(crate) kind: U32,
    pub(crate) count: U32,
    pub(crate) payload_bytes: U64,
    pub(crate) next_version: U64,
    pub(crate) tombstones: U64,
    pub(crate) reserved: [u8; 8],
}

const _: () = assert!(size_of::<RawImage>() == IMAGE_HEADER_SIZE);

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawChunkState {
    pub(crate) number: U32,
    pub(crate) tail: U32,
    pub(crate) entries: U32,
    pub(crate) live: U32,
}

/// Size of a chunk's state in an image, in bytes.
pub const CHUNK_STATE_SIZE: usize = size_of::<RawChunkState>();

/// What a part holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ImageKind {
    /// States of chunks.
    Chunks = 1,
    /// Entries of a hash index: hash and word, 8 bytes each.
    Hashes = 2,
    /// Entries of an ordered index: length of the key in 4 bytes, word, key.
    Keys = 3,
    /// How far the logs were when the image of an open store was begun.
    Tails = 4,
}

/// The header of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// The session that ended with it.
    pub session: u64,
    /// Number of the part, from 0.
    pub part: u32,
    /// Parts of the image.
    pub parts: u32,
    /// What it holds.
    pub kind: ImageKind,
    /// States or entries.
    pub count: u32,
    /// Bytes of them.
    pub payload_bytes: u64,
    /// Version that comes next.
    pub next_version: u64,
    /// Keys that were deleted and whose tombstones are kept.
    pub tombstones: u64,
}

impl ImageHeader {
    fn raw(&self) -> RawImage {
        RawImage {
            magic: MAGIC,
            checksum: 0.into(),
            session: self.session.into(),
            part: self.part.into(),
            parts: self.parts.into(),
            kind: (self.kind as u32).into(),
            count: self.count.into(),
            payload_bytes: self.payload_bytes.into(),
            next_version: self.next_version.into(),
            tombstones: self.tombstones.into(),
            reserved: [0; 8],
        }
    }

    fn checksum(&self, payload: &[u8], store_id: &StoreId) -> u32 {
        let raw = self.raw();
        let head = bound(&store_id.0, 0, raw.as_bytes());
        bound(&store_id.0, u64::from(head), payload)
    }

    /// The bytes before `payload`.
    #[must_use]
    pub fn encode(&self, payload: &[u8], store_id: &StoreId) -> [u8; IMAGE_HEADER_SIZE] {
        let mut raw = self.raw();
        raw.checksum = self.checksum(payload, store_id).into();
        let mut bytes = [0; IMAGE_HEADER_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a header without its checksum: whether it is whole says [`ImageHeader::decode`].
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn peek(bytes: &[u8]) -> Result<ImageHeader, Flaw> {
        let (raw, _) = RawImage::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        Ok(ImageHeader {
            session: raw.session.get(),
            part: raw.part.get(),
            parts: raw.parts.get(),
            kind: match raw.kind.get() {
                1 => ImageKind::Chunks,
                2 => ImageKind::Hashes,
                3 => ImageKind::Keys,
                4 => ImageKind::Tails,
                _ => return Err(Flaw::Field("kind")),
            },
            count: raw.count.get(),
            payload_bytes: raw.payload_bytes.get(),
            next_version: bounded("next_version", raw.next_version.get())?,
            tombstones: raw.tombstones.get(),
        })
    }

    /// Reads a part: header and payload. `sound` as for chunks.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode<'a>(
        bytes: &'a [u8],
        store_id: &StoreId,
        sound: impl Fn() -> bool,
    ) -> Result<(ImageHeader, &'a [u8]), Flaw> {
        let header = ImageHeader::peek(bytes)?;
        let (raw, rest) = RawImage::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let length =
            usize::try_from(header.payload_bytes).map_err(|_| Flaw::Field("payload_bytes"))?;
        let payload = rest.get(..length).ok_or(Flaw::TooShort)?;
        if header.checksum(payload, store_id) != raw.checksum.get() && !sound() {
            return Err(Flaw::Checksum);
        }
        Ok((header, payload))
    }
}

/// Adds 64 bits of the blocks of a chunk that are in use; they follow its state.
pub fn put_bits(to: &mut Vec<u8>, bits: u64) {
    to.extend_from_slice(&bits.to_le_bytes());
}

/// Bytes of an entry of a hash index.
pub const HASH_ENTRY_SIZE: usize = 16;

/// Adds an entry of a hash index.
pub fn put_hash_entry(to: &mut Vec<u8>, hash: u64, word: u64) {
    to.extend_from_slice(&hash.to_le_bytes());
    to.extend_from_slice(&word.to_le_bytes());
}

/// Bytes of an entry of an ordered index.
#[must_use]
pub const fn key_entry_size(key_length: usize) -> usize {
    12 + key_length
}

/// Adds an entry of an ordered index.
pub fn put_key_entry(to: &mut Vec<u8>, key: &[u8], word: u64) {
    to.extend_from_slice(&u32::try_from(key.len()).unwrap_or(0).to_le_bytes());
    to.extend_from_slice(&word.to_le_bytes());
    to.extend_from_slice(key);
}

fn number(bytes: &mut &[u8]) -> Result<u64, Flaw> {
    let (number, rest) = bytes.split_first_chunk::<8>().ok_or(Flaw::TooShort)?;
    *bytes = rest;
    Ok(u64::from_le_bytes(*number))
}

/// Cuts 64 bits off the front.
///
/// # Errors
/// `TooShort`.
pub fn take_bits(bytes: &mut &[u8]) -> Result<u64, Flaw> {
    number(bytes)
}

/// Cuts an entry of a hash index off the front: hash and word.
///
/// # Errors
/// `TooShort`.
pub fn take_hash_entry(bytes: &mut &[u8]) -> Result<(u64, u64), Flaw> {
    Ok((number(bytes)?, number(bytes)?))
}

/// Cuts an entry of an ordered index off the front: key and word.
///
/// # Errors
/// `TooShort`.
pub fn take_key_entry<'a>(bytes: &mut &'a [u8]) -> Result<(&'a [u8], u64), Flaw> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or(Flaw::TooShort)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Flaw::TooShort)?;
    *bytes = rest;
    let word = number(bytes)?;
    let (key, rest) = bytes.split_at_checked(length).ok_or(Flaw::TooShort)?;
    *bytes = rest;
    Ok((key, word))
}

/// How far a log was when the image of an open store was begun: every entry before was in the index, if it counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// Number of the chunk.
    pub number: u32,
    /// Bytes that were written.
    pub tail: u32,
    /// Entries in them.
    pub entries: u32,
    /// The salt of the chunk's incarnation.
    pub salt: u64,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawLogTail {
    pub(crate) number: U32,
    pub(crate) tail: U32,
    pub(crate) entries: U32,
    pub(crate) reserved: [u8; 4],
    pub(crate) salt: U64,
}

/// Size of a log's tail in an image, in bytes.
pub const LOG_TAIL_SIZE: usize = size_of::<RawLogTail>();

impl LogTail {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LOG_TAIL_SIZE] {
        let raw = RawLogTail {
            number: self.number.into(),
            tail: self.tail.into(),
            entries: self.entries.into(),
            reserved: [0; 4],
            salt: self.salt.into(),
        };
        let mut bytes = [0; LOG_TAIL_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// `TooShort`.
    pub fn decode(bytes: &[u8]) -> Result<LogTail, Flaw> {
        let (raw, _) = RawLogTail::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        Ok(LogTail {
            number: raw.number.get(),
            tail: raw.tail.get(),
            entries: raw.entries.get(),
            salt: raw.salt.get(),
        })
    }
}

/// What DRAM knew of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkState {
    /// Its number.
    pub number: u32,
    /// Logs: bytes that are written.
    pub tail: u32,
    /// Logs: entries.
    pub entries: u32,
    /// Logs: entries that count. Blocks: blocks in use, whose bits follow.
    pub live: u32,
}

impl ChunkState {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CHUNK_STATE_SIZE] {
        let raw = RawChunkState {
            number: self.number.into(),
            tail: self.tail.into(),
            entries: self.entries.into(),
            live: self.live.into(),
        };
        let mut bytes = [0; CHUNK_STATE_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// `TooShort`.
    pub fn decode(bytes: &[u8]) -> Result<ChunkState, Flaw> {
        let (raw, _) = RawChunkState::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        Ok(ChunkState {
            number: raw.number.get(),
            tail: raw.tail.get(),
            entries: raw.entries.get(),
            live: raw.live.get(),
        })
    }
}
