//! One core: its tasks, their ready queue, and the loop that runs them.
//!
//! The loop runs ready tasks, then hands the kernel everything they asked for in one call and
//! takes what has completed. With nothing ready it makes the same call wait, so that a lone disk
//! request costs one system call from submission to wake-up. uDepot runs its pollers as tasks; here
//! the loop calls the [`Driver`] between rounds, which saves two switches a round.
//!
//! # Invariants
//! - I1: `current` names the task whose stack is in use, and nothing when the loop's own is.
//! - I2: a coroutine of a real run-time is only dropped after its body returned: its frames may
//!   hold buffers that the kernel writes to. Tasks that do not end at shutdown keep their core.
//! - I3: no `RefCell` of this module is borrowed while a task runs, except the coroutine's own.
//!
//! # Concurrency
//! `!Send`: everything here belongs to one thread. Others reach it through its mailbox.
//!
//! # Failure
//! A kernel call of the driver that fails for good leaves the core without completions: the
//! process aborts rather than let tasks read buffers in an unknown state.

use crate::die::die;
use crate::driver::{Driver, Event, IoRequest, Wait};
use crate::offload::HelperPool;
use crate::refused::Refused;
use crate::sim::SimState;
use crate::sockets::{Interest, SocketKey, Sockets};
use crate::stack::{StackPool, TaskStack};
use crate::task::{Body, Task, TaskCoroutine, TaskId, TaskState};
use crate::timer::{NEVER, Timers};
use crate::wake::{Mailbox, Message};
use corosensei::CoroutineResult;
use esker_base::clock::{Clock, SystemClock};
use esker_base::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Rounds of a busy core between two looks at the clock.
const CLOCK_ROUNDS: u32 = 8;
/// Sends that go together: those who receive the first one wait for the last one's task.
const SENDS_MAX: u32 = 16;
/// Disk requests that a task makes itself, one after the other, before others have their turn.
const INLINE_RUN_MAX: u32 = 32;
/// Work that a task does before others have their turn, in bytes of a transfer: some 50 us of it.
const WORK_MAX: usize = 256 << 10;
/// The largest body that is written to the top of its task's stack; a coroutine takes no more than 1024 bytes there, with what
/// goes around the body.
const BODY_BYTES_MAX: usize = 512;

#[derive(Default)]
struct Slot {
    generation: u32,
    task: Option<Rc<Task>>,
}

#[derive(Default)]
struct TaskTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
}

impl TaskTable {
    fn get(&self, index: u32) -> Option<&Rc<Task>> {
        self.slots.get(index as usize)?.task.as_ref()
    }
}

/// A place for a task that is about to start.
pub(crate) struct Place {
    task: Rc<Task>,
    stack: TaskStack,
}

pub(crate) struct Core {
    mailbox: Arc<Mailbox>,
    tasks: RefCell<TaskTable>,
    ready: RefCell<VecDeque<u32>>,
    current: RefCell<Option<Rc<Task>>>,
    timers: RefCell<Timers>,
    stacks: RefCell<StackPool>,
    driver: RefCell<Driver>,
    sockets: RefCell<Sockets>,
    events: Cell<Vec<Event>>,
    helpers: Option<Arc<HelperPool>>,
    refused: Arc<Refused>,
    sim: Option<RefCell<SimState>>,
    cancelled: Cell<bool>,
    unwinding: Cell<bool>,
    /// Disk requests that the running task made itself since it was resumed.
    inline_run: Cell<u32>,
    /// Work that the running task did since it was resumed.
    work: Cell<usize>,
    /// A task gave way: the kernel is asked who else could go on.
    gave_way: Cell<bool>,
    /// Whether tasks make short disk requests themselves.
    inline: bool,
    tasks_max: usize,
    spin: Duration,
}

/// What a core is made of; see [`Core`].
pub(crate) struct Parts {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) driver: Driver,
    pub(crate) stacks: StackPool,
    pub(crate) helpers: Option<Arc<HelperPool>>,
    pub(crate) sim: Option<SimState>,
    /// Whether tasks make short disk requests themselves.
    pub(crate) inline: bool,
    pub(crate) tasks_max: usize,
    pub(crate) spin: Duration,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        Core {
            inline: parts.inline,
            inline_run: Cell::new(0),
            work: Cell::new(0),
            gave_way: Cell::new(false),
            mailbox: parts.mailbox,
            tasks: RefCell::default(),
            ready: RefCell::default(),
            current: RefCell::default(),
            timers: RefCell::default(),
            stacks: RefCell::new(parts.stacks),
            driver: RefCell::new(parts.driver),
            sockets: RefCell::default(),
            events: Cell::default(),
            helpers: parts.helpers,
            refused: Arc::default(),
            sim: parts.sim.map(RefCell::new),
            cancelled: Cell::new(false),
            unwinding: Cell::new(false),
            tasks_max: parts.tasks_max,
            spin: parts.spin,
        }
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    pub(crate) fn helpers(&self) -> Option<&Arc<HelperPool>> {
        self.helpers.as_ref()
    }

    pub(crate) fn sim(&self) -> Option<&RefCell<SimState>> {
        self.sim.as_ref()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub(crate) fn is_unwinding(&self) -> bool {
        self.unwinding.get()
    }

    pub(crate) fn live(&self) -> usize {
        self.tasks.borrow().live
    }

    /// What the driver found, in words that go after the facility's name.
    pub(crate) fn words(&self) -> String {
        match &*self.driver.borrow() {
            Driver::Uring(driver) if self.inline => {
                format!(" (disk in the task; ring: {})", driver.words())
            }
            Driver::Uring(driver) => format!(" ({})", driver.words()),
            Driver::Aio(_) => " (completions reaped in user space)".to_owned(),
            Driver::Sync(_) => " (helper threads)".to_owned(),
            Driver::None => String::new(),
        }
    }

    pub(crate) fn into_stacks(self) -> StackPool {
        self.stacks.into_inner()
    }

    pub(crate) fn with_current<R>(&self, f: impl FnOnce(&Rc<Task>) -> R) -> Option<R> {
        self.current.borrow().as_ref().map(f)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        match &self.sim {
            Some(sim) => sim.borrow().now_ns(),
            None => u64::try_from(SystemClock.monotonic().as_nanos()).unwrap_or(NEVER),
        }
    }

    // ---- tasks -------------------------------------------------------------------------------

    /// Finds a place and a stack for a new task.
    pub(crate) fn reserve(&self) -> Result<Place> {
        let mut tasks = self.tasks.borrow_mut();
        if tasks.live >= self.tasks_max {
            let context = format!("{} tasks on this core", tasks.live);
            return Err(Error::new(ErrorKind::OutOfMemory, "spawn task").context(context));
        }
        let stack = self.stacks.borrow_mut().take()?;
        let index = match tasks.free.pop() {
            Some(index) => index,
            None => {
                tasks.slots.push(Slot::default());
                u32::try_from(tasks.slots.len() - 1)
                    .map_err(|_| Error::new(ErrorKind::OutOfMemory, "spawn task"))?
            }
        };
        let Some(slot) = tasks.slots.get_mut(index as usize) else {
            return Err(Error::new(ErrorKind::OutOfMemory, "spawn task"));
        };
        let task = Rc::new(Task::new(TaskId { index, generation: slot.generation }));
        slot.task = Some(Rc::clone(&task));
        tasks.live += 1;
        Ok(Place { task, stack })
    }

    /// Makes the task of `place` ready to run `body`. What unwinds out of it ends there.
    pub(crate) fn start(&self, place: Place, body: impl FnOnce() + 'static) {
        if size_of_val(&body) > BODY_BYTES_MAX {
            let body: Box<dyn FnOnce()> = Box::new(body);
            return self.start(place, body);
        }
        let Place { task, stack } = place;
        let body = Body::new(body);
        let weak = Rc::downgrade(&task);
        let coroutine = TaskCoroutine::with_stack(stack, move |yielder, ()| {
            if let Some(task) = weak.upgrade() {
                task.yielder.set(std::ptr::from_ref(yielder));
            }
            body.run();
        });
        *task.coroutine.borrow_mut() = Some(coroutine);
        self.ready.borrow_mut().push_back(task.id.index);
    }

    /// Makes a parked task ready; a token for one that is not parked; nothing for one that ended.
    pub(crate) fn wake(&self, id: TaskId) {
        let tasks = self.tasks.borrow();
        if let Some(task) = tasks.get(id.index).filter(|task| task.id == id) {
            self.wake_task(task);
        }
    }

    fn wake_index(&self, index: u32) {
        if let Some(task) = self.tasks.borrow().get(index) {
            self.wake_task(task);
        }
    }

    fn wake_task(&self, task: &Task) {
        match task.state.get() {
            TaskState::Parked => {
                task.state.set(TaskState::Ready);
                self.ready.borrow_mut().push_back(task.id.index);
            }
            TaskState::Ready => {}
            TaskState::Running | TaskState::Yielded => task.notified.set(true),
        }
    }

    /// Prepares the running task to suspend until woken. False: a token lies ready, go on.
    pub(crate) fn prepare_park(
        &self,
        task: &Rc<Task>,
        why: &'static str,
        limit: Option<Duration>,
    ) -> bool {
        if task.notified.replace(false) {
            return false;
        }
        if let Some(limit) = limit {
            let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(NEVER);
            let at_ns = self.now_ns().saturating_add(limit_ns).min(NEVER - 1);
            self.timers.borrow_mut().set(task, at_ns);
        }
        task.waits_for.set(why);
        task.state.set(TaskState::Parked);
        true
    }

    pub(crate) fn prepare_yield(&self, task: &Task) {
        task.state.set(TaskState::Yielded);
        self.ready.borrow_mut().push_back(task.id.index);
    }

    /// Ends the round behind the running task, which yields: a yield alone would come back to it until the
    /// round's number of tasks is full, and tasks that wait for a socket or for time are only known as ready after a look.
    pub(crate) fn prepare_give_way(&self, task: &Task) {
        self.gave_way.set(true);
        self.prepare_yield(task);
    }

    /// Counts work of the running task; whether it has had its share of the core.
    pub(crate) fn worked(&self, bytes: usize) -> bool {
        let work = self.work.get().saturating_add(bytes);
        self.work.set(work);
        work >= WORK_MAX
    }

    /// Whether a task could run beside the running one.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty() || !self.mailbox.is_empty()
    }

    fn run_task(&self, index: u32) {
        let Some(task) = self.tasks.borrow().get(index).map(Rc::clone) else { return };
        task.state.set(TaskState::Running);
        self.inline_run.set(0);
        self.work.set(0);
        self.current.replace(Some(Rc::clone(&task)));
        let ended = match task.coroutine.borrow_mut().as_mut() {
            Some(coroutine) => matches!(coroutine.resume(()), CoroutineResult::Return(())),
            None => true,
        };
        self.current.take();
        if ended {
            self.retire(&task);
        }
    }

    fn retire(&self, task: &Task) {
        let index = task.id.index;
        {
            let mut tasks = self.tasks.borrow_mut();
            tasks.live -= 1;
            tasks.free.push(index);
            if let Some(slot) = tasks.slots.get_mut(index as usize) {
                slot.task = None;
                slot.generation = slot.generation.wrapping_add(1);
            }
        }
        if let Some(coroutine) = task.coroutine.take() {
            let stack = coroutine.into_stack();
            if !stack.is_intact() {
                die(format_args!("stack overflow in task (found when it ended)"));
            }
            self.stacks.borrow_mut().give(stack);
        }
    }

    // ---- the loop ----------------------------------------------------------------------------

    /// Runs tasks until the run-time is cancelled and none is left.
    pub(crate) fn run(&self) {
        let mut rounds = 0_u32;
        loop {
            self.drain_mailbox();
            self.run_round();
            // An idle core is told by its driver when a deadline has passed; a busy one looks at
            // the clock now and then.
            rounds = (rounds + 1) % CLOCK_ROUNDS;
            let gave_way = self.gave_way.replace(false);
            if rounds == 0 || gave_way {
                self.fire_timers();
            }
            if self.cancelled.get() && self.live() == 0 && self.mailbox.is_empty() {
                self.mailbox.close();
                self.driver.borrow_mut().end();
                return;
            }
            if self.ready.borrow().is_empty() {
                self.idle();
            } else {
                if gave_way {
                    self.driver.borrow_mut().look_next();
                }
                self.poll(Wait::No);
            }
        }
    }

    fn run_round(&self) {
        let most = self.driver.borrow().round_tasks();
        for _ in 0..most {
            let Some(index) = self.ready.borrow_mut().pop_front() else { return };
            self.run_task(index);
            if self.gave_way.get() || self.driver.borrow().sends() >= SENDS_MAX {
                return;
            }
        }
    }

    fn idle(&self) {
        if !self.spin.is_zero() {
            let spin_ns = u64::try_from(self.spin.as_nanos()).unwrap_or(NEVER);
            let end_ns = self.now_ns().saturating_add(spin_ns);
            loop {
                self.poll(Wait::No);
                self.fire_timers();
                if !self.ready.borrow().is_empty() || !self.mailbox.is_empty() {
                    return;
                }
                if self.now_ns() >= end_ns {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        self.mailbox.sleep.announce();
        if !self.mailbox.is_empty() {
            self.mailbox.sleep.awake();
            return;
        }
        let next_ns = self.timers.borrow_mut().next_ns();
        self.poll(Wait::Until(next_ns));
        self.mailbox.sleep.awake();
    }

    /// Hands the kernel what tasks asked for and wakes those whose requests have completed.
    fn poll(&self, wait: Wait) {
        let mut events = self.events.take();
        if let Err(error) = self.driver.borrow_mut().poll(wait, &mut events) {
            die(format_args!("esker-trt: core {} lost its poller: {error}", self.mailbox.core));
        }
        for event in events.drain(..) {
            match event {
                Event::Io { task, result } => self.complete_io(task, result),
                Event::Sent { task, result } => self.complete_send(task, result),
                Event::Timer => self.fire_timers(),
                Event::Socket { key, readiness, ended } => {
                    let mut sockets = self.sockets.borrow_mut();
                    let fd = sockets.report(key, readiness, |task| self.wake(task));
                    drop(sockets);
                    // The kernel ended a standing request for a socket that is still in use.
                    if ended && let Some(fd) = fd {
                        let armed = self.driver.borrow_mut().arm(key, fd);
                        if armed.is_err() {
                            self.sockets.borrow_mut().fail(key, |task| self.wake(task));
                        }
                    }
                }
            }
        }
        self.events.set(events);
    }

    fn complete_io(&self, index: u32, result: i32) {
        if let Some(task) = self.tasks.borrow().get(index) {
            task.io_result.set(Some(result));
        }
        self.wake_index(index);
    }

    /// A socket that took nothing is full from here on: events behind this one may say that it has room again, before
    /// the task runs (I1 of `sockets`).
    fn complete_send(&self, index: u32, result: i32) {
        let key = self.tasks.borrow().get(index).and_then(|task| task.sends_to.take());
        if let Some(key) = key.filter(|_| result == -libc::EAGAIN) {
            self.socket_drained(key, Interest::Write, true);
        }
        self.complete_io(index, result);
    }

    fn fire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now_ns = self.now_ns();
        loop {
            let due = self.timers.borrow_mut().take_due(now_ns);
            let Some(task) = due else { return };
            self.wake_task(&task);
        }
    }

    pub(crate) fn drain_mailbox(&self) {
        while let Some(message) = self.mailbox.take() {
            match message {
                Message::Wake(id) => self.wake(id),
                Message::IoDone { task, result } => self.complete_io(task, result),
                Message::Spawn { body, result } => match self.reserve() {
                    Ok(place) => self.start(place, body),
                    Err(error) => {
                        result.refuse(error);
                        self.refused.add(body);
                    }
                },
                Message::Forget(key, fd) => self.forget_socket(key, fd),
                Message::Look => {
                    if self.mailbox.cancel.load(Ordering::Acquire) {
                        self.cancel();
                    }
                }
            }
        }
    }

    /// Tells every task to end: those that wait look at [`Core::is_cancelled`] again.
    pub(crate) fn cancel(&self) {
        if self.cancelled.replace(true) {
            return;
        }
        let tasks = self.tasks.borrow();
        for task in tasks.slots.iter().filter_map(|slot| slot.task.as_ref()) {
            self.wake_task(task);
        }
    }

    // ---- disk --------------------------------------------------------------------------------

    /// Gives the request of the running task to the driver, or back if it has no way to do it.
    pub(crate) fn submit_io(&self, task: &Task, request: IoRequest) -> Option<IoRequest> {
        task.io_result.set(None);
        self.driver.borrow_mut().submit_io(task.id.index, request)
    }

    /// Whether a send of the running task should go with those of others.
    pub(crate) fn sends_together(&self) -> bool {
        let driver = self.driver.borrow();
        driver.sends_together() && (driver.sends() > 0 || !self.ready.borrow().is_empty())
    }

    /// Whether tasks make short disk requests themselves.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline
    }

    /// Counts a disk request that the running task made itself; whether it has had its share of the core.
    pub(crate) fn ran_inline(&self) -> bool {
        let run = self.inline_run.get() + 1;
        self.inline_run.set(run);
        run >= INLINE_RUN_MAX
    }

    // ---- sockets -----------------------------------------------------------------------------

    /// Starts to watch a socket.
    pub(crate) fn watch_socket(&self, fd: BorrowedFd<'_>) -> io::Result<SocketKey> {
        use std::os::fd::AsRawFd;
        let key = self.sockets.borrow_mut().insert(fd.as_raw_fd());
        let armed = self.driver.borrow_mut().arm(key, fd.as_raw_fd());
        if armed.is_err() {
            self.sockets.borrow_mut().remove(key);
        }
        armed.map(|()| key)
    }

    /// Stops watching a socket and closes it.
    pub(crate) fn forget_socket(&self, key: SocketKey, fd: OwnedFd) {
        use std::os::fd::AsRawFd;
        self.sockets.borrow_mut().remove(key);
        self.driver.borrow_mut().disarm(key, fd.as_raw_fd());
        drop(fd);
    }

    pub(crate) fn socket_is_ready(&self, key: SocketKey, interest: Interest) -> bool {
        self.sockets.borrow().is_ready(key, interest)
    }

    /// The socket has no more for now: the next wait is for a new event.
    pub(crate) fn socket_drained(&self, key: SocketKey, interest: Interest, would_block: bool) {
        self.sockets.borrow_mut().drained(key, interest, would_block);
    }

    pub(crate) fn socket_waits(&self, key: SocketKey, interest: Interest, task: TaskId) {
        self.sockets.borrow_mut().add_waiter(key, interest, task);
    }

    pub(crate) fn socket_stops_waiting(&self, key: SocketKey, interest: Interest, task: TaskId) {
        self.sockets.borrow_mut().remove_waiter(key, interest, task);
    }
}

mod simulated;
