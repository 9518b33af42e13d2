//! A simulated block device that asks before each call: whoever is asked may wait, do something else first, or fail the
//! call.

use super::SimBlock;
use crate::block::{BlockDevice, BlockGeometry, Counters};
use esker_base::{Result, Site};
use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

/// What to do before a call at a site.
type Before = dyn Fn(Site) -> Result<()> + Send + Sync;

/// See the module's text.
pub struct Asking {
    inner: Arc<SimBlock>,
    before: Box<Before>,
}

impl Asking {
    /// A device that asks `before` with the site of each read, write, flush, discard, preparation and reservation.
    pub fn new(
        inner: Arc<SimBlock>,
        before: impl Fn(Site) -> Result<()> + Send + Sync + 'static,
    ) -> Arc<Asking> {
        Arc::new(Asking { inner, before: Box::new(before) })
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
        (self.before)(site)?;
        self.inner.read_at(site, offset, buf)
    }

    fn write_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        (self.before)(site)?;
        self.inner.write_at(site, offset, bufs)
    }

    fn write_durable_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        (self.before)(site)?;
        self.inner.write_durable_at(site, offset, bufs)
    }

    fn flush(&self, site: Site) -> Result<()> {
        (self.before)(site)?;
        self.inner.flush(site)
    }

    fn discard(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        (self.before)(site)?;
        self.inner.discard(site, offset, length)
    }

    fn prepare(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        (self.before)(site)?;
        self.inner.prepare(site, offset, length)
    }

    fn reserve(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        (self.before)(site)?;
        self.inner.reserve(site, offset, length)
    }
}
