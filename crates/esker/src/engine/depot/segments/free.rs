//! The free list: segments that hold nothing that counts, in the order in which the log takes them. Behind all others come those
//! of the checkpoint: it costs nothing as long as there is something else to take.
//!
//! Holes are on a list of their own, and count as little as if there were no such segments: the file system has no room for them.
//! Whoever asks for the room of a segment takes it off its list meanwhile. A stale one stays there: who makes headers invalid is to
//! find it, and nothing that is asked for in vain is given back of it.
//!
//! # Concurrency
//! One short lock, the innermost.

use super::Segments;
use esker_base::ids::{SegmentEpoch, SegmentId, Version};
use std::collections::VecDeque;

/// A segment on the free list.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Free {
    pub(in super::super) id: SegmentId,
    /// All of its extents were written once: flushes into it cost no file-system metadata.
    pub(in super::super) prepared: bool,
    /// The file system is known to have room for all of it.
    pub(in super::super) has_room: bool,
    /// It was asked for that in vain, once at least.
    pub(in super::super) was_refused: bool,
    /// Its header on media is still valid: recovery would read its records, all of them dead.
    pub(in super::super) stale: bool,
    /// The device was told that it is not needed.
    pub(in super::super) trimmed: bool,
    /// It may be overwritten once all records up to this version are durable: one of them made it
    /// free.
    pub(in super::super) after: Version,
}

impl Free {
    /// A segment whose header is valid, and whose records are all dead.
    pub(super) fn stale(id: SegmentId, has_room: bool) -> Free {
        let (prepared, was_refused, stale, trimmed) = (true, false, true, false);
        Free { id, prepared, has_room, was_refused, stale, trimmed, after: Version(0) }
    }

    /// Whether it is a stale one for which there may be no room.
    fn may_be_asked_in_place(&self) -> bool {
        self.stale && !self.has_room
    }
}

#[derive(Debug, Default)]
pub(super) struct FreeList {
    list: VecDeque<Free>,
    checkpoint: VecDeque<Free>,
    /// Segments for which there was no room when it was asked for.
    holes: VecDeque<Free>,
    /// There are holes where there were none, and nobody was told.
    are_untold: bool,
    /// How many were taken to be put back.
    borrowed: usize,
    /// Nobody takes a segment: there is no room for the end of the one that the log would leave.
    is_stuck: bool,
    /// Those of which a repair cannot write a copy of the header, once for each.
    withheld: Vec<SegmentId>,
    /// Taken from here while their headers were valid, and not known to have a new one: a crash brings back what they held.
    renewed: Vec<SegmentId>,
}

impl FreeList {
    fn has_more_than(&self, kept: usize) -> bool {
        !self.is_stuck && self.known().take(kept + 1).count() > kept
    }

    fn known(&self) -> impl Iterator<Item = &Free> {
        self.list.iter().chain(&self.checkpoint).filter(|free| free.has_room)
    }

    fn take(&mut self) -> Option<Free> {
        if self.is_stuck {
            return None;
        }
        let first = |list: &mut VecDeque<Free>| {
            let place = list.iter().position(|free| free.has_room)?;
            list.remove(place)
        };
        let free = first(&mut self.list).or_else(|| first(&mut self.checkpoint));
        self.renewed.extend(free.filter(|free| free.stale).map(|free| free.id));
        free
    }
}

impl Segments {
    /// Number of free segments, those of the checkpoint among them.
    pub(in super::super) fn free_count(&self) -> usize {
        self.free_beside(false)
    }

    /// Number of free segments, those of the checkpoint among them unless it is `kept`.
    pub(in super::super) fn free_beside(&self, kept: bool) -> usize {
        let free = self.free.lock();
        free.list.len() + if kept { 0 } else { free.checkpoint.len() }
    }

    /// Whether there are more than `kept` free segments for which the file system is known to have room.
    pub(in super::super) fn has_more_than(&self, kept: usize) -> bool {
        self.free.lock().has_more_than(kept)
    }

    /// Number of free segments for which the file system is known to have room, those of the checkpoint among them.
    pub(in super::super) fn known(&self) -> usize {
        self.free.lock().known().count()
    }

    /// Whether the next segment that is taken is none of the checkpoint.
    pub(in super::super) fn is_next_known(&self) -> bool {
        self.free.lock().list.iter().any(|free| free.has_room)
    }

    /// Number of segments that are holes, or may be.
    pub(in super::super) fn lacking(&self) -> usize {
        let free = self.free.lock();
        let all = free.list.len() + free.checkpoint.len() + free.holes.len();
        all - free.known().count()
    }

    /// Whether anybody takes a segment.
    pub(in super::super) fn is_stuck(&self) -> bool {
        self.free.lock().is_stuck
    }

    /// Says whether there is no room for the end of the segment that the log would leave.
    pub(in super::super) fn set_stuck(&self, is_stuck: bool) {
        self.free.lock().is_stuck = is_stuck;
    }

    /// Puts a segment on the free list that holds nothing of this store.
    pub(in super::super) fn add_free(&self, id: SegmentId, prepared: bool) {
        self.push_free(Free { prepared, stale: false, ..Free::stale(id, prepared) });
    }

    /// Puts a segment on the free list whose header is valid, and whose records are all dead.
    pub(in super::super) fn add_stale(&self, id: SegmentId) {
        self.push_free(Free::stale(id, self.has_known_room(id)));
    }

    /// Puts a segment at the end of the free list.
    pub(in super::super) fn push_free(&self, free: Free) {
        let mut all = self.free.lock();
        all.renewed.retain(|id| *id != free.id);
        if !all.withheld.contains(&free.id) {
            all.list.push_back(free);
        }
    }

    /// Puts a segment back on the free list: a ready one behind the other ready ones at its head.
    pub(in super::super) fn put_back(&self, back: Free) {
        let all = &mut *self.free.lock();
        all.borrowed = all.borrowed.saturating_sub(1);
        if all.withheld.contains(&back.id) {
            return;
        }
        let list = &mut all.list;
        let ready = list.iter().take_while(|free| free.prepared).count();
        let place = if back.prepared { ready } else { list.len() };
        list.insert(place, back);
    }

    /// Whether segments were taken that are about to be put back.
    pub(in super::super) fn are_borrowed(&self) -> bool {
        self.free.lock().borrowed > 0
    }

    /// Takes the next free segment for which there is room; it keeps its old salt until [`Segments::open`].
    pub(in super::super) fn take(&self) -> Option<Free> {
        self.free.lock().take()
    }

    /// The new header of a segment that was taken is durable.
    pub(in super::super) fn renewed(&self, id: SegmentId) {
        self.free.lock().renewed.retain(|other| *other != id);
    }

    /// Segments that were taken, and would be what they were before after a crash now.
    pub(in super::super) fn not_renewed(&self) -> Vec<SegmentId> {
        self.free.lock().renewed.clone()
    }

    /// As [`Segments::take`], if there are more than `kept` with room.
    pub(in super::super) fn take_spare(&self, kept: usize) -> Option<Free> {
        let mut free = self.free.lock();
        if free.has_more_than(kept) { free.take() } else { None }
    }

    /// The checkpoint stands in these segments, which are on no list; the one before is none any more.
    pub(in super::super) fn keep_checkpoint(&self, segments: &[SegmentId]) {
        let mut free = self.free.lock();
        let stale = |id: &SegmentId| Free::stale(*id, self.has_known_room(*id));
        let new = segments.iter().map(stale).collect();
        let old = std::mem::replace(&mut free.checkpoint, new);
        free.list.extend(old);
    }

    /// The header of this epoch of the segment, which is free or about to be, is no longer valid on media. By now the segment may have
    /// been in use again, and have another one.
    pub(in super::super) fn forget_header(&self, id: SegmentId, epoch: SegmentEpoch) {
        let mut all = self.free.lock();
        let its = all.list.iter_mut().find(|free| free.id == id);
        if let Some(free) = its.filter(|_| self.epoch(id) == epoch) {
            free.stale = false;
        }
    }

    /// One of the first `ahead` segments of the free list for which there may be no room, to ask for it; if the list is shorter, one of the
    /// checkpoint. It is off the list unless it is stale.
    pub(in super::super) fn to_ask(&self, ahead: usize) -> Option<Free> {
        let all = &mut *self.free.lock();
        let place = all.list.iter().take(ahead).position(|free| !free.has_room);
        let Some(place) = place else {
            let is_short = all.list.len() < ahead;
            let mut kept = all.checkpoint.iter().filter(|_| is_short);
            return kept.find(|free| !free.has_room && !free.was_refused).copied();
        };
        let free = all.list.get(place).copied()?;
        if !free.stale {
            all.borrowed += 1;
            all.list.remove(place);
        }
        Some(free)
    }

    /// A segment was asked for its room: it is among the first ones if there is room for it, or else it is a hole.
    pub(in super::super) fn asked(&self, asked: Free, has_room: bool) {
        {
            let all = &mut *self.free.lock();
            let is_it = |free: &Free| free.id == asked.id && free.may_be_asked_in_place();
            if let Some(kept) = all.checkpoint.iter_mut().find(|free| is_it(free)) {
                (kept.has_room, kept.was_refused) = (has_room, !has_room);
                return;
            }
            if asked.stale {
                // Its header may be invalid by now, and it may have been given back.
                let Some(place) = all.list.iter().position(is_it) else { return };
                all.list.remove(place);
            } else {
                all.borrowed = all.borrowed.saturating_sub(1);
            }
            if has_room {
                let known = all.list.iter().take_while(|free| free.has_room).count();
                all.list.insert(known, Free { has_room, trimmed: false, ..asked });
                return;
            }
            all.are_untold |= all.holes.is_empty();
            all.holes.push_back(Free { was_refused: true, ..asked });
        }
        self.forget_roomy();
    }

    /// So many had no room that nobody asks for the others of the free list that had none before: these are holes again.
    pub(in super::super) fn lack_room(&self) {
        {
            let all = &mut *self.free.lock();
            let (list, holes): (_, VecDeque<Free>) =
                all.list.drain(..).partition(|free| free.has_room || !free.was_refused);
            all.list = list;
            all.holes.extend(holes);
        }
        self.forget_roomy();
    }

    /// The hole whose turn it is, to ask for its room. It is off the list unless it is stale.
    pub(in super::super) fn hole_to_ask(&self) -> Option<Free> {
        let all = &mut *self.free.lock();
        let hole = all.holes.front().copied()?;
        if !hole.stale {
            all.holes.pop_front();
        }
        Some(hole)
    }

    /// A hole was asked for its room. If there is room for it, there may be for the others as well.
    pub(in super::super) fn asked_hole(&self, hole: Free, has_room: bool) {
        let all = &mut *self.free.lock();
        if hole.stale {
            let before = all.holes.len();
            all.holes.retain(|other| other.id != hole.id || !other.stale);
            if all.holes.len() == before {
                return;
            }
        }
        if has_room {
            all.list.push_back(Free { has_room, trimmed: false, ..hole });
            all.list.extend(all.holes.drain(..));
        } else {
            all.holes.push_back(hole);
        }
    }

    /// Nobody takes this segment as long as the store is open, be it free or about to be.
    pub(in super::super) fn withhold(&self, id: SegmentId) {
        let all = &mut *self.free.lock();
        all.list.retain(|free| free.id != id);
        all.withheld.push(id);
    }

    /// For how many copies of headers that was said.
    pub(in super::super) fn withheld(&self) -> u64 {
        self.free.lock().withheld.len() as u64
    }

    /// Whether there are holes where there were none, once.
    pub(in super::super) fn take_untold(&self) -> bool {
        std::mem::take(&mut self.free.lock().are_untold)
    }

    /// Number of holes.
    pub(in super::super) fn hole_count(&self) -> usize {
        self.free.lock().holes.len()
    }

    /// One of the first `ahead` segments of the free list that is not prepared yet; `trimmed`: also if it was given back.
    pub(in super::super) fn unprepared(&self, ahead: usize, trimmed: bool) -> Option<SegmentId> {
        let free = self.free.lock();
        let is_it = |free: &&Free| !free.prepared && (trimmed || !free.trimmed);
        free.list.iter().take(ahead).find(is_it).map(|free| free.id)
    }

    /// Takes a segment off the free list to prepare it; refuses when the log may need it now.
    pub(in super::super) fn take_unprepared(&self, id: SegmentId) -> bool {
        let all = &mut *self.free.lock();
        let before = all.list.len();
        if before <= self.reserve_of_puts() + 1 {
            return false;
        }
        all.list.retain(|free| free.id != id);
        all.borrowed += before - all.list.len();
        all.list.len() < before
    }

    /// Takes a free segment off the list whose header is still valid on media, and its records with it: the last one, so that who takes
    /// one meanwhile finds the first ones, for which there is room. Of the holes, too.
    pub(in super::super) fn take_stale(&self) -> Option<Free> {
        let all = &mut *self.free.lock();
        let last = |list: &mut VecDeque<Free>| {
            let place = list.iter().rposition(|free| free.stale)?;
            list.remove(place)
        };
        let stale = last(&mut all.list).or_else(|| last(&mut all.holes))?;
        all.borrowed += 1;
        Some(stale)
    }

    /// Takes the last free segment off the list that the device was not told of, and whose header is valid no more, if there
    /// are more than `kept`.
    pub(in super::super) fn take_untrimmed(&self, kept: usize) -> Option<Free> {
        let all = &mut *self.free.lock();
        let list = &mut all.list;
        let is_it = |free: &Free| !free.trimmed && !free.stale;
        let mut untrimmed = (0..list.len()).rev().filter(|n| list.get(*n).is_some_and(is_it));
        let place = untrimmed.next()?;
        if kept > 0 && untrimmed.count() < kept {
            return None;
        }
        self.begin_give_back();
        all.borrowed += 1;
        all.list.remove(place)
    }

    /// Free segments that the device was not told of, but for those of the checkpoint.
    pub(in super::super) fn untrimmed(&self) -> usize {
        self.free.lock().list.iter().filter(|free| !free.trimmed).count()
    }
}
