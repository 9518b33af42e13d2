//! One hopscotch table of the directory (uDepot §4.2).
//!
//! An array of 8-byte entries. A key of a home lies in one of the 32 slots of its neighbourhood,
//! from the home's first slot on; a lookup reads just those. There is neither a bitmap nor a list: an
//! entry carries its distance and a tag (see `entry`), and a lookup compares both.
//!
//! Tables, homes and tags follow the order of hashes: a table has the hashes that begin with its
//! prefix, a home those that begin with its position. A table has two or three slots for two homes:
//! it grows by half its slots without spending bits of tags, then by doubling its homes.
//!
//! # Invariants
//! - H1: an entry at slot `s` with distance `d` belongs to the home with first slot `s - d`.
//! - H2: within a table entries move only forwards, and are copied before they are cleared. A lookup
//!   reads its neighbourhood in ascending order, so an entry that moves is seen in its old place,
//!   its new one or both, never in neither.
//! - H3: entries of a home change only under the lock of the home's region.
//! - H4: what finds no slot lies in the overflow, and the region's bit for its home is set:
//!   inserting never fails. Lookups look there only where a bit is set.
//! - H6: the region's bits for a home say how far from it its entries may be. They are set before
//!   an entry is put there, and never cleared; a lookup that finds them changed reads on. Most need
//!   one line or two of the four or five.
//! - H5: an entry whose region has migrated stays in the old table until that is freed, and no
//!   lookup counts that ends behind the migration.
//!
//! # Concurrency
//! Lookups take no lock. Changes lock one or two adjacent regions, in ascending order, and those of
//! an old table before those of a new one.

mod migrate;
mod shape;

pub(crate) use migrate::Growth;
pub(crate) use shape::{GEOMETRY, Geometry, Hint, LEVEL_MIN, Shape};

use crate::entry::{
    Candidates, FREE, Known, NEIGHBOURHOOD, Tag, at_distance, distance_of, entry_of, is_at,
    link_of, matches, spread,
};
use crate::link::Link;
use crate::locks::{Mutex, MutexGuard};
use crate::overflow::Overflow;
use crate::pool::{Pool, Slots};
use esker_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    shape: Shape,
    slots: Slots,
    regions: Box<[Region]>,
    /// What this table becomes, once that has begun.
    growth: OnceLock<Growth>,
    counters: Counters,
    pool: Arc<Pool>,
}

/// What inserts write: on a cache line of its own, so that lookups keep theirs.
#[derive(Debug)]
#[repr(align(64))]
struct Counters {
    /// Entries in slots, without those that have migrated.
    /// Below 0 for a moment where an entry is removed that is not counted yet.
    entries: AtomicI64,
    /// Regions that have not migrated.
    unmigrated: AtomicUsize,
    /// The next region that inserts migrate unasked.
    next_region: AtomicUsize,
}

/// A run of homes. A cache line, so that a lookup reads one.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Region {
    lock: Mutex<()>,
    /// Set once, under the lock: the entries of these homes are in the table's growth.
    migrated: AtomicBool,
    /// A bit for each 64th of the homes: set if the overflow may have an entry of theirs.
    overflow: AtomicU64,
    /// A bit for each 64th of the homes: set if an entry of theirs may be 8 slots away, or 16.
    far: [AtomicU64; 2],
}

impl Region {
    /// How many slots of the neighbourhoods of these homes hold all their entries: H6.
    #[inline]
    fn reach(&self, bit: u64) -> usize {
        // Acquire: with the entries' Release it is at least what their writers made it.
        match &self.far {
            [_, far] if far.load(Ordering::Acquire) & bit != 0 => NEIGHBOURHOOD,
            [far, _] if far.load(Ordering::Acquire) & bit != 0 => 2 * NEAR,
            _ => NEAR,
        }
    }

    /// Says that an entry is about to stand at this distance.
    #[inline]
    fn reach_to(&self, bit: u64, distance: usize) {
        for (far, start) in self.far.iter().zip([NEAR, 2 * NEAR]) {
            if distance >= start && far.load(Ordering::Relaxed) & bit == 0 {
                far.fetch_or(bit, Ordering::Release);
            }
        }
    }
}

/// Slots that every lookup reads: a line, and the one that it may begin in.
const NEAR: usize = 8;

/// What an attempt to insert came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// Done; the table is as full as it should get.
    Full,
    /// Done.
    Done,
    /// Not done: the region has migrated meanwhile.
    Migrated,
    /// Not done: what is known of the hash does not say where the entry belongs.
    Unplaced,
}

#[inline(never)]
fn consider(entry: u64, pattern: u64, found: &mut Candidates) {
    if matches(entry, pattern) {
        found.push(link_of(entry));
    }
}

impl Table {
    pub(crate) fn new(shape: Shape, pool: &Arc<Pool>) -> Self {
        let table = Table {
            shape,
            slots: pool.take(shape.slots()),
            regions: (0..shape.regions()).map(|_| Region::default()).collect(),
            growth: OnceLock::new(),
            counters: Counters {
                entries: AtomicI64::new(0),
                unmigrated: AtomicUsize::new(shape.regions()),
                next_region: AtomicUsize::new(0),
            },
            pool: Arc::clone(pool),
        };
        pool.count(table.bytes_besides_slots());
        table
    }

    fn bytes_besides_slots(&self) -> usize {
        size_of::<Table>() + size_of_val(&*self.regions)
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn growth(&self) -> Option<&Growth> {
        self.growth.get()
    }

    /// Entries in slots, here and in what the table becomes.
    pub(crate) fn entries(&self) -> i64 {
        let grown = self.growth().map_or(0, |growth| growth.tables().map(|t| t.entries()).sum());
        self.counters.entries.load(Ordering::Relaxed) + grown
    }

    fn region(&self, home: usize) -> Option<&Region> {
        self.regions.get(self.shape.region_of(home))
    }

    /// The table that has this hash now, if its region has migrated.
    #[inline]
    pub(crate) fn moved(&self, hash: u64) -> Option<&Table> {
        self.moved_in(self.growth.get()?, hash)
    }

    #[cold]
    fn moved_in<'a>(&'a self, growth: &'a Growth, hash: u64) -> Option<&'a Table> {
        let region = self.region(self.shape.home(hash))?;
        // Acquire: the entries were copied before.
        region.migrated.load(Ordering::Acquire).then(|| growth.table(hash))
    }

    /// What a [`Hint`] must know to find the slots of this table.
    pub(crate) fn hint(&self) -> Hint {
        Hint::new(self.shape, self.slots.as_ptr().addr())
    }

    /// Starts to fetch what a lookup reads besides slots. A lookup alone need not: the processor sees that it
    /// will be read while it waits for the slots. In a batch, the slots are there already.
    #[inline]
    pub(crate) fn prefetch_region(&self, hash: u64) {
        if let Some(region) = self.region(self.shape.home(hash)) {
            crate::prefetch::lines(std::ptr::from_ref(region).addr(), 0);
        }
    }

    /// Links that may belong to the hash, in this table. They count only if [`Table::moved`] says
    /// afterwards that they are still here.
    #[inline]
    pub(crate) fn lookup(&self, hash: u64, overflow: &Overflow) -> Candidates {
        let home = self.shape.home(hash);
        let mut found = Candidates::default();
        let Some(region) = self.region(home) else { return found };
        let bit = self.shape.overflow_bit(home);
        let tag = Tag::of(hash, self.shape.level);
        let (eights, _) = self.neighbourhood(home).as_chunks::<NEAR>();
        let (mut reach, mut read) = (NEAR, 0);
        while read < reach {
            self.scan(eights.get(read / NEAR..reach / NEAR).unwrap_or(&[]), read, tag, &mut found);
            read = reach;
            reach = reach.max(region.reach(bit));
        }
        if region.overflow.load(Ordering::Acquire) & bit != 0 {
            overflow.find(hash, &mut found);
        }
        found
    }

    /// Looks for entries with this tag in some slots, the first of which is at distance `start`.
    #[inline]
    fn scan(&self, eights: &[[AtomicU64; NEAR]], start: usize, tag: Tag, found: &mut Candidates) {
        for (number, slots) in eights.iter().enumerate() {
            // Only the distance in this loop, which costs as much as it has instructions: it rules
            // out nearly every slot.
            let first = start + NEAR * number;
            let spread = spread(first);
            for (place, slot) in slots.iter().enumerate() {
                // Acquire: whoever sees an entry sees what was done before it was published; and H2.
                let entry = slot.load(Ordering::Acquire);
                if is_at(entry, spread, place) {
                    consider(entry, tag.at(first + place), found);
                }
            }
        }
    }

    fn overflows(&self, home: usize) -> bool {
        self.region(home).is_some_and(|region| {
            region.overflow.load(Ordering::Acquire) & self.shape.overflow_bit(home) != 0
        })
    }

    /// Says that the overflow may have entries of these homes.
    fn mark(&self, homes: Range<usize>) {
        let step = self.shape.homes_per_overflow_bit();
        for home in (homes.start / step * step..homes.end).step_by(step) {
            if let Some(region) = self.region(home) {
                region.overflow.fetch_or(self.shape.overflow_bit(home), Ordering::Release);
            }
        }
    }

    /// Adds an entry.
    pub(crate) fn insert(&self, known: Known, link: Link, overflow: &Overflow) -> Inserted {
        let home = self.shape.home(known.hash);
        let region = self.shape.region_of(home);
        let Some(tag) = Tag::of_known(known, self.shape.level) else {
            return Inserted::Unplaced;
        };
        {
            let locks = self.lock(region, self.shape.region_of_slot(self.last_slot(home)));
            if self.has_migrated(region) {
                return Inserted::Migrated;
            }
            if let Some(distance) = self.free_near(home) {
                self.publish(home, distance, tag, link);
                drop(locks);
                return self.counted();
            }
        }
        // The neighbourhood is full: make room, no further than two regions reach.
        let _locks = self.lock(region, region + 1);
        if self.has_migrated(region) {
            return Inserted::Migrated;
        }
        match self.room(home, region, region + 1) {
            Some(distance) => {
                self.publish(home, distance, tag, link);
                self.counted()
            }
            None => {
                overflow.insert(known, link);
                self.mark(home..home + 1);
                Inserted::Done
            }
        }
    }

    /// Adds entries of one region, from the first one on, as long as that is simple; gives how many.
    pub(crate) fn insert_run(&self, run: &[(Known, Link)]) -> usize {
        let Some((first, _)) = run.first() else { return 0 };
        let region = self.shape.region_of(self.shape.home(first.hash));
        let _locks = self.lock(region, region + 1);
        if self.has_migrated(region) || self.growth.get().is_some() {
            return 0;
        }
        let (_, last) = self.shape.hashes(&self.shape.homes_of_region(region));
        let mut done = 0;
        for (known, link) in run {
            let home = self.shape.home(known.hash);
            let Some(tag) = Tag::of_known(*known, self.shape.level) else { break };
            let Some(distance) = self.free_near(home) else { break };
            if known.hash < first.hash || known.hash > last {
                break;
            }
            self.publish(home, distance, tag, *link);
            done += 1;
        }
        let added = i64::try_from(done).unwrap_or(0);
        self.counters.entries.fetch_add(added, Ordering::Relaxed);
        done
    }

    /// Whether one insert more makes the table grow.
    pub(crate) fn is_full(&self) -> bool {
        let entries = self.counters.entries.load(Ordering::Relaxed);
        u64::try_from(entries).is_ok_and(|entries| entries + 1 >= self.shape.entries_max())
    }

    fn counted(&self) -> Inserted {
        let entries = self.counters.entries.fetch_add(1, Ordering::Relaxed) + 1;
        if u64::try_from(entries).is_ok_and(|entries| entries >= self.shape.entries_max()) {
            Inserted::Full
        } else {
            Inserted::Done
        }
    }

    fn has_migrated(&self, region: usize) -> bool {
        // Relaxed: the caller holds the region's lock, under which it is set.
        self.regions.get(region).is_some_and(|region| region.migrated.load(Ordering::Relaxed))
    }

    fn publish(&self, home: usize, distance: usize, tag: Tag, link: Link) {
        self.reach_to(home, distance);
        if let Some(slot) = self.slots.get(self.shape.first_slot(home) + distance) {
            slot.store(entry_of(link, tag, distance), Ordering::Release);
        }
    }

    #[inline]
    fn reach_to(&self, home: usize, distance: usize) {
        if distance >= NEAR
            && let Some(region) = self.region(home)
        {
            region.reach_to(self.shape.overflow_bit(home), distance);
        }
    }

    /// The distance at which an entry of `home` can be put, after others made room for it if need
    /// be. The caller holds the locks of the regions `first..=last`.
    fn room(&self, home: usize, first: usize, last: usize) -> Option<usize> {
        self.free_near(home).or_else(|| self.displace(home, first, last))
    }

    fn free_near(&self, home: usize) -> Option<usize> {
        self.neighbourhood(home).iter().position(|slot| slot.load(Ordering::Relaxed) == FREE)
    }

    /// Moves entries forwards until a slot of the neighbourhood of `home` is free. The caller holds
    /// the locks of the regions `first..=last`.
    fn displace(&self, home: usize, first: usize, last: usize) -> Option<usize> {
        let start = self.shape.first_slot(home);
        let end = self.shape.slots_of_region(last).end;
        let mut free = self.find_free(start + NEIGHBOURHOOD, end)?;
        while free - start >= NEIGHBOURHOOD {
            let from = (free + 1 - NEIGHBOURHOOD..free).find(|slot| {
                let entry = self.entry(*slot);
                let first_of_it = slot - distance_of(entry);
                // Only entries of homes under our locks may move, and not past their neighbourhood.
                entry != FREE
                    && free - first_of_it < NEIGHBOURHOOD
                    && self.shape.region_of(self.shape.home_of_slot(first_of_it)) >= first
            })?;
            let (source, target) = (self.slots.get(from)?, self.slots.get(free)?);
            let entry = source.load(Ordering::Relaxed);
            let distance = free - (from - distance_of(entry));
            // H6, then H2: copy, then clear. Release on both: whoever sees the slot free sees the copy.
            self.reach_to(self.shape.home_of_slot(free - distance), distance);
            target.store(at_distance(entry, distance), Ordering::Release);
            source.store(FREE, Ordering::Release);
            free = from;
        }
        Some(free - start)
    }

    fn find_free(&self, start: usize, end: usize) -> Option<usize> {
        let slots = self.slots.get(start..end)?;
        let place = slots.iter().position(|slot| slot.load(Ordering::Relaxed) == FREE)?;
        Some(start + place)
    }

    fn entry(&self, slot: usize) -> u64 {
        self.slots.get(slot).map_or(FREE, |slot| slot.load(Ordering::Relaxed))
    }

    /// Puts `new` in the place of `old`, with a whole tag, or takes `old` out. `None` if the region
    /// has migrated, else whether `old` was there.
    pub(crate) fn change(
        &self,
        hash: u64,
        old: Link,
        new: Option<Link>,
        overflow: &Overflow,
    ) -> Option<bool> {
        let home = self.shape.home(hash);
        let region = self.shape.region_of(home);
        let _locks = self.lock(region, self.shape.region_of_slot(self.last_slot(home)));
        if self.has_migrated(region) {
            return None;
        }
        let tag = Tag::of(hash, self.shape.level);
        let reach = self.regions.get(region)?.reach(self.shape.overflow_bit(home));
        for (distance, slot) in self.neighbourhood(home).iter().take(reach).enumerate() {
            let entry = slot.load(Ordering::Relaxed);
            if matches(entry, tag.at(distance)) && link_of(entry) == old {
                let entry = new.map_or(FREE, |link| entry_of(link, tag, distance));
                slot.store(entry, Ordering::Release);
                if new.is_none() {
                    self.counters.entries.fetch_sub(1, Ordering::Relaxed);
                }
                return Some(true);
            }
        }
        Some(self.overflows(home) && overflow.change(hash, old, new, self.shape.level))
    }

    /// Visits the entries of the region of `cursor`, from the home of `cursor` on, `homes_max` at
    /// most, under the region's lock; gives the homes. `None` if the region has migrated.
    pub(crate) fn visit(
        &self,
        cursor: u64,
        homes_max: usize,
        visit: &mut dyn FnMut(Part<'_>),
    ) -> Option<()> {
        let start = self.shape.home(cursor);
        let region = self.shape.region_of(start);
        let _locks = self.lock(region, region);
        if self.has_migrated(region) {
            return None;
        }
        // Aligned, so that a part does not grow small beside the next one.
        let end = (start / homes_max + 1) * homes_max;
        let homes = start..end.min(self.shape.homes_of_region(region).end);
        visit(Part { table: self, homes });
        Some(())
    }

    /// Sets the overflow bits of the homes that `known` may belong to, in the region of `cursor`;
    /// gives the first hash behind the region. `None` if the region has migrated.
    pub(crate) fn mark_known(&self, known: Known, cursor: u64) -> Option<Option<u64>> {
        let region = self.shape.region_of(self.shape.home(cursor));
        let _locks = self.lock(region, region);
        if self.has_migrated(region) {
            return None;
        }
        let homes = self.shape.homes_of_region(region);
        let (first, last) = self.shape.hashes(&homes);
        let start = self.shape.home(known.hash.max(first));
        let end = self.shape.home(known.last().min(last)) + 1;
        self.mark(start..end);
        Some(last.checked_add(1).filter(|next| *next <= known.last()))
    }

    #[inline]
    fn neighbourhood(&self, home: usize) -> &[AtomicU64] {
        let first = self.shape.first_slot(home);
        self.slots.get(first..first + NEIGHBOURHOOD).unwrap_or(&[])
    }

    fn last_slot(&self, home: usize) -> usize {
        self.shape.first_slot(home) + NEIGHBOURHOOD - 1
    }

    /// Locks the regions `first..=last`, three at most.
    fn lock(&self, first: usize, last: usize) -> [Option<MutexGuard<'_, ()>>; 3] {
        let lock = |region: usize| {
            let region = (region <= last).then(|| self.regions.get(region))??;
            Some(region.lock.lock())
        };
        let low = lock(first);
        let middle = lock(first + 1);
        [low, middle, lock(first + 2)]
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.pool.uncount(self.bytes_besides_slots());
        self.pool.give_back(std::mem::take(&mut self.slots));
    }
}

/// Some homes of one region, while its lock is held.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    table: &'a Table,
    pub(crate) homes: Range<usize>,
}

impl Part<'_> {
    pub(crate) fn shape(&self) -> Shape {
        self.table.shape
    }

    /// The entries with their homes, in the order of slots, not of homes.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, u64)> {
        let (table, homes) = (self.table, self.homes.clone());
        let start = table.shape.first_slot(homes.start);
        let end = table.last_slot(homes.end - 1) + 1;
        let slots = table.slots.get(start..end).unwrap_or(&[]);
        (start..end).zip(slots).filter_map(move |(slot, entry)| {
            let entry = entry.load(Ordering::Acquire);
            let first = slot.checked_sub(distance_of(entry))?;
            let home = table.shape.home_of_slot(first);
            (entry != FREE && homes.contains(&home)).then_some((home, entry))
        })
    }
}
