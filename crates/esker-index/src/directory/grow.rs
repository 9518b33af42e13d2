//! Beginning and ending the growth of a table; the array doubles where it has no place for a split.

use super::{Directory, Place, Root};
use crate::entry::Known;
use crate::link::Link;
use crate::reclaim::Pin;
use crate::table::Table;
use esker_base::sync::atomic::Ordering;
use std::sync::Arc;

/// How much deeper than the average a table may be.
const DEPTH_SLACK: u32 = 3;

impl Directory {
    /// Begins to grow a table that is full. If another one begins just now, an insert will come
    /// back to this one.
    pub(super) fn start(&self, root: &Root, table: &Table, pin: &Pin) {
        let tables = root.contents.tables.load(Ordering::Relaxed);
        // D4: a split that the number of tables does not call for is one that somebody asks for.
        let narrow = table.shape().depth() >= tables.max(1).ilog2() + DEPTH_SLACK;
        let splits = table.shape().stretched().or_else(|| table.shape().doubled()).is_none();
        if narrow && splits {
            return;
        }
        let Some(_turn) = self.grow.try_lock() else { return };
        // Only tables in the array grow, so that they end in the order in which they began.
        let current = self.root.load(pin);
        let linked = current.place(table.shape().first_hash());
        if linked.is_none_or(|place| !std::ptr::eq(place.table.load(pin), table)) {
            return;
        }
        table.grow();
        if let Some(lengths) = table.shape().largest() {
            self.pool.expect(tables, lengths);
        }
    }

    /// Puts what a table became in its place. All its regions have migrated.
    pub(super) fn finish(&self, root: &Root, table: &Table, pin: &Pin) {
        let Some(growth) = table.growth() else { return };
        let _turn = self.grow.lock();
        let mut current = self.root.load(pin);
        if !Arc::ptr_eq(&current.contents, &root.contents) {
            return; // Cleared meanwhile.
        }
        let added = growth.tables().count() as u64 - 1;
        if added > 0 && table.shape().depth() == current.bits {
            self.root.store(Arc::new(current.doubled(pin)), pin);
            current = self.root.load(pin);
        }
        for next in growth.tables() {
            let shape = next.shape();
            let shift = 64 - current.bits;
            let first = shape.first_hash().checked_shr(shift).unwrap_or(0);
            let count = 1u64 << (current.bits - shape.depth().min(current.bits));
            for number in first..first + count {
                let place = usize::try_from(number).ok().and_then(|n| current.tables.get(n));
                if let Some(place) = place {
                    place.store(Arc::clone(next), pin);
                }
            }
        }
        current.contents.tables.fetch_add(added, Ordering::Relaxed);
    }
}

impl Root {
    /// The same tables with two places for each place.
    fn doubled(&self, pin: &Pin) -> Root {
        let again = |place: &Place| Place::new(place.table.share(pin));
        let twice = |place| [again(place), again(place)];
        Root {
            bits: self.bits + 1,
            tables: self.tables.iter().flat_map(twice).collect(),
            contents: Arc::clone(&self.contents),
        }
    }

    /// Adds an entry that knows too little of its hash for the tables where it may belong: it goes
    /// to the overflow, and all these tables are told.
    pub(super) fn insert_unplaced(&self, known: Known, link: Link, pin: &Pin) {
        // A region that moves behind this asks the overflow itself.
        self.overflow().insert(known, link);
        let mut cursor = Some(known.hash);
        while let Some(hash) = cursor {
            let Some(mut table) = self.table(hash, pin) else { return };
            cursor = loop {
                if let Some(next) = table.moved(hash) {
                    table = next;
                } else if let Some(next) = table.mark_known(known, hash) {
                    break next;
                }
            };
        }
    }
}
