//! The four execution models of FlatStore's Figure 4 over logs on persistent memory: latency against
//! throughput from 1 to 64 clients (Figure 12), fences and lines for each entry, and what a lone writer pays.
//!
//! Batches of 24-byte entries (an 8-byte key and value, and what a log entry needs) with a header of 32 bytes are padded to lines,
//! stored, flushed and fenced once. All models run in turns; rows are medians of the rounds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "measurements fail by panicking"
)]

use clap::{Parser, ValueEnum};
use esker::flat_batching::{Batcher, Batching, BatchingOptions, Logs, Slot};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use esker_base::{Result, Site, SiteKind};
use esker_media::Pmem;
use esker_media::pmem::{PmemCounters, PmemFile, PmemOptions};
use esker_trt::{Config, Runtime, local, sync};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const STORE: Site = Site::new("bench.store", SiteKind::Write);
const FLUSH: Site = Site::new("bench.flush", SiteKind::Flush);
const FENCE: Site = Site::new("bench.fence", SiteKind::Fence);
const LOG_BYTES: u64 = 16 << 20;
const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 24;

#[derive(Parser)]
#[command(
    about = "Batching models of `flat`: latency, throughput, fences and lines for each entry"
)]
struct Arguments {
    /// File that stands for persistent memory; made anew.
    #[arg(long, default_value = "/dev/shm/esker-flat-batching")]
    path: PathBuf,
    /// Cores of the run-time, each with a log.
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    clients: Vec<usize>,
    /// Entries that a client posts together.
    #[arg(long, default_value_t = 1)]
    batch: u64,
    /// Length of a measurement in milliseconds.
    #[arg(long, default_value_t = 100)]
    milliseconds: u64,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Who the clients are.
    #[arg(long, value_delimiter = ',', default_value = "paced,tasks,threads")]
    kind: Vec<Kind>,
    /// Entries that all paced clients together ask for in a second, for each client.
    #[arg(long, default_value_t = 25_000)]
    pace: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Tasks that write at random times, whether earlier entries are done or not.
    Paced,
    /// Tasks that write again at once.
    Tasks,
    /// Threads that write again at once.
    Threads,
}

/// A log for each core, overwritten from its start when it is full.
struct PmemLogs {
    pmem: PmemFile,
    tails: Vec<Mutex<(u64, Vec<u8>)>>,
}

impl Logs for PmemLogs {
    type Entry = (u64, u64);
    type Placed = u64;

    fn size_bytes(&self, _: &(u64, u64)) -> u64 {
        ENTRY_BYTES as u64
    }

    fn append(&self, core: usize, batch: &mut [Slot<(u64, u64), u64>]) -> Result<()> {
        let (tail, bytes) = &mut *self.tails[core].lock();
        let length = (HEADER_BYTES + batch.len() * ENTRY_BYTES).next_multiple_of(64);
        if *tail + length as u64 > LOG_BYTES {
            *tail = 0;
        }
        let offset = core as u64 * LOG_BYTES + *tail;
        bytes.clear();
        bytes.resize(length, 0);
        for (n, slot) in batch.iter_mut().enumerate() {
            let at = HEADER_BYTES + n * ENTRY_BYTES;
            let (key, value) = *slot.entry();
            bytes[at..at + 8].copy_from_slice(&(offset + at as u64).to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&key.to_le_bytes());
            bytes[at + 16..at + 24].copy_from_slice(&value.to_le_bytes());
            slot.place(offset + at as u64);
        }
        let checksum = esker_base::checksum::crc32c(&bytes[HEADER_BYTES..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        bytes[8..16].copy_from_slice(&(batch.len() as u64).to_le_bytes());
        self.pmem.store(STORE, offset, bytes)?;
        self.pmem.flush(FLUSH, offset, length as u64)?;
        self.pmem.fence(FENCE)?;
        *tail += length as u64;
        Ok(())
    }
}

/// Logs that take no time.
struct NoLogs;

impl Logs for NoLogs {
    type Entry = (u64, u64);
    type Placed = u64;

    fn size_bytes(&self, _: &(u64, u64)) -> u64 {
        ENTRY_BYTES as u64
    }

    #[inline(never)]
    fn append(&self, core: usize, batch: &mut [Slot<(u64, u64), u64>]) -> Result<()> {
        batch.iter_mut().for_each(|slot| slot.place(slot.entry().0 + core as u64));
        Ok(())
    }
}

#[derive(Clone, Copy, Default)]
struct Row {
    ops_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    fences: f64,
    lines: f64,
}

fn now_ns() -> u64 {
    u64::try_from(SystemClock.monotonic().as_nanos()).unwrap()
}

struct Setting {
    batcher: Batcher<PmemLogs>,
    logs: PmemLogs,
    histogram: Mutex<Histogram<u64>>,
}

type Shared = Arc<Setting>;

/// Writes one request and notes how long it took since `begun`.
fn request(shared: &Shared, histogram: &mut Histogram<u64>, n: u64, batch: u64, begun: u64) {
    let Setting { batcher, logs, .. } = &**shared;
    if batch == 1 {
        batcher.commit(logs, (n, n)).unwrap();
    } else {
        let posted: Vec<_> = (0..batch).map(|m| batcher.post(logs, (n, m))).collect();
        posted.into_iter().for_each(|posted| assert!(posted.wait().is_ok()));
    }
    histogram.record(now_ns() - begun).unwrap();
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap()
}

fn closed(shared: &Shared, batch: u64, end: u64) {
    let mut histogram = histogram();
    let mut n = 0;
    loop {
        let begun = now_ns();
        if begun >= end {
            break;
        }
        n += 1;
        request(shared, &mut histogram, n, batch, begun);
    }
    shared.histogram.lock().add(histogram).unwrap();
}

/// The clients of one core, each with a time at which its next request is due, and the loop that stands for the polling of
/// message buffers.
fn paced(shared: &Shared, clients: usize, seed: u64, arguments: (u64, u64), end: u64) {
    let (batch, pace) = arguments;
    let mean_ns = 1e9 * batch as f64 / pace as f64;
    let due: Rc<RefCell<Vec<std::collections::VecDeque<u64>>>> =
        Rc::new(RefCell::new(vec![Default::default(); clients]));
    let bells: Vec<Rc<local::Notify>> = (0..clients).map(|_| Rc::default()).collect();
    let over = Rc::new(Cell::new(false));
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (shared, due, over) = (Arc::clone(shared), Rc::clone(&due), Rc::clone(&over));
            let bell = Rc::clone(&bells[client]);
            esker_trt::spawn(move || {
                let (mut histogram, mut n) = (histogram(), 0);
                loop {
                    let next = due.borrow_mut()[client].pop_front();
                    match next {
                        Some(begun) => {
                            n += 1;
                            request(&shared, &mut histogram, n, batch, begun);
                        }
                        None if over.get() => break,
                        None => bell.wait().unwrap(),
                    }
                }
                shared.histogram.lock().add(histogram).unwrap();
            })
        })
        .collect();
    let mut rng = Rng::from_seed(seed);
    let mut draw = || {
        let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let wait = Duration::from_secs_f64(-(1.0 - uniform).ln() * mean_ns / 1e9);
        u64::try_from(wait.as_nanos()).unwrap()
    };
    let mut next: Vec<u64> = (0..clients).map(|_| now_ns() + draw()).collect();
    loop {
        let now = now_ns();
        for client in 0..clients {
            while next[client] <= now.min(end) {
                due.borrow_mut()[client].push_back(next[client]);
                bells[client].notify_one();
                next[client] += draw();
            }
        }
        if now >= end {
            break;
        }
        esker_trt::yield_now();
    }
    // Whoever was due by then is waited for: those whom an overloaded model keeps waiting are its slowest.
    over.set(true);
    bells.iter().for_each(|bell| bell.notify_one());
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

fn measure(arguments: &Arguments, kind: Kind, model: Batching, clients: usize) -> Row {
    let cores = arguments.cores;
    let _ = std::fs::remove_file(&arguments.path);
    let size = Some(LOG_BYTES * cores as u64);
    let options = PmemOptions { create_size_bytes: size, emulate: true, ..PmemOptions::default() };
    let logs = PmemLogs {
        pmem: PmemFile::open(&arguments.path, options).unwrap(),
        tails: (0..cores).map(|_| Mutex::default()).collect(),
    };
    // Not what is measured: the first touch of each page.
    for page in (0..LOG_BYTES * cores as u64).step_by(4096) {
        logs.pmem.store_u64(STORE, page, 1).unwrap();
    }
    let before = logs.pmem.counters();
    let options = BatchingOptions { model, cores, ..BatchingOptions::default() };
    let batcher = Batcher::new(options);
    let shared: Shared = Arc::new(Setting { batcher, logs, histogram: Mutex::new(histogram()) });
    let (batch, pace) = (arguments.batch, arguments.pace);
    let length = arguments.milliseconds * 1_000_000;
    let mut begun = now_ns();
    if kind == Kind::Threads {
        let end = begun + length;
        std::thread::scope(|scope| {
            (0..clients).for_each(|_| drop(scope.spawn(|| closed(&shared, batch, end))));
        });
    } else {
        let runtime = Runtime::start(Config { cores, ..Config::default() }).unwrap();
        let started = Arc::new(sync::Gate::new());
        let tasks: Vec<_> = (0..cores)
            .map(|core| {
                let own = clients / cores + usize::from(core < clients % cores);
                let (shared, started) = (Arc::clone(&shared), Arc::clone(&started));
                let body = move || {
                    started.wait();
                    let end = now_ns() + length;
                    if kind == Kind::Paced {
                        return paced(&shared, own, core as u64 + 1, (batch, pace), end);
                    }
                    let tasks = (0..own).map(|_| {
                        let shared = Arc::clone(&shared);
                        esker_trt::spawn(move || closed(&shared, batch, end))
                    });
                    tasks.collect::<Vec<_>>().into_iter().for_each(|task| task.join().unwrap());
                };
                runtime.spawn_on(esker_base::ids::CoreId(u16::try_from(core).unwrap()), body)
            })
            .collect();
        begun = now_ns();
        started.open();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        runtime.shutdown().unwrap();
    }
    let seconds = (now_ns() - begun) as f64 / 1e9;
    let after = shared.logs.pmem.counters();
    let histogram = shared.histogram.lock();
    row(&histogram, seconds, batch, before, after)
}

fn row(
    histogram: &Histogram<u64>,
    seconds: f64,
    batch: u64,
    before: PmemCounters,
    after: PmemCounters,
) -> Row {
    let entries = (histogram.len() * batch) as f64;
    Row {
        ops_per_second: entries / seconds,
        p50_us: histogram.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: histogram.value_at_quantile(0.99) as f64 / 1e3,
        fences: (after.fences - before.fences) as f64 / entries,
        lines: (after.flushed_lines - before.flushed_lines) as f64 / entries,
    }
}

fn median(rows: &[Row], field: impl Fn(&Row) -> f64) -> f64 {
    let mut values: Vec<f64> = rows.iter().map(field).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What a writer pays that is alone, beside the log itself and two atomic operations.
fn lone() {
    const COUNT: u64 = 2_000_000;
    let batcher = Batcher::new(BatchingOptions::default());
    let word = AtomicU64::new(0);
    let timed = |work: &dyn Fn(u64) -> u64| {
        let mut sum = 0_u64;
        let begun = now_ns();
        for n in 0..COUNT {
            sum = sum.wrapping_add(work(std::hint::black_box(n)));
        }
        std::hint::black_box(sum);
        (now_ns() - begun) as f64 / COUNT as f64
    };
    let atomics = |n: u64| {
        let taken = word.compare_exchange(0, n | 1_u64, Ordering::AcqRel, Ordering::Relaxed);
        word.fetch_and(0, Ordering::AcqRel) + u64::from(taken.is_ok())
    };
    let commit = |n| batcher.commit(&NoLogs, (n, n)).unwrap();
    let post = |n| batcher.post(&NoLogs, (n, n)).wait().unwrap();
    let mut best = [f64::MAX; 3];
    for _ in 0..9 {
        for (best, work) in best.iter_mut().zip([&atomics as &dyn Fn(u64) -> u64, &commit, &post]) {
            *best = best.min(timed(work));
        }
    }
    let [atomics, commit, post] = best;
    println!(
        "a lone writer, with logs that do nothing: {commit:.1} ns a commit, {post:.1} ns if it posts first; two \
         atomic operations alone {atomics:.1} ns"
    );
}

fn main() {
    let arguments = Arguments::parse();
    lone();
    for kind in &arguments.kind {
        println!("\n{kind:?}: {} cores, {} entries a request", arguments.cores, arguments.batch);
        println!(
            "clients  model                    entries/s   p50 us   p99 us  fences/entry  lines/entry"
        );
        for &clients in &arguments.clients {
            let mut rows = vec![Vec::new(); Batching::ALL.len()];
            for _ in 0..arguments.rounds {
                for (model, rows) in Batching::ALL.into_iter().zip(&mut rows) {
                    rows.push(measure(&arguments, *kind, model, clients));
                }
            }
            for (model, rows) in Batching::ALL.into_iter().zip(&rows) {
                println!(
                    "{clients:7}  {:22} {:11.0} {:8.2} {:8.1} {:13.3} {:12.3}",
                    model.name(),
                    median(rows, |row| row.ops_per_second),
                    median(rows, |row| row.p50_us),
                    median(rows, |row| row.p99_us),
                    median(rows, |row| row.fences),
                    median(rows, |row| row.lines),
                );
            }
        }
    }
    let _ = std::fs::remove_file(&arguments.path);
}
