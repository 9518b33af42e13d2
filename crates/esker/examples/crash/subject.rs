//! `depot` as the crash explorer sees it: tiny geometry, everything decided by the seed.

use crate::operation::{Ticking, apply, check, counted_items, empty};
use esker::options::Progress;
use esker::{Durability, Options, Result, Store, restore_on};
use esker_base::{Error, ErrorKind};
use esker_media::BlockDevice;
use esker_media::sim::{SimArchive, SimBlock, SimBlockOptions};
use esker_testkit::explore::{Block, Config, Subject};
use esker_testkit::generator::{Limits, Op, Weights};
use esker_testkit::model::{Map, Reply};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Size of a segment in bytes: sixteen blocks, so that a few writes fill it.
pub(crate) const SEGMENT_SIZE: u64 = 8192;

/// A `depot` with a hash of some bits.
#[derive(Clone, Debug)]
pub(crate) struct Depot {
    pub(crate) hash_mask: u64,
    pub(crate) cache: bool,
    pub(crate) grain: u32,
    /// Where it is not `Sync`, an operation is over once all that was written before is durable: what it read as well.
    pub(crate) durability: Durability,
    pub(crate) segment_size: u64,
    /// Many small records, so that the index grows from nothing.
    pub(crate) grows: bool,
    /// Whether values expire, so that some are counted that nobody finds.
    pub(crate) expires: bool,
    pub(crate) seconds: Arc<AtomicU64>,
}

/// Options of a store in a simulation.
pub(crate) fn options(hash_mask: u64, format: bool) -> Options {
    let mut options = Options::new("");
    options.clock = Arc::new(Ticking::default());
    options.format = format;
    options.index_entries = Some(256);
    // Each open draws its own salts, as outside simulations, but from the simulation's seed.
    options.testing.seed = Some(esker_trt::sim::random(u64::MAX).unwrap_or(1));
    options.testing.segment_size_bytes = Some(SEGMENT_SIZE);
    options.testing.hash_mask = hash_mask;
    options.testing.background = false;
    // Few tasks make small batches.
    options.testing.leave_share = 2;
    options
}

/// As [`config`], with keys that make the index grow again and again.
pub(crate) fn growing() -> Config {
    let usual = config(false, false);
    let limits =
        Limits { value_size_bytes_max: 20, key_count: 250, key_size_bytes_max: 40, ..usual.limits };
    Config { op_count: 260, limits, ..usual }
}

/// Geometry of an exploration: that of a cache is so small that it evicts.
pub(crate) fn config(cache: bool, expires: bool) -> Config {
    Config {
        size_bytes: 8192 + if cache { 8 } else { 12 } * SEGMENT_SIZE,
        forgets: cache,
        op_count: if cache { 120 } else { 60 },
        limits: Limits {
            value_size_bytes_max: 1500,
            segment_size_bytes: usize::try_from(SEGMENT_SIZE).unwrap_or(0),
            expires,
            ..Limits::default()
        },
        weights: Weights {
            batch: 6,
            clean: 6,
            check: 3,
            compare: 6,
            time: if expires { 3 } else { 0 },
            ..Weights::USUAL
        },
        ..Config::default()
    }
}

impl Subject for Depot {
    type Medium = Block;
    type Store = Store;

    fn with_clock(&self, seconds: Arc<AtomicU64>) -> Self {
        Depot { seconds, ..self.clone() }
    }

    fn open(&self, device: Arc<dyn BlockDevice>, fresh: bool) -> Result<Store> {
        let mut options = self.options(fresh);
        options.cache = self.cache && fresh;
        options.testing.grain_size_bytes = Some(self.grain);
        options.durability = self.durability;
        // What an open would find is found by one that only reads, too. Things expire between the two.
        let is_read = !fresh && !self.expires && esker_trt::sim::random(16) == Some(0);
        let before = if is_read { Some(self.read(&device, &options)?) } else { None };
        let store = Store::open_on(device, &options)?;
        match before {
            Some(before) if self.dump(&store)? != before => {
                let words = "who opened the store to read it found something else";
                Err(Error::new(ErrorKind::Corrupted, "open store").context(words))
            }
            _ => Ok(store),
        }
    }

    fn apply(&self, store: &Store, op: &Op) -> Result<Reply> {
        if matches!(op, Op::Check) {
            self.backup_beside(store)?;
        }
        if matches!(op, Op::Clean) && esker_trt::sim::random(3) == Some(0) {
            store.trim()?;
        }
        apply(store, op, 1)
    }

    fn settle(&self, store: &Store) -> Result<()> {
        if self.durability == Durability::Sync { Ok(()) } else { store.sync() }
    }

    fn fault_refuses(&self, error: &Error) -> bool {
        // The store could not read what the key holds: it promises that nothing was written.
        error.kind() == ErrorKind::Io
    }

    fn dump(&self, store: &Store) -> Result<Map> {
        counted_items(store, self.expires)
    }

    fn empty(&self, store: &Store) -> Result<()> {
        // That in which the log goes on.
        empty(store, 1)
    }

    fn close(&self, store: Store) -> Result<()> {
        store.close()
    }
}

impl Depot {
    fn options(&self, format: bool) -> Options {
        let mut options = options(self.hash_mask, format);
        options.testing.segment_size_bytes = Some(self.segment_size);
        if self.grows {
            options.index_entries = None;
        }
        options.clock = Ticking::of(&self.seconds);
        options
    }

    /// Whether a store with this content is a copy of one with that; a cache may have evicted something, or not yet.
    fn is_copy(&self, copy: &Map, of: &Map) -> bool {
        let is_same = |(key, value)| of.get(key).is_none_or(|other| other == value);
        if self.cache { copy.iter().all(is_same) } else { copy == of }
    }

    /// What is in a store of which nothing is changed.
    fn read(&self, device: &Arc<dyn BlockDevice>, options: &Options) -> Result<Map> {
        let options = Options { read_only: true, ..options.clone() };
        self.dump(&Store::open_on(Arc::clone(device), &options)?)
    }

    /// A backup beside whatever else goes on, restored at once: a store that opens and is sound, and holds what the store held, if
    /// nobody changed that meanwhile. It may fail where the device does, or for lack of room.
    fn backup_beside(&self, store: &Store) -> Result<()> {
        let archive = SimArchive::new();
        let before = self.dump(store);
        match store.backup_to(&archive, &Progress::default()) {
            Err(error) if error.kind() == ErrorKind::Corrupted => return Err(error),
            Err(_) => return Ok(()),
            Ok(_) => {}
        }
        let after = self.dump(store);
        let size_bytes = config(false, false).size_bytes * (self.segment_size / SEGMENT_SIZE);
        let mut of = SimBlockOptions::new(size_bytes, 1);
        // A store with larger blocks than the device's is fine.
        (of.record, of.latency_max) = (false, Duration::ZERO);
        let target = Arc::new(SimBlock::new(of));
        restore_on(&archive, &*target, &self.options(false))?;
        let restored = Store::open_on(target, &self.options(false))?;
        if let (Ok(before), Ok(after), false) = (before, after, self.expires)
            && before == after
            && !self.is_copy(&self.dump(&restored)?, &before)
        {
            let words = "a restored store holds something else than the one that was backed up";
            return Err(Error::new(ErrorKind::Corrupted, "restore store").context(words));
        }
        check(&restored, "check restored")
    }
}
