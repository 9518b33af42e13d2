//! The sparse index: which interval holds a key, and where it is in the space (FlexSpace §5.1).
//!
//! Leaves of up to 64 intervals, side by side; above them one row with the first anchor of each leaf. An interval's offset
//! is the sum of the sizes before it: of leaves by a Fenwick tree, of intervals inside the leaf by adding them up. So a
//! change of size touches one leaf and log n sums; that is what partial offsets and shifts do in the paper.
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

mod leaf;
mod row;
mod tails;

pub(super) use leaf::{Entry, Fresh};
use tails::Wanted;
pub(super) use tails::{byte_of, tail_of, tail_of_run};

use super::interval::{Interval, each_key};
use super::pairs::{Hand, Pairs};
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use esker_base::hash::KeyHasher;
use leaf::Leaf;
use parking_lot::{Mutex, RwLock};
use row::Row;
pub(super) use row::Sums;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// Most single pairs that the hand goes past while the other one goes past a leaf.
const PAIRS_OF_A_STEP: u64 = 128;
/// Rounds after which nothing is left that was used before.
const USES_MAX: usize = 4;
/// Most intervals of a leaf.
const LEAF_CAPACITY: usize = 64;

/// Where an interval stands in the index; good until the index changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) leaf: usize,
    pub(super) index: usize,
}

/// What the committer wants to know of an interval.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub(super) spot: Spot,
    /// In the intervals' part of the space.
    pub(super) offset: u64,
    pub(super) entry: Entry,
    pub(super) anchor: Vec<u8>,
    /// Anchor of the next interval.
    pub(super) upper: Option<Vec<u8>>,
}

/// Bytes that are read for a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// In the intervals' part of the space.
    pub(super) offset: u64,
    pub(super) size: usize,
    /// Of the interval.
    pub(super) stamp: u32,
    /// Number of the run; 0: the base run, or all.
    pub(super) run: usize,
    /// Whether it is all of the interval.
    pub(super) is_whole: bool,
    /// Whether it is known where each run begins.
    pub(super) is_known: bool,
}

/// Where intervals are that somebody wants to read.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// In the intervals' part of the space.
    pub(super) offset: u64,
    /// Size and stamp of each, and those that are in memory.
    pub(super) sizes: Vec<(u32, u32, Option<Arc<Interval>>)>,
    pub(super) is_coarse: bool,
    pub(super) anchor: Vec<u8>,
    /// Anchor of the interval behind the last one.
    pub(super) upper: Option<Vec<u8>>,
}

/// All intervals of a leaf, and maybe of those behind it; none, if they are not wanted.
#[derive(Clone, Debug)]
pub(super) struct Neighbours {
    /// The first one.
    pub(super) spot: Spot,
    /// In the intervals' part of the space.
    pub(super) offset: u64,
    pub(super) anchors: Vec<Vec<u8>>,
    pub(super) sizes: Vec<u32>,
    /// Whether each is in memory.
    pub(super) cached: Vec<bool>,
    /// Anchor of the interval behind the last one; of none, that behind the leaf.
    pub(super) upper: Option<Vec<u8>>,
}

impl Neighbours {
    /// Bytes of all.
    pub(super) fn size_bytes(&self) -> u64 {
        self.sizes.iter().map(|size| u64::from(*size)).sum()
    }
}

/// What is said of a leaf: intervals, and their bytes, pairs and runs all together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeafSums {
    pub(super) count: usize,
    pub(super) size: usize,
    pub(super) pairs: usize,
    pub(super) runs: usize,
}

/// Which intervals were missed lately, by their stamps.
#[derive(Debug)]
struct Missed<const N: usize>([AtomicU32; N]);

/// Intervals that are remembered: who comes back so soon reads neighbours.
const MISSED: usize = 256;
/// The same of scans, whose intervals follow each other.
const PASSED: usize = 4096;

impl<const N: usize> Missed<N> {
    fn new() -> Self {
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
struct Hands {
    leaf: usize,
    pairs: Hand,
}

/// The index. See the module's text.
#[derive(Debug)]
pub(super) struct Index {
    /// Read by everybody all the time, changed seldom: readers of several threads do not touch the same line.
    row: ShardedLock<Row>,
    sums: RwLock<Sums>,
    stamps: AtomicU64,
    cached_bytes: AtomicU64,
    budget_bytes: u64,
    /// What others do not need at the moment of theirs.
    lent_bytes: AtomicU64,
    /// Of the same budget.
    pub(super) pairs_kept: Pairs,
    missed: Missed<MISSED>,
    passed: Missed<PASSED>,
    hands: Mutex<Hands>,
    intervals: AtomicU64,
    pairs: AtomicU64,
    size: AtomicU64,
}

impl Index {
    /// An index of these intervals, in order, which may keep so many bytes of them in memory.
    pub(super) fn new(intervals: Vec<Fresh>, budget_bytes: u64) -> Self {
        let index = Index {
            row: ShardedLock::new(Row::default()),
            sums: RwLock::new(Sums::default()),
            stamps: AtomicU64::new(1),
            cached_bytes: AtomicU64::new(0),
            budget_bytes,
            lent_bytes: AtomicU64::new(0),
            pairs_kept: Pairs::new(budget_bytes),
            missed: Missed::new(),
            passed: Missed::new(),
            hands: Mutex::default(),
            intervals: AtomicU64::new(0),
            pairs: AtomicU64::new(0),
            size: AtomicU64::new(0),
        };
        index.fill(intervals);
        index
    }

    fn fill(&self, mut intervals: Vec<Fresh>) {
        match intervals.first_mut() {
            Some(first) => first.anchor.clear(),
            None => intervals.push(Fresh::default()),
        }
        for new in &mut intervals {
            new.entry.stamp = self.stamp();
        }
        let mut leaves = Vec::with_capacity(intervals.len() / LEAF_CAPACITY + 1);
        self.intervals.store(intervals.len() as u64, Ordering::Relaxed);
        let pairs = intervals.iter().map(|fresh| u64::from(fresh.entry.known_pairs())).sum();
        self.pairs.store(pairs, Ordering::Relaxed);
        let mut rest = intervals.into_iter().peekable();
        while rest.peek().is_some() {
            let part: Vec<Fresh> = rest.by_ref().take(LEAF_CAPACITY / 4 * 3).collect();
            leaves.push(Leaf::new(part));
        }
        let (mut row, mut sums) = (self.row_mut(), self.sums.write());
        *row = Row::new(leaves);
        sums.rebuild(row.sizes());
        self.note_size(&sums);
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

    /// Calls `look` with the interval that holds `key`, under the leaf's lock.
    #[inline]
    pub(super) fn with<T>(&self, key: &[u8], look: impl FnOnce(&Entry) -> T) -> T {
        let row = self.row();
        let leaf = row.leaf(row.leaf_of(key)).read();
        look(&leaf.entries[leaf.index_of(key, false)])
    }

    /// The interval that holds `key` (`before`: the one that holds the greatest key below it) and those behind it (before
    /// it, in `reverse`) in its leaf, as long as they are in memory and up to `most`; in that order, and the key at which
    /// they end: that of the next interval, or in `reverse` the anchor of the last one.
    pub(super) fn cached(
        &self,
        key: Option<&[u8]>,
        before: bool,
        reverse: bool,
        most: usize,
    ) -> (Vec<Arc<Interval>>, Option<Vec<u8>>) {
        let row = self.row();
        let (spot, leaf) = row.spot(key, before);
        let touched = |entry: &Entry| {
            let interval = entry.cached.as_ref()?;
            interval.touch_all();
            Some(Arc::clone(interval))
        };
        if reverse {
            let found = leaf.entries[..=spot.index].iter().rev().take(most);
            let found: Vec<_> = found.map_while(touched).collect();
            let end = found.len().checked_sub(1).map(|behind| leaf.anchor(spot.index - behind));
            (found, end)
        } else {
            let found: Vec<_> =
                leaf.entries[spot.index..].iter().take(most).map_while(touched).collect();
            let last = Spot { index: (spot.index + found.len()).saturating_sub(1), ..spot };
            (found, upper(&row, &leaf, last))
        }
    }

    /// Which bytes to read for `key`: of the runs that may have a key of `byte` the last one, or of those before `seen`, if
    /// the interval is still as it was then; all of the interval without `byte`, or if nobody knows. `None` if nobody has
    /// looked inside.
    pub(super) fn part_of(
        &self,
        key: &[u8],
        byte: Option<u8>,
        (seen, below): (u32, usize),
    ) -> Option<Part> {
        let row = self.row();
        let number = row.leaf_of(key);
        let leaf = row.leaf(number).read();
        let index = leaf.index_of(key, false);
        let entry = &leaf.entries[index];
        if entry.is_coarse() {
            return None;
        }
        let offset = self.sums.read().before(number) + leaf.size_before(index);
        let whole = Wanted { at: 0, size: entry.size, run: 0 };
        let wanted = match byte {
            Some(byte) if leaf.knows_runs(index) => {
                let below = if entry.stamp == seen { below } else { usize::MAX };
                tails::wanted(leaf.tails.of(index), entry.size, byte, below)
            }
            _ => whole,
        };
        Some(Part {
            offset: offset + u64::from(wanted.at),
            size: wanted.size as usize,
            stamp: entry.stamp,
            run: wanted.run,
            is_whole: wanted.size == entry.size,
            is_known: leaf.knows_runs(index),
        })
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

    /// Where the interval that holds `key` is (`before`: the greatest key below it), with sizes and stamps of it and of up to
    /// `more` behind it in its leaf, the last of which is not in memory.
    pub(super) fn place(&self, key: Option<&[u8]>, before: bool, more: usize) -> Placed {
        let row = self.row();
        let (spot, leaf) = row.spot(key, before);
        let offset = self.sums.read().before(spot.leaf) + leaf.size_before(spot.index);
        let first = &leaf.entries[spot.index];
        let known = |entry: &Entry| (entry.size, entry.stamp, entry.cached.clone());
        let mut sizes = vec![known(first)];
        let mut last = spot;
        if !first.is_coarse() {
            let behind = leaf.entries.get(spot.index + 1..).unwrap_or_default().iter().take(more);
            sizes.extend(behind.take_while(|entry| !entry.is_coarse()).map(known));
            while sizes.len() > 1 && sizes.last().is_some_and(|(.., cached)| cached.is_some()) {
                sizes.pop();
            }
            last.index += sizes.len() - 1;
        }
        Placed {
            offset,
            sizes,
            is_coarse: first.is_coarse(),
            anchor: leaf.anchor(spot.index),
            upper: upper(&row, &leaf, last),
        }
    }

    /// Everything about the interval that holds `key`.
    pub(super) fn locate(&self, key: &[u8]) -> Located {
        let row = self.row();
        let (spot, leaf) = row.spot(Some(key), false);
        self.located(&row, &leaf, spot)
    }

    /// The intervals of the leaf that holds `key`, if somebody looked into each and `is_wanted` says so; and those of the
    /// leaves behind it for which it does, too, while all have up to `most` bytes.
    pub(super) fn neighbours(
        &self,
        key: &[u8],
        most: u64,
        is_wanted: &dyn Fn(&LeafSums, bool) -> bool,
    ) -> Neighbours {
        let row = self.row();
        let first = row.leaf_of(key);
        let mut found = Neighbours {
            spot: Spot { leaf: first, index: 0 },
            offset: self.sums.read().before(first),
            anchors: Vec::new(),
            sizes: Vec::new(),
            cached: Vec::new(),
            upper: None,
        };
        let (mut next, mut bytes) = (first, 0);
        while next < row.len() {
            let leaf = row.leaf(next).read();
            let sums = leaf.sums();
            let fits = next == first || bytes + sums.size as u64 <= most;
            if !fits
                || !is_wanted(&sums, next == first)
                || leaf.entries.iter().any(Entry::is_coarse)
            {
                break;
            }
            found.anchors.extend((0..sums.count).map(|index| leaf.anchor(index)));
            found.sizes.extend(leaf.entries.iter().map(|entry| entry.size));
            found.cached.extend(leaf.entries.iter().map(|entry| entry.cached.is_some()));
            bytes += sums.size as u64;
            next += 1;
        }
        found.upper = row.first(next.max(first + 1)).map(<[u8]>::to_vec);
        found
    }

    /// Everything about the interval behind `spot`.
    pub(super) fn next(&self, spot: Spot) -> Option<Located> {
        let row = self.row();
        let leaf = row.leaf(spot.leaf).read();
        let next = if spot.index + 1 < leaf.entries.len() {
            Spot { index: spot.index + 1, ..spot }
        } else if spot.leaf + 1 < row.len() {
            Spot { leaf: spot.leaf + 1, index: 0 }
        } else {
            return None;
        };
        let leaf = if next.leaf == spot.leaf { leaf } else { row.leaf(next.leaf).read() };
        Some(self.located(&row, &leaf, next))
    }

    fn located(&self, row: &Row, leaf: &Leaf, spot: Spot) -> Located {
        let upper = upper(row, leaf, spot);
        Located {
            spot,
            offset: self.sums.read().before(spot.leaf) + leaf.size_before(spot.index),
            entry: leaf.entries[spot.index].clone(),
            anchor: leaf.anchor(spot.index),
            upper,
        }
    }

    /// Keeps intervals that were read where [`Index::place`] said, if they are still as they were then: the one that holds
    /// `key`, and those behind it. `passing`: while there is no room, only those that were missed before just now; a scan that
    /// comes once takes no other's place.
    pub(super) fn keep(&self, key: &[u8], read: &[(u32, Arc<Interval>)], passing: bool) {
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

    /// Whether the interval of which a get read `part`, and there a base run, is worth its memory: there is much left, or it was
    /// missed before just now, or those of its pairs that are kept by themselves take half as much. Else the pair is kept
    /// that was wanted.
    pub(super) fn is_worth_keeping(&self, part: &Part, base: &[u8], hasher: &KeyHasher) -> bool {
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
    pub(super) fn keep_pair(&self, key: &[u8], stamp: u32, keep: impl FnOnce(&Pairs)) {
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
    pub(super) fn lend(&self, bytes: u64) {
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
    pub(super) fn make_room(&self) {
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

    fn count_cached(&self, before: Option<&Arc<Interval>>, after: Option<&Arc<Interval>>) {
        let bytes =
            |interval: Option<&Arc<Interval>>| interval.map_or(0, |known| known.memory_bytes());
        self.cached_bytes.fetch_add(bytes(after), Ordering::Relaxed);
        self.cached_bytes.fetch_sub(bytes(before), Ordering::Relaxed);
    }

    /// A run of so many bytes and pairs was appended to an interval, which is `cached` now if it is in memory.
    /// `known` is what is kept of the run.
    pub(super) fn grow(
        &self,
        spot: Spot,
        bytes: u32,
        (pairs, known): (u16, &[u8]),
        cached: Option<Arc<Interval>>,
    ) {
        let row = self.row();
        let mut leaf = row.leaf(spot.leaf).write();
        leaf.note_run(spot.index, known);
        let entry = &mut leaf.entries[spot.index];
        entry.size += bytes;
        entry.pairs += pairs;
        entry.appended = entry.appended.saturating_add(u8::try_from(pairs).unwrap_or(u8::MAX));
        entry.runs = entry.runs.saturating_add(1);
        entry.stamp = self.stamp();
        // Who keeps it meanwhile kept the old one.
        let before = std::mem::replace(&mut entry.cached, cached);
        self.count_cached(before.as_ref(), entry.cached.as_ref());
        self.pairs.fetch_add(u64::from(pairs), Ordering::Relaxed);
        let mut sums = self.sums.write();
        sums.add(spot.leaf, u64::from(bytes));
        self.note_size(&sums);
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
        let more: u64 = fresh.iter().map(|new| u64::from(new.entry.known_pairs())).sum();
        self.pairs.fetch_add(more, Ordering::Relaxed);
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
        let less =
            gone.iter().filter_map(|entry| Some(entry.cached.as_ref()?.memory_bytes())).sum();
        self.cached_bytes.fetch_sub(less, Ordering::Relaxed);
    }

    /// Bytes of all intervals.
    #[inline]
    pub(super) fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Notes the sum of all sizes, which others ask for without a lock.
    fn note_size(&self, sums: &Sums) {
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
        let leaves =
            (0..row.len()).map(|number| row.leaf(number).read().memory_bytes()).sum::<u64>();
        leaves + row.memory_bytes() + self.sums.read().memory_bytes()
    }

    /// Gives all intervals and their anchors to `visit`, in order.
    pub(super) fn visit(&self, mut visit: impl FnMut(&[u8], &Entry)) {
        let row = self.row();
        for number in 0..row.len() {
            let leaf = row.leaf(number).read();
            for (index, entry) in leaf.entries.iter().enumerate() {
                visit(&leaf.anchor(index), entry);
            }
        }
    }

    /// The first coarse interval from leaf `from` on: its leaf and its anchor.
    pub(super) fn coarse(&self, from: usize) -> Option<(usize, Vec<u8>)> {
        let row = self.row();
        (from..row.len()).find_map(|number| {
            let leaf = row.leaf(number).read();
            let index = leaf.entries.iter().position(Entry::is_coarse)?;
            Some((number, leaf.anchor(index)))
        })
    }
}

/// Anchor of the interval behind one.
fn upper(row: &Row, leaf: &Leaf, spot: Spot) -> Option<Vec<u8>> {
    if spot.index + 1 < leaf.entries.len() {
        return Some(leaf.anchor(spot.index + 1));
    }
    row.first(spot.leaf + 1).map(<[u8]>::to_vec)
}

/// The part of `range` that lies in `0..len`.
fn clip(range: Range<usize>, len: usize) -> Range<usize> {
    range.start.min(len)..range.end.min(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::flex_db::{Content, Extra, Pair, RunWriter};

    fn interval(key: &[u8]) -> Arc<Interval> {
        let mut run = RunWriter::new(1);
        run.push(&Pair { key, version: 1, content: Content::Put(Extra::default(), b"value") });
        let mut bytes = Vec::new();
        run.finish(Some(key), &mut bytes);
        Arc::new(Interval::decode(bytes, &KeyHasher::new([1; 16])).unwrap())
    }

    fn found_at_open(count: u8) -> Index {
        let fresh = |number: u8| Fresh::new(vec![number], Entry::new(40, 1, 0, 1));
        Index::new((0..count).map(fresh).collect(), 1 << 20)
    }

    #[test]
    fn what_was_read_of_an_interval_that_went_is_not_taken_for_the_one_before_it() {
        // Nothing changed the one before since the store was opened: its stamp is that of the open.
        let index = found_at_open(100);
        for key in 1..100 {
            let placed = index.place(Some(&[key]), false, 0);
            let (_, stamp, _) = placed.sizes[0];
            index.replace(index.locate(&[key]).spot, 1, Vec::new());
            index.keep(&[key], &[(stamp, interval(&[key]))], false);
            index.keep_pair(&[key], stamp, |_| unreachable!("{key}"));
            assert!(index.with(&[key], |entry| entry.cached.is_none()), "{key}");
        }
    }

    #[test]
    fn who_asks_for_a_key_gets_the_interval_that_holds_it_while_others_come_and_go() {
        const KEY: u8 = 40;
        let index = found_at_open(60);
        for key in 1..60 {
            let (_, stamp, _) = index.place(Some(&[key]), false, 0).sizes[0];
            index.keep(&[key], &[(stamp, interval(&[key]))], false);
        }
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                // Those before the key become one, and many again.
                for _ in 0..20_000 {
                    let fresh = |number: u8| Fresh::new(vec![number], Entry::new(40, 1, 0, 1));
                    index.replace(index.locate(&[3]).spot, 30, vec![fresh(3)]);
                    index.replace(index.locate(&[3]).spot, 1, (3..33).map(fresh).collect());
                }
            });
            while !changes.is_finished() {
                let (found, _) = index.cached(Some(&[KEY]), false, false, 1);
                assert!(found.len() == 1 && found[0].pair(0).key == [KEY]);
                let (found, anchor) = index.cached(Some(&[KEY]), false, true, 1);
                assert!(found.len() == 1 && found[0].pair(0).key == [KEY]);
                assert_eq!(anchor.as_deref(), Some(&[KEY][..]));
                assert_eq!(index.place(Some(&[KEY]), false, 0).anchor, [KEY]);
                assert_eq!(index.locate(&[KEY]).anchor, [KEY]);
            }
        });
    }

    #[test]
    fn who_comes_by_once_takes_no_place_while_there_is_no_room() {
        let index = Index { budget_bytes: 20 * interval(&[1]).memory_bytes(), ..found_at_open(60) };
        let pass = |key: u8| {
            let (_, stamp, _) = index.place(Some(&[key]), false, 0).sizes[0];
            index.keep(&[key], &[(stamp, interval(&[key]))], true);
            index.with(&[key], |entry| entry.cached.is_some())
        };
        // There is room.
        assert!((1..=19).all(pass));
        assert!(!pass(30), "came by for the first time");
        assert!(!pass(31), "another one");
        assert!(pass(30), "came again");
    }

    #[test]
    fn what_is_lent_is_used_and_given_back() {
        let index = found_at_open(200);
        let size = interval(&[1]).memory_bytes();
        let index = Index { budget_bytes: 20 * size, ..index };
        let keep_all = || {
            for key in 0..200 {
                let (_, stamp, _) = index.place(Some(&[key]), false, 0).sizes[0];
                index.keep(&[key], &[(stamp, interval(&[key]))], false);
            }
        };
        keep_all();
        assert!(index.cached_bytes() <= 20 * size);
        index.lend(100 * size);
        keep_all();
        assert!((100 * size..=120 * size).contains(&index.cached_bytes()));
        index.lend(0);
        assert!(index.cached_bytes() <= 20 * size);
        let none = Index::new(Vec::new(), 0);
        none.lend(1 << 20);
        none.keep(b"", &[(none.place(None, false, 0).sizes[0].1, interval(b""))], false);
        assert_eq!(none.cached_bytes(), 0);
    }
}
