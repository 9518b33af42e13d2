//! Reading a checkpoint back, as far as it still stands.
//!
//! # Concurrency
//! None: nobody knows the store yet.
//!
//! # Failure
//! Writes nothing.

use super::super::layout::Layout;
use super::super::recover::Scanned;
use super::super::scan::Source;
use super::super::segments::Live;
use super::super::sites;
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence};
use esker_base::{ErrorKind, Result};
use esker_format::depot::{
    Batch, BatchKind, CheckpointEnd, CheckpointExtents, SegmentHeader, Stream, take_part,
};
use esker_index::{Directory, Link};
use std::collections::{BTreeMap, HashMap};

/// How far a checkpoint covers each segment of the log: only in the incarnation that it knew.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Covers {
    /// Bytes by segment; [`ALL`] of one that was full.
    bytes: Vec<u64>,
    /// What came next in each stream: fresh, warm, cold.
    next: [Sequence; 3],
}

/// More than the size of any segment.
const ALL: u64 = u64::MAX;

impl Covers {
    fn new(layout: &Layout, end: &CheckpointEnd, headers: &[SegmentHeader]) -> Self {
        let of_log = headers.iter().filter(|header| header.stream != Stream::Checkpoint);
        let epochs: HashMap<SegmentId, SegmentEpoch> =
            of_log.map(|header| (header.segment_id, header.epoch)).collect();
        let mut covers = vec![0; usize::try_from(layout.segment_count).unwrap_or(0)];
        for segment in &end.segments {
            let stands = epochs.get(&segment.id) == Some(&segment.epoch)
                || sites::CHECKPOINT_STANDS.disabled();
            let full = segment.covered_bytes >= layout.segment_size;
            if let Some(covered) = covers.get_mut(place_of(segment.id)).filter(|_| stands) {
                *covered = if full { ALL } else { segment.covered_bytes };
            }
        }
        let [warm, cold] = end.moved;
        Covers { bytes: covers, next: [Sequence(end.next_version.0), warm, cold] }
    }

    /// Bytes of a segment, from its start, that are covered.
    pub(in super::super) fn of(&self, id: SegmentId) -> u64 {
        self.bytes.get(place_of(id)).copied().unwrap_or(0)
    }

    /// Whether all of a segment is covered, whatever it ends with.
    pub(in super::super) fn all_of(&self, id: SegmentId) -> bool {
        self.of(id) == ALL
    }

    /// Whether a segment's log ends before what is covered: then it must not go on there.
    pub(in super::super) fn is_behind(&self, segment: &Scanned) -> bool {
        let id = segment.header.segment_id;
        !segment.end.sealed
            && !self.all_of(id)
            && segment.end.position < self.of(id)
            && !sites::CHECKPOINT_STANDS.disabled()
    }

    /// How far all of a segment that was open was part of its log, and the number that came next there.
    pub(in super::super) fn reach(&self, id: SegmentId, stream: Stream) -> (u64, Sequence) {
        let covered = if self.all_of(id) { 0 } else { self.of(id) };
        (covered, self.next_of(stream))
    }

    fn next_of(&self, stream: Stream) -> Sequence {
        match stream {
            Stream::Fresh => self.next[0],
            Stream::Warm => self.next[1],
            Stream::Cold | Stream::Checkpoint => self.next[2],
        }
    }

    /// The number that came next at the end of what is covered, of a segment whose log ends earlier: if it has fewer records, some
    /// are missing (P3), else only the mark of a clean end.
    pub(in super::super) fn due(&self, segment: &Scanned) -> Option<Sequence> {
        self.is_behind(segment).then(|| self.next_of(segment.header.stream))
    }

    /// The segment of a link whose record is covered.
    pub(in super::super) fn segment_of(&self, layout: &Layout, link: Link) -> Option<SegmentId> {
        let offset = layout.offset_of(link);
        let id = layout.segment_of(offset)?;
        (offset - layout.segment_offset(id) < self.of(id)).then_some(id)
    }
}

/// A checkpoint that was read.
#[derive(Debug)]
pub(in super::super) struct Loaded {
    pub(in super::super) end: CheckpointEnd,
    pub(in super::super) covers: Covers,
    /// Where it stands.
    pub(in super::super) segments: Vec<SegmentId>,
    /// What it says of each segment's records.
    pub(in super::super) live: Vec<Live>,
    /// Entries that are no tombstones.
    pub(in super::super) items: u64,
    pub(in super::super) large: Vec<CheckpointExtents>,
}

impl Loaded {
    /// Everything that it covers was cleared.
    pub(in super::super) fn clear(&mut self) {
        self.live.clear();
        self.items = 0;
        self.large.clear();
    }

    fn take(&mut self, layout: &Layout, link: Link) -> bool {
        let Some(id) = self.covers.segment_of(layout, link) else { return false };
        if let Some(live) = self.live.get_mut(place_of(id)) {
            *live += Live::of(link);
        }
        self.items += u64::from(!link.is_tombstone());
        true
    }
}

/// What is known of checkpoints: how far the newest one covers the log, be it whole or not, and the newest one that is whole,
/// with its index. `lenient`: only if that is the newest one.
///
/// # Errors
/// What a failing device says.
pub(in super::super) fn newest(
    source: &Source<'_>,
    headers: &[SegmentHeader],
    lenient: bool,
) -> Result<(Covers, Option<(Loaded, Directory)>)> {
    let mut groups: BTreeMap<SegmentEpoch, Vec<&SegmentHeader>> = BTreeMap::new();
    for header in headers.iter().filter(|header| header.stream == Stream::Checkpoint) {
        groups.entry(header.session_epoch).or_default().push(header);
    }
    let mut known = None;
    for mut of in groups.into_values().rev() {
        of.sort_by_key(|header| header.epoch);
        let end = match read_end(source, &of) {
            Ok(Some(end)) => end,
            Ok(None) => continue,
            // How far the log was covered nobody knows then: an open must.
            Err(error) if lenient && error.kind() == ErrorKind::Io => break,
            Err(error) => return Err(error),
        };
        let covers = Covers::new(source.layout, &end, headers);
        known.get_or_insert_with(|| covers.clone());
        match load(source, &of, end, covers) {
            Ok(Some(loaded)) => return Ok((known.unwrap_or_default(), Some(loaded))),
            Err(error) if error.kind() == ErrorKind::Io => {
                tracing::warn!(%error, "a checkpoint cannot be read: the log has what it says");
            }
            Err(error) => return Err(error),
            Ok(None) => {}
        }
        // A repair does without: it knows less of what is lost then.
        if lenient {
            break;
        }
    }
    Ok((known.unwrap_or_default(), None))
}

/// The end of the checkpoint in these segments.
fn read_end(source: &Source<'_>, of: &[&SegmentHeader]) -> Result<Option<CheckpointEnd>> {
    let mut end = None;
    if let Some(last) = of.last() {
        source.batches(last.segment_id, last.salt, &mut |batch| {
            if batch.header.kind == BatchKind::CheckpointEnd {
                end = CheckpointEnd::decode(batch.payload).ok();
            }
        })?;
    }
    Ok(end)
}

/// Reads a checkpoint, if it is whole (P2).
fn load(
    source: &Source<'_>,
    of: &[&SegmentHeader],
    end: CheckpointEnd,
    covers: Covers,
) -> Result<Option<(Loaded, Directory)>> {
    // An entry takes eight bytes: damage that passes its checks asks for no more than there is room for.
    let room = of.len() as u64 * source.layout.segment_size / 8;
    let index = Directory::with_capacity(end.entries.min(room));
    let mut loaded = Loaded {
        live: vec![Live::default(); usize::try_from(source.layout.segment_count).unwrap_or(0)],
        end,
        covers,
        segments: of.iter().map(|header| header.segment_id).collect(),
        items: 0,
        large: Vec::new(),
    };
    let (mut batches, mut entries) = (0, 0);
    let mut whole = true;
    for header in of {
        source.batches(header.segment_id, header.salt, &mut |batch| {
            if batch.header.kind == BatchKind::CheckpointEnd || !whole {
                return;
            }
            whole = batch.header.first_sequence == Sequence(batches);
            batches += 1;
            match take(&mut loaded, source.layout, &index, batch) {
                Some(taken) if whole => entries += taken,
                _ => whole = false,
            }
        })?;
    }
    let whole = whole && batches == loaded.end.batches && entries == loaded.end.entries;
    Ok(whole.then_some((loaded, index)))
}

/// Takes what a batch holds; gives the number of its entries.
fn take(loaded: &mut Loaded, layout: &Layout, index: &Directory, batch: &Batch<'_>) -> Option<u64> {
    let mut rest = batch.payload;
    let mut entries = 0;
    if batch.header.kind == BatchKind::CheckpointExtents {
        while let Some(value) = CheckpointExtents::take(&mut rest).ok()? {
            loaded.large.push(value);
        }
    } else {
        while let Some(part) = take_part(&mut rest).ok()? {
            entries += index.import(part, |link| loaded.take(layout, link)).ok()?;
        }
    }
    Some(entries)
}

fn place_of(id: SegmentId) -> usize {
    usize::try_from(id.0).unwrap_or(usize::MAX)
}
