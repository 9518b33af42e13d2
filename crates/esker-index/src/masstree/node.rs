//! A node: border or interior, 320 bytes in five cache lines.
//!
//! ```text
//! version  | changes 56 | level 5 | deleted | changing | locked |     from the top
//! border   order: | 15 slots, 4 bits each, from the bottom | count 4 |; lengths: 4 bits for each slot,
//!          0 to 8 for keys that end within their slice, 9 for those that go on
//! interior order: the number of its keys; `slots` are one child more
//! ```
//!
//! A node at level 0 is a border. Its keys lie in `slices` in any order; `order` sorts them, first those
//! that are there, then the free slots. An interior node's keys are sorted.
//!
//! # Invariants
//! - N1: a node changes only under its lock. Versions never wrap: 56 bits.
//! - N2 (border): the version rises before a slot that `order` does not name is written, and before
//!   a split cuts `order`; `next` and `high` are written before the cut. So a reader that loads `order`,
//!   then `high`, and finds the version as it was, has read keys that stood there together. It never waits.
//! - N3 (interior, and a root that becomes one): `changing` is set while it is written; readers wait.
//! - N4: a node has the slices from `low` to `high`, which is the `low` of `next`. Whoever comes for
//!   a slice beyond `high` moves to `next`, if the version is as it was: where a node takes over its right neighbour, the version
//!   rises after `high` and before `next`, so that nobody takes the old end and the new next node for neighbours.

use super::memory::{Guard, Pointer, Slot};
use crate::locks::{Wait, acquire, release};
use crate::prefetch;
use esker_base::sync::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;

/// Keys of a node.
pub(super) const WIDTH: usize = 15;
/// Keys of an interior node, and one more while it splits.
pub(super) type Keys = SmallVec<[u64; WIDTH + 1]>;
/// Its children.
pub(super) type Children<'g> = SmallVec<[&'g Node; WIDTH + 2]>;
/// Length of a key that goes on behind its slice.
pub(super) const LONG: u64 = 9;

const LOCKED: u64 = 1;
const CHANGING: u64 = 2;
const DELETED: u64 = 4;
const LEVEL_SHIFT: u32 = 3;
const LEVELS: u64 = 31 << LEVEL_SHIFT;
const CHANGE: u64 = 1 << 8;

/// Given where a node ends.
#[cfg(test)]
type Leading = Box<dyn FnMut(u64)>;

#[cfg(test)]
thread_local! {
    /// Whenever this thread has seen where a node ends, and not yet which one is next.
    pub(super) static LEADING: std::cell::RefCell<Option<Leading>> = const { std::cell::RefCell::new(None) };
}

/// A version that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version(u64);

impl Version {
    #[inline]
    pub(super) fn level(self) -> u64 {
        (self.0 & LEVELS) >> LEVEL_SHIFT
    }

    #[inline]
    pub(super) fn is_deleted(self) -> bool {
        self.0 & DELETED != 0
    }
}

/// The order of a border's slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order(pub(super) u64);

impl Order {
    /// No keys, all slots free.
    pub(super) const EMPTY: Order = Order(0xEDCB_A987_6543_2100);

    #[inline]
    pub(super) fn count(self) -> usize {
        usize::try_from(self.0 & 15).unwrap_or(0)
    }

    #[inline]
    pub(super) fn slot(self, place: usize) -> usize {
        usize::try_from(self.0 >> (4 * place + 4) & 15).unwrap_or(0)
    }

    /// The slots of the keys, in order.
    #[inline]
    pub(super) fn slots(self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.count()).map(move |place| self.slot(place))
    }

    /// With the first free slot at this place.
    pub(super) fn inserted(self, place: usize) -> Order {
        let slot = self.slot(self.count()) as u64;
        let all = self.0 >> 4;
        let below = all & low_nibbles(place);
        let between = all & low_nibbles(self.count()) & !low_nibbles(place);
        let above = all & !low_nibbles(self.count() + 1);
        let all = below | slot << (4 * place) | between << 4 | above;
        Order((all << 4) | ((self.0 & 15) + 1))
    }

    /// Without the key at this place, whose slot becomes the first free one.
    pub(super) fn removed(self, place: usize) -> Order {
        let slot = self.slot(place) as u64;
        let all = self.0 >> 4;
        let below = all & low_nibbles(place);
        let between = all & low_nibbles(self.count()) & !low_nibbles(place + 1);
        let above = all & !low_nibbles(self.count());
        let all = below | between >> 4 | slot << (4 * (self.count() - 1)) | above;
        Order((all << 4) | ((self.0 & 15) - 1))
    }

    /// Whether a key for this place of a full border comes right after the two that came last, as
    /// if keys came in rising order there.
    pub(super) fn is_rising_at(self, place: usize) -> bool {
        place >= 2 && (self.slot(place - 2), self.slot(place - 1)) == (WIDTH - 2, WIDTH - 1)
    }

    /// The first `count` keys.
    pub(super) fn cut(self, count: usize) -> Order {
        Order(self.0 & !15 | count as u64)
    }
}

fn low_nibbles(count: usize) -> u64 {
    (1 << (4 * count)) - 1
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Head {
    version: AtomicU64,
    order: AtomicU64,
    lengths: AtomicU64,
    low: AtomicU64,
    high: AtomicU64,
    next: Slot,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Slices([AtomicU64; WIDTH]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Slots([Slot; WIDTH + 1]);

/// The node.
#[derive(Debug, Default)]
pub(super) struct Node {
    head: Head,
    slices: Slices,
    slots: Slots,
}
const _: () = assert!(cfg!(feature = "shuttle") || size_of::<Node>() == 320);

/// A key in a border: slice, length, and what stands there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) slice: u64,
    pub(super) length: u64,
    pub(super) pointer: Pointer,
}

impl Item {
    pub(super) const NOTHING: Item = Item { slice: 0, length: 0, pointer: Pointer::NOTHING };
}

impl Node {
    /// Starts to fetch the node.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch::lines(std::ptr::from_ref(self).addr(), size_of::<Node>() - 64);
    }

    /// The version, once the node is not being changed.
    #[inline]
    pub(super) fn version(&self) -> Version {
        let mut wait = Wait::default();
        loop {
            let version = self.head.version.load(Ordering::Acquire);
            if version & CHANGING == 0 {
                return Version(version);
            }
            wait.turn();
        }
    }

    /// Whether what was read since `version` stood there together.
    #[inline]
    pub(super) fn unchanged(&self, version: Version) -> bool {
        acquire();
        (self.head.version.load(Ordering::Relaxed) ^ version.0) & !LOCKED == 0
    }

    /// Waits for the lock.
    #[inline]
    pub(super) fn lock(&self) -> Version {
        let mut wait = Wait::default();
        loop {
            let version = self.head.version.load(Ordering::Relaxed);
            let attempt = |version| {
                let (won, lost) = (Ordering::Acquire, Ordering::Relaxed);
                let head = &self.head.version;
                head.compare_exchange(version, version | LOCKED, won, lost).is_ok()
            };
            if version & LOCKED == 0 && attempt(version) {
                return Version(version);
            }
            wait.turn();
        }
    }

    fn owned_version(&self) -> u64 {
        self.head.version.load(Ordering::Relaxed)
    }

    /// Gives the lock back.
    #[inline]
    pub(super) fn unlock(&self) {
        self.head.version.store(self.owned_version() & !LOCKED, Ordering::Release);
    }

    /// Ends a change of an interior node, or the node, and gives the lock back.
    pub(super) fn delete(&self) {
        let version = (self.owned_version() | DELETED).wrapping_add(CHANGE);
        self.head.version.store(version & !LOCKED, Ordering::Release);
    }

    /// N2: makes readers that have begun read again.
    #[inline]
    fn rise(&self) {
        self.head.version.store(self.owned_version().wrapping_add(CHANGE), Ordering::Release);
        release();
    }

    /// N3.
    pub(super) fn begin_change(&self) {
        let version = self.owned_version().wrapping_add(CHANGE) | CHANGING;
        self.head.version.store(version, Ordering::Relaxed);
        release();
    }

    /// Ends what [`Node::begin_change`] began; the node is at this level.
    pub(super) fn end_change(&self, level: u64) {
        let version = self.owned_version() & !(CHANGING | LEVELS) | level << LEVEL_SHIFT;
        self.head.version.store(version, Ordering::Release);
    }

    /// Makes a node out of any block that this thread has alone; locked.
    pub(super) fn begin(&self, level: u64, low: u64) {
        self.head.order.store(if level == 0 { Order::EMPTY.0 } else { 0 }, Ordering::Relaxed);
        self.head.lengths.store(0, Ordering::Relaxed);
        self.head.low.store(low, Ordering::Relaxed);
        self.head.high.store(0, Ordering::Relaxed);
        self.head.next.clear();
        // Versions go on where the block's earlier node ended.
        let version = self.owned_version() & !(CHANGE - 1) | level << LEVEL_SHIFT | LOCKED;
        self.head.version.store(version.wrapping_add(CHANGE), Ordering::Release);
    }

    #[inline]
    pub(super) fn low(&self) -> u64 {
        self.head.low.load(Ordering::Relaxed)
    }

    pub(super) fn set_low(&self, low: u64) {
        self.head.low.store(low, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn high(&self) -> u64 {
        self.head.high.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn next<'g>(&self, guard: &'g Guard) -> Option<&'g Node> {
        self.head.next.node(guard)
    }

    /// The node to the right, if the slice belongs there or further right.
    #[inline]
    pub(super) fn right_for<'g>(&self, slice: u64, guard: &'g Guard) -> Option<&'g Node> {
        // One load decides. Without a right neighbour `high` is 0 and means nothing; with one, it
        // is there before `high` says so.
        let high = self.head.high.load(Ordering::Acquire);
        #[cfg(test)]
        if let Some(mut leading) = LEADING.take() {
            leading(high);
            LEADING.set(Some(leading));
        }
        if high == 0 || slice < high { None } else { self.next(guard) }
    }

    /// Whether this is a border, not deleted, that has the slice unless that is beyond its end.
    pub(super) fn is_border_of(&self, slice: u64) -> bool {
        let version = self.version();
        let begins = self.low() <= slice;
        !version.is_deleted() && version.level() == 0 && begins && self.unchanged(version)
    }

    /// Whether this is a node above borders, not deleted, that has the slice unless that is beyond its end.
    pub(super) fn is_above(&self, slice: u64) -> bool {
        let version = self.version();
        let begins = self.low() <= slice;
        !version.is_deleted() && version.level() == 1 && begins && self.unchanged(version)
    }

    /// Sets the right neighbour, and where it begins.
    pub(super) fn set_next(&self, next: Option<&Node>, high: u64) {
        match next {
            Some(next) => self.head.next.store(Pointer::node(next)),
            None => self.head.next.clear(),
        }
        self.set_high(high);
    }

    /// Takes over the right neighbour of another node.
    pub(super) fn copy_next(&self, other: &Node, guard: &Guard) {
        self.set_next(other.next(guard), other.high());
    }

    /// Takes over the range of the right neighbour, which is empty and goes. The caller holds both
    /// locks. `high` first: until `next` follows, those who go further right pass through `gone`.
    /// Between both the version rises (N4).
    pub(super) fn absorb(&self, gone: &Node, guard: &Guard) {
        self.set_high(gone.high());
        self.rise();
        match gone.next(guard) {
            Some(next) => self.head.next.store(Pointer::node(next)),
            None => self.head.next.clear(),
        }
    }

    fn set_high(&self, high: u64) {
        self.head.high.store(high, Ordering::Release);
    }

    /// Makes a node further right the right neighbour, which takes over what lies between.
    pub(super) fn skip_to(&self, next: &Node) {
        self.head.next.store(Pointer::node(next));
    }

    #[inline]
    pub(super) fn order(&self) -> Order {
        Order(self.head.order.load(Ordering::Acquire))
    }

    #[inline]
    fn slice(&self, slot: usize) -> u64 {
        self.slices.0.get(slot).map_or(0, |slice| slice.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn pointer(&self, slot: usize) -> Option<&Slot> {
        self.slots.0.get(slot)
    }

    /// The key in a slot.
    #[inline]
    pub(super) fn item(&self, slot: usize) -> Option<Item> {
        let length = self.head.lengths.load(Ordering::Relaxed) >> (4 * slot) & 15;
        Some(Item { slice: self.slice(slot), length, pointer: self.slots.0.get(slot)?.load() })
    }

    /// The slot of a key, if `order` has it.
    #[inline]
    pub(super) fn find(&self, order: Order, slice: u64, length: u64) -> Option<usize> {
        let mut equal = 0u32;
        for (slot, held) in self.slices.0.iter().enumerate() {
            equal |= u32::from(held.load(Ordering::Relaxed) == slice) << slot;
        }
        if equal == 0 {
            return None;
        }
        let lengths = self.head.lengths.load(Ordering::Relaxed);
        order.slots().find(|slot| equal >> slot & 1 == 1 && lengths >> (4 * slot) & 15 == length)
    }

    /// Number of keys below this one.
    #[inline]
    pub(super) fn rank(&self, order: Order, slice: u64, length: u64) -> usize {
        let lengths = self.head.lengths.load(Ordering::Relaxed);
        let below = |slot: &usize| {
            let held = self.slice(*slot);
            held < slice || held == slice && lengths >> (4 * slot) & 15 < length
        };
        order.slots().take_while(below).count()
    }

    /// Adds a key to a border with a free slot. The caller holds the lock.
    pub(super) fn put(&self, item: Item) {
        let order = self.order();
        let slot = order.slot(order.count());
        let place = self.rank(order, item.slice, item.length);
        self.rise();
        if let Some(slice) = self.slices.0.get(slot) {
            slice.store(item.slice, Ordering::Relaxed);
        }
        let lengths = self.head.lengths.load(Ordering::Relaxed) & !(15 << (4 * slot));
        self.head.lengths.store(lengths | item.length << (4 * slot), Ordering::Relaxed);
        if let Some(place) = self.slots.0.get(slot) {
            place.store(item.pointer);
        }
        self.head.order.store(order.inserted(place).0, Ordering::Release);
    }

    /// Gives a new border its keys, which are sorted and no more than fit.
    pub(super) fn fill(&self, items: &[Item]) {
        let mut lengths = 0;
        for (slot, (item, (slice, pointer))) in
            items.iter().zip(self.slices.0.iter().zip(&self.slots.0)).enumerate()
        {
            slice.store(item.slice, Ordering::Relaxed);
            pointer.store(item.pointer);
            lengths |= item.length << (4 * slot);
        }
        self.head.lengths.store(lengths, Ordering::Relaxed);
        let count = items.len().min(WIDTH);
        self.head.order.store(Order::EMPTY.0 | count as u64, Ordering::Release);
    }

    /// Removes a key from a border. The caller holds the lock.
    pub(super) fn take(&self, slot: usize) {
        let order = self.order();
        if let Some(place) = order.slots().position(|held| held == slot) {
            self.head.order.store(order.removed(place).0, Ordering::Release);
        }
    }

    /// Gives all keys from the `count`-th on to `next`, which has them. The caller holds the lock.
    pub(super) fn cut(&self, count: usize, next: &Node) {
        let order = self.order();
        self.rise();
        self.set_next(Some(next), next.low());
        self.head.order.store(order.cut(count).0, Ordering::Release);
    }

    /// Number of keys of an interior node.
    #[inline]
    pub(super) fn keys(&self) -> usize {
        let keys = self.head.order.load(Ordering::Acquire);
        usize::try_from(keys).unwrap_or(0).min(WIDTH)
    }

    /// The child of an interior node that has this slice.
    #[inline]
    pub(super) fn child_for<'g>(&self, slice: u64, guard: &'g Guard) -> Option<&'g Node> {
        let keys = self.keys();
        let mut below = 0u32;
        for (place, key) in self.slices.0.iter().enumerate() {
            below |= u32::from(key.load(Ordering::Relaxed) <= slice) << place;
        }
        // They ascend: as many are below as stand before the first that is not.
        let place = usize::try_from(below.trailing_ones()).unwrap_or(0).min(keys);
        self.slots.0.get(place)?.node(guard)
    }

    /// The child of an interior node that has this slice, and those behind it on the way up or down.
    pub(super) fn children_from<'g>(
        &self,
        slice: u64,
        up: bool,
        guard: &'g Guard,
    ) -> impl Iterator<Item = &'g Node> {
        let keys = self.keys();
        let first = (0..keys).take_while(|place| self.slice(*place) <= slice).count();
        let behind = if up { keys - first } else { first };
        let place = move |step| if up { first + step } else { first - step };
        (0..=behind).filter_map(move |step| self.slots.0.get(place(step))?.node(guard))
    }

    /// Keys and children of an interior node. The caller holds the lock.
    pub(super) fn children<'g>(&self, guard: &'g Guard) -> (Keys, Children<'g>) {
        let keys = self.keys();
        let children = self.slots.0.iter().take(keys + 1);
        (
            (0..keys).map(|place| self.slice(place)).collect(),
            children.filter_map(|slot| slot.node(guard)).collect(),
        )
    }

    /// Makes these the keys and children. The caller holds the lock and has begun a change, or has
    /// the node alone.
    pub(super) fn set_children(&self, keys: &[u64], children: &[&Node]) {
        for (place, key) in self.slices.0.iter().zip(keys) {
            place.store(*key, Ordering::Relaxed);
        }
        for (place, child) in self.slots.0.iter().zip(children) {
            place.store(Pointer::node(child));
        }
        self.head.order.store(keys.len() as u64, Ordering::Release);
    }
}
