//! The background threads: each cleans logs of its group ahead of writers (FlatStore §3.4), and the first one writes a checkpoint of the
//! index while they rest, and now and then while they do not, and drops tombstones that have become many.
//!
//! # Concurrency
//! One thread for each cleaner. While it waits it holds no reference to the store, so a dropped store ends it; a close waits
//! until it ended.

use super::Flat;
use super::purge::Why;
use esker_base::Result;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread looks without being woken.
const PERIOD: Duration = Duration::from_millis(500);
/// Rounds without a write after which writers rest.
const RESTING: u32 = 4;
/// Time between checkpoints while they do not.
const CHECKPOINT_PERIOD: Duration = Duration::from_secs(300);

impl Flat {
    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        for (group, background) in self.background.iter().enumerate() {
            let store = Arc::downgrade(self);
            let tried_at = self.clock.monotonic();
            let mut idle = Idle { seen: self.versions.given(), rounds: 0, tried_at };
            let name = if group == 0 { "esker-flat".into() } else { format!("esker-flat-{group}") };
            background.start(&name, PERIOD, move || work(&store, group, &mut idle))?;
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

/// For how long nobody wrote, and when a checkpoint was tried last.
struct Idle {
    seen: u64,
    rounds: u32,
    tried_at: Duration,
}

/// One round; `None` when the thread is to end, else how long it rests before the next.
fn work(store: &Weak<Flat>, group: usize, idle: &mut Idle) -> Option<Duration> {
    let store = store.upgrade()?;
    store.refuse().ok()?;
    let is_stopping = || store.background.iter().any(|background| background.is_stopping());
    let clean = |groups, wanted| {
        if let Err(error) = store.clean_ahead(groups, wanted, is_stopping) {
            tracing::error!(%error, "cleaning failed");
        }
    };
    clean(group..group + 1, store.reserve().0);
    if group > 0 {
        return Some(PERIOD);
    }
    let rest = purge(&store);
    let next = store.versions.given();
    let has_written = std::mem::replace(&mut idle.seen, next) != next;
    // Rounds of a purge come one after the other, and are no rest.
    let rounds = idle.rounds + u32::from(rest == PERIOD);
    idle.rounds = if has_written { 0 } else { rounds };
    let (now, rests) = (store.clock.monotonic(), idle.rounds >= RESTING);
    let is_due = rests || now.saturating_sub(idle.tried_at) >= CHECKPOINT_PERIOD;
    if is_due && store.is_checkpoint_worth() {
        // Once for each rest, also if there is no room.
        (idle.rounds, idle.tried_at) = (0, now);
        if rests {
            clean(0..store.cleaners.count(), store.checkpoint_room());
        }
        if let Err(error) = store.write_checkpoint() {
            tracing::warn!(%error, "writing a checkpoint failed");
        }
    }
    Some(rest)
}

/// Drops tombstones, if they are many, of a chunk; returns how long to rest: as long as that took, so that clients have the other half.
fn purge(store: &Flat) -> Duration {
    if !store.is_purge_due(Why::Many) {
        return PERIOD;
    }
    let from = store.clock.monotonic();
    match store.purge_next() {
        Ok(true) => store.clock.monotonic().saturating_sub(from).min(PERIOD),
        Ok(false) => PERIOD,
        Err(error) => {
            tracing::error!(%error, "dropping tombstones failed");
            PERIOD
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices;
    use crate::engine::Engine;
    use crate::options::{EngineKind, Options};
    use crate::value::PutOptions;
    use esker_base::clock::{Clock, ManualClock};

    #[test]
    fn a_checkpoint_is_written_now_and_then_while_clients_write() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(1));
        let mut options = Options::new(folder.path());
        options.engine = Some(EngineKind::FlatCceh);
        options.pmem_emulate = true;
        options.size_bytes = 128 << 20;
        options.testing.background = false;
        options.clock = Arc::clone(&clock) as _;
        let store = Flat::open(devices::open_memory(&options).unwrap(), &options).unwrap();
        let mut idle =
            Idle { seen: store.versions.given(), rounds: 0, tried_at: clock.monotonic() };
        let weak = Arc::downgrade(&store);
        let put = |number: u32| {
            store.put(&number.to_be_bytes(), b"value", PutOptions::default()).unwrap();
        };
        (0..200_000).for_each(put);
        for number in 0..10 {
            put(number);
            assert!(work(&weak, 0, &mut idle).is_some());
        }
        assert!(store.is_checkpoint_worth(), "it is not due yet");
        clock.advance(CHECKPOINT_PERIOD);
        put(0);
        assert!(work(&weak, 0, &mut idle).is_some());
        assert!(!store.is_checkpoint_worth());
    }
}
