//! The program as people run it.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]
#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "a test may panic")]

mod keys;
mod kill;
mod memory;
mod program;
mod serving;
mod transfer;
