//! The server over real sockets on the loopback network.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod attackers;
mod chunking;
mod commands;
mod detail;
mod differential;
mod doors;
mod dump;
mod faults;
mod harness;
mod limits;
mod meta;
mod native;
mod pipelining;
mod refusals;
mod shutdown;
mod stats;
mod watch;
