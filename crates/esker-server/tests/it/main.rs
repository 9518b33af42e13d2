//! The server over real sockets on the loopback network.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "a test may panic")]

mod commands;
mod differential;
mod harness;
mod limits;
mod pipelining;
mod shutdown;
