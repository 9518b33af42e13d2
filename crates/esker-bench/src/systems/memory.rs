//! Maps of the standard library behind locks: the floor that no durable store reaches, and the check that the
//! harness itself is fast enough to measure one.

use crate::failure::{Failure, Outcome};
use crate::system::{Durability, OpenOptions, Session, System, SystemKind};
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::Arc;

pub(super) const HASHMAP: SystemKind = SystemKind {
    name: "hashmap",
    about: "std's HashMap in DRAM, 64 shards behind locks; durable never",
    ordered: |_| false,
    fixed_capacity: false,
    persistent: false,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 1 << 40,
    variants: &[],
    open: open_hashed,
};

pub(super) const BTREEMAP: SystemKind = SystemKind {
    name: "btreemap",
    about: "std's BTreeMap in DRAM behind one lock; durable never",
    ordered: |_| true,
    fixed_capacity: false,
    persistent: false,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 1 << 40,
    variants: &[],
    open: open_ordered,
};

const SHARDS: u64 = 64;

type Shard = RwLock<HashMap<Vec<u8>, Vec<u8>>>;

#[derive(Clone)]
struct Hashed {
    shards: Arc<Vec<Shard>>,
    state: RandomState,
}

fn open_hashed(_: &OpenOptions) -> Outcome<Box<dyn System>> {
    let shards = (0..SHARDS).map(|_| Shard::default()).collect();
    Ok(Box::new(Hashed { shards: Arc::new(shards), state: RandomState::new() }))
}

fn said() -> BTreeMap<String, String> {
    BTreeMap::from([(
        "durability".to_owned(),
        "none: DRAM only, whatever was asked for".to_owned(),
    )])
}

impl Hashed {
    fn shard(&self, key: &[u8]) -> Outcome<&Shard> {
        let place = usize::try_from(self.state.hash_one(key) % SHARDS)?;
        self.shards.get(place).ok_or_else(|| Failure::new("no shard"))
    }
}

impl System for Hashed {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(self.clone()))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }

    fn options(&self) -> BTreeMap<String, String> {
        said()
    }
}

impl Session for Hashed {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        match self.shard(key)?.read().get(key) {
            Some(value) => {
                see(value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.shard(key)?.write().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        self.shard(key)?.write().remove(key);
        Ok(())
    }

    fn scan(&mut self, _: &[u8], _: u64, _: &mut dyn FnMut(&[u8], &[u8])) -> Outcome<u64> {
        Err(Failure::new("a HashMap keeps no order"))
    }
}

#[derive(Clone, Default)]
struct Ordered(Arc<RwLock<BTreeMap<Vec<u8>, Vec<u8>>>>);

fn open_ordered(_: &OpenOptions) -> Outcome<Box<dyn System>> {
    Ok(Box::new(Ordered::default()))
}

impl System for Ordered {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(self.clone()))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }

    fn options(&self) -> BTreeMap<String, String> {
        said()
    }
}

impl Session for Ordered {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        match self.0.read().get(key) {
            Some(value) => {
                see(value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.0.write().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        self.0.write().remove(key);
        Ok(())
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Outcome<u64> {
        let mut seen = 0;
        let map = self.0.read();
        for (key, value) in map.range::<[u8], _>((Bound::Included(start), Bound::Unbounded)) {
            if seen == count {
                break;
            }
            see(key, value);
            seen += 1;
        }
        Ok(seen)
    }
}
