//! The generator's operations, done with a store: what the explorers of `depot` and `flat` share.

use esker::{Attributes, Batch, Condition, Outcome, PutOptions, Result, Store, Version};
use esker_base::clock::Clock;
use esker_base::{Error, ErrorKind};
use esker_testkit::generator::{Entry, Held, Op, When};
use esker_testkit::model::{Map, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Wall time at which simulations begin, in seconds.
pub(crate) const NOW: u64 = 1_800_000_000;

/// A clock that goes on whenever it is looked at, so that a cache knows what was used when; its wall time is that of a simulation.
#[derive(Debug, Default)]
pub(crate) struct Ticking {
    microseconds: AtomicU64,
    seconds: Arc<AtomicU64>,
}

impl Ticking {
    pub(crate) fn of(seconds: &Arc<AtomicU64>) -> Arc<Ticking> {
        Arc::new(Ticking { microseconds: AtomicU64::new(0), seconds: Arc::clone(seconds) })
    }
}

impl Clock for Ticking {
    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.microseconds.fetch_add(1, Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> u64 {
        NOW + self.seconds.load(Ordering::Relaxed)
    }
}

pub(crate) fn attributes(entry: &Entry) -> Attributes {
    let expires_at = (entry.expires_at != 0).then_some(NOW + entry.expires_at);
    Attributes { flags: entry.flags, expires_at, state: entry.state }
}

fn held(value: &esker::Value) -> Held {
    let Attributes { flags, state, expires_at } = value.attributes();
    let expires_at = expires_at.map_or(0, |at| at - NOW);
    let entry = Entry { bytes: value.to_vec(), flags, state, expires_at };
    Held { entry, version: value.version().0 }
}

/// Everything that a store holds.
pub(crate) fn items(store: &Store) -> Result<Map> {
    store.iter().map(|item| item.map(|(key, value)| (key, held(&value)))).collect()
}

/// Everything that a store holds to which nobody writes: as many items as it counts, and where some may have expired, no more.
pub(crate) fn counted_items(store: &Store, expires: bool) -> Result<Map> {
    let items = items(store)?;
    let counted = store.stats().items;
    let all = items.len() as u64;
    if counted == all || expires && counted > all {
        return Ok(items);
    }
    let words = format!("{counted} items are counted, {} are there", items.len());
    Err(Error::new(ErrorKind::Corrupted, "count items").context(words))
}

/// Deletes everything and makes room until there is nothing left to gain: no more than so many segments are in use then.
pub(crate) fn empty(store: &Store, in_use_max: u64) -> Result<()> {
    store.clear()?;
    store.sync()?;
    while store.clean(64)? > 0 {}
    // That of before takes its room until there is another one, or somebody needs it.
    store.checkpoint()?;
    let stats = store.stats();
    let in_use = stats.segments - stats.free_segments;
    if in_use <= in_use_max && stats.items == 0 && stats.tombstones == 0 {
        return Ok(());
    }
    let words = format!("{in_use} segments of an empty store are in use, {stats:?}");
    Err(Error::new(ErrorKind::Corrupted, "empty store").context(words))
}

/// Verifies a store.
pub(crate) fn check(store: &Store, what: &'static str) -> Result<()> {
    match store.check()?.problems.into_iter().next() {
        None => Ok(()),
        Some(problem) => Err(Error::new(ErrorKind::Corrupted, what).context(problem)),
    }
}

/// Does an operation; a cleaning takes so many segments.
pub(crate) fn apply(store: &Store, op: &Op, cleaned: usize) -> Result<Reply> {
    let put = |key, value: &Entry, condition| {
        let options = PutOptions { attributes: attributes(value), condition };
        store.put_with(key, &value.bytes, options)
    };
    let said = |outcome| match outcome {
        Outcome::Stored(version) => Reply::Stored(version.0),
        _ => Reply::Was(false),
    };
    Ok(match op {
        Op::Put(key, value) => said(put(key, value, Condition::Always)?),
        Op::CompareAndPut(key, value, held) => {
            said(put(key, value, Condition::VersionIs(Version(held.version)))?)
        }
        Op::CompareAndDelete(key, held) => {
            Reply::Was(store.compare_and_delete(key, Version(held.version))?)
        }
        Op::PutIf(key, value, when) => {
            let condition = match when {
                When::Absent => Condition::Absent,
                When::Present => Condition::Present,
            };
            said(put(key, value, condition)?)
        }
        Op::Get(key) => Reply::Found(store.get(key)?.as_ref().map(held)),
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
        Op::Iterate => Reply::All(items(store)?),
        Op::Check => {
            check(store, "check store")?;
            Reply::Done
        }
        Op::Clean => {
            store.clean(cleaned)?;
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
            Reply::Stored(store.write(&batch)?.0)
        }
        Op::Reopen | Op::Time(_) => Reply::Refused,
    })
}
