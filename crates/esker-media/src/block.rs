//! Block devices: the trait that engines write to.
//!
//! # Invariants
//! - B1: a write is durable only after a [`BlockDevice::flush`] that *began* after the write
//!   returned, or if it was a [`BlockDevice::write_durable_at`].
//! - B2: offsets and lengths are multiples of `block_size_bytes`; anything else is refused with
//!   `InvalidArgument` before the device sees it.
//! - B3: after a crash, each `block_size_bytes` of an unflushed write is old or new, independently;
//!   neighbours are never touched.
//! - B4: a call returns `Ok` only if the whole range was transferred; short transfers are resumed
//!   or fail.
//!
//! # Concurrency
//! All calls take `&self` and may run at once from tasks and threads. Overlapping writes in flight
//! end in either order.
//!
//! # Failure
//! A failed write or flush leaves the range unknown. The device never retries a failed flush; the
//! engine above decides (it goes read-only).

use crate::buffer::BufferPool;
use esker_base::striped::Striped;
use esker_base::{Error, ErrorKind, Result, Site};
use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::iter::Sum;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one read where many are looked at.
const SCAN_SIZE_BYTES: usize = 256 << 10;

/// Sizes of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGeometry {
    /// Capacity in bytes; a multiple of `block_size_bytes`. A file may grow
    /// ([`BlockDevice::reserve`]).
    pub size_bytes: u64,
    /// Smallest unit of a write and alignment of every offset and length: a power of two, at
    /// least 512. Buffers that are aligned to [`IoBuf`](crate::IoBuf)'s alignment never need a copy.
    pub block_size_bytes: u32,
}

impl BlockGeometry {
    /// Whether `length` bytes at `offset` are whole blocks inside the device (B2).
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check(self, operation: &'static str, offset: u64, length: u64) -> Result<()> {
        let block = u64::from(self.block_size_bytes.max(1));
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            let context = format!("offset and length must be multiples of {block} bytes");
            return Err(Error::invalid(operation, context).at(offset, length));
        }
        if offset.checked_add(length).is_none_or(|end| end > self.size_bytes) {
            let context = format!("the device ends at {} bytes", self.size_bytes);
            return Err(Error::invalid(operation, context).at(offset, length));
        }
        Ok(())
    }
}

/// What a device did since it was opened. A transfer that the device cut short and the caller
/// resumed counts once per call to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name says it")]
pub struct Counters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    /// Of the bytes written, those that only readied free space.
    pub prepare_bytes: u64,
    pub flushes: u64,
}

impl Counters {
    /// Field by field.
    fn with(self, other: Counters, join: fn(u64, u64) -> u64) -> Counters {
        Counters {
            reads: join(self.reads, other.reads),
            read_bytes: join(self.read_bytes, other.read_bytes),
            writes: join(self.writes, other.writes),
            write_bytes: join(self.write_bytes, other.write_bytes),
            prepare_bytes: join(self.prepare_bytes, other.prepare_bytes),
            flushes: join(self.flushes, other.flushes),
        }
    }
}

impl Sum for Counters {
    fn sum<I: Iterator<Item = Counters>>(all: I) -> Counters {
        all.fold(Counters::default(), |sum, one| sum.with(one, |sum, one| sum + one))
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        self.with(before, u64::saturating_sub)
    }
}

/// Number and bytes of what some threads read.
#[derive(Debug, Default)]
struct Reads {
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

/// [`Counters`] that many threads add to. Reads, the most frequent, are counted apart for each thread.
#[derive(Debug, Default)]
pub(crate) struct AtomicCounters {
    reads: Striped<Reads>,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    prepare_bytes: AtomicU64,
    flushes: AtomicU64,
}

impl AtomicCounters {
    pub(crate) fn read(&self, bytes: u64) {
        let here = self.reads.here();
        here.reads.fetch_add(1, Ordering::Relaxed);
        here.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn write(&self, bytes: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.write_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn prepare(&self, bytes: u64) {
        self.prepare_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Each number is exact; together they may be of slightly different moments.
    pub(crate) fn get(&self) -> Counters {
        let read = |count: fn(&Reads) -> &AtomicU64| {
            self.reads.iter().map(|reads| count(reads).load(Ordering::Relaxed)).sum()
        };
        Counters {
            reads: read(|reads| &reads.reads),
            read_bytes: read(|reads| &reads.read_bytes),
            writes: self.writes.load(Ordering::Relaxed),
            write_bytes: self.write_bytes.load(Ordering::Relaxed),
            prepare_bytes: self.prepare_bytes.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
        }
    }
}

/// Bytes in all of `bufs`.
pub(crate) fn total_length(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// Whether the first `length` bytes of a device are zeros: those of a shorter device, all.
///
/// # Errors
/// `Io`.
pub fn is_zero(
    device: &dyn BlockDevice,
    site: Site,
    pool: &BufferPool,
    length: u64,
) -> Result<bool> {
    let BlockGeometry { size_bytes, block_size_bytes } = device.geometry();
    let end = length.next_multiple_of(u64::from(block_size_bytes)).min(size_bytes);
    let mut offset = 0;
    while offset < end {
        let size = usize::try_from(end - offset).unwrap_or(usize::MAX).min(SCAN_SIZE_BYTES);
        let mut buffer = pool.get(size);
        device.read_at(site, offset, &mut buffer)?;
        if buffer.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        offset += size as u64;
    }
    Ok(true)
}

/// A block device: a raw device, a preallocated file, or a simulated one.
pub trait BlockDevice: Send + Sync + Debug {
    /// Name for errors and reports.
    fn name(&self) -> &str;

    /// Sizes.
    fn geometry(&self) -> BlockGeometry;

    /// What the device is and what makes a write durable on it, in words, for the start-up log.
    fn report(&self) -> String;

    /// What the device did so far.
    fn counters(&self) -> Counters;

    /// Whether a request can be started without waiting (`RWF_NOWAIT`). Where not, io_uring hands each
    /// to a thread of the kernel, and AIO costs less.
    fn is_nowait(&self) -> bool {
        true
    }

    /// Whether a read is done when the call that asks for it returns, without anybody waiting: the device
    /// is memory. Who asks in a task then loses less by calling than by handing the request over.
    fn answers_at_once(&self) -> bool {
        false
    }

    /// Whether [`BlockDevice::read_at`] takes any offset and length (an exception to B2), and fewer bytes than
    /// a block are cheaper to read: memory lies before the device.
    fn reads_bytes(&self) -> bool {
        false
    }

    /// Sizes, with the block that [`BlockDevice::read_at`] asks for.
    fn read_geometry(&self) -> BlockGeometry {
        match self.reads_bytes() {
            true => BlockGeometry { block_size_bytes: 1, ..self.geometry() },
            false => self.geometry(),
        }
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `InvalidArgument` outside the geometry, `Io` if the device fails.
    fn read_at(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills `bufs`, one after another, from `offset`. The length of each is a multiple of the
    /// block size.
    ///
    /// # Errors
    /// As for [`BlockDevice::read_at`].
    fn read_vectored_at(&self, site: Site, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.read_at(site, at, buf)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// Fills several buffers, each from its offset: all at once where the device can, so that they take about as long
    /// as one.
    ///
    /// # Errors
    /// As for [`BlockDevice::read_at`]; what the buffers hold then is unknown.
    fn read_many_at(&self, site: Site, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        for (offset, buf) in reads {
            self.read_at(site, *offset, buf)?;
        }
        Ok(())
    }

    /// Writes `bufs`, one after another, at `offset`. Durable after the next flush.
    ///
    /// # Errors
    /// As for reads, and `NoSpace` where a file system runs full.
    fn write_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()>;

    /// As [`BlockDevice::write_at`], durable on return; says nothing of earlier writes.
    ///
    /// # Errors
    /// As for writes.
    fn write_durable_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()>;

    /// Makes every write durable that returned before this call.
    ///
    /// # Errors
    /// `Io`. Never retry a failed flush: what it covered is unknown.
    fn flush(&self, site: Site) -> Result<()>;

    /// Tells the device that the range is not needed any more. Reads of it then give old bytes,
    /// zeros or a mix. A hint: no error where unsupported.
    ///
    /// # Errors
    /// `InvalidArgument`, `Io`.
    fn discard(&self, site: Site, offset: u64, length: u64) -> Result<()>;

    /// Makes the range cheap to write durably: afterwards no flush of a write into it needs
    /// file-system metadata. Its content is undefined afterwards, so only free space is prepared.
    /// Does nothing on a raw device. Slow (it may write the whole range).
    ///
    /// # Errors
    /// `NoSpace`, `Io`.
    fn prepare(&self, site: Site, offset: u64, length: u64) -> Result<()>;

    /// Makes room for the range: a file that ends before it grows to its end, and what was discarded of
    /// it is allocated again, so that no later write into it fails for lack of space. The new size is
    /// durable on return; after a crash before, the device has its old size or the new one. New bytes
    /// are zeros; a crash may bring zeros back until they are written and flushed.
    ///
    /// # Errors
    /// `NoSpace`, and then the device is as before; `Unsupported` behind the end of a device that cannot
    /// grow; `Io`.
    fn reserve(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        let _ = site;
        let end = offset.saturating_add(length);
        if end > self.geometry().size_bytes {
            return Err(Error::new(ErrorKind::Unsupported, "reserve range")
                .device(self.name())
                .at(offset, length)
                .context("this device has a fixed size"));
        }
        Ok(())
    }
}
