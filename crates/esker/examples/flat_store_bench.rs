//! `flat` measured: what a PUT costs in cache lines and fences, operations a second, and the time to open after a crash
//! and after a clean stop. `cargo xtask bench flat`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "measurements fail by panicking"
)]

use clap::Parser;
use esker::{Batch, Batching, Direction, EngineKind, Options, Store};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use esker_trt::{Config, Runtime};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Parser)]
#[command(name = "flat", about = "Costs and speed of flat")]
struct Arguments {
    /// Where the store is made: emulated unless it is persistent memory.
    #[arg(long, default_value = "/dev/shm")]
    folder: PathBuf,
    /// Records.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 48)]
    value_size: usize,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Engines.
    #[arg(long, value_delimiter = ',', default_value = "flat:cceh,flat:masstree")]
    engines: Vec<EngineKind>,
    /// Keys that are put in their order, rather than far apart.
    #[arg(long)]
    sequential: bool,
    /// Leave out what a PUT costs.
    #[arg(long)]
    no_costs: bool,
}

/// Scans of each thread.
const SCANS: u64 = 200_000;

/// A key of 8 bytes: neighbours are far apart.
fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = SystemClock.monotonic();
    work();
    (SystemClock.monotonic() - start).as_secs_f64()
}

/// Runs `work` with its number on each thread; returns millions of operations a second.
fn rate(threads: u64, operations: u64, work: impl Fn(u64) + Sync) -> f64 {
    let taken = seconds(|| {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let work = &work;
                scope.spawn(move || work(thread));
            }
        });
    });
    operations as f64 / taken / 1e6
}

fn cost(options: &Options, value_size: usize, together: u64) {
    const PUTS: u64 = 100_000;
    let options = Options { format: true, ..options.clone() };
    let store = Store::open(&options).unwrap();
    let value = vec![7; value_size];
    let before = store.stats().memory;
    for first in (0..PUTS).step_by(together as usize) {
        if together == 1 {
            store.put(&key(first), &value).unwrap();
            continue;
        }
        let mut batch = Batch::new();
        (first..first + together).for_each(|number| {
            batch.put(&key(number), &value);
        });
        store.write(&batch).unwrap();
    }
    let after = store.stats().memory;
    println!(
        "values of {value_size} B, {together} in a batch: {:.3} fences, {:.3} lines for each PUT",
        (after.fences - before.fences) as f64 / PUTS as f64,
        (after.flushed_lines - before.flushed_lines) as f64 / PUTS as f64,
    );
}

/// The same with so many tasks that each put one value after another, over `cores` cores of a run-time. They begin once all are there,
/// so that as many are in flight from the first put on.
fn cost_in_flight(options: &Options, model: Batching, value_size: usize, cores: usize, tasks: u64) {
    const PUTS: u64 = 100_000;
    let options = Options { format: true, batching: model, ..options.clone() };
    let store = Store::open(&options).unwrap();
    let runtime = Runtime::start(Config { cores, ..Config::default() }).unwrap();
    let share = PUTS / tasks;
    let arrived = Arc::new(AtomicU64::new(0));
    let before = store.stats().memory;
    let taken = seconds(|| {
        let writers: Vec<_> = (0..tasks)
            .map(|task| {
                let (store, arrived) = (store.clone(), Arc::clone(&arrived));
                runtime.spawn(move || {
                    let value = vec![7; value_size];
                    arrived.fetch_add(1, Ordering::SeqCst);
                    while arrived.load(Ordering::SeqCst) < tasks {
                        esker_trt::yield_now();
                    }
                    for number in task * share..(task + 1) * share {
                        store.put(&key(number), &value).unwrap();
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    runtime.shutdown().unwrap();
    let after = store.stats().memory;
    let puts = (share * tasks) as f64;
    println!(
        "{value_size:5} {cores:5} {tasks:9}  {:22} {:7.3} {:7.3} {:7.3} {:8.2}",
        model.name(),
        (after.fences - before.fences) as f64 / puts,
        (after.flushed_lines - before.flushed_lines) as f64 / puts,
        (after.media_blocks - before.media_blocks) as f64 / puts,
        puts / taken / 1e6,
    );
}

fn costs_in_flight(options: &Options) {
    println!("value cores in flight  model                   fences   lines  blocks  M puts/s");
    for value_size in [8, 64] {
        for (cores, tasks) in [(1, 1), (1, 8), (2, 16), (2, 64)] {
            for model in Batching::ALL {
                cost_in_flight(options, model, value_size, cores, tasks);
            }
        }
    }
}

fn main() {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir_in(&arguments.folder).unwrap();
    for engine in arguments.engines.iter().copied() {
        let mut options = Options::new(folder.path().join(engine.name().replace(':', "-")));
        options.engine = Some(engine);
        options.pmem_emulate = true;
        let record = (arguments.value_size as u64 + 90).next_multiple_of(64);
        options.size_bytes = (arguments.records * record * 3 / 2).max(64 << 20);
        options.size_bytes = options.size_bytes.next_multiple_of(4 << 20);
        println!("== {engine}");
        if engine == EngineKind::FlatCceh && !arguments.no_costs {
            for value_size in [8, 64] {
                [1, 8, 16].into_iter().for_each(|together| cost(&options, value_size, together));
            }
            costs_in_flight(&options);
        }
        run(&arguments, &options);
    }
}

fn run(arguments: &Arguments, options: &Options) {
    let Arguments { records, threads, value_size, sequential, .. } = *arguments;
    let key = |number: u64| if sequential { number.to_be_bytes() } else { key(number) };
    let store = Store::open(&Options { format: true, ..options.clone() }).unwrap();
    println!("{}", store.report());
    let value = vec![7; value_size];
    let share = records / threads;
    let load = rate(threads, share * threads, |thread| {
        (thread * share..(thread + 1) * share).for_each(|number| {
            store.put(&key(number), &value).unwrap();
        });
    });
    let scan_rate = |store: &Store| {
        store.is_ordered().then(|| {
            rate(threads, SCANS * threads, |thread| {
                let mut rng = Rng::from_seed(thread + 200);
                (0..SCANS).for_each(|_| {
                    let from = key(rng.below(share * threads));
                    let range = (Bound::Included(&from[..]), Bound::Unbounded);
                    let mut bytes = 0;
                    let count = store
                        .scan_with(range, Direction::Forward, 50, |met| bytes += met.value.len())
                        .unwrap();
                    assert_eq!(bytes, count * value_size);
                });
            })
        })
    };
    let scan_loaded = scan_rate(&store);
    let (once, store) = crash(store, options);
    let alone = share.min(2_000_000);
    let put = rate(1, alone, |_| {
        let mut rng = Rng::from_seed(77);
        (0..alone).for_each(|_| {
            store.put(&key(rng.below(share * threads)), &value).unwrap();
        });
    });
    let (put, access) = (1000.0 / put, random_access());
    println!(
        "a PUT on one thread, without growth: {put:.0} ns, {:.2} random accesses of {access:.0} ns (goal 4)",
        put / access
    );
    let overwrite = rate(threads, share * threads, |thread| {
        let mut rng = Rng::from_seed(thread);
        (0..share).for_each(|_| {
            store.put(&key(rng.below(share * threads)), &value).unwrap();
        });
    });
    let get = rate(threads, share * threads, |thread| {
        let mut rng = Rng::from_seed(thread + 100);
        (0..share).for_each(|_| {
            assert!(store.get(&key(rng.below(share * threads))).unwrap().is_some());
        });
    });
    if let (Some(loaded), Some(overwritten)) = (scan_loaded, scan_rate(&store)) {
        println!(
            "scans of 50: {loaded:.3} million a second as loaded, {overwritten:.3} overwritten"
        );
    }
    println!("load {load:.2}, overwrite {overwrite:.2}, get {get:.2} million a second");
    store.close().unwrap();
    drop(store);
    let mut store = None;
    let clean = seconds(|| store = Some(Store::open(options).unwrap()));
    let items = store.as_ref().map_or(0, |store| store.stats().items);
    assert_eq!(items, share * threads, "everything is found");
    let (twice, _) = crash(store.take().unwrap(), options);
    println!(
        "{items} records: open after a clean stop {clean:.3} s; after a crash {once:.3} s with each \
         written once, {twice:.3} s with twice as many entries"
    );
}

/// Opens the store without the image of its last stop; gives how long that takes, too.
fn crash(store: Store, options: &Options) -> (f64, Store) {
    store.put(b"once more", b"1").unwrap();
    // Not closed, as after a crash: its locks end with it.
    store.forget();
    let mut store = None;
    let taken = seconds(|| store = Some(Store::open(options).unwrap()));
    let store = store.unwrap();
    assert!(store.delete(b"once more").unwrap());
    (taken, store)
}

/// Nanoseconds of a random access to 512 MiB, each after the one before.
fn random_access() -> f64 {
    const PLACES: u64 = 64 << 20;
    const STEPS: u64 = 5_000_000;
    let mut rng = Rng::from_seed(1);
    // One cycle through all places, in random order (Sattolo).
    let mut next: Vec<u64> = (0..PLACES).collect();
    (1..PLACES).rev().for_each(|place| next.swap(place as usize, rng.below(place) as usize));
    let mut place = 0;
    let taken = seconds(|| (0..STEPS).for_each(|_| place = next[place as usize]));
    assert!(place < PLACES);
    taken * 1e9 / STEPS as f64
}
