//! The client against real servers on the loopback network, and against false ones.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod backups;
mod calls;
mod cluster;
mod fates;
mod harness;
mod impostors;
mod shared_impostors;
mod shared_memory;
mod tls;
