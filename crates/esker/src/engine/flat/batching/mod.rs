//! Batching: how entries of many writers become durable together (FlatStore §3.3).
//!
//! A writer gives its entry to [`Batcher::commit`], which returns where it landed once it is durable. In between the
//! entry stands in the *request pool* of the writer's core. Whoever finds the log of its core free leads: it collects the pending
//! entries of its core, and steals those of cores of its group whose logs are at work, appends the batch to the log
//! of its own core and tells the writers. Followers never wait for a lock. In a task the core goes on with other tasks; a
//! thread looks for its result for about the time of a batch, then it is blocked.
//!
//! The paper's leader takes the entries of all cores of its group. Here a fence costs 0.1 us, and to wake the task of another core ten times
//! that: so a core whose log is free is left alone, and batches of its own.
//!
//! There are no timers: a batch is what was pending when its leader came. A task lets the other ready
//! tasks of its core run once before it leads (*gathering*), so that a core that found eight requests in its sockets
//! writes one batch of eight; leaders of other cores leave its pool alone meanwhile. With nothing pending and nobody else ready, a writer appends its entry itself: two
//! atomic operations, no memory.
//!
//! The four models of FlatStore's Figure 4 are one mechanism with other bounds, see [`Batching`].
//!
//! # How an engine uses it
//! It implements [`Logs`] and asks [`Batcher::commit`] for each entry, with itself as the logs, after what the entry points at is
//! durable (l-persist), and updates its index afterwards (volatile phase). An entry may itself be several
//! that belong together: a batch holds it whole. Order of writes of one key is the engine's: a second
//! write of a key that is under way waits in its conflict queue, or lets versions decide.
//!
//! # Invariants
//! - B1: an entry is in one batch, once; its writer hears of it exactly once.
//! - B2: entries of one core's pool are collected in the order in which they were posted.
//! - B3: appends to one log never overlap.
//! - B4: no entry is left alone (`words`, W1 and W2).
//! - B5: a batch has at most `entries_max` entries and `size_bytes_max` bytes, or one entry.
//!
//! # Concurrency
//! Any threads and tasks. Locks of pools are short and never held over a wait. [`Logs::append`] may suspend the task.
//!
//! # Failure
//! An error of an append reaches the writers of that batch, all of them and no others; a log may also fail some of them
//! only ([`Slot::fail`]). Whether later appends are refused is for the log to say. After a leader panicked nothing is appended any more.

mod lead;
mod pool;
mod shim;
mod words;

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleave;
#[cfg(all(test, not(loom)))]
mod tested;
#[cfg(test)]
#[cfg(not(any(loom, feature = "shuttle")))]
mod tests;

use esker_base::striped::thread_number;
use esker_base::sync::Arc;
use esker_base::{Error, ErrorKind, Result};
use lead::{Group, Leader, broken};
use pool::{Duty, Pool, Seat};
use shim::{SPINS, TURNS};
use std::fmt;
use words::{Claim, Words};

/// The logs that batches go to: one for each core.
pub trait Logs: Send + Sync {
    /// What a writer wants appended.
    type Entry: Send;
    /// Where it landed.
    type Placed: Send;

    /// Bytes that the entry takes in a batch, for its limit.
    fn size_bytes(&self, entry: &Self::Entry) -> u64;

    /// Appends the entries of `batch` as one batch to the log of `core`, makes it durable, and gives each slot its
    /// place. Called for one batch at a time for each core, for several cores at once.
    ///
    /// # Errors
    /// Reach all writers of the batch.
    fn append(&self, core: usize, batch: &mut [Slot<Self::Entry, Self::Placed>]) -> Result<()>;
}

/// An entry of a batch, and where it landed.
#[derive(Debug)]
pub struct Slot<E, P> {
    entry: E,
    placed: Option<Result<P>>,
}

impl<E, P> Slot<E, P> {
    fn new(entry: E) -> Self {
        Slot { entry, placed: None }
    }

    /// What the writer wants appended.
    pub fn entry(&self) -> &E {
        &self.entry
    }

    /// Says where it landed; counts once the batch is durable.
    pub fn place(&mut self, placed: P) {
        self.placed = Some(Ok(placed));
    }

    /// Says that this entry is not in the batch, whatever becomes of the others.
    pub fn fail(&mut self, error: Error) {
        self.placed = Some(Err(error));
    }

    /// Whether [`Slot::fail`] was called.
    pub fn has_failed(&self) -> bool {
        matches!(self.placed, Some(Err(_)))
    }

    fn into_result(self) -> Result<P> {
        let forgotten = || {
            Error::new(ErrorKind::DurabilityUnknown, "append to log")
                .context("entry without a place")
        };
        self.placed.unwrap_or_else(|| Err(forgotten()))
    }
}

/// How entries come together: the execution models of FlatStore's Figure 4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Batching {
    /// Each entry is a batch.
    None,
    /// A core batches what its own writers want: groups of one core.
    Vertical,
    /// A core batches what all writers of its group want; the group is closed until the batch is durable.
    NaiveHorizontal,
    /// As before, and the group is open again once the entries are collected: batches of several logs overlap.
    #[default]
    PipelinedHorizontal,
}

impl Batching {
    /// Every model, in the order of the figure.
    pub const ALL: [Batching; 4] = [
        Batching::None,
        Batching::Vertical,
        Batching::NaiveHorizontal,
        Batching::PipelinedHorizontal,
    ];
}

/// What a [`Batcher`] is made for.
#[derive(Clone, Copy, Debug)]
pub struct BatchingOptions {
    /// The model.
    pub model: Batching,
    /// Number of logs, at least 1.
    pub cores: usize,
    /// Cores that steal each other's entries; 0 means those of one socket, as many as the first one has: tasks of a run-time are bound
    /// socket by socket, threads of a program are not bound.
    pub group_size: usize,
    /// Entries of a batch, at most; at least 1.
    pub entries_max: usize,
    /// Bytes of a batch, at most; an entry that is larger is a batch of its own.
    pub size_bytes_max: u64,
}

impl Default for BatchingOptions {
    fn default() -> Self {
        BatchingOptions {
            model: Batching::default(),
            cores: 1,
            group_size: 0,
            entries_max: 256,
            size_bytes_max: 64 << 10,
        }
    }
}

impl BatchingOptions {
    /// Cores of a group in the horizontal models.
    #[must_use]
    pub fn cores_together(&self) -> usize {
        let size = match self.group_size {
            0 => esker_trt::processors_of_a_socket(),
            size => size,
        };
        size.clamp(1, self.cores.max(1))
    }
}

/// Batches of many writers. See the module's text.
pub struct Batcher<L: Logs> {
    groups: Vec<Group<L::Entry, L::Placed>>,
    cores: usize,
    group_size: usize,
    entries_max: usize,
    bytes_max: u64,
}

/// An entry that was posted. It is collected by whoever leads; if nobody does, by [`Posted::wait`], which must follow.
#[must_use = "nobody may lead for it before it is waited for"]
pub struct Posted<'a, L: Logs> {
    batcher: &'a Batcher<L>,
    logs: &'a L,
    core: usize,
    seat: Option<Arc<Seat<L::Placed>>>,
}

/// A log that was taken for a batch of one.
#[must_use = "it is given back by `append`"]
pub struct Alone<'a, L: Logs> {
    batcher: &'a Batcher<L>,
    group: &'a Group<L::Entry, L::Placed>,
    log: usize,
    done: bool,
}

impl<L: Logs> Batcher<L> {
    /// A batcher in front of `options.cores` logs: every call is given the same ones.
    pub fn new(options: BatchingOptions) -> Self {
        let cores = options.cores.max(1);
        let group_size = match options.model {
            Batching::None | Batching::Vertical => 1,
            Batching::NaiveHorizontal | Batching::PipelinedHorizontal => options.cores_together(),
        };
        let entries_max = match options.model {
            Batching::None => 1,
            _ => options.entries_max.max(1),
        };
        let group = |first: usize| Group {
            words: Words::new(
                group_size.min(cores - first),
                options.model == Batching::NaiveHorizontal,
            ),
            first,
            pools: (first..cores.min(first + group_size)).map(|_| Pool::new()).collect(),
        };
        Batcher {
            groups: (0..cores).step_by(group_size).map(group).collect(),
            cores,
            group_size,
            entries_max,
            bytes_max: options.size_bytes_max,
        }
    }

    /// Appends `entry` to the log of this core, or lets another core take it along, and returns its place once it is
    /// durable. Blocks the thread or suspends the task. Not ended by a shutdown of the run-time.
    ///
    /// # Errors
    /// Those of [`Logs::append`]; `ReadOnly` after a leader panicked, `DurabilityUnknown` if it was the leader of this
    /// entry's batch.
    #[inline]
    pub fn commit(&self, logs: &L, entry: L::Entry) -> Result<L::Placed> {
        self.commit_on(logs, self.here(), entry)
    }

    /// As [`Batcher::commit`], from the core `core`, counted from 0 and taken modulo the number of cores.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn commit_on(&self, logs: &L, core: usize, entry: L::Entry) -> Result<L::Placed> {
        match self.alone(core) {
            None => self.post_on(logs, core, entry).wait(),
            Some(alone) => alone.append(|core| {
                let mut slots = [Slot::new(entry)];
                logs.append(core, &mut slots)?;
                let [slot] = slots;
                slot.into_result()
            }),
        }
    }

    /// The log of the core `core` for a batch of one; `None` if there are others to share a batch with: then post.
    #[inline]
    pub fn alone(&self, core: usize) -> Option<Alone<'_, L>> {
        let (group, log) = self.place(core);
        let free = !esker_trt::others_ready() && group.words.claim_alone(log);
        free.then(|| Alone { batcher: self, group, log, done: false })
    }

    /// Posts `entry` for whoever leads next. A writer with several entries posts them all, then waits for each.
    pub fn post<'a>(&'a self, logs: &'a L, entry: L::Entry) -> Posted<'a, L> {
        self.post_on(logs, self.here(), entry)
    }

    pub(super) fn post_on<'a>(
        &'a self,
        logs: &'a L,
        core: usize,
        entry: L::Entry,
    ) -> Posted<'a, L> {
        let (group, log) = self.place(core);
        let size_bytes = logs.size_bytes(&entry);
        let seat = pool(group, log).post(entry, size_bytes);
        group.words.announce(log);
        Posted { batcher: self, logs, core, seat: Some(seat) }
    }

    /// The group of a core, and the core's number in it.
    #[inline]
    fn place(&self, core: usize) -> (&Group<L::Entry, L::Placed>, usize) {
        let core = if core < self.cores { core } else { core % self.cores };
        let (group, log) = if core < self.group_size {
            (0, core)
        } else {
            (core / self.group_size, core % self.group_size)
        };
        #[expect(clippy::indexing_slicing, reason = "a core below their number has its group")]
        (&self.groups[group], log)
    }

    /// The core of the calling task, or the one that is the calling thread's for good: counted from 0, taken modulo their number.
    /// In a simulation, where one core runs all tasks, any.
    #[inline]
    pub(super) fn here(&self) -> usize {
        match esker_trt::current_core() {
            Some(core) => match esker_trt::sim::random(self.cores as u64) {
                Some(core) => usize::try_from(core).unwrap_or(0),
                None => usize::from(core.0),
            },
            None => thread_number(),
        }
    }

    /// No batch is to come any more.
    fn break_down(&self) {
        self.groups.iter().for_each(|group| group.words.break_down());
        self.groups.iter().for_each(Group::fail_pending);
    }
}

#[inline]
fn pool<E, P>(group: &Group<E, P>, log: usize) -> &Pool<E, P> {
    #[expect(clippy::indexing_slicing, reason = "a core of the group has its pool")]
    &group.pools[log]
}

impl<L: Logs> fmt::Debug for Batcher<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher")
            .field("cores", &self.cores)
            .field("group_size", &self.group_size)
            .field("entries_max", &self.entries_max)
            .field("size_bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

impl<L: Logs> fmt::Debug for Posted<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posted").field("core", &self.core).finish_non_exhaustive()
    }
}

impl<L: Logs> Posted<'_, L> {
    /// Waits until the entry is durable; leads if nobody else does.
    ///
    /// # Errors
    /// As [`Batcher::commit`].
    pub fn wait(mut self) -> Result<L::Placed> {
        // Only `wait` takes it, and consumes its owner.
        let Some(seat) = self.seat.take() else { return Err(broken()) };
        let (group, log) = self.batcher.place(self.core);
        let pool = pool(group, log);
        let result = loop {
            if let Some(result) = seat.take() {
                break result;
            }
            let gathers = || OnDuty::begin(group, log, Duty::Gathering);
            if let Some(gathering) = esker_trt::others_ready().then(gathers).flatten() {
                esker_trt::yield_now();
                drop(gathering);
                // Also when its own entry was taken along: other tasks rely on it.
                self.batcher.lead(self.logs, group, log);
            } else if pool.listen(&seat) || !self.batcher.lead(self.logs, group, log) {
                group.wait_for_bell(log, &seat);
            }
        };
        pool.leave(seat);
        result
    }
}

impl<L: Logs> Batcher<L> {
    /// Leads if it can and anything is pending; false if the caller had better wait.
    fn lead(&self, logs: &L, group: &Group<L::Entry, L::Placed>, log: usize) -> bool {
        let claim = group.words.claim(log);
        match claim {
            Claim::Leads => Leader::new(self, logs, group, log).lead(),
            // An entry that was collected before hears from its leader.
            Claim::Broken => group.fail_pending(),
            Claim::Waits => {}
        }
        claim == Claim::Leads
    }
}

impl<E, P> Group<E, P> {
    /// Waits for the bell of a writer of the core `log`; first for about the time of a batch without being blocked. Of the
    /// tasks of a core one does so, and others run in between: the core does not fall asleep over a batch that another core is
    /// about to finish.
    fn wait_for_bell(&self, log: usize, seat: &Seat<P>) {
        let is_over = || seat.is_done() || seat.bell.is_set();
        if !esker_trt::in_task() {
            let turn = |_| esker_base::sync::hint::spin_loop();
            (0..SPINS).take_while(|_| !is_over()).for_each(turn);
        } else if let Some(_lingering) = OnDuty::begin(self, log, Duty::Lingering) {
            (0..TURNS).take_while(|_| !is_over()).for_each(|_| esker_trt::yield_now());
        }
        if !seat.is_done() {
            seat.bell.wait();
        }
    }
}

impl<L: Logs> Alone<'_, L> {
    /// Does the append, given the number of the log's core, and gives the log back.
    #[inline]
    pub fn append<R>(mut self, append: impl FnOnce(usize) -> R) -> R {
        let result = append(self.group.first + self.log);
        self.done = true;
        self.group.finish(self.log);
        result
    }
}

impl<L: Logs> Drop for Alone<'_, L> {
    fn drop(&mut self) {
        if !self.done {
            self.batcher.break_down();
        }
    }
}

impl<L: Logs> fmt::Debug for Alone<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alone").field("log", &self.log).finish_non_exhaustive()
    }
}

/// Says that a task of a core has a duty, until it is dropped.
struct OnDuty<'a, E, P> {
    group: &'a Group<E, P>,
    log: usize,
    duty: Duty,
}

impl<'a, E, P> OnDuty<'a, E, P> {
    fn begin(group: &'a Group<E, P>, log: usize, duty: Duty) -> Option<Self> {
        pool(group, log).begin(duty).then(|| OnDuty { group, log, duty })
    }
}

impl<E, P> Drop for OnDuty<'_, E, P> {
    fn drop(&mut self) {
        pool(self.group, self.log).end(self.duty);
        if self.duty == Duty::Gathering && std::thread::panicking() {
            // The task is unwound instead of leading: somebody else must.
            self.group.rouse(self.log);
        }
    }
}
