//! Long histories of indexes and stores: `cargo xtask histories`. Seeds are done in order until there were as many operations as
//! were wanted; the closing line says with which to go on. What they are is in `esker_testkit::histories`.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod indexes;
mod stores;

use clap::Parser;
use esker::EngineKind;
use esker_base::clock::{Clock, SystemClock};
use esker_testkit::command::append;
use esker_testkit::histories::{Effort, Figures};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The indexes that can be used by themselves.
const INDEXES: [&str; 3] = ["cceh", "masstree", "directory"];

#[derive(Parser)]
#[command(about = "Histories of indexes and stores")]
struct Arguments {
    /// An index by itself: cceh, masstree or directory. Without this and an engine: all of both.
    #[arg(long)]
    index: Option<String>,
    /// A whole store: depot, flat:cceh, flat:masstree or flex.
    #[arg(long)]
    engine: Option<EngineKind>,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Operations of each index and engine, at least.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Threads that use one index or store.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Append the figures to this file, one JSON object a line.
    #[arg(long)]
    ledger: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let indexes: Vec<&str> = match (&arguments.index, arguments.engine) {
        (Some(index), _) => vec![index],
        (None, Some(_)) => Vec::new(),
        (None, None) => INDEXES.to_vec(),
    };
    let engines: Vec<EngineKind> = match (arguments.engine, &arguments.index) {
        (Some(engine), _) => vec![engine],
        (None, Some(_)) => Vec::new(),
        (None, None) => EngineKind::ALL.to_vec(),
    };
    let of_index = Effort { alone: 20_000, beside: 20_000, rounds: 3, threads: arguments.threads };
    let of_store = Effort { alone: 0, beside: 4000, rounds: 4, threads: arguments.threads };
    let done = indexes
        .into_iter()
        .try_for_each(|name| {
            run(&arguments, ("index", name), |seed| indexes::explore(name, seed, &of_index))
        })
        .and_then(|()| {
            engines.into_iter().try_for_each(|engine| {
                run(&arguments, ("engine", engine.name()), |seed| {
                    let folder = folder().map_err(|error| error.to_string())?;
                    stores::explore(engine, seed, &of_store, folder.path())
                })
            })
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            println!("{words}");
            ExitCode::FAILURE
        }
    }
}

/// In memory, where there is such a folder: a disk would only make calls wait.
fn folder() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

fn run(
    arguments: &Arguments,
    (kind, name): (&str, &str),
    explore: impl Fn(u64) -> Result<Figures, String>,
) -> Result<(), String> {
    let start = SystemClock.monotonic();
    let (first, mut seed) = (arguments.seed, arguments.seed);
    let mut figures = Figures::default();
    while figures.alone + figures.beside < arguments.operations {
        figures += explore(seed).map_err(|words| format!("{name}: {words}"))?;
        seed += 1;
    }
    let seconds = (SystemClock.monotonic() - start).as_secs_f64();
    let Figures { alone, beside, judged, scans, cleaned } = figures;
    println!(
        "{name}: {alone} operations beside a map and {beside} of {} threads, {scans} scans and walks, {cleaned} segments cleaned, {judged} calls judged: no violation",
        arguments.threads
    );
    println!("seeds {first}..{seed}, {seconds:.1} s; go on with --seed {seed}");
    if let Some(path) = &arguments.ledger {
        let small = cfg!(feature = "small");
        let line = format!(
            "{{\"{kind}\":\"{name}\",\"seeds\":[{first},{seed}],\"seconds\":{seconds:.1},\"threads\":{},\"small\":{small},\"alone\":{alone},\"beside\":{beside},\"scans\":{scans},\"cleaned\":{cleaned},\"judged\":{judged},\"violations\":0}}",
            arguments.threads
        );
        append(path, &line).map_err(|error| format!("ledger: {error}"))?;
    }
    Ok(())
}
