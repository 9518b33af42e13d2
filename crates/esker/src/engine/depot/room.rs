//! Room for free segments on a file system that others use, too.
//!
//! What was given back of a file is a hole, and so are parts of one that a copy left sparse: a write there may find no room, and a log that
//! failed in the midst of a batch takes nothing more. So the room of a segment is asked for before it is taken into use; and ahead of
//! that for as many as puts leave alone, so that deletes and the cleaner have them when the file system is full.
//!
//! # Invariants
//! - O1: no header is written to a segment for which the file system may have no room.
//! - O2: where it has none, the store is as large as its other segments: puts are refused in time, what is dead is cleaned or evicted,
//!   and deletes go on. Holes are asked for again while nobody writes, and before a write is refused.
//!
//! # Concurrency
//! Any thread. Whoever asks for the room of a segment has taken it off its list: what was taken of it in vain is given back, which is
//! no segment's that somebody writes to.
//!
//! # Failure
//! Nothing of this is on media: an open asks anew.

use super::segments::Free;
use super::{Depot, sites};
use esker_base::ErrorKind;
use esker_base::ids::SegmentId;
use std::sync::atomic::Ordering;

/// So many that are refused stand for all: each costs a call.
const TRIES: usize = 16;
/// Milliseconds until a hole is asked for again: what the file system has meanwhile is everybody's.
const ASKED_AGAIN_MS: u64 = 250;

impl Depot {
    /// Segments of the free list for which there is to be room: those that puts leave alone, and one for a put.
    pub(super) fn room_ahead(&self) -> usize {
        self.segments.reserve_of_puts() + 1
    }

    /// Takes a segment for which there is room with `take`; `None` if there is none.
    pub(super) fn with_room(&self, take: impl Fn() -> Option<Free>) -> Option<Free> {
        let mut refused = 0;
        loop {
            let free = take()?;
            if free.has_room || self.has_room_for(free.id) {
                return Some(free);
            }
            self.segments.add_hole(free);
            refused += 1;
            if refused == TRIES {
                self.segments.lack_room();
            }
        }
    }

    /// Asks for the room of the segments that come next.
    pub(super) fn reserve_ahead(&self) {
        let mut refused = 0;
        while let Some(free) = self.segments.take_unknown(self.room_ahead()) {
            let has_room = self.has_room_for(free.id);
            self.segments.put_back_asked(free, has_room);
            refused += usize::from(!has_room);
            if refused == TRIES {
                self.segments.lack_room();
            }
        }
        if refused > 0 {
            tracing::warn!("the file system has no room for free segments");
        }
    }

    /// Asks for the room of a hole, of each in turn and now and then; true if there is more now than there was.
    pub(super) fn fill_holes(&self) -> bool {
        if self.segments.hole_count() == 0 {
            return false;
        }
        let now = u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX);
        let next = self.holes_asked.load(Ordering::Relaxed);
        let until = now.saturating_add(ASKED_AGAIN_MS);
        let order = Ordering::Relaxed;
        if now < next || self.holes_asked.compare_exchange(next, until, order, order).is_err() {
            return false;
        }
        let Some(hole) = self.segments.take_hole() else { return false };
        if !self.has_room_for(hole.id) {
            self.segments.add_hole(hole);
            return false;
        }
        self.segments.fill_hole(hole);
        // The next one need not wait.
        self.holes_asked.store(0, order);
        self.reserve_ahead();
        true
    }

    /// Whether the file system has room for a segment, which holds nothing. What else fails is told by the write.
    fn has_room_for(&self, id: SegmentId) -> bool {
        let (offset, size) = (self.layout.segment_offset(id), self.layout.segment_size);
        let reserved = self.device.reserve(sites::RESERVE, offset, size);
        let lacks = reserved.is_err_and(|error| error.kind() == ErrorKind::NoSpace);
        if lacks {
            // A part of it may have been taken, which others may need: nothing here is of use before all of it is there.
            let _ = self.device.discard(sites::TRIM, offset, size);
        }
        !lacks
    }
}
