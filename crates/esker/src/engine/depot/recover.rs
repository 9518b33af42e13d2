//! Recovery: the index from the log (uDepot §4.4).
//!
//! Reads the summaries of full segments and the batches of the others, in any order and by several
//! threads, and decides per key by version. Writes nothing: recovering twice gives the same store.
//! The first batch of the new session starts with a barrier that cuts off what may lie behind the
//! end of the log.
//!
//! # Invariants
//! - R1: the newest record of a key wins, whatever the order in which segments are read.
//! - R2: in each stream (for the cleaner's: of one session), every segment before the last one with
//!   batches ends in a summary; the flush before a new segment's first batch made it so. Anything
//!   else is damage.
//! - R3: what lies below the committed point of its stream (`durable_sequence` of any valid batch) is
//!   there, or recovery says what is missing; only what lies above it may be dropped as torn.
//! - R4: two records are taken for one key's by equal hashes only if neither is marked: the writer
//!   compared the keys and marked the record if another key with the hash had a value.
//! - R5: two records with one version are copies: the cleaner moved one. Either counts.
//!
//! # Concurrency
//! Threads take segments from a counter, then shares of the hash space; in a simulation there is
//! one. Nothing is shared with clients until the end.

use super::commit::LogEnd;
use super::place::{Tail, link_bytes, link_to};
use super::scan::{SegmentEnd, Source, Step};
use super::segments::{Incarnation, Use};
use super::{Depot, sites, spread};
use crate::options::Progress;
use esker_base::hash::KeyHasher;
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, Version};
use esker_base::{Error, Result};
use esker_format::depot::{
    GRAIN_SIZE_BYTES, RecordKind, RecordMeta, SegmentHeader, Stream, SummaryRecord, Superblock,
    push_batch, push_record,
};
use esker_index::Link;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shares of the hash space, each sorted by itself.
const SHARES: usize = 64;
/// Most threads of a recovery.
const THREADS_MAX: usize = 8;

/// A record that was found in the log.
#[derive(Clone, Copy, Debug)]
struct Found {
    hash: u64,
    /// Version, and whether the record is marked in the lowest bit.
    order: u64,
    link: Link,
}

impl Found {
    fn version(self) -> Version {
        Version(self.order >> 1)
    }

    fn collides(self) -> bool {
        self.order & 1 != 0
    }
}

/// A segment with a valid header.
#[derive(Clone, Debug)]
struct Scanned {
    header: SegmentHeader,
    end: SegmentEnd,
    /// Bytes of records, as the segment table counts them.
    written_bytes: u64,
    /// The summary that a segment without one would get.
    summary: Vec<u8>,
}

/// What the log holds.
#[derive(Debug)]
pub(super) struct Recovered {
    /// By share of the hash space.
    found: Vec<Mutex<Vec<Found>>>,
    /// Segments in use, by epoch.
    segments: Vec<Scanned>,
    blank: Vec<SegmentId>,
    clear_version: Version,
    threads: usize,
}

/// What one thread gathers.
#[derive(Default)]
struct Gathered {
    segments: Vec<Scanned>,
    blank: Vec<SegmentId>,
    clear_version: Version,
}

/// What a scan works with.
struct Scan<'a> {
    source: &'a Source<'a>,
    superblock: &'a Superblock,
    hasher: &'a KeyHasher,
    progress: &'a Progress,
    next: AtomicU32,
    found: Vec<Mutex<Vec<Found>>>,
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
        let threads = match std::thread::available_parallelism() {
            _ if esker_trt::sim::is_active() => 1,
            Ok(cores) => cores.get().min(THREADS_MAX),
            Err(_) => 1,
        };
        let scan = Scan {
            source,
            superblock,
            hasher,
            progress,
            next: AtomicU32::new(0),
            found: (0..SHARES).map(|_| Mutex::default()).collect(),
        };
        let mut all = Gathered::default();
        for gathered in on_threads(threads, || scan.gather())? {
            all.segments.extend(gathered.segments);
            all.blank.extend(gathered.blank);
            all.clear_version = all.clear_version.max(gathered.clear_version);
        }
        all.segments.sort_by_key(|segment| segment.header.epoch);
        all.blank.sort();
        let log = Recovered {
            found: scan.found,
            segments: all.segments,
            blank: all.blank,
            clear_version: all.clear_version,
            threads,
        };
        log.check_ends(source)?;
        Ok(log)
    }

    /// Number of records that were found, dead ones among them.
    pub(super) fn records(&self) -> u64 {
        self.found.iter().map(|share| share.lock().len() as u64).sum()
    }

    fn of_stream(&self, stream: Stream) -> impl DoubleEndedIterator<Item = &Scanned> {
        self.segments.iter().filter(move |segment| segment.header.stream == stream)
    }

    /// R2 and R3.
    fn check_ends(&self, source: &Source<'_>) -> Result<()> {
        if sites::COMMITTED_POINT.disabled() {
            return Ok(());
        }
        for (place, Scanned { header, end, .. }) in self.segments.iter().enumerate() {
            if end.sealed {
                continue;
            }
            let (id, salt) = (header.segment_id, header.salt);
            // The clients' log goes on over sessions; the cleaner starts new segments in each. An empty
            // segment is one whose first batch never came; the log may have gone on in the one before.
            let follows = |later: &Scanned| {
                later.end.batches > 0
                    && later.header.stream == header.stream
                    && (header.stream == Stream::Fresh
                        || later.header.session_epoch == header.session_epoch)
            };
            let later = self.segments.get(place + 1..).unwrap_or(&[]);
            let cut_short = end.batches > 0 && later.iter().any(follows);
            let durable = end.durable.max(source.durable_behind(id, salt, end)?);
            if durable > end.next || cut_short {
                let offset = source.layout.segment_offset(id) + end.position;
                let next = end.next;
                let words =
                    format!("records from number {next} on are missing, which were durable");
                return Err(Error::corrupted("recover store", words)
                    .device(source.device.name())
                    .at(offset, source.layout.block));
            }
        }
        Ok(())
    }

    fn last(&self) -> Option<&Scanned> {
        self.of_stream(Stream::Fresh).rev().find(|segment| segment.end.batches > 0)
    }

    /// Where the clients' log goes on.
    pub(super) fn log_end(&self) -> LogEnd {
        let last = self.last();
        let highest = self.segments.last().map_or(0, |segment| segment.header.epoch.0);
        let open = last.filter(|last| !last.end.sealed);
        let given = self.segments.iter().map(|segment| segment.header.next_version).max();
        LogEnd {
            tail: open.map(|last| Tail {
                segment: last.header.segment_id,
                position: last.end.position,
                salt: last.header.salt,
                session: last.end.session,
                base: last.header.first_sequence,
                summary: last.summary.len() as u64,
                barrier_due: true,
            }),
            summary: open.map(|last| last.summary.clone()).unwrap_or_default(),
            next_epoch: SegmentEpoch(highest + 1),
            next_version: Version(last.map_or(1, |last| last.end.next.0))
                .max(self.clear_version)
                .max(given.unwrap_or_default()),
            clear_version: self.clear_version,
        }
    }

    /// Where a stream of the cleaner goes on.
    pub(super) fn next_sequence(&self, stream: Stream) -> Sequence {
        self.of_stream(stream).map(|segment| segment.end.next).max().unwrap_or_default()
    }
}

impl Scan<'_> {
    /// One thread's share of the segments.
    fn gather(&self) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let count = self.superblock.segment_count;
        let mut found: Vec<Vec<Found>> = vec![Vec::new(); SHARES];
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            self.progress.report(u64::from(index), u64::from(count));
            let id = SegmentId(index);
            match self.source.header(self.superblock.store_id, id)? {
                Some(header) if header.stream != Stream::Checkpoint => {
                    gathered.clear_version = gathered.clear_version.max(header.clear_version);
                    let clear = &mut gathered.clear_version;
                    gathered.segments.push(self.segment(header, &mut found, clear)?);
                }
                _ => gathered.blank.push(id),
            }
        }
        for (share, found) in self.found.iter().zip(found) {
            share.lock().extend(found);
        }
        Ok(gathered)
    }

    fn segment(
        &self,
        header: SegmentHeader,
        found: &mut [Vec<Found>],
        clear: &mut Version,
    ) -> Result<Scanned> {
        let (id, of) = (header.segment_id, Incarnation::from(&header));
        let mut segment = Segment {
            source: self.source,
            base: self.source.layout.segment_offset(id),
            found,
            clear,
            written_bytes: 0,
            failure: None,
        };
        let end = self.source.summary(id, of, &mut |record| segment.record(&record))?;
        if let Some(end) = end {
            let written_bytes = segment.written_bytes;
            segment.done()?;
            return Ok(Scanned { header, end, written_bytes, summary: Vec::new() });
        }
        let mut summary = Vec::new();
        let end = self.source.walk(id, of, &mut |step| {
            match step {
                Step::Batch { blocks, header } => {
                    let first = header.first_sequence;
                    push_batch(&mut summary, blocks, header.record_count, first);
                }
                Step::Record(record, offset) => {
                    let RecordMeta { kind, version, collides, .. } = record.meta;
                    let noted = SummaryRecord {
                        hash: self.hasher.hash(record.key),
                        version,
                        offset: offset - segment.base,
                        size_bytes: record.size_bytes as u64,
                        kind,
                        collides,
                    };
                    push_record(&mut summary, super::scan::form_of(of.stream), &noted);
                    segment.record(&noted);
                }
            }
            Ok(())
        })?;
        let written_bytes = segment.written_bytes;
        segment.done()?;
        Ok(Scanned { header, end, written_bytes, summary })
    }
}

/// The segment that a thread reads.
struct Segment<'a> {
    source: &'a Source<'a>,
    base: u64,
    found: &'a mut [Vec<Found>],
    clear: &'a mut Version,
    written_bytes: u64,
    failure: Option<Error>,
}

impl Segment<'_> {
    fn record(&mut self, record: &SummaryRecord) {
        if record.kind == RecordKind::Clear {
            let after = Version(record.version.0.saturating_add(1));
            *self.clear = (*self.clear).max(after);
            return;
        }
        let offset = self.base + record.offset;
        let Some(link) = link_to(record.kind, offset, record.size_bytes) else {
            let words = "a record lies beyond what an index can address";
            self.failure = Some(
                Error::corrupted("recover store", words)
                    .device(self.source.device.name())
                    .at(offset, record.size_bytes),
            );
            return;
        };
        self.written_bytes += link_bytes(link);
        let collides = record.collides && !sites::RECOVER_COLLIDES.disabled();
        let hash = spread(record.hash);
        let found = Found { hash, order: record.version.0 << 1 | u64::from(collides), link };
        if let Some(share) = self.found.get_mut(share_of(hash)) {
            share.push(found);
        }
    }

    fn done(self) -> Result<()> {
        self.failure.map_or(Ok(()), Err)
    }
}

fn share_of(hash: u64) -> usize {
    usize::try_from(hash >> 32).unwrap_or(0) % SHARES
}

/// Runs `work` on several threads, or here if one is enough, and gathers what it returns.
fn on_threads<T: Send>(threads: usize, work: impl Fn() -> Result<T> + Sync) -> Result<Vec<T>> {
    if threads <= 1 {
        return Ok(vec![work()?]);
    }
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        let ended = handles.into_iter().map(|handle| {
            handle.join().unwrap_or_else(|_| {
                Err(Error::corrupted("recover store", "a thread of the recovery panicked"))
            })
        });
        ended.collect()
    })
}

impl Depot {
    /// Fills index and segment table from the log.
    pub(super) fn adopt(&self, log: &Recovered) -> Result<()> {
        let tail = log.log_end().tail.map(|tail| tail.segment);
        for Scanned { header, written_bytes, .. } in &log.segments {
            let id = header.segment_id;
            let state = if Some(id) == tail { Use::Open } else { Use::Sealed };
            self.segments.restore(id, state, Incarnation::from(header));
            self.segments.add_written(id, *written_bytes);
        }
        let next = AtomicU32::new(0);
        on_threads(log.threads, || {
            loop {
                let share = next.fetch_add(1, Ordering::Relaxed);
                let Some(found) = log.found.get(usize::try_from(share).unwrap_or(SHARES)) else {
                    return Ok(());
                };
                let found = std::mem::take(&mut *found.lock());
                self.fold(found, log.clear_version)?;
            }
        })?;
        for segment in &log.segments {
            let id = segment.header.segment_id;
            if self.segments.state(id) == Use::Sealed {
                self.segments.seal(id);
            }
        }
        log.blank.iter().for_each(|id| self.segments.add_free(*id, false));
        Ok(())
    }

    /// Takes in the records that count: of each key the newest.
    fn fold(&self, mut found: Vec<Found>, clear: Version) -> Result<()> {
        if !sites::RECOVER_CLEAR.disabled() {
            found.retain(|record| record.version() >= clear);
        }
        if sites::RECOVER_NEWEST.disabled() {
            found.sort_unstable_by_key(|record| (record.hash, std::cmp::Reverse(record.order)));
        } else {
            found.sort_unstable_by_key(|record| (record.hash, record.order));
        }
        let mut group: Vec<Found> = Vec::new();
        for record in found {
            if group.first().is_some_and(|first| first.hash != record.hash) {
                group.drain(..).for_each(|record| self.take_in(record));
            }
            if record.collides() && !group.is_empty() {
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
        group.drain(..).for_each(|record| self.take_in(record));
        Ok(())
    }

    fn take_in(&self, record: Found) {
        let segment = self.layout.segment_of(record.link.grain() * GRAIN_SIZE_BYTES);
        self.segments.restore_live(segment.unwrap_or_default(), link_bytes(record.link));
        self.index.insert(record.hash, record.link);
        self.count_items(None, record.link);
    }
}
