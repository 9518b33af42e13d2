//! `depot` as the crash explorer sees it: tiny geometry, everything decided by the seed.

use esker::options::Progress;
use esker::{
    Attributes, Batch, Condition, Options, Outcome, PutOptions, Result, Store, restore_on,
};
use esker_base::clock::Clock;
use esker_base::{Error, ErrorKind};
use esker_media::BlockDevice;
use esker_media::sim::{SimArchive, SimBlock, SimBlockOptions};
use esker_testkit::explore::{Block, Config, Subject};
use esker_testkit::generator::{Entry, Limits, Op, Weights, When};
use esker_testkit::model::{Map, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Size of a segment in bytes: sixteen blocks, so that a few writes fill it.
pub(crate) const SEGMENT_SIZE: u64 = 8192;
/// Wall time of the simulations, in seconds.
pub(crate) const NOW: u64 = 1_800_000_000;

/// A `depot` with a hash of some bits.
#[derive(Clone, Debug)]
pub(crate) struct Depot {
    pub(crate) hash_mask: u64,
    pub(crate) cache: bool,
    pub(crate) grain: u32,
}

/// A clock that goes on whenever it is looked at, so that a cache knows what was used when.
#[derive(Debug, Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> u64 {
        NOW
    }
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

/// Geometry of an exploration: that of a cache is so small that it evicts.
pub(crate) fn config(cache: bool) -> Config {
    Config {
        size_bytes: 8192 + if cache { 8 } else { 12 } * SEGMENT_SIZE,
        forgets: cache,
        op_count: if cache { 120 } else { 60 },
        limits: Limits {
            value_size_bytes_max: 1500,
            segment_size_bytes: usize::try_from(SEGMENT_SIZE).unwrap_or(0),
            ..Limits::default()
        },
        weights: Weights { batch: 6, clean: 6, check: 3, ..Weights::USUAL },
        ..Config::default()
    }
}

fn attributes(entry: &Entry) -> Attributes {
    let expires_at = (entry.expires_at != 0).then_some(NOW + entry.expires_at);
    Attributes { flags: entry.flags, expires_at, state: 0 }
}

fn entry(value: &esker::Value) -> Entry {
    let attributes = value.attributes();
    Entry {
        bytes: value.to_vec(),
        flags: attributes.flags,
        expires_at: attributes.expires_at.map_or(0, |at| at - NOW),
    }
}

impl Subject for Depot {
    type Medium = Block;
    type Store = Store;

    fn open(&self, device: Arc<dyn BlockDevice>, fresh: bool) -> Result<Store> {
        let mut options = options(self.hash_mask, fresh);
        options.cache = self.cache && fresh;
        options.testing.grain_size_bytes = Some(self.grain);
        Store::open_on(device, &options)
    }

    fn apply(&self, store: &Store, op: &Op) -> Result<Reply> {
        match self.try_apply(store, op) {
            // The store could not read what the key holds: it promises that nothing was written.
            Err(error) if error.kind() == ErrorKind::Io => Ok(Reply::Refused),
            reply => reply,
        }
    }

    fn dump(&self, store: &Store) -> Result<Map> {
        store.iter().map(|item| item.map(|(key, value)| (key, entry(&value)))).collect()
    }

    fn close(&self, store: Store) -> Result<()> {
        store.close()
    }
}

/// A backup beside whatever else goes on, restored at once: a store that opens and is sound. It may
/// fail where the device does, or for lack of room.
fn backup_beside(store: &Store, hash_mask: u64) -> Result<()> {
    let archive = SimArchive::new();
    if store.backup_to(&archive, &Progress::default()).is_err() {
        return Ok(());
    }
    let mut of = SimBlockOptions::new(config(false).size_bytes, 1);
    // A store with larger blocks than the device's is fine.
    (of.record, of.latency_max) = (false, Duration::ZERO);
    let target = Arc::new(SimBlock::new(of));
    restore_on(&archive, &*target, &options(hash_mask, false))?;
    let restored = Store::open_on(target, &options(hash_mask, false))?;
    let report = restored.check()?;
    match report.problems.first() {
        None => Ok(()),
        Some(problem) => {
            Err(Error::new(ErrorKind::Corrupted, "check restored").context(problem.clone()))
        }
    }
}

impl Depot {
    fn try_apply(&self, store: &Store, op: &Op) -> Result<Reply> {
        Ok(match op {
            Op::Put(key, value) => {
                let attributes = attributes(value);
                let options = PutOptions { attributes, condition: Condition::Always };
                store.put_with(key, &value.bytes, options)?;
                Reply::Done
            }
            Op::PutIf(key, value, when) => {
                let condition = match when {
                    When::Absent => Condition::Absent,
                    When::Present => Condition::Present,
                };
                let options = PutOptions { attributes: attributes(value), condition };
                let outcome = store.put_with(key, &value.bytes, options)?;
                Reply::Was(matches!(outcome, Outcome::Stored(_)))
            }
            Op::Get(key) => Reply::Found(store.get(key)?.as_ref().map(entry)),
            Op::Delete(key) => Reply::Was(store.delete(key)?),
            Op::Clear => {
                store.clear()?;
                Reply::Done
            }
            Op::Sync => {
                store.sync()?;
                // Nothing is left to make durable: a checkpoint takes its odds.
                store.checkpoint()?;
                Reply::Done
            }
            Op::Iterate => Reply::All(Subject::dump(self, store)?),
            Op::Check => {
                backup_beside(store, self.hash_mask)?;
                let report = store.check()?;
                match report.problems.first() {
                    None => Reply::Done,
                    Some(problem) => {
                        return Err(Error::new(ErrorKind::Corrupted, "check store")
                            .context(problem.clone()));
                    }
                }
            }
            Op::Clean => {
                store.clean(1)?;
                Reply::Done
            }
            Op::Batch(writes) => {
                let mut batch = Batch::new();
                for (key, write) in writes {
                    match write {
                        Some(value) => batch.put_with(key, &value.bytes, attributes(value)),
                        None => batch.delete(key),
                    };
                }
                store.write(&batch)?;
                Reply::Done
            }
            Op::Reopen => Reply::Refused,
        })
    }
}
