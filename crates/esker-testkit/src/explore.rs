//! Crash explorer: a workload once, then a recovery from every state that a power cut may leave.
//!
//! For each seed a workload of several tasks runs in a simulation on a recording device, half of the
//! time and more on recycled media. At every point before and after each call the explorer
//! enumerates the states of a crash there, lets the store recover from each, and asks the model
//! whether it may hold what it holds. Then it recovers again and compares, appends operations,
//! cuts the power and recovers once more; and, for some, crashes inside the recovery, to a depth.
//!
//! # Invariants
//! - I1: everything follows from the seed and the configuration; a [`Violation`] names seed, points
//!   and states, and [`Explorer::seed`] finds it again.
//! - I2: a state is recovered once per trace and judged at every point at which it may occur.
//!
//! # Concurrency
//! Seeds run in parallel on threads; each seed is one thread's.

use crate::command::each_seed;
use crate::generator::{Held, Limits, Op, Weights};
use crate::model::{Allowed, Map, Oracle, Reply};
use crate::versions::Known;
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use esker_media::sim::Image;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

mod medium;
mod report;
mod run;
mod sweep;

pub use medium::{Block, CrashReplay, Crashed, Medium, Memory};
pub use report::{Report, Violation};
use run::{Failure, Recovery, Task, Workload};
pub use sweep::SweepReport;

/// What a subject is given to stand on.
pub type DeviceOf<S> = <<S as Subject>::Medium as Medium>::Device;

/// A store under test: how to open it and what to do with it. All calls run inside a simulation,
/// on one thread.
pub trait Subject: Clone + Send + Sync + 'static {
    /// What it stands on: [`Block`] or [`Memory`].
    type Medium: Medium;
    /// The open store.
    type Store: 'static;

    /// The same with a clock that shows so many seconds since some moment: stores that are opened from now on have it.
    #[must_use]
    fn with_clock(&self, _seconds: Arc<AtomicU64>) -> Self {
        self.clone()
    }

    /// Opens the store on `device`; `fresh`: formats it first, whatever is there.
    ///
    /// # Errors
    /// The store's. On a device that holds the end of an acknowledged history an error counts as
    /// a violation.
    fn open(&self, device: DeviceOf<Self>, fresh: bool) -> Result<Self::Store>;

    /// Does `op`. Several tasks call at once. [`Op::Reopen`] and [`Op::Time`] never come here.
    ///
    /// # Errors
    /// The store's. Where the medium does what it is asked for, one that is no refusal ([`is_refusal`]) counts as a violation;
    /// where it fails by plan, [`Subject::fault_refuses`] and [`reply_of`] say what it means.
    fn apply(&self, store: &Self::Store, op: &Op) -> Result<Reply>;

    /// Makes durable what an operation did, if it was not when it returned. What it told of versions is known before.
    ///
    /// # Errors
    /// The store's: then the outcome is unknown.
    fn settle(&self, _store: &Self::Store) -> Result<()> {
        Ok(())
    }

    /// Deletes everything, and says what is wrong if that takes more room than a store that never held anything.
    ///
    /// # Errors
    /// What is wrong.
    fn empty(&self, _store: &Self::Store) -> Result<()> {
        Ok(())
    }

    /// Whether an operation of which a failing medium made this error has changed nothing: the store promises so.
    fn fault_refuses(&self, _error: &Error) -> bool {
        false
    }

    /// Everything that the store holds.
    ///
    /// # Errors
    /// The store's.
    fn dump(&self, store: &Self::Store) -> Result<Map>;

    /// Closes the store in an orderly way.
    ///
    /// # Errors
    /// The store's.
    fn close(&self, store: Self::Store) -> Result<()> {
        drop(store);
        Ok(())
    }
}

/// Whether a store that is sound may refuse an operation with this error.
#[must_use]
pub fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::InvalidArgument | ErrorKind::Unsupported)
}

/// What a failed call means for the model: refused without effect, or unknown.
#[must_use]
pub fn reply_of(result: Result<Reply>) -> Reply {
    match result {
        Ok(reply) => reply,
        Err(error) => match error.kind() {
            ErrorKind::NoSpace
            | ErrorKind::InvalidArgument
            | ErrorKind::ReadOnly
            | ErrorKind::Unsupported
            | ErrorKind::Closed => Reply::Refused,
            _ => Reply::Unknown,
        },
    }
}

/// Size and effort of an exploration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Size of the device in bytes. Small: that is how reuse and wrap-around occur.
    pub size_bytes: u64,
    /// Block size of the device in bytes.
    pub block_size_bytes: u32,
    /// Unit that a crash keeps or loses whole, in bytes.
    pub tear_size_bytes: u32,
    /// Most tasks of a workload; each seed has 1 to so many.
    pub tasks_max: u64,
    /// Operations of all tasks together.
    pub op_count: u64,
    /// Odds of operations.
    pub weights: Weights,
    /// Keys and values.
    pub limits: Limits,
    /// Most states of a point that has more than can be enumerated.
    pub states_per_point: usize,
    /// One state of so many is followed by more operations and another cut; 0: none.
    pub follow_up_one_in: u64,
    /// Of these, one of so many is emptied in the end ([`Subject::empty`]); 0: none.
    pub emptied_one_in: u64,
    /// One state of so many is crashed again inside its recovery; 0: none.
    pub nested_one_in: u64,
    /// Depth of crashes inside recoveries, counted from 1 for the first crash.
    pub depth_max: usize,
    /// Points and states per point tried in one crashed recovery.
    pub nested_points: usize,
    /// Most violations of one seed before it is given up.
    pub violations_max: usize,
    /// The subject is a cache: any key may be gone at any time, but then it stays gone.
    pub forgets: bool,
    /// Only this crash point, to look at one violation.
    pub only_point: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            size_bytes: 64 << 10,
            block_size_bytes: 512,
            tear_size_bytes: 512,
            tasks_max: 4,
            op_count: 60,
            weights: Weights::USUAL,
            limits: Limits::default(),
            states_per_point: 40,
            follow_up_one_in: 4,
            emptied_one_in: 8,
            nested_one_in: 16,
            depth_max: 3,
            nested_points: 6,
            forgets: false,
            violations_max: 3,
            only_point: None,
        }
    }
}

/// Explores crashes of one kind of store.
#[derive(Clone, Debug)]
pub struct Explorer<S> {
    subject: S,
    config: Config,
}

/// A recovery's result as it is kept: the map, or why there is none.
type Outcome = std::result::Result<Map, Failure>;

/// One seed under way.
struct Seed<'e, S> {
    explorer: &'e Explorer<S>,
    seed: u64,
    report: Report,
    distinct: HashSet<u128>,
    recovered: HashMap<u128, Rc<Outcome>>,
    rng: Rng,
    /// What clients were told of versions, by the position at which they were.
    told: Vec<(u64, Vec<u8>, Held)>,
    /// What the clock showed at the end of the workload.
    end: u64,
}

impl<S: Subject> Explorer<S> {
    /// An explorer.
    #[must_use]
    pub fn new(subject: S, config: Config) -> Self {
        Explorer { subject, config }
    }

    /// Explores every seed of the range on `threads` threads. Ranges can be explored in pieces:
    /// their reports add up ([`Report::merge`]).
    ///
    /// # Panics
    /// If a thread of the explorer itself panics.
    #[must_use]
    pub fn seeds(&self, seeds: Range<u64>, threads: usize) -> Report {
        each_seed(seeds, threads, |seed| self.seed(seed))
    }

    /// Explores one seed.
    #[must_use]
    pub fn seed(&self, seed: u64) -> Report {
        let workload = run::workload(&self.subject, &self.config, seed);
        let mut state = Seed {
            explorer: self,
            seed,
            report: Report::default(),
            distinct: HashSet::new(),
            recovered: HashMap::new(),
            rng: Rng::from_seed(seed ^ 0x6A09_E667_F3BC_C908),
            told: workload.history.told().to_vec(),
            end: workload.time,
        };
        state.explore(&workload);
        // One seed of so many is run twice: the same seed must do the same.
        if seed.is_multiple_of(64) {
            let again = run::workload(&self.subject, &self.config, seed);
            state.report.replays_compared += 1;
            let hashes =
                |one: &Workload<S::Medium>| (S::Medium::trace_hash(&one.trace), one.sim_hash);
            if hashes(&again) != hashes(&workload) {
                state.violation(&[], "the same seed ran differently a second time".to_owned());
            }
        }
        state.report
    }
}

impl<S: Subject> Seed<'_, S> {
    fn violation(&mut self, path: &[(u64, u64)], what: String) {
        let violation = Violation { seed: self.seed, path: path.to_vec(), what };
        self.report.violations.push(violation);
    }

    /// What the clock of a recovery shows: less than when the power failed, or more.
    fn time(&self, hash: u128) -> u64 {
        let choice = u64::try_from(hash >> 64).unwrap_or(0);
        match choice % 4 {
            0 => 0,
            1 => 1000 * self.end,
            _ => (choice / 4) % (self.end + 1),
        }
    }

    /// What clients knew when the power failed.
    fn known(&self, point: u64) -> Known {
        let mut known = Known::default();
        let told = self.told.iter().take_while(|(at, ..)| *at <= point);
        told.for_each(|(_, key, held)| known.learn(key, held));
        known
    }

    fn is_over(&self) -> bool {
        self.report.violations.len() >= self.explorer.config.violations_max
    }

    fn explore(&mut self, workload: &Workload<S::Medium>) {
        self.report.seeds = 1;
        self.report.recycled = u64::from(workload.recycled);
        self.report.operations = workload.history.len() as u64;
        self.report.visits.merge(&workload.visits);
        if let Err(failure) = &workload.outcome {
            self.violation(&[], format!("without any crash: {failure}"));
            return;
        }
        let forgets = self.explorer.config.forgets;
        let mut oracle = Oracle::new(&workload.history).forgetting(forgets);
        let mut allowed: Option<(u64, Allowed)> = None;
        let mut judged = HashSet::new();
        let mut replay = S::Medium::replay(&workload.trace);
        loop {
            let point = replay.position();
            if let Err(words) = oracle.advance_to(point) {
                self.violation(&[(point, 0)], format!("without any crash: {words}"));
                return;
            }
            let opened = point >= workload.opened_at;
            let version = if opened { oracle.version() + 1 } else { 0 };
            if allowed.as_ref().is_none_or(|(known, _)| *known != version) {
                match oracle.allowed() {
                    Ok(now) => allowed = Some((version, now)),
                    Err(words) => {
                        self.violation(&[(point, 0)], format!("cannot judge: {words}"));
                        return;
                    }
                }
            }
            let only = self.explorer.config.only_point;
            if let Some((_, allowed)) = &allowed
                && only.is_none_or(|only| only == point)
            {
                let judge = opened.then_some(allowed);
                self.point(&replay, workload, judge, version, &mut judged);
            }
            if self.is_over() || !replay.step() {
                break;
            }
        }
        // A reply at the very end.
        if let Err(words) = oracle.advance_to(u64::MAX) {
            self.violation(&[], format!("without any crash: {words}"));
        }
        self.report.distinct_states += self.distinct.len() as u64;
    }

    /// Every state of one crash point. `allowed` is `None` before the store was first opened: then
    /// any answer is right but one that invents keys.
    fn point(
        &mut self,
        replay: &<S::Medium as Medium>::Replay<'_>,
        workload: &Workload<S::Medium>,
        allowed: Option<&Allowed>,
        version: u64,
        judged: &mut HashSet<(u128, u64)>,
    ) {
        let config = &self.explorer.config;
        let before = workload.before.as_ref();
        let point = replay.position();
        let sites = [replay.last_site(), replay.next_site()];
        let (states, exhaustive) = replay.states(config.states_per_point, self.seed ^ point);
        self.report.points += 1;
        self.report.exhaustive_points += u64::from(exhaustive);
        for (state, number) in states.iter().zip(0_u64..) {
            self.report.states += 1;
            let hash = state.hash();
            let is_new = self.distinct.insert(hash);
            for site in sites.into_iter().flatten() {
                self.report.cover(site.name());
            }
            if !judged.insert((hash, version)) {
                continue;
            }
            let path = [(point, number)];
            let one_in = |rng: &mut Rng, count: u64| count > 0 && rng.chance(1, count);
            let follow_up =
                is_new && allowed.is_some() && { one_in(&mut self.rng, config.follow_up_one_in) };
            let nested =
                is_new && config.depth_max > 1 && { one_in(&mut self.rng, config.nested_one_in) };
            let known = self.recovered.get(&hash).cloned();
            let outcome = match known {
                Some(outcome) if !follow_up && !nested => outcome,
                _ => {
                    let known = follow_up.then(|| self.known(point));
                    let task = Task { record: nested, follow_up: known, time: self.time(hash) };
                    let recovery = self.recover(state.image(), hash, task);
                    if let Err(words) = &recovery.follow_up {
                        self.violation(&path, format!("{words} [{}]", state.describe()));
                    }
                    if let Some(trace) = &recovery.trace {
                        self.nested(trace, &recovery, (allowed, before), &path);
                    }
                    Rc::new(recovery.outcome)
                }
            };
            self.recovered.entry(hash).or_insert_with(|| Rc::clone(&outcome));
            if let Some(words) = judge(&outcome, self.time(hash), allowed, before) {
                let after = sites.first().copied().flatten();
                let place =
                    after.map_or("at the start".to_owned(), |site| format!("after {site:?}"));
                self.violation(&path, format!("{words} [crash {place}; {}]", state.describe()));
            }
            if self.is_over() {
                return;
            }
        }
    }

    fn recover(&mut self, image: Image, hash: u128, task: Task) -> Recovery<S::Medium> {
        self.report.recoveries += 1 + 2 * u64::from(task.follow_up.is_some());
        let low = u64::try_from(hash & u128::from(u64::MAX)).unwrap_or(0);
        let explorer = self.explorer;
        let seed = self.seed ^ low;
        let recovery = run::recover(&explorer.subject, &explorer.config, image, seed, task);
        self.report.visits.merge(&recovery.visits);
        recovery
    }

    /// Crashes inside a recovery, at some of its points, each in some states.
    fn nested(
        &mut self,
        trace: &<S::Medium as Medium>::Trace,
        recovery: &Recovery<S::Medium>,
        (allowed, before): (Option<&Allowed>, Option<&Map>),
        path: &[(u64, u64)],
    ) {
        let config = &self.explorer.config;
        let tries = config.nested_points;
        let (length, _) = S::Medium::trace_length(trace);
        let stride = length.div_ceil(tries.max(1)).max(1);
        let offset = self.rng.index(stride);
        let mut replay = S::Medium::replay(trace);
        let mut index = 0;
        loop {
            let point = replay.position();
            if index % stride == offset || index == length {
                // Once the recovered content was seen, it is what every later recovery must find.
                let seen = (point >= recovery.dumped_at)
                    .then(|| recovery.outcome.as_ref().ok().map(Allowed::exactly))
                    .flatten();
                let judge_by = if allowed.is_some() { seen.as_ref().or(allowed) } else { None };
                let (states, _) = replay.states(tries, self.seed ^ point);
                // Spread over all of them: the first few are the plainest.
                let step = states.len().div_ceil(tries.max(1)).max(1);
                let first = self.rng.index(step);
                for (state, number) in states.iter().zip(0_u64..).skip(first).step_by(step) {
                    self.report.nested_states += 1;
                    let deeper = path.len() + 1 < config.depth_max && self.rng.chance(1, 3);
                    // The clock goes on where it was.
                    let time = recovery.time;
                    let task = Task { record: deeper, follow_up: None, time };
                    let inner = self.recover(state.image(), state.hash(), task);
                    let path = [path, &[(point, number)]].concat();
                    if let Some(words) = judge(&inner.outcome, time, judge_by, before) {
                        let describe = state.describe();
                        self.violation(&path, format!("in recovery: {words} [{describe}]"));
                    }
                    if let Some(trace) = &inner.trace {
                        self.nested(trace, &inner, (judge_by, before), &path);
                    }
                    if self.is_over() {
                        return;
                    }
                }
            }
            index += 1;
            if !replay.step() {
                break;
            }
        }
    }
}

/// What is wrong with a recovery's outcome, if anything is.
fn judge(
    outcome: &Outcome,
    time: u64,
    allowed: Option<&Allowed>,
    before: Option<&Map>,
) -> Option<String> {
    match (outcome, allowed) {
        (Ok(map), Some(allowed)) => allowed.check(map, time).err(),
        (Err(failure), Some(_)) => Some(format!("recovery failed: {failure}")),
        (Err(failure), None) => (!failure.is_answer).then(|| failure.to_string()),
        // Before the format was done, an older store of recycled media may still be there, all of it.
        (Ok(map), None) => {
            let is_before = |before: &Map| Allowed::exactly(before).check(map, time).is_ok();
            let invented = !map.is_empty() && !before.is_some_and(is_before);
            invented
                .then(|| "holds keys that neither the new store had nor the older one".to_owned())
        }
    }
}

/// An error of the kit itself.
pub(crate) fn wrong(context: String) -> Error {
    Error::new(ErrorKind::Corrupted, "explore crashes").context(context)
}

#[cfg(test)]
mod tests;
