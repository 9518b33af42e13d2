//! Hopscotch table: the index of `depot` (uDepot §4.2).
//!
//! An array of 8-byte entries. A key whose hash points at slot `home` lies in one of the 32 slots
//! of its neighbourhood `home..home + 32`; a lookup reads just those. There is neither a bitmap nor
//! a list: an entry carries its distance from home and a tag, and a lookup compares both, so that
//! nearly no entry of another key is taken for a candidate (1 in 256 of those with the same home).
//!
//! ```text
//! entry: | grain address 40 | size hint 11 | tag 8 | distance from home 5 |     0: free
//! hash:  | tag 8 | ................................ | home: low bits |
//! ```
//!
//! # Invariants
//! - H1: an entry at slot `s` with distance `d` belongs to home `s - d`, and `d < 32`.
//! - H2: entries move only forwards, and are copied before they are cleared. A lookup reads its
//!   neighbourhood in ascending order, so an entry that moves is seen in its old place, its new one
//!   or both, never in neither.
//! - H3: what finds no slot lies in the overflow map: inserting never fails and never grows the
//!   table. Lookups look there only while it is not empty.
//!
//! # Concurrency
//! Lookups take no lock. Changes lock one or two adjacent regions of slots, in ascending order;
//! nothing suspends under them.
//!
//! Non-goals: growing (one table; its size is chosen at open).

use crate::link::{Link, SizeHint};
use esker_base::sync::atomic::{AtomicU64, Ordering};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;

/// Slots of a neighbourhood.
const NEIGHBOURHOOD: usize = 32;
const DISTANCE_BITS: u32 = 5;
const TAG_BITS: u32 = 8;
/// Slots under one lock; larger than a neighbourhood, so that a change takes two locks at most.
const REGION: usize = 1024;
/// Homes in one part of a walk.
const PART: usize = 64;
const FREE: u64 = 0;

/// The index. All methods may be called from any thread at once.
#[derive(Debug)]
pub struct Hopscotch {
    slots: Box<[AtomicU64]>,
    regions: Box<[Region]>,
    home_mask: u64,
    entries: AtomicU64,
    overflow: Mutex<HashMap<u64, Vec<Link>>>,
    overflow_entries: AtomicU64,
}

/// A run of homes.
#[derive(Debug, Default)]
struct Region {
    lock: Mutex<()>,
    /// Entries whose home is here, wherever they stand: a walk leaves out the regions without any,
    /// and so does not touch the memory of a table that is nearly empty.
    entries: AtomicU64,
}

/// What a lookup found: links that may belong to the key, rarely more than one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    first: Option<Link>,
    rest: Vec<Link>,
}

impl Candidates {
    fn push(&mut self, link: Link) {
        match self.first {
            None => self.first = Some(link),
            // An entry that moved during the lookup may be seen twice.
            Some(first) if first == link || self.rest.contains(&link) => {}
            Some(_) => self.rest.push(link),
        }
    }

    /// The links.
    pub fn iter(&self) -> impl Iterator<Item = Link> + '_ {
        self.first.into_iter().chain(self.rest.iter().copied())
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

/// Where a hash belongs.
#[derive(Clone, Copy)]
struct Spot {
    home: usize,
    tag: u64,
}

impl Hopscotch {
    /// A table with room for about `entries` entries: the next power of two, 8 bytes each, which
    /// take memory only once they are used.
    #[must_use]
    pub fn with_capacity(entries: u64) -> Self {
        let homes = entries.max(64).next_power_of_two();
        let homes_usize = usize::try_from(homes).unwrap_or(1 << 30);
        // The last neighbourhoods do not wrap around, which keeps locks in order.
        let slots = homes_usize + NEIGHBOURHOOD;
        let regions = slots.div_ceil(REGION) + 1;
        Hopscotch {
            slots: zeroed(slots),
            regions: (0..regions).map(|_| Region::default()).collect(),
            home_mask: homes_usize as u64 - 1,
            entries: AtomicU64::new(0),
            overflow: Mutex::default(),
            overflow_entries: AtomicU64::new(0),
        }
    }

    /// Number of homes: the table is full in practice at about 90 % of it.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.home_mask + 1
    }

    /// Number of entries, tombstones included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries that found no slot in the table.
    #[must_use]
    pub fn overflow_len(&self) -> u64 {
        self.overflow_entries.load(Ordering::Relaxed)
    }

    fn spot(&self, hash: u64) -> Spot {
        Spot {
            home: usize::try_from(hash & self.home_mask).unwrap_or(0),
            tag: hash >> (64 - TAG_BITS),
        }
    }

    /// Every link that may belong to a key with this hash. Takes no lock.
    #[must_use]
    pub fn lookup(&self, hash: u64) -> Candidates {
        let spot = self.spot(hash);
        let mut found = Candidates::default();
        for (distance, slot) in self.neighbourhood(spot.home).iter().enumerate() {
            // Acquire: whoever sees an entry sees what was done before it was published; and see H2.
            let entry = slot.load(Ordering::Acquire);
            if entry != FREE && entry & low(TAG_BITS + DISTANCE_BITS) == mark(spot.tag, distance) {
                found.push(link_of(entry));
            }
        }
        if self.overflow_entries.load(Ordering::Acquire) > 0
            && let Some(links) = self.overflow.lock().get(&hash)
        {
            links.iter().for_each(|link| found.push(*link));
        }
        found
    }

    /// Adds `link` for `hash`. Never fails; see H3.
    pub fn insert(&self, hash: u64, link: Link) {
        let spot = self.spot(hash);
        {
            let _locks = self.lock(spot.home, spot.home + NEIGHBOURHOOD - 1);
            if let Some(distance) = self.free_near(spot.home) {
                self.publish(spot, distance, link);
                return;
            }
        }
        // The neighbourhood is full: make room, no further than two regions reach.
        let reach = ((spot.home / REGION + 2) * REGION).min(self.slots.len());
        let _locks = self.lock(spot.home, reach - 1);
        let distance = self.free_near(spot.home).or_else(|| self.displace(spot.home, reach));
        match distance {
            Some(distance) => self.publish(spot, distance, link),
            None => {
                let mut overflow = self.overflow.lock();
                overflow.entry(hash).or_default().push(link);
                self.overflow_entries.fetch_add(1, Ordering::Release);
                self.entries.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn publish(&self, spot: Spot, distance: usize, link: Link) {
        if let Some(slot) = self.slots.get(spot.home + distance) {
            slot.store(entry_of(link, spot.tag, distance), Ordering::Release);
            self.entries.fetch_add(1, Ordering::Relaxed);
            self.region(spot.home, |entries| entries.fetch_add(1, Ordering::Relaxed));
        }
    }

    fn region(&self, home: usize, change: impl FnOnce(&AtomicU64) -> u64) -> u64 {
        self.regions.get(home / REGION).map_or(0, |region| change(&region.entries))
    }

    fn free_near(&self, home: usize) -> Option<usize> {
        self.neighbourhood(home).iter().position(|slot| slot.load(Ordering::Relaxed) == FREE)
    }

    /// Moves entries forwards until a slot of the neighbourhood of `home` is free. The caller holds
    /// the locks up to `reach`.
    fn displace(&self, home: usize, reach: usize) -> Option<usize> {
        let mut free = (home + NEIGHBOURHOOD..reach).find(|slot| {
            self.slots.get(*slot).is_some_and(|s| s.load(Ordering::Relaxed) == FREE)
        })?;
        while free - home >= NEIGHBOURHOOD {
            let from = (free + 1 - NEIGHBOURHOOD..free).find(|slot| {
                let entry = self.slots.get(*slot).map_or(FREE, |s| s.load(Ordering::Relaxed));
                let home_of_it = slot - distance_of(entry);
                // Only entries of homes under our locks may move, and not past their neighbourhood.
                entry != FREE
                    && free - home_of_it < NEIGHBOURHOOD
                    && home_of_it >= home / REGION * REGION
            })?;
            let (source, target) = (self.slots.get(from)?, self.slots.get(free)?);
            let entry = source.load(Ordering::Relaxed);
            let distance = free - (from - distance_of(entry));
            // H2: copy, then clear. Release on both: whoever sees the slot free sees the copy.
            target.store(entry & !low(DISTANCE_BITS) | distance as u64, Ordering::Release);
            source.store(FREE, Ordering::Release);
            free = from;
        }
        Some(free - home)
    }

    /// Puts `new` in the place of `old`; false if `old` is not there.
    pub fn replace(&self, hash: u64, old: Link, new: Link) -> bool {
        self.change(hash, old, Some(new))
    }

    /// Removes `link`; false if it is not there.
    pub fn remove(&self, hash: u64, link: Link) -> bool {
        self.change(hash, link, None)
    }

    fn change(&self, hash: u64, old: Link, new: Option<Link>) -> bool {
        let spot = self.spot(hash);
        let _locks = self.lock(spot.home, spot.home + NEIGHBOURHOOD - 1);
        for (distance, slot) in self.neighbourhood(spot.home).iter().enumerate() {
            if slot.load(Ordering::Relaxed) == entry_of(old, spot.tag, distance) {
                let entry = new.map_or(FREE, |link| entry_of(link, spot.tag, distance));
                slot.store(entry, Ordering::Release);
                if new.is_none() {
                    self.entries.fetch_sub(1, Ordering::Relaxed);
                    self.region(spot.home, |entries| entries.fetch_sub(1, Ordering::Relaxed));
                }
                return true;
            }
        }
        self.change_overflow(hash, old, new)
    }

    fn change_overflow(&self, hash: u64, old: Link, new: Option<Link>) -> bool {
        if self.overflow_entries.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut overflow = self.overflow.lock();
        let Some(links) = overflow.get_mut(&hash) else { return false };
        let Some(place) = links.iter().position(|link| *link == old) else { return false };
        match (new, links.get_mut(place)) {
            (Some(new), Some(link)) => *link = new,
            _ => {
                links.swap_remove(place);
                if links.is_empty() {
                    overflow.remove(&hash);
                }
                self.overflow_entries.fetch_sub(1, Ordering::Release);
                self.entries.fetch_sub(1, Ordering::Relaxed);
            }
        }
        true
    }

    /// Removes everything.
    pub fn clear(&self) {
        for region in 0..self.regions.len() {
            let homes = region * REGION..(region + 1) * REGION;
            if self.region(homes.start, |entries| entries.load(Ordering::Relaxed)) == 0 {
                continue;
            }
            let _locks = self.lock(homes.start, homes.end + NEIGHBOURHOOD - 1);
            for (place, slot) in self.near(&homes) {
                let entry = slot.load(Ordering::Relaxed);
                if entry != FREE && homes.contains(&(place - distance_of(entry))) {
                    slot.store(FREE, Ordering::Release);
                    self.entries.fetch_sub(1, Ordering::Relaxed);
                    self.region(homes.start, |entries| entries.fetch_sub(1, Ordering::Relaxed));
                }
            }
        }
        let mut overflow = self.overflow.lock();
        let gone = overflow.drain().map(|(_, links)| links.len() as u64).sum();
        self.overflow_entries.fetch_sub(gone, Ordering::Release);
        self.entries.fetch_sub(gone, Ordering::Relaxed);
    }

    /// Number of parts that [`Hopscotch::part`] knows.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.slots.len().div_ceil(PART) + 1
    }

    /// The links of one part of the hash space. Walking all parts meets every entry that stays for
    /// the whole walk exactly once, whatever moves meanwhile.
    #[must_use]
    pub fn part(&self, part: usize) -> Vec<Link> {
        if part + 1 == self.parts() {
            return self.overflow.lock().values().flatten().copied().collect();
        }
        let homes = part * PART..(part + 1) * PART;
        if self.region(homes.start, |entries| entries.load(Ordering::Relaxed)) == 0 {
            return Vec::new();
        }
        let _locks = self.lock(homes.start, homes.end + NEIGHBOURHOOD - 1);
        self.near(&homes)
            .map(|(slot, entry)| (slot, entry.load(Ordering::Relaxed)))
            .filter(|(slot, entry)| *entry != FREE && homes.contains(&(slot - distance_of(*entry))))
            .map(|(_, entry)| link_of(entry))
            .collect()
    }

    /// The slots in which entries of these homes may stand, with their numbers.
    fn near(&self, homes: &std::ops::Range<usize>) -> impl Iterator<Item = (usize, &AtomicU64)> {
        let end = (homes.end + NEIGHBOURHOOD - 1).min(self.slots.len());
        let slots = self.slots.get(homes.start..end).unwrap_or(&[]);
        (homes.start..end).zip(slots)
    }

    fn neighbourhood(&self, home: usize) -> &[AtomicU64] {
        self.slots.get(home..home + NEIGHBOURHOOD).unwrap_or(&[])
    }

    /// Locks the regions of the slots `first..=last`, which span two at most.
    fn lock(&self, first: usize, last: usize) -> [Option<MutexGuard<'_, ()>>; 2] {
        let (first, last) = (first / REGION, last / REGION);
        let lock = |region: usize| self.regions.get(region).map(|region| region.lock.lock());
        let low = lock(first);
        let high = if last > first { lock(last) } else { None };
        [low, high]
    }
}

const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

fn mark(tag: u64, distance: usize) -> u64 {
    tag << DISTANCE_BITS | distance as u64
}

fn entry_of(link: Link, tag: u64, distance: usize) -> u64 {
    link.0 << (TAG_BITS + DISTANCE_BITS) | mark(tag, distance)
}

fn link_of(entry: u64) -> Link {
    Link(entry >> (TAG_BITS + DISTANCE_BITS))
}

fn distance_of(entry: u64) -> usize {
    usize::try_from(entry & low(DISTANCE_BITS)).unwrap_or(0)
}

#[cfg(not(any(loom, shuttle)))]
fn zeroed(slots: usize) -> Box<[AtomicU64]> {
    bytemuck::allocation::zeroed_slice_box(slots)
}

#[cfg(any(loom, shuttle))]
fn zeroed(slots: usize) -> Box<[AtomicU64]> {
    (0..slots).map(|_| AtomicU64::new(FREE)).collect()
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
#[cfg(shuttle)]
mod interleave;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
