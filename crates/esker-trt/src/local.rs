//! Waiting and waking between tasks of one core: the cheap variant, without atomics or locks.
//!
//! uDepot §3 has an intra-core and an inter-core variant of each primitive; the other one is
//! [`sync`](crate::sync). These are `!Send`: the compiler keeps them on their core.
//!
//! Waiting is for tasks. A thread that has to wait here would wait for itself: that panics.

use crate::context;
use crate::task::{TaskId, cancelled_error, is_cancelled};
use esker_base::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

fn current() -> TaskId {
    let id = context::with_task(|_, task| task.id);
    id.expect("a wait of esker_trt::local outside a task would never end")
}

fn wake(id: TaskId) {
    context::with(|core| core.wake(id));
}

/// Wakes tasks that wait for something to happen. Remembers one notification that nobody waited
/// for.
#[derive(Debug, Default)]
pub struct Notify {
    token: Cell<bool>,
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
}

#[derive(Debug)]
struct Waiter {
    task: TaskId,
    notified: Cell<bool>,
}

impl Notify {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new() -> Self {
        Notify::default()
    }

    /// Wakes the task that waits longest; with none, the next wait returns at once.
    pub fn notify_one(&self) {
        let waiter = self.waiters.borrow_mut().pop_front();
        match waiter {
            Some(waiter) => {
                waiter.notified.set(true);
                wake(waiter.task);
            }
            None => self.token.set(true),
        }
    }

    /// Wakes every task that waits now.
    pub fn notify_all(&self) {
        let waiters = self.waiters.take();
        for waiter in waiters {
            waiter.notified.set(true);
            wake(waiter.task);
        }
    }

    /// Waits for a notification, or takes the remembered one.
    ///
    /// # Errors
    /// `Cancelled` when the run-time shuts down.
    ///
    /// # Panics
    /// Outside a task.
    pub fn wait(&self) -> Result<()> {
        if self.token.replace(false) {
            return Ok(());
        }
        let waiter = Rc::new(Waiter { task: current(), notified: Cell::new(false) });
        self.waiters.borrow_mut().push_back(Rc::clone(&waiter));
        while !waiter.notified.get() {
            if is_cancelled() {
                self.waiters.borrow_mut().retain(|other| !Rc::ptr_eq(other, &waiter));
                return Err(cancelled_error("wait for notification"));
            }
            context::park_task("notification", None);
        }
        Ok(())
    }
}

struct Shared<T> {
    value: Cell<Option<T>>,
    broken: Cell<bool>,
    waiter: Cell<Option<TaskId>>,
}

impl<T> Shared<T> {
    fn rouse(&self) {
        if let Some(waiter) = self.waiter.take() {
            wake(waiter);
        }
    }
}

/// The side that owes the value. Dropped without one, it fails the future with `Closed`.
pub struct Promise<T>(Rc<Shared<T>>);

/// The side that waits for the value.
pub struct Future<T>(Rc<Shared<T>>);

/// A promise and its future, both on this core.
#[must_use]
pub fn promise<T>() -> (Promise<T>, Future<T>) {
    let shared = Rc::new(Shared {
        value: Cell::new(None),
        broken: Cell::new(false),
        waiter: Cell::new(None),
    });
    (Promise(Rc::clone(&shared)), Future(shared))
}

impl<T> Promise<T> {
    /// Keeps the promise.
    pub fn set(self, value: T) {
        self.0.value.set(Some(value));
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.broken.set(true);
        self.0.rouse();
    }
}

impl<T> Future<T> {
    /// Waits for the value. Not ended by a shutdown.
    ///
    /// # Errors
    /// `Closed` when the promise was dropped.
    ///
    /// # Panics
    /// Outside a task, unless the value is there.
    pub fn wait(self) -> Result<T> {
        loop {
            if let Some(value) = self.0.value.take() {
                return Ok(value);
            }
            if self.0.broken.get() {
                return Err(Error::new(ErrorKind::Closed, "wait for promise"));
            }
            self.0.waiter.set(Some(current()));
            context::park_task("promise", None);
        }
    }

    /// Whether [`Future::wait`] would return at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        // A promise is always dropped when it is kept.
        self.0.broken.get()
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise")
    }
}

impl<T> fmt::Debug for Future<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Future").field("ready", &self.is_ready()).finish()
    }
}

#[derive(Debug)]
struct SemaphoreState {
    free: usize,
    waiters: VecDeque<(usize, Rc<Waiter>)>,
}

/// A number of permits for the tasks of one core, handed out in the order of asking.
#[derive(Debug)]
pub struct Semaphore(RefCell<SemaphoreState>);

/// Permits that go back when it is dropped.
#[derive(Debug)]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Semaphore {
    /// A semaphore with `permits` free.
    #[must_use]
    pub fn new(permits: usize) -> Self {
        Semaphore(RefCell::new(SemaphoreState { free: permits, waiters: VecDeque::new() }))
    }

    /// Takes `count` permits; waits for them. Not ended by a shutdown.
    ///
    /// # Panics
    /// Outside a task, if it has to wait.
    pub fn acquire(&self, count: usize) -> Permit<'_> {
        if !self.take(count) {
            let waiter = Rc::new(Waiter { task: current(), notified: Cell::new(false) });
            self.0.borrow_mut().waiters.push_back((count, Rc::clone(&waiter)));
            while !waiter.notified.get() {
                context::park_task("semaphore", None);
            }
        }
        Permit { semaphore: self, count }
    }

    /// Takes `count` permits if they are free and nobody waits.
    #[must_use]
    pub fn try_acquire(&self, count: usize) -> Option<Permit<'_>> {
        self.take(count).then(|| Permit { semaphore: self, count })
    }

    fn take(&self, count: usize) -> bool {
        let mut state = self.0.borrow_mut();
        let fits = state.waiters.is_empty() && state.free >= count;
        if fits {
            state.free -= count;
        }
        fits
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.semaphore.0.borrow_mut();
        state.free += self.count;
        while let Some((count, _)) = state.waiters.front()
            && *count <= state.free
        {
            state.free -= *count;
            if let Some((_, waiter)) = state.waiters.pop_front() {
                waiter.notified.set(true);
                wake(waiter.task);
            }
        }
    }
}

#[cfg(test)]
mod tests;
