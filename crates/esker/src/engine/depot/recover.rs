//! Recovery: the index from the log (uDepot §4.4).
//!
//! Reads every segment's batches, in any order, and decides per key by version. Writes nothing:
//! recovering twice gives the same store. The first batch of the new session starts with a barrier
//! that cuts off what may lie behind the end of the log.
//!
//! # Invariants
//! - R1: the newest record of a key wins, whatever the order in which segments are read.
//! - R2: every segment before the last one with batches ends in a seal; the flush before a new
//!   segment's first batch made it so. Anything else is damage.
//! - R3: what lies below the committed point (`durable_version` of any valid batch) is there, or
//!   recovery says what is missing; only what lies above it may be dropped as torn.
//! - R4: two records are taken for one key's by equal hashes only if neither is marked: the writer
//!   compared the keys and marked the record if another key with the hash had a value.

use super::commit::LogEnd;
use super::place::{Tail, link_bytes};
use super::scan::{SegmentEnd, Source};
use super::segments::Use;
use super::{Depot, sites};
use crate::options::Progress;
use esker_base::hash::KeyHasher;
use esker_base::ids::{SegmentEpoch, SegmentId, Version};
use esker_base::{Error, Result};
use esker_format::depot::{GRAIN_SIZE_BYTES, Record, RecordKind, SegmentHeader, Superblock};
use esker_index::Link;

/// A record that was found in the log.
#[derive(Clone, Copy, Debug)]
struct Found {
    hash: u64,
    version: Version,
    link: Link,
    collides: bool,
}

/// A segment with a valid header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanned {
    pub(super) header: SegmentHeader,
    pub(super) end: SegmentEnd,
}

/// What the log holds.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    found: Vec<Found>,
    /// Segments in use, by epoch.
    segments: Vec<Scanned>,
    blank: Vec<SegmentId>,
    clear_version: Version,
}

impl Recovered {
    /// Reads the whole log.
    ///
    /// # Errors
    /// `Corrupted` if something below the committed point is missing, `Io` if the device fails.
    pub(super) fn scan(
        source: &Source<'_>,
        superblock: &Superblock,
        hasher: &KeyHasher,
        progress: &Progress,
    ) -> Result<Recovered> {
        let mut log = Recovered::default();
        for index in 0..superblock.segment_count {
            progress.report(u64::from(index), u64::from(superblock.segment_count));
            let id = SegmentId(index);
            let Some(header) = source.header(superblock.store_id, id)? else {
                log.blank.push(id);
                continue;
            };
            log.clear_version = log.clear_version.max(header.clear_version);
            let (found, clear) = (&mut log.found, &mut log.clear_version);
            let end = source.walk(&header, &mut |record, offset| {
                if record.meta.kind == RecordKind::Clear {
                    *clear = (*clear).max(Version(record.meta.version.0.saturating_add(1)));
                    return Ok(());
                }
                found.push(Found {
                    hash: hasher.hash(record.key),
                    version: record.meta.version,
                    link: link_to(source, record, offset)?,
                    collides: record.meta.collides && !sites::RECOVER_COLLIDES.disabled(),
                });
                Ok(())
            })?;
            log.segments.push(Scanned { header, end });
        }
        log.segments.sort_by_key(|segment| segment.header.epoch);
        log.check_ends(source)?;
        Ok(log)
    }

    /// R2 and R3.
    fn check_ends(&self, source: &Source<'_>) -> Result<()> {
        let last = self.segments.iter().rposition(|segment| segment.end.batches > 0);
        for (place, Scanned { header, end }) in self.segments.iter().enumerate() {
            if end.sealed || sites::COMMITTED_POINT.disabled() {
                continue;
            }
            // An empty segment is one whose first batch never came; the log may have gone on in the
            // segment before, so only what the segment itself shows counts.
            let durable = end.durable_version.max(source.durable_behind(header, end)?);
            let cut_short = end.batches > 0 && last.is_some_and(|last| place < last);
            if durable > end.next_version || cut_short {
                let offset = source.layout.segment_offset(header.segment_id) + end.position;
                let words = format!(
                    "records from version {} on are missing, which were durable",
                    end.next_version
                );
                return Err(Error::corrupted("recover store", words)
                    .device(source.device.name())
                    .at(offset, source.layout.block));
            }
        }
        Ok(())
    }

    fn last(&self) -> Option<&Scanned> {
        self.segments.iter().rev().find(|segment| segment.end.batches > 0)
    }

    /// Where the log goes on.
    pub(super) fn log_end(&self) -> LogEnd {
        let last = self.last();
        let next_version = last.map_or(Version(1), |last| last.end.next_version);
        let highest = self.segments.last().map_or(0, |segment| segment.header.epoch.0);
        LogEnd {
            tail: last.filter(|last| !last.end.sealed).map(|last| Tail {
                segment: last.header.segment_id,
                position: last.end.position,
                salt: last.header.salt,
                session: last.end.session,
                barrier_due: true,
            }),
            next_epoch: SegmentEpoch(highest + 1),
            next_version: next_version.max(self.clear_version).max(
                self.segments.iter().map(|s| s.header.first_version).max().unwrap_or_default(),
            ),
            clear_version: self.clear_version,
        }
    }
}

fn link_to(source: &Source<'_>, record: &Record<'_>, offset: u64) -> Result<Link> {
    let grain = offset / GRAIN_SIZE_BYTES;
    let link = match record.meta.kind {
        RecordKind::Put => Link::record(grain, record.size_bytes as u64 / GRAIN_SIZE_BYTES),
        RecordKind::Delete | RecordKind::Clear => Link::tombstone(grain),
    };
    link.ok_or_else(|| {
        Error::corrupted("recover store", "a record lies beyond what an index can address")
            .device(source.device.name())
            .at(offset, record.size_bytes as u64)
    })
}

impl Depot {
    /// Fills index and segment table from the log.
    pub(super) fn adopt(&self, log: Recovered) -> Result<()> {
        let tail = log.log_end().tail.map(|tail| tail.segment);
        for segment in &log.segments {
            let Scanned { header, .. } = segment;
            let state = if Some(header.segment_id) == tail { Use::Open } else { Use::Sealed };
            self.segments.restore(header.segment_id, state, header.epoch, header.salt);
        }
        for link in self.newest(log.found, log.clear_version)? {
            let segment = self.layout.segment_of(link.1.grain() * GRAIN_SIZE_BYTES);
            self.segments.add(segment.unwrap_or_default(), link_bytes(link.1));
            self.index.insert(link.0, link.1);
            self.count_items(None, link.1);
        }
        for segment in &log.segments {
            let id = segment.header.segment_id;
            if self.segments.state(id) == Use::Sealed {
                self.segments.seal(id, Version(0));
            }
        }
        log.blank.iter().for_each(|id| self.segments.add_free(*id, false));
        Ok(())
    }

    /// The records that count: of each key the newest.
    fn newest(&self, mut found: Vec<Found>, clear: Version) -> Result<Vec<(u64, Link)>> {
        if !sites::RECOVER_CLEAR.disabled() {
            found.retain(|record| record.version >= clear);
        }
        if sites::RECOVER_NEWEST.disabled() {
            found.sort_by_key(|record| (record.hash, std::cmp::Reverse(record.version)));
        } else {
            found.sort_by_key(|record| (record.hash, record.version));
        }
        let mut newest = Vec::new();
        let mut group: Vec<Found> = Vec::new();
        for record in found {
            if group.first().is_none_or(|first| first.hash != record.hash) {
                newest.extend(group.drain(..).map(|record| (record.hash, record.link)));
            }
            if record.collides && !group.is_empty() {
                // R4: compare keys.
                let fetched = self.read_record(record.link)?;
                let mut kept = Vec::with_capacity(group.len() + 1);
                for other in group.drain(..) {
                    if self.read_record(other.link)?.record().key != fetched.record().key {
                        kept.push(other);
                    }
                }
                group = kept;
            } else {
                group.clear();
            }
            group.push(record);
        }
        newest.extend(group.drain(..).map(|record| (record.hash, record.link)));
        Ok(newest)
    }
}
