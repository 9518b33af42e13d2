//! FlexSpace beside plain files on the same file system: Table 2 of the paper (FlexSpace §6.2).
//!
//! `cargo xtask bench flex-space [PATH]`. Blocks of 4 KiB: random inserts, sequential and random writes, each
//! ended by one sync, then warm reads; the systems take turns, the middle of three runs counts. The peer of
//! inserts is `FALLOC_FL_INSERT_RANGE` where the file system has it, else rewriting what stands behind; it
//! slows down as the file grows, so it gets fewer blocks and FlexSpace the same number in the same run.
#![allow(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark prints figures and may panic"
)]

use clap::Parser;
use esker::flex::{Space, SpaceOptions, SpaceStat};
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

#[derive(Parser)]
#[command(name = "flex_space_bench", about = "FlexSpace beside plain files")]
struct Arguments {
    /// Folder in which files are made; they are removed again.
    #[arg(default_value = "/tmp")]
    path: std::path::PathBuf,
    /// Blocks of 4 KiB.
    #[arg(long, default_value_t = 65_536)]
    blocks: u64,
    /// Blocks that are inserted beside the file system's own insertion, which takes minutes: the paper has twice as many.
    #[arg(long, default_value_t = 131_072)]
    inserts: u64,
    /// Runs of each; the middle one counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

const BLOCK: usize = 4096;

fn seconds(work: impl FnOnce()) -> f64 {
    let start = SystemClock.monotonic();
    work();
    (SystemClock.monotonic() - start).as_secs_f64()
}

/// Numbers below `count` in random order.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut rng = Rng::from_seed(seed);
    let mut all: Vec<u64> = (0..count).collect();
    for index in (1..all.len()).rev() {
        all.swap(index, rng.index(index + 1));
    }
    all
}

fn block(n: u64) -> [u8; BLOCK] {
    let mut block = [n as u8; BLOCK];
    block[..8].copy_from_slice(&n.to_le_bytes());
    block
}

/// A file or a space.
trait Target {
    fn write(&self, offset: u64, data: &[u8]);
    fn read(&self, offset: u64, buf: &mut [u8]);
    fn sync(&self);
}

impl Target for File {
    fn write(&self, offset: u64, data: &[u8]) {
        self.write_all_at(data, offset).unwrap();
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        self.read_exact_at(buf, offset).unwrap();
    }

    fn sync(&self) {
        self.sync_data().unwrap();
    }
}

impl Target for Space {
    fn write(&self, offset: u64, data: &[u8]) {
        Space::write(self, offset, data).unwrap();
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        assert_eq!(Space::read(self, offset, buf).unwrap(), buf.len());
    }

    fn sync(&self) {
        Space::sync(self).unwrap();
    }
}

fn new_file(folder: &Path) -> File {
    #[expect(clippy::disallowed_methods, reason = "the peer is a plain file")]
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(folder.join("plain"));
    file.unwrap()
}

fn new_space(folder: &Path, size: u64) -> Space {
    let mut options = SpaceOptions::new(folder.join("space"));
    options.format = true;
    // As much memory as the page cache has for the plain file.
    options.cache_size_bytes = size + size / 4;
    Space::open(&options).unwrap()
}

fn write_all(target: &dyn Target, order: &[u64]) -> f64 {
    seconds(|| {
        for n in order {
            target.write(n * BLOCK as u64, &block(*n));
        }
        target.sync();
    })
}

/// Seconds of one pass over all blocks, the second of two.
fn read_all(target: &dyn Target, order: &[u64]) -> f64 {
    let mut buf = [0; BLOCK];
    let mut pass = |check: bool| {
        for n in order {
            target.read(n * BLOCK as u64, &mut buf);
            assert!(!check || buf == block(*n), "block {n}");
        }
    };
    pass(true);
    seconds(|| pass(false))
}

fn insert_all(space: &Space, count: u64, seed: u64) -> f64 {
    let mut rng = Rng::from_seed(seed);
    seconds(|| {
        for n in 0..count {
            space.insert_range(rng.below(n + 1) * BLOCK as u64, &block(n)).unwrap();
        }
        space.sync().unwrap();
    })
}

/// Inserts blocks into a plain file; says how.
fn insert_plain(file: &File, count: u64, seed: u64) -> (f64, &'static str) {
    let mut rng = Rng::from_seed(seed);
    let mut way = "FALLOC_FL_INSERT_RANGE";
    let time = seconds(|| {
        for n in 0..count {
            let at = rng.below(n + 1) * BLOCK as u64;
            let end = n * BLOCK as u64;
            let size = BLOCK as u64;
            if at < end
                && rustix::fs::fallocate(file, FallocateFlags::INSERT_RANGE, at, size).is_err()
            {
                way = "rewriting what stands behind (the file system cannot insert)";
                let mut rest = vec![0; (end - at) as usize];
                file.read_exact_at(&mut rest, at).unwrap();
                file.write_all_at(&rest, at + size).unwrap();
            }
            file.write_all_at(&block(n), at).unwrap();
        }
        file.sync_data().unwrap();
    });
    (time, way)
}

fn written(stat: &SpaceStat) -> u64 {
    stat.data.write_bytes + stat.tree.write_bytes + stat.log.write_bytes
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn report(what: &str, blocks: u64, flex: f64, plain: f64, wanted: &str) {
    let rate = |seconds: f64| (blocks * BLOCK as u64) as f64 / seconds / 1e6;
    println!(
        "{what:<18} flex {:>8.1} MB/s   plain {:>8.1} MB/s   ratio {:>7.2}   {wanted}",
        rate(flex),
        rate(plain),
        plain / flex
    );
}

/// One run of everything: pairs of seconds, flex and plain, in the order of the report.
fn run(arguments: &Arguments, folder: &Path, seed: u64) -> Vec<(f64, f64)> {
    let size = arguments.blocks * BLOCK as u64;
    let order: Vec<u64> = (0..arguments.blocks).collect();
    let random = shuffled(arguments.blocks, seed);
    let mut pairs = Vec::new();
    let file = new_file(folder);
    let plain = write_all(&file, &order);
    let space = new_space(folder, size);
    pairs.push((write_all(&space, &order), plain));
    pairs.push((read_all(&space, &order), read_all(&file, &order)));
    pairs.push((read_all(&space, &random), read_all(&file, &random)));
    drop(space);
    let file = new_file(folder);
    let plain = write_all(&file, &random);
    let space = new_space(folder, size);
    pairs.push((write_all(&space, &random), plain));
    pairs.push((read_all(&space, &order), read_all(&file, &order)));
    pairs.push((read_all(&space, &random), read_all(&file, &random)));
    pairs
}

fn main() {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir_in(&arguments.path).unwrap();
    let folder = folder.path();
    let blocks = arguments.blocks;
    println!(
        "{blocks} blocks of {BLOCK} bytes in {}, the middle of {} runs",
        arguments.path.display(),
        arguments.runs
    );
    let runs: Vec<_> = (0..arguments.runs).map(|n| run(&arguments, folder, n as u64)).collect();
    let names = [
        "write, sequential",
        "  read, sequential",
        "  read, random",
        "write, random",
        "  read, sequential",
        "  read, random",
    ];
    for (index, name) in names.iter().enumerate() {
        let of = |pick: fn(&(f64, f64)) -> f64| {
            middle(runs.iter().map(|pairs| pick(&pairs[index])).collect())
        };
        report(name, blocks, of(|pair| pair.0), of(|pair| pair.1), "(wanted: 0.9)");
    }

    let count = arguments.inserts;
    let space = new_space(folder, count * BLOCK as u64);
    let flex = insert_all(&space, count, 7);
    drop(space);
    let (plain, way) = insert_plain(&new_file(folder), count, 7);
    report("insert, random", count, flex, plain, "(wanted: 100)");
    println!("    {count} blocks; plain: {way}");

    let space = new_space(folder, blocks * BLOCK as u64);
    let flex = insert_all(&space, blocks, 8);
    space.checkpoint().unwrap();
    let stat = space.stat();
    let user = blocks * BLOCK as u64;
    println!(
        "insert, random     flex {:>8.1} MB/s   {:.4} bytes written for a byte (wanted: 1.05): data {:.4}, log \
         {:.4}, tree {:.4}; {} extents",
        user as f64 / flex / 1e6,
        written(&stat) as f64 / user as f64,
        stat.data.write_bytes as f64 / user as f64,
        stat.log.write_bytes as f64 / user as f64,
        stat.tree.write_bytes as f64 / user as f64,
        stat.extents
    );
    let before = written(&space.stat());
    let mut rng = Rng::from_seed(9);
    let time = seconds(|| {
        for _ in 0..100 {
            space.insert_range(rng.below(user), &[1; 128]).unwrap();
            space.sync().unwrap();
        }
    });
    println!(
        "sync of 128 bytes  {} bytes written (wanted: 16384), {:.2} ms",
        (written(&space.stat()) - before) / 100,
        time * 10.0
    );
}
