//! What is live in a segment, and what was written there: in bytes, as far as links tell them.
//!
//! A link bounds the size of its record from above, so that what was added can be taken away again without reading the record. Of a
//! tombstone it says nothing, and that takes as much as its key: so segments know what all of theirs take, and each one
//! that is live counts for their average.
//!
//! # Concurrency
//! Counters are atomic. What is live is a little behind, or ahead.

use super::{Segment, Segments};
use crate::engine::depot::layout::SIZE_UNIT_BYTES;
use esker_base::ids::SegmentId;
use esker_index::{Link, SizeHint};
use std::ops::AddAssign;
use std::sync::atomic::Ordering;

/// What a record takes in a summary: six to nine.
const IN_SUMMARY: u64 = 8;

/// Bytes that a link stands for in the segment table: its hint, so that what was added can be
/// taken away again without reading the record, and what the record takes in a summary.
pub(in super::super) fn link_bytes(link: Link) -> u64 {
    let record = match link.size() {
        SizeHint::Grains(grains) => grains * SIZE_UNIT_BYTES,
        SizeHint::Tombstone => 32,
        SizeHint::Large => 64,
    };
    record + IN_SUMMARY
}

/// Bytes of a record of this size: those that its link stands for, if that tells the size.
pub(in super::super) fn record_bytes(link: Link, size_bytes: u64) -> u64 {
    let told = link_bytes(link);
    if link.is_tombstone() { told.max(size_bytes + IN_SUMMARY) } else { told }
}

/// Live records of a segment, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Live {
    pub(in super::super) records: u32,
    pub(in super::super) bytes: u64,
    /// Whether any of them is an item.
    pub(in super::super) items: bool,
    pub(in super::super) tombstones: u32,
}

impl Live {
    /// One record, by its link.
    pub(in super::super) fn of(link: Link) -> Live {
        let tombstone = link.is_tombstone();
        let bytes = link_bytes(link);
        Live { records: 1, bytes, items: !tombstone, tombstones: tombstone.into() }
    }
}

/// What was written to a segment, dead or not.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Written {
    /// Bytes of all records.
    pub(in super::super) bytes: u64,
    pub(in super::super) tombstones: u32,
    /// Bytes of these beyond what their links stand for; they are among those of all records.
    pub(in super::super) beyond_bytes: u64,
}

impl Written {
    /// One record, by its link and size.
    pub(in super::super) fn of(link: Link, size_bytes: u64) -> Written {
        let bytes = record_bytes(link, size_bytes);
        let beyond_bytes = bytes - link_bytes(link);
        Written { bytes, tombstones: link.is_tombstone().into(), beyond_bytes }
    }
}

impl AddAssign for Written {
    fn add_assign(&mut self, other: Written) {
        self.bytes += other.bytes;
        self.tombstones += other.tombstones;
        self.beyond_bytes += other.beyond_bytes;
    }
}

impl AddAssign for Live {
    fn add_assign(&mut self, other: Live) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.items |= other.items;
        self.tombstones += other.tombstones;
    }
}

impl Segments {
    /// A record of the segment went live that takes so many bytes.
    pub(in super::super) fn add(&self, id: SegmentId, link: Link, size_bytes: u64) {
        self.restore_live(id, Live::of(link));
        self.add_written(id, Written::of(link, size_bytes));
    }

    /// Records of the segment are live; others count their bytes as written.
    pub(in super::super) fn restore_live(&self, id: SegmentId, live: Live) {
        if let Some(segment) = self.get(id) {
            segment.live_records.fetch_add(live.records, Ordering::SeqCst);
            segment.live_bytes.fetch_add(live.bytes, Ordering::Relaxed);
            if live.tombstones > 0 {
                segment.live_tombstones.fetch_add(live.tombstones, Ordering::Relaxed);
            }
            if live.items && !segment.items.load(Ordering::Relaxed) {
                segment.items.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Recovery no longer takes a record for live.
    pub(in super::super) fn restore_dead(&self, id: SegmentId, link: Link) {
        if let Some(segment) = self.get(id) {
            segment.let_go(Live::of(link));
            segment.live_records.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Records were written to the segment, dead or not.
    pub(in super::super) fn add_written(&self, id: SegmentId, written: Written) {
        if let Some(segment) = self.get(id) {
            segment.written_bytes.fetch_add(written.bytes, Ordering::Relaxed);
            if written.tombstones > 0 {
                segment.tombstones.fetch_add(written.tombstones, Ordering::Relaxed);
                segment.beyond_bytes.fetch_add(written.beyond_bytes, Ordering::Relaxed);
            }
        }
    }

    /// Live records of all segments, and their bytes: links bound sizes from above, so those of a segment in which more would
    /// have been written than it has room for count for as much less.
    pub(in super::super) fn live(&self) -> (u64, u64) {
        self.segments.iter().fold((0, 0), |(records, bytes), segment| {
            let more = u64::from(segment.live_records.load(Ordering::Relaxed));
            let live = segment.live_bytes();
            let written = segment.written_bytes.load(Ordering::Relaxed).max(self.size_bytes);
            (records + more, bytes.saturating_add(share(live, self.size_bytes, written)))
        })
    }
}

impl Segment {
    /// Bytes of what is live. Nobody counts which tombstones are: each takes what all of the segment take on average.
    pub(super) fn live_bytes(&self) -> u64 {
        let live = self.live_bytes.load(Ordering::Relaxed);
        let [tombstones, written] =
            [&self.live_tombstones, &self.tombstones].map(|n| n.load(Ordering::Relaxed).into());
        if tombstones == 0 {
            return live;
        }
        let beyond = share(self.beyond_bytes.load(Ordering::Relaxed), tombstones, written);
        live.saturating_add(beyond)
    }

    /// Takes a record out of what is live, but for the number of records.
    pub(super) fn let_go(&self, live: Live) {
        self.live_bytes.fetch_sub(live.bytes, Ordering::Relaxed);
        if live.tombstones > 0 {
            self.live_tombstones.fetch_sub(live.tombstones, Ordering::Relaxed);
        }
    }
}

/// `bytes` times `part` over `whole`.
pub(super) fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}
