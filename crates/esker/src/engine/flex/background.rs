//! The background thread: brings sealed tables to the space, flushes the log for `periodic`, and looks inside intervals
//! that an open found.
//!
//! # Concurrency
//! One thread a store. While it waits it holds no reference to the store, so a dropped store ends it.

use super::Flex;
use crate::options::Durability;
use esker_base::{Error, Result};
use esker_trt::sync::Gate;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread looks without being woken.
const PERIOD: Duration = Duration::from_millis(500);
/// Intervals that are looked into between two looks at the tables.
const REFINED_AT_ONCE: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Signal {
    #[default]
    None,
    Work,
    Stop,
}

/// What the store and its thread share.
#[derive(Debug, Default)]
pub(super) struct Background {
    signal: Mutex<Signal>,
    changed: Condvar,
    running: Mutex<bool>,
    ended: Gate,
}

impl Background {
    fn signal(&self, signal: Signal) {
        let mut current = self.signal.lock();
        if *current != Signal::Stop {
            *current = signal;
        }
        self.changed.notify_all();
    }

    /// Asks the thread to look at the tables.
    pub(super) fn wake(&self) {
        self.signal(Signal::Work);
    }

    /// Whether there is a thread.
    pub(super) fn is_running(&self) -> bool {
        *self.running.lock()
    }

    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        self.signal(Signal::Stop);
    }

    /// Waits for the thread to end, if there is one.
    pub(super) fn join(&self) {
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
}

impl Flex {
    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        let (store, background) = (Arc::downgrade(self), Arc::clone(&self.background));
        let period = match self.durability {
            Durability::Periodic(window) => window.min(PERIOD),
            Durability::Sync | Durability::None => PERIOD,
        };
        *self.background.running.lock() = true;
        std::thread::Builder::new()
            .name("esker-flex".into())
            .spawn(move || {
                let mut leaf = Some(0);
                let mut more = false;
                while background.idle(if more { Duration::ZERO } else { period }) {
                    match work(&store, &mut leaf) {
                        Some(again) => more = again,
                        None => break,
                    }
                }
                background.ended.open();
            })
            .map_err(|source| {
                *self.background.running.lock() = false;
                Error::io("start background thread", source)
            })?;
        Ok(())
    }
}

/// One round; whether there is more to do at once. `None` if the store is gone.
fn work(store: &Weak<Flex>, leaf: &mut Option<usize>) -> Option<bool> {
    let store = store.upgrade()?;
    if let Err(error) = store.commit_sealed() {
        tracing::error!(%error, "a table does not get into the space");
    }
    if let Durability::Periodic(_) = store.durability
        && let Err(error) = store.wal.write_all(true)
    {
        tracing::error!(%error, "the log does not get to its device");
    }
    let from = (*leaf)?.min(usize::MAX - 1);
    match store.look_inside(from, REFINED_AT_ONCE) {
        Ok(next) => *leaf = next.or(Some(usize::MAX)),
        Err(error) => {
            tracing::error!(%error, "an interval cannot be read");
            *leaf = Some(usize::MAX);
        }
    }
    Some(*leaf != Some(usize::MAX))
}
