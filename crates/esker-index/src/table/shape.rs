//! The arithmetic of a table: which hash has which home, which home which line and which region.
//!
//! Pure numbers, fixed when the table is made.

use crate::entry::{WINDOW, within_of};
use crate::line::SLOTS;
use std::ops::Range;

/// Bits of the hash that the smallest directory spends on a home.
pub(crate) const LEVEL_MIN: u32 = 6;
/// Beyond this a table does not get more homes: more entries than links can tell apart.
const LEVEL_MAX: u32 = 44;
/// Homes for whose slots quarters are counted; see [`Shape::line_of`].
const QUARTER: usize = 4;

/// The sizes that a directory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// A table of `1 << home_bits` slots, once it was stretched, splits in two instead of doubling.
    pub(crate) home_bits: u32,
    /// Homes under one lock: a window at least, so that a change takes two locks at most, and no more
    /// than a region has bits for.
    pub(crate) region_bits: u32,
}

/// A table of 524288 slots takes 4 MiB, and 6 when it is stretched: whole huge pages. A region
/// of 256 homes moves in a few microseconds.
pub(crate) const GEOMETRY: Geometry = Geometry { home_bits: 19, region_bits: 8 };

/// The shape of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bits of a hash that say its table and home.
    pub(crate) level: u32,
    home_bits: u32,
    /// `1 << home_bits` minus one.
    home_mask: u64,
    region_bits: u32,
    /// Slots for four homes: 4, or 3 in a table that was stretched.
    quarters: usize,
    /// The first bits of the table's hashes, as a number.
    prefix: u64,
    geometry: Geometry,
}

impl Shape {
    /// The smallest table, for all hashes.
    pub(crate) fn smallest(geometry: Geometry) -> Shape {
        Self::new(geometry, LEVEL_MIN, LEVEL_MIN.min(geometry.home_bits), QUARTER, 0)
    }

    fn new(geometry: Geometry, level: u32, home_bits: u32, quarters: usize, prefix: u64) -> Shape {
        let region_bits = geometry.region_bits.min(home_bits);
        let home_mask = (1 << home_bits) - 1;
        Shape { level, home_bits, home_mask, region_bits, quarters, prefix, geometry }
    }

    /// The tables of a directory with room for `entries`: their number is a power of two.
    pub(crate) fn for_entries(geometry: Geometry, entries: u64) -> impl Iterator<Item = Shape> {
        let mut shape = Shape::smallest(geometry);
        let mut tables = 1;
        while entries > shape.entries_max().saturating_mul(tables)
            && shape.level < LEVEL_MAX / 4 * 3
        {
            if let Some(next) = shape.stretched().or_else(|| shape.doubled()) {
                shape = next;
            } else {
                shape = Self::new(geometry, shape.level, shape.home_bits - 1, QUARTER, 0);
                tables *= 2;
            }
        }
        (0..tables).map(move |prefix| Shape { prefix, ..shape })
    }

    #[inline]
    fn is_stretched(self) -> bool {
        self.quarters < QUARTER
    }

    /// Half as many slots again, for twice the homes, if that is the next step.
    pub(crate) fn stretched(self) -> Option<Shape> {
        let Shape { geometry, level, home_bits, prefix, .. } = self;
        (!self.is_stretched() && level < LEVEL_MAX)
            .then(|| Self::new(geometry, level + 1, home_bits + 1, QUARTER - 1, prefix))
    }

    /// The same homes with a slot each, if a table may have as many.
    pub(crate) fn doubled(self) -> Option<Shape> {
        let Shape { geometry, level, home_bits, prefix, .. } = self;
        (self.is_stretched() && home_bits <= geometry.home_bits)
            .then(|| Self::new(geometry, level, home_bits, QUARTER, prefix))
    }

    /// Two tables that have half of the homes each, with a slot each.
    pub(crate) fn split(self) -> Option<[Shape; 2]> {
        let Shape { geometry, level, home_bits, prefix, .. } = self;
        let child = |bit| Self::new(geometry, level, home_bits - 1, QUARTER, 2 * prefix + bit);
        self.is_stretched().then(|| [child(0), child(1)])
    }

    /// Bits of a hash that say the table.
    pub(crate) fn depth(self) -> u32 {
        self.level - self.home_bits
    }

    /// The first hash of the table.
    pub(crate) fn first_hash(self) -> u64 {
        self.prefix.checked_shl(64 - self.depth()).unwrap_or(0)
    }

    pub(crate) fn homes(self) -> usize {
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

    /// The home at a position of this table.
    #[inline]
    pub(crate) fn home_at_position(self, position: u64) -> usize {
        usize::try_from(position & self.home_mask).unwrap_or(0)
    }

    /// The first and the last hash of some homes.
    pub(crate) fn hashes(self, homes: &Range<usize>) -> (u64, u64) {
        let first = self.position(homes.start) << (64 - self.level);
        let end = u128::from(self.position(homes.start) + homes.len() as u64) << (64 - self.level);
        (first, u64::try_from(end - 1).unwrap_or(u64::MAX))
    }

    /// The line where the neighbourhood of a home begins.
    #[inline]
    pub(crate) fn line_of(self, home: usize) -> usize {
        home.wrapping_mul(self.quarters) / WINDOW
    }

    /// The first home that has this line.
    #[inline]
    fn first_home(self, line: usize) -> usize {
        // Spelled out: a division by a constant is none.
        if self.is_stretched() {
            (line * WINDOW).div_ceil(QUARTER - 1)
        } else {
            line * WINDOW / QUARTER
        }
    }

    /// Lines of a neighbourhood: as many as begin a neighbourhood for one of 32 homes.
    #[inline]
    pub(crate) fn span(self) -> usize {
        self.quarters
    }

    /// The home of an entry that stands in this line: of the last 32 whose neighbourhoods reach it,
    /// the one that the entry tells.
    #[inline]
    pub(crate) fn home_of(self, line: usize, entry: u64) -> usize {
        let last = self.first_home(line + 1) - 1;
        last.wrapping_sub(last.wrapping_sub(within_of(entry)) % WINDOW)
    }

    /// Slots of the lines that neighbourhoods begin in. The last neighbourhoods do not wrap around,
    /// which keeps locks in order; their tail comes on top.
    pub(crate) fn room(self) -> u64 {
        (self.line_of(self.homes()) * SLOTS) as u64
    }

    pub(crate) fn slots(self) -> usize {
        (self.line_of(self.homes()) + self.span() - 1) * SLOTS
    }

    /// Entries from which on the table grows: between 87 and 91 % of its room, so that tables of
    /// one age do not grow all at once.
    pub(crate) fn entries_max(self) -> u64 {
        let turn = self.prefix.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61;
        self.room() * (448 + 2 * turn) / 512
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

    /// The region whose lock guards a line. The tail belongs to the last one.
    #[inline]
    pub(crate) fn region_of_line(self, line: usize) -> usize {
        self.region_of(self.first_home(line)).min(self.regions() - 1)
    }

    /// The line behind those whose lock is that of a region, or of the last one if there is no such
    /// region.
    pub(crate) fn end_of_region(self, region: usize) -> usize {
        let end = self.homes_of_region(region.min(self.regions() - 1)).end;
        let tail = if end == self.homes() { self.span() - 1 } else { 0 };
        self.line_of(end) + tail
    }

    /// The bit of a home's line among those of its region.
    #[inline]
    pub(crate) fn line_bit(self, home: usize) -> u32 {
        let within = home & ((1 << self.region_bits) - 1);
        1u32.wrapping_shl(u32::try_from(self.line_of(within)).unwrap_or(0))
    }

    /// Entries of a region that the table is told of at once: a power of two, 1 in small regions.
    pub(crate) fn tally(self) -> u64 {
        1 << self.tally_bits()
    }

    #[inline]
    fn tally_bits(self) -> u32 {
        self.region_bits.saturating_sub(5)
    }

    /// How many of a region's entries the table has been told of.
    #[inline]
    pub(crate) fn told(self, entries: u32) -> i64 {
        i64::from(entries) >> self.tally_bits() << self.tally_bits()
    }

    /// The lengths of slots that tables of the largest size have, if this is one.
    pub(crate) fn largest(self) -> Option<[usize; 2]> {
        let plain = self.home_bits - u32::from(self.is_stretched());
        let shape = Shape::new(self.geometry, self.level, plain, QUARTER, self.prefix);
        (plain == self.geometry.home_bits)
            .then(|| [shape.slots(), shape.stretched().map_or(0, Shape::slots)])
    }
}

/// Where the slots of a table lie, in one word beside the pointer to the table: so that they can be
/// fetched before the table's own memory has come. It may be out of date, and is never relied on.
///
/// ```text
/// | address / 64: 51 | 1 if stretched | home bits: 6 | 64 - level: 6 |
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint(pub(crate) u64);

impl Hint {
    pub(crate) fn new(shape: Shape, address: usize) -> Hint {
        let sizes = u64::from(shape.home_bits) << 6 | u64::from(64 - shape.level);
        Hint((address as u64) >> 6 << 13 | u64::from(shape.is_stretched()) << 12 | sizes)
    }

    /// Starts to fetch the first line of the neighbourhood of a hash.
    #[inline]
    pub(crate) fn prefetch(self, hash: u64) {
        let mask = !(u64::MAX << (self.0 >> 6 & 63));
        let home = hash >> (self.0 & 63) & mask;
        let line = home.wrapping_mul(QUARTER as u64 - (self.0 >> 12 & 1)) / WINDOW as u64;
        let address = (self.0 >> 13).wrapping_add(line) << 6;
        crate::prefetch::lines(usize::try_from(address).unwrap_or(0), 0);
    }
}

#[cfg(all(test, not(any(loom, feature = "shuttle"))))]
mod tests {
    use super::*;
    use crate::entry::with_within;

    #[test]
    fn entries_tell_their_homes_wherever_they_stand() {
        let mut shape = Shape::smallest(GEOMETRY);
        let mut shapes = vec![shape];
        while let Some(next) = shape.stretched().or_else(|| shape.doubled()) {
            shapes.push(next);
            shape = next;
        }
        assert_eq!((shape.homes(), shape.room()), (1 << 20, 3 << 18));
        for shape in shapes {
            assert!((0..shape.homes()).is_sorted_by_key(|home| shape.line_of(home)));
            for home in 0..shape.homes() {
                let first = shape.line_of(home);
                for line in first..first + shape.span() {
                    assert_eq!(shape.home_of(line, with_within(0, home)), home);
                    let region = shape.region_of(home);
                    assert!((region..=region + 1).contains(&shape.region_of_line(line)));
                    assert!(line < shape.end_of_region(shape.region_of_line(line)));
                    assert!(SLOTS * line < shape.slots());
                }
                assert_eq!(shape.region_of_line(first), shape.region_of(home));
                assert_ne!(shape.line_bit(home), 0);
            }
            let region = shape.homes_of_region(0);
            let bits = region.clone().fold(0, |bits, home| bits | shape.line_bit(home));
            let lines = shape.line_of(region.end);
            assert_eq!(bits.count_ones() as usize, lines, "lines share a bit");
        }
    }

    #[test]
    fn tables_grow_by_steps_of_less_than_two_and_spend_one_bit_each_time_they_double() {
        let mut shape = Shape::smallest(GEOMETRY);
        loop {
            let slots = shape.room();
            let Some(next) = shape.stretched().or_else(|| shape.doubled()) else { break };
            assert!(2 * next.room() == 3 * slots || 3 * next.room() == 4 * slots);
            assert_eq!(next.room().ilog2() - 6 + u32::from(next.is_stretched()), next.level - 6);
            shape = next;
        }
        let [low, high] = shape.split().unwrap();
        assert_eq!((low.room(), high.room(), low.level), (1 << 19, 1 << 19, shape.level));
        assert_eq!(low.depth(), shape.depth() + 1);
        assert_eq!(high.first_hash(), 1 << 63);
    }
}
