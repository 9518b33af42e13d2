//! The run-time: scheduler threads, their start, and their bounded end.
//!
//! # Invariants
//! - I1: all cores use one facility, the first of those asked for that answered its probe and
//!   could be set up on every core.
//! - I2: shutdown waits at most its limit. A core whose tasks do not end stays alive, with their
//!   stacks and the memory they lent to the kernel; nothing is freed under a request in flight.
//! - I3: nothing unwinds past a core that has begun to run: the process ends before its tasks are dropped.
//!
//! # Concurrency
//! A `Runtime` may be shared between threads.

use crate::config::{Config, Facility};
use crate::context;
use crate::core::{Core, Parts};
use crate::die::{DiesUnlessDone, die, say};
use crate::driver::Driver;
use crate::offload::HelperPool;
use crate::overflow;
use crate::stack::StackPool;
use crate::sync;
use crate::task::{RemoteJoin, run_caught};
use crate::wake::{Mailbox, Message};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use esker_base::{Error, ErrorKind, Result};
use owed::Owed;
use parking_lot::{Condvar, Mutex as Lock};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

mod owed;
mod probe;

#[derive(Debug, Default)]
struct Ended {
    cores: Lock<Vec<CoreId>>,
    changed: Condvar,
}

struct CoreHandle {
    mailbox: Arc<Mailbox>,
    owed: Owed,
    thread: Lock<Option<JoinHandle<()>>>,
    words: String,
}

/// Scheduler threads, one a core, that run tasks. See the crate's text.
pub struct Runtime {
    cores: Vec<CoreHandle>,
    facility: Facility,
    refused: Vec<(Facility, String)>,
    ended: Arc<Ended>,
    next: AtomicUsize,
    shut: AtomicBool,
    shutdown_limit: Duration,
}

impl Runtime {
    /// Probes the facilities in the order asked for, and starts the cores on the first that works.
    ///
    /// # Errors
    /// `Unsupported` when none works, with the reason of each; `InvalidArgument` for a
    /// configuration that asks for no facility, or for more than 65,535 cores.
    pub fn start(config: Config) -> Result<Runtime> {
        let processors = crate::topology::processors()?;
        let cores = if config.cores == 0 { processors.len().max(1) } else { config.cores };
        if config.facilities.is_empty() {
            return Err(Error::invalid("start run-time", "no facility is allowed"));
        }
        u16::try_from(cores).map_err(|_| Error::invalid("start run-time", "too many cores"))?;
        let mut refused = Vec::new();
        for facility in &config.facilities {
            let attempt = probe::probe(*facility, &config)
                .and_then(|()| start_cores(*facility, &config, cores, &processors));
            match attempt {
                Ok((cores, ended)) => {
                    return Ok(Runtime {
                        cores,
                        facility: *facility,
                        refused,
                        ended,
                        next: AtomicUsize::new(0),
                        shut: AtomicBool::new(false),
                        shutdown_limit: config.shutdown_limit,
                    });
                }
                Err(reason) => refused.push((*facility, reason)),
            }
        }
        Err(Error::new(ErrorKind::Unsupported, "start run-time").context(refusals(&refused)))
    }

    /// The facility that was found.
    #[must_use]
    pub fn facility(&self) -> Facility {
        self.facility
    }

    /// Number of cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// What was found, and why an earlier choice was refused, in words for people.
    #[must_use]
    pub fn report(&self) -> String {
        let mut words = format!("{} cores on {}", self.cores.len(), self.facility);
        if let Some(core) = self.cores.first() {
            words.push_str(&core.words);
            words.push_str(", ");
            words.push_str(core.mailbox.guard().words());
        }
        if !self.refused.is_empty() {
            words.push_str("; refused: ");
            words.push_str(&refusals(&self.refused));
        }
        words
    }

    /// Starts a task on a core. Its result may be joined from anywhere.
    ///
    /// A core that does not exist, or has shut down, shows at the join.
    pub fn spawn_on<T: Send + 'static>(
        &self,
        core: CoreId,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> RemoteJoin<T> {
        let (promise, future) = sync::promise();
        match self.cores.get(usize::from(core.0)) {
            Some(core) => {
                let result = promise.result_cell();
                if core.owed.add(&result) {
                    let body = Box::new(move || promise.set(run_caught(body)));
                    core.mailbox.post(Message::Spawn { body, result });
                } else {
                    promise.set(Err(Error::new(ErrorKind::Closed, "spawn task")));
                }
            }
            None => promise.set(Err(Error::invalid("spawn task", format!("no core {core}")))),
        }
        RemoteJoin { future }
    }

    /// Starts a task on the next core in turn.
    pub fn spawn<T: Send + 'static>(
        &self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> RemoteJoin<T> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.cores.len().max(1);
        self.spawn_on(CoreId(u16::try_from(turn).unwrap_or(0)), body)
    }

    /// Cancels all tasks and waits until they have ended, at most `Config::shutdown_limit`.
    ///
    /// Called from one of its own tasks it only cancels. A second call does nothing more.
    ///
    /// # Errors
    /// `Timeout`, naming the cores whose tasks have not ended. They are left running, and their
    /// results fail with `Cancelled`, whatever they do; so do those of tasks that have not begun.
    pub fn shutdown(&self) -> Result<()> {
        for core in &self.cores {
            core.mailbox.cancel.store(true, Ordering::Release);
            core.mailbox.post(Message::Look);
        }
        let own = context::with(|core| {
            self.cores.iter().any(|other| Arc::ptr_eq(&other.mailbox, core.mailbox()))
        });
        if own == Some(true) || self.shut.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if !self.ended.wait(self.cores.len(), self.shutdown_limit) {
            // Not by the cores themselves: one whose task blocks its thread does nothing any more.
            self.cores.iter().for_each(|core| core.owed.give_up());
            // For tasks that waited for one of these results.
            self.ended.wait(self.cores.len(), Duration::from_secs(1));
        }
        let mut left = Vec::new();
        for core in &self.cores {
            if self.ended.cores.lock().contains(&core.mailbox.core) {
                if let Some(thread) = core.thread.lock().take() {
                    // A scheduler thread does not unwind: it aborts.
                    let _ = thread.join();
                }
            } else {
                left.push(format!("core {}", core.mailbox.core));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let context = format!("tasks did not end and were left running on {}", left.join(", "));
        Err(Error::new(ErrorKind::Timeout, "shut down run-time").context(context))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Err(error) = self.shutdown() {
            say(format_args!("esker-trt: {error}"));
        }
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("report", &self.report()).finish_non_exhaustive()
    }
}

impl Ended {
    fn add(&self, core: CoreId) {
        self.cores.lock().push(core);
        self.changed.notify_all();
    }

    /// Waits until so many cores have ended; false when the time was over first.
    fn wait(&self, cores: usize, limit: Duration) -> bool {
        let end = SystemClock.monotonic().saturating_add(limit);
        let mut ended = self.cores.lock();
        while ended.len() < cores {
            let left = end.saturating_sub(SystemClock.monotonic());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut ended, left);
        }
        true
    }
}

fn refusals(refused: &[(Facility, String)]) -> String {
    let words: Vec<String> =
        refused.iter().map(|(facility, reason)| format!("{facility} ({reason})")).collect();
    words.join(", ")
}

type Started = (Vec<CoreHandle>, Arc<Ended>);

fn start_cores(
    facility: Facility,
    config: &Config,
    count: usize,
    processors: &[usize],
) -> Result<Started, String> {
    let helpers = HelperPool::new(config.helper_threads_max);
    let ended = Arc::new(Ended::default());
    let mut cores: Vec<CoreHandle> = Vec::new();
    for index in 0..count {
        let processor = processors.get(index % processors.len().max(1)).copied();
        let plan = CorePlan {
            core: CoreId(u16::try_from(index).unwrap_or(u16::MAX)),
            facility,
            processor: processor.filter(|_| config.pin),
            config: config.clone(),
            helpers: Arc::clone(&helpers),
            ended: Arc::clone(&ended),
        };
        match plan.start() {
            Ok(core) => cores.push(core),
            Err(reason) => {
                for core in &cores {
                    core.mailbox.cancel.store(true, Ordering::Release);
                    core.mailbox.post(Message::Look);
                }
                ended.wait(cores.len(), config.probe_limit);
                return Err(format!("core {index}: {reason}"));
            }
        }
    }
    Ok((cores, ended))
}

struct CorePlan {
    core: CoreId,
    facility: Facility,
    processor: Option<usize>,
    config: Config,
    helpers: Arc<HelperPool>,
    ended: Arc<Ended>,
}

impl CorePlan {
    /// Starts the thread and waits until it says that its driver stands.
    fn start(self) -> Result<CoreHandle, String> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| format!("eventfd: {error}"))?;
        let mailbox = Arc::new(Mailbox::new(self.core, Some(eventfd)));
        let (sender, receiver) = mpsc::channel();
        let limit = self.config.probe_limit;
        let of_thread = Arc::clone(&mailbox);
        let thread = std::thread::Builder::new()
            .name(format!("esker-core-{}", self.core))
            .spawn(move || self.run(of_thread, &sender))
            .map_err(|error| format!("start thread: {error}"))?;
        let words =
            receiver.recv_timeout(limit).map_err(|_| format!("no answer within {limit:?}"))??;
        Ok(CoreHandle { mailbox, owed: Owed::default(), thread: Lock::new(Some(thread)), words })
    }

    fn run(self, mailbox: Arc<Mailbox>, started: &mpsc::Sender<Result<String, String>>) {
        let core = match self.build(Arc::clone(&mailbox)) {
            Ok(core) => Rc::new(core),
            Err(reason) => {
                // The starter may have stopped waiting.
                let _ = started.send(Err(reason));
                return;
            }
        };
        let words = core.words();
        if started.send(Ok(words)).is_err() {
            return;
        }
        let entered = context::enter(Rc::clone(&core));
        // Unwinding further would drop tasks whose buffers the kernel may write to, whatever unwinds: this goes before the core.
        let guard = DiesUnlessDone::new();
        if catch_unwind(AssertUnwindSafe(|| core.run())).is_err() {
            die(format_args!("esker-trt: scheduler of core {} panicked", mailbox.core));
        }
        guard.done();
        drop(entered);
        drop(core);
        self.ended.add(mailbox.core);
    }

    fn build(&self, mailbox: Arc<Mailbox>) -> Result<Core, String> {
        overflow::ensure_alternate_stack();
        if let Some(processor) = self.processor {
            let mut set = CpuSet::new();
            set.set(processor);
            sched_setaffinity(None, &set).map_err(|error| format!("pin thread: {error}"))?;
        }
        let driver = Driver::build(self.facility, &self.config, &mailbox)
            .map_err(|error| error.to_string())?;
        let mut stacks = StackPool::new(self.config.stack_size_bytes);
        stacks.report_to(Arc::clone(&mailbox));
        // The first slab shows which guard the kernel grants.
        let stack = stacks.take().map_err(|error| error.to_string())?;
        stacks.give(stack);
        Ok(Core::new(Parts {
            mailbox,
            driver,
            stacks,
            helpers: Some(Arc::clone(&self.helpers)),
            sim: None,
            inline: self.facility == Facility::Inline,
            tasks_max: self.config.tasks_max,
            spin: self.config.spin,
        }))
    }
}

#[cfg(test)]
pub(crate) mod tests;
