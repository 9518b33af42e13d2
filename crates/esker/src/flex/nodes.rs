//! Nodes of the tree: loaded when they are needed, and leaves are forgotten that nobody needs any more (FlexSpace §4.2).

use super::{Inner, Writer, sites};
use esker_base::{Error, Result};
use esker_format::flex::{Branch, Node, StoredAt};
use esker_index::flex_tree::{BranchContent, Missing, NodeContent, Stored};
use std::ops::Range;

/// As the tree knows it.
pub(super) fn stored(at: StoredAt) -> Stored {
    Stored { slot: at.slot, checksum: at.checksum }
}

/// As media know it.
pub(super) fn stored_at(stored: Stored) -> StoredAt {
    StoredAt { slot: stored.slot, checksum: stored.checksum }
}

/// A node as media know it; `level` is one more than that of its children.
pub(super) fn node_of(content: &NodeContent, level: u16) -> Node {
    match content {
        NodeContent::Leaf(extents) => Node::Leaf(extents.clone()),
        NodeContent::Inner(branches) => {
            let branch = |branch: &BranchContent| Branch {
                pivot: branch.pivot,
                shift: branch.shift,
                child: stored_at(branch.child),
            };
            Node::Inner(level, branches.iter().map(branch).collect())
        }
    }
}

fn content_of(node: Node) -> NodeContent {
    match node {
        Node::Leaf(extents) => NodeContent::Leaf(extents),
        Node::Inner(_, branches) => {
            let branch = |branch: Branch| BranchContent {
                pivot: branch.pivot,
                shift: branch.shift,
                child: stored(branch.child),
            };
            NodeContent::Inner(branches.into_iter().map(branch).collect())
        }
    }
}

/// Leaves that the hand of the clock goes past when one is loaded for a read or a walk, and now and then while nobody writes. Where writes
/// go on those stay until the next checkpoint that these need, and their neighbours, to grow together.
pub(super) const LEAVES_OF_A_LOAD: usize = 64;
pub(super) const LEAVES_AT_REST: usize = 4096;
/// Memory of a leaf, in bytes.
const LEAF_BYTES: u64 = 1024;

impl Inner {
    /// Forgets leaves that lie idle, if more are in memory than there is room for: it looks at `most` of them. An operation that is under
    /// way counts on those that it loaded, so only who has the writer's lock may do this, before or behind it.
    pub(super) fn forget_idle(&self, writer: &Writer, most: usize) {
        if writer.keeps_leaves {
            return;
        }
        let room = usize::try_from(self.options.tree_size_bytes_max / LEAF_BYTES);
        let room = room.unwrap_or(usize::MAX);
        if self.shared.read().tree.resident().0 > room {
            self.shared.write().tree.evict(room, most);
        }
    }

    /// Loads every node that an operation on the range needs. The writer's lock is held, so none goes meanwhile.
    pub(super) fn load_range(&self, offset: u64, length: u64) -> Result<()> {
        let (mut at, end) = (offset, offset.saturating_add(length));
        loop {
            // What is before the last one is there.
            let missing = self.shared.read().tree.missing(at, end.saturating_sub(at));
            let Some((missing, place)) = missing else { return Ok(()) };
            self.load(&missing)?;
            at = at.max(place);
        }
    }

    /// Loads a node that a read needs, and then all others of the range, which goes on there. Others make way at the end, and none of these: they
    /// are used.
    pub(super) fn load_ahead(&self, missing: &Missing, range: Range<u64>) -> Result<()> {
        let (mut missing, mut at, mut count) = (*missing, range.start, 0);
        loop {
            self.load_one(&missing)?;
            count += 1;
            let shared = self.shared.read();
            let length = range.end.saturating_sub(at);
            match shared.tree.visit(at, length, |extent| at = extent.end()) {
                Ok(()) => break,
                Err(next) => missing = next,
            }
        }
        self.make_way(count);
        Ok(())
    }

    /// Reads a node and gives it to the tree. Unless an operation is under way, others may go for it.
    pub(super) fn load(&self, missing: &Missing) -> Result<()> {
        self.load_one(missing)?;
        self.make_way(1);
        Ok(())
    }

    /// Lets others go for so many that were loaded, unless an operation is under way.
    fn make_way(&self, loaded: usize) {
        if let Some(writer) = self.writer.try_lock() {
            self.forget_idle(&writer, loaded.saturating_mul(LEAVES_OF_A_LOAD));
        }
    }

    fn load_one(&self, missing: &Missing) -> Result<()> {
        const OPERATION: &str = "load node";
        let size = u64::from(self.shape.node_size_bytes);
        let offset = missing.stored.slot.saturating_mul(size);
        let device = &*self.files.tree;
        let node = if offset.saturating_add(size) > device.geometry().size_bytes {
            Err("the node is behind the end of the file".to_owned())
        } else {
            let mut bytes = self.pool.get(self.shape.node_size_bytes as usize);
            device.read_at(sites::NODE_READ, offset, &mut bytes)?;
            let sound = || sites::NODE_CHECKSUM.disabled();
            let (at, level) = (stored_at(missing.stored), u16::from(missing.level));
            Node::decode(&bytes, &self.id, at, level, sound).map_err(|flaw| flaw.to_string())
        };
        let mut shared = self.shared.write();
        if !shared.tree.is_missing(missing) {
            // Somebody else loaded it, or it left the tree and its slot may have been used again.
            return Ok(());
        }
        let damaged = |words: String| {
            Error::corrupted(OPERATION, words).device(device.name()).at(offset, size)
        };
        let found = node
            .and_then(|node| shared.tree.install(missing, content_of(node)).map_err(str::to_owned));
        let Err(words) = found else { return Ok(()) };
        let error = damaged(words);
        if let Some(lost) = &mut *self.lost_nodes.lock()
            && let Some(bytes) = shared.tree.lose(missing)
        {
            tracing::error!(%error, "what it covers is lost");
            lost.push(bytes);
            return Ok(());
        }
        Err(error)
    }
}
