//! The background thread of a store: flushes for `periodic`, and free segments readied ahead.
//!
//! A file's fresh extents make each flush pay for file-system metadata; the thread has them written
//! once before the log comes there. It holds no reference to the store while it waits, so a dropped
//! store ends it.

use super::{Depot, sites};
use crate::options::Durability;
use esker_base::{Error, Result};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Free segments that are kept ready ahead of the log.
const SEGMENTS_AHEAD: usize = 4;
/// How often the thread looks without being woken.
const IDLE_PERIOD: Duration = Duration::from_secs(1);

impl Depot {
    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        // The first segments before the first write, the others as the log comes near.
        self.prepare_ahead()?;
        let store = Arc::downgrade(self);
        let period = match self.durability {
            Durability::Periodic(window) => window.min(IDLE_PERIOD),
            Durability::Sync | Durability::None => IDLE_PERIOD,
        };
        std::thread::Builder::new()
            .name("esker-depot".into())
            .spawn(move || run(&store, period))
            .map_err(|source| Error::io("start background thread", source))?;
        Ok(())
    }

    pub(super) fn wake_background(&self) {
        self.background.1.notify_all();
    }

    pub(super) fn stop_background(&self) {
        *self.background.0.lock() = true;
        self.wake_background();
    }

    /// Waits for `period` or a call; true when the thread is to end.
    fn idle(&self, period: Duration) -> bool {
        let mut stop = self.background.0.lock();
        if !*stop {
            self.background.1.wait_for(&mut stop, period);
        }
        *stop
    }

    fn prepare_ahead(&self) -> Result<()> {
        while let Some(id) = self.segments.unprepared(SEGMENTS_AHEAD) {
            if !self.segments.take_unprepared(id) {
                return Ok(());
            }
            let offset = self.layout.segment_offset(id);
            let prepared = self.device.prepare(sites::PREPARE, offset, self.layout.segment_size);
            self.segments.put_back(id, prepared.is_ok());
            prepared?;
        }
        Ok(())
    }
}

fn run(store: &Weak<Depot>, period: Duration) {
    loop {
        let Some(store) = store.upgrade() else { return };
        if store.idle(period) || store.log.is_closed() {
            return;
        }
        if matches!(store.durability, Durability::Periodic(_))
            && let Err(error) = store.flush_published()
        {
            tracing::error!(%error, "periodic flush failed");
            return;
        }
        if let Err(error) = store.prepare_ahead() {
            // Only speed is lost: unprepared segments work.
            tracing::warn!(%error, "preparing free segments failed");
        }
    }
}
