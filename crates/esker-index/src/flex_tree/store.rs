//! Nodes between memory and where they are stored: copy on write, on demand (FlexSpace §4.2).
//!
//! The tree knows which nodes changed and where the others are; it says what to write and takes what was
//! read. Stored nodes are never overwritten: a changed node gets a new place, its old one is released.

use super::node::Stored;
use super::node::{Branch, Entry, HOLE, Inner, Leaf, MARK, NodeId, absent, absent_id, is_absent};
use super::{FlexTree, Missing, Shape};
use std::ops::Range;

/// A pointer of a stored inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchContent {
    /// Where the child begins, relative to the node; 0 for the first child.
    pub pivot: i64,
    /// What is added to everything below.
    pub shift: i64,
    /// The child.
    pub child: Stored,
}

/// What a stored node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeContent {
    /// Extents: partial offset, length in bytes, address.
    Leaf(Vec<(u64, u32, u64)>),
    /// Pointers to children.
    Inner(Vec<BranchContent>),
}

/// What is known of a stored tree without reading a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// The root node; its slot is 0 if the tree is empty.
    pub stored: Stored,
    /// What is added to everything.
    pub shift: i64,
    /// Levels of inner nodes.
    pub height: u8,
    /// Bytes of the address space.
    pub size_bytes: u64,
    /// Extents, holes among them.
    pub extent_count: u64,
}

/// How far [`FlexTree::store`] is; a new one for each time that a tree is stored.
#[derive(Debug, Default)]
pub struct Walk {
    begun: bool,
    /// Inner nodes from the root on, and which child of each is next.
    path: Vec<(NodeId, usize)>,
}

/// Highest tree that is opened: a fuller one fits no medium.
pub const HEIGHT_MAX: u8 = 20;

impl Shape {
    /// Whether a tree has extents as long as this one, which ends where its address says.
    fn has_extent(&self, length: u32, address: u64) -> bool {
        if address == HOLE {
            return length <= self.hole_size_bytes_max;
        }
        let place = address & !MARK;
        let room = match self.boundary {
            0 => u64::MAX,
            boundary => boundary - place % boundary,
        };
        length <= self.extent_size_bytes_max && u64::from(length) <= room
    }
}

impl FlexTree {
    /// A stored tree, with no node in memory.
    ///
    /// # Panics
    /// As [`FlexTree::new`].
    #[must_use]
    pub fn stored(shape: Shape, root: Root) -> Self {
        let mut tree = FlexTree::new(shape);
        if root.stored.slot != 0 {
            tree.free_leaf(tree.root);
            tree.root = tree.add_absent(root.stored);
            tree.root_shift = root.shift;
            tree.height = root.height.min(HEIGHT_MAX);
            tree.size_bytes = root.size_bytes;
            tree.extent_count = root.extent_count;
        }
        tree
    }

    fn add_absent(&mut self, stored: Stored) -> NodeId {
        absent_id(self.absent.add(stored))
    }

    /// Takes a node that was read. Says nothing if it is no longer needed.
    ///
    /// # Errors
    /// What about the node does not fit: too many or too few entries, out of order, not the range that
    /// the node above says, or a second node above it or its children. A few nodes that share others would be a tree without an end.
    pub fn install(&mut self, missing: &Missing, content: NodeContent) -> Result<(), &'static str> {
        let Some(id) = self.absent_child(missing) else { return Ok(()) };
        let loaded = match (content, missing.level) {
            (NodeContent::Leaf(entries), 0) => {
                let mut leaf = self.leaf_of(&entries, missing)?;
                leaf.home = Some(missing.stored);
                self.clean += 1;
                self.leaves.add(leaf)
            }
            (NodeContent::Inner(branches), 1..) => {
                let inner = self.inner_of(&branches, missing)?;
                self.read.insert(missing.stored.slot);
                self.clean += 1;
                self.inners.add(inner)
            }
            _ => return Err("a leaf in place of an inner node, or the other way round"),
        };
        self.absent.free(absent(id));
        match missing.parent {
            None => self.root = loaded,
            Some((node, x)) => self.inners[node].branches[x].child = loaded,
        }
        Ok(())
    }

    fn leaf_of(
        &self,
        entries: &[(u64, u32, u64)],
        missing: &Missing,
    ) -> Result<Leaf, &'static str> {
        if entries.is_empty() || entries.len() > self.shape.leaf_capacity {
            return Err("number of extents");
        }
        let mut leaf = Leaf::empty();
        let mut next = entries.first().map_or(0, |first| first.0);
        let start = next;
        for (offset, length, address) in entries {
            if *offset != next || *length == 0 || *address >> 48 != 0 {
                return Err("extents are not contiguous");
            }
            if !self.shape.has_extent(*length, *address) {
                return Err("an extent is too long");
            }
            next = offset.saturating_add(u64::from(*length));
            leaf.entries.push(Entry::new(*offset, *length, *address));
        }
        if next > self.shape.partial_offset_end {
            return Err("partial offsets are too large");
        }
        let (place, base) = self.place_and_base(missing)?;
        let at = |offset: u64| super::signed(offset).wrapping_add(base);
        let begins = at(start) == super::signed(place.start);
        let ends = at(next) == super::signed(place.end);
        if begins && ends { Ok(leaf) } else { Err("extents do not cover what is said above") }
    }

    /// What a missing node covers, and what is added to the offsets in it.
    fn place_and_base(&self, missing: &Missing) -> Result<(Range<u64>, i64), &'static str> {
        let Some((node, x)) = missing.parent else {
            return Ok((0..self.size_bytes, self.root_shift));
        };
        let place = self.place_of(missing).ok_or("it covers nothing")?;
        let shift = self.inners[node].branches.get(x).map_or(0, |branch| branch.shift);
        Ok((place.bytes, place.base.wrapping_add(shift)))
    }

    fn inner_of(
        &mut self,
        branches: &[BranchContent],
        missing: &Missing,
    ) -> Result<Inner, &'static str> {
        if branches.is_empty() || branches.len() > self.shape.children_max {
            return Err("number of children");
        }
        let pivots = branches.iter().skip(1).map(|branch| branch.pivot);
        if !pivots.clone().is_sorted() || branches.iter().any(|branch| branch.child.slot == 0) {
            return Err("pivots are out of order");
        }
        // Leaves may come again, below another node: no more often than there are nodes.
        let mut slots: Vec<u64> = branches.iter().map(|branch| branch.child.slot).collect();
        slots.sort_unstable();
        let is_twice = slots.windows(2).any(|pair| pair.first() == pair.last());
        if is_twice || self.read.contains(&missing.stored.slot) {
            return Err("a node has two above it");
        }
        let (place, base) = self.place_and_base(missing)?;
        let is_inside = |pivot: i64| {
            let at = pivot.wrapping_add(base);
            super::signed(place.start) < at && at < super::signed(place.end)
        };
        if !pivots.clone().all(is_inside) {
            return Err("pivots do not fit those above");
        }
        let mut inner = Inner::empty();
        inner.home = Some(missing.stored);
        pivots.for_each(|pivot| inner.pivots.push(pivot));
        for branch in branches {
            let child = self.add_absent(branch.child);
            inner.branches.push(Branch { shift: branch.shift, child });
        }
        Ok(inner)
    }

    /// Gives dirty nodes and their levels to `write`, children first, which says where each will be stored; it is clean then.
    /// Stops behind `most` of them; once all are clean it says what to store beside them. Until then the tree
    /// must not change, but for nodes that are installed.
    pub fn store(
        &mut self,
        walk: &mut Walk,
        most: usize,
        mut write: impl FnMut(&NodeContent, u8) -> Stored,
    ) -> Option<Root> {
        if !std::mem::replace(&mut walk.begun, true) && self.size_bytes > 0 {
            match self.height {
                height if !self.is_dirty(self.root, height) => {}
                0 => self.store_leaf(self.root, &mut write),
                _ => walk.path.push((self.root, 0)),
            }
        }
        let mut count = 0;
        while let Some((node, next)) = walk.path.last_mut() {
            if count >= most {
                return None;
            }
            let (node, x) = (*node, *next);
            *next += 1;
            let below = self.height + 1 - u8::try_from(walk.path.len()).unwrap_or(self.height + 1);
            match self.inners[node].branches.get(x).map(|branch| branch.child) {
                None => {
                    self.store_inner(node, below, &mut write);
                    walk.path.pop();
                    count += 1;
                }
                Some(child) if !self.is_dirty(child, below - 1) => {}
                Some(child) if below > 1 => walk.path.push((child, 0)),
                Some(child) => {
                    self.store_leaf(child, &mut write);
                    count += 1;
                }
            }
        }
        Some(Root {
            stored: match self.size_bytes {
                0 => Stored::default(),
                _ => self.home_of(self.root, self.height),
            },
            shift: self.root_shift,
            height: self.height,
            size_bytes: self.size_bytes,
            extent_count: self.extent_count,
        })
    }

    fn store_leaf(&mut self, id: NodeId, write: &mut impl FnMut(&NodeContent, u8) -> Stored) {
        let leaf = &mut self.leaves[id];
        let entry = |entry: &Entry| {
            (entry.offset(), u32::try_from(entry.length()).unwrap_or(0), entry.address())
        };
        let content = NodeContent::Leaf(leaf.entries.iter().map(entry).collect());
        leaf.home = Some(write(&content, 0));
        self.clean += 1;
    }

    /// Its children are clean.
    fn store_inner(
        &mut self,
        id: NodeId,
        level: u8,
        write: &mut impl FnMut(&NodeContent, u8) -> Stored,
    ) {
        let inner = &self.inners[id];
        let pivots = std::iter::once(0).chain(inner.pivots.iter().copied());
        let content = inner.branches.iter().zip(pivots).map(|(branch, pivot)| {
            let child = self.home_of(branch.child, level - 1);
            BranchContent { pivot, shift: branch.shift, child }
        });
        let content = NodeContent::Inner(content.collect());
        self.inners[id].home = Some(write(&content, level));
        self.clean += 1;
    }

    /// Where a clean node is stored.
    fn home_of(&self, node: NodeId, level: u8) -> Stored {
        let home = match (is_absent(node), level) {
            (true, _) => self.absent.get(absent(node)).copied(),
            (false, 0) => self.leaves[node].home,
            (false, _) => self.inners[node].home,
        };
        home.unwrap_or_default()
    }

    fn is_dirty(&self, node: NodeId, level: u8) -> bool {
        !is_absent(node)
            && match level {
                0 => self.leaves[node].home.is_none(),
                _ => self.inners[node].home.is_none(),
            }
    }

    /// Nodes that [`FlexTree::store`] would write.
    #[must_use]
    pub fn dirty_count(&self) -> usize {
        let (leaves, inners) = self.resident();
        if self.size_bytes == 0 { 0 } else { leaves + inners - self.clean }
    }

    /// Stored nodes that [`FlexTree::take_released`] would return.
    #[must_use]
    pub fn released_count(&self) -> usize {
        self.released.len()
    }

    /// Whether the node is still missing.
    #[must_use]
    pub fn is_missing(&self, missing: &Missing) -> bool {
        self.absent_child(missing).is_some()
    }

    /// The absent node that `missing` stands for, if the place still has it.
    pub(super) fn absent_child(&self, missing: &Missing) -> Option<NodeId> {
        let id = match missing.parent {
            None => self.root,
            Some((node, x)) => self.inners.get(node)?.branches.get(x)?.child,
        };
        let same = is_absent(id) && self.absent.get(absent(id)) == Some(&missing.stored);
        same.then_some(id)
    }

    /// Stored nodes that the tree needs no more since this was asked last. Their places may be reused once
    /// a newer tree is durable.
    pub fn take_released(&mut self) -> Vec<Stored> {
        std::mem::take(&mut self.released)
    }

    /// Forgets clean leaves that nobody looked at since the hand of the clock was there, until at most `leaves_max` are in memory: it goes
    /// past `most` leaves, and past each once. What `store` gave them as places must be durable.
    pub fn evict(&mut self, leaves_max: usize, most: usize) {
        if self.height == 0 {
            return;
        }
        let mut left = most.min(self.leaves.count());
        let from_hand = (self.root, self.height, self.root_shift, 0);
        // To the end, and on from the beginning.
        for _ in 0..2 {
            match self.evict_below(from_hand, leaves_max, &mut left) {
                Some(hand) => {
                    self.hand = hand;
                    return;
                }
                None => self.hand = 0,
            }
        }
    }

    /// Of leaves below a node, which begins at `start`, those from the hand on. Where the next one begins, if it does not go on.
    fn evict_below(
        &mut self,
        (node, level, base, start): (NodeId, u8, i64, u64),
        leaves_max: usize,
        left: &mut usize,
    ) -> Option<u64> {
        let first = self.inners[node].branch_of(super::signed(self.hand).wrapping_sub(base));
        for x in first..self.inners[node].branches.len() {
            let Branch { shift, child } = self.inners[node].branches[x];
            let pivot = x.checked_sub(1).map(|before| self.inners[node].pivots[before]);
            let begin = pivot.map_or(start, |pivot| pivot.wrapping_add(base).cast_unsigned());
            if *left == 0 || self.leaves.count() <= leaves_max {
                return Some(begin.max(self.hand));
            }
            if is_absent(child) {
                continue;
            }
            if level > 1 {
                let below = (child, level - 1, base.wrapping_add(shift), begin);
                let stop = self.evict_below(below, leaves_max, left);
                if stop.is_some() {
                    return stop;
                }
                continue;
            }
            *left -= 1;
            if let Some(home) = self.leaves[child].home
                && !self.leaves[child].untouch()
            {
                self.leaves[child].entries.clear();
                self.leaves[child].home = None;
                self.clean -= 1;
                self.leaves.free(child);
                let absent = self.add_absent(home);
                self.inners[node].branches[x].child = absent;
            }
        }
        None
    }
}
