//! The index of one owner: the same segments without locks (FlatStore §4.1: each core owns an
//! instance, and modifies it without locking).

use super::split::PATIENCE;
use super::{Base, Candidates, GROUP, Root};
use crate::word::Word;
use std::ops::ControlFlow;

/// A part of a partitioned index, which one core or thread owns: changes need `&mut`. The hashes of
/// a partition must be mixed well over their 64 bits, so they should choose the partition by a
/// function of their own, not by their first or last bits.
#[derive(Debug)]
pub struct Partition {
    pub(super) root: Root,
    pub(super) base: Base,
    entries: u64,
}

impl Default for Partition {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl Partition {
    /// See [`super::Cceh::with_capacity`].
    #[must_use]
    pub fn with_capacity(entries: u64) -> Self {
        let base = Base::new();
        Partition { root: Root::new(entries, &base.arena), base, entries: 0 }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries outside the segments.
    #[must_use]
    pub fn stash_len(&self) -> u64 {
        self.base.stash.len()
    }

    /// Bytes that are allocated: chunks of segments, the directory, and roughly the stash.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.base.memory_bytes() + size_of_val(&*self.root.places)
    }

    /// Every word that stands under this hash, in no particular order.
    #[inline]
    #[must_use]
    pub fn lookup(&self, hash: u64) -> Candidates<Word> {
        let Some(located) = self.root.located(hash) else { return Candidates::default() };
        located.prefetch(hash);
        let mut found = Candidates::default();
        // Nobody changes anything meanwhile.
        located.segment(&self.base.arena).search(hash, &self.base.stash, &mut |word| {
            found.push(word);
            ControlFlow::Continue(())
        });
        found
    }

    /// Looks up many hashes, and gives each one's number and candidates to `visit`, in order. The
    /// memory of 16 hashes is fetched at once, so that they wait for it together.
    pub fn lookup_many(&self, hashes: &[u64], mut visit: impl FnMut(usize, Candidates<Word>)) {
        for (group, hashes) in hashes.chunks(GROUP).enumerate() {
            hashes.iter().for_each(|hash| self.root.prefetch(*hash));
            for (place, hash) in hashes.iter().enumerate() {
                visit(group * GROUP + place, self.lookup(*hash));
            }
        }
    }

    /// Adds `word` for `hash`, beside what stands there. Never fails. Bounded work: it may split one
    /// segment.
    #[inline]
    pub fn insert(&mut self, hash: u64, word: Word) {
        while !self.try_insert(hash, word) {}
        self.entries += 1;
    }

    /// Adds many entries, fetching the memory of 16 at once.
    pub fn insert_many(&mut self, entries: &[(u64, Word)]) {
        for group in entries.chunks(GROUP) {
            group.iter().for_each(|(hash, _)| self.root.prefetch_home(*hash));
            group.iter().for_each(|(hash, word)| self.insert(*hash, *word));
        }
    }

    #[inline]
    fn try_insert(&mut self, hash: u64, word: Word) -> bool {
        let Some(located) = self.root.located(hash) else { return true };
        let segment = located.segment(&self.base.arena);
        if segment.place(hash, word.get(), located.depth(), true) {
            return true;
        }
        let patient = segment.is_patient();
        if patient || !self.base.should_split(hash, located) {
            if !patient {
                segment.be_patient(PATIENCE);
            }
            segment.put_aside(hash, word.get(), &self.base.stash);
            return true;
        }
        let fresh = self.base.half(hash, located);
        if self.root.bits == located.depth() {
            self.root = self.root.doubled();
        }
        self.root.publish(hash, located, fresh);
        self.base.settle(hash, located);
        false
    }

    /// Puts `new` in the place of `old`; false if `old` is not there.
    pub fn replace(&mut self, hash: u64, old: Word, new: Word) -> bool {
        self.change(hash, old, new.get())
    }

    /// Removes `word`; false if it is not there.
    pub fn remove(&mut self, hash: u64, word: Word) -> bool {
        let removed = self.change(hash, word, 0);
        self.entries -= u64::from(removed);
        removed
    }

    fn change(&mut self, hash: u64, old: Word, new: u64) -> bool {
        let Some(located) = self.root.located(hash) else { return false };
        let segment = located.segment(&self.base.arena);
        segment.change(hash, old.get(), new, &self.base.stash, true)
    }
}
