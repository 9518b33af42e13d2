//! How long a store takes to open: after a crash of its process, after a clean stop, and after a crash some time after a
//! checkpoint.
//!
//! A child process loads records and aborts; this one opens the store, closes it and opens it again. Another one writes some records
//! over, has a checkpoint written, writes some over and aborts; then it is opened once more. Prints seconds, and DRAM in bytes for each record. Run it with `cargo xtask bench restart`.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

use clap::Parser;
use esker::{Durability, Options, Store};
use esker_base::clock::{Clock, SystemClock};
use esker_base::units::parse_size_bytes;
use std::path::{Path, PathBuf};

#[derive(Parser)]
struct Arguments {
    /// Folder for the store. Default: a scratch folder beside the build.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Capacity of the store.
    #[arg(long, default_value = "3GiB", value_parser = size)]
    size: u64,
    /// Records.
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// One record in so many is written over after the checkpoint.
    #[arg(long, default_value_t = 20)]
    overwritten: u64,
    /// The part that a child process does.
    #[arg(long, hide = true)]
    part: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Load,
    Overwrite,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).ok_or_else(|| format!("{text} is no size"))
}

/// Does the part of a child process, which ends as with `kill -9`: nothing is closed.
fn run(a: &Arguments, options: &Options, part: Part) -> ! {
    let store = Store::open(options).unwrap();
    match part {
        Part::Load => put(a, &store, 0, 1),
        Part::Overwrite => {
            put(a, &store, 0, a.overwritten);
            assert!(store.checkpoint().unwrap(), "there is room for a checkpoint");
            put(a, &store, 1, a.overwritten);
        }
    }
    store.sync().unwrap();
    std::process::abort();
}

/// Puts one record in `step`, from two threads.
fn put(a: &Arguments, store: &Store, first: u64, step: u64) {
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                let value = vec![7; a.value_size];
                for number in (first..a.records).step_by(usize::try_from(step).unwrap()) {
                    if number / step % 2 == thread {
                        store.put(&number.to_be_bytes(), &value).unwrap();
                    }
                }
            });
        }
    });
}

fn resident_bytes() -> f64 {
    let field = |name: &str| -> f64 {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0.0)
    };
    field("VmRSS:") * 1024.0
}

fn open(options: &Options, name: &str, records: u64) -> Store {
    let start = SystemClock.monotonic();
    let store = Store::open(options).unwrap();
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    assert_eq!(store.stats().items, records);
    println!("open after {name}: {seconds:.2} s for {records} records");
    store
}

fn main() {
    let a = Arguments::parse();
    std::fs::create_dir_all("target").unwrap();
    let scratch = tempfile::tempdir_in("target").unwrap();
    let path = a.data.clone().unwrap_or_else(|| scratch.path().join("store"));
    let mut options = Options::new(&path);
    options.size_bytes = a.size;
    options.durability = Durability::None;
    if let Some(part) = a.part {
        options.format = part == Part::Load;
        run(&a, &options, part);
    }
    child(&a, &path, Part::Load);
    let before = resident_bytes();
    let store = open(&options, "a crash", a.records);
    let bytes = resident_bytes() - before;
    println!(
        "DRAM: {:.1} bytes a record once open, {:.1} of them the index",
        bytes / a.records as f64,
        store.stats().index_bytes as f64 / a.records as f64
    );
    store.close().unwrap();
    drop(store);
    let store = open(&options, "a clean stop", a.records);
    store.close().unwrap();
    drop(store);
    child(&a, &path, Part::Overwrite);
    let name = format!("a crash, one record in {} after a checkpoint", a.overwritten);
    open(&options, &name, a.records).close().unwrap();
}

fn child(a: &Arguments, path: &Path, part: Part) {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    let word = if part == Part::Load { "load" } else { "overwrite" };
    command.arg("--part").arg(word).arg("--data").arg(path);
    command.arg("--size").arg(a.size.to_string());
    command.arg("--records").arg(a.records.to_string());
    command.arg("--value-size").arg(a.value_size.to_string());
    command.arg("--overwritten").arg(a.overwritten.to_string());
    let start = SystemClock.monotonic();
    let status = command.status().unwrap();
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    println!("{word}: {seconds:.1} s for {} records; {status}", a.records);
}
