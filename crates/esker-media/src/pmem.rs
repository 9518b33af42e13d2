//! Persistent memory: the trait that engines write to.
//!
//! A store lands in the processor's caches; it is durable once its line was flushed and a fence on
//! the same thread came after. [`PmemFile`] is the real thing (or says that it is not), [`SimPm`](crate::sim::SimPm) its
//! simulated twin. Only this module touches mapped bytes: engines copy in and out.
//!
//! # Invariants
//! - P1: what one thread stored, then flushed, then fenced, is durable when the fence returns.
//!   A fence covers only the flushes and non-temporal stores of its own thread.
//! - P2: an aligned 8-byte store ([`Pmem::store_u64`]) is never torn. Nothing larger is atomic: of a
//!   longer store any aligned words may survive a crash, whatever their order.
//! - P3: a store that was not flushed may become durable at any time by itself.
//! - P4: a non-temporal store is durable after the next fence of its thread, without a flush.
//!
//! # Concurrency
//! All calls may come from any thread at once. Concurrent stores to one word leave one of the
//! values; a concurrent read of several words may see a mix.
//!
//! # Failure
//! A media error on load (poison, a truncated file) comes out as `Corrupted` with its range, and
//! again on each later access to that page; the process lives.

use esker_base::striped::Striped;
use esker_base::{Error, Result, Site};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

mod cpu;
mod fault;
mod file;
pub(crate) mod huge;
mod mapping;

pub use cpu::FlushInstruction;
pub use file::{PmemFile, PmemMode, PmemOptions};

/// Bytes of a cache line: the unit of a flush.
pub const LINE_SIZE_BYTES: u64 = 64;
/// Bytes of the block in which current media write internally.
const MEDIA_BLOCK_SIZE_BYTES: u64 = 256;

/// What was done since the medium was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmemCounters {
    /// Calls of store, store_u64 and ntstore.
    pub stores: u64,
    /// Lines flushed, counted once per call.
    pub flushed_lines: u64,
    /// Fences.
    pub fences: u64,
    /// 256-byte blocks touched by flushes and non-temporal stores, counted once per call.
    pub media_blocks: u64,
}

/// Counters that threads change without sharing a line.
#[derive(Debug, Default)]
pub(crate) struct AtomicPmemCounters(Striped<Counts>);

#[derive(Debug, Default)]
struct Counts {
    stores: AtomicU64,
    flushed_lines: AtomicU64,
    fences: AtomicU64,
    media_blocks: AtomicU64,
}

/// How many units of `unit` bytes the range touches.
fn units(offset: u64, length: u64, unit: u64) -> u64 {
    if length == 0 { 0 } else { (offset + length - 1) / unit - offset / unit + 1 }
}

impl AtomicPmemCounters {
    #[inline]
    pub(crate) fn store(&self) {
        self.0.here().stores.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ntstore(&self, offset: u64, length: u64) {
        self.store();
        let blocks = units(offset, length, MEDIA_BLOCK_SIZE_BYTES);
        self.0.here().media_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn flush(&self, offset: u64, length: u64) {
        let counts = self.0.here();
        counts.flushed_lines.fetch_add(units(offset, length, LINE_SIZE_BYTES), Ordering::Relaxed);
        let blocks = units(offset, length, MEDIA_BLOCK_SIZE_BYTES);
        counts.media_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn fence(&self) {
        self.0.here().fences.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> PmemCounters {
        let sum = |field: fn(&Counts) -> &AtomicU64| {
            self.0.iter().map(|counts| field(counts).load(Ordering::Relaxed)).sum()
        };
        PmemCounters {
            stores: sum(|counts| &counts.stores),
            flushed_lines: sum(|counts| &counts.flushed_lines),
            fences: sum(|counts| &counts.fences),
            media_blocks: sum(|counts| &counts.media_blocks),
        }
    }
}

/// Whether `length` bytes at `offset` lie inside `size_bytes` and start and end on `alignment`, a power of two.
#[inline]
pub(crate) fn check(
    operation: &'static str,
    size_bytes: u64,
    offset: u64,
    length: u64,
    alignment: u64,
) -> Result<()> {
    let aligned = (offset | length) & (alignment - 1) == 0;
    if aligned && offset.checked_add(length).is_some_and(|end| end <= size_bytes) {
        return Ok(());
    }
    Err(refuse(operation, size_bytes, offset, length, alignment, aligned))
}

#[cold]
fn refuse(
    operation: &'static str,
    size_bytes: u64,
    offset: u64,
    length: u64,
    alignment: u64,
    aligned: bool,
) -> Error {
    let context = match aligned {
        false => format!("offset and length must be multiples of {alignment} bytes"),
        true => format!("the medium ends at {size_bytes} bytes"),
    };
    Error::invalid(operation, context).at(offset, length)
}

/// Persistent memory: real, emulated or simulated.
///
/// Every call but those that only report returns `InvalidArgument` for a range outside the medium
/// and `Corrupted` where the medium lost its bytes.
pub trait Pmem: Send + Sync + Debug {
    /// Name for errors and reports.
    fn name(&self) -> &str;

    /// Capacity in bytes.
    fn size_bytes(&self) -> u64;

    /// What the medium is and what makes a store durable on it, in words, for the start-up log.
    fn report(&self) -> String;

    /// What was done so far.
    fn counters(&self) -> PmemCounters;

    /// Copies bytes out. Aligned words are read whole; several words are no snapshot.
    ///
    /// # Errors
    /// `InvalidArgument`, `Corrupted`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Starts to fetch the lines of a range that will be read soon. A hint, which media without caches pass over, and
    /// all where the range is not theirs.
    fn prefetch(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }

    /// Reads the little-endian word at `offset`, a multiple of 8; acquires what was stored before
    /// the [`Pmem::store_u64`] that it sees.
    ///
    /// # Errors
    /// `InvalidArgument`, `Corrupted`.
    fn load_u64(&self, offset: u64) -> Result<u64>;

    /// Copies bytes in. Durable after flush and fence; in words of any order until then.
    ///
    /// # Errors
    /// `InvalidArgument`, `Corrupted`.
    fn store(&self, site: Site, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Stores a little-endian word at `offset`, a multiple of 8, in one piece: the only way to
    /// commit. Releases what this thread stored before.
    ///
    /// # Errors
    /// `InvalidArgument`, `Corrupted`.
    fn store_u64(&self, site: Site, offset: u64, value: u64) -> Result<()>;

    /// Copies bytes past the caches. `offset` and length are multiples of 8.
    ///
    /// # Errors
    /// `InvalidArgument`, `Corrupted`.
    fn ntstore(&self, site: Site, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Starts to write back every line that the range touches; done after the next fence.
    ///
    /// # Errors
    /// `InvalidArgument`.
    fn flush(&self, site: Site, offset: u64, length: u64) -> Result<()>;

    /// Waits for this thread's flushes and non-temporal stores (P1, P4).
    ///
    /// # Errors
    /// `Io` where the operating system does the work and fails; then for every later fence too.
    fn fence(&self, site: Site) -> Result<()>;
}

#[cfg(test)]
mod tests;
