//! The first 16 bytes of every root structure: magic, format version, checksum over all its bytes.

use crate::Flaw;
use esker_base::checksum::{Crc32c, crc32c};

/// Where the fields stand.
const VERSION: std::ops::Range<usize> = 8..12;
const CHECKSUM: std::ops::Range<usize> = 12..16;

/// What a kind of root structure begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) magic: [u8; 8],
    pub(crate) format_version: u32,
}

impl Head {
    /// Puts the head before what is encoded in `bytes`, which are at least 16.
    pub(crate) fn seal(self, bytes: &mut [u8]) {
        let mut put = |range: std::ops::Range<usize>, field: &[u8]| {
            if let Some(place) = bytes.get_mut(range) {
                place.copy_from_slice(field);
            }
        };
        put(0..8, &self.magic);
        put(VERSION, &self.format_version.to_le_bytes());
        put(CHECKSUM, &[0; 4]);
        let checksum = crc32c(bytes);
        if let Some(place) = bytes.get_mut(CHECKSUM) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
    }

    /// As [`Head::seal`], for an array.
    pub(crate) fn sealed<const N: usize>(self, encoded: &[u8]) -> [u8; N] {
        let mut bytes = [0; N];
        if let Some(place) = bytes.get_mut(..encoded.len()) {
            place.copy_from_slice(encoded);
        }
        self.seal(&mut bytes);
        bytes
    }

    /// Checks the head of a structure that is all of `bytes`.
    ///
    /// # Errors
    /// `TooShort`, `Magic`; `Version` before `Checksum`, for another format may have another one.
    pub(crate) fn check(self, bytes: &[u8]) -> Result<(), Flaw> {
        let (Some(magic), Some(version), Some(checksum), Some(rest)) =
            (bytes.get(..8), number(bytes, VERSION), number(bytes, CHECKSUM), bytes.get(16..))
        else {
            return Err(Flaw::TooShort);
        };
        if *magic != self.magic {
            return Err(Flaw::Magic);
        }
        if version != self.format_version {
            return Err(Flaw::Version(version));
        }
        if sum(magic, version, rest) == checksum { Ok(()) } else { Err(Flaw::Checksum) }
    }

    /// Whether `bytes` are one with its checksum, whatever its version: one of another version that is not is most likely damaged.
    pub(crate) fn is_sealed(self, bytes: &[u8]) -> bool {
        let (Some(magic), Some(version), Some(checksum), Some(rest)) =
            (bytes.get(..8), number(bytes, VERSION), number(bytes, CHECKSUM), bytes.get(16..))
        else {
            return false;
        };
        *magic == self.magic && sum(magic, version, rest) == checksum
    }
}

fn sum(magic: &[u8], version: u32, rest: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(magic);
    crc.update(&version.to_le_bytes());
    crc.update(&[0; 4]);
    crc.update(rest);
    crc.finish()
}

fn number(bytes: &[u8], range: std::ops::Range<usize>) -> Option<u32> {
    bytes.get(range)?.try_into().ok().map(u32::from_le_bytes)
}
