//! Insertion of ranges, and mapping of ranges that exist (FlexSpace §3.2).

use super::node::{Branch, Entry, HOLE, Inner, Leaf, NodeId};
use super::{Extent, FlexTree, Missing, signed};

impl FlexTree {
    /// Inserts `length` bytes at `offset`, mapped to `address` (or [`HOLE`]); what stood
    /// there and behind moves back by `length`. An extent in the middle is split; one that the new
    /// bytes continue grows.
    ///
    /// # Errors
    /// The first node that is needed and not in memory; then nothing changed.
    ///
    /// # Panics
    /// If `offset` is behind the end, the extent with an address is longer than the shape allows, or the
    /// space would reach 2^62 bytes.
    pub fn insert(&mut self, offset: u64, length: u64, address: u64) -> Result<(), Missing> {
        assert!(offset <= self.size_bytes, "an insertion at {offset} of {}", self.size_bytes);
        assert!(self.size_bytes.saturating_add(length) < 1 << 62, "the space is full");
        let longest = u64::from(self.shape.extent_size_bytes_max);
        assert!(address == HOLE || length <= longest, "an extent of {length} bytes");
        if let Some((missing, _)) = self.missing(offset, 0) {
            return Err(missing);
        }
        let piece_max = match address {
            HOLE => u64::from(self.shape.hole_size_bytes_max),
            _ => longest,
        };
        let mut done = 0;
        while done < length {
            let piece = (length - done).min(piece_max);
            self.insert_piece(offset + done, piece, address);
            done += piece;
        }
        Ok(())
    }

    /// Maps `length` existing bytes at `offset` to `address`, without moving anything. What they were
    /// mapped to before is given to `removed`, in order.
    ///
    /// # Errors
    /// The first node that is needed and not in memory; then nothing changed.
    ///
    /// # Panics
    /// If the range goes past the end, or as [`FlexTree::insert`].
    pub fn map(
        &mut self,
        offset: u64,
        length: u64,
        address: u64,
        mut removed: impl FnMut(Extent),
    ) -> Result<(), Missing> {
        if let Some((missing, _)) = self.missing(offset, length) {
            return Err(missing);
        }
        if !self.replace(offset, length, address, &mut removed) {
            self.collapse(offset, length, removed)?;
            self.insert(offset, length, address)?;
        }
        Ok(())
    }

    /// The common case of [`FlexTree::map`]: exactly one extent gets another address in its place.
    fn replace(
        &mut self,
        offset: u64,
        length: u64,
        address: u64,
        removed: &mut impl FnMut(Extent),
    ) -> bool {
        let Ok(Some(found)) = self.lookup(offset) else { return false };
        if found.offset != offset || u64::from(found.length) != length || address == HOLE {
            return false;
        }
        let mut base = self.root_shift;
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = self.dirty_inner(node);
            let x = inner.branch_of(signed(offset).wrapping_sub(base));
            base = base.wrapping_add(inner.branches[x].shift);
            node = inner.branches[x].child;
        }
        let leaf = self.dirty_leaf(node);
        let index = leaf.index_of(offset.wrapping_sub(base.cast_unsigned()));
        let entry = &mut leaf.entries[index];
        removed(entry.extent(base));
        *entry = Entry::new(entry.offset(), found.length, address);
        true
    }

    fn insert_piece(&mut self, offset: u64, length: u64, address: u64) {
        let mut target = signed(offset).wrapping_sub(self.root_shift);
        // More is likely to come behind it: what is full is split there.
        let continues = offset == self.size_bytes || offset == self.inserted_end;
        self.inserted_end = offset + length;
        self.split_root(continues.then_some(target));
        let mut node = self.root;
        let mut parent = None;
        for level in (0..self.height).rev() {
            let mut x = self.inners[node].branch_before(target);
            if self.split_child(node, x, level, continues.then_some(target)) {
                x = self.inners[node].branch_before(target);
            }
            let inner = self.dirty_inner(node);
            inner.shift_after(x, signed(length));
            let branch = inner.branches[x];
            target = target.wrapping_sub(branch.shift);
            parent = Some((node, x));
            node = branch.child;
        }
        if self.leaves[node].end() + length >= self.shape.partial_offset_end {
            target = target.wrapping_sub(self.rebase(node, parent));
        }
        let shape = self.shape;
        let leaf = self.dirty_leaf(node);
        let before = leaf.entries.len();
        // An empty tree has its root's shift, whatever it is.
        let target = if before == 0 { 0 } else { target.cast_unsigned() };
        if before == 0 {
            self.root_shift = 0;
        }
        let leaf = self.dirty_leaf(node);
        leaf.insert(target, length, address, &shape);
        self.extent_count += (leaf.entries.len() - before) as u64;
        self.size_bytes += length;
    }

    /// Puts a node above a full root, and splits that: see [`FlexTree::split_child`].
    pub(super) fn split_root(&mut self, place: Option<i64>) {
        if !self.is_full(self.root, self.height) {
            return;
        }
        let mut above = Inner::empty();
        above.branches.push(Branch { shift: 0, child: self.root });
        self.root = self.inners.add(above);
        self.height += 1;
        self.split_child(self.root, 0, self.height - 1, place);
    }

    /// Whether an insertion might not find room: it may split an extent, and so add two.
    fn is_full(&self, node: NodeId, level: u8) -> bool {
        if level > 0 {
            self.inners[node].branches.len() >= self.shape.children_max
        } else {
            self.leaves[node].entries.len() + 2 > self.shape.leaf_capacity
        }
    }

    /// Splits child `x` of `node` if it is full: in the middle, or where an insertion at `place`, relative to the node, finds room for
    /// those that follow it. At its end the left half keeps nearly all.
    pub(super) fn split_child(
        &mut self,
        node: NodeId,
        x: usize,
        level: u8,
        place: Option<i64>,
    ) -> bool {
        let Branch { shift, child } = self.inners[node].branches[x];
        if !self.is_full(child, level) {
            return false;
        }
        let place = place.map(|place| place.wrapping_sub(shift));
        let (pivot, right) = if level > 0 {
            let left = self.dirty_inner(child);
            let count = left.branches.len();
            let before = place.map(|place| left.branch_before(place) + 1);
            let middle = before.map_or(count / 2, |before| before.clamp(1, count - 2));
            let mut right = Inner::empty();
            right.branches = left.branches.split_off(middle);
            right.pivots = left.pivots.split_off(middle);
            let pivot = left.pivots[middle - 1];
            left.pivots.remove(middle - 1..middle);
            (pivot, self.inners.add(right))
        } else {
            let left = self.dirty_leaf(child);
            let count = left.entries.len();
            let before = place.map(|place| {
                left.entries.partition_point(|entry| entry.offset() < place.cast_unsigned())
            });
            let middle = before.map_or(count / 2, |before| before.clamp(1, count - 2));
            let mut right = Leaf::empty();
            right.entries = left.entries.split_off(middle);
            let pivot = right.entries.first().map_or(0, |first| signed(first.offset()));
            (pivot, self.leaves.add(right))
        };
        let inner = self.dirty_inner(node);
        // The new pointer inherits the shift, so nothing that moved changes its effective offset.
        inner.pivots.insert(x, pivot.wrapping_add(shift));
        inner.branches.insert(x + 1, Branch { shift, child: right });
        true
    }
}

impl Leaf {
    /// Inserts at `target`, relative to the leaf, which has room for two entries.
    fn insert(&mut self, target: u64, length: u64, address: u64, shape: &super::Shape) {
        self.fetch();
        let index = self.entries.partition_point(|entry| entry.offset() < target);
        let by = signed(length);
        let new = Entry::new(target, u32::try_from(length).unwrap_or(0), address);
        if let Some(before) = index.checked_sub(1) {
            let entry = self.entries[before];
            let at = target - entry.offset();
            if at < entry.length() {
                self.shift_from(index, by);
                let hole = new.is_hole() && entry.takes(length, HOLE, shape);
                if hole {
                    self.entries[before] = entry.lengthened(length);
                    return;
                }
                self.entries[before] = entry.head(at);
                self.entries.insert(index, new);
                self.entries.insert(index + 1, entry.tail(at, target + length));
                return;
            }
            if entry.takes(length, address, shape) {
                self.entries[before] = entry.lengthened(length);
                self.shift_from(index, by);
                return;
            }
        }
        self.shift_from(index, by);
        self.entries.insert(index, new);
    }
}

impl Entry {
    fn lengthened(self, by: u64) -> Entry {
        let length = u32::try_from(self.length() + by).unwrap_or(u32::MAX);
        Entry::new(self.offset(), length, self.address())
    }
}
