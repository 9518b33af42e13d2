//! What a GET costs beside a raw read of the same device by the same facility (uDepot §5.2).
//!
//! Prints, for each facility and queue depth on one core, raw random reads of 4 KiB, raw random reads of as
//! many bytes as a GET reads, and random GETs, each the median of interleaved rounds, and the ratios; then what an ordinary thread
//! gets that asks for 64 keys at once. Run it with `cargo xtask bench gets`.
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
use esker_base::{Site, SiteKind};
use esker_media::{BlockDevice, BufferPool, FileDevice, OpenOptions};
use esker_trt::{Config, Facility, Runtime};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const RAW_READ: Site = Site::new("bench.raw.read", SiteKind::Read);
/// Bytes of a raw read.
const RAW_SIZE: u64 = 4096;

#[derive(Parser)]
struct Arguments {
    /// Folder or raw block device for the store; a raw device is formatted. Default: a scratch
    /// folder beside the build.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Capacity of the store.
    #[arg(long, default_value = "4GiB", value_parser = size)]
    size: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    value_size: usize,
    /// Records to load.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Interleaved rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Queue depths.
    #[arg(long, value_delimiter = ',', default_value = "1,32,128")]
    depths: Vec<usize>,
    /// Facilities.
    #[arg(long, value_delimiter = ',', default_value = "uring,aio")]
    io: Vec<Facility>,
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
    options.durability = Durability::None;
    let store = Store::open(&options)?;
    println!("{}", store.report());
    load(&arguments, &store)?;
    let live = format_size_bytes(store.stats().live_bytes);
    println!("{} records of {} bytes, {live} live", arguments.records, arguments.value_size);
    // One has the device at a time.
    store.close()?;
    drop(store);
    println!(
        "{:>6} {:>6} {:>11} {:>12} {:>9} {:>9} {:>10} {:>8} {:>8} {:>12}",
        "io",
        "depth",
        "4 KiB/s",
        "same bytes/s",
        "GETs/s",
        "of 4 KiB",
        "of same",
        "raw us",
        "GET us",
        "bytes a GET"
    );
    for facility in &arguments.io {
        let config = Config { cores: 1, facilities: vec![*facility], ..Config::default() };
        let runtime = Runtime::start(config)?;
        for depth in &arguments.depths {
            measure(&arguments, &path, &runtime, *facility, *depth)?;
        }
        runtime.shutdown()?;
    }
    thread(&arguments, &path)
}

/// GETs of a thread that is no task: one after the other, and by calls for several keys.
fn thread(arguments: &Arguments, path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    const KEYS: usize = 64;
    let mut options = Options::new(path);
    options.create = false;
    let store = Store::open(&options)?;
    let mut rng = Rng::from_seed(1);
    let mut rate = |work: &dyn Fn(&[&[u8]])| {
        let (start, mut done) = (SystemClock.monotonic(), 0);
        loop {
            let keys: Vec<_> =
                (0..KEYS).map(|_| KeyText::of(rng.below(arguments.records))).collect();
            work(&keys.iter().map(|key| &**key).collect::<Vec<_>>());
            done += KEYS;
            let time = (SystemClock.monotonic() - start).as_secs_f64();
            if time > arguments.seconds {
                return done as f64 / time;
            }
        }
    };
    let (mut single, mut several) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        single.push(rate(&|keys| keys.iter().for_each(|key| drop(store.get(key).unwrap()))));
        several.push(rate(&|keys| {
            assert!(store.multi_get(keys).unwrap().iter().all(Option::is_some))
        }));
    }
    let [single, several] = [single, several].map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!(
        "a thread: {single:.0} GETs/s one by one, {several:.0} GETs/s by {KEYS} keys a call: {:.2} times as many",
        several / single
    );
    store.close()?;
    Ok(())
}

fn load(arguments: &Arguments, store: &Store) -> Result<(), esker::Error> {
    let value = vec![3; arguments.value_size];
    std::thread::scope(|scope| {
        let loaders: Vec<_> = (0..2)
            .map(|thread| {
                let value = &value;
                scope.spawn(move || {
                    (thread..arguments.records)
                        .step_by(2)
                        .try_for_each(|n| store.put(&KeyText::of(n), value).map(drop))
                })
            })
            .collect();
        loaders.into_iter().try_for_each(|loader| loader.join().unwrap())
    })
}

/// `user` and ten digits. Made without memory or formatting, which are no part of a GET.
struct KeyText([u8; 14]);

impl KeyText {
    fn of(mut number: u64) -> KeyText {
        let mut text = *b"user0000000000";
        for digit in text[4..].iter_mut().rev() {
            *digit += (number % 10) as u8;
            number /= 10;
        }
        KeyText(text)
    }
}

impl std::ops::Deref for KeyText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// What tasks do over and over.
type Work = Arc<dyn Fn(&mut Rng) -> Result<(), esker::Error> + Send + Sync>;

/// Runs `work` in `depth` tasks for some time; returns how often it ran a second.
fn rate(
    runtime: &Runtime,
    depth: usize,
    seconds: f64,
    work: &Work,
) -> Result<f64, Box<dyn std::error::Error>> {
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let start = SystemClock.monotonic();
    let joins: Vec<_> = (0..depth)
        .map(|task| {
            let (stop, done, work) = (Arc::clone(&stop), Arc::clone(&done), Arc::clone(work));
            runtime.spawn_on(CoreId(0), move || -> Result<(), esker::Error> {
                let mut rng = Rng::from_seed(task as u64);
                while !stop.load(Ordering::Relaxed) {
                    work(&mut rng)?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        })
        .collect();
    esker_trt::sleep(Duration::from_secs_f64(seconds));
    stop.store(true, Ordering::Relaxed);
    for join in joins {
        join.join()??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / (SystemClock.monotonic() - start).as_secs_f64())
}

fn measure(
    arguments: &Arguments,
    path: &std::path::Path,
    runtime: &Runtime,
    facility: Facility,
    depth: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut options = Options::new(path);
    options.create = false;
    options.durability = Durability::None;
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    let mut bytes_per_get = RAW_SIZE as f64;
    for _ in 0..arguments.rounds {
        let store = Store::open(&options)?;
        let before = store.stats().device;
        let (reader, records) = (store.clone(), arguments.records);
        let get: Work = Arc::new(move |rng| {
            let found = reader.get(&KeyText::of(rng.below(records)))?;
            assert!(found.is_some(), "everything was loaded");
            Ok(())
        });
        rates[2].push(rate(runtime, depth, arguments.seconds, &get)?);
        let device = store.stats().device - before;
        bytes_per_get = device.read_bytes as f64 / device.reads.max(1) as f64;
        drop(get);
        store.close()?;
        drop(store);
        let file = esker_media::folder::locate(path, "depot.esker", false)?.path;
        let device = Arc::new(FileDevice::open(&file, OpenOptions::default())?);
        let block = u64::from(device.geometry().block_size_bytes);
        for (rates, bytes) in rates.iter_mut().zip([RAW_SIZE as f64, bytes_per_get]) {
            // So many whole blocks, and one more as often as gives the same bytes.
            let blocks = (bytes / block as f64) as u64;
            let more = ((bytes / block as f64).fract() * 1e6) as u64;
            let places = (arguments.records * arguments.value_size as u64 / RAW_SIZE).max(1);
            let (pool, raw) = (BufferPool::default(), Arc::clone(&device));
            let read: Work = Arc::new(move |rng| {
                let size = (blocks + u64::from(rng.below(1_000_000) < more)) * block;
                let mut buffer = pool.get(size as usize);
                let offset = (1 << 20) + rng.below(places) * RAW_SIZE;
                raw.read_at(RAW_READ, offset, &mut buffer)
            });
            rates.push(rate(runtime, depth, arguments.seconds, &read)?);
        }
    }
    let [raw, same, get] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    let latency = |rate: f64| depth as f64 / rate * 1e6;
    println!(
        "{:>6} {depth:>6} {raw:>11.0} {same:>12.0} {get:>9.0} {:>9.3} {:>10.3} {:>8.1} {:>8.1} {bytes_per_get:>12.0}",
        format!("{facility:?}").to_lowercase(),
        get / raw,
        get / same,
        latency(same),
        latency(get)
    );
    Ok(())
}
