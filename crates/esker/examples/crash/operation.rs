//! The generator's operations, done with a store: what the explorers of `depot` and `flat` share.

use esker::{Attributes, Batch, Condition, Outcome, PutOptions, Result, Store};
use esker_base::{Error, ErrorKind};
use esker_testkit::generator::{Entry, Op, When};
use esker_testkit::model::{Map, Reply};

/// Wall time of the simulations, in seconds.
pub(crate) const NOW: u64 = 1_800_000_000;

pub(crate) fn attributes(entry: &Entry) -> Attributes {
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

/// Everything that a store holds.
pub(crate) fn items(store: &Store) -> Result<Map> {
    store.iter().map(|item| item.map(|(key, value)| (key, entry(&value)))).collect()
}

/// Everything that a store holds to which nobody writes: as many items as it counts.
pub(crate) fn counted_items(store: &Store) -> Result<Map> {
    let items = items(store)?;
    let counted = store.stats().items;
    if counted == items.len() as u64 {
        return Ok(items);
    }
    let words = format!("{counted} items are counted, {} are there", items.len());
    Err(Error::new(ErrorKind::Corrupted, "count items").context(words))
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
    Ok(match op {
        Op::Put(key, value) => {
            put(key, value, Condition::Always)?;
            Reply::Done
        }
        Op::PutIf(key, value, when) => {
            let condition = match when {
                When::Absent => Condition::Absent,
                When::Present => Condition::Present,
            };
            Reply::Was(matches!(put(key, value, condition)?, Outcome::Stored(_)))
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
            store.write(&batch)?;
            Reply::Done
        }
        Op::Reopen => Reply::Refused,
    })
}
