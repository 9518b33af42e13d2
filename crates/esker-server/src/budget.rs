//! The memory budget: one number of bytes that all connections of a server share.
//!
//! Whoever is about to hold memory because of a client takes a [`Share`] first and drops it with
//! the memory. A share can be tried for, or waited for in the order of arrival.
//!
//! # Invariants
//! - B1: the sum of all shares and of what is free is the budget.
//! - B2: nobody waits while holding output or values: a session sends its replies first, so that
//!   waiting sessions cannot wait for each other.
//!
//! # Concurrency
//! One short lock, only taken across cores when shares change hands; waiting is done at a gate of
//! the run-time, which suspends a task and blocks a thread.

use esker_trt::sync::Gate;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
struct State {
    free_bytes: u64,
    waiting: VecDeque<(u64, Arc<Gate>)>,
}

/// A number of bytes to share. Cheap to clone; all clones are the same budget.
#[derive(Clone, Debug)]
pub struct Budget {
    state: Arc<Mutex<State>>,
    total_bytes: u64,
}

/// Part of a budget; goes back when dropped.
#[derive(Debug)]
#[must_use = "the bytes go back at once if the share is dropped"]
pub struct Share {
    budget: Budget,
    bytes: u64,
}

impl Budget {
    /// A budget of `total_bytes`.
    #[must_use]
    pub fn new(total_bytes: u64) -> Self {
        let state = State { free_bytes: total_bytes, waiting: VecDeque::new() };
        Budget { state: Arc::new(Mutex::new(state)), total_bytes }
    }

    /// A share of `bytes`, if they are free and nobody waits.
    pub fn try_take(&self, bytes: u64) -> Option<Share> {
        let mut state = self.state.lock();
        if !state.waiting.is_empty() || state.free_bytes < bytes {
            return None;
        }
        state.free_bytes -= bytes;
        Some(Share { budget: self.clone(), bytes })
    }

    /// A share of `bytes` (the whole budget at most), waited for in the order of arrival.
    pub fn take(&self, bytes: u64) -> Share {
        let bytes = bytes.min(self.total_bytes);
        let gate = {
            let mut state = self.state.lock();
            if state.waiting.is_empty() && state.free_bytes >= bytes {
                state.free_bytes -= bytes;
                None
            } else {
                let gate = Arc::new(Gate::new());
                state.waiting.push_back((bytes, gate.clone()));
                Some(gate)
            }
        };
        // Whoever opens the gate has taken the bytes on our behalf.
        if let Some(gate) = gate {
            gate.wait();
        }
        Share { budget: self.clone(), bytes }
    }

    /// Bytes that nobody holds.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.state.lock().free_bytes
    }

    /// All of it.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    fn give_back(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.free_bytes += bytes;
        while let Some((wanted, gate)) = state.waiting.pop_front() {
            if wanted > state.free_bytes {
                state.waiting.push_front((wanted, gate));
                break;
            }
            state.free_bytes -= wanted;
            gate.open();
        }
    }
}

impl Share {
    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        if bytes < self.bytes {
            let surplus = self.bytes - bytes;
            self.bytes = bytes;
            self.budget.give_back(surplus);
        }
    }

    /// Takes `more` bytes if they are free; says whether.
    pub fn try_grow(&mut self, more: u64) -> bool {
        let Some(mut share) = self.budget.try_take(more) else { return false };
        self.bytes += std::mem::take(&mut share.bytes);
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.give_back(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_missing_until_it_is_dropped() {
        let budget = Budget::new(100);
        let mut share = budget.try_take(60).expect("free");
        assert!(budget.try_take(41).is_none());
        assert!(share.try_grow(40));
        assert!(!share.try_grow(1));
        share.shrink_to(10);
        assert_eq!((share.bytes(), budget.free_bytes()), (10, 90));
        drop(share);
        assert_eq!(budget.free_bytes(), 100);
    }

    #[test]
    fn those_who_wait_are_served_in_order_and_first() {
        let budget = Budget::new(10);
        let first = budget.take(10);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.take(8).bytes());
            while budget.state.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            let mut first = first;
            first.shrink_to(7);
            assert!(budget.try_take(1).is_none(), "somebody waits already");
            drop(first);
            assert_eq!(waiter.join().expect("no panic"), 8);
        });
        assert_eq!(budget.free_bytes(), 10);
    }

    #[test]
    fn more_than_the_budget_means_all_of_it() {
        let budget = Budget::new(10);
        assert_eq!(budget.take(11).bytes(), 10);
        assert_eq!(budget.free_bytes(), 10);
    }
}
