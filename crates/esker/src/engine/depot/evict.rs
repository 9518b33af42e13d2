//! Eviction: how a cache makes room (uDepot §4.8).
//!
//! A GET that hits marks the segment of its record as used. When free segments run low, the segment that
//! was not used for the longest time, or one in which all has expired, becomes free with all that is in it: nothing is copied. So room
//! costs a read of the segment's summary, and all of the device but a few segments holds items.
//!
//! What is evicted must not come back, in an older version least of all: that would be stale. The
//! segment's header is made invalid before the index forgets its records; and of a record that
//! replaced another, which may still be on media, a note is kept: a record with the hash of the key in
//! place of the key. Notes are moved and purged like tombstones.
//!
//! # Invariants
//! - V1: once the index has forgotten a record, no crash brings it back: its segment's header is durably
//!   invalid, or its note is durable. What is not in the index any more was overtaken by what is durable by then.
//! - V2: a record without the mark `replaces` has no older record of its key on media.
//! - V3: a large value goes whole: with any of its extents, or with the record of its key. One that is
//!   still being written stays: the record of its key may be on its way.
//! - V4: a segment that is evicted is nobody else's until the end of it, though all in it may die meanwhile: its header
//!   may be made invalid.
//!
//! # Concurrency
//! Under the cleaner's lock. Entries go one by one, each under its key's stripe.
//!
//! # Failure
//! A crash leaves the segment as it was, or without what was evicted. A damaged segment is set aside; one that the device fails to
//! read is tried again later.

use super::clean::Cleaner;
use super::moves::Move;
use super::segments::Incarnation;
use super::unread::FAILURES_MAX;
use super::{Depot, gather, sites, spread};
use esker_base::ids::{SegmentId, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::depot::{
    LargeRef, RecordKind, RecordMeta, SegmentHeader, SummaryRecord, encode_evicted,
};
use esker_index::{Link, SizeHint};
use std::collections::HashMap;
use std::io::IoSlice;

/// What an eviction does to one segment.
#[derive(Default)]
struct Evicted {
    /// Records that nothing older is left of.
    dropped: Vec<(u64, Link)>,
    /// Records whose eviction is noted: hash, link, version.
    noted: Vec<(u64, Link, Version)>,
    /// Where those of them stand that may be in other segments.
    heads: HashMap<Link, (SegmentId, Incarnation)>,
}

impl Depot {
    /// Evicts what was not used for the longest time; `None` if there is nothing to evict.
    pub(super) fn evict_one(&self, cleaner: &mut Cleaner) -> Result<Option<u64>> {
        let mut passed = self.passed_over(cleaner);
        let mut failures = 0;
        while failures < FAILURES_MAX {
            // Notes are cleaned as any store's records: the garbage among them. And what has expired is of no use to anybody,
            // however lately it was written.
            let moved = self.segments.moved_victim(&passed);
            let expired = || self.segments.expired(self.clock.now(), &passed);
            let least_used = || self.segments.least_used(&passed);
            let Some(victim) = moved.or_else(expired).or_else(least_used) else { break };
            let epoch = self.segments.epoch(victim);
            match self.evict_segment(cleaner, victim) {
                Ok(true) => return Ok(Some(self.layout.segment_size)),
                Ok(false) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    tracing::warn!(%error, segment = victim.0, "a segment cannot be evicted");
                    self.segments.set_aside(victim, epoch);
                }
                Err(error) if error.kind() == ErrorKind::Io => {
                    self.pass_over(cleaner, (victim, epoch), error);
                    failures += 1;
                }
                Err(error) => return Err(error),
            }
            // It has to stay, as parts of a value that is being written do, of which there may be any number.
            passed.push(victim);
        }
        Ok(None)
    }

    /// Evicts up to `limit` segments.
    pub(super) fn evict_now(&self, limit: usize) -> Result<usize> {
        if !self.superblock.cache {
            return Err(
                Error::new(ErrorKind::Unsupported, "evict").context("the store is no cache")
            );
        }
        let mut cleaner = self.lock_cleaner()?;
        let limit = limit.min(self.segments.sealed().count());
        cleaner.unread.begin_round();
        let (mut evicted, mut again) = (0, true);
        while evicted < limit {
            match self.evict_one(&mut cleaner)? {
                Some(_) => evicted += 1,
                // Somebody asked: what is passed over is tried, too.
                None if std::mem::take(&mut again) && cleaner.unread.retry() => {}
                None => break,
            }
        }
        cleaner.unread.end_round(evicted)
    }

    /// Evicts a segment; false if it cannot be evicted now.
    fn evict_segment(&self, cleaner: &mut Cleaner, victim: SegmentId) -> Result<bool> {
        // V4.
        if !self.segments.pin(victim) {
            return Ok(false);
        }
        let epoch = self.segments.epoch(victim);
        let evicted = self.evict_pinned(cleaner, victim);
        self.segments.end_entry(victim);
        if matches!(evicted, Ok(true)) {
            self.segments.forget_header(victim, epoch);
        }
        evicted
    }

    fn evict_pinned(&self, cleaner: &mut Cleaner, victim: SegmentId) -> Result<bool> {
        let of = self.segments.incarnation(victim);
        let mut evicted = Evicted::default();
        for (record, link) in self.live_records(victim, of)? {
            if !self.sort_out(&mut evicted, &record, link)? {
                self.touch_segment(victim);
                return Ok(false);
            }
        }
        if !sites::EVICT_OVERTAKEN.disabled() {
            // PERSIST: V1. Where writes go to memory first, what overtook the other records is perhaps there only.
            self.flush_published()?;
        }
        let mut moving = Move::new(&self.pool, &self.layout, cleaner.mover_from(of.stream));
        let copied = evicted.noted.iter().try_for_each(|(hash, link, version)| {
            let meta = RecordMeta { version: *version, ..RecordMeta::new(RecordKind::Evict) };
            self.add_moved(&mut moving, *hash, &meta, &encode_evicted(gather(*hash)), &[], *link)
        });
        let (noted, written) = self.end_move(moving, copied);
        let blanked = written.and_then(|()| self.blank_header(victim));
        // V1: from here on the index may forget.
        let gone = blanked.is_ok();
        for moved in noted {
            let (segment, of) = evicted.heads.get(&moved.old).copied().unwrap_or((victim, of));
            if !gone || !self.follow(segment, of, &moved) {
                self.segments.remove(moved.to, moved.new, Version(0));
            } else if !moved.old.is_tombstone() {
                self.evictions.add(1);
            }
        }
        blanked?;
        for (hash, link) in &evicted.dropped {
            if self.forget(victim, of, *hash, *link) {
                self.evictions.add(1);
            }
        }
        // Who superseded the rest meanwhile is about to say so.
        self.segments.set_aside(victim, of.epoch);
        Ok(true)
    }

    /// What is to become of a live record; false if it must stay.
    fn sort_out(&self, evicted: &mut Evicted, record: &SummaryRecord, link: Link) -> Result<bool> {
        let hash = spread(record.hash);
        match record.kind {
            RecordKind::Clear => {}
            RecordKind::Put if !record.replaces || sites::EVICT_NOTE.disabled() => {
                evicted.dropped.push((hash, link));
            }
            RecordKind::Put | RecordKind::Large | RecordKind::Delete | RecordKind::Evict => {
                evicted.noted.push((hash, link, record.version));
            }
            RecordKind::Extent => {
                let LargeRef { id, .. } = record.piece;
                match self.extents.head(id) {
                    // On its way, or gone since its extents were found to be live.
                    None => return Ok(!self.extents.has(id)),
                    // V3.
                    Some(head) if evicted.noted.iter().all(|(_, link, _)| *link != head) => {
                        if let Some((version, of)) = self.head_of(id, head)? {
                            evicted.noted.push((hash, head, version));
                            evicted.heads.insert(head, of);
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(true)
    }

    /// The version of the record at `head` of a large value, which is durable, and where it stands; `None` if it was superseded
    /// meanwhile, and its value went with it.
    fn head_of(&self, id: u64, head: Link) -> Result<Option<(Version, (SegmentId, Incarnation))>> {
        let Some(segment) = self.layout.segment_of(self.layout.offset_of(head)) else {
            return Ok(None);
        };
        let of = self.segments.incarnation(segment);
        // Still there: so it stands in this incarnation.
        if self.extents.head(id) != Some(head) {
            return Ok(None);
        }
        let version = match self.read_record(head) {
            Ok(fetched) => fetched.record().meta.version,
            Err(_) if self.extents.head(id) != Some(head) => return Ok(None),
            // The summary of its segment says it as well.
            Err(error) => {
                let noted = self.noted_in(segment, of, head).ok().flatten();
                noted.ok_or(error)?.version
            }
        };
        if version >= self.log.durable() && !sites::EXPIRE_HEAD.disabled() {
            // X2 of what has expired.
            self.flush_published()?;
        }
        Ok(Some((version, (segment, of))))
    }

    /// What its segment notes of the record at `link`, which need not be readable.
    pub(super) fn noted_at(&self, link: Link) -> Result<Option<SummaryRecord>> {
        let Some(id) = self.layout.segment_of(self.layout.offset_of(link)) else { return Ok(None) };
        self.noted_in(id, self.segments.incarnation(id), link)
    }

    fn noted_in(
        &self,
        id: SegmentId,
        of: Incarnation,
        link: Link,
    ) -> Result<Option<SummaryRecord>> {
        let base = self.layout.segment_offset(id);
        let mut noted = None;
        self.each_record(&self.source(sites::CLEAN_READ), id, of, &mut |record| {
            if self.layout.link(record.kind, base + record.offset, record.size_bytes) == Some(link)
            {
                noted = Some(record);
            }
        })?;
        Ok(noted)
    }

    /// Takes the validity from a segment's header, durably.
    pub(super) fn blank_header(&self, id: SegmentId) -> Result<()> {
        // PERSIST: V1. Crash before: the segment is still there.
        self.blank_copies(id)
            .and_then(|()| self.device.flush(sites::EVICT_FLUSH))
            .map_err(|error: Error| self.poison(&error))
    }

    /// Takes the validity from both copies of a header. To a repair, what cannot be written is none if it is none as it reads: it says so in
    /// the end, and nobody is to take the segment until then.
    pub(super) fn blank_copies(&self, id: SegmentId) -> Result<()> {
        let mut block = self.pool.get_zeroed(usize::try_from(self.layout.block).unwrap_or(4096));
        let base = self.layout.segment_offset(id);
        for at in [base, base + self.layout.header_copy()] {
            block.fill(0);
            match self.device.write_at(sites::BLANK_WRITE, at, &[IoSlice::new(&block)]) {
                Err(error) if error.kind() == ErrorKind::Io && self.repair.is_some() => {
                    match self.source(sites::CHECK_READ).read(at, &mut block) {
                        Ok(()) if SegmentHeader::is_one(&block) => return Err(error),
                        Err(other) if other.kind() != ErrorKind::Io => return Err(other),
                        _ => self.segments.withhold(id),
                    }
                }
                written => written?,
            }
        }
        Ok(())
    }

    /// The index forgets a record of the victim, which is an item; false if it points elsewhere by now.
    fn forget(&self, victim: SegmentId, of: Incarnation, hash: u64, link: Link) -> bool {
        let forgotten = self.pending.relocate(hash, link, None, || {
            self.segments.epoch(victim) == of.epoch && self.index.remove(hash, link)
        });
        if forgotten {
            debug_assert!(link.size() != SizeHint::Large, "V3: their eviction is noted");
            self.let_go(link, Version(0));
            self.count_gone(link);
        }
        forgotten
    }
}
