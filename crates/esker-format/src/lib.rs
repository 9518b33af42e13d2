//! Every byte that Esker puts on media, and those of its own protocol: structures, codecs and format
//! versions. Pure functions, no I/O, no unsafe.
//!
//! Nobody else may lay out bytes for media or for the native protocol. All numbers are little-endian. Everything that is read
//! is checked before it is used: a decoder never panics, never allocates from a length it has not
//! checked, and says what it expected and what it found. `docs/format/` is the normative text; a
//! test compares its tables with the structures here.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod backup;
pub mod depot;
pub mod flat;
pub mod flex;
pub mod flex_db;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "fuzz targets fail by panicking"
)]
pub mod fuzzing;
mod head;
pub mod native;
pub mod stripe;

/// Versions, sequence numbers, epochs and generations are lower: whoever reads one can count on from there, and has two bits to spare.
pub const NUMBER_END: u64 = 1 << 62;

/// A version, sequence number, epoch or generation that was read.
fn bounded(name: &'static str, number: u64) -> Result<u64, Flaw> {
    if number < NUMBER_END { Ok(number) } else { Err(Flaw::Field(name)) }
}

/// Why bytes are not what they should be. The reader adds device and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Fewer bytes than the structure needs.
    TooShort,
    /// The structure does not start with its magic.
    Magic,
    /// The checksum does not match the bytes.
    Checksum,
    /// A valid structure of another store, segment, epoch or place.
    Foreign,
    /// A field has a value that no writer produces.
    Field(&'static str),
    /// A newer format, with its number.
    Version(u32),
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Flaw::TooShort => f.write_str("fewer bytes than the structure needs"),
            Flaw::Magic => f.write_str("magic does not match"),
            Flaw::Checksum => f.write_str("checksum does not match"),
            Flaw::Foreign => f.write_str("belongs to another store, segment or time"),
            Flaw::Field(name) => write!(f, "field {name} is out of range"),
            Flaw::Version(version) => write!(f, "format version {version} is not known"),
        }
    }
}

impl std::error::Error for Flaw {}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]
mod tests;
