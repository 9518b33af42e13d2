//! The log's end: batches form here and become durable, many writers with one flush.
//!
//! FlatStore's horizontal batching (FlatStore §3.3) as group commit without timers: the first
//! writer of a batch is its leader; whatever arrives while the batch before is in flight joins.
//! A leader writes its batch, publishes its records and wakes everyone, then hands the baton to
//! the leader of the next batch.
//!
//! # Invariants
//! - C1: one leader at a time; batches go to media in the order of their versions, and the next
//!   one is written only after the one before was (in `sync`: is durable).
//! - C2: a record is published after its batch is durable (in `periodic` and `none`: written), so
//!   nobody reads what a crash can take back from under `sync`.
//! - C3: a record that was appended has its place: room is counted under the lock that appends, so
//!   a batch never fails for lack of space.
//! - C4: after a failed write or flush nothing more is written until the store is opened again.
//!
//! # Concurrency
//! `state` is a short lock, never held across I/O. Lock order: stripe of pending keys, then `state`.
//!
//! # Failure
//! A crash leaves a prefix of the batches, of which the last may be torn. The writers of a failed
//! batch get `DurabilityUnknown`, everyone after them `ReadOnly`.

use super::layout::Layout;
use super::place::{Entry, Tail};
use super::{Depot, sites};
use esker_base::ids::{SegmentEpoch, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::depot::{BATCH_HEADER_SIZE, BatchKind, RecordKind, RecordMeta, encode_record};
use esker_media::{BufferPool, IoBuf};
use esker_trt::sync::Gate;
use parking_lot::Mutex;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A batch takes no more records once it is this long, in bytes.
const BATCH_SIZE_SOFT_MAX: usize = 1 << 20;
/// Room of a fresh batch buffer in bytes.
const BATCH_BUFFER_SIZE: usize = 64 << 10;

/// What the writers of one batch wait for.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    done: Gate,
    baton: Gate,
    failure: OnceLock<Error>,
}

impl Ticket {
    /// Waits until the batch is published, or failed.
    pub(super) fn wait(&self) -> Result<()> {
        self.done.wait();
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// What a writer does after it appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// First of its batch while no leader is at work: leads at once.
    Leader,
    /// First of its batch: leads when the baton comes.
    Heir,
    /// Waits for the leader.
    Follower,
}

/// A writer's place in a batch.
#[derive(Debug)]
pub(super) struct Appended {
    pub(super) version: Version,
    pub(super) ticket: Arc<Ticket>,
    role: Role,
}

/// What became of an append.
pub(super) enum Append {
    Done(Appended),
    /// The batch is full: wait for it and come again.
    Full(Arc<Ticket>),
}

/// The batch that forms.
#[derive(Debug)]
struct Filling {
    buffer: IoBuf,
    used: usize,
    entries: Vec<Entry>,
    first_version: Version,
    ticket: Arc<Ticket>,
}

impl Filling {
    fn new(pool: &BufferPool, first_version: Version) -> Self {
        let buffer = pool.get(BATCH_BUFFER_SIZE);
        Filling {
            buffer,
            used: BATCH_HEADER_SIZE,
            entries: Vec::new(),
            first_version,
            ticket: Arc::default(),
        }
    }

    /// Makes the buffer at least `needed` bytes long.
    fn reserve(&mut self, pool: &BufferPool, needed: usize) {
        if self.buffer.len() < needed {
            let mut larger = pool.get(needed.next_power_of_two());
            if let (Some(to), Some(from)) =
                (larger.get_mut(..self.used), self.buffer.get(..self.used))
            {
                to.copy_from_slice(from);
            }
            self.buffer = larger;
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    filling: Filling,
    leading: bool,
    in_flight: Option<Arc<Ticket>>,
    pub(super) tail: Option<Tail>,
    pub(super) next_epoch: SegmentEpoch,
    next_version: Version,
    clear_version: Version,
    /// Records below are published.
    published: Version,
    /// Records below are durable.
    durable: Version,
    failure: Option<Error>,
    closed: bool,
    wrote: bool,
}

/// What recovery knows of the log's end.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEnd {
    pub(super) tail: Option<Tail>,
    pub(super) next_epoch: SegmentEpoch,
    pub(super) next_version: Version,
    pub(super) clear_version: Version,
}

#[derive(Debug)]
pub(super) struct Log {
    state: Mutex<State>,
    /// As in `state`, for readers, who do not take the lock.
    closed: AtomicBool,
}

impl Log {
    pub(super) fn new(pool: &BufferPool, end: LogEnd) -> Self {
        Log {
            state: Mutex::new(State {
                filling: Filling::new(pool, end.next_version),
                leading: false,
                in_flight: None,
                tail: end.tail,
                next_epoch: end.next_epoch,
                next_version: end.next_version,
                clear_version: end.clear_version,
                published: end.next_version,
                durable: end.next_version,
                failure: None,
                closed: false,
                wrote: false,
            }),
            closed: AtomicBool::new(false),
        }
    }

    /// Version of the next record.
    pub(super) fn next_version(&self) -> Version {
        self.state.lock().next_version
    }

    /// Why the store is read-only, if it is.
    pub(super) fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
    }

    /// Records of lower versions were cleared.
    pub(super) fn clear_version(&self) -> Version {
        self.state.lock().clear_version
    }

    /// Everything up to `version` was cleared.
    pub(super) fn cleared(&self, version: Version) {
        self.state.lock().clear_version = Version(version.0 + 1);
    }

    /// Whether the store was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl State {
    fn refuse(&self) -> Result<()> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed, "write store"));
        }
        match &self.failure {
            Some(cause) => Err(read_only(cause)),
            None => Ok(()),
        }
    }

    /// Whether a batch of `total` bytes fits behind the tail.
    pub(super) fn fits(&self, layout: &Layout, total: u64) -> bool {
        self.tail.is_some_and(|tail| {
            let barrier = if tail.barrier_due { layout.block } else { 0 };
            tail.position + barrier + total <= layout.batches_end()
        })
    }
}

fn read_only(cause: &Error) -> Error {
    Error::new(ErrorKind::ReadOnly, "write store").source(cause.clone())
}

impl Depot {
    /// Appends a record to the batch that forms. The caller holds the key's stripe.
    pub(super) fn append(
        &self,
        hash: u64,
        meta: RecordMeta,
        key: &[u8],
        value: &[u8],
    ) -> Result<Append> {
        let mut guard = self.log.state.lock();
        let state = &mut *guard;
        state.refuse()?;
        let size = meta.size_bytes(key.len(), value.len());
        let used = state.filling.used + size;
        let total = self.layout.blocks(used as u64);
        let full = total > self.layout.batch_max() || used > BATCH_SIZE_SOFT_MAX;
        if full && !state.filling.entries.is_empty() {
            return Ok(Append::Full(Arc::clone(&state.filling.ticket)));
        }
        if !state.fits(&self.layout, total) {
            // C3. Deletes may use the reserve.
            let kept = if meta.kind == RecordKind::Put { self.segments.reserve() } else { 0 };
            if self.segments.free_count() <= kept {
                return Err(Error::new(ErrorKind::NoSpace, "write store").context(format!(
                    "all {} segments hold live records",
                    self.layout.segment_count
                )));
            }
        }
        let meta = RecordMeta { version: state.next_version, ..meta };
        state.filling.reserve(&self.pool, usize::try_from(total).unwrap_or(used));
        let start = state.filling.used;
        if let Some(out) = state.filling.buffer.get_mut(start..used) {
            encode_record(out, &meta, key, value);
        }
        state.filling.used = used;
        let first = state.filling.entries.is_empty();
        state.filling.entries.push(Entry { hash, start, size });
        state.next_version.0 += 1;
        let role = match (first, state.leading) {
            (true, false) => Role::Leader,
            (true, true) => Role::Heir,
            (false, _) => Role::Follower,
        };
        state.leading = true;
        Ok(Append::Done(Appended {
            version: meta.version,
            ticket: Arc::clone(&state.filling.ticket),
            role,
        }))
    }

    /// Does a writer's share of the commit and waits until its record is published.
    pub(super) fn finish(&self, appended: &Appended) -> Result<()> {
        match appended.role {
            Role::Leader => self.lead(),
            Role::Heir => {
                appended.ticket.baton.wait();
                self.lead();
            }
            Role::Follower if sites::ACK_WAIT.disabled() => return Ok(()),
            Role::Follower => {}
        }
        appended.ticket.wait()
    }

    /// Brings the batch that formed to media, publishes it, and hands the baton on.
    fn lead(&self) {
        let (batch, plan, durable) = {
            let mut guard = self.log.state.lock();
            let state = &mut *guard;
            let fresh = Filling::new(&self.pool, state.next_version);
            let batch = std::mem::replace(&mut state.filling, fresh);
            state.in_flight = Some(Arc::clone(&batch.ticket));
            let plan = match &state.failure {
                Some(cause) => Err(read_only(cause)),
                None => self.place(state, batch.used),
            };
            (batch, plan, state.durable)
        };
        let end = Version(batch.first_version.0 + batch.entries.len() as u64);
        let written = plan.and_then(|plan| {
            let written = self.write_batch(
                batch.buffer,
                batch.used,
                &batch.entries,
                batch.first_version,
                durable,
                &plan,
            );
            let (buffer, durable) = written.map_err(|error| self.poison(&error))?;
            self.publish(&buffer, &batch.entries, &plan);
            Ok(durable)
        });
        let next = {
            let mut guard = self.log.state.lock();
            let state = &mut *guard;
            if let Ok(durable) = written {
                state.durable = state.durable.max(durable);
                state.published = end;
                state.wrote = true;
            }
            state.in_flight = None;
            state.leading = !state.filling.entries.is_empty();
            state.leading.then(|| Arc::clone(&state.filling.ticket))
        };
        if let Err(error) = written {
            // Its keys stay pending: nothing is decided on them any more (C4).
            let _ = batch.ticket.failure.set(error);
        }
        // The next leader first: its write goes out while the followers of this batch wake up.
        if let Some(next) = next {
            next.baton.open();
        }
        batch.ticket.done.open();
    }

    /// Notes a failure: nothing is written any more. Returns what the writers concerned are told.
    pub(super) fn poison(&self, cause: &Error) -> Error {
        let mut state = self.log.state.lock();
        if state.failure.is_none() {
            tracing::error!(error = %cause, "a write failed: the store is read-only until reopened");
            state.failure = Some(cause.clone());
        }
        Error::new(ErrorKind::DurabilityUnknown, "write store").source(cause.clone())
    }

    /// Makes everything durable that was published.
    pub(super) fn flush_published(&self) -> Result<()> {
        let published = {
            let state = self.log.state.lock();
            if let Some(cause) = &state.failure {
                return Err(read_only(cause));
            }
            if state.durable >= state.published {
                return Ok(());
            }
            state.published
        };
        // PERSIST: all batches that were written before.
        self.device.flush(sites::SYNC_FLUSH).map_err(|error| self.poison(&error))?;
        let mut state = self.log.state.lock();
        state.durable = state.durable.max(published);
        Ok(())
    }

    /// Waits for the writers under way, refuses others, and marks the end of the log.
    pub(super) fn close_log(&self) -> Result<()> {
        loop {
            let ticket = {
                let mut state = self.log.state.lock();
                state.closed = true;
                self.log.closed.store(true, Ordering::Release);
                if !state.leading {
                    break;
                }
                let forming = &state.filling;
                state.in_flight.clone().unwrap_or_else(|| Arc::clone(&forming.ticket))
            };
            // Its writers hear of a failure; here it shows below.
            let _ = ticket.wait();
        }
        self.flush_published()?;
        let (tail, version) = {
            let mut state = self.log.state.lock();
            if !std::mem::take(&mut state.wrote) {
                return Ok(());
            }
            (state.tail, state.next_version)
        };
        let Some(tail) = tail.filter(|tail| tail.position < self.layout.batches_end()) else {
            return Ok(());
        };
        let offset = self.layout.segment_offset(tail.segment) + tail.position;
        let end = Tail { session: self.random(), ..tail };
        let barrier = self.marker(BatchKind::Barrier, &end, offset, version, version);
        // PERSIST: everything before is durable; this says so to recovery.
        self.device
            .write_durable_at(sites::CLOSE_WRITE, offset, &[IoSlice::new(&barrier)])
            .map_err(|error| self.poison(&error))
    }
}
