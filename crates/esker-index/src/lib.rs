//! DRAM indexes of Esker: pure data structures, no I/O.
//!
//! An index maps the hash of a key to candidates; the full key in the record decides. [`Directory`]
//! is the index of `depot`: hopscotch tables that grow one by one (uDepot §4.2, §4.3).
//!
//! [`Cceh`] is the hash index of `flat` (FlatStore §4.1).
//!
//! [`Masstree`] is the ordered one (FlatStore §4.2).
//!
//! [`FlexTree`] is the address space of `flex` (FlexSpace §3): a B+-tree of extents with shifts.
//!
//! Unsafe code stands in six leaves: `reclaim` (memory that lookups may still read), `pages` (memory
//! in huge pages), `cceh::arena` and `masstree::memory` (segments and nodes in such memory), `line`
//! (eight slots compared at once), `prefetch`.

pub mod cceh;
mod counter;
pub mod directory;
mod entry;
pub mod flex_tree;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(clippy::indexing_slicing, clippy::expect_used, reason = "fuzz targets fail by panicking")]
pub mod fuzzing;
mod line;
pub mod link;
mod locks;
pub mod masstree;
mod overflow;
mod pages;
mod pool;
pub mod prefetch;
mod reclaim;
mod table;
pub mod word;

pub use cceh::Cceh;
pub use directory::Directory;
pub use entry::Candidates;
pub use flex_tree::FlexTree;
pub use link::{Link, SizeHint};
pub use masstree::{Masstree, Near};
pub use word::Word;

/// Runs a story under `runs` random interleavings of two kinds, or `ESKER_INTERLEAVINGS` times as many.
#[cfg(all(test, feature = "shuttle"))]
fn explore(story: fn(), runs: usize) {
    let times = std::env::var("ESKER_INTERLEAVINGS").ok().and_then(|times| times.parse().ok());
    let runs = runs * times.unwrap_or(1_usize);
    shuttle::check_random(story, runs);
    shuttle::check_pct(story, runs, 3);
}
