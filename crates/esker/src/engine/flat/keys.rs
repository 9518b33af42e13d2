//! Locks of keys: who changes a key holds its stripe until the index says so (the conflict queue of FlatStore
//! §3.3).
//!
//! # Concurrency
//! Tasks that wait are suspended, threads blocked, in the order of asking. Held over the wait for a batch.
//! Several stripes are locked in ascending order.

use esker_trt::sync::{Turn, TurnGuard};

/// A held stripe.
pub(super) type KeyLock<'a> = TurnGuard<'a>;

/// The stripes, a power of two of them, each in a line of its own.
#[derive(Debug)]
pub(super) struct KeyLocks(Box<[Stripe]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(Turn);

impl KeyLocks {
    pub(super) fn new(stripes: usize) -> Self {
        KeyLocks((0..stripes.max(1).next_power_of_two()).map(|_| Stripe::default()).collect())
    }

    fn stripe_of(&self, hash: u64) -> usize {
        // Not the bits by which the hash index chooses bucket and segment.
        usize::try_from(hash >> 20).unwrap_or(0) & (self.0.len() - 1)
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "their number is a power of two")]
    pub(super) fn lock(&self, hash: u64) -> KeyLock<'_> {
        self.0[self.stripe_of(hash)].0.take()
    }

    /// Locks the stripes of several keys.
    pub(super) fn lock_many(&self, hashes: impl Iterator<Item = u64>) -> Vec<KeyLock<'_>> {
        let mut stripes: Vec<usize> = hashes.map(|hash| self.stripe_of(hash)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().filter_map(|stripe| Some(self.0.get(stripe)?.0.take())).collect()
    }

    /// Locks all of them.
    pub(super) fn lock_all(&self) -> Vec<KeyLock<'_>> {
        self.0.iter().map(|stripe| stripe.0.take()).collect()
    }
}
