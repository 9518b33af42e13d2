//! The command line of a crash exploration: which seeds, how many states, or which mutants; and what it says in the end.
//!
//! Seeds are explored in order until the wanted number of distinct states is reached; the closing lines say which, so
//! that the next run can go on behind them. Every figure goes into a ledger, if one is named.

use crate::explore::{Explorer, Report, Subject};
use crate::mutants;
use clap::Parser;
use esker_base::Site;
use esker_base::clock::{Clock, SystemClock};
use esker_media::sim::{FaultKind, SiteVisits};
use parking_lot::Mutex;
use std::fmt::Display;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a store's exploration is.
pub trait Exploration {
    /// Figures of some seeds.
    type Report: Figures;
    /// The engine, as ledgers have it.
    const ENGINE: &'static str;
    /// How much is done.
    const EFFORT: Effort;

    /// Histories that are played whole, before seeds.
    ///
    /// # Errors
    /// What went wrong in the first one that failed.
    fn scenarios() -> Result<(), String>;

    /// Runs in which calls fail; how many there were. Of some stores other tests have them.
    ///
    /// # Errors
    /// What went wrong in the first one that failed.
    fn sweep() -> Result<u64, String> {
        Ok(0)
    }

    /// Explores seeds of one piece, on so many threads.
    fn explore(piece: u64, seeds: Range<u64>, threads: usize) -> Self::Report;

    /// Explores one crash point of a seed.
    fn look(piece: u64, seed: u64, point: u64) -> Self::Report;

    /// The sites that are disabled one after another.
    fn sites() -> Vec<Site>;

    /// The sites of media that workloads may pass.
    fn passed() -> Vec<Site>;
}

/// How much an exploration does.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Distinct states, at least, and states inside recoveries, unless the command line says it.
    pub states: [u64; 2],
    /// The same of a run of the gate.
    pub gate: [u64; 2],
    /// Seeds of one piece, which have more in common than the store.
    pub piece: u64,
    /// Seeds that each mutant has to survive, and how many of them are a piece.
    pub mutant_seeds: [u64; 2],
    /// Whether it is a failure if workloads leave out a site of media.
    pub passes_all: bool,
}

/// Figures that add up.
pub trait Figures: Default + Display + Send {
    /// Adds those of other seeds.
    fn add(&mut self, other: Self);
    /// Distinct states.
    fn distinct_states(&self) -> u64;
    /// States inside recoveries, if they are counted apart.
    fn nested_states(&self) -> u64 {
        0
    }
    /// Number of violations.
    fn violation_count(&self) -> u64;
    /// Visits of sites.
    fn visits(&self) -> &SiteVisits;
    /// What else a ledger has.
    fn fields(&self) -> Vec<(&'static str, u64)>;
}

impl Figures for Report {
    fn add(&mut self, other: Self) {
        self.merge(&other);
    }

    fn distinct_states(&self) -> u64 {
        self.distinct_states
    }

    fn nested_states(&self) -> u64 {
        self.nested_states
    }

    fn violation_count(&self) -> u64 {
        self.violations.len() as u64
    }

    fn visits(&self) -> &SiteVisits {
        &self.visits
    }

    fn fields(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("operations", self.operations),
            ("points", self.points),
            ("states", self.states),
            ("recycled_seeds", self.recycled),
        ]
    }
}

#[derive(Parser)]
#[command(about = "Crash exploration")]
struct Arguments {
    /// First seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Distinct states to explore, at least.
    #[arg(long)]
    states: Option<u64>,
    /// Nested states (crashes inside recoveries) to explore, at least.
    #[arg(long)]
    nested: Option<u64>,
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
    ledger: Option<PathBuf>,
}

/// Does what the command line of the process says.
#[must_use]
pub fn run<E: Exploration>() -> ExitCode {
    let arguments = Arguments::parse();
    let done = if arguments.mutants { disable::<E>(&arguments) } else { explore::<E>(&arguments) };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(words) => {
            say(&words);
            ExitCode::FAILURE
        }
    }
}

fn say(words: &dyn Display) {
    println!("{words}");
}

fn explore<E: Exploration>(arguments: &Arguments) -> Result<bool, String> {
    let start = SystemClock.monotonic();
    let Effort { states, gate, piece, passes_all, .. } = E::EFFORT;
    let [states, nested] = if arguments.gate { gate } else { states };
    let (states, nested) = (arguments.states.unwrap_or(states), arguments.nested.unwrap_or(nested));
    E::scenarios().map_err(|words| format!("scenario failed: {words}"))?;
    let mut seed = arguments.seed;
    let mut total = E::Report::default();
    if let Some(point) = arguments.point {
        total = E::look(seed / piece, seed, point);
    } else {
        if !arguments.no_sweep {
            let runs = E::sweep()?;
            if runs > 0 {
                say(&format!(
                    "failing calls: {runs} runs, each with one more failing: no false promise"
                ));
            }
        }
        while (total.distinct_states() < states || total.nested_states() < nested)
            && total.violation_count() == 0
        {
            let end = (seed / piece + 1) * piece;
            total.add(E::explore(seed / piece, seed..end, arguments.threads));
            seed = end;
        }
    }
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    say(&total);
    say(&format!("seeds {}..{seed}, {seconds:.1} s; go on with --seed {seed}", arguments.seed));
    let (seen, unseen): (Vec<Site>, Vec<_>) =
        E::passed().into_iter().partition(|site| total.visits().count(site.name()) > 0);
    let sites = seen.len() + unseen.len();
    say(&format!("media sites passed by the workloads: {} of {sites}", seen.len()));
    say(&format!("left to scenarios and tests: {unseen:?}"));
    if let Some(path) = &arguments.ledger {
        let line = ledger_line::<E>(&total, arguments.seed..seed, seconds);
        append(path, &line).map_err(|error| format!("ledger: {error}"))?;
    }
    let violations = total.violation_count();
    let passed = total.distinct_states().saturating_sub(violations);
    say(&format!("crash exploration: {passed} passed, {violations} failed"));
    let whole = unseen.is_empty() || arguments.point.is_some() || !passes_all;
    Ok(violations == 0 && whole)
}

fn disable<E: Exploration>(arguments: &Arguments) -> Result<bool, String> {
    let wanted = |site: &Site| arguments.site.as_ref().is_none_or(|name| name == site.name());
    let sites: Vec<Site> = E::sites().into_iter().filter(wanted).collect();
    if !sites.iter().any(|site| site.kind().can_be_disabled()) {
        let name = arguments.site.as_deref().unwrap_or("any name");
        return Err(format!("mutants: no site of {name} can be disabled"));
    }
    let [seeds, piece] = E::EFFORT.mutant_seeds;
    let mut is_whole = true;
    let report = mutants::run(&sites, || {
        let is_whole = std::mem::take(&mut is_whole);
        // The cheap part first: most mutants end there.
        if let Err(words) = E::scenarios() {
            say(&format!("  {words}"));
            return false;
        }
        let first = arguments.seed;
        (first..first + seeds).step_by(usize::try_from(piece).unwrap_or(1)).all(|seed| {
            let seeds = seed..seed + piece;
            let report = E::explore(seed / piece, seeds, arguments.threads);
            let is_sound = report.violation_count() == 0;
            if is_whole && !is_sound {
                say(&report);
            }
            is_sound
        })
    });
    let report = report.map_err(|error| format!("mutants: {error}"))?;
    say(&report);
    let missed = report.missed().len();
    say(&format!("mutants: {} passed, {missed} failed", report.mutants.len() - missed));
    Ok(missed == 0)
}

fn ledger_line<E: Exploration>(total: &E::Report, seeds: Range<u64>, seconds: f64) -> String {
    let Range { start, end } = seeds;
    let mut line = format!("{{\"engine\":\"{}\",\"seeds\":[{start},{end}],", E::ENGINE);
    line += &format!("\"seconds\":{seconds:.1}");
    let usual = [
        ("distinct_states", total.distinct_states()),
        ("nested_states", total.nested_states()),
        ("violations", total.violation_count()),
    ];
    for (name, figure) in total.fields().into_iter().chain(usual) {
        line += &format!(",\"{name}\":{figure}");
    }
    line + "}"
}

/// Adds a line to a ledger.
///
/// # Errors
/// Those of the file system.
pub fn append(path: &Path, line: &str) -> std::io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a report, not a medium")]
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "{line}")
}

/// Figures of all seeds, which `explore` gives of each, on so many threads.
///
/// # Panics
/// If `explore` does.
pub fn each_seed<R: Figures>(
    seeds: Range<u64>,
    threads: usize,
    explore: impl Fn(u64) -> R + Sync,
) -> R {
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new(R::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let report = explore(seed);
                    total.lock().add(report);
                }
            });
        }
    });
    total.into_inner()
}

/// Fails the n-th call of a workload and of a recovery, for every n, once and from there on, with an error of each kind;
/// the number of runs.
///
/// # Errors
/// The first violation; a kind of which no call failed, or not every one.
pub fn sweep<S: Subject>(explorer: &Explorer<S>, kinds: &[FaultKind]) -> Result<u64, String> {
    /// More calls than a workload makes.
    const CALLS_MAX: u64 = 10_000;
    let mut runs = 0;
    for (kind, seed) in kinds.iter().copied().zip(0..) {
        let before = runs;
        for lasting in [false, true] {
            let reports = [
                explorer.sweep_workload(seed, kind, lasting, CALLS_MAX),
                explorer.sweep_recovery(seed, kind, lasting, CALLS_MAX),
            ];
            for report in reports {
                runs += report.failures;
                if let Some(violation) = report.violations.first() {
                    return Err(format!("{kind:?}, lasting {lasting}: {violation}"));
                }
                if !report.complete {
                    return Err(format!("{kind:?}: more calls than {CALLS_MAX}"));
                }
            }
        }
        if runs == before {
            return Err(format!("{kind:?}: no call failed"));
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
