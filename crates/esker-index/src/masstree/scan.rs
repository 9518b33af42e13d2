//! Scans in both directions, beside everything else.
//!
//! A scan copies one border at a time as it stood at one moment, and goes on with the slice where
//! that border ended then: upwards in the border to its right, if that still has the slice, otherwise
//! from the root. Borders change, but no key changes its place in the order: so a scan meets
//! every key that stays exactly once, and no key twice.
//!
//! A border comes from memory, and only itself says which is the next one. So a scan asks the node above for the borders behind
//! the one that it copies, several at once, while it is on its way there. What that node says is a hint, no more.

use super::memory::{Entry, Guard};
use super::node::{Item, LONG, Node, WIDTH};
use super::{Masstree, SLICE, behind, descend, slice_of};
use crate::word::Word;
use std::ops::{Bound, ControlFlow};

/// Borders that a scan asks for at once, at most.
const ASKS_MAX: usize = 8;
/// Keys that a border has, about.
const KEYS_OF_BORDER: usize = 10;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// Whether a key lies on the way from where the scan began in its layer.
#[inline]
fn is_ahead(from: Option<(&[u8], bool)>, item: &Item, way: Way) -> bool {
    let Some((rest, inclusive)) = from else { return true };
    let (from, key) = (slice_of(rest), (item.slice, item.length));
    // What is behind the same slice is decided there.
    key == from && (inclusive || item.length == LONG)
        || (key != from && (key > from) == (way == Way::Up))
}

/// The node above the border that has the slice, as it is just now; `None` if there is none.
fn above_border<'g>(root: &'g Node, slice: u64, guard: &'g Guard) -> Option<&'g Node> {
    let mut node = root;
    loop {
        let version = node.version();
        if version.is_deleted() || version.level() == 0 {
            return None;
        }
        let right = node.right_for(slice, guard);
        let to = match right {
            None if version.level() == 1 => Some(node),
            None => node.child_for(slice, guard),
            right => right,
        };
        if !node.unchanged(version) {
            continue;
        }
        match to {
            Some(to) if std::ptr::eq(to, node) => return Some(node),
            Some(to) => {
                to.prefetch();
                node = to;
            }
            None => return None,
        }
    }
}

/// A layer that a scan is in.
struct Frame<'g, 'k> {
    root: &'g Node,
    /// Where the rest of the first key lies, if the scan began in this layer at one and has not passed it.
    from: Option<(&'k [u8], bool)>,
    begun: bool,
    /// Keys of one border that are still to be met, the next one last.
    items: [Item; WIDTH],
    left: usize,
    /// The slice with which to go on behind them.
    next: Option<u64>,
    /// The border that had it when that was said.
    near: Option<&'g Node>,
    /// The node above the border that was copied last, as far as that is known.
    above: Option<&'g Node>,
    /// Borders on the way that were asked for.
    ahead: usize,
    /// Borders to ask for at once.
    asks: usize,
}

impl<'g, 'k> Frame<'g, 'k> {
    fn new(root: &'g Node, from: Option<(&'k [u8], bool)>, way: Way, asks: usize) -> Self {
        let all = if way == Way::Up { 0 } else { u64::MAX };
        let next = Some(from.map_or(all, |(rest, _)| slice_of(rest).0));
        let items = [Item::NOTHING; WIDTH];
        let begun = false;
        Frame { root, from, begun, items, left: 0, next, near: None, above: None, ahead: 0, asks }
    }

    /// The border for `slice`, as far as it is easily found; asks for those behind it if that has not been done.
    fn border(&mut self, slice: u64, way: Way, guard: &'g Guard) -> Option<&'g Node> {
        let near = self.near.take().filter(|node| node.is_border_of(slice));
        if near.is_some() && (self.ahead > 0 || self.asks == 0) {
            self.ahead = self.ahead.saturating_sub(1);
            return near;
        }
        let known = self.above.take().filter(|node| node.is_above(slice));
        if known.is_none() {
            self.ahead = 0;
        }
        let mut above = known.or_else(|| above_border(self.root, slice, guard))?;
        loop {
            let version = above.version();
            if version.is_deleted() || version.level() != 1 {
                return near;
            }
            if let Some(right) = above.right_for(slice, guard) {
                if above.unchanged(version) {
                    (above, self.ahead) = (right, 0);
                }
                continue;
            }
            let mut border = None;
            let mut asked = 0;
            for child in above.children_from(slice, way == Way::Up, guard).take(1 + self.asks) {
                if self.ahead < 1 + asked {
                    child.prefetch();
                }
                border = border.or(Some(child));
                asked += 1;
            }
            if above.unchanged(version) {
                self.above = Some(above);
                self.ahead = self.ahead.max(asked).saturating_sub(1);
                return near.or(border);
            }
        }
    }

    /// Copies the border for `slice`, and says where to go on; false if the layer is no more.
    fn fill(&mut self, slice: u64, way: Way, guard: &'g Guard) -> bool {
        if self.begun {
            // All keys behind the first border lie on the way.
            self.from = None;
        }
        self.begun = true;
        let near = self.border(slice, way, guard);
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
            let mut left = 0;
            let (items, from) = (&mut self.items, self.from);
            let mut keep = |slot| {
                // The border may have taken over a neighbour's range whose keys were met.
                let here = |item: &Item| match way {
                    Way::Up => item.slice >= slice && high.is_none_or(|high| item.slice < high),
                    Way::Down => item.slice <= slice,
                };
                let item = node.item(slot).filter(|item| here(item) && is_ahead(from, item, way));
                if let (Some(item), Some(place)) = (item, items.get_mut(left)) {
                    *place = item;
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
                near.into_iter().filter(|_| self.ahead == 0).for_each(Node::prefetch);
                (self.left, self.next, self.near) = (left, next, near);
                return true;
            }
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<Item> {
        self.left = self.left.checked_sub(1)?;
        self.items.get(self.left).copied()
    }

    /// The rest of the first key behind this item's slice, if it has the same one.
    fn rest_behind(&self, item: &Item) -> Option<(&'k [u8], bool)> {
        let (rest, inclusive) = self.from?;
        (slice_of(rest) == (item.slice, LONG)).then_some((behind(rest), inclusive))
    }
}

impl Masstree {
    /// Gives keys and words to `visit` in ascending order, from the first key within `from` on, until
    /// it breaks or the keys end; `expected` ones, about, which are asked for early (0: nobody knows). Every
    /// key that stays during the scan is met exactly once, no key twice; one whose word changes, with a
    /// word that it had. `visit` may call the tree. Memory of removed keys is not used again while the
    /// scan goes on: long walks better go in parts.
    pub fn scan(
        &self,
        from: Bound<&[u8]>,
        expected: usize,
        visit: impl FnMut(&[u8], Word) -> ControlFlow<()>,
    ) {
        self.go(from, Way::Up, expected, visit);
    }

    /// As [`Masstree::scan`], in descending order, from the last key within `from` on.
    pub fn scan_back(
        &self,
        from: Bound<&[u8]>,
        expected: usize,
        visit: impl FnMut(&[u8], Word) -> ControlFlow<()>,
    ) {
        self.go(from, Way::Down, expected, visit);
    }

    fn go(
        &self,
        from: Bound<&[u8]>,
        way: Way,
        expected: usize,
        mut visit: impl FnMut(&[u8], Word) -> ControlFlow<()>,
    ) {
        let from = match from {
            Bound::Included(key) => Some((key, true)),
            Bound::Excluded(key) => Some((key, false)),
            Bound::Unbounded => None,
        };
        let guard = self.memory.guard();
        let Some(root) = self.root(&guard) else { return };
        let asks = expected.div_ceil(KEYS_OF_BORDER).min(ASKS_MAX);
        let mut stack = vec![Frame::new(root, from, way, asks)];
        let mut key: Vec<u8> = Vec::new();
        loop {
            let depth = stack.len();
            let Some(frame) = stack.last_mut() else { return };
            let Some(item) = frame.pop() else {
                let more = frame.next.is_some_and(|slice| frame.fill(slice, way, &guard));
                if !more {
                    stack.pop();
                }
                continue;
            };
            let slice = item.slice.to_be_bytes();
            let entry = item.pointer.entry(&guard);
            if let Entry::Word(word) = entry
                && depth == 1
            {
                // Most keys are short, and all of one is here.
                let length = usize::try_from(item.length).unwrap_or(SLICE);
                let key = slice.get(..length).unwrap_or(&slice);
                if Word::new(word).is_some_and(|word| visit(key, word).is_break()) {
                    return;
                }
                continue;
            }
            let from = frame.rest_behind(&item);
            key.truncate(SLICE * (depth - 1));
            key.extend_from_slice(&slice);
            let met = match entry {
                Entry::Node(layer) => {
                    stack.push(Frame::new(layer, from, way, asks));
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
        self.scan(from, max, |key, word| {
            entries.push((key.to_vec(), word));
            if entries.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        entries
    }
}
