//! Fuzz targets: every decoder of bytes on media and of the native protocol. Only in tests and in the build of a fuzzer (`fuzz/`).
//!
//! The first byte of an input chooses a decoder, the others are what it is given. A target panics where a decoder does, and where
//! something that was decoded, encoded and decoded again is something else. Decoders whose bytes have one meaning only have
//! to give back the same bytes.

pub mod backup;
pub mod depot;
pub mod flat;
pub mod flex;
pub mod flex_db;
pub mod native;

use esker_base::ids::StoreId;

/// Of all structures here.
const STORE_ID: StoreId = StoreId([0x5A; 16]);

/// Puts the number of a decoder before its input.
fn choose(decoder: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    [&[decoder], bytes.as_ref()].concat()
}

/// The bytes that stand at `at`.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_testkit::fuzz::{Target, smoke};

    #[test]
    fn targets_take_seeds_what_is_changed_of_them_and_noise() {
        const TARGETS: [Target; 6] = [
            ("backup", backup::run, backup::seeds),
            ("depot", depot::run, depot::seeds),
            ("flat", flat::run, flat::seeds),
            ("flex", flex::run, flex::seeds),
            ("flex_db", flex_db::run, flex_db::seeds),
            ("native", native::run, native::seeds),
        ];
        smoke(&TARGETS, 1, 3000);
        assert!(TARGETS.iter().all(|(_, _, seeds)| seeds().len() > 3), "seeds of each decoder");
    }
}
