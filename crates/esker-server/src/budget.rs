//! The memory budget: one number of bytes that all connections of a server share.
//!
//! Whoever is about to hold memory because of a client takes a [`Share`] first and drops it with
//! the memory. A share can be tried for, or waited for in the order of arrival.
//!
//! # Invariants
//! - B1: the sum of all shares and of what is free is the budget.
//! - B2: nobody waits while holding output or values (a session sends its replies first), and nobody
//!   waits without a limit: a receive buffer with a long line may be held meanwhile.
//!
//! # Concurrency
//! One short lock, only taken across cores when shares change hands; waiting is done at a gate of
//! the run-time, which suspends a task and blocks a thread.

use esker_trt::sync::Gate;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
struct State {
    free_bytes: u64,
    /// It is short while less is free.
    little_bytes: u64,
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
        Budget::beside(0, total_bytes)
    }

    /// A budget of `total_bytes`, `lasting_bytes` of which are for those who keep them as long as they are there: it is the rest
    /// that may get short.
    #[must_use]
    pub fn beside(lasting_bytes: u64, total_bytes: u64) -> Self {
        let little_bytes = total_bytes.saturating_sub(lasting_bytes) / 4;
        let state = State { free_bytes: total_bytes, little_bytes, waiting: VecDeque::new() };
        Budget { state: Arc::new(Mutex::new(state)), total_bytes }
    }

    /// A share of nothing, which can grow.
    pub fn nothing(&self) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }

    /// A share of `bytes`, if they are free and nobody waits. Nothing is always free.
    pub fn try_take(&self, bytes: u64) -> Option<Share> {
        if bytes == 0 {
            return Some(self.nothing());
        }
        let mut state = self.state.lock();
        if !state.waiting.is_empty() || state.free_bytes < bytes {
            return None;
        }
        state.free_bytes -= bytes;
        Some(Share { budget: self.clone(), bytes })
    }

    /// A share of `bytes` (the whole budget at most), waited for in the order of arrival, at most
    /// `limit`. Those who wait may hold what others wait for, so that nobody waits for ever.
    pub fn take(&self, bytes: u64, limit: Duration) -> Option<Share> {
        let bytes = bytes.min(self.total_bytes);
        let gate = {
            let mut state = self.state.lock();
            if state.waiting.is_empty() && state.free_bytes >= bytes {
                state.free_bytes -= bytes;
                return Some(Share { budget: self.clone(), bytes });
            }
            let gate = Arc::new(Gate::new());
            state.waiting.push_back((bytes, gate.clone()));
            gate
        };
        let waited = gate.wait_for(limit);
        if waited.is_err() {
            let mut state = self.state.lock();
            let place = state.waiting.iter().position(|(_, other)| Arc::ptr_eq(other, &gate));
            if let Some(place) = place {
                state.waiting.remove(place);
                // Whoever stood behind may need less.
                state.serve();
                return None;
            }
        }
        // Whoever opened the gate has taken the bytes on our behalf.
        Some(Share { budget: self.clone(), bytes })
    }

    /// Bytes that nobody holds.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.state.lock().free_bytes
    }

    /// Whether somebody waits, or will soon: less is free than a quarter of what does not last.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let state = self.state.lock();
        !state.waiting.is_empty() || state.free_bytes < state.little_bytes
    }

    /// All of it.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    fn give_back(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.free_bytes += bytes;
        state.serve();
    }
}

impl State {
    /// Gives free bytes to those who wait, in their order.
    fn serve(&mut self) {
        while let Some((wanted, gate)) = self.waiting.pop_front() {
            if wanted > self.free_bytes {
                self.waiting.push_front((wanted, gate));
                break;
            }
            self.free_bytes -= wanted;
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

    /// A part of this share as one of its own, if it has so much; no lock is taken.
    pub fn split(&mut self, bytes: u64) -> Option<Share> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Share { budget: self.budget.clone(), bytes })
    }

    /// Takes over the bytes of another share of the same budget.
    pub fn absorb(&mut self, mut other: Share) {
        debug_assert!(Arc::ptr_eq(&self.budget.state, &other.budget.state), "one budget");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes `more` bytes if they are free; says whether.
    pub fn try_grow(&mut self, more: u64) -> bool {
        let Some(mut share) = self.budget.try_take(more) else { return false };
        self.bytes += std::mem::take(&mut share.bytes);
        true
    }
}

/// Memory of one kind, such as data blocks that arrive: taken from the budget, and counted among all of that kind.
#[derive(Debug)]
pub(crate) struct KindShare {
    share: Share,
    counted: Share,
}

impl KindShare {
    /// Of nothing, of `budget` and among those of `kind`.
    pub(crate) fn new(budget: &Budget, kind: &Budget) -> KindShare {
        KindShare { share: budget.nothing(), counted: kind.nothing() }
    }

    /// Takes `more` bytes if there are so many for the kind; says whether.
    pub(crate) fn try_grow(&mut self, more: u64) -> bool {
        let counted = self.counted.bytes();
        if !self.counted.try_grow(more) {
            return false;
        }
        let grown = self.share.try_grow(more);
        if !grown {
            self.counted.shrink_to(counted);
        }
        grown
    }

    /// The memory, and what counts it: that is to live as long.
    pub(crate) fn into_parts(self) -> (Share, Share) {
        (self.share, self.counted)
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

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_taken_is_missing_until_it_is_dropped() {
        let budget = Budget::new(100);
        let mut share = budget.try_take(60).expect("free");
        assert!(budget.try_take(41).is_none());
        assert!(share.try_grow(40));
        assert!(!share.try_grow(1));
        share.shrink_to(10);
        assert_eq!((share.bytes(), budget.free_bytes()), (10, 90));
        share.absorb(budget.try_take(5).expect("free"));
        assert_eq!((share.bytes(), budget.free_bytes()), (15, 85));
        assert!(share.split(16).is_none());
        let part = share.split(6).expect("it has so much");
        assert_eq!((share.bytes(), part.bytes(), budget.free_bytes()), (9, 6, 85));
        drop(part);
        assert_eq!(budget.free_bytes(), 91);
        drop(share);
        assert_eq!(budget.free_bytes(), 100);
    }

    #[test]
    fn those_who_wait_are_served_in_order_and_first() {
        let budget = Budget::new(10);
        let first = budget.take(10, LONG).expect("free");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.take(8, LONG).expect("given back").bytes());
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
        assert_eq!(budget.take(11, LONG).expect("free").bytes(), 10);
        assert_eq!(budget.free_bytes(), 10);
    }

    #[test]
    fn blocks_that_arrive_take_no_more_than_is_theirs() {
        let (budget, bodies) = (Budget::new(100), Budget::new(50));
        let mut one = KindShare::new(&budget, &bodies);
        let mut other = KindShare::new(&budget, &bodies);
        assert!(one.try_grow(30) && other.try_grow(20) && !other.try_grow(1));
        let values = budget.try_take(50).expect("free");
        assert!(budget.is_short() && bodies.is_short());
        drop(one);
        assert_eq!((budget.free_bytes(), bodies.free_bytes()), (30, 30));
        drop(budget.try_take(31));
        let _rest = budget.try_take(25).expect("free");
        assert!(!other.try_grow(10), "nothing is left of the budget");
        assert_eq!((budget.free_bytes(), bodies.free_bytes()), (5, 30));
        let (share, counted) = other.into_parts();
        drop((share, counted, values));
        assert_eq!((budget.free_bytes(), bodies.free_bytes()), (75, 50));
        assert!(!budget.is_short());
    }

    #[test]
    fn who_has_waited_too_long_leaves_the_queue_to_others() {
        let budget = Budget::new(10);
        let mut first = budget.take(9, LONG).expect("free");
        std::thread::scope(|scope| {
            let large = scope.spawn(|| budget.take(8, Duration::from_millis(50)).is_some());
            while budget.state.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            let small = scope.spawn(|| budget.take(1, LONG).is_some());
            assert!(!large.join().expect("no panic"), "the bytes never came");
            assert!(small.join().expect("no panic"), "there was room for less");
        });
        first.shrink_to(0);
        assert_eq!(budget.free_bytes(), 10);
    }
}
