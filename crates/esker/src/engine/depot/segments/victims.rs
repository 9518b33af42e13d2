//! Which segment is cleaned, or evicted, next; and when so much is live that cleaning would come to an end.
//!
//! A copy takes a little more room than what a client wrote, so what counts is what the copies of all that is live would
//! take. A segment is cleaned if that is less than the segment; and puts are refused before all segments but the reserve
//! would hold nothing but such copies. Deletes go on: as long as that is so, some segment is worth its cleaning.
//!
//! # Concurrency
//! Asked under the cleaner's lock, under which holds begin as well: what may be cleaned when it is
//! chosen may be cleaned until it is free.

use super::{Segment, Segments, Use};
use esker_base::ids::{SegmentEpoch, SegmentId};
use esker_format::depot::Stream;
use std::sync::atomic::Ordering;

/// A segment that would gain less than this share of it is not cleaned.
const GAIN_MIN_SHARE: u64 = 128;
/// For a write that frees room, where nothing else makes room for it, one that would gain less than this share.
const GAIN_LEAST_SHARE: u64 = 1024;
/// While nobody writes, and only to give space back, one that would gain less than this share.
const GAIN_IDLE_SHARE: u64 = 8;
/// Bytes that a copy takes more than what a client wrote, in record and summary: it tells its version by itself.
const COPY_GROWTH: u64 = 4;

/// Segments whose records are written, or entered, at any time, at most: those of the log, the cleaner's, and some.
const OPEN_MAX: u64 = 16;

/// Until when a store cannot be crowded that was not when all segments were looked at: a walk over a table of a large device takes
/// milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Roomy {
    /// Segments have come to hold more so many times by then.
    pub(super) until: u64,
    /// What had expired by this time, in Unix seconds, was as good as dead.
    at: u64,
}

/// Why a segment is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Urgency {
    /// While nobody writes, to give space back: as ahead of the clients, but only for much of a segment.
    Idle,
    /// Ahead of the clients: the one that is worth most in the long run.
    Ahead,
    /// A put finds no room: the one that gains most.
    Full,
    /// A write finds no room that frees room: the one that gains most, be it little.
    Stuck,
}

impl Urgency {
    /// Whether nobody waits for the segment.
    pub(in super::super) fn has_time(self) -> bool {
        matches!(self, Urgency::Idle | Urgency::Ahead)
    }

    /// A segment that would gain less than this share of it is left alone.
    fn gain_share(self) -> u64 {
        match self {
            Urgency::Idle => GAIN_IDLE_SHARE,
            Urgency::Ahead | Urgency::Full => GAIN_MIN_SHARE,
            Urgency::Stuck => GAIN_LEAST_SHARE,
        }
    }
}

impl Segment {
    /// Bytes that were written, and those of them that cleaning would gain; `None` if it is not worth it.
    fn gain(&self, size_bytes: u64, now: u64, urgency: Urgency) -> Option<(u64, u64)> {
        let (copies, written) = self.copies(size_bytes, now);
        let dead = written.saturating_sub(copies);
        (dead > 0 && dead >= written / urgency.gain_share()).then_some((written, dead))
    }

    /// What is live, as the bytes of its copies, and all that was written. What has expired by `now`, in Unix seconds, is as
    /// good as dead.
    fn copies(&self, size_bytes: u64, now: u64) -> (u64, u64) {
        let live = self.live_bytes();
        let live = live.saturating_sub(self.expired_bytes(now));
        let is_fresh = self.stream.load(Ordering::Acquire) == Stream::Fresh as u8;
        let grows = if is_fresh { self.live_records.load(Ordering::Relaxed) } else { 0 };
        // A segment that a crash cut short holds little: what was never written is free as well.
        let written = self.written_bytes.load(Ordering::Relaxed).max(size_bytes / 4 * 3);
        (live.saturating_add(COPY_GROWTH * u64::from(grows)), written)
    }

    /// Whether there are items of a cache, or were: what clients wrote, or what a repair has moved.
    fn has_items(&self) -> bool {
        self.stream.load(Ordering::Acquire) == Stream::Fresh as u8
            || self.items.load(Ordering::Relaxed)
    }

    /// Whether this incarnation is not to be cleaned.
    fn is_aside(&self) -> bool {
        self.aside.load(Ordering::SeqCst) == self.epoch.load(Ordering::SeqCst) + 1
    }
}

impl Segments {
    /// Whether everything that is live in the segment is known (S4), and is not to stay there. What is
    /// true here stays true until the segment is free, or set aside.
    pub(in super::super) fn is_cleanable(&self, id: SegmentId) -> bool {
        // In this order: nothing is appended to a sealed segment.
        self.get(id).is_some_and(|segment| {
            segment.state.load(Ordering::SeqCst) == Use::Sealed as u8
                && segment.entering.load(Ordering::SeqCst) == 0
                && !segment.is_aside()
        })
    }

    /// Segments that may be cleaned, but for those that are passed over.
    pub(super) fn cleanable(
        &self,
        passed: &[SegmentId],
    ) -> impl Iterator<Item = (SegmentId, &Segment)> {
        // Cleaning a segment that is held frees nothing, and evicting it would change its bytes.
        let held = self.hold.lock();
        self.all().filter(move |(id, _)| {
            self.is_cleanable(*id) && !held.holds(*id) && !passed.contains(id)
        })
    }

    /// A segment of moved records of which most is garbage.
    pub(in super::super) fn moved_victim(&self, passed: &[SegmentId]) -> Option<SegmentId> {
        let mostly_dead = |(id, segment): &(SegmentId, &Segment)| {
            let live = segment.live_bytes();
            let written = segment.written_bytes.load(Ordering::Relaxed);
            self.incarnation(*id).stream != Stream::Fresh
                && live.saturating_mul(2) < written.max(self.size_bytes / 4 * 3)
        };
        self.cleanable(passed).find(mostly_dead).map(|(id, _)| id)
    }

    /// The segment with items that was not used for the longest time.
    pub(in super::super) fn least_used(&self, passed: &[SegmentId]) -> Option<SegmentId> {
        let with_items = self.cleanable(passed).filter(|(_, segment)| segment.has_items());
        with_items.map(|(id, _)| id).min_by_key(|id| (self.used_at(*id), self.epoch(*id)))
    }

    /// A segment with items of which all that is live has expired by `now`, in Unix seconds.
    pub(in super::super) fn expired(&self, now: u64, passed: &[SegmentId]) -> Option<SegmentId> {
        let all_expired = |(_, segment): &(SegmentId, &Segment)| {
            let live = segment.live_bytes();
            segment.has_items() && segment.expired_bytes(now) >= live
        };
        self.cleanable(passed).find(all_expired).map(|(id, _)| id)
    }

    /// The segment that is best cleaned: the benefit of its free space, and of how long the rest has
    /// been left alone, over the cost of moving the rest (PACMAN §3.3; uDepot §4.1 has greedy with
    /// age). What has expired by `now`, in Unix seconds, is as good as dead. `None` if there is nothing to gain.
    pub(in super::super) fn victim(
        &self,
        next: SegmentEpoch,
        now: u64,
        urgency: Urgency,
        passed: &[SegmentId],
    ) -> Option<SegmentId> {
        let score = |segment: &Segment| {
            let (written, dead) = segment.gain(self.size_bytes, now, urgency)?;
            if !urgency.has_time() {
                return Some(u128::from(dead));
            }
            let age = next.0.saturating_sub(segment.epoch.load(Ordering::Relaxed)).max(1);
            // The root of it: old segments with little garbage are not worth their moves.
            let benefit = u128::from(dead) * u128::from(age.isqrt()) * 1024;
            Some(benefit / u128::from(written - dead + 1))
        };
        let scored = self.cleanable(passed).filter_map(|(id, segment)| Some((score(segment)?, id)));
        scored.max_by_key(|(score, id)| (*score, std::cmp::Reverse(*id))).map(|(_, id)| id)
    }

    /// Bytes that cleaning would gain that has nothing else to do ([`Urgency::Idle`]).
    pub(in super::super) fn idle_gain(&self, now: u64, passed: &[SegmentId]) -> u64 {
        let gain = |(_, segment): (SegmentId, &Segment)| {
            segment.gain(self.size_bytes, now, Urgency::Idle).map(|(_, dead)| dead)
        };
        self.cleanable(passed).filter_map(gain).fold(0, u64::saturating_add)
    }

    /// Whether the copies of all that is live would take so much that, with another segment of records, cleaning might
    /// gain nothing while no more is free than deletes leave alone.
    pub(in super::super) fn is_crowded(&self, now: u64) -> bool {
        let count = (self.segments.len() - self.hole_count()) as u64;
        // Of a store in which no segment is worth its cleaning, all that copies of what is live would not take is free:
        // what deletes leave alone and what is left of the cleaner's two open segments, three at most. A segment fills up
        // before this is asked again. That is one more than the reserve; half a one makes up for what is only estimated.
        let halves = (2 * count).saturating_sub(2 * self.reserve as u64 + 3);
        let used = count.saturating_sub(self.free_count() as u64);
        if used * 4 < halves {
            // However much the copies take.
            return false;
        }
        let grown = self.grown.load(Ordering::Relaxed);
        let roomy = *self.roomy.lock();
        if grown < roomy.until && now >= roomy.at {
            return false;
        }
        let copies: u128 = self.all().map(|(_, segment)| self.room_of_copies(segment, now)).sum();
        let (copies, limit) = (copies * 2, u128::from(halves) * u128::from(self.size_bytes));
        // Each time by a segment at most, and those that are open now.
        let left = limit.saturating_sub(copies) / u128::from(2 * self.size_bytes);
        let left = u64::try_from(left).unwrap_or(u64::MAX).saturating_sub(OPEN_MAX);
        *self.roomy.lock() = Roomy { until: grown.saturating_add(left), at: now };
        copies > limit
    }

    /// What is known of room does not hold any more: there are fewer segments.
    pub(super) fn forget_roomy(&self) {
        *self.roomy.lock() = Roomy::default();
    }

    /// Bytes of segments that the copies of what is live in this one would fill.
    fn room_of_copies(&self, segment: &Segment, now: u64) -> u128 {
        if segment.state.load(Ordering::Acquire) == Use::Free as u8 {
            return 0;
        }
        if segment.is_aside() {
            return u128::from(self.size_bytes);
        }
        let (copies, written) = segment.copies(self.size_bytes, now);
        u128::from(copies) * u128::from(self.size_bytes) / u128::from(written.max(1))
    }
}
