//! The sync shim: atomics, locks and threads from std, or from loom or shuttle in a test build.
//!
//! Lock-free code takes its atomics from here, so that the same source runs under an exhaustive
//! (`--cfg loom`) or a random (feature `shuttle`) scheduler.

#[cfg(loom)]
pub use loom::{hint, sync::Arc, sync::atomic, thread};
#[cfg(all(feature = "shuttle", not(loom)))]
pub use shuttle::{hint, sync::Arc, sync::atomic, thread};
#[cfg(not(any(loom, feature = "shuttle")))]
pub use std::{hint, sync::Arc, sync::atomic, thread};
