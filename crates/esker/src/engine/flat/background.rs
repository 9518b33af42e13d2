//! The background thread: cleans ahead of writers, and writes a checkpoint of the index while they rest.
//!
//! # Concurrency
//! One thread a store. While it waits it holds no reference to the store, so a dropped store ends it; a close waits
//! until it ended.

use super::Flat;
use esker_base::Result;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread looks without being woken.
const PERIOD: Duration = Duration::from_millis(500);
/// Rounds without a write after which writers rest.
const RESTING: u32 = 4;
/// A checkpoint is worth its while if one entry in so many of the index was written since the last.
const CHECKPOINT_SHARE: u64 = 16;
/// And if there are more than so many of them: fewer are read in no time.
const CHECKPOINT_MIN: u64 = 100_000;

impl Flat {
    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        let store = Arc::downgrade(self);
        let mut idle = Idle { seen: self.versions.given(), rounds: 0 };
        self.background
            .start("esker-flat", PERIOD, move || work(&store, &mut idle).then_some(PERIOD))
    }
}

/// For how long nobody wrote.
struct Idle {
    seen: u64,
    rounds: u32,
}

/// One round; false when the thread is to end.
fn work(store: &Weak<Flat>, idle: &mut Idle) -> bool {
    let Some(store) = store.upgrade() else { return false };
    if store.refuse().is_err() {
        return false;
    }
    let background = Arc::clone(&store.background);
    let clean = |wanted| {
        if let Err(error) = store.clean_ahead(wanted, || background.is_stopping()) {
            tracing::error!(%error, "cleaning failed");
        }
    };
    clean(store.reserve().0);
    let next = store.versions.given();
    idle.rounds = if std::mem::replace(&mut idle.seen, next) == next { idle.rounds + 1 } else { 0 };
    let written = next.saturating_sub(store.checkpointed());
    let worth = written >= CHECKPOINT_MIN && written >= store.index.len() / CHECKPOINT_SHARE;
    if idle.rounds >= RESTING && worth {
        // Once for each rest, also if there is no room.
        idle.rounds = 0;
        clean(store.checkpoint_room());
        if let Err(error) = store.write_checkpoint() {
            tracing::warn!(%error, "writing a checkpoint failed");
        }
    }
    true
}
