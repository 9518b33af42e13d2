//! Growing: what a table becomes, and how its regions move there one by one (uDepot §4.3).
//!
//! A table becomes one of twice the homes and half as many slots again, then one of the same homes
//! with a slot each, or two tables of half of them. From then on each insert that comes to the table moves the region of its home, and
//! two more, so that a table of 2048 regions is through after some 680 inserts; each region has a
//! flag that says where its entries are.
//!
//! # Concurrency
//! A region moves under its own lock and those of the regions it moves to. Its entries are first
//! copied, then the flag is set, then what the new table took in from the overflow is removed there:
//! a lookup that finds the flag unset behind its search has missed nothing, whatever it read.

use super::{Part, Region, Shape, Table};
use crate::entry::{Known, Tag, entry_of, link_of, spend};
use crate::link::Link;
use crate::overflow::Overflow;
use crate::pool::Pool;
use esker_base::sync::atomic::Ordering;
use std::sync::Arc;

/// Regions that an insert moves besides its own.
const UNASKED: usize = 2;

/// What a table becomes.
#[derive(Debug)]
pub(crate) struct Growth {
    low: Arc<Table>,
    /// The upper half of the hashes, if the table splits.
    high: Option<Arc<Table>>,
}

impl Growth {
    fn new(shape: Shape, pool: &Arc<Pool>) -> Option<Growth> {
        let table = |shape| Arc::new(Table::new(shape, pool));
        if let Some(next) = shape.stretched().or_else(|| shape.doubled()) {
            return Some(Growth { low: table(next), high: None });
        }
        let [low, high] = shape.split()?;
        Some(Growth { low: table(low), high: Some(table(high)) })
    }

    /// The table of a hash.
    pub(crate) fn table(&self, hash: u64) -> &Table {
        match &self.high {
            Some(high) if hash >= high.shape.first_hash() => high,
            _ => &self.low,
        }
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        [Some(&self.low), self.high.as_ref()].into_iter().flatten()
    }
}

impl Table {
    /// Begins to grow, unless it has begun or cannot grow any more. Callers take turns.
    pub(crate) fn grow(&self) {
        if self.growth.get().is_none()
            && let Some(growth) = Growth::new(self.shape, &self.pool)
        {
            // Nobody else sets it: callers take turns.
            let _ = self.growth.set(growth);
        }
    }

    /// Moves the region of a hash, if it has not moved yet, and a few more. True if that were the
    /// last ones.
    pub(crate) fn migrate(&self, growth: &Growth, hash: u64, overflow: &Overflow) -> bool {
        let own = self.shape.region_of(self.shape.home(hash));
        let mut last = self.migrate_region(own, growth, overflow);
        for _ in 0..UNASKED {
            if self.counters.next_region.load(Ordering::Relaxed) < self.regions.len() {
                let next = self.counters.next_region.fetch_add(1, Ordering::Relaxed);
                last |= self.migrate_region(next, growth, overflow);
            }
        }
        last
    }

    /// Moves a region, if there is such a one that has not moved. True if it was the last one.
    fn migrate_region(&self, number: usize, growth: &Growth, overflow: &Overflow) -> bool {
        let Some(region) = self.regions.get(number) else { return false };
        if region.migrated.load(Ordering::Relaxed) {
            return false;
        }
        let _lock = region.lock.lock();
        if region.migrated.load(Ordering::Relaxed) {
            return false;
        }
        self.copy_region(number, region, growth, overflow);
        self.counters.unmigrated.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The caller holds the region's lock.
    fn copy_region(&self, number: usize, region: &Region, growth: &Growth, overflow: &Overflow) {
        let homes = self.shape.homes_of_region(number);
        let (first, last) = self.shape.hashes(&homes);
        let new = growth.table(first);
        let from = new.shape.region_of(new.shape.home(first));
        // One more for the tail of the last neighbourhood.
        let to = new.shape.region_of(new.shape.home(last)) + 1;
        let _locks = new.lock(from, to);
        let doubles = new.shape.level > self.shape.level;
        (Part { table: self, homes }).each(|home, entry| {
            let position = self.shape.position(home);
            let moved = if doubles {
                spend(entry).map(|(bit, entry)| (2 * position + bit as u64, entry))
            } else {
                Some((position, entry))
            };
            if let Some((position, entry)) = moved {
                new.take_in(position, entry, (from, to), overflow);
            } else {
                // The tag is spent: the entry may belong to either home.
                let known =
                    Known { hash: position << (64 - self.shape.level), bits: self.shape.level };
                overflow.insert(known, link_of(entry));
                new.mark_homes_of(known, first, last);
            }
        });
        let back = if region.overflow.load(Ordering::Relaxed) == 0 {
            Vec::new()
        } else {
            new.take_back((first, last), (from, to), overflow)
        };
        region.entries.store(0, Ordering::Relaxed);
        // Release: whoever sees the flag sees the copies.
        region.migrated.store(true, Ordering::Release);
        for (known, link) in &back {
            overflow.remove(*known, *link);
        }
    }

    /// Takes in an entry of the old table. The caller holds the locks of the regions `from..=to`.
    #[inline]
    fn take_in(&self, position: u64, entry: u64, (from, to): (usize, usize), overflow: &Overflow) {
        let home = self.shape.home_at_position(position);
        if let (Some(slot), Some(region)) = (self.free_at(home), self.region(home)) {
            slot.store(entry, Ordering::Release);
            self.count(region, 1);
        } else if let Some(slot) = self.room(home, from, to) {
            self.publish(home, slot, entry);
        } else if let Some(tag) = Tag::of_entry(entry) {
            overflow.insert(tag.known(position, self.shape.level), link_of(entry));
            self.mark(home..home + 1);
        }
    }

    /// Takes in what it can of the overflow's entries of a region; gives those. They must be removed
    /// from the overflow, but not before lookups find them here.
    fn take_back(
        &self,
        (first, last): (u64, u64),
        (from, to): (usize, usize),
        overflow: &Overflow,
    ) -> Vec<(Known, Link)> {
        let mut back = Vec::new();
        for (known, link) in overflow.within(first, last) {
            let home = self.shape.home(known.hash);
            let field = known.field(self.shape.level);
            let place = field.and_then(|field| Some((field, self.room(home, from, to)?)));
            if let Some((field, slot)) = place {
                self.publish(home, slot, entry_of(link, field));
                back.push((known, link));
            } else {
                self.mark_homes_of(known, first, last);
            }
        }
        if overflow.reaches(first) {
            self.mark(self.shape.home(first)..self.shape.home(last) + 1);
        }
        back
    }

    /// Sets the overflow bits of the homes that `known` may belong to among the hashes
    /// `first..=last`.
    fn mark_homes_of(&self, known: Known, first: u64, last: u64) {
        let start = self.shape.home(known.hash.max(first));
        let end = self.shape.home(known.last().min(last));
        self.mark(start..end + 1);
    }
}
