//! Header of a segment: one copy in its first block, one in its last.
//!
//! Written when the segment is taken into use, together with its first batch; it gives the segment
//! a new epoch and a new salt, so that nothing that stood there before validates any more.

use crate::{Flaw, bounded};
use esker_base::checksum::crc32c;
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, StoreId, Version};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a segment header in bytes.
pub const SEGMENT_HEADER_SIZE: usize = 128;
const MAGIC: [u8; 4] = *b"ESKS";

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 4],
    pub(crate) checksum: U32,
    pub(crate) store_id: [u8; 16],
    pub(crate) segment_id: U32,
    pub(crate) stream: U32,
    pub(crate) epoch: U64,
    pub(crate) salt: U64,
    pub(crate) first_sequence: U64,
    pub(crate) clear_version: U64,
    pub(crate) next_version: U64,
    pub(crate) session_epoch: U64,
    pub(crate) reserved: [u8; 48],
}

const _: () = assert!(size_of::<Raw>() == SEGMENT_HEADER_SIZE);

/// What a segment is written for. Each stream is a log of its own, with its own sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stream {
    /// What clients write; sequence numbers are versions.
    #[default]
    Fresh = 0,
    /// Records that the cleaner moved once.
    Warm = 1,
    /// Records that the cleaner moved more than once.
    Cold = 2,
    /// A checkpoint of the index.
    Checkpoint = 3,
}

impl Stream {
    fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Stream::Fresh),
            1 => Some(Stream::Warm),
            2 => Some(Stream::Cold),
            3 => Some(Stream::Checkpoint),
            _ => None,
        }
    }
}

/// Header of a segment in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Which segment this is; a header elsewhere is a misdirected write.
    pub segment_id: SegmentId,
    /// What is written here.
    pub stream: Stream,
    /// Incarnation: higher than that of every segment taken before.
    pub epoch: SegmentEpoch,
    /// Salt of the checksums of this incarnation.
    pub salt: u64,
    /// Sequence number of the first record that goes here.
    pub first_sequence: Sequence,
    /// Versions below may have been given to records when the segment was taken into use; none is
    /// given twice.
    pub next_version: Version,
    /// Epoch that was next when the store was opened: tells the sessions of a store apart.
    pub session_epoch: SegmentEpoch,
    /// Records of the store with lower versions were cleared.
    pub clear_version: Version,
}

impl SegmentHeader {
    /// Whether a header begins here, of whatever store, whole or not.
    #[must_use]
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The bytes on media.
    #[must_use]
    pub fn encode(&self, store_id: StoreId) -> [u8; SEGMENT_HEADER_SIZE] {
        let mut raw = Raw {
            magic: MAGIC,
            checksum: 0.into(),
            store_id: store_id.0,
            segment_id: self.segment_id.0.into(),
            stream: (self.stream as u32).into(),
            epoch: self.epoch.0.into(),
            salt: self.salt.into(),
            first_sequence: self.first_sequence.0.into(),
            next_version: self.next_version.0.into(),
            session_epoch: self.session_epoch.0.into(),
            clear_version: self.clear_version.0.into(),
            reserved: [0; 48],
        };
        raw.checksum = crc32c(raw.as_bytes()).into();
        let mut bytes = [0; SEGMENT_HEADER_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Whether this was a header of store `store_id`, which damage has changed: neither a store before nor what a client writes has that
    /// number where it stands in headers.
    #[must_use]
    pub fn is_damaged(bytes: &[u8], store_id: StoreId, segment_id: SegmentId) -> bool {
        let is_ours = Raw::read_from_prefix(bytes).is_ok_and(|(raw, _)| raw.store_id == store_id.0);
        is_ours && SegmentHeader::decode(bytes, store_id, segment_id).is_err()
    }

    /// Reads and checks the header of segment `segment_id` of store `store_id`.
    ///
    /// # Errors
    /// The first [`Flaw`] found. `Foreign` is the usual state of media that served another store.
    pub fn decode(bytes: &[u8], store_id: StoreId, segment_id: SegmentId) -> Result<Self, Flaw> {
        let (mut raw, _) = Raw::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        let checksum = raw.checksum.get();
        raw.checksum = 0.into();
        if crc32c(raw.as_bytes()) != checksum {
            return Err(Flaw::Checksum);
        }
        if raw.store_id != store_id.0 || raw.segment_id.get() != segment_id.0 {
            return Err(Flaw::Foreign);
        }
        let stream = Stream::from_number(raw.stream.get()).ok_or(Flaw::Field("stream"))?;
        Ok(SegmentHeader {
            segment_id,
            stream,
            epoch: SegmentEpoch(bounded("epoch", raw.epoch.get())?),
            salt: raw.salt.get(),
            first_sequence: Sequence(bounded("first_sequence", raw.first_sequence.get())?),
            next_version: Version(bounded("next_version", raw.next_version.get())?),
            session_epoch: SegmentEpoch(bounded("session_epoch", raw.session_epoch.get())?),
            clear_version: Version(bounded("clear_version", raw.clear_version.get())?),
        })
    }
}
