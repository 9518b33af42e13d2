//! Persistent memory in a file: real where the file system is DAX, otherwise through `msync`, or
//! emulated in main memory if that is asked for by name.
//!
//! # Invariants
//! - I1: `PmemMode::Direct` only if the kernel granted `MAP_SYNC`: then no page-cache copy stands
//!   between a flushed line and the medium.
//! - I2: in `PmemMode::Msync` a fence returns only after the pages of all flushes and non-temporal
//!   stores before it were synced; after a failed sync no fence succeeds (F12).
//! - I3: the file is allocated in full before it is mapped.
//!
//! # Concurrency
//! As the trait says. In `Msync` mode a fence covers other threads' flushes too.
//!
//! # Failure
//! A lost page is `Corrupted`; see the module `fault`.

use super::cpu::{self, FlushInstruction};
use super::mapping::{Mapping, Sharing};
use super::{AtomicPmemCounters, LINE_SIZE_BYTES, Pmem, PmemCounters, check};
use crate::file::{Direct, OpenOptions, open};
use crate::locked::LockedFile;
use esker_base::{Error, ErrorKind, Result, Site};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A size is a multiple of this one.
const UNIT_BYTES: u64 = 4096;

/// How to open a [`PmemFile`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PmemOptions {
    /// If the file does not exist or is empty: create it with this size in bytes, allocated in
    /// full. An existing file must have this size.
    pub create_size_bytes: Option<u64>,
    /// A file that exists with another size gets this one: for who gives up what it holds.
    pub resize: bool,
    /// Take a file that is not persistent memory as if it were: memory speed, and nothing survives
    /// a power cut. Ignored where the memory is real.
    pub emulate: bool,
    /// The file is only read, and locked beside others that only read it; what is stored stays in memory that is this opener's
    /// own. Nothing is to be durable, so any file will do.
    pub read_only: bool,
}

/// What makes a store durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PmemMode {
    /// Flushed lines, for real persistent memory.
    Direct,
    /// `msync` of the pages.
    Msync,
    /// Nothing: emulated.
    Emulated,
    /// Nothing: what is stored stays in memory.
    ReadOnly,
}

/// A mapped file. See the module's text.
#[derive(Debug)]
pub struct PmemFile {
    name: String,
    mapping: Mapping,
    size_bytes: u64,
    mode: PmemMode,
    instruction: FlushInstruction,
    file_system: &'static str,
    /// Pages to sync at the next fence (`Msync` mode), of `page_size_bytes` each.
    pub(super) dirty: Mutex<BTreeSet<u64>>,
    /// A page of this system: `msync` takes no less. Tests have others.
    pub(super) page_size_bytes: u64,
    failed: AtomicBool,
    counters: AtomicPmemCounters,
    /// Locked while it is open; nothing else needs it after mapping.
    #[allow(dead_code, reason = "kept open for its lock; tests cut the file short")]
    pub(super) fd: LockedFile,
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Whether a file in main memory has as many pages as `size_bytes` are; a doubt is a no.
fn has_all_pages(fd: &LockedFile, size_bytes: u64) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| u64::try_from(stat.st_blocks).unwrap_or(0) >= size_bytes / 512)
}

impl PmemFile {
    /// Opens and maps the file at `path`, locked against other openers.
    ///
    /// # Errors
    /// `Unsupported` on tmpfs without `emulate`, `Locked`, `NoSpace`, `InvalidArgument` if this is
    /// no regular file or has another size, `Io`.
    pub fn open(path: &Path, options: PmemOptions) -> Result<PmemFile> {
        let name = path.display().to_string();
        PmemFile::open_named(path, options, &name).map_err(|error| error.device(&name))
    }

    fn open_named(path: &Path, options: PmemOptions, name: &str) -> Result<PmemFile> {
        const OPERATION: &str = "open persistent memory";
        let existed = path.exists();
        let opened = open::open(
            path,
            &OpenOptions {
                create_size_bytes: options.create_size_bytes,
                resize: options.resize,
                direct: Direct::Never,
                read_only: options.read_only,
                mapped: true,
                ..OpenOptions::default()
            },
        )?;
        if opened.backing.is_raw_device {
            return Err(Error::invalid(
                OPERATION,
                "not a regular file, such as a file system with DAX has",
            ));
        }
        let size_bytes = opened.geometry.size_bytes / UNIT_BYTES * UNIT_BYTES;
        if size_bytes == 0 {
            return Err(Error::invalid(OPERATION, "smaller than 4 KiB"));
        }
        let file_system = opened.backing.file_system;
        // I3, also of a copy with holes, and of one whose making was cut off. Main memory looks at each page for that, but
        // knows how many there are.
        let has_room = file_system == "tmpfs" && has_all_pages(&opened.fd, size_bytes);
        if !has_room && !options.read_only {
            open::allocate(&opened.fd, 0, size_bytes)?;
        }
        let instruction = FlushInstruction::detect();
        let map = |sharing| Mapping::new(opened.fd.as_fd(), index(size_bytes), sharing);
        let (first, mode) = match options.read_only {
            true => (map(Sharing::Private)?, PmemMode::ReadOnly),
            false if instruction == FlushInstruction::None => (None, PmemMode::Direct),
            false => (map(Sharing::Synchronous)?, PmemMode::Direct),
        };
        let (mapping, mode) = match first {
            Some(mapping) => (mapping, mode),
            None if !options.emulate && matches!(file_system, "tmpfs" | "ramfs") => {
                if !existed {
                    let _ = rustix::fs::unlink(path);
                }
                return Err(Error::new(ErrorKind::Unsupported, OPERATION).context(format!(
                    "{file_system} is main memory: nothing on it survives a power cut; \
                     ask for emulation by name to use it all the same"
                )));
            }
            None => {
                let Some(mapping) = map(Sharing::Shared)? else {
                    return Err(Error::new(ErrorKind::Unsupported, OPERATION));
                };
                (mapping, if options.emulate { PmemMode::Emulated } else { PmemMode::Msync })
            }
        };
        Ok(PmemFile {
            name: name.to_owned(),
            mapping,
            size_bytes,
            mode,
            instruction,
            file_system,
            dirty: Mutex::default(),
            page_size_bytes: rustix::param::page_size() as u64,
            failed: AtomicBool::new(false),
            counters: AtomicPmemCounters::default(),
            fd: opened.fd,
        })
    }

    /// What makes a store durable here.
    #[must_use]
    pub fn mode(&self) -> PmemMode {
        self.mode
    }

    #[inline]
    fn check(&self, operation: &'static str, offset: u64, length: u64, unit: u64) -> Result<()> {
        check(operation, self.size_bytes, offset, length, unit)
            .map_err(|error| error.device(&self.name))
    }

    /// Fails if the medium lost bytes of the range that was just accessed.
    #[inline]
    fn check_damage(&self, operation: &'static str, offset: u64, length: u64) -> Result<()> {
        match self.mapping.damaged(index(offset), index(length)) {
            None => Ok(()),
            Some(page) => Err(Error::corrupted(operation, "the medium lost this page")
                .device(&self.name)
                .at(page as u64, self.page_size_bytes)),
        }
    }

    /// Remembers the pages of a range for the next fence.
    fn note_dirty(&self, offset: u64, length: u64) {
        if self.mode == PmemMode::Msync && length > 0 {
            let pages =
                offset / self.page_size_bytes..=(offset + length - 1) / self.page_size_bytes;
            self.dirty.lock().extend(pages);
        }
    }

    /// Offsets and lengths of all dirty pages, neighbours together. The last page may end behind the memory.
    pub(super) fn dirty_ranges(&self, dirty: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let pages: Vec<u64> = dirty.iter().copied().collect();
        let ranges = pages.chunk_by(|a, b| a + 1 == *b).filter_map(|run| {
            let start = run.first()? * self.page_size_bytes;
            let end = start + run.len() as u64 * self.page_size_bytes;
            Some((start, end.min(self.size_bytes) - start))
        });
        ranges.collect()
    }

    /// Syncs all dirty pages, neighbours together. Under the lock: a fence must not return while
    /// another still syncs pages that it took over from it.
    fn sync_dirty(&self) -> Result<()> {
        const OPERATION: &str = "sync persistent memory";
        let mut dirty = self.dirty.lock();
        if self.failed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Io, OPERATION)
                .device(&self.name)
                .context("an earlier sync failed; open the file again"));
        }
        for (offset, length) in self.dirty_ranges(&std::mem::take(&mut *dirty)) {
            self.mapping.sync(index(offset), index(length)).map_err(|errno| {
                self.failed.store(true, Ordering::Release);
                Error::io(OPERATION, errno.into()).device(&self.name).at(offset, length)
            })?;
        }
        Ok(())
    }
}

impl Pmem for PmemFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn report(&self) -> String {
        let (name, size) = (&self.name, self.size_bytes);
        let flush = self.instruction.name();
        let file_system = self.file_system;
        match self.mode {
            PmemMode::Direct => format!(
                "persistent memory {name} on {file_system} with DAX (MAP_SYNC), {size} bytes: a \
                 store is durable after {flush} and sfence"
            ),
            PmemMode::Msync => format!(
                "file {name} on {file_system}, {size} bytes, mapped without DAX (MAP_SYNC was \
                 refused): NOT persistent memory; a store is durable after msync, which each \
                 fence pays for"
            ),
            PmemMode::ReadOnly => format!(
                "file {name} on {file_system}, {size} bytes, only read: what is stored stays in memory"
            ),
            PmemMode::Emulated => format!(
                "file {name} on {file_system}, {size} bytes, EMULATES persistent memory as was \
                 asked for ({flush} and sfence are executed): NOTHING HERE SURVIVES A POWER CUT"
            ),
        }
    }

    fn counters(&self) -> PmemCounters {
        self.counters.get()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        const OPERATION: &str = "read persistent memory";
        self.check(OPERATION, offset, buf.len() as u64, 1)?;
        self.mapping.read(index(offset), buf);
        self.check_damage(OPERATION, offset, buf.len() as u64)
    }

    #[inline]
    fn prefetch(&self, offset: u64, length: u64) {
        if length > 0 && offset.checked_add(length).is_some_and(|end| end <= self.size_bytes) {
            self.mapping.prefetch(index(offset), index(length));
        }
    }

    fn load_u64(&self, offset: u64) -> Result<u64> {
        const OPERATION: &str = "read persistent memory";
        self.check(OPERATION, offset, 8, 8)?;
        let value = self.mapping.load_u64(index(offset));
        self.check_damage(OPERATION, offset, 8)?;
        Ok(value)
    }

    fn store(&self, _site: Site, offset: u64, bytes: &[u8]) -> Result<()> {
        const OPERATION: &str = "store to persistent memory";
        self.check(OPERATION, offset, bytes.len() as u64, 1)?;
        self.counters.store();
        self.mapping.store(index(offset), bytes);
        self.check_damage(OPERATION, offset, bytes.len() as u64)
    }

    fn store_u64(&self, _site: Site, offset: u64, value: u64) -> Result<()> {
        const OPERATION: &str = "store to persistent memory";
        self.check(OPERATION, offset, 8, 8)?;
        self.counters.store();
        self.mapping.store_u64(index(offset), value);
        self.check_damage(OPERATION, offset, 8)
    }

    fn ntstore(&self, _site: Site, offset: u64, bytes: &[u8]) -> Result<()> {
        const OPERATION: &str = "store to persistent memory";
        let length = bytes.len() as u64;
        self.check(OPERATION, offset, length, 8)?;
        self.counters.ntstore(offset, length);
        self.mapping.ntstore(index(offset), bytes);
        self.note_dirty(offset, length);
        self.check_damage(OPERATION, offset, length)
    }

    fn flush(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        const OPERATION: &str = "flush persistent memory";
        self.check(OPERATION, offset, length, 1)?;
        if site.disabled() || length == 0 {
            return Ok(());
        }
        self.counters.flush(offset, length);
        match self.mode {
            PmemMode::Msync => {
                // Whole lines, as the instructions do.
                let first = offset - offset % LINE_SIZE_BYTES;
                self.note_dirty(first, offset + length - first);
            }
            PmemMode::Direct | PmemMode::Emulated => {
                self.mapping.write_back(self.instruction, index(offset), index(length));
            }
            PmemMode::ReadOnly => {}
        }
        // Of a page that was lost since the store nothing was written back but what stands in its place.
        self.check_damage(OPERATION, offset, length)
    }

    fn fence(&self, site: Site) -> Result<()> {
        if site.disabled() {
            return Ok(());
        }
        self.counters.fence();
        cpu::fence();
        match self.mode {
            PmemMode::Msync => self.sync_dirty(),
            PmemMode::Direct | PmemMode::Emulated | PmemMode::ReadOnly => Ok(()),
        }
    }
}
