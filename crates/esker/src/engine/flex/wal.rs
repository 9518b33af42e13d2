//! The write-ahead log: two files in turns, each the changes of one table (FlexSpace §5).
//!
//! Changes that arrive while a batch is written form the next one; whoever waits and finds nobody writing writes it, for
//! all. A generation has a file to itself; when its table is full, the next generation goes to the other file, from the
//! start: that is when the table that was there must be in the space.
//!
//! # Invariants
//! - L1: versions grow with the place in the log, without gaps in a batch.
//! - L2: a batch of generation `g + 1` is written only after all of `g` is durable.
//! - L3: a file is written from its start only after the table of the generation in it is in the space, durably.
//! - L4: a table goes to the space only after all of its log is durable: who commits it waits for that
//!   ([`Wal::wait_sealed`]), whatever the writers of the table waited for.
//!
//! # Concurrency
//! `state` is a short lock, never held over I/O. Who writes (`busy`) does so without it; there is one at a time.
//!
//! # Failure
//! After a failed write or flush every write is refused; those that waited for it are told that nobody knows.

mod lead;
pub(super) mod reader;

use super::memtable::MemTable;
use super::sites;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::{BATCH_HEADER_SIZE, Batch, WalWriter};
use esker_media::BlockDevice;
use esker_trt::sync::{self, Gate};
use parking_lot::{Mutex, MutexGuard};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of a batch that is written although nobody waits for it.
const BATCH_BYTES: usize = 512 << 10;
/// Bytes of a batch beyond which writers wait for the one before.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Most bytes of changes that one writer adds to a batch.
const CHANGES_BYTES_MAX: usize = 1 << 30;
/// Most bytes of a batch that several writers add to: its header could say 4 GiB. Nobody is busy while many come at once, each behind
/// the others before one of them writes.
const FORMING_BYTES_MAX: usize = CHANGES_BYTES_MAX + BATCH_BYTES_MAX;
/// Least and most bytes that a file grows by.
const STEP_MIN: u64 = 4 << 10;
const STEP_MAX: u64 = 16 << 20;
/// Bytes that a late log has for a version that was written over.
const PASSED_BYTES: u64 = 3;
/// Bytes of a batch of a late log, about: at most, and as a share of the log.
const LATE_BATCH_BYTES: usize = 4 << 20;
const LATE_BATCH_SHARE: usize = 16;
/// Least bytes of a log.
const CAPACITY_MIN: u64 = 8 << 10;
/// How long a writer that is to be waited for may take between two looks.
const REST: Duration = Duration::from_micros(20);

/// Where the next batch of a generation goes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tail {
    pub(super) generation: u64,
    pub(super) position: u64,
    pub(super) sequence: u64,
    pub(super) previous_checksum: u32,
}

#[derive(Debug)]
struct State {
    tail: Tail,
    forming: WalWriter,
    spare: WalWriter,
    /// Version of the first change that forms.
    first_version: u64,
    next_version: u64,
    /// The table of this generation.
    table: Arc<MemTable>,
    /// Number of the batch that forms; of the last one that was written; of the last one that is durable.
    formed: u64,
    written: u64,
    durable: u64,
    /// Number of the last batch that somebody waits for to be durable.
    wanted: u64,
    /// Batches of this generation that are durable.
    durable_sequence: u64,
    /// The last generation whose log is durable as a whole.
    sealed: u64,
    /// Nothing gets a place any more.
    is_closed: bool,
    busy: Option<Arc<Gate>>,
    epoch: usize,
    /// Bytes of the file of this generation.
    reserved: u64,
}

impl State {
    fn check_open(&self) -> Result<()> {
        if self.is_closed { Err(Error::new(ErrorKind::Closed, "write")) } else { Ok(()) }
    }

    /// Whether nothing has a place in this generation yet. What comes first gets one whatever its size: another table, as empty, would
    /// have no more room for it.
    fn is_empty(&self) -> bool {
        self.next_version == self.table.first_version
    }
}

/// The log. See the module's text.
#[derive(Debug)]
pub(super) struct Wal {
    devices: [Arc<dyn BlockDevice>; 2],
    store_id: [u8; 16],
    block: usize,
    /// [`FORMING_BYTES_MAX`], or less in tests.
    forming_max: usize,
    /// Bytes of a table as the options say.
    table_bytes: u64,
    state: Mutex<State>,
    /// Bytes of the table of this generation, and of its log at most.
    limits: [AtomicU64; 2],
    /// Bytes of the log that are in use, or that a table without one takes, as of the last write.
    claimed: AtomicU64,
    /// Writers between their place in the log and their place in the table, by epoch.
    inside: [AtomicUsize; 2],
    draining: sync::Mutex<()>,
    growing: sync::Mutex<()>,
    failed: Mutex<Option<Error>>,
    has_failed: AtomicBool,
}

/// A log that is written at once, late.
#[derive(Debug)]
pub(super) struct LateLog {
    tail: Tail,
    /// Its first batch, which is written last.
    first: Vec<u8>,
}

/// A place in the log.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) batch: u64,
    pub(super) first_version: u64,
    pub(super) table: Arc<MemTable>,
    epoch: usize,
    /// What its table expects of it.
    bytes: u64,
}

/// What became of an attempt to append.
pub(super) enum Appended {
    Done(Ticket),
    /// This generation is full.
    Full(u64),
}

/// Bytes of the log of a table of so many bytes, whose keys may be written again and again: as many, and half as many as tables have as the
/// options say.
pub(super) fn capacity(size_bytes: u64, table_bytes: u64) -> u64 {
    (size_bytes + table_bytes / 2).max(CAPACITY_MIN).next_multiple_of(4096)
}

impl Wal {
    /// A log whose next generation is empty and belongs to `table`.
    pub(super) fn new(
        devices: [Arc<dyn BlockDevice>; 2],
        store_id: [u8; 16],
        table_bytes: u64,
        tail: Tail,
        table: Arc<MemTable>,
    ) -> Self {
        let block = devices.iter().map(|device| device.geometry().block_size_bytes).max();
        let next_version = table.first_version;
        let log_bytes = capacity(table.size_bytes, table_bytes);
        let limits = [table.size_bytes, log_bytes].map(AtomicU64::new);
        Wal {
            devices,
            store_id,
            block: block.unwrap_or(512).max(512) as usize,
            forming_max: FORMING_BYTES_MAX,
            table_bytes,
            state: Mutex::new(State {
                tail,
                forming: WalWriter::default(),
                spare: WalWriter::default(),
                first_version: next_version,
                next_version,
                table,
                formed: 1,
                written: 0,
                durable: 0,
                wanted: 0,
                durable_sequence: 0,
                sealed: tail.generation.saturating_sub(1),
                is_closed: false,
                busy: None,
                epoch: 0,
                reserved: 0,
            }),
            limits,
            claimed: AtomicU64::new(0),
            inside: [AtomicUsize::new(0), AtomicUsize::new(0)],
            draining: sync::Mutex::new(()),
            growing: sync::Mutex::new(()),
            failed: Mutex::new(None),
            has_failed: AtomicBool::new(false),
        }
    }

    pub(super) fn device(&self, generation: u64) -> &dyn BlockDevice {
        let [even, odd] = &self.devices;
        if generation.is_multiple_of(2) { &**even } else { &**odd }
    }

    /// Largest batch in bytes.
    pub(super) fn batch_size_max(&self) -> usize {
        usize::try_from(capacity(self.table_bytes, self.table_bytes) / 4)
            .unwrap_or(usize::MAX)
            .min(CHANGES_BYTES_MAX)
    }

    /// Refuses writes after a failure.
    pub(super) fn check(&self) -> Result<()> {
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let cause = self.failed.lock().clone();
        let refused = Error::new(ErrorKind::ReadOnly, "write");
        Err(cause.map_or(refused.clone(), |cause| refused.source(cause)))
    }

    /// Why writes are refused, if they are.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failed.lock().clone()
    }

    /// Refuses writes from now on, and says so. The caller has no lock, and nobody waits for him: a log may take its time, or worse.
    pub(super) fn fail(&self, error: &Error) {
        if self.note_failure(error) {
            tell_failure(error);
        }
    }

    /// Refuses writes from now on; whether it is the first failure, which somebody is to tell of.
    pub(super) fn note_failure(&self, error: &Error) -> bool {
        let is_first = {
            let mut failed = self.failed.lock();
            let is_first = failed.is_none();
            failed.get_or_insert_with(|| error.clone());
            is_first
        };
        self.has_failed.store(true, Ordering::Release);
        is_first
    }

    fn unknown(&self) -> Error {
        let unknown = Error::new(ErrorKind::DurabilityUnknown, "write");
        let cause = self.failed.lock().clone();
        cause.map_or(unknown.clone(), |cause| unknown.source(cause))
    }

    /// How many bytes beyond the table's size are in use, about, and how many there may be.
    #[inline]
    pub(super) fn use_beyond(&self) -> (u64, u64) {
        let claimed = self.claimed.load(Ordering::Relaxed);
        let [size, capacity] = self.limits.each_ref().map(|limit| limit.load(Ordering::Relaxed));
        (claimed.saturating_sub(size), capacity.saturating_sub(size))
    }

    /// Bytes of the log of a table.
    fn capacity_of(&self, table: &MemTable) -> u64 {
        capacity(table.size_bytes, self.table_bytes)
    }

    /// The table of this generation says how much may be in use.
    fn note_limits(&self, table: &MemTable) {
        let [size, capacity] = &self.limits;
        size.store(table.size_bytes, Ordering::Relaxed);
        capacity.store(self.capacity_of(table), Ordering::Relaxed);
    }

    /// Gives `count` changes versions, and nothing a place in the log: their table has none. It takes up to as many bytes
    /// as its log could have, and no more than that finds room for: late, there may be none left.
    pub(super) fn pass(&self, size_bytes: usize, count: u64) -> Result<Appended> {
        self.check()?;
        let mut state = self.state.lock();
        let claimed = loop {
            state.check_open()?;
            let claimed = state.table.bytes_expected() + (size_bytes + BATCH_HEADER_SIZE) as u64;
            // Versions that were written over take bytes of a late log, too.
            let versions = state.next_version + count - state.table.first_version;
            let claimed = claimed + versions * PASSED_BYTES + 2 * self.block as u64;
            let generation = state.tail.generation;
            if claimed > self.capacity_of(&state.table) && !state.is_empty() {
                return Ok(Appended::Full(generation));
            }
            let end = claimed + self.ends_of_batches(claimed);
            if end <= state.reserved {
                break claimed;
            }
            if !self.grow_for(state, end)? {
                return Ok(Appended::Full(generation));
            }
            self.check()?;
            state = self.state.lock();
        };
        self.claimed.store(claimed, Ordering::Relaxed);
        state.table.expect(size_bytes as u64);
        let ticket = self.ticket(&mut state, count);
        Ok(Appended::Done(Ticket { bytes: size_bytes as u64, ..ticket }))
    }

    /// Bytes of changes from which on a batch of a late log ends.
    pub(super) fn late_batch_bytes(&self) -> usize {
        (self.batch_size_max() * 4 / LATE_BATCH_SHARE).min(LATE_BATCH_BYTES).max(self.block)
    }

    /// What batches of a late log with so many bytes of changes have beside these.
    fn ends_of_batches(&self, bytes: u64) -> u64 {
        bytes / self.late_batch_bytes() as u64 * (self.block + BATCH_HEADER_SIZE) as u64
    }

    /// Most versions that were written over, between two changes of a batch of a late log. Of more, what [`Wal::pass`] counts is room
    /// for another batch.
    pub(super) fn late_gap_max(&self) -> u64 {
        (self.block as u64 + BATCH_HEADER_SIZE as u64) / PASSED_BYTES + 1
    }

    /// The next `count` versions, for a writer that is inside from now on.
    fn ticket(&self, state: &mut State, count: u64) -> Ticket {
        let first_version = state.next_version;
        state.next_version += count;
        if let Some(inside) = self.inside.get(state.epoch) {
            inside.fetch_add(1, Ordering::Relaxed);
        }
        Ticket {
            batch: state.formed,
            first_version,
            table: Arc::clone(&state.table),
            epoch: state.epoch,
            bytes: 0,
        }
    }

    /// The log of a sealed table that has none.
    pub(super) fn late(&self, generation: u64) -> LateLog {
        let previous_checksum = self.state.lock().tail.previous_checksum;
        let tail = Tail { generation, previous_checksum, ..Tail::default() };
        LateLog { tail, first: Vec::new() }
    }

    /// Writes a batch of such a log; the first one waits for the others.
    pub(super) fn write_late(
        &self,
        late: &mut LateLog,
        first_version: u64,
        writer: &mut WalWriter,
    ) -> Result<()> {
        let Tail { generation, position, sequence, previous_checksum } = late.tail;
        let device = self.device(generation);
        let end = position + writer.size_bytes().next_multiple_of(self.block) as u64;
        let size = device.geometry().size_bytes;
        if size < end {
            let wanted = end.next_multiple_of(self.file_unit());
            device.reserve(sites::WAL_RESERVE, size, wanted - size)?;
        }
        let batch = Batch {
            generation,
            sequence,
            position,
            first_version,
            previous_checksum,
            // If its log counts at all, it is durable itself (A1).
            durable_sequence: sequence + 1,
            ..Batch::default()
        };
        let (bytes, checksum) = self.finish(writer, batch)?;
        if sequence == 0 {
            late.first = bytes.to_vec();
        } else {
            device.write_at(sites::WAL_WRITE, position, &[IoSlice::new(bytes)])?;
        }
        late.tail.position += bytes.len() as u64;
        late.tail.sequence += 1;
        late.tail.previous_checksum = checksum;
        writer.clear();
        Ok(())
    }

    /// Writes the first batch of such a log behind the others, and makes all of them durable. An empty batch of that version is the
    /// last one: if one of those that say something is damaged, there is one behind it.
    pub(super) fn end_late(&self, mut late: LateLog, next_version: u64) -> Result<()> {
        if late.tail.sequence > 0 {
            self.write_late(&mut late, next_version, &mut WalWriter::empty())?;
        }
        let device = self.device(late.tail.generation);
        if late.tail.sequence > 1 {
            device.flush(sites::LATE_FLUSH)?;
        }
        if !late.first.is_empty() {
            device.write_at(sites::WAL_WRITE, 0, &[IoSlice::new(&late.first)])?;
            device.flush(sites::LATE_FLUSH)?;
        }
        Ok(())
    }

    /// Gives `count` changes, which `write` appends, a place in the log.
    pub(super) fn append(
        &self,
        size_bytes: usize,
        count: u64,
        write: &dyn Fn(&mut WalWriter),
    ) -> Result<Appended> {
        self.check()?;
        let mut state = self.state.lock();
        let claimed = loop {
            state.check_open()?;
            let claimed = state.tail.position
                + (state.forming.size_bytes() + size_bytes + BATCH_HEADER_SIZE) as u64
                + 2 * self.block as u64;
            let capacity = self.capacity_of(&state.table);
            if claimed > capacity && !state.is_empty() {
                return Ok(Appended::Full(state.tail.generation));
            }
            if claimed > state.reserved {
                let generation = state.tail.generation;
                if !self.grow_for(state, claimed)? {
                    return Ok(Appended::Full(generation));
                }
                self.check()?;
                state = self.state.lock();
                continue;
            }
            match &state.busy {
                Some(gate) if state.forming.size_bytes() > BATCH_BYTES_MAX => {
                    let gate = Arc::clone(gate);
                    drop(state);
                    gate.wait();
                    self.check()?;
                    state = self.state.lock();
                }
                _ if !state.forming.is_empty()
                    && state.forming.size_bytes() + size_bytes > self.forming_max =>
                {
                    let batch = state.formed;
                    drop(state);
                    // If that fails everybody is refused.
                    drop(self.bring(batch, false));
                    self.check()?;
                    state = self.state.lock();
                }
                _ => break claimed,
            }
        };
        if state.forming.is_empty() {
            state.first_version = state.next_version;
        }
        write(&mut state.forming);
        self.claimed.store(claimed, Ordering::Relaxed);
        Ok(Appended::Done(self.ticket(&mut state, count)))
    }

    /// A batch as it is written, and its checksum.
    fn finish<'w>(&self, writer: &'w mut WalWriter, batch: Batch) -> Result<(&'w [u8], u32)> {
        let finished = writer.finish(batch, &self.store_id, self.block);
        finished.map_err(|flaw| Error::invalid("write log", flaw.to_string()))
    }

    /// Makes the file of this generation as long as what is claimed of it. Whether there is room for that: if there is none, the other file
    /// has what it had, and a table that goes to the space early makes some. What comes first is refused.
    fn grow_for(&self, state: MutexGuard<'_, State>, claimed: u64) -> Result<bool> {
        let (generation, is_empty) = (state.tail.generation, state.is_empty());
        let most = self.capacity_of(&state.table).max(claimed);
        drop(state);
        match self.grow(generation, claimed, most) {
            Err(error) if error.kind() == ErrorKind::NoSpace && !is_empty => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Files have whole blocks of whatever device they come to: an open where blocks are larger has to see the last batch.
    fn file_unit(&self) -> u64 {
        STEP_MIN.max(self.block as u64)
    }

    /// Makes the file of a generation at least so long, in steps: files follow what is written.
    fn grow(&self, generation: u64, end: u64, most: u64) -> Result<()> {
        let _turn = self.growing.lock();
        let device = self.device(generation);
        let size = device.geometry().size_bytes;
        if size < end {
            let step = (size / 2).clamp(STEP_MIN, STEP_MAX);
            let wanted = end.max(size + step).min(most).next_multiple_of(self.file_unit());
            device.reserve(sites::WAL_RESERVE, size, wanted - size)?;
        }
        let mut state = self.state.lock();
        if state.tail.generation == generation {
            state.reserved = device.geometry().size_bytes;
        }
        Ok(())
    }

    /// What was appended is in its table now, or never will be.
    pub(super) fn leave(&self, ticket: &Ticket) {
        // What has a log is expected there.
        if ticket.bytes > 0 {
            ticket.table.expect_less(ticket.bytes);
        }
        if let Some(inside) = self.inside.get(ticket.epoch) {
            inside.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until everybody who has a place in the log up to now is in a table. Returns the last version of these.
    pub(super) fn drain(&self, mut meanwhile: impl FnMut(u64)) -> u64 {
        let _turn = self.draining.lock();
        let (old, last) = {
            let mut state = self.state.lock();
            let old = state.epoch;
            state.epoch = 1 - old;
            meanwhile(state.next_version - 1);
            (old, state.next_version - 1)
        };
        while self.inside.get(old).is_some_and(|inside| inside.load(Ordering::Acquire) > 0) {
            esker_trt::sleep(REST);
        }
        last
    }

    /// Gives no place any more: who asks for one from now on is told that the store is closed. Those that have one are in a
    /// table when this returns.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.drain(|_| ());
    }

    /// Version of the last change that has a place in the log.
    pub(super) fn last_version(&self) -> u64 {
        self.state.lock().next_version - 1
    }

    pub(super) fn counters(&self) -> [esker_media::Counters; 2] {
        self.devices.each_ref().map(|device| device.counters())
    }

    /// What the log lies on, in words.
    pub(super) fn report(&self) -> String {
        self.device(0).report()
    }
}

/// Says that a store takes no more writes.
pub(super) fn tell_failure(error: &Error) {
    tracing::error!(%error, "a write failed: the store is read-only until reopened");
}

#[cfg(test)]
mod tests;
