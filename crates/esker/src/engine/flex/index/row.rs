//! The row of leaves: which one holds a key, and how many bytes are before it.
#![allow(clippy::indexing_slicing, reason = "as for the index")]

use super::leaf::{Entry, Fresh, Leaf};
use super::{LEAF_CAPACITY, Spot, clip};
use parking_lot::{RwLock, RwLockReadGuard};
use std::ops::Range;

/// Leaves in order. A search looks at eight bytes of each anchor, behind what all of them share, which lie side by side.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// Each by itself: one that comes in between moves a pointer for each of those behind it, while everybody waits.
    #[expect(clippy::vec_box, reason = "pointers are moved instead of leaves")]
    leaves: Vec<Box<RwLock<Leaf>>>,
    firsts: Vec<Box<[u8]>>,
    heads: Vec<u64>,
    /// Bytes that all first anchors but the first one begin with.
    shared: usize,
}

/// Eight bytes of a key from `start` on, as a number in the same order.
#[inline]
fn head_of(key: &[u8], start: usize) -> u64 {
    let mut bytes = [0; 8];
    let rest = key.get(start..).unwrap_or_default();
    bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(bytes)
}

fn boxed(leaf: Leaf) -> Box<RwLock<Leaf>> {
    Box::new(RwLock::new(leaf))
}

impl Row {
    pub(super) fn new(leaves: Vec<Leaf>) -> Self {
        let firsts = leaves.iter().map(|leaf| leaf.anchor(0).into_boxed_slice()).collect();
        let leaves = leaves.into_iter().map(boxed).collect();
        let mut row = Row { leaves, firsts, heads: Vec::new(), shared: 0 };
        row.index();
        row
    }

    /// Bytes that all first anchors but the first one begin with.
    fn shared_now(&self) -> usize {
        match (self.firsts.get(1), self.firsts.last()) {
            (Some(a), Some(b)) => a.iter().zip(b).take_while(|(a, b)| a == b).count(),
            _ => 0,
        }
    }

    /// Finds out what the anchors share, and their heads behind it.
    fn index(&mut self) {
        let shared = self.shared_now();
        self.shared = shared;
        self.heads = self.firsts.iter().map(|first| head_of(first, shared)).collect();
    }

    pub(super) fn len(&self) -> usize {
        self.leaves.len()
    }

    pub(super) fn leaf(&self, number: usize) -> &RwLock<Leaf> {
        &self.leaves[number]
    }

    /// First anchor of a leaf.
    pub(super) fn first(&self, number: usize) -> Option<&[u8]> {
        self.firsts.get(number).map(|first| &**first)
    }

    pub(super) fn sizes(&self) -> impl Iterator<Item = u64> {
        self.leaves.iter().map(|leaf| leaf.read().size())
    }

    /// How many leaves begin at `key` or before; with `below`, before.
    #[inline]
    fn count_until(&self, key: &[u8], below: bool) -> usize {
        let Some(second) = self.firsts.get(1) else { return 1 };
        let shared = &second[..self.shared];
        let beginning = key.get(..self.shared).unwrap_or(key);
        if beginning != shared {
            return if beginning < shared { 1 } else { self.firsts.len() };
        }
        let head = head_of(key, self.shared);
        let heads = &self.heads[1..];
        let before = 1 + heads.partition_point(|other| *other < head);
        let until = before + heads[before - 1..].partition_point(|other| *other == head);
        let equal = &self.firsts[before..until];
        before + equal.partition_point(|first| if below { **first < *key } else { **first <= *key })
    }

    /// The leaf that holds `key`.
    #[inline]
    pub(super) fn leaf_of(&self, key: &[u8]) -> usize {
        self.count_until(key, false).saturating_sub(1)
    }

    /// The interval that holds `key`, or with `before` the greatest key below it; `None`: behind all keys. With its leaf,
    /// locked: a leaf that is let go has other intervals a moment later.
    pub(super) fn spot(
        &self,
        key: Option<&[u8]>,
        before: bool,
    ) -> (Spot, RwLockReadGuard<'_, Leaf>) {
        let number = match key {
            Some(key) => self.count_until(key, before).saturating_sub(1),
            None => self.len() - 1,
        };
        let leaf = self.leaves[number].read();
        let index = match key {
            Some(key) => leaf.index_of(key, before),
            None => leaf.entries.len() - 1,
        };
        (Spot { leaf: number, index }, leaf)
    }

    /// The leaf of a spot, locked, if the interval there has this stamp.
    #[inline]
    pub(super) fn leaf_if_there(
        &self,
        spot: Spot,
        stamp: u32,
    ) -> Option<RwLockReadGuard<'_, Leaf>> {
        let leaf = self.leaves.get(spot.leaf)?.read();
        let is_there = leaf.entries.get(spot.index).is_some_and(|entry| entry.stamp == stamp);
        is_there.then_some(leaf)
    }

    /// Replaces intervals over the ends of leaves; those that are gone. `sums` follows.
    pub(super) fn splice(
        &mut self,
        spot: Spot,
        count: usize,
        fresh: Vec<Fresh>,
        sums: &mut Sums,
    ) -> Vec<Entry> {
        // All leaves that lose something become one, which is cut anew.
        let mut all = self.leaves[spot.leaf].get_mut().take();
        let mut last = spot.leaf + 1;
        while all.len() < spot.index + count && last < self.len() {
            all.extend(self.leaves[last].get_mut().take());
            last += 1;
        }
        let range = clip(spot.index..spot.index + count, all.len());
        let at_end = last == self.len() && range.end == all.len();
        let gone: Vec<Fresh> = all.splice(range, fresh).collect();
        if let (0, Some(first)) = (spot.leaf, all.first_mut()) {
            // The first interval holds what is below all anchors.
            first.anchor.clear();
        }
        if all.is_empty() && spot.leaf == 0 {
            match self.leaves.get_mut(last) {
                None => all.push(Fresh::default()),
                Some(leaf) => {
                    all = leaf.get_mut().take();
                    all.iter_mut().take(1).for_each(|first| first.anchor.clear());
                    last += 1;
                }
            }
        }
        // Keys that come in order fill leaves.
        let step = if at_end { LEAF_CAPACITY } else { LEAF_CAPACITY / 2 };
        let mut leaves = Vec::new();
        if all.len() <= LEAF_CAPACITY && !all.is_empty() {
            leaves.push(Leaf::new(all));
        } else {
            let mut rest = all.into_iter().peekable();
            while rest.peek().is_some() {
                leaves.push(Leaf::new(rest.by_ref().take(step).collect()));
            }
        }
        let firsts: Vec<Box<[u8]>> =
            leaves.iter().map(|leaf| leaf.anchor(0).into_boxed_slice()).collect();
        sums.splice(spot.leaf..last, leaves.iter().map(Leaf::size));
        self.leaves.splice(spot.leaf..last, leaves.into_iter().map(boxed));
        let shared = self.shared;
        let heads = firsts.iter().map(|first| head_of(first, shared));
        self.heads.splice(spot.leaf..last, heads);
        self.firsts.splice(spot.leaf..last, firsts);
        if self.shared_now() != shared {
            self.index();
        }
        gone.into_iter().map(|gone| gone.entry).collect()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // The leaf itself counts for it.
        let lock = size_of::<RwLock<Leaf>>() - size_of::<Leaf>() + size_of::<Box<Leaf>>() + 16;
        let leaf = lock + size_of::<Box<[u8]>>() + 8;
        let firsts: usize = self.firsts.iter().map(|first| first.len() + 16).sum();
        (self.leaves.capacity() * leaf + firsts) as u64
    }
}

/// Sums of the sizes of leaves, or of whatever stands side by side: a Fenwick tree.
#[derive(Debug, Default)]
pub(in crate::engine::flex) struct Sums {
    tree: Vec<u64>,
    sizes: Vec<u64>,
}

impl Sums {
    pub(super) fn rebuild(&mut self, sizes: impl Iterator<Item = u64>) {
        self.splice(0..self.sizes.len(), sizes);
    }

    /// Replaces the sizes of some leaves. Sums of those before them stay.
    pub(in crate::engine::flex) fn splice(
        &mut self,
        leaves: Range<usize>,
        sizes: impl Iterator<Item = u64>,
    ) {
        self.tree.truncate(leaves.start);
        self.sizes.splice(leaves, sizes);
        self.tree.reserve(self.sizes.len() - self.tree.len());
        (self.tree.len()..self.sizes.len()).for_each(|number| self.push_sum(self.sizes[number]));
    }

    /// Adds one behind the others.
    pub(in crate::engine::flex) fn push(&mut self, size: u64) {
        self.sizes.push(size);
        self.push_sum(size);
    }

    /// Adds the sum that the next size belongs to.
    fn push_sum(&mut self, size: u64) {
        let end = self.tree.len() + 1;
        let first = end & (end - 1);
        let (mut below, mut sum) = (end - 1, size);
        while below > first {
            sum += self.tree[below - 1];
            below &= below - 1;
        }
        self.tree.push(sum);
    }

    /// Bytes of the leaf `number`.
    pub(in crate::engine::flex) fn of(&self, number: usize) -> u64 {
        self.sizes[number]
    }

    /// Bytes of the leaves before `number`.
    pub(in crate::engine::flex) fn before(&self, number: usize) -> u64 {
        let (mut index, mut sum) = (number, 0);
        while index > 0 {
            sum += self.tree[index - 1];
            index &= index - 1;
        }
        sum
    }

    pub(in crate::engine::flex) fn total(&self) -> u64 {
        self.before(self.tree.len())
    }

    pub(super) fn add(&mut self, number: usize, bytes: u64) {
        self.set(number, self.sizes[number] + bytes);
    }

    pub(in crate::engine::flex) fn set(&mut self, number: usize, bytes: u64) {
        let by = bytes.wrapping_sub(self.sizes[number]);
        self.sizes[number] = bytes;
        let mut index = number + 1;
        while index <= self.tree.len() {
            self.tree[index - 1] = self.tree[index - 1].wrapping_add(by);
            index += index & index.wrapping_neg();
        }
    }

    pub(in crate::engine::flex) fn memory_bytes(&self) -> u64 {
        ((self.tree.capacity() + self.sizes.capacity()) * 8) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    #[test]
    fn a_leaf_that_comes_in_between_moves_no_other() {
        let leaf = |number: u8| Leaf::new(vec![Fresh::new(vec![number], Entry::new(9, 1, 0, 1))]);
        let mut row = Row::new((0..100).map(leaf).collect());
        let mut sums = Sums::default();
        sums.rebuild(row.sizes());
        let at = |row: &Row, number: usize| std::ptr::from_ref(row.leaf(number)).addr();
        let (first, last) = (at(&row, 3), at(&row, 99));
        let fresh = (50..200)
            .map(|number| Fresh::new([vec![50], vec![number]].concat(), Entry::new(9, 1, 0, 1)));
        row.splice(Spot { leaf: 50, index: 0 }, 1, fresh.collect(), &mut sums);
        assert_eq!((at(&row, 3), at(&row, row.len() - 1)), (first, last));
        assert_eq!(sums.total(), (99 + 150) * 9);
    }

    #[test]
    fn sums_agree_with_a_list_and_those_before_a_change_are_left_alone() {
        let mut rng = Rng::from_seed(3);
        let (mut sums, mut model) = (Sums::default(), Vec::new());
        for _ in 0..500 {
            let start = rng.index(model.len() + 1);
            let end = start + rng.index(model.len() - start + 1).min(4);
            let new: Vec<u64> = (0..rng.index(6)).map(|_| rng.below(100)).collect();
            // Sums before it that are wrong stay so.
            let marked = start > 0 && rng.chance(1, 2);
            if marked {
                sums.tree[0] += 1000;
            }
            sums.splice(start..end, new.iter().copied());
            model.splice(start..end, new);
            if marked {
                assert!(sums.tree[0] >= 1000, "it was made anew");
                sums.tree[0] -= 1000;
                sums.splice(1..model.len(), model[1..].iter().copied());
            }
            sums.push(7);
            model.push(7);
            for number in 0..=model.len() {
                assert_eq!(sums.before(number), model[..number].iter().sum::<u64>());
            }
            assert_eq!(sums.total(), model.iter().sum::<u64>());
        }
    }
}
