//! Pace: how clients and the cleaner share the device, the processor and the free space.
//!
//! A cleaner that is ahead of the clients rests between pieces of its work, the longer the larger its lead. Clients are held back
//! in proportion to the debt of free space, so that they slow down smoothly and nobody waits for a whole segment: what the cleaner has
//! gained so far of the one that it is at counts. Where the cleaner finds nothing to gain they are not: waiting makes no room.
//!
//! # Concurrency
//! Numbers that anybody may change; each is a hint, and none guards anything.

use super::Depot;
use super::clean::HEAD_START;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time that the cleaner rests for each time that it works, while its lead is whole, and at once at most.
const REST_SHARE: f64 = 3.0;
const REST_MAX: Duration = Duration::from_millis(5);
/// Most that a batch is held back, and the slowest cleaner that it is held back for, in bytes a
/// second.
const PACE_MAX: Duration = Duration::from_millis(20);
/// Least that a batch is held back; less is owed until it is enough.
const PACE_MIN: Duration = Duration::from_micros(100);
/// Most that is owed: a batch of large records may be worth many waits.
const OWED_MAX: Duration = Duration::from_secs(1);
pub(super) const CLEANING_RATE_MIN: f64 = 4e6;

/// How a cleaner that is in no hurry spends its time.
pub(super) struct Tempo {
    /// Since when it has worked.
    pub(super) since: Duration,
    pub(super) rested: Duration,
}

impl Tempo {
    pub(super) fn new(now: Duration) -> Tempo {
        Tempo { since: now, rested: Duration::ZERO }
    }
}

impl Depot {
    /// Lets the clients' requests come to the device and the processor between two pieces of the cleaner's work. One that
    /// is ahead of them rests, the longer the larger its lead: so its work spreads over the time that it has, and does not
    /// come in bursts in which all else is slow.
    pub(super) fn rest(&self, tempo: &mut Option<Tempo>) {
        esker_trt::yield_now();
        let Some(tempo) = tempo else { return };
        let now = self.clock.monotonic();
        let share = REST_SHARE * self.head_start();
        let rest = now.saturating_sub(tempo.since).mul_f64(share).min(REST_MAX);
        // Who closes the store waits for the segment that is being cleaned.
        if rest > PACE_MIN && !self.background.is_stopping() {
            esker_trt::sleep(rest);
            tempo.since = self.clock.monotonic();
            tempo.rested += tempo.since.saturating_sub(now);
        }
    }

    /// How much of its head start the cleaner has, from 0 to 1.
    fn head_start(&self) -> f64 {
        let size = self.layout.segment_size as f64;
        let room = self.log.lock().tail.map_or(0, |tail| self.layout.room_behind(tail.position));
        let more = self.free_ahead() as f64 - self.clean_below() as f64;
        ((more + room as f64 / size) / HEAD_START as f64).clamp(0.0, 1.0)
    }

    /// Holds a batch of `bytes` back by what the debt of free space asks for: not at all while the
    /// cleaner's lead is whole, at the cleaner's own pace when a third of it is left, slower below.
    /// `room` is what is left of the open segment.
    pub(super) fn pace(&self, bytes: u64, room: u64) {
        let wait = self.pace.owe(self.debt(room) * bytes as f64);
        if !wait.is_zero() {
            esker_trt::sleep(wait);
        }
    }

    /// Seconds that a byte is held back.
    pub(super) fn debt(&self, room: u64) -> f64 {
        let kept = self.segments.reserve_of_puts();
        let (free, below) = (self.free_ahead(), self.clean_below());
        if free >= below || !self.background.is_running() {
            return 0.0;
        }
        let size = self.layout.segment_size as f64;
        let lead = (below - kept) as f64 * size;
        let gained = self.pace.gained.load(Ordering::Relaxed) as f64;
        let left = (free.saturating_sub(kept)) as f64 * size + room as f64 + gained;
        (1.5 * (1.0 - left / lead)).max(0.0) / self.pace.rate()
    }

    /// Holds a write to memory back by what is asked for its bytes, all writers together: records leave at the
    /// rate at which the cleaner makes room, and not in bursts.
    pub(super) fn pay(&self, bytes: u64) {
        let each = self.pace.asked();
        if each > 0.0 {
            let ahead = self.pace.spend(self.clock.monotonic(), each * bytes as f64);
            if ahead > PACE_MIN {
                esker_trt::sleep(ahead.min(PACE_MAX));
            }
        }
    }
}

/// What writers owe the cleaner.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Bytes a second that cleaning makes free, as the bits of a number.
    rate: AtomicU64,
    /// Nanoseconds that batches were not held back, since that was too short, or longer than one is held back.
    owed: AtomicU64,
    /// Seconds that a byte of a write to memory is held back, as the bits of a number.
    asked: AtomicU64,
    /// Bytes that the cleaner has gained so far of the segment that it is at, and that count once that is free.
    gained: AtomicU64,
    /// Until when the writes so far have spent the time, in nanoseconds.
    spent_until: AtomicU64,
    /// Whether the last segment that was cleaned gained too little to go on for the checkpoint's sake.
    gains_little: AtomicBool,
}

impl Pace {
    pub(super) fn set(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// The cleaner has nothing to gain: nobody is held back for it, until it does.
    pub(super) fn clear(&self) {
        self.set(f64::INFINITY);
        self.ask(0.0);
    }

    /// The cleaner is so far with its segment, in bytes that will be free.
    pub(super) fn gained(&self, bytes: u64) {
        self.gained.store(bytes, Ordering::Relaxed);
    }

    /// The cleaner gained much of a segment, or little, or there was nothing to gain.
    pub(super) fn note_gain(&self, is_much: bool) {
        self.gains_little.store(!is_much, Ordering::Relaxed);
    }

    /// Whether the cleaner works to keep the checkpoint.
    pub(super) fn keeps_checkpoint(&self) -> bool {
        !self.gains_little.load(Ordering::Relaxed)
    }

    fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Ordering::Relaxed)).max(CLEANING_RATE_MIN)
    }

    /// What each byte of a write to memory is held back from now on, in seconds.
    pub(super) fn ask(&self, seconds: f64) {
        self.asked.store(seconds.to_bits(), Ordering::Relaxed);
    }

    fn asked(&self) -> f64 {
        f64::from_bits(self.asked.load(Ordering::Relaxed))
    }

    /// Spends `seconds` of the time that all writers share; how far that is ahead of `now`.
    fn spend(&self, now: Duration, seconds: f64) -> Duration {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cost = nanoseconds(Duration::try_from_secs_f64(seconds).unwrap_or(PACE_MAX));
        let now = nanoseconds(now);
        let most = now.saturating_add(nanoseconds(PACE_MAX));
        // Who finds the time all spent waits as long as anybody does, and no longer.
        let next = |until: u64| until.max(now).saturating_add(cost).min(most);
        let spent = |until| Some(next(until));
        let before = self.spent_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
        Duration::from_nanos(before.map_or(0, next).saturating_sub(now))
    }

    /// Adds `seconds`; returns how long to wait for now, the rest stays owed. Where nothing is asked for any more, nothing is
    /// owed: the cleaner has its lead. Only the leader of the log comes here.
    fn owe(&self, seconds: f64) -> Duration {
        let (mut wait, mut owed) = (Duration::ZERO, Duration::ZERO);
        if seconds > 0.0 {
            owed = Duration::from_nanos(self.owed.load(Ordering::Relaxed));
            owed += Duration::try_from_secs_f64(seconds).unwrap_or(OWED_MAX).min(OWED_MAX);
            wait = if owed > PACE_MIN { owed.min(PACE_MAX) } else { Duration::ZERO };
            owed = (owed - wait).min(OWED_MAX);
        }
        self.owed.store(u64::try_from(owed.as_nanos()).unwrap_or(0), Ordering::Relaxed);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// What is spent is spent by all together; what was not spent in time is not kept, and nobody waits longer than anybody does.
    #[test]
    fn writers_share_the_time_that_the_cleaner_asks_for() {
        let pace = Pace::default();
        assert_eq!(pace.spend(MS, 0.001), MS);
        assert_eq!(pace.spend(MS, 0.001), 2 * MS);
        assert_eq!(pace.spend(2 * MS, 0.001), 2 * MS);
        assert_eq!(pace.spend(100 * MS, 0.0005), MS / 2, "the time before is over");
        assert_eq!(pace.spend(100 * MS, 3.0), PACE_MAX);
        assert_eq!(pace.spend(100 * MS, 3.0), PACE_MAX);
        assert_eq!(pace.spend(110 * MS, 0.0), PACE_MAX - 10 * MS);
    }

    #[test]
    fn what_one_batch_is_not_held_back_for_the_next_ones_are() {
        let pace = Pace::default();
        assert_eq!(pace.owe(0.00006), Duration::ZERO, "too short");
        assert_eq!(pace.owe(0.00006), Duration::from_micros(120));
        assert_eq!(
            [0.047, 0.001, 0.0001, 0.0001].map(|more| pace.owe(more)),
            [20, 20, 8, 0].map(|ms| ms * MS + Duration::from_micros(if ms == 8 { 100 } else { 0 }))
        );
        assert_eq!(pace.owe(f64::INFINITY), PACE_MAX);
        assert_eq!(pace.owe(0.0), Duration::ZERO, "the cleaner has its lead");
        assert_eq!(pace.owe(0.001), MS);
    }

    #[test]
    fn nobody_waits_for_a_cleaner_that_has_nothing_to_gain() {
        let pace = Pace::default();
        pace.set(1.0);
        pace.ask(1e-9);
        assert_eq!(pace.rate().to_bits(), CLEANING_RATE_MIN.to_bits());
        pace.clear();
        assert_eq!((1.0 / pace.rate()).to_bits(), 0);
        assert_eq!(pace.asked().to_bits(), 0);
    }

    #[test]
    fn nothing_is_asked_until_somebody_asks() {
        let pace = Pace::default();
        assert_eq!(pace.asked().to_bits(), 0);
        pace.ask(1e-9);
        assert_eq!(pace.asked().to_bits(), 1e-9_f64.to_bits());
    }
}
