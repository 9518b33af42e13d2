//! What stands in a log: batches, one behind the other, and the entries of each (FlatStore §3.2).
//!
//! Recovery, the sample that it takes, the cleaner and `check` read logs in this way. What damage means is for each of them to
//! say.
//!
//! # Concurrency
//! Bytes that were copied out of the log: nobody else sees them.

use super::layout::Place;
use super::{Flat, sites};
use esker_base::checksum::Stretches;
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
    /// Once something was no batch: checksums of all lines from an offset on. Where anything may stand, all of it may claim to be a batch
    /// that takes all of the rest, and each would be gone through.
    lines: Option<(u64, Stretches)>,
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
        Batches { rest: bytes, offset, salt, sealed: false, lines: None }
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
        let header = self.decode_at(0, || sites::BATCH_CHECKSUM.disabled())?;
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

    /// The header of the batch so many bytes further, if it is whole.
    #[inline]
    fn decode_at(&mut self, at: usize, sound: impl Fn() -> bool) -> Result<BatchHeader, Flaw> {
        let (batch, offset) =
            (self.rest.get_mut(at..).unwrap_or_default(), self.offset + at as u64);
        let decoded = match &self.lines {
            None => BatchHeader::decode(batch, self.salt, offset, sound),
            Some((start, lines)) => {
                let line = usize::try_from((offset - start) / LINE as u64).unwrap_or(usize::MAX);
                BatchHeader::decode_known((batch, line), lines, self.salt, offset, sound)
            }
        };
        decoded.map(|(header, _)| header)
    }

    /// Passes over what is no batch, to the next whole one; false if there is none, and then everything stays.
    pub(super) fn skip_damage(&mut self) -> bool {
        if self.lines.is_none() {
            self.lines = Stretches::of(self.rest, LINE).map(|lines| (self.offset, lines));
        }
        // Of any length: what is none seldom has one that fits.
        let mut lines = (LINE..self.rest.len()).step_by(LINE);
        let next = lines.find(|at| self.decode_at(*at, || false).is_ok());
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

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::*;
    use esker_base::checksum::work;
    use esker_format::flat::batch::seal_batch;

    const SALT: u64 = 5;
    const OFFSET: u64 = 1 << 20;

    /// Lines of which each claims to be a batch that takes all of the rest, but for whole ones at some places.
    fn hostile(lines: usize, whole: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut bytes = vec![0; lines * LINE];
        for line in 0..lines {
            let (start, kind) = (line * LINE, BatchKind::Entries);
            let payload_bytes = match whole(line) {
                true => LINE - BATCH_HEADER_SIZE,
                false => (lines - line) * LINE - BATCH_HEADER_SIZE,
            };
            let header = BatchHeader { kind, payload_bytes, base_version: 7 };
            // That of one line, whatever it claims.
            let Some(line) = bytes.get_mut(start..start + LINE) else { break };
            seal_batch(line, &header, SALT, OFFSET + start as u64);
        }
        bytes
    }

    #[test]
    fn whatever_claims_to_be_a_batch_is_gone_through_no_more_than_some_times() {
        const LINES: usize = 1 << 14;
        for step in [LINES - 1, 3, 2] {
            let is_whole = |line: usize| line % step == step - 1;
            let mut bytes = hostile(LINES, is_whole);
            let mut batches = Batches::new(&mut bytes, OFFSET, SALT);
            let (mut found, mut damaged) = (Vec::new(), 0);
            work::take();
            loop {
                match batches.take_next() {
                    Ok(Some(batch)) => {
                        found.push(usize::try_from(batch.offset - OFFSET).unwrap() / LINE);
                    }
                    Ok(None) => break,
                    Err(_) => {
                        damaged += 1;
                        if !batches.skip_damage() {
                            break;
                        }
                    }
                }
            }
            let went = work::take();
            let expected: Vec<usize> = (0..LINES - 1).filter(|line| is_whole(*line)).collect();
            // The last line claims no more than itself.
            let last = found.pop_if(|line| *line == LINES - 1);
            assert!(found == expected && last.is_some(), "each {step} lines");
            assert!(damaged > 0);
            let most = 6 * (LINES * LINE) as u64;
            assert!(went < most, "each {step} lines: {went} bytes for checksums, not {most}");
        }
    }
}
