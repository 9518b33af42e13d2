//! What `depot` promises in figures: writers share flushes, and a GET is one device read.
//!
//! Prints ratios of one run: 64 clients beside one client on the same store, device bytes beside
//! user bytes, device reads beside GETs. Run it with `cargo xtask bench depot`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

use clap::Parser;
use esker::{Durability, Options, Store};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use esker_base::rng::Rng;
use esker_base::units::{format_size_bytes, parse_size_bytes};
use esker_trt::{Config, Facility, Runtime};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[derive(Parser)]
struct Arguments {
    /// Folder or raw block device for the store; a raw device is formatted. Default: a scratch
    /// folder beside the build.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Capacity of the store.
    #[arg(long, default_value = "4GiB", value_parser = size)]
    size: u64,
    /// Seconds that each part of the group-commit measurement takes.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds of one client and many, interleaved.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Clients of the many.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Records to load before the GETs.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Number of GETs.
    #[arg(long, default_value_t = 1_000_000)]
    gets: u64,
    /// Cores of the run-time.
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// Facility: uring, aio or sync.
    #[arg(long, default_value = "uring")]
    io: Facility,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).ok_or_else(|| format!("{text} is no size"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all("target")?;
    let scratch = tempfile::tempdir_in("target")?;
    let path = arguments.data.clone().unwrap_or_else(|| scratch.path().join("store"));
    let mut options = Options::new(&path);
    options.size_bytes = arguments.size;
    options.format = true;
    let store = Store::open(&options)?;
    let config =
        Config { cores: arguments.cores, facilities: vec![arguments.io], ..Config::default() };
    let runtime = Arc::new(Runtime::start(config)?);
    println!("{}\n{}", store.report(), runtime.report());
    group_commit(&arguments, &store, &runtime)?;
    store.close()?;
    drop(store);
    options.durability = Durability::None;
    options.index_entries = Some(arguments.records * 2);
    let store = Store::open(&options)?;
    reads_per_get(&arguments, &store, &runtime)?;
    store.close()?;
    runtime.shutdown()?;
    Ok(())
}

/// What some seconds of PUTs gave.
struct Puts {
    per_second: f64,
    log_bytes_per_user_byte: f64,
    prepare_bytes_per_user_byte: f64,
    per_write: f64,
}

/// PUTs of `clients` tasks for some seconds.
fn puts(
    arguments: &Arguments,
    store: &Store,
    runtime: &Runtime,
    clients: usize,
    salt: u64,
) -> Result<Puts, esker::Error> {
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let user_bytes = Arc::new(AtomicU64::new(0));
    let before = store.stats().device;
    let start = SystemClock.monotonic();
    let mut joins = Vec::new();
    for client in 0..clients {
        let (store, stop, done) = (store.clone(), Arc::clone(&stop), Arc::clone(&done));
        let user_bytes = Arc::clone(&user_bytes);
        let value = vec![7; arguments.value_size];
        let core = CoreId(u16::try_from(client % runtime.cores()).unwrap_or(0));
        joins.push(runtime.spawn_on(core, move || -> Result<(), esker::Error> {
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let key = format!("{salt:x}-{client:02}-{n:08}");
                store.put(key.as_bytes(), &value)?;
                user_bytes.fetch_add((key.len() + value.len()) as u64, Ordering::Relaxed);
                done.fetch_add(1, Ordering::Relaxed);
                n += 1;
            }
            Ok(())
        }));
    }
    esker_trt::sleep(Duration::from_secs_f64(arguments.seconds));
    stop.store(true, Ordering::Relaxed);
    for join in joins {
        join.join()??;
    }
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    let device = store.stats().device - before;
    let (written, prepared) = (device.write_bytes as f64, device.prepare_bytes as f64);
    let user = user_bytes.load(Ordering::Relaxed) as f64;
    let count = done.load(Ordering::Relaxed) as f64;
    Ok(Puts {
        per_second: count / seconds,
        log_bytes_per_user_byte: (written - prepared) / user,
        prepare_bytes_per_user_byte: prepared / user,
        per_write: count / device.writes.max(1) as f64,
    })
}

fn group_commit(
    arguments: &Arguments,
    store: &Store,
    runtime: &Runtime,
) -> Result<(), esker::Error> {
    println!("\ngroup commit: PUT of {} bytes, durability sync", arguments.value_size);
    println!(
        "{:>8} {:>12} {:>22} {:>18} {:>14}",
        "clients", "PUT/s", "device/user bytes", "+ first use", "PUTs a write"
    );
    let mut ratios = Vec::new();
    for round in 0..arguments.rounds as u64 {
        let mut rates = [0.0; 2];
        for (rate, clients) in rates.iter_mut().zip([1, arguments.clients]) {
            let puts =
                puts(arguments, store, runtime, clients, round * 2 + u64::from(clients > 1))?;
            println!(
                "{clients:>8} {:>12.0} {:>22.3} {:>18.3} {:>14.1}",
                puts.per_second,
                puts.log_bytes_per_user_byte,
                puts.prepare_bytes_per_user_byte,
                puts.per_write
            );
            *rate = puts.per_second;
        }
        ratios.push(rates[1] / rates[0]);
    }
    ratios.sort_by(f64::total_cmp);
    println!("many beside one: median {:.1} x", ratios[ratios.len() / 2]);
    Ok(())
}

fn reads_per_get(
    arguments: &Arguments,
    store: &Store,
    runtime: &Runtime,
) -> Result<(), esker::Error> {
    const TASKS: u64 = 64;
    let (records, gets) = (arguments.records, arguments.gets);
    let value = vec![3; arguments.value_size];
    let each =
        |count: u64, work: Arc<dyn Fn(u64, u64) -> Result<(), esker::Error> + Send + Sync>| {
            let joins: Vec<_> = (0..TASKS)
                .map(|task| {
                    let core = CoreId(u16::try_from(task % runtime.cores() as u64).unwrap_or(0));
                    let work = Arc::clone(&work);
                    runtime.spawn_on(core, move || {
                        (task..count).step_by(TASKS as usize).try_for_each(|n| work(task, n))
                    })
                })
                .collect();
            joins.into_iter().try_for_each(|join: esker_trt::RemoteJoin<_>| join.join()?)
        };
    let start = SystemClock.monotonic();
    let writer = store.clone();
    each(
        records,
        Arc::new(move |_, n| writer.put(format!("user{n:010}").as_bytes(), &value).map(drop)),
    )?;
    let loaded = SystemClock.monotonic();
    println!(
        "\n{records} records loaded ({} live, {:.0} PUT/s, durability none)",
        format_size_bytes(store.stats().live_bytes),
        records as f64 / (loaded - start).as_secs_f64()
    );
    let before = store.stats().device.reads;
    let (reader, misses) = (store.clone(), Arc::new(AtomicU64::new(0)));
    let missed = Arc::clone(&misses);
    let start = SystemClock.monotonic();
    each(
        gets,
        Arc::new(move |task, n| {
            let record = Rng::from_seed(task << 40 | n).below(records);
            if reader.get(format!("user{record:010}").as_bytes())?.is_none() {
                missed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }),
    )?;
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    let reads = store.stats().device.reads - before;
    println!(
        "{gets} GETs: {:.4} device reads each, {} misses, {:.0} GET/s",
        reads as f64 / gets as f64,
        misses.load(Ordering::Relaxed),
        gets as f64 / seconds
    );
    Ok(())
}
