//! FlexTree: a B+-tree of extents whose shift operations cost O(log n) (FlexSpace §3).
//!
//! Maps a contiguous logical address space to addresses elsewhere, at byte granularity. An extent
//! stands in a leaf with a *partial offset*; every pointer to a child carries a *shift*. The effective
//! offset of an extent is its partial offset plus all shifts on the way to it, so inserting or removing
//! a range changes one leaf and, on each level above, the pointers behind the path. `flex` keeps its
//! address space in one; nodes that are on media are loaded when somebody gets there, by the caller:
//! nothing here does I/O.
//!
//! ```text
//! inner: | branch 0 | pivot 0 | branch 1 | pivot 1 | branch 2 |     branch: child, shift
//! leaf:  | extent | extent | extent | ...                           extent: partial offset, length, address
//! ```
//!
//! # Invariants
//! - I1: extents tile `0..size_bytes()` without gaps; a range that maps to nothing is an extent with
//!   the address [`HOLE`].
//! - I2: offsets and pivots of a node are relative to the sum of the shifts above it. Pivot `x` is where
//!   branch `x + 1` begins, relative to the node.
//! - I3: partial offsets stay below [`Shape::partial_offset_end`]: a leaf that comes near is
//!   re-based, its least offset moves into the shift above it.
//! - I4: a node that was changed since it was stored is dirty, and so are all above it.
//! - I5: all leaves are equally deep; nodes are split on the way down, merged on the way up.
//!
//! # Concurrency
//! One writer, or many readers. Lookups take `&self`.
//!
//! # Failure
//! An operation that needs an absent node changes nothing and says which ([`Missing`]); the caller
//! loads it, gives it to [`FlexTree::install`] and calls again. Nodes come checked from the caller, and
//! [`FlexTree::install`] checks that they fit their place.

#![allow(
    clippy::indexing_slicing,
    reason = "ids and indexes are this module's own: what comes from media is checked by `install`"
)]

mod arena;
mod collapse;
mod insert;
mod lose;
mod node;
mod range;
mod store;

pub use node::{CHILDREN_MAX, HOLE, LEAF_CAPACITY_MAX, MARK, Stored};
pub use range::Range;
pub use store::{BranchContent, HEIGHT_MAX, NodeContent, Root, Walk};

use arena::Arena;
use node::{Inner, Leaf, NodeId, absent, behind, is_absent};
use std::collections::BTreeSet;
use std::fmt;

/// Sizes of a tree. Small ones are for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Most extents of a leaf: 4 to [`LEAF_CAPACITY_MAX`].
    pub leaf_capacity: usize,
    /// Most children of an inner node: 4 to [`CHILDREN_MAX`].
    pub children_max: usize,
    /// Partial offsets stay below this; at most 2^48, at least 2^8 times the longest extent.
    pub partial_offset_end: u64,
    /// Longest extent with an address, in bytes.
    pub extent_size_bytes_max: u32,
    /// Longest extent without, in bytes.
    pub hole_size_bytes_max: u32,
    /// Extents do not grow together across addresses that are multiples of this; 0: anywhere.
    pub boundary: u64,
}

impl Default for Shape {
    /// The shape of the paper: leaves of 60 extents, inner nodes of 31 children.
    fn default() -> Self {
        Shape {
            leaf_capacity: LEAF_CAPACITY_MAX,
            children_max: CHILDREN_MAX,
            partial_offset_end: 1 << 48,
            extent_size_bytes_max: 128 << 10,
            hole_size_bytes_max: u32::MAX,
            boundary: 0,
        }
    }
}

/// A contiguous piece of the logical address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Effective offset in bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// Where the bytes are, with [`MARK`] if the first one is marked, or [`HOLE`].
    pub address: u64,
}

impl Extent {
    /// Whether the range maps to nothing.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        self.address == HOLE
    }

    /// Whether its first byte is marked ([`MARK`]).
    #[must_use]
    pub fn is_marked(&self) -> bool {
        !self.is_hole() && self.address & MARK != 0
    }

    /// Its address without the mark; that of a hole stays [`HOLE`].
    #[must_use]
    pub fn place(&self) -> u64 {
        if self.is_hole() { HOLE } else { self.address & !MARK }
    }

    /// First offset behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }

    /// The part of it from `start` to `end`, which overlaps it.
    #[must_use]
    fn part(&self, start: u64, end: u64) -> Extent {
        let first = start.max(self.offset);
        let cut = first - self.offset;
        let length = self.end().min(end).saturating_sub(first);
        let address = behind(self.address, cut);
        Extent { offset: first, length: u32::try_from(length).unwrap_or(0), address }
    }
}

/// A node that an operation needs and that is not in memory.
#[derive(Clone, Copy, Debug)]
pub struct Missing {
    /// Where it is stored.
    pub stored: Stored,
    /// Levels below it: 0 for a leaf.
    pub level: u8,
    parent: Option<(NodeId, usize)>,
    /// A byte that it covered when it was needed.
    at: u64,
}

impl Missing {
    /// Whether the other one is the same node, needed for whichever byte.
    #[must_use]
    pub fn is_same_node(&self, other: &Missing) -> bool {
        (self.stored, self.level, self.parent) == (other.stored, other.level, other.parent)
    }
}

/// Deepest path: fuller trees than any medium can hold.
const LEVELS_MAX: usize = 24;

/// A B+-tree with shifts. See the module's text.
pub struct FlexTree {
    shape: Shape,
    leaves: Arena<Leaf>,
    inners: Arena<Inner>,
    /// Places of nodes that are not in memory, by number.
    absent: Arena<Stored>,
    /// Stored nodes that are part of the tree no more, or that were changed since.
    released: Vec<Stored>,
    /// Slots of the inner nodes that were read. They are never forgotten, so a slot that is read again has two nodes above it.
    read: BTreeSet<u64>,
    /// Nodes in memory that are stored as they are.
    clean: usize,
    root: NodeId,
    root_shift: i64,
    /// Levels of inner nodes.
    height: u8,
    size_bytes: u64,
    extent_count: u64,
    /// Where the last insertion ended.
    inserted_end: u64,
    /// Where the hand of the clock is that forgets leaves.
    hand: u64,
}

impl FlexTree {
    /// An empty tree.
    ///
    /// # Panics
    /// If the shape is not as its fields document.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        assert!((4..=LEAF_CAPACITY_MAX).contains(&shape.leaf_capacity), "{shape:?}");
        assert!((4..=CHILDREN_MAX).contains(&shape.children_max), "{shape:?}");
        let longest = shape.extent_size_bytes_max.max(shape.hole_size_bytes_max);
        assert!(shape.partial_offset_end <= 1 << 48, "{shape:?}");
        assert!(shape.partial_offset_end >> 8 >= u64::from(longest), "{shape:?}");
        let mut tree = FlexTree {
            shape,
            leaves: Arena::new(),
            inners: Arena::new(),
            absent: Arena::new(),
            released: Vec::new(),
            read: BTreeSet::new(),
            clean: 0,
            root: 0,
            root_shift: 0,
            height: 0,
            size_bytes: 0,
            extent_count: 0,
            inserted_end: u64::MAX,
            hand: 0,
        };
        tree.root = tree.leaves.add(Leaf::empty());
        tree
    }

    /// Bytes of the address space.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Extents, holes among them.
    #[must_use]
    pub fn extent_count(&self) -> u64 {
        self.extent_count
    }

    /// Leaves and inner nodes in memory.
    #[must_use]
    pub fn resident(&self) -> (usize, usize) {
        (self.leaves.count(), self.inners.count())
    }

    /// Levels of inner nodes above the leaves.
    #[must_use]
    pub fn height(&self) -> u8 {
        self.height
    }

    /// The extent that covers `offset`; `None` behind the end.
    ///
    /// # Errors
    /// The node that is needed first.
    pub fn lookup(&self, offset: u64) -> Result<Option<Extent>, Missing> {
        if offset >= self.size_bytes {
            return Ok(None);
        }
        let mut base = self.root_shift;
        let mut node = self.root;
        for _ in 0..self.height {
            if is_absent(node) {
                return Err(self.missing_at(offset));
            }
            let inner = &self.inners[node];
            let branch = inner.branches.at(inner.branch_of(signed(offset).wrapping_sub(base)));
            base = base.wrapping_add(branch.shift);
            node = branch.child;
        }
        if is_absent(node) {
            return Err(self.missing_at(offset));
        }
        let leaf = &self.leaves[node];
        leaf.touch();
        Ok(leaf.find(offset, base))
    }

    /// The absent node on the way to `offset`.
    #[cold]
    fn missing_at(&self, offset: u64) -> Missing {
        let found = Range::leaves(self, offset, 1).find_map(Result::err);
        found.unwrap_or(Missing { stored: Stored::default(), level: 0, parent: None, at: offset })
    }

    /// Calls `visit` with the extents that [`FlexTree::range`] gives: faster than to ask for one after the
    /// other.
    ///
    /// # Errors
    /// The first node that is needed and not in memory; what comes before it was visited.
    pub fn visit(
        &self,
        offset: u64,
        length: u64,
        visit: impl FnMut(Extent),
    ) -> Result<(), Missing> {
        self.range(offset, length).visit(visit)
    }

    /// As [`FlexTree::visit`], for who goes past everything: leaves that nobody else needs are forgotten as before.
    ///
    /// # Errors
    /// As for [`FlexTree::visit`].
    pub fn pass(&self, offset: u64, length: u64, visit: impl FnMut(Extent)) -> Result<(), Missing> {
        self.range(offset, length).passing().visit(visit)
    }

    /// The extents that cover `length` bytes from `offset`, clipped to that range and to the end.
    #[must_use]
    pub fn range(&self, offset: u64, length: u64) -> Range<'_> {
        Range::new(self, offset, length)
    }

    /// The first node that an operation on `length` bytes at `offset` needs and that is not in memory, and the offset from which on
    /// it is needed: what is before is there, so who loads one after the other goes on from there.
    #[must_use]
    pub fn missing(&self, offset: u64, length: u64) -> Option<(Missing, u64)> {
        if self.absent.count() == 0 {
            return None;
        }
        // The bytes before and behind say which leaves an insertion there touches.
        let end = offset.saturating_add(length).saturating_add(1);
        let start = offset.saturating_sub(1).min(self.size_bytes.saturating_sub(1));
        let mut leaves = Range::leaves(self, start, end.saturating_sub(start));
        let missing = leaves.find_map(Result::err)?;
        Some((missing, leaves.offset()))
    }

    fn check_present(
        &self,
        node: NodeId,
        level: u8,
        parent: Option<(NodeId, u32)>,
        at: u64,
    ) -> Result<(), Missing> {
        if is_absent(node) {
            let parent = parent.map(|(node, x)| (node, x as usize));
            let stored = self.absent.get(absent(node)).copied().unwrap_or_default();
            return Err(Missing { stored, level, parent, at });
        }
        Ok(())
    }

    fn free_leaf(&mut self, id: NodeId) {
        self.dirty_leaf(id).entries.clear();
        self.leaves.free(id);
    }

    fn free_inner(&mut self, id: NodeId) {
        self.dirty_inner(id).clear();
        self.inners.free(id);
    }

    /// Notes that a leaf is about to change (I4).
    fn dirty_leaf(&mut self, id: NodeId) -> &mut Leaf {
        let leaf = &mut self.leaves[id];
        if let Some(home) = leaf.home.take() {
            self.released.push(home);
            self.clean -= 1;
        }
        leaf
    }

    /// Notes that an inner node is about to change (I4).
    fn dirty_inner(&mut self, id: NodeId) -> &mut Inner {
        let inner = &mut self.inners[id];
        if let Some(home) = inner.home.take() {
            self.released.push(home);
            self.clean -= 1;
        }
        inner
    }

    /// Moves the least partial offset of a leaf into the shift above it (I3).
    fn rebase(&mut self, leaf: NodeId, parent: Option<(NodeId, usize)>) -> i64 {
        let by = self.dirty_leaf(leaf).rebase();
        match parent {
            None => self.root_shift = self.root_shift.wrapping_add(by),
            Some((node, x)) => {
                let branch = &mut self.dirty_inner(node).branches[x];
                branch.shift = branch.shift.wrapping_add(by);
            }
        }
        by
    }
}

/// An offset as a number that shifts can be added to; address spaces end below 2^63 bytes.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

impl fmt::Debug for FlexTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlexTree")
            .field("size_bytes", &self.size_bytes)
            .field("extent_count", &self.extent_count)
            .field("height", &self.height)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
