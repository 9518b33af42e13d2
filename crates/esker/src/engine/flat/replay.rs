//! Reading the logs: after a crash the index is made from them (FlatStore §3.5).
//!
//! Chunks are read in any order, by several threads: of two entries of a key the one with the higher version counts. What a chunk's
//! versions span is known once it was read, which nearly always tells which of two is newer without looking at the other
//! again. Of two with one version either counts: one is the cleaner's copy of the other. If each has a record of its own, that of the
//! other one is not free until the other's chunk is (C4), for the next recovery may find them in another order; one that they share
//! is not until both chunks are.
//!
//! # Failure
//! Nothing is written here. A batch that is not whole ends its log, unless a whole one follows: that is damage. So is an entry whose
//! record has not its key if nothing newer of the key is found: the record of an entry that was not overtaken is nobody else's.

mod learned;

use self::learned::Keyless;
pub(super) use self::learned::{Learned, LogEnd};
use super::batches::{Batches, FoundBatch, FoundEntry};
use super::chunks::Since;
use super::index::Part;
use super::layout::Place;
use super::moves::record_of_action;
use super::periodic::Tails;
use super::recover::{Root, corrupted};
use super::sorted::{Enter, Parts, Runs, collect_max};
use super::{Flat, sites};
use crate::engine::Cursor;
use crate::options::{Options, Progress};
use esker_base::Result;
use esker_format::flat::{ChunkHeader, ChunkKind, EntryKey, LINE};
use esker_index::{Masstree, Word};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Locks of keys.
const LOCKS: usize = 1024;
/// Entries that are entered together.
const GROUP: usize = 64;
/// Bytes of a log that are read together, so that they are in the cache when they are looked at.
const PIECE_SIZE: usize = 64 << 10;

/// What recovery does, by several threads.
pub(super) struct Scan<'a> {
    pub(super) flat: &'a Flat,
    tails: &'a Tails,
    learned: &'a Learned,
    clear: u64,
    locks: Box<[Mutex<()>]>,
    /// The highest version that was found.
    newest: AtomicU64,
    /// Records of entries besides which the index has another one of the same version, with the chunks of the entries.
    twins: Mutex<Vec<(u32, u64)>>,
    /// Held by who enters what it has collected while others collect.
    entering: Mutex<()>,
}

/// How old an entry is, compared to another of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Older,
    Same,
    Newer,
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
struct FoundIn<'r> {
    chunk: u32,
    /// Where its entries are collected, if they are not entered at once, and the bytes that they take there.
    runs: Option<Collect<'r>>,
    held: usize,
    /// All of them.
    count: u32,
    /// Versions between which theirs lie.
    oldest: u64,
    newest: u64,
}

impl<'r> FoundIn<'r> {
    fn new(chunk: u32, runs: Option<Collect<'r>>) -> Self {
        FoundIn { chunk, runs, held: 0, count: 0, oldest: u64::MAX, newest: 0 }
    }
}

/// Where entries are collected.
struct Collect<'r> {
    runs: &'r mut Runs,
    parts: &'r Parts,
    tree: &'r Masstree,
    /// Most bytes that a chunk's take there before they are entered: a log may have any number of entries of long keys.
    most: u64,
}

impl Scan<'_> {
    /// Reads a chunk of a log; what it has is entered, or added to `runs`. Returns the bytes that were added.
    fn chunk(&self, number: u32, buffer: &mut Vec<u8>, runs: Option<Collect<'_>>) -> Result<usize> {
        let flat = self.flat;
        let Some(chunk) = flat.chunks.get(number) else { return Ok(0) };
        let (start, salt) = (flat.layout.start_of(number), chunk.salt());
        let size = usize::try_from(flat.layout.chunk_size).unwrap_or(0);
        buffer.resize(size, 0);
        let (mut at, covered) = self.tails.of(number);
        let mut found = FoundIn::new(number, runs);
        let mut piece = PIECE_SIZE;
        let mut last = None;
        let mut sealed = false;
        let end = loop {
            let to = size.min(at.saturating_add(piece));
            let bytes = buffer.get_mut(at..to).unwrap_or_default();
            flat.read_of_log(number, start + at as u64, bytes)?;
            let mut batches = Batches::new(bytes, start + at as u64, salt);
            let mut group = Vec::with_capacity(GROUP);
            let end = loop {
                while let Ok(Some(batch)) = batches.take_next() {
                    last = Some(batch.offset);
                    // Its entries at once, while it is in the cache.
                    self.batch(&batch, &mut found, &mut group)?;
                }
                self.enter(number, &mut group)?;
                let end = batches.offset();
                // Only the last one can be torn (L1), and what stands behind this piece is not known.
                if batches.is_sealed()
                    || to < size
                    || !batches.skip_damage()
                    || sites::COMMITTED_POINT.disabled()
                {
                    break end;
                }
                let words = "a batch is damaged, and whole ones follow it".to_owned();
                flat.note_damaged_log(number, corrupted(&*flat.memory, words, end, LINE as u64))?;
            };
            if batches.is_sealed() {
                // What stands before that was durable before it was stored.
                sealed = true;
                break end;
            }
            if to == size {
                break end;
            }
            // What is no batch may go on behind the piece.
            let next = usize::try_from(end - start).unwrap_or(usize::MAX);
            (at, piece) = (next, if next == at { usize::MAX } else { PIECE_SIZE });
        };
        if !sealed {
            self.learned.note_end(LogEnd { chunk: number, last: last.unwrap_or(end)..end });
        }
        self.newest.fetch_max(found.newest, Ordering::Relaxed);
        if let Some(learned) = self.learned.chunk(number).filter(|_| covered == 0) {
            learned.versions.get_or_init(|| (found.oldest, found.newest));
        }
        let tail = u32::try_from(end - start).unwrap_or(u32::MAX);
        chunk.restore_counts(covered.saturating_add(found.count), 0, tail);
        Ok(found.held)
    }

    /// Collects what a batch says, or enters it, `group` by group.
    fn batch<'b>(
        &self,
        batch: &FoundBatch<'b>,
        found: &mut FoundIn<'_>,
        group: &mut Vec<Found<'b>>,
    ) -> Result<()> {
        let flat = self.flat;
        for entry in batch.entries() {
            let FoundEntry { entry, version, place } = match entry {
                Ok(entry) => entry,
                Err(flaw) => {
                    let words = flaw.to_string();
                    let error = corrupted(&*flat.memory, words, batch.offset, LINE as u64);
                    return flat.note_damaged_log(found.chunk, error);
                }
            };
            found.oldest = found.oldest.min(version);
            found.newest = found.newest.max(version);
            found.count = found.count.saturating_add(1);
            if version < self.clear && !sites::RECOVER_CLEAR.disabled() {
                continue;
            }
            let Some(key) = flat.key_if_there(&entry)? else {
                if let EntryKey::Record(hash) = entry.key {
                    self.learned.note_keyless(hash, version, place.offset);
                    flat.note_keyless_in(hash, found.chunk);
                }
                continue;
            };
            if let Some(collect) = &mut found.runs {
                found.held += collect.runs.add(collect.parts, &key, place.word(), version);
                if found.held as u64 > collect.most {
                    self.enter_collected(collect)?;
                    found.held = 0;
                }
                continue;
            }
            let (hash, record) = (flat.hasher.hash(&key), record_of_action(entry.action));
            group.push(Found { hash, key, place, version, record });
            if group.len() == GROUP {
                self.enter(found.chunk, group)?;
            }
        }
        Ok(())
    }

    /// Enters what one thread has collected, while others collect.
    fn enter_collected(&self, collect: &mut Collect<'_>) -> Result<()> {
        // One at a time, so that a key has one.
        let _entering = self.entering.lock();
        let mut enter = Enter::new(self, collect.tree);
        let runs = std::slice::from_ref(&*collect.runs);
        (0..collect.parts.count()).try_for_each(|part| enter.part(part, runs))?;
        enter.end(self.learned);
        *collect.runs = Runs::new(collect.parts);
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

    /// Whether an entry takes the place of the one that the index has of its key.
    pub(super) fn goes(&self, held: Word, word: Word, version: u64) -> Result<bool> {
        let chunk = self.flat.layout.chunk_of(Place::of(word).offset);
        let age = self.age(Place::of(held), chunk, version)?;
        if age == Age::Same {
            self.twin_of(held, word)?;
        }
        Ok(age == Age::Older || sites::RECOVER_NEWEST.disabled())
    }

    /// Notes the record of an entry of which the index has a copy, in another chunk.
    pub(super) fn twin_of(&self, held: Word, twin: Word) -> Result<()> {
        let chunk = |word| self.flat.layout.chunk_of(Place::of(word).offset);
        if chunk(held) != chunk(twin)
            && let Some(Some(line)) = self.flat.record_of(twin, Since::HELD)?
        {
            self.twins.lock().push((chunk(twin), line));
        }
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

/// A log for each thread that asks, until there is none left; how many were given is told.
struct Turns<'a> {
    logs: &'a [&'a ChunkHeader],
    next: AtomicUsize,
    progress: &'a Progress,
}

impl<'a> Turns<'a> {
    fn new(logs: &'a [&'a ChunkHeader], progress: &'a Progress) -> Self {
        Turns { logs, next: AtomicUsize::new(0), progress }
    }

    fn take(&self) -> Option<u32> {
        let step = self.next.fetch_add(1, Ordering::Relaxed);
        let header = self.logs.get(step)?;
        self.progress.report(step as u64, self.logs.len() as u64);
        Some(header.number)
    }

    fn left(&self) -> usize {
        self.logs.len().saturating_sub(self.next.load(Ordering::Relaxed))
    }
}

impl Scan<'_> {
    /// Enters entries as they are read.
    fn enter_scattered(&self, logs: &[&ChunkHeader], progress: &Progress) -> Result<()> {
        if self.tails.newest == 0
            && let Some(keys) = self.flat.keys_by_sample(logs, self.clear)
        {
            self.flat.index.expect(keys);
        }
        let turns = Turns::new(logs, progress);
        let work = || {
            let mut buffer = Vec::new();
            while let Some(number) = turns.take() {
                self.chunk(number, &mut buffer, None)?;
            }
            Ok(())
        };
        self.flat.in_parallel(logs.len(), &work)
    }

    /// Collects entries, and enters them in the order of their keys.
    fn enter_sorted(
        &self,
        logs: &[&ChunkHeader],
        tree: &Masstree,
        options: &Options,
    ) -> Result<()> {
        let flat = self.flat;
        let turns = Turns::new(logs, &options.progress);
        let most = options.testing.collect_bytes.unwrap_or_else(|| collect_max(&flat.layout));
        let parts = Parts::new(flat.sample_of_keys(logs, self.clear, most / 4));
        let share = most / flat.threads.max(1) as u64;
        while turns.left() > 0 {
            let (all, held) = (Mutex::new(Vec::new()), AtomicU64::new(0));
            let read = || {
                let (mut buffer, mut runs) = (Vec::new(), Runs::new(&parts));
                while held.load(Ordering::Relaxed) <= most
                    && let Some(number) = turns.take()
                {
                    let collect = Collect { runs: &mut runs, parts: &parts, tree, most: share };
                    let added = self.chunk(number, &mut buffer, Some(collect))?;
                    held.fetch_add(added as u64, Ordering::Relaxed);
                }
                all.lock().push(runs);
                Ok(())
            };
            flat.in_parallel(turns.left(), &read)?;
            let (all, next) = (all.into_inner(), AtomicUsize::new(0));
            let enter = || {
                let mut enter = Enter::new(self, tree);
                loop {
                    let part = next.fetch_add(1, Ordering::Relaxed);
                    if part >= parts.count() {
                        break;
                    }
                    enter.part(part, &all)?;
                }
                enter.end(self.learned);
                Ok(())
            };
            flat.in_parallel(parts.count(), &enter)?;
        }
        Ok(())
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
        let scan = Scan {
            flat: self,
            tails,
            learned,
            clear: root.clear.version,
            locks: (0..LOCKS).map(|_| Mutex::default()).collect(),
            newest: AtomicU64::new(root.clear.version.max(tails.newest)),
            twins: Mutex::default(),
            entering: Mutex::default(),
        };
        match self.index.ordered() {
            Some(tree) => scan.enter_sorted(&logs, tree, options)?,
            None => scan.enter_scattered(&logs, &options.progress)?,
        }
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
        let keyless = std::mem::take(&mut *learned.keyless.lock());
        if root.headers.iter().any(has_records) || !keyless.is_empty() || self.is_in_repair() {
            self.mark_records(&keyless)?;
            self.mark_twins(&scan.twins.lock());
        }
        Ok(())
    }

    /// Leaves the records of twins for their chunks (C4), where they are not those of the entries that count, nor of other twins: those are
    /// shared.
    fn mark_twins(&self, twins: &[(u32, u64)]) {
        for (chunk, line) in twins {
            match self.mark(*line) {
                true => self.cleaner_of_log(*chunk).leave(*chunk, Some(*line)),
                false => self.share(*chunk, [*line]),
            }
        }
    }

    /// Marks the places of all records that the index knows as in use. What is `keyless` is found to have been overtaken.
    fn mark_records(&self, keyless: &HashMap<u64, Keyless>) -> Result<()> {
        let cursor = Mutex::new(Cursor::Start);
        let mark = |word: Word| {
            let place = Place::of(word);
            if !place.kind.has_record() {
                return Ok(());
            }
            let seen = self.with_entry(place, Since::HELD, |entry, version| {
                if let EntryKey::Record(hash) = entry.key
                    && let Some(keyless) = keyless.get(&hash)
                    && keyless.version <= version.0
                {
                    keyless.overtaken.store(true, Ordering::Relaxed);
                }
                record_of_action(entry.action)
            })?;
            if let Some(Some(line)) = seen
                && !self.mark(line)
                && !self.note_misplaced(word, line)
            {
                let words = "an entry points at what is no record of its own".to_owned();
                return Err(corrupted(&*self.memory, words, place.offset, LINE as u64));
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
        self.in_parallel(self.threads, &work)?;
        let left = keyless.iter().filter(|(_, keyless)| !keyless.overtaken.load(Ordering::Relaxed));
        if self.note_keyless_damaged(left.clone().map(|(hash, _)| *hash)) {
            return Ok(());
        }
        match left.map(|(_, keyless)| keyless.offset).min() {
            None => Ok(()),
            Some(offset) => {
                let words = "the record of an entry has not its key".to_owned();
                Err(corrupted(&*self.memory, words, offset, LINE as u64))
            }
        }
    }
}
