//! The cleaners: one for each group of cores that batch together, so that groups clean at the same time (FlatStore §3.4), and
//! what they share.
//!
//! A cleaner has the logs of the cores of its group, and those that it writes its copies to itself: the header of a chunk says which core
//! owns it, and so which cleaner. Free chunks are shared, with one kept for each cleaner. Chunks of blocks have no cleaner: their records
//! are pointed at by entries of any log, so one *packer* empties them, and every cleaner moves the records that its entries
//! point at there.
//!
//! # Invariants
//! - G1: what counts leaves a chunk of a log, and the chunk comes free, only under the lock of its cleaner.
//! - G2: an entry that was overtaken while a cleaner copied it is counted as dead in the original's chunk, until that comes free, and from
//!   before then in the copy's. What was overtaken before is copied by nobody else. So who looks through all chunks for what was overtaken before,
//!   and finds that none came free meanwhile, has missed nothing; else he looks once more, and what the first look saw counts, too: whatever copy the
//!   second one passes before it is counted has an original that the first one saw, for that came free only later.
//!
//! # Concurrency
//! Lock order: the packer or the purge, the cleaners in their order; two at once only by who needs all to stand still ([`Flat::hold_cleaning`]). What is
//! being emptied is read without these.
//!
//! # Failure
//! Nothing of this is on media: after another open, with other groups, a chunk has another cleaner.

use super::chunks::Chunk;
use super::clean::Cleaner;
use super::commit::Log;
use super::pack::{Emptying, Packer};
use super::purge::Purge;
use super::twins::Twins;
use super::{Apart, Flat};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A store has one cleaner for so many chunks at most: each has a chunk open, and another one is kept for it.
const CHUNKS_EACH: u32 = 8;
/// How long the writer of a checkpoint waits for a cleaner before it looks whether the store is closed.
const PATIENCE: Duration = Duration::from_millis(5);

/// All of them.
#[derive(Debug)]
pub(super) struct Cleaners {
    each: Box<[Apart<Mutex<Cleaner>>]>,
    cores: usize,
    group_size: usize,
    pub(super) packer: Mutex<Packer>,
    pub(super) purge: Mutex<Purge>,
    emptying: Mutex<Arc<Emptying>>,
    pub(super) twins: Twins,
}

/// The locks of the packer and of all cleaners: nothing is moved.
pub(super) struct Still<'a> {
    _packer: MutexGuard<'a, Packer>,
    pub(super) cleaners: Vec<MutexGuard<'a, Cleaner>>,
}

/// Cores of a group that has a cleaner.
pub(super) fn group_size(cores: usize, together: usize, chunk_count: u32) -> usize {
    let most = usize::try_from(chunk_count / CHUNKS_EACH).unwrap_or(usize::MAX).max(1);
    together.clamp(1, cores.max(1)).max(cores.div_ceil(most))
}

impl Cleaners {
    pub(super) fn new(cores: usize, group_size: usize) -> Cleaners {
        let one = |group| Apart(Mutex::new(Cleaner::new(group, group * group_size)));
        Cleaners {
            each: (0..cores.div_ceil(group_size)).map(one).collect(),
            cores,
            group_size,
            packer: Mutex::default(),
            purge: Mutex::default(),
            emptying: Mutex::default(),
            twins: Twins::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.each.len()
    }

    /// The group of a core; of one that an earlier session had, any.
    pub(super) fn group_of(&self, core: usize) -> usize {
        core % self.cores / self.group_size
    }

    /// The cleaner of a group.
    pub(super) fn of_group(&self, group: usize) -> &Mutex<Cleaner> {
        #[expect(clippy::indexing_slicing, reason = "a remainder is in range")]
        &self.each[group % self.each.len()].0
    }

    /// The chunks of blocks that are being emptied.
    pub(super) fn emptying(&self) -> Arc<Emptying> {
        Arc::clone(&self.emptying.lock())
    }

    /// Says which chunks of blocks are being emptied from now on; returns which were. By the packer.
    pub(super) fn set_emptying(&self, emptying: Emptying) -> Arc<Emptying> {
        std::mem::replace(&mut *self.emptying.lock(), Arc::new(emptying))
    }
}

impl Flat {
    /// The group whose cleaner a chunk of a log has.
    pub(super) fn group_of_log(&self, number: u32) -> usize {
        let owner = self.chunks.get(number).map_or(0, |chunk| chunk.owner.load(Ordering::Relaxed));
        self.cleaners.group_of(usize::try_from(owner).unwrap_or(0))
    }

    /// Locks the cleaner of a chunk of a log.
    pub(super) fn cleaner_of_log(&self, number: u32) -> MutexGuard<'_, Cleaner> {
        loop {
            let group = self.group_of_log(number);
            let cleaner = self.cleaners.of_group(group).lock();
            // Until then it may have come free, and be another group's by now.
            if self.group_of_log(number) == group {
                return cleaner;
            }
        }
    }

    /// The chunk, if it is of a log that this cleaner has: one that came free, and then was begun by another group while its cleaner was
    /// waited for, is not. Whose it is was said before it is a log.
    pub(super) fn log_of(&self, cleaner: &Cleaner, number: u32) -> Option<&Chunk> {
        let chunk = self.chunks.get(number).filter(|chunk| chunk.is_log())?;
        (self.group_of_log(number) == cleaner.group).then_some(chunk)
    }

    /// Lets all cleaners stand still.
    pub(super) fn hold_cleaning(&self) -> Still<'_> {
        let _packer = self.cleaners.packer.lock();
        let groups = 0..self.cleaners.count();
        let cleaners = groups.map(|group| self.cleaners.of_group(group).lock()).collect();
        Still { _packer, cleaners }
    }

    /// As [`hold_cleaning`](Flat::hold_cleaning), if nobody cleans.
    pub(super) fn try_hold_cleaning(&self) -> Option<Still<'_>> {
        let _packer = self.cleaners.packer.try_lock()?;
        let groups = 0..self.cleaners.count();
        let cleaners = groups.map(|group| self.cleaners.of_group(group).try_lock());
        Some(Still { cleaners: cleaners.collect::<Option<_>>()?, _packer })
    }

    /// As [`hold_cleaning`](Flat::hold_cleaning), for the writer of a checkpoint; `None` if the store is closed meanwhile: who closes it has
    /// these locks, and waits for the checkpoint.
    pub(super) fn hold_cleaning_while_open(&self) -> Option<Still<'_>> {
        fn lock<'a, T>(flat: &Flat, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
            loop {
                if let Some(guard) = mutex.try_lock_for(PATIENCE) {
                    return Some(guard);
                }
                flat.refuse().ok()?;
            }
        }
        let _packer = lock(self, &self.cleaners.packer)?;
        let groups = 0..self.cleaners.count();
        let cleaners = groups.map(|group| lock(self, self.cleaners.of_group(group)));
        Some(Still { cleaners: cleaners.collect::<Option<_>>()?, _packer })
    }

    /// The logs of the cores of a group.
    pub(super) fn logs_of_group(&self, group: usize) -> impl Iterator<Item = &Mutex<Log>> {
        let size = self.cleaners.group_size;
        self.logs.iter().skip(group * size).take(size).map(|log| &log.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_a_cleaner_unless_there_are_few_chunks() {
        assert_eq!(group_size(16, 4, 1000), 4);
        assert_eq!(group_size(16, 40, 1000), 16, "all cores are one group");
        assert_eq!(group_size(16, 1, 1000), 1);
        assert_eq!(group_size(16, 1, 64), 2, "eight cleaners");
        assert_eq!(group_size(16, 1, 15), 16, "a single one");
        let cleaners = Cleaners::new(6, 4);
        assert_eq!(cleaners.count(), 2);
        assert_eq!([0, 3, 4, 5, 6, 10].map(|core| cleaners.group_of(core)), [0, 0, 1, 1, 0, 1]);
    }
}
