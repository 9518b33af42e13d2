//! Crash exploration of the engine `flex`: `cargo xtask crash-flexdb`, and with `--mutants` the proof that it notices.
//!
//! As `flex_crash`, whose explorer it shares, on six recording devices: those of the space, two logs, and the saved index. What a state
//! holds must be what some beginning of the operations made, none missing that was acknowledged, or before the last sync.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod backups;
mod beside;
mod content;
#[path = "../flex_crash/explore.rs"]
mod explore;
mod operation;
mod scenarios;
#[path = "../flex_crash/timeline.rs"]
mod timeline;
#[path = "../flex_crash/torn.rs"]
mod torn;
mod views;
mod workload;

use esker_base::Site;
use esker_testkit::command::{self, Effort, Exploration};
use explore::{Report, explore_seed};
use std::ops::Range;
use std::process::ExitCode;

fn main() -> ExitCode {
    command::run::<OfFlex>()
}

struct OfFlex;

impl Exploration for OfFlex {
    type Report = Report;
    const ENGINE: &'static str = "flex";
    const EFFORT: Effort = Effort {
        states: [150_000, 0],
        gate: [30_000, 0],
        piece: 4,
        mutant_seeds: [64, 8],
        passes_all: true,
    };

    fn scenarios() -> Result<(), String> {
        scenarios::all()
    }

    fn explore(_piece: u64, seeds: Range<u64>, threads: usize) -> Report {
        command::each_seed(seeds, threads, |seed| explore_seed(seed, None))
    }

    fn look(_piece: u64, seed: u64, point: u64) -> Report {
        explore_seed(seed, Some(point))
    }

    fn sites() -> Vec<Site> {
        [esker::sites::flex_db::ALL, esker::sites::backup::ALL].concat()
    }

    fn passed() -> Vec<Site> {
        esker::sites::flex_db::ALL.iter().copied().filter(|site| site.kind().is_media()).collect()
    }
}
