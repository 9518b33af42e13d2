//! Repair: a damaged store becomes a sound one that holds all that can still be read.
//!
//! Of a segment whose log is damaged, what stands before and behind the damage is taken, and the whole
//! records of damaged batches ([`super::whole`]). What the device refuses to read, and not for a while only, is damage, too
//! (`ReadableDevice`). Then every record that counts is read. Those that are
//! damaged go: the note of an eviction takes the place of each, so that no older value of its key comes
//! back. Segments with damage are emptied by the cleaner's means, and their headers made invalid. Until then nobody takes them, also those
//! that hold nothing: what was moved there would go with the header.
//!
//! A damaged record that stands in no summary, and in no checkpoint under the key that it shows, is not
//! known by name. The key that was written there, or deleted, may show an older value, or be gone.
//! Records of an atomic batch count one by one.
//!
//! # Concurrency
//! None: the store is open for the repair alone.
//!
//! # Failure
//! Copies and notes are durable before a header goes, so a crash or an error leaves a store that can
//! be repaired again.

use super::clean::Cleaner;
use super::moves::Move;
use super::segments::{Incarnation, Use};
use super::{Depot, sites, spread};
use crate::check::RepairReport;
use crate::engine::Engine;
use crate::options::Options;
use esker_base::ids::{SegmentId, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::depot::{RecordKind, RecordMeta, Stream, SummaryRecord, encode_evicted};
use esker_index::Link;
use esker_media::{BlockDevice, Refused};
use std::collections::HashSet;
use std::sync::Arc;

/// Repairs the store on `device`, which is one, or consists of such, that shows what is `refused`.
///
/// # Errors
/// `Corrupted` if neither superblock is whole, `NoSpace` if there is no room to move what is left,
/// `UnsupportedFormat`, `Io` if the device fails, and not a place of it, or if there are places that it does not take either: then
/// the rest is repaired.
pub(crate) fn repair(
    device: Arc<dyn BlockDevice>,
    refused: &Refused,
    options: &Options,
) -> Result<RepairReport> {
    let options = Options { format: false, create: false, ..options.clone() };
    let (depot, damaged) = Depot::open_as(device, &options, Some(refused))?;
    let hiding = damaged.iter().filter(|damage| damage.hides).count();
    let mut report = RepairReport { damaged_segments: hiding as u64, ..Default::default() };
    let lost = depot.find_lost(&mut report)?;
    // All that is moved was read.
    refused.know();
    let mut cleaner = depot.cleaner.lock();
    let with_header = damaged.iter().filter(|damage| !damage.headless);
    let mut mended: Vec<SegmentId> = with_header.map(|damage| damage.segment).collect();
    mended.extend(lost.segments.iter().copied());
    mended.sort_unstable();
    mended.dedup();
    depot.leave_log(&mended)?;
    let mut mended: Vec<(SegmentId, Incarnation)> =
        mended.into_iter().map(|id| (id, depot.segments.incarnation(id))).collect();
    // Those that hold nothing first: they give room, and need none.
    mended.sort_by_key(|(id, _)| depot.segments.live_records(*id) > 0);
    for (id, of) in mended {
        // What went free with another one may be in use again, and holds nothing of what it was.
        if depot.segments.incarnation(id) == of {
            depot.mend(&mut cleaner, (id, of), &lost.links, &mut report)?;
        }
    }
    // Copies of what counts, maybe damaged, stand in free segments: recovery may prefer either.
    depot.blank_stale()?;
    // What stood in the blocks that are lost counts no more: an open may read them.
    let (blocks, left) = refused.write_anew(sites::BLANK_WRITE, sites::BLANK_FLUSH)?;
    if blocks > 0 {
        tracing::warn!(blocks, "blocks that the device refused to read were written anew");
    }
    drop(cleaner);
    Engine::close(&*depot)?;
    let left = left.max(depot.segments.withheld());
    if left > 0 {
        let RepairReport { damaged_segments, records_lost, records_moved, .. } = report;
        let words = format!(
            "{left} blocks can be neither read nor written: the rest is repaired ({damaged_segments} damaged segments, {records_lost} records lost, {records_moved} moved), and is to go to another device"
        );
        return Err(Error::new(ErrorKind::Io, "repair store").context(words));
    }
    Ok(report)
}

/// Records that count and cannot be read.
#[derive(Default)]
struct Lost {
    links: HashSet<Link>,
    segments: HashSet<SegmentId>,
}

impl Depot {
    /// The clients' log goes on elsewhere if it ends in one of these segments, and before their headers go, another one says which versions
    /// were given and what was cleared.
    fn leave_log(&self, mended: &[SegmentId]) -> Result<()> {
        {
            let mut state = self.log.lock();
            state.tail = state.tail.filter(|tail| !mended.contains(&tail.segment));
        }
        self.reserve_versions()
    }

    /// Reads all records that count.
    fn find_lost(&self, report: &mut RepairReport) -> Result<Lost> {
        let mut lost = Lost::default();
        let used: Vec<SegmentId> = self.segments.in_use().collect();
        for id in used {
            if self.is_broken(id)? {
                lost.segments.insert(id);
            }
            let live = self.live_records(id, self.segments.incarnation(id))?;
            if live.len() < usize::try_from(self.segments.live_records(id)).unwrap_or(0) {
                let words = format!("not all that was found in segment {} is there now", id.0);
                return Err(Error::new(ErrorKind::Io, "repair store").context(words));
            }
            for (record, link) in live {
                report.records += 1;
                if self.is_readable(&record, link)? {
                    continue;
                }
                // Of a large value that lacks a piece nothing is kept.
                let head = match record.kind {
                    RecordKind::Extent => self.extents.head(record.piece.id),
                    _ => None,
                };
                for link in [Some(link), head].into_iter().flatten() {
                    lost.segments.extend(self.layout.segment_of(self.layout.offset_of(link)));
                    lost.links.insert(link);
                }
            }
        }
        Ok(lost)
    }

    /// Whether a segment's log does not reach as far as it should, be it for damage to what does not
    /// count any more: a check would name it, and recovery may prefer a damaged copy to a whole one.
    fn is_broken(&self, id: SegmentId) -> Result<bool> {
        let of = self.segments.incarnation(id);
        if of.stream == Stream::Checkpoint {
            return Ok(false);
        }
        let source = self.source(sites::CHECK_READ);
        let end = source.walk(id, of, &mut |_| Ok(()))?;
        if end.sealed {
            return Ok(false);
        }
        let over = self.repair.as_ref().map(|known| known.over(id, of.stream));
        let behind = source.walk_over(id, of, over, &mut |_| Ok(()))?;
        // A trailer says that it was full, also if the summary is damaged that it tells of.
        Ok(behind.position > end.position || source.trailer(id, of)?.is_some())
    }

    fn is_readable(&self, record: &SummaryRecord, link: Link) -> Result<bool> {
        let read = self.read_record(link).and_then(|fetched| match record.kind {
            RecordKind::Large => self.check_extents(&fetched),
            _ => Ok(()),
        });
        match read {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                tracing::warn!(%error, "a record is lost");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Moves what is whole out of a segment, with notes in place of the rest.
    fn mend(
        &self,
        cleaner: &mut Cleaner,
        (id, of): (SegmentId, Incarnation),
        lost: &HashSet<Link>,
        report: &mut RepairReport,
    ) -> Result<()> {
        let mut moving = Move::new(&self.pool, &self.layout, cleaner.mover_from(of.stream));
        let copied = self.live_records(id, of)?.iter().try_for_each(|(record, link)| {
            let head = match record.kind {
                RecordKind::Extent => self.extents.head(record.piece.id),
                _ => None,
            };
            let gone = [Some(*link), head].into_iter().flatten().find(|link| lost.contains(link));
            match (record.kind, gone) {
                (_, None) => {
                    report.records_moved += 1;
                    self.copy_records(&mut moving, id, of, &[(*record, *link)])
                }
                // The head's note is all that is written.
                (RecordKind::Extent, Some(_)) => Ok(()),
                (_, Some(_)) => {
                    report.records_lost += 1;
                    let kind = RecordKind::Evict;
                    let meta = RecordMeta { version: record.version, ..RecordMeta::new(kind) };
                    let note = encode_evicted(record.hash);
                    self.add_moved(&mut moving, spread(record.hash), &meta, &note, &[], *link)
                }
            }
        });
        let (moved, durable) = self.end_move(moving, copied);
        for moved in moved {
            if durable.is_err() || !self.follow(id, of, &moved) {
                self.segments.remove(moved.to, moved.new, Version(0));
            }
        }
        durable?;
        self.blank_header(id)?;
        if self.segments.state(id) != Use::Free {
            // It held nothing, or was the log's.
            self.segments.seal(id);
        }
        self.segments.set_aside(id, of.epoch);
        self.segments.forget_header(id, of.epoch);
        Ok(())
    }
}
