//! What clients of a store were told of versions, and what snapshots showed of all keys together.
//!
//! Histories judge each key by itself; this is what holds between calls on several.
//!
//! # Invariants
//! - I1: a value has one version, whoever is told.
//! - I2: the version of a write is higher than all that anybody was told of the key before it began.
//! - I3: what a snapshot shows of a key is the newest that is not newer than the snapshot.
//! - I4: a snapshot shows batches whole: if it shows a value of one, it shows nothing older of the others of its keys, and nothing
//!   of a key that the batch put only if somebody deleted that.

use crate::linearizability::{Call, State};
use std::collections::HashMap;

/// Begin and end of a call.
pub type Times = (u64, u64);

/// Somebody was told the version of a value.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// The key.
    pub key: usize,
    /// The value.
    pub number: u64,
    /// Its version.
    pub version: u64,
    /// Those of the call.
    pub times: Times,
    /// By the reply to the write itself.
    pub wrote: bool,
}

/// A batch that was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Each key once, with what the batch left it with.
    pub changes: Vec<(usize, State)>,
    /// Changes that it was made of, those that later ones made void among them.
    pub count: u64,
    /// The highest version of its changes; theirs are the `count` up to this one.
    pub highest: u64,
    /// Those of the call.
    pub times: Times,
}

/// A snapshot that was read whole.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Of each key its version, if it had a value.
    pub versions: Vec<Option<u64>>,
    /// When it was taken.
    pub times: Times,
}

/// What the threads of a round were told.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Of one value each.
    pub told: Vec<Told>,
    /// Of batches.
    pub batches: Vec<Written>,
    /// By snapshots.
    pub snapshots: Vec<Shown>,
}

impl Round {
    /// Takes in what another thread was told.
    pub fn append(&mut self, other: Round) {
        self.told.extend(other.told);
        self.batches.extend(other.batches);
        self.snapshots.extend(other.snapshots);
    }
}

/// What is known of versions, over all rounds.
#[derive(Clone, Debug, Default)]
pub struct Known {
    numbers: HashMap<(usize, u64), u64>,
    versions: HashMap<u64, u64>,
    highest: HashMap<usize, u64>,
}

impl Known {
    /// Takes in what a round told. `calls` are those of the round.
    ///
    /// # Errors
    /// What breaks an invariant.
    pub fn learn(&mut self, round: Round, calls: &[Call]) -> Result<(), String> {
        let Round { mut told, batches, snapshots } = round;
        for one in &told {
            let number = *self.numbers.entry((one.key, one.version)).or_insert(one.number);
            let version = *self.versions.entry(one.number).or_insert(one.version);
            if (number, version) != (one.number, one.version) {
                return Err(format!("{one:x?}, but before it was {number:x}, version {version:x}"));
            }
        }
        for batch in &batches {
            self.versions_of(batch, &mut told)?;
        }
        self.rises(told)?;
        snapshots.iter().try_for_each(|shown| {
            self.shows_newest(shown)?;
            self.shows_whole(shown, &batches, calls)
        })
    }

    /// Of what a batch wrote the highest version is told; which change has it, is not.
    fn versions_of(&self, batch: &Written, told: &mut Vec<Told>) -> Result<(), String> {
        for (key, state) in &batch.changes {
            let Some(number) = *state else { continue };
            let Some(version) = self.versions.get(&number).copied() else { continue };
            if version > batch.highest || version + batch.count <= batch.highest {
                return Err(format!("version {version:x} of {number:x}, which {batch:x?} put"));
            }
            told.push(Told { key: *key, number, version, times: batch.times, wrote: true });
        }
        Ok(())
    }

    /// I2.
    fn rises(&mut self, mut told: Vec<Told>) -> Result<(), String> {
        told.sort_unstable_by_key(|one| one.times.1);
        let mut writes: Vec<Told> = told.iter().filter(|one| one.wrote).copied().collect();
        writes.sort_unstable_by_key(|one| one.times.0);
        let mut told = told.into_iter().peekable();
        for write in writes {
            while let Some(before) = told.next_if(|one| one.times.1 < write.times.0) {
                self.rise(&before);
            }
            let highest = self.highest.get(&write.key).copied().unwrap_or(0);
            if write.version <= highest {
                return Err(format!("{write:x?}, but version {highest:x} was told before"));
            }
        }
        told.for_each(|rest| self.rise(&rest));
        Ok(())
    }

    fn rise(&mut self, told: &Told) {
        let highest = self.highest.entry(told.key).or_default();
        *highest = told.version.max(*highest);
    }

    /// I3.
    fn shows_newest(&self, shown: &Shown) -> Result<(), String> {
        let newest = shown.versions.iter().copied().flatten().max().unwrap_or(0);
        for (key, version) in shown.versions.iter().enumerate() {
            let Some(version) = version else { continue };
            let is_missed =
                |(of, other): &&(usize, u64)| *of == key && other > version && *other <= newest;
            if let Some((_, missed)) = self.numbers.keys().find(is_missed) {
                return Err(format!(
                    "a snapshot with version {newest:x} shows {version:x} of key {key}, not {missed:x}"
                ));
            }
        }
        Ok(())
    }

    /// I4.
    fn shows_whole(
        &self,
        shown: &Shown,
        batches: &[Written],
        calls: &[Call],
    ) -> Result<(), String> {
        let number_of = |key: usize| {
            let version = (*shown.versions.get(key)?)?;
            self.numbers.get(&(key, version)).copied()
        };
        let is_shown = |(key, state): &(usize, State)| state.is_some() && number_of(*key) == *state;
        for batch in batches.iter().filter(|batch| batch.changes.iter().any(is_shown)) {
            for (key, state) in &batch.changes {
                let is_whole = match shown.versions.get(*key).copied().flatten() {
                    Some(version) => version + batch.count > batch.highest,
                    None => state.is_none() || was_deleted(*key, batch, shown, calls),
                };
                if !is_whole {
                    return Err(format!("{shown:x?} shows a part of {batch:x?}: not key {key}"));
                }
            }
        }
        Ok(())
    }
}

/// Whether a call may have deleted a key behind the batch, and before the snapshot.
fn was_deleted(key: usize, batch: &Written, shown: &Shown, calls: &[Call]) -> bool {
    calls.iter().any(|call| {
        call.action.may_delete()
            && call.key == key as u64
            && call.end.is_none_or(|end| end > batch.times.0)
            && call.begin < shown.times.1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linearizability::Action;

    fn told(key: usize, number: u64, version: u64, times: Times, wrote: bool) -> Told {
        Told { key, number, version, times, wrote }
    }

    /// A batch that put two keys, of whose values versions 7 and 8 were told.
    fn round() -> Round {
        Round {
            told: vec![
                told(0, 0x10, 3, (1, 2), true),
                told(1, 0x11, 4, (3, 4), true),
                told(0, 0x20, 7, (20, 21), false),
                told(1, 0x21, 8, (20, 21), false),
            ],
            batches: vec![Written {
                changes: vec![(0, Some(0x20)), (1, Some(0x21)), (2, None)],
                count: 3,
                highest: 9,
                times: (5, 6),
            }],
            snapshots: Vec::new(),
        }
    }

    fn judged(versions: [Option<u64>; 3], calls: &[Call]) -> Result<(), String> {
        let shown = Shown { versions: versions.to_vec(), times: (7, 8) };
        Known::default().learn(Round { snapshots: vec![shown], ..round() }, calls)
    }

    #[test]
    fn snapshots_show_batches_whole() {
        assert_eq!(judged([Some(7), Some(8), None], &[]), Ok(()));
        assert_eq!(judged([Some(3), Some(4), None], &[]), Ok(()), "none of it");
        assert!(judged([Some(7), Some(4), None], &[]).is_err(), "an older value of the second");
        assert!(judged([Some(3), Some(8), None], &[]).is_err(), "an older value of the first");
        assert!(judged([Some(7), Some(8), Some(2)], &[]).is_err(), "what the batch deleted");
        assert!(judged([Some(7), None, None], &[]).is_err(), "nothing of the second");
    }

    #[test]
    fn what_was_deleted_since_need_not_be_shown() {
        let delete = |begin, end| Call { key: 1, action: Action::Delete(Some(true)), begin, end };
        let shown = [Some(7), None, None];
        assert_eq!(judged(shown, &[delete(6, Some(8))]), Ok(()), "beside both");
        assert_eq!(judged(shown, &[delete(2, None)]), Ok(()), "it never returned");
        assert!(judged(shown, &[delete(2, Some(3))]).is_err(), "before the batch");
        assert!(judged(shown, &[delete(9, Some(10))]).is_err(), "behind the snapshot");
        let missed = Call { key: 1, action: Action::Delete(Some(false)), begin: 6, end: Some(7) };
        assert!(judged(shown, &[missed]).is_err(), "it found nothing");
        let other = Call { key: 0, ..delete(6, Some(7)) };
        assert!(judged(shown, &[other]).is_err(), "another key");
    }

    #[test]
    fn versions_are_of_one_value_and_rise() {
        let with = |told: Told| {
            let mut round = round();
            round.told.push(told);
            Known::default().learn(round, &[])
        };
        assert_eq!(with(told(2, 0x30, 10, (30, 31), true)), Ok(()));
        assert!(with(told(0, 0x31, 7, (30, 31), false)).is_err(), "the version of another value");
        assert!(with(told(0, 0x20, 8, (30, 31), false)).is_err(), "another version of a value");
        assert!(with(told(1, 0x31, 6, (30, 31), true)).is_err(), "8 was told before");
        assert_eq!(with(told(1, 0x31, 9, (20, 31), true)), Ok(()), "beside who was told 8");
    }

    #[test]
    fn versions_of_a_batch_are_the_last_ones_up_to_its_highest() {
        let with = |highest: u64| {
            let mut round = round();
            round.batches.iter_mut().for_each(|batch| batch.highest = highest);
            Known::default().learn(round, &[])
        };
        assert!(with(7).is_err(), "a value of it has 8");
        assert_eq!(with(8), Ok(()));
        assert!(with(10).is_err(), "a value of it has 7");
    }
}
