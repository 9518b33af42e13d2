//! What has expired: how the cleaner finds it.
//!
//! Nothing happens to a record when its time has come: it goes on to count as live, and the cleaner moves a tombstone in its place
//! (K3). So that it looks in the right places, each segment knows when its records expire ([`super::segments`]): from whoever writes
//! them, clients and the cleaner alike. After an open nothing is known of what was there. Somebody has to look at the records of a
//! segment, which costs about what cleaning it does: so that is done when there is nothing else to clean, and once.
//!
//! Extents say nothing of when they expire; the record of their value's key does. Whoever meets it tells the segments of all
//! extents. In them nothing else need have expired: their values are released before they are cleaned, so that nobody moves
//! what does not count.
//!
//! # Invariants
//! - X1: nothing is taken for expired before its time by the store's clock, which never goes back while it is open.
//! - X2: a tombstone in place of a head, or the note of its eviction, is written after the head is durable, wherever that stands: or a crash could
//!   leave what the head did to its key without what was written before it.
//!
//! # Concurrency
//! Looking and releasing happen under the cleaner's lock.
//!
//! # Failure
//! What is known is in memory only. A damaged segment is not looked at again, nor one that could not be read for long.

use super::batch::Batch;
use super::clean::Cleaner;
use super::moves::{Move, tombstone_of};
use super::place::{GIVE_WAY, Plan};
use super::segments::{Incarnation, link_bytes};
use super::unread::FAILURES_MAX;
use super::{Depot, sites};
use crate::engine::expiries::Expiries;
use esker_base::ids::{SegmentId, Version};
use esker_base::{ErrorKind, Result};
use esker_format::depot::{RecordKind, Stream, SummaryRecord};
use esker_index::Link;
use std::collections::HashMap;

/// Bytes of segments that a writer looks at who finds no room: what more there is, the background thread looks at, or who
/// comes next.
const LOOK_MAX_BYTES: u64 = 128 << 20;

impl Depot {
    /// Tells the segment when the records of a batch expire that goes there.
    pub(super) fn note_expiries(&self, batch: &Batch, plan: &Plan) {
        if batch.expiring().len() == 0 {
            return;
        }
        let bytes = |(entry, at)| Some((at, link_bytes(self.link_of(plan, entry?)?)));
        self.segments.expire(plan.segment(), batch.expiring().filter_map(bytes));
        for (entry, at) in batch.expiring() {
            if let Some(head) = entry.filter(|entry| entry.kind == RecordKind::Large) {
                self.expire_extents(batch.piece(head).id, at);
            }
        }
    }

    /// Tells the segments of a large value's extents when it expires.
    fn expire_extents(&self, id: u64, expires_at: u64) {
        self.extents.expire(id, expires_at, |link| {
            if let Some(segment) = self.layout.segment_of(self.layout.offset_of(link)) {
                self.segments.expire_live(segment, expires_at, link_bytes(link));
            }
        });
    }

    /// Segments that a writer looks at who finds no room.
    pub(super) fn looks_of_a_writer(&self) -> u64 {
        LOOK_MAX_BYTES.div_ceil(self.layout.segment_size)
    }

    /// Looks at a segment of which nobody knows yet when its records expire; false if there is none.
    pub(super) fn look_further(&self, cleaner: &mut Cleaner) -> Result<bool> {
        if self.superblock.cache {
            return Ok(false);
        }
        for _ in 0..FAILURES_MAX {
            let Some(id) = self.segments.unknown(&self.passed_over(cleaner)) else { break };
            let of = self.segments.incarnation(id);
            let forget = || self.segments.know(id, of.epoch, &Expiries::default());
            match self.look_at(id, of) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    tracing::warn!(%error, segment = id.0, "a segment cannot be looked at");
                    forget();
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Io => {
                    if self.pass_over(cleaner, (id, of.epoch), error) {
                        forget();
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn look_at(&self, id: SegmentId, of: Incarnation) -> Result<()> {
        let live = self.live_records(id, of)?;
        let (extents, others): (Vec<_>, Vec<_>) =
            live.into_iter().partition(|(record, _)| record.kind == RecordKind::Extent);
        let with_value: Vec<_> =
            others.into_iter().filter(|(record, _)| record.kind.has_value()).collect();
        let written = |link| self.segments.as_written(id, link_bytes(link));
        let mut found = Expiries::default();
        self.read_records(id, of, &with_value, &mut |count, record, noted, link| {
            if count.is_multiple_of(GIVE_WAY) {
                esker_trt::yield_now();
            }
            let Some(expires_at) = record.meta.expires_at else { return Ok(()) };
            found.add(expires_at, written(link));
            if noted.kind == RecordKind::Large {
                self.expire_extents(noted.piece.id, expires_at);
            }
            Ok(())
        })?;
        self.extents.with_expiries(|expires_at| {
            for (extent, link) in &extents {
                if let Some(expires_at) = expires_at(extent.piece.id) {
                    found.add(expires_at, written(*link));
                }
            }
            self.segments.know(id, of.epoch, &found);
        });
        Ok(())
    }

    /// Releases the large values that have expired of which extents are among these records; true if there were any. Records of
    /// their keys are followed by tombstones in the stream that takes records from `stream`.
    pub(super) fn release_expired(
        &self,
        cleaner: &mut Cleaner,
        stream: Stream,
        records: &[(SummaryRecord, Link)],
    ) -> Result<bool> {
        let extents = records.iter().filter(|(record, _)| record.kind == RecordKind::Extent);
        let mut expired: Vec<u64> = extents.map(|(extent, _)| extent.piece.id).collect();
        expired.dedup();
        self.extents.with_expiries(|expires_at| {
            expired.retain(|id| expires_at(*id).is_some_and(|at| self.clock.is_expired(Some(at))));
        });
        if expired.is_empty() {
            return Ok(false);
        }
        expired.sort_unstable();
        expired.dedup();
        let mut moving = Move::new(&self.pool, &self.layout, cleaner.mover_from(stream));
        let mut origins = HashMap::new();
        let copied =
            expired.into_iter().try_for_each(|id| self.bury(&mut moving, &mut origins, id));
        let (moved, durable) = self.end_move(moving, copied);
        for moved in moved {
            let origin = origins.get(&moved.old).filter(|_| durable.is_ok());
            if !origin.is_some_and(|(segment, of)| self.follow(*segment, *of, &moved)) {
                self.segments.remove(moved.to, moved.new, Version(0));
            }
        }
        durable.map(|()| !origins.is_empty())
    }

    /// Adds a tombstone in place of a large value's head, if that has expired; notes where the head stands.
    fn bury(
        &self,
        moving: &mut Move<'_>,
        origins: &mut HashMap<Link, (SegmentId, Incarnation)>,
        id: u64,
    ) -> Result<()> {
        let Some(head) = self.extents.head(id) else { return Ok(()) };
        let Some(segment) = self.layout.segment_of(self.layout.offset_of(head)) else {
            return Ok(());
        };
        let of = self.segments.incarnation(segment);
        // Still there: so it stands in this incarnation, and nobody else's record in the one that was before.
        if self.extents.head(id) != Some(head) {
            return Ok(());
        }
        let fetched = match self.read_record(head) {
            Ok(fetched) => fetched,
            Err(_) if self.extents.head(id) != Some(head) => return Ok(()),
            // The extents are no worse for it: they are moved as what has not expired.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Io) => {
                tracing::warn!(%error, "the head of a large value that has expired cannot be read");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let record = fetched.record();
        if record.meta.kind != RecordKind::Large || !self.clock.is_expired(record.meta.expires_at) {
            return Ok(());
        }
        if record.meta.version >= self.log.durable() && !sites::EXPIRE_HEAD.disabled() {
            // X2.
            self.flush_published()?;
        }
        origins.insert(head, (segment, of));
        let hash = self.hash(record.key);
        self.add_moved(moving, hash, &tombstone_of(record.meta), record.key, &[], head)
    }

    /// Live bytes that have not expired, if with `more` there is too much for `room`. As long as nobody has looked at all of
    /// them, nothing is too much.
    pub(super) fn unexpired_bytes_beside(&self, more: u64, room: u64) -> u64 {
        let live = self.segments.live().1;
        if live.saturating_add(more) <= room {
            return live;
        }
        match self.segments.unknown(&[]) {
            Some(_) => 0,
            None => self.segments.unexpired_bytes(self.clock.now()),
        }
    }
}
