//! What finds no slot in its window though its segment has room: keys whose hashes collide.
//!
//! One ordered map in shards by the first bits of the hash. Homes know whether it may hold
//! entries of theirs, so nobody else looks here.
//!
//! # Concurrency
//! Each shard has a lock, always the last one to be taken. Who changes the entries of a hash holds
//! the lock of its home.

use crate::entry::Candidates;
use crate::locks::Mutex;
use crate::word::Word;
use esker_base::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

const SHARD_BITS: u32 = 4;

type Shard = Mutex<BTreeMap<u64, Vec<u64>>>;

/// The map.
#[derive(Debug)]
pub(super) struct Stash {
    shards: Box<[Shard]>,
    entries: AtomicU64,
}

impl Stash {
    pub(super) fn new() -> Stash {
        let shards = (0..1 << SHARD_BITS).map(|_| Mutex::default()).collect();
        Stash { shards, entries: AtomicU64::new(0) }
    }

    pub(super) fn len(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    fn number(hash: u64) -> usize {
        usize::try_from(hash >> (64 - SHARD_BITS)).unwrap_or(0)
    }

    fn shard(&self, hash: u64) -> Option<&Shard> {
        self.shards.get(Self::number(hash))
    }

    pub(super) fn insert(&self, hash: u64, word: u64) {
        if let Some(shard) = self.shard(hash) {
            shard.lock().entry(hash).or_default().push(word);
            self.entries.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn find(&self, hash: u64, found: &mut Candidates<Word>) {
        let Some(shard) = self.shard(hash) else { return };
        let shard = shard.lock();
        let words = shard.get(&hash).into_iter().flatten();
        words.filter_map(|word| Word::new(*word)).for_each(|word| found.push(word));
    }

    /// Puts `new` in the place of `old`, or takes `old` out with 0; false if it is not there.
    pub(super) fn change(&self, hash: u64, old: u64, new: u64) -> bool {
        let Some(shard) = self.shard(hash) else { return false };
        let mut shard = shard.lock();
        let Some(words) = shard.get_mut(&hash) else { return false };
        let Some(place) = words.iter().position(|word| *word == old) else { return false };
        words.swap_remove(place);
        if new != 0 {
            words.push(new);
            return true;
        }
        self.entries.fetch_sub(1, Ordering::Relaxed);
        if words.is_empty() {
            shard.remove(&hash);
        }
        true
    }

    /// The entries in a range of hashes.
    pub(super) fn within(&self, hashes: RangeInclusive<u64>) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        if self.len() == 0 {
            return found;
        }
        for number in Self::number(*hashes.start())..=Self::number(*hashes.end()) {
            let Some(shard) = self.shards.get(number) else { continue };
            for (hash, words) in shard.lock().range(hashes.clone()) {
                found.extend(words.iter().map(|word| (*hash, *word)));
            }
        }
        found
    }
}
