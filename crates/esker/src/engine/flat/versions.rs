//! Versions of entries: a clock for each core, so that writers of two cores share no counter.
//!
//! An entry's version is higher than that of the entry of its key before it, because its writer holds the key's stripe,
//! which knows the highest version that was written under it, and the clock of the core goes beyond that first (a Lamport
//! clock). Entries of two keys may have one version.
//!
//! # Invariants
//! - N1: a clock only grows, and what its core gives is at least what it showed before.
//! - N2: after [`Versions::meet`] returned a version, no core gives a lower one.

use super::Apart;
use esker_base::ids::Version;
use std::sync::atomic::{AtomicU64, Ordering};

/// The clocks: each shows the lowest version that its core gives next.
#[derive(Debug)]
pub(super) struct Versions(Box<[Apart<AtomicU64>]>);

impl Versions {
    pub(super) fn new(cores: usize) -> Versions {
        Versions((0..cores.max(1)).map(|_| Apart(AtomicU64::new(1))).collect())
    }

    #[inline]
    fn clock(&self, core: usize) -> &AtomicU64 {
        #[expect(clippy::indexing_slicing, reason = "a remainder is in range")]
        &self.0[core % self.0.len()]
    }

    /// Gives `count` versions in a row, all higher than `after`; returns the first.
    #[inline]
    pub(super) fn give(&self, core: usize, after: u64, count: u64) -> u64 {
        let clock = self.clock(core);
        if clock.load(Ordering::Relaxed) <= after {
            clock.fetch_max(after + 1, Ordering::SeqCst);
        }
        clock.fetch_add(count, Ordering::SeqCst)
    }

    /// No version that the core gives from now on is lower.
    pub(super) fn now(&self, core: usize) -> u64 {
        self.clock(core).load(Ordering::SeqCst)
    }

    /// Brings all clocks to the time of the latest one, which is returned (N2).
    pub(super) fn meet(&self) -> u64 {
        let latest = self.next();
        self.raise(latest);
        latest
    }

    /// Lets all cores go on from here, at least.
    pub(super) fn raise(&self, next: u64) {
        self.0.iter().for_each(|clock| {
            clock.fetch_max(next, Ordering::SeqCst);
        });
    }

    /// A number that grows with everything that is given.
    pub(super) fn given(&self) -> u64 {
        let clocks = self.0.iter().map(|clock| clock.load(Ordering::Relaxed));
        clocks.fold(0, u64::wrapping_add)
    }

    /// Higher than all that was given.
    pub(super) fn next(&self) -> u64 {
        self.0.iter().map(|clock| clock.load(Ordering::SeqCst)).max().unwrap_or(1)
    }

    /// The highest version that was given.
    pub(super) fn last(&self) -> Version {
        Version(self.next().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_higher_than_what_came_before_and_not_lower_than_where_clocks_met() {
        let versions = Versions::new(3);
        assert_eq!(versions.give(0, 0, 5), 1);
        assert_eq!(versions.give(1, 0, 1), 1, "of another key");
        assert_eq!(versions.give(1, 5, 2), 6, "of a key that core 0 wrote");
        assert_eq!(versions.last(), Version(7));
        let met = versions.meet();
        assert_eq!(met, 8);
        assert!((0..3).all(|core| versions.give(core, 0, 1) >= met));
    }
}
