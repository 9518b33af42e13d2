//! `depot`: clients are threads, or with a variant (`depot:uring`, `depot:aio`, `depot:trt-sync`) tasks of the
//! run-time, as many on each core as the depth says (uDepot §5.2).

use super::opened::{Opened, durability};
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::numbers::{real, whole};
use crate::system::{Durability, OpenOptions, System, SystemKind};
use crate::workload::shape::KeyShape;
use esker::{Options, Store};
use esker_trt::{Config, Facility, Runtime};
use std::sync::Arc;

pub(super) const KIND: SystemKind = SystemKind {
    name: "depot",
    about: "Esker's log-structured store with a hash index",
    ordered: |_| false,
    fixed_capacity: true,
    persistent: true,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 4 << 30,
    variants: &["uring", "aio", "trt-sync"],
    open,
};

/// Bytes of keys and values that are written to learn what a record takes: segments of a small store, nearly all of them full, as what
/// is in an open one is told less closely.
const PROBE_BYTES: u64 = 16 << 20;
/// Bytes of a record beside key and value, near enough for a store that is much larger than its data.
const RECORD_BYTES: f64 = 32.0;
/// Smallest store that is made, in bytes.
const SIZE_MIN_BYTES: u64 = 64 << 20;
/// How much larger a store is than its data if nothing else is said, as for peers, which have the whole
/// disk: cleaning is measured by `--utilization`.
const SPARE: f64 = 4.0;

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let mut store = Options::new(&options.folder);
    let live = match options.utilization {
        Some(_) => real(options.records) * record_bytes(options)?,
        None => real(options.data_bytes) + real(options.records) * RECORD_BYTES,
    };
    store.size_bytes = match options.utilization {
        Some(utilization) => whole(live / utilization.clamp(0.01, 0.99)),
        None => whole(live * SPARE).max(SIZE_MIN_BYTES),
    };
    store.size_bytes = store.size_bytes.next_multiple_of(1 << 20);
    store.durability = durability(options.durability);
    store.record_cache_bytes = options.cache_bytes;
    let runtime = match options.variant.as_deref() {
        None => None,
        Some(variant) => {
            let facility: Facility = variant.trim_start_matches("trt-").parse()?;
            let config =
                Config { cores: options.threads, facilities: vec![facility], ..Config::default() };
            let runtime = Runtime::start(config)?;
            if runtime.facility() != facility {
                return Err(Failure::new(format!("{facility} does not work here")));
            }
            Some(Arc::new(runtime))
        }
    };
    let (store, size_bytes) = open_filled(options, store, live)?;
    let said = [
        ("durability", options.durability.to_string()),
        ("size_bytes", size_bytes.to_string()),
        ("value cache", format!("{} bytes of records in DRAM", options.cache_bytes)),
    ];
    Ok(Opened::new(store, runtime, said))
}

/// Bytes that a record of this experiment takes, as the store itself counts live bytes.
fn record_bytes(options: &OpenOptions) -> Outcome<f64> {
    let folder = options.folder.with_extension("probe");
    files::remove_folder(&folder)?;
    let (key, value) = options.record_size_bytes;
    let records = (PROBE_BYTES / (key + value).max(1)).max(8);
    let mut with = Options::new(&folder);
    with.size_bytes = SIZE_MIN_BYTES + 2 * records * (key + value);
    with.durability = esker::Durability::None;
    let store = Store::open(&with)?;
    let (mut name, value) = (Vec::new(), vec![7; usize::try_from(value)?]);
    for number in 0..records {
        KeyShape::Fixed(usize::try_from(key)?).write(number, &mut name);
        store.put(&name, &value)?;
    }
    store.sync()?;
    let bytes = real(store.stats().live_bytes) / real(records);
    store.close()?;
    drop(store);
    files::remove_folder(&folder)?;
    Ok(bytes)
}

/// Opens the store. If its capacity is to be so large that `live` bytes fill a share of it, and there is nothing in
/// it yet, it is made anew until that is so: superblock and checkpoints take room of their own.
fn open_filled(options: &OpenOptions, mut with: Options, live: f64) -> Outcome<(Store, u64)> {
    const TRIES: usize = 4;
    /// How far the share may be off.
    const NEAR: f64 = 0.01;
    for _ in 0..TRIES {
        let store = Store::open(&with)?;
        let stats = store.stats();
        let wanted = match options.utilization {
            Some(utilization) if stats.items == 0 && stats.last_version.0 == 0 => {
                live / utilization
            }
            _ => return Ok((store, with.size_bytes)),
        };
        let off = wanted - real(stats.capacity_bytes);
        if off.abs() <= wanted * NEAR {
            return Ok((store, with.size_bytes));
        }
        store.close()?;
        drop(store);
        files::remove_folder(&options.folder)?;
        files::create_folder(&options.folder)?;
        with.size_bytes = whole((real(with.size_bytes) + off).max(0.0)).next_multiple_of(1 << 20);
    }
    Ok((Store::open(&with)?, with.size_bytes))
}
