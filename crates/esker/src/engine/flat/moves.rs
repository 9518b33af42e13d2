//! Moving what counts out of a chunk of a log: to the cleaner's log, durably, before the index follows.
//!
//! What a copy says may differ from its original, as long as a crash may leave both, with one version, and either may be found: the
//! record of an entry whose own is in a chunk that is being emptied moves as well ([`pack`](super::pack)), and a value that has expired
//! becomes a tombstone, or nothing once no older entry of its key can be on media.
//!
//! # Concurrency
//! Under the lock of the chunk's cleaner.

use super::batches::{Batches, FoundEntry};
use super::chunks::{Chunk, For};
use super::clean::Cleaner;
use super::commit::Sites;
use super::layout::{BATCH_ENTRIES_MAX, BATCH_NEAR_BYTES, Kind, Place, kind_of};
use super::pack::Emptying;
use super::read::attributes_of;
use super::{Flat, sites};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flat::batch::batch_size;
use esker_format::flat::entry::bind_entry;
use esker_format::flat::{
    Action, BATCH_HEADER_SIZE, CHUNK_START, EncodeEntry, Entry, EntryKey, LINE, Stamp,
};
use esker_index::Word;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Each batch of copies is durable before the next is stored, as in any log (L1): else a crash could leave a whole one
/// behind a torn one, which proves damage.
const MOVE: Sites =
    Sites { store: sites::MOVE_STORE, flush: sites::MOVE_FLUSH, fence: sites::MOVE_FENCE };

/// Most versions from that of a batch to that of an entry that says how many; beyond, the entry says its version. What two bytes can
/// say, or so few in explorations that copies go beyond.
const DELTA_MAX: u64 = if cfg!(feature = "small") { 15 } else { (1 << 16) - 1 };

/// What may go from a chunk, and what is known of it.
#[derive(Clone, Copy)]
pub(super) struct Victim {
    pub(super) number: u32,
    /// What is copied is no older than this version's time (C3).
    pub(super) born: u64,
    /// Tombstones from this version on may be needed.
    pub(super) needed: u64,
}

/// An entry that is copied.
struct Copied {
    /// Where its bytes begin, within those of the batch.
    at: usize,
    kind: Kind,
    key_of_8: bool,
    hash: u64,
    key: Vec<u8>,
    old: Word,
    /// The record at which both point.
    shared_record: Option<u64>,
    /// The record that the original points at, and the copy does not.
    old_record: Option<u64>,
    /// The record that the copy points at, and the original does not.
    new_record: Option<u64>,
    expires_at: Option<u64>,
}

/// Copies on their way to a batch.
#[derive(Default)]
struct Moves {
    /// Chunks of blocks out of which records are moved.
    emptying: Arc<Emptying>,
    bytes: Vec<u8>,
    base: u64,
    forming: Vec<Copied>,
}

/// What becomes of an entry.
struct Becomes<'e> {
    entry: EncodeEntry<'e>,
    shared_record: Option<u64>,
    old_record: Option<u64>,
    new_record: Option<u64>,
    expires_at: Option<u64>,
}

/// The line of the record that an entry points at.
pub(super) fn record_of_action(action: Action<'_>) -> Option<u64> {
    match action {
        Action::Pointer(line) | Action::Delete(Some(line)) => Some(line),
        Action::Value(_) | Action::Delete(None) => None,
    }
}

/// What was read; `None` if the medium has lost it, which is no failure of what reads on.
pub(super) fn unless_damaged<T>(read: Result<T>, words: &str) -> Result<Option<T>> {
    match read {
        Err(error) if error.kind() == ErrorKind::Corrupted => {
            tracing::warn!(%error, "{words}");
            Ok(None)
        }
        read => read.map(Some),
    }
}

impl Flat {
    /// The bytes of a chunk of a log.
    pub(super) fn read_log(&self, number: u32, buffer: &mut Vec<u8>) -> Result<()> {
        let Some(chunk) = self.chunks.get(number) else { return Ok(()) };
        let tail = usize::try_from(chunk.tail.load(Ordering::Acquire)).unwrap_or(0);
        buffer.clear();
        buffer.resize(tail, 0);
        self.read_of_log(number, self.layout.start_of(number), buffer)
    }

    /// The batches of a chunk whose bytes these are.
    pub(super) fn batches_of<'b>(&self, number: u32, bytes: &'b mut [u8]) -> Batches<'b> {
        let start = self.layout.start_of(number) + CHUNK_START;
        let salt = self.chunks.get(number).map_or(0, Chunk::salt);
        let first = bytes.get_mut(usize::try_from(CHUNK_START).unwrap_or(0)..);
        Batches::new(first.unwrap_or_default(), start, salt)
    }

    /// Copies what counts in a chunk; false if that cannot be read, or is damaged. The cleaner has the records that entries and copies
    /// share.
    pub(super) fn copy_live(
        &self,
        cleaner: &mut Cleaner,
        victim: Victim,
        buffer: &mut Vec<u8>,
    ) -> Result<bool> {
        cleaner.shared.clear();
        if unless_damaged(self.read_log(victim.number, buffer), "a chunk is left as it is")?
            .is_none()
        {
            return Ok(false);
        }
        let batches = self.batches_of(victim.number, buffer);
        let mut moves = Moves { emptying: self.cleaners.emptying(), ..Moves::default() };
        let copied = self.copy_batches(cleaner, batches, &mut moves, victim);
        // Of those that were to follow nobody knows, unless what failed was to make them durable: they may be.
        let undone = moves.forming.into_iter().filter_map(|copied| copied.new_record);
        match &copied {
            Err(error) => undone.for_each(|line| self.give_back(error, Some(line))),
            Ok(_) => undone.for_each(|line| self.free_record(line)),
        }
        copied
    }

    /// The index follows a copy.
    fn follow(&self, cleaner: &mut Cleaner, victim: u32, copied: Copied, new: Word) {
        let Copied { hash, key, old, shared_record, old_record, new_record, expires_at, .. } =
            copied;
        let chunk = |word| self.chunks.get(self.layout.chunk_of(Place::of(word).offset));
        // Either the old place does not count any more, or the copy never did.
        let is_buried = kind_of(new).is_tombstone() && !kind_of(old).is_tombstone();
        // Before: whoever overtakes it counts it out.
        if is_buried {
            self.tombstones.fetch_add(1, Ordering::Relaxed);
        }
        if self.index.replace(hash, &key, old, new) {
            chunk(old).into_iter().for_each(Chunk::count_dead);
            if let (Some(chunk), Some(expires_at)) = (chunk(new), expires_at) {
                chunk.note_expiry(expires_at);
            }
            cleaner.shared.extend(shared_record);
            self.leave(cleaner, victim, old_record);
        } else {
            if is_buried {
                self.tombstones.fetch_sub(1, Ordering::Relaxed);
            }
            chunk(new).into_iter().for_each(Chunk::count_dead);
            new_record.into_iter().for_each(|line| self.free_record(line));
        }
    }

    /// A record is free once the chunk of the entry that points at it is (C4).
    fn leave(&self, cleaner: &mut Cleaner, victim: u32, record: Option<u64>) {
        match sites::RECORD_LEFT.disabled() {
            true => record.into_iter().for_each(|line| self.free_record(line)),
            false => cleaner.leave(victim, record),
        }
    }

    fn copy_batches(
        &self,
        cleaner: &mut Cleaner,
        mut batches: Batches<'_>,
        moves: &mut Moves,
        victim: Victim,
    ) -> Result<bool> {
        loop {
            let batch = match batches.take_next() {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(_) if self.is_in_repair() => match batches.skip_damage() {
                    true => continue,
                    false => break,
                },
                Err(flaw) => {
                    let error = self.damage(flaw, batches.offset());
                    tracing::warn!(%error, "a chunk is left as it is");
                    return Ok(false);
                }
            };
            for found in batch.entries() {
                let found = match found {
                    Ok(found) => found,
                    Err(_) if self.is_in_repair() => break,
                    Err(_) => return Ok(false),
                };
                self.copy_entry(cleaner, moves, &found, victim)?;
            }
        }
        self.end_batch(cleaner, moves, victim)?;
        Ok(true)
    }

    /// Copies an entry, if it counts and its key is known.
    fn copy_entry(
        &self,
        cleaner: &mut Cleaner,
        moves: &mut Moves,
        found: &FoundEntry<'_>,
        victim: Victim,
    ) -> Result<()> {
        let FoundEntry { entry, version, place } = found;
        let version = *version;
        // One whose key cannot be read, or is there no more, may have been overtaken. If it was not, the chunk does not come free.
        let key = unless_damaged(self.key_of_entry(entry), "an entry is left as it is")?.flatten();
        let Some(key) = key else { return Ok(()) };
        let (hash, word, key) = (self.hasher.hash(&key), place.word(), key.into_owned());
        if !self.index.holds(hash, &key, word) {
            return Ok(());
        }
        let has_expired = self.clock.is_expired(attributes_of(entry).expires_at);
        let is_needed = version >= victim.needed && !sites::TOMBSTONE_NEEDED.disabled();
        let may_go = (place.kind.is_tombstone() || has_expired) && !is_needed;
        if may_go || self.is_cleared(word) {
            if self.index.remove(hash, &key, word) {
                self.let_go(word, None);
                self.leave(cleaner, victim.number, record_of_action(entry.action));
            }
            return Ok(());
        }
        let becomes = match has_expired {
            true => self.becomes_tombstone(entry, &key)?,
            false => self.becomes_moved(&moves.emptying, entry, &key)?,
        };
        // Whatever becomes of it has no more bytes.
        let size = BATCH_HEADER_SIZE + moves.bytes.len() + entry.size + 8;
        let full = moves.forming.len() == BATCH_ENTRIES_MAX
            || size > BATCH_NEAR_BYTES
            || size > self.layout.batch_room();
        if full {
            self.end_batch(cleaner, moves, victim).inspect_err(|_| {
                becomes.new_record.into_iter().for_each(|line| self.free_record(line));
            })?;
        }
        if moves.forming.is_empty() {
            moves.base = version;
        }
        let delta = version.checked_sub(moves.base).filter(|delta| *delta <= DELTA_MAX);
        let delta = delta.and_then(|delta| u16::try_from(delta).ok());
        let stamp = delta.map_or(Stamp::Whole(version), Stamp::Delta);
        let Becomes { entry, shared_record, old_record, new_record, expires_at } = becomes;
        let at = moves.bytes.len();
        entry.encode(stamp, &mut moves.bytes);
        let (kind, key_of_8) = (Flat::kind_of_action(entry.action), place.key_of_8);
        let old = word;
        moves.forming.push(Copied {
            at,
            kind,
            key_of_8,
            hash,
            key,
            old,
            shared_record,
            old_record,
            new_record,
            expires_at,
        });
        Ok(())
    }

    /// What becomes of the entry of a value that has expired, while an older one of its key may be on media.
    fn becomes_tombstone<'e>(&self, entry: &Entry<'e>, key: &[u8]) -> Result<Becomes<'e>> {
        let old_record = record_of_action(entry.action);
        let new_record = match entry.key {
            EntryKey::Here(_) => None,
            EntryKey::Record(_) => match self.place_moved(key, true, &[], false)? {
                // So it stays as it is.
                None => return Ok(Becomes::same(entry)),
                placed => placed,
            },
        };
        let entry =
            EncodeEntry { action: Action::Delete(new_record), attributes: None, ..entry.moved() };
        Ok(Becomes { entry, shared_record: None, old_record, new_record, expires_at: None })
    }

    /// What becomes of an entry that counts: its record moves if that is in a chunk that is being emptied.
    fn becomes_moved<'e>(
        &self,
        emptying: &Emptying,
        entry: &Entry<'e>,
        key: &[u8],
    ) -> Result<Becomes<'e>> {
        let mut same = Becomes::same(entry);
        let Some(old) = record_of_action(entry.action) else { return Ok(same) };
        if !self.is_among(emptying, self.chunk_of_line(old)) {
            return Ok(same);
        }
        if let Some(new) = self.move_record(emptying, key, old)? {
            same.entry.action = match entry.action {
                Action::Delete(_) => Action::Delete(Some(new)),
                _ => Action::Pointer(new),
            };
            same.shared_record = None;
            (same.old_record, same.new_record) = (Some(old), Some(new));
        }
        Ok(same)
    }

    /// Writes the batch of copies that forms to the cleaner's log, durably; then the index follows (C1): the keys of a whole chunk would take
    /// any amount of memory until its end.
    fn end_batch(&self, cleaner: &mut Cleaner, moves: &mut Moves, victim: Victim) -> Result<()> {
        if moves.forming.is_empty() {
            return Ok(());
        }
        let payload = moves.bytes.len();
        let total = batch_size(payload);
        let (chunk, tail) = self.room_for_copies(cleaner, total as u64, victim.born)?;
        let offset = self.layout.start_of(chunk) + tail;
        let mut bytes = vec![0; BATCH_HEADER_SIZE];
        bytes.append(&mut moves.bytes);
        for (copied, ordinal) in moves.forming.iter().zip(0..) {
            let entry = bytes.get_mut(BATCH_HEADER_SIZE + copied.at..).unwrap_or_default();
            bind_entry(entry, moves.base, ordinal);
        }
        bytes.resize(total, 0);
        self.write_batch((chunk, offset), &mut bytes, payload, moves.base, MOVE, || ())?;
        let end = tail + total as u64;
        cleaner.log.open = Some((chunk, end));
        if let Some(state) = self.chunks.get(chunk) {
            let count = u32::try_from(moves.forming.len()).unwrap_or(0);
            state.entries.fetch_add(count, Ordering::Relaxed);
            state.count_published(count);
            let tombstones = moves.forming.iter().filter(|copied| copied.kind.is_tombstone());
            state.note_appended(payload, tombstones.count(), end);
        }
        for (ordinal, copied) in moves.forming.drain(..).enumerate() {
            let within = BATCH_HEADER_SIZE + copied.at;
            let place = Place {
                offset: offset + within as u64,
                kind: copied.kind,
                key_of_8: copied.key_of_8,
                ordinal,
                lines: (within / LINE) as u64,
            };
            self.follow(cleaner, victim.number, copied, place.word());
        }
        Ok(())
    }

    /// Where the cleaner's log has room for so many bytes.
    fn room_for_copies(&self, cleaner: &mut Cleaner, total: u64, born: u64) -> Result<(u32, u64)> {
        if let Some((chunk, tail)) = cleaner.log.open
            && tail + total <= self.layout.log_end()
        {
            return Ok((chunk, tail));
        }
        if let Some((full, tail)) = cleaner.log.open.take() {
            self.seal(full, tail)?;
        }
        let Some(next) = self.take_free(1, For::Cleaner)? else {
            let words = "the cleaner has no free chunk";
            return Err(Error::new(ErrorKind::NoSpace, "clean").context(words));
        };
        let begun = self.begin_log(next, cleaner.core, born);
        Ok((next, begun.map_err(|error| self.poison(&error))?))
    }
}

impl<'e> Becomes<'e> {
    /// The entry at another place.
    fn same(entry: &Entry<'e>) -> Becomes<'e> {
        Becomes {
            entry: entry.moved(),
            shared_record: record_of_action(entry.action),
            old_record: None,
            new_record: None,
            expires_at: attributes_of(entry).expires_at,
        }
    }
}
