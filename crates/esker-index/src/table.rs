//! One hopscotch table of the directory (uDepot §4.2).
//!
//! An array of 8-byte entries in lines of eight, one cache line each. A key of a home lies in one of
//! the three or four lines of its neighbourhood, as near to the first one as there was room. There is
//! neither a bitmap nor a list: an entry tells its home and a tag (see `entry`), and a lookup compares
//! both. Neighbourhoods begin with a line, not with a slot: so nearly every lookup reads one line,
//! where those of uDepot take two from the start and three or four once tables are full.
//!
//! Tables, homes and tags follow the order of hashes: a table has the hashes that begin with its
//! prefix, a home those that begin with its position. A table has a slot for each home, or three slots
//! for four: it grows by half its slots for twice its homes, and from there by another third.
//!
//! # Invariants
//! - H1: an entry of a line belongs to that one of the 32 homes whose neighbourhoods have the line
//!   which agrees with it in the last five bits.
//! - H2: within a table entries move only to later lines, and are copied before they are cleared. A
//!   lookup reads its lines in ascending order, so an entry that moves is seen in its old place,
//!   its new one or both, never in neither.
//! - H3: entries of a home change only under the lock of the home's region.
//! - H4: what finds no slot lies in the overflow, and the bits for its home and that one's line are set:
//!   inserting never fails. Lookups look there only where both are.
//! - H5: an entry whose region has migrated stays in the old table until that is freed, and no
//!   lookup counts that ends behind the migration.
//! - H6: a bit for each home says whether all its entries are in its first line, one for each two homes whether
//!   theirs are there or in the next. Bits are set before an entry is put elsewhere, and cleared when the last one
//!   that is elsewhere was taken out; a lookup reads each behind the lines that it would otherwise leave it at. So an entry that
//!   stays all the time of a lookup is met: while it is elsewhere its bit is set.
//! - H7: what is known of a home besides its entries is on one cache line, with the lock: an operation reads
//!   that one and mostly one line of slots, which are fetched together.
//!
//! # Concurrency
//! Lookups take no lock. Changes lock one or two adjacent regions, in ascending order, and those of
//! an old table before those of a new one.

mod insert;
mod migrate;
mod region;
mod shape;

pub(crate) use insert::Inserted;
pub(crate) use migrate::Growth;
pub(crate) use shape::{GEOMETRY, Geometry, Hint, LEVEL_MIN, Shape};

use crate::entry::{Candidates, FREE, Known, entry_of, link_of, matches, pattern};
use crate::line::{Line, SLOTS, matching};
use crate::link::Link;
use crate::locks::Latched;
use crate::overflow::Overflow;
use crate::pool::{Pool, Slots};
use esker_base::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use region::Region;
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
    /// Entries in slots that regions have told of, without those that have migrated. Each region
    /// tells of as many as [`Shape::tally`] at once, so that threads rarely share this line.
    entries: AtomicI64,
    /// Regions that have not migrated.
    unmigrated: AtomicUsize,
    /// The next region that inserts migrate unasked.
    next_region: AtomicUsize,
}

/// Gives the links of a line's entries that may belong to a key.
#[inline]
fn scan(line: &Line, pattern: u16, found: &mut Candidates) {
    let mut left = matching(line, pattern);
    while left != 0 {
        let place = usize::try_from(left.trailing_zeros()).unwrap_or(0);
        left &= left - 1;
        if let Some(slot) = line.get(place) {
            // Acquire: whoever sees an entry sees what was done before it was published. If it has
            // moved since, it is met again where it is (H2).
            let entry = slot.load(Ordering::Acquire);
            if matches(entry, pattern) {
                found.push(link_of(entry));
            }
        }
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
    pub(crate) fn entries(&self) -> u64 {
        let grown = self.growth().map_or(0, |growth| growth.tables().map(|t| t.entries()).sum());
        let own = self.regions.iter().map(|region| region.entries.load(Ordering::Relaxed));
        own.map(u64::from).sum::<u64>() + grown
    }

    /// Homes that reach beyond their first line, and not because the overflow may have entries of that line.
    #[cfg(all(test, not(any(loom, feature = "shuttle"))))]
    pub(crate) fn reaching(&self) -> usize {
        let reaches = |home: &usize| {
            let overflows = |region: &Region| region.overflows(self.shape.line_bit(*home));
            self.region(*home).is_some_and(|it| it.reaches_beyond(*home) && !overflows(it))
        };
        (0..self.shape.homes()).filter(reaches).count()
    }

    #[inline]
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

    /// Starts to fetch what is known of a home besides its entries.
    #[inline]
    pub(crate) fn prefetch_region(&self, hash: u64) {
        self.region(self.shape.home(hash)).into_iter().for_each(crate::prefetch::value);
    }

    /// Lines of a neighbourhood that may have entries of a home.
    #[inline]
    fn reach(&self, region: &Region, home: usize) -> usize {
        match (region.reaches_beyond(home), region.reaches_far(home)) {
            (false, _) => 1,
            (true, false) => 2,
            (true, true) => self.shape.span(),
        }
    }

    /// Starts to fetch what a lookup will read besides, by what its region says, which should be at hand.
    #[inline]
    pub(crate) fn prefetch_lookup(&self, hash: u64) {
        let home = self.shape.home(hash);
        let Some(region) = self.region(home) else { return };
        self.prefetch_lines(home, self.reach(region, home));
    }

    /// Starts to fetch what an insert will read besides, by what its first line says, which should be at hand.
    #[inline]
    pub(crate) fn prefetch_insert(&self, hash: u64) {
        let home = self.shape.home(hash);
        if self.free_at(home).is_none() {
            self.prefetch_lines(home, self.shape.span());
        }
    }

    /// Starts to fetch the first `count` lines of a neighbourhood, but for the first one.
    #[inline]
    fn prefetch_lines(&self, home: usize, count: usize) {
        self.neighbourhood(home).iter().take(count).skip(1).for_each(crate::prefetch::value);
    }

    /// Links that may belong to the hash, in this table. They count only if [`Table::moved`] says
    /// afterwards that they are still here.
    #[inline]
    pub(crate) fn lookup(&self, hash: u64, overflow: &Overflow) -> Candidates {
        let home = self.shape.home(hash);
        let pattern = pattern(hash, self.shape.level);
        let mut found = Candidates::default();
        if let Some(line) = self.lines().get(self.shape.line_of(home)) {
            scan(line, pattern, &mut found);
        }
        if let Some(region) = self.region(home)
            && region.reaches_beyond(home)
        {
            self.lookup_beyond(hash, region, overflow, &mut found);
        }
        found
    }

    /// The rest of a lookup: lines behind the first one, and the overflow.
    #[inline(never)]
    fn lookup_beyond(
        &self,
        hash: u64,
        region: &Region,
        overflow: &Overflow,
        found: &mut Candidates,
    ) {
        let home = self.shape.home(hash);
        let pattern = pattern(hash, self.shape.level);
        let mut rest = self.neighbourhood(home).iter().skip(1);
        if let Some(second) = rest.next() {
            scan(second, pattern, found);
        }
        if region.reaches_far(home) {
            rest.for_each(|line| scan(line, pattern, found));
        }
        if region.overflows(self.shape.line_bit(home)) {
            overflow.find(hash, found);
        }
    }

    /// Says that the overflow may have entries of these homes.
    fn mark(&self, homes: Range<usize>) {
        for home in homes {
            if let Some(region) = self.region(home) {
                region.set_overflow(self.shape.line_bit(home));
                region.set_beyond(home);
            }
        }
    }

    fn has_migrated(&self, region: usize) -> bool {
        // Relaxed: the caller holds the region's lock, under which it is set.
        self.regions.get(region).is_some_and(|region| region.migrated.load(Ordering::Relaxed))
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
        let number = self.shape.region_of(home);
        let _locks = self.lock(number, self.shape.region_of_line(self.last_line(home)));
        let region = self.regions.get(number)?;
        if self.has_migrated(number) {
            return None;
        }
        let pattern = pattern(hash, self.shape.level);
        let lines = self.neighbourhood(home).iter().take(self.reach(region, home));
        let is_old = |(_, slot): &(usize, &AtomicU64)| {
            let entry = slot.load(Ordering::Relaxed);
            matches(entry, pattern) && link_of(entry) == old
        };
        Some(match (lines.flatten().enumerate().find(is_old), new) {
            (Some((_, slot)), Some(new)) => {
                slot.store(entry_of(new, pattern), Ordering::Release);
                true
            }
            (Some((place, slot)), None) => {
                self.clear(home, slot);
                if place >= SLOTS {
                    self.recede(region, home);
                }
                true
            }
            (None, _) => {
                region.overflows(self.shape.line_bit(home))
                    && overflow.change(hash, old, new, self.shape.level)
            }
        })
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
    fn lines(&self) -> &[Line] {
        self.slots.as_chunks().0
    }

    #[inline]
    fn neighbourhood(&self, home: usize) -> &[Line] {
        let first = self.shape.line_of(home);
        self.lines().get(first..first + self.shape.span()).unwrap_or(&[])
    }

    #[inline]
    fn last_line(&self, home: usize) -> usize {
        self.shape.line_of(home) + self.shape.span() - 1
    }

    /// Locks the regions `first..=last`, three at most.
    #[inline]
    fn lock(&self, first: usize, last: usize) -> [Option<Latched<'_>>; 3] {
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

    /// Gives each entry with its home to `visit`, in the order of slots, not of homes.
    pub(crate) fn each(&self, mut visit: impl FnMut(usize, u64)) {
        let (table, homes) = (self.table, &self.homes);
        let start = table.shape.line_of(homes.start);
        let end = table.last_line(homes.end - 1) + 1;
        for (number, line) in (start..).zip(table.lines().get(start..end).unwrap_or(&[])) {
            for slot in line {
                let entry = slot.load(Ordering::Acquire);
                let home = table.shape.home_of(number, entry);
                if entry != FREE && homes.contains(&home) {
                    visit(home, entry);
                }
            }
        }
    }
}
