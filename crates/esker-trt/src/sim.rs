//! Deterministic simulation: the same tasks, one thread, a seed and a clock that stands still.
//!
//! [`run`] runs a body and all tasks it spawns. Whenever a task suspends, the seed chooses which
//! ready task goes on; when none is ready, time jumps to the next deadline. Everything that
//! happens goes into a trace hash, and simulated media add their own events with [`trace`]: the
//! same seed and the same program give the same hash. `spawn`, `yield_now`, `sleep`, `sync` and
//! `local` work as elsewhere; disk calls are plain system calls; sockets are refused.
//!
//! # Invariants
//! - I1: nothing here reads the machine's clock, its random numbers, or an address.
//! - I2: time moves by a fixed amount a step and by jumps to deadlines, never by itself.
//!
//! # Failure
//! When no task is ready and none has a deadline, the run ends with an error that names what each
//! task waits for; the tasks are then unwound.

use crate::context;
use crate::core::{Core, Parts};
use crate::driver::Driver;
use crate::overflow;
use crate::stack::StackPool;
use crate::task::run_caught;
use crate::wake::Mailbox;
use esker_base::clock::Clock;
use esker_base::ids::CoreId;
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What one step costs in simulated time, so that a loop that polls the clock ends.
const STEP_NS: u64 = 100;
/// Wall time at the start of every simulation: 2024-01-01.
const START_UNIX_SECONDS: u64 = 1_704_067_200;
const STACK_SIZE_BYTES: usize = 256 * 1024;
const TASKS_MAX: usize = 65_536;

/// What a simulation did.
#[derive(Debug)]
#[must_use]
pub struct SimReport<T> {
    /// What the body returned; its panic (`Panicked`); a deadlock, or tasks that do not end
    /// (`Timeout`, naming what each waits for); or a [`halt`] before the body's end (`Cancelled`).
    pub outcome: Result<T>,
    /// Hash of every choice and every traced event.
    pub trace_hash: u64,
    /// Runs of a task between two suspensions.
    pub steps: u64,
    /// Simulated time that has passed.
    pub time: Duration,
}

/// How the loop of a simulation ended.
pub(crate) enum Ending {
    Finished,
    Halted,
    Stuck(String),
}

pub(crate) struct SimState {
    rng: Rng,
    devices: Rng,
    hash: u64,
    steps: u64,
    now_ns: Arc<AtomicU64>,
    halted: bool,
}

impl SimState {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let devices = rng.fork();
        SimState { rng, devices, hash: seed, steps: 0, now_ns: Arc::default(), halted: false }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn halted(&self) -> bool {
        self.halted
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    pub(crate) fn choose(&mut self, ready: usize) -> usize {
        if ready > 1 { self.rng.index(ready) } else { 0 }
    }

    pub(crate) fn step(&mut self, task: u32) {
        self.steps += 1;
        self.now_ns.store(self.now_ns() + STEP_NS, Ordering::Relaxed);
        self.mix(u64::from(task));
    }

    pub(crate) fn advance_to(&mut self, at_ns: u64) {
        self.now_ns.store(self.now_ns().max(at_ns), Ordering::Relaxed);
        self.mix(at_ns);
    }

    fn mix(&mut self, word: u64) {
        // One round of a 128-bit multiply: every bit of both reaches every bit of the result.
        let product =
            u128::from(self.hash ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64 ^ self.steps << 1);
        let low = u64::try_from(product & u128::from(u64::MAX)).unwrap_or(0);
        let high = u64::try_from(product >> 64).unwrap_or(0);
        self.hash = (low ^ high).wrapping_add(word).rotate_left(23);
    }

    fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0_u8; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.mix(u64::from_le_bytes(word));
        }
    }
}

thread_local! {
    /// The stacks of the last simulation of this thread: starting one maps no memory.
    static STACKS: Cell<Option<StackPool>> = const { Cell::new(None) };
}

/// Runs `body` as the first task of a simulation, and every task it spawns, to their end.
///
/// When `body` returns, the others are cancelled as at a shutdown and run on to their end.
pub fn run<T: 'static>(seed: u64, body: impl FnOnce() -> T + 'static) -> SimReport<T> {
    overflow::ensure_alternate_stack();
    let stacks = STACKS.take().unwrap_or_else(|| StackPool::new(STACK_SIZE_BYTES));
    let core = Rc::new(Core::new(Parts {
        inline: false,
        mailbox: Arc::new(Mailbox::new(CoreId(0), None)),
        driver: Driver::None,
        stacks,
        helpers: None,
        sim: Some(SimState::new(seed)),
        tasks_max: TASKS_MAX,
        spin: Duration::ZERO,
    }));
    let entered = context::enter(Rc::clone(&core));
    let result: Rc<Cell<Option<Result<T>>>> = Rc::default();
    let ended = Rc::new(Cell::new(false));
    let started = core.reserve().map(|place| {
        let (result, ended) = (Rc::clone(&result), Rc::clone(&ended));
        let body = move || {
            result.set(Some(run_caught(body)));
            ended.set(true);
        };
        core.start(place, body);
    });
    let ending = core.run_simulated(&|| ended.get());
    // Before the unwinding, which would leave a result of its own.
    let result = result.take();
    core.unwind_all();
    let outcome = match (started, ending, result) {
        (Err(error), ..) => Err(error),
        (_, Ending::Stuck(words), Some(Err(error))) => Err(error.context(words)),
        (_, Ending::Stuck(words), _) => {
            Err(Error::new(ErrorKind::Timeout, "simulate").context(format!("deadlock: {words}")))
        }
        (_, Ending::Finished | Ending::Halted, Some(result)) => result,
        (_, Ending::Finished | Ending::Halted, None) => {
            Err(Error::new(ErrorKind::Cancelled, "simulate").context("halted"))
        }
    };
    let (trace_hash, steps, time) =
        with_sim(|sim| (sim.hash, sim.steps, Duration::from_nanos(sim.now_ns())))
            .unwrap_or_default();
    drop(entered);
    if let Ok(core) = Rc::try_unwrap(core) {
        STACKS.set(Some(core.into_stacks()));
    }
    SimReport { outcome, trace_hash, steps, time }
}

fn with_sim<R>(f: impl FnOnce(&mut SimState) -> R) -> Option<R> {
    context::with(|core| core.sim().map(|sim: &RefCell<SimState>| f(&mut sim.borrow_mut())))
        .flatten()
}

/// Whether the caller runs in a simulation.
#[must_use]
pub fn is_active() -> bool {
    with_sim(|_| ()).is_some()
}

/// The number of the calling task, which no other task of the simulation has at the same time; `None` outside of one.
#[must_use]
pub fn task_number() -> Option<u64> {
    with_sim(|_| ())?;
    context::with_task(|core, task| {
        let task = u64::from(task.id.index) << 32 | u64::from(task.id.generation);
        task.wrapping_add(u64::from(core.mailbox().core.0) << 56)
    })
}

/// Adds an event to the trace hash. Outside a simulation it does nothing.
pub fn trace(event: &[u8]) {
    with_sim(|sim| sim.mix_bytes(event));
}

/// Adds a number to the trace hash. Outside a simulation it does nothing.
pub fn trace_u64(event: u64) {
    with_sim(|sim| sim.mix(event));
}

/// A number below `bound`, chosen by the seed, for simulated devices; `None` outside a simulation.
/// The choice goes into the trace hash. The scheduler's choices have a generator of their own.
#[must_use]
pub fn random(bound: u64) -> Option<u64> {
    with_sim(|sim| {
        let chosen = sim.devices.below(bound);
        sim.mix(chosen);
        chosen
    })
}

/// Ends the simulation at the caller's next suspension: a crash, as seen by the tasks. They are
/// unwound and never run again. Outside a simulation it does nothing.
pub fn halt() {
    with_sim(|sim| sim.halted = true);
}

/// The clock of the running simulation; `None` outside one. It may be kept and read from anywhere.
#[must_use]
pub fn clock() -> Option<SimClock> {
    with_sim(|sim| SimClock(Arc::clone(&sim.now_ns)))
}

/// A simulation's clock: sleeping tasks move it.
#[derive(Clone, Debug)]
pub struct SimClock(Arc<AtomicU64>);

impl Clock for SimClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> u64 {
        START_UNIX_SECONDS + self.monotonic().as_secs()
    }
}

#[cfg(test)]
mod tests;
