//! The arithmetic of a table: which hash has which home, which home which slots and which region.
//!
//! Pure numbers, fixed when the table is made.

use crate::entry::NEIGHBOURHOOD;
use std::ops::Range;

/// Bits of the hash that the smallest directory spends on a home.
pub(crate) const LEVEL_MIN: u32 = 6;
/// Beyond this a table does not double: more entries than links can tell apart.
const LEVEL_MAX: u32 = 44;

/// The sizes that a directory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// A table of `1 << home_bits` homes splits in two instead of doubling.
    pub(crate) home_bits: u32,
    /// Homes under one lock, at least a neighbourhood, so that a change takes two locks at most.
    pub(crate) region_bits: u32,
}

/// A table of 262144 homes takes 2 or 3 MiB: at least one huge page. A region of 512 homes moves in
/// a few microseconds.
pub(crate) const GEOMETRY: Geometry = Geometry { home_bits: 18, region_bits: 9 };

/// The shape of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bits of a hash that say its table and home.
    pub(crate) level: u32,
    home_bits: u32,
    /// `1 << home_bits` minus one.
    home_mask: u64,
    region_bits: u32,
    /// Slots for two homes: 2 or 3.
    halves: usize,
    /// The first bits of the table's hashes, as a number.
    prefix: u64,
    geometry: Geometry,
}

impl Shape {
    /// The smallest table, for all hashes.
    pub(crate) fn smallest(geometry: Geometry) -> Shape {
        Self::new(geometry, LEVEL_MIN, LEVEL_MIN.min(geometry.home_bits), 2, 0)
    }

    fn new(geometry: Geometry, level: u32, home_bits: u32, halves: usize, prefix: u64) -> Shape {
        let region_bits = geometry.region_bits.min(home_bits);
        let home_mask = (1 << home_bits) - 1;
        Shape { level, home_bits, home_mask, region_bits, halves, prefix, geometry }
    }

    /// The tables of a directory with room for `entries`: their number is a power of two.
    pub(crate) fn for_entries(geometry: Geometry, entries: u64) -> impl Iterator<Item = Shape> {
        let mut shape = Shape::smallest(geometry);
        let mut tables = 1;
        while entries > shape.entries_max().saturating_mul(tables)
            && shape.level < LEVEL_MAX / 4 * 3
        {
            if let Some(next) = shape.stretched() {
                shape = next;
            } else if let Some(next) = shape.doubled() {
                shape = next;
            } else {
                shape = Self::new(geometry, shape.level + 1, shape.home_bits, 2, 0);
                tables *= 2;
            }
        }
        (0..tables).map(move |prefix| Shape { prefix, ..shape })
    }

    /// The same homes with half as many slots again, if that is the next step.
    pub(crate) fn stretched(self) -> Option<Shape> {
        (self.halves == 2).then_some(Shape { halves: 3, ..self })
    }

    /// Twice the homes, if a table may have as many.
    pub(crate) fn doubled(self) -> Option<Shape> {
        let Shape { geometry, level, home_bits, prefix, .. } = self;
        (home_bits < geometry.home_bits && level < LEVEL_MAX)
            .then(|| Self::new(geometry, level + 1, home_bits + 1, 2, prefix))
    }

    /// Two tables of as many homes each.
    pub(crate) fn split(self) -> Option<[Shape; 2]> {
        let Shape { geometry, level, home_bits, prefix, .. } = self;
        let child = |bit| Self::new(geometry, level + 1, home_bits, 2, 2 * prefix + bit);
        (level < LEVEL_MAX).then(|| [child(0), child(1)])
    }

    /// Bits of a hash that say the table.
    pub(crate) fn depth(self) -> u32 {
        self.level - self.home_bits
    }

    /// The first hash of the table.
    pub(crate) fn first_hash(self) -> u64 {
        self.prefix.checked_shl(64 - self.depth()).unwrap_or(0)
    }

    fn homes(self) -> usize {
        1 << self.home_bits
    }

    /// The home of a hash of this table.
    #[inline]
    pub(crate) fn home(self, hash: u64) -> usize {
        let position = hash.wrapping_shr(64 - self.level);
        usize::try_from(position & self.home_mask).unwrap_or(0)
    }

    /// The first bits of the hashes of a home, as a number.
    pub(crate) fn position(self, home: usize) -> u64 {
        self.prefix << self.home_bits | home as u64
    }

    /// The first and the last hash of some homes.
    pub(crate) fn hashes(self, homes: &Range<usize>) -> (u64, u64) {
        let first = self.position(homes.start) << (64 - self.level);
        let end = u128::from(self.position(homes.start) + homes.len() as u64) << (64 - self.level);
        (first, u64::try_from(end - 1).unwrap_or(u64::MAX))
    }

    #[inline]
    pub(crate) fn first_slot(self, home: usize) -> usize {
        home.wrapping_mul(self.halves) / 2
    }

    /// The home whose first slot this is.
    #[inline]
    pub(crate) fn home_of_slot(self, slot: usize) -> usize {
        if self.halves == 2 { slot } else { (2 * slot).div_ceil(3) }
    }

    /// Slots that homes begin at. The last neighbourhoods do not wrap around, which keeps locks in
    /// order; their tail comes on top.
    pub(crate) fn room(self) -> u64 {
        self.first_slot(self.homes()) as u64
    }

    pub(crate) fn slots(self) -> usize {
        self.first_slot(self.homes()) + NEIGHBOURHOOD
    }

    /// Entries from which on the table grows: between 90 and 94 % of its room, so that tables of
    /// one age do not grow all at once.
    pub(crate) fn entries_max(self) -> u64 {
        let turn = self.prefix.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61;
        self.room() * (464 + 2 * turn) / 512
    }

    pub(crate) fn regions(self) -> usize {
        self.homes() >> self.region_bits
    }

    #[inline]
    pub(crate) fn region_of(self, home: usize) -> usize {
        home >> self.region_bits
    }

    pub(crate) fn homes_of_region(self, region: usize) -> Range<usize> {
        region << self.region_bits..(region + 1) << self.region_bits
    }

    /// The region whose lock guards a slot. The tail belongs to the last one.
    #[inline]
    pub(crate) fn region_of_slot(self, slot: usize) -> usize {
        let home = if self.halves == 2 { slot } else { slot * 2 / 3 };
        self.region_of(home).min(self.regions() - 1)
    }

    /// The slots whose lock is that of a region, or of the last one if there is no such region.
    pub(crate) fn slots_of_region(self, region: usize) -> Range<usize> {
        let homes = self.homes_of_region(region.min(self.regions() - 1));
        let end = self.first_slot(homes.end);
        let last = homes.end == self.homes();
        self.first_slot(homes.start)..if last { self.slots() } else { end }
    }

    pub(crate) fn homes_per_overflow_bit(self) -> usize {
        1 << self.region_bits.saturating_sub(6)
    }

    pub(crate) fn overflow_bit(self, home: usize) -> u64 {
        let within = home & ((1 << self.region_bits) - 1);
        1 << (within >> self.region_bits.saturating_sub(6))
    }

    /// The lengths of slots that tables of the largest size have, if this is one.
    pub(crate) fn largest(self) -> Option<[usize; 2]> {
        (self.home_bits == self.geometry.home_bits)
            .then(|| [2, 3].map(|halves| Shape { halves, ..self }.slots()))
    }
}

/// Bytes that every lookup reads.
const NEAR_BYTES: usize = 64;

/// Where the slots of a table lie, in one word beside the pointer to the table: so that they can be
/// fetched before the table's own memory has come. It may be out of date, and is never relied on.
///
/// ```text
/// | address / 8: 45 | halves - 2: 1 | home bits: 6 | 64 - level: 6 |
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint(pub(crate) u64);

impl Hint {
    pub(crate) fn new(shape: Shape, address: usize) -> Hint {
        let sizes = u64::from(shape.home_bits) << 6 | u64::from(64 - shape.level);
        Hint((address as u64) >> 3 << 13 | (shape.halves as u64 - 2) << 12 | sizes)
    }

    /// Starts to fetch the first slots of the neighbourhood of a hash.
    #[inline]
    pub(crate) fn prefetch(self, hash: u64) {
        let mask = !(u64::MAX << (self.0 >> 6 & 63));
        let home = hash >> (self.0 & 63) & mask;
        let first = home + (home >> 1) * (self.0 >> 12 & 1);
        let address = (self.0 >> 13).wrapping_add(first) << 3;
        crate::prefetch::lines(usize::try_from(address).unwrap_or(0), NEAR_BYTES);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn homes_and_slots_are_inverse_and_in_order() {
        let mut shape = Shape::smallest(GEOMETRY);
        while let Some(next) = shape.stretched().or_else(|| shape.doubled()) {
            let slots: Vec<usize> = (0..shape.homes()).map(|home| shape.first_slot(home)).collect();
            assert!(slots.is_sorted_by(|a, b| a < b));
            assert!(slots.iter().enumerate().all(|(home, slot)| shape.home_of_slot(*slot) == home));
            assert!(slots.iter().enumerate().all(|(home, slot)| {
                shape.region_of_slot(*slot) == shape.region_of(home)
                    && shape.slots_of_region(shape.region_of(home)).contains(slot)
            }));
            assert!(slots.last().is_some_and(|last| last + NEIGHBOURHOOD <= shape.slots()));
            shape = next;
        }
        assert_eq!(shape.homes(), 1 << 18);
    }
}
