//! Threads on one index: the history of each key is linearizable, and scans and walks are whole.
//!
//! Half of the operations are on a few neighbours, which all threads use at once, the others on all keys, so that the index grows
//! in one round and shrinks in the next. After each round nothing changes for a moment: what is there then is the last
//! read of this history, and what the next one begins with.
//!
//! An index without order takes each insert for another entry. So a key that has none is somebody's to insert: at first anybody's, then
//! whose who removed it, until he gives it up.

use super::alone::words_of;
use super::keys::{Key, Keys};
use super::told::Times;
use super::{Effort, Figures, Index, Recorder, agree, judge, key_of, met_again, value_of, word_of};
use crate::linearizability::{Action, State};
use esker_base::rng::Rng;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Neighbours that all threads use at once.
const HOT: usize = 8;

/// Threads on an empty index; there is nothing in it afterwards.
///
/// # Errors
/// What cannot be explained.
pub fn run<I: Index>(
    index: &I,
    keys: &Keys,
    rng: &mut Rng,
    effort: &Effort,
) -> Result<Figures, String> {
    let count = keys.all().len();
    let mut figures = Figures::default();
    let free: Vec<AtomicBool> = (0..count).map(|_| AtomicBool::new(true)).collect();
    let values = AtomicU64::new(1);
    let mut before: Vec<State> = vec![None; count];
    for round in 0..effort.rounds {
        let time = AtomicU64::new(1);
        let done: Vec<Result<Thread<'_, I>, String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..effort.threads)
                .map(|_| {
                    let mut thread = Thread {
                        index,
                        keys,
                        free: &free,
                        values: &values,
                        rng: rng.fork(),
                        recorder: Recorder::new(&time),
                        stale: vec![0; count],
                        hot: 0,
                        shrinks: round % 2 == 1,
                        twice: Vec::new(),
                        figures: Figures::default(),
                    };
                    let operations = effort.beside / keys.slowness();
                    scope.spawn(move || thread.run(operations).map(|()| thread))
                })
                .collect();
            threads.into_iter().map(|it| it.join().map_err(|_| "a panic".to_owned())?).collect()
        });
        let mut calls = Vec::new();
        let mut twice = Vec::new();
        for thread in done {
            let thread = thread.map_err(|words| format!("round {round}: {words}"))?;
            calls.extend(thread.recorder.calls);
            twice.extend(thread.twice);
            figures += thread.figures;
        }
        met_again(&calls, &twice).map_err(|words| format!("round {round}: {words}"))?;
        let after = standing(index, keys)?;
        figures.judged +=
            judge(calls, &before, &after).map_err(|words| format!("round {round}: {words}"))?;
        before = after;
    }
    for (key, held) in keys.all().iter().zip(before) {
        if let Some(held) = held {
            agree("removed at last", index.remove(key, held), true)?;
        }
    }
    agree("entries at last", index.len(), 0)?;
    agree("walked at last", index.walk(), Vec::new())?;
    Ok(figures)
}

/// What each key has while nothing changes, whoever is asked.
fn standing<I: Index>(index: &I, keys: &Keys) -> Result<Vec<State>, String> {
    let mut states = Vec::new();
    for key in keys.all() {
        let found = words_of::<I>(keys, key, index.find(key))?;
        if found.len() > 1 {
            return Err(format!("key {} has several words: {found:?}", key.number));
        }
        states.push(found.first().copied());
    }
    let mut walked = index.walk();
    let mut all: Vec<u64> = states.iter().copied().flatten().collect();
    agree("entries", index.len(), all.len() as u64)?;
    if I::ORDERED {
        let pairs = |states: &[State]| -> super::Pairs {
            let pair = |(key, state): (&Key, &State)| Some((key.bytes.clone(), (*state)?));
            keys.all().iter().zip(states).filter_map(pair).collect()
        };
        let mut expected = pairs(&states);
        agree("scanned", index.scan(Bound::Unbounded, false, usize::MAX), expected.clone())?;
        expected.reverse();
        agree("scanned back", index.scan(Bound::Unbounded, true, usize::MAX), expected)?;
    } else {
        walked.sort_unstable();
        all.sort_unstable();
    }
    agree("walked", walked, all)?;
    Ok(states)
}

struct Thread<'t, I> {
    index: &'t I,
    keys: &'t Keys,
    /// Whether the one who says so first may insert this key.
    free: &'t [AtomicBool],
    values: &'t AtomicU64,
    rng: Rng,
    recorder: Recorder<'t>,
    /// A word that each key had at some time; 0: none is known.
    stale: Vec<u64>,
    /// The first one of the neighbours that all use.
    hot: usize,
    shrinks: bool,
    /// Keys that a walk met twice, and when.
    twice: Vec<(usize, Times)>,
    figures: Figures,
}

impl<'t, I: Index> Thread<'t, I> {
    fn run(&mut self, operations: u64) -> Result<(), String> {
        let count = self.keys.all().len();
        // Such calls are reads of very many keys.
        let rare = 2 + 2 * count as u64;
        for step in 0..operations {
            self.hot = usize::try_from(step / 500).unwrap_or(0) * HOT % count;
            self.figures.beside += 1;
            if self.rng.chance(1, rare) {
                self.walk()?;
                continue;
            }
            let key = self.keys.get(self.any());
            let adds = if self.shrinks { 8 } else { 30 };
            let dice = self.rng.below(100);
            match dice {
                0..25 => self.find(key).map(drop)?,
                25..28 => self.find_many()?,
                28..33 if I::ORDERED => self.scan()?,
                33..38 if I::ORDERED => self.swap(key),
                38..41 => self.insert_many(),
                41..57 => self.replace(key)?,
                _ if dice < 57 + adds => self.insert(key),
                _ => self.remove(key)?,
            }
        }
        Ok(())
    }

    fn any(&mut self) -> usize {
        let count = self.keys.all().len();
        match self.rng.chance(1, 2) {
            true => (self.hot + self.rng.index(HOT)) % count,
            false => self.rng.index(count),
        }
    }

    fn new_word(&self, key: &Key) -> u64 {
        word_of(key.number, self.values.fetch_add(1, Ordering::Relaxed))
    }

    fn knows(&mut self, key: &Key, word: u64) {
        if let Some(stale) = self.stale.get_mut(key.number) {
            *stale = word;
        }
    }

    /// Of what was found for a key, each word is a read, if it need not be of one moment.
    fn saw(&mut self, key: &Key, found: Vec<u64>, times: (u64, u64)) -> Result<State, String> {
        let words = words_of::<I>(self.keys, key, found)?;
        if words.len() > 1 && I::AT_ONCE {
            return Err(format!("key {} has several words: {words:?}", key.number));
        }
        if words.is_empty() {
            self.recorder.note(key.number, Action::Read(Some(None)), times);
        }
        for word in &words {
            self.recorder.note(key.number, Action::Read(Some(Some(*word))), times);
            self.knows(key, *word);
        }
        Ok(words.last().copied())
    }

    fn find(&mut self, key: &Key) -> Result<State, String> {
        let index = self.index;
        let (found, times) = self.recorder.timed(|| index.find(key));
        self.saw(key, found, times)
    }

    fn find_many(&mut self) -> Result<(), String> {
        let keys = self.keys;
        let keys: Vec<&Key> = (0..1 + self.rng.index(20)).map(|_| keys.get(self.any())).collect();
        let index = self.index;
        let (found, times) = self.recorder.timed(|| index.find_many(&keys));
        for (key, found) in keys.into_iter().zip(found) {
            self.saw(key, found, times)?;
        }
        Ok(())
    }

    /// A word that the key has, or had: mostly it is looked up.
    fn held(&mut self, key: &Key) -> Result<State, String> {
        if self.rng.chance(1, 4) {
            let stale = self.stale.get(key.number).copied();
            return Ok(stale.filter(|word| *word > 0));
        }
        self.find(key)
    }

    fn replace(&mut self, key: &Key) -> Result<(), String> {
        let Some(old) = self.held(key)? else { return Ok(()) };
        let (index, new) = (self.index, self.new_word(key));
        let done = self.recorder.call(key.number, || {
            let done = index.replace(key, old, new);
            let (expected, new) = (Some(old), Some(new));
            (Action::CompareAndSet { expected, new, done: Some(done) }, done)
        });
        if done {
            self.knows(key, new);
        }
        Ok(())
    }

    fn remove(&mut self, key: &Key) -> Result<(), String> {
        let Some(old) = self.held(key)? else { return Ok(()) };
        let index = self.index;
        let done = self.recorder.call(key.number, || {
            let done = index.remove(key, old);
            (Action::CompareAndSet { expected: Some(old), new: None, done: Some(done) }, done)
        });
        if done && !I::ORDERED {
            self.give_up(key);
        }
        Ok(())
    }

    /// Whether nobody else may insert the key, and it has none.
    fn takes(&self, key: &Key) -> bool {
        I::ORDERED
            || self.free.get(key.number).is_some_and(|free| free.swap(false, Ordering::AcqRel))
    }

    fn give_up(&self, key: &Key) {
        if let Some(free) = self.free.get(key.number) {
            free.store(true, Ordering::Release);
        }
    }

    fn insert(&mut self, key: &Key) {
        if !self.takes(key) {
            return;
        }
        let (index, word) = (self.index, self.new_word(key));
        self.recorder.call(key.number, || match index.insert(key, word) {
            None => (Action::WriteIf { present: false, value: word, done: Some(true) }, ()),
            held => (Action::Read(Some(held)), ()),
        });
        self.knows(key, word);
    }

    /// Neighbours at once. Whether they were there already, ordered ones do not say.
    fn insert_many(&mut self) {
        let first = self.any();
        let keys = self.keys.all().iter().skip(first).take(1 + self.rng.index(6));
        let keys: Vec<&Key> = keys.filter(|key| self.takes(key)).collect();
        let entries: Vec<(&Key, u64)> =
            keys.into_iter().map(|key| (key, self.new_word(key))).collect();
        let index = self.index;
        let ((), times) = self.recorder.timed(|| index.insert_many(&entries));
        for (key, word) in entries {
            let done = (!I::ORDERED).then_some(true);
            let action = Action::WriteIf { present: false, value: word, done };
            self.recorder.note(key.number, action, times);
        }
    }

    fn swap(&mut self, key: &Key) {
        let (index, new) = (self.index, self.new_word(key));
        // A rule that depends on what is there: both outcomes come.
        let goes = |held: u64| value_of(held).is_multiple_of(2);
        self.recorder.call(key.number, || match index.swap(key, new, goes) {
            None => (Action::WriteIf { present: false, value: new, done: Some(true) }, ()),
            Some(old) if goes(old) => {
                let (expected, new) = (Some(old), Some(new));
                (Action::CompareAndSet { expected, new, done: Some(true) }, ())
            }
            held => (Action::Read(Some(held)), ()),
        });
    }

    fn scan(&mut self) -> Result<(), String> {
        let from = self.keys.get(self.any());
        let (back, limit) = (self.rng.chance(1, 2), 1 + self.rng.index(40));
        let bound = match self.rng.index(2) {
            0 => Bound::Included(&from.bytes[..]),
            _ => Bound::Excluded(&from.bytes[..]),
        };
        let index = self.index;
        let (pairs, times) = self.recorder.timed(|| index.scan(bound, back, limit));
        self.figures.scans += 1;
        let mut met = Vec::new();
        for (bytes, word) in &pairs {
            let number = key_of(*word);
            let is_its = self.keys.all().get(number).is_some_and(|key| key.bytes == *bytes);
            if !is_its {
                return Err(format!("a scan says {word:x} of {bytes:02x?}"));
            }
            met.push((number, *word));
        }
        let first = from.number + usize::from(matches!(bound, Bound::Excluded(_)) && !back);
        let behind = from.number + usize::from(matches!(bound, Bound::Included(_)));
        let mut covered = match back {
            true => 0..behind,
            false => first..self.keys.all().len(),
        };
        // What it was asked for and no more: it says nothing of what is behind the last one.
        if let (true, Some((last, _))) = (met.len() == limit, met.last()) {
            match back {
                true => covered.start = *last,
                false => covered.end = last + 1,
            }
        }
        if back {
            met.reverse();
        }
        if !met.is_sorted_by(|one, next| one.0 < next.0) {
            return Err(format!("a scan (back: {back}) met keys out of order, or twice: {met:x?}"));
        }
        if let Some((other, _)) = met.iter().find(|(number, _)| !covered.contains(number)) {
            return Err(format!("a scan of keys {covered:?} met key {other}"));
        }
        let mut met = met.into_iter().peekable();
        for number in covered {
            let word = met.next_if(|(of, _)| *of == number).map(|(_, word)| word);
            self.recorder.note(number, Action::Read(Some(word)), times);
        }
        Ok(())
    }

    /// All keys at once. Without order a key that comes anew may be met again.
    fn walk(&mut self) -> Result<(), String> {
        let index = self.index;
        let (mut words, times) = self.recorder.timed(|| index.walk());
        self.figures.scans += 1;
        if I::ORDERED && !words.is_sorted_by_key(|word| key_of(*word)) {
            return Err("a walk met keys out of order".to_owned());
        }
        words.sort_unstable_by_key(|word| (key_of(*word), *word));
        let mut words = words.into_iter().peekable();
        for number in 0..self.keys.all().len() {
            let mut met = 0;
            while let Some(word) = words.next_if(|word| key_of(*word) == number) {
                self.recorder.note(number, Action::Read(Some(Some(word))), times);
                met += 1;
            }
            match met {
                0 => self.recorder.note(number, Action::Read(Some(None)), times),
                1 => {}
                _ if I::ORDERED => return Err(format!("a walk met key {number} twice")),
                _ => self.twice.push((number, times)),
            }
        }
        match words.next() {
            Some(word) => Err(format!("a walk met {word:x}, of no key")),
            None => Ok(()),
        }
    }
}
