//! A leaf of the sparse index: intervals side by side, their anchors one behind the other.
#![allow(clippy::indexing_slicing, reason = "as for the index")]

use crate::engine::flex::interval::Interval;
use std::ops::Range;
use std::sync::Arc;

/// An interval that was found when the store was opened: it holds several, and nobody has looked inside yet.
const COARSE: u16 = u16::MAX;

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
    /// Pairs, or [`COARSE`].
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
            pairs: u16::try_from(pairs).unwrap_or(COARSE).min(COARSE - 1),
            appended: u8::try_from(appended).unwrap_or(u8::MAX),
            runs: u8::try_from(runs).unwrap_or(u8::MAX),
            ..Entry::default()
        }
    }

    /// Several intervals in which nobody has looked.
    pub(in crate::engine::flex) fn coarse(size: u32) -> Self {
        Entry { size, pairs: COARSE, ..Entry::default() }
    }

    /// Whether it is several intervals in which nobody has looked.
    pub(in crate::engine::flex) fn is_coarse(&self) -> bool {
        self.pairs == COARSE
    }

    /// Pairs, if somebody counted them.
    pub(super) fn known_pairs(&self) -> u16 {
        if self.is_coarse() { 0 } else { self.pairs }
    }
}

/// A new interval and its anchor.
#[derive(Clone, Debug, Default)]
pub(in crate::engine::flex) struct Fresh {
    pub(in crate::engine::flex) anchor: Vec<u8>,
    pub(in crate::engine::flex) entry: Entry,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Leaf {
    anchors: Vec<u8>,
    pub(super) entries: Vec<Entry>,
}

impl Leaf {
    pub(super) fn new(fresh: Vec<Fresh>) -> Self {
        let mut leaf = Leaf::default();
        leaf.entries.reserve_exact(fresh.len());
        leaf.anchors.reserve_exact(fresh.iter().map(|fresh| fresh.anchor.len()).sum());
        for Fresh { anchor, mut entry } in fresh {
            leaf.anchors.extend_from_slice(&anchor);
            entry.anchor_end = u32::try_from(leaf.anchors.len()).unwrap_or(u32::MAX);
            leaf.entries.push(entry);
        }
        leaf
    }

    fn anchor_start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.entries[before].anchor_end as usize)
    }

    pub(super) fn anchor(&self, index: usize) -> &[u8] {
        &self.anchors[self.anchor_start(index)..self.entries[index].anchor_end as usize]
    }

    /// The interval that holds `key`, which is not below the first anchor.
    #[inline]
    pub(super) fn index_of(&self, key: &[u8]) -> usize {
        self.count_until(|anchor| anchor <= key).saturating_sub(1)
    }

    /// How many anchors there are at the front for which this is so.
    pub(super) fn count_until(&self, is_so: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.entries.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if is_so(self.anchor(middle)) {
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
        let anchors: Vec<Vec<u8>> =
            (0..self.entries.len()).map(|index| self.anchor(index).to_vec()).collect();
        let entries = std::mem::take(&mut self.entries);
        anchors.into_iter().zip(entries).map(|(anchor, entry)| Fresh { anchor, entry }).collect()
    }

    /// Replaces intervals; those that are gone.
    pub(super) fn splice(&mut self, range: Range<usize>, fresh: Vec<Fresh>) -> Vec<Entry> {
        let mut all = self.take();
        let gone: Vec<Fresh> = all.splice(range, fresh).collect();
        *self = Leaf::new(all);
        gone.into_iter().map(|gone| gone.entry).collect()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let entries = self.entries.capacity() * size_of::<Entry>();
        (self.anchors.capacity() + entries + size_of::<Self>() + 16) as u64
    }
}
