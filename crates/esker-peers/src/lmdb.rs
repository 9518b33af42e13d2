//! LMDB, through heed: a B+-tree in a memory map, copy on write, one writer at a time.
//!
//! # Safety invariants
//! - S1: the folder is the bench's own, and nobody else touches the files while the environment is open.
//! - S2: `NO_SYNC` and `NO_META_SYNC` risk the file at a crash of the system only, and then it is not opened
//!   again: each cell begins with an empty folder.
#![expect(
    unsafe_code,
    reason = "heed asks for a promise about the mapped file; see docs/unsafe.md"
)]

use crate::said;
use crate::ticker::Ticker;
use esker_bench::Outcome;
use esker_bench::system::{Durability, OpenOptions, Session, System, SystemKind};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

pub(crate) const KIND: SystemKind = SystemKind {
    name: "lmdb",
    about: "LMDB, a B+-tree in a memory map",
    ordered: |_| true,
    fixed_capacity: false,
    persistent: true,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 2 << 30,
    variants: &[],
    open,
};

/// Address space for each byte of data: pages are half full in the worst case, and freed ones are not reused
/// while a reader may see them. Costs nothing until it is used.
const MAP_FACTOR: u64 = 8;
const MAP_SIZE_MIN_BYTES: u64 = 1 << 30;
const READERS_MAX: u32 = 4200;

struct Lmdb {
    env: Env,
    database: Database<'static, Bytes, Bytes>,
    ticker: Ticker,
    options: BTreeMap<String, String>,
}

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let map_size = (options.data_bytes * MAP_FACTOR).max(MAP_SIZE_MIN_BYTES);
    let map_size = map_size.next_multiple_of(1 << 20);
    let mut open = EnvOpenOptions::new();
    open.map_size(usize::try_from(map_size)?).max_readers(READERS_MAX);
    let mut flags = EnvFlags::empty();
    if options.durability != Durability::Sync {
        flags |= EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC;
    }
    if options.direct {
        // Memory is little beside the data then, and what is read ahead would take the place of what is needed.
        flags |= EnvFlags::NO_READ_AHEAD;
    }
    // SAFETY: a crash may damage the file, and it is not opened after one (S2).
    unsafe { open.flags(flags) };
    // SAFETY: the files are this process's alone (S1).
    let env = unsafe { open.open(&options.folder) }?;
    let database = env
        .create_databases_and_commit(env.write_txn()?, |opener, transaction| {
            opener.create_database(transaction, None).map(CommitOrAbort::<_, ()>::Commit)
        })?
        .unwrap_commit();
    let ticker =
        Ticker::of(options.durability == Durability::Periodic, &Arc::new(env.clone()), |env| {
            Ok(env.force_sync()?)
        })?;
    let words = match options.durability {
        Durability::Sync => "sync: every commit is synced",
        Durability::Periodic => "periodic: MDB_NOSYNC, synced every second",
        Durability::None => "none: MDB_NOSYNC",
    };
    let options = said([
        ("durability", words.to_owned()),
        ("cache", "the kernel's page cache: the cache bytes do not bound it".to_owned()),
        ("map size", format!("{map_size} bytes")),
        (
            "read ahead",
            if options.direct { "no: MDB_NORDAHEAD" } else { "the kernel's" }.to_owned(),
        ),
        ("transactions", "one for each operation".to_owned()),
    ]);
    Ok(Box::new(Lmdb { env, database, ticker, options }))
}

impl System for Lmdb {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(Client { env: self.env.clone(), database: self.database }))
    }

    fn sync(&self) -> Outcome<()> {
        self.ticker.check()?;
        Ok(self.env.force_sync()?)
    }

    fn close(mut self: Box<Self>) -> Outcome<()> {
        self.ticker.stop()?;
        self.sync()?;
        // Another open of this process would get this environment, flags and all.
        let Lmdb { env, .. } = *self;
        env.prepare_for_closing().wait();
        Ok(())
    }

    fn options(&self) -> BTreeMap<String, String> {
        self.options.clone()
    }
}

struct Client {
    env: Env,
    database: Database<'static, Bytes, Bytes>,
}

impl Session for Client {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        let transaction = self.env.read_txn()?;
        match self.database.get(&transaction, key)? {
            Some(value) => {
                see(value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        let mut transaction = self.env.write_txn()?;
        self.database.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        let mut transaction = self.env.write_txn()?;
        self.database.delete(&mut transaction, key)?;
        Ok(transaction.commit()?)
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Outcome<u64> {
        let transaction = self.env.read_txn()?;
        let range = (Bound::Included(start), Bound::Unbounded);
        let mut seen = 0;
        for item in self.database.range(&transaction, &range)? {
            if seen == count {
                break;
            }
            let (key, value) = item?;
            see(key, value);
            seen += 1;
        }
        Ok(seen)
    }
}
