//! Entries of a table: 8 bytes, and what they know of their key's hash.
//!
//! ```text
//! entry: 63          16 15      11 10       0
//!        | link 48     | home 5   | tag + 1  |        0: free
//! hash:  | table | home | tag 10 | rest |             from the top; level = bits of table and home
//! tag:   | bits that are known, most significant first | 1 | 0 ... |
//! ```
//!
//! Of its home an entry keeps the last five bits. Where it stands says the others: no two homes that
//! may have entries in one line agree in them. So the lower half of an entry is a run of bits of its
//! hash, and the same wherever it stands.
//!
//! A tag ends with a sentinel bit, so that an entry says itself how many bits of its hash it still
//! knows: 10 when it is written, one less after each doubling of its table, which spends the first
//! one on the choice of the new home. Entries that are written later have all ten again, whatever
//! the depth (uDepot's tags are bits that the directory takes away for good, §4.2; the sentinel is
//! the one of `InfiniFilter`). An entry without a bit left cannot say where it belongs after the
//! next doubling: it goes to the overflow with what it knows. At most one entry in 1024 is that old.

use crate::link::{LINK_BITS, Link};

/// Homes that an entry tells apart, and that may have entries in one line.
pub(crate) const WINDOW: usize = 32;
/// A slot without an entry.
pub(crate) const FREE: u64 = 0;
const TAG_BITS: u32 = 10;
/// Tag and sentinel.
const FIELD_BITS: u32 = TAG_BITS + 1;
const WITHIN_BITS: u32 = 5;
const LINK_SHIFT: u32 = FIELD_BITS + WITHIN_BITS;
const _: () = assert!(LINK_SHIFT + LINK_BITS == 64 && LINK_SHIFT == u16::BITS);
const _: () = assert!(1 << WITHIN_BITS == WINDOW);

/// Known bits of a hash beyond the level of its table, with the sentinel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl Tag {
    /// What is known of the hash of an entry with this tag at a home.
    pub(crate) fn known(self, position: u64, level: u32) -> Known {
        let bits = TAG_BITS - self.0.trailing_zeros();
        let tag = self.0 >> (FIELD_BITS - bits);
        Known { hash: (position << bits | tag) << (64 - level - bits), bits: level + bits }
    }

    /// The tag of an entry; `None` for a word that is none.
    pub(crate) fn of_entry(entry: u64) -> Option<Tag> {
        let tag = entry & low(FIELD_BITS);
        (tag != 0).then_some(Tag(tag))
    }
}

/// What the entries of a hash have in common, if they know ten bits beyond the level of their table,
/// which is [`WITHIN_BITS`] at least; see [`matches`].
#[inline]
pub(crate) fn pattern(hash: u64, level: u32) -> u16 {
    low_half(hash.wrapping_shl(level.wrapping_sub(WITHIN_BITS)) >> LINK_BITS) | 1
}

/// Whether an entry may belong to the key of a pattern: all bits above the entry's sentinel agree. A
/// free slot has no lowest bit, and so never does.
#[inline]
pub(crate) fn matches(entry: u64, pattern: u16) -> bool {
    let entry = low_half(entry);
    (entry ^ pattern) >> 1 < entry & entry.wrapping_neg()
}

#[inline]
fn low_half(entry: u64) -> u16 {
    u16::try_from(entry & low(LINK_SHIFT)).unwrap_or(0)
}

/// The word of an entry, with what is known of its hash (from [`pattern`] or [`Known::field`]).
#[inline]
pub(crate) fn entry_of(link: Link, field: u16) -> u64 {
    link.to_bits() << LINK_SHIFT | u64::from(field)
}

/// Spends the first bit of an entry's tag on the choice of its home in a table with twice the homes:
/// gives that bit and the entry. `None` if there is none left.
#[inline]
pub(crate) fn spend(entry: u64) -> Option<(usize, u64)> {
    let field = low_half(entry);
    let first = usize::from(field >> (FIELD_BITS - 1) & 1);
    // The run of bits moves on by one.
    let spent = entry & !low(LINK_SHIFT) | u64::from(field << 1);
    (spent & low(FIELD_BITS) != 0).then_some((first, spent))
}

#[inline]
pub(crate) fn link_of(entry: u64) -> Link {
    Link::in_entry(entry >> LINK_SHIFT)
}

/// The last bits of the number of an entry's home.
#[inline]
pub(crate) fn within_of(entry: u64) -> usize {
    usize::try_from(entry >> FIELD_BITS & low(WITHIN_BITS)).unwrap_or(0)
}

/// The same entry with the last bits of this number.
#[inline]
pub(crate) fn with_within(entry: u64, home: usize) -> u64 {
    entry & !(low(WITHIN_BITS) << FIELD_BITS) | (home as u64 & low(WITHIN_BITS)) << FIELD_BITS
}

const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// The first bits of a hash; the others are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Known {
    pub(crate) hash: u64,
    /// 1 to 64.
    pub(crate) bits: u32,
}

impl Known {
    /// A whole hash.
    pub(crate) fn whole(hash: u64) -> Known {
        Known { hash, bits: 64 }
    }

    /// The first `bits` of a hash, of which there must be some.
    pub(crate) fn first(hash: u64, bits: u32) -> Known {
        Known { hash: hash >> (64 - bits) << (64 - bits), bits }
    }

    /// What an entry in a table of this level says of the hash; `None` if that would not even be where
    /// it belongs.
    #[inline]
    pub(crate) fn field(self, level: u32) -> Option<u16> {
        let bits = self.bits.checked_sub(level)?.min(TAG_BITS);
        let sentinel = 1u16 << (TAG_BITS - bits);
        Some(pattern(self.hash, level) & !(2 * sentinel - 1) | sentinel)
    }

    /// The greatest hash that begins so.
    pub(crate) fn last(self) -> u64 {
        self.hash | u64::MAX.checked_shr(self.bits).unwrap_or(0)
    }
}

/// What a lookup found: links (or words) that may belong to the key, rarely more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates<T = Link> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Default for Candidates<T> {
    #[inline]
    fn default() -> Self {
        Candidates { first: None, rest: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Candidates<T> {
    #[inline]
    pub(crate) fn push(&mut self, link: T) {
        match self.first {
            None => self.first = Some(link),
            Some(first) => self.push_next(first, link),
        }
    }

    #[cold]
    fn push_next(&mut self, first: T, link: T) {
        // An entry that moved during the lookup may be seen twice.
        if first != link && !self.rest.contains(&link) {
            self.rest.push(link);
        }
    }

    /// The links.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.first.into_iter().chain(self.rest.iter().copied())
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

#[cfg(all(test, not(any(loom, feature = "shuttle"))))]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    fn small(rng: &mut Rng, bound: u64) -> u32 {
        u32::try_from(rng.below(bound)).unwrap_or(0)
    }

    #[test]
    fn a_tag_matches_on_the_bits_it_knows_and_on_no_others() {
        let mut rng = Rng::from_seed(1);
        for _ in 0..20_000 {
            let (hash, other, level) = (rng.next_u64(), rng.next_u64(), 6 + small(&mut rng, 36));
            let bits = level + small(&mut rng, 11);
            let home = usize::try_from(hash >> (64 - level)).unwrap();
            let field = Known::first(hash, bits).field(level).unwrap();
            let entry = entry_of(Link::record(5, 5).unwrap(), field);
            assert_eq!(within_of(entry), home % WINDOW);
            assert_eq!(within_of(with_within(entry, home + 1)), (home + 1) % WINDOW);
            assert!(matches(entry, pattern(hash, level)));
            assert!(!matches(entry, pattern(hash ^ 1 << (64 - level), level)), "another home");
            assert!(!matches(entry, pattern(hash ^ 16 << (64 - level), level)), "another home");
            let same_home = hash >> (64 - level) << (64 - level) | other >> level;
            let agrees = (hash ^ same_home) >> (64 - bits) == 0;
            assert_eq!(matches(entry, pattern(same_home, level)), agrees);
            let tag = Tag::of_entry(entry).unwrap();
            assert_eq!(tag.known(hash >> (64 - level), level), Known::first(hash, bits));
            assert_eq!(link_of(entry), Link::record(5, 5).unwrap());
        }
        assert!(!matches(FREE, pattern(0, 6)));
    }

    #[test]
    fn spending_bits_follows_the_hash_until_none_is_left() {
        let mut rng = Rng::from_seed(2);
        for _ in 0..1000 {
            let hash = rng.next_u64();
            let link = Link::record(1 + (hash & 0xFFFF), 9).unwrap();
            let mut entry = entry_of(link, pattern(hash, 20));
            let (mut position, mut level) = (hash >> 44, 20);
            while let Some((bit, rest)) = spend(entry) {
                (entry, position, level) = (rest, position * 2 + bit as u64, level + 1);
                assert_eq!(position, hash >> (64 - level));
                assert_eq!(
                    Known::first(hash, 30).field(level).map(|f| entry_of(link, f)),
                    Some(entry)
                );
            }
            assert_eq!(level, 30);
            assert_eq!(
                Tag::of_entry(entry).unwrap().known(position, level),
                Known::first(hash, 30)
            );
            assert_eq!(Known::first(hash, 30).field(31), None);
        }
    }
}
