//! An interval in memory: its bytes as they lie in the space, and where in them each pair stands (FlexSpace §5.2).
//!
//! # Invariants
//! - V1: `pairs` are in order of keys, of one key the newest first; of one version that is there twice, after a crash, the pair that was
//!   appended later.
//! - V2: a fingerprint never decides: the key in the bytes does.
//!
//! # Concurrency
//! Does not change; shared by all readers.
#![allow(
    clippy::indexing_slicing,
    reason = "places were made by `decode` out of these bytes, and nothing changes afterwards"
)]

use super::spare::{self, Spares};
use esker_base::hash::KeyHasher;
use esker_format::Flaw;
use esker_format::flex_db::run::take_pair;
use esker_format::flex_db::{Common, Key, Pair, Run, RunKind};
use esker_index::prefetch;
use smallvec::SmallVec;
use std::cell::Cell;
use std::cmp::Ordering;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

thread_local! {
    static PLACES: Spares<Place> = const { Cell::new(Vec::new()) };
}

/// Runs that are usually read at once: no memory is asked for to note so many.
const USUAL: usize = 8;
/// Bytes that begin to come before somebody goes through all.
const FETCHED_BYTES: usize = 512;

/// Parts of an interval of which the one is found first that has a key.
const STEPS: usize = 8;

/// Where a pair stands, and the fingerprint of its key.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u32,
    run: u16,
    print: u16,
}

/// What the pairs of a run have in common, as [`Common`]: the stem stands in the interval's bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Basis {
    first_version: u64,
    stem_at: u32,
    stem_size: u32,
}

impl Basis {
    /// Of a run that ends at `end` of the interval's bytes.
    fn of(run: &Run<'_>, end: usize) -> Result<Basis, Flaw> {
        let number = |size: usize| u32::try_from(size).map_err(|_| Flaw::Field("stem"));
        Ok(Basis {
            first_version: run.common.first_version,
            stem_at: number(end - run.from_stem())?,
            stem_size: number(run.common.stem.len())?,
        })
    }
}

/// A decoded interval, or several one behind the other. See the module's text.
#[derive(Debug)]
pub(super) struct Interval {
    bytes: Vec<u8>,
    pairs: Vec<Place>,
    /// Whether somebody only passes by, in memory that the thread has for the next one: there are no fingerprints.
    is_passing: bool,
    /// Of the base run.
    first: Basis,
    /// Of the runs behind it.
    more: Box<[Basis]>,
    /// Those of them that were appended.
    appended: usize,
    /// No key has two pairs.
    is_unique: bool,
    /// Pairs that were asked for since the hand of the clock came by; no more than 255.
    uses: AtomicU8,
}

/// The fingerprint of a key.
#[inline]
pub(super) fn print_of(hash: u64) -> u16 {
    (hash >> 48) as u16
}

/// A base run and what was appended to it, inside the bytes of a coarse interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) anchor: &'a [u8],
    pub(super) bytes: &'a [u8],
    pub(super) pairs: u64,
    pub(super) appended: u64,
    pub(super) runs: u32,
}

/// Cuts bytes into intervals, each with its base run, in the order of their anchors.
pub(super) fn parts(bytes: &[u8]) -> Result<Vec<Part<'_>>, Flaw> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let (mut rest, mut start) = (bytes, 0);
    while !rest.is_empty() {
        let begin = bytes.len() - rest.len();
        let run = Run::take(&mut rest, || false)?;
        let end = bytes.len() - rest.len();
        match (run.kind, parts.last_mut()) {
            (RunKind::Base, before) => {
                if before.is_some_and(|before| before.anchor >= run.anchor) {
                    return Err(Flaw::Field("anchor"));
                }
                start = begin;
                let bytes = &bytes[start..end];
                parts.push(Part {
                    anchor: run.anchor,
                    bytes,
                    pairs: run.count,
                    appended: 0,
                    runs: 1,
                });
            }
            (RunKind::Appended, Some(part)) => {
                part.bytes = &bytes[start..end];
                part.pairs += run.count;
                part.appended += run.count;
                part.runs += 1;
            }
            (RunKind::Appended, None) => return Err(Flaw::Field("kind")),
        }
    }
    Ok(parts)
}

/// What `key` has as of version `at` in runs that lie side by side, each verified: appended ones only, or a base run first.
pub(super) fn pair_in<'a>(
    mut bytes: &'a [u8],
    are_appended: bool,
    key: &[u8],
    at: u64,
) -> Result<Option<Pair<'a>>, Flaw> {
    let mut found: Option<Pair<'a>> = None;
    let mut is_base = !are_appended;
    while !bytes.is_empty() {
        let run = Run::take(&mut bytes, || false)?;
        if (run.kind == RunKind::Base) != is_base {
            return Err(Flaw::Field("kind"));
        }
        is_base = false;
        for pair in run.pairs() {
            match pair.key.cmp_bytes(key) {
                Ordering::Less => {}
                Ordering::Equal if pair.version > at => {}
                Ordering::Equal => {
                    // The newest of this run that counts; of one that is there again, the later one.
                    if found.as_ref().is_none_or(|found| found.version <= pair.version) {
                        found = Some(pair);
                    }
                    break;
                }
                Ordering::Greater => break,
            }
        }
    }
    Ok(found)
}

/// Gives the keys of the first of these runs to `give`. It was verified.
pub(super) fn each_key(mut bytes: &[u8], mut give: impl FnMut(&[u8])) {
    let Ok(run) = Run::take(&mut bytes, || true) else { return };
    let mut buffer = Vec::new();
    run.pairs().for_each(|pair| give(pair.key.bytes(&mut buffer)));
}

/// Whether two keys are the same. Those that follow each other mostly differ at their ends.
#[inline]
fn is_same(a: &[u8], b: &[u8]) -> bool {
    let ends = a.last_chunk::<8>().zip(b.last_chunk::<8>());
    a.len() == b.len() && ends.is_none_or(|(a, b)| a == b) && a == b
}

/// Gives the place of each pair of a run, which ends at `end` of the interval's bytes, and the pair.
fn places<'a>(
    run: &Run<'a>,
    end: usize,
    number: u16,
    hasher: Option<&KeyHasher>,
    mut give: impl FnMut(Place, Pair<'a>),
) -> Result<(), Flaw> {
    let (mut rest, mut buffer) = (run.pairs(), Vec::new());
    for _ in 0..run.count {
        let at = u32::try_from(end - rest.bytes().len()).map_err(|_| Flaw::Field("size"))?;
        let pair = rest.next().ok_or(Flaw::Field("pair"))?;
        let print = hasher.map_or(0, |hasher| print_of(hasher.hash(pair.key.bytes(&mut buffer))));
        give(Place { at, run: number, print }, pair);
    }
    Ok(())
}

impl Interval {
    /// Reads an interval, which takes as much memory as it needs. Each run is verified.
    pub(super) fn decode(bytes: Vec<u8>, hasher: &KeyHasher) -> Result<Interval, Flaw> {
        Interval::read(bytes, Vec::new(), Some(hasher), 1)
    }

    /// Reads `count` intervals, one behind the other, as if they were one, for who goes through them once: nothing is made of them
    /// that only finds a key fast.
    pub(super) fn pass(bytes: Vec<u8>, count: usize) -> Result<Interval, Flaw> {
        let mut pairs = spare::take(&PLACES);
        pairs.clear();
        Interval::read(bytes, pairs, None, count)
    }

    fn read(
        bytes: Vec<u8>,
        mut pairs: Vec<Place>,
        hasher: Option<&KeyHasher>,
        count: usize,
    ) -> Result<Interval, Flaw> {
        let mut runs: SmallVec<[Basis; USUAL]> = SmallVec::new();
        let (mut rest, mut bases, mut is_unique) = (&bytes[..], 0, true);
        while !rest.is_empty() {
            let run = Run::take(&mut rest, || false)?;
            bases += usize::from(run.kind == RunKind::Base);
            if bases == 0 || bases > count {
                return Err(Flaw::Field("kind"));
            }
            let end = bytes.len() - rest.len();
            if runs.is_empty() {
                // What is behind it has pairs of about this size.
                let pairs_of_run = usize::try_from(run.count).unwrap_or(0).min(bytes.len());
                let all = pairs_of_run.saturating_mul(bytes.len()) / end.max(1);
                pairs.reserve_exact(all.min(bytes.len()));
            }
            let number = u16::try_from(runs.len()).map_err(|_| Flaw::Field("runs"))?;
            runs.push(Basis::of(&run, end)?);
            let mut last = None;
            places(&run, end, number, hasher, |place, pair| {
                let rest = pair.key.rest();
                is_unique &= last.replace(rest).is_none_or(|last| !is_same(last, rest));
                pairs.push(place);
            })?;
        }
        // An interval without pairs has no bytes.
        if bases < count && !bytes.is_empty() {
            return Err(Flaw::TooShort);
        }
        let appended = runs.len() - bases;
        let (first, more) = match runs.split_first() {
            Some((first, more)) => (*first, more),
            None => (Basis::default(), &[][..]),
        };
        let mut interval = Interval {
            pairs: Vec::new(),
            is_passing: hasher.is_none(),
            first,
            more: more.into(),
            appended,
            is_unique,
            uses: AtomicU8::new(0),
            bytes,
        };
        if appended > 0 {
            // Runs are in order each, which this sort makes use of.
            let mut keyed: Vec<(Pair<'_>, Place)> =
                pairs.iter().map(|place| (interval.at(*place), *place)).collect();
            keyed.sort_by(|(a, x), (b, y)| {
                a.key.cmp(&b.key).then(b.version.cmp(&a.version)).then(y.run.cmp(&x.run))
            });
            pairs.iter_mut().zip(&keyed).for_each(|(place, (_, sorted))| *place = *sorted);
            let is_unique = keyed.windows(2).all(|two| two[0].0.key != two[1].0.key);
            interval.is_unique = is_unique;
        }
        if hasher.is_some() {
            pairs.shrink_to_fit();
        }
        interval.pairs = pairs;
        Ok(interval)
    }

    /// The interval with a run behind it, which was encoded just now.
    pub(super) fn append(&self, run: &[u8], hasher: &KeyHasher) -> Result<Interval, Flaw> {
        let bytes = [&*self.bytes, run].concat();
        let number = u16::try_from(self.more.len() + 1).map_err(|_| Flaw::Field("runs"))?;
        let run = Run::take(&mut &bytes[self.bytes.len()..], || false)?;
        let count = self.pairs.len() + usize::try_from(run.count).unwrap_or(0);
        let mut pairs = Vec::with_capacity(count);
        let mut old = 0;
        places(&run, bytes.len(), number, Some(hasher), |place, new| {
            // What is before it; of the same key, what is newer.
            while old < self.pairs.len() {
                let pair = self.pair(old);
                if pair.key.cmp(&new.key).then(new.version.cmp(&pair.version)).is_ge() {
                    break;
                }
                pairs.push(self.pairs[old]);
                old += 1;
            }
            pairs.push(place);
        })?;
        pairs.extend_from_slice(&self.pairs[old..]);
        let mut interval = Interval {
            first: self.first,
            more: self.more.iter().copied().chain([Basis::of(&run, bytes.len())?]).collect(),
            bytes,
            pairs,
            is_passing: false,
            appended: self.appended + 1,
            is_unique: false,
            uses: AtomicU8::new(self.uses.load(Relaxed)),
        };
        interval.is_unique = self.is_unique && interval.has_unique_keys();
        Ok(interval)
    }

    fn has_unique_keys(&self) -> bool {
        (1..self.len()).all(|pair| self.pair(pair - 1).key != self.pair(pair).key)
    }

    #[inline(always)]
    fn at(&self, place: Place) -> Pair<'_> {
        let mut bytes = &self.bytes[place.at as usize..];
        let basis = match place.run {
            0 => &self.first,
            run => &self.more[usize::from(run) - 1],
        };
        let stem = basis.stem_at as usize..(basis.stem_at + basis.stem_size) as usize;
        let common = Common { stem: &self.bytes[stem], first_version: basis.first_version };
        take_pair(&mut bytes, common).unwrap_or(Pair {
            key: Key::default(),
            version: 0,
            content: esker_format::flex_db::Content::Delete,
        })
    }

    /// Starts to fetch where its pairs stand, and the first of them.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch::value(&*self.pairs);
        prefetch::value(&self.bytes[..FETCHED_BYTES.min(self.bytes.len())]);
    }

    /// Starts to fetch a pair that is met soon, if there is one of that number, as far as it is not too long.
    #[inline]
    pub(super) fn prefetch_pair(&self, index: usize) {
        let Some(place) = self.pairs.get(index) else { return };
        let start = place.at as usize;
        let next = self.pairs.get(index + 1).map_or(self.bytes.len(), |next| next.at as usize);
        // Appended runs stand behind what is behind them in order.
        let end = if next > start { next } else { start + 1 };
        prefetch::value(&self.bytes[start..end.min(start + FETCHED_BYTES)]);
    }

    /// Its bytes, encoded.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let places = self.pairs.len() * size_of::<Place>() + self.more.len() * size_of::<Basis>();
        (self.bytes.len() + places + size_of::<Self>() + 64) as u64
    }

    /// Pairs, all versions of a key among them.
    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Pair number `index`.
    #[inline]
    pub(super) fn pair(&self, index: usize) -> Pair<'_> {
        self.at(self.pairs[index])
    }

    /// What `key` has, as of version `at`.
    #[inline]
    pub(super) fn get(&self, key: &[u8], print: u16, at: u64) -> Option<Pair<'_>> {
        for place in &self.pairs {
            if place.print == print || self.is_passing {
                let pair = self.at(*place);
                if pair.key == *key && pair.version <= at {
                    return Some(pair);
                }
            }
        }
        None
    }

    /// Runs that were appended, each elsewhere in the space.
    pub(super) fn appended_runs(&self) -> u64 {
        self.appended as u64
    }

    /// Whether no key has two pairs.
    pub(super) fn is_unique(&self) -> bool {
        self.is_unique
    }

    /// How many pairs come before the first one for which `is_before` is not so.
    pub(super) fn partition_point(&self, is_before: impl Fn(Key<'_>) -> bool) -> usize {
        let is_before = |place: &Place| is_before(self.at(*place).key);
        // Each look waits for memory, so the first ones are all made at once.
        let step = self.pairs.len().div_ceil(STEPS).max(1);
        let steps = || self.pairs.iter().skip(step).step_by(step);
        steps().for_each(|place| prefetch::value(&self.bytes[place.at as usize]));
        let start = steps().take_while(|place| is_before(place)).count() * step;
        let rest = &self.pairs[start..self.pairs.len().min(start + step)];
        start + rest.partition_point(is_before)
    }

    /// Of each key the pair that counts as of version `at`, in order.
    pub(super) fn visible(&self, at: u64) -> Vec<u32> {
        let mut visible: Vec<u32> = Vec::with_capacity(self.len());
        let mut last: Option<Key<'_>> = None;
        for index in 0..self.len() {
            let pair = self.pair(index);
            if pair.version <= at && last != Some(pair.key) {
                last = Some(pair.key);
                visible.push(u32::try_from(index).unwrap_or(u32::MAX));
            }
        }
        visible
    }

    /// Notes that a pair was asked for.
    #[inline]
    pub(super) fn touch(&self) {
        let uses = self.uses.load(Relaxed);
        if uses < u8::MAX {
            self.uses.store(uses + 1, Relaxed);
        }
    }

    /// Notes that all of its pairs were asked for.
    #[inline]
    pub(super) fn touch_all(&self) {
        if self.uses.load(Relaxed) < u8::MAX {
            self.uses.store(u8::MAX, Relaxed);
        }
    }

    /// Whether half as many pairs as it has were asked for; none from now on. It takes as much memory as they would by
    /// themselves.
    pub(super) fn untouch(&self) -> bool {
        let uses = usize::from(self.uses.swap(0, Relaxed));
        uses * 2 >= self.len().clamp(1, usize::from(u8::MAX))
    }
}

impl Drop for Interval {
    fn drop(&mut self) {
        if self.is_passing {
            spare::give(&spare::BYTES, std::mem::take(&mut self.bytes));
            spare::give(&PLACES, std::mem::take(&mut self.pairs));
        }
    }
}

#[cfg(test)]
mod tests;
