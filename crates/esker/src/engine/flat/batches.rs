//! What stands in a log: batches, one behind the other, and the entries of each (FlatStore §3.2).
//!
//! Recovery, the sample that it takes, the cleaner and `check` read logs in this way. What damage means is for each of them to
//! say.
//!
//! # Concurrency
//! Bytes that were copied out of the log: nobody else sees them.

use super::layout::Place;
use super::{Flat, sites};
use esker_format::Flaw;
use esker_format::flat::batch::batch_size;
use esker_format::flat::{BATCH_HEADER_SIZE, BatchHeader, BatchKind, Entry, LINE};

/// The batches of a log, or of a part of it.
pub(super) struct Batches<'b> {
    rest: &'b mut [u8],
    /// Where `rest` stands in the store.
    offset: u64,
    salt: u64,
    sealed: bool,
}

/// A whole batch.
pub(super) struct FoundBatch<'b> {
    header: BatchHeader,
    /// Where it stands in the store.
    pub(super) offset: u64,
    payload: &'b [u8],
}

/// The entries of a batch.
pub(super) struct Entries<'b> {
    header: BatchHeader,
    offset: u64,
    rest: &'b [u8],
    ordinal: u64,
}

/// An entry of a batch.
pub(super) struct FoundEntry<'b> {
    pub(super) entry: Entry<'b>,
    pub(super) version: u64,
    pub(super) place: Place,
}

impl<'b> Batches<'b> {
    /// Of a chunk with this salt: `bytes` stand at `offset`, where a batch begins.
    pub(super) fn new(bytes: &'b mut [u8], offset: u64, salt: u64) -> Self {
        Batches { rest: bytes, offset, salt, sealed: false }
    }

    /// The next batch; `None` behind the last one.
    ///
    /// # Errors
    /// What is wrong with the next one, which stays where it is.
    #[inline]
    pub(super) fn take_next(&mut self) -> Result<Option<FoundBatch<'b>>, Flaw> {
        if self.sealed || self.rest.is_empty() {
            return Ok(None);
        }
        let sound = || sites::BATCH_CHECKSUM.disabled();
        let (header, _) = BatchHeader::decode(self.rest, self.salt, self.offset, sound)?;
        if header.kind == BatchKind::Seal {
            self.sealed = true;
            return Ok(None);
        }
        let rest = std::mem::take(&mut self.rest);
        let (batch, rest) = rest.split_at_mut(batch_size(header.payload_bytes).min(rest.len()));
        let offset = self.offset;
        self.offset += batch.len() as u64;
        self.rest = rest;
        let payload = BATCH_HEADER_SIZE..BATCH_HEADER_SIZE + header.payload_bytes;
        let payload = batch.get(payload).ok_or(Flaw::TooShort)?;
        Ok(Some(FoundBatch { header, offset, payload }))
    }

    /// Passes over what is no batch, to the next whole one; false if there is none, and then everything stays.
    pub(super) fn skip_damage(&mut self) -> bool {
        let (offset, salt) = (self.offset, self.salt);
        let next = (LINE..self.rest.len()).step_by(LINE).find(|at| {
            let batch = self.rest.get_mut(*at..).unwrap_or_default();
            // Of any length: what is none seldom has one that fits.
            BatchHeader::decode(batch, salt, offset + *at as u64, || false).is_ok()
        });
        if let Some(at) = next {
            let rest = std::mem::take(&mut self.rest);
            self.rest = rest.get_mut(at..).unwrap_or_default();
            self.offset += at as u64;
        }
        next.is_some()
    }

    /// Where the next batch would begin.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the end of the log was met.
    pub(super) fn is_sealed(&self) -> bool {
        self.sealed
    }
}

impl<'b> FoundBatch<'b> {
    /// Bytes of its entries.
    pub(super) fn payload_bytes(&self) -> u64 {
        self.payload.len() as u64
    }

    /// Its entries, in their order, up to the first that is none.
    #[inline]
    pub(super) fn entries(&self) -> Entries<'b> {
        Entries { header: self.header, offset: self.offset, rest: self.payload, ordinal: 0 }
    }
}

impl<'b> Iterator for Entries<'b> {
    type Item = Result<FoundEntry<'b>, Flaw>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let entry = match Entry::decode(self.rest) {
            Ok(entry) => entry,
            Err(flaw) => {
                self.rest = &[];
                return Some(Err(flaw));
            }
        };
        let within = BATCH_HEADER_SIZE + self.header.payload_bytes - self.rest.len();
        let place = Place {
            offset: self.offset + within as u64,
            kind: Flat::kind_of_action(entry.action),
            key_of_8: entry.key.is_of_8(),
            ordinal: usize::try_from(self.ordinal & 0x3F).unwrap_or(0),
            lines: (within / LINE) as u64 & 0x7F,
        };
        let version = entry.stamp.version(self.header.base_version, self.ordinal);
        self.ordinal += 1;
        self.rest = self.rest.get(entry.size..).unwrap_or(&[]);
        Some(Ok(FoundEntry { entry, version, place }))
    }
}
