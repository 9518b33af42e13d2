//! The words that the writers of a core and those who would steal from it agree by. Each core has one, which says whether its log is
//! at work and whether entries wait in its pool that nobody has seen: so a core whose log keeps up shares no line with another one. In
//! naive horizontal batching all cores of a group have the same word: the group's lock, held until the batch is durable.
//! One bit of the group, which hardly changes, says that it is worth a look at the other cores; nothing depends on it.
//!
//! FlatStore §3.3 has a lock for each group, which a leader holds while it collects. Here it is split among the pools, whose
//! short locks suffice: two leaders may collect from different pools, and nobody waits for a leader to end.
//!
//! # Bits
//! | bit | set | cleared |
//! |---|---|---|
//! | `BUSY` | by whoever appends to the log of the core | by it, when the append is over |
//! | `PENDING` | by a writer, after its entry stands in the pool; by a leader that leaves something there | by a leader, before it looks into the pool |
//! | `BROKEN` | when a leader panicked | never |
//! | `late`, of a group of several words | by a writer that found `BUSY` | by a leader, before it looks at the other cores |
//!
//! # Invariants
//! - W1: whoever clears `BUSY` and finds `PENDING`, or sets `PENDING` for what it leaves and finds the core not `BUSY`, wakes a writer
//!   whose entry waits there, so that it leads. A core that gathers needs nobody: it leads in a moment.
//! - W2: a writer that sets `PENDING` leads, or has seen `BUSY` after it set the bit: then W1 holds for whoever set that. So no
//!   entry is left alone.

use esker_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PENDING: u64 = 1;
const BUSY: u64 = 1 << 1;
const BROKEN: u64 = 1 << 2;

/// What came of an attempt to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The caller holds the log.
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

/// A hint on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Hint(AtomicBool);

#[derive(Debug)]
pub(super) struct Words {
    cores: Box<[Bits]>,
    late: Hint,
    /// One word for all cores.
    naive: bool,
}

impl Words {
    pub(super) fn new(cores: usize, naive: bool) -> Self {
        let words = if naive { 1 } else { cores };
        Words {
            cores: (0..words).map(|_| Bits(AtomicU64::new(0))).collect(),
            late: Hint(AtomicBool::new(false)),
            naive,
        }
    }

    /// Whether the cores have one word.
    pub(super) fn is_naive(&self) -> bool {
        self.naive
    }

    #[inline]
    fn of(&self, core: usize) -> &AtomicU64 {
        let index = if self.naive { 0 } else { core };
        #[expect(clippy::indexing_slicing, reason = "a core of the group has its word")]
        &self.cores[index].0
    }

    /// Takes the log of a core for a batch of one if there is nothing to collect, nor anybody to wait for.
    #[inline]
    pub(super) fn claim_alone(&self, core: usize) -> bool {
        !self.late.0.load(Ordering::Relaxed)
            && self.of(core).compare_exchange(0, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Says that an entry stands in the pool of a core.
    pub(super) fn announce(&self, core: usize) {
        self.of(core).fetch_or(PENDING, Ordering::AcqRel);
    }

    /// Becomes leader with the log of a core if something is pending and nobody is in the way.
    pub(super) fn claim(&self, core: usize) -> Claim {
        let leads = |bits| (bits == PENDING).then_some(BUSY);
        match self.of(core).fetch_update(Ordering::AcqRel, Ordering::Acquire, leads) {
            Ok(_) => Claim::Leads,
            Err(bits) if bits & BROKEN != 0 => Claim::Broken,
            Err(bits) => {
                if bits & BUSY != 0 {
                    self.be_late();
                }
                Claim::Waits
            }
        }
    }

    fn be_late(&self) {
        // Others have the line, too. With one word nobody looks around, and it would be so for ever.
        if self.cores.len() > 1 && !self.late.0.load(Ordering::Relaxed) {
            self.late.0.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a leader should look at the other cores; it does then.
    pub(super) fn look_around(&self) -> bool {
        self.naive
            || self.late.0.load(Ordering::Relaxed) && self.late.0.swap(false, Ordering::Relaxed)
    }

    /// Whether entries wait for a log that is at work: then a leader of another core is about to look into the pool.
    pub(super) fn begin_theft(&self, core: usize) -> bool {
        let late = |bits| (bits == BUSY | PENDING).then_some(BUSY);
        self.naive || self.of(core).fetch_update(Ordering::AcqRel, Ordering::Acquire, late).is_ok()
    }

    /// A leader has left something in the pool of a core. True: W1 asks the caller to see to it.
    pub(super) fn leave(&self, core: usize) -> bool {
        let is_busy = self.of(core).fetch_or(PENDING, Ordering::AcqRel) & BUSY != 0;
        if is_busy {
            self.be_late();
        }
        !is_busy
    }

    /// Gives the log of a core back. True: entries are pending, and W1 asks the caller to see to them.
    #[inline]
    pub(super) fn release(&self, core: usize) -> bool {
        self.of(core).fetch_and(!BUSY, Ordering::AcqRel) & PENDING != 0
    }

    /// No batch is to come of these cores any more.
    pub(super) fn break_down(&self) {
        self.cores.iter().for_each(|word| {
            word.0.fetch_or(BROKEN, Ordering::AcqRel);
        });
    }

    /// Whether nobody appends. `PENDING` may be left by a writer whose entry was collected before it said so.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.cores.iter().all(|word| word.0.load(Ordering::Acquire) & !PENDING == 0)
    }
}
