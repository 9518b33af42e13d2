//! The sparse index: which interval holds a key, and where it is in the space (FlexSpace §5.1).
//!
//! Leaves of up to 64 intervals, side by side; above them a row with the first anchor of each leaf, in sections. An
//! interval's offset is the sum of the sizes before it: of sections and leaves by Fenwick trees, of intervals inside the
//! leaf by adding them up. So a change of size touches one leaf and log n sums; that is what partial offsets and shifts do
//! in the paper.
//!
//! # Invariants
//! - X1: anchors ascend; that of the first interval is empty. An interval holds keys from its anchor on, below the next.
//! - X2: sizes add up to what the space has of intervals. Both change together: under the space's lock
//!   ([`esker::flex::Space::splice`](crate::flex::Space::splice)).
//! - X3: who put an interval into the cache read it as it is: `stamp` changes with every change of the interval.
//!
//! # Concurrency
//! One thread at a time changes intervals; any number look. Lock order: the space, the row, a leaf, the sums. None is
//! held over I/O.
#![allow(
    clippy::indexing_slicing,
    reason = "numbers of leaves and intervals are this module's own, made and used under one lock"
)]

mod anchors;
mod find;
mod keep;
mod leaf;
mod row;
mod sums;
mod tails;

pub(super) use find::{Ahead, Cached, First, Intervals, Located, Neighbours, Seen, USUAL};
pub(super) use leaf::{Entry, Fresh, PAIRS_COUNTED_MAX};
pub(super) use tails::{byte_of, is_tail_of, tail_of, tail_of_run};

use super::interval::Interval;
use super::lapsing::Lapsing;
use super::pairs::Pairs;
use super::snapshots::Snapshots;
use crate::engine::expiries::Expiries;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
pub(super) use keep::Worth;
use keep::{BYTES_OF_A_MISS, Hands, MISSED, Missed, PASSED};
use leaf::Leaf;
use parking_lot::{Mutex, RwLock};
pub(super) use row::Place;
use row::Row;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use sums::RowSums;
pub(super) use sums::Sums;

/// Most intervals of a leaf.
const LEAF_CAPACITY: usize = 64;
/// Intervals of a leaf that an open makes.
const LEAF_FOUND: usize = LEAF_CAPACITY / 4 * 3;

/// Where an interval stands in the index; good until the index changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) leaf: Place,
    pub(super) index: usize,
}

/// What is said of a leaf: intervals, and their bytes, pairs and runs all together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeafSums {
    /// Bytes of the leaves before it, where that is asked for.
    pub(super) before: u64,
    pub(super) count: usize,
    pub(super) size: usize,
    pub(super) pairs: usize,
    pub(super) runs: usize,
    /// Bytes of appended runs, about.
    pub(super) appended: u64,
    /// Bytes that have lapsed, those of large values that its pairs name among them, about: they have expired, or stayed for a
    /// snapshot that is gone.
    pub(super) expired: u64,
    /// Those of them that stayed for a snapshot.
    pub(super) let_go: u64,
}

/// The index. See the module's text.
#[derive(Debug)]
pub(super) struct Index {
    /// Read by everybody all the time, changed seldom: readers of several threads do not touch the same line.
    row: ShardedLock<Row>,
    sums: RwLock<RowSums>,
    stamps: AtomicU64,
    cached_bytes: AtomicU64,
    budget_bytes: u64,
    /// What there is at the moment: the budget, and what others lend, or without what they took.
    allowed_bytes: AtomicU64,
    /// Of the same budget.
    pub(super) pairs_kept: Pairs,
    missed: Missed,
    passed: Missed,
    missed_pairs: Missed,
    hands: Mutex<Hands>,
    intervals: AtomicU64,
    pairs: AtomicU64,
    size: AtomicU64,
    appended: AtomicU64,
    /// Before this time, in Unix seconds, nothing has expired that is still there.
    expires_first: AtomicU64,
    /// As long as there is a snapshot of this version or before, nothing stayed in vain for one.
    seen_first: AtomicU64,
    snapshots: Arc<Snapshots>,
    /// Whether there may be intervals in which nobody has looked.
    has_coarse: AtomicBool,
}

/// Intervals on their way to an index, in order: leaf by leaf, so that all of them are in memory in one form only.
#[derive(Debug)]
pub(super) struct Leaves {
    whole: Vec<Leaf>,
    /// Of the next leaf.
    next: Vec<Fresh>,
    intervals: u64,
    pairs: u64,
    appended: u64,
    /// When the first bytes of them expire, and which snapshot is the first to let some go.
    lapsing_first: (u64, u64),
    has_coarse: bool,
}

/// The first moment of these; the last one there is, if there is none.
fn first_of(moments: &Expiries) -> u64 {
    moments.moments().first().map_or(u64::MAX, |(at, _)| *at)
}

impl Leaves {
    /// Adds the interval that comes next. The first one holds what is below all anchors.
    pub(super) fn push(&mut self, mut fresh: Fresh) {
        if self.intervals == 0 {
            fresh.anchor.clear();
        }
        self.intervals += 1;
        fresh.entry.stamp = u32::try_from(self.intervals & u64::from(u32::MAX)).unwrap_or(0);
        self.pairs += u64::from(fresh.entry.known_pairs());
        self.has_coarse |= fresh.entry.is_coarse();
        self.appended += fresh.entry.appended_bytes();
        let (expires, seen) = self.lapsing_first;
        let lapsing = &fresh.lapsing;
        self.lapsing_first =
            (expires.min(first_of(&lapsing.expiries)), seen.min(first_of(&lapsing.seen)));
        self.next.push(fresh);
        if self.next.len() == LEAF_FOUND {
            let whole = std::mem::replace(&mut self.next, Vec::with_capacity(LEAF_FOUND));
            self.whole.push(Leaf::new(whole));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.intervals == 0
    }

    /// All are in leaves, and there is one at least.
    fn finished(mut self) -> Self {
        if self.is_empty() {
            self.push(Fresh::default());
        }
        if !self.next.is_empty() {
            let last = std::mem::take(&mut self.next);
            self.whole.push(Leaf::new(last));
        }
        self
    }
}

impl Default for Leaves {
    fn default() -> Self {
        let (whole, next) = (Vec::new(), Vec::new());
        let lapsing_first = (u64::MAX, u64::MAX);
        let has_coarse = false;
        Leaves { whole, next, intervals: 0, pairs: 0, appended: 0, lapsing_first, has_coarse }
    }
}

impl FromIterator<Fresh> for Leaves {
    fn from_iter<I: IntoIterator<Item = Fresh>>(all: I) -> Self {
        let mut leaves = Leaves::default();
        all.into_iter().for_each(|fresh| leaves.push(fresh));
        leaves
    }
}

impl Index {
    /// An index of these intervals, which may keep so many bytes of them in memory.
    pub(super) fn new(found: Leaves, budget_bytes: u64, snapshots: Arc<Snapshots>) -> Self {
        let Leaves { whole, intervals, pairs, appended, lapsing_first, has_coarse, .. } =
            found.finished();
        let (expires_first, seen_first) = lapsing_first;
        let (row, sums) = Row::new(whole);
        let size = AtomicU64::new(sums.total());
        Index {
            row: ShardedLock::new(row),
            sums: RwLock::new(sums),
            stamps: AtomicU64::new(intervals + 1),
            cached_bytes: AtomicU64::new(0),
            budget_bytes,
            allowed_bytes: AtomicU64::new(budget_bytes),
            pairs_kept: Pairs::new(budget_bytes),
            missed: Missed::new(MISSED),
            passed: Missed::new(PASSED),
            missed_pairs: Missed::new(budget_bytes / BYTES_OF_A_MISS),
            hands: Mutex::default(),
            intervals: AtomicU64::new(intervals),
            pairs: AtomicU64::new(pairs),
            size,
            appended: AtomicU64::new(appended),
            expires_first: AtomicU64::new(expires_first),
            seen_first: AtomicU64::new(seen_first),
            snapshots,
            has_coarse: AtomicBool::new(has_coarse),
        }
    }

    fn row(&self) -> ShardedLockReadGuard<'_, Row> {
        self.row.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn row_mut(&self) -> ShardedLockWriteGuard<'_, Row> {
        self.row.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn stamp(&self) -> u32 {
        let stamp = self.stamps.fetch_add(1, Ordering::Relaxed);
        u32::try_from(stamp & u64::from(u32::MAX)).unwrap_or(0)
    }

    /// Notes what is kept of the appended runs of the interval that holds `key`, if it is still as it was.
    pub(super) fn learn(&self, key: &[u8], stamp: u32, tail: &[u8]) {
        let row = self.row();
        let mut leaf = row.leaf(row.leaf_of(key)).write();
        let index = leaf.index_of(key, false);
        if leaf.entries[index].stamp == stamp {
            leaf.tails.set(index, tail);
        }
    }

    /// Notes bytes that a read of the interval that holds `key` fetched in vain; whether those of its leaf are so many now
    /// that it is worth bringing together.
    pub(super) fn owe(&self, key: &[u8], bytes: u64) -> bool {
        let row = self.row();
        row.leaf(row.leaf_of(key)).read().owe(bytes)
    }

    /// Whether it is worth bringing together the leaf that holds `key`.
    pub(super) fn is_due(&self, key: &[u8]) -> bool {
        let row = self.row();
        row.leaf(row.leaf_of(key)).read().is_due()
    }

    /// The leaf that holds `key` is brought together: what was owed is paid.
    pub(super) fn settle(&self, key: &[u8]) {
        let row = self.row();
        row.leaf(row.leaf_of(key)).read().settle();
    }

    fn count_cached(&self, before: Option<&Arc<Interval>>, after: Option<&Arc<Interval>>) {
        let bytes =
            |interval: Option<&Arc<Interval>>| interval.map_or(0, |known| known.memory_bytes());
        self.cached_bytes.fetch_add(bytes(after), Ordering::Relaxed);
        self.cached_bytes.fetch_sub(bytes(before), Ordering::Relaxed);
    }

    /// A run of so many bytes and pairs was appended to an interval, which is `cached` now if it is in memory.
    /// `known` is what is kept of the run, `expiries` what of it expires.
    pub(super) fn grow(
        &self,
        spot: Spot,
        bytes: u32,
        (pairs, known, expiries): (u16, &[u8], &Expiries),
        cached: Option<Arc<Interval>>,
    ) {
        self.note_expiries(expiries);
        let row = self.row();
        let mut leaf = row.leaf(spot.leaf).write();
        leaf.note_run(spot.index, known);
        leaf.lapsing.expiries.add_all(expiries);
        let entry = &mut leaf.entries[spot.index];
        let (appended, known) = (entry.appended_bytes(), entry.known_pairs());
        entry.grow(bytes, pairs);
        let pairs = entry.known_pairs() - known;
        self.appended.fetch_add(entry.appended_bytes().wrapping_sub(appended), Ordering::Relaxed);
        entry.stamp = self.stamp();
        // Who keeps it meanwhile kept the old one.
        let before = std::mem::replace(&mut entry.cached, cached);
        if before.is_some() || entry.cached.is_some() {
            self.count_cached(before.as_ref(), entry.cached.as_ref());
        }
        self.pairs.fetch_add(u64::from(pairs), Ordering::Relaxed);
        let mut sums = self.sums.write();
        sums.add(spot.leaf, u64::from(bytes));
        self.note_size(&sums);
    }

    /// From now on it is known that an interval cannot be read as a whole.
    pub(super) fn note_unread(&self, spot: Spot) {
        let row = self.row();
        let mut leaf = row.leaf(spot.leaf).write();
        let entry = &mut leaf.entries[spot.index];
        self.pairs.fetch_sub(u64::from(entry.known_pairs()), Ordering::Relaxed);
        self.appended.fetch_sub(entry.appended_bytes(), Ordering::Relaxed);
        entry.note_unread();
    }

    /// `count` intervals from `spot` on are replaced by others; the first one keeps its anchor if there is one, and what
    /// the others held falls to the interval before. Goes over the end of leaves.
    pub(super) fn replace(&self, spot: Spot, count: usize, mut fresh: Vec<Fresh>) {
        for new in &mut fresh {
            new.entry.stamp = self.stamp();
        }
        let row = self.row();
        let in_leaf = row.leaf(spot.leaf).read().entries.len();
        let fits = spot.index + count <= in_leaf;
        let len = in_leaf - count.min(in_leaf) + fresh.len();
        let keeps_first = spot.index > 0 || (fits && !fresh.is_empty());
        self.intervals.fetch_add(fresh.len() as u64, Ordering::Relaxed);
        self.intervals.fetch_sub(count as u64, Ordering::Relaxed);
        fresh.iter().for_each(|new| self.note_first(&new.lapsing));
        let more: u64 = fresh.iter().map(|new| u64::from(new.entry.known_pairs())).sum();
        self.pairs.fetch_add(more, Ordering::Relaxed);
        let more = fresh.iter().map(|new| new.entry.appended_bytes()).sum();
        self.appended.fetch_add(more, Ordering::Relaxed);
        let more: u64 =
            fresh.iter().filter_map(|new| Some(new.entry.cached.as_ref()?.memory_bytes())).sum();
        self.cached_bytes.fetch_add(more, Ordering::Relaxed);
        let gone = if fits && keeps_first && (1..=LEAF_CAPACITY).contains(&len) {
            // The usual case: the row stays as it is.
            let mut leaf = row.leaf(spot.leaf).write();
            let gone = leaf.splice(spot.index..spot.index + count, fresh);
            let mut sums = self.sums.write();
            sums.set(spot.leaf, leaf.size());
            self.note_size(&sums);
            gone
        } else {
            // Nobody else changes intervals, so they are still where they were.
            drop(row);
            let (mut row, mut sums) = (self.row_mut(), self.sums.write());
            let gone = row.splice(spot, count, fresh, &mut sums);
            self.note_size(&sums);
            gone
        };
        let less = gone.iter().map(|entry| u64::from(entry.known_pairs())).sum();
        self.pairs.fetch_sub(less, Ordering::Relaxed);
        let less = gone.iter().map(Entry::appended_bytes).sum();
        self.appended.fetch_sub(less, Ordering::Relaxed);
        let less =
            gone.iter().filter_map(|entry| Some(entry.cached.as_ref()?.memory_bytes())).sum();
        self.cached_bytes.fetch_sub(less, Ordering::Relaxed);
    }

    /// Bytes of all intervals.
    #[inline]
    pub(super) fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Bytes of appended runs, about.
    pub(super) fn appended_bytes(&self) -> u64 {
        self.appended.load(Ordering::Relaxed)
    }

    /// Notes when the first of these bytes expire.
    fn note_expiries(&self, expiries: &Expiries) {
        if let Some((at, _)) = expiries.moments().first() {
            self.expires_first.fetch_min(*at, Ordering::Relaxed);
        }
    }

    /// Notes when the first of these bytes lapse.
    fn note_first(&self, lapsing: &Lapsing) {
        self.note_expiries(&lapsing.expiries);
        if let Some((seen, _)) = lapsing.seen.moments().first() {
            self.seen_first.fetch_min(*seen, Ordering::Relaxed);
        }
    }

    /// Whether something may have lapsed by now that is still there.
    pub(super) fn has_expired(&self, now: u64) -> bool {
        self.expires_first.load(Ordering::Relaxed) <= now
            || self.seen_first.load(Ordering::Relaxed) < self.snapshots.oldest()
    }

    /// Bytes that have lapsed by now and are still there, about. Nobody changes intervals meanwhile, or what of them lapses first would
    /// be forgotten: the committer's lock is held.
    pub(super) fn expired_bytes(&self, now: u64) -> u64 {
        if !self.has_expired(now) {
            return 0;
        }
        let row = self.row();
        let oldest = self.snapshots.oldest();
        let (mut expired, mut expires_first, mut seen_first) = (0_u64, u64::MAX, u64::MAX);
        for place in row.from(Place::default()) {
            let leaf = row.leaf(place).read();
            // What media say has no bound.
            expired = expired.saturating_add(leaf.lapsing.expiries.expired(now));
            expired = expired.saturating_add(leaf.lapsing.let_go(oldest));
            expires_first = expires_first.min(first_of(&leaf.lapsing.expiries));
            seen_first = seen_first.min(first_of(&leaf.lapsing.seen));
        }
        self.expires_first.store(expires_first, Ordering::Relaxed);
        self.seen_first.store(seen_first, Ordering::Relaxed);
        expired
    }

    /// Of intervals of a leaf, from `spot` on, it is known now what lapses when. They stay as they are.
    pub(super) fn set_lapsing(&self, spot: Spot, count: usize, fresh: &[Fresh]) {
        fresh.iter().for_each(|known| self.note_first(&known.lapsing));
        let row = self.row();
        let mut leaf = row.leaf(spot.leaf).write();
        let range = clip(spot.index..spot.index + count, leaf.entries.len());
        leaf.set_lapsing(range, fresh.iter().map(|fresh| &fresh.lapsing));
    }

    /// Nothing in the leaf that holds `key` lapses, as far as anybody is to know.
    pub(super) fn forget_lapsing(&self, key: &[u8]) {
        let row = self.row();
        row.leaf(row.leaf_of(key)).write().lapsing.clear();
    }

    /// Notes the sum of all sizes, which others ask for without a lock.
    fn note_size(&self, sums: &RowSums) {
        self.size.store(sums.total(), Ordering::Relaxed);
    }

    /// Number of intervals.
    pub(super) fn intervals(&self) -> u64 {
        self.intervals.load(Ordering::Relaxed)
    }

    /// Pairs of intervals of which the number is known, old versions among them.
    pub(super) fn pairs(&self) -> u64 {
        self.pairs.load(Ordering::Relaxed)
    }

    /// Bytes of intervals and pairs in memory.
    pub(super) fn cached_bytes(&self) -> u64 {
        self.cached_bytes.load(Ordering::Relaxed) + self.pairs_kept.bytes()
    }

    /// DRAM without cached intervals, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let row = self.row();
        let leaves = row.from(Place::default()).map(|place| row.leaf(place).read().memory_bytes());
        leaves.sum::<u64>() + row.memory_bytes() + self.sums.read().memory_bytes()
    }

    /// Gives all intervals to `visit`, in order: the anchor of each, what is known of its appended runs, and what lapses.
    pub(super) fn visit(&self, mut visit: impl FnMut(&[u8], &Entry, &[u8], &Lapsing)) {
        let row = self.row();
        for place in row.from(Place::default()) {
            let leaf = row.leaf(place).read();
            for (index, entry) in leaf.entries.iter().enumerate() {
                let lapsing = leaf.lapsing_of(index..index + 1);
                visit(&leaf.anchor(index), entry, leaf.tails.of(index), &lapsing);
            }
        }
    }

    /// The first coarse interval from leaf `from` on: its leaf and its anchor.
    pub(super) fn coarse(&self, from: Place) -> Option<(Place, Vec<u8>)> {
        if !self.has_coarse() {
            return None;
        }
        let row = self.row();
        let found = row.from(from).find_map(|place| {
            let leaf = row.leaf(place).read();
            let index = leaf.entries.iter().position(Entry::is_coarse)?;
            Some((place, leaf.anchor(index)))
        });
        if from == Place::default() && found.is_none() {
            self.has_coarse.store(false, Ordering::Relaxed);
        }
        found
    }

    /// Whether there may be intervals in which nobody has looked.
    pub(super) fn has_coarse(&self) -> bool {
        self.has_coarse.load(Ordering::Relaxed)
    }
}

/// The part of `range` that lies in `0..len`.
fn clip(range: Range<usize>, len: usize) -> Range<usize> {
    range.start.min(len)..range.end.min(len)
}

#[cfg(test)]
mod tests;
