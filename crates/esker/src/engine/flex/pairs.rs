//! Pairs that were read one by one, in memory. An interval is worth its memory if several of its pairs are wanted; of
//! scattered keys each interval has one that is, and the pair alone takes a tenth.
//!
//! # Invariants
//! - C1: what is here is what the space has: who adds a pair read it from an interval that is still as it was then, under
//!   the lock of its leaf; what the committer brought to the space it replaces here before its table goes.
//!
//! # Concurrency
//! Shards, each with a short lock; CLOCK within a shard.

use esker_format::flex_db::{Content, Extra};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most shards, and the least budget of one, in bytes.
const SHARDS_MAX: u64 = 64;
const SHARD_BYTES_MIN: u64 = 16 << 10;
/// Memory of a pair beside key and value: its place, its share of the table, an allocation.
const OVERHEAD_BYTES: usize = 112;
/// A pair may take this share of a shard.
const SHARE_MAX: u64 = 16;

#[derive(Debug)]
struct Kept {
    hash: u64,
    version: u64,
    extra: Extra,
    key_size: usize,
    used: bool,
    /// Key and value.
    bytes: Box<[u8]>,
}

impl Kept {
    fn size(&self) -> u64 {
        (self.bytes.len() + OVERHEAD_BYTES) as u64
    }

    fn key_and_value(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at_checked(self.key_size).unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Shard {
    /// Where the pair of a hash is.
    places: HashMap<u64, usize>,
    kept: Vec<Kept>,
    hand: usize,
    bytes: u64,
}

impl Shard {
    fn remove(&mut self, place: usize) -> u64 {
        if place >= self.kept.len() {
            return 0;
        }
        let gone = self.kept.swap_remove(place);
        self.places.remove(&gone.hash);
        if let Some(moved) = self.kept.get(place) {
            self.places.insert(moved.hash, place);
        }
        self.bytes -= gone.size();
        gone.size()
    }

    fn place_of(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let place = *self.places.get(&hash)?;
        let kept = self.kept.get(place)?;
        (kept.key_and_value().0 == key).then_some(place)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pairs {
    shards: Box<[Mutex<Shard>]>,
    /// Of a shard.
    budget_bytes: u64,
    bytes: AtomicU64,
}

impl Pairs {
    /// Pairs of up to so many bytes.
    pub(super) fn new(budget_bytes: u64) -> Self {
        let count = (budget_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let count = 1 << count.checked_ilog2().unwrap_or(0);
        let shards = (0..count).map(|_| Mutex::default()).collect();
        Pairs { shards, budget_bytes: budget_bytes / count, bytes: AtomicU64::new(0) }
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        self.shards.get(usize::try_from(hash >> 32).unwrap_or(0) & (self.shards.len() - 1))
    }

    /// Memory that they take, in bytes.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What `look` makes of the pair of a key, if it is here.
    pub(super) fn get<T>(
        &self,
        key: &[u8],
        hash: u64,
        look: impl FnOnce(u64, Content<'_>) -> T,
    ) -> Option<T> {
        let mut shard = self.shard(hash)?.lock();
        let place = shard.place_of(hash, key)?;
        let kept = shard.kept.get_mut(place)?;
        kept.used = true;
        Some(look(kept.version, Content::Put(kept.extra, kept.key_and_value().1)))
    }

    /// Keeps a pair, if it is small: others go that nobody used.
    pub(super) fn put(&self, key: &[u8], hash: u64, version: u64, extra: Extra, value: &[u8]) {
        let size = (key.len() + value.len() + OVERHEAD_BYTES) as u64;
        let Some(shard) = self.shard(hash).filter(|_| size * SHARE_MAX <= self.budget_bytes) else {
            return;
        };
        let mut shard = shard.lock();
        let mut less = 0;
        if let Some(place) = shard.places.get(&hash).copied() {
            less += shard.remove(place);
        }
        while shard.bytes + size > self.budget_bytes && !shard.kept.is_empty() {
            let hand = shard.hand % shard.kept.len();
            match shard.kept.get_mut(hand) {
                Some(kept) if kept.used => {
                    kept.used = false;
                    shard.hand = hand + 1;
                }
                _ => less += shard.remove(hand),
            }
        }
        let bytes = [key, value].concat().into_boxed_slice();
        let place = shard.kept.len();
        let key_size = key.len();
        shard.kept.push(Kept { hash, version, extra, key_size, used: false, bytes });
        shard.places.insert(hash, place);
        shard.bytes += size;
        drop(shard);
        self.bytes.fetch_add(size, Ordering::Relaxed);
        self.bytes.fetch_sub(less, Ordering::Relaxed);
    }

    /// A key has something else now: what is here of it follows.
    pub(super) fn replace(&self, key: &[u8], hash: u64, version: u64, content: Content<'_>) {
        let Some(shard) = self.shard(hash) else { return };
        let mut locked = shard.lock();
        let Some(place) = locked.place_of(hash, key) else { return };
        let less = locked.remove(place);
        drop(locked);
        self.bytes.fetch_sub(less, Ordering::Relaxed);
        if let Content::Put(extra, value) = content {
            self.put(key, hash, version, extra, value);
        }
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let gone = std::mem::take(&mut *shard.lock());
            self.bytes.fetch_sub(gone.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    #[test]
    fn what_is_here_is_what_was_put_last_and_takes_no_more_than_it_may() {
        let pairs = Pairs::new(64 * 4096);
        let mut rng = Rng::from_seed(5);
        let mut model: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        let mut met = 0;
        for version in 0..60_000 {
            let number = rng.below(3000);
            // Some keys share their hash.
            let (key, hash) =
                (number.to_be_bytes(), (number / 2).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let value = vec![u8::try_from(number % 250).unwrap(); rng.index(120)];
            match rng.below(8) {
                0..3 => {
                    pairs.put(&key, hash, version, Extra::default(), &value);
                    model.insert(number, (version, value));
                }
                3 => {
                    pairs.replace(&key, hash, version, Content::Put(Extra::default(), &value));
                    model.insert(number, (version, value));
                }
                4 => {
                    pairs.replace(&key, hash, version, Content::Delete);
                    model.remove(&number);
                }
                5 if version % 10_000 == 0 => {
                    pairs.clear();
                    assert_eq!(pairs.bytes(), 0);
                }
                _ => {
                    let found = pairs.get(&key, hash, |version, content| match content {
                        Content::Put(_, value) => (version, value.to_vec()),
                        _ => unreachable!(),
                    });
                    if let Some(found) = found {
                        assert_eq!(Some(&found), model.get(&number));
                        met += 1;
                    }
                }
            }
            assert!(pairs.bytes() <= 64 * 4096);
        }
        assert!(met > 1000, "only {met}");
    }
}
