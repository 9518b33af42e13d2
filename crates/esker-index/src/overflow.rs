//! What finds no slot in a table: entries of crowded neighbourhoods, and entries whose tag is spent.
//!
//! One ordered map for the whole directory, in shards by the first bits of the hash. An entry stands
//! under what is known of its hash: all 64 bits if it came straight from an insert, fewer if it
//! was in a table before. Tables that grow leave it alone: they take in what fits them again, and
//! keep for each few homes a bit that says whether a lookup must look here.
//!
//! # Concurrency
//! Each shard has a lock, always the last one to be taken. Who changes the entry of a key holds the
//! lock of the key's region.

use crate::entry::{Candidates, Known};
use crate::link::Link;
use crate::locks::Mutex;
use esker_base::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;

/// Bits of the hash that choose a shard: no more than any table knows.
const SHARD_BITS: u32 = 4;

/// The map.
#[derive(Debug)]
pub(crate) struct Overflow {
    shards: Box<[Mutex<Shard>]>,
    entries: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    map: BTreeMap<Known, Vec<Link>>,
    /// For each number of known bits that ever occurred, minus one, a bit.
    lengths: u64,
}

impl Shard {
    /// The places where a hash may stand, the longest first.
    fn places(&self, hash: u64) -> impl Iterator<Item = Known> + use<> {
        let mut left = self.lengths;
        std::iter::from_fn(move || {
            let bits = 64 - left.leading_zeros();
            left &= !(1u64.checked_shl(bits.checked_sub(1)?)?);
            Some(Known::first(hash, bits))
        })
    }

    fn push(&mut self, known: Known, link: Link) {
        self.map.entry(known).or_default().push(link);
        self.lengths |= 1 << (known.bits - 1);
    }

    fn take(&mut self, known: Known, link: Link) -> bool {
        let Some(links) = self.map.get_mut(&known) else { return false };
        let Some(place) = links.iter().position(|held| *held == link) else { return false };
        links.swap_remove(place);
        if links.is_empty() {
            self.map.remove(&known);
        }
        true
    }
}

impl Overflow {
    pub(crate) fn new() -> Self {
        let shards = (0..1 << SHARD_BITS).map(|_| Mutex::default()).collect();
        Overflow { shards, entries: AtomicU64::new(0) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    fn number(hash: u64) -> usize {
        usize::try_from(hash >> (64 - SHARD_BITS)).unwrap_or(0)
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        self.shards.get(Self::number(hash))
    }

    pub(crate) fn insert(&self, known: Known, link: Link) {
        if let Some(shard) = self.shard(known.hash) {
            let mut shard = shard.lock();
            shard.push(known, link);
            // Before anybody can take it out again.
            self.entries.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn find(&self, hash: u64, found: &mut Candidates) {
        let Some(shard) = self.shard(hash) else { return };
        let shard = shard.lock();
        for place in shard.places(hash) {
            shard.map.get(&place).into_iter().flatten().for_each(|link| found.push(*link));
        }
    }

    /// Puts `new` in the place of `old`, or takes `old` out. An entry that is replaced is known by
    /// its whole hash from then on, if it knew at least `level` bits: a walk would meet those of
    /// fewer bits twice if they changed their place.
    pub(crate) fn change(&self, hash: u64, old: Link, new: Option<Link>, level: u32) -> bool {
        let Some(shard) = self.shard(hash) else { return false };
        let mut shard = shard.lock();
        let Some(place) = shard.places(hash).find(|place| shard.take(*place, old)) else {
            return false;
        };
        match new {
            Some(new) if place.bits >= level => shard.push(Known::whole(hash), new),
            Some(new) => shard.push(place, new),
            None => {
                self.entries.fetch_sub(1, Ordering::Relaxed);
            }
        }
        true
    }

    pub(crate) fn remove(&self, known: Known, link: Link) -> bool {
        let taken = self.shard(known.hash).is_some_and(|shard| shard.lock().take(known, link));
        if taken {
            self.entries.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }

    /// The entries that stand in this range of hashes.
    pub(crate) fn within(&self, first: u64, last: u64) -> Vec<(Known, Link)> {
        let mut found = Vec::new();
        if self.len() == 0 {
            return found;
        }
        let (from, to) = (Known { hash: first, bits: 0 }, Known { hash: last, bits: 64 });
        for number in Self::number(first)..=Self::number(last) {
            let Some(shard) = self.shards.get(number) else { continue };
            for (known, links) in shard.lock().map.range(from..=to) {
                found.extend(links.iter().map(|link| (*known, *link)));
            }
        }
        found
    }

    /// Whether an entry that stands before `first` may belong to a hash that begins as `first` does.
    pub(crate) fn reaches(&self, first: u64) -> bool {
        self.shard(first).is_some_and(|shard| {
            let shard = shard.lock();
            shard.places(first).any(|place| place.hash != first && shard.map.contains_key(&place))
        })
    }
}
