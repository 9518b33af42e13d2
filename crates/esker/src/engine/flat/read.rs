//! Reads: index, entry, and for long values the record (FlatStore §3.2).
//!
//! No reader takes a lock. What stands in the log does not change until its chunk is used anew, which the
//! chunk's generation tells; that it was not used anew between the lookup and the read, the number of chunks that were
//! taken. A record's place is free once the key is written again, which the index tells. Who finds any of these changed
//! looks the key up again.
//!
//! A get waits for memory two times or three. In a task it asks for what comes next and lets others run meanwhile, so that a core
//! waits for several gets at once, and writers need not wait until no reader is left.

use super::chunks::{Chunk, Since};
use super::layout::{Kind, Place};
use super::{Flat, sites};
use crate::engine::Admit;
use crate::value::{Attributes, Value};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::flat::entry::ENTRY_SIZE_MAX;
use esker_format::flat::record::record_size;
use esker_format::flat::{
    Action, BASE_VERSION_SIZE, BATCH_HEADER_SIZE, BatchHeader, Entry, EntryAttributes, EntryKey,
    LINE, RECORD_HEADER_SIZE, Record, Stamp,
};
use esker_index::Word;
use esker_media::BufferPool;
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::atomic::{Ordering, fence};

/// Bytes of an entry that are read at first: enough for most.
const NEAR_BYTES: usize = 85;
/// Bytes before them, so that what the check of an entry with a value covers begins with a word, where it is computed
/// fastest; with the bytes of the entry it is whole words, which are read fastest.
const LEAD: usize = 3;

/// What is read of an entry at first.
#[repr(align(8))]
struct Near([u8; LEAD + BASE_VERSION_SIZE + NEAR_BYTES]);

/// What an entry says of its key, besides the value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) version: Version,
    pub(super) exists: bool,
    pub(super) expires_at: Option<u64>,
}

/// What an entry says of a value.
enum Seen {
    Value(Value),
    Record(u64, Version, Attributes),
    Gone,
}

/// What was shown of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shown {
    Item(ControlFlow<()>),
    /// There is no value.
    Nothing,
}

/// Attributes as they stand in an entry; `None` for what all values have.
pub(super) fn entry_attributes(attributes: Attributes) -> Option<EntryAttributes> {
    let state = attributes.state & 0xF;
    let plain = attributes.flags == 0 && attributes.expires_at.is_none() && state == 0;
    (!plain).then(|| EntryAttributes {
        flags: attributes.flags,
        expires_at: attributes.expires_at.unwrap_or(u64::MAX),
        state,
    })
}

pub(super) fn attributes_of(entry: &Entry<'_>) -> Attributes {
    entry.attributes.map_or_else(Attributes::default, |found| Attributes {
        flags: found.flags,
        expires_at: Some(found.expires_at).filter(|expires_at| *expires_at != u64::MAX),
        state: found.state,
    })
}

impl Flat {
    pub(super) fn corrupted(&self, flaw: Flaw, offset: u64, length: u64) -> Error {
        Error::corrupted("read entry", flaw.to_string())
            .device(self.memory.name())
            .at(offset, length)
    }

    /// Reads the entry at a place that was looked up after `since`, and gives it and its version to `see`, once its check
    /// says that it is what was written; `None` if its chunk was used anew meanwhile, or may have been.
    #[inline]
    pub(super) fn with_entry<R>(
        &self,
        place: Place,
        since: Since,
        see: impl FnOnce(&Entry<'_>, Version) -> R,
    ) -> Result<Option<R>> {
        let is_sound = |entry: &Entry<'_>, version: Version| {
            Flat::kind_of_action(entry.action) == place.kind && entry.is_sound(version.0)
        };
        self.with_entry_if(place, since, is_sound, see)
    }

    /// As [`with_entry`](Flat::with_entry), but whatever has the shape of an entry and is `sound`.
    #[inline]
    fn with_entry_if<R>(
        &self,
        place: Place,
        since: Since,
        is_sound: impl FnOnce(&Entry<'_>, Version) -> bool,
        see: impl FnOnce(&Entry<'_>, Version) -> R,
    ) -> Result<Option<R>> {
        let number = self.layout.chunk_of(place.offset);
        let Some(chunk) = self.chunks.get(number) else {
            return Err(self.corrupted(Flaw::Field("place"), place.offset, 0));
        };
        let generation = chunk.generation();
        if !self.chunks.none_taken(since) && !sites::READ_SINCE.disabled() {
            return Ok(None);
        }
        let end = self.layout.start_of(number) + self.layout.chunk_size;
        let left = usize::try_from(end - place.offset).unwrap_or(0);
        // The batch's header, which ends with the base version, stands right before its first entry.
        let before = LEAD + if place.ordinal == 0 { BASE_VERSION_SIZE } else { 0 };
        let mut near = Near([0; _]);
        let near = near.0.get_mut(..before + left.min(NEAR_BYTES)).unwrap_or_default();
        self.memory.read(place.offset.saturating_sub(before as u64), near)?;
        let (head, bytes) = near.split_at(before);
        let mut decoded = Entry::decode(bytes);
        let mut far;
        if left > NEAR_BYTES && matches!(decoded, Err(Flaw::TooShort)) {
            far = [0; ENTRY_SIZE_MAX];
            let bytes = far.get_mut(..left.min(ENTRY_SIZE_MAX)).unwrap_or_default();
            self.memory.read(place.offset, bytes)?;
            decoded = Entry::decode(bytes);
        }
        let found = match &decoded {
            Ok(entry) => {
                let version = self.version_of(place, entry.stamp, head.last_chunk())?;
                if is_sound(entry, version) { Ok((entry, version)) } else { Err(Flaw::Checksum) }
            }
            Err(flaw) => Err(*flaw),
        };
        fence(Ordering::Acquire);
        if chunk.generation() != generation && !sites::READ_GENERATION.disabled() {
            return Ok(None);
        }
        match found {
            Ok((entry, version)) => Ok(Some(see(entry, version))),
            Err(flaw) => Err(self.corrupted(flaw, place.offset, left.min(NEAR_BYTES) as u64)),
        }
    }

    /// The version of an entry, with the end of its batch's header if that is at hand. If its chunk is used anew, it may be
    /// anything: the reader of the entry finds out.
    #[inline]
    fn version_of(
        &self,
        place: Place,
        stamp: Stamp,
        head: Option<&[u8; BASE_VERSION_SIZE]>,
    ) -> Result<Version> {
        if let Stamp::Whole(version) = stamp {
            return Ok(Version(version));
        }
        let mut read = [0; BASE_VERSION_SIZE];
        let head = match head {
            Some(head) => head,
            None => {
                let end = place.batch_offset() + BATCH_HEADER_SIZE as u64;
                self.memory.read(end - BASE_VERSION_SIZE as u64, &mut read)?;
                &read
            }
        };
        let base = BatchHeader::base_version(*head);
        Ok(Version(stamp.version(base, place.ordinal as u64)))
    }

    /// The key's word, by reading the entries of candidates if their hash does not tell. It may be one that was cleared.
    #[inline]
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Result<Option<Word>> {
        let found = self.find_known(hash, key)?;
        if found.is_none() && self.lost.has(hash) && !self.index.is_exact(key) {
            let words = "an entry that cannot be read may be this key's";
            return Err(Error::corrupted("read entry", words).device(self.memory.name()));
        }
        Ok(found)
    }

    /// As [`find`](Flat::find), for who knows that no lost entry is the key's: it has been written since.
    #[inline]
    pub(super) fn find_known(&self, hash: u64, key: &[u8]) -> Result<Option<Word>> {
        let mut since = self.chunks.now();
        self.index.find(hash, key, &mut |word| {
            let same = self.is_entry_of(word, key, since)?;
            if same.is_none() {
                // The index looks again.
                since = self.chunks.now();
            }
            Ok(same)
        })
    }

    /// Whether an entry is that of a key; one that was cleared is nobody's, whatever stands there. `None` if it is gone meanwhile.
    pub(super) fn is_entry_of(&self, word: Word, key: &[u8], since: Since) -> Result<Option<bool>> {
        if self.is_cleared(word) {
            return Ok(Some(false));
        }
        let place = Place::of(word);
        // Whoever uses the entry checks it.
        let seen = self.with_entry_if(
            place,
            since,
            |_, _| true,
            |entry, _| match entry.key {
                EntryKey::Here(found) => Ok(found == key || sites::ENTRY_KEY.disabled()),
                EntryKey::Record(_) => {
                    self.key_of_entry(entry).map(|found| found.as_deref() == Some(key))
                }
            },
        )?;
        match seen {
            None => Ok(None),
            Some(Ok(true)) => Ok(Some(true)),
            Some(Ok(false)) => self.is_of_another(word, key, since),
            Some(Err(error)) => Err(error),
        }
    }

    /// For an entry with the hash of a key but not, as it seems, the key: `false` if it has another one. Damage could make it seem so.
    #[cold]
    fn is_of_another(&self, word: Word, key: &[u8], since: Since) -> Result<Option<bool>> {
        let place = Place::of(word);
        let seen = self.with_entry(place, since, |entry, _| match entry.key {
            EntryKey::Here(_) => true,
            EntryKey::Record(hash) => hash != self.hasher.hash_whole(key),
        })?;
        if seen == Some(false) && self.index.holds(self.hasher.hash(key), key, word) {
            // Its record was not overwritten, and yet has not the key any more.
            return Err(self.corrupted(Flaw::Checksum, place.offset, 0));
        }
        Ok(seen.filter(|other| *other).map(|_| false))
    }

    /// The key of an entry, from the entry or its record; `None` if the record is another's by now.
    pub(super) fn key_of_entry<'e>(&self, entry: &Entry<'e>) -> Result<Option<Cow<'e, [u8]>>> {
        match (entry.key, entry.action) {
            (EntryKey::Here(key), _) => Ok(Some(Cow::Borrowed(key))),
            (EntryKey::Record(hash), Action::Pointer(line) | Action::Delete(Some(line))) => {
                let key = self.read_key(line)?;
                Ok(key.filter(|key| self.hasher.hash_whole(key) == hash).map(Cow::Owned))
            }
            (EntryKey::Record(_), _) => Ok(None),
        }
    }

    /// The key of an entry; `None` if its record has not its key, or is lost. An open goes on if another one overtook the entry.
    pub(super) fn key_if_there<'e>(&self, entry: &Entry<'e>) -> Result<Option<Cow<'e, [u8]>>> {
        match self.key_of_entry(entry) {
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                tracing::warn!(%error, "the record of an entry cannot be read");
                Ok(None)
            }
            key => key,
        }
    }

    /// The key that a record holds; `None` if it holds none.
    fn read_key(&self, line: u64) -> Result<Option<Vec<u8>>> {
        let Some((record, offset)) = self.peek_record(line)? else { return Ok(None) };
        let mut key = vec![0; record.key_length];
        self.memory.read(offset + RECORD_HEADER_SIZE as u64, &mut key)?;
        Ok(Some(key))
    }

    /// The header of a record, and where it stands; `None` if nothing that can be one stands there: a length that is damaged takes no more
    /// memory than the record's place has.
    pub(super) fn peek_record(&self, line: u64) -> Result<Option<(Record, u64)>> {
        let offset = line.saturating_mul(LINE as u64);
        let end = self.layout.chunk_size.saturating_mul(u64::from(self.layout.chunk_count));
        if offset.saturating_add(RECORD_HEADER_SIZE as u64) > end {
            return Ok(None);
        }
        let mut head = [0; RECORD_HEADER_SIZE];
        self.memory.read(offset, &mut head)?;
        let Ok(record) = Record::peek(&head) else { return Ok(None) };
        let size = record_size(record.key_length, record.value_length);
        let room = self.record_room(offset).unwrap_or(0).min(end - offset);
        Ok((size <= room).then_some((record, offset)))
    }

    /// What the entry of a word says; `None` if it is gone meanwhile.
    pub(super) fn known(&self, word: Word, since: Since) -> Result<Option<Known>> {
        let place = Place::of(word);
        self.with_entry(place, since, |entry, version| {
            let expires_at = attributes_of(entry).expires_at;
            Known { version, exists: !place.kind.is_tombstone(), expires_at }
        })
    }

    /// The line of an entry's record, if it has one; the inner `None` if the entry is gone meanwhile.
    pub(super) fn record_of(&self, word: Word, since: Since) -> Result<Option<Option<u64>>> {
        let place = Place::of(word);
        if !place.kind.has_record() {
            return Ok(Some(None));
        }
        self.with_entry(place, since, |entry, _| match entry.action {
            Action::Pointer(line) | Action::Delete(Some(line)) => Some(line),
            Action::Value(_) | Action::Delete(None) => None,
        })
    }

    /// In a task: what a lookup reads of the index comes from memory while others run. Whether there are others.
    #[inline]
    fn fetch_beside_others(&self, hash: u64, key: &[u8]) -> bool {
        let others = esker_trt::others_ready();
        if others {
            let mut step = 0;
            while self.index.prefetch_step(hash, key, step) {
                esker_trt::yield_now();
                step += 1;
            }
            esker_trt::yield_now();
        }
        others
    }

    /// As before, the entry of a word.
    #[inline]
    fn fetch_entry_beside_others(&self, word: Word) {
        self.prefetch_entry(word);
        esker_trt::yield_now();
    }

    pub(super) fn get_value(&self, key: &[u8], admit: Admit<'_>) -> Result<Option<Value>> {
        self.check_key(key, "get")?;
        self.check_open()?;
        let hash = self.hasher.hash(key);
        let mut beside = self.fetch_beside_others(hash, key);
        if beside && !self.index.is_exact(key) {
            // To find the key, the entry is read.
            if let Some(word) = self.index.guess(hash, key) {
                self.fetch_entry_beside_others(word);
            }
            beside = false;
        }
        loop {
            let since = self.chunks.now();
            let found = self.find(hash, key)?.filter(|word| !self.is_cleared(*word));
            let Some(word) = found else { return Ok(None) };
            if std::mem::take(&mut beside) {
                self.fetch_entry_beside_others(word);
            }
            if let Some(found) = self.read_value(hash, key, word, since, admit)? {
                return Ok(found);
            }
        }
    }

    /// The value of the entry of a word: `None` to look the key up again.
    pub(super) fn read_value(
        &self,
        hash: u64,
        key: &[u8],
        word: Word,
        since: Since,
        admit: Admit<'_>,
    ) -> Result<Option<Option<Value>>> {
        let place = Place::of(word);
        if place.kind.is_tombstone() {
            return Ok(Some(None));
        }
        if place.kind == Kind::Value {
            admit(ENTRY_SIZE_MAX as u64)?;
        }
        let chunk = self.chunks.get(self.layout.chunk_of(place.offset));
        let generation = chunk.map(Chunk::generation);
        let seen = self.with_entry(place, since, |entry, version| {
            let attributes = attributes_of(entry);
            match entry.action {
                _ if self.clock.is_expired(attributes.expires_at) => Seen::Gone,
                Action::Value(value) => Seen::Value(Value::small(value, version, attributes)),
                Action::Pointer(line) => Seen::Record(line, version, attributes),
                Action::Delete(_) => Seen::Gone,
            }
        })?;
        match seen {
            None => Ok(None),
            Some(Seen::Gone) => Ok(Some(None)),
            Some(Seen::Value(value)) => Ok(Some(Some(value))),
            Some(Seen::Record(line, version, attributes)) => {
                let read = self.read_record(key, line, version, attributes, admit)?;
                // The place was free for others once the key was written anew, or moved and written anew.
                // In the same place of a chunk that was used anew meanwhile it is another entry.
                fence(Ordering::Acquire);
                let same = chunk.map(Chunk::generation) == generation;
                let current =
                    same && self.index.holds(hash, key, word) || sites::READ_CURRENT.disabled();
                match (current, read) {
                    (false, _) => Ok(None),
                    (true, Some(value)) => Ok(Some(Some(value))),
                    (true, None) => {
                        Err(self.corrupted(Flaw::Checksum, line.saturating_mul(LINE as u64), 0))
                    }
                }
            }
        }
    }

    /// Shows the value of the entry of a word where it is, if it stands in the log; `None` if it does not, or is gone
    /// meanwhile.
    #[inline]
    pub(super) fn show_near(
        &self,
        word: Word,
        since: Since,
        show: impl FnOnce(&[u8], Version, Attributes) -> ControlFlow<()>,
    ) -> Result<Option<Shown>> {
        let place = Place::of(word);
        match place.kind {
            Kind::Tombstone | Kind::TombstoneRecord => return Ok(Some(Shown::Nothing)),
            Kind::Record => return Ok(None),
            Kind::Value => {}
        }
        self.with_entry(place, since, |entry, version| {
            let attributes = attributes_of(entry);
            match entry.action {
                Action::Value(value) if !self.clock.is_expired(attributes.expires_at) => {
                    Shown::Item(show(value, version, attributes))
                }
                _ => Shown::Nothing,
            }
        })
    }

    /// The value of a record; `None` if what stands there is none.
    fn read_record(
        &self,
        key: &[u8],
        line: u64,
        version: Version,
        attributes: Attributes,
        admit: Admit<'_>,
    ) -> Result<Option<Value>> {
        let Some((record, offset)) = self.peek_record(line)? else { return Ok(None) };
        let Ok(value_length) = usize::try_from(record.value_length) else { return Ok(None) };
        let length = record.key_length + value_length;
        admit(BufferPool::capacity_for(length) as u64)?;
        let mut buffer = self.pool.get(length);
        self.memory.read(offset + RECORD_HEADER_SIZE as u64, &mut buffer)?;
        let sound = record.is_sound(key, &buffer, &self.layout.store_id, offset);
        if !sound && !sites::RECORD_CHECKSUM.disabled() {
            return Ok(None);
        }
        Ok(Some(Value::new(buffer, record.key_length..length, version, attributes)))
    }

    /// Memory that reading a key takes.
    pub(super) fn value_size(&self, key: &[u8]) -> u64 {
        let hash = self.hasher.hash(key);
        let since = self.chunks.now();
        let Ok(Some(word)) = self.find(hash, key) else { return 0 };
        if self.is_cleared(word) {
            return 0;
        }
        match Place::of(word).kind {
            Kind::Tombstone | Kind::TombstoneRecord => 0,
            Kind::Value => ENTRY_SIZE_MAX as u64,
            Kind::Record => {
                let line = self.record_of(word, since).ok().flatten().flatten();
                let record = line.and_then(|line| self.peek_record(line).ok().flatten());
                record.map_or(0, |(record, _)| {
                    let length = record.value_length + record.key_length as u64;
                    BufferPool::capacity_for(usize::try_from(length).unwrap_or(usize::MAX)) as u64
                })
            }
        }
    }
}
