//! Leaves whose reads the device refused when the sweep came to them: what has expired in them is known, and gives its room back once
//! they can be read again.
//!
//! A device may refuse everything for a moment, and one place for ever. So a leaf is passed over for a while, and for twice as long
//! each time that it is refused again.
//!
//! # Concurrency
//! Under the committer's lock.

use std::collections::HashMap;
use std::time::Duration;

/// How long a leaf is passed over that was refused for the first time, and at most.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Leaves that are remembered. Of a device that refuses more of them none waits for long.
const LEAVES_MAX: usize = 4096;

/// By their first anchors, how long they wait, and until when.
#[derive(Debug, Default)]
pub(super) struct Refused(HashMap<Vec<u8>, (Duration, Duration)>);

impl Refused {
    /// A read of this leaf was refused.
    pub(super) fn note(&mut self, anchor: &[u8], now: Duration) {
        if self.0.len() >= LEAVES_MAX && !self.0.contains_key(anchor) {
            self.0.clear();
        }
        let wait = self.0.get(anchor).map_or(WAIT_MIN, |(wait, _)| (*wait * 2).min(WAIT_MAX));
        self.0.insert(anchor.to_vec(), (wait, now + wait));
    }

    /// Whether it is passed over now.
    pub(super) fn is_waiting(&self, anchor: &[u8], now: Duration) -> bool {
        self.0.get(anchor).is_some_and(|(_, until)| now < *until)
    }

    /// It was read.
    pub(super) fn forget(&mut self, anchor: &[u8]) {
        self.0.remove(anchor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_passed_over_for_twice_as_long_each_time_until_it_is_read() {
        let at = Duration::from_millis;
        let mut refused = Refused::default();
        assert!(!refused.is_waiting(b"a", at(0)));
        refused.note(b"a", at(0));
        assert_eq!([99, 100].map(|now| refused.is_waiting(b"a", at(now))), [true, false]);
        refused.note(b"a", at(100));
        assert_eq!([299, 300].map(|now| refused.is_waiting(b"a", at(now))), [true, false]);
        assert!(!refused.is_waiting(b"b", at(100)));
        refused.forget(b"a");
        refused.note(b"a", at(300));
        assert!(!refused.is_waiting(b"a", at(400)), "as the first time");
        (0..20).for_each(|_| refused.note(b"a", at(0)));
        assert_eq!([599_999, 600_000].map(|now| refused.is_waiting(b"a", at(now))), [true, false]);
    }

    #[test]
    fn of_many_leaves_few_are_remembered() {
        let mut refused = Refused::default();
        for number in 0..10_000_u32 {
            refused.note(&number.to_be_bytes(), Duration::ZERO);
            assert!(refused.is_waiting(&number.to_be_bytes(), Duration::ZERO));
        }
        assert!(refused.0.len() <= LEAVES_MAX);
    }
}
