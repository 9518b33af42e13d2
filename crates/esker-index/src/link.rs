//! What an index keeps of a record: where it lies and how much to read (uDepot §4.2).
//!
//! ```text
//! 47             8 7         0
//! | grain address | size hint |     48 bits, so that an index entry of 64 has 16 left
//! ```

use std::num::NonZeroU64;

/// Bits of a size hint.
pub(crate) const HINT_BITS: u32 = 8;
/// Bits of a grain address: with grains of 1 byte 1 TiB, with grains of 8 bytes 8 TiB.
pub(crate) const GRAIN_BITS: u32 = 40;
/// Bits of a link.
pub(crate) const LINK_BITS: u32 = GRAIN_BITS + HINT_BITS;
const MANTISSA_BITS: u32 = 4;
/// The leading bit of a mantissa, which is not stored.
const LEADING: u64 = 1 << MANTISSA_BITS;

/// An upper bound of a record's size in 8 bits, in a unit that who keeps records chooses: `depot` takes 8 bytes, whatever its grain.
///
/// uDepot keeps the size in 11 bits, in grains of 4 KiB; here grains are small so that records can
/// be packed, and the hint is a floating-point number as those of IEEE 754: 4 bits of exponent, 4
/// of mantissa after a leading one. It is exact up to 32 units and bounds larger sizes from above
/// by less than 6.3 %, up to 480 Ki units (3.75 MiB with units of 8 bytes). Larger records say so
/// and take a second read. The three bits that uDepot spends more go to the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeHint {
    /// The record is a tombstone: no read can find a value there.
    Tombstone,
    /// Reading this many units reads the whole record.
    Grains(u64),
    /// The record is longer than a hint can say.
    Large,
}

/// Place and size of a record, or of a tombstone, in 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link(NonZeroU64);

impl Link {
    /// First grain address that no link can hold.
    pub const GRAIN_END: u64 = 1 << GRAIN_BITS;
    const LARGE: u64 = (1 << HINT_BITS) - 1;

    /// A link to a record of `size_units` at `grain`. `None` if the address is 0 (never a record)
    /// or too large.
    #[must_use]
    pub fn record(grain: u64, size_units: u64) -> Option<Link> {
        let hint = encode(size_units.max(1)).unwrap_or(Self::LARGE);
        Self::new(grain, hint)
    }

    /// A link to the record of a large value at `grain`, which says where the value is.
    #[must_use]
    pub fn large(grain: u64) -> Option<Link> {
        Self::new(grain, Self::LARGE)
    }

    /// The link as a number, for a checkpoint.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// The link that [`Link::to_bits`] made a number of; `None` if there is no such link.
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<Link> {
        Self::new(bits >> HINT_BITS, bits & Self::LARGE)
    }

    /// A link to a tombstone at `grain`.
    #[must_use]
    pub fn tombstone(grain: u64) -> Option<Link> {
        Self::new(grain, 0)
    }

    fn new(grain: u64, hint: u64) -> Option<Link> {
        let valid = grain > 0 && grain < Self::GRAIN_END;
        NonZeroU64::new(grain.wrapping_shl(HINT_BITS) | hint).filter(|_| valid).map(Link)
    }

    /// The link in the lowest 48 bits, which is none if they are no link.
    #[inline]
    pub(crate) fn in_entry(bits: u64) -> Link {
        Link(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN))
    }

    /// Address of the record in grains.
    #[must_use]
    pub fn grain(self) -> u64 {
        self.to_bits() >> HINT_BITS
    }

    /// How much to read there.
    #[must_use]
    pub fn size(self) -> SizeHint {
        match self.to_bits() & Self::LARGE {
            0 => SizeHint::Tombstone,
            Self::LARGE => SizeHint::Large,
            hint => SizeHint::Grains(match (hint >> MANTISSA_BITS, hint & (LEADING - 1)) {
                (0, mantissa) => mantissa,
                (exponent, mantissa) => (LEADING | mantissa) << (exponent - 1),
            }),
        }
    }

    /// Whether this is a link to a tombstone.
    #[must_use]
    pub fn is_tombstone(self) -> bool {
        self.size() == SizeHint::Tombstone
    }
}

/// The smallest hint that is not below `size`; `None` if there is none short of `LARGE`.
fn encode(size: u64) -> Option<u64> {
    let bits = u64::BITS - size.leading_zeros();
    let mut shift = bits.saturating_sub(MANTISSA_BITS + 1);
    let mut mantissa = size.div_ceil(1 << shift);
    if mantissa >= 2 * LEADING {
        shift += 1;
        mantissa = LEADING;
    }
    // Below the leading bit the exponent is 0, and the mantissa is the size; above, the leading bit
    // carries into the exponent.
    let hint = (u64::from(shift) << MANTISSA_BITS) + mantissa;
    (hint < Link::LARGE).then_some(hint)
}

impl std::fmt::Display for SizeHint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SizeHint::Tombstone => f.write_str("tombstone"),
            SizeHint::Grains(grains) => write!(f, "{grains} grains"),
            SizeHint::Large => f.write_str("large"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_bound_every_size_closely_from_above() {
        let near_powers = (0..23).flat_map(|e| (0..9).map(move |d| (1u64 << e) + d));
        for size in (1..100_000).chain(near_powers) {
            match Link::record(1, size).unwrap().size() {
                SizeHint::Grains(bound) => {
                    assert!(bound >= size, "{size} is cut to {bound}");
                    assert!(bound * 16 <= size * 17, "{size} reads {bound}");
                }
                other => assert!(size > 30 << 14, "{size} is {other:?}"),
            }
        }
        assert_eq!(Link::record(1, 1 << 40).unwrap().size(), SizeHint::Large);
    }

    #[test]
    fn small_sizes_are_exact() {
        for size in 1..=32 {
            assert_eq!(Link::record(7, size).unwrap().size(), SizeHint::Grains(size));
        }
    }

    #[test]
    fn addresses_keep_all_bits_and_the_ends_are_refused() {
        let last = Link::GRAIN_END - 1;
        assert_eq!(Link::record(last, 5).unwrap().grain(), last);
        assert_eq!(Link::tombstone(last).unwrap().grain(), last);
        assert!(Link::tombstone(last).unwrap().is_tombstone());
        assert!(!Link::record(1, 0).unwrap().is_tombstone(), "an empty record is no tombstone");
        assert_eq!(Link::large(9).unwrap().size(), SizeHint::Large);
        for link in [Link::large(last), Link::tombstone(3), Link::record(5, 70)] {
            assert_eq!(Link::from_bits(link.unwrap().to_bits()), link);
        }
        assert_eq!((Link::from_bits(255), Link::from_bits(u64::MAX)), (None, None));
        assert_eq!(Link::record(0, 5), None);
        assert_eq!(Link::record(Link::GRAIN_END, 5), None);
    }
}
