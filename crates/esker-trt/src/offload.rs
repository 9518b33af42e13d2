//! Helper threads for system calls that block: `fallocate`, opening, and all disk calls where
//! neither io_uring nor AIO is to be had.
//!
//! # Safety invariants
//! - S1: a job's pointers name memory of the frame of a task that is parked until the job's
//!   `IoDone` was delivered; a core drops no such task.
//!
//! # Concurrency
//! One pool for all cores of a run-time. Threads start when a job finds none idle, up to the
//! limit, and end when the last core of the run-time has.
#![expect(unsafe_code, reason = "runs jobs that point into frames of parked tasks")]

use crate::context;
use crate::driver::{IoKind, IoRequest};
use crate::wake::{Mailbox, Message};
use parking_lot::{Condvar, Mutex as Lock};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

enum Work {
    Disk(IoRequest),
    /// A function and the frame it works on.
    Call(unsafe fn(*mut ()), *mut ()),
}

struct Job {
    work: Work,
    mailbox: Arc<Mailbox>,
    task: u32,
}

// SAFETY: the pointers of a job are only used by the helper that runs it, while the task that owns
// the memory is parked (S1); what a `Call` touches is `Send` by the bounds of `offload`.
unsafe impl Send for Job {}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    closed: bool,
}

/// What the cores hold; helpers end, when they have done what is queued, behind the last one.
pub(crate) struct HelperPool(Arc<Shared>);

/// What helpers hold.
struct Shared {
    queue: Lock<Queue>,
    posted: Condvar,
    threads_max: usize,
}

impl HelperPool {
    pub(crate) fn new(threads_max: usize) -> Arc<Self> {
        Arc::new(HelperPool(Arc::new(Shared {
            queue: Lock::default(),
            posted: Condvar::new(),
            threads_max: threads_max.max(1),
        })))
    }
}

impl Drop for HelperPool {
    fn drop(&mut self) {
        self.0.queue.lock().closed = true;
        self.0.posted.notify_all();
    }
}

impl Shared {
    fn post(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue.lock();
        // Under the lock: what is in the queue waits for somebody who is there.
        let is_short = queue.idle <= queue.jobs.len() && queue.threads < self.threads_max;
        if is_short && self.start_helper() {
            queue.threads += 1;
        }
        if queue.threads > 0 {
            queue.jobs.push_back(job);
            drop(queue);
            self.posted.notify_one();
            return;
        }
        drop(queue);
        // With no helper at all a task does the work itself, its own and no other's: what a call waits for is told to the
        // task in which it runs.
        job.run();
    }

    fn start_helper(self: &Arc<Self>) -> bool {
        #[cfg(test)]
        if tests::NO_THREADS.get() {
            return false;
        }
        let pool = Arc::clone(self);
        let thread = std::thread::Builder::new().name("esker-helper".to_owned());
        thread.spawn(move || pool.run()).is_ok()
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job.run();
                queue = self.queue.lock();
            } else if queue.closed {
                queue.threads -= 1;
                return;
            } else {
                queue.idle += 1;
                self.posted.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

impl Job {
    fn run(self) {
        let result = match self.work {
            Work::Disk(request) => run_disk(&request),
            Work::Call(function, frame) => {
                // SAFETY: the frame that `offload` made for this function (S1).
                unsafe { function(frame) };
                0
            }
        };
        self.mailbox.post(Message::IoDone { task: self.task, result });
    }
}

/// Runs a disk request as a plain system call: bytes, or a negated error number.
pub(crate) fn run_disk(request: &IoRequest) -> i32 {
    let count = i32::try_from(request.vector_count).unwrap_or(i32::MAX);
    let offset = i64::try_from(request.offset).unwrap_or(i64::MAX);
    loop {
        let result = match request.kind {
            IoKind::Read if request.vector_count == 1 => {
                // SAFETY: one vector of a parked task (S1).
                let vector = unsafe { &*request.vectors };
                let (base, length) = (vector.iov_base, vector.iov_len);
                // The bare call: that of the library looks for a cancelled thread first.
                // SAFETY: a buffer of a parked task, writable (S1).
                let result =
                    unsafe { libc::syscall(libc::SYS_pread64, request.fd, base, length, offset) };
                isize::try_from(result).unwrap_or(-1)
            }
            IoKind::Read => {
                // SAFETY: vectors and buffers of a parked task, writable (S1).
                unsafe { libc::preadv(request.fd, request.vectors, count, offset) }
            }
            IoKind::Write { durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                // SAFETY: vectors and buffers of a parked task, readable (S1).
                unsafe { libc::pwritev2(request.fd, request.vectors, count, offset, flags) }
            }
            IoKind::SyncData => {
                // SAFETY: takes no memory.
                unsafe { libc::fdatasync(request.fd) as isize }
            }
            // Only rings take sends.
            IoKind::Send { .. } => return -libc::EOPNOTSUPP,
        };
        if result >= 0 {
            return i32::try_from(result).unwrap_or(i32::MAX);
        }
        let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if number != libc::EINTR {
            return -number;
        }
    }
}

/// Gives the disk request of the running task to a helper. False: no task, or no helpers.
pub(crate) fn post_disk(request: IoRequest) -> bool {
    post(Work::Disk(request))
}

fn post(work: Work) -> bool {
    let found = context::with_task(|core, task| {
        let helpers = Arc::clone(core.helpers()?);
        task.io_result.set(None);
        Some((helpers, Arc::clone(core.mailbox()), task.id.index))
    });
    let Some((helpers, mailbox, task)) = found.flatten() else { return false };
    // Not inside: without a helper the job runs here, and what it calls may suspend the task.
    helpers.0.post(Job { work, mailbox, task });
    true
}

struct Frame<F, T> {
    function: Option<F>,
    result: Option<std::thread::Result<T>>,
}

/// Runs a blocking call on a helper thread while the task waits; on an ordinary thread, and in a
/// simulation, in place. A panic of the call surfaces here.
///
/// `function` runs on another thread while this task is suspended: it must not use the run-time's
/// local parts (`spawn`, `local`).
pub fn offload<T: Send, F: FnOnce() -> T + Send>(function: F) -> T {
    unsafe fn run<F: FnOnce() -> T, T>(frame: *mut ()) {
        // SAFETY: `offload` passes its own frame, which it does not touch until `IoDone` (S1).
        let frame = unsafe { &mut *frame.cast::<Frame<F, T>>() };
        if let Some(function) = frame.function.take() {
            frame.result = Some(catch_unwind(AssertUnwindSafe(function)));
        }
    }
    let mut frame = Frame { function: Some(function), result: None };
    let pointer = &raw mut frame;
    if post(Work::Call(run::<F, T>, pointer.cast())) {
        crate::io::wait_for_completion("a blocking call");
    } else {
        // SAFETY: our own frame, used by nobody else.
        unsafe { run::<F, T>(pointer.cast()) };
    }
    match frame.result {
        Some(Ok(value)) => value,
        Some(Err(payload)) => resume_unwind(payload),
        None => unreachable!("the call has run: its completion was delivered"),
    }
}

#[cfg(test)]
mod tests;
