//! Whole records of damaged batches, which a repair takes.
//!
//! A record has a checksum of its own, bound to its place in this incarnation of the segment. So of a batch that does not
//! validate every record that does is taken, wherever it begins: behind the record before it, where the header of a damaged
//! one says that the next one begins, or at the next grain where one is found.
//!
//! # Invariants
//! - W1: only what was part of the log is looked through: what stands between two batches of one session, or in front of a
//!   barrier, or of the end that a checkpoint covered. What stands behind all of them may be a tail that a crash tore.
//! - W2: of clients' records, only those with versions that are missing there. What lies between batches of the log was
//!   overwritten by the log, so older sessions have left nothing; the versions say the same once more.
//! - W3: what a damaged record says of its key is believed only if the index of a checkpoint has that key there.
//!
//! # Concurrency
//! None: the store is open for the repair alone.
//!
//! # Failure
//! Reads only.

use super::checkpoint::load::Covers;
use super::layout::Layout;
use super::scan::{Source, Step, form_of};
use super::segments::Incarnation;
use super::spread;
use esker_base::Result;
use esker_base::ids::{SegmentId, Sequence, Version};
use esker_format::depot::{BATCH_HEADER_SIZE, Place, Record, RecordKind, Stream, SummaryRecord};
use esker_index::Directory;
use std::ops::Range;

/// What a repair knows from the newest checkpoint.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// How far it covers the log.
    pub(super) covers: Covers,
    /// Its index, if it is whole, and the version that was next.
    pub(super) index: Option<(Directory, Version)>,
}

/// How far a walk goes on over damage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    /// Offset in the segment up to which all was part of the log, and the number that was next there; 0 if nobody knows.
    pub(super) reach: u64,
    pub(super) next: Sequence,
}

/// What stands in a segment in place of batches of the log.
#[derive(Clone, Debug)]
pub(super) struct Hole {
    /// Offsets in the segment.
    pub(super) bytes: Range<u64>,
    /// Numbers of the records that are missing.
    pub(super) missing: Range<Sequence>,
}

impl Known {
    pub(super) fn over(&self, id: SegmentId, stream: Stream) -> Over {
        let (reach, next) = self.covers.reach(id, stream);
        Over { reach, next }
    }

    /// Whether a damaged record is what it says it is (W3).
    pub(super) fn confirms(&self, layout: &Layout, base: u64, record: &SummaryRecord) -> bool {
        let Some((index, next_version)) = &self.index else { return false };
        let link = layout.link(record.kind, base + record.offset, record.size_bytes);
        let stands = |link| index.lookup(spread(record.hash)).iter().any(|found| found == link);
        record.version < *next_version && link.is_some_and(stands)
    }
}

impl Source<'_> {
    /// Gives the whole records of a hole to `visit`, and damaged ones that begin where a record must.
    pub(super) fn walk_hole(
        &self,
        of: Incarnation,
        base: u64,
        hole: &Hole,
        visit: &mut dyn FnMut(Step<'_>) -> Result<()>,
    ) -> Result<()> {
        let size = usize::try_from(hole.bytes.end.saturating_sub(hole.bytes.start)).unwrap_or(0);
        let mut buffer = self.pool.get(size);
        self.read(base + hole.bytes.start, &mut buffer)?;
        let grain = usize::try_from(self.layout.grain).unwrap_or(1);
        let mut at = BATCH_HEADER_SIZE;
        // The version that a client's record has which begins here, where one must.
        let mut due = Some(Version(hole.missing.start.0));
        while let Some(bytes) = buffer.get(at..).filter(|bytes| !bytes.is_empty()) {
            let offset = base + hole.bytes.start + at as u64;
            if let Some(record) = self.whole(of, hole, bytes, offset) {
                visit(Step::Record(&record, offset))?;
                due = Some(Version(record.meta.version.0.saturating_add(1)));
                at = (at + record.size_bytes).next_multiple_of(grain);
                continue;
            }
            if let Some(due) = due.take()
                && let Some(record) = claimed(of, hole, bytes)
                && record.meta.kind != RecordKind::Clear
                && (of.stream != Stream::Fresh || record.meta.version == due)
            {
                visit(Step::Damaged(&record, offset))?;
                let next = (at + record.size_bytes).next_multiple_of(grain);
                let behind = buffer.get(next..).unwrap_or(&[]);
                if self.whole(of, hole, behind, offset + (next - at) as u64).is_some() {
                    at = next;
                    continue;
                }
            }
            at += grain;
        }
        Ok(())
    }

    /// The record at the start of `bytes`, if there is one that passes its checks.
    fn whole<'a>(
        &self,
        of: Incarnation,
        hole: &Hole,
        bytes: &'a [u8],
        offset: u64,
    ) -> Option<Record<'a>> {
        claimed(of, hole, bytes)?;
        let place = Place { salt: of.salt, offset };
        Record::decode(bytes, Version(of.base.0), Some(place)).ok()
    }
}

/// What a record at the start of `bytes` says, unchecked, if it may have stood in the hole (W2).
fn claimed<'a>(of: Incarnation, hole: &Hole, bytes: &'a [u8]) -> Option<Record<'a>> {
    // What most places have at once: no record takes its checksum there.
    if Record::peek_form(bytes) != Some(form_of(of.stream)) {
        return None;
    }
    let record = Record::decode(bytes, Version(of.base.0), None).ok()?;
    let missing =
        of.stream != Stream::Fresh || hole.missing.contains(&Sequence(record.meta.version.0));
    missing.then_some(record)
}
