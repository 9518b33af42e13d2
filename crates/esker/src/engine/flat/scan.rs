//! Walks over everything, and scans in order where the index keeps one.

use super::Flat;
use super::chunks::Since;
use super::index::{Part, Run};
use super::layout::{Place, kind_of};
use super::read::Shown;
use crate::engine::{Cursor, Items};
use crate::store::{Direction, Met};
use crate::value::Value;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::flat::{EntryKey, LINE};
use esker_index::Word;
use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

/// Keys of a part of a scan, at most.
pub(super) const PART: usize = 128;
/// Entries that are fetched ahead of the one that is read.
const AHEAD: usize = 24;

/// A value that a scan shows.
pub(super) enum Item<'a> {
    /// Where it is.
    Here(Met<'a>),
    /// In memory of its own.
    Read(Value),
}

impl Item<'_> {
    pub(super) fn into_value(self) -> Value {
        match self {
            Item::Here(met) => met.to_value(),
            Item::Read(value) => value,
        }
    }
}

impl Flat {
    /// A part of a walk; keys only: who walks reads the values.
    pub(super) fn walk_part(&self, from: &Cursor) -> Result<(Items, Option<Cursor>)> {
        self.check_open()?;
        loop {
            let since = self.chunks.now();
            let Some((part, next)) = self.index.walk(from) else { return Ok((Items::new(), None)) };
            if let Some(items) = self.items_of(part, since) {
                return Ok((items, Some(next)));
            }
        }
    }

    /// The keys with a value of a part; `None` if an entry was moved meanwhile: the part is to be copied again.
    fn items_of(&self, part: Part, since: Since) -> Option<Items> {
        let mut items = Items::new();
        match part {
            Part::Hashes(entries) => {
                for (hash, word) in entries {
                    if kind_of(word).is_tombstone() || self.is_cleared(word) {
                        continue;
                    }
                    let mut seen = since;
                    let key = loop {
                        if let Some(key) = self.key_of((hash, &[]), word, seen).transpose() {
                            break key;
                        }
                        // Moved, or only some chunk was taken: this word, and no other, is looked up again.
                        seen = self.chunks.now();
                        if !self.index.holds(hash, &[], word) {
                            return None;
                        }
                    };
                    items.push(key.map(|key| (key, None)));
                }
            }
            Part::Keys(entries) => {
                let is_live = |word| !kind_of(word).is_tombstone() && !self.is_cleared(word);
                let live = entries.into_iter().filter(|(_, word)| is_live(*word));
                items.extend(live.map(|(key, _)| Ok((key, None))));
            }
        }
        Some(items)
    }

    /// The key of an entry that is in the index under this hash, or this key if that has an order; `None` if it is gone
    /// meanwhile.
    pub(super) fn key_of(
        &self,
        (hash, key): (u64, &[u8]),
        word: Word,
        since: Since,
    ) -> Result<Option<Vec<u8>>> {
        let place = Place::of(word);
        let seen = self.with_entry(place, since, |entry, _| {
            let here = matches!(entry.key, EntryKey::Here(_));
            let found = self.key_of_entry(entry)?;
            // The record's place is its own as long as the word stands.
            let own = here || self.index.holds(hash, key, word);
            match found {
                None if own => Err(self.corrupted(Flaw::Checksum, place.offset, 0)),
                found => Ok(found.filter(|_| own).map(Cow::into_owned)),
            }
        })?;
        Ok(seen.transpose()?.flatten())
    }

    /// Shows the items between two bounds, in order, until `show` breaks; about `limit` are expected.
    #[inline]
    pub(super) fn scan_each(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        mut show: impl FnMut(&[u8], Item<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.check_open()?;
        let Some(index) = self.index.ordered() else {
            let words = "flat:cceh keeps no order; flat:masstree does";
            return Err(Error::new(ErrorKind::Unsupported, "scan").context(words));
        };
        let (start, end) = match direction {
            Direction::Forward => (from, to),
            Direction::Reverse => (to, from),
        };
        let mut last: Option<Vec<u8>> = None;
        let mut left = limit;
        let mut run = Run::new(limit.min(PART));
        let mut wanted = limit.min(PART);
        while left > 0 {
            run.clear();
            let before = left;
            let since = self.chunks.now();
            let start = last.as_deref().map_or(start, Bound::Excluded);
            // The first ones come while the index is still being read, the others while those before them are.
            run.collect(index, (start, end), direction, wanted, |place, word| {
                if place < AHEAD {
                    self.prefetch_entry(word);
                }
            });
            let mut met_dead = false;
            for place in 0..run.len() {
                let ahead = run.word(place + AHEAD);
                ahead.into_iter().for_each(|word| self.prefetch_entry(word));
                let Some((key, word)) = run.get(place) else { break };
                if self.is_cleared(word) {
                    continue;
                }
                let near = |value: &[u8], version, attributes| {
                    show(key, Item::Here(Met { key, value, version, attributes }))
                };
                let shown = match self.show_near(word, since, near)? {
                    Some(Shown::Nothing) => {
                        // What has expired is the cleaner's.
                        met_dead |= kind_of(word).is_tombstone();
                        continue;
                    }
                    Some(Shown::Item(shown)) => shown,
                    None => match self.value_of(key, word, since)? {
                        Some(value) => show(key, Item::Read(value)),
                        None => continue,
                    },
                };
                left = if shown.is_break() { 0 } else { left.saturating_sub(1) };
                if left == 0 {
                    break;
                }
            }
            if met_dead {
                self.bury_dead(&run);
            }
            match run.last_key() {
                Some(key) if run.len() == wanted => last = Some(key.to_vec()),
                _ => break,
            }
            // Where many keys are deleted, as behind a queue's head, a descent of the index for each would be slow.
            wanted = if left == before { (2 * wanted).min(PART) } else { left.min(PART) };
        }
        Ok(())
    }

    /// Takes tombstones out of the way of later scans, unless somebody is at work with what they stand for.
    #[cold]
    fn bury_dead(&self, run: &Run) {
        let Some(_still) = self.try_hold_cleaning() else { return };
        for (key, word) in (0..run.len()).filter_map(|place| run.get(place)) {
            if kind_of(word).is_tombstone()
                && let Some(_lock) = self.keys.try_lock(self.hasher.hash(key))
            {
                self.index.bury(key, word);
            }
        }
    }

    /// Starts to fetch an entry, and its batch's header.
    #[inline]
    pub(super) fn prefetch_entry(&self, word: Word) {
        let place = Place::of(word);
        if place.kind.is_tombstone() {
            return;
        }
        // Most entries go on in the next line.
        self.memory.prefetch(place.offset, 1 + LINE as u64);
        if place.lines > 0 {
            self.memory.prefetch(place.batch_offset(), 1);
        }
    }

    fn value_of(&self, key: &[u8], word: Word, since: Since) -> Result<Option<Value>> {
        match self.read_value(0, key, word, since, &mut |_| Ok(()))? {
            Some(value) => Ok(value),
            None => self.get_value(key, &mut |_| Ok(())),
        }
    }
}
