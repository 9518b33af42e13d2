//! DRAM indexes of Esker: pure data structures, no I/O.
//!
//! An index maps the hash of a key to candidates; the full key in the record decides. [`Directory`]
//! is the index of `depot`: hopscotch tables that grow one by one (uDepot §4.2, §4.3).
//!
//! [`FlexTree`] is the address space of `flex` (FlexSpace §3): a B+-tree of extents with shifts.
//!
//! Unsafe code stands in three leaves: `reclaim` (memory that lookups may still read), `pages` (memory
//! in huge pages) and `prefetch`.

pub mod directory;
mod entry;
pub mod flex_tree;
pub mod link;
mod locks;
mod overflow;
mod pages;
mod pool;
mod prefetch;
mod reclaim;
mod table;

pub use directory::Directory;
pub use entry::Candidates;
pub use flex_tree::FlexTree;
pub use link::{Link, SizeHint};
