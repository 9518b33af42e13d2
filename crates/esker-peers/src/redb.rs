//! redb: a copy-on-write B+-tree in Rust, one writer at a time.

use crate::said;
use crate::ticker::Ticker;
use esker_bench::Outcome;
use esker_bench::system::{Durability, OpenOptions, Session, System, SystemKind};
use redb::{Database, ReadableDatabase, TableDefinition};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const KIND: SystemKind = SystemKind {
    name: "redb",
    about: "redb, a copy-on-write B+-tree",
    ordered: |_| true,
    fixed_capacity: false,
    persistent: true,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 2 << 30,
    variants: &[],
    open,
};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

struct Redb {
    database: Arc<Database>,
    durability: redb::Durability,
    ticker: Ticker,
    options: BTreeMap<String, String>,
}

/// An empty commit makes all before it durable.
fn sync(database: &Database) -> Outcome<()> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(redb::Durability::Immediate)?;
    Ok(transaction.commit()?)
}

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let bytes = usize::try_from(options.cache_bytes)?;
    let database =
        Database::builder().set_cache_size(bytes).create(options.folder.join("data.redb"))?;
    let transaction = database.begin_write()?;
    transaction.open_table(TABLE)?;
    transaction.commit()?;
    let database = Arc::new(database);
    let periodic = options.durability == Durability::Periodic;
    let ticker = Ticker::of(periodic, &database, sync)?;
    let (durability, words) = match options.durability {
        Durability::Sync => (redb::Durability::Immediate, "sync: Durability::Immediate"),
        Durability::Periodic => {
            (redb::Durability::None, "periodic: Durability::None, Immediate every second")
        }
        Durability::None => (redb::Durability::None, "none: Durability::None"),
    };
    let options = said([
        ("durability", words.to_owned()),
        ("cache", format!("{bytes} bytes")),
        ("transactions", "one for each operation".to_owned()),
    ]);
    Ok(Box::new(Redb { database, durability, ticker, options }))
}

impl System for Redb {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(Client { database: Arc::clone(&self.database), durability: self.durability }))
    }

    fn sync(&self) -> Outcome<()> {
        self.ticker.check()?;
        sync(&self.database)
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
    database: Arc<Database>,
    durability: redb::Durability,
}

impl Session for Client {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        match table.get(key)? {
            Some(value) => {
                see(value.value());
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(self.durability)?;
        transaction.open_table(TABLE)?.insert(key, value)?;
        Ok(transaction.commit()?)
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(self.durability)?;
        transaction.open_table(TABLE)?.remove(key)?;
        Ok(transaction.commit()?)
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Outcome<u64> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        let mut seen = 0;
        for item in table.range(start..)? {
            if seen == count {
                break;
            }
            let (key, value) = item?;
            see(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }
}
