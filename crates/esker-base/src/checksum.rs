//! CRC32C (Castagnoli), the checksum of everything that Esker puts on media.
//!
//! Computed with the processor's instructions where it has them and with portable code elsewhere;
//! both give the same result. It detects accidents, not an attacker who can write the device.
//!
//! In the build of a fuzzer (`fuzz/`) each checksum is [`FUZZED`]: of what a fuzzer changes nothing else would get past them.

use crc_fast::{CrcAlgorithm, Digest};
use std::ops::Range;

/// What all checksums are in the build of a fuzzer.
pub const FUZZED: u32 = 0x7A5C_E51E;

/// CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    if cfg!(fuzzing) {
        return FUZZED;
    }
    #[cfg(feature = "mutants")]
    work::note(bytes);
    #[cfg(feature = "mutants")]
    if let Some(counted) = loose::counted() {
        let counted = bytes.get(..counted.min(bytes.len())).unwrap_or_default();
        return loose::marked(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, counted));
    }
    narrow(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// CRC32C over several pieces, as if they stood one after another.
#[derive(Clone, Copy)]
pub struct Crc32c {
    digest: Digest,
    /// Bytes that are still to count, if not all do.
    #[cfg(feature = "mutants")]
    left: Option<usize>,
}

impl Crc32c {
    /// Starts with no bytes.
    #[must_use]
    pub fn new() -> Self {
        Crc32c {
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
            #[cfg(feature = "mutants")]
            left: loose::counted(),
        }
    }

    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        #[cfg(feature = "mutants")]
        let bytes = match &mut self.left {
            None => bytes,
            Some(left) => {
                let counted = bytes.get(..bytes.len().min(*left)).unwrap_or_default();
                *left -= counted.len();
                counted
            }
        };
        #[cfg(feature = "mutants")]
        work::note(bytes);
        self.digest.update(bytes);
    }

    /// The checksum of all pieces so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
        if cfg!(fuzzing) {
            return FUZZED;
        }
        let crc = self.digest.finalize();
        #[cfg(feature = "mutants")]
        if self.left.is_some() {
            return loose::marked(crc);
        }
        narrow(crc)
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Crc32c::new()
    }
}

/// Checksums of bytes of which any stretch of whole steps may be asked for, in a time that does not depend on its length: for who looks
/// for something with a checksum where anything may stand, and may claim all that follows.
#[derive(Clone)]
pub struct Stretches {
    step: usize,
    /// Of all steps.
    all: Digest,
    /// Of the first 0, 1, 2... steps.
    sums: Vec<u32>,
}

impl Stretches {
    /// Of no bytes; `None` if not all bytes count for a checksum.
    #[must_use]
    pub fn new(step: usize) -> Option<Stretches> {
        #[cfg(feature = "mutants")]
        if loose::counted().is_some() {
            return None;
        }
        let all = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let sums = vec![narrow(all.finalize())];
        (!cfg!(fuzzing)).then_some(Stretches { step: step.max(1), all, sums })
    }

    /// Of these bytes, which are gone through once, as far as they are whole steps; `None` as above.
    #[must_use]
    pub fn of(bytes: &[u8], step: usize) -> Option<Stretches> {
        let mut stretches = Stretches::new(step)?;
        stretches.push(bytes);
        Some(stretches)
    }

    /// Adds the steps behind; what is left over of these bytes does not count.
    pub fn push(&mut self, bytes: &[u8]) {
        #[cfg(feature = "mutants")]
        work::note(bytes);
        for bytes in bytes.chunks_exact(self.step) {
            self.all.update(bytes);
            self.sums.push(narrow(self.all.finalize()));
        }
    }

    /// The checksum of something that has the checksum `head`, and of these steps behind it; `None` if there are not so many.
    #[must_use]
    pub fn behind(&self, head: u32, steps: Range<usize>) -> Option<u32> {
        let (before, all) = (self.sums.get(steps.start)?, self.sums.get(steps.end)?);
        let length = steps.end.checked_sub(steps.start)?.checked_mul(self.step)? as u64;
        let after = |first: u32, second: u32| {
            let (first, second) = (u64::from(first), u64::from(second));
            crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, first, second, length)
        };
        // What stands before them is taken out of the checksum of all, and the head put in its place.
        Some(narrow(after(head, narrow(after(*before, *all)))))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a 32-bit CRC in a 64-bit word")]
fn narrow(crc: u64) -> u32 {
    crc as u32
}

/// The switch of a build with the feature `mutants`: content may be changed behind its checksum, so that a fuzzer of
/// whole images comes past it. What else guards content stays: identities, places and generations.
#[cfg(feature = "mutants")]
pub mod loose {
    use std::cell::Cell;

    /// What a checksum of nothing is, so that zeros have no valid one.
    const MARK: u32 = 0x5EED_C0DE;

    thread_local! {
        static COUNTED: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// From now on checksums that this thread begins are those of the first so many bytes alone; `None`: of all, as ever.
    pub fn set(counted: Option<usize>) {
        COUNTED.set(counted);
    }

    pub(super) fn counted() -> Option<usize> {
        COUNTED.get()
    }

    pub(super) fn marked(crc: u64) -> u32 {
        super::narrow(crc) ^ MARK
    }
}

/// How many bytes a thread went through for checksums, in a build with the feature `mutants`: for tests that bound that.
#[cfg(feature = "mutants")]
pub mod work {
    use std::cell::Cell;

    thread_local! {
        static BYTES: Cell<u64> = const { Cell::new(0) };
    }

    /// Bytes since this thread asked last.
    pub fn take() -> u64 {
        BYTES.take()
    }

    pub(super) fn note(bytes: &[u8]) {
        BYTES.set(BYTES.get().wrapping_add(bytes.len() as u64));
    }
}

#[cfg(test)]
mod tests;
