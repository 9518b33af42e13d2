//! What of the intervals is in memory: those that are worth it, and go when nobody uses them (CLOCK, FlexSpace §5.2).
//!
//! # Invariants
//! - K1: intervals and single pairs stay within what they are allowed, which is the budget but for what tables of writes lend or take;
//!   a reader that goes beyond makes room.
//! - K2: what is kept is counted before anybody can take it out: the sum never falls below zero.
//! - X3 of the index: what is kept was read as it is.
//!
//! # Concurrency
//! Any number of readers keep what they read, each under the lock of its leaf. One at a time makes room.

use super::super::interval::{Interval, each_key};
use super::super::pairs::{Hand, Pairs};
use super::find::{Ahead, Part};
use super::{Index, Place};
use esker_base::hash::KeyHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most single pairs that the hand goes past while the other one goes past a leaf.
const PAIRS_OF_A_STEP: u64 = 128;
/// What of the budget tables of writes leave, as one in so many.
const LEAST_SHARE: u64 = 4;
/// Rounds after which nothing is left that was used before.
const USES_MAX: usize = 4;

/// What was missed lately, by marks of 32 bits: stamps of intervals, or hashes. A place for each remembers who missed it last.
#[derive(Debug)]
pub(super) struct Missed(Box<[AtomicU32]>);

/// Intervals that are remembered: who comes back so soon reads neighbours.
pub(super) const MISSED: u64 = 256;
/// The same of scans, whose intervals follow each other.
pub(super) const PASSED: u64 = 4096;
/// Bytes of the budget for each pair that is remembered. Of pairs that are asked for once in a long time, as most are where
/// keys are drawn from many, none takes the place of one that is asked for often: a twentieth more of the gets is answered from
/// memory, and nothing depends much on how many are remembered, a quarter of those that are kept or four times as many.
pub(super) const BYTES_OF_A_MISS: u64 = 128;

impl Missed {
    /// Remembers about so many, or as many as the system gives memory for. They take it when they are used.
    pub(super) fn new(count: u64) -> Self {
        let mut count = usize::try_from(count).unwrap_or(usize::MAX);
        loop {
            match bytemuck::allocation::try_zeroed_slice_box(count) {
                Ok(places) => return Missed(places),
                // None needs none.
                Err(()) => count /= 2,
            }
        }
    }

    /// Notes a miss; whether there was one lately.
    fn again(&self, mark: u32) -> bool {
        let mixed = u64::from(mark).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let place = (mixed * self.0.len() as u64) >> 32;
        let place = self.0.get(usize::try_from(place).unwrap_or(0));
        place.is_some_and(|place| place.swap(mark, Ordering::Relaxed) == mark)
    }
}

/// What of an interval of which a get read a part is worth its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::flex) enum Worth {
    /// Nothing.
    None,
    /// The pair that was wanted.
    Pair,
    /// All of it.
    Interval,
}

/// The hands of the clock: the leaf that one points at, and where the other is among single pairs. Both go around in the
/// same time.
#[derive(Debug, Default)]
pub(super) struct Hands {
    leaf: Place,
    pairs: Hand,
}

impl Index {
    /// Whether an interval that was read is to be kept; it is noted as missed otherwise. `passing`: while there is no room, only one that was missed before just
    /// now; a scan that comes once takes no other's place.
    pub(in crate::engine::flex) fn is_worth_keeping(&self, stamp: u32, passing: bool) -> bool {
        let is_choosy = passing && self.cached_bytes() > self.budget() / 16 * 15;
        self.budget_bytes > 0 && (!is_choosy || self.passed.again(stamp))
    }

    /// Keeps intervals that were read where [`Index::place`] said, if they are still as they were then: each with its number from
    /// the one that holds `key` on, and its stamp.
    pub(in crate::engine::flex) fn keep(&self, key: &[u8], read: &[(usize, u32, Arc<Interval>)]) {
        if self.budget_bytes == 0 {
            return;
        }
        {
            let row = self.row();
            let mut leaf = row.leaf(row.leaf_of(key)).write();
            let index = leaf.index_of(key, false);
            for (behind, stamp, interval) in read {
                let Some(entry) = leaf.entries.get_mut(index + behind) else { break };
                if entry.stamp == *stamp && entry.cached.is_none() {
                    // Under the leaf's lock: whoever takes it out subtracts it.
                    self.cached_bytes.fetch_add(interval.memory_bytes(), Ordering::Relaxed);
                    entry.cached = Some(Arc::clone(interval));
                }
            }
        }
        self.make_room();
    }

    /// How far a get that misses `key` reads along: while there is much room, of what is not only lent, what costs no further read.
    pub(in crate::engine::flex) fn along(&self, key: &[u8]) -> Option<Ahead> {
        let has_room = self.cached_bytes() < self.budget_bytes.min(self.budget()) / 8 * 7;
        let most = Ahead::BLOCK.size_bytes / 2;
        let is_small = || self.with(key, |entry| entry.runs == 1 && entry.size <= most);
        (has_room && is_small()).then_some(Ahead::BLOCK)
    }

    /// What is worth its memory of the interval of which a get for a key with this hash read `part`, and there a base run. All
    /// of it if there is much left, if it was missed before just now, or if those of its pairs that are kept by themselves
    /// take half as much; else the pair, where there is room, or if it was missed before. What cannot be read as a whole is not
    /// asked for: each get would fail there first.
    pub(in crate::engine::flex) fn worth(
        &self,
        part: &Part,
        base: &[u8],
        hash: u64,
        hasher: &KeyHasher,
    ) -> Worth {
        if self.budget_bytes == 0 {
            return Worth::None;
        }
        let room = self.budget() / 16 * 15;
        let cached = self.cached_bytes();
        let is_missed = self.missed.again(part.stamp);
        let is_readable = part.is_whole || !part.is_unread;
        let has_room = part.is_whole && cached + 2 * base.len() as u64 <= room;
        if is_readable && (is_missed || has_room) {
            return Worth::Interval;
        }
        if !self.missed_pairs.again((hash >> 32) as u32) && cached > room {
            return Worth::None;
        }
        let mut kept = 0;
        if self.pairs_kept.count() > 0 {
            each_key(base, |key| kept += self.pairs_kept.bytes_of(key, hasher.hash(key)));
        }
        let is_half = kept > 0 && kept * 2 >= base.len() as u64;
        if is_readable && is_half { Worth::Interval } else { Worth::Pair }
    }

    /// Keeps a pair of the interval that holds `key`, if that is still as it was when it had this stamp.
    pub(in crate::engine::flex) fn keep_pair(
        &self,
        key: &[u8],
        stamp: u32,
        keep: impl FnOnce(&Pairs),
    ) {
        self.with(key, |entry| {
            if entry.stamp == stamp {
                keep(&self.pairs_kept);
            }
        });
        self.make_room();
    }

    /// Bytes that intervals and pairs in memory may take now.
    fn budget(&self) -> u64 {
        self.allowed_bytes.load(Ordering::Relaxed)
    }

    /// Says how many bytes there are, until something else is said: a share of the budget in any case. Those who have none get none.
    pub(in crate::engine::flex) fn allow(&self, bytes: u64) {
        let bytes = bytes.max(self.budget_bytes / LEAST_SHARE);
        let before = self.allowed_bytes.load(Ordering::Relaxed);
        // Said often: what is about the same is not worth a line of memory that everybody reads.
        if self.budget_bytes == 0 || before.abs_diff(bytes) < self.budget_bytes / 256 {
            return;
        }
        self.allowed_bytes.store(bytes, Ordering::Relaxed);
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
            hands.leaf = self.row().next(hands.leaf).unwrap_or_default();
            if self.cached_bytes.load(Ordering::Relaxed) > 0 {
                self.sweep(hands.leaf);
            }
        }
    }

    /// Drops the intervals of a leaf that nobody used since the hand was there.
    fn sweep(&self, place: Place) {
        let mut gone: Vec<Arc<Interval>> = Vec::new();
        {
            let row = self.row();
            // There may be fewer leaves than a moment ago.
            let place = row.from(place).next().unwrap_or_default();
            let mut leaf = row.leaf(place).write();
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

#[cfg(test)]
mod tests {
    use super::super::tests::found_at_open;
    use super::*;

    #[test]
    fn a_pair_that_is_asked_for_once_takes_no_others_place() {
        let index = found_at_open(60);
        let hasher = KeyHasher::new([7; 16]);
        let part = |key: u8| Part {
            is_whole: false,
            ..index.part_of(&[key], None, (0, usize::MAX)).unwrap()
        };
        let worth = |key: u8| index.worth(&part(key), &[], hasher.hash(&[key]), &hasher);
        assert_eq!(worth(1), Worth::Pair, "there is room");
        index.cached_bytes.fetch_add(index.budget(), Ordering::Relaxed);
        assert_eq!(worth(2), Worth::None, "nobody asked for it before");
        assert_eq!(worth(2), Worth::Interval, "its interval was missed just now");
        // Others make the interval forgotten, not the pair.
        index.missed.0.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        assert_eq!(worth(2), Worth::Pair);
        let asked_again = (10..60).filter(|key| worth(*key) != Worth::None).count();
        assert_eq!(asked_again, 0, "none of these was");
    }
}
