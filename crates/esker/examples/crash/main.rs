//! Crash exploration of `depot`: `cargo xtask crash`, and with `--mutants` the proof that it notices.
//!
//! The command line is that of all explorations (`esker_testkit::command`).
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod backups;
mod checkpoints;
mod evictions;
mod expiries;
mod members;
mod operation;
mod orders;
mod scenarios;
mod stories;
mod subject;

use esker::Durability;
use esker_base::Site;
use esker_media::sim::FaultKind;
use esker_testkit::command::{self, Effort, Exploration};
use esker_testkit::explore::{Explorer, Report};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use subject::{Depot, SEGMENT_SIZE, config, growing};

/// Kinds of hashes: all bits; none; few enough that some keys share a hash.
const HASH_MASKS: [u64; 4] = [u64::MAX, 0, u64::MAX, 15];
/// Calls that report an error.
const KINDS: [FaultKind; 6] = [
    FaultKind::AnyError,
    FaultKind::WriteError,
    FaultKind::ShortWrite,
    FaultKind::NoSpace,
    FaultKind::FlushError,
    FaultKind::ReadError,
];

fn main() -> ExitCode {
    command::run::<OfDepot>()
}

fn explorer(piece: u64, point: Option<u64>) -> Explorer<Depot> {
    let grows = piece % 6 == 1;
    let cache = piece % 3 == 2;
    // Of those where nothing expires, all items are counted.
    let expires = piece.is_multiple_of(2);
    let mut config = if grows { growing() } else { config(cache, expires) };
    config.only_point = point;
    // Every fourth piece tears blocks inside, as sectors of 512 bytes; in the others each block is one.
    let blocks = if piece % 4 == 3 { 8 } else { 1 };
    config.block_size_bytes *= blocks;
    config.size_bytes *= u64::from(blocks);
    // Each of them with caches and without.
    let hash_mask = HASH_MASKS[usize::try_from(piece / 3 % 4).unwrap_or(0)];
    // A cache without `sync` has nothing after a crash, also one in an open: there is nothing to explore.
    let durability = if cache || piece % 8 < 6 { Durability::Sync } else { Durability::None };
    let grain = [1, 1, 2, 4, 8][usize::try_from(piece % 5).unwrap_or(0)];
    let segment_size = SEGMENT_SIZE * u64::from(blocks);
    let seconds = Arc::default();
    let depot =
        Depot { hash_mask, cache, grain, durability, segment_size, grows, expires, seconds };
    Explorer::new(depot, config)
}

struct OfDepot;

impl Exploration for OfDepot {
    type Report = Report;
    const ENGINE: &'static str = "depot";
    const EFFORT: Effort = Effort {
        states: [1_000_000, 10_000],
        gate: [100_000, 10_000],
        piece: 16,
        mutant_seeds: [48, 8],
        passes_all: false,
    };

    fn scenarios() -> Result<(), String> {
        scenarios::all()
    }

    fn sweep() -> Result<u64, String> {
        command::sweep(&explorer(0, None), &KINDS)
    }

    fn explore(piece: u64, seeds: Range<u64>, threads: usize) -> Report {
        explorer(piece, None).seeds(seeds, threads)
    }

    fn look(piece: u64, seed: u64, point: u64) -> Report {
        explorer(piece, Some(point)).seed(seed)
    }

    fn sites() -> Vec<Site> {
        [esker::sites::depot::ALL, esker::sites::backup::ALL, esker::sites::striped::ALL].concat()
    }

    fn passed() -> Vec<Site> {
        esker::sites::depot::ALL.iter().copied().filter(|site| site.kind().is_media()).collect()
    }
}
