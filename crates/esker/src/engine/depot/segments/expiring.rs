//! When the records of each segment expire, as far as that is known.
//!
//! Nothing is superseded when a record expires, so it goes on to count as live. Who looks for segments to clean asks here for how
//! much of that is gone. It is known of what was written since the store was opened. Of what recovery found it
//! is not, as no summary tells it, until somebody has looked at the records ([`super::super::expire`]).
//!
//! # Invariants
//! - L1: what has expired of a segment is never more than what is live there. Of what expires, as much is taken for superseded
//!   as of all that was written to the segment: nobody counts these apart.
//!
//! # Concurrency
//! A short lock for each segment, innermost. Records without an expiry take none.

use super::counts::share;
use super::{Segment, Segments};
use crate::engine::expiries::Expiries;
use esker_base::ids::{SegmentEpoch, SegmentId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of one segment; not on a line that writers of other records need.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Expiring {
    /// Whether all of its records are known.
    known: AtomicBool,
    expiries: Mutex<Expiries>,
}

impl Expiring {
    /// Nothing is known of the segment, which has another epoch by now.
    pub(super) fn forget(&self) {
        self.known.store(false, Ordering::Relaxed);
        self.expiries.lock().clear();
    }
}

impl Segment {
    /// Live bytes that have expired by `now`, in Unix seconds (L1).
    pub(super) fn expired_bytes(&self, now: u64) -> u64 {
        let expiries = self.expiring.expiries.lock();
        if expiries.is_empty() {
            return 0;
        }
        let expired = expiries.expired(now);
        drop(expiries);
        let live = self.live_bytes();
        let written = self.written_bytes.load(Ordering::Relaxed);
        share(expired, live, written).min(live)
    }

    fn as_written(&self, live_bytes: u64) -> u64 {
        let live = self.live_bytes();
        let written = self.written_bytes.load(Ordering::Relaxed);
        share(live_bytes, written.max(live), live)
    }
}

impl Segments {
    /// The segment is taken into use: all that is written to it will be known.
    pub(super) fn begin_known(&self, id: SegmentId) {
        if let Some(segment) = self.get(id) {
            segment.expiring.known.store(true, Ordering::Relaxed);
        }
    }

    /// Records are written to the segment that expire then: moments in Unix seconds, and bytes.
    pub(in super::super) fn expire(
        &self,
        id: SegmentId,
        records: impl IntoIterator<Item = (u64, u64)>,
    ) {
        if let Some(segment) = self.get(id) {
            let mut expiries = segment.expiring.expiries.lock();
            records.into_iter().for_each(|(at, bytes)| expiries.add(at, bytes));
        }
    }

    /// A record that is live in the segment expires then.
    pub(in super::super) fn expire_live(&self, id: SegmentId, expires_at: u64, bytes: u64) {
        if let Some(segment) = self.get(id) {
            segment.expiring.expiries.lock().add(expires_at, segment.as_written(bytes));
        }
    }

    /// A full segment of which it is not known when its records expire: the one that was taken into use first, whose records are
    /// the likeliest to have expired.
    pub(in super::super) fn unknown(&self, passed: &[SegmentId]) -> Option<SegmentId> {
        let is_known = |segment: &Segment| segment.expiring.known.load(Ordering::Relaxed);
        let unknown = self.cleanable(passed).filter(|(_, segment)| !is_known(segment));
        unknown.map(|(id, _)| id).min_by_key(|id| self.epoch(*id))
    }

    /// All is known of this incarnation of the segment; whatever was known before is among it.
    pub(in super::super) fn know(&self, id: SegmentId, epoch: SegmentEpoch, all: &Expiries) {
        let Some(segment) = self.get(id) else { return };
        let mut expiries = segment.expiring.expiries.lock();
        // Who takes it into use says so before it forgets what was known.
        if self.epoch(id) == epoch {
            expiries.clear();
            expiries.add_all(all);
            segment.expiring.known.store(true, Ordering::Relaxed);
        }
    }

    /// The bytes that were written to the segment for so many that are live, so that L1 takes live ones for what they are.
    pub(in super::super) fn as_written(&self, id: SegmentId, live_bytes: u64) -> u64 {
        self.get(id).map_or(0, |segment| segment.as_written(live_bytes))
    }

    /// Live bytes of all segments that have not expired by `now`, in Unix seconds.
    pub(in super::super) fn unexpired_bytes(&self, now: u64) -> u64 {
        let expired = self.segments.iter().map(|segment| segment.expired_bytes(now));
        let expired = expired.fold(0, u64::saturating_add);
        self.live().1.saturating_sub(expired)
    }
}
