//! An interval in memory: its bytes as they lie in the space, and where in them each pair stands (FlexSpace §5.2).
//!
//! # Invariants
//! - V1: `pairs` are in order of keys, of one key the newest first.
//! - V2: a fingerprint never decides: the key in the bytes does.
//!
//! # Concurrency
//! Does not change; shared by all readers.
#![allow(
    clippy::indexing_slicing,
    reason = "places were made by `decode` out of these bytes, and nothing changes afterwards"
)]

use esker_base::hash::KeyHasher;
use esker_format::Flaw;
use esker_format::flex_db::run::take_pair;
use esker_format::flex_db::{Pair, Run, RunKind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a pair stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u32,
    run: u32,
}

/// A decoded interval. See the module's text.
#[derive(Debug)]
pub(super) struct Interval {
    bytes: Box<[u8]>,
    pairs: Box<[Place]>,
    prints: Box<[u16]>,
    /// Versions that the pairs of each run are relative to.
    runs: Box<[u64]>,
    /// Somebody was here since the hand of the clock came by.
    used: AtomicBool,
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

/// Cuts bytes into intervals, each with its base run.
pub(super) fn parts(bytes: &[u8]) -> Result<Vec<Part<'_>>, Flaw> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let (mut rest, mut start) = (bytes, 0);
    while !rest.is_empty() {
        let begin = bytes.len() - rest.len();
        let run = Run::take(&mut rest, || false)?;
        let end = bytes.len() - rest.len();
        match (run.kind, parts.last_mut()) {
            (RunKind::Base, _) => {
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

impl Interval {
    /// Reads an interval. Each run is verified.
    pub(super) fn decode(bytes: Vec<u8>, hasher: &KeyHasher) -> Result<Interval, Flaw> {
        struct Found<'a> {
            key: &'a [u8],
            version: u64,
            place: Place,
        }
        let mut found: Vec<Found<'_>> = Vec::with_capacity(32);
        let mut runs = Vec::with_capacity(4);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let run = Run::take(&mut rest, || false)?;
            if (run.kind == RunKind::Base) != runs.is_empty() {
                return Err(Flaw::Field("kind"));
            }
            let run_end = bytes.len() - rest.len();
            let number = u32::try_from(runs.len()).unwrap_or(u32::MAX);
            runs.push(run.first_version());
            let mut pairs = run.pairs();
            for _ in 0..run.count {
                let at = u32::try_from(run_end - pairs.len()).map_err(|_| Flaw::Field("size"))?;
                let pair = take_pair(&mut pairs, run.first_version()).ok_or(Flaw::Field("pair"))?;
                let place = Place { at, run: number };
                found.push(Found { key: pair.key, version: pair.version, place });
            }
        }
        // Runs are in order each, which this sort makes use of.
        found.sort_by(|a, b| a.key.cmp(b.key).then(b.version.cmp(&a.version)));
        let prints = found.iter().map(|found| print_of(hasher.hash(found.key))).collect();
        let pairs = found.iter().map(|found| found.place).collect();
        drop(found);
        Ok(Interval {
            bytes: bytes.into_boxed_slice(),
            pairs,
            prints,
            runs: runs.into_boxed_slice(),
            used: AtomicBool::new(true),
        })
    }

    /// Its bytes, encoded.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let places = self.pairs.len() * (size_of::<Place>() + size_of::<u16>());
        (self.bytes.len() + places + self.runs.len() * 8 + size_of::<Self>() + 64) as u64
    }

    /// Pairs, all versions of a key among them.
    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Pair number `index`.
    #[inline]
    pub(super) fn pair(&self, index: usize) -> Pair<'_> {
        let place = self.pairs[index];
        let mut bytes = &self.bytes[place.at as usize..];
        let first_version = self.runs[place.run as usize];
        take_pair(&mut bytes, first_version).unwrap_or(Pair {
            key: &[],
            version: 0,
            content: esker_format::flex_db::Content::Delete,
        })
    }

    /// What `key` has, as of version `at`.
    #[inline]
    pub(super) fn get(&self, key: &[u8], print: u16, at: u64) -> Option<Pair<'_>> {
        for (index, other) in self.prints.iter().enumerate() {
            if *other == print {
                let pair = self.pair(index);
                if pair.key == key && pair.version <= at {
                    return Some(pair);
                }
            }
        }
        None
    }

    /// Of each key the pair that counts as of version `at`, in order.
    pub(super) fn visible(&self, at: u64) -> Vec<u32> {
        let mut visible: Vec<u32> = Vec::with_capacity(self.len());
        let mut last: Option<&[u8]> = None;
        for index in 0..self.len() {
            let pair = self.pair(index);
            if pair.version <= at && last != Some(pair.key) {
                last = Some(pair.key);
                visible.push(u32::try_from(index).unwrap_or(u32::MAX));
            }
        }
        visible
    }

    /// Notes that somebody was here.
    #[inline]
    pub(super) fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether somebody was here; not any more afterwards.
    pub(super) fn untouch(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}
