//! Waiting and waking, for tasks and threads alike.

use parking_lot::{Condvar, Mutex as Lock};

/// A door that opens once: any number of tasks and threads wait for it, on any core.
#[derive(Debug, Default)]
pub struct Gate {
    open: Lock<bool>,
    opened: Condvar,
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Gate::default()
    }

    /// Opens the gate for ever and wakes everyone who waits.
    pub fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    /// Whether the gate is open. What happened before `open` is visible after `true`.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.open.lock()
    }

    /// Waits until the gate is open.
    pub fn wait(&self) {
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
    }
}
