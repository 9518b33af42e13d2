//! `flex` measured by itself: loads, reads, scans and a mix, each with its CPU time, and what it takes on the device and
//! in memory. Against other stores: `esker bench run --config bench/configs/flexdb-sizes.toml`.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    missing_docs,
    reason = "measurements fail by panicking"
)]

use clap::Parser;
use esker::{Direction, Durability, EngineKind, Options, Store};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use hdrhistogram::Histogram;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[derive(Parser)]
#[command(name = "flexdb", about = "Speed and costs of flex")]
struct Arguments {
    /// Where the store is made; it is removed afterwards.
    #[arg(long, default_value = "/dev/shm/flexdb-bench")]
    folder: PathBuf,
    /// Records.
    #[arg(long, default_value_t = 500_000)]
    records: u64,
    /// Bytes of a key.
    #[arg(long, default_value_t = 27)]
    key_size: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 127)]
    value_size: usize,
    /// Memory for tables and intervals in MiB, a half each.
    #[arg(long, default_value_t = 32)]
    cache: u64,
    /// Clients.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Seconds of each phase behind the load.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Phases: load, get, scan of 50, back-scan of 50 in reverse, seek, mix; busy-get: gets beside one client that puts as fast as it can and does not count;
    /// each but the first with zipf- in front; reopen after a crash, or after a stop.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "load,get,zipf-get,scan,zipf-scan,mix,zipf-mix,reopen"
    )]
    phases: Vec<String>,
    /// Every put durable before it returns.
    #[arg(long)]
    sync: bool,
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn key(number: u64, size: usize) -> Vec<u8> {
    format!("{number:0size$}").into_bytes()
}

/// About zipfian: a power of a uniform draw, scattered.
fn draw(rng: &mut Rng, records: u64, zipf: bool) -> u64 {
    if !zipf {
        return rng.below(records);
    }
    let uniform = rng.below(1 << 40) as f64 / (1_u64 << 40) as f64;
    let rank = ((records as f64).powf(uniform) - 1.0) as u64;
    rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % records
}

/// Where `number` comes in an order as if at random, in which each comes once.
fn scattered(number: u64, records: u64) -> u64 {
    let bits = records.next_power_of_two().trailing_zeros().max(2);
    let mask = (1 << bits) - 1;
    let mut place = number;
    loop {
        for _ in 0..3 {
            place = place.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5677) & mask;
            place ^= place >> (bits / 2);
        }
        if place < records {
            return place;
        }
    }
}

/// What a client did.
enum Did {
    Something,
    /// Something that is not measured.
    Beside,
    All,
}

struct Bench {
    arguments: Arguments,
    options: Options,
}

impl Bench {
    /// Runs clients until they are done or the time is over, and prints what came of it.
    fn phase(&self, store: &Store, name: &str, work: impl Fn(&mut Rng, u64) -> Did + Sync) {
        let times = Mutex::new(Histogram::<u64>::new(3).unwrap());
        let (done, beside) = (AtomicU64::new(0), AtomicU64::new(0));
        let ended = AtomicBool::new(false);
        let before = store.stats().device;
        let (start, cpu_start) = (SystemClock.monotonic(), cpu());
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..self.arguments.threads)
                .map(|thread| {
                    let (work, times, ended) = (&work, &times, &ended);
                    let (done, beside) = (&done, &beside);
                    scope.spawn(move || {
                        let mut rng = Rng::from_seed(thread + 1);
                        let mut own = Histogram::<u64>::new(3).unwrap();
                        let (mut count, mut not_measured) = (0, 0);
                        while !ended.load(Ordering::Relaxed) {
                            let start = SystemClock.monotonic();
                            match work(&mut rng, thread) {
                                Did::Something => {}
                                Did::Beside => {
                                    not_measured += 1;
                                    continue;
                                }
                                Did::All => break,
                            }
                            own.record((SystemClock.monotonic() - start).as_nanos() as u64)
                                .unwrap();
                            count += 1;
                        }
                        done.fetch_add(count, Ordering::Relaxed);
                        beside.fetch_add(not_measured, Ordering::Relaxed);
                        times.lock().unwrap().add(own).unwrap();
                    })
                })
                .collect();
            if !name.ends_with("load") {
                esker_trt::sleep(Duration::from_secs_f64(self.arguments.seconds));
                ended.store(true, Ordering::Relaxed);
            }
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
        let seconds = (SystemClock.monotonic() - start).as_secs_f64();
        let done = done.load(Ordering::Relaxed) as f64;
        let beside = match beside.load(Ordering::Relaxed) {
            0 => String::new(),
            beside => format!("  beside {:.0}/s", beside as f64 / seconds),
        };
        let times = times.lock().unwrap();
        let micros = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
        let device = store.stats().device - before;
        println!(
            "{name:10} {:9.0}/s  cpu {:6.2} us/op  p50 {:6.1} p99 {:7.1} p99.9 {:8.1} us worst {:6.1} ms  per op: {:.2} reads {:.0} B, written {:.0} B{beside}",
            done / seconds,
            (cpu() - cpu_start) / done * 1e6,
            micros(0.5),
            micros(0.99),
            micros(0.999),
            micros(1.0) / 1e3,
            device.reads as f64 / done,
            device.read_bytes as f64 / done,
            device.write_bytes as f64 / done,
        );
    }

    fn run(&self) {
        let Arguments { records, key_size, value_size, threads, .. } = self.arguments;
        let mut store = Store::open(&self.options).unwrap();
        let value = vec![7; value_size];
        let next = AtomicU64::new(0);
        for phase in &self.arguments.phases {
            let zipf = phase.starts_with("zipf");
            let put = |number| {
                let _version = store.put(&key(number, key_size), &value).unwrap();
            };
            let get = |number| assert!(store.get(&key(number, key_size)).unwrap().is_some());
            match phase.trim_start_matches("zipf-") {
                "load" => {
                    self.phase(&store, phase, |_, _| {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let is_more = number < records;
                        if is_more {
                            put(scattered(number, records));
                        }
                        if is_more { Did::Something } else { Did::All }
                    });
                    let (start, cpu_start) = (SystemClock.monotonic(), cpu());
                    store.sync().unwrap();
                    let synced = (SystemClock.monotonic() - start).as_secs_f64();
                    println!("synced in {synced:.2} s: {}", store.report());
                    store.check().unwrap();
                    println!(
                        "settled and checked in {:.2} s, cpu {:.2} us/record",
                        (SystemClock.monotonic() - start).as_secs_f64(),
                        (cpu() - cpu_start) / records as f64 * 1e6
                    );
                    let (stats, user) = (store.stats(), records * (key_size + value_size) as u64);
                    println!(
                        "index {:.2} B/record, written {:.2} x user bytes, live {:.2} x",
                        stats.index_bytes as f64 / records as f64,
                        stats.device.write_bytes as f64 / user as f64,
                        stats.live_bytes as f64 / user as f64,
                    );
                }
                "get" => self.phase(&store, phase, |rng, _| {
                    get(draw(rng, records, zipf));
                    Did::Something
                }),
                "busy-get" => self.phase(&store, phase, |rng, thread| {
                    let number = draw(rng, records, zipf);
                    if thread == 0 {
                        put(rng.below(records));
                        return Did::Beside;
                    }
                    get(number);
                    Did::Something
                }),
                what @ ("scan" | "back-scan" | "seek") => self.phase(&store, phase, |rng, _| {
                    let from = key(draw(rng, records, zipf), key_size);
                    let (range, direction) = match what {
                        "back-scan" => {
                            ((Bound::Unbounded, Bound::Included(&*from)), Direction::Reverse)
                        }
                        _ => ((Bound::Included(&*from), Bound::Unbounded), Direction::Forward),
                    };
                    let mut bytes = 0;
                    let visit = |met: esker::Met<'_>| bytes += met.value.len();
                    let most = if what == "seek" { 1 } else { 50 };
                    assert!(store.scan_with(range, direction, most, visit).unwrap() > 0);
                    Did::Something
                }),
                "mix" => self.phase(&store, phase, |rng, _| {
                    let number = draw(rng, records, zipf);
                    if rng.chance(1, 2) {
                        put(number)
                    } else {
                        get(number)
                    }
                    Did::Something
                }),
                what @ ("reopen" | "stop") => {
                    if what == "stop" {
                        store.close().unwrap();
                    }
                    store.forget();
                    let start = SystemClock.monotonic();
                    store = Store::open(&self.options).unwrap();
                    let taken = SystemClock.monotonic() - start;
                    println!("opened in {:.3} s, {threads} clients before", taken.as_secs_f64());
                }
                other => panic!("no phase {other}"),
            }
        }
        store.close().unwrap();
    }
}

fn main() {
    let arguments = Arguments::parse();
    let mut options = Options::new(&arguments.folder);
    options.engine = Some(EngineKind::Flex);
    options.format = false;
    options.durability = if arguments.sync { Durability::Sync } else { Durability::None };
    let data = arguments.records * (arguments.key_size + arguments.value_size + 32) as u64;
    options.size_bytes = (data * 4).max(1 << 30).next_multiple_of(4 << 20);
    options.flex.memtable_size_bytes = (arguments.cache << 20) / 4;
    options.flex.cache_size_bytes = (arguments.cache << 20) / 2;
    let _ = std::fs::remove_dir_all(&arguments.folder);
    let bench = Bench { arguments, options };
    bench.run();
    std::fs::remove_dir_all(&bench.arguments.folder).unwrap();
}
