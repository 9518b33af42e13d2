//! `check`: everything on media against the index.

use super::scan::Step;
use super::segments::{Incarnation, Use};
use super::{Depot, sites};
use crate::check::CheckReport;
use esker_base::Result;
use esker_base::ids::SegmentId;
use esker_format::depot::{RecordKind, Stream};

impl Depot {
    /// Reads all records that the index knows and all batches of all segments, while writes go on.
    pub(super) fn check_store(&self) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        let mut cursor = 0;
        while let Some((links, next)) = self.index.walk(cursor) {
            links.into_iter().for_each(|link| self.check_link(link, &mut report));
            cursor = next;
        }
        for index in 0..self.layout.segment_count {
            self.check_segment(SegmentId(index), &mut report)?;
        }
        Ok(report)
    }

    fn check_link(&self, link: esker_index::Link, report: &mut CheckReport) {
        let generation = self.segments.generation();
        match self.read_record(link) {
            Ok(fetched) => {
                let record = fetched.record();
                let hash = self.hash_of(&record);
                let listed = self.index.lookup(hash).iter().any(|found| found == link);
                let tombstone = record.meta.kind.is_tombstone();
                report.records += 1;
                if record.meta.kind == RecordKind::Large
                    && let Err(error) = self.check_extents(&fetched)
                {
                    report.problem(error.to_string());
                }
                if tombstone != link.is_tombstone() && listed {
                    report.problem(format!("index and record at {} differ in kind", link.grain()));
                } else if !listed && self.is_indexed(link) {
                    report.problem(format!("record at {} is under a wrong hash", link.grain()));
                }
            }
            // A record that was superseded and overwritten meanwhile is no problem.
            Err(_) if self.segments.generation() != generation => {}
            Err(error) => report.problem(error.to_string()),
        }
    }

    /// Whether a segment holds anything that the index needs.
    fn live_in(&self, id: SegmentId) -> bool {
        self.segments.live_records(id) > 0
    }

    /// Whether a link that its own hash does not find is in the index all the same.
    fn is_indexed(&self, link: esker_index::Link) -> bool {
        let mut cursor = 0;
        while let Some((links, next)) = self.index.walk(cursor) {
            if links.contains(&link) {
                return true;
            }
            cursor = next;
        }
        false
    }

    fn check_segment(&self, id: SegmentId, report: &mut CheckReport) -> Result<()> {
        let source = self.source(sites::CHECK_READ);
        let generation = self.segments.generation();
        let Some(header) = source.header(self.superblock.store_id, id)? else { return Ok(()) };
        let epoch = self.segments.epoch(id);
        let end = source.walk(id, Incarnation::from(&header), &mut |step| {
            if let Step::Record(record, _) = step {
                report.bytes += record.size_bytes as u64;
            }
            Ok(())
        });
        let undisturbed =
            self.segments.generation() == generation && self.segments.epoch(id) == epoch;
        match end {
            Ok(end) => {
                report.batches += end.batches;
                // The cleaner leaves its open segments as they are when a store closes or crashes.
                let full = self.segments.state(id) == Use::Sealed && header.stream == Stream::Fresh;
                if undisturbed && full && !end.sealed && self.live_in(id) {
                    let offset = self.layout.segment_offset(id) + end.position;
                    report.problem(format!("segment {id} is damaged at device offset {offset}"));
                }
            }
            Err(_) if !undisturbed => {}
            Err(error) => report.problem(error.to_string()),
        }
        Ok(())
    }
}
