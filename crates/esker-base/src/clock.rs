//! The seam for time.
//!
//! Two kinds of time, never mixed: monotonic time measures how long something takes; wall time
//! decides when an item expires. Neither ever orders data: order comes from persisted versions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A source of time. Safe from any thread.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Time since some fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// Seconds since 1970-01-01 UTC; may jump in both directions.
    fn unix_seconds(&self) -> u64;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        use std::sync::OnceLock;
        use std::time::Instant;
        static START: OnceLock<Instant> = OnceLock::new();
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        let now = Instant::now();
        now.saturating_duration_since(*START.get_or_init(|| now))
    }

    fn unix_seconds(&self) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        let now = std::time::SystemTime::now();
        now.duration_since(std::time::UNIX_EPOCH).map_or(0, |age| age.as_secs())
    }
}

/// A clock that stands still until a test moves it.
#[derive(Debug)]
pub struct ManualClock {
    monotonic_ns: AtomicU64,
    unix_seconds: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `unix_seconds`.
    #[must_use]
    pub fn new(unix_seconds: u64) -> Self {
        ManualClock { monotonic_ns: AtomicU64::new(0), unix_seconds: AtomicU64::new(unix_seconds) }
    }

    /// Lets both times pass.
    pub fn advance(&self, step: Duration) {
        let step_ns = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        self.monotonic_ns.fetch_add(step_ns, Ordering::Relaxed);
        self.unix_seconds.fetch_add(step.as_secs(), Ordering::Relaxed);
    }

    /// Sets the wall clock, forwards or back.
    pub fn set_unix_seconds(&self, unix_seconds: u64) {
        self.unix_seconds.store(unix_seconds, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> u64 {
        self.unix_seconds.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_never_goes_back() {
        let earlier = SystemClock.monotonic();
        assert!(SystemClock.monotonic() >= earlier);
        assert!(SystemClock.unix_seconds() > 1_700_000_000);
    }

    #[test]
    fn manual_wall_clock_jumps_without_the_monotonic_one() {
        let clock = ManualClock::new(1000);
        clock.advance(Duration::from_secs(5));
        assert_eq!((clock.monotonic().as_secs(), clock.unix_seconds()), (5, 1005));
        clock.set_unix_seconds(10);
        assert_eq!((clock.monotonic().as_secs(), clock.unix_seconds()), (5, 10));
    }
}
