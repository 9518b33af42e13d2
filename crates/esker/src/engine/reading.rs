//! A store that was opened to be read ([`Options::read_only`]).
//!
//! The engine below is as any other, over media of which nothing is changed ([`to_read`]): it recovers, and what it writes for that stays in
//! memory. This refuses what would change an item, which would be lost.
//!
//! # Invariants
//! - E1: nothing reaches the media: what an engine writes goes to an overlay, or to pages of its own.
//! - E2: no thread of the engine's is there, so that none writes without end.
//!
//! # Concurrency
//! As the engine. Stores that are opened to be read share the media among themselves, not with one that is opened to be written.

use super::{Admit, Cursor, Engine, Items, Limits};
use crate::backup::BackupReport;
use crate::batch::Batch;
use crate::check::CheckReport;
use crate::options::{EngineKind, Options, Progress};
use crate::store::{Direction, Met, Stats};
use crate::value::{Outcome, PutOptions, Value};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_media::{Archive, BlockDevice, OverlayDevice};
use esker_trt::Facility;
use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why nothing can be written.
const WHY: &str = "the store was opened to be read";

/// An engine that is only read. See the module's text.
#[derive(Debug)]
struct Reading {
    engine: Arc<dyn Engine>,
    closed: AtomicBool,
}

/// What an engine is opened with: it makes nothing where nothing is, and has no threads (E2), if it is only read.
pub(crate) fn of_engine(options: &Options) -> Result<Cow<'_, Options>> {
    if !options.read_only {
        return Ok(Cow::Borrowed(options));
    }
    if options.format || options.format_foreign {
        let words = "a new store is not made by somebody who only reads";
        return Err(Error::invalid("open store", words));
    }
    let mut options = options.clone();
    options.create = false;
    options.trim_idle = false;
    options.testing.background = false;
    Ok(Cow::Owned(options))
}

/// The engine as its user sees it.
pub(crate) fn as_asked(engine: Arc<dyn Engine>, options: &Options) -> Arc<dyn Engine> {
    match options.read_only {
        true => Arc::new(Reading { engine, closed: AtomicBool::new(false) }),
        false => engine,
    }
}

/// The device as an engine sees it (E1).
pub(crate) fn to_read(device: Arc<dyn BlockDevice>, read_only: bool) -> Arc<dyn BlockDevice> {
    if read_only { Arc::new(OverlayDevice::over(device)) } else { device }
}

impl Reading {
    /// The engine, until it is closed.
    fn open(&self, operation: &'static str) -> Result<&dyn Engine> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, operation)),
            false => Ok(&*self.engine),
        }
    }

    fn refuse<T>(&self, operation: &'static str) -> Result<T> {
        self.open(operation)?;
        Err(Error::new(ErrorKind::ReadOnly, operation).context(WHY))
    }

    /// Ends the engine, which has nothing to keep.
    fn give_up(&self) {
        self.closed.store(true, Ordering::Release);
        self.engine.abandon();
        self.engine.end();
    }
}

impl Engine for Reading {
    fn kind(&self) -> EngineKind {
        self.engine.kind()
    }

    fn get(&self, key: &[u8], admit: Admit<'_>) -> Result<Option<Value>> {
        self.open("get")?.get(key, admit)
    }

    fn get_pending(&self, key: &[u8]) -> Result<Option<Value>> {
        self.open("get")?.get_pending(key)
    }

    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        self.open("get")?.get_many(keys)
    }

    fn prefetch(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.engine.prefetch(keys);
    }

    fn read_size(&self, key: &[u8]) -> u64 {
        self.engine.read_size(key)
    }

    fn put(&self, _key: &[u8], _value: &[u8], _options: PutOptions) -> Result<Outcome> {
        self.refuse("put")
    }

    fn delete(&self, _key: &[u8], _version: Option<Version>) -> Result<bool> {
        self.refuse("delete")
    }

    fn clear(&self) -> Result<()> {
        self.refuse("clear")
    }

    fn write(&self, _batch: &Batch) -> Result<Version> {
        self.refuse("write batch")
    }

    fn clean(&self, _segments: usize) -> Result<usize> {
        self.refuse("clean")
    }

    fn evict(&self, _segments: usize) -> Result<usize> {
        self.refuse("evict")
    }

    fn checkpoint(&self) -> Result<bool> {
        self.refuse("write checkpoint")
    }

    fn trim(&self) -> Result<u64> {
        self.refuse("trim")
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>> {
        self.open("scan")?.scan(from, to, direction, limit)
    }

    fn scan_with(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        show: &mut dyn FnMut(Met<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.open("scan")?.scan_with(range, direction, limit, show)
    }

    fn is_ordered(&self) -> bool {
        self.engine.is_ordered()
    }

    fn delete_range(&self, _from: &[u8], _to: Option<&[u8]>) -> Result<()> {
        self.refuse("delete range")
    }

    fn snapshot(&self) -> Result<u64> {
        self.open("snapshot")?.snapshot()
    }

    fn release(&self, snapshot: u64) {
        self.engine.release(snapshot);
    }

    fn get_as_of(&self, key: &[u8], snapshot: u64) -> Result<Option<Value>> {
        self.open("get")?.get_as_of(key, snapshot)
    }

    fn scan_as_of(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        snapshot: u64,
        show: &mut dyn FnMut(Met<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.open("scan")?.scan_as_of(range, direction, limit, snapshot, show)
    }

    fn walk(&self, from: Cursor) -> Result<(Items, Option<Cursor>)> {
        self.open("walk")?.walk(from)
    }

    fn tidy(&self) -> Result<()> {
        self.refuse("tidy")
    }

    fn write_out(&self) -> Result<()> {
        self.open("write out").map(|_| ())
    }

    fn sync(&self) -> Result<()> {
        // What can be read is what was there.
        self.open("sync").map(|_| ())
    }

    fn close(&self) -> Result<()> {
        self.give_up();
        Ok(())
    }

    fn end(&self) {
        self.give_up();
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }

    fn check(&self) -> Result<CheckReport> {
        self.open("check")?.check()
    }

    fn backup(&self, _archive: &dyn Archive, _progress: &Progress) -> Result<BackupReport> {
        // The next one of the store itself would take what was written here, in memory, for what it has.
        self.open("backup")?;
        Err(Error::new(ErrorKind::Unsupported, "backup")
            .context(format!("{WHY}, and a backup is of a store that is opened to be written")))
    }

    fn report(&self) -> String {
        self.engine.report()
    }

    fn facilities(&self) -> Vec<Facility> {
        self.engine.facilities()
    }

    fn limits(&self) -> Limits {
        self.engine.limits()
    }
}
