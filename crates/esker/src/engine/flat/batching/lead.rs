//! Leading: collect what is pending in the group, let go of the group, append, tell the writers.
//!
//! # Invariants
//! - L1: an entry that was taken from a pool gets its result, whatever becomes of its leader: a leader that
//!   unwinds fails its batch and the batcher.
//!
//! # Concurrency
//! A leader owns its log's bit of the group's word, so one append at a time goes to a log.

use super::pool::{Collected, Pool, Seat};
use super::word::Word;
use super::{Batcher, Logs, Slot, pool};
use esker_base::sync::Arc;
use esker_base::{Error, ErrorKind, Result};

/// The memory of a batch, used again.
#[derive(Debug)]
pub(super) struct Batch<E, P> {
    slots: Vec<Slot<E, P>>,
    seats: Vec<Arc<Seat<P>>>,
    size_bytes: u64,
}

impl<E, P> Batch<E, P> {
    pub(super) fn new() -> Self {
        Batch { slots: Vec::new(), seats: Vec::new(), size_bytes: 0 }
    }
}

/// A group of cores that steal each other's entries.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Group<E, P> {
    pub(super) word: Word,
    /// Number of the first core.
    pub(super) first: usize,
    pub(super) pools: Vec<Pool<E, P>>,
}

impl<E, P> Group<E, P> {
    /// Gives a log back, and the group if it was `collecting`, and sees to what is pending (W1).
    #[inline]
    pub(super) fn finish(&self, log: usize, collecting: bool) {
        if self.word.release(log, collecting) {
            self.rouse(log);
        }
    }

    /// Wakes a writer whose entry waits, so that it leads: first of the core whose log is free now.
    pub(super) fn rouse(&self, log: usize) {
        let first = self.from(log).find_map(|core| pool(self, core).first());
        if let Some(seat) = first {
            seat.bell.set();
        }
    }

    /// The cores, beginning with `log`.
    fn from(&self, log: usize) -> impl Iterator<Item = usize> + use<E, P> {
        let cores = self.pools.len();
        (log..cores).chain(0..log.min(cores))
    }

    /// Fails what waits: nobody leads any more.
    pub(super) fn fail_pending(&self) {
        for pool in &self.pools {
            let mut failed = Vec::new();
            pool.collect(false, |_| true, |posted| failed.push(posted.seat));
            failed.iter().for_each(|seat| seat.deliver(Err(broken())));
        }
    }
}

/// What writers are told after a leader panicked.
pub(super) fn broken() -> Error {
    Error::new(ErrorKind::ReadOnly, "append to log").context("the leader of a batch panicked")
}

/// A leader at work.
pub(super) struct Leader<'a, L: Logs> {
    batcher: &'a Batcher<L>,
    logs: &'a L,
    group: &'a Group<L::Entry, L::Placed>,
    /// Number of the core in its group.
    log: usize,
    batch: Batch<L::Entry, L::Placed>,
    collecting: bool,
    done: bool,
}

impl<'a, L: Logs> Leader<'a, L> {
    /// For whoever claimed log and group.
    pub(super) fn new(
        batcher: &'a Batcher<L>,
        logs: &'a L,
        group: &'a Group<L::Entry, L::Placed>,
        log: usize,
    ) -> Self {
        Leader { batcher, logs, group, log, batch: Batch::new(), collecting: true, done: false }
    }

    /// Collects, appends, and tells the writers.
    pub(super) fn lead(mut self) {
        self.batch = self.batcher.spare.lock().pop().unwrap_or_else(Batch::new);
        let left = loop {
            let left = self.collect();
            if self.group.word.end_collection(left) {
                break left;
            }
        };
        self.collecting = false;
        let cores = self.group.pools.len();
        if left == Collected::Full && cores > 1 {
            // W1, already: another core may lead what is left while this log is at work.
            self.group.rouse((self.log + 1) % cores);
        }
        let result = if self.batch.slots.is_empty() {
            Ok(())
        } else {
            self.logs.append(self.group.first + self.log, &mut self.batch.slots)
        };
        // The next batch first: it is written while the writers of this one wake up.
        self.finish();
        self.tell(&result);
        self.batcher.spare.lock().push(std::mem::replace(&mut self.batch, Batch::new()));
    }

    /// Takes what is pending, as far as there is room.
    fn collect(&mut self) -> Collected {
        let Batch { slots, seats, size_bytes } = &mut self.batch;
        let (entries_max, bytes_max) = (self.batcher.entries_max, self.batcher.bytes_max);
        let mut count = slots.len();
        let mut left = Collected::All;
        for core in self.group.from(self.log) {
            let fits = |size: u64| {
                let bytes = size_bytes.saturating_add(size);
                let room = count == 0 || (count < entries_max && bytes <= bytes_max);
                if room {
                    (count, *size_bytes) = (count + 1, bytes);
                }
                room
            };
            self.group.word.look(core);
            let kept = pool(self.group, core).collect(core != self.log, fits, |posted| {
                slots.push(Slot::new(posted.entry));
                seats.push(posted.seat);
            });
            if kept != Collected::All {
                self.group.word.leave(core);
            }
            left = left.max(kept);
            if left == Collected::Full {
                break;
            }
        }
        left
    }

    fn tell(&mut self, result: &Result<()>) {
        self.batch.size_bytes = 0;
        for (slot, seat) in self.batch.slots.drain(..).zip(self.batch.seats.drain(..)) {
            seat.deliver(match result {
                Ok(()) => slot.into_result(),
                Err(error) => Err(error.clone()),
            });
        }
    }

    fn finish(&mut self) {
        self.done = true;
        self.group.finish(self.log, self.collecting);
    }
}

impl<L: Logs> Drop for Leader<'_, L> {
    fn drop(&mut self) {
        if !self.done {
            // L1: the append may have begun, and the log is in a state that nobody knows.
            self.batcher.break_down();
            self.tell(&Err(broken().with_kind(ErrorKind::DurabilityUnknown)));
        }
    }
}
