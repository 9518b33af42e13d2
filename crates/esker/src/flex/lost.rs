//! Which bytes of a space are lost, while it changes.

use esker_format::flex::Record;
use std::ops::Range;

/// Ranges of bytes that are lost, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost(Vec<Range<u64>>);

impl Lost {
    /// These bytes are lost.
    pub(super) fn add(&mut self, range: Range<u64>) {
        self.0.push(range);
        self.join();
    }

    /// Where they are behind a change.
    pub(super) fn follow(&mut self, record: &Record) {
        match *record {
            Record::Insert { offset, length, .. } => {
                let before = std::mem::take(&mut self.0);
                for range in before {
                    // What is inserted in the middle is not lost.
                    let middle = offset.clamp(range.start, range.end);
                    self.0.push(range.start..middle);
                    self.0.push(middle + length..range.end + length);
                }
            }
            Record::Map { offset, length, .. } => {
                let before = std::mem::take(&mut self.0);
                for range in before {
                    self.0.push(range.start..range.end.min(offset).max(range.start));
                    self.0.push(range.start.max(offset + length).min(range.end)..range.end);
                }
            }
            Record::Collapse { offset, length } => {
                let moved = |at: u64| match at {
                    at if at <= offset => at,
                    at => at.saturating_sub(length).max(offset),
                };
                for range in &mut self.0 {
                    *range = moved(range.start)..moved(range.end);
                }
            }
            Record::Take { .. } => {}
        }
        self.join();
    }

    /// All of them.
    pub(super) fn into_ranges(self) -> Vec<Range<u64>> {
        self.0
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn join(&mut self) {
        self.0.retain(|range| range.start < range.end);
        self.0.sort_unstable_by_key(|range| range.start);
        self.0.dedup_by(|next, before| {
            let touch = next.start <= before.end;
            if touch {
                before.end = before.end.max(next.end);
            }
            touch
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    #[test]
    fn lost_bytes_are_followed_wherever_they_move() {
        for seed in 0..50 {
            let mut rng = Rng::from_seed(seed);
            let mut model: Vec<bool> = (0..200).map(|_| rng.chance(1, 10)).collect();
            let mut lost = Lost::default();
            for (at, _) in (0..).zip(&model).filter(|(_, is_lost)| **is_lost) {
                lost.add(at..at + 1);
            }
            for step in 0..100 {
                let size = model.len();
                let offset = rng.index(size + 1);
                let length = 1 + rng.index(12);
                let end = (offset + length).min(size);
                let (at, bytes) = (offset as u64, length as u64);
                let record = match rng.below(3) {
                    0 => {
                        model.splice(offset..offset, vec![false; length]);
                        Record::Insert { offset: at, length: bytes, address: 0 }
                    }
                    1 if offset < end => {
                        model[offset..end].fill(false);
                        Record::Map { offset: at, length: (end - offset) as u64, address: 0 }
                    }
                    _ if offset < end => {
                        model.drain(offset..end);
                        Record::Collapse { offset: at, length: (end - offset) as u64 }
                    }
                    _ => Record::Take { segment: 1, salt: 2 },
                };
                lost.follow(&record);
                let mut found = vec![false; model.len()];
                for range in lost.clone().into_ranges() {
                    let index = |at: u64| usize::try_from(at).unwrap();
                    found[index(range.start)..index(range.end)].fill(true);
                }
                assert_eq!(found, model, "seed {seed}, step {step}: {record:?}");
            }
        }
    }
}
