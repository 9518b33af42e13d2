//! Restoring: a store from a backup, in memory that holds none.
//!
//! Batches and records are bound to their places, so every chunk goes back to where it was; the others become free. What
//! stands there then is what a power cut at the moment of the backup could have left, and the next open recovers it.
//!
//! # Invariants
//! - Z1: until everything is durable, the memory holds no store, and says so.
//! - Z2: no byte of the backup is believed before its checksum was compared.
//! - Z3: nothing that stood there before can be taken for a part of the store, also if it was the same store: every header
//!   is written, and all of a chunk behind what the backup has. What stands in the others is of sessions before those that follow: the
//!   session is a later one than the backup's and than that of the store that was here.
//!
//! # Concurrency
//! One caller, who has the memory to himself.
//!
//! # Failure
//! A crash or an error leaves memory that no open takes: restore again.

use super::layout::Layout;
use super::recover::{EPOCH_BITS, is_storeless, read_header, remains, whole_line};
use super::sites;
use crate::backup::RestoreReport;
use crate::engine::backup::Backup;
use crate::options::{EngineKind, Progress};
use esker_base::ids::Version;
use esker_base::rng::secret;
use esker_base::{Error, ErrorKind, Result};
use esker_format::backup::{FlatManifest, ManifestEntry};
use esker_format::flat::{
    CHUNK_HEADER_SIZE, CLEAR_OFFSETS, ChunkHeader, ChunkKind, Clear, IndexKind, RESTORING,
    SESSION_OFFSET, SUPERBLOCK_OFFSETS, Session, Superblock,
};
use esker_media::{BufferPool, Pmem};

/// Bytes of zeros that are written at once.
const ZEROS: usize = 64 << 10;

impl Backup<'_, FlatManifest> {
    /// Size of the memory that was backed up, in bytes.
    pub(crate) fn memory_size_bytes(&self) -> u64 {
        self.manifest.superblock.size_bytes
    }

    /// The engine of the store that was backed up.
    pub(crate) fn kind(&self) -> EngineKind {
        match self.manifest.superblock.index {
            IndexKind::Cceh => EngineKind::FlatCceh,
            IndexKind::Masstree => EngineKind::FlatMasstree,
        }
    }

    /// How many chunks a store of so many bytes has.
    ///
    /// # Errors
    /// `InvalidArgument` if it does not reach to the last one in use.
    pub(crate) fn chunks_in(&self, size_bytes: u64) -> Result<u32> {
        let chunk_size = self.manifest.superblock.chunk_size_bytes;
        let last = self.manifest.segments.last().map_or(0, |entry| u64::from(entry.id.0) + 1);
        if size_bytes / chunk_size < last {
            let needed = last * chunk_size;
            let words = format!(
                "{size_bytes} bytes are too few: chunks keep their places, and the last one in use ends at {needed}"
            );
            return Err(Error::invalid("restore", words));
        }
        Ok(Layout::plan(size_bytes, Some(chunk_size))?.1)
    }

    /// The superblock of the new store.
    fn superblock_in(&self, memory: &dyn Pmem) -> Result<Superblock> {
        let size_bytes = memory.size_bytes();
        let chunk_count =
            self.chunks_in(size_bytes).map_err(|error| error.device(memory.name()))?;
        Ok(Superblock { size_bytes, chunk_count, ..self.manifest.superblock })
    }

    /// Whether there is nothing in `memory` but what a restore left that did not end.
    pub(crate) fn is_free_memory(&self, memory: &dyn Pmem) -> Result<bool> {
        let layout = Layout::of(&self.manifest.superblock);
        Ok(!Target { memory, layout, pool: BufferPool::default() }.is_taken()?)
    }
}

/// Memory that becomes a store.
struct Target<'a> {
    memory: &'a dyn Pmem,
    layout: Layout,
    pool: BufferPool,
}

impl Target<'_> {
    fn is_taken(&self) -> Result<bool> {
        for offset in SUPERBLOCK_OFFSETS {
            match self.memory.load_u64(offset) {
                Ok(magic) if is_storeless(magic) => {}
                // Where nobody can read, something may be.
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Corrupted => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        match remains(self.memory, Some(self.layout.chunk_size)) {
            Err(error) if error.kind() == ErrorKind::Corrupted => Ok(true),
            found => Ok(found?.is_some()),
        }
    }

    /// The latest session of this very store that wrote here, before the backup or after it; 0 if none did.
    fn old_session(&self) -> Result<u64> {
        let lost = |error: &Error| error.kind() == ErrorKind::Corrupted;
        let word = match self.memory.load_u64(SESSION_OFFSET) {
            Ok(word) => Session::decode(word, &self.layout.store_id).ok(),
            Err(error) if lost(&error) => None,
            Err(error) => return Err(error),
        };
        // Another store, none, or a damaged word: of the same store, headers know.
        let mut session = word.map_or(0, |word| word.number);
        for number in 1..self.layout.chunk_count {
            match read_header(self.memory, &self.layout, number) {
                Ok(Some((header, _))) => session = session.max(header.epoch >> EPOCH_BITS),
                Ok(None) => {}
                Err(error) if lost(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(session)
    }

    /// Makes the session durable before the headers go that know of those before.
    fn write_session(&self, number: u64) -> Result<()> {
        let word = Session { number, clean: false }.encode(&self.layout.store_id);
        match self.memory.load_u64(SESSION_OFFSET) {
            // The line is good again once all of it is written.
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                self.write(SESSION_OFFSET, &whole_line(&[]))?;
            }
            found => drop(found?),
        }
        self.memory.store_u64(sites::RESTORE_STORE, SESSION_OFFSET, word)?;
        self.memory.flush(sites::RESTORE_FLUSH, SESSION_OFFSET, 8)?;
        self.fence()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.memory.store(sites::RESTORE_STORE, offset, bytes)?;
        self.memory.flush(sites::RESTORE_FLUSH, offset, bytes.len() as u64)
    }

    fn fence(&self) -> Result<()> {
        self.memory.fence(sites::RESTORE_FENCE)
    }

    fn write_zeros(&self, mut offset: u64, end: u64) -> Result<()> {
        let zeros = vec![0; ZEROS];
        while offset < end {
            let size = usize::try_from(end - offset).unwrap_or(ZEROS).min(ZEROS);
            self.write(offset, zeros.get(..size).unwrap_or(&zeros))?;
            offset += size as u64;
        }
        Ok(())
    }

    fn write_chunk(&self, backup: &Backup<'_, FlatManifest>, entry: &ManifestEntry) -> Result<()> {
        let start = self.layout.start_of(entry.id.0);
        backup.each_piece(&self.pool, entry, &mut |at, buffer| self.write(start + at, buffer))?;
        // Z3: batches of the same incarnation may stand there.
        self.write_zeros(start + entry.length_bytes, start + self.layout.chunk_size)
    }

    /// Its header says the session, too (Z3): where the word is damaged, headers are all that knows it.
    fn write_free(&self, number: u32, session: u64, next_version: u64) -> Result<()> {
        let header = ChunkHeader {
            epoch: session << EPOCH_BITS,
            born: 0,
            kind: ChunkKind::Free,
            owner: 0,
            number,
            lines: 0,
            chunks: 0,
            next_version,
        };
        let bytes = header.encode(&self.layout.store_id);
        let start = self.layout.start_of(number);
        self.write(start, &bytes)?;
        self.write(start + CHUNK_HEADER_SIZE as u64, &bytes)
    }

    /// Takes away what made a store of the memory, or makes one of it.
    fn write_magic(&self, magic: u64) -> Result<()> {
        for offset in SUPERBLOCK_OFFSETS {
            self.memory.store_u64(sites::RESTORE_STORE, offset, magic)?;
            self.memory.flush(sites::RESTORE_FLUSH, offset, 8)?;
        }
        self.fence()
    }
}

/// Makes the store of a backup in `memory`; `format` overwrites what is there, with a backup that was found sound.
///
/// # Errors
/// `InvalidArgument` if the memory holds something or is too small, `Corrupted` naming the file of the backup, `Io`.
pub(crate) fn restore(
    backup: &Backup<'_, FlatManifest>,
    memory: &dyn Pmem,
    format: bool,
    progress: &Progress,
) -> Result<RestoreReport> {
    let superblock = backup.superblock_in(memory)?;
    let layout = Layout::of(&superblock);
    let target = Target { memory, layout, pool: BufferPool::default() };
    if !format && target.is_taken()? {
        let words = "there is something here already; a backup is restored to an empty place";
        return Err(Error::invalid("restore", words).device(memory.name()));
    }
    let entries = &backup.manifest.segments;
    let backed_up = entries.iter().map(|entry| entry.epoch.0 >> EPOCH_BITS).max().unwrap_or(0);
    // Far behind what is known: the store that was backed up may have gone on elsewhere, and a backup of this one is not to
    // take its files for its own.
    let ahead = u64::from(u16::from_le_bytes(secret()?));
    let session = target.old_session()?.max(backed_up) + ahead + 1;
    // PERSIST: Z1. Crash before: what was here; after: nothing.
    target.write_magic(u64::from_le_bytes(RESTORING))?;
    // PERSIST: Z3, also if this is cut off and begun again.
    target.write_session(session)?;
    let mut named = entries.iter().peekable();
    let mut report = RestoreReport {
        last_version: Version(backup.manifest.next_version.0.saturating_sub(1)),
        ..RestoreReport::default()
    };
    for number in 1..superblock.chunk_count {
        let Some(entry) = named.next_if(|entry| entry.id.0 == number) else {
            target.write_free(number, session, backup.manifest.next_version.0)?;
            continue;
        };
        progress.report(report.segments, entries.len() as u64);
        target.write_chunk(backup, entry)?;
        report.segments += 1;
        report.bytes += entry.length_bytes;
    }
    progress.report(report.segments, entries.len() as u64);
    let store_id = &superblock.store_id;
    let clear = Clear { generation: 1, version: backup.manifest.clear_version.0 };
    for offset in CLEAR_OFFSETS {
        target.write(offset, &whole_line(&clear.encode(store_id)))?;
    }
    let bytes = superblock.encode();
    let (magic, rest) = bytes.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    // Whole lines: one that cannot be read is so until all of it is written.
    let unfinished = [&RESTORING[..], rest].concat();
    for offset in SUPERBLOCK_OFFSETS {
        target.write(offset, &unfinished)?;
    }
    // PERSIST: everything, before the superblock says that there is a store.
    target.fence()?;
    target.write_magic(u64::from_le_bytes(*magic))?;
    Ok(report)
}
