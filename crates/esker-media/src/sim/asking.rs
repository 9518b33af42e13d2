//! Simulated media that ask before each call: whoever is asked may wait, do something else first, or fail the call.

use super::{SimBlock, SimPm};
use crate::block::{BlockDevice, BlockGeometry, Counters};
use crate::pmem::{Pmem, PmemCounters};
use esker_base::{Result, Site};
use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// A call of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Where in the program it is made.
    pub site: Site,
    /// What it is to do.
    pub act: Act,
    /// The bytes of the device that it is for; of a flush none.
    pub range: Range<u64>,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Reads.
    Read,
    /// Writes, durably or not.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
    /// Prepares.
    Prepare,
    /// Reserves.
    Reserve,
}

/// What to do before a call.
type Before = dyn Fn(&Call) -> Result<()> + Send + Sync;

/// A block device that asks before each call.
pub struct Asking {
    inner: Arc<SimBlock>,
    before: Box<Before>,
}

impl Asking {
    /// A device that asks `before` with each read, write, flush, discard, preparation and reservation.
    pub fn new(
        inner: Arc<SimBlock>,
        before: impl Fn(&Call) -> Result<()> + Send + Sync + 'static,
    ) -> Arc<Asking> {
        Arc::new(Asking { inner, before: Box::new(before) })
    }

    fn ask(&self, site: Site, act: Act, offset: u64, length: u64) -> Result<()> {
        (self.before)(&Call { site, act, range: offset..offset.saturating_add(length) })
    }

    /// The device itself, which does not ask.
    #[must_use]
    pub fn inner(&self) -> &Arc<SimBlock> {
        &self.inner
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

fn length_of(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

impl BlockDevice for Asking {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> BlockGeometry {
        self.inner.geometry()
    }

    fn report(&self) -> String {
        self.inner.report()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn read_at(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.ask(site, Act::Read, offset, buf.len() as u64)?;
        self.inner.read_at(site, offset, buf)
    }

    fn write_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.ask(site, Act::Write, offset, length_of(bufs))?;
        self.inner.write_at(site, offset, bufs)
    }

    fn write_durable_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.ask(site, Act::Write, offset, length_of(bufs))?;
        self.inner.write_durable_at(site, offset, bufs)
    }

    fn flush(&self, site: Site) -> Result<()> {
        self.ask(site, Act::Flush, 0, 0)?;
        self.inner.flush(site)
    }

    fn discard(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.ask(site, Act::Discard, offset, length)?;
        self.inner.discard(site, offset, length)
    }

    fn prepare(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.ask(site, Act::Prepare, offset, length)?;
        self.inner.prepare(site, offset, length)
    }

    fn reserve(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.ask(site, Act::Reserve, offset, length)?;
        self.inner.reserve(site, offset, length)
    }
}

/// A call of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryCall {
    /// These bytes are about to be read.
    Read(Range<u64>),
    /// What was flushed before is durable.
    Fenced(Site),
}

/// What to do beside a call.
type Beside = dyn Fn(&MemoryCall) -> Result<()> + Send + Sync;

/// Memory that asks before each read, and behind each fence.
pub struct AskingMemory {
    inner: Arc<SimPm>,
    beside: Box<Beside>,
}

impl AskingMemory {
    /// Memory that asks `beside`.
    pub fn new(
        inner: Arc<SimPm>,
        beside: impl Fn(&MemoryCall) -> Result<()> + Send + Sync + 'static,
    ) -> Arc<AskingMemory> {
        Arc::new(AskingMemory { inner, beside: Box::new(beside) })
    }

    /// The memory itself, which does not ask.
    #[must_use]
    pub fn inner(&self) -> &Arc<SimPm> {
        &self.inner
    }

    fn read_of(&self, offset: u64, length: u64) -> Result<()> {
        (self.beside)(&MemoryCall::Read(offset..offset.saturating_add(length)))
    }
}

impl fmt::Debug for AskingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Pmem for AskingMemory {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn report(&self) -> String {
        self.inner.report()
    }

    fn counters(&self) -> PmemCounters {
        self.inner.counters()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_of(offset, buf.len() as u64)?;
        self.inner.read(offset, buf)
    }

    fn load_u64(&self, offset: u64) -> Result<u64> {
        self.read_of(offset, 8)?;
        self.inner.load_u64(offset)
    }

    fn store(&self, site: Site, offset: u64, bytes: &[u8]) -> Result<()> {
        self.inner.store(site, offset, bytes)
    }

    fn store_u64(&self, site: Site, offset: u64, value: u64) -> Result<()> {
        self.inner.store_u64(site, offset, value)
    }

    fn ntstore(&self, site: Site, offset: u64, bytes: &[u8]) -> Result<()> {
        self.inner.ntstore(site, offset, bytes)
    }

    fn flush(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.inner.flush(site, offset, length)
    }

    fn fence(&self, site: Site) -> Result<()> {
        self.inner.fence(site)?;
        (self.beside)(&MemoryCall::Fenced(site))
    }
}
