//! Adding entries to a table, and making room for them (uDepot §4.2).
//!
//! An entry goes to the first free slot of its neighbourhood; where there is none, entries of others move to later lines of
//! theirs until there is (H2 of the table), no further than two regions reach. What finds no slot even so goes to the
//! overflow (H4).
//!
//! # Concurrency
//! Under the locks of the home's region and of the next one, in this order.

use super::{Region, Table};
use crate::entry::{FREE, Known, entry_of, link_of};
use crate::line::{SLOTS, free};
use crate::link::Link;
use crate::overflow::Overflow;
use esker_base::sync::atomic::{AtomicU64, Ordering};

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

impl Inserted {
    fn done(full: bool) -> Inserted {
        if full { Inserted::Full } else { Inserted::Done }
    }
}

impl Table {
    /// Adds an entry.
    pub(crate) fn insert(&self, known: Known, link: Link, overflow: &Overflow) -> Inserted {
        let home = self.shape.home(known.hash);
        let Some(field) = known.field(self.shape.level) else { return Inserted::Unplaced };
        let Some(region) = self.region(home) else { return Inserted::Unplaced };
        let _lock = region.lock.lock();
        if region.migrated.load(Ordering::Relaxed) {
            return Inserted::Migrated;
        }
        // Mostly there is room in the first line.
        let entry = entry_of(link, field);
        if let Some(slot) = self.free_at(home) {
            slot.store(entry, Ordering::Release);
            return Inserted::done(self.count(region, 1));
        }
        self.insert_beyond(home, known, entry, overflow)
    }

    /// Adds an entry that finds no room in its first line. The caller holds the lock of the home's
    /// region.
    #[inline(never)]
    fn insert_beyond(
        &self,
        home: usize,
        known: Known,
        entry: u64,
        overflow: &Overflow,
    ) -> Inserted {
        let (first, last) = (self.shape.line_of(home), self.last_line(home));
        let region = self.shape.region_of(home);
        let next = || self.regions.get(region + 1).map(|next| next.lock.lock());
        let mut _next = None;
        if self.shape.region_of_line(last) > region {
            _next = next();
        }
        if let Some(slot) = self.free_in(first + 1, last + 1) {
            return Inserted::done(self.publish(home, slot, entry));
        }
        // The neighbourhood is full: make room, no further than two regions reach.
        if _next.is_none() {
            _next = next();
        }
        if let Some(slot) = self.displace(home, region, region + 1) {
            return Inserted::done(self.publish(home, slot, entry));
        }
        overflow.insert(known, link_of(entry));
        self.mark(home..home + 1);
        // A table without a free slot counts nothing any more: if nobody could make it grow while it
        // filled, as it was not linked yet, this says so again.
        Inserted::done(self.is_full())
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
            let Some(field) = known.field(self.shape.level) else { break };
            if known.hash < first.hash || known.hash > last {
                break;
            }
            let Some(slot) = self.free_near(home) else { break };
            self.publish(home, slot, entry_of(*link, field));
            done += 1;
        }
        done
    }

    /// Whether the table should grow before more comes.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full_with(self.counters.entries.load(Ordering::Relaxed))
    }

    /// Whether a table is as full as it should get whose regions have told of so many entries.
    fn is_full_with(&self, told: i64) -> bool {
        // On average each region has half a tally that it has not told of.
        let untold = (self.shape.tally() - 1) * self.regions.len() as u64 / 2;
        u64::try_from(told).is_ok_and(|told| told + untold >= self.shape.entries_max())
    }

    /// Puts an entry of `home` into a free slot. True if the table is as full then as it should get.
    /// The caller holds the locks.
    pub(super) fn publish(&self, home: usize, slot: usize, entry: u64) -> bool {
        self.reach_to(home, slot);
        if let Some(slot) = self.slots.get(slot) {
            slot.store(entry, Ordering::Release);
        }
        self.region(home).is_some_and(|region| self.count(region, 1))
    }

    /// Counts entries that came to a region, whose lock the caller holds. True if the table is as full
    /// then as it should get.
    #[inline]
    pub(super) fn count(&self, region: &Region, more: u32) -> bool {
        let before = region.entries.load(Ordering::Relaxed);
        let entries = before + more;
        region.entries.store(entries, Ordering::Relaxed);
        let told = self.shape.told(entries) - self.shape.told(before);
        told > 0 && {
            let before = self.counters.entries.fetch_add(told, Ordering::Relaxed);
            self.is_full_with(before + told)
        }
    }

    /// Frees a slot with an entry of `home`. The caller holds the locks.
    pub(super) fn clear(&self, home: usize, slot: &AtomicU64) {
        slot.store(FREE, Ordering::Release);
        let Some(region) = self.region(home) else { return };
        let before = region.entries.load(Ordering::Relaxed);
        let entries = before.saturating_sub(1);
        region.entries.store(entries, Ordering::Relaxed);
        let told = self.shape.told(before) - self.shape.told(entries);
        if told > 0 {
            self.counters.entries.fetch_sub(told, Ordering::Relaxed);
        }
    }

    /// Says that an entry of `home` is about to stand in a slot.
    #[inline]
    fn reach_to(&self, home: usize, slot: usize) {
        let lines = slot / SLOTS - self.shape.line_of(home);
        let Some(region) = self.region(home) else { return };
        if lines > 1 {
            region.set_far(home);
        }
        if lines > 0 {
            region.set_beyond(home);
        }
    }

    /// Lets lookups of a home of this region stop at the lines that its entries are in, now that one is gone that was not in the first:
    /// else all homes of a table whose entries come and go would reach far in the end. The caller holds the region's lock.
    pub(super) fn recede(&self, region: &Region, home: usize) {
        if !region.reaches_beyond(home) || region.overflows(self.shape.line_bit(home)) {
            return;
        }
        let mut pair = [home & !1, home | 1].into_iter();
        if region.reaches_far(home) && !pair.any(|home| self.has_behind(home, 2)) {
            region.clear_far(home);
        }
        if !self.has_behind(home, 1) {
            region.clear_beyond(home);
        }
    }

    /// Whether an entry of a home is behind so many lines of its neighbourhood. The caller holds the lock of the home's region.
    fn has_behind(&self, home: usize, lines: usize) -> bool {
        let first = self.shape.line_of(home) + lines;
        let behind = self.lines().get(first..self.last_line(home) + 1).unwrap_or_default();
        (first..).zip(behind).any(|(number, line)| {
            let mut entries = line.iter().map(|slot| slot.load(Ordering::Relaxed));
            entries.any(|entry| entry != FREE && self.shape.home_of(number, entry) == home)
        })
    }

    /// A slot where an entry of `home` can be put, after others made room for it if need be. The
    /// caller holds the locks of the regions `first..=last`.
    pub(super) fn room(&self, home: usize, first: usize, last: usize) -> Option<usize> {
        self.free_near(home).or_else(|| self.displace(home, first, last))
    }

    /// A free slot in the first line of a home.
    #[inline]
    pub(super) fn free_at(&self, home: usize) -> Option<&AtomicU64> {
        let line = self.lines().get(self.shape.line_of(home))?;
        line.get(usize::try_from(free(line).trailing_zeros()).unwrap_or(SLOTS))
    }

    fn free_near(&self, home: usize) -> Option<usize> {
        self.free_in(self.shape.line_of(home), self.last_line(home) + 1)
    }

    /// The first free slot of the lines `start..end`.
    #[inline]
    fn free_in(&self, start: usize, end: usize) -> Option<usize> {
        (start..).zip(self.lines().get(start..end)?).find_map(|(number, line)| {
            let free = free(line);
            let place = usize::try_from(free.trailing_zeros()).ok()?;
            (free != 0).then_some(number * SLOTS + place)
        })
    }

    /// Moves entries forwards until a slot of the neighbourhood of `home` is free. The caller holds
    /// the locks of the regions `first..=last`.
    fn displace(&self, home: usize, first: usize, last: usize) -> Option<usize> {
        let (span, behind) = (self.shape.span(), self.last_line(home) + 1);
        let mut free = self.free_in(behind, self.shape.end_of_region(last))?;
        while free / SLOTS >= behind {
            let line = free / SLOTS;
            let (from, home) = (line + 1 - span..line).find_map(|number| {
                let mut slots = (number * SLOTS..).zip(self.lines().get(number)?);
                slots.find_map(|(from, slot)| {
                    let entry = slot.load(Ordering::Relaxed);
                    let home = self.shape.home_of(number, entry);
                    // Only entries of homes under our locks may move, not past their neighbourhood,
                    // and from one line to another (H2).
                    let may = line < self.shape.line_of(home) + span
                        && self.shape.region_of(home) >= first;
                    (entry != FREE && may).then_some((from, home))
                })
            })?;
            let (source, target) = (self.slots.get(from)?, self.slots.get(free)?);
            // H6, then H2: copy, then clear. Release on both: whoever sees the slot free sees the copy.
            self.reach_to(home, free);
            target.store(source.load(Ordering::Relaxed), Ordering::Release);
            source.store(FREE, Ordering::Release);
            free = from;
        }
        Some(free)
    }
}
