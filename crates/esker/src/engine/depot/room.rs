//! Room for free segments on a file system that others use, too.
//!
//! What was given back of a file is a hole, and so are parts of one that a copy left sparse: a write there may find no room, and a log that
//! failed in the midst of a batch takes nothing more. So the room of a segment is asked for before it is taken into use; and ahead of
//! that for as many as puts leave alone, so that deletes and the cleaner have them when the file system is full.
//!
//! # Invariants
//! - O1: no header is written to a segment for which the file system may have no room, and nothing behind the end of the log that an
//!   open found before there is room.
//! - O2: where it has none, the store is as large as its other segments: puts are refused in time, what is dead is cleaned or evicted,
//!   and deletes go on. Holes are asked for again while nobody writes, and before a write is refused.
//!
//! # Concurrency
//! Any thread. Whoever asks for the room of a segment has taken it off its list: what was taken of it in vain is given back, which is
//! no segment's that somebody writes to. A stale one stays on its list, and nothing of it is given back: its header is valid.
//!
//! # Failure
//! Nothing of this is on media: an open asks anew.

use super::segments::Free;
use super::{Depot, sites};
use esker_base::ErrorKind;
use esker_format::depot::BATCH_HEADER_SIZE;
use std::sync::atomic::Ordering;

/// So many that are refused stand for all that were refused before: each costs a call.
const TRIES: usize = 16;
/// Milliseconds until a hole is asked for again: what the file system has meanwhile is everybody's.
const ASKED_AGAIN_MS: u64 = 250;

impl Depot {
    /// Segments of the free list for which there is to be room: those that puts leave alone, and one for a put.
    pub(super) fn room_ahead(&self) -> usize {
        self.segments.reserve_of_puts() + 1
    }

    /// Takes a segment for which there is room with `take`; `None` if there is none. Says nothing: the caller may have the log's state.
    pub(super) fn with_room(&self, take: impl Fn() -> Option<Free>) -> Option<Free> {
        if !self.segments.is_next_known() {
            // Before one of the checkpoint is taken.
            self.ask_ahead();
        }
        take()
    }

    /// Asks for the room of the segments that come next. True: of some there is none, and others are to be asked.
    pub(super) fn reserve_ahead(&self) -> bool {
        let are_more = self.ask_ahead();
        self.tell_holes();
        are_more
    }

    fn ask_ahead(&self) -> bool {
        let mut refused = 0;
        while refused < TRIES
            && let Some(has_room) = self.ask_next(self.room_ahead())
        {
            refused += usize::from(!has_room);
        }
        if refused == TRIES {
            self.segments.lack_room();
        }
        refused == TRIES
    }

    /// Number of free segments for which there is room, those of the checkpoint among them; others are asked for theirs as long as these
    /// are fewer than `wanted`, if there are so many.
    pub(super) fn known_room(&self, wanted: usize) -> usize {
        let known = self.ask_for(wanted);
        self.tell_holes();
        known
    }

    fn ask_for(&self, wanted: usize) -> usize {
        let mut refused = 0;
        loop {
            let known = self.segments.known();
            if known >= wanted || self.segments.free_count() < wanted {
                return known;
            }
            let Some(has_room) = self.ask_next(usize::MAX) else { return known };
            refused += usize::from(!has_room);
            if refused == TRIES {
                refused = 0;
                self.segments.lack_room();
            }
        }
    }

    /// Asks for the room of one of the first `ahead` free segments; whether there was, or `None`: there is none to ask.
    fn ask_next(&self, ahead: usize) -> Option<bool> {
        let free = self.segments.to_ask(ahead)?;
        let has_room = self.has_room_for(free);
        self.segments.asked(free, has_room);
        Some(has_room)
    }

    /// Without the log's state: who hears it may take his time, or worse.
    fn tell_holes(&self) {
        if self.segments.take_untold() {
            tracing::warn!("the file system has no room for free segments");
        }
    }

    /// Asks for the room of what is left of the segment in which the log goes on: an open finds it as somebody may have copied it. Without
    /// that room it goes on elsewhere, once there is room for summary and trailer; until then nobody takes a segment. These are asked
    /// first: what is refused may have taken all that there was. True: the log goes on, here or elsewhere.
    pub(super) fn reserve_tail(&self) -> bool {
        let Some(tail) = self.log.lock().tail else { return true };
        let base = self.layout.segment_offset(tail.segment);
        let has_room = |at, size| !self.lacks_room(base + at, size);
        let summary = self.layout.blocks(BATCH_HEADER_SIZE as u64 + tail.summary);
        let ends =
            has_room(tail.position, summary) && has_room(self.layout.trailer(), self.layout.block);
        let rest = self.layout.segment_size.saturating_sub(tail.position);
        let goes_on = ends && !tail.ends && has_room(tail.position, rest);
        if !goes_on && let Some(tail) = &mut self.log.lock().tail {
            tail.ends = true;
        }
        if !ends && !self.segments.is_stuck() {
            tracing::warn!("the file system has no room for the segment in which the log goes on");
        }
        self.segments.set_stuck(!ends);
        ends
    }

    /// Asks for the room of a hole, of each in turn and now and then; true if there is more now than there was.
    pub(super) fn fill_holes(&self) -> bool {
        let is_stuck = self.segments.is_stuck();
        if !is_stuck && self.segments.hole_count() == 0 {
            return false;
        }
        let now = u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX);
        let next = self.holes_asked.load(Ordering::Relaxed);
        let until = now.saturating_add(ASKED_AGAIN_MS);
        let order = Ordering::Relaxed;
        if now < next || self.holes_asked.compare_exchange(next, until, order, order).is_err() {
            return false;
        }
        let is_more = if is_stuck { self.reserve_tail() } else { self.fill_hole() };
        if is_more {
            // The next one need not wait.
            self.holes_asked.store(0, order);
            self.reserve_ahead();
        }
        is_more
    }

    fn fill_hole(&self) -> bool {
        let Some(hole) = self.segments.hole_to_ask() else { return false };
        let has_room = self.has_room_for(hole);
        self.segments.asked_hole(hole, has_room);
        has_room
    }

    /// Whether the file system has room for a segment, which holds nothing that counts.
    fn has_room_for(&self, free: Free) -> bool {
        let (offset, size) = (self.layout.segment_offset(free.id), self.layout.segment_size);
        let lacks = self.lacks_room(offset, size);
        if lacks && !free.stale {
            // A part of it may have been taken, which others may need: nothing here is of use before all of it is there.
            self.segments.begin_give_back();
            let _ = self.device.discard(sites::TRIM, offset, size);
        }
        !lacks
    }

    /// What else fails is told by the write.
    fn lacks_room(&self, offset: u64, size: u64) -> bool {
        let reserved = self.device.reserve(sites::RESERVE, offset, size);
        reserved.is_err_and(|error| error.kind() == ErrorKind::NoSpace)
    }
}
