//! The store: one handle over whichever engine keeps the data.
//!
//! # Concurrency
//! [`Store`] is `Clone + Send + Sync`. Every call works on an ordinary thread, where it blocks, and
//! in a task of the run-time, where it suspends. Operations on one key are linearizable: once a
//! write returned, every later read sees it or a newer one.
//!
//! # Failure
//! Errors are [`Error`]s; media content, input and the kernel never panic a store. After a failed
//! write or flush the store is read-only and says why, until it is opened again.

mod prefix;
mod range;
#[cfg(all(test, not(any(loom, feature = "shuttle"))))]
mod tests;
mod views;

use crate::backup::{BackupReport, check_replaced};
use crate::batch::Batch;
use crate::check::CheckReport;
use crate::engine::depot::Depot;
use crate::engine::flat::Flat;
use crate::engine::flex::{Flex, FlexFiles};
use crate::engine::{self, Cursor, Engine, reading};
use crate::options::{EngineKind, Options, Progress};
use crate::value::{Attributes, Condition, Outcome, PutOptions, Value};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_media::{Archive, BlockDevice, Counters, FolderArchive, Pmem, PmemCounters, TarArchive};
use std::collections::VecDeque;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

pub use prefix::behind_prefix;
pub use range::Range;
pub use views::{Iter, Snapshot};

/// Device reads of one call that are under way at the same time, at most.
const READS_MAX: usize = 64;

/// Figures of a store at one moment.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Keys with a value, those expired included that nobody has overwritten. `flex` does not look at what a write replaces, so
    /// it says more: each change counts until its interval is written anew. That is at most once for each time that
    /// a key was written since, keys that were deleted or cleared among them, and never less than the keys, unless `has_more_items`.
    pub items: u64,
    /// Whether there may be items of which nobody knows yet how many: those of a store of `flex` that was restored or not closed, until
    /// somebody has looked at all of them. One that is open for writing does that when it has nothing else to do.
    pub has_more_items: bool,
    /// Deleted keys whose tombstones are kept.
    pub tombstones: u64,
    /// Bytes of live records, padding included.
    pub live_bytes: u64,
    /// Bytes of all segments.
    pub capacity_bytes: u64,
    /// Number of segments.
    pub segments: u64,
    /// Segments that hold nothing.
    pub free_segments: u64,
    /// Entries of the index.
    pub index_entries: u64,
    /// Slots of the index; it grows with its entries.
    pub index_capacity: u64,
    /// DRAM of the index in bytes.
    pub index_bytes: u64,
    /// Version of the newest write.
    pub last_version: Version,
    /// What the device did since it was opened.
    pub device: Counters,
    /// What the persistent memory did since it was opened.
    pub memory: PmemCounters,
    /// The store is a cache: when it is full it evicts.
    pub cache: bool,
    /// Items that were evicted since the store was opened.
    pub evictions: u64,
    /// GETs answered from DRAM ([`Options::record_cache_bytes`]), and those that were not, since the store
    /// was opened; and the DRAM in use, in bytes.
    pub record_cache: [u64; 3],
    /// Why the store is read-only, if a failure made it so.
    pub read_only: Option<String>,
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the least key up.
    Forward,
    /// From the greatest key down.
    Reverse,
}

/// An item that a scan meets: key and value where they are, not copied.
#[derive(Clone, Copy)]
pub struct Met<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Version of the value.
    pub version: Version,
    /// Flags and expiry.
    pub attributes: Attributes,
}

impl<'a> Met<'a> {
    pub(crate) fn of(key: &'a [u8], value: &'a Value) -> Self {
        Met { key, value, version: value.version(), attributes: value.attributes() }
    }

    pub(crate) fn to_value(self) -> Value {
        Value::small(self.value, self.version, self.attributes)
    }
}

impl std::fmt::Debug for Met<'_> {
    /// Without the bytes: keys and values do not belong in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Met({} and {} bytes)", self.key.len(), self.value.len())
    }
}

/// A store. Cheap to clone; all clones are the same store.
///
/// A store that is not used any more is best closed ([`Store::close`]), which tells what goes wrong. When the last clone is
/// dropped, the store's threads end before that returns, so that it can be opened anew at once, and what was acknowledged
/// is brought to the device as far as it can be: an error of that is only logged, so who wants to know calls [`Store::close`].
#[derive(Clone, Debug)]
pub struct Store {
    engine: Arc<Opened>,
}

/// What all clones of a store are handles of.
#[derive(Debug)]
struct Opened(Arc<dyn Engine>);

impl Deref for Opened {
    type Target = dyn Engine;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Drop for Opened {
    /// Its threads keep the engine while they work, and so its files locked.
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Store {
    fn of(engine: Arc<dyn Engine>) -> Store {
        Store { engine: Arc::new(Opened(engine)) }
    }

    /// Opens the store at `options.path`, or over that and `options.devices`, and creates it if there is
    /// none. One that is only to be read: [`Options::read_only`].
    ///
    /// # Errors
    /// `Locked` if another process has it open and keeps it for some seconds, `UnsupportedFormat`, `Corrupted` naming the place,
    /// `InvalidArgument` if there is something else or `create` is false, `NoSpace`, `Io`.
    pub fn open(options: &Options) -> Result<Store> {
        Ok(Store::of(engine::open(options)?))
    }

    /// Opens a store of `depot` on a device that the caller opened; `options.path`, `devices` and `size_bytes` are
    /// not looked at.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(device: Arc<dyn BlockDevice>, options: &Options) -> Result<Store> {
        options.check_values(EngineKind::Depot)?;
        let device = reading::to_read(device, options.read_only);
        let engine = Depot::open(device, &*reading::of_engine(options)?)?;
        Ok(Store::of(reading::as_asked(engine, options)))
    }

    /// Opens a store of `flat` in memory that the caller opened; `options.path`, `devices` and `size_bytes` are
    /// not looked at. With `options.read_only` the memory itself is to be one that nobody else sees ([`PmemOptions::read_only`]).
    ///
    /// [`PmemOptions::read_only`]: esker_media::PmemOptions::read_only
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on_memory(memory: Arc<dyn Pmem>, options: &Options) -> Result<Store> {
        options.check_values(options.engine.unwrap_or(EngineKind::FlatCceh))?;
        let engine = Flat::open(memory, &*reading::of_engine(options)?)?;
        Ok(Store::of(reading::as_asked(engine, options)))
    }

    /// Opens a store of `flex` on devices that the caller opened.
    #[doc(hidden)]
    pub fn open_flex_on(files: FlexFiles, options: &Options) -> Result<Store> {
        options.check_values(EngineKind::Flex)?;
        let files = if options.read_only { files.into_read() } else { files };
        let engine = Flex::open_on(files, &*reading::of_engine(options)?)?;
        Ok(Store::of(reading::as_asked(engine, options)))
    }

    /// The value of `key`, if it has one.
    ///
    /// # Errors
    /// `InvalidArgument` for a key outside 1 B to 64 KiB, `Corrupted`, `Io`, `Closed`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.engine.get(key, &mut |_| Ok(()))
    }

    /// The value of `key`, for callers that count their memory: `admit` is asked before each device
    /// read with the memory that the read takes, in bytes, and its error ends the call. A value keeps
    /// the memory of the last read; that of those before it is given up first. Of `flex` the cache pays for what is read around the value, an
    /// interval at most: only values that stand by themselves are asked for before they are read, others once they are copied.
    ///
    /// # Errors
    /// As [`Store::get`], and those of `admit`.
    pub fn get_with(
        &self,
        key: &[u8],
        mut admit: impl FnMut(u64) -> Result<()>,
    ) -> Result<Option<Value>> {
        self.engine.get(key, &mut admit)
    }

    /// The most memory that reading `key` takes, in bytes, as far as the index knows: no device read,
    /// and out of date once the key is written. 0 if the key is known to have no value; what `flex` has on the device only
    /// counts with all that is read for it, up to the size of a value that stands by itself.
    #[must_use]
    pub fn read_size_bytes(&self, key: &[u8]) -> u64 {
        self.engine.read_size(key)
    }

    /// Whether `key` has a value.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// The values of several keys, in their order, each as it is at some moment of the call. In a task, and with `depot` on
    /// an ordinary thread, too, up to 64 device reads are under way at the same time.
    ///
    /// # Errors
    /// As [`Store::get`]; the first error ends it.
    pub fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(READS_MAX) {
            self.prefetch(keys.iter().copied());
            if keys.len() == 1 || !esker_trt::in_task() {
                values.extend(self.engine.get_many(keys)?);
                continue;
            }
            let reads: Vec<_> = keys
                .iter()
                .map(|key| {
                    let (store, key) = (self.clone(), key.to_vec());
                    esker_trt::spawn(move || store.get(&key))
                })
                .collect();
            // All are waited for, also after an error.
            let found: Vec<Result<_>> = reads.into_iter().map(|read| read.join()?).collect();
            values.extend(found.into_iter().collect::<Result<Vec<_>>>()?);
        }
        Ok(values)
    }

    /// For who reads a value to write it anew ([`Store::modify`]): what a write of `key` under way gives it, which is not durable yet, if
    /// there is such a write and what it writes is to be had. A [`Store::compare_and_put`] on its version follows that write and shares its
    /// flush: so a key that many change at once costs no flush for each. `None` says nothing of the key: then ask [`Store::get`]. `admit` is
    /// asked as in [`Store::get_with`].
    ///
    /// Nobody is to hear of it before such a put has returned: a crash may take it back.
    ///
    /// # Errors
    /// `InvalidArgument` for a key over its limit, `Closed`, and those of `admit`.
    pub fn get_pending(
        &self,
        key: &[u8],
        mut admit: impl FnMut(u64) -> Result<()>,
    ) -> Result<Option<Value>> {
        let value = self.engine.get_pending(key)?;
        // It has been copied. Who has no room for it lets it go again.
        match value.as_ref().map_or(0, Value::memory_bytes) {
            0 => {}
            bytes => admit(bytes)?,
        }
        Ok(value)
    }

    /// Brings what the index knows of these keys near to the processor, all at once: for callers that will
    /// use many of them. No device read.
    pub fn prefetch<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) {
        self.engine.prefetch(&mut keys.into_iter());
    }

    /// Puts `value` under `key`. On return it is as durable as the store's `durability` says.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or value over its limit, `NoSpace`, `ReadOnly` after a failure,
    /// `DurabilityUnknown` if the failure hit this write; `Io` or `Corrupted` if the store cannot read
    /// what the key holds, in which case nothing was written; `Closed`.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version> {
        match self.put_with(key, value, PutOptions::default())? {
            Outcome::Stored(version) => Ok(version),
            refused => Err(Error::new(ErrorKind::Unsupported, "put")
                .context(format!("an unconditional write was refused: {refused:?}"))),
        }
    }

    /// Puts `value` under `key` with attributes and on a condition.
    ///
    /// # Errors
    /// As [`Store::put`]. A condition that does not hold is an [`Outcome`], not an error.
    pub fn put_with(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Outcome> {
        self.engine.put(key, value, options)
    }

    /// Puts `value` only if `key` has no value.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<Outcome> {
        self.put_if(key, value, Condition::Absent)
    }

    /// Puts `value` only if `key` has a value.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_if_present(&self, key: &[u8], value: &[u8]) -> Result<Outcome> {
        self.put_if(key, value, Condition::Present)
    }

    /// Puts `value` only if the value of `key` still has version `expected`.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn compare_and_put(&self, key: &[u8], expected: Version, value: &[u8]) -> Result<Outcome> {
        self.put_if(key, value, Condition::VersionIs(expected))
    }

    fn put_if(&self, key: &[u8], value: &[u8], condition: Condition) -> Result<Outcome> {
        self.put_with(key, value, PutOptions { attributes: Attributes::default(), condition })
    }

    /// Deletes `key`; says whether it had a value, or, where damage keeps engine `flat` from knowing that, might have had one.
    ///
    /// # Errors
    /// As [`Store::put`]. A full store still deletes.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.engine.delete(key, None)
    }

    /// Deletes `key` only if its value still has version `expected`; says whether it did.
    ///
    /// # Errors
    /// As [`Store::delete`].
    pub fn compare_and_delete(&self, key: &[u8], expected: Version) -> Result<bool> {
        self.engine.delete(key, Some(expected))
    }

    /// Replaces the value of `key` by what `change` makes of it, atomically: `change` is called
    /// again if somebody else wrote the key meanwhile. `None` leaves the key as it is. Returns the
    /// new version, if there is one.
    ///
    /// What `change` is shown may be of a write that is under way and fails, or is lost in a crash: only what the call returns is
    /// decided. No lock is held meanwhile; but a `change` that writes the same key itself is called for ever.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn modify<F>(&self, key: &[u8], mut change: F) -> Result<Option<Version>>
    where
        F: FnMut(Option<&Value>) -> Option<(Vec<u8>, Attributes)>,
    {
        // A refusal is decided on what is durable.
        let mut newest = true;
        loop {
            let pending = if newest { self.get_pending(key, |_| Ok(()))? } else { None };
            let is_pending = pending.is_some();
            let old = if is_pending { pending } else { self.get(key)? };
            newest = true;
            let Some((value, attributes)) = change(old.as_ref()) else {
                if is_pending {
                    newest = false;
                    continue;
                }
                return Ok(None);
            };
            let condition =
                old.map_or(Condition::Absent, |old| Condition::VersionIs(old.version()));
            if let Outcome::Stored(version) =
                self.put_with(key, &value, PutOptions { attributes, condition })?
            {
                return Ok(Some(version));
            }
        }
    }

    /// Gives the value of `key` another time of expiry, in seconds of wall time, or none. It is written again for that. False if
    /// there is no value.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn touch(&self, key: &[u8], expires_at: Option<u64>) -> Result<bool> {
        let touched = self.modify(key, |old| {
            let old = old?;
            Some((old.to_vec(), Attributes { expires_at, ..old.attributes() }))
        })?;
        Ok(touched.is_some())
    }

    /// Does all that `batch` says at once: readers of one key see its change when the write returns,
    /// and after a crash all of it is there or nothing. Other writers may come between its keys, not
    /// between the batch and its effect on one key. Returns the highest version that its changes got, no matter which of them has it.
    ///
    /// # Errors
    /// As [`Store::put`]; `InvalidArgument` for a batch over [`Store::batch_size_max_bytes`].
    pub fn write(&self, batch: &Batch) -> Result<Version> {
        self.engine.write(batch)
    }

    /// Makes room now: moves live records out of up to `segments` segments so that these become
    /// free, and drops tombstones that nothing older is left of. The store does so by itself when it
    /// needs room. A cache moves no values: it drops notes only. Returns the number of segments it cleaned.
    ///
    /// # Errors
    /// `ReadOnly`, `DurabilityUnknown`, `Io`.
    pub fn clean(&self, segments: usize) -> Result<usize> {
        self.engine.clean(segments)
    }

    /// Evicts what was not used for the longest time, now: up to `segments` segments. A cache does so by
    /// itself when it needs room. Returns the number of segments.
    ///
    /// # Errors
    /// `Unsupported` if the store is no cache, `ReadOnly`, `DurabilityUnknown`, `Io`.
    pub fn evict(&self, segments: usize) -> Result<usize> {
        self.engine.evict(segments)
    }

    /// Writes a checkpoint of the index, so that an open after a crash reads only what was written since. Engines `depot` and
    /// `flat` do so by themselves while nobody writes, and every five minutes while somebody does; `flex` keeps what it
    /// needs as it goes, and does nothing. False if there was nothing to write, or too little room. Reads and writes go on
    /// meanwhile (uDepot §4.4, FlatStore §3.5).
    ///
    /// # Errors
    /// `ReadOnly`, `DurabilityUnknown`, `Io`, `Closed`.
    pub fn checkpoint(&self) -> Result<bool> {
        self.engine.checkpoint()
    }

    /// Tells the device which segments are free: holes in a file, discards on a device. Returns their
    /// bytes. Their first use afterwards is slower, so this is for space that stays free. `flex` keeps what its collector needs and
    /// what tables that are on their way take; `flat` keeps all of its memory.
    ///
    /// # Errors
    /// `ReadOnly`, `Io`.
    pub fn trim(&self) -> Result<u64> {
        self.engine.trim()
    }

    /// Deletes everything, with one record, as durable as any write: under `periodic` and `none` a [`Store::sync`] behind it makes sure.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn clear(&self) -> Result<()> {
        self.engine.clear()
    }

    /// Whether [`Store::scan`] works: the engine keeps keys in order.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.engine.is_ordered()
    }

    /// Deletes every key from `from` on and before `to`, or without end: one record, whatever lies between.
    ///
    /// # Errors
    /// `Unsupported` but for engine `flex`; as [`Store::put`].
    pub fn delete_range(&self, from: &[u8], to: Option<&[u8]>) -> Result<()> {
        self.engine.delete_range(from, to)
    }

    /// What the store holds now, to be read as it is now while writes go on. The store keeps what is overwritten
    /// until the snapshot is dropped, but not beyond its time: what expires goes from snapshots, too.
    ///
    /// # Errors
    /// `Unsupported` if the engine has none, `Closed`.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot { version: self.engine.snapshot()?, store: self.clone() })
    }

    /// Every key with its value, in no order. A key that has a value for the whole walk is met once;
    /// one that is written meanwhile is met with some value it had, or not at all if it is new. An ordered engine is walked
    /// in the order of keys, and what is put beyond the place of the walk is met: who puts a greater key for each one may have no end.
    ///
    /// What cannot be read is an error, and the walk goes on behind it: with the next record; with `flex`, where all pairs of
    /// an interval are read or none, with the next interval. Of other errors (`Closed`) it ends.
    pub fn iter(&self) -> Iter {
        Iter { store: self.clone(), next: Some(Cursor::Start), items: VecDeque::new() }
    }

    /// Ends the use of a store as a crash does: nothing is written. For measurements of recovery.
    #[doc(hidden)]
    pub fn forget(self) {
        self.engine.abandon();
    }

    /// Brings to the device what is in memory only, without making it durable: it survives the end of
    /// the process, not that of the power. For tests of crashes between the two.
    #[doc(hidden)]
    pub fn write_out(&self) -> Result<()> {
        self.engine.write_out()
    }

    /// Engine `depot`: cleans the full segment with this number among them, and drops no tombstones; false if there is none. For tests
    /// in which the order matters.
    #[doc(hidden)]
    pub fn clean_full(&self, number: usize) -> Result<bool> {
        self.engine.clean_full(number)
    }

    /// Does what the store does while nobody writes. For tests of crashes, in which it has no thread for that.
    #[doc(hidden)]
    pub fn tidy(&self) -> Result<()> {
        self.engine.tidy()
    }

    /// Makes everything durable that was acknowledged.
    ///
    /// # Errors
    /// `ReadOnly`, `DurabilityUnknown`.
    pub fn sync(&self) -> Result<()> {
        self.engine.sync()
    }

    /// Finishes the writes under way, makes everything durable and closes the store: later calls on
    /// any clone answer `Closed`.
    ///
    /// The files stay locked until the last clone is gone, [`Snapshot`]s and [`Iter`]s among them: calls that are under way on
    /// those may still use the device, and nobody else is to write there meanwhile.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn close(&self) -> Result<()> {
        self.engine.close()
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Verifies everything on media against the index, while other calls go on.
    ///
    /// # Errors
    /// Only what keeps the check from going on; what it found is in the report.
    pub fn check(&self) -> Result<CheckReport> {
        self.engine.check()
    }

    /// Copies the store to the folder `target`, made if it is missing, while other calls go on. The
    /// copy holds every write that was acknowledged before, and if it holds a later one, all before
    /// that. A folder that has an earlier backup of this store gets what changed since: full segments
    /// are copied once.
    ///
    /// What is copied is verified: a store with damage in it has no backup until it is repaired or overwritten.
    ///
    /// While it runs, segments that are not copied yet are not cleaned and not reused. If a write finds
    /// no room because of that, it gets the room, and the backup fails with `NoSpace`.
    ///
    /// # Errors
    /// `NoSpace` as said, or where the folder's file system is full; `InvalidArgument` if the folder
    /// holds something else; `Locked` if another backup is under way; `Corrupted` naming the earlier
    /// manifest or the place on the device; `ReadOnly`, `Closed`, `Io`. The earlier backup is as it was
    /// then.
    pub fn backup(&self, target: &Path) -> Result<BackupReport> {
        self.backup_with(target, &Progress::default())
    }

    /// As [`Store::backup`]; `progress` is told the segments copied and those to copy, and may end the backup
    /// ([`Progress::until`]).
    ///
    /// # Errors
    /// As [`Store::backup`]; `Cancelled` if `progress` ended it.
    pub fn backup_with(&self, target: &Path, progress: &Progress) -> Result<BackupReport> {
        self.backup_to(&FolderArchive::create(target)?, progress)
    }

    /// Copies the store to one file, a tar of what [`Store::backup`] would put in an empty folder: all of it each time. A file
    /// that is there is replaced once the new one is whole and durable. [`restore`](crate::restore) takes the file, or the folder
    /// that `tar` extracts of it.
    ///
    /// # Errors
    /// As [`Store::backup`]; `InvalidArgument` if something else than a backup in a file is there, or an empty file.
    pub fn backup_file(&self, target: &Path) -> Result<BackupReport> {
        self.backup_file_with(target, &Progress::default())
    }

    /// As [`Store::backup_file`], with the progress of [`Store::backup_with`].
    ///
    /// # Errors
    /// As [`Store::backup_file`]; `Cancelled` if `progress` ended it.
    pub fn backup_file_with(&self, target: &Path, progress: &Progress) -> Result<BackupReport> {
        check_replaced(target)?;
        let archive = TarArchive::create(target)?;
        let report = self.backup_to(&archive, progress)?;
        archive.publish()?;
        Ok(report)
    }

    /// As [`Store::backup_with`], to an archive that the caller opened.
    #[doc(hidden)]
    pub fn backup_to(&self, archive: &dyn Archive, progress: &Progress) -> Result<BackupReport> {
        self.engine.backup(archive, progress)
    }

    /// Which engine keeps the data.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.engine.kind()
    }

    /// What the data lie on and what makes a write durable there, in words.
    #[must_use]
    pub fn report(&self) -> String {
        self.engine.report()
    }

    /// The I/O facilities for a run-time whose tasks use this store, the best for its device first:
    /// [`esker_trt::Config::facilities`].
    #[must_use]
    pub fn facilities(&self) -> Vec<esker_trt::Facility> {
        self.engine.facilities()
    }

    /// Largest batch in bytes, for [`Store::write`]: keys, values and some 40 bytes for each change. Of values that stand by themselves only
    /// some 20 bytes count: of `depot` those over an eighth of a segment, or 3.5 MiB; of `flex` those over
    /// [`FlexOptions::large_value_size_bytes`](crate::FlexOptions); of `flat` those over 256 bytes.
    #[must_use]
    pub fn batch_size_max_bytes(&self) -> usize {
        self.engine.limits().batch_size_bytes
    }

    /// Largest key in bytes.
    #[must_use]
    pub fn key_size_max_bytes(&self) -> usize {
        self.engine.limits().key_size_bytes
    }

    /// Largest value in bytes, if there is room for it.
    #[must_use]
    pub fn value_size_max_bytes(&self) -> usize {
        self.engine.limits().value_size_bytes
    }
}
