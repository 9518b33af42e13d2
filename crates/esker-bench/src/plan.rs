//! What is to be measured: one experiment, as in a file of `bench/configs` or on a command line.
//!
//! Lists are swept: every combination is measured. A plan unfolds into cells in the order A B A B: systems change
//! first, repetitions last, so that what drifts on the machine hits all systems alike.

use crate::document::{Document, FORMAT, Row};
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::machine::Machine;
use crate::runner::{Cell, Event, Stage};
use crate::system::{Durability, Registry};
use crate::workload::distribution::{Distribution, THETA};
use crate::workload::shape::{KeyShape, ValueShape};
use crate::workload::{Kind, Operation, Workload, catalogue};
use esker_base::clock::{Clock, SystemClock};
use esker_base::units::parse_size_bytes;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// An experiment. What is left out is as in [`Plan::defaults`]; `--config` and the command line are laid over
/// one another with [`Plan::over`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Plan {
    /// What it is called.
    pub title: Option<String>,
    /// What it shows, and where it comes from.
    pub about: Option<String>,
    /// Names of workloads; `ycsb` stands for all of YCSB.
    pub workload: Option<Vec<String>>,
    /// Names of systems.
    pub systems: Option<Vec<String>>,
    /// Records that are loaded.
    pub records: Option<u64>,
    /// Bytes of a key, in place of the workload's own.
    pub key_size: Option<usize>,
    /// Bytes of a value, in place of the workload's own; several are swept.
    pub value_size: Option<Vec<u64>>,
    /// Threads of clients.
    pub threads: Option<Vec<usize>>,
    /// Clients of each thread: requests in flight.
    pub depth: Option<Vec<usize>>,
    /// Length of the measured phase.
    pub seconds: Option<f64>,
    /// Length of the warm-up.
    pub warmup: Option<f64>,
    /// Ends the measured phase after so many operations instead. Of a trace: plays so many.
    pub operations: Option<u64>,
    /// What an acknowledgement promises.
    pub durability: Option<Vec<Durability>>,
    /// Memory of each system for caches and buffers: a size such as `64MiB`.
    pub cache: Option<String>,
    /// Memory of each system in all, its part of the page cache included: a size. Needs the right to make a control group.
    pub memory: Option<String>,
    /// Share of the capacity that live data take, in per cent.
    pub utilization: Option<Vec<f64>>,
    /// Per cent of the operations that write, in place of the workload's own mix.
    pub write_ratio: Option<Vec<f64>>,
    /// Distribution in place of the workload's own: see [`parse_distribution`].
    pub distribution: Option<String>,
    /// Operations per second of all clients, by the clock and not by what is answered; latencies count from when
    /// each was due.
    pub rate: Option<Vec<f64>>,
    /// How often everything is measured.
    pub repetitions: Option<u32>,
    /// Whether the page cache is bypassed by systems that can.
    pub direct: Option<bool>,
    /// Folder for the data, which are removed afterwards.
    pub data: Option<PathBuf>,
    /// Seed of every draw.
    pub seed: Option<u64>,
    /// Plays a trace at its own speed instead of as fast as it goes.
    pub trace_timing: Option<bool>,
}

/// One point of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "as in `Plan`")]
pub struct Settings {
    pub records: u64,
    pub threads: usize,
    pub depth: usize,
    pub seconds: f64,
    pub warmup_seconds: f64,
    pub operations: Option<u64>,
    pub durability: Durability,
    pub cache_bytes: u64,
    /// See [`MemoryGroup`](crate::memory::MemoryGroup): for who launches the cell.
    pub memory_bytes: Option<u64>,
    /// From 0 to 1.
    pub utilization: Option<f64>,
    pub rate: Option<f64>,
    pub direct: bool,
    pub data: PathBuf,
    pub seed: u64,
    pub trace_timing: bool,
}

macro_rules! over {
    ($upper:expr, $lower:expr, $($field:ident)*) => {
        Plan { $($field: $upper.$field.or($lower.$field)),* }
    };
}

impl Plan {
    /// A small run that ends within a minute or two.
    #[must_use]
    pub fn defaults() -> Plan {
        Plan {
            title: Some("esker bench".to_owned()),
            about: None,
            workload: Some(vec!["ycsb-a".to_owned()]),
            systems: Some(vec!["depot".to_owned()]),
            records: Some(100_000),
            key_size: None,
            value_size: None,
            threads: Some(vec![2]),
            depth: Some(vec![1]),
            seconds: Some(3.0),
            warmup: Some(1.0),
            operations: None,
            durability: Some(vec![Durability::Sync]),
            cache: Some("64MiB".to_owned()),
            memory: None,
            utilization: None,
            write_ratio: None,
            distribution: None,
            rate: None,
            repetitions: Some(3),
            direct: Some(true),
            data: None,
            seed: Some(1),
            trace_timing: None,
        }
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// Names and values without meaning, with their place.
    pub fn read(path: &Path) -> Outcome<Plan> {
        let text = files::read(path)?;
        toml::from_str(&text).map_err(|error| Failure::from(error).during(path.display()))
    }

    /// What this says, and below it what `lower` says.
    #[must_use]
    pub fn over(self, lower: Plan) -> Plan {
        over!(self, lower,
            title about workload systems records key_size value_size threads depth seconds warmup
            operations durability cache memory utilization write_ratio distribution rate repetitions direct
            data seed trace_timing)
    }

    /// The folder for data.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(|| PathBuf::from("./esker-bench-data"))
    }

    /// Every workload, as it is to run.
    ///
    /// # Errors
    /// Names without meaning.
    pub fn workloads(&self) -> Outcome<Vec<Workload>> {
        let distribution = self.distribution.as_deref().map(parse_distribution).transpose()?;
        let names = self.workload.iter().flatten().flat_map(|name| catalogue::expand(name));
        let mut all: Vec<Workload> = Vec::new();
        for name in names {
            let mut workload = catalogue::named(&name)?;
            if let Some(distribution) = distribution {
                workload.distribution = distribution;
            }
            if let Some(size) = self.key_size {
                if size < 8 || (size < 16 && name.starts_with("trace")) {
                    return Err(Failure::new("keys have at least 8 bytes"));
                }
                workload.keys = KeyShape::Fixed(size);
            }
            all.push(workload);
        }
        // What adds keys comes last, as YCSB asks for.
        all.sort_by_key(|workload| workload.grows);
        Ok(all)
    }

    /// All cells, in the order in which they run.
    ///
    /// # Errors
    /// Values without meaning.
    pub fn cells(&self, data: &Path) -> Outcome<Vec<Cell>> {
        let size = |what: &str, text: &str| {
            parse_size_bytes(text)
                .ok_or_else(|| Failure::new(format!("{what}: {text:?} is no size")))
        };
        let cache_bytes = size("cache", self.cache.as_deref().unwrap_or("64MiB"))?;
        let memory_bytes = self.memory.as_deref().map(|text| size("memory", text)).transpose()?;
        if self.records.is_some_and(|records| !(1..=RECORDS_MAX).contains(&records)) {
            return Err(Failure::new(format!("records: from 1 to {RECORDS_MAX}")));
        }
        if self.key_size.is_some_and(|bytes| bytes > KEY_SIZE_MAX) {
            return Err(Failure::new(format!("key size: {KEY_SIZE_MAX} bytes at most")));
        }
        if self.value_size.iter().flatten().any(|bytes| *bytes > VALUE_SIZE_MAX) {
            return Err(Failure::new(format!("value size: {VALUE_SIZE_MAX} bytes at most")));
        }
        let base = Settings {
            records: self.records.unwrap_or(1),
            threads: 1,
            depth: 1,
            seconds: positive("seconds", self.seconds.unwrap_or(1.0))?,
            warmup_seconds: not_negative("warmup", self.warmup.unwrap_or(0.0))?,
            operations: self.operations,
            durability: Durability::Sync,
            cache_bytes,
            memory_bytes,
            utilization: None,
            rate: None,
            direct: self.direct.unwrap_or(true),
            data: data.to_owned(),
            seed: self.seed.unwrap_or(1),
            trace_timing: self.trace_timing.unwrap_or(false),
        };
        let points = self.points(&base)?;
        let families = self.families()?;
        let mut cells = Vec::new();
        for repetition in 0..self.repetitions.unwrap_or(1).max(1) {
            for settings in &points {
                for workloads in &families {
                    for system in self.systems.iter().flatten() {
                        let stages: &[Stage] = match workloads.first().map(|first| &first.kind) {
                            Some(Kind::Recovery) => &[Stage::LoadAndLeave, Stage::Recover],
                            _ => &[Stage::Whole],
                        };
                        cells.extend(stages.iter().map(|stage| Cell {
                            system: system.clone(),
                            workloads: workloads.clone(),
                            settings: settings.clone(),
                            repetition,
                            stage: *stage,
                        }));
                    }
                }
            }
        }
        Ok(cells)
    }

    /// The points of the sweep.
    fn points(&self, base: &Settings) -> Outcome<Vec<Settings>> {
        let some = |list: &Option<Vec<f64>>| -> Vec<Option<f64>> {
            match list {
                Some(list) => list.iter().copied().map(Some).collect(),
                None => vec![None],
            }
        };
        let mut points = Vec::new();
        for durability in self.durability.iter().flatten() {
            for utilization in some(&self.utilization) {
                if utilization.is_some_and(|share| !(1.0..=95.0).contains(&share)) {
                    return Err(Failure::new("utilization: from 1 to 95 per cent"));
                }
                for threads in self.threads.iter().flatten() {
                    for depth in self.depth.iter().flatten() {
                        if *threads == 0 || *depth == 0 || threads.saturating_mul(*depth) > 4096 {
                            return Err(Failure::new("threads and depth: from 1 to 4096 clients"));
                        }
                        for rate in some(&self.rate) {
                            rate.map(|rate| positive("rate", rate)).transpose()?;
                            points.push(Settings {
                                durability: *durability,
                                utilization: utilization.map(|share| share / 100.0),
                                threads: *threads,
                                depth: *depth,
                                rate,
                                ..base.clone()
                            });
                        }
                    }
                }
            }
        }
        Ok(points)
    }

    /// Workloads that can share a load, each with its variants of sizes and mixes.
    fn families(&self) -> Outcome<Vec<Vec<Workload>>> {
        let mut families: Vec<Vec<Workload>> = Vec::new();
        let sizes: Vec<Option<u64>> = match &self.value_size {
            Some(sizes) => sizes.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        let workloads = self.workloads()?;
        for size in sizes {
            let start = families.len();
            for workload in &workloads {
                let mut workload = workload.clone();
                if let Some(bytes) = size {
                    workload.values = ValueShape::Fixed(bytes);
                }
                let variants = self.mixes(workload)?;
                for workload in variants {
                    let place = families.iter_mut().skip(start).find(|family| {
                        family.first().is_some_and(|first| share_data(first, &workload))
                    });
                    match place {
                        Some(family) => family.push(workload),
                        None => families.push(vec![workload]),
                    }
                }
            }
        }
        Ok(families)
    }

    fn mixes(&self, workload: Workload) -> Outcome<Vec<Workload>> {
        let (Kind::Requests(_), Some(ratios)) = (&workload.kind, &self.write_ratio) else {
            return Ok(vec![workload]);
        };
        ratios
            .iter()
            .map(|ratio| {
                if !(0.0..=100.0).contains(ratio) {
                    return Err(Failure::new("write-ratio: from 0 to 100 per cent"));
                }
                let share = ratio / 100.0;
                let mix = vec![(Operation::Read, 1.0 - share), (Operation::Update, share)];
                Ok(Workload { kind: Kind::Requests(mix), ..workload.clone() })
            })
            .collect()
    }
}

/// Records of a run, at most.
pub const RECORDS_MAX: u64 = 1 << 40;
/// Bytes of a key, at most: more than systems take.
pub const KEY_SIZE_MAX: usize = 64 << 10;
/// Bytes of a value, at most.
pub const VALUE_SIZE_MAX: u64 = 1 << 30;
/// More than any rate, and than any number of seconds: a time has an end.
const NUMBER_MAX: f64 = 1e9;

fn positive(what: &str, value: f64) -> Outcome<f64> {
    if value > 0.0 && value < NUMBER_MAX {
        return Ok(value);
    }
    Err(Failure::new(format!("{what}: {value} is not between 0 and {NUMBER_MAX}")))
}

fn not_negative(what: &str, value: f64) -> Outcome<f64> {
    if value == 0.0 { Ok(value) } else { positive(what, value) }
}

/// Whether two workloads can run on the same data, one after another.
fn share_data(one: &Workload, other: &Workload) -> bool {
    let alone = |workload: &Workload| matches!(workload.kind, Kind::Recovery | Kind::Trace(_));
    let sequential = |workload: &Workload| workload.distribution == Distribution::Sequential;
    !alone(one)
        && !alone(other)
        && one.keys == other.keys
        && one.values == other.values
        && sequential(one) == sequential(other)
}

/// Reads `uniform`, `zipfian`, `zipfian:THETA`, `clustered`, `latest`, `hotspot:KEYS:REQUESTS`, `exponential`,
/// `sequential`, `composite`.
///
/// # Errors
/// Anything else.
pub fn parse_distribution(text: &str) -> Outcome<Distribution> {
    let mut words = text.split(':');
    let name = words.next().unwrap_or_default();
    let numbers: Vec<f64> = words
        .map(|word| word.parse().map_err(|_| Failure::new(format!("{word:?} is no number"))))
        .collect::<Outcome<_>>()?;
    let number = |place: usize, default: f64| numbers.get(place).copied().unwrap_or(default);
    let theta = number(0, THETA);
    let between = |value: f64| value > 0.0 && value < 1.0;
    let skewed = |distribution| match between(theta) {
        true => Ok(distribution),
        false => Err(Failure::new(format!("{text}: skew is above 0 and below 1"))),
    };
    match name {
        "uniform" => Ok(Distribution::Uniform),
        "zipfian" => skewed(Distribution::Zipfian { theta }),
        "clustered" => skewed(Distribution::Clustered { theta }),
        "latest" => skewed(Distribution::Latest { theta }),
        "composite" => skewed(Distribution::Composite { theta }),
        "sequential" => Ok(Distribution::Sequential),
        // The defaults of YCSB's properties.
        "hotspot" => Ok(Distribution::Hotspot { keys: number(0, 0.2), requests: number(1, 0.8) }),
        "exponential" => Ok(Distribution::Exponential {
            percentile: number(0, 95.0),
            keys: number(1, 0.857_142_857_1),
        }),
        _ => Err(Failure::new(format!(
            "no distribution {text:?}; there are uniform, zipfian, clustered, latest, hotspot, exponential, \
             sequential, composite"
        ))),
    }
}

/// Runs a plan. `launch` runs one cell, in this process or in one of its own, and passes on what it tells; `tell`
/// hears all of it, with the number of the cell and of all cells. A cell that fails leaves a row that says why,
/// and the run goes on.
///
/// # Errors
/// Plans without meaning, and folders.
pub fn run(
    plan: &Plan,
    registry: &Registry,
    program: &str,
    mut launch: impl FnMut(&Cell, &mut dyn FnMut(Event)) -> Outcome<()>,
    mut tell: impl FnMut(usize, usize, &Event),
) -> Outcome<Document> {
    let folder = plan.folder();
    for system in plan.systems.iter().flatten() {
        registry.find(system)?;
    }
    let cells = plan.cells(&folder)?;
    files::create_folder(&folder)?;
    let mut document = Document {
        format: FORMAT,
        title: plan.title.clone().unwrap_or_default(),
        program: program.to_owned(),
        began_at: SystemClock.unix_seconds(),
        took_seconds: 0.0,
        machine: Machine::examine(&folder),
        options: serde_json::to_value(plan)?,
        rows: Vec::new(),
    };
    let start = SystemClock.monotonic();
    for (place, cell) in cells.iter().enumerate() {
        let mut heard = |event: Event| {
            tell(place, cells.len(), &event);
            if let Event::Row(row) = event {
                document.rows.push(*row);
            }
        };
        if let Err(failure) = launch(cell, &mut heard) {
            heard(Event::Row(Box::new(failed(cell, &failure))));
        }
    }
    document.took_seconds = (SystemClock.monotonic() - start).as_secs_f64();
    Ok(document)
}

/// Words in front of why a cell failed, as against one that was left out.
pub const FAILED: &str = "failed: ";

fn failed(cell: &Cell, failure: &Failure) -> Row {
    let first = cell.workloads.first();
    Row {
        system: cell.system.clone(),
        workload: first.map(|workload| workload.name.clone()).unwrap_or_default(),
        phase: "run".to_owned(),
        durability: Some(cell.settings.durability),
        threads: cell.settings.threads,
        depth: cell.settings.depth,
        records: cell.settings.records,
        utilization: cell.settings.utilization,
        rate: cell.settings.rate,
        repetition: cell.repetition,
        skipped: Some(format!("{FAILED}{failure}")),
        ..Row::default()
    }
}

#[cfg(test)]
mod tests;
