//! What overwriting does to a store that is nearly full: rate, latency and write amplification.
//!
//! Fills the store to a share of its capacity, then overwrites keys, uniformly or with a zipfian
//! choice, for some turnovers of the data, so that nothing is left that was never written; then once more for the rate that it
//! keeps up, and once more below that. A latency counts from when a put was due; what of it passed in the put itself is printed
//! below. Prints the write amplification beside that of a log that always cleans its oldest segment, which is
//! what a cleaner must beat: of keys that are all alike, the greedy choice has the same bound, as segments of
//! thousands of records differ by their age alone. That is said of `depot`; the other engines are measured alike (`--engine`), also with
//! gets beside (`--readers`). Run it with `cargo xtask bench churn`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

use clap::{Parser, ValueEnum};
use esker::{Durability, EngineKind, Options, Store};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use esker_base::units::{format_size_bytes, parse_size_bytes};
use hdrhistogram::Histogram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Parser)]
struct Arguments {
    /// Folder or raw block device for the store; a raw device is formatted. Default: a scratch
    /// folder beside the build.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Engine of the store.
    #[arg(long, default_value = "depot")]
    engine: EngineKind,
    /// Threads that get keys, all alike, beside those that put.
    #[arg(long, default_value_t = 0)]
    readers: u64,
    /// Capacity of the store.
    #[arg(long, default_value = "1GiB", value_parser = size)]
    size: u64,
    /// Share of the capacity that live records take.
    #[arg(long, default_value_t = 0.8)]
    utilization: f64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1000)]
    value_size: usize,
    /// How keys are chosen.
    #[arg(long, value_enum, default_value_t = Choice::Zipfian)]
    choice: Choice,
    /// Times that as many bytes are written as are live: to settle, at full speed and at a steady rate.
    #[arg(long, default_value_t = 2.0)]
    turnovers: f64,
    /// Share of the full speed at which the steady part runs.
    #[arg(long, default_value_t = 0.6)]
    steady: f64,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// `sync` or `none`.
    #[arg(long, default_value = "none", value_parser = durability)]
    durability: Durability,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    /// All keys alike.
    Uniform,
    /// With exponent 0.99, scattered over the keys (YCSB).
    Zipfian,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).ok_or_else(|| format!("{text} is no size"))
}

fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "sync" => Ok(Durability::Sync),
        "none" => Ok(Durability::None),
        other => Err(format!("{other} is neither sync nor none")),
    }
}

/// Numbers below `n` with the odds of rank to the power of -0.99 (Gray et al., SIGMOD 1994).
struct Zipfian {
    n: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipfian {
    fn new(n: u64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let (n_f, all) = (n as f64, zeta(n));
        let eta = (1.0 - (2.0 / n_f).powf(1.0 - THETA)) / (1.0 - zeta(2) / all);
        Zipfian { n: n_f, zeta: all, alpha: 1.0 / (1.0 - THETA), eta }
    }

    fn next(&self, rng: &mut Rng) -> u64 {
        let u = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        (self.n * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
    }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key
}

struct Phase {
    ops: u64,
    seconds: f64,
    /// From when a put was due.
    latency: Histogram<u64>,
    /// From when it began: what the store itself took.
    served: Histogram<u64>,
    gets: Histogram<u64>,
    device_bytes: u64,
}

/// Overwrites of keys as the arguments say.
fn overwrite(a: &Arguments, store: Option<&Store>, records: u64, ops: u64, rate: f64) -> Phase {
    let zipfian = Zipfian::new(records);
    put(a, store, records, (ops, rate), &|rng, _| match a.choice {
        Choice::Uniform => rng.below(records),
        Choice::Zipfian => zipfian.next(rng).wrapping_mul(0xD6E8_FEB8_6659_FD93) % records,
    })
}

/// Runs `ops` puts, of nothing if there is no store, `rate` a second if that is not 0: `choose` says of which key each one is.
fn put(
    a: &Arguments,
    store: Option<&Store>,
    records: u64,
    (ops, rate): (u64, f64),
    choose: &(dyn Fn(&mut Rng, u64) -> u64 + Sync),
) -> Phase {
    let counters = || store.map(|store| store.stats().device).unwrap_or_default();
    let before = counters();
    let next = AtomicU64::new(0);
    let start = SystemClock.monotonic();
    let [mut latency, mut served, mut gets] = [(); 3].map(|()| Histogram::<u64>::new(3).unwrap());
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..if store.is_some() { a.readers } else { 0 })
            .map(|thread| {
                let next = &next;
                scope.spawn(move || {
                    let mut rng = Rng::from_seed(thread + 177);
                    let mut latency = Histogram::<u64>::new(3).unwrap();
                    while next.load(Ordering::Relaxed) < ops {
                        let start = SystemClock.monotonic();
                        if let Some(store) = store {
                            store.get(&key(rng.below(records))).unwrap();
                        }
                        let took = SystemClock.monotonic().saturating_sub(start);
                        latency.record(took.as_micros() as u64).unwrap();
                    }
                    latency
                })
            })
            .collect();
        let workers: Vec<_> = (0..a.threads)
            .map(|thread| {
                let next = &next;
                scope.spawn(move || {
                    let mut rng = Rng::from_seed(thread + 77);
                    let [mut latency, mut served] =
                        [(); 2].map(|()| Histogram::<u64>::new(3).unwrap());
                    let mut value = vec![0; a.value_size];
                    loop {
                        let turn = next.fetch_add(1, Ordering::Relaxed);
                        if turn >= ops {
                            return (latency, served);
                        }
                        rng.fill(&mut value[..8]);
                        let number = choose(&mut rng, turn);
                        // An open loop: what is late counts as waiting.
                        let mut began = SystemClock.monotonic();
                        let mut due = began;
                        if rate > 0.0 {
                            due = start + Duration::from_secs_f64(turn as f64 / rate);
                            if due > began {
                                esker_trt::sleep(due - began);
                                began = SystemClock.monotonic();
                            }
                        }
                        if let Some(store) = store {
                            store.put(&key(number), &value).unwrap();
                        }
                        let end = SystemClock.monotonic();
                        let took = |since| end.saturating_sub(since).as_micros() as u64;
                        latency.record(took(due)).unwrap();
                        served.record(took(began)).unwrap();
                    }
                })
            })
            .collect();
        for worker in workers {
            let (of_thread, served_by) = worker.join().unwrap();
            latency.add(of_thread).unwrap();
            served.add(served_by).unwrap();
        }
        readers.into_iter().for_each(|reader| gets.add(reader.join().unwrap()).unwrap());
    });
    let device = counters() - before;
    Phase {
        ops,
        seconds: (SystemClock.monotonic() - start).as_secs_f64(),
        latency,
        served,
        gets,
        device_bytes: device.write_bytes - device.prepare_bytes,
    }
}

/// Write amplification of a log that cleans its oldest segment, with uniform overwrites: the live
/// share v of what it cleans solves u = (v - 1) / ln v.
fn oldest_first(utilization: f64) -> f64 {
    let (mut low, mut high) = (1e-9, 1.0 - 1e-9);
    for _ in 0..100 {
        let v: f64 = f64::midpoint(low, high);
        if (v - 1.0) / v.ln() < utilization { low = v } else { high = v }
    }
    1.0 / (1.0 - low)
}

fn print(name: &str, a: &Arguments, phase: &Phase) {
    let user = phase.ops as f64 * (a.value_size + 16) as f64;
    let median = phase.latency.value_at_quantile(0.5).max(1);
    println!(
        "{name:>10}: {:>9.0} puts/s, {}, p99.9 is {:.1} x the median, device bytes per user byte {:.2}",
        phase.ops as f64 / phase.seconds,
        quantiles(&phase.latency),
        phase.latency.value_at_quantile(0.999) as f64 / median as f64,
        phase.device_bytes as f64 / user
    );
    println!("{:>10}  of these in the put: {}", "", quantiles(&phase.served));
    if !phase.gets.is_empty() {
        let rate = phase.gets.len() as f64 / phase.seconds;
        println!("    beside: {rate:>9.0} gets/s, {}", quantiles(&phase.gets));
    }
}

fn quantiles(latency: &Histogram<u64>) -> String {
    let at = |quantile| latency.value_at_quantile(quantile);
    let (p50, p99, p999, p9999) = (at(0.5), at(0.99), at(0.999), at(0.9999));
    format!(
        "p50 {p50} us, p99 {p99} us, p99.9 {p999} us, p99.99 {p9999} us, max {} us",
        latency.max()
    )
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let a = Arguments::parse();
    std::fs::create_dir_all("target")?;
    let scratch = tempfile::tempdir_in("target")?;
    let mut options = Options::new(a.data.clone().unwrap_or_else(|| scratch.path().join("store")));
    options.engine = Some(a.engine);
    options.pmem_emulate = true;
    options.size_bytes = a.size;
    options.format = true;
    options.durability = a.durability;
    let store = Store::open(&options)?;
    println!("{}", store.report());
    let capacity = store.stats().capacity_bytes;
    let record = a.value_size as u64 + 32;
    let records = (capacity as f64 * a.utilization) as u64 / record;
    let fill = put(&a, Some(&store), records, (records, 0.0), &|_, turn| turn);
    print("fill", &a, &fill);
    let stats = store.stats();
    println!(
        "{records} records of {} bytes in {:.1} s: {:.1} % of {}",
        a.value_size,
        fill.seconds,
        100.0 * stats.live_bytes as f64 / capacity as f64,
        format_size_bytes(capacity)
    );
    let ops = (records as f64 * a.turnovers) as u64;
    // What was never written is no capacity that lasts.
    print("settling", &a, &overwrite(&a, Some(&store), records, ops, 0.0));
    let full = overwrite(&a, Some(&store), records, ops, 0.0);
    print("full speed", &a, &full);
    let rate = a.steady * ops as f64 / full.seconds;
    let steady = overwrite(&a, Some(&store), records, ops, rate);
    print("steady", &a, &steady);
    // How late the threads are of themselves.
    print("no store", &a, &overwrite(&a, None, records, ops / 4, rate));
    let share = stats.live_bytes as f64 / capacity as f64;
    let free = store.stats().free_segments as f64 / stats.segments as f64;
    println!(
        "the greedy bound, and that of cleaning the oldest segment, under uniform overwrites: {:.2} with \
         all the space, {:.2} with what is not kept free",
        oldest_first(share),
        oldest_first(share / (1.0 - free)),
    );
    let start = SystemClock.monotonic();
    for number in 0..records {
        if number % 10 != 0 {
            store.delete(&key(number))?;
        }
    }
    let cleaned = store.clean(usize::MAX)?;
    let stats = store.stats();
    println!(
        "deleted nine tenths and cleaned {cleaned} segments in {:.1} s: {} of {} segments free, {} \
         tombstones kept",
        (SystemClock.monotonic() - start).as_secs_f64(),
        stats.free_segments,
        stats.segments,
        stats.tombstones
    );
    store.close()?;
    drop(store);
    let start = SystemClock.monotonic();
    options.format = false;
    let store = Store::open(&options)?;
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    println!("opened again in {seconds:.2} s with {} items", store.stats().items);
    Ok(())
}
