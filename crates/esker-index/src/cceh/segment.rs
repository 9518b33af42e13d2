//! A segment: 256 homes, and the entries of the hashes that begin with its prefix.
//!
//! The lowest 8 bits of a hash choose its home; its entry stands there or in one of the 7 buckets
//! after it (linear probing), as near as there is room when it comes.
//!
//! # Concurrency
//! Who changes entries of a home holds the home's lock, and the lock of the bucket where they stand.
//! Locks are taken in ascending order; a split takes all of them.

use super::bucket::{Bucket, Entry, Header, Lock, SLOTS, SMALL, WINDOW};
use super::stash::Stash;
use crate::entry::Candidates;
use crate::word::Word;
use esker_base::sync::atomic::{AtomicU64, Ordering};
use std::ops::ControlFlow;

/// Homes of a segment: what 8 bits can say, or few.
pub(super) const HOMES: usize = if SMALL { 4 } else { 256 };
const BUCKETS: usize = HOMES + WINDOW - 1;
/// Slots that a segment is counted with: those of its homes.
pub(super) const ROOM: usize = HOMES * SLOTS;

/// The segment.
#[derive(Debug)]
pub(super) struct Segment {
    buckets: [Bucket; BUCKETS],
    /// Entries that go to the stash before anybody asks again whether the segment should split.
    patience: Patience,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Patience(AtomicU64);

impl Default for Segment {
    fn default() -> Segment {
        let buckets = std::array::from_fn(|_| Bucket::default());
        Segment { buckets, patience: Patience::default() }
    }
}

/// What a search for a hash came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Searched {
    /// Whoever is given words has enough.
    Stopped,
    /// That was all.
    All,
    /// Something changed meanwhile: there may be more.
    Changed,
}

/// Gives the words of a hash in one bucket to `visit`.
#[inline]
fn give(
    bucket: &Bucket,
    header: Header,
    hash: u64,
    distance: usize,
    visit: &mut impl FnMut(Word) -> ControlFlow<()>,
) -> Searched {
    let mut found = Candidates::default();
    bucket.search(header, hash, distance, |_, word| {
        if let Some(word) = Word::new(word) {
            found.push(word);
        }
    });
    // B2.
    if !bucket.unchanged(header) {
        return Searched::Changed;
    }
    match found.iter().any(|word| visit(word).is_break()) {
        true => Searched::Stopped,
        false => Searched::All,
    }
}

/// Number of the home of a hash.
#[inline]
fn number(hash: u64) -> usize {
    usize::try_from(hash & 0xFF).unwrap_or(0) % HOMES
}

/// The bytes of a segment where the entries of a hash most likely are: offset of a line.
#[inline]
pub(super) fn likely_offset(hash: u64) -> usize {
    number(hash) * size_of::<Bucket>()
}

impl Segment {
    /// The home of a hash. `None` never happens.
    #[inline]
    pub(super) fn home(&self, hash: u64) -> Option<&Bucket> {
        self.buckets.get(number(hash))
    }

    /// The buckets after the home of a hash, with their distances from it.
    #[inline]
    fn after(&self, hash: u64, reach: usize) -> impl Iterator<Item = (usize, &Bucket)> {
        let first = number(hash) + 1;
        (1..).zip(self.buckets.get(first..first + reach).unwrap_or(&[]))
    }

    /// Gives the words that stand under this hash to `visit` until that breaks. Each stood there when it is
    /// given; all of them did at one moment if the result is `All`.
    #[inline]
    pub(super) fn search(
        &self,
        hash: u64,
        stash: &Stash,
        visit: &mut impl FnMut(Word) -> ControlFlow<()>,
    ) -> Searched {
        let Some(home) = self.home(hash) else { return Searched::All };
        let header = home.header();
        match give(home, header, hash, 0, visit) {
            Searched::All if header.is_wide() => self.search_wide(home, header, hash, stash, visit),
            searched => searched,
        }
    }

    /// As [`Segment::search`], for what stands away from the home.
    #[inline(never)]
    fn search_wide(
        &self,
        home: &Bucket,
        header: Header,
        hash: u64,
        stash: &Stash,
        visit: &mut impl FnMut(Word) -> ControlFlow<()>,
    ) -> Searched {
        let reach = header.reach();
        if let Some((_, next)) = self.after(hash, reach).next() {
            crate::prefetch::lines(
                std::ptr::from_ref(next).addr(),
                reach * size_of::<Bucket>() - 1,
            );
        }
        for (distance, bucket) in self.after(hash, reach) {
            match give(bucket, bucket.header(), hash, distance, visit) {
                Searched::All => {}
                searched => return searched,
            }
        }
        if header.stashed() {
            let mut found = Candidates::default();
            stash.find(hash, &mut found);
            if found.iter().any(|word| visit(word).is_break()) {
                return Searched::Stopped;
            }
        }
        // B3.
        if home.unchanged(header) { Searched::All } else { Searched::Changed }
    }

    /// Puts an entry into its window; false if that is full. The caller holds the home's lock;
    /// unless `alone`, other buckets are locked as they are needed.
    #[inline]
    pub(super) fn place(&self, hash: u64, word: u64, depth: u32, alone: bool) -> bool {
        let Some(home) = self.home(hash) else { return false };
        if let Some(slot) = home.free(hash, depth) {
            home.put(slot, hash, 0, word);
            home.touch();
            return true;
        }
        for (distance, bucket) in self.after(hash, WINDOW - 1) {
            let _lock = (!alone).then(|| bucket.lock());
            if let Some(slot) = bucket.free(hash, depth) {
                home.reach_to(distance);
                bucket.put(slot, hash, distance, word);
                home.touch();
                return true;
            }
        }
        false
    }

    /// Puts `new` in the place of `old`, or with 0 takes it out; false if it is not there. The caller
    /// holds the home's lock.
    #[inline]
    pub(super) fn change(
        &self,
        hash: u64,
        depth: u32,
        (old, new): (u64, u64),
        stash: &Stash,
    ) -> bool {
        let Some(home) = self.home(hash) else { return false };
        let header = home.header();
        let change = |bucket: &Bucket, distance| {
            let mut place = None;
            bucket.search(bucket.header(), hash, distance, |slot, word| {
                if word == old {
                    place = Some(slot);
                }
            });
            place.is_some_and(|slot| {
                bucket.set(slot, distance, new);
                true
            })
        };
        change(home, 0)
            || self.after(hash, header.reach()).any(|(distance, bucket)| {
                let lock = bucket.lock();
                let changed = change(bucket, distance);
                drop(lock);
                if changed && new == 0 && distance == header.reach() {
                    self.recede(home, hash, depth, distance);
                }
                changed
            })
            || header.stashed() && stash.change(hash, old, new)
    }

    /// Lets lookups of a home stop where its entries end, now that its farthest is gone: else all homes of a segment whose entries come and
    /// go would reach far in the end. The caller holds the home's lock, so that none of its entries comes, goes or moves.
    #[cold]
    fn recede(&self, home: &Bucket, hash: u64, depth: u32, reach: usize) {
        let is_of_home = |(distance, bucket): &(usize, &Bucket)| {
            bucket.own(hash, depth).any(|entry| entry.distance == *distance)
        };
        let reached = self.after(hash, reach).filter(is_of_home).map(|(distance, _)| distance);
        home.reach_only_to(reached.max().unwrap_or(0));
    }

    /// Puts an entry aside. The caller holds the home's lock.
    pub(super) fn put_aside(&self, hash: u64, word: u64, stash: &Stash) {
        if let Some(home) = self.home(hash) {
            home.mark_stashed();
            stash.insert(hash, word);
        }
    }

    /// Whether an entry that finds no room goes to the stash without further ado.
    pub(super) fn is_patient(&self) -> bool {
        let left = self.patience.0.load(Ordering::Relaxed);
        self.patience.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    pub(super) fn be_patient(&self, entries: u64) {
        self.patience.0.store(entries, Ordering::Relaxed);
    }

    /// Locks all buckets.
    pub(super) fn lock(&self) -> Vec<Lock<'_>> {
        self.buckets.iter().map(Bucket::lock).collect()
    }

    /// Number of entries that belong to the segment of this hash. The caller holds all locks.
    pub(super) fn count(&self, hash: u64, depth: u32) -> usize {
        self.buckets.iter().map(|bucket| bucket.own(hash, depth).count()).sum()
    }

    /// Copies the entries with a 1 after the segment's prefix to `fresh`, which nobody else has. The
    /// caller holds all locks.
    pub(super) fn copy_half(&self, hash: u64, depth: u32, fresh: &Segment) {
        for (number, bucket) in self.buckets.iter().enumerate() {
            for entry in bucket.own(hash, depth) {
                let hash = entry.hash(number - entry.distance);
                if hash >> (63 - depth) & 1 == 1 {
                    // There is room: these are half of the entries, and each finds at least what it had.
                    let placed = fresh.place(hash, entry.word, depth + 1, true);
                    debug_assert!(placed, "no room in a half");
                }
            }
        }
        for (home, fresh) in self.buckets.iter().zip(&fresh.buckets) {
            if home.header().stashed() {
                fresh.mark_stashed();
            }
        }
    }

    /// After the other half has gone: brings entries that stand away from their homes nearer, and
    /// corrects how far each home reaches. `hash` is one of this half, `depth` its new depth. The
    /// caller holds all locks.
    pub(super) fn settle(&self, hash: u64, depth: u32) {
        let mut reaches = [0; HOMES];
        for (number, bucket) in self.buckets.iter().enumerate() {
            for entry in bucket.own(hash, depth).filter(|entry| entry.distance > 0) {
                let home = number - entry.distance;
                let distance = self.draw_nearer(bucket, entry, home, depth);
                if let Some(reach) = reaches.get_mut(home) {
                    *reach = distance.max(*reach);
                }
            }
        }
        for (bucket, reach) in self.buckets.iter().zip(reaches) {
            if bucket.header().reach() != reach {
                bucket.reach_only_to(reach);
            }
        }
    }

    /// Moves an entry to the first bucket of its window with room, if that is nearer; gives its distance.
    fn draw_nearer(&self, from: &Bucket, entry: Entry, home: usize, depth: u32) -> usize {
        let hash = entry.hash(home);
        let nearer = self.buckets.get(home..home + entry.distance).unwrap_or(&[]);
        for (distance, bucket) in nearer.iter().enumerate() {
            if let Some(slot) = bucket.free(hash, depth) {
                bucket.put(slot, hash, distance, entry.word);
                if let Some(home) = self.buckets.get(home) {
                    home.touch();
                }
                from.set(entry.slot, entry.distance, 0);
                return distance;
            }
        }
        entry.distance
    }

    /// Hash and word of each entry that belongs to the segment of this hash. The caller holds all
    /// locks.
    pub(super) fn collect(&self, hash: u64, depth: u32) -> Vec<(u64, u64)> {
        let buckets = self.buckets.iter().enumerate();
        let own = buckets
            .flat_map(|(number, bucket)| bucket.own(hash, depth).map(move |entry| (number, entry)));
        own.map(|(number, entry)| (entry.hash(number - entry.distance), entry.word)).collect()
    }
}
