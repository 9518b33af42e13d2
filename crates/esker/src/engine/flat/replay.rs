//! Reading the logs: after a crash the index is made from them (FlatStore §3.5).
//!
//! Chunks are read in any order, by several threads: of two entries of a key the one with the higher version counts. What a chunk's
//! versions span is known once it was read, which nearly always tells which of two is newer without looking at the other
//! again. Of two with one version either counts: one is the cleaner's copy of the other. If each has a record of its own, that of the
//! other one is not free until the other's chunk is (C4), for the next recovery may find them in another order.
//!
//! # Failure
//! Nothing is written here. A batch that is not whole ends its log, unless a whole one follows: that is damage.

use super::batches::{Batches, FoundBatch, FoundEntry};
use super::chunks::Since;
use super::index::{Cursor, Part};
use super::layout::{Layout, Place};
use super::moves::record_of_action;
use super::periodic::Tails;
use super::recover::{Root, corrupted};
use super::{Flat, sites};
use crate::options::Options;
use esker_base::Result;
use esker_format::flat::batch::batch_size;
use esker_format::flat::{BatchHeader, ChunkHeader, ChunkKind, LINE};
use esker_index::Word;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Locks of keys.
const LOCKS: usize = 1024;
/// Entries that are entered together.
const GROUP: usize = 64;
/// Longest batch that is looked for behind a torn one, in bytes.
const SEARCH_BYTES: usize = 8 << 10;

/// What recovery does, by several threads.
struct Scan<'a> {
    flat: &'a Flat,
    tails: &'a Tails,
    learned: &'a Learned,
    clear: u64,
    locks: Box<[Mutex<()>]>,
    /// The highest version that was found.
    newest: AtomicU64,
    /// Records of entries besides which the index has another one of the same version, with the chunks of the entries.
    twins: Mutex<Vec<(u32, u64)>>,
}

/// How old an entry is, compared to another of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Older,
    Same,
    Newer,
}

/// What recovery learns of what the index has.
#[derive(Debug)]
pub(super) struct Learned {
    chunks: Box<[LearnedChunk]>,
    tombstones: AtomicI64,
}

#[derive(Debug)]
struct LearnedChunk {
    /// Entries in the index.
    live: AtomicU32,
    /// Lowest and highest version of its entries, once all were read.
    versions: OnceLock<(u64, u64)>,
}

impl Learned {
    pub(super) fn new(layout: &Layout) -> Learned {
        let chunk = |_| LearnedChunk { live: AtomicU32::new(0), versions: OnceLock::new() };
        Learned {
            chunks: (0..layout.chunk_count).map(chunk).collect(),
            tombstones: AtomicI64::new(0),
        }
    }

    fn chunk(&self, number: u32) -> Option<&LearnedChunk> {
        self.chunks.get(usize::try_from(number).ok()?)
    }

    /// Counts an entry that the index has now, or has no more.
    pub(super) fn count(&self, layout: &Layout, place: Place, has: bool) {
        if let Some(chunk) = self.chunk(layout.chunk_of(place.offset)) {
            match has {
                true => chunk.live.fetch_add(1, Ordering::Relaxed),
                false => chunk.live.fetch_sub(1, Ordering::Relaxed),
            };
        }
        if place.kind.is_tombstone() {
            self.tombstones.fetch_add(if has { 1 } else { -1 }, Ordering::Relaxed);
        }
    }
}

/// An entry that was read and is not in the index yet.
struct Found<'b> {
    hash: u64,
    key: Cow<'b, [u8]>,
    place: Place,
    version: u64,
    record: Option<u64>,
}

/// What was read of a chunk so far.
struct FoundIn<'b> {
    chunk: u32,
    /// Entries that are to be entered.
    group: Vec<Found<'b>>,
    /// All of them.
    count: u32,
    /// Versions between which theirs lie.
    oldest: u64,
    newest: u64,
}

impl FoundIn<'_> {
    fn new(chunk: u32) -> Self {
        let group = Vec::with_capacity(GROUP);
        FoundIn { chunk, group, count: 0, oldest: u64::MAX, newest: 0 }
    }
}

/// Whether a whole batch stands behind the one at the start of `bytes`, at `start`, that is not: only the last one can be torn (L1).
fn goes_on(bytes: &mut [u8], salt: u64, start: u64) -> bool {
    (LINE..bytes.len()).step_by(LINE).any(|at| {
        let batch = bytes.get_mut(at..).unwrap_or_default();
        let short = BatchHeader::peek(batch)
            .is_ok_and(|header| batch_size(header.payload_bytes) <= SEARCH_BYTES);
        short && BatchHeader::decode(batch, salt, start + at as u64, || false).is_ok()
    })
}

impl Scan<'_> {
    /// Reads a chunk of a log.
    fn chunk(&self, number: u32, buffer: &mut Vec<u8>) -> Result<()> {
        let flat = self.flat;
        let Some(chunk) = flat.chunks.get(number) else { return Ok(()) };
        let (start, salt) = (flat.layout.start_of(number), chunk.salt());
        buffer.resize(usize::try_from(flat.layout.chunk_size).unwrap_or(0), 0);
        let (at, covered) = self.tails.of(number);
        let bytes = buffer.get_mut(at..).unwrap_or_default();
        flat.memory.read(start + at as u64, bytes)?;
        let mut batches = Batches::new(bytes, start + at as u64, salt);
        let mut found = FoundIn::new(number);
        while let Ok(Some(batch)) = batches.take_next() {
            // Its entries at once, while it is in the cache.
            self.batch(&batch, &mut found)?;
        }
        self.enter(number, &mut found.group)?;
        let (end, sealed) = (batches.offset(), batches.is_sealed());
        if !sealed && goes_on(batches.rest(), salt, end) && !sites::COMMITTED_POINT.disabled() {
            let words = "a batch is damaged, and whole ones follow it".to_owned();
            return Err(corrupted(&*flat.memory, words, end, LINE as u64));
        }
        self.newest.fetch_max(found.newest, Ordering::Relaxed);
        if let Some(learned) = self.learned.chunk(number).filter(|_| covered == 0) {
            learned.versions.get_or_init(|| (found.oldest, found.newest));
        }
        let tail = u32::try_from(end - start).unwrap_or(u32::MAX);
        chunk.restore_counts(covered + found.count, 0, tail);
        Ok(())
    }

    /// Enters what a batch says.
    fn batch<'b>(&self, batch: &FoundBatch<'b>, found: &mut FoundIn<'b>) -> Result<()> {
        let flat = self.flat;
        for entry in batch.entries() {
            let FoundEntry { entry, version, place } = entry.map_err(|flaw| {
                corrupted(&*flat.memory, flaw.to_string(), batch.offset, LINE as u64)
            })?;
            found.oldest = found.oldest.min(version);
            found.newest = found.newest.max(version);
            found.count = found.count.saturating_add(1);
            if version < self.clear && !sites::RECOVER_CLEAR.disabled() {
                continue;
            }
            let Some(key) = flat.key_of_entry(&entry)? else { continue };
            let (hash, record) = (flat.hasher.hash(&key), record_of_action(entry.action));
            found.group.push(Found { hash, key, place, version, record });
            if found.group.len() == GROUP {
                self.enter(found.chunk, &mut found.group)?;
            }
        }
        Ok(())
    }

    /// Enters entries of a chunk, in their order; what the index keeps of them is fetched at once.
    fn enter(&self, chunk: u32, group: &mut Vec<Found<'_>>) -> Result<()> {
        let keys: Vec<(u64, &[u8])> = group.iter().map(|found| (found.hash, &*found.key)).collect();
        self.flat.index.prefetch(&keys);
        drop(keys);
        group.drain(..).try_for_each(|found| self.entry(chunk, &found))
    }

    fn entry(&self, chunk: u32, found: &Found<'_>) -> Result<()> {
        let flat = self.flat;
        let Found { hash, key, place, version, record } = found;
        let word = place.word();
        let lock = usize::try_from(hash >> 7).unwrap_or(0) % LOCKS;
        let _lock = self.locks.get(lock).map(Mutex::lock);
        match flat.find(*hash, key)? {
            None => flat.index.insert(*hash, key, word),
            Some(held) => {
                let age = self.age(Place::of(held), chunk, *version)?;
                if let (Age::Same, Some(line)) = (age, record) {
                    self.twins.lock().push((chunk, *line));
                }
                if age != Age::Older && !sites::RECOVER_NEWEST.disabled() {
                    return Ok(());
                }
                flat.index.replace(*hash, key, held, word);
                self.learned.count(&flat.layout, Place::of(held), false);
            }
        }
        self.learned.count(&flat.layout, *place, true);
        Ok(())
    }

    /// How old the entry at a place, which the index has, is compared to one with this version that was found in `chunk`.
    fn age(&self, held: Place, chunk: u32, version: u64) -> Result<Age> {
        let number = self.flat.layout.chunk_of(held.offset);
        if number == chunk {
            // L3, and the cleaner copies a key's entries in their order.
            return Ok(Age::Older);
        }
        if let Some((oldest, newest)) = self.learned.chunk(number).and_then(|it| it.versions.get())
            && (version < *oldest || version > *newest)
        {
            return Ok(if version > *newest { Age::Older } else { Age::Newer });
        }
        let known = self.flat.known(held.word(), Since::HELD)?;
        Ok(match known.map_or(0, |known| known.version.0).cmp(&version) {
            std::cmp::Ordering::Less => Age::Older,
            std::cmp::Ordering::Equal => Age::Same,
            std::cmp::Ordering::Greater => Age::Newer,
        })
    }
}

impl Flat {
    /// Reads the logs, or what stands behind the tails that a checkpoint covers.
    pub(super) fn scan_logs(
        &self,
        root: &Root,
        tails: &Tails,
        learned: &Learned,
        options: &Options,
    ) -> Result<()> {
        let mut logs: Vec<&ChunkHeader> =
            root.headers.iter().filter(|header| header.kind == ChunkKind::Log).collect();
        // The newest first: most of what was overtaken is then found so at once.
        logs.sort_unstable_by_key(|header| std::cmp::Reverse(header.born));
        if tails.newest == 0
            && let Some(keys) = self.keys_by_sample(&logs, root.clear.version)
        {
            self.index.expect(keys);
        }
        let scan = Scan {
            flat: self,
            tails,
            learned,
            clear: root.clear.version,
            locks: (0..LOCKS).map(|_| Mutex::default()).collect(),
            newest: AtomicU64::new(root.clear.version.max(tails.newest)),
            twins: Mutex::default(),
        };
        let done = AtomicUsize::new(0);
        let work = || {
            let mut buffer = Vec::new();
            loop {
                let step = done.fetch_add(1, Ordering::Relaxed);
                let Some(header) = logs.get(step) else { return Ok(()) };
                scan.chunk(header.number, &mut buffer)?;
                options.progress.report(step as u64, logs.len() as u64);
            }
        };
        self.in_parallel(logs.len(), &work)?;
        let born = logs.iter().map(|header| header.born).max().unwrap_or(0);
        let newest = scan.newest.load(Ordering::Relaxed);
        self.versions.raise((newest + 1).max(born));
        let tombstones = learned.tombstones.load(Ordering::Relaxed);
        self.tombstones.store(u64::try_from(tombstones).unwrap_or(0), Ordering::Relaxed);
        for (number, chunk) in self.chunks.iter().filter(|(_, chunk)| chunk.is_log()) {
            let live = learned.chunk(number).map_or(0, |it| it.live.load(Ordering::Relaxed));
            let entries = chunk.counts().0;
            let tail = chunk.tail.load(Ordering::Relaxed);
            chunk.restore_counts(entries, entries.saturating_sub(live), tail);
        }
        let has_records =
            |header: &ChunkHeader| matches!(header.kind, ChunkKind::Blocks | ChunkKind::Large);
        if root.headers.iter().any(has_records) {
            self.mark_records()?;
            self.mark_twins(&scan.twins.lock());
        }
        Ok(())
    }

    /// Leaves the records of twins for their chunks (C4), where they are not those of the entries that count.
    fn mark_twins(&self, twins: &[(u32, u64)]) {
        let mut cleaner = self.cleaner.lock();
        for (chunk, line) in twins {
            if self.mark(*line) {
                cleaner.leave(*chunk, Some(*line));
            }
        }
    }

    /// Marks the places of all records that the index knows as in use.
    fn mark_records(&self) -> Result<()> {
        let cursor = Mutex::new(Cursor::Start);
        let mark = |word: Word| {
            if let Some(Some(line)) = self.record_of(word, Since::HELD)?
                && !self.mark(line)
            {
                let words = "an entry points at what is no record of its own".to_owned();
                let offset = Place::of(word).offset;
                return Err(corrupted(&*self.memory, words, offset, LINE as u64));
            }
            Ok(())
        };
        let work = || {
            loop {
                let part = {
                    let mut cursor = cursor.lock();
                    let Some((part, next)) = self.index.walk(&cursor) else { return Ok(()) };
                    *cursor = next;
                    part
                };
                match part {
                    Part::Hashes(entries) => {
                        entries.iter().try_for_each(|(_, word)| mark(*word))?
                    }
                    Part::Keys(entries) => entries.iter().try_for_each(|(_, word)| mark(*word))?,
                }
            }
        };
        self.in_parallel(self.threads, &work)
    }
}
