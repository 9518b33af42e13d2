//! Time and the clients of a load: when requests are due, how a client waits, and how it is known that one has ended.

use crate::failure::Outcome;
use crate::numbers::{real, whole};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A wait shorter than this is spent by letting others run; the kernel's sleeps are longer than asked.
const SLEEP_MIN: Duration = Duration::from_micros(200);

/// When requests are due: at a fixed rate from a start on, whether earlier ones are answered or not, so that a
/// stall counts for all that had to wait for it (no coordinated omission).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    start: Duration,
    gap_seconds: f64,
    count: u64,
    phase: f64,
}

impl Pace {
    /// The share of client `client` of `clients` in `rate` requests a second: turns with the others.
    pub(crate) fn new(start: Duration, rate: f64, client: u64, clients: u64) -> Pace {
        let gap_seconds = real(clients) / rate.max(1e-9);
        Pace { start, gap_seconds, count: 0, phase: real(client) / real(clients.max(1)) }
    }

    /// When the next request is due.
    pub(crate) fn due(&self) -> Duration {
        let seconds = (real(self.count) + self.phase) * self.gap_seconds;
        self.start + Duration::from_nanos(whole(seconds * 1e9))
    }

    /// That request is on its way.
    pub(crate) fn step(&mut self) {
        self.count += 1;
    }

    /// How many are due from `from` on and before `end`, the next one at the earliest.
    pub(crate) fn due_before(&self, from: Duration, end: Duration) -> u64 {
        let time = end.saturating_sub(self.due().max(from));
        whole((time.as_secs_f64() / self.gap_seconds).ceil())
    }
}

/// How long to sleep of a wait; `None` where the rest of it is too short for that.
pub(crate) fn nap(left: Duration) -> Option<Duration> {
    (left > SLEEP_MIN).then(|| left - SLEEP_MIN / 2)
}

/// Lets others run for a moment.
pub(crate) fn give_way() {
    if esker_trt::in_task() {
        esker_trt::yield_now();
    } else {
        std::thread::yield_now();
    }
}

/// Waits until it is `time` by the clock that `now` reads, without keeping others from the processor. It has to be the clock by which
/// latencies are taken: two clocks drift apart.
pub(crate) fn wait_until(
    time: Duration,
    now: impl Fn() -> Duration,
    stop: &AtomicBool,
) -> Duration {
    loop {
        let now = now();
        let Some(left) = time.checked_sub(now).filter(|left| !left.is_zero()) else { return now };
        if stop.load(Ordering::Relaxed) {
            return now;
        }
        match nap(left) {
            Some(nap) => esker_trt::sleep(nap.min(Duration::from_millis(50))),
            None => give_way(),
        }
    }
}

/// One of several who work side by side. However it ends, by a panic too, it is counted, and the others are stopped
/// unless it ended well: whoever waits for the last one waits for nobody who has gone.
pub(crate) struct Attendance<'a> {
    stop: &'a AtomicBool,
    ended: &'a AtomicU64,
    well: bool,
}

impl<'a> Attendance<'a> {
    pub(crate) fn new(stop: &'a AtomicBool, ended: &'a AtomicU64) -> Self {
        Attendance { stop, ended, well: false }
    }

    /// It ends with `result`.
    pub(crate) fn end<T>(mut self, result: Outcome<T>) -> Outcome<T> {
        self.well = result.is_ok();
        result
    }
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if !self.well {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.ended.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    #[test]
    fn what_is_given_up_of_a_rate_is_counted() {
        let mut pace = Pace::new(Duration::from_secs(1), 100.0, 0, 4);
        let (from, end) = (Duration::from_secs(2), Duration::from_secs(3));
        assert_eq!(pace.due_before(from, end), 25);
        while pace.due() < Duration::from_millis(2_900) {
            pace.step();
        }
        assert_eq!(pace.due_before(from, end), 2);
        assert_eq!(pace.due_before(from, from), 0);
    }

    #[test]
    fn whoever_panics_is_counted_and_stops_the_others() {
        let (stop, ended) = (AtomicBool::new(false), AtomicU64::new(0));
        let stopped = || stop.swap(false, Ordering::Relaxed);
        Attendance::new(&stop, &ended).end(Ok(())).unwrap();
        assert_eq!((stopped(), ended.load(Ordering::Relaxed)), (false, 1));
        let failed: Outcome<()> = Err(Failure::new("no"));
        Attendance::new(&stop, &ended).end(failed).unwrap_err();
        assert_eq!((stopped(), ended.load(Ordering::Relaxed)), (true, 2));
        let panicked = std::panic::catch_unwind(|| {
            let _attendance = Attendance::new(&stop, &ended);
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!((stopped(), ended.load(Ordering::Relaxed)), (true, 3));
    }
}
