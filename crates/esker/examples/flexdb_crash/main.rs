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
#[path = "../flex_crash/explore.rs"]
mod explore;
mod scenarios;
#[path = "../flex_crash/timeline.rs"]
mod timeline;
mod workload;

use clap::Parser;
use esker_base::clock::{Clock, SystemClock};
use esker_testkit::mutants;
use explore::{Report, explore_seed};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Parser)]
#[command(name = "flexdb_crash", about = "Crash exploration of the engine flex")]
struct Arguments {
    /// First seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Distinct states to explore, at least.
    #[arg(long, default_value_t = 150_000)]
    states: u64,
    /// Explore just the first seed, and only this crash point of it.
    #[arg(long)]
    point: Option<u64>,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// The share that every run of the whole check takes.
    #[arg(long)]
    gate: bool,
    /// Disable one site after another; each must be noticed.
    #[arg(long)]
    mutants: bool,
    /// Only the mutant of this site.
    #[arg(long)]
    site: Option<String>,
}

/// Seeds of one piece of work.
const PIECE: u64 = 8;
/// Seeds that each mutant has to survive.
const MUTANT_SEEDS: u64 = 64;

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.gate {
        arguments.states = 30_000;
    }
    if arguments.mutants { run_mutants(&arguments) } else { explore(&arguments) }
}

/// Explores these seeds.
fn piece(seeds: std::ops::Range<u64>, threads: usize) -> Report {
    let next = AtomicU64::new(seeds.start);
    let total = std::sync::Mutex::new(Report::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let report = explore_seed(seed, None);
                    total.lock().unwrap().merge(report);
                }
            });
        }
    });
    total.into_inner().unwrap()
}

fn explore(arguments: &Arguments) -> ExitCode {
    let start = SystemClock.monotonic();
    if let Err(words) = scenarios::all() {
        println!("scenario failed: {words}");
        return ExitCode::FAILURE;
    }
    let mut total = Report::default();
    let mut seed = arguments.seed;
    if arguments.point.is_some() {
        total = explore_seed(seed, arguments.point);
    } else {
        while total.distinct < arguments.states && total.violations.is_empty() {
            total.merge(piece(seed..seed + PIECE, arguments.threads));
            seed += PIECE;
        }
    }
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    println!("{total}");
    println!("seeds {}..{seed}, {seconds:.1} s; go on with --seed {seed}", arguments.seed);
    // Those of backups are on another medium: the scenarios pass them.
    let all = esker::sites::flex_db::ALL
        .iter()
        .filter(|site| site.kind().is_media() && !site.name().starts_with("flexdb.backup"));
    let unseen: Vec<_> = all.filter(|site| total.visits.count(site.name()) == 0).collect();
    println!("media sites that no workload passed: {unseen:?}");
    println!(
        "crash exploration: {} passed, {} failed",
        total.distinct.saturating_sub(total.violations.len() as u64),
        total.violations.len()
    );
    let whole = total.violations.is_empty() && (unseen.is_empty() || arguments.point.is_some());
    if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_mutants(arguments: &Arguments) -> ExitCode {
    let wanted =
        |site: &&esker_base::Site| arguments.site.as_ref().is_none_or(|name| name == site.name());
    let sites: Vec<_> = esker::sites::flex_db::ALL.iter().filter(wanted).copied().collect();
    let report = mutants::run(&sites, || {
        // The cheap part first: several mutants end there.
        scenarios::all().is_ok()
            && (arguments.seed..arguments.seed + MUTANT_SEEDS)
                .step_by(PIECE as usize)
                .all(|seed| piece(seed..seed + PIECE, arguments.threads).violations.is_empty())
    });
    match report {
        Ok(report) => {
            println!("{report}");
            let missed = report.missed().len();
            println!("mutants: {} passed, {missed} failed", report.mutants.len() - missed);
            if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("mutants: {error}");
            ExitCode::FAILURE
        }
    }
}
