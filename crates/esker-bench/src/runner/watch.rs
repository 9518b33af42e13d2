//! The clients' watch: the time of [`SystemClock`], read from the processor's counter.
//!
//! The fastest engines answer in a few hundred nanoseconds, of which two readings of the system's clock would be a
//! twelfth. A watch is set by that clock once; from there on it follows the processor's counter where the processor
//! has one that runs evenly, and else the system's clock. The two differ by less than a ten-thousandth of the time since.

use esker_base::clock::{Clock, SystemClock};
use std::time::Duration;

/// See the module's text. Safe from any thread.
#[derive(Debug)]
pub(crate) struct Watch {
    clock: quanta::Clock,
    set_to: Duration,
    set_at: u64,
}

impl Watch {
    /// A watch that shows what the system's clock does. The first one of a process takes up to 0.2 s, to learn how
    /// fast the counter runs.
    pub(crate) fn new() -> Watch {
        let clock = quanta::Clock::new();
        let set_at = clock.raw();
        Watch { clock, set_to: SystemClock.monotonic(), set_at }
    }

    pub(crate) fn now(&self) -> Duration {
        let passed = self.clock.delta_as_nanos(self.set_at, self.clock.raw());
        self.set_to + Duration::from_nanos(passed)
    }
}

#[cfg(test)]
impl Watch {
    /// One that shows `apart` more than the system's clock, or less.
    pub(crate) fn apart(apart: Duration, is_ahead: bool) -> Watch {
        let watch = Watch::new();
        let set_to = if is_ahead { watch.set_to + apart } else { watch.set_to - apart };
        Watch { set_to, ..watch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_goes_as_the_clock_does() {
        let apart = || {
            let watch = Watch::new();
            let begin = SystemClock.monotonic();
            let earlier = watch.now();
            std::thread::park_timeout(Duration::from_millis(300));
            let later = watch.now();
            (later - earlier).abs_diff(SystemClock.monotonic() - begin)
        };
        // A busy machine may come to the second of two clocks later.
        assert!((0..10).any(|_| apart() < Duration::from_millis(5)));
    }
}
