//! sled: a log-structured tree in Rust. Its last release is of 2021.
//!
//! It is measured with durability `none` only: on Linux its `flush` calls `sync_file_range`, which leaves data in
//! the device's cache and metadata in memory, so what it acknowledges may not survive a loss of power.

use crate::said;
use esker_bench::Outcome;
use esker_bench::system::{Durability, OpenOptions, Session, System, SystemKind};
use sled::{Config, Db};
use std::collections::BTreeMap;

pub(crate) const KIND: SystemKind = SystemKind {
    name: "sled",
    about: "sled 0.34, a log-structured tree",
    ordered: |_| true,
    fixed_capacity: false,
    persistent: true,
    promises: &[Durability::None],
    keeps_values: true,
    value_size_max: 256 << 20,
    variants: &[],
    open,
};

struct Sled {
    db: Db,
    options: BTreeMap<String, String>,
}

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let db = Config::new()
        .path(&options.folder)
        .cache_capacity(options.cache_bytes)
        .flush_every_ms(None)
        .open()?;
    let said = said([
        ("durability", "none: flush_every_ms(None)".to_owned()),
        ("cache", format!("{} bytes", options.cache_bytes)),
        ("compression", "none".to_owned()),
    ]);
    Ok(Box::new(Sled { db, options: said }))
}

impl System for Sled {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(Client { db: self.db.clone() }))
    }

    fn sync(&self) -> Outcome<()> {
        self.db.flush()?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        self.sync()
    }

    fn options(&self) -> BTreeMap<String, String> {
        self.options.clone()
    }
}

struct Client {
    db: Db,
}

impl Session for Client {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        match self.db.get(key)? {
            Some(value) => {
                see(&value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.db.insert(key, value)?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        self.db.remove(key)?;
        Ok(())
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Outcome<u64> {
        let mut seen = 0;
        for item in self.db.range(start..) {
            if seen == count {
                break;
            }
            let (key, value) = item?;
            see(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }
}
