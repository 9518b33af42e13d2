//! CRC32C (Castagnoli), the checksum of everything that Esker puts on media.
//!
//! Computed with the processor's instructions where it has them and with portable code elsewhere;
//! both give the same result. It detects accidents, not an attacker who can write the device.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
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
        self.digest.update(bytes);
    }

    /// The checksum of all pieces so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
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

#[cfg(test)]
mod tests;
