//! A map behind a lock passes, and one that does something wrong is found out, whatever that is.

use super::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What a wrong index does wrong, now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// A lookup misses what stands.
    FindMisses,
    /// A scan leaves one out in the middle.
    ScanMisses,
    /// A scan meets its last one twice.
    ScanRepeats,
    /// A walk leaves one out.
    WalkMisses,
    /// Whatever stands is replaced.
    ReplacesAnything,
    /// A removal of another word says that it was done.
    RemovalLies,
    /// Two calls do what one has to: others come between.
    InTwoSteps,
}

struct Map {
    words: Mutex<BTreeMap<Vec<u8>, u64>>,
    wrong: Wrong,
    calls: AtomicU64,
}

impl Map {
    fn new(wrong: Wrong) -> Map {
        Map { words: Mutex::default(), wrong, calls: AtomicU64::new(0) }
    }

    /// Whether this call does that wrong.
    fn does(&self, wrong: Wrong) -> bool {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        // Not when nothing runs beside: then any comparison finds it.
        self.wrong == wrong && number > 40_000 && number.is_multiple_of(41)
    }
}

impl Index for Map {
    const ORDERED: bool = true;
    const AT_ONCE: bool = true;

    fn insert(&self, key: &Key, word: u64) -> Option<u64> {
        self.swap(key, word, |_| false)
    }

    fn insert_many(&self, entries: &[(&Key, u64)]) {
        for (key, word) in entries {
            self.insert(key, *word);
        }
    }

    fn swap(&self, key: &Key, word: u64, goes: impl Fn(u64) -> bool) -> Option<u64> {
        let mut words = self.words.lock().unwrap();
        let held = words.get(&key.bytes).copied();
        if held.is_none_or(goes) {
            words.insert(key.bytes.clone(), word);
        }
        held
    }

    fn replace(&self, key: &Key, old: u64, new: u64) -> bool {
        let wrong = self.does(Wrong::ReplacesAnything);
        if self.does(Wrong::InTwoSteps) && self.find(key) == [old] {
            std::thread::yield_now();
            self.words.lock().unwrap().insert(key.bytes.clone(), new);
            return true;
        }
        let mut words = self.words.lock().unwrap();
        match words.get_mut(&key.bytes) {
            Some(held) if *held == old || wrong => *held = new,
            _ => return false,
        }
        true
    }

    fn remove(&self, key: &Key, old: u64) -> bool {
        let wrong = self.does(Wrong::RemovalLies);
        let mut words = self.words.lock().unwrap();
        if words.get(&key.bytes) == Some(&old) {
            words.remove(&key.bytes);
            return true;
        }
        wrong
    }

    fn find(&self, key: &Key) -> Vec<u64> {
        let wrong = self.does(Wrong::FindMisses);
        let words = self.words.lock().unwrap();
        words.get(&key.bytes).filter(|_| !wrong).into_iter().copied().collect()
    }

    fn find_many(&self, keys: &[&Key]) -> Vec<Vec<u64>> {
        keys.iter().map(|key| self.find(key)).collect()
    }

    fn scan(&self, from: Bound<&[u8]>, back: bool, limit: usize) -> Pairs {
        let words = self.words.lock().unwrap();
        let pair = |(key, word): (&Vec<u8>, &u64)| (key.clone(), *word);
        let mut pairs: Pairs = if back {
            words.range::<[u8], _>((Bound::Unbounded, from)).rev().map(pair).take(limit).collect()
        } else {
            words.range::<[u8], _>((from, Bound::Unbounded)).map(pair).take(limit).collect()
        };
        if self.does(Wrong::ScanMisses) && pairs.len() > 2 {
            pairs.remove(1);
        }
        if self.does(Wrong::ScanRepeats) {
            pairs.extend(pairs.last().cloned());
        }
        pairs
    }

    fn walk(&self) -> Vec<u64> {
        let mut words: Vec<u64> = self.words.lock().unwrap().values().copied().collect();
        if self.does(Wrong::WalkMisses) {
            words.pop();
        }
        words
    }

    fn len(&self) -> u64 {
        self.words.lock().unwrap().len() as u64
    }
}

#[test]
fn a_map_behind_a_lock_is_explained_whatever_its_keys_are() {
    let effort = Effort { alone: 1000, beside: 1000, rounds: 2, threads: 2 };
    let mut figures = Figures::default();
    for seed in 0..keys::SEEDS {
        figures += explore(seed, &effort, || Map::new(Wrong::Nothing)).unwrap();
    }
    assert!(figures.scans > 100 && figures.judged > figures.beside, "{figures:?}");
}

#[test]
fn what_an_index_does_wrong_beside_other_threads_is_found() {
    const ALL: [Wrong; 7] = [
        Wrong::FindMisses,
        Wrong::ScanMisses,
        Wrong::ScanRepeats,
        Wrong::WalkMisses,
        Wrong::ReplacesAnything,
        Wrong::RemovalLies,
        Wrong::InTwoSteps,
    ];
    let effort = Effort { alone: 0, beside: 100_000, rounds: 1, threads: 2 };
    for wrong in ALL {
        // Few keys, so that walks are many.
        let mut rng = Rng::from_seed(1);
        let keys = Keys::of_seed(0, &mut rng);
        let found = beside::run(&Map::new(wrong), &keys, &mut rng, &effort);
        let words = found.expect_err(&format!("{wrong:?} is found"));
        // What is read wrongly may first be read when all is over.
        let is_read = matches!(
            wrong,
            Wrong::FindMisses | Wrong::ScanMisses | Wrong::ScanRepeats | Wrong::WalkMisses
        );
        assert!(is_read || words.contains("round 0"), "{wrong:?} is judged: {words}");
    }
}

#[test]
fn a_walk_without_order_meets_a_key_twice_only_if_it_went_meanwhile() {
    let judged = |key, action, begin, end| {
        met_again(&[Call { key, action, begin, end: Some(end) }], &[(3, (10, 20))])
    };
    let swap = |new, done| Action::CompareAndSet { expected: Some(1), new, done: Some(done) };
    for deletes in
        [Action::Delete(Some(true)), Action::Delete(None), Action::Set(None), swap(None, true)]
    {
        for (begin, end) in [(12, 13), (5, 11), (19, 30), (5, 30)] {
            assert_eq!(judged(3, deletes, begin, end), Ok(()), "{deletes:?}");
        }
        assert!(judged(3, deletes, 8, 9).is_err(), "{deletes:?} before it");
        assert!(judged(3, deletes, 21, 22).is_err(), "{deletes:?} behind it");
        assert!(judged(4, deletes, 12, 13).is_err(), "{deletes:?} of another key");
    }
    for stays in [
        Action::Write(7),
        Action::Set(Some(7)),
        Action::Delete(Some(false)),
        swap(None, false),
        swap(Some(7), true),
        Action::Read(Some(None)),
    ] {
        assert!(judged(3, stays, 12, 13).is_err(), "{stays:?}");
    }
}
