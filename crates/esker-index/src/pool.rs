//! Slots of tables: who allocates them, who frees them, and how many bytes they are.
//!
//! An insert that makes a table grow takes its slots from here. A directory that has a helper (a
//! thread, started when there is something to do) finds them allocated and their pages touched, as
//! uDepot pre-allocates in a separate thread (§4.3), and gives slots that nobody reads any more
//! back to it. Without a helper both are done in line; the pages of new slots are then touched as
//! regions move in, a few per insert.
//!
//! # Concurrency
//! One lock, held for a few instructions; nothing else is taken under it.

use crate::entry::FREE;
use crate::pages::{Words, zeroed};
use esker_base::sync::atomic::{AtomicBool, Ordering};
use std::sync::atomic::AtomicUsize;

const _: () = assert!(FREE == 0);
use std::sync::Arc;

#[cfg(not(any(loom, feature = "shuttle")))]
mod helper;

/// Slots between two pages.
#[cfg(not(any(loom, feature = "shuttle")))]
const PAGE_SLOTS: usize = 4096 / 8;
/// Tables of the largest size from which on the helper keeps spare ones.
const TABLES_MIN: u64 = 24;
/// Spare tables of each size, at most.
const SPARES_MAX: u64 = 3;

/// The slots of one table.
pub(crate) type Slots = Words;

/// The pool of a directory.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Bytes of slots, in tables and here, and of regions. Not of the sync shim: a table may be let go
    /// by whoever pins next, under the schedulers by a thread of another run.
    bytes: AtomicUsize,
    /// Whether a helper may be started.
    helped: AtomicBool,
    #[cfg(not(any(loom, feature = "shuttle")))]
    desk: helper::Desk,
}

impl Pool {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn uncount(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Lets this pool have a helper.
    pub(crate) fn allow_helper(&self) {
        self.helped.store(true, Ordering::Relaxed);
    }

    /// Free slots for a table.
    pub(crate) fn take(&self, length: usize) -> Slots {
        #[cfg(not(any(loom, feature = "shuttle")))]
        if let Some(slots) = self.desk.take(length) {
            return slots;
        }
        self.count(length * size_of::<u64>());
        zeroed(length)
    }

    /// Takes the slots of a table that is gone.
    pub(crate) fn give_back(&self, slots: Slots) {
        #[cfg(not(any(loom, feature = "shuttle")))]
        let Some(slots) = self.desk.give_back(slots) else { return };
        self.uncount(slots.len() * size_of::<u64>());
    }

    /// Tells the helper, if there may be one, how many tables of the largest size there are, and
    /// the two sizes that it is to keep ready.
    pub(crate) fn expect(self: &Arc<Self>, tables: u64, lengths: [usize; 2]) {
        if tables < TABLES_MIN || !self.helped.load(Ordering::Relaxed) {
            return;
        }
        let spares = (tables / 64).clamp(1, SPARES_MAX);
        #[cfg(not(any(loom, feature = "shuttle")))]
        self.desk.expect(self, usize::try_from(spares).unwrap_or(1), lengths);
        #[cfg(any(loom, feature = "shuttle"))]
        let _ = (spares, lengths);
    }

    /// Gives back what the helper keeps ready: there are no tables that would take it.
    pub(crate) fn keep_nothing(&self) {
        #[cfg(not(any(loom, feature = "shuttle")))]
        for slots in self.desk.keep_nothing() {
            self.uncount(slots.len() * size_of::<u64>());
        }
    }

    /// Ends the helper and waits for it.
    pub(crate) fn stop(&self) {
        #[cfg(not(any(loom, feature = "shuttle")))]
        self.desk.stop();
    }
}
