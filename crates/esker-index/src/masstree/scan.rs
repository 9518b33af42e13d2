//! Scans in both directions, beside everything else.
//!
//! A scan copies one border at a time as it stood at one moment, and goes on with the slice where
//! that border ended then: upwards in the border to its right, if that still has the slice, otherwise
//! from the root. Borders change, but no key changes its place in the order: so a scan meets
//! every key that stays exactly once, and no key twice.

use super::memory::{Entry, Guard};
use super::node::{Item, LONG, Node, WIDTH};
use super::{Masstree, SLICE, behind, descend, slice_of};
use crate::word::Word;
use std::ops::{Bound, ControlFlow};

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// A layer that a scan is in.
struct Frame<'g, 'k> {
    root: &'g Node,
    /// Where the rest of the first key lies, if the scan began in this layer at one.
    from: Option<(&'k [u8], bool)>,
    /// Keys of one border that are still to be met, the next one last.
    items: [Option<Item>; WIDTH],
    left: usize,
    /// The slice with which to go on behind them.
    next: Option<u64>,
    /// The border that had it when that was said.
    near: Option<&'g Node>,
}

impl<'g, 'k> Frame<'g, 'k> {
    fn new(root: &'g Node, from: Option<(&'k [u8], bool)>, way: Way) -> Self {
        let all = if way == Way::Up { 0 } else { u64::MAX };
        let next = Some(from.map_or(all, |(rest, _)| slice_of(rest).0));
        Frame { root, from, items: [None; WIDTH], left: 0, next, near: None }
    }

    /// Whether a key lies on the way from where the scan began.
    fn is_ahead(&self, item: &Item, way: Way) -> bool {
        let Some((rest, inclusive)) = self.from else { return true };
        let (from, key) = (slice_of(rest), (item.slice, item.length));
        // What is behind the same slice is decided there.
        key == from && (inclusive || item.length == LONG)
            || (key != from && (key > from) == (way == Way::Up))
    }

    /// Copies the border for `slice`, and says where to go on; false if the layer is no more.
    fn fill(&mut self, slice: u64, way: Way, guard: &'g Guard) -> bool {
        let near = self.near.take().filter(|node| node.is_border_of(slice));
        let Some(mut node) = near.or_else(|| descend(self.root, slice, 0, guard)) else {
            return false;
        };
        loop {
            let version = node.version();
            if version.is_deleted() || version.level() > 0 {
                let Some(other) = descend(self.root, slice, 0, guard) else { return false };
                node = other;
                continue;
            }
            let order = node.order();
            if let Some(next) = node.right_for(slice, guard) {
                if node.unchanged(version) {
                    node = next;
                }
                continue;
            }
            // After `order`: if a split has cut it, `high` tells; if not yet, what lies beyond `high`
            // is met there.
            let high = Some(node.high()).filter(|high| *high > 0);
            let mut items = [None; WIDTH];
            let mut left = 0;
            let mut keep = |slot| {
                // The border may have taken over a neighbour's range whose keys were met.
                let here = |item: &Item| match way {
                    Way::Up => item.slice >= slice && high.is_none_or(|high| item.slice < high),
                    Way::Down => item.slice <= slice,
                };
                let item = node.item(slot).filter(|item| here(item) && self.is_ahead(item, way));
                if let (Some(item), Some(place)) = (item, items.get_mut(left)) {
                    *place = Some(item);
                    left += 1;
                }
            };
            match way {
                Way::Up => order.slots().rev().for_each(&mut keep),
                Way::Down => order.slots().for_each(&mut keep),
            }
            let (next, near) = match way {
                Way::Up => (high, high.and_then(|_| node.next(guard))),
                Way::Down => (node.low().checked_sub(1), None),
            };
            if node.unchanged(version) {
                // It comes while the keys of this one are met.
                near.into_iter().for_each(Node::prefetch);
                (self.items, self.left, self.next, self.near) = (items, left, next, near);
                return true;
            }
        }
    }

    fn pop(&mut self) -> Option<Item> {
        self.left = self.left.checked_sub(1)?;
        self.items.get(self.left).copied().flatten()
    }

    /// The rest of the first key behind this item's slice, if it has the same one.
    fn rest_behind(&self, item: &Item) -> Option<(&'k [u8], bool)> {
        let (rest, inclusive) = self.from?;
        (slice_of(rest) == (item.slice, LONG)).then_some((behind(rest), inclusive))
    }
}

impl Masstree {
    /// Gives keys and words to `visit` in ascending order, from the first key within `from` on, until
    /// it breaks or the keys end. Every key that stays during the scan is met exactly once, no key
    /// twice; one whose word changes, with a word that it had. `visit` may call the tree. Memory of
    /// removed keys is not used again while the scan goes on: long walks better go in parts.
    pub fn scan(&self, from: Bound<&[u8]>, visit: impl FnMut(&[u8], Word) -> ControlFlow<()>) {
        self.go(from, Way::Up, visit);
    }

    /// As [`Masstree::scan`], in descending order, from the last key within `from` on.
    pub fn scan_back(&self, from: Bound<&[u8]>, visit: impl FnMut(&[u8], Word) -> ControlFlow<()>) {
        self.go(from, Way::Down, visit);
    }

    fn go(
        &self,
        from: Bound<&[u8]>,
        way: Way,
        mut visit: impl FnMut(&[u8], Word) -> ControlFlow<()>,
    ) {
        let from = match from {
            Bound::Included(key) => Some((key, true)),
            Bound::Excluded(key) => Some((key, false)),
            Bound::Unbounded => None,
        };
        let guard = self.memory.guard();
        let Some(root) = self.root(&guard) else { return };
        let mut stack = vec![Frame::new(root, from, way)];
        let mut key: Vec<u8> = Vec::new();
        while let Some(frame) = stack.last_mut() {
            let Some(item) = frame.pop() else {
                let more = frame.next.is_some_and(|slice| frame.fill(slice, way, &guard));
                if !more {
                    stack.pop();
                }
                continue;
            };
            let from = frame.rest_behind(&item);
            key.truncate(SLICE * (stack.len() - 1));
            key.extend_from_slice(&item.slice.to_be_bytes());
            let met = match item.pointer.entry(&guard) {
                Entry::Node(layer) => {
                    stack.push(Frame::new(layer, from, way));
                    continue;
                }
                Entry::Word(word) => {
                    let unused = SLICE - usize::try_from(item.length).unwrap_or(SLICE).min(SLICE);
                    key.truncate(key.len() - unused);
                    word
                }
                Entry::Tail(tail) => {
                    let ahead = from.is_none_or(|(rest, inclusive)| match way {
                        Way::Up => tail.bytes() > rest || inclusive && tail.bytes() == rest,
                        Way::Down => tail.bytes() < rest || inclusive && tail.bytes() == rest,
                    });
                    if !ahead {
                        continue;
                    }
                    key.extend_from_slice(tail.bytes());
                    tail.word()
                }
            };
            if let Some(word) = Word::new(met)
                && visit(&key, word).is_break()
            {
                return;
            }
        }
    }

    /// The entries after the key `after` (`None` to begin with), in order, at most `max`: part of a walk
    /// over everything that survives all changes, as a scan.
    #[must_use]
    pub fn walk(&self, after: Option<&[u8]>, max: usize) -> Vec<(Vec<u8>, Word)> {
        let mut entries = Vec::new();
        if max == 0 {
            return entries;
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.scan(from, |key, word| {
            entries.push((key.to_vec(), word));
            if entries.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        entries
    }
}
