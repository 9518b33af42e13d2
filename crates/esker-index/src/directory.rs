//! The directory: hopscotch tables that grow one by one with what they hold (uDepot §4.2, §4.3).
//!
//! An array of pointers, indexed by the first bits of a hash, to tables (see `table`), which are
//! small: 4 or 6 MiB. A table that is full to 87-91 % grows by half, then splits in two; the array
//! doubles when a table splits that has but one place in it. So the memory follows the data in
//! small steps, at 9 to 14 bytes per entry, and each step moves few entries. A directory begins
//! with one table of 64 homes that grows until it is as large as the others.
//!
//! # Invariants
//! - D1: each hash has one table in the array, which knows its prefix and its level.
//! - D2: a table is replaced in the array by what it becomes only when all its regions have
//!   migrated. Whoever comes to it later, or earlier, follows each region's flag.
//! - D3: tables never shrink, so levels only rise: a cursor between two homes stays between two.
//! - D4: a table grows because of the number of entries in its slots, never because a neighbourhood is
//!   full; and it does not split beyond 8 times the average depth's width. Keys chosen to collide
//!   end in the overflow: memory stays linear in entries, work per operation bounded.
//!
//! # Concurrency
//! Every method may be called from any thread at once. Lookups take no lock (but for the rare hash
//! whose home has something in the overflow) and pin an epoch; changes lock one or two regions, and
//! three more where they move one. `grow` is taken for a moment to begin and to end a table's
//! growth, with nothing else held. Nothing suspends under these locks, and there is no I/O.
//!
//! Non-goals: shrinking; [`Directory::clear`] alone gives memory back.

mod export;
mod grow;
mod walk;

use crate::entry::{Candidates, Known};
use crate::link::Link;
use crate::locks::Mutex;
use crate::overflow::Overflow;
use crate::pool::Pool;
use crate::reclaim::{Cell, Pin, pin};
use crate::table::{GEOMETRY, Geometry, Hint, Inserted, Shape, Table};
use esker_base::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Items of a batch under one pin.
const GROUP: usize = 256;
/// Items of a batch between the one that memory is asked for and the one that the rest is asked for, and from there to the
/// one that is done: both together as many as a core can wait for at the same time.
const AHEAD: usize = 8;

/// The index. All methods may be called from any thread at once.
#[derive(Debug)]
pub struct Directory {
    root: Cell<Root>,
    grow: Mutex<()>,
    geometry: Geometry,
    pool: Arc<Pool>,
}

/// The array of tables.
#[derive(Debug)]
struct Root {
    /// Bits of a hash that index it.
    bits: u32,
    tables: Box<[Place]>,
    contents: Arc<Contents>,
}

/// A place of the array.
#[derive(Debug)]
struct Place {
    table: Cell<Table>,
    /// A [`Hint`] for that table.
    hint: AtomicU64,
}

impl Place {
    fn new(table: Arc<Table>) -> Place {
        Place { hint: AtomicU64::new(table.hint().0), table: Cell::new(table) }
    }

    fn store(&self, table: Arc<Table>, pin: &Pin) {
        self.hint.store(table.hint().0, Ordering::Relaxed);
        self.table.store(table, pin);
    }
}

/// What stays when the array doubles, and goes when the directory is cleared.
#[derive(Debug)]
struct Contents {
    overflow: Overflow,
    tables: AtomicU64,
}

impl Root {
    fn new(geometry: Geometry, entries: u64, pool: &Arc<Pool>) -> Root {
        let tables: Box<[Place]> = Shape::for_entries(geometry, entries)
            .map(|shape| Place::new(Arc::new(Table::new(shape, pool))))
            .collect();
        let count = tables.len() as u64;
        let contents = Contents { overflow: Overflow::new(), tables: AtomicU64::new(count) };
        Root { bits: count.ilog2(), tables, contents: Arc::new(contents) }
    }

    #[inline]
    fn place(&self, hash: u64) -> Option<&Place> {
        // In two steps, as there may be no bits.
        let number = (hash >> 1).wrapping_shr(63 - self.bits);
        self.tables.get(usize::try_from(number).unwrap_or(usize::MAX))
    }

    /// The table of a hash. `None` never happens: the array has a place for each.
    #[inline]
    fn table<'a>(&'a self, hash: u64, pin: &'a Pin) -> Option<&'a Table> {
        let place = self.place(hash)?;
        // Its lines are fetched together with the table.
        Hint(place.hint.load(Ordering::Relaxed)).prefetch(hash);
        Some(place.table.load(pin))
    }

    /// Starts to fetch what every operation on this hash will read.
    #[inline]
    fn prefetch(&self, hash: u64, pin: &Pin) {
        if let Some(table) = self.table(hash, pin) {
            table.prefetch_region(hash);
        }
    }

    fn overflow(&self) -> &Overflow {
        &self.contents.overflow
    }

    /// All tables, each once.
    fn each<'a>(&'a self, pin: &'a Pin) -> impl Iterator<Item = &'a Table> {
        let mut place = 0;
        std::iter::from_fn(move || {
            let table = self.tables.get(place)?.table.load(pin);
            place += 1usize.checked_shl(self.bits.saturating_sub(table.shape().depth()))?;
            Some(table)
        })
    }

    #[inline]
    fn lookup(&self, hash: u64, pin: &Pin) -> Candidates {
        let Some(mut table) = self.table(hash, pin) else { return Candidates::default() };
        loop {
            let found = table.lookup(hash, self.overflow());
            // H5 of the table: what was read there counts if it had not moved by then.
            let Some(next) = table.moved(hash) else { return found };
            table = next;
        }
    }
}

impl Directory {
    /// A directory with room for about `entries` entries from the start, at 8 bytes and a little
    /// more each, which take memory only once they are used; 0 begins with about 4 KiB. Either way
    /// it grows with what it gets.
    #[must_use]
    pub fn with_capacity(entries: u64) -> Self {
        Self::with_geometry(GEOMETRY, entries)
    }

    /// An empty one of tables of 64 homes, so that they split after some dozens of entries: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_small_tables() -> Self {
        Self::with_geometry(Geometry { home_bits: 6, region_bits: 5 }, 0)
    }

    fn with_geometry(geometry: Geometry, entries: u64) -> Self {
        let pool = Arc::new(Pool::default());
        let root = Cell::new(Arc::new(Root::new(geometry, entries, &pool)));
        Directory { root, grow: Mutex::default(), geometry, pool }
    }

    /// Lets the directory start a thread, once it is larger than some 100 MiB, that allocates tables
    /// before they are needed and frees those that nobody reads any more (uDepot §4.3: "pre-allocated
    /// in a separate thread"). Without it the inserts do that, as a simulation wants it. The thread
    /// ends with the directory.
    pub fn allow_helper(&self) {
        self.pool.allow_helper();
    }

    /// Number of slots of all tables: about 89 % of them can be taken before the directory grows.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        let pin = pin();
        self.root.load(&pin).each(&pin).map(|table| table.shape().room()).sum()
    }

    /// Number of entries, tombstones included. Exact while nothing changes.
    #[must_use]
    pub fn len(&self) -> u64 {
        let pin = pin();
        let root = self.root.load(&pin);
        root.each(&pin).map(Table::entries).sum::<u64>() + root.overflow().len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries outside the tables.
    #[must_use]
    pub fn overflow_len(&self) -> u64 {
        self.root.load(&pin()).overflow().len()
    }

    /// Bytes that are allocated: tables (those that are waiting for their last reader, and those
    /// kept ready, among them), their locks, the array, and roughly the overflow.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        const OVERFLOW_ENTRY: usize = 64;
        let pin = pin();
        let root = self.root.load(&pin);
        let overflow = usize::try_from(root.overflow().len()).unwrap_or(usize::MAX);
        let array = size_of::<Root>() + size_of_val(&*root.tables);
        self.pool.bytes() + array + overflow.saturating_mul(OVERFLOW_ENTRY)
    }

    /// Every link that may belong to a key with this hash, in no particular order. Takes no lock.
    /// The hash must be mixed well over its 64 bits.
    #[must_use]
    pub fn lookup(&self, hash: u64) -> Candidates {
        let pin = pin();
        self.root.load(&pin).lookup(hash, &pin)
    }

    /// Starts to fetch the memory that [`Directory::lookup`] of this hash will read.
    pub fn prefetch(&self, hash: u64) {
        let pin = pin();
        self.root.load(&pin).prefetch(hash, &pin);
    }

    /// Looks up many hashes, and gives each one's number and candidates to `visit`, in order. The
    /// memory of the next sixteen is fetched meanwhile, so that they wait for it together.
    pub fn lookup_many(&self, hashes: &[u64], mut visit: impl FnMut(usize, Candidates)) {
        let visit =
            |place, hash: &u64, root: &Root, pin: &Pin| visit(place, root.lookup(*hash, pin));
        self.many(hashes, |hash| *hash, Table::prefetch_lookup, visit);
    }

    /// Adds many links, each for its hash, as [`Directory::insert`] does. They wait for memory together, too.
    pub fn insert_many(&self, entries: &[(u64, Link)]) {
        let insert = |_, (hash, link): &(u64, Link), _: &Root, pin: &Pin| {
            self.insert_known(Known::whole(*hash), *link, pin);
        };
        self.many(entries, |(hash, _)| *hash, Table::prefetch_insert, insert);
    }

    /// Does something with each item of a batch, in order, while memory is fetched for those behind it: first what all
    /// operations read, then, by that, the rest.
    #[inline]
    fn many<T>(
        &self,
        items: &[T],
        hash: impl Fn(&T) -> u64,
        prefetch_rest: impl Fn(&Table, u64),
        mut each: impl FnMut(usize, &T, &Root, &Pin),
    ) {
        for (group, items) in items.chunks(GROUP).enumerate() {
            // A pin per group, so that a long batch does not keep memory from being freed.
            let pin = pin();
            let root = self.root.load(&pin);
            for step in 0..items.len() + 2 * AHEAD {
                let behind = |steps: usize| step.checked_sub(steps).and_then(|at| items.get(at));
                if let Some(item) = behind(0) {
                    root.prefetch(hash(item), &pin);
                }
                if let Some(hash) = behind(AHEAD).map(&hash)
                    && let Some(place) = root.place(hash)
                {
                    prefetch_rest(place.table.load(&pin), hash);
                }
                if let Some(item) = behind(2 * AHEAD) {
                    each(group * GROUP + step - 2 * AHEAD, item, root, &pin);
                }
            }
        }
    }

    /// Adds `link` for `hash`. Never fails. Bounded work: it may make room among the entries of two
    /// regions, and move three regions of a table that grows.
    pub fn insert(&self, hash: u64, link: Link) {
        let pin = pin();
        self.insert_known(Known::whole(hash), link, &pin);
    }

    fn insert_known(&self, known: Known, link: Link, pin: &Pin) {
        let root = self.root.load(pin);
        let Some(mut table) = root.table(known.hash, pin) else { return };
        loop {
            if let Some(growth) = table.growth() {
                if table.migrate(growth, known.hash, root.overflow()) {
                    self.finish(root, table, pin);
                }
                table = growth.table(known.hash);
                continue;
            }
            match table.insert(known, link, root.overflow()) {
                Inserted::Done => return,
                Inserted::Full => return self.start(root, table, pin),
                Inserted::Migrated => {}
                Inserted::Unplaced => return root.insert_unplaced(known, link, pin),
            }
        }
    }

    /// Puts `new` in the place of `old`; false if `old` is not there. The entry knows as much of
    /// its hash as a new one from then on.
    pub fn replace(&self, hash: u64, old: Link, new: Link) -> bool {
        self.change(hash, old, Some(new))
    }

    /// Removes `link`; false if it is not there.
    pub fn remove(&self, hash: u64, link: Link) -> bool {
        self.change(hash, link, None)
    }

    fn change(&self, hash: u64, old: Link, new: Option<Link>) -> bool {
        let pin = pin();
        let root = self.root.load(&pin);
        let Some(mut table) = root.table(hash, &pin) else { return false };
        loop {
            if let Some(next) = table.moved(hash) {
                table = next;
            } else if let Some(changed) = table.change(hash, old, new, root.overflow()) {
                return changed;
            }
        }
    }

    /// Removes everything and gives the memory back. A change that runs at the same time may come
    /// before it, and an entry that it adds then goes too.
    pub fn clear(&self) {
        let root = Arc::new(Root::new(self.geometry, 0, &self.pool));
        let pin = pin();
        let _turn = self.grow.lock();
        self.root.store(root, &pin);
        self.pool.keep_nothing();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        crate::reclaim::collect();
        self.pool.stop();
    }
}

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleave;
#[cfg(test)]
#[cfg(not(any(loom, feature = "shuttle")))]
mod tests;
