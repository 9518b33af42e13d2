//! `flat` as the crash explorer sees it: tiny geometry, everything decided by the seed.

use esker::{
    Attributes, Batch, Condition, EngineKind, Options, Outcome, PutOptions, Result, Store,
};
use esker_base::clock::ManualClock;
use esker_base::{Error, ErrorKind};
use esker_media::Pmem;
use esker_testkit::explore::{Config, Memory, Subject};
use esker_testkit::generator::{Entry, Limits, Op, Weights, When};
use esker_testkit::model::{Map, Reply};
use std::sync::Arc;

/// Size of a chunk in bytes: a log is full after some ten writes.
pub(crate) const CHUNK_SIZE: u64 = 2048;
/// Wall time of the simulations, in seconds.
const NOW: u64 = 1_800_000_000;

/// A `flat` with an index, and a hash of some bits.
#[derive(Clone, Debug)]
pub(crate) struct Flat {
    pub(crate) engine: EngineKind,
    pub(crate) hash_mask: u64,
}

/// Options of a store in a simulation.
pub(crate) fn options(engine: EngineKind, hash_mask: u64, format: bool) -> Options {
    let mut options = Options::new("");
    options.engine = Some(engine);
    options.clock = Arc::new(ManualClock::new(NOW));
    options.format = format;
    // Each open draws its own identities, as outside simulations, but from the simulation's seed.
    options.testing.seed = Some(esker_trt::sim::random(u64::MAX).unwrap_or(1));
    options.testing.segment_size_bytes = Some(CHUNK_SIZE);
    options.testing.hash_mask = hash_mask;
    options.testing.cores = Some(2);
    options
}

/// Geometry of an exploration.
pub(crate) fn config() -> Config {
    Config {
        size_bytes: 28 * CHUNK_SIZE,
        op_count: 80,
        limits: Limits {
            value_size_bytes_max: 1500,
            segment_size_bytes: usize::try_from(CHUNK_SIZE).unwrap_or(0),
            ..Limits::default()
        },
        weights: Weights { batch: 8, clean: 10, check: 3, ..Weights::USUAL },
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

impl Subject for Flat {
    type Medium = Memory;
    type Store = Store;

    fn open(&self, memory: Arc<dyn Pmem>, fresh: bool) -> Result<Store> {
        Store::open_on_memory(memory, &options(self.engine, self.hash_mask, fresh))
    }

    fn apply(&self, store: &Store, op: &Op) -> Result<Reply> {
        match self.try_apply(store, op) {
            // The store could not read what the key holds: it promises that nothing was written.
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupted) => {
                Ok(Reply::Refused)
            }
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

impl Flat {
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
                Reply::Done
            }
            Op::Iterate => Reply::All(self.dump(store)?),
            Op::Check => {
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
                store.clean(2)?;
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
