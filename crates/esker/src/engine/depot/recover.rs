//! Recovery: the index from the log, and from a checkpoint what that covers (uDepot §4.4).
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
//! - R3: what lies below the committed point of its stream (`durable_sequence` of any valid batch, and the end of the
//!   clients' log that a checkpoint tells) is there, or recovery says what is missing; only what lies above it may be
//!   dropped as torn.
//! - R4: two records are taken for one key's by equal hashes only if neither is marked: the writer
//!   compared the keys and marked the record if another key with the hash had a value.
//! - R5: two records with one version are copies: the cleaner moved one. Either counts; a tombstone, which
//!   stands for one that expired or was evicted, before the record; then the copy before the original. So
//!   what the cleaner made free is free again: of a full store, that is all the room there is to clean.
//!
//! # Concurrency
//! Threads take segments from a counter, then shares of the hash space; in a simulation there is
//! one. Nothing is shared with clients until the end.

use super::checkpoint::load::{self, Covers, Loaded};
use super::log::LogEnd;
use super::place::Tail;
use super::scan::{SegmentEnd, Source, Step, form_of, noted};
use super::segments::{Incarnation, Written};
use super::whole::Known;
use super::{sites, spread};
use crate::engine::threads::on_threads;
use crate::options::Progress;
use esker_base::hash::KeyHasher;
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::NUMBER_END;
use esker_format::depot::{
    LargeRef, RecordKind, SegmentHeader, Stream, SummaryRecord, SummarySize, Superblock,
    VersionForm, push_batch, push_record,
};
use esker_index::{Directory, Link};
use esker_media::Refused;
use std::sync::atomic::{AtomicU32, Ordering};

/// A thread costs more than it saves for less of the store than this.
const BYTES_PER_THREAD: u64 = 16 << 20;
/// More records than can be in a segment.
const LOST_MAX: u64 = 1 << 24;
/// Most threads of a recovery.
const THREADS_MAX: usize = 8;

/// A record that was found in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) hash: u64,
    /// Version, and whether the record is marked in the lowest bit.
    pub(super) order: u64,
    pub(super) link: Link,
}

impl Found {
    pub(super) fn version(self) -> Version {
        Version(self.order >> 1)
    }

    pub(super) fn collides(self) -> bool {
        self.order & 1 != 0
    }
}

/// A segment with a valid header.
#[derive(Clone, Debug)]
pub(super) struct Scanned {
    pub(super) header: SegmentHeader,
    pub(super) end: SegmentEnd,
    /// Its records, as the segment table counts them.
    pub(super) written: Written,
    /// The summary that a segment without one would get.
    summary: Vec<u8>,
}

impl Scanned {
    /// The number up to which records should be there, if the segment's end is missing: `later` segments say so, or what
    /// stands behind.
    fn due(&self, later: &[Scanned], source: &Source<'_>) -> Result<Option<Sequence>> {
        let Scanned { header, end, .. } = self;
        if end.sealed {
            return Ok(None);
        }
        // The clients' log goes on over sessions; the cleaner starts new segments in each. An empty
        // segment is one whose first batch never came; the log may have gone on in the one before.
        let follows = |later: &Scanned| {
            later.end.batches > 0
                && later.header.stream == header.stream
                && (header.stream == Stream::Fresh
                    || later.header.session_epoch == header.session_epoch)
        };
        let next = later.iter().find(|later| follows(later) && end.batches > 0);
        let next = next.map(|later| later.header.first_sequence.max(end.next));
        let behind = source.durable_behind(header.segment_id, header.salt, end)?;
        let durable = Some(end.durable.max(behind)).filter(|durable| *durable > end.next);
        Ok(next.max(durable))
    }
}

/// What the log holds.
#[derive(Debug)]
pub(super) struct Recovered {
    /// Valid headers.
    pub(super) headers: Vec<SegmentHeader>,
    /// The checkpoint that is used, if one is: what it covers was not looked for.
    pub(super) checkpoint: Option<Loaded>,
    /// How far the newest one knew the log, be it used or not.
    pub(super) known: Known,
    /// What each thread found, by hash. A few long vectors: their memory goes back to the system.
    pub(super) found: Vec<Vec<Found>>,
    pub(super) pieces: Pieces,
    /// Segments that were read, by epoch.
    pub(super) segments: Vec<Scanned>,
    pub(super) blank: Vec<SegmentId>,
    /// Copies of headers that are damaged, by their device offsets, and what they said.
    pub(super) copies: Vec<(u64, SegmentHeader)>,
    /// Segments whose log is damaged, of which a lenient recovery took what is left.
    pub(super) damaged: Vec<Damage>,
    pub(super) clear_version: Version,
    pub(super) threads: usize,
}

/// Damage to the log of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Damage {
    pub(super) segment: SegmentId,
    /// Records with lower numbers were there.
    due: Sequence,
    /// Whether there were records that nothing is known of.
    pub(super) hides: bool,
    /// Whether nothing of the segment is known.
    pub(super) headless: bool,
}

impl Damage {
    fn headless(segment: SegmentId) -> Damage {
        Damage { segment, due: Sequence(0), hides: true, headless: true }
    }
}

/// What was found of large values.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// By the hash of their key, spread.
    pub(super) heads: Vec<(u64, LargeRef, Link)>,
    pub(super) extents: Vec<(LargeRef, Link)>,
}

/// What one thread gathers.
#[derive(Default)]
struct Gathered {
    found: Vec<Found>,
    pieces: Pieces,
    segments: Vec<Scanned>,
    clear_version: Version,
}

/// What a scan works with.
struct Scan<'a> {
    source: &'a Source<'a>,
    hasher: &'a KeyHasher,
    progress: &'a Progress,
    /// Headers of the segments to read.
    headers: Vec<SegmentHeader>,
    /// What is not looked for.
    covers: Covers,
    next: AtomicU32,
}

impl Recovered {
    /// Reads the log, but for what a checkpoint covers; that one's index comes with it.
    /// `repairing` takes what is left of a damaged log instead of refusing it.
    ///
    /// # Errors
    /// `Corrupted` if something below the committed point is missing, `Io` if the device fails.
    pub(super) fn scan(
        source: &Source<'_>,
        superblock: &Superblock,
        hasher: &KeyHasher,
        progress: &Progress,
        repairing: Option<&Refused>,
    ) -> Result<(Recovered, Option<Directory>)> {
        let lenient = repairing.is_some();
        let area = u64::from(superblock.segment_count) * superblock.segment_size_bytes;
        let worth = usize::try_from(area / BYTES_PER_THREAD + 1).unwrap_or(THREADS_MAX);
        let threads = if worth == 1 || esker_trt::sim::is_active() {
            1
        } else {
            std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX).min(worth)
        };
        let Headers { valid: headers, blank, copies, damaged: headless } =
            headers(source, superblock, threads, repairing)?;
        let (covers, loaded) = load::newest(source, &headers, lenient)?;
        // A repair has to meet all damage, also that which a checkpoint makes harmless for now.
        let (loaded, told) = if lenient { (None, loaded) } else { (loaded, None) };
        let index = told.map(|(loaded, index)| (index, loaded.end.next_version));
        let known = Known { covers, index };
        let (mut checkpoint, mut index) = loaded.unzip();
        let covers = checkpoint.as_ref().map(|loaded| loaded.covers.clone()).unwrap_or_default();
        let to_read = |header: &&SegmentHeader| {
            header.stream != Stream::Checkpoint && !covers.all_of(header.segment_id)
        };
        let scan = Scan {
            source,
            hasher,
            progress,
            headers: headers.iter().filter(to_read).copied().collect(),
            covers,
            next: AtomicU32::new(0),
        };
        let mut all = Gathered::default();
        let mut found = Vec::new();
        for gathered in on_threads("recover store", threads, |_| scan.gather())? {
            found.push(gathered.found);
            all.pieces.heads.extend(gathered.pieces.heads);
            all.pieces.extents.extend(gathered.pieces.extents);
            all.segments.extend(gathered.segments);
            all.clear_version = all.clear_version.max(gathered.clear_version);
        }
        all.segments.sort_by_key(|segment| segment.header.epoch);
        let of_headers = headers.iter().map(|header| header.clear_version);
        let clear_version = of_headers.fold(all.clear_version, Version::max);
        if let Some(loaded) = &mut checkpoint
            && clear_version > loaded.end.next_version
            && !sites::CHECKPOINT_CLEAR.disabled()
        {
            loaded.clear();
            index = None;
        }
        let mut log = Recovered {
            clear_version: checkpoint
                .as_ref()
                .map_or(clear_version, |loaded| clear_version.max(loaded.end.clear_version)),
            headers,
            checkpoint,
            known,
            found,
            pieces: all.pieces,
            segments: all.segments,
            blank,
            copies,
            damaged: Vec::new(),
            threads,
        };
        log.damaged = log.check_ends(source, repairing)?;
        log.damaged.extend(headless.into_iter().map(Damage::headless));
        scan.take_behind(&mut log)?;
        Ok((log, index))
    }

    fn of_stream(&self, stream: Stream) -> impl DoubleEndedIterator<Item = &Scanned> {
        self.segments.iter().filter(move |segment| segment.header.stream == stream)
    }

    /// R2 and R3. What a repair is refused where the log may have gone on is damage, too.
    fn check_ends(&self, source: &Source<'_>, repairing: Option<&Refused>) -> Result<Vec<Damage>> {
        let mut damaged = Vec::new();
        if sites::COMMITTED_POINT.disabled() {
            return Ok(damaged);
        }
        for (place, segment) in self.segments.iter().enumerate() {
            let Scanned { header, end, .. } = segment;
            let later = self.segments.get(place + 1..).unwrap_or(&[]);
            let covered = self.known.covers.due(segment).filter(|due| *due > end.next);
            let mut due = segment.due(later, source)?.max(covered);
            if let Some(refused) = repairing.filter(|_| !end.sealed)
                && source.is_end_refused(header.segment_id, end, refused)?
            {
                due = due.max(Some(Sequence(end.next.0 + 1)));
            }
            let Some(due) = due else { continue };
            if repairing.is_some() {
                let segment = header.segment_id;
                damaged.push(Damage { segment, due, hides: true, headless: false });
                continue;
            }
            let offset = source.layout.segment_offset(header.segment_id) + end.position;
            let next = end.next;
            let words = format!("records from number {next} on are missing, which were durable");
            return Err(Error::corrupted("recover store", words)
                .device(source.device.name())
                .at(offset, source.layout.block));
        }
        Ok(damaged)
    }

    fn last(&self) -> Option<&Scanned> {
        self.of_stream(Stream::Fresh).rev().find(|segment| segment.end.batches > 0)
    }

    /// Where the clients' log goes on.
    pub(super) fn log_end(&self) -> LogEnd {
        let last = self.last();
        let highest = self.headers.iter().map(|header| header.epoch.0).max().unwrap_or(0);
        let is_damaged = |last: &Scanned| {
            self.damaged.iter().any(|damage| damage.segment == last.header.segment_id)
        };
        let open = last.filter(|last| !last.end.sealed && !is_damaged(last));
        let given = self.headers.iter().map(|header| header.next_version);
        // How many numbers were given to records that nothing is left of, nobody knows.
        let lost = if self.damaged.is_empty() { 0 } else { LOST_MAX };
        let of_checkpoint = self.checkpoint.as_ref().map(|loaded| loaded.end.next_version);
        let given = given.chain(of_checkpoint).max();
        let written = last.map_or(Version(1), |last| Version(last.end.next.0));
        let next_version =
            Version(written.0 + lost).max(self.clear_version).max(given.unwrap_or_default());
        LogEnd {
            tail: open.map(|last| Tail {
                segment: last.header.segment_id,
                position: last.end.position,
                salt: last.header.salt,
                session: last.end.session,
                base: last.header.first_sequence,
                summary: last.summary.len() as u64,
                barrier_due: true,
                ends: self.known.covers.is_behind(last),
            }),
            summary: open.map(|last| last.summary.clone()).unwrap_or_default(),
            next_epoch: SegmentEpoch(highest + 1),
            next_version,
            // Where the log goes on behind what is there, no more than that was.
            durable: if open.is_some() {
                written
            } else {
                written.max(of_checkpoint.unwrap_or_default())
            },
            clear_version: self.clear_version,
        }
    }

    /// Where a stream of the cleaner goes on.
    pub(super) fn next_sequence(&self, stream: Stream) -> Sequence {
        let moved = self.checkpoint.as_ref().map(|loaded| loaded.end.moved).unwrap_or_default();
        let covered = match stream {
            Stream::Warm => moved[0],
            Stream::Cold => moved[1],
            Stream::Fresh | Stream::Checkpoint => Sequence(0),
        };
        self.of_stream(stream).map(|segment| segment.end.next).fold(covered, Sequence::max)
    }
}

impl Scan<'_> {
    /// One thread's share of the segments.
    fn gather(&self) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let count = self.headers.len() as u64;
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(header) = self.headers.get(usize::try_from(index).unwrap_or(usize::MAX))
            else {
                break;
            };
            self.progress.report(u64::from(index), count);
            gathered.clear_version = gathered.clear_version.max(header.clear_version);
            let segment = self.segment(*header, &mut gathered)?;
            gathered.segments.push(segment);
        }
        gathered.found.sort_unstable_by_key(|record| record.hash);
        Ok(gathered)
    }

    /// Adds the records that damaged segments have behind the damage, and the whole ones in it.
    fn take_behind(&self, log: &mut Recovered) -> Result<()> {
        let mut gathered = Gathered::default();
        let Recovered { damaged, segments, known, .. } = &mut *log;
        for scanned in segments {
            let id = scanned.header.segment_id;
            let Some(damage) = damaged.iter_mut().find(|damage| damage.segment == id) else {
                continue;
            };
            let of = Incarnation::from(&scanned.header);
            let before = scanned.end.position;
            let mut segment = Segment {
                source: self.source,
                base: self.source.layout.segment_offset(id),
                covered: self.covers.of(id),
                gathered: &mut gathered,
                written: Written::default(),
                failure: None,
            };
            let base = segment.base;
            let mut known_records = 0;
            let over = Some(known.over(id, of.stream));
            scanned.end = self.source.walk_over(id, of, over, &mut |step| {
                let noted = match step {
                    Step::Batch { .. } => return Ok(()),
                    Step::Record(record, offset) => noted(record, offset - base, self.hasher),
                    Step::Damaged(record, offset) => {
                        let noted = noted(record, offset - base, self.hasher);
                        if !known.confirms(self.source.layout, base, &noted) {
                            return Ok(());
                        }
                        noted
                    }
                };
                known_records += 1;
                if noted.offset >= before {
                    segment.record(&noted);
                }
                Ok(())
            })?;
            let due = damage.due.max(scanned.end.next);
            damage.hides = known_records < due.0.saturating_sub(of.base.0);
            scanned.written += segment.written;
            segment.done()?;
        }
        gathered.found.sort_unstable_by_key(|record| record.hash);
        log.found.push(gathered.found);
        log.pieces.heads.extend(gathered.pieces.heads);
        log.pieces.extents.extend(gathered.pieces.extents);
        log.clear_version = log.clear_version.max(gathered.clear_version);
        Ok(())
    }

    fn segment(&self, header: SegmentHeader, gathered: &mut Gathered) -> Result<Scanned> {
        let (id, of) = (header.segment_id, Incarnation::from(&header));
        let mut segment = Segment {
            source: self.source,
            base: self.source.layout.segment_offset(id),
            covered: self.covers.of(id),
            gathered,
            written: Written::default(),
            failure: None,
        };
        let end = self.source.summary(id, of, &mut |record| segment.record(&record))?;
        if let Some(end) = end {
            let written = segment.written;
            segment.done()?;
            return Ok(Scanned { header, end, written, summary: Vec::new() });
        }
        let form = form_of(of.stream);
        let (mut summary, mut batch) = (Vec::new(), None);
        let end = self.source.walk(id, of, &mut |step| {
            match step {
                Step::Batch { blocks, header } => {
                    let next = (blocks, header.first_sequence, Vec::new());
                    summarize(&mut summary, form, batch.replace(next));
                }
                Step::Record(record, offset) => {
                    let noted = noted(record, offset - segment.base, self.hasher);
                    segment.record(&noted);
                    batch.iter_mut().for_each(|(.., records)| records.push(noted));
                }
                Step::Damaged(..) => {}
            }
            Ok(())
        })?;
        summarize(&mut summary, form, batch);
        let written = segment.written;
        segment.done()?;
        Ok(Scanned { header, end, written, summary })
    }
}

/// Adds what is to be said of a batch, which starts at a block with a record of this number, to a summary.
fn summarize(
    out: &mut Vec<u8>,
    form: VersionForm,
    batch: Option<(u32, Sequence, Vec<SummaryRecord>)>,
) {
    let Some((blocks, first, records)) = batch else { return };
    let mut size = SummarySize::new(form);
    records.iter().for_each(|record| size.add(record.shape(), record.version));
    let (common, count) = (size.common(), u32::try_from(records.len()).unwrap_or(u32::MAX));
    push_batch(out, blocks, count, first, common);
    let mut before = Version(0);
    for record in &records {
        push_record(out, form, common, record, before);
        before = record.version;
    }
}

/// What the headers of all segments say.
#[derive(Default)]
struct Headers {
    valid: Vec<SegmentHeader>,
    /// Segments without one.
    blank: Vec<SegmentId>,
    /// Copies that say something else than the valid ones, by their device offsets.
    copies: Vec<(u64, SegmentHeader)>,
    /// Segments whose header is damaged, of which a lenient recovery knows nothing more.
    damaged: Vec<SegmentId>,
}

/// The headers of all segments.
fn headers(
    source: &Source<'_>,
    superblock: &Superblock,
    threads: usize,
    repairing: Option<&Refused>,
) -> Result<Headers> {
    let next = AtomicU32::new(0);
    let parts = on_threads("recover store", threads, |_| {
        let mut headers = Headers::default();
        loop {
            let id = SegmentId(next.fetch_add(1, Ordering::Relaxed));
            if id.0 >= superblock.segment_count {
                return Ok(headers);
            }
            match source.header_and_other(superblock.store_id, id, repairing) {
                Ok((Some(header), other, _)) => {
                    headers.valid.push(header);
                    headers.copies.extend(other.map(|at| (at, header)));
                }
                Ok((None, ..)) => headers.blank.push(id),
                Err(error) if repairing.is_some() && error.kind() == ErrorKind::Corrupted => {
                    tracing::warn!(%error, "what stands in a segment is lost");
                    headers.damaged.push(id);
                }
                Err(error) => return Err(error),
            }
        }
    })?;
    let mut all = Headers::default();
    for mut part in parts {
        all.valid.append(&mut part.valid);
        all.blank.append(&mut part.blank);
        all.copies.append(&mut part.copies);
        all.damaged.append(&mut part.damaged);
    }
    all.valid.sort_by_key(|header| header.segment_id);
    all.blank.sort();
    Ok(all)
}

/// The segment that a thread reads.
struct Segment<'a> {
    source: &'a Source<'a>,
    base: u64,
    /// Records before are in a checkpoint, if they count.
    covered: u64,
    gathered: &'a mut Gathered,
    written: Written,
    failure: Option<Error>,
}

impl Segment<'_> {
    fn record(&mut self, record: &SummaryRecord) {
        if record.version.0 >= NUMBER_END {
            self.fail("a record has a version that none is given", record);
            return;
        }
        if record.kind == RecordKind::Clear {
            let after = Version(record.version.0 + 1);
            self.gathered.clear_version = self.gathered.clear_version.max(after);
            return;
        }
        let offset = self.base + record.offset;
        let Some(link) = self.source.layout.link(record.kind, offset, record.size_bytes) else {
            self.fail("a record lies beyond what an index can address", record);
            return;
        };
        self.written += Written::of(link, record.size_bytes);
        if record.offset < self.covered {
            return;
        }
        let collides = record.collides && !sites::RECOVER_COLLIDES.disabled();
        let hash = spread(record.hash);
        match record.kind {
            RecordKind::Extent => {
                self.gathered.pieces.extents.push((record.piece, link));
                return;
            }
            RecordKind::Large => self.gathered.pieces.heads.push((hash, record.piece, link)),
            RecordKind::Put | RecordKind::Delete | RecordKind::Evict | RecordKind::Clear => {}
        }
        self.gathered.found.push(Found {
            hash,
            order: record.version.0 << 1 | u64::from(collides),
            link,
        });
    }

    fn fail(&mut self, words: &'static str, record: &SummaryRecord) {
        self.failure = Some(
            Error::corrupted("recover store", words)
                .device(self.source.device.name())
                .at(self.base + record.offset, record.size_bytes),
        );
    }

    fn done(self) -> Result<()> {
        self.failure.map_or(Ok(()), Err)
    }
}
