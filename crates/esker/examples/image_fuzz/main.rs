//! Fuzzing of whole images: `cargo xtask fuzz-images`.
//!
//! A workload leaves an image of a store, closed or not, or a backup of it. Numbers in it take other values, blocks change places, files
//! end early. Then the store is opened, read in every way, written to, cleaned, closed and opened again; a copy is repaired and used; a
//! changed backup is restored. Any result of a call is right but a panic, a call that does not end, memory that a medium of a MiB does not
//! justify, and a write that is acknowledged and not there. So that mutations come past checksums, these count the first bytes of what
//! they are over alone, or nothing of it, for three groups of seeds of four (`esker_base::checksum::loose`); in the fourth all of it counts, and then no
//! key may ever show what it never held, and a repaired store has to be sound.
//!
//! Everything follows from the seed: a violation says how to see it again. `--canary` plants faults that have to be found.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod base;
mod canary;
mod exercise;
mod media;
mod memory;
mod mutate;
mod report;
mod run;
mod space;
mod watch;

use clap::{Parser, ValueEnum};
use esker_base::clock::{Clock, SystemClock};
use esker_testkit::command::{self, Figures};
use media::Subject;
use report::Report;
use run::GROUP;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// Runs of each subject, and in the gate.
const RUNS: [u64; 2] = [100_000, 4 * GROUP];
/// Longest time that a run may take: most take a millisecond.
const LONGEST: Duration = Duration::from_secs(20);

#[derive(Parser)]
#[command(about = "Fuzzing of whole images")]
struct Arguments {
    /// First seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Seeds for each engine.
    #[arg(long)]
    runs: Option<u64>,
    /// Only this engine.
    #[arg(long)]
    engine: Option<Subject>,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// The share that every run of the whole check takes: fewer seeds, and planted faults.
    #[arg(long)]
    gate: bool,
    /// Plant faults, each of which must be found.
    #[arg(long)]
    canary: bool,
    /// Append the figures to this file, one JSON object a line.
    #[arg(long)]
    ledger: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // One run is looked at: with its stack.
    watch::note_panics(arguments.runs == Some(1));
    let mut is_right = true;
    if arguments.canary || arguments.gate {
        is_right &= canary::all();
    }
    if !arguments.canary {
        is_right &= watch::over(LONGEST, false, || fuzz(&arguments));
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fuzz(arguments: &Arguments) -> bool {
    let runs = arguments.runs.unwrap_or(RUNS[usize::from(arguments.gate)]);
    let mut violations = 0;
    let mut is_right = true;
    for subject in Subject::value_variants() {
        if arguments.engine.is_some_and(|only| only != *subject) {
            continue;
        }
        let start = SystemClock.monotonic();
        let seeds = arguments.seed..arguments.seed + runs;
        let groups = seeds.start / GROUP..seeds.end.div_ceil(GROUP);
        let mut report: Report = command::each_seed(groups, arguments.threads, |group| {
            let of_group = group * GROUP..(group + 1) * GROUP;
            let seeds = of_group.start.max(seeds.start)..of_group.end.min(seeds.end);
            run::group(*subject, group, seeds)
        });
        let run = watch::Run { subject: *subject, seed: seeds.start };
        for panic in watch::stray_panics() {
            let what = format!("panic of another thread at {}", panic.place);
            report.violation(&what, run, &panic.words);
        }
        let seconds = (SystemClock.monotonic() - start).as_secs_f64();
        println!(
            "{}: seeds {}..{}, {seconds:.1} s: {report}",
            subject.name(),
            seeds.start,
            seeds.end
        );
        let (opened, tried) = report.loose();
        let is_whole = runs >= RUNS[1];
        if is_whole && tried == 0 || tried >= GROUP && opened < tried / 8 {
            println!("{}: too few images open for this to prove anything", subject.name());
            is_right = false;
        }
        for what in report.never(*subject).filter(|_| is_whole) {
            println!("{}: nothing was {what}, so this proves nothing of it", subject.name());
            is_right = false;
        }
        violations += report.violation_count();
        if let Some(path) = &arguments.ledger {
            let mut line = format!("{{\"engine\":\"{} images\",", subject.name());
            line += &format!("\"seeds\":[{},{}],\"seconds\":{seconds:.1}", seeds.start, seeds.end);
            for (name, figure) in report.fields() {
                line += &format!(",\"{name}\":{figure}");
            }
            line += &format!(",\"violations\":{}}}", report.violation_count());
            if let Err(error) = command::append(path, &line) {
                println!("ledger: {error}");
                is_right = false;
            }
        }
    }
    println!(
        "fuzzing of images: {violations} violations; go on with --seed {}",
        arguments.seed + runs
    );
    is_right && violations == 0
}
