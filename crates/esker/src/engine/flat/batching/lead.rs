//! Leading: collect what is pending in the core's pool and in those of cores whose logs are at work, append, tell the writers.
//!
//! # Invariants
//! - L1: an entry that was taken from a pool gets its result, whatever becomes of its leader: a leader that
//!   unwinds fails its batch and the batcher.
//!
//! # Concurrency
//! A leader owns its log's word, so one append at a time goes to a log.

use super::pool::{Collected, Pool, Seat};
use super::words::Words;
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
    pub(super) words: Words,
    /// Number of the first core.
    pub(super) first: usize,
    pub(super) pools: Vec<Pool<E, P>>,
}

impl<E, P> Group<E, P> {
    /// Gives a log back, and sees to what is pending (W1).
    #[inline]
    pub(super) fn finish(&self, log: usize) {
        if self.words.release(log) {
            self.rouse(log);
        }
    }

    /// Wakes a writer whose entry waits for this log, so that it leads.
    pub(super) fn rouse(&self, log: usize) {
        let cores = if self.words.is_naive() { self.pools.len() } else { 1 };
        let first = self.from(log).take(cores).find_map(|core| pool(self, core).first());
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
    done: bool,
}

impl<'a, L: Logs> Leader<'a, L> {
    /// For whoever claimed the log.
    pub(super) fn new(
        batcher: &'a Batcher<L>,
        logs: &'a L,
        group: &'a Group<L::Entry, L::Placed>,
        log: usize,
    ) -> Self {
        Leader { batcher, logs, group, log, batch: Batch::new(), done: false }
    }

    /// Collects, appends, and tells the writers.
    pub(super) fn lead(mut self) {
        let spare = &pool(self.group, self.log).spare;
        self.batch = spare.lock().take().unwrap_or_else(Batch::new);
        self.collect();
        let result = if self.batch.slots.is_empty() {
            Ok(())
        } else {
            self.logs.append(self.group.first + self.log, &mut self.batch.slots)
        };
        // The next batch first: it is written while the writers of this one wake up.
        self.finish();
        self.tell(&result);
        *spare.lock() = Some(std::mem::replace(&mut self.batch, Batch::new()));
    }

    /// Takes what is pending: of its own core, and of those that cannot append it now. To wake another core costs more than the
    /// fence that is saved, so who can lead is left alone.
    fn collect(&mut self) {
        let group = self.group;
        self.take(self.log);
        if group.pools.len() > 1 && group.words.look_around() {
            let others = group.from(self.log).skip(1);
            others.filter(|core| group.words.begin_theft(*core)).for_each(|core| self.take(core));
        }
    }

    /// Takes what waits in the pool of a core, as far as there is room.
    fn take(&mut self, core: usize) {
        let Batch { slots, seats, size_bytes } = &mut self.batch;
        let (entries_max, bytes_max) = (self.batcher.entries_max, self.batcher.bytes_max);
        let mut count = slots.len();
        let fits = |size: u64| {
            let bytes = size_bytes.saturating_add(size);
            let room = count == 0 || (count < entries_max && bytes <= bytes_max);
            if room {
                (count, *size_bytes) = (count + 1, bytes);
            }
            room
        };
        let left = pool(self.group, core).collect(core != self.log, fits, |posted| {
            slots.push(Slot::new(posted.entry));
            seats.push(posted.seat);
        });
        if left != Collected::All && self.group.words.leave(core) {
            self.group.rouse(core);
        }
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
        self.group.finish(self.log);
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
