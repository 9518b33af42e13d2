//! Pairs that were read one by one, in memory. An interval is worth its memory if several of its pairs are wanted; of
//! scattered keys each interval has one that is, and the pair alone takes a tenth.
//!
//! # Invariants
//! - C1: what is here is what the space has: who adds a pair read it from an interval that is still as it was then, under
//!   the lock of its leaf; what the committer brought to the space it replaces here before its table goes. Pairs that have expired
//!   may be here when the space has them no more: they count for nobody.
//!
//! # Concurrency
//! Shards, each with a short lock. The hand of a clock goes through all of them ([`Pairs::sweep`]).

use esker_format::flex_db::run::take_pair;
use esker_format::flex_db::{Common, Content, Extra, Key, Pair, RunWriter};
use hashbrown::HashTable;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shards: a power of two.
const SHARDS: usize = 64;
/// Memory of a pair beside its bytes: its place, its share of the table, an allocation.
const OVERHEAD_BYTES: usize = 56;
/// A pair may take this share of the budget.
const SHARE_MAX: u64 = 32;
/// Places that the hand goes past before it goes to the next shard.
const PLACES_OF_A_SHARD: u64 = 8;
/// Places of which so many may be free, whatever there is in others.
const FREE_MIN: usize = 64;
/// Rounds of the hand that a pair stays without being asked for, at most: as often as it was asked for before.
const USES_MAX: u8 = 3;

/// A pair, as in a run.
#[derive(Debug)]
struct Kept {
    bytes: Box<[u8]>,
    hash: u32,
    uses: u8,
}

impl Kept {
    fn size(&self) -> u64 {
        (self.bytes.len() + OVERHEAD_BYTES) as u64
    }

    fn pair(&self) -> Option<Pair<'_>> {
        take_pair(&mut &*self.bytes, Common::default())
    }
}

/// What is kept of a hash.
fn mark_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The hash for a table of marks.
fn spread(mark: u32) -> u64 {
    u64::from(mark).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[derive(Debug, Default)]
struct Shard {
    /// Numbers of places.
    table: HashTable<u32>,
    /// A new pair takes the place of one that went, behind the hand: so it has a whole round.
    places: Vec<Option<Kept>>,
    free: Vec<u32>,
    hand: usize,
    encoder: RunWriter,
}

impl Shard {
    fn at(&self, place: u32) -> Option<&Kept> {
        self.places.get(place as usize)?.as_ref()
    }

    fn place_of(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let mark = mark_of(hash);
        let is_it = |place: &u32| {
            self.at(*place).is_some_and(|kept| {
                kept.hash == mark && kept.pair().is_some_and(|pair| pair.key == *key)
            })
        };
        self.table.find(spread(mark), is_it).copied()
    }

    /// Bytes that are free now.
    fn remove(&mut self, place: u32) -> u64 {
        let Some(gone) = self.places.get_mut(place as usize).and_then(Option::take) else {
            return 0;
        };
        if let Ok(found) = self.table.find_entry(spread(gone.hash), |other| *other == place) {
            let _ = found.remove();
        }
        self.free.push(place);
        gone.size()
    }

    /// Closes up the places, if half of them are free: others may have their memory, which is counted for those that are taken.
    fn close_up(&mut self) {
        if self.free.len() < FREE_MIN || self.free.len() * 2 < self.places.len() {
            return;
        }
        let before = self.places.get(..self.hand).unwrap_or_default();
        self.hand = before.iter().flatten().count();
        let mut places = Vec::with_capacity(self.places.len() - self.free.len());
        places.extend(std::mem::take(&mut self.places).into_iter().filter(Option::is_some));
        self.places = places;
        self.free = Vec::new();
        self.table = HashTable::with_capacity(self.places.len());
        let Shard { table, places, .. } = self;
        let mark_at = |place: &u32| {
            let kept = places.get(*place as usize).and_then(Option::as_ref);
            kept.map_or(0, |kept| spread(kept.hash))
        };
        for (place, kept) in (0..).zip(places.iter().flatten()) {
            let _ = table.insert_unique(spread(kept.hash), place, mark_at);
        }
        if self.hand >= self.places.len() {
            self.hand = 0;
        }
    }

    fn insert(&mut self, hash: u64, pair: &Pair<'_>, uses: u8) -> u64 {
        self.encoder.restart(0);
        self.encoder.push(pair);
        let kept = Kept { bytes: self.encoder.pairs().bytes().into(), hash: mark_of(hash), uses };
        let size = kept.size();
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(free) = self.places.get_mut(place as usize) else { return 0 };
        *free = Some(kept);
        let Shard { table, places, .. } = self;
        let spread_of = |place: &u32| {
            let kept = places.get(*place as usize).and_then(Option::as_ref);
            kept.map_or(0, |kept| spread(kept.hash))
        };
        let _ = table.insert_unique(spread(mark_of(hash)), place, spread_of);
        size
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pairs {
    shards: Box<[Mutex<Shard>]>,
    /// Most bytes of a pair.
    size_max: u64,
    bytes: AtomicU64,
    count: AtomicU64,
}

/// Where the hand is.
#[derive(Debug, Default)]
pub(super) struct Hand(usize);

impl Pairs {
    /// Pairs that somebody keeps within so many bytes.
    pub(super) fn new(budget_bytes: u64) -> Self {
        Pairs {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            size_max: budget_bytes / SHARE_MAX,
            bytes: AtomicU64::new(0),
            count: AtomicU64::new(0),
        }
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        self.shards.get(usize::try_from(hash >> 32).unwrap_or(0) % SHARDS)
    }

    /// Memory that they take, in bytes.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
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
        let kept = shard.places.get_mut(place as usize)?.as_mut()?;
        kept.uses = (kept.uses + 1).min(USES_MAX);
        let pair = kept.pair()?;
        Some(look(pair.version, pair.content))
    }

    /// Memory that the pair of a key takes, in bytes; 0 if it is not here.
    pub(super) fn bytes_of(&self, key: &[u8], hash: u64) -> u64 {
        let Some(shard) = self.shard(hash) else { return 0 };
        let shard = shard.lock();
        let kept = shard.place_of(hash, key).and_then(|place| shard.at(place));
        kept.map_or(0, Kept::size)
    }

    /// Keeps a pair, if it is small.
    pub(super) fn put(&self, key: &[u8], hash: u64, version: u64, extra: Extra, value: &[u8]) {
        let pair = Pair { key: Key::from(key), version, content: Content::Put(extra, value) };
        self.set(hash, &pair, None);
    }

    /// A key has something else now: what is here of it follows.
    pub(super) fn replace(&self, key: &[u8], hash: u64, version: u64, content: Content<'_>) {
        let Some(shard) = self.shard(hash) else { return };
        let uses = {
            let shard = shard.lock();
            let kept = shard.place_of(hash, key).and_then(|place| shard.at(place));
            kept.map(|kept| kept.uses)
        };
        if uses.is_some() {
            self.set(hash, &Pair { key: Key::from(key), version, content }, uses);
        }
    }

    /// Sets or removes the pair of a key.
    fn set(&self, hash: u64, pair: &Pair<'_>, uses: Option<u8>) {
        let Some(shard) = self.shard(hash) else { return };
        let (mut less, mut more) = (0, 0);
        let mut shard = shard.lock();
        if let Some(place) = shard.place_of(hash, pair.key.rest()) {
            less = shard.remove(place);
        }
        if let Content::Put(_, value) = pair.content
            && (pair.key.len() + value.len() + OVERHEAD_BYTES) as u64 <= self.size_max
        {
            more = shard.insert(hash, pair, uses.unwrap_or(0));
        }
        shard.close_up();
        self.note(more, less, u64::from(more > 0), u64::from(less > 0));
    }

    /// Counts, under the lock of the shard.
    fn note(&self, more: u64, less: u64, came: u64, went: u64) {
        self.bytes.fetch_add(more, Ordering::Relaxed);
        self.bytes.fetch_sub(less, Ordering::Relaxed);
        self.count.fetch_add(came, Ordering::Relaxed);
        self.count.fetch_sub(went, Ordering::Relaxed);
    }

    /// Goes past so many pairs: those go that nobody asked for since the hand was there. Some of each shard after the other,
    /// so that hands of all shards go around in the same time.
    pub(super) fn sweep(&self, hand: &mut Hand, pairs: u64) {
        let mut left = pairs;
        let mut empty = 0;
        while left > 0 && empty < SHARDS {
            hand.0 = (hand.0 + 1) % SHARDS;
            let Some(shard) = self.shards.get(hand.0) else { return };
            let mut shard = shard.lock();
            empty = if shard.places.is_empty() { empty + 1 } else { 0 };
            let (mut less, mut went) = (0, 0);
            for _ in 0..PLACES_OF_A_SHARD.min(left) {
                let place = shard.hand;
                shard.hand = if place + 1 < shard.places.len() { place + 1 } else { 0 };
                match shard.places.get_mut(place).and_then(Option::as_mut) {
                    Some(kept) if kept.uses > 0 => kept.uses -= 1,
                    Some(_) => {
                        less += shard.remove(u32::try_from(place).unwrap_or(u32::MAX));
                        went += 1;
                    }
                    None => {}
                }
            }
            left = left.saturating_sub(PLACES_OF_A_SHARD);
            shard.close_up();
            self.note(0, less, 0, went);
        }
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let gone = std::mem::take(&mut *shard);
            let kept = gone.places.iter().flatten();
            let (bytes, count) =
                kept.fold((0, 0), |(bytes, count), kept| (bytes + kept.size(), count + 1));
            self.note(0, bytes, 0, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;
    use std::collections::HashMap;

    fn find(pairs: &Pairs, key: &[u8], hash: u64) -> Option<(u64, Vec<u8>)> {
        pairs.get(key, hash, |version, content| match content {
            Content::Put(_, value) => (version, value.to_vec()),
            _ => unreachable!(),
        })
    }

    #[test]
    fn what_is_here_is_what_was_put_last() {
        let pairs = Pairs::new(1 << 20);
        let mut hand = Hand::default();
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
                    assert_eq!(pairs.bytes_of(&key, hash), 0);
                }
                5 if version % 10_000 == 0 => {
                    pairs.clear();
                    assert_eq!((pairs.bytes(), pairs.count()), (0, 0));
                }
                _ => {
                    if let Some(found) = find(&pairs, &key, hash) {
                        assert_eq!(Some(&found), model.get(&number));
                        met += 1;
                    }
                }
            }
            while pairs.bytes() > 200_000 {
                pairs.sweep(&mut hand, 10);
            }
        }
        assert!(met > 1000, "only {met}");
        let all: u64 = (0..3000_u64)
            .map(|number| {
                let hash = (number / 2).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                pairs.bytes_of(&number.to_be_bytes(), hash)
            })
            .sum();
        assert_eq!(all, pairs.bytes());
        while pairs.count() > 0 {
            pairs.sweep(&mut hand, 1);
        }
        assert_eq!(pairs.bytes(), 0);
    }

    #[test]
    fn places_of_pairs_that_went_take_no_memory() {
        const MANY: u64 = 60_000;
        let pairs = Pairs::new(1 << 20);
        let mut hand = Hand::default();
        let hash = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let put = |number: u64, value: &[u8]| {
            let key = number.to_be_bytes();
            pairs.put(&key, hash(number), number, Extra::default(), value);
        };
        let places = || -> usize {
            let shards = pairs.shards.iter().map(|shard| shard.lock());
            shards.map(|shard| shard.places.capacity() + shard.free.capacity()).sum()
        };
        (0..MANY).for_each(|number| put(number, b"value"));
        assert!(places() >= 60_000);
        // Few large ones take the place of many small ones.
        for number in MANY..MANY + 200 {
            put(number, &[7; 3000]);
            while pairs.bytes() > 600_000 {
                pairs.sweep(&mut hand, 10);
            }
        }
        let most = 4 * usize::try_from(pairs.count()).unwrap() + 6 * FREE_MIN * SHARDS;
        assert!(places() <= most, "{} places for {} pairs", places(), pairs.count());
        let found = (0..MANY + 200)
            .filter(|number| find(&pairs, &number.to_be_bytes(), hash(*number)).is_some());
        assert_eq!(found.count() as u64, pairs.count());
        for number in 0..MANY + 200 {
            pairs.replace(&number.to_be_bytes(), hash(number), MANY * 2, Content::Delete);
        }
        assert_eq!((pairs.bytes(), pairs.count()), (0, 0));
        assert!(places() <= 6 * FREE_MIN * SHARDS, "{} places for none", places());
    }

    #[test]
    fn who_is_asked_for_stays_and_who_is_new_has_a_round() {
        let pairs = Pairs::new(1 << 20);
        let mut hand = Hand::default();
        let hash = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let put = |number: u64| {
            pairs.put(&number.to_be_bytes(), hash(number), 1, Extra::default(), b"value");
        };
        let has = |number: u64| pairs.bytes_of(&number.to_be_bytes(), hash(number)) > 0;
        (0..1000).for_each(put);
        let mut stayed = 0;
        for number in 0..10_000 {
            for asked in 0..100 {
                let found = find(&pairs, &u64::to_be_bytes(asked), hash(asked));
                assert!(found.is_some(), "{asked} at {number}");
            }
            put(1000 + number);
            while pairs.count() > 1000 {
                pairs.sweep(&mut hand, 1);
            }
            // Others took the places of those that nobody asked for.
            stayed += u64::from(number >= 500 && has(1000 + number - 500));
        }
        assert!(stayed > 8000, "{stayed} of 9500 were there half a round later");
    }
}
