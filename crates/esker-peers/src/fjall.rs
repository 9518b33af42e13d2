//! fjall: an LSM-tree in Rust.

use crate::said;
use crate::ticker::Ticker;
use esker_bench::Outcome;
use esker_bench::system::{Durability, OpenOptions, Session, System, SystemKind};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const KIND: SystemKind = SystemKind {
    name: "fjall",
    about: "fjall, an LSM-tree",
    ordered: |_| true,
    fixed_capacity: false,
    persistent: true,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 1 << 30,
    variants: &[],
    open,
};

const WORKERS: usize = 2;
/// Least that its memtables work with, in bytes.
const MEMTABLE_SIZE_MIN_BYTES: u64 = 1 << 20;

struct Fjall {
    database: Database,
    keyspace: Keyspace,
    sync_each: bool,
    ticker: Ticker,
    options: BTreeMap<String, String>,
}

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    // Half caches blocks, half is for memtables: the one that fills and one that is being flushed.
    let cache = options.cache_bytes / 2;
    let memtable = (options.cache_bytes / 4).max(MEMTABLE_SIZE_MIN_BYTES);
    let lazy = options.durability == Durability::None;
    let database = Database::builder(&options.folder)
        .cache_size(cache)
        .worker_threads(WORKERS)
        .manual_journal_persist(lazy)
        .open()?;
    let keyspace = database
        .keyspace("records", || KeyspaceCreateOptions::default().max_memtable_size(memtable))?;
    let periodic = options.durability == Durability::Periodic;
    let ticker = Ticker::of(periodic, &Arc::new(database.clone()), |database| {
        Ok(database.persist(PersistMode::SyncData)?)
    })?;
    let words = match options.durability {
        Durability::Sync => "sync: persist(SyncData) after each write",
        Durability::Periodic => "periodic: persist(SyncData) every second",
        Durability::None => "none: the journal is buffered in the process",
    };
    let options = said([
        ("durability", words.to_owned()),
        ("block cache", format!("{cache} bytes")),
        ("memtable", format!("{memtable} bytes, two at a time")),
        ("worker threads", WORKERS.to_string()),
        ("compression", "none".to_owned()),
    ]);
    let sync_each = words.starts_with("sync");
    Ok(Box::new(Fjall { database, keyspace, sync_each, ticker, options }))
}

impl System for Fjall {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(Client {
            database: self.database.clone(),
            keyspace: self.keyspace.clone(),
            sync_each: self.sync_each,
        }))
    }

    fn sync(&self) -> Outcome<()> {
        self.ticker.check()?;
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }

    fn close(mut self: Box<Self>) -> Outcome<()> {
        self.ticker.stop()?;
        self.sync()
    }

    fn options(&self) -> BTreeMap<String, String> {
        self.options.clone()
    }
}

struct Client {
    database: Database,
    keyspace: Keyspace,
    sync_each: bool,
}

impl Client {
    fn written(&self) -> Outcome<()> {
        if self.sync_each {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }
}

impl Session for Client {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        match self.keyspace.get(key)? {
            Some(value) => {
                see(&value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.keyspace.insert(key, value)?;
        self.written()
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        self.keyspace.remove(key)?;
        self.written()
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Outcome<u64> {
        let mut seen = 0;
        for item in self.keyspace.range(start..) {
            if seen == count {
                break;
            }
            let (key, value) = item.into_inner()?;
            see(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }
}
