//! The simulations of an exploration: one workload, and one recovery.

use super::medium::{CrashReplay, Medium};
use super::{Config, Outcome, Subject, is_refusal, reply_of, wrong};
use crate::generator::{Generator, Op};
use crate::model::{Allowed, History, Map, Model, Reply};
use crate::versions::{Known, told};
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use esker_media::sim::{FaultPlan, Image, Initial, SiteVisits};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations after a recovery, before the next cut.
const FOLLOW_UP_OPS: usize = 10;

/// What a workload did.
pub(super) struct Workload<M: Medium> {
    pub(super) trace: M::Trace,
    pub(super) visits: SiteVisits,
    pub(super) history: History,
    /// Position at which the fresh store was open; `u64::MAX` if it never was.
    pub(super) opened_at: u64,
    pub(super) recycled: bool,
    /// What the store holds that was there before, if there was one.
    pub(super) before: Option<Map>,
    pub(super) sim_hash: u64,
    pub(super) outcome: std::result::Result<(), Failure>,
    /// Calls of the device that failed by plan.
    pub(super) faults_fired: u64,
    /// What the clock showed in the end, in seconds.
    pub(super) time: u64,
}

/// What a recovery is to do.
pub(super) struct Task {
    /// Keep a recording.
    pub(super) record: bool,
    /// Recover again, go on and cut the power again: what clients know from before.
    pub(super) follow_up: Option<Known>,
    /// What the clock shows, in seconds.
    pub(super) time: u64,
}

impl Task {
    /// Only a recovery.
    pub(super) fn plain(time: u64) -> Task {
        Task { record: false, follow_up: None, time }
    }
}

/// What a recovery did.
pub(super) struct Recovery<M: Medium> {
    pub(super) outcome: Outcome,
    /// Position at which the content had been read.
    pub(super) dumped_at: u64,
    /// The recording up to there, if it was asked for.
    pub(super) trace: Option<M::Trace>,
    pub(super) follow_up: std::result::Result<(), String>,
    pub(super) visits: SiteVisits,
    /// What the clock showed, in seconds.
    pub(super) time: u64,
}

/// The simulated medium of a subject, and its recording.
type SimOf<S> = <<S as Subject>::Medium as Medium>::Sim;
type TraceOf<S> = <<S as Subject>::Medium as Medium>::Trace;

/// Why a simulation came to nothing.
#[derive(Debug)]
pub(super) struct Failure {
    /// The store answered with it. A panic is no answer, nor is it one if somebody waits for ever.
    pub(super) is_answer: bool,
    words: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

fn words(error: &Error) -> String {
    match error.kind() {
        ErrorKind::Panicked => format!("panicked: {error}"),
        _ => error.to_string(),
    }
}

/// What a simulation's body came to: the outer error is that of the simulation, which its body did not end.
fn ended<T>(outcome: Result<Result<T>>) -> std::result::Result<T, Failure> {
    let (is_answer, error) = match outcome {
        Ok(Ok(done)) => return Ok(done),
        // A panic of another task than the body's comes so.
        Ok(Err(error)) => (error.kind() != ErrorKind::Panicked, error),
        Err(error) => (false, error),
    };
    Err(Failure { is_answer, words: words(&error) })
}

/// What an operation's result means for the model.
///
/// # Errors
/// An error that only a medium could make, where that does not fail (`tolerant`: where it may).
fn answer<S: Subject>(
    subject: &S,
    op: &Op,
    result: Result<Reply>,
    tolerant: bool,
) -> Result<Reply> {
    match result {
        Err(error) if tolerant && subject.fault_refuses(&error) => Ok(Reply::Refused),
        Err(error) if !tolerant && !is_refusal(&error) => {
            Err(wrong(format!("{op:?} failed: {}", words(&error))))
        }
        result => Ok(reply_of(result)),
    }
}

/// Runs the workload of `seed`. More than half of the seeds begin on what another left behind, some of them by going on with
/// the store that is there.
pub(super) fn workload<S: Subject>(subject: &S, config: &Config, seed: u64) -> Workload<S::Medium> {
    let mut rng = Rng::from_seed(seed ^ 0xBB67_AE85_84CA_A73B);
    let (initial, begin) = match rng.below(10) {
        0 => (Initial::Zeros, Begin::Anew),
        1 => (Initial::Ones, Begin::Anew),
        2 => (Initial::Random, Begin::Anew),
        number => {
            // What is left of another run: its content at a crash somewhere, or at its end.
            let seed = rng.next_u64();
            let none = FaultPlan::none();
            let earlier = run_tasks(subject, config, seed, Initial::Zeros, Begin::Anew, none);
            let mut replay = S::Medium::replay(&earlier.trace);
            let (_, end) = S::Medium::trace_length(&earlier.trace);
            let (from, begin) = match number < 7 || earlier.outcome.is_err() {
                true => (0, Begin::Anew),
                false => (earlier.opened_at, Begin::There),
            };
            let cut = if number % 3 == 0 { end } else { from + rng.below(end - from + 1) };
            replay.advance_to(cut);
            (Initial::Recycled(replay.random_image(rng.next_u64())), begin)
        }
    };
    let before = match &initial {
        Initial::Recycled(image) => {
            recover(subject, config, image.clone(), seed, Task::plain(0)).outcome.ok()
        }
        _ => None,
    };
    let workload = run_tasks(subject, config, seed, initial, begin, FaultPlan::none());
    Workload { before, ..workload }
}

/// What a workload begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// A new store, whatever is there.
    Anew,
    /// The store that is there.
    There,
}

/// What the tasks of a workload share.
struct Shared<S: Subject> {
    subject: S,
    device: Arc<SimOf<S>>,
    store: RefCell<Option<Rc<S::Store>>>,
    /// Kept where it outlives tasks that never end: what was acknowledged before is judged, too.
    history: Arc<Mutex<History>>,
    known: RefCell<Known>,
    seconds: Arc<AtomicU64>,
    /// Faults are planned: the store's own check may fail.
    tolerant: bool,
}

impl<S: Subject> Shared<S> {
    fn step(&self, generator: &mut Generator) -> Result<()> {
        let now = self.seconds.load(Ordering::Relaxed);
        let op = generator.next_op(now, &self.known.borrow());
        let position = || S::Medium::position(&self.device);
        let id = self.history.lock().begin(position(), op.clone());
        let reply = match op {
            Op::Reopen => {
                self.reopen()?;
                Reply::Done
            }
            Op::Time(now) => {
                self.seconds.fetch_max(now, Ordering::Relaxed);
                Reply::Done
            }
            _ => {
                let store = self.store.borrow().clone();
                let store = store.ok_or_else(|| wrong("the store is closed".to_owned()))?;
                let result = self.subject.apply(&store, &op);
                let reply = answer(&self.subject, &op, result, self.tolerant)?;
                self.tell(position(), &op, &reply);
                if self.subject.settle(&store).is_err() { Reply::Unknown } else { reply }
            }
        };
        self.history.lock().end(position(), id, reply);
        Ok(())
    }

    /// Clients know more.
    fn tell(&self, position: u64, op: &Op, reply: &Reply) {
        for (key, held) in told(op, reply) {
            self.known.borrow_mut().learn(&key, &held);
            self.history.lock().tell(position, key, held);
        }
    }

    fn reopen(&self) -> Result<()> {
        if let Some(store) = self.store.borrow_mut().take() {
            let store = Rc::try_unwrap(store);
            let store = store.map_err(|_| wrong("a reopen beside other tasks".to_owned()))?;
            self.subject.close(store)?;
        }
        let store = self.subject.open(S::Medium::device(&self.device), false)?;
        *self.store.borrow_mut() = Some(Rc::new(store));
        Ok(())
    }
}

/// Runs the tasks of `seed` on a device with this content and these faults. With faults, calls may
/// fail, and a task that cannot reopen its store ends there.
pub(super) fn run_tasks<S: Subject>(
    subject: &S,
    config: &Config,
    seed: u64,
    initial: Initial,
    begin: Begin,
    faults: FaultPlan,
) -> Workload<S::Medium> {
    let recycled = matches!(initial, Initial::Recycled(_));
    let tolerant = !faults.is_empty();
    let device = S::Medium::create(config, seed, initial, faults, true);
    let tasks = 1 + Rng::from_seed(seed).below(config.tasks_max.max(1));
    let shared_device = Arc::clone(&device);
    let seconds = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&seconds);
    let subject = subject.with_clock(Arc::clone(&seconds));
    let limits = config.limits;
    let mut weights = config.weights;
    if tasks > 1 {
        weights.reopen = 0;
    }
    let per_task = config.op_count.div_ceil(tasks);
    let (history, opened_at) = <(Arc<Mutex<History>>, Arc<AtomicU64>)>::default();
    opened_at.store(u64::MAX, Ordering::Relaxed);
    let (kept, opened) = (Arc::clone(&history), Arc::clone(&opened_at));
    let report = esker_trt::sim::run(seed, move || -> Result<()> {
        let store = subject.open(S::Medium::device(&shared_device), begin == Begin::Anew)?;
        let (at, history) = match begin {
            Begin::Anew => (S::Medium::position(&shared_device), History::default()),
            // It is open whenever the power fails.
            Begin::There => (0, History::new(subject.dump(&store)?)),
        };
        let known = RefCell::new(Known::of(history.initial()));
        *kept.lock() = history;
        opened.store(at, Ordering::Relaxed);
        let shared = Rc::new(Shared {
            subject,
            device: shared_device,
            store: RefCell::new(Some(Rc::new(store))),
            history: kept,
            known,
            seconds: clock,
            tolerant,
        });
        let handles: Vec<_> = (0..tasks)
            .map(|stream| {
                let shared = Rc::clone(&shared);
                let mut generator = Generator::new(seed, stream, weights, limits);
                esker_trt::spawn(move || -> Result<()> {
                    for _ in 0..per_task {
                        shared.step(&mut generator)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let mut result = Ok(());
        for handle in handles {
            result = result.and(handle.join().flatten());
        }
        result
    });
    let history = std::mem::take(&mut *history.lock());
    Workload {
        trace: S::Medium::trace(&device),
        visits: S::Medium::visits(&device),
        history,
        opened_at: opened_at.load(Ordering::Relaxed),
        recycled,
        before: None,
        sim_hash: report.trace_hash,
        faults_fired: S::Medium::faults_fired(&device),
        outcome: ended(report.outcome),
        time: seconds.load(Ordering::Relaxed),
    }
}

/// Opens the store on `image` and reads everything; then, if asked for, recovers again, goes on,
/// cuts the power and recovers once more.
pub(super) fn recover<S: Subject>(
    subject: &S,
    config: &Config,
    image: Image,
    seed: u64,
    task: Task,
) -> Recovery<S::Medium> {
    let Task { record, follow_up, time } = task;
    let attach = move |config: &Config, image: Image, seed: u64, record: bool| {
        S::Medium::create(config, seed, Initial::Recycled(image), FaultPlan::none(), record)
    };
    let device = attach(config, image, seed, record);
    let seconds = Arc::new(AtomicU64::new(time));
    let (subject, config) = (subject.with_clock(Arc::clone(&seconds)), config.clone());
    let inside = Arc::clone(&device);
    let report = esker_trt::sim::run(seed, move || -> Result<(Map, u64, Option<TraceOf<S>>, _)> {
        let (map, store) = open_and_dump(&subject, &inside)?;
        let dumped_at = S::Medium::position(&inside);
        let trace = record.then(|| S::Medium::trace(&inside));
        drop(store);
        let follow_up = if let Some(known) = follow_up {
            let second = attach(&config, S::Medium::image(&inside), seed ^ 1, true);
            let went = go_on(&subject, &config, &second, (&map, known), &seconds, seed);
            went.map(Some).map_err(|error| words(&error))
        } else {
            Ok(None)
        };
        // The last cut: whatever the operations left pending, in one of its states.
        let follow_up = follow_up.and_then(|done| {
            let Some((image, expected)) = done else { return Ok(()) };
            let third = attach(&config, image, seed ^ 2, false);
            let (found, store) = open_and_dump(&subject, &third)
                .map_err(|error| format!("recovery after more operations: {}", words(&error)))?;
            Allowed::exactly(&expected)
                .forgetting(config.forgets)
                .check(&found, seconds.load(Ordering::Relaxed))
                .map_err(|words| format!("after more operations and another cut: {words}"))?;
            let is_chosen = Rng::from_seed(seed).below(config.emptied_one_in.max(1)) == 0;
            if is_chosen && config.emptied_one_in > 0 {
                subject.empty(&store).map_err(|error| format!("emptied: {}", words(&error)))?;
            }
            Ok(())
        });
        Ok((map, dumped_at, trace, follow_up))
    });
    let visits = S::Medium::visits(&device);
    match ended(report.outcome) {
        Ok((map, dumped_at, trace, follow_up)) => {
            Recovery { outcome: Ok(map), dumped_at, trace, follow_up, visits, time }
        }
        Err(failure) => Recovery {
            outcome: Err(failure),
            dumped_at: u64::MAX,
            trace: record.then(|| S::Medium::trace(&device)),
            follow_up: Ok(()),
            visits,
            time,
        },
    }
}

/// A recovery from `image` at this time, on a device with faults: what came of it, the recording, and how many
/// calls failed.
pub(super) fn recover_with_faults<S: Subject>(
    subject: &S,
    config: &Config,
    (image, time): (Image, u64),
    seed: u64,
    faults: FaultPlan,
) -> (Outcome, TraceOf<S>, u64) {
    let device = S::Medium::create(config, seed, Initial::Recycled(image), faults, true);
    let subject = subject.with_clock(Arc::new(AtomicU64::new(time)));
    let inside = Arc::clone(&device);
    let report =
        esker_trt::sim::run(seed, move || open_and_dump(&subject, &inside).map(|(map, _)| map));
    (ended(report.outcome), S::Medium::trace(&device), S::Medium::faults_fired(&device))
}

fn open_and_dump<S: Subject>(subject: &S, device: &Arc<SimOf<S>>) -> Result<(Map, S::Store)> {
    let store = subject.open(S::Medium::device(device), false)?;
    let map = subject.dump(&store)?;
    Ok((map, store))
}

/// A second recovery, which must find the same; then some operations, compared with the model.
/// Returns a state that a cut then leaves, and what it must hold.
fn go_on<S: Subject>(
    subject: &S,
    config: &Config,
    device: &Arc<SimOf<S>>,
    (map, known): (&Map, Known),
    seconds: &AtomicU64,
    seed: u64,
) -> Result<(Image, Map)> {
    let now = || seconds.load(Ordering::Relaxed);
    let (again, store) = open_and_dump(subject, device)?;
    if again != *map {
        let words = Allowed::exactly(map).check(&again, now()).err().unwrap_or_default();
        return Err(wrong(format!("a second recovery found something else: {words}")));
    }
    let mut weights = config.weights;
    weights.reopen = 0;
    let mut generator = Generator::new(seed, 1000, weights, config.limits);
    let mut model = Model::new(again, now(), known);
    for _ in 0..FOLLOW_UP_OPS {
        let op = generator.next_op(now(), &model.known);
        let reply = match op {
            Op::Time(later) => {
                seconds.fetch_max(later, Ordering::Relaxed);
                Reply::Done
            }
            _ => answer(subject, &op, subject.apply(&store, &op), false)?,
        };
        subject.settle(&store)?;
        match reply {
            // A clear that gave up may have deleted some keys before.
            Reply::Refused if op == Op::Clear => model.map = subject.dump(&store)?,
            Reply::Refused => {}
            reply if model.follow(&op, &reply, config.forgets) => {}
            reply => return Err(wrong(format!("after recovery: {op:?} replied {reply:?}"))),
        }
    }
    let trace = S::Medium::trace(device);
    let mut replay = S::Medium::replay(&trace);
    replay.advance_to(u64::MAX);
    Ok((replay.random_image(seed), model.map))
}
