//! What is known of the runs that were appended to intervals of a leaf: the size of each, and a byte of the fingerprint of
//! each of its keys. So a get reads the run that has its key, or the base run, and none of the others.
//!
//! # Invariants
//! - T1: of an interval either all appended runs are here, in their order, or none. Nobody knows then where they begin, and
//!   who wants a pair reads all of them. Where one of them cannot be read, that would take what is sound along: so a run may have any
//!   size and any number of pairs, and none is given up because it has much.
#![allow(clippy::indexing_slicing, reason = "as for the index")]

use esker_base::hash::KeyHasher;
use esker_format::Flaw;
use esker_format::flex_db::{Pairs, Run, varint};
use std::ops::Range;

/// The byte of a key's hash that is kept of it.
#[inline]
pub(in crate::engine::flex) fn byte_of(hash: u64) -> u8 {
    (hash >> 56) as u8
}

/// Bytes of an interval that may have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::flex) struct Wanted {
    /// Where they begin in the interval.
    pub(in crate::engine::flex) at: u32,
    pub(in crate::engine::flex) size: u32,
    /// Number of the run; 0: the base run.
    pub(in crate::engine::flex) run: usize,
}

/// What is kept of a run: its size, its number of pairs, a byte for each.
fn encode(size: u32, bytes_of_keys: &[u8]) -> Vec<u8> {
    let mut known = Vec::with_capacity(bytes_of_keys.len() + 5);
    varint::put(&mut known, u64::from(size));
    varint::put(&mut known, bytes_of_keys.len() as u64);
    known.extend_from_slice(bytes_of_keys);
    known
}

/// The inverse of [`encode`]: takes a run off the front.
#[inline]
fn take<'a>(rest: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    let size = u32::try_from(varint::take(rest)?).ok()?;
    let count = usize::try_from(varint::take(rest)?).ok()?;
    let (bytes, behind) = rest.split_at_checked(count)?;
    *rest = behind;
    Some((size, bytes))
}

/// What is kept of a run of this size with these pairs.
pub(in crate::engine::flex) fn tail_of_run(
    size: u32,
    pairs: Pairs<'_>,
    hasher: &KeyHasher,
) -> Vec<u8> {
    let (mut bytes, mut buffer) = (Vec::with_capacity(16), Vec::new());
    pairs.for_each(|pair| bytes.push(byte_of(hasher.hash(pair.key.bytes(&mut buffer)))));
    encode(size, &bytes)
}

/// What is kept of the appended runs of an interval with these bytes.
///
/// # Errors
/// The first [`Flaw`] found: runs are not verified.
pub(in crate::engine::flex) fn tail_of(bytes: &[u8], hasher: &KeyHasher) -> Result<Vec<u8>, Flaw> {
    let mut rest = bytes;
    let mut tail = Vec::new();
    if rest.is_empty() {
        return Ok(tail);
    }
    Run::take(&mut rest, || true)?;
    while !rest.is_empty() {
        let before = rest.len();
        let run = Run::take(&mut rest, || true)?;
        let size = u32::try_from(before - rest.len()).map_err(|_| Flaw::Field("size"))?;
        tail.extend(tail_of_run(size, run.pairs(), hasher));
    }
    Ok(tail)
}

/// The last run below number `below` that may have a key of this byte, in an interval of `size` bytes; else the base run.
pub(in crate::engine::flex) fn wanted(tail: &[u8], size: u32, byte: u8, below: usize) -> Wanted {
    let (mut rest, mut behind, mut number) = (tail, 0, 0);
    let mut found = None;
    while let Some((size, bytes)) = take(&mut rest) {
        number += 1;
        if number < below && bytes.contains(&byte) {
            found = Some((number, behind, size));
        }
        behind += size;
    }
    let base = size.saturating_sub(behind);
    match found {
        Some((run, at, size)) => Wanted { at: base + at, size, run },
        None => Wanted { at: 0, size: base, run: 0 },
    }
}

/// Where the appended runs begin in an interval of `size` bytes.
pub(super) fn starts(tail: &[u8], size: u32) -> Vec<usize> {
    let all: usize = sizes(tail).map(|(size, _)| size).sum();
    let mut at = (size as usize).saturating_sub(all);
    let start_of = |(size, _)| {
        at += size;
        at - size
    };
    sizes(tail).map(start_of).collect()
}

/// Bytes and pairs of each appended run.
pub(super) fn sizes(mut tail: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    std::iter::from_fn(move || take(&mut tail).map(|(size, bytes)| (size as usize, bytes.len())))
}

/// Whether this may be known of an interval of so many bytes and runs, or more if it is as many as are counted: all of its appended
/// runs (T1), or nothing.
pub(in crate::engine::flex) fn is_tail_of(tail: &[u8], size: u32, runs: u64) -> bool {
    let (mut rest, mut behind, mut number) = (tail, 0_u32, 1);
    while let Some((size, _)) = take(&mut rest) {
        number += 1;
        behind = behind.saturating_add(size);
    }
    let is_of_all = rest.is_empty() && number.min(u64::from(u8::MAX)) == runs && behind < size;
    tail.is_empty() || is_of_all
}

/// What is known of all intervals of a leaf, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Tails {
    bytes: Vec<u8>,
    /// Where that of each interval ends.
    ends: Vec<u32>,
}

/// Most bytes of all: more than intervals have for which there is memory.
const BYTES_MAX: usize = if cfg!(test) { u16::MAX as usize } else { u32::MAX as usize };

/// Bytes that it makes room for when it is full.
const GROWTH: usize = 64;

impl Tails {
    fn range(&self, index: usize) -> Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start as usize..self.ends[index] as usize
    }

    /// Of interval `index`; empty if nothing is known, or there are none.
    pub(super) fn of(&self, index: usize) -> &[u8] {
        &self.bytes[self.range(index)]
    }

    /// Replaces what is known of some intervals.
    pub(super) fn splice<'t>(
        &mut self,
        range: Range<usize>,
        tails: impl Iterator<Item = &'t [u8]> + Clone,
    ) {
        let start = range.start.checked_sub(1).map_or(0, |before| self.ends[before]);
        let end = range.end.checked_sub(1).map_or(0, |before| self.ends[before]).max(start);
        let gone = (end - start) as usize;
        let more: usize = tails.clone().map(<[u8]>::len).sum();
        // What does not fit is not known.
        let fits = self.bytes.len() - gone + more <= BYTES_MAX;
        let known = |tail: &'t [u8]| if fits { tail } else { &[] };
        let mut at = start;
        let ends: Vec<u32> = tails
            .clone()
            .map(|tail| {
                at += u32::try_from(known(tail).len()).unwrap_or(0);
                at
            })
            .collect();
        if fits && self.bytes.capacity() - self.bytes.len() < more {
            self.bytes.reserve_exact(more + GROWTH);
        }
        let bytes = tails.flat_map(|tail| known(tail).iter().copied());
        self.bytes.splice(start as usize..end as usize, bytes);
        for later in &mut self.ends[range.end..] {
            *later = *later - end + at;
        }
        self.ends.splice(range, ends);
    }

    /// What is known of interval `index` from now on.
    pub(super) fn set(&mut self, index: usize, tail: &[u8]) {
        self.splice(index..index + 1, std::iter::once(tail));
    }

    /// Adds what is known of a run to that of interval `index`; nothing is known any more of that if it does not fit.
    pub(super) fn push(&mut self, index: usize, known: &[u8]) {
        let (end, length) = (self.ends[index] as usize, self.bytes.len());
        let Ok(more) = u32::try_from(known.len()) else { return self.set(index, &[]) };
        if length + known.len() > BYTES_MAX {
            return self.set(index, &[]);
        }
        if self.bytes.capacity() - length < known.len() {
            self.bytes.reserve_exact(known.len() + GROWTH);
        }
        self.bytes.resize(length + known.len(), 0);
        self.bytes.copy_within(end..length, end + known.len());
        self.bytes[end..end + known.len()].copy_from_slice(known);
        self.ends[index..].iter_mut().for_each(|end| *end += more);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    #[test]
    fn what_is_known_of_intervals_agrees_with_a_list_of_lists() {
        let mut rng = Rng::from_seed(9);
        for _ in 0..100 {
            let (mut tails, mut model): (Tails, Vec<Vec<u8>>) = Default::default();
            for _ in 0..100 {
                let start = rng.index(model.len() + 1);
                let end = start + rng.index(model.len() + 1 - start);
                let fresh: Vec<Vec<u8>> =
                    (0..rng.index(5)).map(|_| vec![7; rng.index(900)]).collect();
                let before: usize = model.iter().map(Vec::len).sum();
                let gone: usize = model[start..end].iter().map(Vec::len).sum();
                let more: usize = fresh.iter().map(Vec::len).sum();
                let fits = before - gone + more <= BYTES_MAX;
                tails.splice(start..end, fresh.iter().map(Vec::as_slice));
                let known = fresh.into_iter().map(|tail| if fits { tail } else { Vec::new() });
                model.splice(start..end, known);
                for (index, tail) in model.iter().enumerate() {
                    assert_eq!(tails.of(index), &**tail);
                }
            }
        }
    }

    #[test]
    fn what_is_added_to_an_interval_is_behind_what_was_known_of_it() {
        let mut rng = Rng::from_seed(10);
        let (mut tails, mut model) = (Tails::default(), vec![Vec::<u8>::new(); 7]);
        tails.splice(0..0, model.iter().map(Vec::as_slice));
        let mut forgotten = 0;
        for step in 0..2000_u32 {
            let (index, known) =
                (rng.index(7), [u8::try_from(step % 251).unwrap(); 4].repeat(rng.index(40)));
            tails.push(index, &known);
            let all: usize = model.iter().map(Vec::len).sum();
            if all + known.len() > BYTES_MAX {
                model[index].clear();
                forgotten += 1;
            } else {
                model[index].extend(&known);
            }
            assert!((0..7).all(|index| tails.of(index) == &*model[index]), "step {step}");
        }
        assert!(forgotten > 2, "it was full {forgotten} times");
    }

    #[test]
    fn the_last_run_that_may_have_a_key_is_wanted_and_then_those_before() {
        let runs: [(u32, &[u8]); 4] = [(100, &[1, 2]), (65_000, &[2, 3]), (127, &[9]), (128, &[2])];
        let tail: Vec<u8> = runs.iter().flat_map(|(size, bytes)| encode(*size, bytes)).collect();
        let size = 5000 + 100 + 65_000 + 127 + 128;
        let at = |byte, below| wanted(&tail, size, byte, below);
        assert_eq!(at(2, usize::MAX), Wanted { at: size - 128, size: 128, run: 4 });
        assert_eq!(at(2, 4), Wanted { at: 5100, size: 65_000, run: 2 });
        assert_eq!(at(2, 2), Wanted { at: 5000, size: 100, run: 1 });
        assert_eq!(at(2, 1), Wanted { at: 0, size: 5000, run: 0 });
        assert_eq!(at(4, usize::MAX), Wanted { at: 0, size: 5000, run: 0 });
        assert_eq!(starts(&tail, size), [5000, 5100, 70_100, 70_227]);
        assert_eq!(wanted(&[], 300, 2, usize::MAX), Wanted { at: 0, size: 300, run: 0 });
        assert!(is_tail_of(&tail, size, 5) && is_tail_of(&[], size, 9) && is_tail_of(&[], 0, 0));
        for (tail, size, runs) in
            [(&*tail, size, 4), (&tail, size, 6), (&tail, size - 5000, 5), (&tail[..9], size, 5)]
        {
            assert!(!is_tail_of(tail, size, runs), "{size} bytes, {runs} runs");
        }
    }

    #[test]
    fn a_run_may_have_any_size_and_number_of_pairs() {
        for (size, count) in [(1, 1), (127, 128), (65_536, 1), (u32::MAX, 2), (3 << 30, 70_000)] {
            let known = [encode(size, &vec![7; count]), encode(5, &[9])].concat();
            assert_eq!(sizes(&known).collect::<Vec<_>>(), [(size as usize, count), (5, 1)]);
        }
        let many = encode(10, &[7]).repeat(300);
        assert!(is_tail_of(&many, 5000, 255) && !is_tail_of(&many, 5000, 254));
        assert!(!is_tail_of(&encode(u32::MAX, &[]).repeat(2), u32::MAX, 3));
    }
}
