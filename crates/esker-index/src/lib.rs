//! DRAM indexes of Esker: pure data structures, no I/O, no unsafe.
//!
//! An index maps the hash of a key to candidates; the full key in the record decides.

#![forbid(unsafe_code)]

pub mod hopscotch;
pub mod link;

pub use hopscotch::{Candidates, Hopscotch};
pub use link::{Link, SizeHint};
