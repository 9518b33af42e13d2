//! The flushes and durable writes that are in progress, for who is to wait until they are judged.
//!
//! In direct mode they overlap. One that failed may have taken along what another had written, and the kernel tells
//! the other nothing of it: it must not succeed before the first has said that it failed. Nobody but who made a
//! call knows when the kernel answered it, so that all are waited for that were under way when one's own call ended.
//!
//! # Invariants
//! - P1: a call enters before the kernel hears of it, and leaves after its failure, if it failed, is there to be seen.
//! - P2: who waits has left: who is waited for waits for the kernel alone, and there is no circle.
//!
//! # Concurrency
//! Any tasks and threads. The lock is held for a few instructions; tasks that wait are suspended.

use esker_trt::sync::Gate;
use parking_lot::Mutex;
use std::sync::Arc;

/// The calls in progress.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of the call that enters next.
    next: u64,
    /// Calls that entered and have not left.
    count: u64,
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    /// It waits for calls of smaller numbers.
    before: u64,
    /// So many of these have not left.
    count: u64,
    gate: Arc<Gate>,
}

/// A call in progress, until it leaves or is dropped.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// None once it has left.
    progress: Option<&'a Progress>,
    number: u64,
}

impl Progress {
    /// A call will begin (P1).
    pub(super) fn enter(&self) -> Entry<'_> {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.count += 1;
        Entry { progress: Some(self), number }
    }

    /// The call of this number leaves; if it `waits`, for what, unless no other is in progress.
    fn leave(&self, number: u64, waits: bool) -> Option<Arc<Gate>> {
        let mut state = self.0.lock();
        state.count -= 1;
        for waiter in &mut state.waiters {
            waiter.count -= u64::from(number < waiter.before);
        }
        let done: Vec<_> = state.waiters.extract_if(.., |waiter| waiter.count == 0).collect();
        let gate = (waits && state.count > 0).then(|| {
            let gate = Arc::new(Gate::new());
            let (before, count) = (state.next, state.count);
            state.waiters.push(Waiter { before, count, gate: Arc::clone(&gate) });
            gate
        });
        drop(state);
        done.iter().for_each(|waiter| waiter.gate.open());
        gate
    }
}

impl Entry<'_> {
    /// Leaves, and waits until all have left that are in progress now (P2): a failure of theirs is seen afterwards.
    pub(super) fn leave_and_wait(mut self) {
        let gate = self.progress.take().and_then(|progress| progress.leave(self.number, true));
        if let Some(gate) = gate {
            gate.wait();
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.leave(self.number, false);
        }
    }
}

#[cfg(test)]
mod tests;
