//! Reads: tables first, the newest before the others, then the interval that holds the key.
//!
//! # Concurrency
//! A reader holds the tables while it looks into them, and lets them go before it looks at the index: what leaves a table
//! is in the space before. It waits for nobody: not for the committer, which changes intervals one by one, each under
//! the lock of its leaf for as long as it takes to put in what is ready (the paper's readers wait for 1,000 pairs, §5.3).

use super::interval::{Interval, parts, print_of};
use super::memtable::{Item, What};
use super::{Flex, ROOT_BYTES};
use crate::value::{Attributes, Value};
use esker_base::ids::Version;
use esker_base::{Error, Result};
use esker_format::Flaw;
use esker_format::flex_db::{Content, Extra};
use std::sync::Arc;

/// An interval that was read, and the keys between which it stands.
pub(super) struct Loaded {
    pub(super) interval: Arc<Interval>,
    pub(super) anchor: Vec<u8>,
    pub(super) upper: Option<Vec<u8>>,
}

pub(super) fn extra_of(attributes: &Attributes) -> Extra {
    Extra {
        flags: attributes.flags,
        state: attributes.state & 15,
        expires_at: attributes.expires_at.map_or(0, |at| at.saturating_add(1)),
    }
}

pub(super) fn attributes_of(extra: &Extra) -> Attributes {
    Attributes {
        flags: extra.flags,
        state: extra.state,
        expires_at: extra.expires_at.checked_sub(1),
    }
}

impl Item {
    pub(super) fn content(&self) -> Content<'_> {
        match &self.what {
            What::Put(extra, value) => Content::Put(*extra, value),
            What::Delete => Content::Delete,
            What::Large(extra, number, length) => Content::Large(*extra, *number, *length),
        }
    }
}

/// What a key has, copied out of where it was.
pub(super) enum Found {
    Here(Value),
    Large(u64, Extra, u64, u64),
}

pub(super) fn found_of(version: u64, content: Content<'_>) -> Option<Found> {
    match content {
        Content::Put(extra, value) => {
            Some(Found::Here(Value::owned(value.into(), Version(version), attributes_of(&extra))))
        }
        Content::Large(extra, number, length) => Some(Found::Large(version, extra, number, length)),
        Content::Delete => None,
    }
}

impl Flex {
    /// What `look` makes of what `key` has as of version `at`.
    pub(super) fn find<T>(
        &self,
        key: &[u8],
        hash: u64,
        at: u64,
        look: impl Fn(u64, Content<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut covered = 0;
        {
            let tables = self.tables.read();
            for table in tables.all() {
                covered = covered.max(table.covered(key, at));
                let seen = table.get(key, hash, at, |item| {
                    if item.version < covered { None } else { look(item.version, item.content()) }
                });
                if let Some(found) = seen {
                    return Ok(found);
                }
            }
        }
        let print = print_of(hash);
        let in_interval = |interval: &Interval| {
            let pair = interval.get(key, print, at)?;
            if pair.version < covered { None } else { look(pair.version, pair.content) }
        };
        let cached = self.index.with(key, |entry| {
            let interval = entry.cached.as_ref()?;
            interval.touch();
            Some(in_interval(interval))
        });
        match cached {
            Some(found) => Ok(found),
            None => Ok(in_interval(&self.load(Some(key), false, 0)?.interval)),
        }
    }

    /// The value of `key` as of version `at`.
    pub(super) fn get_at(&self, key: &[u8], at: u64) -> Result<Option<Value>> {
        self.check_key("get", key)?;
        let hash = self.hasher.hash(key);
        loop {
            let Some(found) = self.find(key, hash, at, found_of)? else { return Ok(None) };
            if let Some(value) = self.value_of(found)? {
                let gone = self.is_expired(value.attributes().expires_at);
                return Ok((!gone).then_some(value));
            }
        }
    }

    /// Reads the interval that holds `key` (with `before`: the greatest key below it), and up to `more` behind it that
    /// are not in memory; keeps them.
    pub(super) fn load(&self, key: Option<&[u8]>, before: bool, more: usize) -> Result<Loaded> {
        let mut placed = None;
        let mut bytes = Vec::new();
        let read = self.space.read_where(
            &mut || {
                let place = self.index.place(key, before, more);
                let length: u64 = place.sizes.iter().map(|(size, _)| u64::from(*size)).sum();
                let offset = ROOT_BYTES + place.offset;
                placed = Some(place);
                Some((offset, usize::try_from(length).ok()?))
            },
            &mut bytes,
        )?;
        let damaged = |flaw: Flaw| self.damaged(&flaw.to_string());
        let Some(place) = placed.filter(|_| read == Some(bytes.len())) else {
            return Err(self.damaged("an interval is behind the end of the space"));
        };
        if place.is_coarse {
            return self.inside(&bytes, key, before, place.anchor, place.upper);
        }
        let mut read = Vec::with_capacity(place.sizes.len());
        let mut at = 0;
        for (size, stamp) in &place.sizes {
            let end = at + *size as usize;
            let part = match (at, end == bytes.len()) {
                (0, true) => std::mem::take(&mut bytes),
                _ => bytes.get(at..end).unwrap_or_default().to_vec(),
            };
            at = end;
            let interval = Interval::decode(part, &self.hasher).map_err(damaged)?;
            read.push((*stamp, Arc::new(interval)));
        }
        self.index.keep(&place.anchor, &read);
        let interval = read.into_iter().next().map(|(_, interval)| interval);
        let interval = interval.ok_or_else(|| self.damaged("an interval without a place"))?;
        Ok(Loaded { interval, anchor: place.anchor, upper: place.upper })
    }

    /// The interval that is wanted out of several in which nobody has looked before; now somebody does, if the committer
    /// has the time.
    fn inside(
        &self,
        bytes: &[u8],
        key: Option<&[u8]>,
        before: bool,
        anchor: Vec<u8>,
        upper: Option<Vec<u8>>,
    ) -> Result<Loaded> {
        let damaged = |flaw: Flaw| self.damaged(&flaw.to_string());
        let parts = parts(bytes).map_err(damaged)?;
        // The first one has the anchor that the index says, which may be less than its own.
        let holds = |at: &[u8]| key.is_none_or(|key| if before { at < key } else { at <= key });
        let index = parts.iter().skip(1).take_while(|part| holds(part.anchor)).count();
        let part = parts.get(index).map(|part| part.bytes.to_vec()).unwrap_or_default();
        let interval = Arc::new(Interval::decode(part, &self.hasher).map_err(damaged)?);
        let loaded = Loaded {
            interval,
            anchor: match (index, parts.get(index)) {
                (1.., Some(part)) => part.anchor.to_vec(),
                _ => anchor.clone(),
            },
            upper: parts.get(index + 1).map(|part| part.anchor.to_vec()).or(upper),
        };
        if let Some(_committer) = self.committer.try_lock() {
            self.refine(&anchor)?;
        }
        Ok(loaded)
    }

    /// An error that says that the store is damaged.
    pub(super) fn damaged(&self, words: &str) -> Error {
        Error::corrupted("read interval", words).device(self.name.clone())
    }

    /// Prepares the value for the caller; `None` if it left its place meanwhile.
    pub(super) fn value_of(&self, found: Found) -> Result<Option<Value>> {
        match found {
            Found::Here(value) => Ok(Some(value)),
            Found::Large(version, extra, number, length) => {
                let Some(bytes) = self.read_large(number, length)? else { return Ok(None) };
                let attributes = attributes_of(&extra);
                Ok(Some(Value::owned(bytes.into_boxed_slice(), Version(version), attributes)))
            }
        }
    }

    /// Reads a value that stands by itself. None of them is written yet: nothing of the sort can be found.
    fn read_large(&self, _number: u64, _length: u64) -> Result<Option<Vec<u8>>> {
        Err(self.damaged("a value that stands by itself"))
    }
}
