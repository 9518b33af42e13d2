//! `check`: everything on media against the index.

use super::scan::Step;
use super::segments::{Incarnation, Use};
use super::{Depot, sites};
use crate::check::CheckReport;
use esker_base::Result;
use esker_base::ids::{SegmentEpoch, SegmentId};
use esker_format::depot::{RecordKind, Stream};
use esker_index::Link;

impl Depot {
    /// Reads all records that the index knows and all batches of all segments, while writes go on.
    pub(super) fn check_store(&self) -> CheckReport {
        let mut report = CheckReport::default();
        let mut cursor = 0;
        loop {
            let generation = self.segments.generation();
            let Some((links, next)) = self.index.walk(cursor) else { break };
            links.into_iter().for_each(|link| self.check_link(link, generation, &mut report));
            cursor = next;
        }
        for index in 0..self.layout.segment_count {
            self.check_segment(SegmentId(index), &mut report);
        }
        report
    }

    /// Checks what an entry of the index names; it was there in `generation`. What cannot be read is
    /// a problem if no segment was reused since then: else it may have been superseded, and is read
    /// again if it was not.
    fn check_link(&self, link: Link, mut generation: u64, report: &mut CheckReport) {
        loop {
            let read = self.check_record(link, report);
            let Err(error) = read else { break report.records += 1 };
            let now = self.segments.generation();
            if now == generation {
                break report.problem(error.to_string());
            }
            if !self.is_indexed(link) {
                break;
            }
            generation = now;
        }
    }

    /// Reads a record whole, with its extents.
    fn check_record(&self, link: Link, report: &mut CheckReport) -> Result<()> {
        let fetched = self.read_record(link)?;
        let record = fetched.record();
        if record.meta.kind == RecordKind::Large {
            self.check_extents(&fetched)?;
        }
        let listed = self.index.lookup(self.hash_of(&record)).iter().any(|found| found == link);
        if record.meta.kind.is_tombstone() != link.is_tombstone() && listed {
            report.problem(format!("index and record at {} differ in kind", link.grain()));
        } else if !listed && self.is_indexed(link) {
            report.problem(format!("record at {} is under a wrong hash", link.grain()));
        }
        Ok(())
    }

    /// Whether a segment holds anything that the index needs.
    fn live_in(&self, id: SegmentId) -> bool {
        self.segments.live_records(id) > 0
    }

    /// Whether a link that its own hash does not find is in the index all the same.
    fn is_indexed(&self, link: Link) -> bool {
        let mut cursor = 0;
        while let Some((links, next)) = self.index.walk(cursor) {
            if links.contains(&link) {
                return true;
            }
            cursor = next;
        }
        false
    }

    /// Whether a segment is full, and which time it is used: what both are before and after it was
    /// read, it was all the while.
    fn standing(&self, id: SegmentId) -> (bool, SegmentEpoch) {
        (self.segments.state(id) == Use::Sealed, self.segments.epoch(id))
    }

    fn check_segment(&self, id: SegmentId, report: &mut CheckReport) {
        let standing = self.standing(id);
        let (full, epoch) = standing;
        let damage = self.find_damage(id, epoch, report);
        if self.standing(id) != standing {
            return;
        }
        match damage {
            Ok(Some(position)) if full && self.live_in(id) => {
                let offset = self.layout.segment_offset(id) + position;
                report.problem(format!("segment {id} is damaged at device offset {offset}"));
            }
            Ok(_) => {}
            Err(error) => report.problem(error.to_string()),
        }
    }

    /// Reads all batches of a segment; returns where in it they end, if that is not where the batches
    /// of a full one do.
    fn find_damage(
        &self,
        id: SegmentId,
        epoch: SegmentEpoch,
        report: &mut CheckReport,
    ) -> Result<Option<u64>> {
        let source = self.source(sites::CHECK_READ);
        // One that is being evicted has no header any more.
        let Some(header) = source.header(self.superblock.store_id, id)? else { return Ok(None) };
        let end = source.walk(id, Incarnation::from(&header), &mut |step| {
            if let Step::Record(record, _) = step {
                report.bytes += record.size_bytes as u64;
            }
            Ok(())
        })?;
        report.batches += end.batches;
        if header.epoch != epoch {
            return Ok(Some(0));
        }
        // The cleaner leaves its open segments as they are when a store closes or crashes.
        Ok((!end.sealed && header.stream == Stream::Fresh).then_some(end.position))
    }
}
