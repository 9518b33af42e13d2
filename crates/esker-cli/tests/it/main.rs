//! The program as people run it.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod bench;
mod keys;
mod kill;
mod memcached;
mod memory;
mod outputs;
mod program;
mod remote;
mod serving;
mod transfer;
