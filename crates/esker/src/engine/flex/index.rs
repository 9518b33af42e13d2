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

mod keep;
mod leaf;
mod row;
mod tails;

pub(super) use leaf::{Entry, Fresh};
use tails::Wanted;
pub(super) use tails::{byte_of, is_tail_of, tail_of, tail_of_run};

use super::interval::Interval;
use super::pairs::Pairs;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use keep::{Hands, MISSED, Missed, PASSED};
use leaf::Leaf;
use parking_lot::{Mutex, RwLock};
use row::Row;
pub(super) use row::Sums;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

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

/// How far somebody looks: at intervals with about so many pairs, and at so many intervals at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    pub(super) pairs: usize,
    pub(super) intervals: usize,
}

impl Ahead {
    /// One interval.
    pub(super) const ONE: Ahead = Ahead { pairs: 0, intervals: 1 };

    /// How many of these intervals that is.
    fn of<'e>(self, entries: impl Iterator<Item = &'e Entry>) -> usize {
        // Who looks begins anywhere in the first one.
        let mut pairs = 0;
        let mut share = 2;
        let needed = entries.take(self.intervals.max(1)).take_while(|entry| {
            let is_needed = share == 2 || pairs < self.pairs;
            pairs += usize::from(entry.known_pairs()) / share;
            share = 1;
            is_needed
        });
        needed.count()
    }
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
    /// it, in `reverse`) in its leaf, as long as they are in memory and as far `ahead`; in that order, and the key at which
    /// they end: that of the next interval, or in `reverse` the anchor of the last one.
    pub(super) fn cached(
        &self,
        key: Option<&[u8]>,
        before: bool,
        reverse: bool,
        ahead: Ahead,
    ) -> (Vec<Arc<Interval>>, Option<Vec<u8>>) {
        let row = self.row();
        let (spot, leaf) = row.spot(key, before);
        let touched = |entry: &Entry| {
            let interval = entry.cached.as_ref()?;
            interval.touch_all();
            Some(Arc::clone(interval))
        };
        if reverse {
            let entries = leaf.entries[..=spot.index].iter().rev();
            let most = ahead.of(entries.clone());
            let found: Vec<_> = entries.take(most).map_while(touched).collect();
            let end = found.len().checked_sub(1).map(|behind| leaf.anchor(spot.index - behind));
            (found, end)
        } else {
            let entries = leaf.entries[spot.index..].iter();
            let most = ahead.of(entries.clone());
            let found: Vec<_> = entries.take(most).map_while(touched).collect();
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

    /// Where the interval that holds `key` is (`before`: the greatest key below it), with sizes and stamps of it and of those
    /// behind it in its leaf, as far `ahead`, the last of which is not in memory.
    pub(super) fn place(&self, key: Option<&[u8]>, before: bool, ahead: Ahead) -> Placed {
        let row = self.row();
        let (spot, leaf) = row.spot(key, before);
        let offset = self.sums.read().before(spot.leaf) + leaf.size_before(spot.index);
        let first = &leaf.entries[spot.index];
        let known = |entry: &Entry| (entry.size, entry.stamp, entry.cached.clone());
        let mut sizes = vec![known(first)];
        let mut last = spot;
        if !first.is_coarse() {
            let entries = leaf.entries[spot.index..].iter();
            let behind = entries.clone().take(ahead.of(entries)).skip(1);
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

    /// Gives all intervals to `visit`, in order: the anchor of each, and what is known of its appended runs.
    pub(super) fn visit(&self, mut visit: impl FnMut(&[u8], &Entry, &[u8])) {
        let row = self.row();
        for number in 0..row.len() {
            let leaf = row.leaf(number).read();
            for (index, entry) in leaf.entries.iter().enumerate() {
                visit(&leaf.anchor(index), entry, leaf.tails.of(index));
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
mod tests;
