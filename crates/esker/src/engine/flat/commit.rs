//! The OpLog: one log for each core, to which batches are appended (FlatStore §3.2).
//!
//! # Invariants
//! - L1: a batch is durable before its writers hear of it, and before the next one of its log is stored: so only the
//!   last batch of a log can be torn, and one that is whole behind one that is not proves damage.
//! - L2: no line is stored to after it was flushed.
//! - L3: of two entries of a key, the later one has the higher version: versions are given out under the key's
//!   lock, by a counter of the store.
//!
//! # Failure
//! After a failed append the store is read-only: whether the batch survives is not known.

use super::chunks::{For, Use};
use super::layout::{BATCH_ENTRIES_MAX, BATCH_NEAR_BYTES, Kind, Place};
use super::{Flat, sites};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result, Site};
use esker_format::flat::batch::{batch_size, seal_batch};
use esker_format::flat::{
    BATCH_HEADER_SIZE, BatchHeader, BatchKind, CHUNK_START, ChunkHeader, ChunkKind, EncodeEntry,
    EntryBytes, LINE, Stamp,
};
use esker_index::Word;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

/// What a writer wants appended: an entry as it will stand in the log.
#[derive(Clone, Debug)]
pub(super) struct LogEntry {
    pub(super) bytes: EntryBytes,
    pub(super) kind: Kind,
    pub(super) key_of_8: bool,
}

/// Where it landed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) word: Word,
    pub(super) version: Version,
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
    pub(super) fn new(entry: &EncodeEntry<'_>, kind: Kind) -> LogEntry {
        let mut bytes = EntryBytes::default();
        entry.encode(Stamp::Place, &mut bytes);
        LogEntry { bytes, kind, key_of_8: entry.key.is_of_8() }
    }
}

/// Where the entries of a batch will be.
struct Entries {
    base_version: u64,
    batch_offset: u64,
    at: u64,
}

impl Entries {
    /// The place of the next entry, of so many bytes.
    fn next(&mut self, kind: Kind, key_of_8: bool, ordinal: usize, size: usize) -> Place {
        let offset = self.at;
        self.at += size as u64;
        let line = offset - offset % LINE as u64;
        Place { offset, kind, key_of_8, ordinal, lines: (line - self.batch_offset) / LINE as u64 }
    }
}

impl Flat {
    /// Appends entries as one batch to the log of a core, durably; `placed` is told of each, in order.
    pub(super) fn append<'e>(
        &self,
        core: usize,
        whom: For,
        entries: impl Iterator<Item = &'e LogEntry> + Clone,
        mut placed: impl FnMut(usize, Placed),
    ) -> Result<()> {
        let Some(log) = self.logs.get(core % self.logs.len().max(1)) else { return Ok(()) };
        let mut log = log.0.lock();
        self.refuse()?;
        let (mut count, mut payload) = (0, 0);
        for entry in entries.clone() {
            count += 1;
            payload += entry.bytes.as_slice().len();
        }
        let total = batch_size(payload);
        let (chunk, offset) = self.room_in(&mut log, total, whom, core)?;
        let Some(state) = self.chunks.get(chunk) else { return Ok(()) };
        // Counted before they have versions: the cleaner knows then that the index does not follow them yet.
        state.entries.fetch_add(u32::try_from(count).unwrap_or(0), Ordering::Relaxed);
        let base = self.sequence.fetch_add(count, Ordering::AcqRel);
        let Log { buffer, open } = &mut *log;
        buffer.clear();
        buffer.resize(BATCH_HEADER_SIZE, 0);
        entries.clone().for_each(|entry| buffer.extend_from_slice(entry.bytes.as_slice()));
        buffer.resize(total, 0);
        self.write_batch(chunk, offset, buffer, payload, base, COMMIT)?;
        let end = offset + total as u64 - self.layout.start_of(chunk);
        state.tail.store(u32::try_from(end).unwrap_or(u32::MAX), Ordering::Relaxed);
        *open = Some((chunk, end));
        let mut at = Entries {
            base_version: base,
            batch_offset: offset,
            at: offset + BATCH_HEADER_SIZE as u64,
        };
        for (ordinal, entry) in entries.enumerate() {
            let size = entry.bytes.as_slice().len();
            let place = at.next(entry.kind, entry.key_of_8, ordinal, size);
            let version = Version(at.base_version + ordinal as u64);
            placed(ordinal, Placed { word: place.word(), version });
        }
        Ok(())
    }

    /// Seals a batch for its place, stores it and makes it durable.
    pub(super) fn write_batch(
        &self,
        chunk: u32,
        offset: u64,
        buffer: &mut [u8],
        payload_bytes: usize,
        base_version: u64,
        sites: Sites,
    ) -> Result<()> {
        let salt = self.chunks.get(chunk).map_or(0, super::chunks::Chunk::salt);
        let header = BatchHeader { kind: BatchKind::Entries, payload_bytes, base_version };
        seal_batch(buffer, &header, salt, offset);
        let written = || {
            // PERSIST: the batch counts once all its lines are there (its checksum says so), and is
            //          acknowledged after the fence. Torn, it is the end of the log.
            self.memory.store(sites.store, offset, buffer)?;
            self.memory.flush(sites.flush, offset, buffer.len() as u64)?;
            self.memory.fence(sites.fence)
        };
        written().map_err(|error| self.poison(&error))
    }

    /// Where `total` bytes may be appended: in the log's chunk, or in a new one.
    fn room_in(&self, log: &mut Log, total: usize, whom: For, core: usize) -> Result<(u32, u64)> {
        if let Some((chunk, tail)) = log.open
            && tail + total as u64 <= self.layout.chunk_size
        {
            return Ok((chunk, self.layout.start_of(chunk) + tail));
        }
        let next = self.take_chunks(1, whom)?;
        if let Some((chunk, tail)) = log.open.take() {
            self.seal(chunk, tail)?;
        }
        let begun = self.begin_log(next, core, self.sequence.load(Ordering::Relaxed));
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
        };
        self.chunks.begin(&*self.memory, header)?;
        if let Some(state) = self.chunks.get(chunk) {
            state.set_usage(Use::OpenLog);
        }
        Ok(CHUNK_START)
    }

    /// Marks the end of a chunk's log; durable with the next fence.
    pub(super) fn seal(&self, chunk: u32, tail: u64) -> Result<()> {
        let Some(state) = self.chunks.get(chunk) else { return Ok(()) };
        if tail + LINE as u64 <= self.layout.chunk_size {
            let mut line = [0; LINE];
            let offset = self.layout.start_of(chunk) + tail;
            let header = BatchHeader { kind: BatchKind::Seal, payload_bytes: 0, base_version: 0 };
            seal_batch(&mut line, &header, state.salt(), offset);
            let store = self.memory.store(sites::SEAL_STORE, offset, &line);
            store
                .and_then(|()| self.memory.flush(sites::COMMIT_FLUSH, offset, LINE as u64))
                .map_err(|error| self.poison(&error))?;
        }
        state.set_usage(Use::Log);
        Ok(())
    }

    /// Takes free chunks; makes room first if there are too few.
    pub(super) fn take_chunks(&self, count: usize, whom: For) -> Result<u32> {
        loop {
            if let Some(first) = self.chunks.take(count, whom) {
                if self.chunks.free_count() < self.reserve().1 {
                    self.background.wake();
                }
                return Ok(first);
            }
            if !self.make_room(count, whom)? {
                let words = "the store is full; deletes go on";
                return Err(Error::new(ErrorKind::NoSpace, "write").context(words));
            }
        }
    }

    /// Whether entries of so many and so many bytes have versions by their places.
    pub(super) fn has_places(count: usize, payload: usize) -> bool {
        count <= BATCH_ENTRIES_MAX && payload + BATCH_HEADER_SIZE <= BATCH_NEAR_BYTES
    }
}
