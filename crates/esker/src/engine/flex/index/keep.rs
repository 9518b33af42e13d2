//! What of the intervals is in memory: those that are worth it, and go when nobody uses them (CLOCK, FlexSpace §5.2).
//!
//! # Invariants
//! - K1: intervals and single pairs stay within one budget, and what is lent beside it; a reader that goes beyond makes room.
//! - X3 of the index: what is kept was read as it is.
//!
//! # Concurrency
//! Any number of readers keep what they read, each under the lock of its leaf. One at a time makes room.

use super::super::interval::{Interval, each_key};
use super::super::pairs::{Hand, Pairs};
use super::Index;
use super::find::Part;
use esker_base::hash::KeyHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most single pairs that the hand goes past while the other one goes past a leaf.
const PAIRS_OF_A_STEP: u64 = 128;
/// Rounds after which nothing is left that was used before.
const USES_MAX: usize = 4;

/// Which intervals were missed lately, by their stamps.
#[derive(Debug)]
pub(super) struct Missed<const N: usize>([AtomicU32; N]);

/// Intervals that are remembered: who comes back so soon reads neighbours.
pub(super) const MISSED: usize = 256;
/// The same of scans, whose intervals follow each other.
pub(super) const PASSED: usize = 4096;

impl<const N: usize> Missed<N> {
    pub(super) fn new() -> Self {
        Missed(std::array::from_fn(|_| AtomicU32::new(0)))
    }

    /// Notes a miss; whether there was one lately.
    fn again(&self, stamp: u32) -> bool {
        let mixed = stamp.wrapping_mul(0x9E37_79B9);
        let slot = self.0.get((mixed >> 16) as usize % N);
        slot.is_some_and(|slot| slot.swap(stamp, Ordering::Relaxed) == stamp)
    }
}

/// The hands of the clock: the leaf that one points at, and where the other is among single pairs. Both go around in the
/// same time.
#[derive(Debug, Default)]
pub(super) struct Hands {
    leaf: usize,
    pairs: Hand,
}

impl Index {
    /// Keeps intervals that were read where [`Index::place`] said, if they are still as they were then: the one that holds
    /// `key`, and those behind it. `passing`: while there is no room, only those that were missed before just now; a scan that
    /// comes once takes no other's place.
    pub(in crate::engine::flex) fn keep(
        &self,
        key: &[u8],
        read: &[(u32, Arc<Interval>)],
        passing: bool,
    ) {
        if self.budget_bytes == 0 {
            return;
        }
        let choosy = passing && self.cached_bytes() > self.budget() / 16 * 15;
        let mut more = 0;
        {
            let row = self.row();
            let mut leaf = row.leaf(row.leaf_of(key)).write();
            let index = leaf.index_of(key, false);
            for (entry, (stamp, interval)) in leaf.entries[index..].iter_mut().zip(read) {
                let is_wanted = !choosy || self.passed.again(*stamp);
                if entry.stamp == *stamp && entry.cached.is_none() && is_wanted {
                    more += interval.memory_bytes();
                    entry.cached = Some(Arc::clone(interval));
                }
            }
        }
        self.cached_bytes.fetch_add(more, Ordering::Relaxed);
        self.make_room();
    }

    /// Whether the interval of which a get read `part`, and there a base run, is worth its memory: there is much left, or it was
    /// missed before just now, or those of its pairs that are kept by themselves take half as much. Else the pair is kept
    /// that was wanted.
    pub(in crate::engine::flex) fn is_worth_keeping(
        &self,
        part: &Part,
        base: &[u8],
        hasher: &KeyHasher,
    ) -> bool {
        if self.budget_bytes == 0 || self.missed.again(part.stamp) {
            return self.budget_bytes > 0;
        }
        if part.is_whole && self.cached_bytes() + 2 * base.len() as u64 <= self.budget() / 16 * 15 {
            return true;
        }
        let mut kept = 0;
        if self.pairs_kept.count() > 0 {
            each_key(base, |key| kept += self.pairs_kept.bytes_of(key, hasher.hash(key)));
        }
        kept > 0 && kept * 2 >= base.len() as u64
    }

    /// Keeps a pair of the interval that holds `key`, if that is still as it was when it had this stamp.
    pub(in crate::engine::flex) fn keep_pair(
        &self,
        key: &[u8],
        stamp: u32,
        keep: impl FnOnce(&Pairs),
    ) {
        if self.budget_bytes == 0 {
            return;
        }
        self.with(key, |entry| {
            if entry.stamp == stamp {
                keep(&self.pairs_kept);
            }
        });
        self.make_room();
    }

    /// Bytes that intervals and pairs in memory may take now.
    fn budget(&self) -> u64 {
        self.budget_bytes + self.lent_bytes.load(Ordering::Relaxed)
    }

    /// Says how many bytes there are beside the budget, until something else is said. Those who have none get none.
    pub(in crate::engine::flex) fn lend(&self, bytes: u64) {
        let before = self.lent_bytes.load(Ordering::Relaxed);
        // Said often: what is about the same is not worth a line of memory that everybody reads.
        if self.budget_bytes == 0 || before.abs_diff(bytes) < self.budget_bytes / 256 {
            return;
        }
        self.lent_bytes.store(bytes, Ordering::Relaxed);
        if bytes < before {
            self.make_room();
        }
    }

    /// Drops intervals and pairs that nobody used, until the rest fits the budget (CLOCK, FlexSpace §5.2).
    pub(in crate::engine::flex) fn make_room(&self) {
        let budget = self.budget();
        if self.cached_bytes() <= budget {
            return;
        }
        let Some(mut hands) = self.hands.try_lock() else { return };
        // Little at a time: a reader waits for it.
        let goal = budget - budget / 1024;
        let leaves = self.row().len();
        let mut steps = USES_MAX * leaves + 2;
        while self.cached_bytes() > goal && steps > 0 {
            steps -= 1;
            let pairs = self.pairs_kept.count();
            if pairs > 0 {
                let step = (pairs / leaves.max(1) as u64).clamp(1, PAIRS_OF_A_STEP);
                self.pairs_kept.sweep(&mut hands.pairs, step);
            }
            hands.leaf = if hands.leaf + 1 < leaves { hands.leaf + 1 } else { 0 };
            if self.cached_bytes.load(Ordering::Relaxed) > 0 {
                self.sweep(hands.leaf);
            }
        }
    }

    /// Drops the intervals of a leaf that nobody used since the hand was there.
    fn sweep(&self, number: usize) {
        let mut gone: Vec<Arc<Interval>> = Vec::new();
        {
            let row = self.row();
            // There may be fewer leaves than a moment ago.
            let mut leaf = row.leaf(number.min(row.len() - 1)).write();
            for entry in &mut leaf.entries {
                if entry.cached.as_ref().is_some_and(|interval| !interval.untouch()) {
                    gone.extend(entry.cached.take());
                }
            }
        }
        let bytes = gone.iter().map(|interval| interval.memory_bytes()).sum();
        self.cached_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
