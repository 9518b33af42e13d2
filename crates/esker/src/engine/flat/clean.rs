//! Log cleaning: live entries of a chunk are copied to the cleaner's log, the index follows, and the chunk is free
//! (FlatStore §3.4).
//!
//! An entry is live if the index has its very place. A tombstone is needed as long as an older entry of its key may be
//! on media: those had been overtaken when it was written, so they stand in chunks that were begun before and have entries
//! that do not count; once there is no such chunk besides its own, it is dropped.
//!
//! # Invariants
//! - C1: copies are durable before the index follows them, and the index has followed all before the chunk's header
//!   says that it is free. So a crash finds each entry at least once; twice is no harm: both have one version.
//! - C2: the cleaner's chunk is found by its header, which is durable before the first copy: the journal of §3.4.
//! - C3: the chunks that the cleaner writes to are born when it began to look at what it copies there, or rather
//!   before the first version whose entry the index did not follow then: an entry that is about to overtake one of the
//!   copies has a version already.
//!
//! - C4: the record of a tombstone that is dropped is free only once the tombstone's chunk is: a crash before that finds the
//!   tombstone, and what it points at.
//!
//! # Concurrency
//! One pass at a time; it takes no lock of a key. Who writes a key meanwhile finds that its word has changed.

use super::batches::{Batches, FoundEntry};
use super::chunks::{Chunk, For, Since, Use};
use super::commit::{Log, Sites};
use super::layout::{BATCH_ENTRIES_MAX, BATCH_NEAR_BYTES, Kind, Place};
use super::{Flat, OPEN, sites};
use esker_base::{Error, Result};
use esker_format::flat::batch::batch_size;
use esker_format::flat::entry::bind_entry;
use esker_format::flat::{BATCH_HEADER_SIZE, CHUNK_START, LINE, Stamp};
use esker_index::Word;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// Each batch of copies is durable before the next is stored, as in any log (L1): else a crash could leave a whole one
/// behind a torn one, which proves damage.
const MOVE: Sites =
    Sites { store: sites::MOVE_STORE, flush: sites::MOVE_FLUSH, fence: sites::MOVE_FENCE };
/// A chunk is worth cleaning for somebody who needs room if one in so many of its entries does not count.
const SOME: u32 = 16;
/// The same, while nobody does.
const MUCH: u32 = 4;
/// One chunk in so many is kept free ahead of writers.
const RESERVE_SHARE: u32 = 32;

/// How much there must be to gain of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gain {
    Any,
    Some,
    Much,
}

/// State of the cleaner.
#[derive(Debug)]
pub(super) struct Cleaner {
    log: Log,
    /// Entries that did not count when there was nothing left to gain.
    futile: Option<u64>,
    /// Records of tombstones that were dropped, by the chunk of the tombstone (C4).
    dropped: BTreeMap<u32, Vec<u64>>,
    /// Chunks with damage: they are left as they are.
    damaged: BTreeSet<u32>,
    buffer: Vec<u8>,
}

impl Cleaner {
    pub(super) fn new() -> Cleaner {
        Cleaner {
            log: Log::new(None),
            futile: None,
            damaged: BTreeSet::new(),
            dropped: BTreeMap::new(),
            buffer: Vec::new(),
        }
    }
}

/// An entry that was copied.
struct Move {
    hash: u64,
    key: Vec<u8>,
    old: Word,
    new: Word,
}

/// Copies on their way to a batch.
#[derive(Default)]
struct Forming {
    bytes: Vec<u8>,
    base: u64,
    /// Offset within the batch, and the rest of the new place.
    entries: Vec<(usize, Kind, bool, u64, Vec<u8>, Word)>,
}

impl Flat {
    /// Makes room until so many chunks are free for somebody; false if that cannot be.
    pub(super) fn make_room(&self, count: usize, whom: For) -> Result<bool> {
        let mut cleaner = self.cleaner.lock();
        // A checkpoint is worth less than any write, and so is a backup.
        let cleaned = self.clean_for(&mut cleaner, count, whom)?;
        Ok(cleaned || self.drop_checkpoint()? || self.break_hold())
    }

    fn clean_for(&self, cleaner: &mut Cleaner, count: usize, whom: For) -> Result<bool> {
        let wanted = count + whom.kept();
        if self.chunks.free_count() >= wanted && count == 1 {
            return Ok(true);
        }
        let before = self.chunks.free_count();
        let mut visited = BTreeSet::new();
        loop {
            let dead = self.dead_entries();
            if cleaner.futile.is_some_and(|futile| dead <= futile) {
                return Ok(false);
            }
            let victim = self.victim(&visited, &cleaner.damaged, Gain::Some);
            let Some(victim) = victim else {
                // What a backup holds will be worth a look again.
                cleaner.futile = (!self.hold.is_active()).then(|| self.dead_entries());
                return Ok(self.chunks.free_count() > before);
            };
            visited.insert(victim);
            self.clean_chunk(cleaner, victim)?;
            let free = self.chunks.free_count();
            if free >= wanted && (count == 1 || free > before) {
                return Ok(true);
            }
        }
    }

    /// Cleans up to so many chunks, those first from which there is most to gain.
    pub(super) fn clean_now(&self, count: usize) -> Result<usize> {
        let mut cleaner = self.cleaner.lock();
        // With the lock: nothing may change once a close has written the image.
        self.refuse()?;
        let mut visited = BTreeSet::new();
        for done in 0..count {
            // The cleaner needs room for one victim's copies.
            if self.chunks.free_count() == 0 {
                return Ok(done);
            }
            let Some(victim) = self.victim(&visited, &cleaner.damaged, Gain::Any) else {
                return Ok(done);
            };
            visited.insert(victim);
            self.clean_chunk(&mut cleaner, victim)?;
        }
        Ok(count)
    }

    /// Free chunks that are kept ahead of writers, and those below which they ask for more.
    pub(super) fn reserve(&self) -> (usize, usize) {
        let share = |part: u32| usize::try_from(self.layout.chunk_count / part).unwrap_or(0);
        let least = For::Puts.kept();
        (least + share(RESERVE_SHARE).max(2), least + share(2 * RESERVE_SHARE).max(1))
    }

    /// Cleans while fewer chunks are free than wanted, as long as that is worth its while: the emptier a chunk, the
    /// earlier (FlatStore §3.4).
    pub(super) fn clean_ahead(&self, wanted: usize, stop: impl Fn() -> bool) -> Result<()> {
        let mut visited = BTreeSet::new();
        while !stop() && self.chunks.free_count() < wanted {
            // For each chunk anew: writers may be waiting.
            let mut cleaner = self.cleaner.lock();
            if self.state.load(Ordering::Acquire) != OPEN {
                return Ok(());
            }
            let victim = self.victim(&visited, &cleaner.damaged, Gain::Much);
            let Some(victim) = victim else { return Ok(()) };
            visited.insert(victim);
            self.clean_chunk(&mut cleaner, victim)?;
        }
        Ok(())
    }

    fn dead_entries(&self) -> u64 {
        let logs = self.chunks.iter().filter(|(_, chunk)| chunk.is_log());
        logs.map(|(_, chunk)| u64::from(chunk.counts().1)).sum()
    }

    /// The full chunk with the smallest share of entries that count; one without any to drop only if it may have
    /// tombstones that are not needed any more, and somebody needs the room.
    fn victim(&self, visited: &BTreeSet<u32>, damaged: &BTreeSet<u32>, gain: Gain) -> Option<u32> {
        let tombstones = self.tombstones.load(Ordering::Relaxed) > 0 && gain != Gain::Much;
        let candidates = self.chunks.iter().filter(|(number, chunk)| {
            let allowed =
                !visited.contains(number) && !damaged.contains(number) && !self.hold.holds(*number);
            chunk.usage() == Use::Log && chunk.is_published() && allowed
        });
        let shares = candidates.filter_map(|(number, chunk)| {
            let (entries, dead) = chunk.counts();
            let live = entries.saturating_sub(dead);
            let useful = match gain {
                Gain::Any => dead > 0,
                Gain::Some => dead * SOME >= entries,
                Gain::Much => dead * MUCH >= entries && dead > 0,
            };
            let share = u64::from(live) * 1_000_000 / u64::from(entries.max(1));
            (entries == 0 || useful || tombstones).then_some((share, chunk.born(), number))
        });
        shares.min().map(|(_, _, number)| number)
    }

    fn clean_chunk(&self, cleaner: &mut Cleaner, victim: u32) -> Result<()> {
        let Some(chunk) = self.chunks.get(victim) else { return Ok(()) };
        let born = self.settled();
        let needed = self.tombstones_needed_below(victim);
        if !chunk.is_dead() {
            let mut buffer = std::mem::take(&mut cleaner.buffer);
            let copied = self.copy_live(cleaner, victim, &mut buffer, born, needed);
            cleaner.buffer = buffer;
            match copied {
                Ok(true) => {}
                Ok(false) => {
                    cleaner.damaged.insert(victim);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        if !chunk.is_dead() {
            // Somebody who overtook an entry has not counted it yet: a later pass finds the chunk dead.
            return Ok(());
        }
        // PERSIST: whatever counted stands elsewhere, durably.
        let released = self.chunks.release(&*self.memory, victim);
        released.map_err(|error| self.poison(&error))?;
        // C4.
        let dropped = cleaner.dropped.remove(&victim);
        dropped.into_iter().flatten().for_each(|line| self.free_record(line));
        Ok(())
    }

    /// A version such that the index follows every entry with a lower one (C3).
    fn settled(&self) -> u64 {
        // First: what has a lower version was counted before, or is among the early ones.
        let given = self.versions.meet();
        if sites::CLEAN_SETTLED.disabled() {
            return given;
        }
        let early = self.early.lock().iter().copied().min().unwrap_or(given);
        let logs = self.chunks.iter().map(|(_, chunk)| chunk).filter(|chunk| chunk.is_log());
        let unsettled = logs.filter(|chunk| !chunk.is_published()).map(Chunk::born).min();
        given.min(early).min(unsettled.unwrap_or(given))
    }

    /// Tombstones from this version on may be needed by chunks other than `but`.
    fn tombstones_needed_below(&self, but: u32) -> u64 {
        let may_hold = self
            .chunks
            .iter()
            .filter(|(number, chunk)| *number != but && chunk.is_log() && chunk.counts().1 > 0);
        may_hold.map(|(_, chunk)| chunk.born()).min().unwrap_or(u64::MAX)
    }

    /// Copies what counts in a chunk; false if it is damaged.
    fn copy_live(
        &self,
        cleaner: &mut Cleaner,
        victim: u32,
        buffer: &mut Vec<u8>,
        born: u64,
        needed: u64,
    ) -> Result<bool> {
        let Some(chunk) = self.chunks.get(victim) else { return Ok(true) };
        let (start, salt) = (self.layout.start_of(victim), chunk.salt());
        let tail = usize::try_from(chunk.tail.load(Ordering::Relaxed)).unwrap_or(0);
        buffer.clear();
        buffer.resize(tail, 0);
        self.memory.read(start, buffer)?;
        let first = buffer.get_mut(usize::try_from(CHUNK_START).unwrap_or(0)..);
        let batches = Batches::new(first.unwrap_or_default(), start + CHUNK_START, salt);
        let mut moves = Vec::new();
        let copied = self.copy_batches(cleaner, batches, &mut moves, born, needed);
        // Also after an error: what was copied is durable (C1), and as good as the original.
        for Move { hash, key, old, new } in moves {
            // Either the old place does not count any more, or the copy never did.
            if self.index.replace(hash, &key, old, new) {
                chunk.count_dead();
            } else if let Some(to) = self.chunks.get(self.layout.chunk_of(Place::of(new).offset)) {
                to.count_dead();
            }
        }
        copied
    }

    /// Copies what counts to the cleaner's log; false if there is damage.
    fn copy_batches(
        &self,
        cleaner: &mut Cleaner,
        mut batches: Batches<'_>,
        moves: &mut Vec<Move>,
        born: u64,
        needed: u64,
    ) -> Result<bool> {
        let mut forming = Forming::default();
        loop {
            let batch = match batches.take_next() {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(flaw) => {
                    let error = self.damage(flaw, batches.offset());
                    tracing::warn!(%error, "a chunk is left as it is");
                    return Ok(false);
                }
            };
            for found in batch.entries() {
                let Ok(found) = found else { return Ok(false) };
                self.copy_entry(cleaner, &mut forming, moves, &found, born, needed)?;
            }
        }
        self.end_batch(cleaner, &mut forming, moves, born)?;
        Ok(true)
    }

    fn copy_entry(
        &self,
        cleaner: &mut Cleaner,
        forming: &mut Forming,
        moves: &mut Vec<Move>,
        found: &FoundEntry<'_>,
        born: u64,
        needed: u64,
    ) -> Result<()> {
        let FoundEntry { entry, version, place } = found;
        let version = *version;
        let Some(key) = self.key_of_entry(entry)? else { return Ok(()) };
        let (hash, word, key) = (self.hasher.hash(&key), place.word(), key.into_owned());
        if !self.index.holds(hash, &key, word) {
            return Ok(());
        }
        if place.kind.is_tombstone() && (version < needed || sites::TOMBSTONE_NEEDED.disabled()) {
            let record = self.record_of(word, Since::HELD)?.flatten();
            if self.index.remove(hash, &key, word) {
                self.let_go(word, None);
                let victim = self.layout.chunk_of(place.offset);
                cleaner.dropped.entry(victim).or_default().extend(record);
            }
            return Ok(());
        }
        let full = forming.entries.len() == BATCH_ENTRIES_MAX
            || BATCH_HEADER_SIZE + forming.bytes.len() + entry.size + 8 > BATCH_NEAR_BYTES
            || BATCH_HEADER_SIZE + forming.bytes.len() + entry.size + 8 > self.layout.batch_room();
        if full {
            self.end_batch(cleaner, forming, moves, born)?;
        }
        if forming.entries.is_empty() {
            forming.base = version;
        }
        let delta = version.checked_sub(forming.base).and_then(|delta| u16::try_from(delta).ok());
        let stamp = delta.map_or(Stamp::Whole(version), Stamp::Delta);
        let at = forming.bytes.len();
        entry.moved().encode(stamp, &mut forming.bytes);
        forming.entries.push((at, place.kind, place.key_of_8, hash, key, word));
        Ok(())
    }

    /// Writes the batch of copies that forms to the cleaner's log, durably.
    fn end_batch(
        &self,
        cleaner: &mut Cleaner,
        forming: &mut Forming,
        moves: &mut Vec<Move>,
        born: u64,
    ) -> Result<()> {
        if forming.entries.is_empty() {
            return Ok(());
        }
        let payload = forming.bytes.len();
        let total = batch_size(payload);
        let open =
            cleaner.log.open.filter(|(_, tail)| tail + total as u64 <= self.layout.chunk_size);
        let (chunk, tail) = match open {
            Some(open) => open,
            None => {
                if let Some((full, tail)) = cleaner.log.open.take() {
                    self.seal(full, tail)?;
                }
                let Some(next) = self.chunks.take(1, For::Cleaner) else {
                    let words = "the cleaner has no free chunk";
                    return Err(Error::new(esker_base::ErrorKind::NoSpace, "clean").context(words));
                };
                let begun = self.begin_log(next, 0, born);
                (next, begun.map_err(|error| self.poison(&error))?)
            }
        };
        let offset = self.layout.start_of(chunk) + tail;
        let mut bytes = vec![0; BATCH_HEADER_SIZE];
        bytes.append(&mut forming.bytes);
        for ((at, ..), ordinal) in forming.entries.iter().zip(0..) {
            let entry = bytes.get_mut(BATCH_HEADER_SIZE + at..).unwrap_or_default();
            bind_entry(entry, forming.base, ordinal);
        }
        bytes.resize(total, 0);
        self.write_batch(chunk, offset, &mut bytes, payload, forming.base, MOVE)?;
        let end = tail + total as u64;
        cleaner.log.open = Some((chunk, end));
        if let Some(state) = self.chunks.get(chunk) {
            let count = u32::try_from(forming.entries.len()).unwrap_or(0);
            state.entries.fetch_add(count, Ordering::Relaxed);
            state.count_published(count);
            state.tail.store(u32::try_from(end).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        for (ordinal, (at, kind, key_of_8, hash, key, old)) in forming.entries.drain(..).enumerate()
        {
            let within = BATCH_HEADER_SIZE + at;
            let place = Place {
                offset: offset + within as u64,
                kind,
                key_of_8,
                ordinal,
                lines: (within / LINE) as u64,
            };
            moves.push(Move { hash, key, old, new: place.word() });
        }
        Ok(())
    }
}
