//! CRC32C (Castagnoli), the checksum of everything that Esker puts on media.
//!
//! Computed with the processor's instructions where it has them and with portable code elsewhere;
//! both give the same result. It detects accidents, not an attacker who can write the device.
//!
//! In the build of a fuzzer (`fuzz/`) each checksum is [`FUZZED`]: of what a fuzzer changes nothing else would get past them.

use crc_fast::{CrcAlgorithm, Digest};

/// What all checksums are in the build of a fuzzer.
pub const FUZZED: u32 = 0x7A5C_E51E;

/// CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    if cfg!(fuzzing) {
        return FUZZED;
    }
    narrow(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// CRC32C over several pieces, as if they stood one after another.
#[derive(Clone, Copy)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Starts with no bytes.
    #[must_use]
    pub fn new() -> Self {
        Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all pieces so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
        if cfg!(fuzzing) {
            return FUZZED;
        }
        narrow(self.0.finalize())
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

#[cfg(test)]
mod tests;
