//! Reads: tables first, the newest before the others, then the interval that holds the key.
//!
//! # Concurrency
//! A reader holds the tables while it looks into them, and lets them go before it looks at the index: what leaves a table
//! is in the space before. It waits for nobody: not for the committer, which changes intervals one by one, each under
//! the lock of its leaf for as long as it takes to put in what is ready (the paper's readers wait for 1,000 pairs, §5.3).

use super::index::{Ahead, Entry, Intervals, Seen, USUAL, Worth, byte_of, tail_of};
use super::interval::{Interval, pair_in, parts, print_of};
use super::spare::{self, Spare};
use super::{Flex, ROOT_BYTES};
use crate::engine::Admit;
use crate::value::{Attributes, Value};
use esker_base::ids::Version;
use esker_base::{Error, Result};
use esker_format::Flaw;
use esker_format::flex_db::{Content, Extra};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Intervals that were read side by side, and are not to be kept.
struct Passed {
    start: usize,
    count: usize,
}

impl Passed {
    /// These as one, if there are any; others may follow from `next` on. What is all of `bytes` is not copied.
    fn end(
        &mut self,
        bytes: &mut Vec<u8>,
        end: usize,
        next: usize,
    ) -> Result<Option<Arc<Interval>>, Flaw> {
        let Passed { start, count } = std::mem::replace(self, Passed { start: next, count: 0 });
        if count == 0 {
            return Ok(None);
        }
        let own = if start == 0 && end == bytes.len() {
            std::mem::take(bytes)
        } else {
            let mut own = spare::take(&spare::BYTES);
            own.clear();
            own.extend_from_slice(bytes.get(start..end).unwrap_or_default());
            own
        };
        Ok(Some(Arc::new(Interval::pass(own, count)?)))
    }
}

/// Intervals that were read, one behind the other, and the keys between which they stand.
pub(super) struct Loaded {
    pub(super) intervals: Intervals,
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

/// What a key has, copied out of where it was.
pub(super) enum Found {
    Here(Value),
    Large(u64, Extra, u64, u64),
}

impl Found {
    fn expires_at(&self) -> Option<u64> {
        match self {
            Found::Here(value) => value.attributes().expires_at,
            Found::Large(_, extra, ..) => attributes_of(extra).expires_at,
        }
    }
}

/// What memory knows of a key.
enum Near<T> {
    Known(Option<T>),
    /// Only the space knows; what is older than this version does not count.
    Space {
        covered: u64,
    },
}

pub(super) fn found_of(version: u64, content: Content<'_>) -> Option<Found> {
    match content {
        Content::Put(extra, value) => {
            Some(Found::Here(Value::small(value, Version(version), attributes_of(&extra))))
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
        match self.find_near(key, hash, at, &look) {
            Near::Known(found) => Ok(found),
            Near::Space { covered } => self.read_pair(key, hash, at, |version, content| {
                if version < covered { None } else { look(version, content) }
            }),
        }
    }

    /// As [`Flex::find`], as far as memory knows.
    fn find_near<T>(
        &self,
        key: &[u8],
        hash: u64,
        at: u64,
        look: impl Fn(u64, Content<'_>) -> Option<T>,
    ) -> Near<T> {
        let mut covered = 0;
        {
            let tables = self.tables();
            for table in tables.all() {
                covered = covered.max(table.covered(key, at));
                let seen = table.get(key, hash, at, |version, content| {
                    if version < covered { None } else { look(version, content) }
                });
                if let Some(found) = seen {
                    return Near::Known(found);
                }
            }
        }
        let look = |version, content: Content<'_>| {
            if version < covered { None } else { look(version, content) }
        };
        let cached = self.index.with(key, |entry| {
            let interval = entry.cached.as_ref()?;
            interval.touch();
            let pair = interval.get(key, print_of(hash), at);
            Some(pair.and_then(|pair| look(pair.version, pair.content)))
        });
        if let Some(found) = cached {
            return Near::Known(found);
        }
        if at == u64::MAX
            && let Some(found) = self.index.pairs_kept.get(key, hash, look)
        {
            return Near::Known(found);
        }
        Near::Space { covered }
    }

    /// The most memory that reading `key` takes, as far as memory knows: of what is only in the space, all of its interval.
    pub(super) fn read_size_of(&self, key: &[u8]) -> u64 {
        let hash = self.hasher.hash(key);
        let length = |_, content: Content<'_>| match content {
            Content::Put(_, value) => Some(value.len() as u64),
            Content::Large(_, _, length) => Some(length),
            Content::Delete => None,
        };
        match self.find_near(key, hash, u64::MAX, length) {
            Near::Known(length) => length.unwrap_or(0),
            Near::Space { .. } => {
                let here = self.index.with(key, |entry| u64::from(entry.size));
                let here = here.min(self.options.large_value_size_bytes);
                match self.large.is_empty() {
                    true => here,
                    false => here.max(self.large.length_of(key, hash)),
                }
            }
        }
    }

    /// The value of `key` as of version `at`.
    pub(super) fn get_at(&self, key: &[u8], at: u64, admit: Admit<'_>) -> Result<Option<Value>> {
        self.check_key("get", key)?;
        let hash = self.hasher.hash(key);
        let mut before = None;
        loop {
            let Some(found) = self.find(key, hash, at, found_of)? else { return Ok(None) };
            // Before a large value is read, which may be gone by now.
            if self.clock.is_expired(found.expires_at()) {
                return Ok(None);
            }
            let value = match found {
                Found::Here(value) => {
                    // It has been copied. Who has no room for it lets it go again.
                    match value.memory_bytes() {
                        0 => {}
                        bytes => admit(bytes)?,
                    }
                    value
                }
                Found::Large(version, extra, number, length) => {
                    let Some(bytes) = self.read_large(number, length, admit)? else {
                        // It went: then there is another one, or none.
                        if before.replace(version) == Some(version) {
                            return Err(self.damaged("a large value is missing"));
                        }
                        continue;
                    };
                    Value::owned(bytes.into(), Version(version), attributes_of(&extra))
                }
            };
            return Ok(Some(value));
        }
    }

    /// What `look` makes of what the space has of `key`, which is read; it is kept. One run after the other is read that may
    /// have the key, the last one first.
    fn read_pair<T>(
        &self,
        key: &[u8],
        hash: u64,
        at: u64,
        look: impl Fn(u64, Content<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        if let Some(along) = self.index.along(key) {
            let loaded = self.load(Some(key), false, along, None)?;
            let pair =
                loaded.intervals.first().and_then(|first| first.get(key, print_of(hash), at));
            return Ok(pair.and_then(|pair| look(pair.version, pair.content)));
        }
        // A run before the last one may have what a snapshot sees.
        let byte = (at == u64::MAX).then_some(byte_of(hash));
        let mut seen = (0, usize::MAX);
        let mut spare = Spare::take();
        let bytes = &mut spare.0;
        loop {
            let mut part = None;
            let read = self.space.read_once_where(
                &mut || {
                    part = self.index.part_of(key, byte, seen);
                    part.map(|part| (ROOT_BYTES + part.offset, part.size))
                },
                bytes,
            )?;
            let Some(part) = part else {
                // Nobody has looked inside.
                let loaded = match self.load(Some(key), false, Ahead::ONE, None) {
                    // Somebody has by now: it may stand behind what cannot be read.
                    Err(error) if error.is_unread() && !self.index.with(key, Entry::is_coarse) => {
                        continue;
                    }
                    loaded => loaded?,
                };
                let first = loaded.intervals.first();
                let pair = first.and_then(|interval| interval.get(key, print_of(hash), at));
                return Ok(pair.and_then(|pair| look(pair.version, pair.content)));
            };
            if read != Some(bytes.len()) {
                return Err(self.damaged("an interval is behind the end of the space"));
            }
            let pair = pair_in(bytes, part.run > 0, key, at);
            let pair = pair.map_err(|flaw| self.damaged(&flaw.to_string()))?;
            if pair.is_none() && part.run > 0 {
                seen = (part.stamp, part.run);
                continue;
            }
            let found = pair.as_ref().and_then(|pair| look(pair.version, pair.content));
            if part.is_whole && !part.is_known {
                let known = tail_of(bytes, &self.hasher);
                let known = known.map_err(|flaw| self.damaged(&flaw.to_string()))?;
                self.index.learn(key, part.stamp, &known);
            }
            let base = if part.run == 0 { &**bytes } else { &[] };
            match self.index.worth(&part, base, hash, &self.hasher) {
                Worth::None => {}
                Worth::Pair => {
                    if let (u64::MAX, Some(pair)) = (at, pair)
                        && let Content::Put(extra, value) = pair.content
                    {
                        self.index.keep_pair(key, part.stamp, |pairs| {
                            pairs.put(key, hash, pair.version, extra, value);
                        });
                    }
                }
                Worth::Interval if part.is_whole => {
                    let interval = Arc::new(self.decode(bytes.clone())?);
                    self.index.keep(key, &[(0, part.stamp, interval)]);
                }
                Worth::Interval => match self.load(Some(key), false, Ahead::ONE, None) {
                    // What was found is right, whatever else there is.
                    Err(error) if error.is_unread() => self.give_up(key, part.stamp, &error)?,
                    loaded => drop(loaded?),
                },
            }
            return Ok(found);
        }
    }

    /// The interval that holds `key` was to be kept, and cannot be read. If the committer has the time, and it is as it was when it had
    /// this stamp, the index knows from then on, and nobody tries again.
    fn give_up(&self, key: &[u8], stamp: u32, error: &Error) -> Result<()> {
        self.note_unread(error);
        if let Some(_committer) = self.committer.try_lock() {
            let located = self.index.locate(key);
            if located.entry.stamp == stamp {
                self.readable(&located)?;
            }
        }
        Ok(())
    }

    /// Reads the interval that holds `key` (with `before`: the greatest key below it), and those behind or before it as far
    /// `ahead` that are not in memory; keeps them, those who come by ([`Index::keep`](super::index::Index::keep)) if they come again.
    /// It fails only if the first one cannot be read: what is behind it does not matter to who wants that.
    pub(super) fn load(
        &self,
        key: Option<&[u8]>,
        before: bool,
        ahead: Ahead,
        passing: Option<Seen>,
    ) -> Result<Loaded> {
        let error = match self.load_all(key, before, ahead, passing) {
            Err(_) if ahead.intervals > 1 => {
                return self.load(key, before, Ahead::ONE, passing);
            }
            Err(error) if error.is_unread() => error,
            loaded => return loaded,
        };
        let place = self.index.place(key, before, Ahead::ONE, None);
        if !place.is_coarse {
            return Err(error);
        }
        // Several, in which nobody has looked: what is wanted may be one that can be read.
        {
            let _committer = self.committer.lock();
            self.refine(&place.anchor)?;
        }
        self.load_all(key, before, Ahead::ONE, passing)
    }

    fn load_all(
        &self,
        key: Option<&[u8]>,
        before: bool,
        ahead: Ahead,
        passing: Option<Seen>,
    ) -> Result<Loaded> {
        let mut placed = None;
        let mut spare = Spare::take();
        let bytes = &mut spare.0;
        let mut locate = || {
            let place = self.index.place(key, before, ahead, passing);
            let length: u64 = place.sizes.iter().map(|(size, ..)| u64::from(*size)).sum();
            let offset = ROOT_BYTES + place.offset;
            placed = Some(place);
            Some((offset, usize::try_from(length).ok()?))
        };
        let read = match passing {
            Some(_) => self.space.read_once_where(&mut locate, bytes)?,
            None => self.space.read_where(&mut locate, bytes)?,
        };
        let damaged = |flaw: Flaw| self.damaged(&flaw.to_string());
        let Some(place) = placed.filter(|_| read == Some(bytes.len())) else {
            return Err(self.damaged("an interval is behind the end of the space"));
        };
        if place.is_coarse {
            return self.inside(bytes, key, before, place.anchor, place.upper);
        }
        let mut intervals = Intervals::new();
        let mut kept: SmallVec<[_; USUAL]> = SmallVec::new();
        let (mut at, mut runs) = (0, 0);
        let mut passed = Passed { start: 0, count: 0 };
        let is_passing = passing.is_some();
        for (index, (size, stamp, cached)) in place.sizes.into_iter().enumerate() {
            let start = at;
            at += size as usize;
            let is_kept = cached.is_none() && self.index.is_worth_keeping(stamp, is_passing);
            if cached.is_none() && !is_kept {
                passed.count += usize::from(size > 0);
                continue;
            }
            if let Some(before) = passed.end(bytes, start, at).map_err(damaged)? {
                runs += before.appended_runs();
                intervals.push(before);
            }
            let interval = match cached {
                Some(interval) => interval,
                None => {
                    let part = bytes.get(start..at).unwrap_or_default();
                    let interval =
                        Interval::decode(part.to_vec(), &self.hasher).map_err(damaged)?;
                    let interval = Arc::new(interval);
                    runs += interval.appended_runs();
                    kept.push((index, stamp, Arc::clone(&interval)));
                    interval
                }
            };
            interval.touch_all();
            intervals.push(interval);
        }
        let end = bytes.len();
        if let Some(last) = passed.end(bytes, end, end).map_err(damaged)? {
            runs += last.appended_runs();
            intervals.push(last);
        }
        self.note_places(&place.anchor, runs);
        if !kept.is_empty() {
            self.index.keep(&place.anchor, &kept);
        }
        Ok(Loaded { intervals, anchor: place.anchor, upper: place.upper })
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
            intervals: smallvec![interval],
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
}
