//! The phases of a cell, and what is noted of each.

use super::client::{self, Phase, Tally};
use super::ends::Ends;
use super::watch::Watch;
use crate::document::{OperationFigures, Row};
use crate::failure::{Failure, Outcome};
use crate::figures::{Memory, Meter, Snapshot, load_average};
use crate::files;
use crate::numbers::{nanos, real, size, whole};
use crate::place::OwnFolder;
use crate::plan::Settings;
use crate::system::{Counters, Durability, OpenOptions, Registry, System, SystemKind};
use crate::workload::distribution::Distribution;
use crate::workload::shape::{Filler, KeyShape, ValueShape};
use crate::workload::space::KeySpace;
use crate::workload::stream::{phase_seed, write_share};
use crate::workload::trace::{Trace, TraceSizes};
use crate::workload::{Kind, Operation, Order, Workload};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// One system in one setting, with the workloads that share its data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the system, with its variant.
    pub system: String,
    /// What is asked of it, one after another; all have the same keys and values.
    pub workloads: Vec<Workload>,
    /// The setting.
    pub settings: Settings,
    /// Number of the repetition, from 0.
    pub repetition: u32,
    /// What this process does of it.
    pub stage: Stage,
}

/// Part of a cell that one process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// All of it.
    Whole,
    /// Loads, syncs, and leaves the store open: the process ends without closing it.
    LoadAndLeave,
    /// Opens what [`Stage::LoadAndLeave`] left.
    Recover,
}

/// What a runner says while it works.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A phase begins; its length in `all`, in operations, or in milliseconds if `timed`.
    Begin {
        /// In words.
        what: String,
        /// Its length.
        all: u64,
        /// Whether that is milliseconds.
        timed: bool,
    },
    /// How far it is, and operations per second so far.
    Progress {
        /// As `all`.
        done: u64,
        /// Operations per second.
        rate: f64,
    },
    /// Figures.
    Row(Box<Row>),
}

/// Intervals of a row's timeline.
const INTERVALS: u32 = 120;
const INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Time that clients get to be ready before a phase begins.
const START_DELAY: Duration = Duration::from_millis(30);
const POLL: Duration = Duration::from_millis(20);
/// Keys that are read back after a recovery.
const RECOVERY_SAMPLE: u64 = 10_000;

struct Runner<'a> {
    cell: &'a Cell,
    kind: &'a SystemKind,
    folder: OwnFolder,
    open: OpenOptions,
    filler: Arc<Filler>,
    trace: Option<Arc<Trace>>,
    /// What it writes.
    told: Option<TraceSizes>,
    tell: &'a mut dyn FnMut(Event),
}

/// What a phase came to.
struct Ran {
    tally: Tally,
    used: Snapshot,
    counted: Counters,
    /// Time of the sync at its end.
    settled: Duration,
}

/// Runs a cell, and tells what happens.
///
/// # Errors
/// Systems that are not in this build, those that fail or give wrong answers, folders.
pub fn run(cell: &Cell, registry: &Registry, tell: &mut dyn FnMut(Event)) -> Outcome<()> {
    let (kind, variant) = registry.find(&cell.system)?;
    let settings = &cell.settings;
    let Some(first) = cell.workloads.first() else { return Ok(()) };
    let trace = match &first.kind {
        Kind::Trace(path) => Some(Arc::new(Trace::read(path, settings.operations)?)),
        _ => None,
    };
    let value_size_max = match (&trace, first.values) {
        (Some(trace), _) => trace.value_size_max(),
        (None, ValueShape::Fixed(bytes)) => bytes,
        (None, ValueShape::Uniform { max, .. }) => max,
        (None, ValueShape::Etc) => crate::workload::shape::ETC_LARGE.1,
    };
    let told = trace.as_ref().map(|trace| trace.sizes());
    let records = told.map_or(settings.records, |told| told.records);
    let sizes = match told {
        Some(told) => (told.key_bytes / records.max(1), told.value_bytes.div_ceil(records.max(1))),
        None => (first.keys.size_mean(), first.values.size_mean()),
    };
    let data_bytes = match told {
        Some(told) => told.key_bytes + told.value_bytes,
        None => records * (sizes.0 + sizes.1),
    };
    let folder = OwnFolder::of_cell(&settings.data);
    let open = OpenOptions {
        folder: folder.data(),
        durability: settings.durability,
        cache_bytes: settings.cache_bytes,
        records,
        data_bytes,
        utilization: settings.utilization,
        record_size_bytes: sizes,
        threads: settings.threads,
        depth: settings.depth,
        direct: settings.direct,
        variant,
    };
    let filler = Arc::new(Filler::new(settings.seed, value_size_max));
    let mut runner = Runner { cell, kind, folder, open, filler, trace, told, tell };
    let workloads = runner.possible(value_size_max);
    let done = match cell.stage {
        _ if workloads.is_empty() => return Ok(()),
        Stage::Whole => runner.whole(&workloads),
        Stage::LoadAndLeave => runner.load_and_leave(first),
        Stage::Recover => runner.recover(first),
    };
    let done = done.map_err(|failure| failure.during(&cell.system));
    if cell.stage != Stage::LoadAndLeave || done.is_err() {
        // Why the cell failed says more than why its folder stays.
        return done.and(runner.folder.remove());
    }
    done
}

impl Runner<'_> {
    /// The workloads that the system can run; rows say why it cannot run the others.
    fn possible(&mut self, value_size_max: u64) -> Vec<Workload> {
        let mut possible = Vec::new();
        let ordered = (self.kind.ordered)(self.open.variant.as_deref());
        for workload in &self.cell.workloads {
            let why = if workload.needs_order() && !ordered {
                Some("keeps no order")
            } else if self.open.utilization.is_some() && !self.kind.fixed_capacity {
                Some("has no fixed capacity")
            } else if workload.kind == Kind::Recovery && !self.kind.persistent {
                Some("keeps nothing when it is closed")
            } else if !self.kind.promises.contains(&self.open.durability) {
                Some("does not promise this durability")
            } else if value_size_max > self.kind.value_size_max {
                Some("takes no values of this size")
            } else {
                None
            };
            match why {
                None => possible.push(workload.clone()),
                Some(why) => {
                    let mut row = self.row(workload, "run");
                    row.skipped = Some(why.to_owned());
                    (self.tell)(Event::Row(Box::new(row)));
                }
            }
        }
        possible
    }

    fn row(&self, workload: &Workload, phase: &str) -> Row {
        let settings = &self.cell.settings;
        let share = match &workload.kind {
            Kind::Requests(mix) => write_share(mix),
            Kind::Fill(_) => 1.0,
            Kind::Recovery | Kind::Trace(_) => 0.0,
        };
        let of_workload = (workload.keys.size_mean(), workload.values.size_mean());
        let (sizes, share) = match self.told {
            Some(told) => (self.open.record_size_bytes, told.write_share),
            None => (of_workload, share),
        };
        Row {
            system: self.cell.system.clone(),
            workload: workload.name.clone(),
            phase: phase.to_owned(),
            durability: Some(settings.durability),
            threads: settings.threads,
            depth: settings.depth,
            records: self.open.records,
            key_size: sizes.0,
            value_size: sizes.1,
            write_share: share,
            utilization: settings.utilization,
            rate: settings.rate,
            repetition: self.cell.repetition,
            ..Row::default()
        }
    }

    fn opened(&self, durability: Durability) -> Outcome<Box<dyn System>> {
        (self.kind.open)(&OpenOptions { durability, ..self.open.clone() })
    }

    fn whole(&mut self, workloads: &[Workload]) -> Outcome<()> {
        for workload in workloads.iter().filter(|workload| !workload.needs_load()) {
            self.folder.renew()?;
            let system = self.opened(self.cell.settings.durability)?;
            let space = Arc::new(KeySpace::new(self.cell.settings.records));
            let phase = if self.trace.is_some() { "run" } else { "fill" };
            let row = self.measure(&*system, workload, &space, phase)?;
            system.close()?;
            (self.tell)(Event::Row(Box::new(row)));
        }
        let loaded: Vec<&Workload> =
            workloads.iter().filter(|workload| workload.needs_load()).collect();
        let Some(first) = loaded.first() else { return Ok(()) };
        let space = Arc::new(KeySpace::new(self.cell.settings.records));
        let system = self.load(first, &space)?;
        let system = self.reopen(system, first)?;
        for workload in loaded {
            let row = self.measure(&*system, workload, &space, "run")?;
            (self.tell)(Event::Row(Box::new(row)));
        }
        system.close()
    }

    /// Puts all records into an empty store, without waiting for durability, and syncs.
    fn load(&mut self, like: &Workload, space: &Arc<KeySpace>) -> Outcome<Box<dyn System>> {
        self.folder.renew()?;
        let system = self.opened(Durability::None)?;
        let order = match like.distribution {
            Distribution::Sequential => Order::Sequential,
            // YCSB's keys are scattered already; others are put in scattered order.
            _ if like.keys == KeyShape::Ycsb => Order::Sequential,
            _ => Order::Scattered,
        };
        let workload = Workload {
            name: self.load_name(like),
            kind: Kind::Fill(order),
            grows: false,
            ..like.clone()
        };
        let mut row = self.measure(&*system, &workload, space, "load")?;
        row.durability = Some(Durability::None);
        (self.tell)(Event::Row(Box::new(row)));
        Ok(system)
    }

    /// One name for the load of all workloads of a family.
    fn load_name(&self, like: &Workload) -> String {
        match like.name.split_once('-') {
            Some((family, _)) => family.to_owned(),
            None => like.name.clone(),
        }
    }

    /// Closes and opens with the durability that is to be measured.
    fn reopen(&mut self, system: Box<dyn System>, like: &Workload) -> Outcome<Box<dyn System>> {
        if !self.kind.persistent {
            return Ok(system);
        }
        system.close()?;
        let start = SystemClock.monotonic();
        let system = self.opened(self.cell.settings.durability)?;
        let mut row = self.row(like, "open");
        row.workload = self.load_name(like);
        self.opened_in(&mut row, SystemClock.monotonic().saturating_sub(start), &*system);
        (self.tell)(Event::Row(Box::new(row)));
        Ok(system)
    }

    /// Notes how long an open took: records per second.
    fn opened_in(&self, row: &mut Row, took: Duration, system: &dyn System) {
        row.ops = self.cell.settings.records;
        row.write_share = 0.0;
        row.seconds = took.as_secs_f64();
        row.ops_per_second = real(row.ops) / row.seconds.max(1e-9);
        self.note_end(row, system, &Counters::new());
    }

    fn load_and_leave(&mut self, workload: &Workload) -> Outcome<()> {
        let space = Arc::new(KeySpace::new(self.cell.settings.records));
        let system = self.load(workload, &space)?;
        let system = self.reopen(system, workload)?;
        // Some writes of this session, so that there is something to recover beside what was closed.
        let fresh = Workload {
            name: "recovery-writes".to_owned(),
            kind: Kind::Requests(vec![(Operation::Update, 1.0)]),
            ..workload.clone()
        };
        let row = self.measure(&*system, &fresh, &space, "run")?;
        (self.tell)(Event::Row(Box::new(row)));
        system.sync()?;
        // The process ends with the system open. Its memory goes with it.
        Box::leak(Box::new(system));
        Ok(())
    }

    fn recover(&mut self, workload: &Workload) -> Outcome<()> {
        let start = SystemClock.monotonic();
        let system = self.opened(self.cell.settings.durability)?;
        let took = SystemClock.monotonic().saturating_sub(start);
        let mut session = system.session()?;
        let (mut key, mut right) = (Vec::new(), false);
        let records = self.cell.settings.records;
        for number in (0..records).step_by(size(records / RECOVERY_SAMPLE).max(1)) {
            workload.keys.write(number, &mut key);
            let length = workload.values.size(number);
            let found =
                session.read(&key, &mut |value| right = Filler::is_right(number, length, value))?;
            if !found || !right {
                return Err(Failure::new(format!("wrong answer: key {number} after a recovery")));
            }
        }
        drop(session);
        let mut row = self.row(workload, "recover");
        self.opened_in(&mut row, took, &*system);
        (self.tell)(Event::Row(Box::new(row)));
        system.close()
    }

    /// Warm-up and measured phase of one workload.
    fn measure(
        &mut self,
        system: &dyn System,
        workload: &Workload,
        space: &Arc<KeySpace>,
        name: &str,
    ) -> Outcome<Row> {
        let settings = &self.cell.settings;
        let clients = (settings.threads * settings.depth).max(1) as u64;
        let timed = matches!(workload.kind, Kind::Requests(_));
        let keys = if timed { space.count() } else { settings.records };
        let ends = Ends::of(workload, keys);
        let warmup = Duration::from_secs_f64(if timed { settings.warmup_seconds } else { 0.0 });
        let seconds = Duration::from_secs_f64(settings.seconds);
        let watch = Watch::new();
        let begin = watch.now() + START_DELAY;
        let measure_from = begin + warmup;
        let (operations, end) = match (timed, settings.operations) {
            (false, _) => (None, None),
            (true, Some(operations)) => (Some(operations), None),
            (true, None) => (None, Some(measure_from + seconds)),
        };
        let interval = ((warmup + seconds) / INTERVALS).max(INTERVAL_MIN);
        let seed = settings.seed.wrapping_add(u64::from(self.cell.repetition) << 8);
        let phase = Arc::new(Phase {
            workload: workload.clone(),
            space: Arc::clone(space),
            filler: Arc::clone(&self.filler),
            trace: self.trace.clone(),
            trace_timing: settings.trace_timing,
            records: settings.records,
            keys,
            ends,
            seed: match &workload.kind {
                Kind::Requests(mix) => phase_seed(seed, &format!("{} {mix:?}", workload.name)),
                _ => seed,
            },
            clients,
            checks_values: self.kind.keeps_values,
            rate: settings.rate.filter(|_| name == "run"),
            operations,
            watch,
            begin,
            measure_from,
            end,
            interval,
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
            finished: AtomicU64::new(0),
        });
        let all = match (&self.trace, end, operations) {
            (Some(trace), ..) => trace.requests().len() as u64,
            (None, Some(end), _) => millis(end.saturating_sub(begin)),
            (None, None, operations) => operations.unwrap_or(settings.records),
        };
        let what = format!("{} {} {name}", self.cell.system, workload.name);
        (self.tell)(Event::Begin { what, all, timed: end.is_some() });
        let Ran { tally, used, counted, settled } = self.run_clients(system, &phase)?;
        let mut row = self.row(workload, name);
        row.settle_seconds = settled.as_secs_f64();
        // Those who had to wait past its end belong to the phase, and so does their time.
        let last = end.map_or(tally.last, |end| end.max(tally.last)).max(measure_from);
        self.note(&mut row, &tally, last.saturating_sub(measure_from), interval)?;
        row.warmup_seconds = warmup.as_secs_f64();
        self.note_kernel(&mut row, &used);
        self.note_end(&mut row, system, &counted);
        if tally.unsent > 0 {
            row.counters.insert("unsent_total".to_owned(), real(tally.unsent));
        }
        Ok(row)
    }

    /// Runs the clients; what the kernel and the system counted belongs to the measured part, the sync at its
    /// end included.
    fn run_clients(&mut self, system: &dyn System, phase: &Arc<Phase>) -> Outcome<Ran> {
        let meter = Meter::of(&self.open.folder);
        let mut before: Option<(Snapshot, Counters)> = None;
        let tell = &mut *self.tell;
        // Watches over the clients until all are done.
        let mut watch = |phase: &Phase| {
            while phase.finished.load(Ordering::Acquire) < phase.clients {
                let now = phase.watch.now();
                if before.is_none() && now >= phase.measure_from {
                    before = Some((meter.read(), system.counters()));
                }
                let since = now.saturating_sub(phase.begin);
                let ops = phase.done.load(Ordering::Relaxed);
                let done = if phase.end.is_some() { millis(since) } else { ops };
                let rate = real(ops) / since.as_secs_f64().max(1e-3);
                tell(Event::Progress { done, rate });
                let wait = match before {
                    None => phase.measure_from.saturating_sub(now).min(POLL),
                    Some(_) => POLL,
                };
                esker_trt::sleep(wait);
            }
        };
        let tallies: Vec<Outcome<Tally>> = match system.runtime() {
            None => std::thread::scope(|scope| {
                let clients: Vec<_> = (0..phase.clients)
                    .map(|number| {
                        scope.spawn(move || client::run(phase, || system.session(), number))
                    })
                    .collect();
                watch(phase);
                let joined = clients.into_iter().map(|client| {
                    client.join().unwrap_or_else(|_| Err(Failure::new("a client panicked")))
                });
                joined.collect()
            }),
            Some(runtime) => {
                // A task may outlive this call as far as the compiler knows, so it gets its session ready-made.
                let joins: Vec<_> = (0..phase.clients)
                    .map(|number| {
                        let phase = Arc::clone(phase);
                        let cores = runtime.cores() as u64;
                        let core = CoreId(u16::try_from(number % cores.max(1)).unwrap_or(0));
                        let session = system.session();
                        runtime.spawn_on(core, move || client::run(&phase, || session, number))
                    })
                    .collect();
                watch(phase);
                joins.into_iter().map(|join| join.join()?).collect()
            }
        };
        // What is in memory yet is part of the price in bytes, not in time.
        let settle = SystemClock.monotonic();
        system.sync()?;
        let settled = SystemClock.monotonic().saturating_sub(settle);
        let (snapshot, counters) = before.unwrap_or_else(|| (meter.read(), system.counters()));
        let used = meter.read().since(&snapshot);
        let counted = difference(system.counters(), &counters);
        let mut tally = Tally::default();
        for one in tallies {
            tally.add(one?)?;
        }
        Ok(Ran { tally, used, counted, settled })
    }

    fn note(
        &self,
        row: &mut Row,
        tally: &Tally,
        length: Duration,
        interval: Duration,
    ) -> Outcome<()> {
        row.ops = tally.ops;
        row.seconds = length.as_secs_f64();
        row.ops_per_second = real(row.ops) / row.seconds.max(1e-9);
        row.user_bytes = tally.user_bytes;
        row.user_read_bytes = tally.user_read_bytes;
        let mut all = Histogram::<u64>::new(3)?;
        for (operation, histogram) in &tally.latencies {
            all.add(histogram)?;
            let figures = OperationFigures::of(histogram);
            row.operations.insert(operation.name().to_owned(), figures);
        }
        row.note_latencies(&all);
        row.timeline_seconds = interval.as_secs_f64();
        row.timeline =
            tally.timeline.iter().map(|ops| (real(*ops) / row.timeline_seconds).round()).collect();
        // The last interval is cut short, so its rate is not one.
        row.timeline.pop();
        Ok(())
    }

    fn note_kernel(&self, row: &mut Row, used: &Snapshot) {
        row.device_write_bytes = used.device_write_bytes;
        row.device_read_bytes = used.device_read_bytes;
        row.device_flushes = used.device_flushes;
        row.process_write_bytes = Some(used.process_write_bytes);
        row.process_read_bytes = Some(used.process_read_bytes);
        row.cpu_seconds = Some(used.cpu_seconds);
        row.cpu_seconds_per_million_ops =
            (row.ops > 0).then(|| used.cpu_seconds * 1e6 / real(row.ops));
    }

    fn note_end(&self, row: &mut Row, system: &dyn System, counted: &Counters) {
        let memory = Memory::read();
        row.rss_bytes = memory.rss_bytes;
        row.anonymous_bytes = memory.anonymous_bytes;
        row.disk_bytes = self.kind.persistent.then(|| files::disk_usage_bytes(&self.open.folder));
        row.load_average = load_average();
        row.options = system.options();
        row.counters = counted.clone();
        // What an engine on persistent memory counts itself.
        let per_op = |name: &str| counted.get(name).map(|count| count / real(row.ops.max(1)));
        let figures = ["flushed_lines_total", "fences_total", "media_blocks_total"].map(per_op);
        [row.pm_flushes_per_op, row.pm_fences_per_op, row.pm_blocks_per_op] = figures;
    }
}

/// What was added to totals; other numbers as they are now.
fn difference(now: Counters, before: &Counters) -> Counters {
    now.into_iter()
        .map(|(name, value)| {
            let earlier = before.get(&name).filter(|_| name.ends_with("_total"));
            (name, value - earlier.unwrap_or(&0.0))
        })
        .collect()
}

fn millis(time: Duration) -> u64 {
    whole(real(nanos(time)) / 1e6)
}
