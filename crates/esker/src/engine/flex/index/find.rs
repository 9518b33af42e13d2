//! Looking into the index: which interval holds a key, where it is in the space, and what is to be read of it.
//!
//! # Concurrency
//! Any number look; each answer is good until the index changes, which `stamp` tells who kept it.
#![allow(clippy::indexing_slicing, reason = "as for the index")]

use super::leaf::{Entry, Leaf};
use super::row::Row;
use super::tails::{self, Wanted};
use super::{Index, LeafSums, Spot};
use crate::engine::flex::interval::Interval;
use esker_index::prefetch;
use smallvec::SmallVec;
use std::sync::Arc;

/// Intervals that a scan or a get usually takes at once: no memory is asked for to note so many.
pub(in crate::engine::flex) const USUAL: usize = 8;
/// Intervals one behind the other.
pub(in crate::engine::flex) type Intervals = SmallVec<[Arc<Interval>; USUAL]>;
/// Size and stamp of an interval, and the interval if it is in memory.
pub(in crate::engine::flex) type Known = (u32, u32, Option<Arc<Interval>>);

/// What the committer wants to know of an interval.
#[derive(Clone, Debug)]
pub(in crate::engine::flex) struct Located {
    pub(in crate::engine::flex) spot: Spot,
    /// In the intervals' part of the space.
    pub(in crate::engine::flex) offset: u64,
    pub(in crate::engine::flex) entry: Entry,
    pub(in crate::engine::flex) anchor: Vec<u8>,
    /// Anchor of the next interval.
    pub(in crate::engine::flex) upper: Option<Vec<u8>>,
}

/// Bytes that are read for a key.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::flex) struct Part {
    /// In the intervals' part of the space.
    pub(in crate::engine::flex) offset: u64,
    pub(in crate::engine::flex) size: usize,
    /// Of the interval.
    pub(in crate::engine::flex) stamp: u32,
    /// Number of the run; 0: the base run, or all.
    pub(in crate::engine::flex) run: usize,
    /// Whether it is all of the interval.
    pub(in crate::engine::flex) is_whole: bool,
    /// Whether it is known where each run begins.
    pub(in crate::engine::flex) is_known: bool,
    /// Whether it is known that the interval cannot be read as a whole.
    pub(in crate::engine::flex) is_unread: bool,
}

/// Of how many pairs of the first interval one is sure who looks ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::flex) enum First {
    /// It begins at the first one.
    All,
    /// It begins somewhere, and what lies behind costs little if it is missing.
    Half,
    /// It begins somewhere, and what lies behind costs much.
    None,
}

/// How far somebody looks, and whether at what is before: at intervals with about so many pairs, or so many bytes, and at so
/// many intervals at most.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::flex) struct Ahead {
    pub(in crate::engine::flex) reverse: bool,
    pub(in crate::engine::flex) pairs: usize,
    pub(in crate::engine::flex) size_bytes: u32,
    pub(in crate::engine::flex) intervals: usize,
    pub(in crate::engine::flex) first: First,
}

impl Ahead {
    /// One interval.
    pub(in crate::engine::flex) const ONE: Ahead =
        Ahead { reverse: false, pairs: 0, size_bytes: 0, intervals: 1, first: First::Half };
    /// What lies in the same block of the space, if intervals are much smaller.
    pub(in crate::engine::flex) const BLOCK: Ahead =
        Ahead { size_bytes: 4096, intervals: usize::MAX, ..Ahead::ONE };

    /// How many of these intervals that is.
    pub(super) fn of<'e>(self, entries: impl Iterator<Item = &'e Entry>) -> usize {
        let (mut pairs, mut bytes, mut count) = (0, 0, 0);
        let needed = entries.take(self.intervals.max(1)).take_while(|entry| {
            let is_needed = count == 0 || pairs < self.pairs || bytes < self.size_bytes;
            let own = usize::from(entry.known_pairs());
            pairs += match self.first {
                First::Half if count == 0 => own / 2,
                First::None if count == 0 => 0,
                _ => own,
            };
            bytes = bytes.saturating_add(entry.size);
            count += 1;
            is_needed
        });
        needed.count()
    }

    /// How many of them are read, from the first one on: all in one go, up to the last that is not in memory. Somebody has
    /// looked into them, if there are several.
    fn read_of<'e>(self, entries: impl Iterator<Item = &'e Entry> + Clone) -> usize {
        let known = entries.clone().take(self.of(entries)).take_while(|entry| !entry.is_coarse());
        let absent = known.enumerate().skip(1).filter(|(_, entry)| entry.cached.is_none());
        absent.last().map_or(0, |(number, _)| number) + 1
    }
}

/// Where intervals are that somebody wants to read.
#[derive(Clone, Debug)]
pub(in crate::engine::flex) struct Placed {
    /// In the intervals' part of the space.
    pub(in crate::engine::flex) offset: u64,
    pub(in crate::engine::flex) sizes: SmallVec<[Known; USUAL]>,
    pub(in crate::engine::flex) is_coarse: bool,
    pub(in crate::engine::flex) anchor: Vec<u8>,
    /// Anchor of the interval behind the last one.
    pub(in crate::engine::flex) upper: Option<Vec<u8>>,
}

/// All intervals of a leaf, and maybe of those behind it; none, if they are not wanted.
#[derive(Clone, Debug)]
pub(in crate::engine::flex) struct Neighbours {
    /// The first one.
    pub(in crate::engine::flex) spot: Spot,
    /// In the intervals' part of the space.
    pub(in crate::engine::flex) offset: u64,
    pub(in crate::engine::flex) anchors: Vec<Vec<u8>>,
    pub(in crate::engine::flex) sizes: Vec<u32>,
    /// Whether each is in memory.
    pub(in crate::engine::flex) cached: Vec<bool>,
    /// Runs.
    pub(in crate::engine::flex) runs: usize,
    /// Whether they are all of the same leaf.
    pub(in crate::engine::flex) is_of_one: bool,
    /// Bytes of appended runs, about.
    pub(in crate::engine::flex) appended: u64,
    /// Whether something in them has lapsed.
    pub(in crate::engine::flex) has_expired: bool,
    /// Bytes that stayed for snapshots that are gone, about.
    pub(in crate::engine::flex) let_go: u64,
    /// Anchor of the interval behind the last one; of none, that behind the leaf.
    pub(in crate::engine::flex) upper: Option<Vec<u8>>,
}

impl Neighbours {
    /// Bytes of all.
    pub(in crate::engine::flex) fn size_bytes(&self) -> u64 {
        self.sizes.iter().map(|size| u64::from(*size)).sum()
    }

    /// Of those of one leaf the ones from that on that holds `key`, up to so many bytes, but at least one.
    pub(in crate::engine::flex) fn part(mut self, key: &[u8], most: u64) -> Self {
        let all = self.size_bytes();
        let first = self.anchors.partition_point(|anchor| **anchor <= *key).saturating_sub(1);
        let size_of = |sizes: &[u32]| -> u64 { sizes.iter().map(|size| u64::from(*size)).sum() };
        let mut bytes = 0;
        let fits = self.sizes[first..].iter().take_while(|size| {
            bytes += u64::from(**size);
            bytes <= most
        });
        let end = (first + fits.count().max(1)).min(self.sizes.len());
        self.spot.index += first;
        self.offset += size_of(&self.sizes[..first]);
        self.upper = self.anchors.get(end).cloned().or(self.upper);
        self.anchors = self.anchors.drain(first..end).collect();
        self.sizes = self.sizes.drain(first..end).collect();
        self.cached = self.cached.drain(first..end).collect();
        self.appended = self.appended * self.size_bytes() / all.max(1);
        self.let_go = self.let_go.min(all) * self.size_bytes() / all.max(1);
        self
    }
}

/// What is in memory of the intervals from one on.
#[derive(Clone, Debug)]
pub(in crate::engine::flex) struct Cached {
    pub(in crate::engine::flex) intervals: Intervals,
    /// The key at which they end: that of the next interval, or in reverse the anchor of the last one.
    pub(in crate::engine::flex) end: Option<Vec<u8>>,
    pub(in crate::engine::flex) first: Seen,
}

/// Where an interval was seen: it is there still if one with its stamp is.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::flex) struct Seen {
    spot: Spot,
    stamp: u32,
}

impl Index {
    /// Calls `look` with the interval that holds `key`, under the leaf's lock.
    #[inline]
    pub(in crate::engine::flex) fn with<T>(&self, key: &[u8], look: impl FnOnce(&Entry) -> T) -> T {
        let row = self.row();
        let leaf = row.leaf(row.leaf_of(key)).read();
        look(&leaf.entries[leaf.index_of(key, false)])
    }

    /// The interval that holds `key` (`before`: the one that holds the greatest key below it) and those behind or before it in
    /// its leaf, as long as they are in memory and as far `ahead`; in that order.
    pub(in crate::engine::flex) fn cached(
        &self,
        key: Option<&[u8]>,
        before: bool,
        ahead: Ahead,
    ) -> Cached {
        let row = self.row();
        let (spot, leaf) = row.spot(key, before);
        let first = Seen { spot, stamp: leaf.entries[spot.index].stamp };
        let touched = |entry: &Entry| {
            let interval = entry.cached.as_ref()?;
            interval.touch_all();
            Some(Arc::clone(interval))
        };
        // Each is waited for when it is touched, but for those that began to come before.
        let fetch = |entry: &Entry| entry.cached.as_deref().map(prefetch::value);
        if ahead.reverse {
            let entries = leaf.entries[..=spot.index].iter().rev();
            let most = ahead.of(entries.clone());
            entries.clone().take(most).map_while(fetch).for_each(drop);
            let intervals: SmallVec<_> = entries.take(most).map_while(touched).collect();
            let last = intervals.len().checked_sub(1);
            let end = last.map(|behind| leaf.anchor(spot.index - behind));
            Cached { intervals, end, first }
        } else {
            let entries = leaf.entries[spot.index..].iter();
            let most = ahead.of(entries.clone());
            entries.clone().take(most).map_while(fetch).for_each(drop);
            let intervals: SmallVec<_> = entries.take(most).map_while(touched).collect();
            let last = intervals.len().checked_sub(1);
            let last = last.map(|ahead| Spot { index: spot.index + ahead, ..spot });
            let end = last.and_then(|last| upper(&row, &leaf, last));
            Cached { intervals, end, first }
        }
    }

    /// Which bytes to read for `key`: of the runs that may have a key of `byte` the last one, or of those before `seen`, if
    /// the interval is still as it was then; all of the interval without `byte`, or if nobody knows. `None` if nobody has
    /// looked inside.
    pub(in crate::engine::flex) fn part_of(
        &self,
        key: &[u8],
        byte: Option<u8>,
        (seen, below): (u32, usize),
    ) -> Option<Part> {
        let row = self.row();
        let place = row.leaf_of(key);
        let leaf = row.leaf(place).read();
        let index = leaf.index_of(key, false);
        let entry = &leaf.entries[index];
        if entry.is_coarse() {
            return None;
        }
        let offset = self.sums.read().before(place) + leaf.size_before(index);
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
            is_unread: entry.is_unread(),
        })
    }

    /// Where the interval that holds `key` is (`before`: the greatest key below it), with sizes and stamps of it and of those
    /// behind or before it in its leaf, as far `ahead`; none but the first one need be read for what is at the other end. In
    /// order of keys. It is looked for first where it was `seen`.
    pub(in crate::engine::flex) fn place(
        &self,
        key: Option<&[u8]>,
        before: bool,
        ahead: Ahead,
        seen: Option<Seen>,
    ) -> Placed {
        let row = self.row();
        // An interval with a stamp holds what it held, and maybe what one behind it did that went.
        let there =
            seen.and_then(|seen| Some((seen.spot, row.leaf_if_there(seen.spot, seen.stamp)?)));
        let (spot, leaf) = there.unwrap_or_else(|| row.spot(key, before));
        let Spot { leaf: place, index } = spot;
        let range = if ahead.reverse {
            index + 1 - ahead.read_of(leaf.entries[..=index].iter().rev())..index + 1
        } else {
            index..index + ahead.read_of(leaf.entries[index..].iter())
        };
        let known = |entry: &Entry| (entry.size, entry.stamp, entry.cached.clone());
        Placed {
            offset: self.sums.read().before(place) + leaf.size_before(range.start),
            sizes: leaf.entries[range.clone()].iter().map(known).collect(),
            is_coarse: leaf.entries[index].is_coarse(),
            anchor: leaf.anchor(range.start),
            upper: upper(&row, &leaf, Spot { leaf: place, index: range.end - 1 }),
        }
    }

    /// Everything about the interval that holds `key`.
    pub(in crate::engine::flex) fn locate(&self, key: &[u8]) -> Located {
        let row = self.row();
        let (spot, leaf) = row.spot(Some(key), false);
        self.located(&row, &leaf, spot)
    }

    /// The intervals of the leaf that holds `key`, if each was read and `is_wanted` says so; and those of the
    /// leaves behind it for which it does, too, while all have up to `most` bytes. What has expired is told as of `now`.
    pub(in crate::engine::flex) fn neighbours(
        &self,
        key: &[u8],
        (most, now): (u64, u64),
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
            runs: 0,
            is_of_one: true,
            appended: 0,
            has_expired: false,
            let_go: 0,
            upper: None,
        };
        let oldest = self.snapshots.oldest();
        let (mut behind, mut bytes) = (row.next(first), 0);
        for place in row.from(first) {
            let leaf = row.leaf(place).read();
            let sums = LeafSums { before: found.offset + bytes, ..leaf.sums(now, oldest) };
            let fits = place == first || bytes + sums.size as u64 <= most;
            if !fits
                || !is_wanted(&sums, place == first)
                || leaf.entries.iter().any(|entry| entry.is_coarse() || entry.is_unread())
            {
                break;
            }
            found.anchors.extend((0..sums.count).map(|index| leaf.anchor(index)));
            found.sizes.extend(leaf.entries.iter().map(|entry| entry.size));
            found.cached.extend(leaf.entries.iter().map(|entry| entry.cached.is_some()));
            bytes += sums.size as u64;
            found.runs += sums.runs;
            found.appended += sums.appended;
            found.has_expired |= sums.expired > 0;
            found.let_go = found.let_go.saturating_add(sums.let_go);
            found.is_of_one = place == first;
            behind = row.next(place);
        }
        found.upper = behind.and_then(|behind| row.first(behind)).map(<[u8]>::to_vec);
        found
    }

    /// The first anchor of the first leaf behind or at `key` of which all is known and `is_wanted` says so.
    pub(in crate::engine::flex) fn next_leaf(
        &self,
        key: &[u8],
        now: u64,
        is_wanted: &dyn Fn(&LeafSums) -> bool,
    ) -> Option<Vec<u8>> {
        let row = self.row();
        let oldest = self.snapshots.oldest();
        let mut leaves = row.from(row.leaf_of(key));
        let found = leaves.find(|place| {
            let leaf = row.leaf(*place).read();
            is_wanted(&leaf.sums(now, oldest))
                && !leaf.entries.iter().any(|entry| entry.is_coarse() || entry.is_unread())
        })?;
        row.first(found).map(<[u8]>::to_vec)
    }

    /// Where in an interval the runs begin that were appended to it, if that is known.
    pub(in crate::engine::flex) fn run_starts(&self, spot: Spot) -> Vec<usize> {
        let row = self.row();
        let leaf = row.leaf(spot.leaf).read();
        tails::starts(leaf.tails.of(spot.index), leaf.entries[spot.index].size)
    }

    /// Bytes and pairs of each run that was appended to an interval, if that is known.
    pub(in crate::engine::flex) fn run_sizes(&self, spot: Spot) -> Vec<(usize, usize)> {
        tails::sizes(self.row().leaf(spot.leaf).read().tails.of(spot.index)).collect()
    }

    /// Everything about the interval behind `spot`.
    pub(in crate::engine::flex) fn next(&self, spot: Spot) -> Option<Located> {
        let row = self.row();
        let leaf = row.leaf(spot.leaf).read();
        let next = if spot.index + 1 < leaf.entries.len() {
            Spot { index: spot.index + 1, ..spot }
        } else {
            Spot { leaf: row.next(spot.leaf)?, index: 0 }
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
}

/// Anchor of the interval behind one.
fn upper(row: &Row, leaf: &Leaf, spot: Spot) -> Option<Vec<u8>> {
    if spot.index + 1 < leaf.entries.len() {
        return Some(leaf.anchor(spot.index + 1));
    }
    row.first(row.next(spot.leaf)?).map(<[u8]>::to_vec)
}
