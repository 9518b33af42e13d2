//! Counters of a server, one set for each core, under the names that memcached gives them.
//!
//! # Concurrency
//! A session counts on its own core's set, so counting never moves a cache line between cores; a
//! reader adds the sets up and may see a request half counted.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident = $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names are those of memcached's statistics")]
        pub enum Counter { $($name,)* }

        impl Counter {
            /// Every counter with its name, in the order in which they are shown.
            pub const ALL: &[(Counter, &str)] = &[$((Counter::$name, $text),)*];
        }
    };
}

counters! {
    TotalConnections = "total_connections",
    RejectedConnections = "rejected_connections",
    CmdGet = "cmd_get",
    CmdSet = "cmd_set",
    CmdFlush = "cmd_flush",
    CmdTouch = "cmd_touch",
    CmdMeta = "cmd_meta",
    GetHits = "get_hits",
    GetMisses = "get_misses",
    GetExpired = "get_expired",
    DeleteMisses = "delete_misses",
    DeleteHits = "delete_hits",
    IncrMisses = "incr_misses",
    IncrHits = "incr_hits",
    DecrMisses = "decr_misses",
    DecrHits = "decr_hits",
    CasMisses = "cas_misses",
    CasHits = "cas_hits",
    CasBadval = "cas_badval",
    TouchHits = "touch_hits",
    TouchMisses = "touch_misses",
    StoreTooLarge = "store_too_large",
    StoreNoMemory = "store_no_memory",
    StoreErrors = "store_errors",
    AuthCmds = "auth_cmds",
    AuthErrors = "auth_errors",
    TlsHandshakeErrors = "ssl_handshake_errors",
    IdleKicks = "idle_kicks",
    RequestTimeouts = "request_timeouts",
    BytesRead = "bytes_read",
    BytesWritten = "bytes_written",
    TotalItems = "total_items",
    LogWorkerWritten = "log_worker_written",
    LogWatcherSkipped = "log_watcher_skipped",
    LogWatcherSent = "log_watcher_sent",
}

/// The counters of one core, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Shard {
    cells: [AtomicU64; Counter::ALL.len()],
    busy: AtomicU64,
    tasks: AtomicU64,
    /// Never reset.
    failures: AtomicU64,
}

impl Shard {
    /// Counts `step`; returns what was counted before on this core.
    pub fn add(&self, counter: Counter, step: u64) -> u64 {
        self.cells.get(counter as usize).map_or(0, |cell| cell.fetch_add(step, Ordering::Relaxed))
    }

    /// Counts a failure of the store that is told in the log; how many there were since the server began, on this core.
    pub(crate) fn note_failure(&self) -> u64 {
        self.failures.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// One more task beside the sessions of this core, if there are not `max` of them.
    pub(crate) fn try_begin_task(&self, max: u64) -> bool {
        let more = |tasks: u64| (tasks < max).then(|| tasks.saturating_add(1));
        self.tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// One task less.
    pub(crate) fn end_task(&self) {
        self.tasks.fetch_sub(1, Ordering::Relaxed);
    }

    /// One more session of this core, or what it has in flight, has requests that are not answered yet.
    pub fn enter(&self) {
        self.busy.fetch_add(1, Ordering::SeqCst);
    }

    /// One of them has answered everything.
    pub fn leave(&self) {
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The counters of all cores.
#[derive(Debug)]
pub struct Counters(Vec<Shard>);

impl Counters {
    /// Zeros, for `cores` cores.
    #[must_use]
    pub fn new(cores: usize) -> Self {
        let shard = || Shard {
            cells: std::array::from_fn(|_| AtomicU64::new(0)),
            busy: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            tasks: AtomicU64::new(0),
        };
        Counters((0..cores.max(1)).map(|_| shard()).collect())
    }

    /// The counters of a core.
    #[must_use]
    #[expect(
        clippy::indexing_slicing,
        reason = "there is at least one shard, and a remainder of their number"
    )]
    pub fn shard(&self, core: usize) -> &Shard {
        &self.0[core % self.0.len()]
    }

    /// The sum over all cores.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        let cells = self.0.iter().filter_map(|shard| shard.cells.get(counter as usize));
        cells.fold(0, |sum, cell| sum.wrapping_add(cell.load(Ordering::Relaxed)))
    }

    /// Sessions that have requests which are not answered yet.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.0.iter().map(|shard| shard.busy.load(Ordering::SeqCst)).sum()
    }

    /// Back to zero.
    pub fn reset(&self) {
        self.0
            .iter()
            .flat_map(|shard| &shard.cells)
            .for_each(|cell| cell.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_on_when_the_counters_are_reset() {
        let counters = Counters::new(1);
        assert_eq!((counters.shard(0).note_failure(), counters.shard(0).note_failure()), (1, 2));
        counters.reset();
        assert_eq!(counters.shard(0).note_failure(), 3);
    }

    #[test]
    fn cores_add_up_and_are_reset_together() {
        let counters = Counters::new(2);
        counters.shard(0).add(Counter::CmdGet, 1);
        counters.shard(3).add(Counter::CmdGet, 2);
        assert_eq!((counters.total(Counter::CmdGet), counters.total(Counter::CmdSet)), (3, 0));
        counters.reset();
        assert_eq!(counters.total(Counter::CmdGet), 0);
    }
}
