//! An index beside a map, by one thread: every reply has to be the map's.
//!
//! It grows from nothing, shrinks, grows again, and is emptied in the end. The map is an array, as keys are numbered in their order.

use super::keys::{Key, Keys};
use super::{Figures, Index, Pairs, agree, key_of, word_of};
use esker_base::rng::Rng;
use std::ops::Bound;

/// How often the whole content is compared.
const COMPARISONS: u64 = 5;

/// What each key has.
struct Model<'k> {
    keys: &'k Keys,
    words: Vec<Option<u64>>,
}

impl Model<'_> {
    fn of(&self, key: &Key) -> Option<u64> {
        self.words.get(key.number).copied().flatten()
    }

    fn set(&mut self, key: &Key, word: Option<u64>) {
        if let Some(held) = self.words.get_mut(key.number) {
            *held = word;
        }
    }

    /// Some pairs from there on, or back.
    fn pairs(&self, from: Bound<&[u8]>, back: bool, limit: usize) -> Pairs {
        let pair = |key: &Key| Some((key.bytes.clone(), self.of(key)?));
        let is_behind = |key: &&Key| match from {
            Bound::Included(bytes) if back => key.bytes.as_slice() <= bytes,
            Bound::Excluded(bytes) if back => key.bytes.as_slice() < bytes,
            Bound::Included(bytes) => key.bytes.as_slice() >= bytes,
            Bound::Excluded(bytes) => key.bytes.as_slice() > bytes,
            Bound::Unbounded => true,
        };
        let (Bound::Included(first) | Bound::Excluded(first)) = from else {
            let all = self.keys.all().iter();
            return match back {
                true => all.rev().filter_map(pair).take(limit).collect(),
                false => all.filter_map(pair).take(limit).collect(),
            };
        };
        let place = self.keys.below(first);
        let (before, behind) = self.keys.all().split_at(place);
        if back {
            let met = behind.iter().take(1).chain(before.iter().rev());
            return met.filter(is_behind).filter_map(pair).take(limit).collect();
        }
        behind.iter().filter(is_behind).filter_map(pair).take(limit).collect()
    }
}

/// So many operations on an empty index; there is nothing in it afterwards.
///
/// # Errors
/// The first reply that is not the map's.
pub fn run<I: Index>(
    index: &I,
    keys: &Keys,
    rng: &mut Rng,
    operations: u64,
) -> Result<Figures, String> {
    let operations = (operations / keys.slowness()).max(keys.all().len() as u64 * 3);
    let mut model = Model { keys, words: vec![None; keys.all().len()] };
    let mut figures = Figures { alone: operations, ..Figures::default() };
    for step in 1..=operations {
        let phase = (step - 1) * 6 / operations;
        let operation = Operation { shrinks: phase % 2 == 1, step };
        operation.run(index, &mut model, rng, &mut figures.scans)?;
        if step % (operations / COMPARISONS).max(1) == 0 {
            compare(index, &model)?;
        }
    }
    for key in keys.all() {
        if let Some(held) = model.of(key) {
            agree("removed at last", index.remove(key, held), true)?;
            model.set(key, None);
        }
    }
    compare(index, &model)?;
    Ok(figures)
}

#[derive(Clone, Copy)]
struct Operation {
    shrinks: bool,
    step: u64,
}

impl Operation {
    fn run<I: Index>(
        self,
        index: &I,
        model: &mut Model<'_>,
        rng: &mut Rng,
        scans: &mut u64,
    ) -> Result<(), String> {
        let keys = model.keys;
        let key = keys.any(rng);
        let word = word_of(key.number, self.step);
        let held = model.of(key);
        let removes = if self.shrinks { 8 } else { 1 };
        // Of 12: one looks around, two swap where that can be.
        match (held, rng.below(12)) {
            (_, 0) if I::ORDERED && rng.chance(1, 8) => {
                *scans += 1;
                return scan(index, model, rng);
            }
            (_, 0) => return find_many(index, model, rng),
            (Some(old), dice) if dice <= removes => {
                agree("removed what is not there", index.remove(key, word), false)?;
                agree("removed", index.remove(key, old), true)?;
                agree("removed twice", index.remove(key, old), false)?;
                model.set(key, None);
            }
            (_, 9 | 10) if I::ORDERED => {
                let goes = rng.chance(1, 2);
                agree("swapped", index.swap(key, word, |_| goes), held)?;
                if goes || held.is_none() {
                    model.set(key, Some(word));
                }
            }
            (Some(old), dice) => {
                if I::ORDERED && dice % 2 == 0 {
                    agree("inserted again", index.insert(key, word), held)?;
                }
                agree("replaced", index.replace(key, old, word), true)?;
                agree("replaced twice", index.replace(key, old, word), false)?;
                model.set(key, Some(word));
            }
            (None, dice) if dice == 1 || self.shrinks && dice < 11 => {
                agree("replaced what is not there", index.replace(key, word, word), false)?;
            }
            (None, 2) => {
                // Neighbours come together, as in recoveries.
                let behind = keys.all().iter().skip(key.number).take(rng.index(20));
                let absent = behind.filter(|key| model.of(key).is_none());
                let entries: Vec<(&Key, u64)> =
                    absent.map(|key| (key, word_of(key.number, self.step))).collect();
                index.insert_many(&entries);
                entries.iter().for_each(|(key, word)| model.set(key, Some(*word)));
            }
            (None, _) => {
                agree("inserted", index.insert(key, word), None)?;
                model.set(key, Some(word));
            }
        }
        let found = words_of::<I>(keys, key, index.find(key))?;
        agree("found", found, model.of(key).into_iter().collect())
    }
}

/// Of the words that a lookup gave, those of the key. Others may be there only as far as an index cannot tell keys apart.
///
/// # Errors
/// A word that does not belong there.
pub(super) fn words_of<I: Index>(
    keys: &Keys,
    key: &Key,
    mut found: Vec<u64>,
) -> Result<Vec<u64>, String> {
    for word in &found {
        let Some(other) = keys.all().get(key_of(*word)) else {
            return Err(format!("{word:x}, of no key, was found for key {}", key.number));
        };
        let tells = I::ORDERED || I::AT_ONCE && other.hash != key.hash;
        if tells && other.number != key.number {
            return Err(format!("{word:x} was found for key {}", key.number));
        }
    }
    found.retain(|word| key_of(*word) == key.number);
    Ok(found)
}

fn find_many<I: Index>(index: &I, model: &Model<'_>, rng: &mut Rng) -> Result<(), String> {
    let keys: Vec<&Key> = (0..1 + rng.index(40)).map(|_| model.keys.any(rng)).collect();
    let found = index.find_many(&keys).into_iter().zip(&keys);
    let found = found.map(|(found, key)| words_of::<I>(model.keys, key, found));
    let found: Vec<Vec<u64>> = found.collect::<Result<_, _>>()?;
    let expected = keys.iter().map(|key| model.of(key).into_iter().collect()).collect();
    agree("found of many", found, expected)
}

/// From keys that are there, and from neighbours of them.
fn scan<I: Index>(index: &I, model: &Model<'_>, rng: &mut Rng) -> Result<(), String> {
    let mut key = model.keys.any(rng).bytes.clone();
    match rng.below(4) {
        0 => key.push(0),
        1 => drop(key.pop()),
        2 => key.iter_mut().last().into_iter().for_each(|byte| *byte ^= 1),
        _ => {}
    }
    let from = match rng.chance(1, 2) {
        true => Bound::Included(&key[..]),
        false => Bound::Excluded(&key[..]),
    };
    let (back, limit) = (rng.chance(1, 2), 1 + rng.index(50));
    agree("scanned", index.scan(from, back, limit), model.pairs(from, back, limit))
}

/// Everything that the index says of its content.
fn compare<I: Index>(index: &I, model: &Model<'_>) -> Result<(), String> {
    let mut all: Vec<u64> = model.words.iter().copied().flatten().collect();
    agree("entries", index.len(), all.len() as u64)?;
    let keys: Vec<&Key> = model.keys.all().iter().collect();
    for (found, key) in index.find_many(&keys).into_iter().zip(&keys) {
        let found = words_of::<I>(model.keys, key, found)?;
        agree("found of all", found, model.of(key).into_iter().collect())?;
    }
    let mut walked = index.walk();
    if I::ORDERED {
        agree("walked", walked, all)?;
        for back in [false, true] {
            let expected = model.pairs(Bound::Unbounded, back, usize::MAX);
            if index.scan(Bound::Unbounded, back, usize::MAX) != expected {
                return Err(format!("a scan of all is another one, back: {back}"));
            }
        }
        return Ok(());
    }
    walked.sort_unstable();
    all.sort_unstable();
    agree("walked", walked, all)
}
