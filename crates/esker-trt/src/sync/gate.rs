//! A door that opens once.
//!
//! Tasks, and threads that wait for a limited time, leave a waker. Other threads sleep on the state itself, and one
//! system call wakes them all: of a batch with many writers, waking them is most of the work.

use crate::task::in_task;
use crate::wake::{self, Waker};
use esker_base::{Error, ErrorKind, Result};
use parking_lot::Mutex as Lock;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const CLOSED: u32 = 0;
/// Closed, and threads sleep on the state.
const AWAITED: u32 = 1;
const OPEN: u32 = 2;

/// A door that opens once: any number of tasks and threads wait for it, on any core.
#[derive(Debug, Default)]
pub struct Gate {
    state: AtomicU32,
    waiters: Lock<Vec<Waker>>,
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Gate::default()
    }

    /// Opens the gate for ever and wakes everyone who waits.
    pub fn open(&self) {
        let (before, waiters) = {
            let mut waiters = self.waiters.lock();
            // Pairs with the load in `is_open`.
            (self.state.swap(OPEN, Ordering::Release), std::mem::take(&mut *waiters))
        };
        if before == AWAITED {
            // Whoever finds the state changed does not sleep; nothing else can go wrong.
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, u32::MAX >> 1);
        }
        for waiter in waiters {
            waiter.wake();
        }
    }

    /// Whether the gate is open. What happened before `open` is visible after `true`.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// Waits until the gate is open. Not ended by a shutdown: whoever holds the gate closed must
    /// open it, also when it fails.
    pub fn wait(&self) {
        if !in_task() {
            return self.sleep();
        }
        if self.enlist().is_some() {
            while !self.is_open() {
                wake::park("gate");
            }
        }
    }

    /// Waits until the gate is open, at most for `limit`.
    ///
    /// # Errors
    /// `Timeout`.
    pub fn wait_for(&self, limit: Duration) -> Result<()> {
        let Some(waiter) = self.enlist() else { return Ok(()) };
        let end = crate::time::now().saturating_add(limit);
        while !self.is_open() {
            let left = end.saturating_sub(crate::time::now());
            if left.is_zero() {
                self.leave(&waiter);
                return Err(Error::new(ErrorKind::Timeout, "wait for gate"));
            }
            wake::park_for("gate", left);
        }
        Ok(())
    }

    /// Blocks the thread until the gate is open.
    fn sleep(&self) {
        loop {
            let (relaxed, acquire) = (Ordering::Relaxed, Ordering::Acquire);
            if self.state.compare_exchange(CLOSED, AWAITED, relaxed, acquire) == Err(OPEN) {
                return;
            }
            // Woken, interrupted, or late: the state tells.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    /// Puts the caller on the list; `None` if the gate is open.
    fn enlist(&self) -> Option<Waker> {
        if self.is_open() {
            return None;
        }
        let waker = Waker::current();
        let mut waiters = self.waiters.lock();
        if self.is_open() {
            return None;
        }
        waiters.push(waker.clone());
        Some(waker)
    }

    fn leave(&self, waiter: &Waker) {
        self.waiters.lock().retain(|other| !other.is_same(waiter));
    }
}
