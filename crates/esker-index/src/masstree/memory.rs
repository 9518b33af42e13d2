//! Memory of a tree: nodes and tails, and the words that point at them.
//!
//! Blocks come from chunks in huge pages, one current chunk for each stripe of threads; freed ones
//! are used again for the same size, wherever they were freed: who has used up its chunk looks at those of the others before it takes
//! another one. A word of a node says itself what it is: a caller's word, a tail
//! or a node, so whoever loads one may follow it, whatever changed since.
//!
//! # Safety invariants
//! 1. A word with a tag was made by [`Pointer::tail`] or [`Pointer::node`] from a reference to a block
//!    of the tree's own memory, and words are only stored into nodes of the same tree, through
//!    [`Slot`]: nothing else has access to them. A guard is used with its own tree.
//! 2. A block is retired once, after every word that pointed at it has been overwritten or lies in
//!    a retired block, and is used again only when every guard of that time is gone.
//! 3. Blocks of one chunk do not overlap, are aligned to their unit, and are zeroed or were a node or
//!    tail before: all fields that are shared are atomics, valid for all bits. A tail's length and
//!    bytes are written before it is shared and then stay.
//! 4. Chunks are freed with the tree, which every guard borrows; if a block comes free just then, when that is done. Blocks that still
//!    wait own nothing: they go with their chunks, however long somebody reads another tree.

#![expect(unsafe_code, reason = "nodes and tails in memory mapped by hand")]

use super::node::Node;
use crate::locks::Mutex;
#[cfg(not(feature = "shuttle"))]
use crate::pages::{Words, zeroed};
use crate::reclaim::{LongPin, pin_long};
use esker_base::striped::Striped;
use esker_base::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(feature = "shuttle"))]
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

#[cfg(not(feature = "shuttle"))]
const CHUNK_MAX: usize = 8 << 20;
const TAG_SHIFT: u32 = 61;
const TAIL: u64 = 1 << TAG_SHIFT;
const NODE: u64 = 2 << TAG_SHIFT;
const TAGS: u64 = 7 << TAG_SHIFT;

/// The end of a long key with its word.
#[derive(Debug)]
pub(super) struct Tail {
    word: AtomicU64,
    length: usize,
    #[cfg(feature = "shuttle")]
    bytes: Box<[u8]>,
}

impl Tail {
    pub(super) fn word(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    pub(super) fn set_word(&self, word: u64) {
        self.word.store(word, Ordering::Release);
    }

    #[cfg(feature = "shuttle")]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of the key behind the slice of its slot.
    #[cfg(not(feature = "shuttle"))]
    pub(super) fn bytes(&self) -> &[u8] {
        let start = std::ptr::from_ref(self).wrapping_add(1).cast::<u8>();
        let whole = std::ptr::with_exposed_provenance(start.expose_provenance());
        // SAFETY: 3: `length` bytes behind the fields belong to the block and do not change.
        unsafe { std::slice::from_raw_parts(whole, self.length) }
    }
}

/// What a word of a node holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry<'g> {
    /// 0, or a word of the caller.
    Word(u64),
    Tail(&'g Tail),
    /// The root of a layer, or a child.
    Node(&'g Node),
}

/// A word to be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer(u64);

impl Pointer {
    pub(super) const NOTHING: Pointer = Pointer(0);

    pub(super) fn word(word: crate::Word) -> Pointer {
        Pointer(word.get())
    }

    pub(super) fn tail(tail: &Tail) -> Pointer {
        Pointer(TAIL | std::ptr::from_ref(tail).expose_provenance() as u64)
    }

    #[inline]
    pub(super) fn node(node: &Node) -> Pointer {
        Pointer(NODE | std::ptr::from_ref(node).expose_provenance() as u64)
    }

    #[inline]
    pub(super) fn entry<'g>(self, _guard: &'g Guard) -> Entry<'g> {
        let address = usize::try_from(self.0 & !TAGS).unwrap_or(0);
        match self.0 & TAGS {
            TAIL => {
                let tail = std::ptr::with_exposed_provenance::<Tail>(address);
                // SAFETY: 1, 3; by 2 it is none other while the guard is there.
                Entry::Tail(unsafe { &*tail })
            }
            NODE => {
                let node = std::ptr::with_exposed_provenance::<Node>(address);
                // SAFETY: as above.
                Entry::Node(unsafe { &*node })
            }
            _ => Entry::Word(self.0),
        }
    }
}

/// A word of a node.
#[derive(Debug, Default)]
pub(super) struct Slot(AtomicU64);

impl Slot {
    #[inline]
    pub(super) fn load(&self) -> Pointer {
        // Acquire: whoever sees a pointer sees what it points at.
        Pointer(self.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn node<'g>(&self, guard: &'g Guard) -> Option<&'g Node> {
        match self.load().entry(guard) {
            Entry::Node(node) => Some(node),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn store(&self, pointer: Pointer) {
        self.0.store(pointer.0, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Blocks of multiples of one unit.
#[derive(Debug, Default)]
struct Slab {
    stripes: Striped<Mutex<Stripe>>,
    bytes: AtomicUsize,
}

#[cfg(not(feature = "shuttle"))]
#[derive(Debug, Default)]
struct Stripe {
    chunks: Vec<Words>,
    /// Where the rest of the last chunk begins, and ends.
    next: usize,
    end: usize,
    free: BTreeMap<usize, Vec<usize>>,
}

#[cfg(feature = "shuttle")]
#[derive(Debug, Default)]
struct Stripe {
    nodes: Vec<Arc<Node>>,
    tails: Vec<Arc<Tail>>,
}

#[cfg(not(feature = "shuttle"))]
impl Slab {
    /// The address of a block; zeroed unless it was used before.
    fn allocate(&self, bytes: usize, unit: usize) -> usize {
        let bytes = bytes.next_multiple_of(unit);
        let mut stripe = self.stripes.here().lock();
        if let Some(address) = stripe.free.get_mut(&bytes).and_then(Vec::pop) {
            return address;
        }
        if stripe.end - stripe.next < bytes {
            let blocks = self.freed_elsewhere(bytes);
            if !blocks.is_empty() {
                let free = stripe.free.entry(bytes).or_default();
                *free = blocks;
                if let Some(address) = free.pop() {
                    return address;
                }
            }
            let held = self.bytes.load(Ordering::Relaxed);
            let chunk = (held / 8).clamp(8 << 10, CHUNK_MAX);
            let chunk =
                if chunk >> 20 > 0 { chunk.next_multiple_of(2 << 20) - unit } else { chunk };
            let chunk = chunk.max(bytes) / unit * unit;
            let words = zeroed((chunk + unit) / size_of::<u64>());
            stripe.next = words.as_ptr().expose_provenance().next_multiple_of(unit);
            stripe.end = stripe.next + chunk;
            stripe.chunks.push(words);
            self.bytes.fetch_add(chunk + unit, Ordering::Relaxed);
        }
        let address = stripe.next;
        stripe.next += bytes;
        address
    }

    /// Blocks of a size that threads of another stripe freed: all of one stripe, unless somebody is at work there. The caller has a
    /// stripe of its own locked, where there are none.
    #[cold]
    fn freed_elsewhere(&self, bytes: usize) -> Vec<usize> {
        let mut others = self.stripes.iter().filter_map(Mutex::try_lock);
        let found = others.find_map(|mut other| {
            other.free.get_mut(&bytes).filter(|blocks| !blocks.is_empty()).map(std::mem::take)
        });
        found.unwrap_or_default()
    }

    fn free(&self, address: usize, bytes: usize, unit: usize) {
        let size = bytes.next_multiple_of(unit);
        self.stripes.here().lock().free.entry(size).or_default().push(address);
    }
}

#[derive(Debug, Default)]
struct Slabs {
    nodes: Slab,
    tails: Slab,
}

/// The memory of a tree.
#[derive(Debug, Default)]
pub(super) struct Memory(Arc<Slabs>);

#[cfg(not(feature = "shuttle"))]
const NODE_UNIT: usize = align_of::<Node>();
#[cfg(not(feature = "shuttle"))]
const TAIL_UNIT: usize = 16;

/// Keeps what a thread reads of a tree from being used again.
#[derive(Debug)]
pub(super) struct Guard<'t> {
    pin: LongPin,
    memory: &'t Memory,
}

impl Memory {
    #[inline]
    pub(super) fn guard(&self) -> Guard<'_> {
        Guard { pin: pin_long(), memory: self }
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |slab: &Slab| slab.bytes.load(Ordering::Relaxed);
        of(&self.0.nodes) + of(&self.0.tails)
    }
}

#[cfg(not(feature = "shuttle"))]
impl Guard<'_> {
    /// A node for this thread alone until it is stored. Its fields hold anything.
    pub(super) fn new_node(&self) -> &Node {
        let address = self.memory.0.nodes.allocate(size_of::<Node>(), NODE_UNIT);
        let node = std::ptr::with_exposed_provenance::<Node>(address);
        // SAFETY: 3: a block of our own, all of whose fields are atomics; 4.
        unsafe { &*node }
    }

    /// A tail for this thread alone until it is stored.
    pub(super) fn new_tail(&self, bytes: &[u8], word: u64) -> &Tail {
        let address = self.memory.0.tails.allocate(size_of::<Tail>() + bytes.len(), TAIL_UNIT);
        let tail = std::ptr::with_exposed_provenance_mut::<Tail>(address);
        let fields = Tail { word: AtomicU64::new(word), length: bytes.len() };
        // SAFETY: 3: the block is ours alone, aligned and long enough.
        unsafe { tail.write(fields) };
        let rest = tail.wrapping_add(1).cast::<u8>();
        // SAFETY: 3: as above; `bytes` is elsewhere.
        unsafe { rest.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: initialized just now; 4.
        unsafe { &*tail }
    }

    /// Frees a node that nothing points at any more, when nobody can still read it.
    pub(super) fn retire_node(&self, node: &Node) {
        let (slabs, address) = (Arc::downgrade(&self.memory.0), std::ptr::from_ref(node).addr());
        self.pin.defer(move || {
            if let Some(slabs) = slabs.upgrade() {
                slabs.nodes.free(address, size_of::<Node>(), NODE_UNIT);
            }
        });
    }

    /// As [`Guard::retire_node`].
    pub(super) fn retire_tail(&self, tail: &Tail) {
        let (slabs, address) = (Arc::downgrade(&self.memory.0), std::ptr::from_ref(tail).addr());
        let bytes = size_of::<Tail>() + tail.length;
        self.pin.defer(move || {
            if let Some(slabs) = slabs.upgrade() {
                slabs.tails.free(address, bytes, TAIL_UNIT);
            }
        });
    }
}

/// Shuttle's atomics are no plain words, and the collector is no part of the explored program: all
/// stays until the tree goes.
#[cfg(feature = "shuttle")]
impl Guard<'_> {
    pub(super) fn new_node(&self) -> &Node {
        let node = Arc::new(Node::default());
        let pointer = Arc::as_ptr(&node);
        self.memory.0.nodes.stripes.here().lock().nodes.push(node);
        // SAFETY: the memory owns it, which outlives the guard.
        unsafe { &*pointer }
    }

    pub(super) fn new_tail(&self, bytes: &[u8], word: u64) -> &Tail {
        let word = AtomicU64::new(word);
        let tail = Arc::new(Tail { word, length: bytes.len(), bytes: bytes.into() });
        let pointer = Arc::as_ptr(&tail);
        self.memory.0.tails.stripes.here().lock().tails.push(tail);
        // SAFETY: as above.
        unsafe { &*pointer }
    }

    pub(super) fn retire_node(&self, _node: &Node) {}
    pub(super) fn retire_tail(&self, _tail: &Tail) {}
}

#[cfg(all(test, not(any(loom, feature = "shuttle"))))]
mod tests {
    use super::*;
    use crate::{Masstree, Word};

    /// Who reads another tree keeps what this one took away, and nothing else is used that would let it go.
    #[test]
    fn memory_of_a_tree_goes_with_it() {
        let (tree, other) = (Masstree::new(), Masstree::new());
        let _reads = other.memory.guard();
        for pair in 0..1000_u64 {
            // Of each two the first one's tail makes way for a layer.
            for last in [b'a', b'b'] {
                let key = [&b"what they share "[..], &pair.to_be_bytes(), &[last; 9]].concat();
                assert_eq!(tree.insert(&key, Word::new(1).unwrap()), None);
            }
        }
        let slabs = Arc::downgrade(&tree.memory.0);
        drop(tree);
        assert_eq!(slabs.strong_count(), 0);
    }
}
