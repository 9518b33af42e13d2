//! `depot`: clients are threads, or with a variant (`depot:uring`, `depot:aio`, `depot:trt-sync`) tasks of the
//! run-time, as many on each core as the depth says (uDepot §5.2).

use crate::failure::{Failure, Outcome};
use crate::numbers::{real, whole};
use crate::system::{Counters, Durability, OpenOptions, Session, System, SystemKind};
use esker::{Options, Store};
use esker_trt::{Config, Facility, Runtime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) const KIND: SystemKind = SystemKind {
    name: "depot",
    about: "Esker's log-structured store with a hash index",
    ordered: false,
    fixed_capacity: true,
    persistent: true,
    keeps_values: true,
    value_size_max: 4 << 30,
    variants: &["uring", "aio", "trt-sync"],
    open,
};

/// Bytes of a record beside key and value, and what it is rounded up to (docs/format/depot.md).
const RECORD_HEADER_BYTES: u64 = 12;
const GRAIN_BYTES: u64 = 8;
/// Smallest store that is made, in bytes.
const SIZE_MIN_BYTES: u64 = 64 << 20;
/// How much larger a store is than its data if nothing else is said, as for peers, which have the whole
/// disk: cleaning is measured by `--utilization`.
const SPARE: f64 = 4.0;

struct Depot {
    store: Store,
    runtime: Option<Arc<Runtime>>,
    options: BTreeMap<String, String>,
}

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let mut store = Options::new(&options.folder);
    let (key, value) = options.record_size_bytes;
    let record = (RECORD_HEADER_BYTES + key + value).next_multiple_of(GRAIN_BYTES);
    let live = real(options.records * record);
    let size = match options.utilization {
        Some(utilization) => whole(live / utilization.clamp(0.01, 0.99)),
        None => whole(live * SPARE),
    };
    store.size_bytes = size.max(if options.utilization.is_some() { 0 } else { SIZE_MIN_BYTES });
    store.size_bytes = store.size_bytes.next_multiple_of(1 << 20);
    store.durability = match options.durability {
        Durability::Sync => esker::Durability::Sync,
        Durability::Periodic => esker::Durability::Periodic(Duration::from_secs(1)),
        Durability::None => esker::Durability::None,
    };
    let runtime = match options.variant.as_deref() {
        None => None,
        Some(variant) => {
            let facility: Facility = variant.trim_start_matches("trt-").parse()?;
            let config = Config {
                cores: options.threads,
                facilities: vec![facility],
                ..Config::default()
            };
            let runtime = Runtime::start(config)?;
            if runtime.facility() != facility {
                return Err(Failure::new(format!("{facility} does not work here")));
            }
            Some(Arc::new(runtime))
        }
    };
    let size_bytes = store.size_bytes;
    let store = Store::open(&store)?;
    let mut said = BTreeMap::from([
        ("durability".to_owned(), options.durability.to_string()),
        ("size_bytes".to_owned(), size_bytes.to_string()),
        ("medium".to_owned(), store.report()),
        ("value cache".to_owned(), "none: the cache bytes are not used".to_owned()),
    ]);
    if let Some(runtime) = &runtime {
        said.insert("run-time".to_owned(), runtime.report());
    }
    Ok(Box::new(Depot { store, runtime, options: said }))
}

impl System for Depot {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(Client { store: self.store.clone() }))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(self.store.sync()?)
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        self.store.close()?;
        match &self.runtime {
            Some(runtime) => Ok(runtime.shutdown()?),
            None => Ok(()),
        }
    }

    fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.clone()
    }

    fn options(&self) -> BTreeMap<String, String> {
        self.options.clone()
    }

    fn counters(&self) -> Counters {
        let stats = self.store.stats();
        let device = stats.device;
        Counters::from(
            [
                ("utilization", real(stats.live_bytes) / real(stats.capacity_bytes.max(1))),
                ("index_bytes", real(stats.index_bytes)),
                ("index_entries", real(stats.index_entries)),
                ("free_segments", real(stats.free_segments)),
                ("device_writes_total", real(device.writes)),
                ("device_reads_total", real(device.reads)),
                ("device_write_bytes_total", real(device.write_bytes)),
                ("device_read_bytes_total", real(device.read_bytes)),
                ("device_prepare_bytes_total", real(device.prepare_bytes)),
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
        match self.store.get(key)? {
            Some(value) => {
                see(&value);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.store.put(key, value)?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        self.store.delete(key)?;
        Ok(())
    }

    fn scan(&mut self, _: &[u8], _: u64, _: &mut dyn FnMut(&[u8], &[u8])) -> Outcome<u64> {
        Err(Failure::new("depot keeps no order"))
    }
}
