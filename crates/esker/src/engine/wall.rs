//! The clock of a store: that of its options, with a wall time that never goes back.
//!
//! # Invariants
//! - W1: what was found expired stays so while the store is open, also if somebody sets the system's clock back.

use esker_base::clock::Clock;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock with the latest wall time that it showed.
#[derive(Debug)]
pub(super) struct Wall {
    clock: Arc<dyn Clock>,
    latest: AtomicU64,
}

impl Wall {
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Self {
        Wall { clock: Arc::clone(clock), latest: AtomicU64::new(0) }
    }

    /// Wall time in Unix seconds: the latest that was seen (W1).
    #[inline]
    pub(super) fn now(&self) -> u64 {
        let (now, latest) = (self.clock.unix_seconds(), self.latest.load(Ordering::Relaxed));
        // Every read of what expires comes by: all threads share the line, and only the first of a second changes it.
        if now <= latest {
            return latest;
        }
        now.max(self.latest.fetch_max(now, Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn is_expired(&self, expires_at: Option<u64>) -> bool {
        expires_at.is_some_and(|expires_at| self.now() >= expires_at)
    }
}

impl Deref for Wall {
    type Target = dyn Clock;

    fn deref(&self) -> &Self::Target {
        &*self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::Wall;
    use esker_base::clock::{Clock, ManualClock};
    use std::sync::Arc;

    #[test]
    fn a_clock_that_is_set_back_brings_nothing_back() {
        let clock = Arc::new(ManualClock::new(1000));
        let wall = Wall::new(&(Arc::clone(&clock) as Arc<dyn Clock>));
        assert!(!wall.is_expired(Some(1001)) && !wall.is_expired(None));
        for (shown, latest) in [(1001, 1001), (900, 1001), (1002, 1002)] {
            clock.set_unix_seconds(shown);
            assert_eq!((wall.now(), wall.unix_seconds()), (latest, shown));
            assert!(wall.is_expired(Some(1001)));
        }
    }
}
