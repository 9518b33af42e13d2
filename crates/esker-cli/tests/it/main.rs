//! The program as people run it.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "a test may panic")]

mod keys;
mod program;
mod serving;
mod transfer;
