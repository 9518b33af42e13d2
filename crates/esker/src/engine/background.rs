//! A thread that a store has of its own: how it waits, is woken and ends. What it does is the engine's.
//!
//! # Concurrency
//! One thread each. Its rounds should hold no reference to the store but while they run, so that a dropped store
//! ends it.

use esker_base::{Error, Result};
use esker_trt::sync::Gate;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Signal {
    #[default]
    None,
    Work,
    Stop,
}

/// What the store and its thread share.
#[derive(Debug, Default)]
pub(crate) struct Background {
    signal: Mutex<Signal>,
    changed: Condvar,
    running: Mutex<bool>,
    ended: Gate,
}

/// The end of the thread, also by a panic.
struct End(Arc<Background>);

impl Drop for End {
    fn drop(&mut self) {
        // First: whoever waited for the end does itself what the thread left undone, and must not take it for running.
        *self.0.running.lock() = false;
        self.0.ended.open();
    }
}

impl Background {
    fn signal(&self, signal: Signal) {
        let mut current = self.signal.lock();
        if *current != Signal::Stop {
            *current = signal;
        }
        self.changed.notify_all();
    }

    /// Asks the thread to begin a round.
    pub(crate) fn wake(&self) {
        self.signal(Signal::Work);
    }

    /// Whether there is a thread that has not ended.
    pub(crate) fn is_running(&self) -> bool {
        *self.running.lock()
    }

    /// Whether the thread is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.signal.lock() == Signal::Stop
    }

    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.signal(Signal::Stop);
    }

    /// Waits for the thread to end, if there is one.
    pub(crate) fn join(&self) {
        self.stop();
        if *self.running.lock() {
            self.ended.wait();
        }
    }

    /// Waits for `period` or a call; false when the thread is to end.
    fn idle(&self, period: Duration) -> bool {
        let mut signal = self.signal.lock();
        if *signal == Signal::None {
            self.changed.wait_for(&mut signal, period);
        }
        if *signal == Signal::Work {
            *signal = Signal::None;
        }
        *signal != Signal::Stop
    }

    /// Starts the thread. It calls `round` each time it was waited for, at first for `period`; `round` gives the time
    /// until the next one, or `None` to end the thread.
    ///
    /// # Errors
    /// `Io` if the system has no thread for it.
    pub(crate) fn start(
        self: &Arc<Self>,
        name: &str,
        mut period: Duration,
        mut round: impl FnMut() -> Option<Duration> + Send + 'static,
    ) -> Result<()> {
        let background = Arc::clone(self);
        *self.running.lock() = true;
        let rounds = move || {
            let end = End(background);
            while end.0.idle(period) {
                let Some(next) = round() else { break };
                period = next;
            }
        };
        let started = std::thread::Builder::new().name(name.into()).spawn(rounds);
        started.map(drop).map_err(|source| {
            *self.running.lock() = false;
            Error::io("start background thread", source)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ended_is_not_running() {
        let background = Arc::new(Background::default());
        assert!(!background.is_running());
        let hour = Duration::from_secs(3600);
        background.start("test", Duration::ZERO, move || Some(hour)).unwrap();
        assert!(background.is_running());
        background.join();
        assert!(!background.is_running() && background.is_stopping());
        background.join();
        let ends = Arc::new(Background::default());
        ends.start("test", Duration::ZERO, || None).unwrap();
        ends.ended.wait();
        assert!(!ends.is_running());
    }
}
