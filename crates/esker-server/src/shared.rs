//! What all sessions of a server share.
//!
//! # Concurrency
//! Read by every core. Counters are sharded; the rest hardly ever changes.

use crate::access::Access;
use crate::auth::Credentials;
use crate::backups::Backups;
use crate::budget::{Budget, KindShare, Share};
use crate::counters::{Counter, Counters};
use crate::execute::Ground;
use crate::expiry::expires_at;
use crate::guests::Guests;
use crate::limits::Limits;
use crate::listen::ListenAddress;
use crate::prefixes::Prefixes;
use crate::protocol::line;
use crate::server::{ServerConfig, ShutdownHook};
use crate::tls::Tls;
use crate::watch::{WATCHER_BYTES, Watchers};
use esker::Store;
use esker_base::clock::Clock;
use esker_base::units::MIB;
use esker_trt::sync::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// What `cache_memlimit` takes for a number of mebibytes, as in memcached.
const LIMIT_MIB_MIN: u64 = 8;
const LIMIT_MIB_MAX: u64 = 1_000_000_000;
/// Time of a `flush_all` that nobody has asked for.
const NEVER: u64 = u64::MAX;

/// Store, limits, counters and state of a server.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    /// Whether the store is a cache.
    cache: bool,
    /// Its capacity and the size of its segments, in bytes: it keeps both.
    made_with: (u64, u64),
    /// A `SteadyClock`.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Limits,
    pub(crate) budget: Budget,
    /// What data blocks that are arriving take of the budget, out of what they may take.
    pub(crate) bodies: Budget,
    /// What clients in shared memory take of the budget, out of what they may take.
    pub(crate) rings: Budget,
    pub(crate) counters: Counters,
    /// Evictions up to the last `stats reset`.
    pub(crate) evictions_forgotten: AtomicU64,
    pub(crate) cores: usize,
    pub(crate) addresses: Vec<ListenAddress>,
    pub(crate) connections: AtomicU32,
    pub(crate) guests: Guests,
    /// Connections that were turned away and have not hung up yet.
    pub(crate) turned_away: AtomicU32,
    pub(crate) started: Duration,
    pub(crate) access: Access,
    pub(crate) prefixes: Prefixes,
    /// Who may use the server; nobody is asked if `None`.
    pub(crate) auth: Option<Credentials>,
    /// What `shutdown` does; refused if `None`.
    pub(crate) on_shutdown: Option<ShutdownHook>,
    pub(crate) flush_enabled: bool,
    /// Whether clients may have items listed.
    pub(crate) dump_enabled: bool,
    /// Whether clients may watch.
    pub(crate) watch_enabled: bool,
    pub(crate) watchers: Watchers,
    /// Whether one has items listed now.
    pub(crate) dumping: AtomicBool,
    pub(crate) backups: Backups,
    pub(crate) tls: Option<Tls>,
    /// Wall time at which a delayed `flush_all` is due, or [`NEVER`].
    flush_at: AtomicU64,
    /// Who runs it has this; others wait for its end.
    flushing: Mutex<()>,
    stopping: AtomicBool,
}

impl Shared {
    /// The most memory that one request may wait for: what comes free although those who are there, and ask for nothing, keep what
    /// they have. Who asks for more would wait in vain, and everybody else behind it.
    pub(crate) fn request_bytes_max(&self) -> u64 {
        let rings = self.rings.total_bytes().saturating_sub(self.rings.free_bytes());
        let watchers = (self.watchers.count() as u64).saturating_mul(WATCHER_BYTES);
        let spare = self.limits.spare_bytes(self.tls.is_some());
        spare.saturating_sub(rings).saturating_sub(watchers)
    }

    /// Memory for a request, waited for if it may come.
    pub(crate) fn take_waiting(&self, bytes: u64) -> Option<Share> {
        match bytes <= self.request_bytes_max() {
            true => self.budget.take(bytes, self.limits.wait_timeout()),
            false => self.budget.try_take(bytes),
        }
    }

    pub(crate) fn new(
        store: Store,
        config: ServerConfig,
        cores: usize,
        addresses: Vec<ListenAddress>,
    ) -> Self {
        let ServerConfig { limits, clock, auth, on_shutdown, backups, tls, .. } = config;
        // Only outsiders must not know it.
        let seed = RandomState::new();
        let seed = u128::from(seed.hash_one(0)) << 64 | u128::from(seed.hash_one(1));
        let stats = store.stats();
        let encrypted = tls.is_some();
        let segment = stats.capacity_bytes.checked_div(stats.segments).unwrap_or(0);
        Shared {
            cache: stats.cache,
            made_with: (stats.capacity_bytes, segment),
            store,
            budget: limits.budget(encrypted),
            bodies: Budget::new(limits.bodies_max_bytes(encrypted)),
            rings: Budget::new(limits.rings_max_bytes()),
            counters: Counters::new(cores),
            evictions_forgotten: AtomicU64::new(0),
            cores,
            addresses,
            connections: AtomicU32::new(0),
            guests: Guests::default(),
            turned_away: AtomicU32::new(0),
            started: clock.monotonic(),
            access: Access::new(seed.to_be_bytes()),
            prefixes: Prefixes::new(config.prefix_delimiter),
            auth,
            on_shutdown,
            flush_enabled: config.flush_enabled,
            dump_enabled: config.dump_enabled,
            watch_enabled: config.watch_enabled,
            watchers: Watchers::new(clock.clone()),
            dumping: AtomicBool::new(false),
            backups: Backups::new(backups),
            tls,
            flush_at: AtomicU64::new(NEVER),
            flushing: Mutex::new(()),
            stopping: AtomicBool::new(false),
            clock,
            limits,
        }
    }

    /// What units of `core` run on.
    pub(crate) fn ground(&self, core: usize) -> Ground<'_> {
        Ground {
            store: &self.store,
            cache: self.cache,
            access: &self.access,
            prefixes: &self.prefixes,
            budget: &self.budget,
            counters: self.counters.shard(core),
            watchers: &self.watchers,
            watched: self.watchers.wanted(),
            connection: 0,
            item_size_max_bytes: self.limits.item_size_max_bytes,
            now: self.clock.unix_seconds(),
            uptime: self.uptime(),
        }
    }

    /// The number that clients are told of the connection with this number: those of the listeners come first.
    pub(crate) fn shown_number(&self, number: u64) -> u64 {
        number.saturating_add(self.addresses.len() as u64)
    }

    /// Whole seconds since the server began.
    pub(crate) fn uptime(&self) -> u64 {
        self.clock.monotonic().saturating_sub(self.started).as_secs()
    }

    /// Memory for a data block that arrives.
    pub(crate) fn body_share(&self) -> KindShare {
        KindShare::new(&self.budget, &self.bodies)
    }

    /// Whether clients that are slow hold what others may need.
    pub(crate) fn memory_is_short(&self) -> bool {
        self.budget.is_short() || self.bodies.is_short()
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
        if !self.flush_enabled {
            return line::FLUSH_DISABLED;
        }
        let due = expires_at(delay, now).filter(|due| *due > now);
        {
            // One that is over first ends: nothing goes that is stored behind this one.
            let _turn = self.flushing.lock();
            self.flush_at.store(due.unwrap_or(NEVER), Ordering::Release);
        }
        if due.is_some() {
            return line::OK;
        }
        self.clear(core).map_or_else(crate::errors::reply_line, |()| line::OK)
    }

    /// `cache_memlimit`: a store keeps the capacity that it was made with. Of the size that somebody asked for it can have
    /// all but what stands before its first segment and a rest behind the last one.
    pub(crate) fn memory_limit(&self, mebibytes: u64) -> &'static [u8] {
        match mebibytes {
            0..LIMIT_MIB_MIN => line::LIMIT_TOO_SMALL,
            LIMIT_MIB_MIN..=LIMIT_MIB_MAX => {
                let (capacity, segment) = self.made_with;
                let made_with = mebibytes.saturating_mul(MIB).checked_sub(capacity);
                let same = capacity / MIB == mebibytes
                    || made_with.is_some_and(|besides| besides < 2 * segment.max(MIB));
                if same { line::OK } else { line::LIMIT_FIXED }
            }
            _ => line::LIMIT_TOO_LARGE,
        }
    }

    /// Runs a delayed `flush_all` whose time has come. Asked before requests run, so that none sees what is over, and nothing
    /// goes that was stored behind it.
    pub(crate) fn flush_if_due(&self, core: usize) {
        // Acquire: whoever sees that a flush is over comes after it.
        if self.flush_at.load(Ordering::Acquire) != NEVER {
            self.flush_when_due(core);
        }
    }

    #[cold]
    fn flush_when_due(&self, core: usize) {
        let due = || {
            let at = self.flush_at.load(Ordering::Acquire);
            (at <= self.clock.unix_seconds()).then_some(at)
        };
        if due().is_none() {
            return;
        }
        let _turn = self.flushing.lock();
        let Some(at) = due() else { return };
        // A failure has been counted and logged. Who asked was told that it comes: what may pass is tried again.
        let next = match self.clear(core) {
            Err(esker::ErrorKind::NoSpace | esker::ErrorKind::Io) => self.clock.unix_seconds() + 1,
            _ => NEVER,
        };
        // One that was asked for meanwhile stays. Release: what was cleared was cleared before.
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.flush_at.compare_exchange(at, next, success, failure);
    }

    fn clear(&self, core: usize) -> Result<(), esker::ErrorKind> {
        self.store.clear().map_err(|error| {
            self.ground(core).report(&error);
            error.kind()
        })
    }
}
