//! Sums of sizes of what stands side by side, found and changed in log n steps.
#![allow(clippy::indexing_slicing, reason = "as for the index")]

use super::row::Place;
use std::ops::Range;

/// Sums of the sizes of leaves of one section, or of whatever stands side by side: a Fenwick tree.
#[derive(Debug, Default)]
pub(in crate::engine::flex) struct Sums {
    tree: Vec<u64>,
    sizes: Vec<u64>,
}

impl Sums {
    fn of_all(sizes: impl Iterator<Item = u64>) -> Self {
        let mut sums = Sums::default();
        sums.splice(0..0, sizes);
        sums
    }

    /// Replaces some sizes. Sums of those before them stay.
    pub(in crate::engine::flex) fn splice(
        &mut self,
        those: Range<usize>,
        sizes: impl Iterator<Item = u64>,
    ) {
        self.tree.truncate(those.start);
        self.sizes.splice(those, sizes);
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

    /// Bytes of `number`.
    pub(in crate::engine::flex) fn of(&self, number: usize) -> u64 {
        self.sizes[number]
    }

    /// Bytes of all before `number`.
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

/// Sums of the sizes of a row's leaves: of each section, and of its leaves.
#[derive(Debug, Default)]
pub(super) struct RowSums {
    sections: Sums,
    leaves: Vec<Sums>,
}

impl RowSums {
    /// Adds a section behind the others.
    pub(super) fn push(&mut self, sizes: impl Iterator<Item = u64>) {
        let leaves = Sums::of_all(sizes);
        self.sections.push(leaves.total());
        self.leaves.push(leaves);
    }

    /// Bytes of the leaves before one.
    pub(super) fn before(&self, place: Place) -> u64 {
        self.sections.before(place.section) + self.leaves[place.section].before(place.leaf)
    }

    pub(super) fn total(&self) -> u64 {
        self.sections.total()
    }

    pub(super) fn add(&mut self, place: Place, bytes: u64) {
        self.set(place, self.leaves[place.section].of(place.leaf) + bytes);
    }

    pub(super) fn set(&mut self, place: Place, bytes: u64) {
        self.leaves[place.section].set(place.leaf, bytes);
        self.note(place.section);
    }

    /// Replaces the sizes of some leaves of a section.
    pub(super) fn splice(
        &mut self,
        section: usize,
        leaves: Range<usize>,
        sizes: impl Iterator<Item = u64>,
    ) {
        self.leaves[section].splice(leaves, sizes);
        self.note(section);
    }

    fn note(&mut self, section: usize) {
        self.sections.set(section, self.leaves[section].total());
    }

    /// The leaves of a section from `leaf` on become one of their own.
    pub(super) fn cut(&mut self, Place { section, leaf }: Place) {
        let first = &mut self.leaves[section];
        let rest = Sums::of_all(first.sizes[leaf..].iter().copied());
        first.splice(leaf..first.sizes.len(), std::iter::empty());
        let both = [first.total(), rest.total()];
        self.leaves.insert(section + 1, rest);
        self.sections.splice(section..section + 1, both.into_iter());
    }

    pub(super) fn remove(&mut self, sections: Range<usize>) {
        self.leaves.drain(sections.clone());
        self.sections.splice(sections, std::iter::empty());
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let lists = (self.leaves.capacity() * size_of::<Sums>()) as u64;
        lists
            + self.sections.memory_bytes()
            + self.leaves.iter().map(Sums::memory_bytes).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

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
