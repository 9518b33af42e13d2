//! Locks of keys: who changes a key holds its stripe until the index says so (the conflict queue of FlatStore
//! §3.3).
//!
//! # Concurrency
//! Tasks that wait are suspended, threads blocked, in the order of asking. Held over the wait for a batch.
//! Several stripes are locked in ascending order.

use esker_base::ids::Version;
use esker_trt::sync::{Turn, TurnGuard};
use std::sync::atomic::{AtomicU64, Ordering};

/// A held stripe.
#[derive(Debug)]
pub(super) struct KeyLock<'a> {
    stripe: &'a Stripe,
    _turn: TurnGuard<'a>,
}

/// The stripes, a power of two of them, each in a line of its own.
#[derive(Debug)]
pub(super) struct KeyLocks(Box<[Stripe]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe {
    turn: Turn,
    /// The highest version of its keys that was written since the store was opened. Changes under its turn.
    last: AtomicU64,
}

impl Stripe {
    #[inline]
    fn lock(&self) -> KeyLock<'_> {
        KeyLock { stripe: self, _turn: self.turn.take() }
    }
}

impl KeyLock<'_> {
    /// The next version of its keys must be higher than this.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.stripe.last.load(Ordering::Relaxed)
    }

    /// One of its keys has this version now.
    #[inline]
    pub(super) fn follow(&self, version: Version) {
        self.stripe.last.store(version.0, Ordering::Relaxed);
    }
}

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
        self.0[self.stripe_of(hash)].lock()
    }

    /// Locks the stripes of several keys.
    pub(super) fn lock_many(&self, hashes: impl Iterator<Item = u64>) -> Vec<KeyLock<'_>> {
        let mut stripes: Vec<usize> = hashes.map(|hash| self.stripe_of(hash)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().filter_map(|stripe| Some(self.0.get(stripe)?.lock())).collect()
    }

    /// Locks all of them.
    pub(super) fn lock_all(&self) -> Vec<KeyLock<'_>> {
        self.0.iter().map(Stripe::lock).collect()
    }
}
