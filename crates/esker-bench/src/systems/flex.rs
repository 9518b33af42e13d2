//! `flex`: the ordered engine; clients are threads.

use crate::failure::Outcome;
use crate::numbers::real;
use crate::system::{Counters, Durability, OpenOptions, Session, System, SystemKind};
use esker::{Direction, EngineKind, Options, Store};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

pub(super) const KIND: SystemKind = SystemKind {
    name: "flex",
    about: "Esker's ordered store on a flexible address space",
    ordered: |_| true,
    fixed_capacity: false,
    persistent: true,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 4 << 30,
    variants: &[],
    open,
};

/// How much larger than its data the store may become, and the least that it may, in bytes.
const SPARE: u64 = 4;
const SIZE_MIN_BYTES: u64 = 1 << 30;
/// Bytes of a record beside key and value, about.
const RECORD_BYTES: u64 = 32;

struct Flex {
    store: Store,
    options: BTreeMap<String, String>,
}

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let mut with = Options::new(&options.folder);
    with.engine = Some(EngineKind::Flex);
    let data = options.data_bytes + options.records * RECORD_BYTES;
    with.size_bytes = (data * SPARE).max(SIZE_MIN_BYTES).next_multiple_of(4 << 20);
    with.durability = match options.durability {
        Durability::Sync => esker::Durability::Sync,
        Durability::Periodic => esker::Durability::Periodic(Duration::from_secs(1)),
        Durability::None => esker::Durability::None,
    };
    // As for peers with tables of writes: half for them, half for what is read.
    with.flex.memtable_size_bytes = options.cache_bytes / 4;
    with.flex.cache_size_bytes = options.cache_bytes / 2;
    let store = Store::open(&with)?;
    let said = BTreeMap::from([
        ("durability".to_owned(), options.durability.to_string()),
        ("memtable".to_owned(), format!("{} bytes, two", with.flex.memtable_size_bytes)),
        ("interval cache".to_owned(), format!("{} bytes", with.flex.cache_size_bytes)),
        ("medium".to_owned(), store.report()),
    ]);
    Ok(Box::new(Flex { store, options: said }))
}

impl System for Flex {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(Client { store: self.store.clone() }))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(self.store.sync()?)
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Ok(self.store.close()?)
    }

    fn options(&self) -> BTreeMap<String, String> {
        self.options.clone()
    }

    fn counters(&self) -> Counters {
        let stats = self.store.stats();
        let device = stats.device;
        let [_, _, cached] = stats.record_cache;
        Counters::from(
            [
                ("index_bytes", real(stats.index_bytes)),
                ("index_entries", real(stats.index_entries)),
                ("live_bytes", real(stats.live_bytes)),
                ("cached_bytes", real(cached)),
                ("free_segments", real(stats.free_segments)),
                ("device_writes_total", real(device.writes)),
                ("device_reads_total", real(device.reads)),
                ("device_write_bytes_total", real(device.write_bytes)),
                ("device_read_bytes_total", real(device.read_bytes)),
                ("device_flushes_total", real(device.flushes)),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        )
    }
}

struct Client {
    store: Store,
}

impl Session for Client {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        let value = self.store.get(key)?;
        if let Some(value) = &value {
            see(value);
        }
        Ok(value.is_some())
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.store.put(key, value)?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        self.store.delete(key)?;
        Ok(())
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Outcome<u64> {
        let range = (Bound::Included(start), Bound::Unbounded);
        let count = usize::try_from(count)?;
        let seen = self
            .store
            .scan_with(range, Direction::Forward, count, |met| see(met.key, met.value))?;
        Ok(seen as u64)
    }
}
