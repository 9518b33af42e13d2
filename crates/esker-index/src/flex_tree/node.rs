//! Nodes of a FlexTree as they lie in memory: an extent takes 16 bytes, as in the paper (FlexSpace §3.3).
//!
//! # Invariants
//! - N1: entries of a leaf are contiguous: each begins where the one before ends.
//! - N2: an inner node of `n` branches has `n - 1` pivots, ascending.

use super::{Extent, Shape};
use crate::prefetch;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most extents of a leaf.
pub const LEAF_CAPACITY_MAX: usize = 60;
/// Most children of an inner node.
pub const CHILDREN_MAX: usize = 31;
/// The address of a range that maps to nothing: the largest of 48 bits.
pub const HOLE: u64 = (1 << 48) - 1;
/// Bit of an address that marks the first byte of its extent: the mark stays with that byte, so a part of the
/// extent that begins behind it has none, and a marked extent never grows together with the one before.
pub const MARK: u64 = 1 << 47;

/// Bytes of a cache line.
const LINE: usize = 64;

const LOW_48: u64 = (1 << 48) - 1;

/// Number of a node in its arena, or of an absent one.
pub(super) type NodeId = u32;
const ABSENT: NodeId = 1 << 31;

pub(super) fn is_absent(id: NodeId) -> bool {
    id & ABSENT != 0
}

/// Index of an absent node.
pub(super) fn absent(id: NodeId) -> NodeId {
    id & !ABSENT
}

pub(super) fn absent_id(index: NodeId) -> NodeId {
    index | ABSENT
}

/// Where a node is stored, and the checksum that it has there. The meaning is the caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stored {
    /// Its place.
    pub slot: u64,
    /// Checksum of what is there.
    pub checksum: u32,
}

/// Up to `N` values side by side, without a heap of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Few<T, const N: usize> {
    values: [T; N],
    count: u32,
}

impl<T: Copy, const N: usize> Few<T, N> {
    pub(super) fn new(filler: T) -> Self {
        Few { values: [filler; N], count: 0 }
    }

    pub(super) fn insert(&mut self, index: usize, value: T) {
        let count = self.len();
        self.values.copy_within(index..count, index + 1);
        self.values[index] = value;
        self.count += 1;
    }

    pub(super) fn push(&mut self, value: T) {
        self.insert(self.len(), value);
    }

    pub(super) fn remove(&mut self, range: std::ops::Range<usize>) {
        let count = self.len();
        self.values.copy_within(range.end..count, range.start);
        self.count -= u32::try_from(range.len()).unwrap_or(0);
    }

    /// What stands from `index` on, which is gone from here.
    pub(super) fn split_off(&mut self, index: usize) -> Self {
        let mut rest = *self;
        rest.remove(0..index);
        self.count = u32::try_from(index).unwrap_or(0);
        rest
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// The value at `index`, which is in use: without a look at the count, which lies elsewhere in memory.
    #[inline]
    pub(super) fn at(&self, index: usize) -> T {
        self.values[index]
    }
}

impl<T, const N: usize> std::ops::Deref for Few<T, N> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.values[..self.count as usize]
    }
}

impl<T, const N: usize> std::ops::DerefMut for Few<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values[..self.count as usize]
    }
}

/// The address of the byte `cut` bytes behind the one at `address`.
pub(super) fn behind(address: u64, cut: u64) -> u64 {
    match (address, cut) {
        (_, 0) | (HOLE, _) => address,
        _ => (address & !MARK) + cut,
    }
}

/// One extent: offset and address of 48 bits, a length of 32.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Partial offset, and above it the low half of the length.
    place: u64,
    /// Address, and above it the high half of the length.
    target: u64,
}

impl Entry {
    pub(super) fn new(offset: u64, length: u32, address: u64) -> Self {
        let length = u64::from(length);
        Entry {
            place: (offset & LOW_48) | (length << 48),
            target: (address & LOW_48) | (length >> 16 << 48),
        }
    }

    #[inline]
    pub(super) fn offset(self) -> u64 {
        self.place & LOW_48
    }

    #[inline]
    pub(super) fn length(self) -> u64 {
        (self.place >> 48) | (self.target >> 48 << 16)
    }

    #[inline]
    pub(super) fn address(self) -> u64 {
        self.target & LOW_48
    }

    pub(super) fn end(self) -> u64 {
        self.offset() + self.length()
    }

    /// Moves it by `by`; the sum stays inside 48 bits (I3).
    #[inline]
    pub(super) fn shift(&mut self, by: i64) {
        let moved = self.place.wrapping_add_signed(by) & LOW_48;
        self.place = (self.place & !LOW_48) | moved;
    }

    pub(super) fn is_hole(self) -> bool {
        self.address() == HOLE
    }

    pub(super) fn extent(self, base: i64) -> Extent {
        Extent {
            offset: self.offset().wrapping_add_signed(base),
            length: u32::try_from(self.length()).unwrap_or(u32::MAX),
            address: self.address(),
        }
    }

    /// The part of it from `cut` bytes on, at `offset`.
    pub(super) fn tail(self, cut: u64, offset: u64) -> Entry {
        let length = u32::try_from(self.length() - cut).unwrap_or(0);
        let address = behind(self.address(), cut);
        Entry::new(offset, length, address)
    }

    /// Its first `length` bytes.
    pub(super) fn head(self, length: u64) -> Entry {
        Entry::new(self.offset(), u32::try_from(length).unwrap_or(0), self.address())
    }

    /// Whether `length` bytes at `address` continue it as one extent.
    pub(super) fn takes(self, length: u64, address: u64, shape: &Shape) -> bool {
        let sum = self.length() + length;
        if self.is_hole() || address == HOLE {
            return self.address() == address && sum <= u64::from(shape.hole_size_bytes_max);
        }
        // A marked address never follows another one.
        (self.address() & !MARK) + self.length() == address
            && sum <= u64::from(shape.extent_size_bytes_max)
            && (shape.boundary == 0 || !address.is_multiple_of(shape.boundary))
    }
}

/// A leaf.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Leaf {
    pub(super) entries: Few<Entry, LEAF_CAPACITY_MAX>,
    /// Where it is stored as it is; `None`: dirty.
    pub(super) home: Option<Stored>,
    /// Somebody was here since the last eviction looked.
    touched: AtomicBool,
}

impl Leaf {
    pub(super) fn empty() -> Self {
        Leaf {
            entries: Few::new(Entry { place: 0, target: 0 }),
            home: None,
            touched: AtomicBool::new(true),
        }
    }

    #[inline]
    pub(super) fn touch(&self) {
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was touched; not any more afterwards.
    pub(super) fn untouch(&self) -> bool {
        self.touched.swap(false, Ordering::Relaxed)
    }

    /// Starts to fetch what a search looks at first: a search by halves would wait for one line after the other. Every other
    /// line will do, since processors fetch them in pairs.
    #[inline]
    pub(super) fn fetch(&self) {
        let start = std::ptr::from_ref(self).addr();
        for line in (start + LINE..start + size_of::<Leaf>()).step_by(2 * LINE) {
            prefetch::lines(line, 0);
        }
    }

    /// Index of the entry that covers `offset`, relative to the leaf.
    #[inline]
    pub(super) fn index_of(&self, offset: u64) -> usize {
        self.fetch();
        self.entries.partition_point(|entry| entry.offset() <= offset).saturating_sub(1)
    }

    #[inline]
    pub(super) fn find(&self, offset: u64, base: i64) -> Option<Extent> {
        let entry = self.entries.get(self.index_of(offset.wrapping_sub(base.cast_unsigned())))?;
        Some(entry.extent(base))
    }

    pub(super) fn end(&self) -> u64 {
        self.entries.last().map_or(0, |last| last.end())
    }

    /// Moves all entries from `index` on.
    pub(super) fn shift_from(&mut self, index: usize, by: i64) {
        for entry in &mut self.entries[index..] {
            entry.shift(by);
        }
    }

    /// Makes its first offset 0; what it was.
    pub(super) fn rebase(&mut self) -> i64 {
        let least = self.entries.first().map_or(0, |first| first.offset());
        let by = super::signed(least);
        self.shift_from(0, -by);
        by
    }
}

/// A pointer to a child.
#[derive(Clone, Copy, Debug)]
pub(super) struct Branch {
    pub(super) shift: i64,
    pub(super) child: NodeId,
}

/// An inner node.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Inner {
    pub(super) pivots: Few<i64, { CHILDREN_MAX - 1 }>,
    pub(super) branches: Few<Branch, CHILDREN_MAX>,
    /// Where it is stored as it is; `None`: dirty.
    pub(super) home: Option<Stored>,
}

impl Inner {
    pub(super) fn empty() -> Self {
        Inner { pivots: Few::new(0), branches: Few::new(Branch { shift: 0, child: 0 }), home: None }
    }

    pub(super) fn clear(&mut self) {
        self.pivots.clear();
        self.branches.clear();
    }

    /// Starts to fetch the pivots, and where each branch stands.
    #[inline]
    fn fetch(&self) {
        prefetch::lines(std::ptr::from_ref(self).addr(), size_of::<Inner>() - 1);
    }

    /// The branch that holds the byte at `offset`, relative to the node.
    #[inline]
    pub(super) fn branch_of(&self, offset: i64) -> usize {
        self.fetch();
        self.pivots.partition_point(|pivot| *pivot <= offset)
    }

    /// The branch that holds the byte before `offset`, or the first.
    #[inline]
    pub(super) fn branch_before(&self, offset: i64) -> usize {
        self.fetch();
        self.pivots.partition_point(|pivot| *pivot < offset)
    }

    /// Moves everything behind branch `x` (FlexSpace §3.2).
    #[inline]
    pub(super) fn shift_after(&mut self, x: usize, by: i64) {
        for pivot in self.pivots.iter_mut().skip(x) {
            *pivot = pivot.wrapping_add(by);
        }
        for branch in self.branches.iter_mut().skip(x + 1) {
            branch.shift = branch.shift.wrapping_add(by);
        }
    }

    /// Takes branch `x` away, and the pivot on one side of it.
    pub(super) fn remove(&mut self, x: usize) {
        if !self.pivots.is_empty() {
            let pivot = x.saturating_sub(1);
            self.pivots.remove(pivot..pivot + 1);
        }
        self.branches.remove(x..x + 1);
    }
}
