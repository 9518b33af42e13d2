//! Waking: how one core, task or thread makes another go on.
//!
//! A core has a [`Mailbox`] that any thread may post to. Posting costs one queue push; the system
//! call that rouses the core is only made when the core has announced that it sleeps. A [`Waker`]
//! hides whether a task or an ordinary thread waits.
//!
//! # Invariants
//! - I1: a core that sleeps has announced it and looked into its mailbox afterwards; a poster
//!   posts first and looks at the announcement afterwards. Both put a full fence between the two
//!   steps, so that at least one sees the other ([`SleepCell`], checked with loom).
//! - I2: waking is a token: a wake-up that comes before the wait makes the wait return at once.
//!   Waits may also return for no reason, so every waiter looks at its condition again.
//! - I3: after a mailbox is closed, whatever is still posted there is refused and dropped, by the core, which has no task
//!   any more that this could hold up, or by the poster; so nobody waits for a core that is gone.
//!
//! # Concurrency
//! Everything here may be used from any thread. No lock is held while a waiter runs.

use crate::context;
use crate::stack::Guard;
use crate::task::{TaskId, contain};
use crossbeam_queue::SegQueue;
use esker_base::ids::CoreId;
use esker_base::sync::atomic::{AtomicU32, Ordering, fence};
use esker_base::{Error, ErrorKind};
use parking_lot::{Condvar, Mutex as Lock};
use std::cell::OnceCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::time::Duration;

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;

/// Tells posters whether the core must be roused. Transitions: the core sets `SLEEPING` before
/// it blocks and `AWAKE` after; one poster may turn `SLEEPING` into `AWAKE` and then rouses it.
#[derive(Debug)]
pub(crate) struct SleepCell(AtomicU32);

impl SleepCell {
    pub(crate) fn new() -> Self {
        SleepCell(AtomicU32::new(AWAKE))
    }

    /// The core will block unless it now finds something to do.
    pub(crate) fn announce(&self) {
        self.0.store(SLEEPING, Ordering::Relaxed);
        // Orders the announcement before the look into the mailbox (I1).
        fence(Ordering::SeqCst);
    }

    /// The core runs again.
    pub(crate) fn awake(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// Whether the caller, who has posted, must rouse the core. True for one poster a sleep.
    pub(crate) fn must_rouse(&self) -> bool {
        // Orders the post before the look at the announcement (I1).
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) == SLEEPING
            && self
                .0
                .compare_exchange(SLEEPING, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// The result cell of a task started from elsewhere.
pub(crate) trait RemoteResult: Send + Sync {
    /// Fails the result, unless it is there, without the task that owes it: that was not started, or does not end.
    fn refuse(&self, error: Error);
}

/// What a task started from elsewhere runs.
pub(crate) type RemoteBody = Box<dyn FnOnce() + Send>;

/// What can be posted to a core.
pub(crate) enum Message {
    /// Wake a task.
    Wake(TaskId),
    /// A helper thread finished the disk call of a task.
    IoDone { task: u32, result: i32 },
    /// Start a task.
    Spawn { body: RemoteBody, result: Arc<dyn RemoteResult> },
    /// Forget a socket that was closed on another thread.
    Forget(crate::sockets::SocketKey, OwnedFd),
    /// Look at the cancel flag.
    Look,
}

/// The part of a core that other threads see.
pub(crate) struct Mailbox {
    pub(crate) core: CoreId,
    inbox: SegQueue<Message>,
    pub(crate) sleep: SleepCell,
    /// Written to rouse the core; none in a simulation, where nobody else runs.
    pub(crate) eventfd: Option<OwnedFd>,
    pub(crate) cancel: AtomicBool,
    closed: AtomicBool,
    guard: AtomicU8,
}

impl Mailbox {
    pub(crate) fn new(core: CoreId, eventfd: Option<OwnedFd>) -> Self {
        Mailbox {
            core,
            inbox: SegQueue::new(),
            sleep: SleepCell::new(),
            eventfd,
            cancel: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            guard: AtomicU8::new(0),
        }
    }

    /// How the stacks of the core are guarded.
    pub(crate) fn guard(&self) -> Guard {
        Guard::from_number(self.guard.load(std::sync::atomic::Ordering::Relaxed))
    }

    pub(crate) fn set_guard(&self, guard: Guard) {
        self.guard.store(guard.number(), std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inbox.is_empty()
    }

    pub(crate) fn take(&self) -> Option<Message> {
        self.inbox.pop()
    }

    /// Posts and, if the core sleeps, rouses it.
    pub(crate) fn post(&self, message: Message) {
        // Who posts what holds nothing may be a scheduler, on whose stack nothing of others is dropped.
        let holds = matches!(message, Message::Spawn { .. } | Message::Forget(..));
        if !holds && self.is_closed() {
            return;
        }
        self.inbox.push(message);
        if self.sleep.must_rouse()
            && let Some(eventfd) = &self.eventfd
        {
            // The counter cannot overflow, and nothing else can go wrong with a live eventfd.
            let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes_for_kernel());
        }
        if holds && self.is_closed() {
            self.drain();
        }
    }

    /// Refuses what is posted now or later (I3).
    pub(crate) fn close(&self) {
        self.closed.store(true, std::sync::atomic::Ordering::SeqCst);
        self.drain();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn drain(&self) {
        let mut bodies = Vec::new();
        while let Some(message) = self.inbox.pop() {
            if let Message::Spawn { body, result } = message {
                result.refuse(Error::new(ErrorKind::Closed, "spawn task"));
                bodies.push(body);
            }
        }
        // When nobody waits for a result any more: what is dropped may wait for who did.
        bodies.into_iter().for_each(|body| contain(|| drop(body)));
    }
}

/// The eventfd counter is a native integer by the kernel's definition, not a byte on media.
trait KernelBytes {
    fn to_ne_bytes_for_kernel(self) -> [u8; 8];
}

impl KernelBytes for u64 {
    #[expect(clippy::host_endian_bytes, reason = "eventfd takes a native integer")]
    fn to_ne_bytes_for_kernel(self) -> [u8; 8] {
        self.to_ne_bytes()
    }
}

/// Where an ordinary thread waits.
#[derive(Debug, Default)]
pub(crate) struct ThreadParker {
    token: Lock<bool>,
    roused: Condvar,
}

impl ThreadParker {
    fn wake(&self) {
        *self.token.lock() = true;
        self.roused.notify_one();
    }

    fn park(&self, limit: Option<Duration>) {
        let mut token = self.token.lock();
        match limit {
            None => {
                while !*token {
                    self.roused.wait(&mut token);
                }
            }
            Some(limit) => {
                if !*token {
                    self.roused.wait_for(&mut token, limit);
                }
            }
        }
        *token = false;
    }
}

thread_local! {
    static PARKER: Arc<ThreadParker> = Arc::default();
    /// For destructors of other thread-locals that wait when that one is gone. Without a destructor of its own it is
    /// there to the end of the thread; such a thread leaves it behind.
    static LATE_PARKER: OnceCell<ManuallyDrop<Arc<ThreadParker>>> = const { OnceCell::new() };
}

/// Where this thread waits.
fn parker() -> Arc<ThreadParker> {
    PARKER.try_with(Arc::clone).unwrap_or_else(|_| {
        LATE_PARKER.with(|parker| Arc::clone(parker.get_or_init(ManuallyDrop::default)))
    })
}

/// Makes one waiting task or thread go on. Cheap to clone, usable from anywhere, any number of
/// times; a task that has ended ignores it.
#[derive(Clone)]
pub(crate) enum Waker {
    Task { mailbox: Arc<Mailbox>, task: TaskId },
    Thread(Arc<ThreadParker>),
}

impl Waker {
    /// The waker of the task, or thread, that calls.
    pub(crate) fn current() -> Waker {
        context::with_task(|core, task| Waker::Task {
            mailbox: Arc::clone(core.mailbox()),
            task: task.id,
        })
        .unwrap_or_else(|| Waker::Thread(parker()))
    }

    pub(crate) fn wake(&self) {
        match self {
            Waker::Thread(parker) => parker.wake(),
            Waker::Task { mailbox, task } => {
                let here = context::with(|core| {
                    let mine = Arc::ptr_eq(core.mailbox(), mailbox);
                    if mine {
                        core.wake(*task);
                    }
                    mine
                });
                if here != Some(true) {
                    mailbox.post(Message::Wake(*task));
                }
            }
        }
    }

    /// Whether both wake the same task or thread.
    pub(crate) fn is_same(&self, other: &Waker) -> bool {
        match (self, other) {
            (Waker::Thread(a), Waker::Thread(b)) => Arc::ptr_eq(a, b),
            (
                Waker::Task { mailbox: a, task: task_a },
                Waker::Task { mailbox: b, task: task_b },
            ) => task_a == task_b && Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waker::Task { mailbox, task } => {
                write!(f, "task {} on core {}", task.index, mailbox.core)
            }
            Waker::Thread(_) => f.write_str("thread"),
        }
    }
}

/// Suspends the task, or blocks the thread, until it is woken; may return for no reason. `why`
/// names the wait in a deadlock report.
pub(crate) fn park(why: &'static str) {
    if !context::park_task(why, None) {
        parker().park(None);
    }
}

/// As [`park`], but at most for `limit`.
pub(crate) fn park_for(why: &'static str, limit: Duration) {
    if !context::park_task(why, Some(limit)) {
        parker().park(Some(limit));
    }
}

#[cfg(test)]
mod tests;
