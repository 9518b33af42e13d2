//! A leaf of the sparse index: intervals side by side, their anchors one behind the other.
#![allow(clippy::indexing_slicing, reason = "as for the index")]

use super::LeafSums;
use super::tails::Tails;
use crate::engine::flex::interval::Interval;
use crate::engine::flex::lapsing::Lapsing;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An interval that was found when the store was opened: it holds several, and nobody has looked inside yet.
const COARSE: u16 = u16::MAX;
/// An interval that cannot be read as a whole: nobody knows how many pairs it has.
const UNREAD: u16 = COARSE - 1;
/// Most pairs of an interval that are counted.
pub(in crate::engine::flex) const PAIRS_COUNTED_MAX: u16 = UNREAD - 1;

/// What is known of an interval.
#[derive(Clone, Debug, Default)]
pub(in crate::engine::flex) struct Entry {
    /// The interval in memory.
    pub(in crate::engine::flex) cached: Option<Arc<Interval>>,
    /// Bytes in the space.
    pub(in crate::engine::flex) size: u32,
    /// Where its anchor ends among those of the leaf.
    anchor_end: u32,
    /// Changes with every change of the interval.
    pub(in crate::engine::flex) stamp: u32,
    /// Pairs, or [`COARSE`], or [`UNREAD`].
    pub(in crate::engine::flex) pairs: u16,
    /// Pairs of appended runs.
    pub(in crate::engine::flex) appended: u8,
    /// Runs.
    pub(in crate::engine::flex) runs: u8,
}

const _: () = assert!(size_of::<Entry>() == 24);

impl Entry {
    /// An interval of this size.
    pub(in crate::engine::flex) fn new(size: u32, pairs: u64, appended: u64, runs: u32) -> Self {
        Entry {
            size,
            pairs: u16::try_from(pairs).unwrap_or(COARSE).min(PAIRS_COUNTED_MAX),
            appended: u8::try_from(appended).unwrap_or(u8::MAX),
            runs: u8::try_from(runs).unwrap_or(u8::MAX),
            ..Entry::default()
        }
    }

    /// An interval of this size that cannot be read as a whole: as many runs as can, and what is before them, as one.
    pub(in crate::engine::flex) fn unread(size: u32, runs: u32) -> Self {
        Entry { pairs: UNREAD, ..Entry::new(size, 0, 0, runs) }
    }

    /// Whether it cannot be read as a whole.
    pub(in crate::engine::flex) fn is_unread(&self) -> bool {
        self.pairs == UNREAD
    }

    /// So many pairs were appended, in a run of so many bytes.
    pub(super) fn grow(&mut self, bytes: u32, pairs: u16) {
        self.size = self.size.saturating_add(bytes);
        if !self.is_unread() {
            self.pairs = self.pairs.saturating_add(pairs).min(PAIRS_COUNTED_MAX);
        }
        self.appended = self.appended.saturating_add(u8::try_from(pairs).unwrap_or(u8::MAX));
        self.runs = self.runs.saturating_add(1);
    }

    /// From now on it is known that it cannot be read as a whole.
    pub(super) fn note_unread(&mut self) {
        self.pairs = UNREAD;
    }

    /// Several intervals in which nobody has looked.
    pub(in crate::engine::flex) fn coarse(size: u32) -> Self {
        Entry { size, pairs: COARSE, ..Entry::default() }
    }

    /// Whether it is several intervals in which nobody has looked.
    pub(in crate::engine::flex) fn is_coarse(&self) -> bool {
        self.pairs == COARSE
    }

    /// About how many of its bytes are in appended runs: as if all pairs were of one size, which makes those that delete count as
    /// what they delete.
    pub(super) fn appended_bytes(&self) -> u64 {
        if self.is_unread() {
            return 0;
        }
        u64::from(self.size) * u64::from(self.appended) / u64::from(self.known_pairs().max(1))
    }

    /// Pairs, if somebody counted them.
    pub(super) fn known_pairs(&self) -> u16 {
        if self.is_coarse() || self.is_unread() { 0 } else { self.pairs }
    }
}

/// A new interval and its anchor.
#[derive(Clone, Debug, Default)]
pub(in crate::engine::flex) struct Fresh {
    pub(in crate::engine::flex) anchor: Vec<u8>,
    pub(in crate::engine::flex) entry: Entry,
    /// What is known of its appended runs.
    pub(in crate::engine::flex) tail: Vec<u8>,
    /// What of it does not count any more some time.
    pub(in crate::engine::flex) lapsing: Lapsing,
}

impl Fresh {
    /// An interval of which only the base run is there, or of whose runs nothing is known.
    pub(in crate::engine::flex) fn new(anchor: Vec<u8>, entry: Entry) -> Self {
        Fresh { anchor, entry, ..Fresh::default() }
    }
}

/// See the module's text. A search compares what all anchors begin with once, then numbers of four bytes, which lie side
/// by side, and goes to the rest of an anchor only where these are the same.
#[derive(Debug, Default)]
pub(super) struct Leaf {
    /// What all anchors begin with.
    shared: Box<[u8]>,
    /// The rest of each, one behind the other.
    rests: Vec<u8>,
    /// The first bytes of each rest, as a number in the same order.
    heads: Vec<u32>,
    pub(super) entries: Vec<Entry>,
    pub(super) tails: Tails,
    /// What of all its intervals together lapses when. Nobody knows of which one; by size, each has its share.
    pub(super) lapsing: Lapsing,
    /// Bytes that reads fetched in vain, because its intervals are in several places.
    owed: AtomicU64,
}

/// What a byte of a leaf that is brought together costs, in bytes that a read fetches in vain: it is read, written, and what it
/// leaves behind is collected.
const REWRITE_COST: u64 = 2;
/// Entries that a leaf makes room for when it is full.
const GROWTH: usize = 8;

/// The first four bytes of `rest` as a number in the same order.
fn head_of(rest: &[u8]) -> u32 {
    let mut bytes = [0; 4];
    bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u32::from_be_bytes(bytes)
}

/// How many bytes two keys have in common at their front.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Leaf {
    pub(super) fn new(fresh: Vec<Fresh>) -> Self {
        let mut leaf = Leaf::default();
        if let (Some(first), Some(last)) = (fresh.first(), fresh.last()) {
            // Anchors ascend: what the ends have in common, all have.
            leaf.shared = first.anchor[..common(&first.anchor, &last.anchor)].into();
            debug_assert!(fresh.iter().all(|fresh| fresh.anchor.starts_with(&leaf.shared)), "X1");
        }
        let shared = leaf.shared.len();
        leaf.entries.reserve_exact(fresh.len());
        leaf.heads.reserve_exact(fresh.len());
        leaf.rests.reserve_exact(fresh.iter().map(|fresh| fresh.anchor.len() - shared).sum());
        leaf.tails.splice(0..0, fresh.iter().map(|fresh| &*fresh.tail));
        for Fresh { anchor, mut entry, lapsing, .. } in fresh {
            leaf.lapsing.add_all(&lapsing);
            let rest = &anchor[shared..];
            leaf.rests.extend_from_slice(rest);
            leaf.heads.push(head_of(rest));
            entry.anchor_end = u32::try_from(leaf.rests.len()).unwrap_or(u32::MAX);
            leaf.entries.push(entry);
        }
        leaf
    }

    fn rest_start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.entries[before].anchor_end as usize)
    }

    /// Its anchor without what all share.
    fn rest(&self, index: usize) -> &[u8] {
        &self.rests[self.rest_start(index)..self.entries[index].anchor_end as usize]
    }

    pub(super) fn anchor(&self, index: usize) -> Vec<u8> {
        [&*self.shared, self.rest(index)].concat()
    }

    /// The interval that holds `key`, which is not below the first anchor; with `before`, the greatest key below it.
    #[inline]
    pub(super) fn index_of(&self, key: &[u8], before: bool) -> usize {
        self.count_until(key, before).saturating_sub(1)
    }

    /// How many anchors are `key` or before it; with `below`, before it.
    fn count_until(&self, key: &[u8], below: bool) -> usize {
        // To compare nothing, where there is no memory, takes a processor that masks its loads 80 ns.
        let rest = if self.shared.is_empty() { Some(key) } else { key.strip_prefix(&*self.shared) };
        let Some(rest) = rest else {
            return if *key < *self.shared { 0 } else { self.entries.len() };
        };
        let head = head_of(rest);
        let before = self.heads.partition_point(|other| *other < head);
        let same = self.heads[before..].partition_point(|other| *other == head);
        let (mut low, mut high) = (before, before + same);
        while low < high {
            let middle = low + (high - low) / 2;
            let anchor = self.rest(middle);
            if if below { anchor < rest } else { anchor <= rest } {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(super) fn size_before(&self, index: usize) -> u64 {
        self.entries[..index].iter().map(|entry| u64::from(entry.size)).sum()
    }

    pub(super) fn size(&self) -> u64 {
        self.size_before(self.entries.len())
    }

    /// Everything in it, to be put elsewhere.
    pub(super) fn take(&mut self) -> Vec<Fresh> {
        let fresh: Vec<Fresh> = (0..self.entries.len())
            .map(|index| Fresh {
                anchor: self.anchor(index),
                entry: self.entries[index].clone(),
                tail: self.tails.of(index).to_vec(),
                lapsing: self.lapsing_of(index..index + 1),
            })
            .collect();
        *self = Leaf::default();
        fresh
    }

    /// What of these intervals lapses when: their share by size.
    pub(super) fn lapsing_of(&self, range: Range<usize>) -> Lapsing {
        if self.lapsing.is_empty() {
            return Lapsing::default();
        }
        let part = self.entries[range].iter().map(|entry| u64::from(entry.size)).sum();
        self.lapsing.share(part, self.size())
    }

    /// From now on it is known what of these intervals lapses when.
    pub(super) fn set_lapsing<'e>(
        &mut self,
        range: Range<usize>,
        of_these: impl Iterator<Item = &'e Lapsing>,
    ) {
        if !self.lapsing.is_empty() {
            let all = self.size();
            let gone: u64 = self.entries[range].iter().map(|entry| u64::from(entry.size)).sum();
            self.lapsing = self.lapsing.share(all - gone, all);
        }
        of_these.for_each(|lapsing| self.lapsing.add_all(lapsing));
    }

    /// Replaces intervals; those that are gone.
    pub(super) fn splice(&mut self, range: Range<usize>, fresh: Vec<Fresh>) -> Vec<Entry> {
        if !fresh.iter().all(|fresh| fresh.anchor.starts_with(&self.shared)) {
            let mut all = self.take();
            let gone: Vec<Fresh> = all.splice(range, fresh).collect();
            *self = Leaf::new(all);
            return gone.into_iter().map(|gone| gone.entry).collect();
        }
        self.set_lapsing(range.clone(), fresh.iter().map(|fresh| &fresh.lapsing));
        let (start, shared) = (self.rest_start(range.start), self.shared.len());
        let end = self.rest_start(range.end);
        let mut at = start;
        let ends = fresh.iter().map(|fresh| {
            at += fresh.anchor.len() - shared;
            u32::try_from(at).unwrap_or(u32::MAX)
        });
        let ends: Vec<u32> = ends.collect();
        let rests = fresh.iter().flat_map(|fresh| fresh.anchor[shared..].iter().copied());
        reserve(&mut self.rests, at - start, GROWTH * GROWTH);
        self.rests.splice(start..end, rests);
        self.tails.splice(range.clone(), fresh.iter().map(|fresh| &*fresh.tail));
        reserve(&mut self.heads, fresh.len(), GROWTH);
        self.heads
            .splice(range.clone(), fresh.iter().map(|fresh| head_of(&fresh.anchor[shared..])));
        for entry in &mut self.entries[range.end..] {
            let moved = entry.anchor_end as usize - end + at;
            entry.anchor_end = u32::try_from(moved).unwrap_or(u32::MAX);
        }
        reserve(&mut self.entries, fresh.len(), GROWTH);
        let entries = fresh
            .into_iter()
            .zip(ends)
            .map(|(fresh, anchor_end)| Entry { anchor_end, ..fresh.entry });
        self.entries.splice(range, entries).collect()
    }

    /// Notes bytes that a read fetched in vain; whether that makes as many as it costs to bring the leaf together, since it
    /// was last so.
    pub(super) fn owe(&self, bytes: u64) -> bool {
        let before = self.owed.fetch_add(bytes, Ordering::Relaxed);
        let cost = self.cost();
        (before + bytes) / cost > before / cost
    }

    /// Whether as much is owed as it costs to bring the leaf together.
    pub(super) fn is_due(&self) -> bool {
        self.owed.load(Ordering::Relaxed) >= self.cost()
    }

    fn cost(&self) -> u64 {
        (REWRITE_COST * self.size()).max(1)
    }

    /// Nothing is owed any more: the leaf is written anew.
    pub(super) fn settle(&self) {
        self.owed.store(0, Ordering::Relaxed);
    }

    /// What all of its intervals have together, at this time, while this is the oldest snapshot.
    pub(super) fn sums(&self, now: u64, oldest: u64) -> LeafSums {
        let (count, let_go) = (self.entries.len(), self.lapsing.let_go(oldest));
        let expired = self.lapsing.expiries.expired(now).saturating_add(let_go);
        let mut sums = LeafSums { count, expired, let_go, ..LeafSums::default() };
        for entry in &self.entries {
            sums.size += entry.size as usize;
            sums.pairs += usize::from(entry.known_pairs());
            sums.runs += usize::from(entry.runs);
            sums.appended += entry.appended_bytes();
        }
        sums
    }

    /// Whether it is known where each run of an interval begins.
    pub(super) fn knows_runs(&self, index: usize) -> bool {
        self.entries[index].runs == 1 || !self.tails.of(index).is_empty()
    }

    /// A run is about to be appended to an interval: what is known of it.
    pub(super) fn note_run(&mut self, index: usize, known: &[u8]) {
        // Of all runs, or of none (T1).
        if self.knows_runs(index) {
            self.tails.push(index, known);
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let entries = self.entries.capacity() * size_of::<Entry>() + self.heads.capacity() * 4;
        let known = self.rests.capacity() + self.shared.len() + self.tails.memory_bytes();
        // Allocations have heads of their own.
        (known + entries + self.lapsing.memory_bytes() + size_of::<Self>() + 96) as u64
    }
}

/// Makes room for `more` elements, and a few beyond rather than twice as many.
fn reserve<T>(all: &mut Vec<T>, more: usize, growth: usize) {
    if all.capacity() - all.len() < more {
        all.reserve_exact(more + growth);
    }
}
