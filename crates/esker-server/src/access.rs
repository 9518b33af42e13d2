//! When items were last accessed: a sketch of bounded size in memory, for `h` and `l` of `mg`.
//!
//! The store keeps 8 bytes an item in memory, none of them for this. The sketch has a fixed number
//! of slots, each for the last of the keys that fall on it; of a key whose slot another one took,
//! and of all keys after a start, it is only known that nothing is known.
//!
//! # Concurrency
//! Any core notes and asks. A slot is one word; the last writer wins.

use esker_base::hash::KeyHasher;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots; a power of two. Half a mebibyte.
const SLOTS: usize = 1 << 16;
/// Seconds fit in so many bits: more than a century.
const TIME_BITS: u32 = 32;
/// Behind the time: whether the item was read since it was stored.
const FETCHED: u64 = 1 << TIME_BITS;
/// What is left of a word says which key it is of.
const TAG_SHIFT: u32 = TIME_BITS + 1;

/// The sketch.
pub(crate) struct Access {
    hasher: KeyHasher,
    slots: Box<[AtomicU64]>,
}

/// What is known of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Whether it was read since it was stored.
    pub(crate) fetched: bool,
    /// Seconds since the last access.
    pub(crate) age_seconds: u64,
}

impl Access {
    /// An empty sketch; `seed` keeps outsiders from aiming at slots.
    pub(crate) fn new(seed: [u8; 16]) -> Access {
        let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Access { hasher: KeyHasher::new(seed), slots }
    }

    /// A hash of `key` that outsiders cannot foresee.
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    fn slot(&self, key: &[u8]) -> Option<(&AtomicU64, u64)> {
        let hash = self.hasher.hash(key);
        let index = usize::try_from(hash % SLOTS as u64).unwrap_or(0);
        // The high bits: the low ones chose the slot. Never zero, which is an empty slot.
        let tag = hash >> TAG_SHIFT | 1;
        self.slots.get(index).map(|slot| (slot, tag << TAG_SHIFT))
    }

    /// Notes that `key` was read, or stored anew, `now` seconds after the start.
    pub(crate) fn note(&self, key: &[u8], now: u64, fetched: bool) {
        let Some((slot, tag)) = self.slot(key) else { return };
        let fetched = if fetched { FETCHED } else { 0 };
        let word = tag | fetched | (now & (FETCHED - 1));
        // Most reads of a frequent key change nothing, and leave its cache line to all cores.
        if slot.load(Ordering::Relaxed) != word {
            slot.store(word, Ordering::Relaxed);
        }
    }

    /// What is known of `key`.
    pub(crate) fn seen(&self, key: &[u8], now: u64) -> Option<Seen> {
        let (slot, tag) = self.slot(key)?;
        let word = slot.load(Ordering::Relaxed);
        let ours = word >> TAG_SHIFT == tag >> TAG_SHIFT;
        ours.then(|| Seen {
            fetched: word & FETCHED != 0,
            age_seconds: now.saturating_sub(word & (FETCHED - 1)),
        })
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Access")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_access_of_a_key_is_known_until_another_takes_its_slot() {
        let access = Access::new([7; 16]);
        assert_eq!(access.seen(b"k", 5), None);
        access.note(b"k", 5, false);
        assert_eq!(access.seen(b"k", 9), Some(Seen { fetched: false, age_seconds: 4 }));
        access.note(b"k", 10, true);
        assert_eq!(access.seen(b"k", 10), Some(Seen { fetched: true, age_seconds: 0 }));
        for other in 0..1_000_000_u32 {
            access.note(&other.to_be_bytes(), 11, true);
        }
        assert_eq!(access.seen(b"k", 11), None);
    }
}
