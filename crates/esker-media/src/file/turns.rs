//! Turns: one caller at a time, the others wait in order, in tasks and on threads alike.
//!
//! Unlike a lock, a turn may be held across a suspension.

use esker_trt::sync::Gate;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug, Default)]
struct Queue {
    taken: bool,
    waiting: VecDeque<Arc<Gate>>,
}

/// A queue of callers.
#[derive(Debug, Default)]
pub(super) struct Turns {
    queue: Mutex<Queue>,
}

/// A turn; dropped, the next caller has it.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits until every earlier caller is done.
    pub(super) fn take(&self) -> Turn<'_> {
        let mut queue = self.queue.lock();
        if queue.taken {
            let gate = Arc::new(Gate::new());
            queue.waiting.push_back(Arc::clone(&gate));
            drop(queue);
            gate.wait();
        } else {
            queue.taken = true;
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        match queue.waiting.pop_front() {
            // The turn passes on without a moment at which it is free.
            Some(next) => next.open(),
            None => queue.taken = false,
        }
    }
}
