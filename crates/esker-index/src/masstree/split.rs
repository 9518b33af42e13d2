//! Adding to a border, and splitting what is full, hand over hand upwards.

use super::memory::Guard;
use super::node::{Item, Node, WIDTH};
use super::{Masstree, lock_at};
use smallvec::SmallVec;

/// Fills a new node, which is locked.
fn node_of<'g>(items: &[Item], low: u64, guard: &'g Guard) -> &'g Node {
    let node = guard.new_node();
    node.begin(0, low);
    node.fill(items);
    node
}

/// As [`node_of`], for an interior node.
fn parent_of<'g>(
    level: u64,
    low: u64,
    keys: &[u64],
    children: &[&Node],
    guard: &'g Guard,
) -> &'g Node {
    let node = guard.new_node();
    node.begin(level, low);
    node.set_children(keys, children);
    node
}

/// Where to cut sorted items: between two slices (M2), as near to the middle as that is possible;
/// around the new one, if keys seem to come in rising order.
fn cut_at(items: &[Item], new: usize, rising: bool) -> usize {
    let between = |place: &usize| match items.get(place - 1..=*place) {
        Some([left, right]) => left.slice != right.slice,
        _ => false,
    };
    // What stands behind the new one must not go along, or nodes stay half empty.
    let cut = if new + 1 == items.len() { new } else { new + 1 };
    if rising && between(&cut) {
        return cut;
    }
    let middle = items.len() / 2;
    (1..items.len()).filter(between).min_by_key(|place| place.abs_diff(middle)).unwrap_or(middle)
}

impl Masstree {
    /// Adds a key to a locked border of a layer; gives the lock back.
    pub(super) fn add<'g>(&self, root: &'g Node, border: &'g Node, item: Item, guard: &'g Guard) {
        if border.order().count() < WIDTH {
            border.put(item);
            border.unlock();
            return;
        }
        let order = border.order();
        let new = border.rank(order, item.slice, item.length);
        let mut items: SmallVec<[Item; WIDTH + 1]> =
            order.slots().filter_map(|slot| border.item(slot)).collect();
        items.insert(new, item);
        let last = border.next(guard).is_none() && new == WIDTH;
        let rising = last || order.is_rising_at(new);
        let cut = cut_at(&items, new, rising);
        let (left, right) = items.split_at(cut);
        let low = right.first().map_or(0, |first| first.slice);
        let upper = node_of(right, low, guard);
        upper.copy_next(border, guard);
        if std::ptr::eq(root, border) {
            // M3.
            let lower = node_of(left, 0, guard);
            lower.set_next(Some(upper), low);
            border.begin_change();
            border.set_children(&[low], &[lower, upper]);
            lower.unlock();
            upper.unlock();
            border.end_change(1);
            border.unlock();
            return;
        }
        border.cut(if new < cut { cut - 1 } else { cut }, upper);
        if new < cut {
            border.put(item);
        }
        border.unlock();
        self.insert_up(root, upper, guard);
    }

    /// Puts a locked node that was split off into its parent, which may split, and so on.
    fn insert_up<'g>(&self, root: &'g Node, mut child: &'g Node, guard: &'g Guard) {
        for level in 1.. {
            // The layer stays: it holds the child, which is locked.
            let Some(parent) = lock_at(root, child.low(), level, guard) else { return };
            let (mut keys, mut children) = parent.children(guard);
            let place = keys.partition_point(|key| *key < child.low());
            keys.insert(place, child.low());
            children.insert(place + 1, child);
            if keys.len() <= WIDTH {
                parent.begin_change();
                parent.set_children(&keys, &children);
                parent.end_change(level);
                parent.unlock();
                child.unlock();
                return;
            }
            // Keys that only rise leave full nodes behind.
            let rising = place + 1 == keys.len() && parent.next(guard).is_none();
            let cut = if rising { WIDTH - 1 } else { WIDTH / 2 };
            let (Some(low), Some(left), Some(right)) =
                (keys.get(cut).copied(), keys.get(..cut), keys.get(cut + 1..))
            else {
                return;
            };
            let (left_children, right_children) = children.split_at(cut + 1);
            let upper = parent_of(level, low, right, right_children, guard);
            upper.copy_next(parent, guard);
            child.unlock();
            parent.begin_change();
            if std::ptr::eq(root, parent) {
                let lower = parent_of(level, 0, left, left_children, guard);
                lower.set_next(Some(upper), low);
                parent.set_children(&[low], &[lower, upper]);
                lower.unlock();
                upper.unlock();
                parent.end_change(level + 1);
                parent.unlock();
                return;
            }
            parent.set_next(Some(upper), low);
            parent.set_children(left, left_children);
            parent.end_change(level);
            parent.unlock();
            child = upper;
        }
    }
}
