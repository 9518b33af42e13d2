//! Where scans end: how many records one has to find.
//!
//! A scan that starts near the last key finds fewer than it asks for. So a phase knows its last keys, as many as the
//! longest scan asks for, and each scan is held against them, whatever the order of keys has to do with their numbers.

use crate::numbers::size;
use crate::workload::shape::KeyShape;
use crate::workload::{Kind, Operation, Workload};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;

/// See the module's text. Made before the phase begins.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// In order.
    last: Vec<Vec<u8>>,
    /// Keys may come in between.
    grows: bool,
    /// Keys may be gone.
    shrinks: bool,
}

impl Ends {
    /// Of a workload on the keys of the numbers below `keys`; of one that scans nothing there are none.
    pub(crate) fn of(workload: &Workload, keys: u64) -> Ends {
        let shrinks = match &workload.kind {
            Kind::Requests(mix) => mix.iter().any(|(operation, _)| *operation == Operation::Delete),
            _ => false,
        };
        let (from, to) = workload.scan_length;
        let most = if workload.needs_order() { from.max(to) } else { 0 };
        let first = match workload.keys {
            KeyShape::Ycsb => 0,
            // In the order of their numbers.
            KeyShape::Fixed(_) | KeyShape::Varied { .. } => keys.saturating_sub(most),
        };
        let (mut last, mut key) = (BinaryHeap::new(), Vec::new());
        for number in if most > 0 { first..keys } else { 0..0 } {
            workload.keys.write(number, &mut key);
            if last.len() < size(most) {
                last.push(Reverse(key.clone()));
            } else if let Some(mut smallest) = last.peek_mut()
                && smallest.0 < key
            {
                smallest.0.clone_from(&key);
            }
        }
        let mut last: Vec<Vec<u8>> = last.into_iter().map(|Reverse(key)| key).collect();
        last.sort_unstable();
        Ends { last, grows: workload.grows, shrinks }
    }

    /// How many records a scan finds that asks for `length`, from `key` on, which is there.
    pub(crate) fn records(&self, key: &[u8], length: u64) -> RangeInclusive<u64> {
        let behind = self.last.len() - self.last.partition_point(|last| &last[..] < key);
        let least = length.min(behind as u64).max(1);
        match (self.grows, self.shrinks) {
            (false, false) => least..=least,
            (true, false) => least..=length,
            (_, true) => 1..=length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::catalogue;

    #[test]
    fn scans_end_with_the_last_key_in_any_order_of_keys() {
        for name in ["scan50", "seekrandom", "ycsb-e"] {
            let workload = catalogue::named(name).unwrap();
            for count in [1, 30, 1000] {
                let mut keys: Vec<Vec<u8>> = (0..count).map(|_| Vec::new()).collect();
                (0..).zip(&mut keys).for_each(|(number, key)| workload.keys.write(number, key));
                keys.sort();
                let ends = Ends::of(&workload, count);
                let (from, to) = workload.scan_length;
                for (place, key) in (0..).zip(&keys) {
                    for length in [from, to] {
                        let least = length.min(count - place);
                        let most = if workload.grows { length } else { least };
                        assert_eq!(ends.records(key, length), least..=most, "{name} {place}");
                    }
                }
            }
        }
        let workload = catalogue::named("scan50").unwrap();
        let mix = vec![(Operation::Scan, 0.9), (Operation::Delete, 0.1)];
        let ends = Ends::of(&Workload { kind: Kind::Requests(mix), ..workload }, 1000);
        assert_eq!(ends.records(b"", 50), 1..=50);
    }
}
