//! Chunks are looked at when they are taken: what cannot be read there could not be written, either, and a store that fails is
//! read-only (F1). So a chunk with a bad page stays aside, and the store goes on with the others.
//!
//! Where memory goes bad, the kernel gives the page up, and whoever touches it gets a signal: a word of each page tells. It costs a
//! touch for each 4 KiB that will be written, which comes before the writes and not with them.
//!
//! # Invariants
//! - B1: a chunk with [`Use::Bad`] is nobody's until the store is opened again; its header is as it was, so it is free again then,
//!   and looked at when it is taken.
//!
//! # Failure
//! A page that goes bad after its chunk was taken makes a store read-only when it is written to, as any failed write does.

use super::Flat;
use super::chunks::For;
use esker_base::{ErrorKind, Result};

/// Bytes of a page, which is what the kernel gives up.
pub(super) const PAGE_SIZE_BYTES: usize = 4 << 10;

impl Flat {
    /// Takes `count` free chunks in a row whose memory is good; `None` if there are none that `whom` may have.
    pub(super) fn take_free(&self, count: usize, whom: For) -> Result<Option<u32>> {
        // A repair needs no more room than it gives back: it may have what is kept for deletes.
        let whom = if self.is_in_repair() && whom == For::Puts { For::Deletes } else { whom };
        loop {
            let Some(first) = self.chunks.take(count, whom) else { return Ok(None) };
            if let Some(first) = self.keep_good(first, count)? {
                return Ok(Some(first));
            }
        }
    }

    /// Chunks in a row that were taken, if their memory is good; else the good ones of them are free again.
    pub(super) fn keep_good(&self, first: u32, count: usize) -> Result<Option<u32>> {
        let numbers = || (first..).take(count);
        let bad = numbers().map(|number| Ok((number, self.probe(number)?)));
        let bad: Vec<(u32, bool)> = match bad.collect::<Result<_>>() {
            Ok(bad) => bad,
            Err(error) => {
                numbers().for_each(|number| self.chunks.add_free(number));
                return Err(error);
            }
        };
        if bad.iter().all(|(_, bad)| !bad) {
            return Ok(Some(first));
        }
        for (number, bad) in bad {
            match self.chunks.get(number).filter(|_| bad) {
                Some(chunk) => self.chunks.set_bad(chunk),
                None => self.chunks.add_free(number),
            }
        }
        Ok(None)
    }

    /// Whether a chunk has memory that is bad.
    pub(super) fn probe(&self, number: u32) -> Result<bool> {
        let start = self.layout.start_of(number);
        for offset in (start..start + self.layout.chunk_size).step_by(PAGE_SIZE_BYTES) {
            match self.memory.load_u64(offset) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    tracing::error!(chunk = number, %error, "the memory of a free chunk is bad: it stays unused");
                    return Ok(true);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}
