//! Which slots of the tree file are in use.
//!
//! # Invariants
//! - L1: a slot that the newest durable header needs is in use, whatever became of it since; it is
//!   released when the next header is durable.

use esker_base::Site;

/// Slots of the tree file. See the module's text.
#[derive(Debug, Default)]
pub(super) struct Slots {
    used: Vec<bool>,
    /// How many of them are not: asked for with every commit.
    free: u64,
    /// Lowest slot that may be free.
    first: usize,
    /// To be released when the next header is durable.
    leaving: Vec<(u64, u64)>,
}

impl Slots {
    /// A tree file of which the slots before `first` belong to the headers, and these bits are in use.
    pub(super) fn new(first: u64, bits: &[u8]) -> Self {
        let bit =
            |index: usize| bits.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1);
        let first = usize::try_from(first).unwrap_or(0);
        let count = (bits.len() * 8).max(first);
        let used: Vec<bool> = (0..count).map(|index| index < first || bit(index)).collect();
        let free = free_of(&used);
        Slots { used, free, first: 0, leaving: Vec::new() }
    }

    /// Slots that the tree file has to have.
    pub(super) fn count(&self) -> u64 {
        self.used.len() as u64
    }

    /// Slots that are free.
    pub(super) fn free_count(&self) -> u64 {
        self.free
    }

    /// One free slot.
    pub(super) fn take(&mut self) -> u64 {
        self.take_run(1)
    }

    /// `count` free slots side by side: the first of them.
    pub(super) fn take_run(&mut self, count: usize) -> u64 {
        let mut start = self.first;
        let mut end = start;
        while end - start < count {
            match self.used.get(end) {
                Some(true) => start = end + 1,
                Some(false) => {}
                None => {
                    self.used.push(false);
                    self.free += 1;
                }
            }
            end += 1;
        }
        if let Some(run) = self.used.get_mut(start..end) {
            self.free -= free_of(run);
            run.fill(true);
        }
        if count == 1 {
            self.first = end;
        }
        start as u64
    }

    /// These slots are not needed by the next generation.
    pub(super) fn leave(&mut self, first: u64, count: u64, wait: Site) {
        self.leaving.push((first, count));
        if wait.disabled() {
            self.release();
        }
    }

    /// None of the slots from `first` on that are in use is needed by the next generation.
    pub(super) fn leave_all(&mut self, first: u64) {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let used = self.used.iter().enumerate().skip(first).filter(|(_, used)| **used);
        self.leaving = used.map(|(slot, _)| (slot as u64, 1)).collect();
    }

    /// The next header is durable.
    pub(super) fn release(&mut self) {
        for (first, count) in std::mem::take(&mut self.leaving) {
            self.free_run(first, count);
        }
    }

    fn free_run(&mut self, first: u64, count: u64) {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let end = first.saturating_add(usize::try_from(count).unwrap_or(0));
        if let Some(run) = self.used.get_mut(first..end) {
            self.free += run.len() as u64 - free_of(run);
            run.fill(false);
            self.first = self.first.min(first);
        }
    }

    /// The bits of the next generation, for its map.
    pub(super) fn bits(&self) -> Vec<u8> {
        let mut next = self.used.clone();
        for (first, count) in &self.leaving {
            let first = usize::try_from(*first).unwrap_or(usize::MAX);
            let end = first.saturating_add(usize::try_from(*count).unwrap_or(0));
            if let Some(run) = next.get_mut(first..end) {
                run.fill(false);
            }
        }
        let byte =
            |eight: &[bool]| eight.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        next.chunks(8).map(byte).collect()
    }
}

/// How many of these slots are free.
fn free_of(used: &[bool]) -> u64 {
    used.iter().filter(|used| !**used).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::SiteKind;
    use esker_base::rng::Rng;

    const WAIT: Site = Site::new("test.slots.wait", SiteKind::Wait);

    #[test]
    fn a_slot_that_leaves_is_used_again_only_after_its_release() {
        let mut slots = Slots::new(3, &[0b0000_1111, 0b1000_0000]);
        assert_eq!((slots.take(), slots.take(), slots.take_run(4)), (4, 5, 6));
        slots.leave(4, 2, WAIT);
        assert_eq!(slots.take(), 10, "4 and 5 are still needed");
        assert_eq!(slots.bits(), [0b1100_1111, 0b1000_0111]);
        slots.release();
        assert_eq!((slots.take(), slots.take(), slots.take()), (4, 5, 11));
        assert_eq!(slots.take_run(9), 16);
        assert_eq!(slots.count(), 25);
    }

    #[test]
    fn as_many_slots_are_counted_as_free_as_there_are() {
        let mut rng = Rng::from_seed(4);
        let mut slots = Slots::new(3, &[0b0000_1111, 0b1010_0000, 0]);
        let mut most = 0;
        for step in 0..2000 {
            if rng.chance(1, 3) {
                slots.take_run(1 + rng.index(6));
            } else if rng.chance(1, 2) {
                // Some of them leave twice, or are not there.
                slots.leave(rng.below(slots.count()), 1 + rng.below(6), WAIT);
            } else if rng.chance(1, 20) {
                slots.leave_all(slots.count() / 2);
            } else if rng.chance(1, 4) {
                slots.release();
            }
            most = most.max(slots.free_count());
            assert_eq!(slots.free_count(), free_of(&slots.used), "step {step}");
        }
        assert!(most > 10, "{most}");
    }
}
