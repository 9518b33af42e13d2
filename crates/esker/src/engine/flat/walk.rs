//! Walking over the bytes of a log, batch by batch, and over a batch, entry by entry: for recovery, cleaner, check and sample.
//!
//! Nothing is believed: a batch counts if its checksum does, an entry if it can be decoded. What an error means is for the caller
//! to say: the end of a log, or damage.

use super::layout::Place;
use super::{Flat, sites};
use esker_format::Flaw;
use esker_format::flat::batch::batch_size;
use esker_format::flat::{BATCH_HEADER_SIZE, BatchHeader, BatchKind, CHUNK_START, Entry, LINE};

/// The batches of a log, as far as its bytes were read.
pub(super) struct Batches<'b> {
    /// From the start of the chunk on.
    bytes: &'b mut [u8],
    /// Where the next batch is in it.
    at: usize,
    /// Offset of the chunk in the store.
    start: u64,
    salt: u64,
}

/// A sound batch.
pub(super) struct Batch<'b> {
    pub(super) header: BatchHeader,
    /// In the store.
    pub(super) offset: u64,
    pub(super) payload: &'b [u8],
}

/// An entry of a batch.
pub(super) struct Met<'b> {
    pub(super) entry: Entry<'b>,
    pub(super) version: u64,
    pub(super) place: Place,
}

/// What comes next in a log.
pub(super) enum Step<'b> {
    Batch(Batch<'b>),
    /// The mark of the log's end.
    Seal,
    /// The end of the bytes.
    End,
}

impl<'b> Batches<'b> {
    /// Of the chunk at `start`, whose bytes these are; from the batch at `at` on.
    pub(super) fn new(bytes: &'b mut [u8], at: usize, start: u64, salt: u64) -> Self {
        Batches { bytes, at, start, salt }
    }

    /// Of a whole log.
    pub(super) fn of_log(bytes: &'b mut [u8], start: u64, salt: u64) -> Self {
        Self::new(bytes, usize::try_from(CHUNK_START).unwrap_or(0), start, salt)
    }

    /// Where the next batch is, or should be, from the start of the chunk.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Where that is in the store.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Goes on by a batch.
    ///
    /// # Errors
    /// What is wrong with it; the next call says so again.
    pub(super) fn next(&mut self) -> Result<Step<'_>, Flaw> {
        let offset = self.offset();
        let bytes = self.bytes.get_mut(self.at..).unwrap_or_default();
        if bytes.len() < LINE {
            return Ok(Step::End);
        }
        let sound = || sites::BATCH_CHECKSUM.disabled();
        let (header, payload) = BatchHeader::decode(bytes, self.salt, offset, sound)?;
        if header.kind == BatchKind::Seal {
            return Ok(Step::Seal);
        }
        self.at += batch_size(header.payload_bytes);
        Ok(Step::Batch(Batch { header, offset, payload }))
    }
}

impl<'b> Batch<'b> {
    /// Its entries in their order; after a flaw there are no more.
    pub(super) fn entries(&self) -> impl Iterator<Item = Result<Met<'b>, Flaw>> + use<'b> {
        let (header, offset, mut rest) = (self.header, self.offset, self.payload);
        let mut ordinal = 0;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let entry = match Entry::decode(rest) {
                Ok(entry) => entry,
                Err(flaw) => {
                    rest = &[];
                    return Some(Err(flaw));
                }
            };
            let within = BATCH_HEADER_SIZE + header.payload_bytes - rest.len();
            let place = Place {
                offset: offset + within as u64,
                kind: Flat::kind_of_action(entry.action),
                key_of_8: entry.key.is_of_8(),
                ordinal: ordinal & 0x3F,
                lines: (within / LINE) as u64 & 0x7F,
            };
            let version = entry.stamp.version(header.base_version, ordinal as u64);
            rest = rest.get(entry.size..).unwrap_or(&[]);
            ordinal += 1;
            Some(Ok(Met { entry, version, place }))
        })
    }
}
