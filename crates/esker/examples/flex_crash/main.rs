//! Crash exploration of FlexSpace: `cargo xtask crash-flex`, and with `--mutants` the proof that it notices.
//!
//! For each seed a workload runs on three recording devices that lose power together. At every point before
//! and after each call, states that a cut there may leave are put together from those of the devices, all of
//! them if they are few; from each the space is opened, and what it holds must be what some beginning of the
//! operations made, none missing that was before the last sync that returned. While it is made there is none, an
//! empty one, or what stood on the media before. Some are opened again, go on with more operations, are cut
//! again, and must again hold such a beginning.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod explore;
mod scenarios;
mod timeline;
mod torn;
mod workload;

use esker_base::Site;
use esker_testkit::command::{self, Effort, Exploration};
use explore::{Report, explore_seed};
use std::ops::Range;
use std::process::ExitCode;

fn main() -> ExitCode {
    command::run::<OfSpace>()
}

struct OfSpace;

impl Exploration for OfSpace {
    type Report = Report;
    const ENGINE: &'static str = "flex-space";
    const EFFORT: Effort = Effort {
        states: [150_000, 0],
        gate: [100_000, 0],
        piece: 8,
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
        esker::sites::flex::ALL.to_vec()
    }

    fn passed() -> Vec<Site> {
        esker::sites::flex::ALL.iter().copied().filter(|site| site.kind().is_media()).collect()
    }
}
