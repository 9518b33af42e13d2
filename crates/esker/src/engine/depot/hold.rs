//! Segments that are held while a backup copies them: they may die, but nobody overwrites them.
//!
//! A segment that is held and loses its last live record is parked instead of going to the free
//! list, until the backup has copied it. The cleaner leaves held segments alone, since cleaning
//! them frees nothing yet. Whoever finds no room breaks the hold: the store goes on, and the backup
//! ends with an error.
//!
//! # Invariants
//! - H1: while [`Holding::release`] of a segment has not been called, and answers true, no byte of that
//!   segment was overwritten or discarded since the hold began.
//! - H2: a parked segment is on no other list; recovery would still read its records.
//!
//! # Concurrency
//! One short lock, taken before that of the free list. A segment turns from full to free, and to
//! one of the lists, under it.
//!
//! # Failure
//! Nothing of this is on media: after a crash there is no hold.

use super::segments::{Free, Segments};
use super::sites;
use esker_base::ids::SegmentId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    None,
    /// It is being found out what is to be copied: everything is held.
    Choosing,
    /// `kept` are held.
    Copying,
    /// Somebody needed the room.
    Broken,
}

/// What is held.
#[derive(Debug, Default)]
pub(super) struct Held {
    stage: Stage,
    kept: HashSet<SegmentId>,
    parked: Vec<Free>,
}

impl Held {
    /// Whether nobody may overwrite the segment now.
    pub(super) fn holds(&self, id: SegmentId) -> bool {
        match self.stage {
            Stage::Choosing => true,
            Stage::Copying => self.kept.contains(&id),
            Stage::None | Stage::Broken => false,
        }
    }

    /// Parks a segment that went free if it is held; else gives it back.
    pub(super) fn pass(&mut self, free: Free) -> Option<Free> {
        if self.holds(free.id) && !sites::BACKUP_HOLD.disabled() {
            self.parked.push(free);
            return None;
        }
        Some(free)
    }

    /// Segments that are free but for the hold.
    pub(super) fn parked(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.parked.iter().map(|free| free.id)
    }

    /// What is parked and not held any more.
    fn loose(&mut self) -> Vec<Free> {
        let parked = std::mem::take(&mut self.parked);
        let (held, loose) = parked.into_iter().partition(|free| self.holds(free.id));
        self.parked = held;
        loose
    }
}

/// The hold of a store. See the module's text.
#[derive(Debug, Default)]
pub(super) struct Hold(Mutex<Held>);

impl Hold {
    pub(super) fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock()
    }
}

/// A hold that ends when it is dropped.
pub(super) struct Holding<'a>(&'a Segments);

impl Segments {
    /// Holds every segment that is in use now or later, until [`Holding::keep`] says which; `None`
    /// if somebody holds already.
    pub(super) fn begin_hold(&self) -> Option<Holding<'_>> {
        let mut held = self.hold.lock();
        if held.stage != Stage::None {
            return None;
        }
        held.stage = Stage::Choosing;
        Some(Holding(self))
    }

    /// Whether segments may be held.
    pub(super) fn is_holding(&self) -> bool {
        matches!(self.hold.lock().stage, Stage::Choosing | Stage::Copying)
    }

    /// Gives up the hold, if there is one, because somebody finds no room. False if there was none.
    pub(super) fn break_hold(&self) -> bool {
        let mut held = self.hold.lock();
        if held.stage != Stage::Copying {
            return false;
        }
        held.stage = Stage::Broken;
        self.free_loose(&mut held);
        true
    }

    fn free_loose(&self, held: &mut Held) {
        held.loose().into_iter().for_each(|free| self.push_free(free));
    }
}

impl Holding<'_> {
    /// Holds these segments on, and no others.
    pub(super) fn keep(&self, kept: HashSet<SegmentId>) {
        let mut held = self.0.hold.lock();
        held.stage = Stage::Copying;
        held.kept = kept;
        self.0.free_loose(&mut held);
    }

    /// Ends the hold of one segment; true if it was held all the time (H1).
    pub(super) fn release(&self, id: SegmentId) -> bool {
        let mut held = self.0.hold.lock();
        let was_held = held.stage == Stage::Copying && held.kept.remove(&id);
        self.0.free_loose(&mut held);
        was_held
    }

    /// Whether somebody needed the room.
    pub(super) fn is_broken(&self) -> bool {
        self.0.hold.lock().stage == Stage::Broken
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        let mut held = self.0.hold.lock();
        held.stage = Stage::None;
        held.kept.clear();
        self.0.free_loose(&mut held);
    }
}
