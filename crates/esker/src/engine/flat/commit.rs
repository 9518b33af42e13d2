//! The OpLog: one log for each core, to which batches are appended (FlatStore §3.2). Which entries make a batch is
//! decided in [`batching`](super::batching).
//!
//! # Invariants
//! - L1: a batch is durable before its writers hear of it, and before the next one of its log is stored: so only the
//!   last batch of a log can be torn, and one that is whole behind one that is not proves damage.
//! - L2: no line is stored to after it was flushed.
//! - L3: of two entries of a key, the later one has the higher version ([`versions`](super::versions)).
//! - L4: no entry of a core's log is older than its chunk's birth: versions are given under the log's lock, once there is room. (On that
//!   rest which tombstones are needed, and C3 of [`clean`](super::clean).)
//!
//! # Failure
//! After a failed append the store is read-only: whether the batch survives is not known.

use super::batching::{BatchingOptions, Logs, Slot};
use super::chunks::{Chunk, For, Use};
use super::layout::{BATCH_ENTRIES_MAX, BATCH_NEAR_BYTES, Kind, Layout, Place};
use super::{Flat, sites};
use crate::options::Options;
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result, Site};
use esker_format::flat::batch::{batch_size, seal_batch};
use esker_format::flat::entry::{bind_entry, stamp_entry};
use esker_format::flat::{
    BATCH_HEADER_SIZE, BatchHeader, BatchKind, CHUNK_START, ChunkHeader, ChunkKind, EncodeEntry,
    EntryBytes, LINE, Stamp,
};
use esker_index::Word;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

/// An entry as it will stand in the log.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry {
    pub(super) bytes: EntryBytes,
    pub(super) kind: Kind,
    pub(super) key_of_8: bool,
}

/// Where an entry landed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(super) word: Word,
    pub(super) version: Version,
}

/// What a writer wants appended.
#[derive(Debug)]
pub(crate) struct Wanted {
    entries: Entries,
    /// Versions must be higher than this.
    after: u64,
}

/// An entry, or several that no crash may part.
#[derive(Debug)]
enum Entries {
    One(LogEntry),
    Many(Vec<LogEntry>),
}

/// Where that landed: as many as were wanted.
#[derive(Debug)]
pub(crate) enum Landed {
    One(Placed),
    Many(Vec<Placed>),
}

impl Wanted {
    fn entries(&self) -> &[LogEntry] {
        match &self.entries {
            Entries::One(entry) => std::slice::from_ref(entry),
            Entries::Many(entries) => entries,
        }
    }

    /// For whom the space is.
    fn whom(&self) -> For {
        match self.entries().iter().all(|entry| entry.kind.is_tombstone()) {
            true => For::Deletes,
            false => For::Puts,
        }
    }
}

impl Landed {
    pub(super) fn placed(&self) -> &[Placed] {
        match self {
            Landed::One(placed) => std::slice::from_ref(placed),
            Landed::Many(placed) => placed,
        }
    }
}

/// The log of a core, or of the cleaner.
#[derive(Debug)]
pub(super) struct Log {
    /// The chunk that it appends to, and where.
    pub(super) open: Option<(u32, u64)>,
    buffer: Vec<u8>,
}

/// The logs of the cores, each on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CoreLog(pub(super) Mutex<Log>);

impl Log {
    pub(super) fn new(open: Option<(u32, u64)>) -> Log {
        Log { open, buffer: Vec::new() }
    }
}

/// The sites of an append.
#[derive(Clone, Copy)]
pub(super) struct Sites {
    pub(super) store: Site,
    pub(super) flush: Site,
    pub(super) fence: Site,
}

pub(super) const COMMIT: Sites =
    Sites { store: sites::COMMIT_STORE, flush: sites::COMMIT_FLUSH, fence: sites::COMMIT_FENCE };

impl LogEntry {
    /// An entry with a stamp, for later.
    pub(super) fn new(entry: &EncodeEntry<'_>, stamp: Stamp) -> LogEntry {
        let mut bytes = EntryBytes::default();
        entry.encode(stamp, &mut bytes);
        LogEntry { bytes, kind: Flat::kind_of_action(entry.action), key_of_8: entry.key.is_of_8() }
    }
}

/// Where the entries of a batch will be.
struct Places {
    base_version: u64,
    batch_offset: u64,
    at: u64,
    ordinal: usize,
}

impl Places {
    /// The place of the next entry.
    fn next(&mut self, entry: &LogEntry) -> Placed {
        let (offset, ordinal) = (self.at, self.ordinal);
        self.at += entry.bytes.as_slice().len() as u64;
        self.ordinal += 1;
        let line = offset - offset % LINE as u64;
        let lines = (line - self.batch_offset) / LINE as u64;
        let place = Place { offset, kind: entry.kind, key_of_8: entry.key_of_8, ordinal, lines };
        Placed { word: place.word(), version: Version(self.base_version + ordinal as u64) }
    }
}

/// The entries of a batch, without those that failed.
fn entries_of(slots: &[Slot<Wanted, Landed>]) -> impl Iterator<Item = &LogEntry> + Clone {
    let stays = |slot: &&Slot<Wanted, Landed>| !slot.has_failed();
    slots.iter().filter(stays).flat_map(|slot| slot.entry().entries())
}

/// Gives the entries of these sizes, behind the room for a batch's header, their versions, and binds them.
#[inline]
fn bind_entries(batch: &mut [u8], base_version: u64, sizes: impl Iterator<Item = usize>) {
    let mut at = BATCH_HEADER_SIZE;
    for (size, ordinal) in sizes.zip(0..) {
        let entry = batch.get_mut(at..).unwrap_or_default();
        stamp_entry(entry, base_version.wrapping_add(ordinal));
        bind_entry(entry, base_version, ordinal);
        at += size;
    }
}

/// Bytes of a batch that count for an entry at least: so that what fits a batch by bytes fits it by number.
const ENTRY_SHARE: usize = (BATCH_NEAR_BYTES - BATCH_HEADER_SIZE) / BATCH_ENTRIES_MAX;

fn size_of_batch(entries: &[LogEntry]) -> usize {
    entries.iter().map(|entry| entry.bytes.as_slice().len().max(ENTRY_SHARE)).sum()
}

/// How writers' entries come together.
pub(super) fn batching(options: &Options, cores: usize, layout: &Layout) -> BatchingOptions {
    let near = BATCH_NEAR_BYTES - BATCH_HEADER_SIZE;
    BatchingOptions {
        model: options.batching,
        cores,
        group_size: options.batching_group,
        entries_max: BATCH_ENTRIES_MAX,
        size_bytes_max: near.min(layout.batch_room()) as u64,
    }
}

impl Logs for Flat {
    type Entry = Wanted;
    type Placed = Landed;

    fn size_bytes(&self, wanted: &Wanted) -> u64 {
        size_of_batch(wanted.entries()) as u64
    }

    #[inline]
    fn append(&self, core: usize, batch: &mut [Slot<Wanted, Landed>]) -> Result<()> {
        let is_of = |slot: &Slot<Wanted, Landed>, whom| slot.entry().whom() == whom;
        let puts = batch.iter().any(|slot| is_of(slot, For::Puts));
        let whom = if puts { For::Puts } else { For::Deletes };
        match self.append_batch(core, whom, batch) {
            // Deletes go on: they are what makes room.
            Err(error) if error.kind() == ErrorKind::NoSpace && puts => {
                let refused = batch.iter_mut().filter(|slot| is_of(slot, For::Puts));
                refused.for_each(|slot| slot.fail(error.clone()));
                match batch.iter().all(Slot::has_failed) {
                    true => Ok(()),
                    false => self.append_batch(core, For::Deletes, batch),
                }
            }
            result => result,
        }
    }
}

impl Flat {
    /// Makes entries durable that no crash may part, beside what others want at the same time.
    pub(super) fn commit_all(
        &self,
        core: usize,
        after: u64,
        entries: Vec<LogEntry>,
    ) -> Result<Landed> {
        self.batcher.commit_on(self, core, Wanted { entries: Entries::Many(entries), after })
    }

    /// Makes an entry durable, beside what others want at the same time. Its version is higher than `after`. If nobody
    /// else wants anything, `meanwhile` is done while its lines are on their way to the media. Otherwise it is dropped before the
    /// caller's task waits: what it holds of the index must not be held while others run.
    #[inline]
    pub(super) fn commit<T>(
        &self,
        core: usize,
        after: u64,
        entry: &EncodeEntry<'_>,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<(Placed, Option<T>)> {
        let Some(alone) = self.batcher.alone(core) else {
            drop(meanwhile);
            let entries = Entries::One(LogEntry::new(entry, Stamp::Place));
            let wanted = Wanted { entries, after };
            let landed = self.batcher.post_on(self, core, wanted).wait()?;
            let placed = landed.placed().first().copied();
            let placed = placed.ok_or_else(|| Error::new(ErrorKind::DurabilityUnknown, "write"))?;
            return Ok((placed, None));
        };
        let mut done = None;
        let meanwhile = || done = Some(meanwhile());
        let placed = alone.append(|core| self.append_one(core, after, entry, meanwhile))?;
        Ok((placed, done))
    }

    /// Appends a batch of one entry to the log of a core, durably.
    fn append_one(
        &self,
        core: usize,
        after: u64,
        entry: &EncodeEntry<'_>,
        meanwhile: impl FnOnce(),
    ) -> Result<Placed> {
        let full = || Error::new(ErrorKind::DurabilityUnknown, "write");
        let mut log = self.logs.get(core).ok_or_else(full)?.0.lock();
        self.refuse()?;
        let kind = Flat::kind_of_action(entry.action);
        let whom = if kind.is_tombstone() { For::Deletes } else { For::Puts };
        let mut buffer = std::mem::take(&mut log.buffer);
        buffer.clear();
        buffer.extend_from_slice(&[0; BATCH_HEADER_SIZE]);
        entry.encode(Stamp::Place, &mut buffer);
        let size = buffer.len() - BATCH_HEADER_SIZE;
        let (sizes, tombstones) = (std::iter::once(size), usize::from(kind.is_tombstone()));
        let to = (core, whom);
        let result =
            self.append_bytes(&mut log, to, after, &mut buffer, (sizes, tombstones), meanwhile);
        log.buffer = buffer;
        let (base_version, batch_offset) = result?;
        let place = Place {
            offset: batch_offset + BATCH_HEADER_SIZE as u64,
            kind,
            key_of_8: entry.key.is_of_8(),
            ordinal: 0,
            lines: 0,
        };
        Ok(Placed { word: place.word(), version: Version(base_version) })
    }

    /// Appends a batch of entries of these sizes, so many tombstones among them, which stand behind the room for its header, durably. Returns the version of
    /// its first entry, and where it stands.
    #[inline]
    fn append_bytes(
        &self,
        log: &mut Log,
        (core, whom): (usize, For),
        after: u64,
        buffer: &mut Vec<u8>,
        (sizes, tombstones): (impl Iterator<Item = usize> + Clone, usize),
        meanwhile: impl FnOnce(),
    ) -> Result<(u64, u64)> {
        let count = u32::try_from(sizes.clone().count()).unwrap_or(u32::MAX);
        let payload = buffer.len() - BATCH_HEADER_SIZE;
        let total = batch_size(payload);
        buffer.resize(total, 0);
        let (chunk, offset) = self.room_in(log, total, whom, core)?;
        let Some(state) = self.chunks.get(chunk) else { return Ok((0, 0)) };
        // Before they have versions, so that the cleaner knows of versions that the index does not follow yet (C3).
        state.entries.fetch_add(count, Ordering::SeqCst);
        let base = self.versions.give(core, after, u64::from(count));
        debug_assert!(base >= state.born(), "L4");
        bind_entries(buffer, base, sizes);
        self.write_batch((chunk, offset), buffer, payload, base, COMMIT, meanwhile)?;
        let end = offset + total as u64 - self.layout.start_of(chunk);
        state.note_appended(payload, tombstones, end);
        log.open = Some((chunk, end));
        Ok((base, offset))
    }

    /// Appends what has not failed as one batch to the log of a core, durably.
    fn append_batch(
        &self,
        core: usize,
        whom: For,
        slots: &mut [Slot<Wanted, Landed>],
    ) -> Result<()> {
        let Some(log) = self.logs.get(core) else { return Ok(()) };
        let mut log = log.0.lock();
        self.refuse()?;
        let mut buffer = std::mem::take(&mut log.buffer);
        buffer.clear();
        buffer.extend_from_slice(&[0; BATCH_HEADER_SIZE]);
        let stays = |slot: &&Slot<Wanted, Landed>| !slot.has_failed();
        let after = slots.iter().filter(stays).map(|slot| slot.entry().after).max().unwrap_or(0);
        entries_of(slots).for_each(|entry| buffer.extend_from_slice(entry.bytes.as_slice()));
        let sizes = entries_of(slots).map(|entry| entry.bytes.as_slice().len());
        let tombstones = entries_of(slots).filter(|entry| entry.kind.is_tombstone()).count();
        let to = (core, whom);
        let result =
            self.append_bytes(&mut log, to, after, &mut buffer, (sizes, tombstones), || ());
        log.buffer = buffer;
        let (base, offset) = result?;
        let mut places = Places {
            base_version: base,
            batch_offset: offset,
            at: offset + BATCH_HEADER_SIZE as u64,
            ordinal: 0,
        };
        for slot in slots.iter_mut().filter(|slot| !slot.has_failed()) {
            let landed = match &slot.entry().entries {
                Entries::One(entry) => Landed::One(places.next(entry)),
                Entries::Many(entries) => {
                    Landed::Many(entries.iter().map(|entry| places.next(entry)).collect())
                }
            };
            slot.place(landed);
        }
        Ok(())
    }

    /// Seals a batch for its place, stores it and makes it durable; `meanwhile` comes before the wait for that.
    pub(super) fn write_batch(
        &self,
        (chunk, offset): (u32, u64),
        buffer: &mut [u8],
        payload_bytes: usize,
        base_version: u64,
        sites: Sites,
        meanwhile: impl FnOnce(),
    ) -> Result<()> {
        let salt = self.chunks.get(chunk).map_or(0, super::chunks::Chunk::salt);
        let header = BatchHeader { kind: BatchKind::Entries, payload_bytes, base_version };
        seal_batch(buffer, &header, salt, offset);
        let written = || {
            // PERSIST: the batch counts once all its lines are there (its checksum says so), and is
            //          acknowledged after the fence. Torn, it is the end of the log.
            self.memory.store(sites.store, offset, buffer)?;
            self.memory.flush(sites.flush, offset, buffer.len() as u64)?;
            meanwhile();
            self.memory.fence(sites.fence)
        };
        written().map_err(|error| self.poison(&error))
    }

    /// Where `total` bytes may be appended: in the log's chunk, or in a new one.
    fn room_in(&self, log: &mut Log, total: usize, whom: For, core: usize) -> Result<(u32, u64)> {
        if let Some((chunk, tail)) = log.open
            && tail + total as u64 <= self.layout.log_end()
        {
            return Ok((chunk, self.layout.start_of(chunk) + tail));
        }
        // First: what it has may be what makes room, and nobody else can end it while this lock is held. Behind a long batch that does
        // not fit shorter ones may.
        let is_short = total <= BATCH_NEAR_BYTES;
        if let Some((chunk, tail)) = log.open.take_if(|_| is_short) {
            self.seal(chunk, tail)?;
        }
        let next = self.take_chunks(core, 1, whom)?;
        if let Some((chunk, tail)) = log.open.take() {
            self.seal(chunk, tail)?;
        }
        let begun = self.begin_log(next, core, self.versions.now(core));
        let tail = begun.map_err(|error| self.poison(&error))?;
        log.open = Some((next, tail));
        Ok((next, self.layout.start_of(next) + tail))
    }

    /// Makes a free chunk one of a log, durably; returns where its content begins.
    pub(super) fn begin_log(&self, chunk: u32, core: usize, born: u64) -> Result<u64> {
        let header = ChunkHeader {
            epoch: 0,
            born,
            kind: ChunkKind::Log,
            owner: u16::try_from(core).unwrap_or(0),
            number: chunk,
            lines: 0,
            chunks: 0,
            next_version: self.versions.next(),
        };
        self.chunks.begin(&*self.memory, header)?;
        Ok(CHUNK_START)
    }

    /// Marks the end of a chunk's log; durable with the next fence.
    pub(super) fn seal(&self, chunk: u32, tail: u64) -> Result<()> {
        let Some(state) = self.chunks.get(chunk) else { return Ok(()) };
        self.store_seal(chunk, state, tail).map_err(|error| self.poison(&error))?;
        state.set_usage(Use::Log);
        self.chunks.note_full(chunk);
        Ok(())
    }

    /// Stores the mark at the end of a chunk's log, and flushes it. Only logs of earlier builds have no room for it.
    pub(super) fn store_seal(&self, number: u32, chunk: &Chunk, tail: u64) -> Result<()> {
        if tail > self.layout.log_end() {
            return Ok(());
        }
        let mut line = [0; LINE];
        let offset = self.layout.start_of(number) + tail;
        let header = BatchHeader { kind: BatchKind::Seal, payload_bytes: 0, base_version: 0 };
        seal_batch(&mut line, &header, chunk.salt(), offset);
        self.memory.store(sites::SEAL_STORE, offset, &line)?;
        self.memory.flush(sites::COMMIT_FLUSH, offset, LINE as u64)
    }

    /// Takes free chunks for somebody of this core; makes room first if there are too few.
    pub(super) fn take_chunks(&self, core: usize, count: usize, whom: For) -> Result<u32> {
        // Nothing makes way for what the store has no room for at all. One chunk is the root's.
        let room = self.layout.chunk_count.saturating_sub(1 + self.chunks.bad_count());
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        if count > room.saturating_sub(self.chunks.kept(whom)) {
            return Err(self.full());
        }
        loop {
            if let Some(first) = self.take_free(count, whom)? {
                if self.chunks.free_count() < self.reserve().1 {
                    self.wake_background();
                }
                return Ok(first);
            }
            if self.is_fruitless(count, whom) {
                return Err(self.full());
            }
            let look = self.begin_look();
            if count > 1
                && let Some(first) = self.make_row(count, whom)?
            {
                return Ok(first);
            }
            if !self.make_room(core, count, whom)? {
                self.note_fruitless(look, count);
                return Err(self.full());
            }
        }
    }

    fn full(&self) -> Error {
        let words = match self.chunks.bad_count() {
            0 => "the store is full; deletes go on".to_owned(),
            bad => format!("the store is full, {bad} chunks have bad memory; deletes go on"),
        };
        Error::new(ErrorKind::NoSpace, "write").context(words)
    }

    /// Whether these entries have versions by their places, whatever else their batch holds.
    pub(super) fn has_places(entries: &[LogEntry]) -> bool {
        size_of_batch(entries) <= BATCH_NEAR_BYTES - BATCH_HEADER_SIZE
    }
}
