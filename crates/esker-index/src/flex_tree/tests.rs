//! FlexTree against a brute-force model: a sorted array of extents with effective offsets.

use super::*;
use esker_base::rng::Rng;
use std::collections::HashMap;

/// Extents in order; offsets follow from the lengths.
#[derive(Clone, Default)]
struct Model(Vec<(u64, u64)>);

impl Model {
    fn size(&self) -> u64 {
        self.0.iter().map(|(length, _)| length).sum()
    }

    /// Makes `offset` a border of extents; the index of the extent that begins there.
    fn cut(&mut self, offset: u64) -> usize {
        let mut at = 0;
        for index in 0..self.0.len() {
            let (length, address) = self.0[index];
            if at == offset {
                return index;
            }
            if offset < at + length {
                let head = offset - at;
                let tail = if address == HOLE { HOLE } else { address + head };
                self.0[index].0 = head;
                self.0.insert(index + 1, (length - head, tail));
                return index + 1;
            }
            at += length;
        }
        self.0.len()
    }

    fn insert(&mut self, offset: u64, length: u64, address: u64) {
        let index = self.cut(offset);
        self.0.insert(index, (length, address));
    }

    fn collapse(&mut self, offset: u64, length: u64) -> Vec<(u64, u64)> {
        let first = self.cut(offset);
        let last = self.cut(offset + length);
        self.0.drain(first..last).collect()
    }

    /// Address of each byte, as runs that are as long as can be.
    fn runs(&self, offset: u64, length: u64) -> Vec<(u64, u64)> {
        let mut model = self.clone();
        let end = (offset + length).min(self.size());
        let first = model.cut(offset.min(end));
        let last = model.cut(end);
        joined(model.0[first..last].iter().copied())
    }
}

/// The same mapping with neighbours joined: how a mapping is cut into extents is the tree's affair.
fn joined(extents: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (length, address) in extents.filter(|(length, _)| *length > 0) {
        match runs.last_mut() {
            Some((sum, HOLE)) if address == HOLE => *sum += length,
            Some((sum, at)) if address != HOLE && *at != HOLE && *at + *sum == address => {
                *sum += length;
            }
            _ => runs.push((length, address)),
        }
    }
    runs
}

fn small() -> Shape {
    Shape {
        leaf_capacity: 4,
        children_max: 4,
        partial_offset_end: 64 << 8,
        extent_size_bytes_max: 64,
        hole_size_bytes_max: 50,
        boundary: 1000,
    }
}

/// Where nodes are stored in these tests.
#[derive(Default)]
struct Shelf {
    nodes: HashMap<Stored, NodeContent>,
    next: u64,
}

impl Shelf {
    fn load(&self, tree: &mut FlexTree, missing: &Missing) {
        tree.install(missing, self.nodes[&missing.stored].clone()).unwrap();
    }

    /// Calls until nothing is missing any more.
    fn retry<T>(
        &self,
        tree: &mut FlexTree,
        mut call: impl FnMut(&mut FlexTree) -> Result<T, Missing>,
    ) -> T {
        loop {
            match call(tree) {
                Ok(done) => return done,
                Err(missing) => self.load(tree, &missing),
            }
        }
    }

    fn store(&mut self, tree: &mut FlexTree) -> Root {
        let dirty = tree.dirty_count() as u64;
        let before = self.next;
        let (mut walk, mut stored_before) = (Walk::default(), before);
        let root = loop {
            let root = tree.store(&mut walk, 3, |content, _| {
                self.next += 1;
                let stored = Stored { slot: self.next, checksum: 7 };
                self.nodes.insert(stored, content.clone());
                stored
            });
            assert!(self.next - stored_before <= 3, "no more at once than was asked for");
            stored_before = self.next;
            assert_eq!(tree.dirty_count() as u64, dirty - (self.next - before));
            if let Some(root) = root {
                break root;
            }
        };
        assert_eq!((self.next - before, tree.dirty_count()), (dirty, 0));
        for stored in tree.take_released() {
            assert!(self.nodes.remove(&stored).is_some(), "{stored:?} is released once");
        }
        root
    }
}

/// Structure of everything that is in memory: I1 to I3, I5, and counts.
fn check_structure(tree: &FlexTree) {
    let mut extents = 0;
    let mut at = 0;
    check_node(tree, tree.root, tree.height, tree.root_shift, &mut extents, &mut at);
    assert_eq!((extents, at), (tree.extent_count, tree.size_bytes));
}

fn check_node(
    tree: &FlexTree,
    node: NodeId,
    level: u8,
    base: i64,
    extents: &mut u64,
    at: &mut u64,
) {
    if level == 0 {
        let leaf = &tree.leaves[node];
        assert!(leaf.entries.len() <= tree.shape.leaf_capacity);
        assert!(!leaf.entries.is_empty() || tree.height == 0);
        for entry in leaf.entries.iter() {
            assert!(entry.end() <= tree.shape.partial_offset_end && entry.length() > 0);
            assert_eq!(entry.extent(base).offset, *at);
            *at += entry.length();
            *extents += 1;
        }
        return;
    }
    let inner = &tree.inners[node];
    assert!(!inner.branches.is_empty() && inner.branches.len() <= tree.shape.children_max);
    assert_eq!(inner.pivots.len() + 1, inner.branches.len());
    for (x, branch) in inner.branches.iter().enumerate() {
        if x > 0 {
            assert_eq!(signed(*at), base + inner.pivots[x - 1], "pivot {x}");
        }
        check_node(tree, branch.child, level - 1, base + branch.shift, extents, at);
    }
}

fn runs_of(tree: &FlexTree, offset: u64, length: u64) -> Vec<(u64, u64)> {
    let mut next = offset;
    let extents = tree.range(offset, length).map(|extent| {
        let extent = extent.unwrap();
        assert_eq!(extent.offset, next, "extents follow each other");
        next = extent.end();
        (u64::from(extent.length), extent.address)
    });
    let by_range: Vec<_> = extents.collect();
    let mut visited = Vec::new();
    let mut next = offset;
    tree.visit(offset, length, |extent| {
        assert_eq!(extent.offset, next, "extents follow each other");
        next = extent.end();
        visited.push((u64::from(extent.length), extent.address));
    })
    .unwrap();
    assert_eq!(visited, by_range, "both ways to walk agree");
    joined(by_range.into_iter())
}

struct Pair {
    tree: FlexTree,
    model: Model,
    rng: Rng,
    shelf: Shelf,
    next_address: u64,
}

impl Pair {
    fn new(seed: u64, shape: Shape) -> Self {
        Pair {
            tree: FlexTree::new(shape),
            model: Model::default(),
            rng: Rng::from_seed(seed),
            shelf: Shelf::default(),
            next_address: 0,
        }
    }

    /// Bytes for a new extent: often right behind those of the last one.
    fn address(&mut self, length: u64) -> u64 {
        if self.rng.chance(1, 6) {
            return HOLE;
        }
        if self.rng.chance(1, 3) {
            self.next_address += 1;
        }
        // As in segments: none goes over a boundary.
        if let boundary @ 1.. = self.tree.shape.boundary
            && self.next_address % boundary + length > boundary
        {
            self.next_address = self.next_address.next_multiple_of(boundary);
        }
        let address = self.next_address;
        self.next_address += length;
        address
    }

    fn insert(&mut self) {
        let size = self.model.size();
        let offset = match self.rng.below(4) {
            0 => size,
            1 => 0,
            _ => self.rng.below(size + 1),
        };
        let length = 1 + self.rng.below(64);
        let address = self.address(length);
        let length = if address == HOLE { length * 3 } else { length };
        self.shelf.retry(&mut self.tree, |tree| tree.insert(offset, length, address));
        self.model.insert(offset, length, address);
    }

    fn part(&mut self, most: u64) -> (u64, u64) {
        let size = self.model.size();
        let offset = self.rng.below(size + 1);
        let length = self.rng.below(most).min(size - offset);
        (offset, length)
    }

    fn collapse(&mut self, most: u64) {
        let (offset, length) = self.part(most);
        let mut removed = Vec::new();
        let mut next = offset;
        self.shelf.retry(&mut self.tree, |tree| {
            tree.collapse(offset, length, |extent| {
                assert_eq!(extent.offset, next);
                next = extent.end();
                removed.push((u64::from(extent.length), extent.address));
            })
        });
        let expected = self.model.collapse(offset, length);
        assert_eq!(joined(removed.into_iter()), joined(expected.into_iter()));
    }

    fn map(&mut self) {
        let (mut offset, mut length) = self.part(64);
        if self.rng.chance(1, 3)
            && let Ok(Some(extent)) = self.tree.lookup(offset)
        {
            (offset, length) = (extent.offset, u64::from(extent.length));
        }
        let address = self.address(length);
        let mut removed = Vec::new();
        self.shelf.retry(&mut self.tree, |tree| {
            tree.map(offset, length, address, |extent| {
                removed.push((u64::from(extent.length), extent.address));
            })
        });
        let expected = self.model.collapse(offset, length);
        assert_eq!(joined(removed.into_iter()), joined(expected.into_iter()));
        if length > 0 {
            self.model.insert(offset, length, address);
        }
    }

    fn compare(&mut self) {
        assert_eq!(self.tree.size_bytes(), self.model.size());
        let (offset, length) = self.part(300);
        let tree = &mut self.tree;
        let runs = self.shelf.retry(tree, |tree| {
            tree.missing(offset, length).map_or(Ok(()), |(missing, _)| Err(missing))?;
            Ok(runs_of(tree, offset, length))
        });
        assert_eq!(runs, self.model.runs(offset, length));
        let found = self.shelf.retry(&mut self.tree, |tree| tree.lookup(offset));
        match found {
            Some(extent) => {
                let at = offset - extent.offset;
                let address = if extent.is_hole() { HOLE } else { extent.address + at };
                assert_eq!(self.model.runs(offset, 1), [(1, address)]);
            }
            None => assert_eq!(offset, self.model.size()),
        }
    }

    fn compare_all(&mut self) {
        let all = self.model.runs(0, u64::MAX >> 1);
        let whole = self.shelf.retry(&mut self.tree, |tree| {
            tree.missing(0, u64::MAX >> 2).map_or(Ok(()), |(missing, _)| Err(missing))?;
            Ok(runs_of(tree, 0, u64::MAX))
        });
        assert_eq!(whole, all);
        check_structure(&self.tree);
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0..5 => self.insert(),
            5 => self.collapse(30),
            6 if self.rng.chance(1, 8) => self.collapse(900),
            6..9 => self.map(),
            _ => self.compare(),
        }
    }
}

#[test]
fn the_tree_agrees_with_a_sorted_array() {
    for seed in 0..200 {
        let mut pair = Pair::new(seed, small());
        for step in 0..400 {
            pair.step();
            if step % 50 == 0 {
                pair.compare_all();
            }
        }
        pair.compare_all();
    }
}

#[test]
fn a_tree_of_the_shape_of_the_paper_agrees_with_a_sorted_array() {
    let mut pair = Pair::new(1, Shape { hole_size_bytes_max: 1 << 20, ..Shape::default() });
    for _ in 0..6000 {
        pair.step();
    }
    pair.compare_all();
    assert!(pair.tree.height() >= 1, "too flat to say something: {:?}", pair.tree);
}

#[test]
fn a_tree_is_stored_loaded_on_demand_and_evicted_without_a_difference() {
    for seed in 0..60 {
        let mut pair = Pair::new(seed, small());
        for round in 0..12 {
            for _ in 0..60 {
                pair.step();
            }
            let root = pair.shelf.store(&mut pair.tree);
            match round % 3 {
                0 => pair.tree = FlexTree::stored(small(), root),
                1 => {
                    pair.tree.evict(1, usize::MAX);
                    pair.tree.evict(1, usize::MAX);
                }
                _ => {}
            }
        }
        pair.compare_all();
        // What is on the shelf is exactly what the tree consists of.
        let root = pair.shelf.store(&mut pair.tree);
        let mut again = FlexTree::stored(small(), root);
        let (size, all) = (pair.model.size(), pair.model.runs(0, u64::MAX >> 1));
        let runs = pair.shelf.retry(&mut again, |tree| {
            tree.missing(0, size).map_or(Ok(()), |(missing, _)| Err(missing))?;
            Ok(runs_of(tree, 0, size))
        });
        assert_eq!(runs, all);
        let (leaves, inners) = again.resident();
        let stored = if size == 0 { 0 } else { leaves + inners };
        assert_eq!(pair.shelf.nodes.len(), stored, "seed {seed}: no stored node is leaked");
    }
}

#[test]
fn leaves_that_somebody_looks_at_again_and_again_stay_while_others_come_and_go() {
    const LEAVES_MAX: usize = 16;
    let mut pair = Pair::new(5, small());
    (0..1000).for_each(|_| pair.insert());
    let root = pair.shelf.store(&mut pair.tree);
    let mut tree = FlexTree::stored(small(), root);
    let size = tree.size_bytes();
    let (mut loads, mut loads_of_hot) = (0, 0);
    for round in 0..3000 {
        let cold = pair.rng.below(size);
        for offset in [cold, 0, size / 2, size - 1] {
            while let Err(missing) = tree.lookup(offset) {
                pair.shelf.load(&mut tree, &missing);
                tree.evict(LEAVES_MAX, 4);
                loads += 1;
                loads_of_hot += usize::from(offset != cold && round > 0);
            }
        }
        let leaves = tree.resident().0;
        assert!(leaves <= 2 * LEAVES_MAX, "{leaves} leaves in round {round}");
    }
    assert!(loads > 2000, "{loads}: too few leaves to say something");
    assert!(loads_of_hot < 30, "{loads_of_hot} times one that is always needed");
    pair.tree = tree;
    pair.compare_all();
}

/// A shape of the paper whose extents never grow together.
fn by_extents(tree: &mut FlexTree, numbers: std::ops::Range<u64>, mut offset: u64) {
    for number in numbers {
        tree.insert(offset, 10, number * 100).unwrap();
        offset += 10;
    }
}

#[test]
fn what_is_inserted_one_behind_the_other_fills_leaves_wherever_it_is() {
    for (before, behind) in [(0, 1), (0, 100), (1000, 1), (1000, 1000)] {
        let mut tree = FlexTree::new(Shape::default());
        by_extents(&mut tree, 0..before + behind, 0);
        by_extents(&mut tree, 5000..15_000, before * 10);
        check_structure(&tree);
        let (leaves, inners) = tree.resident();
        let least = usize::try_from(10_000 + before + behind).unwrap() / LEAF_CAPACITY_MAX;
        assert!(leaves < least * 12 / 10, "{leaves} leaves, where {least} would do");
        assert!(inners < least * 12 / 10 / CHILDREN_MAX * 14 / 10 + 3, "{inners} inner nodes");
    }
}

#[test]
fn only_the_path_of_a_change_is_stored_again() {
    let mut pair = Pair::new(3, small());
    for n in 0..2000 {
        pair.tree.insert(n * 10, 10, n * 100).unwrap();
    }
    pair.shelf.store(&mut pair.tree);
    let before = pair.shelf.next;
    pair.tree.insert(5000, 3, 1_000_000).unwrap();
    pair.shelf.store(&mut pair.tree);
    let written = pair.shelf.next - before;
    assert!(written <= 2 * (1 + u64::from(pair.tree.height())), "{written} nodes");
}

#[test]
fn nothing_is_stored_of_a_tree_that_is_clean() {
    let mut pair = Pair::new(4, small());
    for n in 0..200 {
        pair.tree.insert(n * 10, 10, n * 100).unwrap();
    }
    let root = pair.shelf.store(&mut pair.tree);
    // Of its root alone, as it was before anything is loaded, and with each node that is.
    let mut tree = FlexTree::stored(small(), root);
    loop {
        let before = pair.shelf.next;
        assert_eq!(pair.shelf.store(&mut tree), root);
        assert_eq!(pair.shelf.next, before, "with {:?} nodes", tree.resident());
        let Some((missing, _)) = tree.missing(0, root.size_bytes) else { break };
        pair.shelf.load(&mut tree, &missing);
    }
}

#[test]
fn nodes_of_a_long_range_are_loaded_without_meeting_those_again_that_are_there() {
    let mut pair = Pair::new(4, small());
    for n in 0..6000 {
        pair.tree.insert(n * 10, 10, n * 100).unwrap();
    }
    let root = pair.shelf.store(&mut pair.tree);
    let mut tree = FlexTree::stored(small(), root);
    let (mut at, mut loaded, mut visited) = (0, 0, 0);
    while let Some((missing, place)) = tree.missing(at, root.size_bytes - at) {
        visited += Range::leaves(&tree, at.saturating_sub(1), place + 1 - at).count();
        pair.shelf.load(&mut tree, &missing);
        loaded += 1;
        assert!(place >= at);
        at = place;
    }
    assert!(tree.missing(0, root.size_bytes).is_none());
    assert_eq!(tree.resident(), pair.tree.resident());
    assert!(loaded > 1000 && visited <= 4 * loaded, "{visited} for {loaded} nodes");
}

#[test]
fn partial_offsets_are_rebased_before_they_overflow() {
    let mut tree = FlexTree::new(small());
    // Every insertion at the front shifts all others: only shifts can hold such offsets.
    for n in 0..5000 {
        tree.insert(0, 64, n * 1000).unwrap();
    }
    assert!(tree.size_bytes() > 10 * small().partial_offset_end);
    check_structure(&tree);
    for n in 0..5000 {
        let extent = tree.lookup(n * 64).unwrap().unwrap();
        assert_eq!((extent.offset, extent.address), (n * 64, (4999 - n) * 1000));
    }
}

#[test]
fn the_example_of_the_paper_comes_out() {
    // FlexSpace figure 5: the mapping of 36..55, and figure 6: without 33..42.
    let mut tree = FlexTree::new(small());
    let extents = [(9, 0), (8, 31), (16, 100), (9, 12), (3, 39), (9, 50), (10, 42)];
    let mut offset = 0;
    for (length, address) in extents {
        tree.insert(offset, length, address).unwrap();
        offset += length;
    }
    assert_eq!(runs_of(&tree, 36, 19), [(6, 15), (3, 39), (9, 50), (1, 42)]);
    let mut removed = Vec::new();
    tree.collapse(33, 9, |extent| removed.push((extent.offset, extent.length, extent.address)))
        .unwrap();
    assert_eq!(removed, [(33, 9, 12)]);
    assert_eq!(runs_of(&tree, 30, 6), [(3, 113), (3, 39)]);
    check_structure(&tree);
}

#[test]
fn extents_grow_together_up_to_a_boundary_and_a_length() {
    let mut tree = FlexTree::new(small());
    tree.insert(0, 30, 940).unwrap();
    tree.insert(30, 30, 970).unwrap();
    assert_eq!(tree.extent_count(), 1, "contiguous in both spaces");
    tree.insert(60, 30, 1000).unwrap();
    assert_eq!(tree.extent_count(), 2, "another segment begins at 1000");
    tree.insert(90, 40, 1030).unwrap();
    assert_eq!(tree.extent_count(), 3, "longer than the longest");
}

/// A hole takes the place of any extent.
fn with_long_holes() -> Shape {
    Shape { hole_size_bytes_max: 64, ..small() }
}

/// The tree of a root, with all nodes but those that `is_lost` names by slot, and what these covered.
fn without(
    shelf: &Shelf,
    root: Root,
    is_lost: impl Fn(Stored) -> bool,
) -> (FlexTree, Vec<std::ops::Range<u64>>) {
    let mut tree = FlexTree::stored(with_long_holes(), root);
    let mut lost = Vec::new();
    while let Some((missing, _)) = tree.missing(0, root.size_bytes) {
        if is_lost(missing.stored) {
            lost.push(tree.lose(&missing).unwrap());
            assert_eq!(tree.lose(&missing), None, "it is not missing any more");
        } else {
            shelf.load(&mut tree, &missing);
        }
    }
    (tree, lost)
}

#[test]
fn what_a_lost_node_covers_maps_to_nothing_and_everything_else_stays() {
    let mut losses = 0;
    for seed in 0..4 {
        // Offsets and shifts of all kinds.
        let mut pair = Pair::new(seed, with_long_holes());
        for _ in 0..400 {
            pair.insert();
        }
        let root = pair.shelf.store(&mut pair.tree);
        let slots: Vec<Stored> = {
            let (_, lost) = without(&pair.shelf, root, |_| false);
            assert!(lost.is_empty());
            let mut slots: Vec<Stored> = pair.shelf.nodes.keys().copied().collect();
            slots.sort_unstable();
            slots
        };
        let whole = joined(runs_of(&pair.tree, 0, root.size_bytes).into_iter());
        for slot in slots {
            let (mut tree, lost) = without(&pair.shelf, root, |stored| stored == slot);
            let Some(lost) = lost.first() else { continue };
            let mut model = pair.model.clone();
            let (first, last) = (model.cut(lost.start), model.cut(lost.end));
            model.0.splice(first..last, [(lost.end - lost.start, HOLE)]);
            let expected = joined(model.0.iter().copied());
            assert_eq!(joined(runs_of(&tree, 0, root.size_bytes).into_iter()), expected);
            assert!(tree.dirty_count() > 0);
            losses += usize::from(expected != whole);
            // It is a tree like others: it changes, and is stored.
            let at = lost.start + (lost.end - lost.start) / 2;
            tree.insert(at, 7, 5000).unwrap();
            model.insert(at, 7, 5000);
            let mut shelf = Shelf { nodes: pair.shelf.nodes.clone(), next: pair.shelf.next };
            let root = shelf.store(&mut tree);
            let (tree, _) = without(&shelf, root, |_| false);
            let found = joined(runs_of(&tree, 0, root.size_bytes).into_iter());
            assert_eq!(found, joined(model.0.iter().copied()));
        }
    }
    assert!(losses > 400, "{losses}");
}

#[test]
fn nodes_that_do_not_fit_are_refused() {
    let mut pair = Pair::new(9, small());
    for _ in 0..200 {
        pair.insert();
    }
    let root = pair.shelf.store(&mut pair.tree);
    let mut tree = FlexTree::stored(small(), root);
    let mut leaf = None;
    while let Some((missing, _)) = tree.missing(0, root.size_bytes) {
        if missing.level == 0 {
            leaf = Some(missing);
            break;
        }
        pair.shelf.load(&mut tree, &missing);
    }
    let missing = leaf.unwrap();
    let NodeContent::Leaf(right) = pair.shelf.nodes[&missing.stored].clone() else { panic!() };
    let mut longer = right.clone();
    longer.last_mut().unwrap().1 += 1;
    let mut gap = right.clone();
    gap[0].1 += 1;
    let sum = right.iter().map(|(_, length, _)| length).sum();
    assert!(sum > 64, "{right:?}");
    let too_long = |address| vec![(right[0].0, sum, address)];
    let mut over_boundary = right.clone();
    let long = over_boundary.iter_mut().find(|(_, length, _)| *length > 1).unwrap();
    long.2 = MARK | 999;
    let wrong = [longer, gap, Vec::new(), vec![(0, 1, 1 << 48)], too_long(0), too_long(HOLE)];
    for wrong in wrong.into_iter().chain([over_boundary]) {
        assert!(tree.install(&missing, NodeContent::Leaf(wrong)).is_err());
    }
    assert!(tree.install(&missing, NodeContent::Inner(Vec::new())).is_err());
    assert_eq!(tree.install(&missing, NodeContent::Leaf(right)), Ok(()));
}

/// Nodes in the middle, whose borders stand in pivots far above: the first and the last child of an inner node.
#[test]
fn nodes_that_end_before_the_pivots_above_their_parents_are_refused() {
    let mut pair = Pair::new(9, small());
    for _ in 0..400 {
        pair.insert();
    }
    let root = pair.shelf.store(&mut pair.tree);
    assert!(root.height > 1);
    let mut tree = FlexTree::stored(small(), root);
    let mut refused = [0; 2];
    while let Some((missing, _)) = tree.missing(0, root.size_bytes) {
        let right = pair.shelf.nodes[&missing.stored].clone();
        if let (NodeContent::Leaf(entries), Some((node, x))) = (&right, missing.parent)
            && entries.len() > 1
        {
            let last = tree.inners[node].branches.len() - 1;
            for (place, wrong) in [(0, &entries[1..]), (last, &entries[..entries.len() - 1])] {
                if x == place {
                    let wrong = NodeContent::Leaf(wrong.to_vec());
                    assert!(tree.install(&missing, wrong).is_err(), "{missing:?}");
                    refused[usize::from(place > 0)] += 1;
                }
            }
        }
        assert_eq!(tree.install(&missing, right), Ok(()));
    }
    assert!(refused.iter().all(|count| *count > 5), "{refused:?}");
}

/// A reader that was told of a node comes back when what is before it has grown, and the offset leads elsewhere.
#[test]
fn a_node_that_moved_since_it_was_needed_is_taken() {
    let mut pair = Pair::new(9, small());
    for _ in 0..400 {
        pair.insert();
    }
    let root = pair.shelf.store(&mut pair.tree);
    let mut taken = 0;
    for part in 1..20 {
        let mut tree = FlexTree::stored(small(), root);
        let load_up_to = |tree: &mut FlexTree, end: u64| {
            while let Some((missing, _)) = tree.missing(0, end) {
                pair.shelf.load(tree, &missing);
            }
        };
        load_up_to(&mut tree, root.size_bytes * part / 20);
        // The walk comes to its first byte.
        let Some((missing, _)) = tree.missing(0, root.size_bytes) else { continue };
        tree.insert(0, 1, HOLE).unwrap();
        let is_missing = tree.is_missing(&missing);
        let content = pair.shelf.nodes[&missing.stored].clone();
        assert_eq!(tree.install(&missing, content), Ok(()));
        taken += u32::from(is_missing && !tree.is_missing(&missing));
        load_up_to(&mut tree, root.size_bytes + 1);
        assert_eq!(tree.size_bytes(), root.size_bytes + 1);
    }
    assert!(taken > 5, "{taken}");
}

#[test]
fn a_count_of_extents_that_is_wrong_is_a_count_only() {
    let mut pair = Pair::new(10, small());
    for _ in 0..100 {
        pair.insert();
    }
    let root = pair.shelf.store(&mut pair.tree);
    let mut tree = FlexTree::stored(small(), Root { extent_count: 0, ..root });
    while let Some((missing, _)) = tree.missing(0, root.size_bytes) {
        pair.shelf.load(&mut tree, &missing);
    }
    tree.collapse(0, root.size_bytes, |_| ()).unwrap();
    assert_eq!(tree.size_bytes(), 0);
}

#[test]
fn a_tree_that_is_not_as_long_as_its_space_is_refused() {
    let mut pair = Pair::new(10, small());
    for _ in 0..300 {
        pair.insert();
    }
    let root = pair.shelf.store(&mut pair.tree);
    assert!(root.height > 1);
    let end = root.size_bytes;
    for (size_bytes, shift, at) in
        [(end, 0, 0), (end, 0, end - 1), (end + 9, 0, end + 8), (end - 1, 0, end - 2), (end, 5, 0)]
    {
        let is_right = size_bytes == end && shift == 0;
        let shift = root.shift + shift;
        let mut tree = FlexTree::stored(small(), Root { size_bytes, shift, ..root });
        let refused = loop {
            let Err(missing) = tree.collapse(at, 1, |_| ()) else { break false };
            let content = pair.shelf.nodes[&missing.stored].clone();
            if tree.install(&missing, content).is_err() {
                break true;
            }
        };
        assert_eq!(refused, !is_right, "{size_bytes} bytes, a change at {at}");
    }
}

#[test]
fn an_inner_node_beyond_the_pivots_above_it_is_refused() {
    let mut pair = Pair::new(10, small());
    for _ in 0..300 {
        pair.insert();
    }
    let root = pair.shelf.store(&mut pair.tree);
    let mut tree = FlexTree::stored(small(), root);
    let mut refused = 0;
    while let Some((missing, _)) = tree.missing(0, root.size_bytes) {
        // One between others.
        if let NodeContent::Inner(right) = &pair.shelf.nodes[&missing.stored]
            && let Some((node, x)) = missing.parent
            && (1..tree.inners[node].pivots.len()).contains(&x)
        {
            for by in [-(1 << 40), 1 << 40] {
                let mut wrong = right.clone();
                wrong.iter_mut().skip(1).for_each(|branch| branch.pivot += by);
                let is_refused = tree.is_missing(&missing)
                    && wrong.len() > 1
                    && tree.install(&missing, NodeContent::Inner(wrong)).is_err();
                refused += u32::from(is_refused);
            }
        }
        if tree.is_missing(&missing) {
            pair.shelf.load(&mut tree, &missing);
        }
    }
    assert!(refused > 3, "{refused}");
}

/// Nodes of which each one's children come several times in the tree, as said: a few that make up a tree of more than any medium has.
fn shared(children: &[u64], width: u64) -> (Root, HashMap<u64, NodeContent>) {
    const HEIGHT: u8 = 8;
    let slot = |level: u8, number: u64| 1 + u64::from(level) * 10 + number;
    let (mut nodes, mut size) = (HashMap::new(), 60);
    for number in 0..width {
        let extents = (0..60).map(|offset| (offset, 1, 1000 * number + 2 * offset)).collect();
        nodes.insert(slot(0, number), NodeContent::Leaf(extents));
    }
    for level in 1..=HEIGHT {
        let branch = |(at, number): (i64, &u64)| {
            let child = Stored { slot: slot(level - 1, *number), checksum: 7 };
            BranchContent { pivot: at * size, shift: at * size, child }
        };
        let branches: Vec<BranchContent> = (0..).zip(children).map(branch).collect();
        for number in 0..width {
            nodes.insert(slot(level, number), NodeContent::Inner(branches.clone()));
        }
        size *= i64::try_from(children.len()).unwrap();
    }
    let root = Root {
        stored: Stored { slot: slot(HEIGHT, 0), checksum: 7 },
        height: HEIGHT,
        size_bytes: size.unsigned_abs(),
        extent_count: size.unsigned_abs(),
        shift: 0,
    };
    (root, nodes)
}

#[test]
fn a_node_below_two_others_is_refused_before_few_of_them_are_a_tree_without_an_end() {
    // All children of a node are one; nodes share their children with those beside them.
    for (children, width) in [(&[0; 31][..], 1), (&[0, 1], 2), (&[2, 0, 1], 3)] {
        let (root, nodes) = shared(children, width);
        let mut tree = FlexTree::stored(Shape::default(), root);
        let mut reads = 0;
        let refused = loop {
            let Some((missing, _)) = tree.missing(0, root.size_bytes) else { break None };
            reads += 1;
            assert!(reads < 100, "{width}: {reads} nodes were read, and there are {}", nodes.len());
            if let Err(words) = tree.install(&missing, nodes[&missing.stored.slot].clone()) {
                break Some(words);
            }
        };
        assert_eq!(refused, Some("a node has two above it"), "{width}");
    }
}
