//! Batches: the entries that became durable together.
//!
//! A batch is whole cache lines, so that none is flushed twice (FlatStore §3.2, padding), and validates
//! itself: its checksum covers all its bytes, and counts only in its chunk's incarnation and at its offset.
//! So no tail pointer is flushed. The entries of a batch have consecutive versions from the base on,
//! unless they carry one of their own.

use super::{LINE, mix};
use crate::{Flaw, bounded};
use esker_base::checksum::{Stretches, crc32c};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a batch header in bytes: that of a pointer entry.
pub const BATCH_HEADER_SIZE: usize = 16;
/// Bits of `shape` that say how many bytes of entries there are.
const LENGTH_BITS: u32 = 31;
const SEAL: u32 = 1 << LENGTH_BITS;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawBatch {
    pub(crate) checksum: U32,
    pub(crate) shape: U32,
    pub(crate) base_version: U64,
}

const _: () = assert!(size_of::<RawBatch>() == BATCH_HEADER_SIZE);

/// What a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// Entries.
    Entries,
    /// Nothing follows in this chunk.
    Seal,
}

/// What stands before the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// What for.
    pub kind: BatchKind,
    /// Bytes of entries.
    pub payload_bytes: usize,
    /// Version of the first entry that carries none of its own.
    pub base_version: u64,
}

/// Whole lines that a batch with so many bytes of entries takes, in bytes.
#[must_use]
pub const fn batch_size(payload_bytes: usize) -> usize {
    (BATCH_HEADER_SIZE + payload_bytes).next_multiple_of(LINE)
}

fn place(salt: u64, offset: u64) -> u32 {
    u32::try_from(mix(salt, offset) >> 32).unwrap_or(0)
}

/// Writes the header into the first bytes of `batch`, which is whole lines, has its entries in place and zeros
/// behind them, and seals it for its place: an offset in the store, in a chunk with this salt.
pub fn seal_batch(batch: &mut [u8], header: &BatchHeader, salt: u64, offset: u64) {
    let length = u32::try_from(header.payload_bytes).unwrap_or(0);
    let kind = if header.kind == BatchKind::Seal { SEAL } else { 0 };
    let mut raw = RawBatch {
        checksum: place(salt, offset).into(),
        shape: (length | kind).into(),
        base_version: header.base_version.into(),
    };
    let Some(head) = batch.get_mut(..BATCH_HEADER_SIZE) else { return };
    head.copy_from_slice(raw.as_bytes());
    raw.checksum = crc32c(batch).into();
    if let Some(head) = batch.get_mut(..BATCH_HEADER_SIZE) {
        head.copy_from_slice(raw.as_bytes());
    }
}

/// Bytes at the end of a header that are its base version.
pub const BASE_VERSION_SIZE: usize = size_of::<u64>();

impl BatchHeader {
    /// The base version that the end of a header says.
    #[inline]
    #[must_use]
    pub const fn base_version(end: [u8; BASE_VERSION_SIZE]) -> u64 {
        u64::from_le_bytes(end)
    }

    /// Reads a header without its checksum.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn peek(bytes: &[u8]) -> Result<Self, Flaw> {
        let (raw, _) = RawBatch::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let shape = raw.shape.get();
        let kind = if shape & SEAL == 0 { BatchKind::Entries } else { BatchKind::Seal };
        let payload_bytes = usize::try_from(shape & !SEAL).map_err(|_| Flaw::Field("shape"))?;
        if (payload_bytes == 0) != (kind == BatchKind::Seal) {
            return Err(Flaw::Field("shape"));
        }
        let base_version = bounded("base_version", raw.base_version.get())?;
        Ok(BatchHeader { kind, payload_bytes, base_version })
    }

    /// Checks the batch at the start of `bytes`, which stands at `offset`, and gives its header and
    /// entries. `sound` as for chunks.
    ///
    /// # Errors
    /// The first [`Flaw`] found; `TooShort` if the batch is longer than `bytes`.
    pub fn decode(
        bytes: &mut [u8],
        salt: u64,
        offset: u64,
        sound: impl Fn() -> bool,
    ) -> Result<(Self, &[u8]), Flaw> {
        let header = BatchHeader::peek(bytes)?;
        let batch = bytes.get_mut(..batch_size(header.payload_bytes)).ok_or(Flaw::TooShort)?;
        let field = batch.first_chunk_mut::<4>().ok_or(Flaw::TooShort)?;
        let checksum = u32::from_le_bytes(*field);
        *field = place(salt, offset).to_le_bytes();
        let found = crc32c(batch);
        if let Some(field) = batch.first_chunk_mut::<4>() {
            *field = checksum.to_le_bytes();
        }
        if found != checksum && !sound() {
            return Err(Flaw::Checksum);
        }
        let end = BATCH_HEADER_SIZE + header.payload_bytes;
        let payload = batch.get(BATCH_HEADER_SIZE..end).ok_or(Flaw::TooShort)?;
        Ok((header, payload))
    }
    /// As [`BatchHeader::decode`], of the batch that begins with line `line` of bytes whose lines have these checksums: in a time that
    /// does not depend on how long it says that it is.
    ///
    /// # Errors
    /// As for [`BatchHeader::decode`].
    pub fn decode_known<'b>(
        (bytes, line): (&'b [u8], usize),
        lines: &Stretches,
        salt: u64,
        offset: u64,
        sound: impl Fn() -> bool,
    ) -> Result<(Self, &'b [u8]), Flaw> {
        let header = BatchHeader::peek(bytes)?;
        let size = batch_size(header.payload_bytes);
        let batch = bytes.get(..size).ok_or(Flaw::TooShort)?;
        let mut first = *batch.first_chunk::<LINE>().ok_or(Flaw::TooShort)?;
        let field = first.first_chunk_mut::<4>().ok_or(Flaw::TooShort)?;
        let checksum = u32::from_le_bytes(*field);
        *field = place(salt, offset).to_le_bytes();
        let behind = line + 1..line + size / LINE;
        if lines.behind(crc32c(&first), behind) != Some(checksum) && !sound() {
            return Err(Flaw::Checksum);
        }
        let end = BATCH_HEADER_SIZE + header.payload_bytes;
        let payload = batch.get(BATCH_HEADER_SIZE..end).ok_or(Flaw::TooShort)?;
        Ok((header, payload))
    }
}
