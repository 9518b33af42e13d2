//! The clock by which a server counts: wall time that never goes back, and goes on whatever is done to the machine's.
//!
//! memcached counts on a clock that nobody sets. Items here are kept with dates, so wall time it is; but where that of the machine is
//! set back, a distance from it would lie behind what the store has seen already: every lock would be over when it is taken.
//!
//! # Concurrency
//! One word, which hardly ever changes.

use esker_base::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock whose wall time runs at the pace of the monotonic one, and is ahead of it by as much as it ever was: if it is set back it
/// goes on, if it is set forward, or the machine slept, it follows.
#[derive(Debug)]
pub struct SteadyClock {
    of: Arc<dyn Clock>,
    /// How far wall time is ahead, in milliseconds.
    ahead_ms: AtomicU64,
}

impl SteadyClock {
    /// One that follows `of`.
    #[must_use]
    pub fn new(of: Arc<dyn Clock>) -> Self {
        let steady = SteadyClock { of, ahead_ms: AtomicU64::new(0) };
        // What is set back later is set back from here.
        steady.unix_seconds();
        steady
    }

    /// Wall time with its parts of a second, as exact as [`Clock::unix_seconds`] and those who ask for that have made it.
    pub(crate) fn since_1970(&self) -> Duration {
        let (ahead_ms, passed) = self.look();
        Duration::from_millis(ahead_ms).saturating_add(passed)
    }

    /// How far wall time is ahead, in milliseconds, and monotonic time.
    fn look(&self) -> (u64, Duration) {
        // In this order: who is interrupted in between finds too little, which changes nothing.
        let wall_ms = self.of.unix_seconds().saturating_mul(1000);
        let passed = self.of.monotonic();
        let ahead_ms = wall_ms.saturating_sub(millis(passed));
        let mut most_ms = self.ahead_ms.load(Ordering::Relaxed);
        if ahead_ms > most_ms {
            most_ms = ahead_ms.max(self.ahead_ms.fetch_max(ahead_ms, Ordering::Relaxed));
        }
        (most_ms, passed)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Clock for SteadyClock {
    fn monotonic(&self) -> Duration {
        self.of.monotonic()
    }

    fn unix_seconds(&self) -> u64 {
        let (ahead_ms, passed) = self.look();
        ahead_ms.saturating_add(millis(passed)) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::clock::{ManualClock, SystemClock};

    #[test]
    fn wall_time_goes_on_when_it_is_set_back_and_follows_when_it_is_set_forward() {
        let machine = Arc::new(ManualClock::new(1_000_000));
        machine.advance(Duration::from_millis(700));
        let clock = SteadyClock::new(machine.clone());
        assert_eq!(clock.unix_seconds(), 1_000_000);
        machine.set_unix_seconds(1);
        assert_eq!(clock.unix_seconds(), 1_000_000);
        machine.advance(Duration::from_secs(5));
        assert_eq!((clock.unix_seconds(), clock.monotonic().as_secs()), (1_000_005, 5));
        assert_eq!(clock.since_1970(), Duration::from_secs(1_000_005));
        machine.advance(Duration::from_micros(1234));
        assert_eq!(clock.since_1970(), Duration::from_micros(1_000_005_001_234));
        machine.set_unix_seconds(1_000_007);
        assert_eq!(clock.unix_seconds(), 1_000_007);
        machine.set_unix_seconds(2);
        machine.advance(Duration::from_secs(60));
        assert_eq!(clock.unix_seconds(), 1_000_067);
    }

    #[test]
    fn it_is_that_of_the_machine_while_nobody_sets_it() {
        let clock = SteadyClock::new(Arc::new(SystemClock));
        for _ in 0..100_000 {
            let before = SystemClock.unix_seconds();
            let shown = clock.unix_seconds();
            assert!((before..=SystemClock.unix_seconds()).contains(&shown), "{shown}");
        }
    }
}
