//! Locks of keys: who changes a key holds its stripe until the index says so (the conflict queue of FlatStore
//! §3.3).
//!
//! A stripe is held over the wait for a batch. A core whose thread the system has stopped for some milliseconds holds as many stripes as
//! it has writers meanwhile, and whoever comes for one of these, for another key, is missing in the batches of its own core: so there are many
//! stripes for few writers, sixteen in each line.
//!
//! # Concurrency
//! Tasks that wait are suspended, threads blocked, in the order of asking. Several stripes are locked in ascending order.

use esker_base::ids::Version;
use esker_trt::sync::{AllTurns, TurnGuard, Turns};
use std::sync::atomic::{AtomicU64, Ordering};

/// Stripes in a line.
const EACH: usize = 16;

/// A held stripe.
#[derive(Debug)]
pub(super) struct KeyLock<'a> {
    line: &'a Line,
    _turn: TurnGuard<'a>,
}

/// The stripes, in a power of two of lines.
#[derive(Debug)]
pub(super) struct KeyLocks(Box<[Line]>);

/// Stripes, and what they share. On a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    turns: Turns<EACH>,
    /// At least the highest version of its keys that was written since the store was opened. Who holds a stripe finds what was written
    /// under it.
    last: AtomicU64,
}
const _: () = assert!(size_of::<Line>() == 64);

impl KeyLock<'_> {
    /// The next version of its keys must be higher than this.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.line.last.load(Ordering::Relaxed)
    }

    /// One of its keys has this version now.
    #[inline]
    pub(super) fn follow(&self, version: Version) {
        self.line.last.fetch_max(version.0, Ordering::Relaxed);
    }
}

impl KeyLocks {
    /// About as many stripes.
    pub(super) fn new(stripes: usize) -> Self {
        let lines = stripes.div_ceil(EACH).next_power_of_two();
        KeyLocks((0..lines).map(|_| Line::default()).collect())
    }

    /// Line and number in the line of a key's stripe.
    #[inline]
    fn stripe_of(&self, hash: u64) -> (usize, usize) {
        // Not the bits by which the hash index chooses bucket and segment.
        let bits = usize::try_from(hash >> 20).unwrap_or(0);
        (bits & (self.0.len() - 1), (bits >> self.0.len().trailing_zeros()) % EACH)
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the number of lines is a power of two")]
    fn lock_stripe(&self, (line, number): (usize, usize)) -> KeyLock<'_> {
        let line = &self.0[line];
        KeyLock { line, _turn: line.turns.take(number) }
    }

    #[inline]
    pub(super) fn lock(&self, hash: u64) -> KeyLock<'_> {
        self.lock_stripe(self.stripe_of(hash))
    }

    /// As [`KeyLocks::lock`], if that is free.
    pub(super) fn try_lock(&self, hash: u64) -> Option<KeyLock<'_>> {
        let (line, number) = self.stripe_of(hash);
        let line = self.0.get(line)?;
        Some(KeyLock { line, _turn: line.turns.try_take(number)? })
    }

    /// Locks the stripes of several keys.
    pub(super) fn lock_many(&self, hashes: impl Iterator<Item = u64>) -> Vec<KeyLock<'_>> {
        let mut stripes: Vec<(usize, usize)> = hashes.map(|hash| self.stripe_of(hash)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.lock_stripe(stripe)).collect()
    }

    /// Locks all of them.
    pub(super) fn lock_all(&self) -> Vec<AllTurns<'_, EACH>> {
        self.0.iter().map(|line| line.turns.take_all()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_stripes_are_free_while_one_is_held_and_versions_only_grow() {
        let locks = KeyLocks::new(64);
        let hashes: Vec<u64> = (0..64).map(|stripe| stripe << 20 | 5).collect();
        let held = locks.lock_many(hashes.iter().copied());
        assert_eq!(held.len(), 64, "each has a stripe of its own");
        drop(held);
        let first = locks.lock(hashes[0]);
        // In the same line.
        let second = locks.lock(hashes[4]);
        first.follow(Version(7));
        second.follow(Version(5));
        assert!(first.last() >= 7 && second.last() >= 5);
        drop((first, second));
        drop(locks.lock_all());
        assert!(locks.lock(hashes[0]).last() >= 7);
    }

    #[test]
    fn writers_that_stand_still_hold_up_few_others() {
        let locks = KeyLocks::new(crate::engine::flat::KEY_STRIPES);
        assert!(size_of_val(&*locks.0) <= 512 << 10, "they are to stay in the cache");
        let mut rng = esker_base::rng::Rng::from_seed(5);
        let held: Vec<_> = (0..16).map(|_| locks.stripe_of(rng.next_u64())).collect();
        let met = (0..100_000).filter(|_| held.contains(&locks.stripe_of(rng.next_u64()))).count();
        // Of so many stripes twelve; with one stripe in each line it would be near 200.
        assert!((1..40).contains(&met), "{met}");
    }
}
