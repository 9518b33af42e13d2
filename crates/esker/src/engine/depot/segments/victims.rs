//! Which segment is cleaned, or evicted, next.
//!
//! # Concurrency
//! Asked under the cleaner's lock, under which holds begin as well: what may be cleaned when it is
//! chosen may be cleaned until it is free.

use super::{Segment, Segments, Use};
use esker_base::ids::{SegmentEpoch, SegmentId};
use esker_format::depot::Stream;
use std::sync::atomic::Ordering;

/// A segment with less than this share of dead bytes is not cleaned.
const GAIN_MIN_SHARE: u64 = 128;

impl Segments {
    /// Whether everything that is live in the segment is known (S4), and is not to stay there. What is
    /// true here stays true until the segment is free, or set aside.
    pub(in super::super) fn is_cleanable(&self, id: SegmentId) -> bool {
        // In this order: nothing is appended to a sealed segment.
        self.get(id).is_some_and(|segment| {
            segment.state.load(Ordering::SeqCst) == Use::Sealed as u8
                && segment.entering.load(Ordering::SeqCst) == 0
                && segment.aside.load(Ordering::SeqCst) != segment.epoch.load(Ordering::SeqCst) + 1
        })
    }

    pub(super) fn cleanable(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        // Cleaning a segment that is held frees nothing, and evicting it would change its bytes.
        let held = self.hold.lock();
        self.all().filter(move |(id, _)| self.is_cleanable(*id) && !held.holds(*id))
    }

    /// A segment of moved records of which most is garbage.
    pub(in super::super) fn moved_victim(&self) -> Option<SegmentId> {
        let mostly_dead = |(id, segment): &(SegmentId, &Segment)| {
            let [live, written] =
                [&segment.live_bytes, &segment.written_bytes].map(|n| n.load(Ordering::Relaxed));
            self.incarnation(*id).stream != Stream::Fresh
                && live * 2 < written.max(self.size_bytes / 4 * 3)
        };
        self.cleanable().find(mostly_dead).map(|(id, _)| id)
    }

    /// The segment with clients' records that was not used for the longest time.
    pub(in super::super) fn least_used(&self) -> Option<SegmentId> {
        let fresh =
            self.cleanable().filter(|(id, _)| self.incarnation(*id).stream == Stream::Fresh);
        fresh.map(|(id, _)| id).min_by_key(|id| (self.used_at(*id), self.epoch(*id)))
    }

    /// A segment with clients' records of which all that is live has expired by `now`, in Unix seconds.
    pub(in super::super) fn expired(&self, now: u64) -> Option<SegmentId> {
        let all_expired = |(id, segment): &(SegmentId, &Segment)| {
            let live = segment.live_bytes.load(Ordering::Relaxed);
            self.incarnation(*id).stream == Stream::Fresh && segment.expired_bytes(now) >= live
        };
        self.cleanable().find(all_expired).map(|(id, _)| id)
    }

    /// The segment that is best cleaned: the benefit of its free space, and of how long the rest has
    /// been left alone, over the cost of moving the rest (PACMAN §3.3; uDepot §4.1 has greedy with
    /// age). What has expired by `now`, in Unix seconds, is as good as dead. `greedy`: the one with most
    /// to gain. `None` if there is nothing to gain.
    pub(in super::super) fn victim(
        &self,
        next: SegmentEpoch,
        now: u64,
        greedy: bool,
    ) -> Option<SegmentId> {
        let score = |segment: &Segment| {
            let live = segment.live_bytes.load(Ordering::Relaxed);
            let live = live.saturating_sub(segment.expired_bytes(now));
            // A segment that a crash cut short holds little: what was never written is free as well.
            let written =
                segment.written_bytes.load(Ordering::Relaxed).max(self.size_bytes / 4 * 3);
            let dead = written.saturating_sub(live);
            if dead < written / GAIN_MIN_SHARE {
                return None;
            }
            if greedy {
                return Some(u128::from(dead));
            }
            let age = next.0.saturating_sub(segment.epoch.load(Ordering::Relaxed)).max(1);
            // The root of it: old segments with little garbage are not worth their moves.
            let benefit = u128::from(dead) * u128::from(age.isqrt()) * 1024;
            Some(benefit / u128::from(written - dead + 1))
        };
        let scored = self.cleanable().filter_map(|(id, segment)| Some((score(segment)?, id)));
        scored.max_by_key(|(score, id)| (*score, std::cmp::Reverse(*id))).map(|(_, id)| id)
    }
}
