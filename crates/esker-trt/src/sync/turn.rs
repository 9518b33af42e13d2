//! A lock around nothing: one holder at a time, in the order of asking.
//!
//! Free, it is taken and given back with one atomic operation each; only where somebody waits is there a list.
//!
//! # Invariants
//! - T1: `WAITED` is set exactly while the list is not empty, outside of the list's lock. So who gives a turn back that
//!   nobody waits for finds `HELD`, and everybody else passes it on under that lock.
//! - T2: a turn that is passed on is never free in between: nobody overtakes who waits.

use crate::wake::{self, Waker};
use parking_lot::Mutex as Lock;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody waits.
const WAITED: u32 = 2;

#[derive(Debug)]
struct Waiter {
    granted: AtomicBool,
    waker: Waker,
}

/// Mutual exclusion of tasks of any cores and of threads. May be held over I/O and other waits.
/// Served in the order of asking.
#[derive(Debug, Default)]
pub struct Turn {
    state: AtomicU32,
    waiters: Lock<VecDeque<Arc<Waiter>>>,
}

/// A turn until it is dropped. `!Send`: it stays with its task.
#[derive(Debug)]
pub struct TurnGuard<'a> {
    turn: &'a Turn,
    stays: PhantomData<*const ()>,
}

impl Turn {
    /// A free turn.
    #[must_use]
    pub fn new() -> Self {
        Turn::default()
    }

    /// Waits for the turn. Not ended by a shutdown.
    #[inline]
    pub fn take(&self) -> TurnGuard<'_> {
        if !self.take_free() {
            self.wait();
        }
        TurnGuard { turn: self, stays: PhantomData }
    }

    /// The turn if it is free and nobody waits.
    #[inline]
    #[must_use]
    pub fn try_take(&self) -> Option<TurnGuard<'_>> {
        self.take_free().then(|| TurnGuard { turn: self, stays: PhantomData })
    }

    #[inline]
    fn take_free(&self) -> bool {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let waker = Waker::current();
        let waiter = {
            let mut waiters = self.waiters.lock();
            // Acquires if it was free after all; else T1.
            let mark = |state| Some(if state == FREE { HELD } else { WAITED });
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            if self.state.fetch_update(success, failure, mark) == Ok(FREE) {
                return;
            }
            let waiter = Arc::new(Waiter { granted: AtomicBool::new(false), waker });
            waiters.push_back(Arc::clone(&waiter));
            waiter
        };
        while !waiter.granted.load(Ordering::Acquire) {
            wake::park("lock");
        }
    }

    #[cold]
    fn pass_on(&self) {
        let mut waiters = self.waiters.lock();
        let next = waiters.pop_front();
        if waiters.is_empty() {
            // T2: held by the next one, if there is one.
            let state = if next.is_some() { HELD } else { FREE };
            self.state.store(state, Ordering::Release);
        }
        drop(waiters);
        if let Some(next) = next {
            // Pairs with the waiter's load: what came before is visible to it.
            next.granted.store(true, Ordering::Release);
            next.waker.wake();
        }
    }
}

impl Drop for TurnGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        if self.turn.state.compare_exchange(HELD, FREE, success, failure).is_err() {
            self.turn.pass_on();
        }
    }
}
