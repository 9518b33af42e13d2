//! Segments that the collector could not empty, because something in them, or above it in the tree, cannot be read.
//!
//! What is damaged stays so until the space is opened again. What the device refused may be there again soon: such a segment is left
//! alone for some rounds, and for twice as many each time that it is refused again.
//!
//! # Concurrency
//! Under the writer's lock.

use esker_base::ErrorKind;
use std::collections::HashMap;

/// Most rounds for which a segment is left alone.
const ROUNDS_MAX: u64 = 1024;

#[derive(Clone, Copy, Debug)]
struct Segment {
    salt: u64,
    /// For how many rounds, and the one in which it is tried again.
    rounds: u64,
    until: u64,
}

/// By their numbers.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    segments: HashMap<u64, Segment>,
    round: u64,
    notes: u64,
}

impl Stuck {
    /// The collector chooses segments again.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
    }

    /// A segment with this salt holds what cannot be read; this is what was said of it.
    pub(super) fn note(&mut self, number: u64, salt: u64, kind: ErrorKind) {
        let before = self.segments.get(&number).filter(|before| before.salt == salt);
        let rounds = match (kind, before) {
            (ErrorKind::Io, Some(before)) if self.round < before.until => return,
            (ErrorKind::Io, Some(before)) => (before.rounds * 2).min(ROUNDS_MAX),
            (ErrorKind::Io, None) => 1,
            _ => u64::MAX,
        };
        let until = self.round.saturating_add(rounds).saturating_add(1);
        self.notes += 1;
        self.segments.insert(number, Segment { salt, rounds, until });
    }

    /// How often one was noted.
    pub(super) fn notes(&self) -> u64 {
        self.notes
    }

    /// Whether the segment stays as it is in this round.
    pub(super) fn has(&self, number: u64, salt: u64) -> bool {
        let segment = self.segments.get(&number);
        segment.is_some_and(|segment| segment.salt == salt && self.round < segment.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_tried_after_twice_as_many_rounds_each_time_and_what_is_damaged_never() {
        let mut stuck = Stuck::default();
        stuck.note(3, 7, ErrorKind::Corrupted);
        let mut rounds = Vec::new();
        for round in 0..5000 {
            stuck.begin_round();
            assert!(stuck.has(3, 7) && !stuck.has(3, 8) && !stuck.has(4, 7));
            if !stuck.has(5, 7) {
                rounds.push(round);
                stuck.note(5, 7, ErrorKind::Io);
                assert!(stuck.has(5, 7), "for the rest of the round");
                // Another extent of it.
                stuck.note(5, 7, ErrorKind::Io);
            }
        }
        assert_eq!(rounds[..5], [0, 2, 5, 10, 19]);
        let last: Vec<u64> = rounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(last.iter().all(|wait| *wait <= ROUNDS_MAX + 1), "{last:?}");
        assert!(last.iter().rev().take(2).all(|wait| *wait == ROUNDS_MAX + 1), "{last:?}");
        // It was taken anew.
        assert!(!stuck.has(5, 8));
    }
}
