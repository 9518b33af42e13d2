//! Segments that could not be read when the cleaner came to them.
//!
//! A device may fail for a moment, and one place of it for ever. Neither may keep the cleaner from the rest: a segment of which a read
//! failed is passed over for a while, and for twice as long each time that it fails again. So after an outage all is cleaned again
//! in about the time that it took.
//!
//! # Concurrency
//! Under the cleaner's lock.
//!
//! # Failure
//! What is known is in memory only, of this incarnation of a segment.

use super::segments::Segments;
use esker_base::ids::{SegmentEpoch, SegmentId};
use esker_base::{Error, Result};
use std::time::Duration;

/// How long a segment is passed over that failed for the first time, and at most.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(600);
/// So many that fail one after the other end a round: it is the device that fails.
pub(super) const FAILURES_MAX: usize = 4;

/// A segment of which a read failed.
#[derive(Debug)]
struct Failed {
    id: SegmentId,
    epoch: SegmentEpoch,
    wait: Duration,
    until: Duration,
}

/// Those of which reads failed.
#[derive(Debug, Default)]
pub(super) struct Unread {
    failed: Vec<Failed>,
    /// What the last read said that failed.
    error: Option<Error>,
}

impl Unread {
    /// A read of this incarnation of a segment failed; true if it has failed for long.
    pub(super) fn note(
        &mut self,
        (id, epoch): (SegmentId, SegmentEpoch),
        now: Duration,
        error: Error,
        segments: &Segments,
    ) -> bool {
        tracing::warn!(%error, segment = id.0, "a segment cannot be read now: the cleaner passes it over");
        self.error = Some(error);
        self.failed.retain(|failed| segments.epoch(failed.id) == failed.epoch);
        let before = self.failed.iter().position(|failed| (failed.id, failed.epoch) == (id, epoch));
        let before = before.map(|place| self.failed.swap_remove(place).wait);
        let wait = before.map_or(WAIT_MIN, |before| (before * 2).min(WAIT_MAX));
        self.failed.push(Failed { id, epoch, wait, until: now + wait });
        wait >= WAIT_MAX
    }

    /// Those that are passed over now.
    pub(super) fn passed(&self, now: Duration, segments: &Segments) -> Vec<SegmentId> {
        let passed =
            |failed: &&Failed| now < failed.until && segments.epoch(failed.id) == failed.epoch;
        self.failed.iter().filter(passed).map(|failed| failed.id).collect()
    }

    /// None is passed over any more until it fails again; false if none was.
    pub(super) fn retry(&mut self) -> bool {
        self.failed.iter_mut().for_each(|failed| failed.until = Duration::ZERO);
        !self.failed.is_empty()
    }

    /// A round begins.
    pub(super) fn begin_round(&mut self) {
        self.error = None;
    }

    /// A read failed that is not of one segment.
    pub(super) fn tell(&mut self, error: Error) {
        self.error = Some(error);
    }

    /// What a read said that failed in this round.
    pub(super) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// What a round that somebody asked for is worth: what was done, or the error if nothing was.
    pub(super) fn end_round(&mut self, done: usize) -> Result<usize> {
        match self.error.take() {
            Some(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::ErrorKind;

    #[test]
    fn a_segment_is_passed_over_for_twice_as_long_each_time_and_in_its_next_life_not_at_all() {
        let segments = Segments::new(4, 8192, false);
        let (id, mut unread) = (SegmentId(2), Unread::default());
        let of = (id, segments.epoch(id));
        let error = || Error::new(ErrorKind::Io, "read");
        let at = Duration::from_millis;
        assert!(!unread.retry());
        assert!(!unread.note(of, at(0), error(), &segments));
        assert_eq!(unread.passed(at(99), &segments), [id]);
        assert_eq!(unread.passed(at(100), &segments), []);
        assert!(!unread.note(of, at(100), error(), &segments));
        assert_eq!(unread.passed(at(299), &segments), [id]);
        assert!(unread.retry());
        assert_eq!(unread.passed(at(0), &segments), []);
        assert!((0..20).any(|_| unread.note(of, at(1), error(), &segments)), "for long");
        assert_eq!(unread.passed(at(600_000), &segments), [id]);
        assert_eq!(unread.passed(at(600_001), &segments), []);
        assert_eq!(unread.end_round(1).ok(), Some(1));
        assert_eq!(unread.end_round(0).ok(), Some(0), "told already");
        let other = (id, SegmentEpoch(of.1.0 + 1));
        assert!(!unread.note(other, at(600_001), error(), &segments));
        assert_eq!(unread.passed(at(600_001), &segments), [], "of another life");
        assert!(unread.end_round(0).is_err());
    }
}
