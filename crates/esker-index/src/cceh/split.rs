//! Splitting a segment that has no room, beside everything else.

use super::arena::{Arena, Located};
use super::{Base, Cceh, Root};
use crate::word::Word;

/// How much deeper than the average a segment may be.
const DEPTH_SLACK: u32 = 4;
/// No segment is deeper: some bits of a hash must be left to tell keys apart.
pub(super) const DEPTH_MAX: u32 = 40;
/// Entries for the stash before a segment that should not split is looked at again.
pub(super) const PATIENCE: u64 = 64;

impl Base {
    /// Whether a segment whose window for `hash` is full should split (C4). The caller holds all its
    /// locks.
    pub(super) fn should_split(&self, hash: u64, located: Located) -> bool {
        let (depth, segments) = (located.depth(), self.arena.segments().max(1));
        depth < DEPTH_MAX.min(segments.ilog2() + DEPTH_SLACK)
            && located.segment(&self.arena).count(hash, depth) >= self.split_min
    }

    /// The second half of a segment, not published. The caller holds all locks of the first one.
    pub(super) fn half(&self, hash: u64, located: Located) -> Located {
        let depth = located.depth();
        let fresh = self.arena.allocate().at_depth(depth + 1);
        located.segment(&self.arena).copy_half(hash, depth, fresh.segment(&self.arena));
        fresh
    }

    /// After the halves were published: makes the first one tidy.
    pub(super) fn settle(&self, hash: u64, located: Located) {
        // Any hash of the first half says what belongs to it.
        let depth = located.depth();
        let first = hash & !(1u64.checked_shl(63 - depth).unwrap_or(0));
        located.segment(&self.arena).settle(first, depth + 1);
    }
}

impl Root {
    /// Puts the halves of a segment in its places, of which there must be two.
    pub(super) fn publish(&self, hash: u64, located: Located, fresh: Located) {
        let depth = located.depth();
        let span = self.span(depth);
        let first = self.number(hash) / span * span;
        let places = self.places.get(first..first + span).unwrap_or(&[]);
        let (zeros, ones) = places.split_at(places.len() / 2);
        ones.iter().for_each(|place| place.store(fresh));
        zeros.iter().for_each(|place| place.store(located.at_depth(depth + 1)));
    }
}

impl Cceh {
    /// Adds an entry whose window was full: splits its segment, or puts the entry aside. False if it
    /// has to be tried again.
    #[cold]
    pub(super) fn make_room(&self, hash: u64, word: Word) -> bool {
        let Some(root) = self.roots.now() else { return true };
        let Some(located) = root.located(hash) else { return true };
        located.prefetch_whole();
        let segment = located.segment(&self.base.arena);
        let _locks = segment.lock();
        if !self.is_current(root, hash, located) {
            return false;
        }
        if segment.place(hash, word.get(), located.depth(), true) {
            return true;
        }
        if !self.base.should_split(hash, located) {
            segment.be_patient(PATIENCE);
            segment.put_aside(hash, word.get(), &self.base.stash);
            return true;
        }
        let fresh = self.base.half(hash, located);
        {
            let _turn = self.grow.lock();
            let Some(mut root) = self.roots.now() else { return true };
            if root.bits == located.depth() {
                self.roots.add(root.doubled());
                root = self.roots.now().unwrap_or(root);
            }
            root.publish(hash, located, fresh);
        }
        self.base.settle(hash, located);
        false
    }

    /// The arena, for the walk.
    pub(super) fn arena(&self) -> &Arena {
        &self.base.arena
    }
}
