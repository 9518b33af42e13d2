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
    let store = match options.utilization {
        // One that is there keeps its size, and its open is timed: nothing is to be tried in front of it.
        _ if !files::is_empty_folder(&options.folder) => Store::open(&store)?,
        Some(utilization) => make_to_fill(options, store, utilization)?,
        None => {
            let live = real(options.data_bytes) + real(options.records) * RECORD_BYTES;
            store.size_bytes = size_bytes(live * SPARE).max(SIZE_MIN_BYTES);
            Store::open(&store)?
        }
    };
    let said = [
        ("durability", options.durability.to_string()),
        ("capacity_bytes", store.stats().capacity_bytes.to_string()),
        ("value cache", format!("{} bytes of records in DRAM", options.cache_bytes)),
    ];
    Ok(Opened::new(store, runtime, said))
}

/// A size that stores may have.
fn size_bytes(wanted: f64) -> u64 {
    whole(wanted).next_multiple_of(1 << 20)
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

/// Makes the store so large that the records fill `utilization` of it. It is made anew until that is so: superblock and checkpoints
/// take room of their own.
fn make_to_fill(options: &OpenOptions, mut with: Options, utilization: f64) -> Outcome<Store> {
    const TRIES: usize = 4;
    /// How far the share may be off.
    const NEAR: f64 = 0.01;
    let utilization = utilization.clamp(0.01, 0.99);
    let wanted = real(options.records) * record_bytes(options)? / utilization;
    with.size_bytes = size_bytes(wanted);
    for _ in 0..TRIES {
        let store = Store::open(&with)?;
        let off = wanted - real(store.stats().capacity_bytes);
        if off.abs() <= wanted * NEAR {
            return Ok(store);
        }
        store.close()?;
        drop(store);
        files::remove_folder(&options.folder)?;
        files::create_folder(&options.folder)?;
        with.size_bytes = size_bytes(real(with.size_bytes) + off);
    }
    Ok(Store::open(&with)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who opens a store that is there is timed: a probe is for those who make one.
    #[test]
    fn a_store_that_is_there_is_opened_without_a_probe() {
        let folder = tempfile::tempdir().unwrap();
        let options = OpenOptions {
            folder: folder.path().join("cell"),
            durability: Durability::None,
            cache_bytes: 1 << 20,
            records: 1000,
            data_bytes: 1 << 20,
            utilization: Some(0.5),
            record_size_bytes: (16, 1000),
            threads: 1,
            depth: 1,
            direct: false,
            variant: None,
        };
        files::create_folder(&options.folder).unwrap();
        let system = open(&options).unwrap();
        let made = system.options();
        system.close().unwrap();
        // A probe would take its place.
        let probe = options.folder.with_extension("probe");
        files::create_folder(&probe).unwrap();
        let system = open(&options).unwrap();
        assert!(probe.exists());
        assert_eq!(system.options(), made);
        system.close().unwrap();
    }
}
