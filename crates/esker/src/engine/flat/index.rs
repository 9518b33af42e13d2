//! The index of a store: hash or ordered, behind one trait (FlatStore §4.1, §4.2).
//!
//! An index maps a key to the place of its newest entry. The ordered one keeps keys; the hash index keeps
//! hashes, and asks whether an entry is the key's, unless both keys have 8 bytes: the hash is invertible on those,
//! so that equal hashes are equal keys.

use super::layout::Place;
use crate::engine::Cursor;
use crate::store::Direction;
use esker_base::{ErrorKind, Result};
use esker_index::{Cceh, Masstree, Near, Word};
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};

/// Whether an entry is that of a key; `None` if it is gone meanwhile.
pub(super) type Same<'a> = &'a mut dyn FnMut(Word) -> Result<Option<bool>>;
/// Keys in order, one behind the other, and their words.
#[derive(Debug)]
pub(super) struct Run {
    keys: Vec<u8>,
    /// Where each key ends, and its word.
    words: Vec<(usize, Word)>,
}

#[cfg(test)]
thread_local! {
    /// Runs that this thread has collected.
    pub(super) static DESCENTS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl Run {
    pub(super) fn new(keys: usize) -> Run {
        Run { keys: Vec::with_capacity(16 * keys), words: Vec::with_capacity(keys) }
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.words.clear();
    }

    #[inline]
    fn add(&mut self, key: &[u8], word: Word) {
        // Of a length that the compiler knows, it is one move.
        match <&[u8; 8]>::try_from(key) {
            Ok(key) => self.keys.extend_from_slice(key),
            Err(_) => self.keys.extend_from_slice(key),
        }
        self.words.push((self.keys.len(), word));
    }

    /// Adds up to `max` keys of an index from `start` to `end`, in order; each word that is added is `met`, with the number
    /// of those before it.
    #[inline]
    pub(super) fn collect(
        &mut self,
        index: &Masstree,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        max: usize,
        mut met: impl FnMut(usize, Word),
    ) {
        #[cfg(test)]
        DESCENTS.with(|descents| descents.set(descents.get() + 1));
        let mut left = max;
        let add = |key: &[u8], word| {
            if !is_before(key, end, direction) {
                return ControlFlow::Break(());
            }
            met(self.words.len(), word);
            self.add(key, word);
            left = left.saturating_sub(1);
            if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        match direction {
            Direction::Forward => index.scan(start, max, add),
            Direction::Reverse => index.scan_back(start, max, add),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    #[inline]
    pub(super) fn word(&self, place: usize) -> Option<Word> {
        self.words.get(place).map(|(_, word)| *word)
    }

    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<(&[u8], Word)> {
        let (end, word) = *self.words.get(place)?;
        let before = place.checked_sub(1).and_then(|before| self.words.get(before));
        Some((self.keys.get(before.map_or(0, |(end, _)| *end)..end)?, word))
    }

    pub(super) fn last_key(&self) -> Option<&[u8]> {
        self.get(self.len().checked_sub(1)?).map(|(key, _)| key)
    }
}

/// Whether a key lies on this side of the end of a scan.
#[inline]
fn is_before(key: &[u8], end: Bound<&[u8]>, direction: Direction) -> bool {
    let (end, inclusive) = match end {
        Bound::Unbounded => return true,
        Bound::Included(end) => (end, true),
        Bound::Excluded(end) => (end, false),
    };
    match key.cmp(end) {
        std::cmp::Ordering::Equal => inclusive,
        order => order.is_lt() == (direction == Direction::Forward),
    }
}

/// Entries of a part of a walk: hash or key, and word.
pub(super) enum Part {
    Hashes(Vec<(u64, Word)>),
    Keys(Vec<(Vec<u8>, Word)>),
}

/// What both indexes do. All calls from any thread; a key's word changes under the key's lock, or, by the
/// cleaner, from the word that it knows.
pub(super) trait KeyIndex: Send + Sync + Debug {
    /// The word of a key. That an entry is damaged is an error if no other one is the key's.
    fn find(&self, hash: u64, key: &[u8], same: Same<'_>) -> Result<Option<Word>>;
    /// Whether the index knows the word of a key without looking at entries.
    fn is_exact(&self, key: &[u8]) -> bool;
    /// Whether this very word stands under the key.
    fn holds(&self, hash: u64, key: &[u8], word: Word) -> bool;
    /// Adds a key that has no word.
    fn insert(&self, hash: u64, key: &[u8], word: Word);
    /// Replaces a word; false if it is not there.
    fn replace(&self, hash: u64, key: &[u8], old: Word, new: Word) -> bool;
    /// As before, for who holds the key's lock.
    fn supersede(&self, hash: u64, key: &[u8], old: Word, new: Word) -> bool {
        self.replace(hash, key, old, new)
    }
    /// Removes a word; false if it is not there.
    fn remove(&self, hash: u64, key: &[u8], old: Word) -> bool;
    /// Starts to fetch what operations on these keys will read.
    fn prefetch(&self, keys: &[(u64, &[u8])]);
    /// Starts to fetch what an operation on a key will read, as far as its hash tells where that is.
    fn prefetch_one(&self, hash: u64);
    /// Starts to fetch the first of what an operation on a key will read, for step 0, and what that leads to, for the next one.
    /// Whether there is a next one.
    fn prefetch_step(&self, hash: u64, key: &[u8], step: u64) -> bool;
    /// The word that is most likely the key's, if there is one.
    fn guess(&self, hash: u64, key: &[u8]) -> Option<Word>;
    /// The way to where a key's word is or would be, for who holds its lock, if the index tells without looking at entries.
    fn near(&self, _key: &[u8]) -> Option<Near<'_>> {
        None
    }
    /// Puts a tombstone where scans do not meet it, for who holds the key's lock while no cleaner works.
    fn bury(&self, _key: &[u8], _word: Word) {}
    /// A part of a walk over everything, and where it goes on.
    fn walk(&self, cursor: &Cursor) -> Option<(Part, Cursor)>;
    /// The keys with a value in their order, if there is one, and some without.
    fn ordered(&self) -> Option<&Masstree>;
    /// Whether there is an order.
    fn is_ordered(&self) -> bool {
        self.ordered().is_some()
    }
    /// Makes room for as many entries as an image has of this kind of index.
    fn expect(&self, hashes: u64);
    /// Adds entries of an image of this kind of index.
    fn load_hashes(&self, entries: &[(u64, Word)]);
    /// As before.
    fn load_keys(&self, entries: &[(&[u8], Word)]);
    fn len(&self) -> u64;
    fn capacity(&self) -> u64;
    fn memory_bytes(&self) -> u64;
}

/// The hash index.
#[derive(Debug)]
pub(super) struct HashIndex {
    pub(super) table: Cceh,
    /// Whether hashes of keys of 8 bytes are whole, and so tell the key.
    pub(super) exact: bool,
}

impl KeyIndex for HashIndex {
    #[inline]
    fn find(&self, hash: u64, key: &[u8], same: Same<'_>) -> Result<Option<Word>> {
        let of_8 = key.len() == 8;
        loop {
            let mut damaged = None;
            let found = self.table.find(hash, |word| {
                let Some(word) = word else {
                    // Once more, from the start: what was damaged may be gone.
                    damaged = None;
                    return ControlFlow::Continue(());
                };
                if Place::of(word).key_of_8 != of_8 {
                    return ControlFlow::Continue(());
                }
                if of_8 && self.exact {
                    return ControlFlow::Break(Ok(Some(word)));
                }
                match same(word) {
                    Ok(Some(true)) => ControlFlow::Break(Ok(Some(word))),
                    Ok(Some(false)) => ControlFlow::Continue(()),
                    // Gone meanwhile: once more, from the start.
                    Ok(None) => ControlFlow::Break(Ok(None)),
                    // Another one may be the key's.
                    Err(error) if error.kind() == ErrorKind::Corrupted => {
                        damaged.get_or_insert(error);
                        ControlFlow::Continue(())
                    }
                    Err(error) => ControlFlow::Break(Err(error)),
                }
            });
            match found {
                None => return damaged.map_or(Ok(None), Err),
                Some(Ok(None)) => {}
                Some(found) => return found,
            }
        }
    }

    #[inline]
    fn is_exact(&self, key: &[u8]) -> bool {
        self.exact && key.len() == 8
    }

    fn holds(&self, hash: u64, _key: &[u8], word: Word) -> bool {
        let is_word = |found| match found == Some(word) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        self.table.find(hash, is_word).is_some()
    }

    fn insert(&self, hash: u64, _key: &[u8], word: Word) {
        self.table.insert(hash, word);
    }

    fn replace(&self, hash: u64, _key: &[u8], old: Word, new: Word) -> bool {
        self.table.replace(hash, old, new)
    }

    fn remove(&self, hash: u64, _key: &[u8], old: Word) -> bool {
        self.table.remove(hash, old)
    }

    fn prefetch(&self, keys: &[(u64, &[u8])]) {
        self.table.prefetch(keys.iter().map(|(hash, _)| *hash));
    }

    #[inline]
    fn guess(&self, hash: u64, _key: &[u8]) -> Option<Word> {
        self.table.find(hash, |word| word.map_or(ControlFlow::Continue(()), ControlFlow::Break))
    }

    #[inline]
    fn prefetch_one(&self, hash: u64) {
        self.table.prefetch(std::iter::once(hash));
    }

    #[inline]
    fn prefetch_step(&self, hash: u64, _key: &[u8], _step: u64) -> bool {
        self.prefetch_one(hash);
        false
    }

    fn walk(&self, cursor: &Cursor) -> Option<(Part, Cursor)> {
        let at = match cursor {
            Cursor::Hash(hash) => *hash,
            Cursor::Start | Cursor::Key(_) => 0,
        };
        let (entries, next) = self.table.walk(at)?;
        Some((Part::Hashes(entries), Cursor::Hash(next)))
    }

    fn ordered(&self) -> Option<&Masstree> {
        None
    }

    fn expect(&self, hashes: u64) {
        self.table.expect(hashes);
    }

    fn load_hashes(&self, entries: &[(u64, Word)]) {
        self.table.insert_many(entries);
    }

    fn load_keys(&self, _entries: &[(&[u8], Word)]) {}

    fn len(&self) -> u64 {
        self.table.len()
    }

    fn capacity(&self) -> u64 {
        self.table.capacity()
    }

    fn memory_bytes(&self) -> u64 {
        self.table.memory_bytes() as u64
    }
}
