//! Nodes that nobody can read any more: a hole takes the place of each, so that everything else stays where it is.

use super::node::{Branch, Entry, HOLE, Inner, Leaf, NodeId, absent, is_absent};
use super::{FlexTree, Missing, signed};
use std::ops::Range;

/// Where an absent node hangs: what is added to the offsets of its parent, and the bytes that it covers.
pub(super) struct Place {
    pub(super) base: i64,
    pub(super) bytes: Range<u64>,
}

/// What the `x`th child of a node covers, which covers `bytes` itself.
fn bytes_of(inner: &Inner, x: usize, base: i64, bytes: &Range<u64>) -> Range<u64> {
    let border = |x: usize| inner.pivots.get(x).map(|at| at.wrapping_add(base));
    let start = x.checked_sub(1).and_then(border).and_then(|at| u64::try_from(at).ok());
    let end = border(x).and_then(|at| u64::try_from(at).ok());
    start.unwrap_or(bytes.start)..end.unwrap_or(bytes.end)
}

impl FlexTree {
    /// Gives up a node that is not in memory and cannot be read: the bytes that it covers, which map to nothing from then on.
    /// `None`, and nothing happens, if it is not missing any more, or covers more than nodes of its level can say. What was below it
    /// is still counted in [`FlexTree::extent_count`]: who gives nodes up builds a tree of what is left.
    pub fn lose(&mut self, missing: &Missing) -> Option<Range<u64>> {
        let id = self.absent_child(missing)?;
        let place = self.place_of(missing)?;
        let length = place.bytes.end - place.bytes.start;
        let hole = self.hole(missing.level, length)?;
        self.absent.free(absent(id));
        // Offsets below begin with 0.
        match missing.parent {
            None => {
                self.root = hole;
                self.root_shift = signed(place.bytes.start);
            }
            Some((node, x)) => {
                let shift = signed(place.bytes.start).wrapping_sub(place.base);
                self.dirty_inner(node).branches[x] = Branch { shift, child: hole };
                self.dirty_above(node);
            }
        }
        Some(place.bytes)
    }

    /// The place of an absent node: on the way to the byte that needed it, else among all that are in memory.
    pub(super) fn place_of(&self, missing: &Missing) -> Option<Place> {
        let Some(wanted) = missing.parent else {
            return Some(Place { base: 0, bytes: 0..self.size_bytes });
        };
        let (mut base, mut node, mut bytes) = (self.root_shift, self.root, 0..self.size_bytes);
        for _ in 0..self.height {
            if is_absent(node) {
                break;
            }
            let inner = &self.inners[node];
            let x = inner.branch_of(signed(missing.at).wrapping_sub(base));
            bytes = bytes_of(inner, x, base, &bytes);
            if (node, x) == wanted {
                return (!bytes.is_empty()).then_some(Place { base, bytes });
            }
            let branch = inner.branches.at(x);
            (base, node) = (base.wrapping_add(branch.shift), branch.child);
        }
        self.place_among_all(wanted)
    }

    /// Something before it grew or shrank since it was needed.
    fn place_among_all(&self, wanted: (NodeId, usize)) -> Option<Place> {
        let mut below = vec![(self.root, self.height, self.root_shift, 0..self.size_bytes)];
        while let Some((node, level, base, bytes)) = below.pop() {
            if level == 0 || is_absent(node) {
                continue;
            }
            let inner = &self.inners[node];
            for (x, branch) in inner.branches.iter().enumerate() {
                let bytes = bytes_of(inner, x, base, &bytes);
                if (node, x) == wanted {
                    return (!bytes.is_empty()).then_some(Place { base, bytes });
                }
                below.push((branch.child, level - 1, base.wrapping_add(branch.shift), bytes));
            }
        }
        None
    }

    /// A node of this level that maps so many bytes to nothing.
    fn hole(&mut self, level: u8, length: u64) -> Option<NodeId> {
        if length > self.hole_max(level) {
            return None;
        }
        if level == 0 {
            let mut leaf = Leaf::empty();
            let mut at = 0;
            while at < length {
                let some = (length - at).min(u64::from(self.shape.hole_size_bytes_max));
                leaf.entries.push(Entry::new(at, u32::try_from(some).ok()?, HOLE));
                at += some;
            }
            return Some(self.leaves.add(leaf));
        }
        let most = self.hole_max(level - 1);
        let mut inner = Inner::empty();
        let mut at = 0;
        while at < length {
            let some = (length - at).min(most);
            let child = self.hole(level - 1, some)?;
            if at > 0 {
                inner.pivots.push(signed(at));
            }
            inner.branches.push(Branch { shift: signed(at), child });
            at += some;
        }
        Some(self.inners.add(inner))
    }

    /// Most bytes that a node of this level maps to nothing.
    fn hole_max(&self, level: u8) -> u64 {
        let leaf = (self.shape.leaf_capacity as u64)
            .saturating_mul(u64::from(self.shape.hole_size_bytes_max))
            .min(self.shape.partial_offset_end);
        (0..level).fold(leaf, |most, _| most.saturating_mul(self.shape.children_max as u64))
    }

    /// Notes that all nodes above this one are about to change (I4).
    fn dirty_above(&mut self, node: NodeId) {
        let mut path = Vec::new();
        if self.find_above(self.root, self.height, node, &mut path) {
            for above in path {
                self.dirty_inner(above);
            }
        }
    }

    /// Collects the nodes from `at` to above `node`.
    fn find_above(&self, at: NodeId, level: u8, node: NodeId, path: &mut Vec<NodeId>) -> bool {
        if level == 0 || is_absent(at) {
            return false;
        }
        if at == node {
            return true;
        }
        path.push(at);
        let inner = &self.inners[at];
        let found = level > 1
            && inner
                .branches
                .iter()
                .any(|branch| self.find_above(branch.child, level - 1, node, path));
        if !found {
            path.pop();
        }
        found
    }
}
