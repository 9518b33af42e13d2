//! Request pools: where writers of one core put entries for whoever leads (FlatStore §3.3).
//!
//! # Concurrency
//! Any number of writers and leaders; a short lock around a queue, never held over a wait. Seats are used
//! again, so posting takes no memory once as many seats exist as writers wait at once.

use super::lead::Batch;
use super::shim::{Mutex, Signal};
use esker_base::Result;
use esker_base::sync::Arc;
use esker_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::VecDeque;

/// Where a writer waits for what became of its entry.
#[derive(Debug)]
pub(super) struct Seat<P> {
    done: AtomicBool,
    /// Its writer waits, and has looked for a way to lead after it said so. Changes under the pool's lock.
    listens: AtomicBool,
    result: Mutex<Option<Result<P>>>,
    /// Rings when the entry is done, and when its writer should try to lead.
    pub(super) bell: Signal,
}

impl<P> Seat<P> {
    fn new() -> Self {
        Seat {
            done: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            result: Mutex::new(None),
            bell: Signal::default(),
        }
    }

    /// Tells the writer. It may leave before the bell rings, so whoever has the seat next may be woken for
    /// nothing.
    pub(super) fn deliver(&self, result: Result<P>) {
        *self.result.lock() = Some(result);
        self.done.store(true, Ordering::Release);
        self.bell.set();
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// The result, once; makes the seat ready for the next entry.
    pub(super) fn take(&self) -> Option<Result<P>> {
        if !self.is_done() {
            return None;
        }
        let result = self.result.lock().take();
        self.done.store(false, Ordering::Relaxed);
        result
    }
}

/// An entry that waits to be collected.
#[derive(Debug)]
pub(super) struct Posted<E, P> {
    pub(super) entry: E,
    pub(super) size_bytes: u64,
    pub(super) seat: Arc<Seat<P>>,
}

#[derive(Debug)]
struct State<E, P> {
    waiting: VecDeque<Posted<E, P>>,
    /// Seats that nobody uses.
    free: Vec<Arc<Seat<P>>>,
    gathering: bool,
    lingering: bool,
}

/// What a leader left in a pool, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Collected {
    /// Nothing.
    All,
    /// What its core gathers.
    Gathering,
    /// What the batch has no room for.
    Full,
}

/// What one task of a core does for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// Lets the others post before it leads.
    Gathering,
    /// Keeps the core awake for a while, because what the others wait for comes soon.
    Lingering,
}

impl<E, P> State<E, P> {
    fn duty(&mut self, duty: Duty) -> &mut bool {
        match duty {
            Duty::Gathering => &mut self.gathering,
            Duty::Lingering => &mut self.lingering,
        }
    }
}

/// The pool of one core; on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Pool<E, P> {
    state: Mutex<State<E, P>>,
    /// Length of `waiting`, so that leaders pass empty pools by.
    length: AtomicUsize,
    /// Memory of a batch that nobody leads now.
    pub(super) spare: Mutex<Option<Batch<E, P>>>,
}

impl<E, P> Pool<E, P> {
    pub(super) fn new() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            free: Vec::new(),
            gathering: false,
            lingering: false,
        };
        Pool { state: Mutex::new(state), length: AtomicUsize::new(0), spare: Mutex::new(None) }
    }

    pub(super) fn post(&self, entry: E, size_bytes: u64) -> Arc<Seat<P>> {
        let mut state = self.state.lock();
        let seat = state.free.pop().unwrap_or_else(|| Arc::new(Seat::new()));
        state.waiting.push_back(Posted { entry, size_bytes, seat: Arc::clone(&seat) });
        self.length.store(state.waiting.len(), Ordering::Release);
        seat
    }

    /// Gives a seat back whose result was taken.
    pub(super) fn leave(&self, seat: Arc<Seat<P>>) {
        let mut state = self.state.lock();
        seat.listens.store(false, Ordering::Relaxed);
        state.free.push(seat);
    }

    /// The writer of `seat` tries to lead after this, and waits for its bell. True: a task of this core gathers, and
    /// leads for it.
    pub(super) fn listen(&self, seat: &Seat<P>) -> bool {
        let state = self.state.lock();
        seat.listens.store(true, Ordering::Relaxed);
        state.gathering
    }

    /// Hands entries to `take` in the order in which they were posted, as long as `fits` says so. A core that gathers
    /// leads in a moment itself, so a `thief` leaves it alone.
    pub(super) fn collect(
        &self,
        thief: bool,
        mut fits: impl FnMut(u64) -> bool,
        mut take: impl FnMut(Posted<E, P>),
    ) -> Collected {
        if self.length.load(Ordering::Acquire) == 0 {
            return Collected::All;
        }
        let mut state = self.state.lock();
        if thief && state.gathering {
            return Collected::Gathering;
        }
        while state.waiting.front().is_some_and(|posted| fits(posted.size_bytes)) {
            if let Some(posted) = state.waiting.pop_front() {
                take(posted);
            }
        }
        self.length.store(state.waiting.len(), Ordering::Release);
        if state.waiting.is_empty() { Collected::All } else { Collected::Full }
    }

    /// The seat of the entry that waits longest among those whose writers listen: the others try to lead when they
    /// begin to. None while the core gathers.
    pub(super) fn first(&self) -> Option<Arc<Seat<P>>> {
        if self.length.load(Ordering::Acquire) == 0 {
            return None;
        }
        let state = self.state.lock();
        if state.gathering {
            return None;
        }
        let mut seats = state.waiting.iter().map(|posted| &posted.seat);
        seats.find(|seat| seat.listens.load(Ordering::Relaxed)).map(Arc::clone)
    }

    /// Gives the caller a duty; false if another task has it.
    pub(super) fn begin(&self, duty: Duty) -> bool {
        !std::mem::replace(self.state.lock().duty(duty), true)
    }

    pub(super) fn end(&self, duty: Duty) {
        *self.state.lock().duty(duty) = false;
    }
}
