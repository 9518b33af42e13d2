//! Measures what a durable write costs here, so that the choice between `RWF_DSYNC` and `fdatasync`
//! and the preparation of extents rest on figures (`docs/rfcs/0002-durable-writes.md`).
//!
//! `cargo run --release -p esker-media --example durable_writes -- PATH [--destroy]`
//!
//! `PATH` is a new file (created, measured and removed), or a raw device, whose content is lost
//! and which therefore needs `--destroy`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

use esker_base::clock::{Clock, SystemClock};
use esker_base::{Error, Result, Site, SiteKind};
use esker_media::file::DurableWrites;
use esker_media::{BlockDevice, BufferPool, FileDevice, OpenOptions};
use std::io::IoSlice;
use std::path::Path;
use std::time::Duration;

const SITE: Site = Site::new("example.durable", SiteKind::DurableWrite);
/// Largest part of a file or device that is measured, in bytes.
const SIZE_BYTES: u64 = 256 << 20;
/// Longest time for one line of the table.
const TIME_MAX: Duration = Duration::from_secs(3);
const COUNT_MAX: usize = 20_000;

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(path) = arguments.next() else {
        let usage = "usage: durable_writes PATH [--destroy]";
        return Err(Error::invalid("measure durable writes", usage));
    };
    let path = Path::new(&path);
    let is_file = !path.exists();
    if !is_file && arguments.next().is_none_or(|word| word != "--destroy") {
        let context = "PATH exists: its content would be lost; say --destroy for a raw device";
        return Err(Error::invalid("measure durable writes", context));
    }
    println!("| extents | way | bytes | writes | mean us | median us | p99 us |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    let mut report = String::new();
    let extents: &[bool] = if is_file { &[false, true] } else { &[true] };
    for &prepared in extents {
        for way in [DurableWrites::Dsync, DurableWrites::WriteThenSync] {
            for size in [512, 4096, 32 << 10] {
                report = measure(path, is_file, prepared, way, size)?;
                if is_file {
                    std::fs::remove_file(path)
                        .map_err(|error| Error::io("remove measured file", error))?;
                }
            }
        }
    }
    println!("\n{report}");
    Ok(())
}

/// One line of the table; each write goes to a place that no write of this line touched before.
fn measure(
    path: &Path,
    is_file: bool,
    prepared: bool,
    way: DurableWrites,
    size: usize,
) -> Result<String> {
    let options = OpenOptions {
        create_size_bytes: is_file.then_some(SIZE_BYTES),
        durable_writes: Some(way),
        ..OpenOptions::default()
    };
    let device = FileDevice::open(path, options)?;
    let geometry = device.geometry();
    if size < geometry.block_size_bytes as usize {
        return Ok(device.report());
    }
    let end = geometry.size_bytes.min(SIZE_BYTES);
    if prepared {
        device.prepare(SITE, 0, end)?;
    }
    let mut data = BufferPool::default().get(size);
    esker_base::rng::Rng::from_seed(1).fill(&mut data);
    let mut times: Vec<Duration> = Vec::new();
    let start = SystemClock.monotonic();
    let mut before = start;
    let mut offset = 0;
    while offset + size as u64 <= end && times.len() < COUNT_MAX && before - start < TIME_MAX {
        device.write_durable_at(SITE, offset, &[IoSlice::new(&data)])?;
        let now = SystemClock.monotonic();
        times.push(now - before);
        before = now;
        offset += size as u64;
    }
    times.sort_unstable();
    let micros = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e6);
    let mean = (before - start).as_secs_f64() * 1e6 / times.len().max(1) as f64;
    let words = match (is_file, prepared) {
        (false, _) => "raw device",
        (true, true) => "written once",
        (true, false) => "unwritten",
    };
    println!(
        "| {words} | {way:?} | {size} | {} | {mean:.1} | {:.1} | {:.1} |",
        times.len(),
        micros(times.get(times.len() / 2)),
        micros(times.get(times.len() * 99 / 100)),
    );
    Ok(device.report())
}
