//! The store: stub in memory until the engine lands.

use crate::options::Options;
use crate::value::{Condition, Outcome, PutOptions, Value};
use esker_base::Result;
use esker_base::ids::Version;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Figures of a store.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "each name says it")]
pub struct Stats {
    pub items: u64,
    pub live_bytes: u64,
    pub capacity_bytes: u64,
}

type Map = BTreeMap<Vec<u8>, (Vec<u8>, Version, crate::value::Attributes)>;

/// A store. Cheap to clone; all clones are the same store; usable from any thread or task.
#[derive(Clone, Debug)]
pub struct Store(Arc<Mutex<(Map, u64)>>);

impl Store {
    /// Opens the store at `options.path`, and creates it if there is none.
    pub fn open(_options: Options) -> Result<Store> {
        Ok(Store(Arc::new(Mutex::new((Map::new(), 0)))))
    }
    /// The value of `key`, if it has one.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        Ok(self.0.lock().0.get(key).map(|(b, v, a)| Value {
            bytes: b.clone(),
            version: *v,
            attributes: *a,
        }))
    }
    /// Puts `value` under `key`.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version> {
        match self.put_with(key, value, PutOptions::default())? {
            Outcome::Stored(v) => Ok(v),
            _ => unreachable!(),
        }
    }
    /// Puts `value` under `key` on a condition.
    pub fn put_with(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Outcome> {
        let mut inner = self.0.lock();
        let old = inner.0.get(key).map(|x| x.1);
        match (options.condition, old) {
            (Condition::Absent, Some(_)) => return Ok(Outcome::KeyExists),
            (Condition::Present | Condition::VersionIs(_), None) => return Ok(Outcome::KeyMissing),
            (Condition::VersionIs(v), Some(o)) if v != o => return Ok(Outcome::VersionDiffers),
            _ => {}
        }
        inner.1 += 1;
        let v = Version(inner.1);
        inner.0.insert(key.to_vec(), (value.to_vec(), v, options.attributes));
        Ok(Outcome::Stored(v))
    }
    /// Deletes `key`; says whether it had a value.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        Ok(self.0.lock().0.remove(key).is_some())
    }
    /// Deletes everything.
    pub fn clear(&self) -> Result<()> {
        self.0.lock().0.clear();
        Ok(())
    }
    /// Every key with its value, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Result<(Vec<u8>, Value)>> + '_ {
        let all: Vec<_> = self
            .0
            .lock()
            .0
            .iter()
            .map(|(k, (b, v, a))| {
                Ok((k.clone(), Value { bytes: b.clone(), version: *v, attributes: *a }))
            })
            .collect();
        all.into_iter()
    }
    /// Makes everything durable that was acknowledged.
    pub fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// Makes everything durable and closes the store: later calls on any clone answer `Closed`.
    pub fn close(&self) -> Result<()> {
        Ok(())
    }
    /// Figures.
    pub fn stats(&self) -> Stats {
        Stats { items: self.0.lock().0.len() as u64, ..Stats::default() }
    }
}
