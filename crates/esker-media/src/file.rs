//! A block device of the operating system: a preallocated file or a raw device.
//!
//! The engine's ordinary medium. Opening (`open`) decides between direct and buffered I/O and takes
//! the lock against a second opener; `durability` finds out what stands below and what makes a
//! write durable there; this file moves the bytes, through `esker_trt::io`, so that a task that
//! waits for the device lets its core run others.
//!
//! # Invariants
//! - I1: after a failed flush or durable write no later one succeeds until the device is opened
//!   again (reliability F12): the kernel reports a write-back error once and then forgets it. In
//!   direct mode that also holds of one that overlaps with it: none succeeds before all that were
//!   in progress when it ended have told whether they failed (`progress`).
//! - I2: in direct mode the kernel only ever sees aligned memory; a caller's misaligned buffer goes
//!   through a bounce buffer of the pool.
//! - I3: in buffered mode only one flush or durable write is in progress, because of two that
//!   overlap the kernel may tell only one about a page that it could not write.
//! - B1 to B4 of [`crate::block`].
//!
//! # Concurrency
//! Any number of calls at once from tasks and threads. Both locks, that of I3 and that of whoever makes the file longer,
//! may be held by tasks across a suspension.
//!
//! # Failure
//! A short transfer is resumed; `EINTR` is repeated; anything else fails the call. A failed write
//! leaves its range unknown. `NoSpace` does not close the device.

use crate::block::{AtomicCounters, BlockDevice, BlockGeometry, Counters, total_length};
use crate::buffer::BufferPool;
use crate::locked::LockedFile;
use esker_base::{Error, ErrorKind, Result, Site};
use esker_trt::io::{self, WriteMode};
use esker_trt::sync::{Mutex, MutexGuard};
use progress::{Entry, Progress};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

mod discard;
pub mod durability;
pub(crate) mod open;
mod progress;

pub use durability::{Backing, CacheMode, DurableWrites};

/// Whether the page cache is bypassed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Open fails with `Unsupported` where `O_DIRECT` is refused.
    Require,
    /// Buffered where `O_DIRECT` is refused; the report says so.
    #[default]
    Prefer,
    /// Always buffered.
    Never,
}

/// How to open a [`FileDevice`].
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// If the file does not exist or is empty: create it with this size in bytes, all of it
    /// allocated. An existing file or device must have this size (a device: at least).
    pub create_size_bytes: Option<u64>,
    /// A file that exists with another size gets this one: for who gives up what it holds. Made shorter or longer, it is as it was
    /// if that fails.
    pub resize: bool,
    /// Whether the page cache is bypassed.
    pub direct: Direct,
    /// Refuse to share the file or device with another opener that locks it too. Readers share
    /// among themselves.
    pub lock: bool,
    /// Refuse every write.
    pub read_only: bool,
    /// On a file, discard punches holes, which gives the space back to the file system. Off, a
    /// discard does nothing: the space stays reserved and stays prepared (see `docs/rfcs/0002`).
    /// A raw device is always told.
    pub punch_holes: bool,
    /// Which way a durable write goes; `None` chooses.
    pub durable_writes: Option<DurableWrites>,
    /// It will be mapped: a new file in main memory gets huge pages, where the kernel has some.
    pub mapped: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            create_size_bytes: None,
            resize: false,
            direct: Direct::Prefer,
            lock: true,
            read_only: false,
            punch_holes: false,
            durable_writes: None,
            mapped: false,
        }
    }
}

/// Largest bounce buffer in bytes.
const BOUNCE_SIZE_BYTES_MAX: usize = 1 << 20;
/// Bytes written at a time when a range is prepared.
const PREPARE_CHUNK_BYTES: u64 = 1 << 20;
/// Most pieces of one vectored call (`IOV_MAX`).
const PIECE_COUNT_MAX: usize = 1024;
/// `FALLOC_FL_WRITE_ZEROES` (Linux 6.17): allocated, written and zero, by the device if it can.
const WRITE_ZEROES: FallocateFlags = FallocateFlags::from_bits_retain(0x80);

/// A file or raw device. See the module's text.
#[derive(Debug)]
pub struct FileDevice {
    name: String,
    fd: LockedFile,
    block_size_bytes: u32,
    /// Grows only.
    size_bytes: AtomicU64,
    /// Alignment of memory in direct mode, in bytes; `None` in buffered mode.
    memory_alignment: Option<usize>,
    options: OpenOptions,
    backing: Backing,
    durable_writes: DurableWrites,
    nowait: bool,
    answers_at_once: bool,
    /// Cleared when the kernel refuses `RWF_DSYNC`.
    dsync_works: AtomicBool,
    /// Set by the first failed flush (I1).
    failed: AtomicBool,
    /// Held by the flush or durable write in progress, in buffered mode (I3).
    turns: Mutex<()>,
    /// The flushes and durable writes in progress, in direct mode (I1).
    progress: Progress,
    /// Held by who makes the file longer.
    growth: Mutex<()>,
    counters: AtomicCounters,
    pool: BufferPool,
}

/// What a flush or durable write has while it is in progress. One that fails says so in `failed` before it gives this back.
enum Turn<'a> {
    /// No other is (I3).
    Alone(MutexGuard<'a, ()>),
    /// Others may be (I1).
    Beside(Entry<'a>),
}

impl FileDevice {
    /// Opens the file or block device at `path`.
    ///
    /// # Errors
    /// `Locked` if another opener has it, `NoSpace` if the file cannot be allocated (a partly
    /// created file is removed), `Unsupported` if `O_DIRECT` is required and refused,
    /// `InvalidArgument` if the size does not fit or this is neither file nor block device, `Io`.
    pub fn open(path: &Path, options: OpenOptions) -> Result<FileDevice> {
        FileDevice::open_with_pool(path, options, BufferPool::new(4 * BOUNCE_SIZE_BYTES_MAX))
    }

    /// As [`FileDevice::open`], with bounce buffers from `pool`.
    ///
    /// # Errors
    /// As for [`FileDevice::open`].
    pub fn open_with_pool(
        path: &Path,
        options: OpenOptions,
        pool: BufferPool,
    ) -> Result<FileDevice> {
        let name = path.display().to_string();
        let opened = open::open(path, &options).map_err(|error| error.device(&name))?;
        let durable_writes =
            options.durable_writes.unwrap_or_else(|| DurableWrites::choose(&opened.backing));
        // The page cache is for io_uring: AIO waits for it.
        let nowait = opened.memory_alignment.is_none()
            || open::is_nowait(opened.fd.as_fd(), opened.geometry.block_size_bytes);
        // A file system may wait for more than its device.
        let answers_at_once = opened.backing.is_raw_device
            && opened.memory_alignment.is_some()
            && open::answers_at_once(opened.fd.as_fd(), opened.geometry);
        Ok(FileDevice {
            name,
            nowait,
            answers_at_once,
            fd: opened.fd,
            block_size_bytes: opened.geometry.block_size_bytes,
            size_bytes: AtomicU64::new(opened.geometry.size_bytes),
            memory_alignment: opened.memory_alignment,
            options,
            backing: opened.backing,
            durable_writes,
            dsync_works: AtomicBool::new(true),
            failed: AtomicBool::new(false),
            turns: Mutex::new(()),
            progress: Progress::default(),
            growth: Mutex::new(()),
            counters: AtomicCounters::default(),
            pool,
        })
    }

    /// What stands below.
    #[must_use]
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Whether the page cache is bypassed.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.memory_alignment.is_some()
    }

    /// The open file, for measurements and for drivers that register it.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn error(&self, operation: &'static str, source: std::io::Error) -> Error {
        use std::io::ErrorKind as K;
        // Whatever a device lacks, it has refused this: who asked is not to take it for a lack or a time-out of his own.
        let error = match source.kind() {
            K::TimedOut | K::OutOfMemory => Error::new(ErrorKind::Io, operation).source(source),
            _ => Error::io(operation, source),
        };
        error.device(&self.name)
    }

    fn check(&self, operation: &'static str, offset: u64, length: u64) -> Result<()> {
        self.geometry().check(operation, offset, length).map_err(|error| error.device(&self.name))
    }

    fn check_writable(&self, operation: &'static str, offset: u64, length: u64) -> Result<()> {
        if self.options.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, operation)
                .device(&self.name)
                .context("the device was opened for reading"));
        }
        self.check(operation, offset, length)
    }

    /// Refuses after an earlier failure (I1).
    fn check_not_failed(&self, operation: &'static str) -> Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Io, operation)
                .device(&self.name)
                .context("an earlier flush failed; open the device again"));
        }
        Ok(())
    }

    fn is_aligned(&self, address: usize, length: usize) -> bool {
        self.memory_alignment.is_none_or(|alignment| {
            address.is_multiple_of(alignment)
                && length.is_multiple_of(self.block_size_bytes as usize)
        })
    }

    /// Whole blocks of what a call transferred: the rest of a torn block is done again.
    fn whole_blocks(&self, count: usize) -> usize {
        count - count % self.block_size_bytes as usize
    }

    fn read_pieces(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        const OPERATION: &str = "read device";
        let mut at = offset;
        let mut rest = bufs;
        while rest.iter().any(|buf| !buf.is_empty()) {
            let count = rest.len().min(PIECE_COUNT_MAX);
            let (now, _) = rest.split_at_mut(count);
            let length = now.iter().map(|buf| buf.len() as u64).sum();
            let done = match io::read_vectored_at(self.fd.as_fd(), now, at) {
                Ok(done) if self.reads_bytes() => done,
                Ok(done) => self.whole_blocks(done),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.error(OPERATION, error).at(at, length)),
            };
            self.counters.read(done as u64);
            if done == 0 {
                return Err(Error::new(ErrorKind::Io, OPERATION)
                    .device(&self.name)
                    .at(at, length)
                    .context("the device ended early"));
            }
            at += done as u64;
            IoSliceMut::advance_slices(&mut rest, done);
        }
        Ok(())
    }

    fn write_pieces(&self, offset: u64, bufs: &[IoSlice<'_>], mode: WriteMode) -> Result<()> {
        const OPERATION: &str = "write device";
        let length = total_length(bufs);
        let first = bufs.get(..bufs.len().min(PIECE_COUNT_MAX)).unwrap_or(bufs);
        let mut done = self.write_once(offset, first, mode)?;
        if done == length {
            return Ok(());
        }
        let mut pieces = bufs.to_vec();
        let mut rest = pieces.as_mut_slice();
        IoSlice::advance_slices(&mut rest, usize::try_from(done).unwrap_or(usize::MAX));
        while done < length {
            let now = rest.get(..rest.len().min(PIECE_COUNT_MAX)).unwrap_or(rest);
            let count = self.write_once(offset + done, now, mode)?;
            if count == 0 {
                return Err(Error::new(ErrorKind::Io, OPERATION)
                    .device(&self.name)
                    .at(offset + done, length - done)
                    .context("the device takes no more bytes"));
            }
            done += count;
            IoSlice::advance_slices(&mut rest, usize::try_from(count).unwrap_or(usize::MAX));
        }
        Ok(())
    }

    /// One call to the device; whole blocks written.
    fn write_once(&self, offset: u64, bufs: &[IoSlice<'_>], mode: WriteMode) -> Result<u64> {
        loop {
            match io::write_vectored_at(self.fd.as_fd(), bufs, offset, mode) {
                Ok(count) => {
                    let count = self.whole_blocks(count) as u64;
                    self.counters.write(count);
                    return Ok(count);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(self.error("write device", error).at(offset, total_length(bufs)));
                }
            }
        }
    }

    /// Writes, through bounce buffers if the caller's memory is misaligned (I2).
    fn write_any(&self, offset: u64, bufs: &[IoSlice<'_>], mode: WriteMode) -> Result<()> {
        if bufs.iter().all(|buf| self.is_aligned(buf.as_ptr().addr(), buf.len())) {
            return self.write_pieces(offset, bufs, mode);
        }
        let mut left = usize::try_from(total_length(bufs)).unwrap_or(usize::MAX);
        let mut sources = bufs.iter();
        let mut source: &[u8] = &[];
        let mut at = offset;
        while left > 0 {
            let mut bounce = self.pool.get(left.min(BOUNCE_SIZE_BYTES_MAX));
            let mut space = &mut bounce[..];
            while !space.is_empty() {
                if source.is_empty() {
                    source = sources.next().map_or(&[], |buf| buf);
                    continue;
                }
                let count = source.len().min(space.len());
                let (from, from_rest) = source.split_at(count);
                let (to, to_rest) = space.split_at_mut(count);
                to.copy_from_slice(from);
                (source, space) = (from_rest, to_rest);
            }
            self.write_pieces(at, &[IoSlice::new(&bounce)], mode)?;
            at += bounce.len() as u64;
            left -= bounce.len();
        }
        Ok(())
    }

    /// Before a flush or durable write.
    fn begin_durable(&self) -> Turn<'_> {
        match self.is_direct() {
            true => Turn::Beside(self.progress.enter()),
            false => Turn::Alone(self.turns.lock()),
        }
    }

    /// After a flush or durable write that the kernel says succeeded. Another may have failed meanwhile, and with it what
    /// this one was to cover (I1).
    fn end_durable(&self, operation: &'static str, turn: Turn<'_>) -> Result<()> {
        let _alone = match turn {
            Turn::Alone(guard) => Some(guard),
            Turn::Beside(entry) => {
                entry.leave_and_wait();
                None
            }
        };
        self.check_not_failed(operation)
    }

    /// `fdatasync`; the first failure closes the device for good (I1).
    fn sync(&self) -> Result<()> {
        const OPERATION: &str = "flush device";
        let turn = self.begin_durable();
        self.check_not_failed(OPERATION)?;
        self.counters.flush();
        let result = loop {
            match io::sync_data(self.fd.as_fd()) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        #[cfg(test)]
        let result = result.and_then(|()| tests::answered());
        result.map_err(|error| {
            self.failed.store(true, Ordering::Release);
            self.error(OPERATION, error)
        })?;
        self.end_durable(OPERATION, turn)
    }

    /// A write with `RWF_DSYNC`, or `None` if this kernel or file system does not know it.
    fn write_dsync(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Option<Result<()>> {
        const OPERATION: &str = "write device durably";
        if self.durable_writes != DurableWrites::Dsync || !self.dsync_works.load(Ordering::Relaxed)
        {
            return None;
        }
        let turn = self.begin_durable();
        if let Err(error) = self.check_not_failed(OPERATION) {
            return Some(Err(error));
        }
        let result = self.write_any(offset, bufs, WriteMode::Durable);
        #[cfg(test)]
        let result = result
            .and_then(|()| tests::answered().map_err(|error| self.error("write device", error)));
        match result {
            Ok(()) => Some(self.end_durable(OPERATION, turn)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.dsync_works.store(false, Ordering::Relaxed);
                None
            }
            Err(error) => {
                // Its sync part may be what failed, and that is reported once, for whatever the page cache holds. A write that
                // finds no room where a plain one does tells the same.
                let no_room = error.kind() == ErrorKind::NoSpace
                    && (self.is_direct()
                        || self.write_any(offset, bufs, WriteMode::Plain).is_err());
                if !no_room {
                    self.failed.store(true, Ordering::Release);
                }
                Some(Err(error))
            }
        }
    }

    /// Writes zeros over the range in large chunks, and waits until they are durable.
    fn write_zeros(&self, offset: u64, length: u64) -> Result<()> {
        let chunk = usize::try_from(length.min(PREPARE_CHUNK_BYTES)).unwrap_or(0);
        let zeros = self.pool.get_zeroed(chunk);
        let mut done = 0;
        while done < length {
            let now = usize::try_from((length - done).min(PREPARE_CHUNK_BYTES)).unwrap_or(0);
            let piece = zeros.get(..now).unwrap_or(&zeros);
            self.write_pieces(offset + done, &[IoSlice::new(piece)], WriteMode::Plain)?;
            self.counters.prepare(now as u64);
            done += now as u64;
        }
        Ok(())
    }

    /// Whether every extent of the range was written already: file systems report unwritten ones
    /// as holes. A doubt is a no.
    fn was_written(&self, offset: u64, length: u64) -> bool {
        rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Hole(offset))
            .is_ok_and(|hole| hole >= offset.saturating_add(length))
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> BlockGeometry {
        let size_bytes = self.size_bytes.load(Ordering::Acquire);
        BlockGeometry { size_bytes, block_size_bytes: self.block_size_bytes }
    }

    fn report(&self) -> String {
        durability::report(
            &self.name,
            &self.backing,
            self.geometry(),
            self.is_direct(),
            self.durable_writes,
            self.options.punch_holes,
        )
    }

    fn is_nowait(&self) -> bool {
        self.nowait
    }

    fn answers_at_once(&self) -> bool {
        self.answers_at_once
    }

    fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn reads_bytes(&self) -> bool {
        !self.is_direct()
    }

    fn read_at(&self, _site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        let checked = self.read_geometry().check("read device", offset, buf.len() as u64);
        checked.map_err(|error| error.device(&self.name))?;
        if self.is_aligned(buf.as_ptr().addr(), buf.len()) {
            return self.read_pieces(offset, &mut [IoSliceMut::new(buf)]);
        }
        let mut at = offset;
        for piece in buf.chunks_mut(BOUNCE_SIZE_BYTES_MAX) {
            let mut bounce = self.pool.get(piece.len());
            self.read_pieces(at, &mut [IoSliceMut::new(&mut bounce)])?;
            piece.copy_from_slice(&bounce);
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn read_vectored_at(&self, site: Site, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let length = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.check("read device", offset, length)?;
        if bufs.iter().all(|buf| self.is_aligned(buf.as_ptr().addr(), buf.len())) {
            return self.read_pieces(offset, bufs);
        }
        let mut at = offset;
        for buf in bufs {
            self.read_at(site, at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn read_many_at(&self, site: Site, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        let aligned = |buf: &[u8]| self.is_aligned(buf.as_ptr().addr(), buf.len());
        if reads.len() < 2 || !reads.iter().all(|(_, buf)| aligned(buf)) {
            for (offset, buf) in reads {
                self.read_at(site, *offset, buf)?;
            }
            return Ok(());
        }
        for (offset, buf) in &*reads {
            self.read_geometry().check("read device", *offset, buf.len() as u64)?;
        }
        let mut done: Vec<usize> = vec![0; reads.len()];
        io::read_many_at(self.fd.as_fd(), reads, |number, result| {
            // What failed is done again by itself, and tells why if it fails again.
            if let (Some(done), Ok(bytes)) = (done.get_mut(number), result) {
                *done = if self.reads_bytes() { bytes } else { self.whole_blocks(bytes) };
                self.counters.read(*done as u64);
            }
        });
        for ((offset, buf), done) in reads.iter_mut().zip(done) {
            let rest = buf.get_mut(done..).unwrap_or_default();
            if !rest.is_empty() {
                self.read_pieces(*offset + done as u64, &mut [IoSliceMut::new(rest)])?;
            }
        }
        Ok(())
    }

    fn write_at(&self, _site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.check_writable("write device", offset, total_length(bufs))?;
        self.write_any(offset, bufs, WriteMode::Plain)
    }

    fn write_durable_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.check_writable("write device durably", offset, total_length(bufs))?;
        if site.disabled() {
            return self.write_any(offset, bufs, WriteMode::Plain);
        }
        self.check_not_failed("write device durably")?;
        if let Some(result) = self.write_dsync(offset, bufs) {
            return result;
        }
        self.write_any(offset, bufs, WriteMode::Plain)?;
        self.sync()
    }

    fn flush(&self, site: Site) -> Result<()> {
        if site.disabled() {
            return Ok(());
        }
        self.sync()
    }

    fn discard(&self, _site: Site, offset: u64, length: u64) -> Result<()> {
        self.check_writable("discard range", offset, length)?;
        if length == 0 || (!self.backing.is_raw_device && !self.options.punch_holes) {
            return Ok(());
        }
        let result = rustix::io::retry_on_intr(|| {
            if self.backing.is_raw_device {
                return discard::discard_blocks(self.fd.as_fd(), offset, length);
            }
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.fd, flags, offset, length)
        });
        match result {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::INVAL) => Ok(()),
            Err(errno) => Err(self.error("discard range", errno.into()).at(offset, length)),
        }
    }

    fn prepare(&self, _site: Site, offset: u64, length: u64) -> Result<()> {
        self.check_writable("prepare range", offset, length)?;
        if self.backing.is_raw_device || length == 0 || self.was_written(offset, length) {
            return Ok(());
        }
        if rustix::fs::fallocate(&self.fd, WRITE_ZEROES, offset, length).is_err() {
            self.write_zeros(offset, length)?;
        }
        // The extents' new state is metadata: durable now, so that no later flush writes it.
        self.sync()
    }

    fn reserve(&self, _site: Site, offset: u64, length: u64) -> Result<()> {
        const OPERATION: &str = "reserve range";
        let end = offset.saturating_add(length);
        let grows = end > self.geometry().size_bytes;
        if !grows {
            self.check_writable(OPERATION, offset, length)?;
            if self.backing.is_raw_device {
                return Ok(());
            }
        } else if self.backing.is_raw_device
            || self.options.read_only
            || !end.is_multiple_of(u64::from(self.block_size_bytes))
        {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .device(&self.name)
                .at(offset, length)
                .context("a raw device, one opened for reading, or not whole blocks"));
        }
        // Who finds no room cuts off what was taken behind the end: that is nobody else's.
        let _turn = grows.then(|| self.growth.lock());
        open::allocate(&self.fd, offset, length)
            .map_err(|error| error.device(&self.name).at(offset, length))?;
        if end > self.geometry().size_bytes {
            self.sync()?;
            self.size_bytes.fetch_max(end, Ordering::AcqRel);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
