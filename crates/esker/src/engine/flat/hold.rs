//! Chunks that are held while a backup copies them: what stands there may stop to count, but nobody overwrites it.
//!
//! Cleaners leave held chunks of logs alone, since cleaning them frees nothing yet. Records that are freed in a held
//! chunk are parked until the chunk is copied. Whoever finds no room breaks the hold: the store goes on, and the
//! backup ends with an error.
//!
//! # Invariants
//! - H1: until [`Holding::release`] of a chunk was called, and answers true, no byte of the chunk that counted when the
//!   hold began was overwritten.
//!
//! # Concurrency
//! One short lock; nothing is locked under it. It begins under the locks of all keys and of all cleaners, so that no
//! record is being freed then. Who frees what was parked has another lock until that is done, so that who breaks the hold, as a close does,
//! finds nothing on its way; a core's blocks and free chunks are locked under that one.
//!
//! # Failure
//! Nothing of this is on media: after a crash there is no hold.

use super::{Flat, sites};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Default)]
struct Held {
    kept: HashSet<u32>,
    /// Lines of records that were freed, by chunk.
    parked: HashMap<u32, Vec<u64>>,
    broken: bool,
}

/// The hold of a store.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Whether anything is held: what those look at who free records.
    active: AtomicBool,
    held: Mutex<Option<Held>>,
    /// Held by who frees what was parked.
    frees: Mutex<()>,
}

/// A hold that ends when it is dropped.
pub(super) struct Holding<'a>(&'a Flat);

impl Hold {
    /// Whether anything is held.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Whether cleaners are to leave a chunk alone.
    pub(super) fn holds(&self, number: u32) -> bool {
        self.active.load(Ordering::Acquire)
            && self.held.lock().as_ref().is_some_and(|held| held.kept.contains(&number))
    }

    /// Parks a record that goes free, if its chunk is held.
    #[inline]
    pub(super) fn park(&self, number: u32, line: u64) -> bool {
        self.active.load(Ordering::Acquire) && self.park_held(number, line)
    }

    #[cold]
    fn park_held(&self, number: u32, line: u64) -> bool {
        let mut held = self.held.lock();
        let Some(held) = held.as_mut().filter(|held| held.kept.contains(&number)) else {
            return false;
        };
        if sites::BACKUP_HOLD.disabled() {
            return false;
        }
        held.parked.entry(number).or_default().push(line);
        true
    }
}

impl Flat {
    /// Holds these chunks; `None` if somebody holds already.
    pub(super) fn begin_hold(&self, kept: HashSet<u32>) -> Option<Holding<'_>> {
        let mut held = self.hold.held.lock();
        if held.is_some() {
            return None;
        }
        *held = Some(Held { kept, ..Held::default() });
        self.hold.active.store(true, Ordering::Release);
        Some(Holding(self))
    }

    /// Gives up the hold because somebody finds no room; false if nothing was held.
    pub(super) fn break_hold(&self) -> bool {
        let _frees = self.hold.frees.lock();
        let parked = {
            let mut held = self.hold.held.lock();
            let Some(held) = held.as_mut().filter(|held| !held.kept.is_empty()) else {
                return false;
            };
            held.broken = true;
            held.kept.clear();
            std::mem::take(&mut held.parked)
        };
        parked.into_values().flatten().for_each(|line| self.free_record(line));
        true
    }
}

impl Holding<'_> {
    /// Ends the hold of one chunk; true if it was held all the time (H1).
    pub(super) fn release(&self, number: u32) -> bool {
        let _frees = self.0.hold.frees.lock();
        let (was_held, parked) = {
            let mut held = self.0.hold.held.lock();
            let Some(held) = held.as_mut() else { return false };
            (held.kept.remove(&number), held.parked.remove(&number))
        };
        parked.into_iter().flatten().for_each(|line| self.0.free_record(line));
        was_held
    }

    /// Whether somebody needed the room.
    pub(super) fn is_broken(&self) -> bool {
        self.0.hold.held.lock().as_ref().is_none_or(|held| held.broken)
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        let _frees = self.0.hold.frees.lock();
        let held = {
            let mut held = self.0.hold.held.lock();
            self.0.hold.active.store(false, Ordering::Release);
            held.take()
        };
        let parked = held.into_iter().flat_map(|held| held.parked.into_values().flatten());
        parked.for_each(|line| self.0.free_record(line));
    }
}
