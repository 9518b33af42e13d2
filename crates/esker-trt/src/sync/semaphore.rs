//! A counted number of permits, handed out in the order of asking.

use crate::wake::{self, Waker};
use parking_lot::Mutex as Lock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
struct Waiter {
    count: usize,
    granted: AtomicBool,
    waker: Waker,
}

#[derive(Debug)]
struct State {
    free: usize,
    waiters: VecDeque<Arc<Waiter>>,
}

/// A number of permits. Tasks and threads that find too few wait in line; a large request at the
/// head is not overtaken.
#[derive(Debug)]
pub struct Semaphore(Lock<State>);

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
        Semaphore(Lock::new(State { free: permits, waiters: VecDeque::new() }))
    }

    /// Takes `count` permits; waits for them. Not ended by a shutdown.
    pub fn acquire(&self, count: usize) -> Permit<'_> {
        if let Some(waiter) = self.enlist(count) {
            while !waiter.granted.load(Ordering::Acquire) {
                wake::park("semaphore");
            }
        }
        Permit { semaphore: self, count }
    }

    /// Takes `count` permits if they are free and nobody waits.
    #[must_use]
    pub fn try_acquire(&self, count: usize) -> Option<Permit<'_>> {
        self.take(count).then(|| Permit { semaphore: self, count })
    }

    /// Adds permits, for ever or for those that were forgotten with [`Permit::forget`].
    pub fn release(&self, count: usize) {
        let mut state = self.0.lock();
        state.free += count;
        self.grant(state);
    }

    /// Permits that are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.lock().free
    }

    fn take(&self, count: usize) -> bool {
        let mut state = self.0.lock();
        let fits = state.waiters.is_empty() && state.free >= count;
        if fits {
            state.free -= count;
        }
        fits
    }

    fn enlist(&self, count: usize) -> Option<Arc<Waiter>> {
        if self.take(count) {
            return None;
        }
        let waker = Waker::current();
        let mut state = self.0.lock();
        if state.waiters.is_empty() && state.free >= count {
            state.free -= count;
            return None;
        }
        let waiter = Arc::new(Waiter { count, granted: AtomicBool::new(false), waker });
        state.waiters.push_back(Arc::clone(&waiter));
        Some(waiter)
    }

    fn grant(&self, mut state: parking_lot::MutexGuard<'_, State>) {
        let mut granted = Vec::new();
        while let Some(waiter) = state.waiters.front()
            && waiter.count <= state.free
        {
            // Pairs with the waiter's load: what came before the release is visible to it.
            waiter.granted.store(true, Ordering::Release);
            let count = waiter.count;
            state.free -= count;
            granted.extend(state.waiters.pop_front());
        }
        drop(state);
        for waiter in granted {
            waiter.waker.wake();
        }
    }
}

impl Permit<'_> {
    /// Keeps the permits taken; [`Semaphore::release`] brings them back.
    pub fn forget(mut self) {
        self.count = 0;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.semaphore.release(self.count);
        }
    }
}
