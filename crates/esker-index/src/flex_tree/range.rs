//! Walks over the leaf level (FlexSpace §3.2): extents follow each other without gaps, so after the
//! first one only lengths are added up.

use super::node::NodeId;
use super::{Extent, FlexTree, LEVELS_MAX, Missing, signed};

/// The extents of a range, in order. See [`FlexTree::range`].
///
/// An item that is an error names a node that is not in memory; the walk ends there.
#[derive(Debug)]
pub struct Range<'t> {
    tree: &'t FlexTree,
    steps: [(NodeId, u32); LEVELS_MAX],
    leaf: Option<NodeId>,
    index: usize,
    offset: u64,
    end: u64,
    /// Only look at one extent of each leaf.
    leaves_only: bool,
    /// Leaves are used, and stay for it when others are forgotten.
    touches: bool,
    started: bool,
}

impl<'t> Range<'t> {
    pub(super) fn new(tree: &'t FlexTree, offset: u64, length: u64) -> Self {
        Range {
            tree,
            steps: [(0, 0); LEVELS_MAX],
            leaf: None,
            index: 0,
            offset,
            end: offset.saturating_add(length).min(tree.size_bytes),
            leaves_only: false,
            touches: true,
            started: false,
        }
    }

    /// A walk that visits each leaf of the range once.
    pub(super) fn leaves(tree: &'t FlexTree, offset: u64, length: u64) -> Self {
        Range { leaves_only: true, ..Range::new(tree, offset, length) }
    }

    /// The same, but leaves may be forgotten as if nobody had been there.
    pub(super) fn passing(self) -> Self {
        Range { touches: false, ..self }
    }

    /// Where the next extent begins; behind an error, where the node that is not in memory does, or the walk.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes down to the leaf that covers `offset`.
    fn seek(&mut self) -> Result<(), Missing> {
        let tree = self.tree;
        let mut base = tree.root_shift;
        let mut node = tree.root;
        let mut parent = None;
        for depth in 0..usize::from(tree.height) {
            tree.check_present(node, tree.height - level(depth), parent, self.offset)?;
            let inner = &tree.inners[node];
            let x = inner.branch_of(signed(self.offset).wrapping_sub(base));
            let branch = inner.branches.at(x);
            let x = u32::try_from(x).unwrap_or(u32::MAX);
            self.steps[depth] = (node, x);
            parent = Some((node, x));
            base = base.wrapping_add(branch.shift);
            node = branch.child;
        }
        self.enter(node, parent)?;
        let leaf = &tree.leaves[node];
        self.index = leaf.index_of(self.offset.wrapping_sub(base.cast_unsigned()));
        // The walk begins inside an extent.
        if let Some(entry) = leaf.entries.get(self.index) {
            self.offset = entry.extent(base).offset;
        }
        Ok(())
    }

    fn enter(&mut self, node: NodeId, parent: Option<(NodeId, u32)>) -> Result<(), Missing> {
        self.tree.check_present(node, 0, parent, self.offset)?;
        let leaf = &self.tree.leaves[node];
        leaf.fetch();
        if self.touches {
            leaf.touch();
        }
        self.leaf = Some(node);
        self.index = 0;
        Ok(())
    }

    /// Goes to the leaf behind.
    fn advance(&mut self) -> Result<(), Missing> {
        let tree = self.tree;
        self.leaf = None;
        let mut depth = usize::from(tree.height);
        loop {
            let Some(above) = depth.checked_sub(1) else { return Ok(()) };
            depth = above;
            let (node, x) = &mut self.steps[depth];
            if (*x as usize) + 1 < tree.inners[*node].branches.len() {
                *x += 1;
                break;
            }
        }
        loop {
            let (node, x) = self.steps[depth];
            let child = tree.inners[node].branches.at(x as usize).child;
            depth += 1;
            if depth == usize::from(tree.height) {
                return self.enter(child, Some((node, x)));
            }
            tree.check_present(child, tree.height - level(depth), Some((node, x)), self.offset)?;
            self.steps[depth] = (child, 0);
        }
    }

    fn step(&mut self, start: u64) -> Result<Option<Extent>, Missing> {
        if !self.started {
            self.started = true;
            self.seek()?;
        }
        loop {
            let Some(node) = self.leaf else { return Ok(None) };
            let leaf = &self.tree.leaves[node];
            let Some(entry) = leaf.entries.get(self.index) else {
                self.advance()?;
                continue;
            };
            let whole = Extent { offset: self.offset, ..entry.extent(0) };
            if self.leaves_only {
                let rest = leaf.end() - entry.offset();
                self.index = leaf.entries.len();
                self.offset = self.offset.saturating_add(rest);
            } else {
                self.index += 1;
                self.offset = whole.end();
            }
            return Ok(Some(whole.part(start, self.end)));
        }
    }
}

impl Range<'_> {
    /// Calls `visit` with every extent that is left.
    pub(super) fn visit(mut self, mut visit: impl FnMut(Extent)) -> Result<(), Missing> {
        if self.offset >= self.end {
            return Ok(());
        }
        let (start, end) = (self.offset, self.end);
        self.seek()?;
        while let Some(node) = self.leaf {
            let entries = &self.tree.leaves[node].entries[self.index..];
            let Some(first) = entries.first() else { break };
            let base = signed(self.offset).wrapping_sub(signed(first.offset()));
            for entry in entries {
                let extent = entry.extent(base);
                if extent.offset >= end {
                    return Ok(());
                }
                self.offset = extent.end();
                // The first and the last one of the range are clipped.
                let is_inside = extent.offset >= start && self.offset <= end;
                visit(if is_inside { extent } else { extent.part(start, end) });
            }
            if self.offset >= end {
                break;
            }
            self.advance()?;
        }
        Ok(())
    }
}

fn level(depth: usize) -> u8 {
    u8::try_from(depth).unwrap_or(u8::MAX)
}

impl Iterator for Range<'_> {
    type Item = Result<Extent, Missing>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.end {
            return None;
        }
        let start = if self.started { 0 } else { self.offset };
        match self.step(start) {
            Ok(extent) => extent.map(Ok),
            Err(missing) => {
                self.end = 0;
                Some(Err(missing))
            }
        }
    }
}
