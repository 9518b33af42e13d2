//! Words that every Esker crate shares: errors, ids and units, checksums, key hashing, clocks,
//! randomness, sites, striped values and the sync shim. No I/O, no unsafe.
//!
//! Everything outside the process that can differ between two runs comes in through a seam of
//! this crate: time through [`clock::Clock`], randomness through [`rng::Rng`].

pub mod checksum;
pub mod clock;
pub mod error;
pub mod hash;
pub mod ids;
pub mod rng;
pub mod site;
pub mod striped;
pub mod sync;
pub mod units;

pub use error::{Error, ErrorKind, Result};
pub use site::{Site, SiteKind};
