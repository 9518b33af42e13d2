//! Crash exploration of `flat`: `cargo xtask crash-flat`, and with `--mutants` the proof that it notices.
//!
//! Seeds are explored in order until the wanted number of distinct states is reached; the closing
//! lines say which, so that the next run can go on behind them. Every figure goes into a ledger, if
//! one is named.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod backups;
mod checkpoints;
mod races;
mod scenarios;
mod stories;
mod subject;

use clap::Parser;
use esker_base::clock::{Clock, SystemClock};
use esker_media::sim::FaultKind;
use esker_testkit::explore::{Explorer, Report};
use esker_testkit::mutants;
use std::io::Write as _;
use std::process::ExitCode;
use subject::subject;

#[derive(Parser)]
#[command(name = "flat_crash", about = "Crash exploration of flat")]
struct Arguments {
    /// First seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Distinct states to explore, at least.
    #[arg(long, default_value_t = 1_000_000)]
    states: u64,
    /// Nested states (crashes inside recoveries) to explore, at least.
    #[arg(long, default_value_t = 10_000)]
    nested: u64,
    /// Explore just the first seed, and only this crash point of it.
    #[arg(long)]
    point: Option<u64>,
    /// Leave out the runs in which calls fail.
    #[arg(long)]
    no_sweep: bool,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// The share that every run of the whole check takes: fewer states.
    #[arg(long)]
    gate: bool,
    /// Disable one site after another; each must be noticed.
    #[arg(long)]
    mutants: bool,
    /// Only the mutant of this site.
    #[arg(long)]
    site: Option<String>,
    /// Append the figures to this file, one JSON object a line.
    #[arg(long)]
    ledger: Option<std::path::PathBuf>,
}

/// Seeds of one piece of work.
const PIECE: u64 = 2;
/// States of a run of the gate.
const GATE_STATES: u64 = 10_000;
/// Seeds that each mutant has to survive besides the scenarios.
const MUTANT_SEEDS: u64 = 2;

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.gate {
        arguments.states = GATE_STATES;
        arguments.nested = 1_000;
    }
    if arguments.mutants { run_mutants(&arguments) } else { explore(&arguments) }
}

fn explorer(piece: u64, point: Option<u64>) -> Explorer<subject::Flat> {
    let (flat, mut config) = subject(piece);
    config.only_point = point;
    Explorer::new(flat, config)
}

fn explore(arguments: &Arguments) -> ExitCode {
    let start = SystemClock.monotonic();
    let mut total = Report::default();
    let mut seed = arguments.seed;
    let failed: Vec<String> = scenarios::failures().collect();
    failed.iter().for_each(|words| println!("scenario failed: {words}"));
    if !failed.is_empty() {
        return ExitCode::FAILURE;
    }
    if arguments.point.is_none() && !arguments.no_sweep && !sweep(0) {
        return ExitCode::FAILURE;
    }
    if arguments.point.is_some() {
        total = explorer(seed / PIECE, arguments.point).seed(seed);
    } else {
        while (total.distinct_states < arguments.states || total.nested_states < arguments.nested)
            && total.violations.is_empty()
        {
            let end = (seed / PIECE + 1) * PIECE;
            total.merge(&explorer(seed / PIECE, None).seeds(seed..end, arguments.threads));
            seed = end;
        }
    }
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    println!("{total}");
    println!("seeds {}..{seed}, {seconds:.1} s; go on with --seed {seed}", arguments.seed);
    let media = esker::sites::flat::ALL.iter().copied().filter(|site| site.kind().is_media());
    let (seen, unseen): (Vec<esker_base::Site>, Vec<_>) =
        media.partition(|site| total.visits.count(site.name()) > 0);
    println!(
        "media sites passed by the workloads: {} of {}",
        seen.len(),
        seen.len() + unseen.len()
    );
    println!("left to scenarios and tests: {unseen:?}");
    if let Some(path) = &arguments.ledger
        && let Err(error) = append(path, &ledger_line(&total, arguments.seed, seed, seconds))
    {
        println!("ledger: {error}");
        return ExitCode::FAILURE;
    }
    println!(
        "crash exploration: {} passed, {} failed",
        total.distinct_states - total.violations.len() as u64,
        total.violations.len()
    );
    if total.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Fails the n-th call of a workload and of a recovery, for every n, once and from there on.
fn sweep(seed: u64) -> bool {
    const KINDS: [FaultKind; 4] =
        [FaultKind::AnyError, FaultKind::WriteError, FaultKind::FlushError, FaultKind::ReadError];
    /// More calls than a workload makes.
    const CALLS_MAX: u64 = 10_000;
    let mut runs = 0;
    for (kind, seed) in KINDS.into_iter().zip(seed..) {
        for lasting in [false, true] {
            let explorer = explorer(0, None);
            let reports = [
                explorer.sweep_workload(seed, kind, lasting, CALLS_MAX),
                explorer.sweep_recovery(seed, kind, lasting, CALLS_MAX),
            ];
            for report in reports {
                runs += report.failures;
                if let Some(violation) = report.violations.first() {
                    println!("{kind:?}, lasting {lasting}: {violation}");
                    return false;
                }
            }
        }
    }
    println!("failing calls: {runs} runs, each with one more call failing: no false promise");
    runs > 0
}

fn run_mutants(arguments: &Arguments) -> ExitCode {
    let wanted =
        |site: &&esker_base::Site| arguments.site.as_ref().is_none_or(|name| name == site.name());
    let sites: Vec<_> = esker::sites::flat::ALL.iter().filter(wanted).copied().collect();
    let report = mutants::run(&sites, || {
        // The cheap part first: most mutants end there.
        if let Some(words) = scenarios::failures().next() {
            println!("  {words}");
            return false;
        }
        let start = arguments.seed;
        (start..start + MUTANT_SEEDS).step_by(2).all(|seed| {
            let piece = explorer(seed / 2, None);
            piece.seeds(seed..seed + 2, arguments.threads).violations.is_empty()
        })
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

fn ledger_line(report: &Report, first: u64, end: u64, seconds: f64) -> String {
    format!(
        "{{\"engine\":\"flat\",\"seeds\":[{first},{end}],\"seconds\":{seconds:.1},\
         \"operations\":{},\"points\":{},\"states\":{},\"distinct_states\":{},\
         \"nested_states\":{},\"recycled_seeds\":{},\"violations\":{}}}",
        report.operations,
        report.points,
        report.states,
        report.distinct_states,
        report.nested_states,
        report.recycled,
        report.violations.len()
    )
}

fn append(path: &std::path::Path, line: &str) -> std::io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a report, not a medium")]
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "{line}")
}
