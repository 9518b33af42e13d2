//! What all sessions of a server share.
//!
//! # Concurrency
//! Read by every core. Counters are sharded; the rest hardly ever changes.

use crate::budget::Budget;
use crate::counters::{Counter, Counters};
use crate::execute::Ground;
use crate::expiry::expires_at;
use crate::limits::Limits;
use crate::listen::ListenAddress;
use crate::protocol::line;
use esker::Store;
use esker_base::clock::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Store, limits, counters and state of a server.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Limits,
    pub(crate) budget: Budget,
    pub(crate) counters: Counters,
    pub(crate) cores: usize,
    pub(crate) addresses: Vec<ListenAddress>,
    pub(crate) connections: AtomicU32,
    pub(crate) started: Duration,
    /// Wall time at which a delayed `flush_all` is due.
    flush_at: Mutex<Option<u64>>,
    stopping: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        limits: Limits,
        cores: usize,
        addresses: Vec<ListenAddress>,
    ) -> Self {
        Shared {
            store,
            budget: Budget::new(limits.memory_max_bytes),
            counters: Counters::new(cores),
            cores,
            addresses,
            connections: AtomicU32::new(0),
            started: clock.monotonic(),
            flush_at: Mutex::new(None),
            stopping: AtomicBool::new(false),
            clock,
            limits,
        }
    }

    /// What units of `core` run on.
    pub(crate) fn ground(&self, core: usize) -> Ground<'_> {
        Ground {
            store: &self.store,
            counters: self.counters.shard(core),
            item_size_max_bytes: self.limits.item_size_max_bytes,
            now: self.clock.unix_seconds(),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// `flush_all`: now, or when the delay is over. A later `flush_all` replaces one that waits;
    /// one that waits is forgotten when the server stops.
    pub(crate) fn flush_all(&self, core: usize, delay: i64) -> &'static [u8] {
        let now = self.clock.unix_seconds();
        self.counters.shard(core).add(Counter::CmdFlush, 1);
        let due = expires_at(delay, now).filter(|due| *due > now);
        *self.flush_at.lock() = due;
        if due.is_some() {
            return line::OK;
        }
        self.clear(core).map_or_else(crate::errors::reply_line, |()| line::OK)
    }

    /// Runs a delayed `flush_all` whose time has come.
    pub(crate) fn flush_if_due(&self) {
        let now = self.clock.unix_seconds();
        if self.flush_at.lock().take_if(|due| *due <= now).is_some() {
            // A failure has been counted and logged; nobody waits for the answer.
            let _ = self.clear(0);
        }
    }

    fn clear(&self, core: usize) -> Result<(), esker::ErrorKind> {
        self.store.clear().map_err(|error| {
            self.ground(core).report(&error);
            error.kind()
        })
    }
}
