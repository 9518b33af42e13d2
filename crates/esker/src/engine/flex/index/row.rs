//! The row of leaves: which one holds a key, and how many bytes are before it.
//!
//! Sections of up to 512 leaves, side by side: a leaf that comes in between moves those of its section, a section the other
//! sections, so that it costs microseconds with 10^9 pairs, too, while everybody waits.
#![allow(clippy::indexing_slicing, reason = "as for the index")]

use super::anchors::Anchors;
use super::leaf::{Entry, Fresh, Leaf};
use super::sums::RowSums;
use super::{LEAF_CAPACITY, Spot, clip};
use parking_lot::{RwLock, RwLockReadGuard};
use std::ops::Range;

/// Most leaves of a section.
const SECTION_CAPACITY: usize = 512;
/// Leaves of a section that an open makes.
const SECTION_FOUND: usize = SECTION_CAPACITY / 4 * 3;

/// Where a leaf stands in the row; good until the row changes. The first one is the default. Who goes on from a place of before
/// meets what stood behind it, unless a section before it has gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine::flex) struct Place {
    pub(super) section: usize,
    pub(super) leaf: usize,
}

#[derive(Debug)]
struct Section {
    /// Each by itself: readers of one do not touch the lines of the next, and one that comes in between moves pointers.
    #[expect(clippy::vec_box, reason = "pointers are moved instead of leaves")]
    leaves: Vec<Box<RwLock<Leaf>>>,
    /// The first one of each.
    anchors: Anchors,
}

/// Leaves in order: one at least, and no section without one.
#[derive(Debug, Default)]
pub(super) struct Row {
    sections: Vec<Section>,
    /// The first one of each section.
    anchors: Anchors,
    leaves: usize,
}

fn anchors_of(leaves: &[Leaf]) -> Vec<Box<[u8]>> {
    leaves.iter().map(|leaf| leaf.anchor(0).into_boxed_slice()).collect()
}

fn boxed(leaf: Leaf) -> Box<RwLock<Leaf>> {
    Box::new(RwLock::new(leaf))
}

impl Section {
    fn new(leaves: Vec<Leaf>) -> Self {
        let anchors = Anchors::new(anchors_of(&leaves));
        Section { leaves: leaves.into_iter().map(boxed).collect(), anchors }
    }

    fn first(&self) -> Box<[u8]> {
        self.anchors.get(0).unwrap_or_default().into()
    }

    fn sizes(&self) -> impl Iterator<Item = u64> {
        self.leaves.iter().map(|leaf| leaf.read().size())
    }
}

impl Row {
    /// A row of these leaves, one at least, and their sums.
    pub(super) fn new(leaves: Vec<Leaf>) -> (Self, RowSums) {
        let mut row = Row { leaves: leaves.len(), ..Row::default() };
        let mut sums = RowSums::default();
        let mut leaves = leaves.into_iter().peekable();
        while leaves.peek().is_some() {
            let section = Section::new(leaves.by_ref().take(SECTION_FOUND).collect());
            sums.push(section.sizes());
            row.sections.push(section);
        }
        row.anchors = Anchors::new(row.sections.iter().map(Section::first).collect());
        (row, sums)
    }

    /// Number of leaves.
    pub(super) fn len(&self) -> usize {
        self.leaves
    }

    pub(super) fn leaf(&self, place: Place) -> &RwLock<Leaf> {
        &self.sections[place.section].leaves[place.leaf]
    }

    fn take(&mut self, place: Place) -> Vec<Fresh> {
        self.sections[place.section].leaves[place.leaf].get_mut().take()
    }

    /// First anchor of a leaf.
    pub(super) fn first(&self, place: Place) -> Option<&[u8]> {
        self.sections.get(place.section)?.anchors.get(place.leaf)
    }

    /// All leaves from a place on, in order. Of one that is there no more, those behind it.
    pub(super) fn from(&self, place: Place) -> impl Iterator<Item = Place> {
        (place.section..self.sections.len()).flat_map(move |section| {
            let first = if section == place.section { place.leaf } else { 0 };
            (first..self.sections[section].leaves.len()).map(move |leaf| Place { section, leaf })
        })
    }

    /// The leaf behind one.
    pub(super) fn next(&self, place: Place) -> Option<Place> {
        self.from(Place { leaf: place.leaf + 1, ..place }).next()
    }

    #[inline]
    fn place_of(&self, key: &[u8], below: bool) -> Place {
        let section = self.anchors.last_until(key, below);
        Place { section, leaf: self.sections[section].anchors.last_until(key, below) }
    }

    /// The leaf that holds `key`.
    #[inline]
    pub(super) fn leaf_of(&self, key: &[u8]) -> Place {
        self.place_of(key, false)
    }

    /// The interval that holds `key`, or with `before` the greatest key below it; `None`: behind all keys. With its leaf,
    /// locked: a leaf that is let go has other intervals a moment later.
    pub(super) fn spot(
        &self,
        key: Option<&[u8]>,
        before: bool,
    ) -> (Spot, RwLockReadGuard<'_, Leaf>) {
        let place = key.map_or_else(|| self.last(), |key| self.place_of(key, before));
        let leaf = self.leaf(place).read();
        let index = match key {
            Some(key) => leaf.index_of(key, before),
            None => leaf.entries.len() - 1,
        };
        (Spot { leaf: place, index }, leaf)
    }

    fn last(&self) -> Place {
        let section = self.sections.len() - 1;
        Place { section, leaf: self.sections[section].leaves.len() - 1 }
    }

    /// The leaf of a spot, locked, if the interval there has this stamp.
    #[inline]
    pub(super) fn leaf_if_there(
        &self,
        spot: Spot,
        stamp: u32,
    ) -> Option<RwLockReadGuard<'_, Leaf>> {
        let leaf = self.sections.get(spot.leaf.section)?.leaves.get(spot.leaf.leaf)?.read();
        let is_there = leaf.entries.get(spot.index).is_some_and(|entry| entry.stamp == stamp);
        is_there.then_some(leaf)
    }

    /// Replaces intervals over the ends of leaves; those that are gone. `sums` follows.
    pub(super) fn splice(
        &mut self,
        spot: Spot,
        count: usize,
        fresh: Vec<Fresh>,
        sums: &mut RowSums,
    ) -> Vec<Entry> {
        let is_first = spot.leaf == Place::default();
        // All leaves that lose something become one, which is cut anew.
        let mut all = self.take(spot.leaf);
        let mut behind = self.next(spot.leaf);
        while all.len() < spot.index + count
            && let Some(next) = behind
        {
            all.extend(self.take(next));
            behind = self.next(next);
        }
        let range = clip(spot.index..spot.index + count, all.len());
        let at_end = behind.is_none() && range.end == all.len();
        let gone: Vec<Fresh> = all.splice(range, fresh).collect();
        if let (true, Some(first)) = (is_first, all.first_mut()) {
            // The first interval holds what is below all anchors.
            first.anchor.clear();
        }
        if all.is_empty() && is_first {
            match behind {
                None => all.push(Fresh::default()),
                Some(next) => {
                    all = self.take(next);
                    all.iter_mut().take(1).for_each(|first| first.anchor.clear());
                    behind = self.next(next);
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
        self.replace(spot.leaf, behind, leaves, sums);
        // And sections.
        let step = if at_end { SECTION_CAPACITY } else { SECTION_CAPACITY / 2 };
        self.cut(spot.leaf.section, step, sums);
        gone.into_iter().map(|gone| gone.entry).collect()
    }

    /// Replaces the leaves from `first` to those `behind`.
    fn replace(
        &mut self,
        first: Place,
        behind: Option<Place>,
        leaves: Vec<Leaf>,
        sums: &mut RowSums,
    ) {
        let behind = behind.unwrap_or(Place { section: self.sections.len(), leaf: 0 });
        let mut own = first.leaf..behind.leaf;
        if behind.section > first.section {
            if behind.leaf > 0 {
                self.replace_in(behind.section, 0..behind.leaf, Vec::new(), sums);
            }
            self.remove(first.section + 1..behind.section, sums);
            own.end = self.sections[first.section].leaves.len();
        }
        self.replace_in(first.section, own, leaves, sums);
        if self.sections[first.section].leaves.is_empty() {
            self.remove(first.section..first.section + 1, sums);
        }
    }

    fn replace_in(
        &mut self,
        number: usize,
        those: Range<usize>,
        leaves: Vec<Leaf>,
        sums: &mut RowSums,
    ) {
        sums.splice(number, those.clone(), leaves.iter().map(Leaf::size));
        self.leaves = self.leaves + leaves.len() - those.len();
        let section = &mut self.sections[number];
        section.anchors.splice(those.clone(), anchors_of(&leaves));
        section.leaves.splice(those.clone(), leaves.into_iter().map(boxed));
        if those.start == 0 {
            let first = section.first();
            self.anchors.splice(number..number + 1, vec![first]);
        }
    }

    fn remove(&mut self, those: Range<usize>, sums: &mut RowSums) {
        if those.is_empty() {
            return;
        }
        sums.remove(those.clone());
        let gone: usize = self.sections.drain(those.clone()).map(|gone| gone.leaves.len()).sum();
        self.leaves -= gone;
        self.anchors.splice(those, Vec::new());
    }

    /// Cuts a section that has too many leaves into ones of `step`.
    fn cut(&mut self, number: usize, step: usize, sums: &mut RowSums) {
        let mut number = number;
        while self.sections.get(number).is_some_and(|all| all.leaves.len() > SECTION_CAPACITY) {
            sums.cut(Place { section: number, leaf: step });
            let section = &mut self.sections[number];
            let leaves = section.leaves.split_off(step);
            let rest = Section { leaves, anchors: section.anchors.split_off(step) };
            number += 1;
            self.anchors.splice(number..number, vec![rest.first()]);
            self.sections.insert(number, rest);
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // The leaf itself counts for it.
        let lock = size_of::<RwLock<Leaf>>() - size_of::<Leaf>() + size_of::<Box<Leaf>>() + 16;
        let of_section = |section: &Section| {
            (section.leaves.capacity() * lock + size_of::<Section>()) as u64
                + section.anchors.memory_bytes()
        };
        self.sections.iter().map(of_section).sum::<u64>() + self.anchors.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;
    use std::collections::BTreeMap;

    fn entry(size: u32) -> Entry {
        Entry::new(size, 1, 0, 1)
    }

    fn row_of(count: u32) -> (Row, RowSums) {
        let leaf =
            |number: u32| Leaf::new(vec![Fresh::new(number.to_be_bytes().to_vec(), entry(9))]);
        Row::new((0..count).map(leaf).collect())
    }

    fn at(row: &Row, key: u32) -> usize {
        std::ptr::from_ref(row.leaf(row.leaf_of(&key.to_be_bytes()))).addr()
    }

    #[test]
    fn a_leaf_that_comes_in_between_moves_no_other() {
        let (mut row, mut sums) = row_of(100);
        let (first, last) = (at(&row, 3), at(&row, 99));
        let fresh = (50..200_u8)
            .map(|number| Fresh::new([&50_u32.to_be_bytes()[..], &[number]].concat(), entry(9)));
        let (spot, leaf) = row.spot(Some(&50_u32.to_be_bytes()), false);
        drop(leaf);
        row.splice(spot, 1, fresh.collect(), &mut sums);
        assert_eq!((at(&row, 3), at(&row, 99)), (first, last));
        assert_eq!(sums.total(), (99 + 150) * 9);
    }

    /// Sections are cut, and go.
    #[test]
    fn a_row_of_many_sections_agrees_with_a_map() {
        for seed in 0..4 {
            let mut rng = Rng::from_seed(seed);
            let (mut row, mut sums) = row_of(3000);
            let key_of = |number: u32| number.to_be_bytes().to_vec();
            let mut model: BTreeMap<Vec<u8>, u32> =
                (0..3000).map(|number| (key_of(number), 9)).collect();
            let mut most = 0;
            for step in 0..150 {
                let number = rng.index(model.len() + 1);
                let key = model.keys().nth(number).cloned();
                let (spot, leaf) = row.spot(key.as_deref(), false);
                let from = leaf.anchor(spot.index);
                drop(leaf);
                let count = 1 + if rng.chance(1, 6) { rng.index(30_000) } else { rng.index(90) };
                let mut gone = model.split_off(&from);
                let mut behind: Vec<(Vec<u8>, u32)> = Vec::new();
                while gone.len() > count {
                    behind.extend(gone.pop_last());
                }
                let upper = behind.last().map(|(key, _)| key);
                let most_own = if rng.chance(1, 12) { 20_000 } else { 100 };
                let mut own = vec![from.clone()];
                let end = |rng: &mut Rng| rng.next_u64().to_be_bytes();
                own.extend((0..rng.index(most_own)).map(|_| [&*from, &end(&mut rng)].concat()));
                own.retain(|key| upper.is_none_or(|upper| key < upper));
                own.sort();
                own.dedup();
                if rng.chance(1, 4) {
                    own.clear();
                }
                let own: Vec<(Vec<u8>, u32)> = own
                    .into_iter()
                    .map(|key| (key, u32::from(rng.next_u64().to_be_bytes()[0])))
                    .collect();
                let fresh = own.iter().map(|(key, size)| Fresh::new(key.clone(), entry(*size)));
                let entries = row.splice(spot, count, fresh.collect(), &mut sums);
                assert_eq!(entries.len(), gone.len(), "seed {seed}, step {step}");
                model.extend(own.into_iter().chain(behind));
                // The first interval holds what is below all anchors; of none there is one that is empty.
                if spot.leaf == Place::default() && spot.index == 0 {
                    let size = model.pop_first().map_or(0, |(_, size)| size);
                    model.insert(Vec::new(), size);
                }
                agree(&row, &sums, &model);
                most = most.max(row.sections.len());
            }
            assert!(most > 6, "seed {seed}: {most} sections at most");
        }
    }

    fn agree(row: &Row, sums: &RowSums, model: &BTreeMap<Vec<u8>, u32>) {
        let mut model = model.iter();
        let (mut before, mut leaves) = (0, 0);
        for place in row.from(Place::default()) {
            let leaf = row.leaf(place).read();
            assert_eq!(row.first(place), Some(&*leaf.anchor(0)));
            assert_eq!(sums.before(place), before);
            before += leaf.size();
            leaves += 1;
            for (index, entry) in leaf.entries.iter().enumerate() {
                let (anchor, size) = model.next().unwrap();
                assert_eq!((&leaf.anchor(index), entry.size), (anchor, *size));
            }
            assert_eq!(row.leaf_of(&leaf.anchor(0)), place);
            assert_eq!(row.leaf_of(&leaf.anchor(leaf.entries.len() - 1)), place);
        }
        assert!(model.next().is_none());
        assert_eq!((row.len(), sums.total()), (leaves, before));
        for (number, section) in row.sections.iter().enumerate() {
            assert!((1..=SECTION_CAPACITY).contains(&section.leaves.len()));
            assert_eq!(row.anchors.get(number), section.anchors.get(0));
        }
    }
}
