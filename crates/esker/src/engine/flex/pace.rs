//! Pace: how writers and the committer go together.
//!
//! A table may grow by half of what the options say while the one before it is on its way to the space; then its log is full, and writers wait until it is there.
//! So that they do not all wait for the whole of a commit, each is held back for a moment while the part of that half that is in
//! use is more than the part of the sealed table that is in the space.
//!
//! # Concurrency
//! Numbers that change meanwhile; each is a hint, and none guards anything. Nobody holds a lock while held back.

use super::Flex;
use std::time::Duration;

/// The first moment that a writer is held back for, the longest one, and all of them together at most.
const STEP_MIN: Duration = Duration::from_micros(500);
const STEP_MAX: Duration = Duration::from_millis(2);
const TOTAL_MAX: Duration = Duration::from_millis(10);
/// Parts of a commit, of `PARTS`, that bring pairs; the last one makes them durable.
const PARTS_OF_PAIRS: u64 = PARTS - 1;
const PARTS: u64 = 8;

impl Flex {
    /// Holds a writer back as long as writers are ahead of the committer, but not for long.
    pub(super) fn pace(&self) {
        let (mut step, mut held) = (STEP_MIN, Duration::ZERO);
        while held < TOTAL_MAX && self.is_ahead() {
            esker_trt::sleep(step);
            held += step;
            step = (2 * step).min(STEP_MAX);
        }
    }

    /// Whether more is in use of what a table may have beside a sealed one than of that one is in the space.
    #[inline]
    pub(super) fn is_ahead(&self) -> bool {
        let (used, all) = self.wal.use_beyond();
        used > 0 && self.is_ahead_by(used, all)
    }

    #[cold]
    fn is_ahead_by(&self, used: u64, all: u64) -> bool {
        if !self.background.is_running() || self.stuck.lock().is_some() {
            return false;
        }
        let Some((sealed, _)) = self.tables().sealed.clone() else { return false };
        is_ahead((used, all), (sealed.brought(), sealed.len()))
    }
}

/// Whether more is used of what writers may use than is done of what the committer has to do: so many bytes of so many, and so many pairs
/// of so many, which are not all of a commit.
fn is_ahead(bytes: (u64, u64), pairs: (u64, u64)) -> bool {
    let wide = u128::from;
    wide(bytes.0) * wide(PARTS) * wide(pairs.1)
        > wide(bytes.1) * wide(PARTS_OF_PAIRS) * wide(pairs.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_wait_for_the_committer_only_if_they_are_ahead() {
        const ALL: u64 = 8 << 20;
        const MANY: u64 = 1 << 48;
        assert!(!is_ahead((0, ALL), (0, 100)), "nothing is used");
        assert!(is_ahead((1, ALL), (0, 100)), "nothing is done");
        assert!(!is_ahead((ALL / 4, ALL), (50, 100)), "the committer is ahead");
        assert!(is_ahead((ALL / 2, ALL), (50, 100)), "the last part of a commit brings no pairs");
        assert!(!is_ahead((ALL / 8 * 7, ALL), (100, 100)), "all pairs are there");
        assert!(is_ahead((ALL, ALL), (100, 100)), "they are there, and not durable");
        assert!(!is_ahead((ALL, ALL), (200, 100)), "the second attempt brings the rest");
        assert!(is_ahead((MANY, MANY), (MANY, MANY)), "no product overflows");
    }
}
