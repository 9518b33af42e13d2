//! A bell for one waiter, rung any number of times.

use crate::wake::{self, Waker};
use parking_lot::Mutex as Lock;
use std::sync::atomic::{AtomicU32, Ordering};

const SILENT: u32 = 0;
const WAITED_FOR: u32 = 1;
const SET: u32 = 2;

/// A bell for one waiter, a task or a thread: a ring that comes before the wait ends it at once.
/// Several rings before a wait are one. Unlike a [`Gate`](super::Gate) it can be used again.
///
/// Ringing costs one atomic operation when nobody waits. The caller sees to it that no two wait at once:
/// the second would take the first one's place, which then waits for ever.
#[derive(Debug, Default)]
pub struct Signal {
    /// `SILENT`, `WAITED_FOR` or `SET`. Becomes `WAITED_FOR`, and leaves it, under the lock.
    state: AtomicU32,
    waiter: Lock<Option<Waker>>,
}

impl Signal {
    /// A bell that has not rung.
    #[must_use]
    pub fn new() -> Self {
        Signal::default()
    }

    /// Rings: ends the wait under way, or the next one. What the caller did before is visible to whom it
    /// wakes.
    pub fn set(&self) {
        let exchange =
            |from, to| self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        loop {
            match exchange(SILENT, SET) {
                // Two rings are one, but what came before each is to be seen: written once more.
                Err(SET) if exchange(SET, SET).is_err() => {}
                Ok(_) | Err(SET) => return,
                Err(_) => {
                    let mut waiter = self.waiter.lock();
                    if self.state.load(Ordering::Acquire) != WAITED_FOR {
                        // Another ring came first, and whoever waited may have gone since: ring again.
                        continue;
                    }
                    self.state.store(SET, Ordering::Release);
                    let woken = waiter.take();
                    drop(waiter);
                    if let Some(woken) = woken {
                        woken.wake();
                    }
                    return;
                }
            }
        }
    }

    /// Whether a wait would return at once.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.state.load(Ordering::Acquire) == SET
    }

    /// Waits for a ring and forgets it. Not ended by a shutdown: whoever owes the ring gives it, also when
    /// it fails.
    pub fn wait(&self) {
        if !self.take() && self.enlist() {
            while !self.take() {
                wake::park("signal");
            }
        }
    }

    fn take(&self) -> bool {
        self.state.compare_exchange(SET, SILENT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Announces the caller; false if the bell rang meanwhile, which is forgotten.
    fn enlist(&self) -> bool {
        let mut waiter = self.waiter.lock();
        *waiter = Some(Waker::current());
        let announced =
            self.state.compare_exchange(SILENT, WAITED_FOR, Ordering::AcqRel, Ordering::Acquire);
        let waits = announced.is_ok();
        if !waits {
            // It can only have rung.
            *waiter = None;
            self.state.swap(SILENT, Ordering::AcqRel);
        }
        waits
    }
}
