//! How long a store takes to open: after a crash of its process, and after a clean stop.
//!
//! A child process loads records and aborts; this one opens the store, closes it and opens it again.
//! Prints seconds, and DRAM in bytes for each record. Run it with `cargo xtask bench restart`.
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
    /// The part that the child process does.
    #[arg(long, hide = true)]
    load: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).ok_or_else(|| format!("{text} is no size"))
}

fn load(a: &Arguments, options: &Options) {
    let mut options = options.clone();
    options.format = true;
    let store = Store::open(&options).unwrap();
    let threads = 2;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let store = &store;
            scope.spawn(move || {
                let value = vec![7; a.value_size];
                for number in (thread..a.records).step_by(2) {
                    store.put(&number.to_be_bytes(), &value).unwrap();
                }
            });
        }
    });
    store.sync().unwrap();
    // As `kill -9` would: nothing is closed.
    std::process::abort();
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
    let scratch = tempfile::tempdir_in("target").unwrap();
    let path = a.data.clone().unwrap_or_else(|| scratch.path().join("store"));
    let mut options = Options::new(&path);
    options.size_bytes = a.size;
    options.durability = Durability::None;
    if a.load {
        load(&a, &options);
    }
    child(&a, &path);
    let before = resident_bytes();
    let store = open(&options, "a crash", a.records);
    let bytes = resident_bytes() - before;
    println!("DRAM: {:.1} bytes a record once open", bytes / a.records as f64);
    store.close().unwrap();
    drop(store);
    let store = open(&options, "a clean stop", a.records);
    store.close().unwrap();
}

fn child(a: &Arguments, path: &Path) {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    command.arg("--load").arg("--data").arg(path);
    command.arg("--size").arg(a.size.to_string());
    command.arg("--records").arg(a.records.to_string());
    command.arg("--value-size").arg(a.value_size.to_string());
    let start = SystemClock.monotonic();
    let status = command.status().unwrap();
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    println!("loaded {} records in {seconds:.1} s; {status}", a.records);
}
