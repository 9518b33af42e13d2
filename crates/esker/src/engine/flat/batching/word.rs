//! The words that the cores of a group agree by: one of the group, which says who collects and whether entries wait that
//! nobody has seen, and one for each core, which says whether its log is at work. A lone writer changes that of its
//! core only, so that lone writers of two cores do not pass a line to and fro.
//!
//! # Bits
//! | word | bit | set | cleared |
//! |---|---|---|---|
//! | group | `COLLECTING` | by whoever becomes leader: the group's lock (FlatStore §3.3) | by it, once the entries are collected; naive: once they are durable |
//! | group | `PENDING` | by a writer, after its entry stands in a pool | by a leader, before it looks into the pools |
//! | core | `BUSY` | by whoever appends to the log of the core | by it, when the append is over |
//! | core | `PENDING` | by a writer of the core, after that of the group | by a leader, before it looks into the pool of the core |
//! | all | `BROKEN` | when a leader panicked | never |
//!
//! # Invariants
//! - W1: whoever clears `COLLECTING` and finds the group's `PENDING` set, or clears `BUSY` and finds `PENDING` of the core or the group
//!   set, makes somebody lead: it collects again or wakes a writer whose entry waits.
//!   A core that gathers needs nobody: it leads in a moment.
//! - W2: a writer that sets `PENDING` leads, or has seen `COLLECTING`, or `BUSY` of its core, after it set both bits: then W1 holds
//!   for whoever set that. So no entry is left alone.
//! - W3: `COLLECTING` is taken by whoever has `BUSY` of its own core.

use super::pool::Collected;
use esker_base::sync::atomic::{AtomicU64, Ordering};

/// Cores that a group can have.
pub(super) const CORES_MAX: usize = 60;

const COLLECTING: u64 = 1;
const PENDING: u64 = 1 << 1;
const BROKEN: u64 = 1 << 2;
const BUSY: u64 = 1 << 3;

/// What came of an attempt to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The caller holds `COLLECTING` and its log.
    Leads,
    /// Somebody at work will see to what is pending, if anything is.
    Waits,
    /// A leader panicked.
    Broken,
}

/// A word on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Bits(AtomicU64);

impl Bits {
    fn new() -> Bits {
        Bits(AtomicU64::new(0))
    }

    #[inline]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    #[inline]
    fn set(&self, bits: u64) {
        self.0.fetch_or(bits, Ordering::AcqRel);
    }

    /// Clears bits; returns what was there.
    #[inline]
    fn clear(&self, bits: u64) -> u64 {
        self.0.fetch_and(!bits, Ordering::AcqRel)
    }

    /// Changes the word as long as `next` says to what; false if it does not any more.
    #[inline]
    fn change(&self, next: impl Fn(u64) -> Option<u64>) -> bool {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
    }
}

#[derive(Debug)]
pub(super) struct Word {
    group: Bits,
    cores: Box<[Bits]>,
    /// Whether the group is closed until the batch is durable (naive horizontal batching).
    naive: bool,
}

impl Word {
    pub(super) fn new(cores: usize, naive: bool) -> Self {
        Word { group: Bits::new(), cores: (0..cores).map(|_| Bits::new()).collect(), naive }
    }

    #[inline]
    fn core(&self, core: usize) -> &Bits {
        #[expect(clippy::indexing_slicing, reason = "a core of the group has its word")]
        &self.cores[core]
    }

    /// Takes the log of a core for a batch of one if there is nothing to collect, nor anybody to
    /// wait for.
    #[inline]
    pub(super) fn claim_alone(&self, core: usize) -> bool {
        if self.group.get() != 0 || !self.core(core).change(|bits| (bits == 0).then_some(BUSY)) {
            return false;
        }
        if self.naive && !self.group.change(|bits| (bits == 0).then_some(COLLECTING)) {
            // Who saw `BUSY` meanwhile relies on the caller, which posts now and then tries to lead.
            self.core(core).clear(BUSY);
            return false;
        }
        true
    }

    /// Says that an entry stands in the pool of a core.
    pub(super) fn announce(&self, core: usize) {
        self.group.set(PENDING);
        self.core(core).set(PENDING);
    }

    /// Becomes leader with the log of a core if something is pending and nobody is in the way.
    pub(super) fn claim(&self, core: usize) -> Claim {
        let (own, collects) = (self.core(core), PENDING | COLLECTING);
        loop {
            if self.group.get() & BROKEN != 0 {
                return Claim::Broken;
            }
            if !own.change(|bits| (bits & BUSY == 0).then_some(bits | BUSY)) {
                return Claim::Waits;
            }
            let leads = |bits| {
                let free = bits & (collects | BROKEN) == PENDING;
                free.then_some((bits | COLLECTING) & !PENDING)
            };
            if self.group.change(leads) {
                return Claim::Leads;
            }
            // Who saw `BUSY` meanwhile has set the group's bit before: it is seen to here, if not by who collects.
            own.clear(BUSY);
            let now = self.group.get();
            if now & BROKEN == 0 && now & collects != PENDING {
                return Claim::Waits;
            }
        }
    }

    /// A leader is about to look into the pool of a core.
    pub(super) fn look(&self, core: usize) {
        if self.core(core).get() & PENDING != 0 {
            self.core(core).clear(PENDING);
        }
    }

    /// A leader has left something in the pool of a core.
    pub(super) fn leave(&self, core: usize) {
        self.core(core).set(PENDING);
    }

    /// Ends a collection that left `left`. False: something was pending again, collect that too. Naive groups stay
    /// closed.
    pub(super) fn end_collection(&self, left: Collected) -> bool {
        let again = |bits: u64| bits & PENDING != 0 && left != Collected::Full;
        let opened = |bits: u64| if self.naive { bits } else { bits & !COLLECTING };
        let next = |bits| match (again(bits), left) {
            (true, _) => bits & !PENDING,
            (false, Collected::All) => opened(bits),
            (false, _) => opened(bits) | PENDING,
        };
        let before = self.group.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |bits| {
            debug_assert!(bits & COLLECTING != 0, "only who holds the group collects");
            Some(next(bits))
        });
        !before.is_ok_and(again)
    }

    /// Gives the log of a core back, and the group if it is `collecting` or naive. True: entries are pending, and W1
    /// asks the caller to see to them.
    #[inline]
    pub(super) fn release(&self, core: usize, collecting: bool) -> bool {
        let own = self.core(core).clear(BUSY);
        let group = match collecting || self.naive {
            true => self.group.clear(COLLECTING) & !COLLECTING,
            false => self.group.get(),
        };
        own & PENDING != 0 || group & (PENDING | COLLECTING) == PENDING
    }

    /// No batch is to come of this group any more.
    pub(super) fn break_down(&self) {
        self.group.set(BROKEN);
        self.cores.iter().for_each(|core| core.set(BROKEN));
    }

    /// Whether nobody collects or appends. `PENDING` may be left by a writer whose entry was collected
    /// before it said so.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let words = self.cores.iter().chain([&self.group]);
        words.into_iter().all(|word| word.get() & !PENDING == 0)
    }
}
