//! Batches: the records that became durable together.
//!
//! A batch validates itself, so that recovery finds the end of the log without a tail pointer
//! (FlatStore §3.2 persists one with every batch). It is a whole number of blocks; its checksum
//! covers all of them, padding included.
//!
//! The other kinds carry no records: a **barrier** starts a session (the first write after an open,
//! or the last before a close): the batches after it carry its session number, so that a batch of an
//! earlier session that happens to lie at the right place cannot follow it; a **summary** lists the
//! segment's records and ends it; a **trailer** stands at a fixed place and says where the summary is.

use super::Place;
use crate::{Flaw, bounded};
use esker_base::ids::Sequence;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a batch header in bytes.
pub const BATCH_HEADER_SIZE: usize = 48;
const MAGIC: [u8; 4] = *b"ESKB";

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 4],
    pub(crate) checksum: U32,
    pub(crate) total_bytes: U32,
    pub(crate) payload_bytes: U32,
    pub(crate) record_count: U32,
    pub(crate) kind: U32,
    pub(crate) first_sequence: U64,
    pub(crate) durable_sequence: U64,
    pub(crate) session: U64,
}

const _: () = assert!(size_of::<Raw>() == BATCH_HEADER_SIZE);

/// What a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BatchKind {
    /// Records.
    Records = 1,
    /// Start of a session: the batches after it carry the same session number.
    Barrier = 2,
    /// List of the segment's records: the segment is complete.
    Summary = 3,
    /// Where the summary of the segment stands.
    Trailer = 4,
    /// Parts of the index.
    Checkpoint = 5,
    /// Where the extents of large values are.
    CheckpointExtents = 7,
    /// The last batch of a checkpoint. (6 was one that covered nothing once something was written after it.)
    CheckpointEnd = 9,
}

/// What stands before the records of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// What the batch is for.
    pub kind: BatchKind,
    /// Size of the batch in bytes, a multiple of the block size.
    pub total_bytes: u32,
    /// Bytes of records.
    pub payload_bytes: u32,
    /// Number of records.
    pub record_count: u32,
    /// Sequence number of the first record; the others follow it without a gap.
    pub first_sequence: Sequence,
    /// All records of the stream with lower numbers were durable when this batch was written: the committed
    /// point that separates a torn tail from corruption.
    pub durable_sequence: Sequence,
    /// Drawn at random by the barrier before, or the salt of the segment if there is none.
    pub session: u64,
}

/// A batch that passed its checks.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The header.
    pub header: BatchHeader,
    /// The records.
    pub payload: &'a [u8],
}

/// Writes the header into the first bytes of `batch`, whose records are in place and whose padding
/// is zero, and seals the whole. `header.total_bytes` must be the length of `batch`.
pub fn encode_batch(batch: &mut [u8], header: &BatchHeader, place: Place) {
    let mut raw = Raw {
        magic: MAGIC,
        checksum: 0.into(),
        total_bytes: header.total_bytes.into(),
        payload_bytes: header.payload_bytes.into(),
        record_count: header.record_count.into(),
        kind: (header.kind as u32).into(),
        first_sequence: header.first_sequence.0.into(),
        durable_sequence: header.durable_sequence.0.into(),
        session: header.session.into(),
    };
    let Some((head, body)) = batch.split_at_mut_checked(BATCH_HEADER_SIZE) else { return };
    let mut crc = place.checksum();
    crc.update(raw.as_bytes());
    crc.update(body);
    raw.checksum = crc.finish().into();
    head.copy_from_slice(raw.as_bytes());
}

impl BatchHeader {
    /// Reads the header of a batch without its checksum: only good for learning how many bytes to
    /// read.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn peek(bytes: &[u8], block_size_bytes: u32) -> Result<Self, Flaw> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        raw.header(block_size_bytes)
    }

    /// The header of a batch that stands at `place` and has its checksum, if one does; `first` is its first block, and `behind` tells the
    /// checksum of something that has this one and of so many blocks of the batch behind it.
    #[must_use]
    pub fn find(
        first: &[u8],
        place: Place,
        behind: impl FnOnce(u32, usize) -> Option<u32>,
    ) -> Option<Self> {
        let block = u32::try_from(first.len()).ok()?;
        let (mut raw, rest) = Raw::read_from_prefix(first).ok()?;
        let header = raw.header(block).ok()?;
        let checksum = raw.checksum.get();
        raw.checksum = 0.into();
        let mut crc = place.checksum();
        crc.update(raw.as_bytes());
        crc.update(rest);
        let blocks = usize::try_from(header.total_bytes / block).ok()?;
        (behind(crc.finish(), blocks.checked_sub(1)?)? == checksum).then_some(header)
    }

    /// Whether these bytes, which are no valid batch, may be a damaged barrier that began this session: all
    /// that its fields say fits but for one of them at most.
    #[must_use]
    pub fn was_barrier(bytes: &[u8], block_size_bytes: u32, session: u64) -> bool {
        Raw::read_from_prefix(bytes).is_ok_and(|(raw, _)| {
            let wrong = [
                raw.magic != MAGIC,
                raw.kind.get() != BatchKind::Barrier as u32,
                raw.total_bytes.get() != block_size_bytes,
                raw.payload_bytes.get() != 0,
                raw.record_count.get() != 0,
                raw.session.get() != session,
            ];
            wrong.into_iter().filter(|wrong| *wrong).count() <= 1
        })
    }
}

impl Raw {
    fn header(&self, block_size_bytes: u32) -> Result<BatchHeader, Flaw> {
        if self.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        let kind = match self.kind.get() {
            1 => BatchKind::Records,
            2 => BatchKind::Barrier,
            3 => BatchKind::Summary,
            4 => BatchKind::Trailer,
            5 => BatchKind::Checkpoint,
            7 => BatchKind::CheckpointExtents,
            9 => BatchKind::CheckpointEnd,
            _ => return Err(Flaw::Field("kind")),
        };
        let header = BatchHeader {
            kind,
            total_bytes: self.total_bytes.get(),
            payload_bytes: self.payload_bytes.get(),
            record_count: self.record_count.get(),
            first_sequence: Sequence(bounded("first_sequence", self.first_sequence.get())?),
            durable_sequence: Sequence(bounded("durable_sequence", self.durable_sequence.get())?),
            session: self.session.get(),
        };
        let used = u64::from(header.payload_bytes) + BATCH_HEADER_SIZE as u64;
        if header.total_bytes == 0 || !header.total_bytes.is_multiple_of(block_size_bytes) {
            return Err(Flaw::Field("total_bytes"));
        }
        if used > u64::from(header.total_bytes) {
            return Err(Flaw::Field("payload_bytes"));
        }
        if (kind == BatchKind::Records) != (header.record_count > 0) {
            return Err(Flaw::Field("record_count"));
        }
        Ok(header)
    }
}

impl<'a> Batch<'a> {
    /// Reads and checks the batch at the start of `bytes`, which stands at `place`.
    /// `check_checksum` is false only in the mutant that lacks the check.
    ///
    /// # Errors
    /// The first [`Flaw`] found; `TooShort` if the batch is longer than `bytes`.
    pub fn decode(
        bytes: &'a [u8],
        block_size_bytes: u32,
        place: Place,
        check_checksum: bool,
    ) -> Result<Self, Flaw> {
        let (mut raw, _) = Raw::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let header = raw.header(block_size_bytes)?;
        let total = usize::try_from(header.total_bytes).map_err(|_| Flaw::Field("total_bytes"))?;
        let body = bytes.get(BATCH_HEADER_SIZE..total).ok_or(Flaw::TooShort)?;
        let checksum = raw.checksum.get();
        raw.checksum = 0.into();
        let mut crc = place.checksum();
        crc.update(raw.as_bytes());
        crc.update(body);
        if check_checksum && crc.finish() != checksum {
            return Err(Flaw::Checksum);
        }
        let used = usize::try_from(header.payload_bytes).map_err(|_| Flaw::TooShort)?;
        let payload = body.get(..used).ok_or(Flaw::Field("payload_bytes"))?;
        Ok(Batch { header, payload })
    }
}
