//! Measures TRT: costs of switching and waking, and random reads beside `fio`.
//!
//! ```text
//! trt_bench costs
//! trt_bench read PATH FACILITY DEPTH SECONDS
//! trt_bench fio SECONDS ROUNDS PATH...
//! ```
//!
//! `read` reads random 4 KiB blocks with `O_DIRECT`, one task for each request in flight, on one
//! pinned core. `fio` does the same and runs fio with the same facility, depth, block size and
//! processor in turns with it, and prints medians and ratios. Both sides take the time of every
//! request; fio's AIO engine reaps completions in user space, as TRT does.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use esker_base::rng::Rng;
use esker_trt::sync::{Gate, promise};
use esker_trt::{Config, Facility, Runtime, io, local, sleep, spawn, yield_now};
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

const BLOCK: usize = 4096;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["costs"] => costs(),
        ["read", path, facility, depth, seconds] => {
            let facility: Facility = facility.parse()?;
            let load = Load { path: (*path).to_owned(), facility, depth: depth.parse()? };
            let result = load.run_trt(Duration::from_secs_f64(seconds.parse()?))?;
            println!("{result:?}");
            Ok(())
        }
        ["fio", seconds, rounds, paths @ ..] if !paths.is_empty() => {
            beside_fio(Duration::from_secs_f64(seconds.parse()?), rounds.parse()?, paths)
        }
        _ => Err("costs | read PATH FACILITY DEPTH SECONDS | fio SECONDS ROUNDS PATH...".into()),
    }
}

fn per_turn(start: Duration, turns: u32) -> f64 {
    ns(SystemClock.monotonic() - start) / f64::from(turns)
}

#[expect(clippy::cast_precision_loss, reason = "times of measurements are far below 2^52 ns")]
fn ns(time: Duration) -> f64 {
    time.as_nanos() as f64
}

/// The median of several measurements, which it sorts.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn median_of(runs: usize, mut measure: impl FnMut() -> Outcome<f64>) -> Outcome<f64> {
    let mut values = (0..runs).map(|_| measure()).collect::<Outcome<Vec<f64>>>()?;
    Ok(median(&mut values))
}

fn costs() -> Outcome<()> {
    const RUNS: usize = 7;
    for facility in Facility::ALL {
        let config =
            Config { cores: 2, pin: true, facilities: vec![facility], ..Config::default() };
        let runtime = Runtime::start(config)?;
        println!("{}", runtime.report());
        let on_core = |measure: fn() -> f64| -> Outcome<f64> {
            median_of(RUNS, || Ok(runtime.spawn_on(CoreId(0), measure).join()?))
        };
        println!("  task switch (yield, 2 tasks)  {:8.1} ns", on_core(switch_cost)?);
        println!("  spawn and join                {:8.1} ns", on_core(spawn_cost)?);
        println!("  wake-up on the same core      {:8.1} ns", on_core(local_wake_cost)?);
        let across = median_of(RUNS, || cross_wake_cost(&runtime))?;
        println!("  wake-up across cores          {across:8.1} ns");
        runtime.shutdown()?;
    }
    let steps = median_of(RUNS, || Ok(simulated_switch_cost()))?;
    println!("simulation: task switch          {steps:8.1} ns");
    let short = median_of(RUNS, || Ok(short_simulation_cost()))?;
    println!("simulation: a run of 4 tasks     {short:8.1} ns");
    Ok(())
}

fn switch_cost() -> f64 {
    const TURNS: u32 = 500_000;
    let other = spawn(|| (0..TURNS).for_each(|_| yield_now()));
    let start = SystemClock.monotonic();
    (0..TURNS).for_each(|_| yield_now());
    let cost = per_turn(start, TURNS * 2);
    drop(other.join());
    cost
}

fn spawn_cost() -> f64 {
    const TURNS: u32 = 100_000;
    let start = SystemClock.monotonic();
    let sum: u32 = (0..TURNS).map(|turn| spawn(move || turn & 1).join().unwrap_or(0)).sum();
    assert_eq!(sum, TURNS / 2);
    per_turn(start, TURNS)
}

/// Two tasks wake each other in turns.
fn local_wake_cost() -> f64 {
    const TURNS: u32 = 200_000;
    let (ping, pong) = (Rc::new(local::Notify::new()), Rc::new(local::Notify::new()));
    let other = {
        let (ping, pong) = (Rc::clone(&ping), Rc::clone(&pong));
        spawn(move || {
            for _ in 0..TURNS {
                if ping.wait().is_err() {
                    return;
                }
                pong.notify_one();
            }
        })
    };
    let start = SystemClock.monotonic();
    for _ in 0..TURNS {
        ping.notify_one();
        if pong.wait().is_err() {
            return f64::NAN;
        }
    }
    let cost = per_turn(start, TURNS * 2);
    drop(other.join());
    cost
}

/// Two tasks on two cores wake each other in turns; both cores sleep in between.
fn cross_wake_cost(runtime: &Runtime) -> Outcome<f64> {
    const TURNS: u32 = 20_000;
    let gates = || -> Arc<Vec<Gate>> { Arc::new((0..TURNS).map(|_| Gate::new()).collect()) };
    let (ping, pong) = (gates(), gates());
    let other = {
        let (ping, pong) = (Arc::clone(&ping), Arc::clone(&pong));
        runtime.spawn_on(CoreId(1), move || {
            for (ping, pong) in ping.iter().zip(pong.iter()) {
                ping.wait();
                pong.open();
            }
        })
    };
    let cost = runtime.spawn_on(CoreId(0), move || {
        let start = SystemClock.monotonic();
        for (ping, pong) in ping.iter().zip(pong.iter()) {
            ping.open();
            pong.wait();
        }
        per_turn(start, TURNS * 2)
    });
    let cost = cost.join()?;
    other.join()?;
    Ok(cost)
}

fn simulated_switch_cost() -> f64 {
    const TURNS: u32 = 500_000;
    let start = SystemClock.monotonic();
    let report = esker_trt::sim::run(1, || {
        let tasks: Vec<_> =
            (0..4).map(|_| spawn(|| (0..TURNS / 4).for_each(|_| yield_now()))).collect();
        tasks.into_iter().all(|task| task.join().is_ok())
    });
    assert!(report.outcome.is_ok_and(|ok| ok));
    per_turn(start, TURNS)
}

fn short_simulation_cost() -> f64 {
    const RUNS: u32 = 10_000;
    let start = SystemClock.monotonic();
    for seed in 0..RUNS {
        let report = esker_trt::sim::run(u64::from(seed), || {
            let (sender, receiver) = promise();
            let tasks: Vec<_> = (0..2).map(|_| spawn(yield_now)).collect();
            let waits = spawn(move || receiver.wait());
            sender.set(1);
            tasks.into_iter().all(|task| task.join().is_ok()) && waits.join().is_ok()
        });
        assert!(report.outcome.is_ok_and(|ok| ok));
    }
    per_turn(start, RUNS)
}

struct Load {
    path: String,
    facility: Facility,
    depth: usize,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    reads_per_second: f64,
    latency_mean_ns: f64,
    latency_median_ns: f64,
}

impl Load {
    fn run_trt(&self, time: Duration) -> Outcome<Measured> {
        let config = Config {
            cores: 1,
            pin: true,
            facilities: vec![self.facility],
            helper_threads_max: self.depth,
            ..Config::default()
        };
        let runtime = Runtime::start(config)?;
        let (path, depth) = (self.path.clone(), self.depth);
        let measured = runtime
            .spawn(move || read_randomly(&path, depth, time).map_err(|error| error.to_string()));
        let measured = measured.join()??;
        runtime.shutdown()?;
        Ok(measured)
    }

    /// fio with the same load; `None` when it is not installed.
    fn run_fio(&self, time: Duration) -> Outcome<Option<Measured>> {
        let engine: &[&str] = match self.facility {
            Facility::Uring => &["--ioengine=io_uring"],
            Facility::Aio => &["--ioengine=libaio", "--userspace_reap"],
            Facility::Sync | Facility::Inline => return Ok(None),
        };
        let output = Command::new("fio")
            .args(["--name=reads", "--rw=randread", "--bs=4k", "--direct=1", "--norandommap"])
            .args(["--randrepeat=0", "--time_based", "--thread", "--cpus_allowed=0"])
            .args(["--lat_percentiles=1", "--output-format=json", "--group_reporting"])
            .args(engine)
            .arg(format!("--iodepth={}", self.depth))
            .arg(format!("--filename={}", self.path))
            .arg(format!("--runtime={}ms", time.as_millis()))
            .output();
        let output = match output {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            output => output?,
        };
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("fio: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let read = after(&text, "\"read\" :").ok_or("fio says nothing of reads")?;
        let latency = after(read, "\"lat_ns\" :").ok_or("fio says no latency")?;
        Ok(Some(Measured {
            reads_per_second: number(read, "\"iops\" :").ok_or("fio says no rate")?,
            latency_mean_ns: number(latency, "\"mean\" :").ok_or("fio says no mean")?,
            latency_median_ns: number(latency, "\"50.000000\" :").ok_or("fio says no median")?,
        }))
    }
}

fn after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.split_once(label).map(|(_, rest)| rest)
}

fn number(text: &str, label: &str) -> Option<f64> {
    let rest = after(text, label)?.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

fn open_direct(path: &str) -> Outcome<(OwnedFd, u64)> {
    use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
    let file = open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
    // Also right for a block device, whose metadata say nothing of its size.
    let size_bytes = seek(&file, SeekFrom::End(0))?;
    Ok((file, size_bytes / BLOCK as u64))
}

fn read_randomly(path: &str, depth: usize, time: Duration) -> Outcome<Measured> {
    let (file, blocks) = open_direct(path)?;
    let file = Rc::new(file);
    let stop = Rc::new(Cell::new(false));
    let latencies: Rc<RefCell<Vec<u32>>> = Rc::default();
    latencies.borrow_mut().reserve(8 << 20);
    let start = SystemClock.monotonic();
    let tasks: Vec<_> = (0..depth)
        .map(|task| {
            let (file, stop, latencies) =
                (Rc::clone(&file), Rc::clone(&stop), Rc::clone(&latencies));
            spawn(move || -> std::io::Result<()> {
                let mut rng = Rng::from_seed(task as u64 + 1);
                let mut memory = vec![0_u8; 2 * BLOCK];
                let aligned = memory.as_ptr().align_offset(BLOCK);
                let Some(block) = memory.get_mut(aligned..aligned + BLOCK) else { return Ok(()) };
                while !stop.get() {
                    let offset = rng.below(blocks) * BLOCK as u64;
                    let begin = SystemClock.monotonic();
                    if io::read_at(file.as_fd(), block, offset)? != BLOCK {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                    let end = SystemClock.monotonic();
                    let took = u32::try_from((end - begin).as_nanos()).unwrap_or(u32::MAX);
                    latencies.borrow_mut().push(took);
                }
                Ok(())
            })
        })
        .collect();
    sleep(time);
    let took = SystemClock.monotonic() - start;
    stop.set(true);
    let reads = u32::try_from(latencies.borrow().len())?;
    for task in tasks {
        task.join()??;
    }
    let mut latencies = latencies.take();
    latencies.truncate(reads as usize);
    latencies.sort_unstable();
    let sum: f64 = latencies.iter().copied().map(f64::from).sum();
    let middle = latencies.get(latencies.len() / 2).copied().unwrap_or(0);
    Ok(Measured {
        reads_per_second: f64::from(reads) / took.as_secs_f64(),
        latency_mean_ns: sum / f64::from(reads),
        latency_median_ns: f64::from(middle),
    })
}

fn beside_fio(time: Duration, rounds: usize, paths: &[&str]) -> Outcome<()> {
    println!(
        "{:<20} {:>6} {:>5} {:>10} {:>10} {:>6} {:>9} {:>9} {:>6} {:>9} {:>9} {:>6}",
        "target",
        "by",
        "depth",
        "trt/s",
        "fio/s",
        "ratio",
        "trt mean",
        "fio mean",
        "ratio",
        "trt p50",
        "fio p50",
        "ratio"
    );
    for path in paths {
        for facility in [Facility::Uring, Facility::Aio] {
            for depth in [1, 32, 128] {
                let load = Load { path: (*path).to_owned(), facility, depth };
                compare(&load, time, rounds)?;
            }
        }
    }
    Ok(())
}

fn compare(load: &Load, time: Duration, rounds: usize) -> Outcome<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(load.run_trt(time)?);
        match load.run_fio(time)? {
            Some(measured) => theirs.push(measured),
            None => {
                println!("{:<20} {:>6} {:>5} skipped: fio", load.path, load.facility, load.depth);
                return Ok(());
            }
        }
    }
    let pick = |runs: &[Measured], value: fn(&Measured) -> f64| {
        median(&mut runs.iter().map(value).collect::<Vec<f64>>())
    };
    print!("{:<20} {:>6} {:>5}", load.path, load.facility.to_string(), load.depth);
    let (trt, fio) =
        (pick(&ours, |run| run.reads_per_second), pick(&theirs, |run| run.reads_per_second));
    print!(" {trt:>10.0} {fio:>10.0} {:>6.3}", trt / fio);
    let values: [fn(&Measured) -> f64; 2] =
        [|run| run.latency_mean_ns, |run| run.latency_median_ns];
    for value in values {
        let (trt, fio) = (pick(&ours, value), pick(&theirs, value));
        print!(" {trt:>9.0} {fio:>9.0} {:>6.3}", trt / fio);
    }
    println!();
    Ok(())
}
