//! Soak of the engines: `cargo xtask soak`. Everything that a store does at once, for long, and killed again and again.
//!
//! A process of its own opens the store, says what every key has, and works (`child`): writers, readers, scans, snapshots, walks,
//! keys that expire, syncs, cleaning, trimming, checkpoints, backups, checks. It tells each write before it begins and after it
//! returned. Two of three rounds end with `kill -9`, some of them while it opens; then the next process has to find of each
//! key what was acknowledged, or what was under way. The third ends with a check, a look at every key and a close; behind the
//! last one another process opens what it left. Prints a line for each round, and the same to a ledger.
//!
//! Devices do not fail here and the power stays on: that is what the crash explorations are for.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests and measurements fail by panicking"
)]

mod child;
mod model;
mod parent;
mod report;
mod writer;

use clap::Parser;
use esker::{Durability, EngineKind, Options};
use esker_base::units::parse_size_bytes;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// The engine.
    #[arg(long, default_value = "depot")]
    engine: EngineKind,
    /// Folder, in which the store gets one of its own. Default: a scratch folder.
    #[arg(long)]
    data: Option<PathBuf>,
    /// How long all rounds take.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Seconds of the longest round.
    #[arg(long, default_value_t = 30.0)]
    round: f64,
    /// Where chance begins; the closing line says with which to go on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// `sync`, `none`, or `periodic`: every 100 ms.
    #[arg(long, default_value = "sync", value_parser = durability)]
    durability: Durability,
    /// Capacity of the store.
    #[arg(long, default_value = "256MiB", value_parser = size)]
    size: u64,
    /// Share of the capacity that keys and values would take if all keys had one. Four of five have.
    #[arg(long, default_value_t = 0.6)]
    fill: f64,
    /// Threads that write.
    #[arg(long, default_value_t = 2)]
    writers: u32,
    /// A file that gets a line for each round.
    #[arg(long)]
    ledger: Option<PathBuf>,
    /// All engines, a few seconds each.
    #[arg(long)]
    gate: bool,
    /// This is the process under test, in this round.
    #[arg(long, hide = true)]
    child: Option<u64>,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).ok_or_else(|| format!("{text} is no size"))
}

fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "sync" => Ok(Durability::Sync),
        "none" => Ok(Durability::None),
        "periodic" => Ok(Durability::Periodic(Duration::from_millis(100))),
        other => Err(format!("{other} is none of sync, none and periodic")),
    }
}

impl Arguments {
    fn folder(&self) -> &Path {
        self.data.as_deref().unwrap_or(Path::new("."))
    }

    fn options(&self) -> Options {
        let mut options = Options::new(self.folder().join("store"));
        options.engine = Some(self.engine);
        options.size_bytes = self.size;
        options.durability = self.durability;
        options.pmem_emulate =
            matches!(self.engine, EngineKind::FlatCceh | EngineKind::FlatMasstree);
        // Tables go to the space often, and little of it is in memory.
        options.flex.memtable_size_bytes = (self.size / 128).max(256 << 10);
        options.flex.cache_size_bytes = self.size / 32;
        options.record_cache_bytes = if self.seed.is_multiple_of(2) { 0 } else { self.size / 32 };
        options
    }

    fn keys(&self) -> u32 {
        let keys = self.size as f64 * self.fill / model::ITEM_SIZE as f64;
        keys as u32 / self.writers * self.writers
    }

    /// The arguments that make a process the one under test.
    fn of_child(&self, round: u64) -> Vec<String> {
        let durability = match self.durability {
            Durability::None => "none",
            Durability::Sync => "sync",
            _ => "periodic",
        };
        [
            ("--engine", self.engine.to_string()),
            ("--data", self.folder().display().to_string()),
            ("--seed", self.seed.to_string()),
            ("--durability", durability.to_owned()),
            ("--size", self.size.to_string()),
            ("--fill", self.fill.to_string()),
            ("--writers", self.writers.to_string()),
            ("--child", round.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.child {
        Some(round) => child::run(&arguments, round),
        None if arguments.gate => EngineKind::ALL.into_iter().try_for_each(|engine| {
            let mut gate = Arguments { engine, minutes: 0.1, round: 4.0, ..arguments.clone() };
            // Each size of a value has a chunk of its own in `flat`.
            let is_flat = matches!(engine, EngineKind::FlatCceh | EngineKind::FlatMasstree);
            (gate.size, gate.fill) = if is_flat { (256 << 20, 0.2) } else { (64 << 20, 0.6) };
            parent::run(&gate)
        }),
        None => parent::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            eprintln!("soak: {words}");
            ExitCode::FAILURE
        }
    }
}
