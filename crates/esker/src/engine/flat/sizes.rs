//! The sizes of blocks: what the lazy-persist allocator cuts chunks into (FlatStore §3.2).
//!
//! Small sizes grow by at most an eighth. A size of which few fit a chunk is a whole part of it, so that no end of the chunk is
//! left over: half, a third, a fourth.
//!
//! A chunk says the size of its blocks itself, so these sizes are a rule for new chunks only. One with another size serves
//! the class of the next smaller one.

use std::ops::Range;

/// Sizes from one power of two to the next.
const STEPS: u64 = 8;
/// Blocks of a chunk up to which their size is a whole part of it.
const PARTS: u64 = 16;

/// The sizes of a store's blocks, in lines; a class is a place in their order.
#[derive(Debug)]
pub(super) struct Sizes(Box<[u64]>);

impl Sizes {
    /// For chunks with so many lines for blocks.
    pub(super) fn of(chunk_lines: u64) -> Sizes {
        let small = (0..u64::BITS).flat_map(|power| {
            let first = 1 << power;
            (0..STEPS).map(move |step| first + first * step / STEPS)
        });
        let parts = (2..=PARTS).map(|part| chunk_lines / part);
        let mut sizes: Vec<u64> = small.take_while(|size| size * PARTS < chunk_lines).collect();
        sizes.extend(parts.filter(|size| *size > 0));
        sizes.sort_unstable();
        sizes.dedup();
        Sizes(sizes.into())
    }

    /// How many classes there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The class with the smallest blocks that have so many lines, and what they have; `None` if no block has.
    pub(super) fn for_record(&self, lines: u64) -> Option<(usize, u64)> {
        let class = self.0.partition_point(|size| *size < lines);
        Some((class, *self.0.get(class)?))
    }

    /// The class that a chunk with blocks of so many lines serves.
    pub(super) fn of_chunk(&self, lines: u64) -> usize {
        self.0.partition_point(|size| *size <= lines).saturating_sub(1)
    }

    /// The class, and those up to twice its size.
    pub(super) fn alike(&self, class: usize) -> Range<usize> {
        let twice = self.0.get(class).map_or(0, |size| size.saturating_mul(2));
        class..self.0.partition_point(|size| *size <= twice).max(class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_wastes_at_most_an_eighth_or_what_one_more_in_the_chunk_would_need() {
        for chunk in [30, 62, 1022, 32_766, 65_534] {
            let sizes = Sizes::of(chunk);
            let mut last = (0, 0);
            for lines in 1..=chunk / 2 {
                let (class, size) = sizes.for_record(lines).unwrap();
                assert!(size >= lines && class >= last.0 && size >= last.1);
                assert_eq!(class == last.0 && lines > 1, size == last.1, "{lines} of {chunk}");
                let fits_best = chunk / size == chunk / lines;
                assert!(fits_best || (size - lines) * STEPS <= lines, "{lines} of {chunk}: {size}");
                assert_eq!(sizes.of_chunk(size), class);
                last = (class, size);
            }
            assert_eq!(last.1, chunk / 2, "half a chunk is the largest");
            assert_eq!(sizes.for_record(chunk / 2 + 1), None);
        }
    }

    #[test]
    fn a_chunk_of_a_size_that_is_none_serves_the_next_smaller_one() {
        let sizes = Sizes::of(65_534);
        let (class, size) = sizes.for_record(100).unwrap();
        assert_eq!(size, 104);
        assert_eq!(sizes.of_chunk(105), class);
        assert_eq!(sizes.of_chunk(111), class);
        assert_eq!(sizes.of_chunk(112), class + 1);
    }

    #[test]
    fn those_alike_have_up_to_twice_the_size() {
        let sizes = Sizes::of(65_534);
        let (class, _) = sizes.for_record(16).unwrap();
        assert_eq!(sizes.alike(class), class..class + 9);
        let largest = sizes.count() - 1;
        assert_eq!(sizes.alike(largest), largest..largest + 1);
    }
}
