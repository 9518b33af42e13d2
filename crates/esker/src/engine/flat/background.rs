//! The background threads: each cleans logs of its group ahead of writers (FlatStore §3.4), and the first one writes a checkpoint of the
//! index while they rest.
//!
//! # Concurrency
//! One thread for each cleaner. While it waits it holds no reference to the store, so a dropped store ends it; a close waits
//! until it ended.

use super::Flat;
use esker_base::Result;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread looks without being woken.
const PERIOD: Duration = Duration::from_millis(500);
/// Rounds without a write after which writers rest.
const RESTING: u32 = 4;

impl Flat {
    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        for (group, background) in self.background.iter().enumerate() {
            let store = Arc::downgrade(self);
            let mut idle = Idle { seen: self.versions.given(), rounds: 0 };
            let name = if group == 0 { "esker-flat".into() } else { format!("esker-flat-{group}") };
            background
                .start(&name, PERIOD, move || work(&store, group, &mut idle).then_some(PERIOD))?;
        }
        Ok(())
    }

    /// Asks the threads to clean.
    pub(super) fn wake_background(&self) {
        self.background.iter().for_each(|background| background.wake());
    }

    /// Asks the threads to end.
    pub(super) fn stop_background(&self) {
        self.background.iter().for_each(|background| background.stop());
    }

    /// Waits for the threads to end.
    pub(super) fn join_background(&self) {
        self.background.iter().for_each(|background| background.join());
    }
}

/// For how long nobody wrote.
struct Idle {
    seen: u64,
    rounds: u32,
}

/// One round; false when the thread is to end.
fn work(store: &Weak<Flat>, group: usize, idle: &mut Idle) -> bool {
    let Some(store) = store.upgrade() else { return false };
    if store.refuse().is_err() {
        return false;
    }
    let is_stopping = || store.background.iter().any(|background| background.is_stopping());
    let clean = |groups, wanted| {
        if let Err(error) = store.clean_ahead(groups, wanted, is_stopping) {
            tracing::error!(%error, "cleaning failed");
        }
    };
    clean(group..group + 1, store.reserve().0);
    if group > 0 {
        return true;
    }
    let next = store.versions.given();
    idle.rounds = if std::mem::replace(&mut idle.seen, next) == next { idle.rounds + 1 } else { 0 };
    if idle.rounds >= RESTING && store.is_checkpoint_worth() {
        // Once for each rest, also if there is no room.
        idle.rounds = 0;
        clean(0..store.cleaners.count(), store.checkpoint_room());
        if let Err(error) = store.write_checkpoint() {
            tracing::warn!(%error, "writing a checkpoint failed");
        }
    }
    true
}
