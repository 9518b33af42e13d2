//! The log's end: batches form here and become durable, many writers with one flush.
//!
//! FlatStore's horizontal batching (FlatStore §3.3) as group commit: the first
//! writer of a batch is its leader; whatever arrives while the batch before is in flight joins.
//! A leader writes its batch, publishes its records and wakes everyone, then hands the baton to
//! the leader of the next batch. A leader first waits for those who are expected back from the batch before
//! (`gather`), for at most half the time of a write: they share its write instead of the next one, and
//! fewer blocks are padded. The last few records go into the next batch where that saves most of a block (`leave_some`).
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
//! The lock of the log's state (`log`) is short, never held across I/O. Lock order: stripe of pending keys, then that one.
//!
//! # Failure
//! A crash leaves a prefix of the batches, of which the last may be torn. The writers of a failed
//! batch get `DurabilityUnknown`, everyone after them `ReadOnly`.

use super::batch::{Batch, Need};
use super::log::{Filling, State, Ticket, read_only};
use super::place::{Plan, Tail};
use super::{Depot, sites};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::{Sequence, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::depot::{BatchKind, RecordKind, RecordMeta, Stream, VersionForm};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A batch takes no more records once it is this long, in bytes.
const BATCH_SIZE_SOFT_MAX: u64 = 1 << 20;
/// A leader waits for other writers for this part of the time that a write takes, at most.
const GATHER_SHARE: u32 = 2;
/// And for so long, at most.
const GATHER_MAX: Duration = Duration::from_millis(2);
/// In so many steps, at most; sleeping if it is to be so long, else giving way.
const GATHER_STEPS: u32 = 64;
const GATHER_SLEEP_MIN: Duration = Duration::from_micros(400);
/// How often, and after what time each, a batch is tried again that found no segment and no borrowed one.
const ROOM_TRIES: u32 = 1000;
const ROOM_PERIOD: Duration = Duration::from_millis(1);
/// Batches that nobody waits for after one that was waited for in vain.
const HURRY: u32 = 16;

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
    /// Version of the first record.
    pub(super) version: Version,
    pub(super) ticket: Arc<Ticket>,
    role: Role,
}

/// A record to append; its version is given then.
pub(super) struct Item<'a> {
    pub(super) hash: u64,
    pub(super) meta: RecordMeta,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

/// What became of an append.
pub(super) enum Append {
    Done(Appended),
    /// The batch is full: wait for it and come again.
    Full(Arc<Ticket>),
    /// The segments are full: clean until more than so many are free, and come again.
    NoRoom(usize),
}

/// What writers are told of a write that failed.
fn in_doubt(cause: &Error) -> Error {
    Error::new(ErrorKind::DurabilityUnknown, "write store").source(cause.clone())
}

fn tell_failure(cause: &Error) {
    tracing::error!(error = %cause, "a write failed: the store is read-only until reopened");
}

/// The turn of a leader, from when its batch is nobody else's.
struct Turn<'d> {
    depot: &'d Depot,
    ticket: Arc<Ticket>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.depot.give_up(&self.ticket);
        }
    }
}

impl Depot {
    /// Refuses what no batch can hold.
    pub(super) fn check_need(&self, need: Need) -> Result<()> {
        if self.fits_any(need) {
            return Ok(());
        }
        let words = format!("{} bytes are more than a batch can hold", need.used);
        Err(Error::invalid("write store", words))
    }

    /// As [`Depot::append`] would refuse these records, without appending them.
    pub(super) fn check_batch(&self, items: &[Item<'_>]) -> Result<()> {
        let batch = Batch::new(&self.pool, &self.layout, Sequence(0), VersionForm::Distance);
        let shapes = items.iter().map(|item| batch.shape(&item.meta, item.key, item.value));
        self.check_need(batch.need(shapes))
    }

    /// Appends records to the batch that forms, side by side. The caller holds the keys' stripes.
    pub(super) fn append(&self, items: &[Item<'_>]) -> Result<Append> {
        let mut guard = self.log.state.lock();
        let state = &mut *guard;
        state.refuse()?;
        let batch = &state.filling.batch;
        let need =
            batch.need(items.iter().map(|item| batch.shape(&item.meta, item.key, item.value)));
        let full = !self.fits_any(need)
            || need.used > BATCH_SIZE_SOFT_MAX
            || self.ends_segment(state.tail.as_ref(), batch, need)
            || batch.keeps_apart(items.iter().map(|item| item.meta.kind));
        if full && !batch.entries.is_empty() {
            return Ok(Append::Full(Arc::clone(&state.filling.ticket)));
        }
        self.check_need(need)?;
        if !self.fits(state.tail.as_ref(), need, batch.first) {
            // C3.
            let kept = self.kept_for(items);
            // What is live is looked at once for each batch.
            let crowded = batch.entries.is_empty() && self.is_crowded_for(kept);
            if crowded || !self.segments.has_more_than(kept) {
                return Ok(Append::NoRoom(kept));
            }
        }
        state.filling.starts.push(batch.entries.len());
        let version = state.next_version;
        for item in items {
            let meta = RecordMeta { version: state.next_version, ..item.meta };
            state.filling.batch.push(&self.pool, item.hash, &meta, item.key, item.value);
            state.next_version.0 += 1;
        }
        let role = match (std::mem::replace(&mut state.filling.has_heir, true), state.leading) {
            (false, false) => Role::Leader,
            (false, true) => Role::Heir,
            (true, _) => Role::Follower,
        };
        state.leading = true;
        Ok(Append::Done(Appended { version, ticket: Arc::clone(&state.filling.ticket), role }))
    }

    /// Free segments that these records leave alone: deletes may use more of the reserve than puts.
    pub(super) fn kept_for(&self, items: &[Item<'_>]) -> usize {
        let frees =
            |item: &Item<'_>| item.meta.kind.is_tombstone() || item.meta.kind == RecordKind::Clear;
        if !items.iter().all(frees) {
            self.segments.reserve_of_puts()
        } else {
            self.segments.reserve_of_deletes()
        }
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
        appended.ticket.wait_for(appended.version)
    }

    /// Waits for the writers of the batch before to append again, so that two crowds that take turns become one: for a
    /// part of the time that a write takes, counted from the end of the last one. Where that did not bring them, nobody
    /// waits for some batches.
    fn gather(&self) {
        let (limit, end) = {
            let state = self.log.state.lock();
            let limit = (state.write_time / GATHER_SHARE).min(GATHER_MAX);
            (limit, state.wrote_at + limit)
        };
        for step in 0..GATHER_STEPS {
            let (records, expected, hurry) = {
                let state = self.log.state.lock();
                (state.filling.batch.entries.len(), state.expected, state.hurry)
            };
            if records >= expected || hurry > 0 || self.clock.monotonic() >= end {
                return;
            }
            if limit >= GATHER_SLEEP_MIN {
                esker_trt::sleep(limit / (GATHER_STEPS - step).max(8));
            } else {
                esker_trt::yield_now();
            }
        }
    }

    /// Brings the batch that formed to media, and hands the baton on.
    fn lead(&self) {
        // The next one, too, if all that is in it is what this one left.
        while self.lead_one() {}
    }

    /// Brings the batch that formed to media and publishes it; true if the next one has nobody to lead it.
    fn lead_one(&self) -> bool {
        self.gather();
        let (forming, room) = {
            let state = self.log.state.lock();
            let room = state.tail.map_or(0, |tail| self.layout.room_behind(tail.position));
            (state.filling.batch.used as u64, room)
        };
        self.pace(forming, room);
        let (mut filling, plan, durable) = {
            let mut guard = self.log.state.lock();
            let state = &mut *guard;
            let fresh = Filling::new(&self.pool, &self.layout, state.next_version);
            let mut filling = std::mem::replace(&mut state.filling, fresh);
            self.leave_some(state, &mut filling);
            state.in_flight = Some(Arc::clone(&filling.ticket));
            let plan = match &state.failure {
                Some(cause) => Err(read_only(cause)),
                None => self.place(Stream::Fresh, &mut state.tail, &filling.batch),
            };
            (filling, plan, state.durable)
        };
        let _turn = Turn { depot: self, ticket: Arc::clone(&filling.ticket) };
        let plan = plan.or_else(|error| self.place_later(error, &filling));
        let batch = &mut filling.batch;
        let end = Version(batch.end().0);
        let (records, began) = (batch.entries.len(), self.clock.monotonic());
        let mut news = None;
        let written = plan.and_then(|plan| {
            let mut durable = Sequence(durable.0);
            // Only the leader is here, so nobody waits for this lock while the device works.
            let mut summary = self.log.take_summary();
            self.write_batch(
                Stream::Fresh,
                batch,
                &plan,
                &mut summary,
                &mut durable,
                self.commits_durably(),
            )
            .map_err(|error| {
                // Told once nobody waits for this any more: a log may take its time, or worse.
                news = self.note_failure(&error).then(|| error.clone());
                in_doubt(&error)
            })?;
            self.log.put_summary(summary);
            self.publish(batch, &plan);
            Ok(Version(durable.0))
        });
        let (next, orphaned) = {
            let mut guard = self.log.state.lock();
            let state = &mut *guard;
            if let Ok(durable) = written {
                state.wrote_until(end, durable);
            }
            let now = self.clock.monotonic();
            let took = now.saturating_sub(began);
            let before = if state.write_time.is_zero() { took } else { state.write_time };
            state.write_time = (before * 7 + took) / 8;
            state.wrote_at = now;
            let in_vain = records * 4 < state.expected * 3;
            state.hurry =
                if in_vain && state.hurry == 0 { HURRY } else { state.hurry.saturating_sub(1) };
            state.expected = records + state.filling.batch.entries.len();
            state.in_flight = None;
            state.leading = !state.filling.batch.entries.is_empty();
            let orphaned =
                state.leading && !std::mem::replace(&mut state.filling.has_heir, state.leading);
            let heir = state.leading && !orphaned;
            (heir.then(|| Arc::clone(&state.filling.ticket)), orphaned)
        };
        if let Err(error) = written {
            // Its keys stay pending: nothing is decided on them any more (C4).
            let _ = filling.ticket.failure.set(error);
        }
        // The next leader first: its write goes out while the followers of this batch wake up.
        if let Some(next) = next {
            next.baton.open();
        }
        filling.ticket.done.open();
        if let Some(error) = news {
            tell_failure(&error);
        }
        orphaned
    }

    /// Lets all go on who wait for a leader that panicked: those of its batch hear that nobody knows what became of it, and whoever
    /// leads the next one that nothing is written any more.
    fn give_up(&self, ticket: &Ticket) {
        let cause = Error::new(ErrorKind::Panicked, "write store");
        self.note_failure(&cause);
        let _ = ticket.failure.set(in_doubt(&cause));
        let (next, left) = {
            let mut guard = self.log.state.lock();
            let state = &mut *guard;
            state.in_flight = None;
            let has_heir = state.filling.has_heir;
            state.leading = has_heir && !state.filling.batch.entries.is_empty();
            // What this one left has nobody to lead it.
            let fresh = || Filling::new(&self.pool, &self.layout, state.next_version);
            let left = (!has_heir).then(fresh);
            let left = left.map(|fresh| std::mem::replace(&mut state.filling, fresh));
            (state.leading.then(|| Arc::clone(&state.filling.ticket)), left)
        };
        if let Some(next) = next {
            next.baton.open();
        }
        if let Some(left) = left {
            let _ = left.ticket.failure.set(in_doubt(&cause));
            left.ticket.done.open();
        }
        ticket.done.open();
    }

    /// Places a batch for which there was no segment: others may have taken the last ones for a moment, to give them back. Its
    /// versions are given, so nothing can follow where it has no place.
    fn place_later(&self, mut error: Error, filling: &Filling) -> Result<Plan> {
        // In a run-time that ends sleeps take no time.
        let since = SystemClock.monotonic();
        let passed = || SystemClock.monotonic().saturating_sub(since);
        let mut tries = 0;
        while tries < ROOM_TRIES || passed() < ROOM_PERIOD * ROOM_TRIES {
            if error.kind() != ErrorKind::NoSpace {
                return Err(error);
            }
            // Who borrowed some gives them back, however long a device takes.
            tries += u32::from(!self.segments.are_borrowed());
            esker_trt::sleep(ROOM_PERIOD);
            let mut state = self.log.state.lock();
            match self.place(Stream::Fresh, &mut state.tail, &filling.batch) {
                Ok(plan) => return Ok(plan),
                Err(next) => error = next,
            }
        }
        Err(self.poison(&error))
    }

    /// Leaves the last records of a batch to the next one where that saves most of a block: with blocks of 512 bytes, the
    /// last one's padding is more than batch header and summary together.
    fn leave_some(&self, state: &mut State, filling: &mut Filling) {
        let block = usize::try_from(self.layout.block).unwrap_or(4096);
        let Some(from) = filling.batch.cut(block, self.leave_share, &filling.starts) else {
            return;
        };
        // C3.
        if !self.fits_cut(state.tail.as_ref(), &filling.batch, from) {
            return;
        }
        let rest = filling.split_off(&self.pool, &self.layout, from);
        let version = Version(rest.batch.first.0);
        let _ = filling.ticket.moved.set((version, Arc::clone(&rest.ticket)));
        state.filling = rest;
    }

    /// Notes a failure: nothing is written any more. Returns what the writers concerned are told.
    pub(super) fn poison(&self, cause: &Error) -> Error {
        // Behind everything that depends on it: a log may take its time, or worse.
        if self.note_failure(cause) {
            tell_failure(cause);
        }
        in_doubt(cause)
    }

    /// Refuses writes from now on; whether it is the first failure.
    pub(super) fn note_failure(&self, cause: &Error) -> bool {
        let mut state = self.log.state.lock();
        let is_first = state.failure.is_none();
        if is_first {
            state.failure = Some(cause.clone());
            self.log.doors.refusing.store(true, Ordering::Release);
        }
        is_first
    }

    /// Makes everything durable that was published.
    pub(super) fn flush_published(&self) -> Result<()> {
        self.write_out()?;
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

    /// From now on all writes are refused; nothing is written.
    pub(super) fn shut(&self, state: &mut State) {
        state.closed = true;
        self.log.doors.closed.store(true, Ordering::Release);
        self.log.doors.refusing.store(true, Ordering::Release);
    }

    /// Waits for the writers under way, refuses others, and marks the end of the log; a flush must
    /// follow.
    pub(super) fn close_log(&self) -> Result<()> {
        loop {
            let ticket = {
                let mut state = self.log.state.lock();
                self.shut(&mut state);
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
        // B4: the barrier must leave room for the summary.
        let room = |tail: &Tail| {
            let behind = self.layout.block + self.layout.batch_with_summary(0, tail.summary);
            tail.position + behind <= self.layout.trailer()
        };
        let Some(tail) = tail else { return Ok(()) };
        let next = Sequence(version.0);
        if !room(&tail) {
            // The summary vouches for the last batch as well as a barrier does.
            let summary = self.log.take_summary();
            self.log.lock().tail = None;
            let completed = self.complete(&tail, &summary, next, next);
            return completed.map_err(|error| self.poison(&error));
        }
        let offset = self.layout.segment_offset(tail.segment) + tail.position;
        let end = Tail { session: self.random(), ..tail };
        let barrier = self.marker(BatchKind::Barrier, &end, offset, &[], next, next);
        // PERSIST: everything before is durable; this says so to recovery, once it is durable itself.
        self.device
            .write_at(sites::CLOSE_WRITE, offset, &[IoSlice::new(&barrier)])
            .map_err(|error| self.poison(&error))?;
        let position = tail.position + self.layout.block;
        self.log.lock().tail = Some(Tail { position, ..end });
        Ok(())
    }
}
