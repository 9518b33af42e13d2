//! The program as people run it.

mod keys;
mod program;
mod serving;
mod transfer;
