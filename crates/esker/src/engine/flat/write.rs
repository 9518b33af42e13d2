//! Writes: the record if the value is long, the entry, then the index (FlatStore §3.2, §3.3).
//!
//! A key's lock is held from the decision until the index has the new entry: so the order of decisions on a key is
//! that of its versions. Only the cleaner changes a key's word meanwhile, to that of a copy of the same entry, or of a
//! tombstone if its value has expired.
//!
//! # Failure
//! A key whose entry is damaged is written and deleted as others are ([`lost`](super::lost)): only what depends on what the entry says is
//! refused. The damaged entry's record stays in use until a recovery finds that nothing points at it.

use super::Flat;
use super::chunks::{For, Since};
use super::commit::Placed;
use super::keys::KeyLock;
use super::layout::{Place, kind_of};
use super::read::{Known, entry_attributes};
use crate::value::{Attributes, Condition, Outcome};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flat::{
    Action, EncodeEntry, EntryKey, INLINE_KEY_MAX, INLINE_VALUE_MAX, KEY_SIZE_MAX_BYTES,
    VALUE_SIZE_MAX_BYTES,
};
use esker_index::{Near, Word};
use std::sync::atomic::Ordering;

/// An entry that is ready to be appended, and the record that it points at.
pub(super) struct Prepared<'a> {
    pub(super) entry: EncodeEntry<'a>,
    pub(super) record: Option<u64>,
}

/// What the index has of a key before it follows a new entry.
enum Looked<'i> {
    Near(Near<'i>),
    Found(Result<Option<Word>>),
}

impl Flat {
    pub(super) fn check_key(&self, key: &[u8], operation: &'static str) -> Result<()> {
        if key.is_empty() || key.len() > KEY_SIZE_MAX_BYTES {
            let words =
                format!("keys have 1 to {KEY_SIZE_MAX_BYTES} bytes, this one {}", key.len());
            return Err(Error::invalid(operation, words));
        }
        Ok(())
    }

    /// Locks a key; what the index will read of it comes meanwhile.
    #[inline]
    fn lock_key(&self, hash: u64) -> KeyLock<'_> {
        self.index.prefetch_one(hash);
        self.keys.lock(hash)
    }

    pub(super) fn check_value(&self, value: &[u8]) -> Result<()> {
        if value.len() as u64 > VALUE_SIZE_MAX_BYTES {
            let words = format!(
                "values have at most {VALUE_SIZE_MAX_BYTES} bytes, this one {}",
                value.len()
            );
            return Err(Error::invalid("put", words));
        }
        Ok(())
    }

    pub(super) fn put_value(
        &self,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Result<Outcome> {
        self.check_key(key, "put")?;
        self.check_value(value)?;
        self.refuse()?;
        let hash = self.hasher.hash(key);
        let lock = self.lock_key(hash);
        // Where the index alone tells, it is asked while the entry is on its way to the media, and what that reads of
        // the index is on its way to the cache.
        let late = condition == Condition::Always && self.index.is_exact(key);
        let (found, lost) = if late {
            (None, false)
        } else if condition == Condition::Always {
            self.find_to_write(hash, key)?
        } else {
            let (found, known) = self.known_of(hash, key, |_, error| Err(error))?;
            if let Some(refused) = self.decide(condition, known) {
                return Ok(refused);
            }
            (found, false)
        };
        let near = if late { self.index.near(key) } else { None };
        let core = self.core_of(hash);
        let prepared = self.prepare_put(core, key, value, attributes)?;
        let meanwhile = || match near {
            Some(mut near) => {
                near.go_on(key);
                Some(Looked::Near(near))
            }
            None => late.then(|| Looked::Found(self.find(hash, key))),
        };
        let (placed, looked) = self.append_prepared(core, &lock, &prepared, meanwhile)?;
        self.note_expiry(placed.word, attributes);
        if !late {
            if lost {
                self.lose(hash, key)?;
            }
            self.publish(hash, key, found, placed.word)?;
            return Ok(Outcome::Stored(placed.version));
        }
        // Nobody did while others wrote the entry along.
        let looked = looked.flatten().unwrap_or_else(|| match self.index.near(key) {
            Some(near) => Looked::Near(near),
            None => Looked::Found(self.find(hash, key)),
        });
        match looked {
            Looked::Near(near) => self.publish_near(near, hash, key, placed.word)?,
            Looked::Found(found) => {
                let found = found.map_err(|error| self.poison(&error))?;
                self.publish(hash, key, found, placed.word)?;
            }
        }
        Ok(Outcome::Stored(placed.version))
    }

    pub(super) fn delete_key(&self, key: &[u8], condition: Condition) -> Result<Outcome> {
        self.check_key(key, "delete")?;
        self.refuse()?;
        let hash = self.hasher.hash(key);
        let lock = self.lock_key(hash);
        // Of a damaged entry only the version is needed, and only by who asks for one.
        let mut lost = false;
        let damaged = |word: Option<Word>, error: Error| match condition {
            Condition::VersionIs(_) => Err(error),
            _ => {
                lost |= word.is_none();
                let exists = word.is_none_or(|word| !kind_of(word).is_tombstone());
                Ok(Known { version: Version(0), exists, expires_at: None })
            }
        };
        let (found, known) = self.known_of(hash, key, damaged)?;
        if let Some(refused) = self.decide(condition, known) {
            return Ok(refused);
        }
        let core = self.core_of(hash);
        let prepared = self.prepare_delete(core, key)?;
        let (placed, _) = self.append_prepared(core, &lock, &prepared, || ())?;
        if lost {
            self.lose(hash, key)?;
        }
        self.publish(hash, key, found, placed.word)?;
        Ok(Outcome::Stored(placed.version))
    }

    /// The word of a key whose lock the caller holds, and what its entry says, or `damaged` if that is, of the word, or nobody knows if
    /// the key has one.
    fn known_of(
        &self,
        hash: u64,
        key: &[u8],
        mut damaged: impl FnMut(Option<Word>, Error) -> Result<Known>,
    ) -> Result<(Option<Word>, Option<Known>)> {
        loop {
            let since = self.chunks.now();
            let found = match self.find(hash, key) {
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    return Ok((None, Some(damaged(None, error)?)));
                }
                found => found?,
            };
            let Some(word) = found else { return Ok((None, None)) };
            if self.is_cleared(word) {
                return Ok((found, None));
            }
            let known = match self.known(word, since) {
                Err(error) if error.kind() == ErrorKind::Corrupted => Some(damaged(found, error)?),
                known => known?,
            };
            if known.is_some() {
                return Ok((found, known));
            }
            // The cleaner moved it.
        }
    }

    /// Why the condition does not hold, if it does not.
    fn decide(&self, condition: Condition, known: Option<Known>) -> Option<Outcome> {
        let live = known.filter(|known| known.exists && !self.clock.is_expired(known.expires_at));
        condition.refused(live.map(|live| live.version))
    }

    /// How a key stands in an entry.
    pub(super) fn entry_key<'k>(&self, key: &'k [u8]) -> EntryKey<'k> {
        if key.len() <= INLINE_KEY_MAX {
            EntryKey::Here(key)
        } else {
            EntryKey::Record(self.hasher.hash_whole(key))
        }
    }

    pub(super) fn prepare_put<'a>(
        &self,
        core: usize,
        key: &'a [u8],
        value: &'a [u8],
        attributes: Attributes,
    ) -> Result<Prepared<'a>> {
        let near_key = key.len() <= INLINE_KEY_MAX;
        let (action, record) = if near_key && value.len() <= INLINE_VALUE_MAX {
            (Action::Value(value), None)
        } else {
            let line = self.place_record(core, For::Puts, key, value)?;
            (Action::Pointer(line), Some(line))
        };
        let attributes = entry_attributes(attributes);
        let entry = EncodeEntry { key: self.entry_key(key), action, attributes };
        Ok(Prepared { entry, record })
    }

    pub(super) fn prepare_delete<'a>(&self, core: usize, key: &'a [u8]) -> Result<Prepared<'a>> {
        let near_key = key.len() <= INLINE_KEY_MAX;
        let record = match near_key {
            true => None,
            false => Some(self.place_record(core, For::Deletes, key, &[])?),
        };
        let action = Action::Delete(record);
        let entry = EncodeEntry { key: self.entry_key(key), action, attributes: None };
        Ok(Prepared { entry, record })
    }

    /// Makes a prepared entry durable; `meanwhile` as in [`Flat::commit`]. If that has no room, its record's place is free
    /// again.
    #[inline]
    fn append_prepared<T>(
        &self,
        core: usize,
        lock: &KeyLock<'_>,
        prepared: &Prepared<'_>,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<(Placed, Option<T>)> {
        let done = self.commit(core, lock.last(), &prepared.entry, meanwhile);
        let done = done.inspect_err(|error| self.give_back(error, prepared.record))?;
        lock.follow(done.0.version);
        Ok(done)
    }

    /// Frees the record of an entry that was not appended. After any other failure the entry may survive.
    pub(super) fn give_back(&self, error: &Error, record: Option<u64>) {
        if let (ErrorKind::NoSpace, Some(line)) = (error.kind(), record) {
            self.free_record(line);
        }
    }

    /// The index follows a key's new entry, which is durable. The caller holds the key's lock.
    pub(super) fn publish(
        &self,
        hash: u64,
        key: &[u8],
        found: Option<Word>,
        new: Word,
    ) -> Result<()> {
        let mut found = found;
        if kind_of(new).is_tombstone() {
            self.tombstones.fetch_add(1, Ordering::Relaxed);
        }
        loop {
            let Some(old) = found else {
                self.index.insert(hash, key, new);
                break;
            };
            // Its entry may be gone as soon as the index does not have it any more: it was looked up long ago. The new
            // one is durable: without a place in the index the store cannot go on.
            if let Some(record) = self.standing_record(hash, key, old)?
                && self.index.supersede(hash, key, old, new)
            {
                self.let_go(old, record);
                break;
            }
            // The cleaner moved it, or dropped a tombstone.
            found = self.find_known(hash, key).map_err(|error| self.poison(&error))?;
        }
        self.count_published(new);
        Ok(())
    }

    /// As [`publish`](Flat::publish), for a value of a key whose place in the ordered index is known.
    fn publish_near(&self, near: Near<'_>, hash: u64, key: &[u8], new: Word) -> Result<()> {
        match near.swap(key, new, |old| !kind_of(old).has_record()) {
            // That is there still: its record is to be known before the index follows.
            Some(old) if kind_of(old).has_record() => self.publish(hash, key, Some(old), new),
            old => {
                old.into_iter().for_each(|old| self.let_go(old, None));
                self.count_published(new);
                Ok(())
            }
        }
    }

    /// Tells the chunk of an entry when that expires.
    #[inline]
    pub(super) fn note_expiry(&self, word: Word, attributes: Attributes) {
        if let Some(expires_at) = attributes.expires_at
            && let Some(chunk) = self.chunks.get(self.layout.chunk_of(Place::of(word).offset))
        {
            chunk.note_expiry(expires_at);
        }
    }

    /// The index follows an entry. Last: the cleaner relies on the counts once this says so.
    fn count_published(&self, new: Word) {
        if let Some(chunk) = self.chunks.get(self.layout.chunk_of(Place::of(new).offset)) {
            chunk.count_published(1);
        }
    }

    /// The line of the record of an entry that the index has under the key; `None` if it has another one by now.
    fn standing_record(&self, hash: u64, key: &[u8], word: Word) -> Result<Option<Option<u64>>> {
        let since = self.chunks.now();
        // Another entry may stand there by now, which would pass for a damaged one; the index would not be changed for it.
        let gone = kind_of(word).has_record() && !self.index.holds(hash, key, word);
        if gone { Ok(None) } else { self.record_to_free(word, since) }
    }

    /// The line of the record of an entry that is about to go, if anything tells which that is.
    pub(super) fn record_to_free(&self, word: Word, since: Since) -> Result<Option<Option<u64>>> {
        match self.record_of(word, since) {
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                tracing::warn!(%error, "a damaged entry goes, and its record stays in use");
                Ok(Some(None))
            }
            record => record.map_err(|error| self.poison(&error)),
        }
    }

    /// An entry does not count any more.
    pub(super) fn let_go(&self, old: Word, record: Option<u64>) {
        let place = Place::of(old);
        // First: once it is dead, its chunk may be used anew.
        let was_cleared = self.is_cleared(old);
        if let Some(chunk) = self.chunks.get(self.layout.chunk_of(place.offset)) {
            chunk.count_dead();
        }
        if was_cleared {
            self.unswept.fetch_sub(1, Ordering::Relaxed);
        } else if place.kind.is_tombstone() {
            self.tombstones.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(line) = record {
            self.free_record(line);
        }
    }

    pub(super) fn last_version(&self) -> Version {
        self.versions.last()
    }
}
