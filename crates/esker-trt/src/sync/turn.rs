//! Locks around nothing: one holder at a time, in the order of asking.
//!
//! Free, a turn is taken and given back with one atomic operation each; only where somebody waits is there a list. Several turns may
//! share one ([`Turns`]): a turn is a byte then, so that there may be very many of them.
//!
//! # Invariants
//! - T1: a turn is `WAITED` exactly while somebody in the list waits for it, outside of the list's lock. So who gives a turn back that
//!   nobody waits for finds `HELD`, and everybody else passes it on under that lock.
//! - T2: a turn that is passed on is never free in between: nobody overtakes who waits.

use crate::wake::{self, Waker};
use parking_lot::Mutex as Lock;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const FREE: u8 = 0;
const HELD: u8 = 1;
/// Held, and somebody waits.
const WAITED: u8 = 2;

#[derive(Debug)]
struct Waiter {
    granted: AtomicBool,
    waker: Waker,
}

/// Who waits for a turn, and for which: by the address of its byte.
type Waiters = Lock<VecDeque<(usize, Arc<Waiter>)>>;

/// Mutual exclusion of tasks of any cores and of threads. May be held over I/O and other waits.
/// Served in the order of asking.
#[derive(Debug, Default)]
pub struct Turn(Turns<1>);

/// `N` turns that have nothing to do with each other, but for the memory of those who wait: `N` bytes, and 40 for all.
#[derive(Debug)]
pub struct Turns<const N: usize> {
    states: [AtomicU8; N],
    waiters: Waiters,
}

/// A turn until it is dropped. `!Send`: it stays with its task.
#[derive(Debug)]
pub struct TurnGuard<'a> {
    state: &'a AtomicU8,
    waiters: &'a Waiters,
    stays: PhantomData<*const ()>,
}

/// All turns of several, until it is dropped. `!Send`, as one of them.
#[derive(Debug)]
pub struct AllTurns<'a, const N: usize> {
    turns: &'a Turns<N>,
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
        self.0.take(0)
    }

    /// The turn if it is free and nobody waits.
    #[inline]
    #[must_use]
    pub fn try_take(&self) -> Option<TurnGuard<'_>> {
        self.0.try_take(0)
    }
}

impl<const N: usize> Default for Turns<N> {
    fn default() -> Self {
        const { assert!(N > 0, "there is one") };
        Turns { states: std::array::from_fn(|_| AtomicU8::new(FREE)), waiters: Lock::default() }
    }
}

impl<const N: usize> Turns<N> {
    /// Waits for the turn of this number, modulo `N`. Not ended by a shutdown.
    #[inline]
    pub fn take(&self, number: usize) -> TurnGuard<'_> {
        let state = self.state(number);
        if !take_free(state) {
            wait(state, &self.waiters);
        }
        self.guard(number)
    }

    /// The turn of this number, modulo `N`, if it is free and nobody waits.
    #[inline]
    #[must_use]
    pub fn try_take(&self, number: usize) -> Option<TurnGuard<'_>> {
        take_free(self.state(number)).then(|| self.guard(number))
    }

    /// Waits for all of them, in their order.
    pub fn take_all(&self) -> AllTurns<'_, N> {
        for state in &self.states {
            if !take_free(state) {
                wait(state, &self.waiters);
            }
        }
        AllTurns { turns: self, stays: PhantomData }
    }

    #[inline]
    fn state(&self, number: usize) -> &AtomicU8 {
        #[expect(clippy::indexing_slicing, reason = "a remainder is in range")]
        &self.states[number % N]
    }

    #[inline]
    fn guard(&self, number: usize) -> TurnGuard<'_> {
        TurnGuard { state: self.state(number), waiters: &self.waiters, stays: PhantomData }
    }
}

#[inline]
fn take_free(state: &AtomicU8) -> bool {
    state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

fn address(state: &AtomicU8) -> usize {
    std::ptr::from_ref(state).addr()
}

#[cold]
fn wait(state: &AtomicU8, waiters: &Waiters) {
    let waker = Waker::current();
    let waiter = {
        let mut waiters = waiters.lock();
        // Acquires if it was free after all; else T1.
        let mark = |state| Some(if state == FREE { HELD } else { WAITED });
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        if state.fetch_update(success, failure, mark) == Ok(FREE) {
            return;
        }
        let waiter = Arc::new(Waiter { granted: AtomicBool::new(false), waker });
        waiters.push_back((address(state), Arc::clone(&waiter)));
        waiter
    };
    while !waiter.granted.load(Ordering::Acquire) {
        wake::park("lock");
    }
}

#[inline]
fn give_back(state: &AtomicU8, waiters: &Waiters) {
    if state.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed).is_err() {
        pass_on(state, waiters);
    }
}

#[cold]
fn pass_on(state: &AtomicU8, waiters: &Waiters) {
    let mut waiters = waiters.lock();
    let mut places = (0..).zip(&*waiters).filter(|(_, (of, _))| *of == address(state));
    let first = places.next().map(|(place, _)| place);
    let others_wait = places.next().is_some();
    let next = first.and_then(|place| waiters.remove(place));
    if !others_wait {
        // T2: held by the next one, if there is one.
        state.store(if next.is_some() { HELD } else { FREE }, Ordering::Release);
    }
    drop(waiters);
    if let Some((_, next)) = next {
        // Pairs with the waiter's load: what came before is visible to it.
        next.granted.store(true, Ordering::Release);
        next.waker.wake();
    }
}

impl Drop for TurnGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        give_back(self.state, self.waiters);
    }
}

impl<const N: usize> Drop for AllTurns<'_, N> {
    fn drop(&mut self) {
        self.turns.states.iter().for_each(|state| give_back(state, &self.turns.waiters));
    }
}
