//! Masstree: a trie of B+-trees over slices of 8 bytes of the key, in DRAM (FlatStore §4.2).
//!
//! A layer is a B+-tree whose keys are slices, big-endian numbers, each with the number of its bytes. A key
//! that ends within its slice has its word in the border node. One that goes on has a tail (the rest of
//! the key and the word), as long as no other key has the same slice; then there is a layer for what
//! follows, and for each slice that both share behind it. Keys of any bytes and lengths, with an order as that of their bytes; lengths over
//! 64 KiB cost what they should, about a layer per 8 bytes that two of them share.
//!
//! # Invariants
//! - M1: in each layer and level nodes partition the slices, and each child's range lies within its parent's.
//!   A node that was split off may wait for its place in the parent, locked; until then its left
//!   neighbour leads to it (N4 of `node`).
//! - M2: all keys with one slice are in one border: at most ten.
//! - M3: the root of a layer stays where it is. When it splits, what it had goes to two new nodes.
//! - M4: a deleted node was empty, and nothing leads to it. Whoever still stands in one starts over.
//!
//! # Concurrency
//! Readers take no lock: they read again what changed meanwhile, and wait only while an interior node
//! changes. Writers lock one border; a split locks the new node until its parent has it, hand over
//! hand upwards. Locks of a level are taken from left to right, levels from below. Nodes, tails and
//! layers that were removed are used again when no reader can stand in them (`memory`). `shrink` orders
//! those who remove empty nodes. Nothing suspends under these locks, and there is no I/O.

mod memory;
mod node;
mod scan;
mod shrink;
mod split;

use crate::counter::Counter;
use crate::locks::Mutex;
use crate::word::Word;
use memory::{Entry, Guard, Memory, Pointer, Tail};
use node::{Item, LONG, Node};

/// Lookups of a batch that go down together.
const GROUP: usize = 16;
/// Entries that are added under one guard.
const MANY: usize = 64;
/// Bytes of a slice.
const SLICE: usize = 8;

/// The tree. All methods may be called from any thread at once.
#[derive(Debug)]
pub struct Masstree {
    /// A pointer to the root of the first layer, which never changes.
    root: memory::Slot,
    memory: Memory,
    entries: Counter,
    shrink: Mutex<()>,
}

/// The way to where a key is in a tree, or would be. Memory of the tree is not used again while this is there.
#[derive(Debug)]
pub struct Near<'t> {
    tree: &'t Masstree,
    /// A node of the first layer, which is on its way from memory.
    at: Option<Pointer>,
    guard: Guard<'t>,
}

impl Near<'_> {
    /// Goes down to a level, counted from 0 for the borders, and waits for the nodes above it. That one is not waited for.
    #[inline]
    fn go_down(&mut self, key: &[u8], level: u64) {
        let (slice, _) = slice_of(key);
        let mut at = self.at;
        while let Some(Entry::Node(node)) = at.map(|at| at.entry(&self.guard)) {
            let version = node.version();
            if version.is_deleted() || version.level() <= level {
                break;
            }
            let Step::To(next) = step(node, slice, level, &self.guard) else { break };
            next.prefetch();
            at = Some(Pointer::node(next));
            if version.level() == level + 1 {
                break;
            }
        }
        self.at = at;
    }

    /// Goes on to the border of the key that this is near to.
    #[inline]
    pub fn go_on(&mut self, key: &[u8]) {
        self.go_down(key, 0);
    }

    /// As [`Masstree::swap`], for the key that this is near to: fastest for that one, right for any.
    #[inline]
    pub fn swap(self, key: &[u8], word: Word, goes: impl Fn(Word) -> bool) -> Option<Word> {
        let mut near = match self.at.map(|at| at.entry(&self.guard)) {
            Some(Entry::Node(node)) => Some(node),
            _ => None,
        };
        self.tree.insert_near(key, word, goes, &mut near, &self.guard)
    }
}

impl Default for Masstree {
    fn default() -> Self {
        Self::new()
    }
}

/// The first slice of what is left of a key, and the code of its length.
#[inline]
fn slice_of(rest: &[u8]) -> (u64, u64) {
    match rest.first_chunk() {
        Some(slice) => (u64::from_be_bytes(*slice), if rest.len() > SLICE { LONG } else { 8 }),
        None => {
            let slice = rest.iter().fold(0, |slice, byte| slice << 8 | u64::from(*byte));
            let missing = 8 * (SLICE - rest.len());
            let slice = slice.checked_shl(u32::try_from(missing).unwrap_or(64)).unwrap_or(0);
            (slice, rest.len() as u64)
        }
    }
}

/// What is left of a key behind its first slice.
#[inline]
fn behind(rest: &[u8]) -> &[u8] {
    rest.get(SLICE..).unwrap_or(&[])
}

/// Where a step down leads.
enum Step<'g> {
    /// This node is at the level.
    Here,
    To(&'g Node),
    /// The node is no more.
    Gone,
}

/// What a border says of a key.
enum Found<'g> {
    Nothing,
    Word(Word),
    Layer(&'g Node),
    /// The node is no more.
    Gone,
}

/// One step from a node towards the one at a level that has the slice.
#[inline]
fn step<'g>(node: &'g Node, slice: u64, level: u64, guard: &'g Guard) -> Step<'g> {
    loop {
        let version = node.version();
        if version.is_deleted() {
            return Step::Gone;
        }
        if version.level() == level {
            return Step::Here;
        }
        let to = node.right_for(slice, guard).or_else(|| node.child_for(slice, guard));
        if node.unchanged(version)
            && let Some(to) = to
        {
            return Step::To(to);
        }
    }
}

/// The node of a layer at a level that had the slice just now; `None` if the layer is no more.
#[inline]
fn descend<'g>(root: &'g Node, slice: u64, level: u64, guard: &'g Guard) -> Option<&'g Node> {
    let mut node = root;
    loop {
        match step(node, slice, level, guard) {
            Step::Here => return Some(node),
            Step::To(next) => {
                next.prefetch();
                node = next;
            }
            Step::Gone if std::ptr::eq(node, root) => return None,
            Step::Gone => node = root,
        }
    }
}

/// Locks the node of a layer at a level that has the slice; `None` if the layer is no more.
fn lock_at<'g>(root: &'g Node, slice: u64, level: u64, guard: &'g Guard) -> Option<&'g Node> {
    loop {
        let mut node = descend(root, slice, level, guard)?;
        let mut version = node.lock();
        while !version.is_deleted()
            && version.level() == level
            && let Some(next) = node.right_for(slice, guard)
        {
            version = next.lock();
            node.unlock();
            node = next;
        }
        if !version.is_deleted() && version.level() == level {
            return Some(node);
        }
        node.unlock();
    }
}

/// Locks the border that has the slice, if that is this one of the first layer, or the next.
fn lock_near<'g>(node: &'g Node, slice: u64, guard: &'g Guard) -> Option<&'g Node> {
    let version = node.lock();
    if version.is_deleted() || version.level() > 0 || slice < node.low() {
        node.unlock();
        return None;
    }
    let Some(next) = node.right_for(slice, guard) else { return Some(node) };
    next.lock();
    node.unlock();
    if next.right_for(slice, guard).is_some() {
        next.unlock();
        return None;
    }
    Some(next)
}

/// What a key has in the border `node`, or in one to its right.
#[inline]
fn find<'g>(mut node: &'g Node, rest: &[u8], guard: &'g Guard) -> Found<'g> {
    let (slice, length) = slice_of(rest);
    loop {
        let version = node.version();
        if version.is_deleted() || version.level() > 0 {
            return Found::Gone;
        }
        let order = node.order();
        if let Some(next) = node.right_for(slice, guard) {
            if node.unchanged(version) {
                node = next;
            }
            continue;
        }
        let slot = node.find(order, slice, length).and_then(|slot| node.pointer(slot));
        let pointer = slot.map(memory::Slot::load);
        if !node.unchanged(version) {
            continue;
        }
        return match pointer.map(|pointer| pointer.entry(guard)) {
            Some(Entry::Word(word)) => Word::new(word).map_or(Found::Nothing, Found::Word),
            Some(Entry::Tail(tail)) if tail.bytes() == behind(rest) => {
                Word::new(tail.word()).map_or(Found::Nothing, Found::Word)
            }
            Some(Entry::Node(layer)) => Found::Layer(layer),
            Some(Entry::Tail(_)) | None => Found::Nothing,
        };
    }
}

impl Masstree {
    /// An empty tree, of one node.
    #[must_use]
    pub fn new() -> Masstree {
        let memory = Memory::default();
        let root = memory::Slot::default();
        {
            let guard = memory.guard();
            let node = guard.new_node();
            node.begin(0, 0);
            node.unlock();
            root.store(Pointer::node(node));
        }
        Masstree { root, memory, entries: Counter::default(), shrink: Mutex::default() }
    }

    #[inline]
    fn root<'g>(&self, guard: &'g Guard) -> Option<&'g Node> {
        self.root.node(guard)
    }

    /// Number of keys. Exact while nothing changes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.entries.sum()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that are allocated for nodes and tails.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The word of a key.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Word> {
        let guard = self.memory.guard();
        'again: loop {
            let mut root = self.root(&guard)?;
            let mut rest = key;
            loop {
                let Some(border) = descend(root, slice_of(rest).0, 0, &guard) else {
                    continue 'again;
                };
                match find(border, rest, &guard) {
                    Found::Nothing => return None,
                    Found::Word(word) => return Some(word),
                    Found::Layer(layer) => (root, rest) = (layer, behind(rest)),
                    Found::Gone => {}
                }
            }
        }
    }

    /// Starts to fetch the node of the first layer at a level, counted from 0 for the borders, on the way to a key. Waits for those
    /// above it. Does nothing if the layer is not as high.
    pub fn prefetch(&self, key: &[u8], level: u64) {
        let guard = self.memory.guard();
        let Some(mut node) = self.root(&guard) else { return };
        let (slice, _) = slice_of(key);
        loop {
            let version = node.version();
            if version.is_deleted() || version.level() <= level {
                return;
            }
            let Step::To(next) = step(node, slice, level, &guard) else { return };
            next.prefetch();
            if version.level() == level + 1 {
                return;
            }
            node = next;
        }
    }

    /// Looks up many keys, and gives each one's number and word to `visit`, in order. 16 keys go down
    /// the first layer together, so that they wait for memory together.
    pub fn lookup_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut visit: impl FnMut(usize, Option<Word>),
    ) {
        for (group, keys) in keys.chunks(GROUP).enumerate() {
            // A guard per group, so that a long batch does not keep memory from being used again.
            let guard = self.memory.guard();
            let Some(root) = self.root(&guard) else { return };
            let mut nodes = [root; GROUP];
            let mut moving = true;
            while moving {
                moving = false;
                for (node, key) in nodes.iter_mut().zip(keys) {
                    match step(node, slice_of(key.as_ref()).0, 0, &guard) {
                        Step::To(next) => {
                            next.prefetch();
                            *node = next;
                            moving = true;
                        }
                        Step::Here | Step::Gone => {}
                    }
                }
            }
            for (place, (node, key)) in nodes.iter().zip(keys).enumerate() {
                let word = match find(node, key.as_ref(), &guard) {
                    Found::Nothing => None,
                    Found::Word(word) => Some(word),
                    Found::Layer(_) | Found::Gone => self.get(key.as_ref()),
                };
                visit(group * GROUP + place, word);
            }
        }
    }

    /// Gives a key its word, if it has none; otherwise says which it has, and changes nothing.
    pub fn insert(&self, key: &[u8], word: Word) -> Option<Word> {
        self.insert_near(key, word, |_| false, &mut None, &self.memory.guard())
    }

    /// Gives a key its word, whichever it had, unless `goes` says that this one does not go. Says which it had.
    pub fn swap(&self, key: &[u8], word: Word, goes: impl Fn(Word) -> bool) -> Option<Word> {
        self.insert_near(key, word, goes, &mut None, &self.memory.guard())
    }

    /// Goes down towards where a key is or would be, so that what is read on the way is there when its word changes: as far as nodes are
    /// in caches, as a rule. For the rest there is [`Near::go_on`].
    #[inline]
    #[must_use]
    pub fn near(&self, key: &[u8]) -> Near<'_> {
        let guard = self.memory.guard();
        let at = self.root(&guard).map(Pointer::node);
        let mut near = Near { tree: self, at, guard };
        near.go_down(key, 1);
        near
    }

    /// Looks first in a border of the first layer, and tells in which one it was.
    fn insert_near<'g>(
        &self,
        key: &[u8],
        word: Word,
        mut goes: impl FnMut(Word) -> bool,
        near: &mut Option<&'g Node>,
        guard: &'g Guard,
    ) -> Option<Word> {
        'again: loop {
            let mut root = self.root(guard)?;
            let mut rest = key;
            let mut first = near.take();
            loop {
                let (slice, length) = slice_of(rest);
                let border = first.take().and_then(|node| lock_near(node, slice, guard));
                let border = border.or_else(|| lock_at(root, slice, 0, guard));
                let Some(border) = border else { continue 'again };
                near.get_or_insert(border);
                let slot = border.find(border.order(), slice, length);
                let Some(slot) = slot.and_then(|slot| border.pointer(slot)) else {
                    let pointer = match length {
                        LONG => Pointer::tail(guard.new_tail(behind(rest), word.get())),
                        _ => Pointer::word(word),
                    };
                    self.add(root, border, Item { slice, length, pointer }, guard);
                    self.entries.add(1);
                    return None;
                };
                match slot.load().entry(guard) {
                    Entry::Word(held) => {
                        let held = Word::new(held);
                        if held.is_some_and(&mut goes) {
                            slot.store(Pointer::word(word));
                        }
                        border.unlock();
                        return held;
                    }
                    Entry::Tail(tail) if tail.bytes() == behind(rest) => {
                        let held = Word::new(tail.word());
                        if held.is_some_and(&mut goes) {
                            tail.set_word(word.get());
                        }
                        border.unlock();
                        return held;
                    }
                    Entry::Tail(tail) => {
                        let layer = layers_of(tail, behind(rest), guard);
                        slot.store(Pointer::node(layer));
                        guard.retire_tail(tail);
                        (root, rest) = (layer, behind(rest));
                    }
                    Entry::Node(layer) => (root, rest) = (layer, behind(rest)),
                }
                border.unlock();
            }
        }
    }

    /// Adds entries, in any order and from several threads at once; sorted ones fill nodes whole, and
    /// fastest. For recovery: threads take a range each. Keys that are there already keep their words.
    pub fn insert_many<K: AsRef<[u8]>>(&self, entries: &[(K, Word)]) {
        self.swap_many(entries, |_, _| false);
    }

    /// As [`Masstree::insert_many`], but for keys that are there already of which `goes` says, given the number
    /// of the entry and the word that the key has, that this word goes.
    pub fn swap_many<K: AsRef<[u8]>>(
        &self,
        entries: &[(K, Word)],
        mut goes: impl FnMut(usize, Word) -> bool,
    ) {
        for (group, entries) in entries.chunks(MANY).enumerate() {
            // A guard per group, so that a long batch does not keep memory from being used again.
            let guard = self.memory.guard();
            let mut near = None;
            for (place, (key, word)) in entries.iter().enumerate() {
                let goes = |held| goes(group * MANY + place, held);
                self.insert_near(key.as_ref(), *word, goes, &mut near, &guard);
            }
        }
    }

    /// Puts `new` in the place of `old`; false if that is not the key's word.
    pub fn replace(&self, key: &[u8], old: Word, new: Word) -> bool {
        self.change(key, old, Some(new))
    }

    /// Removes a key whose word is `word`; false if it is not.
    pub fn remove(&self, key: &[u8], word: Word) -> bool {
        let removed = self.change(key, word, None);
        if removed {
            self.entries.add(-1);
        }
        removed
    }

    fn change(&self, key: &[u8], old: Word, new: Option<Word>) -> bool {
        let guard = self.memory.guard();
        'again: loop {
            let Some(mut root) = self.root(&guard) else { return false };
            let mut rest = key;
            loop {
                let (slice, length) = slice_of(rest);
                let Some(border) = lock_at(root, slice, 0, &guard) else { continue 'again };
                let number = border.find(border.order(), slice, length);
                let slot = number.and_then(|number| Some((number, border.pointer(number)?)));
                let entry = slot.map(|(number, slot)| (number, slot, slot.load().entry(&guard)));
                let changed = match entry {
                    Some((_, _, Entry::Node(layer))) => {
                        border.unlock();
                        (root, rest) = (layer, behind(rest));
                        continue;
                    }
                    Some((number, slot, Entry::Word(word))) if word == old.get() => {
                        match new {
                            Some(new) => slot.store(Pointer::word(new)),
                            None => border.take(number),
                        }
                        true
                    }
                    Some((number, _, Entry::Tail(tail)))
                        if tail.word() == old.get() && tail.bytes() == behind(rest) =>
                    {
                        match new {
                            Some(new) => tail.set_word(new.get()),
                            None => {
                                border.take(number);
                                guard.retire_tail(tail);
                            }
                        }
                        true
                    }
                    _ => false,
                };
                let empty = changed && border.order().count() == 0;
                border.unlock();
                if empty {
                    self.shrink(key, key.len() - rest.len(), &guard);
                }
                return changed;
            }
        }
    }
}

/// The layers that one key takes beside another one that goes on differently: one for each slice that both have, and one for the slice
/// in which they differ. They hold the first key only, and this thread alone has them; the topmost is returned.
fn layers_of<'g>(tail: &Tail, other: &[u8], guard: &'g Guard) -> &'g Node {
    let bytes = tail.bytes();
    let same = bytes.iter().zip(other).take_while(|(one, other)| one == other).count();
    // Where both go on behind it, a slice that they share leads to the next layer.
    let longer = bytes.len().min(other.len()).saturating_sub(1);
    let mut depth = same.min(longer) / SLICE * SLICE;
    let rest = bytes.get(depth..).unwrap_or(&[]);
    let (slice, length) = slice_of(rest);
    let pointer = match (length, Word::new(tail.word())) {
        (LONG, _) | (_, None) => Pointer::tail(guard.new_tail(behind(rest), tail.word())),
        (_, Some(word)) => Pointer::word(word),
    };
    let mut layer = layer_with(Item { slice, length, pointer }, guard);
    while let Some(above) = depth.checked_sub(SLICE) {
        let (slice, length) = slice_of(bytes.get(above..).unwrap_or(&[]));
        layer = layer_with(Item { slice, length, pointer: Pointer::node(layer) }, guard);
        depth = above;
    }
    layer
}

/// A layer that holds one item.
fn layer_with<'g>(item: Item, guard: &'g Guard) -> &'g Node {
    let layer = guard.new_node();
    layer.begin(0, 0);
    layer.put(item);
    layer.unlock();
    layer
}

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleave;
#[cfg(test)]
#[cfg(not(any(loom, feature = "shuttle")))]
mod tests;
