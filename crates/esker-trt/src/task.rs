//! Tasks: what the scheduler knows of one, and how its result reaches whoever joins it.
//!
//! # Invariants
//! - I1: a task runs on one thread from spawn to end. [`Task`] and [`JoinHandle`] are `!Send`, and
//!   nothing hands a coroutine to another thread.
//! - I2: a task is in the ready queue at most once: when its state is `Ready` or `Yielded`.
//! - I3: the result cell of a task is filled exactly once: with its value, its panic, or, when the
//!   task is given up, with `Cancelled`.
//! - I4: nothing that a task leaves behind, a value that nobody takes, what a panic carried, or what it would have run
//!   had it not been refused, is dropped on the scheduler's stack (while there are tasks to run) or unwinds into it.

use crate::context;
use crate::sockets::SocketKey;
use crate::stack::TaskStack;
use crate::timer::NEVER;
use crate::{local, sync};
use corosensei::{Coroutine, Yielder};
use esker_base::ids::CoreId;
use esker_base::{Error, ErrorKind, Result};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A task of one core; the generation tells it from earlier ones in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// In the ready queue, woken.
    Ready,
    /// In the ready queue, by its own wish.
    Yielded,
    /// On its stack.
    Running,
    /// Waits to be woken.
    Parked,
}

pub(crate) type TaskCoroutine = Coroutine<(), (), (), TaskStack>;

pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) coroutine: RefCell<Option<TaskCoroutine>>,
    pub(crate) yielder: Cell<*const Yielder<(), ()>>,
    pub(crate) state: Cell<TaskState>,
    /// A wake-up came while the task was not parked.
    pub(crate) notified: Cell<bool>,
    /// The completion of the one disk request that a task can have in flight.
    pub(crate) io_result: Cell<Option<i32>>,
    /// The socket of its send in flight, if that is watched.
    pub(crate) sends_to: Cell<Option<SocketKey>>,
    pub(crate) deadline_ns: Cell<u64>,
    pub(crate) armed_ns: Cell<u64>,
    /// What a parked task waits for, for reports.
    pub(crate) waits_for: Cell<&'static str>,
}

impl Task {
    pub(crate) fn new(id: TaskId) -> Self {
        Task {
            id,
            coroutine: RefCell::new(None),
            yielder: Cell::new(std::ptr::null()),
            state: Cell::new(TaskState::Ready),
            notified: Cell::new(false),
            io_result: Cell::new(None),
            sends_to: Cell::new(None),
            deadline_ns: Cell::new(NEVER),
            armed_ns: Cell::new(NEVER),
            waits_for: Cell::new("start"),
        }
    }

    /// Back from a park: no deadline, no left-over token.
    pub(crate) fn unparked(&self) {
        self.deadline_ns.set(NEVER);
        self.notified.set(false);
    }
}

/// Runs `body`; a panic becomes an error with its text.
pub(crate) fn run_caught<T>(body: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|payload| {
        let error = panic_error(payload.as_ref());
        drop_payload(payload);
        error
    })
}

/// Runs `body` and stops every panic of it.
pub(crate) fn contain(body: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
        drop_payload(payload);
    }
}

/// Drops what a panic carried, which may panic itself.
fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
        && let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(next)))
    {
        // One whose drop makes another one could go on for ever.
        Box::leak(next);
    }
}

/// What a task runs. Neither running it nor dropping it unwinds.
pub(crate) struct Body<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Body<F> {
    pub(crate) fn new(body: F) -> Self {
        Body(Some(body))
    }

    pub(crate) fn run(mut self) {
        if let Some(body) = self.0.take() {
            contain(body);
        }
    }
}

impl<F: FnOnce()> Drop for Body<F> {
    fn drop(&mut self) {
        if let Some(body) = self.0.take() {
            contain(|| drop(body));
        }
    }
}

fn panic_error(payload: &(dyn Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&'static str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    match text {
        Some(text) => Error::new(ErrorKind::Panicked, "run task").context(text),
        // A simulation that ends early unwinds what is left with a payload of corosensei's.
        None if context::with(|core| core.is_unwinding()) == Some(true) => {
            Error::new(ErrorKind::Cancelled, "run task")
        }
        None => Error::new(ErrorKind::Panicked, "run task").context("panic without a text"),
    }
}

/// The result of a task of the same core. Dropping it lets the task go on alone.
#[derive(Debug)]
pub struct JoinHandle<T> {
    future: local::Future<Result<T>>,
}

impl<T> JoinHandle<T> {
    /// Waits until the task has ended.
    ///
    /// # Errors
    /// `Panicked` with the panic's text; `OutOfMemory` when the task could not be started;
    /// `Cancelled` when a simulation ended before the task.
    pub fn join(self) -> Result<T> {
        self.future.wait()?
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.future.is_ready()
    }
}

/// The result of a task of any core. Dropping it lets the task go on alone.
#[derive(Debug)]
pub struct RemoteJoin<T> {
    pub(crate) future: sync::Future<Result<T>>,
}

impl<T: Send> RemoteJoin<T> {
    /// Waits, as a task or a thread, until the task has ended.
    ///
    /// # Errors
    /// `Panicked` with the panic's text; `OutOfMemory` when the task could not be started;
    /// `Closed` when the run-time shut down before it started; `Cancelled` when the task was given
    /// up at shutdown.
    pub fn join(self) -> Result<T> {
        self.future.wait()?
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.future.is_ready()
    }
}

/// Starts a task on this core. It first runs when the caller suspends. What it captures need not
/// be `Send`, because it never leaves the core (uDepot §3).
///
/// A task that cannot be started (no memory, too many tasks) shows at its join.
///
/// # Panics
/// Outside a task: there is no core to run it. Threads use
/// [`Runtime::spawn`](crate::Runtime::spawn).
pub fn spawn<T: 'static>(body: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    let (promise, future) = local::promise();
    let place = context::with_task(|core, _| core.reserve());
    let place = place.expect("esker_trt::spawn outside a task; use Runtime::spawn");
    match place {
        Ok(place) => {
            let body = move || promise.set(run_caught(body));
            context::with_task(|core, _| core.start(place, body));
        }
        Err(error) => {
            // Not inside: what it holds may suspend the task when it is dropped.
            drop(body);
            promise.set(Err(error));
        }
    }
    JoinHandle { future }
}

/// Lets the other ready tasks of this core run; on a thread, other threads.
pub fn yield_now() {
    if !context::yield_task() {
        std::thread::yield_now();
    }
}

/// Counts work that the calling task did, in bytes that a transfer moves in the same time. Once a task has had
/// its share of the core since it was last resumed, the other tasks run first: those that are ready, and those for which the
/// kernel has something. Transfers of [`net`](crate::net) are counted there. On a thread it does nothing.
///
/// For loops that a peer can keep going for as long as it likes without anything to wait for.
pub fn work(bytes: usize) {
    context::work(bytes);
}

/// Counts work as [`work`] does, and leaves it to the next call of that to let others run first: for who has taken something of
/// which nobody knows yet.
pub fn worked(bytes: usize) {
    context::worked(bytes);
}

/// Whether the caller runs in a task.
#[must_use]
pub fn in_task() -> bool {
    context::with_task(|_, _| ()).is_some()
}

/// The core of the calling task; `None` on an ordinary thread.
#[must_use]
pub fn current_core() -> Option<CoreId> {
    context::with_task(|core, _| core.mailbox().core)
}

/// Whether other tasks of the calling task's core could run now: with none, [`yield_now`] gives way to
/// nobody. False on an ordinary thread.
#[must_use]
pub fn others_ready() -> bool {
    context::with_task(|core, _| core.has_ready()).unwrap_or(false)
}

/// Whether the calling task's run-time is shutting down. False on an ordinary thread.
#[must_use]
pub fn is_cancelled() -> bool {
    context::with_task(|core, _| core.is_cancelled()).unwrap_or(false)
}

pub(crate) fn cancelled_error(operation: &'static str) -> Error {
    Error::new(ErrorKind::Cancelled, operation)
}
