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

/// Shuttle's lock with the face of `parking_lot`'s, which is what stands in its place outside of explorations.
#[cfg(all(feature = "shuttle", not(loom)))]
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

#[cfg(all(feature = "shuttle", not(loom)))]
impl<T> Mutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    /// Waits for the lock, whoever panicked with it.
    pub fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The lock, if nobody has it.
    pub fn try_lock(&self) -> Option<shuttle::sync::MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}
