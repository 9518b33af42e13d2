//! The engines: siblings behind one trait, each a folder with the same file names.

pub(crate) mod background;
pub(crate) mod backup;
mod closing;
pub(crate) mod depot;
mod expiries;
pub(crate) mod flat;
pub(crate) mod flex;
pub(crate) mod reading;
pub mod sites;
mod threads;
mod wall;

use crate::backup::BackupReport;
use crate::batch::Batch;
use crate::check::CheckReport;
use crate::devices;
use crate::options::{EngineKind, Options, Progress};
use crate::store::{Direction, Met, Stats};
use crate::value::{Outcome, PutOptions, Value};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_media::Archive;
use esker_trt::Facility;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// One part of a walk over all keys; without the values that are read by themselves. What cannot be read is an error in its
/// place, and the others are there.
pub(crate) type Items = Vec<Result<(Vec<u8>, Option<Value>)>>;

/// Where a walk over all keys goes on.
#[derive(Clone, Debug, Default)]
pub(crate) enum Cursor {
    #[default]
    Start,
    /// From this hash on.
    Hash(u64),
    /// Behind this key.
    Key(Vec<u8>),
}

/// Opens the store that `options` name with the engine that keeps its data.
pub(crate) fn open(options: &Options) -> Result<Arc<dyn Engine>> {
    let kind = options.engine.or(devices::engine_there(options)).unwrap_or_default();
    refuse_others(options, kind, "open store")?;
    options.check_for(kind)?;
    let asked = options;
    let options = &*reading::of_engine(asked)?;
    let folders = devices::new_folders(options);
    let engine: Arc<dyn Engine> = match kind {
        EngineKind::Depot => depot::Depot::open(devices::open(options, None)?, options)?,
        EngineKind::FlatCceh | EngineKind::FlatMasstree => {
            flat::Flat::open(devices::open_memory(options)?, options)?
        }
        EngineKind::Flex => flex::Flex::open(options)?,
    };
    folders.keep();
    Ok(reading::as_asked(engine, asked))
}

/// Refuses the place of another engine's store, also for a new one: both would be there, and opens find one.
pub(crate) fn refuse_others(
    options: &Options,
    wanted: EngineKind,
    operation: &'static str,
) -> Result<()> {
    match devices::engine_there(options) {
        Some(there) if !there.has_files_of(wanted) => {
            let there = there.name_of_files();
            let words = if options.format {
                format!(
                    "a store of {there} is here: one of {wanted} takes its place once it is removed"
                )
            } else {
                format!("the store here is one of {there}, not of {wanted}")
            };
            Err(Error::invalid(operation, words).device(options.path.display().to_string()))
        }
        _ => Ok(()),
    }
}

/// What a store takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) key_size_bytes: usize,
    pub(crate) value_size_bytes: usize,
    pub(crate) batch_size_bytes: usize,
}

/// Asked before a device read with the memory that it takes, in bytes; its error ends the read.
pub(crate) type Admit<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// What every engine does for a [`Store`](crate::Store). All calls work from any thread or task.
pub(crate) trait Engine: Send + Sync + std::fmt::Debug {
    fn kind(&self) -> EngineKind;
    /// Makes dropping the store write nothing, where it would.
    fn abandon(&self) {}
    fn get(&self, key: &[u8], admit: Admit<'_>) -> Result<Option<Value>>;
    /// What a write under way gives `key`, if there is one and that is to be had: see [`Store::get_pending`](crate::Store::get_pending).
    fn get_pending(&self, key: &[u8]) -> Result<Option<Value>>;
    /// The values of several keys, for a thread that would wait for one read after the other.
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        keys.iter().map(|key| self.get(key, &mut |_| Ok(()))).collect()
    }
    /// Brings what DRAM knows of these keys near to the processor.
    fn prefetch(&self, keys: &mut dyn Iterator<Item = &[u8]>);
    /// The most memory that `get` of `key` would ask to be admitted, as far as DRAM knows.
    fn read_size(&self, key: &[u8]) -> u64;
    fn put(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Outcome>;
    fn delete(&self, key: &[u8], version: Option<Version>) -> Result<bool>;
    fn clear(&self) -> Result<()>;
    /// All or nothing, also after a crash.
    fn write(&self, batch: &Batch) -> Result<Version>;
    /// Cleans up to `segments` segments and drops tombstones that nobody needs; returns how many
    /// segments it cleaned.
    fn clean(&self, segments: usize) -> Result<usize>;
    /// Cleans the full segment with this number among them, and drops no tombstones; false if there is none.
    fn clean_full(&self, _number: usize) -> Result<bool> {
        Ok(false)
    }
    /// Evicts up to `segments` segments of a cache; returns how many.
    fn evict(&self, segments: usize) -> Result<usize>;
    /// Writes what makes the next open fast, beside everything else; false if there is nothing to write or no room.
    fn checkpoint(&self) -> Result<bool>;
    /// Tells the device which space is free; returns its bytes.
    fn trim(&self) -> Result<u64>;
    /// Up to `limit` items between two keys, in order of their bytes.
    fn scan(
        &self,
        _from: Bound<&[u8]>,
        _to: Bound<&[u8]>,
        _direction: Direction,
        _limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>> {
        Err(Error::new(ErrorKind::Unsupported, "scan").context("this engine keeps no order"))
    }
    /// As [`Engine::scan`], showing each item in place of copying it, until `show` breaks; about `limit` are expected.
    fn scan_with(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        show: &mut dyn FnMut(Met<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        for (key, value) in self.scan(from, to, direction, limit)? {
            if show(Met::of(&key, &value)).is_break() {
                break;
            }
        }
        Ok(())
    }
    /// Whether [`Engine::scan`] works.
    fn is_ordered(&self) -> bool {
        false
    }
    /// Deletes all keys from `from` on and before `to`, or without end, at once.
    fn delete_range(&self, _from: &[u8], _to: Option<&[u8]>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "delete range")
            .context("this engine deletes key by key"))
    }
    /// A version as of which all can be read until it is released.
    fn snapshot(&self) -> Result<u64> {
        Err(Error::new(ErrorKind::Unsupported, "snapshot").context("this engine has no snapshots"))
    }
    fn release(&self, _snapshot: u64) {}
    fn get_as_of(&self, _key: &[u8], _snapshot: u64) -> Result<Option<Value>> {
        Err(Error::new(ErrorKind::Unsupported, "get").context("this engine has no snapshots"))
    }
    /// As [`Engine::scan_with`], as of a snapshot.
    fn scan_as_of(
        &self,
        _range: (Bound<&[u8]>, Bound<&[u8]>),
        _direction: Direction,
        _limit: usize,
        _snapshot: u64,
        _show: &mut dyn FnMut(Met<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "scan").context("this engine has no snapshots"))
    }
    /// Items of the part of a walk that begins at `from`, and where the next one begins; `None` at the end.
    fn walk(&self, from: Cursor) -> Result<(Items, Option<Cursor>)>;
    /// Does what its thread does while nobody writes, if that changes media.
    fn tidy(&self) -> Result<()> {
        Ok(())
    }
    /// Brings to the device what is in memory only, to stay or not.
    fn write_out(&self) -> Result<()>;
    fn sync(&self) -> Result<()>;
    fn close(&self) -> Result<()>;
    /// The last handle of the store goes: ends its threads, as soon as they can, and waits for that. What is in memory only
    /// goes to the device as far as it can, here or when the engine itself is dropped.
    fn end(&self);
    fn stats(&self) -> Stats;
    fn check(&self) -> Result<CheckReport>;
    /// Copies the store to `archive` while other calls go on.
    fn backup(&self, archive: &dyn Archive, progress: &Progress) -> Result<BackupReport>;
    fn report(&self) -> String;
    fn facilities(&self) -> Vec<Facility>;
    fn limits(&self) -> Limits;
}
