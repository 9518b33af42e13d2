//! The background thread: brings sealed tables to the space, flushes the log for `periodic`, looks inside intervals
//! that an open found, brings fragmented ones together, and verifies everything, little by little.
//!
//! # Concurrency
//! One thread a store. While it waits it holds no reference to the store, so a dropped store ends it.

use super::Flex;
use super::sweep::Rest;
use super::tend::Scrub;
use crate::options::Durability;
use esker_base::Result;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread looks without being woken.
const PERIOD: Duration = Duration::from_millis(500);
/// Intervals that are looked into between two looks at the tables.
const REFINED_AT_ONCE: usize = 16;

impl Flex {
    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        let store = Arc::downgrade(self);
        let period = match self.durability {
            Durability::Periodic(window) => window.min(PERIOD),
            Durability::Sync | Durability::None => PERIOD,
        };
        let (mut leaf, mut scrub, mut rest) = (Some(0), Scrub::default(), Rest::default());
        let mut scrubbed_at = self.clock.monotonic();
        self.background.start("esker-flex", period, move || {
            let again = work(&store, &mut leaf)?;
            let mut wait = period;
            if !again {
                let store = store.upgrade()?;
                let now = store.clock.monotonic();
                // What was due while there was other work is not made up for at once.
                let passed = now.saturating_sub(scrubbed_at).min(2 * PERIOD);
                scrubbed_at = now;
                match store.rest(&mut rest) {
                    Ok(sooner) => wait = sooner.map_or(period, |sooner| sooner.min(period)),
                    Err(error) => tracing::error!(%error, "space is not collected"),
                }
                if let Err(error) = store.scrub(&mut scrub, passed) {
                    tracing::error!(%error, "the store cannot be read to be verified");
                }
            }
            Some(if again { Duration::ZERO } else { wait })
        })
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
    let more = store.defragment().unwrap_or_else(|error| {
        tracing::error!(%error, "an interval cannot be brought together");
        false
    });
    let from = (*leaf)?.min(usize::MAX - 1);
    if from == usize::MAX - 1 {
        return Some(more);
    }
    match store.look_inside(from, REFINED_AT_ONCE) {
        Ok(next) => *leaf = next.or(Some(usize::MAX)),
        Err(error) => {
            tracing::error!(%error, "an interval cannot be read");
            *leaf = Some(usize::MAX);
        }
    }
    Some(more || *leaf != Some(usize::MAX))
}
