//! Fuzz target: what indexes are made of that stood on media. Only in tests and in the build of a fuzzer (`fuzz/`).
//!
//! Parts of a directory, as any bytes; nodes of a FlexTree, of which an input changes some before they are loaded, whose checksums
//! a writer that errs, or worse, would get right, too.

use crate::flex_tree::{HOLE, Missing, NodeContent, Root, Shape, Stored, Walk};
use crate::{Directory, FlexTree, Link};
use std::collections::BTreeMap;

const SHAPE: Shape = Shape {
    leaf_capacity: 4,
    children_max: 4,
    partial_offset_end: 64 << 8,
    extent_size_bytes_max: 64,
    hole_size_bytes_max: 50,
    boundary: 1000,
};

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 2 {
        0 => part(bytes),
        _ => tree(bytes),
    }
}

fn part(bytes: &[u8]) {
    let index = Directory::with_capacity(0);
    let said = Directory::entries_of(bytes);
    let Ok(count) = index.import(bytes, |_| true) else {
        return assert!(index.is_empty(), "nothing was added");
    };
    assert!(said == count && index.len() <= count && count <= bytes.len() as u64 / 8);
    let (again, mut cursor, mut told) = (Directory::with_capacity(0), 0, 0);
    while let Some((part, next)) = index.export(cursor) {
        assert!(next > cursor || next == 0, "it ends");
        told += Directory::entries_of(&part);
        assert!(again.import(&part, |_| true).is_ok());
        cursor = next;
    }
    assert_eq!(told, index.len());
    assert_eq!(again.len(), index.len());
}

type Nodes = BTreeMap<u64, NodeContent>;

/// A tree as it was stored.
fn stored() -> (Root, Nodes) {
    let (mut tree, mut nodes) = (FlexTree::new(SHAPE), Nodes::new());
    for number in 0..60 {
        let (at, length) = (number * 37 % (tree.size_bytes() + 1), 1 + number % 50);
        let address = if number % 5 == 0 { HOLE } else { 1000 + 100 * number };
        tree.insert(at, length, address).expect("all of it is there");
    }
    let root = tree.store(&mut Walk::default(), usize::MAX, |content, _| {
        let slot = nodes.len() as u64 + 1;
        nodes.insert(slot, content.clone());
        Stored { slot, checksum: 7 }
    });
    (root.expect("all of it at once"), nodes)
}

/// A number of changes, each of five bytes; then steps of four.
fn tree(bytes: &[u8]) {
    let (mut root, mut nodes) = stored();
    let Some((changes, mut rest)) = bytes.split_first() else { return };
    for _ in 0..changes % 16 {
        let Some((change, behind)) = rest.split_first_chunk() else { return };
        damage(&mut root, &mut nodes, *change);
        rest = behind;
    }
    if root.stored.slot == 0 || root.size_bytes == 0 {
        // The header of a space says both or neither.
        return;
    }
    let mut tree = FlexTree::stored(SHAPE, root);
    for [step, low, high, much] in rest.as_chunks::<4>().0 {
        let size = tree.size_bytes();
        let at = u64::from(u16::from_le_bytes([*low, *high])) % (size + 1);
        let length = u64::from(*much).min(size - at);
        let done = retry(&mut tree, &nodes, |tree| match step % 5 {
            0 => tree.lookup(at).map(|found| assert_eq!(found.is_some(), at < size)),
            1 => tree.collapse(at, length, |_| ()),
            2 => tree.insert(at, u64::from(much % 64), 4096),
            3 => tree.insert(at, u64::from(*much), HOLE),
            _ => tree.map(at, length.min(64), 8192, |_| ()),
        });
        if !done {
            return;
        }
    }
    let size = tree.size_bytes();
    if !retry(&mut tree, &nodes, |tree| tree.missing(0, size).map_or(Ok(()), |(one, _)| Err(one))) {
        return;
    }
    let mut end = 0;
    let visited = tree.visit(0, size, |extent| {
        assert!(extent.offset == end && extent.length > 0, "one behind the other");
        end = extent.end();
    });
    assert!(visited.is_ok() && end == size, "up to the end");
}

/// Calls until nothing is missing; false if something cannot be given up that cannot be loaded.
fn retry(
    tree: &mut FlexTree,
    nodes: &Nodes,
    mut call: impl FnMut(&mut FlexTree) -> Result<(), Missing>,
) -> bool {
    while let Err(missing) = call(tree) {
        let content = nodes.get(&missing.stored.slot).cloned();
        let installed = content.is_some_and(|content| tree.install(&missing, content).is_ok());
        if !installed && tree.lose(&missing).is_none() {
            return false;
        }
        assert!(!tree.is_missing(&missing), "it is there, or given up");
    }
    true
}

/// Changes a field of a node, or of the root.
fn damage(root: &mut Root, nodes: &mut Nodes, [node, entry, field, low, high]: [u8; 5]) {
    let by = i64::from(i16::from_le_bytes([low, high]));
    let add = |to: &mut u64| *to = to.wrapping_add_signed(by);
    let slot = u64::from(node) % (nodes.len() as u64 + 1);
    match nodes.get_mut(&slot) {
        None => match field % 5 {
            0 => root.shift += by,
            1 => root.size_bytes = root.size_bytes.saturating_add_signed(by),
            2 => add(&mut root.stored.slot),
            3 => root.height = low % 32,
            _ => root.extent_count = root.extent_count.saturating_add_signed(by),
        },
        Some(NodeContent::Leaf(extents)) => {
            let count = extents.len().max(1);
            match (field % 5, extents.get_mut(usize::from(entry) % count)) {
                (0, Some((offset, _, _))) => add(offset),
                (1, Some((_, length, _))) => *length = length.wrapping_add(u32::from(low)),
                (2, Some((_, _, address))) => add(address),
                (3, _) => drop(extents.pop()),
                _ => extents.push((by.unsigned_abs(), u32::from(entry), 5000)),
            }
        }
        Some(NodeContent::Inner(branches)) => {
            let count = branches.len().max(1);
            match (field % 5, branches.get_mut(usize::from(entry) % count)) {
                (0, Some(branch)) => branch.pivot += by,
                (1, Some(branch)) => branch.shift += by,
                (2, Some(branch)) => add(&mut branch.child.slot),
                (3, _) => drop(branches.pop()),
                (_, found) => {
                    let again = found.copied();
                    branches.extend(again);
                }
            }
        }
    }
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let index = Directory::with_capacity(0);
    for number in 1..200_u64 {
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        index.insert(hash, Link::record(number, number % 9).expect("a place"));
        // Some keys share all of their hashes.
        index.insert(5 << 60, Link::record(1000 + number, 1).expect("a place"));
    }
    let (mut seeds, mut cursor) = (Vec::new(), 0);
    while let Some((part, next)) = index.export(cursor) {
        seeds.push([&[0], &part[..]].concat());
        cursor = next;
    }
    let steps = [0, 5, 0, 0, 1, 9, 1, 30, 2, 200, 0, 20, 3, 0, 2, 90, 4, 50, 0, 40];
    seeds.push([&[1, 0], &steps[..]].concat());
    seeds.push([&[1, 2, 3, 1, 0, 5, 0, 9, 2, 1, 200, 255], &steps[..]].concat());
    seeds.push([&[1, 1, 0, 0, 1, 9, 0], &steps[..]].concat());
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_testkit::fuzz::smoke;

    #[test]
    fn targets_take_seeds_what_is_changed_of_them_and_noise() {
        smoke(&[("index", run, seeds)], 1, 1000);
        assert!(seeds().len() > 3, "parts and trees");
    }
}
