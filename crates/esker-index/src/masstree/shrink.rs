//! Removing empty nodes and layers (M4), one at a time.
//!
//! An empty border goes together with the ancestors that have no other child: a chain. What the chain
//! covered goes to its left neighbours, or if it is its parent's first child to its right ones; those
//! have the same parent, so ranges stay nested (M1). All nodes concerned are locked from below, from left
//! to right. A layer whose last key is gone goes as a whole.

use super::memory::{Entry, Guard};
use super::node::{LONG, Node};
use super::{Masstree, SLICE, descend, lock_at, slice_of};

/// A node that goes, locked with its neighbours.
struct Link<'g> {
    left: Option<&'g Node>,
    node: &'g Node,
    right: Option<&'g Node>,
}

impl Link<'_> {
    fn unlock_neighbours(&self) {
        self.left.into_iter().chain(self.right).for_each(Node::unlock);
    }

    fn unlock(&self) {
        self.unlock_neighbours();
        self.node.unlock();
    }
}

impl Masstree {
    /// Removes what is empty where a key was that had `depth` bytes before the slice in its border.
    #[cold]
    pub(super) fn shrink(&self, key: &[u8], mut depth: usize, guard: &Guard) {
        let _turn = self.shrink.lock();
        // Layers go only under that lock, so these stay until they are removed here.
        let mut layers = self.layers(key, depth, guard);
        while let Some(layer) = layers.pop() {
            let (slice, _) = slice_of(key.get(depth..).unwrap_or(&[]));
            remove_border(layer, slice, guard);
            let (Some(upper), Some(above)) = (layers.last(), depth.checked_sub(SLICE)) else {
                return;
            };
            if !remove_layer(layer, upper, key, above, guard) {
                return;
            }
            depth = above;
        }
    }

    /// The roots of the layers that a key goes through in its first `depth` bytes; none if it does not
    /// any more.
    fn layers<'g>(&self, key: &[u8], depth: usize, guard: &'g Guard) -> Vec<&'g Node> {
        let mut layers: Vec<&Node> = self.root(guard).into_iter().collect();
        for slice in key.chunks(SLICE).take(depth / SLICE) {
            let (slice, _) = slice_of(slice);
            let border = layers.last().and_then(|root| lock_at(root, slice, 0, guard));
            let below = border.and_then(|border| {
                let slot = border.find(border.order(), slice, LONG);
                let below = slot.and_then(|slot| border.pointer(slot)?.node(guard));
                border.unlock();
                below
            });
            match below {
                Some(below) => layers.push(below),
                None => return Vec::new(),
            }
        }
        layers
    }
}

/// Removes an empty layer from the one above it. Whether the border there is empty now.
fn remove_layer<'g>(
    root: &'g Node,
    upper: &'g Node,
    key: &[u8],
    above: usize,
    guard: &'g Guard,
) -> bool {
    let Some(chain) = lock_layer(root, guard) else { return false };
    let (slice, _) = slice_of(key.get(above..).unwrap_or(&[]));
    let Some(border) = lock_at(upper, slice, 0, guard) else {
        chain.into_iter().for_each(Node::unlock);
        return false;
    };
    let slot = border.find(border.order(), slice, LONG);
    let leads = |slot: &usize| match border.pointer(*slot).map(|slot| slot.load().entry(guard)) {
        Some(Entry::Node(layer)) => std::ptr::eq(layer, root),
        _ => false,
    };
    let Some(slot) = slot.filter(leads) else {
        border.unlock();
        chain.into_iter().for_each(Node::unlock);
        return false;
    };
    border.take(slot);
    let empty = border.order().count() == 0;
    chain.iter().for_each(|node| node.delete());
    border.unlock();
    chain.into_iter().for_each(|node| guard.retire_node(node));
    empty
}

/// Locks all nodes of a layer, if it holds nothing: one empty border and nodes with one child above it.
fn lock_layer<'g>(root: &'g Node, guard: &'g Guard) -> Option<Vec<&'g Node>> {
    let mut chain = Vec::new();
    for level in 0.. {
        let node = lock_at(root, 0, level, guard)?;
        chain.push(node);
        let empty = if level == 0 { node.order().count() == 0 } else { node.keys() == 0 };
        if !empty || node.next(guard).is_some() {
            chain.into_iter().for_each(Node::unlock);
            return None;
        }
        if std::ptr::eq(node, root) {
            break;
        }
    }
    Some(chain)
}

/// Removes the border of a slice, if it is empty and not the only one.
fn remove_border<'g>(root: &'g Node, slice: u64, guard: &'g Guard) {
    let Some(mut node) = lock_at(root, slice, 0, guard) else { return };
    let low = node.low();
    node.unlock();
    if std::ptr::eq(node, root) {
        return;
    }
    let mut chain: Vec<Link<'g>> = Vec::new();
    let parent = loop {
        let level = chain.len() as u64;
        let Some(link) = lock_link(root, low, level, guard) else { break None };
        node = link.node;
        let only_child = match chain.last() {
            None => node.order().count() == 0,
            Some(below) => {
                let (keys, children) = node.children(guard);
                keys.is_empty() && children.first().is_some_and(|c| std::ptr::eq(*c, below.node))
            }
        };
        chain.push(link);
        if !only_child || node.low() != low || std::ptr::eq(node, root) {
            break None;
        }
        let Some(parent) = descend(root, low, level + 1, guard) else { break None };
        // Only a look: whether it is the parent, and has other children, is seen under its lock.
        if parent.keys() > 0 || std::ptr::eq(parent, root) {
            break lock_at(root, low, level + 1, guard);
        }
    };
    let top = chain.last().map(|link| link.node);
    let Some((parent, top)) = parent.zip(top) else {
        chain.iter().for_each(Link::unlock);
        return;
    };
    let (mut keys, mut children) = parent.children(guard);
    let place = children.iter().position(|child| std::ptr::eq(*child, top));
    let Some(place) = place.filter(|_| !keys.is_empty()) else {
        parent.unlock();
        chain.iter().for_each(Link::unlock);
        return;
    };
    for link in &chain {
        match (link.left, link.right) {
            (Some(left), _) if place > 0 => left.absorb(link.node, guard),
            (left, Some(right)) => {
                right.set_low(low);
                left.into_iter().for_each(|left| left.skip_to(right));
            }
            (_, None) => {}
        }
    }
    children.remove(place);
    keys.remove(place.saturating_sub(1));
    parent.begin_change();
    parent.set_children(&keys, &children);
    parent.end_change(chain.len() as u64);
    for link in &chain {
        link.node.delete();
        link.unlock_neighbours();
    }
    parent.unlock();
    chain.iter().for_each(|link| guard.retire_node(link.node));
}

/// Locks the node of a level that begins with `low`, and its neighbours, from left to right.
fn lock_link<'g>(root: &'g Node, low: u64, level: u64, guard: &'g Guard) -> Option<Link<'g>> {
    let left = match low.checked_sub(1) {
        Some(before) => Some(lock_at(root, before, level, guard)?),
        None => None,
    };
    let node = match left {
        Some(left) => {
            let node = left.next(guard);
            let Some(node) = node else {
                left.unlock();
                return None;
            };
            node.lock();
            node
        }
        None => lock_at(root, low, level, guard)?,
    };
    let right = node.next(guard);
    right.into_iter().for_each(|right| {
        right.lock();
    });
    Some(Link { left, node, right })
}
