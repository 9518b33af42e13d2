//! A value that one side promises and the other waits for.

use crate::wake::{self, RemoteResult, Waker};
use esker_base::{Error, ErrorKind, Result};
use parking_lot::Mutex as Lock;
use std::fmt;
use std::sync::Arc;

enum State<T> {
    Empty(Option<Waker>),
    Full(T),
    /// The promise was dropped.
    Broken,
    /// The value was taken, or nobody waits any more.
    Done,
}

struct Shared<T>(Lock<State<T>>);

impl<T> Shared<T> {
    fn put(&self, state: State<T>) {
        let mut current = self.0.lock();
        if let State::Empty(waiter) = &mut *current {
            let waiter = waiter.take();
            *current = state;
            drop(current);
            if let Some(waiter) = waiter {
                waiter.wake();
            }
        }
    }
}

impl<T: Send> RemoteResult for Shared<Result<T>> {
    fn refuse(&self, error: Error) {
        self.put(State::Full(Err(error)));
    }
}

/// The side that owes the value. Dropped without one, it fails the future with `Closed`.
pub struct Promise<T>(Arc<Shared<T>>);

/// The side that waits for the value.
pub struct Future<T>(Arc<Shared<T>>);

/// A promise and its future, for any cores and threads.
#[must_use]
pub fn promise<T>() -> (Promise<T>, Future<T>) {
    let shared = Arc::new(Shared(Lock::new(State::Empty(None))));
    (Promise(Arc::clone(&shared)), Future(shared))
}

impl<T> Promise<T> {
    /// Keeps the promise. A future that was dropped, or given up, ignores it.
    pub fn set(self, value: T) {
        self.0.put(State::Full(value));
    }
}

impl<T: Send + 'static> Promise<Result<T>> {
    /// The cell itself, for a core to fail it.
    pub(crate) fn result_cell(&self) -> Arc<dyn RemoteResult> {
        Arc::clone(&self.0) as Arc<dyn RemoteResult>
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.put(State::Broken);
    }
}

impl<T> Future<T> {
    /// Waits for the value. Not ended by a shutdown.
    ///
    /// # Errors
    /// `Closed` when the promise was dropped.
    pub fn wait(self) -> Result<T> {
        loop {
            {
                let mut state = self.0.0.lock();
                match std::mem::replace(&mut *state, State::Done) {
                    State::Full(value) => return Ok(value),
                    State::Broken | State::Done => {
                        return Err(Error::new(ErrorKind::Closed, "wait for promise"));
                    }
                    State::Empty(_) => *state = State::Empty(Some(Waker::current())),
                }
            }
            wake::park("promise");
        }
    }

    /// Whether [`Future::wait`] would return at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !matches!(&*self.0.0.lock(), State::Empty(_))
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise")
    }
}

impl<T> fmt::Debug for Future<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Future").field("ready", &self.is_ready()).finish()
    }
}
