//! The one word that the cores of a group agree by: who collects, whose log is at work, and whether entries
//! wait that nobody has seen.
//!
//! # Bits
//! | bit | set | cleared |
//! |---|---|---|
//! | `COLLECTING` | by whoever becomes leader: the group's lock (FlatStore §3.3) | by it, once the entries are collected; naive: once they are durable |
//! | `PENDING` | by a writer, after its entry stands in a pool | by a leader, before it looks into the pools |
//! | `BROKEN` | when a leader panicked | never |
//! | `log(n)` | by whoever appends to the log of the group's core `n` | by it, when the append is over |
//!
//! # Invariants
//! - W1: whoever clears `COLLECTING` or `log(n)` and finds `PENDING` set makes somebody lead: it collects again
//!   or wakes a writer whose entry waits.
//!   A core that gathers needs nobody: it leads in a moment.
//! - W2: a writer that sets `PENDING` leads, or has seen `COLLECTING` or its own log's bit set beside it: then W1 holds for
//!   whoever set that. So no entry is left alone.

use super::pool::Collected;
use esker_base::sync::atomic::{AtomicU64, Ordering};

/// Cores that a group can have.
pub(super) const CORES_MAX: usize = 60;

const COLLECTING: u64 = 1 << 63;
const PENDING: u64 = 1 << 62;
const BROKEN: u64 = 1 << 61;

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

#[derive(Debug)]
pub(super) struct Word {
    bits: AtomicU64,
    /// Whether the group is closed until the batch is durable (naive horizontal batching).
    naive: bool,
}

impl Word {
    pub(super) fn new(naive: bool) -> Self {
        Word { bits: AtomicU64::new(0), naive }
    }

    /// Takes the log `log` of the group for a batch of one if there is nothing to collect, nor anybody to
    /// wait for.
    #[inline]
    pub(super) fn claim_alone(&self, log: usize) -> bool {
        let (own, busy) = (1 << log, 1 << log | COLLECTING | PENDING | BROKEN);
        let taken = if self.naive { own | COLLECTING } else { own };
        let mut bits = self.bits.load(Ordering::Relaxed);
        while bits & busy == 0 {
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.bits.compare_exchange_weak(bits, bits | taken, success, failure) {
                Ok(_) => return true,
                Err(now) => bits = now,
            }
        }
        false
    }

    /// Says that an entry stands in a pool.
    pub(super) fn announce(&self) {
        self.bits.fetch_or(PENDING, Ordering::AcqRel);
    }

    /// Becomes leader with the log `log` if something is pending and nobody is in the way.
    pub(super) fn claim(&self, log: usize) -> Claim {
        let taken = 1 << log | COLLECTING;
        let mut bits = self.bits.load(Ordering::Acquire);
        loop {
            if bits & BROKEN != 0 {
                return Claim::Broken;
            }
            if bits & PENDING == 0 || bits & taken != 0 {
                return Claim::Waits;
            }
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            let next = (bits | taken) & !PENDING;
            match self.bits.compare_exchange_weak(bits, next, success, failure) {
                Ok(_) => return Claim::Leads,
                Err(now) => bits = now,
            }
        }
    }

    /// Ends a collection that left `left`. False: something was pending again, collect that too. Naive groups stay
    /// closed.
    pub(super) fn end_collection(&self, left: Collected) -> bool {
        let mut bits = self.bits.load(Ordering::Relaxed);
        debug_assert!(bits & COLLECTING != 0, "only who holds the group collects");
        loop {
            let again = bits & PENDING != 0 && left != Collected::Full;
            let next = match (again, left) {
                (true, _) => bits & !PENDING,
                (false, Collected::All) => self.opened(bits),
                (false, _) => self.opened(bits) | PENDING,
            };
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.bits.compare_exchange_weak(bits, next, success, failure) {
                Ok(_) => return !again,
                Err(now) => bits = now,
            }
        }
    }

    fn opened(&self, bits: u64) -> u64 {
        if self.naive { bits } else { bits & !COLLECTING }
    }

    /// Gives the log back, and the group if it is `collecting` or naive. True: entries are pending, and W1
    /// asks the caller to see to them.
    #[inline]
    pub(super) fn release(&self, log: usize, collecting: bool) -> bool {
        let group = if collecting || self.naive { COLLECTING } else { 0 };
        let before = self.bits.fetch_and(!(1 << log | group), Ordering::AcqRel);
        let after = before & !group;
        after & (PENDING | COLLECTING) == PENDING
    }

    /// No batch is to come of this group any more.
    pub(super) fn break_down(&self) {
        self.bits.fetch_or(BROKEN, Ordering::AcqRel);
    }

    /// Whether nobody collects or appends. `PENDING` may be left by a writer whose entry was collected
    /// before it said so.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.bits.load(Ordering::Acquire) & !PENDING == 0
    }
}
