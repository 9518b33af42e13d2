//! Checkpoints of an open store: an image of the index, with which recovery reads only what was written after it
//! (FlatStore §3.5).
//!
//! The image begins with the tails of all logs, taken at a moment when no write and no move is under way: whatever
//! counted of the entries before them was in the index. Then writers go on, and the index is copied part by part. What of
//! the copy stands behind a tail, or in a chunk that was begun later, is left out when it is loaded: recovery
//! reads those logs from their tails on. Cleaners may move entries and free chunks meanwhile and afterwards: an entry
//! counts only in the incarnation of its chunk that the image names, and its copy stands behind the tails.
//!
//! # Invariants
//! - T1: of the entries before the tails, the image has the newest one of each key that is still on media. For
//!   what had overtaken it when the tails were taken would be on media too, or be a tombstone that was dropped, and that is
//!   only once nothing older is left.
//! - T2: an image vouches for itself: its parts have checksums and a number in common that no other image has. So a
//!   checkpoint of any age is right, and none is needed.
//! - T3: when an image counts, no record is left for a chunk of a log (C4 of [`clean`](super::clean)), neither from before the tails nor
//!   from a move meanwhile: the image may have the copy's place, behind the tails, and then recovery would not find the
//!   original before them, nor know that its record is left. Nor does a record have twins ([`twins`](super::twins)): recovery finds
//!   those of an image no more, and a later one, without the image, reads both.
//!
//! # Concurrency
//! The tails are taken with the locks of all keys and of all cleaners; nothing is held while the index is copied but the
//! checkpoint's own lock, and the cleaners' again for the last part. Whoever finds no room drops the checkpoint.
//!
//! # Failure
//! A crash leaves the checkpoint before, or this one, or none. Of one that is damaged nothing is used.

use super::checkpoint::{Image, Writer};
use super::chunks::{For, Since};
use super::layout::{Place, kind_of};
use super::recover::Root;
use super::replay::Learned;
use super::{Flat, sites};
use crate::options::Options;
use esker_base::Result;
use esker_base::ids::Version;
use esker_format::flat::image::{HASH_ENTRY_SIZE, LOG_TAIL_SIZE};
use esker_format::flat::{CHUNK_START, Entry, EntryKey, ImageKind, LogTail};
use esker_index::Word;
use std::sync::atomic::Ordering;

/// A checkpoint is worth its while if one entry in so many of the index was written since the last.
const CHECKPOINT_SHARE: u64 = 16;
/// And if there are more than so many of them: fewer are read in no time.
const CHECKPOINT_MIN: u64 = 100_000;

/// The checkpoint that is on media.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    chunks: Vec<u32>,
    /// Version that came next.
    next_version: u64,
    /// Versions that had been given to all cores together.
    given: u64,
}

/// How far logs are covered.
#[derive(Debug, Default)]
pub(super) struct Tails {
    /// By chunk: bytes and entries; 0 bytes for those that are not.
    logs: Vec<(u32, u32)>,
    /// The newest version that is covered.
    pub(super) newest: u64,
}

impl Tails {
    /// Where to begin to read a log, and the entries before.
    pub(super) fn of(&self, number: u32) -> (usize, u32) {
        let known = usize::try_from(number).ok().and_then(|number| self.logs.get(number));
        match known {
            Some((tail, entries)) if *tail > 0 => (usize::try_from(*tail).unwrap_or(0), *entries),
            _ => (usize::try_from(CHUNK_START).unwrap_or(0), 0),
        }
    }
}

/// A checkpoint that was found.
pub(super) struct Found {
    image: Image,
    pub(super) tails: Tails,
}

impl Flat {
    /// Writes a checkpoint; false if nothing was written since the last one, if one is under way, or if there is no
    /// room.
    pub(super) fn write_checkpoint(&self) -> Result<bool> {
        self.refuse()?;
        let settled = !sites::CHECKPOINT_SETTLED.disabled();
        let locks = settled.then(|| self.keys.lock_all());
        let mut still = settled.then(|| self.hold_cleaning());
        self.refuse()?;
        // T3.
        if let Some(still) = &mut still
            && !self.clean_left(still)?
        {
            return Ok(false);
        }
        let Some(mut checkpoint) = self.checkpoint.try_lock() else { return Ok(false) };
        let next = self.versions.meet();
        let given = self.versions.given();
        if checkpoint.next_version == next {
            return Ok(false);
        }
        let logs = self.chunks.iter().filter(|(_, chunk)| chunk.is_log());
        let tail = |(number, chunk): (u32, &super::chunks::Chunk)| LogTail {
            number,
            tail: chunk.tail.load(Ordering::Acquire),
            entries: chunk.counts().0,
            salt: chunk.salt(),
        };
        // A log that was just begun has nothing yet.
        let tails: Vec<LogTail> =
            logs.map(tail).filter(|tail| u64::from(tail.tail) > CHUNK_START).collect();
        drop(still);
        drop(locks);
        let mut writer = Writer::new(self, For::Checkpoint, ImageKind::Tails, next);
        let written = self.write_index(&mut writer, &tails);
        let done = written.map_err(|error| self.poison(&error))?;
        let old = match done {
            true => std::mem::replace(&mut checkpoint.chunks, std::mem::take(&mut writer.chunks)),
            // Too little room.
            false => std::mem::take(&mut writer.chunks),
        };
        if done {
            (checkpoint.next_version, checkpoint.given) = (next, given);
        }
        self.release_all(&old)?;
        Ok(done)
    }

    fn write_index(&self, writer: &mut Writer<'_>, tails: &[LogTail]) -> Result<bool> {
        for tail in tails {
            if !writer.room_for(ImageKind::Tails, LOG_TAIL_SIZE)? {
                return Ok(false);
            }
            writer.payload.extend_from_slice(&tail.encode());
            writer.count += 1;
        }
        if !self.add_entries(writer)? {
            return Ok(false);
        }
        // T3: until it counts, nothing moves.
        let mut still = None;
        if !sites::CHECKPOINT_SETTLED.disabled() {
            let Some(held) = self.hold_cleaning_while_open() else { return Ok(false) };
            if !self.clean_left(still.insert(held))? {
                return Ok(false);
            }
        }
        if !writer.finish()? {
            return Ok(false);
        }
        // PERSIST: this one, before the last one goes.
        self.memory.fence(sites::CHECKPOINT_FENCE).map(|()| true)
    }

    fn release_all(&self, chunks: &[u32]) -> Result<()> {
        for number in chunks {
            let released = self.chunks.release(&*self.memory, *number, self.versions.next());
            released.map_err(|error| self.poison(&error))?;
        }
        Ok(())
    }

    /// Gives the room of the checkpoint back; false if there is none.
    pub(super) fn drop_checkpoint(&self) -> Result<bool> {
        let chunks = std::mem::take(&mut *self.checkpoint.lock()).chunks;
        self.release_all(&chunks)?;
        Ok(!chunks.is_empty())
    }

    /// The newest checkpoint that is there and after which nothing was cleared.
    pub(super) fn find_checkpoint(&self, root: &Root) -> Result<Option<Found>> {
        let images = Image::find_all(&*self.memory, &self.layout, root)?;
        let counts = |image: &Image| {
            let cleared = root.clear.version >= image.first.next_version;
            image.first.kind == ImageKind::Tails && (!cleared || sites::CHECKPOINT_CLEAR.disabled())
        };
        let Some(image) = images.into_iter().find(counts) else { return Ok(None) };
        let count = usize::try_from(self.layout.chunk_count).unwrap_or(0);
        let newest = image.first.next_version.saturating_sub(1);
        let mut tails = Tails { logs: vec![(0, 0); count], newest };
        let mut buffer = Vec::new();
        for part in 0..image.chunks.len() {
            let Some((header, payload)) = self.read_part(&image, part, &mut buffer)? else {
                return Ok(None);
            };
            if header.kind != ImageKind::Tails {
                break;
            }
            for bytes in payload.chunks_exact(LOG_TAIL_SIZE) {
                let Ok(tail) = LogTail::decode(bytes) else { return Ok(None) };
                let Some(chunk) = self.chunks.get(tail.number) else { return Ok(None) };
                let number = usize::try_from(tail.number).unwrap_or(usize::MAX);
                let fits = self.layout.is_tail(tail.tail);
                let same = (chunk.is_log() && chunk.salt() == tail.salt)
                    || sites::CHECKPOINT_STANDS.disabled();
                if let Some(log) = tails.logs.get_mut(number).filter(|_| same && fits) {
                    *log = (tail.tail, tail.entries);
                }
            }
        }
        Ok(Some(Found { image, tails }))
    }

    /// Takes over the entries of a checkpoint that still stand; false if a part is damaged: then the state in DRAM is
    /// of no use.
    pub(super) fn load_checkpoint(
        &self,
        found: &Found,
        learned: &Learned,
        options: &Options,
    ) -> Result<bool> {
        let stands = |word: Word| {
            let offset = Place::of(word).offset;
            let number = self.layout.chunk_of(offset);
            let log = usize::try_from(number).ok().and_then(|number| found.tails.logs.get(number));
            let within = offset - self.layout.start_of(number);
            log.is_some_and(|(tail, _)| within < u64::from(*tail))
        };
        // Without keys, one that was overtaken since is found by its record only, which may be another's by now.
        let has_key = |word: Word| !kind_of(word).has_record() || self.has_key(word, learned);
        let counted = |word: Word, counts: bool| {
            if counts {
                learned.count(&self.layout, Place::of(word), true);
            }
            counts
        };
        let of_hash = |word: Word| counted(word, stands(word) && has_key(word));
        let of_key = |word: Word| counted(word, stands(word));
        let load = |part: &esker_format::flat::ImageHeader, payload: &[u8]| match part.kind {
            ImageKind::Tails => Some(()),
            ImageKind::Hashes => self.load_hashes(payload, part.count, &of_hash),
            ImageKind::Keys => self.load_keys(payload, part.count, &of_key),
            ImageKind::Chunks => None,
        };
        self.load_parts(&found.image, 0, options, &load)
    }

    /// Whether the key of an entry can be read: that of a record may have been overwritten.
    fn has_key(&self, word: Word, learned: &Learned) -> bool {
        let place = Place::of(word);
        let key = |entry: &Entry<'_>, version: Version| {
            let has_key = !matches!(self.key_if_there(entry), Ok(None));
            if let (false, EntryKey::Record(hash)) = (has_key, entry.key) {
                learned.note_keyless(hash, version.0, place.offset);
            }
            has_key
        };
        let seen = self.with_entry(place, Since::HELD, key);
        // What cannot be read is left to those who need it: they say so.
        !matches!(seen, Ok(Some(false)))
    }

    /// Remembers the checkpoint that recovery used: it goes on to be right.
    pub(super) fn keep_checkpoint(&self, found: Option<Found>) {
        if let Some(found) = found {
            let next_version = found.tails.newest + 1;
            // About as many as versions passed since.
            let since = (self.last_version().0 + 1).saturating_sub(next_version);
            let given = self.versions.given().saturating_sub(since);
            let chunks = found.image.chunks;
            *self.checkpoint.lock() = Checkpoint { chunks, next_version, given };
        }
    }

    /// Whether a chunk is a part of the checkpoint that counts.
    pub(super) fn is_of_checkpoint(&self, number: u32) -> bool {
        self.checkpoint.lock().chunks.contains(&number)
    }

    /// Free chunks with which there is room for a checkpoint.
    pub(super) fn checkpoint_room(&self) -> usize {
        /// Bytes of an entry of an ordered index, about.
        const KEY_ENTRY: usize = 48;
        let each = if self.index.is_ordered() { KEY_ENTRY } else { HASH_ENTRY_SIZE };
        let bytes = self.index.len().saturating_mul(each as u64);
        let parts = usize::try_from(bytes / self.layout.room()).unwrap_or(usize::MAX);
        self.chunks.kept(For::Checkpoint).saturating_add(parts).saturating_add(3)
    }

    /// Whether so much was written since the last checkpoint that another one is worth its while.
    pub(super) fn is_checkpoint_worth(&self) -> bool {
        // The clocks of the cores differ, so their sum is compared with their sum.
        let written = self.versions.given().saturating_sub(self.checkpoint.lock().given);
        written >= CHECKPOINT_MIN && written >= self.index.len() / CHECKPOINT_SHARE
    }
}
