//! `check`: everything on media against the index.

use super::scan::{Source, Step};
use super::segments::{Incarnation, Use};
use super::{Depot, sites};
use crate::check::CheckReport;
use esker_base::Result;
use esker_base::ids::{SegmentEpoch, SegmentId};
use esker_format::depot::{RecordKind, SegmentHeader, Stream};
use esker_index::Link;
use std::collections::HashMap;

/// Where the log of a segment ends too early.
struct Damage {
    position: u64,
    /// It is no segment that the cleaner may leave unfinished.
    is_full: bool,
    /// There was more: it is no segment that its session left unfinished.
    is_certain: bool,
}

impl Depot {
    /// Reads all records that the index knows and all batches of all segments, while writes go on.
    pub(super) fn check_store(&self) -> CheckReport {
        let mut report = CheckReport::default();
        let mut cursor = 0;
        // The last record in each segment that counts.
        let mut last: HashMap<SegmentId, Link> = HashMap::new();
        loop {
            let generation = self.segments.generation();
            let Some((links, next)) = self.index.walk(cursor) else { break };
            for link in links {
                self.check_link(link, generation, &mut report);
                let offset = self.layout.offset_of(link);
                if let Some(segment) = self.layout.segment_of(offset) {
                    let last = last.entry(segment).or_insert(link);
                    if link.grain() > last.grain() {
                        *last = link;
                    }
                }
            }
            cursor = next;
        }
        for index in 0..self.layout.segment_count {
            let id = SegmentId(index);
            self.check_segment(id, last.get(&id).copied(), &mut report);
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
    fn standing(&self, id: SegmentId) -> (Use, SegmentEpoch) {
        (self.segments.state(id), self.segments.epoch(id))
    }

    /// `last` was the last record that counts here.
    fn check_segment(&self, id: SegmentId, last: Option<Link>, report: &mut CheckReport) {
        let standing = self.standing(id);
        let (used, epoch) = standing;
        let mut damage = self.find_damage(id, epoch, report);
        // What counts stands in the log, or else the next recovery does not find it; but for what is in memory only.
        let last = last.filter(|_| used != Use::Open || !self.writes_later());
        if let (Ok(Some(damage)), Some(last)) = (&mut damage, last) {
            let position = self.layout.offset_of(last) - self.layout.segment_offset(id);
            damage.is_certain |= position >= damage.position && self.is_indexed(last);
        }
        if self.standing(id) != standing {
            return;
        }
        match damage {
            Ok(Some(Damage { position, is_full, is_certain }))
                if is_certain || used == Use::Sealed && is_full && self.live_in(id) =>
            {
                let offset = self.layout.segment_offset(id) + position;
                report.problem(format!("segment {id} is damaged at device offset {offset}"));
            }
            Ok(_) => {}
            Err(error) => report.problem(error.to_string()),
        }
    }

    /// Whether a segment's log went on in another one: then it was sealed, or all of it was written.
    fn is_followed(&self, source: &Source<'_>, header: &SegmentHeader) -> Result<bool> {
        for index in 0..self.layout.segment_count {
            let Some(other) = source.header(self.superblock.store_id, SegmentId(index))? else {
                continue;
            };
            let follows = other.epoch > header.epoch
                && other.stream == header.stream
                && (header.stream == Stream::Fresh || other.session_epoch == header.session_epoch);
            if follows {
                let of = Incarnation::from(&other);
                if source.walk(SegmentId(index), of, &mut |_| Ok(()))?.batches > 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reads all batches of a segment; returns where in it they end, if that is not where the batches
    /// of a full one do, or if what stands behind says that there were more.
    fn find_damage(
        &self,
        id: SegmentId,
        epoch: SegmentEpoch,
        report: &mut CheckReport,
    ) -> Result<Option<Damage>> {
        let source = self.source(sites::CHECK_READ);
        let at = |position, is_full, is_certain| Ok(Some(Damage { position, is_full, is_certain }));
        let store_id = self.superblock.store_id;
        let (header, mut damaged) = source.header_and_damage(store_id, id)?;
        if damaged.is_some() {
            // Unless it was being written.
            damaged = source.header_and_damage(store_id, id)?.1;
        }
        if let Some(offset) = damaged {
            report.problem(format!(
                "a copy of the header of segment {id} is damaged at device offset {offset}: the next open writes it anew"
            ));
        }
        let Some(header) = header else {
            // One that is being evicted has no header any more.
            return if self.superblock.cache { Ok(None) } else { at(0, true, false) };
        };
        let of = Incarnation::from(&header);
        // How far the clients' log reaches here, if all of it was written.
        let written = {
            let state = self.log.lock();
            let is_still = state.in_flight.is_none() && state.failure.is_none();
            let is_still = is_still && !self.writes_later();
            state.tail.filter(|tail| is_still && tail.segment == id).map(|tail| tail.position)
        };
        let end = source.walk(id, of, &mut |step| {
            if let Step::Record(record, _) = step {
                report.bytes += record.size_bytes as u64;
            }
            Ok(())
        })?;
        report.batches += end.batches;
        if header.epoch != epoch {
            return at(0, true, false);
        }
        if end.sealed || header.stream == Stream::Checkpoint {
            return Ok(None);
        }
        // A crash leaves the cleaner's open segments as they are. What the next recovery would miss, it
        // would refuse the store for, be it of records that count or not.
        let mut is_certain = source.durable_behind(id, of.salt, &end)? > end.next
            || written.is_some_and(|written| end.position < written)
            || end.batches > 0 && self.is_followed(&source, &header)?;
        if is_certain {
            // Unless that came meanwhile.
            let again = source.walk(id, of, &mut |_| Ok(()))?;
            is_certain = !again.sealed && again.position == end.position;
        }
        at(end.position, header.stream == Stream::Fresh, is_certain)
    }
}
