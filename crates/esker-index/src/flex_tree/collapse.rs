//! Removal of ranges without leaving a hole, and merging of nodes (FlexSpace §3.2).

use super::node::{Branch, Entry, Leaf, NodeId, is_absent};
use super::{Extent, FlexTree, LEVELS_MAX, Missing, signed};

/// Nodes and branches from the root to a leaf.
struct Path {
    steps: [(NodeId, usize); LEVELS_MAX],
    depth: usize,
}

impl FlexTree {
    /// Removes `length` bytes at `offset`; what stood behind them moves forward. The removed extents, or
    /// parts of extents, are given to `removed` in order, with their offsets before the removal.
    ///
    /// # Errors
    /// The first node that is needed and not in memory; then nothing changed.
    ///
    /// # Panics
    /// If the range goes past the end.
    pub fn collapse(
        &mut self,
        offset: u64,
        length: u64,
        mut removed: impl FnMut(Extent),
    ) -> Result<(), Missing> {
        let end = offset.saturating_add(length);
        assert!(end <= self.size_bytes, "a removal up to {end} of {}", self.size_bytes);
        if let Some((missing, _)) = self.missing(offset, length) {
            return Err(missing);
        }
        let mut done = 0;
        while done < length {
            done += self.collapse_in_leaf(offset, length - done, |extent| {
                removed(Extent { offset: extent.offset + done, ..extent });
            });
        }
        Ok(())
    }

    /// Removes what one leaf holds of the range; how many bytes.
    fn collapse_in_leaf(&mut self, offset: u64, length: u64, removed: impl FnMut(Extent)) -> u64 {
        self.split_root(None);
        let mut base = self.root_shift;
        let mut node = self.root;
        let mut path = Path { steps: [(0, 0); LEVELS_MAX], depth: 0 };
        for level in (0..self.height).rev() {
            let target = signed(offset).wrapping_sub(base);
            let mut x = self.inners[node].branch_of(target);
            // A removal in the middle of an extent makes two of it.
            if self.split_child(node, x, level, None) {
                x = self.inners[node].branch_of(target);
            }
            path.steps[path.depth] = (node, x);
            path.depth += 1;
            let branch = self.dirty_inner(node).branches[x];
            base = base.wrapping_add(branch.shift);
            node = branch.child;
        }
        let leaf = self.dirty_leaf(node);
        let before = leaf.entries.len();
        let target = signed(offset).wrapping_sub(base).cast_unsigned();
        let done = leaf.collapse(target, length, base, removed);
        let after = leaf.entries.len();
        // It comes from media, and is only a count.
        self.extent_count = (self.extent_count + after as u64).saturating_sub(before as u64);
        self.size_bytes -= done;
        for (above, x) in &path.steps[..path.depth] {
            self.dirty_inner(*above).shift_after(*x, -signed(done));
        }
        self.tidy_up(&path, node);
        done
    }

    /// Merges and removes nodes on the way up from a leaf that became smaller.
    fn tidy_up(&mut self, path: &Path, leaf: NodeId) {
        let mut emptied = self.leaves[leaf].entries.is_empty();
        if emptied && path.depth > 0 {
            self.free_leaf(leaf);
        }
        for (depth, (node, x)) in path.steps[..path.depth].iter().enumerate().rev() {
            let level = path.depth - depth - 1;
            if emptied {
                self.dirty_inner(*node).remove(*x);
                emptied = self.inners[*node].branches.is_empty();
                if emptied {
                    self.free_inner(*node);
                }
            } else {
                self.merge_around(*node, *x, level);
            }
        }
        if emptied && path.depth > 0 {
            self.root = self.leaves.add(Leaf::empty());
            self.height = 0;
            self.root_shift = 0;
        }
        while self.height > 0 && self.inners[self.root].branches.len() == 1 {
            let Branch { shift, child } = self.inners[self.root].branches[0];
            if is_absent(child) {
                break;
            }
            self.free_inner(self.root);
            self.root = child;
            self.root_shift = self.root_shift.wrapping_add(shift);
            self.height -= 1;
        }
    }

    /// Merges child `x` with a neighbour, if both together are small.
    fn merge_around(&mut self, node: NodeId, x: usize, level: usize) {
        if !self.merge(node, x, level)
            && let Some(left) = x.checked_sub(1)
        {
            self.merge(node, left, level);
        }
    }

    /// Merges child `x + 1` into child `x` if both are there and together take at most three quarters
    /// of a node.
    fn merge(&mut self, node: NodeId, x: usize, level: usize) -> bool {
        let inner = &self.inners[node];
        let (Some(left), Some(right)) = (inner.branches.get(x), inner.branches.get(x + 1)) else {
            return false;
        };
        let (left, right) = (*left, *right);
        if is_absent(left.child) || is_absent(right.child) {
            return false;
        }
        let pivot = inner.pivots[x];
        let done = if level > 0 {
            self.merge_inners(left, right, pivot)
        } else {
            self.merge_leaves((node, x), left, right)
        };
        if done {
            self.dirty_inner(node).remove(x + 1);
        }
        done
    }

    fn merge_leaves(&mut self, place: (NodeId, usize), left: Branch, right: Branch) -> bool {
        let from = &self.leaves[right.child].entries;
        let count = self.leaves[left.child].entries.len() + from.len();
        if count > self.shape.leaf_capacity * 3 / 4 {
            return false;
        }
        let entries = *from;
        let length =
            self.leaves[right.child].end() - entries.first().map_or(0, |first| first.offset());
        let limit = self.shape.partial_offset_end;
        let mut shift = left.shift;
        if self.leaves[left.child].end() + length >= limit {
            shift = shift.wrapping_add(self.rebase(left.child, Some(place)));
            if self.leaves[left.child].end() + length >= limit {
                return false;
            }
        }
        let by = right.shift.wrapping_sub(shift);
        let leaf = self.dirty_leaf(left.child);
        for mut entry in entries.iter().copied() {
            entry.shift(by);
            leaf.entries.push(entry);
        }
        self.free_leaf(right.child);
        true
    }

    fn merge_inners(&mut self, left: Branch, right: Branch, pivot: i64) -> bool {
        let from = &self.inners[right.child];
        let count = self.inners[left.child].branches.len() + from.branches.len();
        if count > self.shape.children_max * 3 / 4 {
            return false;
        }
        let (pivots, branches) = (from.pivots, from.branches);
        let by = right.shift.wrapping_sub(left.shift);
        let into = self.dirty_inner(left.child);
        into.pivots.push(pivot.wrapping_sub(left.shift));
        for pivot in pivots.iter() {
            into.pivots.push(pivot.wrapping_add(by));
        }
        for branch in branches.iter() {
            into.branches.push(Branch { shift: branch.shift.wrapping_add(by), ..*branch });
        }
        self.free_inner(right.child);
        true
    }
}

impl Leaf {
    /// Removes up to `length` bytes at `target`, relative to the leaf; how many there were.
    fn collapse(
        &mut self,
        target: u64,
        length: u64,
        base: i64,
        mut removed: impl FnMut(Extent),
    ) -> u64 {
        let first = self.index_of(target);
        let stop = self.end().min(target.saturating_add(length));
        let done = stop - target;
        let last = self.index_of(stop - 1);
        let (start, end) = (target.wrapping_add_signed(base), stop.wrapping_add_signed(base));
        for entry in &self.entries[first..=last] {
            removed(entry.extent(base).part(start, end));
        }
        let (head, tail) = (self.entries[first], self.entries[last]);
        self.shift_from(last + 1, -signed(done));
        self.entries.remove(first..last + 1);
        let mut index = first;
        let mut add = |entry: Entry| {
            self.entries.insert(index, entry);
            index += 1;
        };
        if head.offset() < target {
            add(head.head(target - head.offset()));
        }
        if tail.end() > stop {
            add(tail.tail(stop - tail.offset(), target));
        }
        done
    }
}
