//! Crash exploration of `flat`: `cargo xtask crash-flat`, and with `--mutants` the proof that it notices.
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
#[path = "../crash/operation.rs"]
mod operation;
mod races;
mod rooms;
mod scenarios;
mod stories;
mod subject;

use esker_base::Site;
use esker_media::sim::FaultKind;
use esker_testkit::command::{self, Effort, Exploration};
use esker_testkit::explore::{Explorer, Report};
use std::ops::Range;
use std::process::ExitCode;
use subject::subject;

/// Calls that report an error.
const KINDS: [FaultKind; 4] =
    [FaultKind::AnyError, FaultKind::WriteError, FaultKind::FlushError, FaultKind::ReadError];

fn main() -> ExitCode {
    command::run::<OfFlat>()
}

fn explorer(piece: u64, point: Option<u64>) -> Explorer<subject::Flat> {
    let (flat, mut config) = subject(piece);
    config.only_point = point;
    Explorer::new(flat, config)
}

struct OfFlat;

impl Exploration for OfFlat {
    type Report = Report;
    const ENGINE: &'static str = "flat";
    const EFFORT: Effort = Effort {
        states: [1_000_000, 10_000],
        gate: [10_000, 1_000],
        piece: 2,
        mutant_seeds: [2, 2],
        passes_all: false,
    };

    fn scenarios() -> Result<(), String> {
        scenarios::failures().next().map_or(Ok(()), Err)
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
        [esker::sites::flat::ALL, esker::sites::backup::ALL].concat()
    }

    fn passed() -> Vec<Site> {
        esker::sites::flat::ALL.iter().copied().filter(|site| site.kind().is_media()).collect()
    }
}
