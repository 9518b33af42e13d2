//! The indexes, as histories take them. `esker-index`'s own tests use this file, too.

use esker_index::{Cceh, Directory, Link, Masstree, Word};
use esker_testkit::histories::keys::Key;
use esker_testkit::histories::{self, Effort, Figures, Index, Pairs};
use std::ops::{Bound, ControlFlow};

/// Does what a seed says with an index.
///
/// # Errors
/// What nothing explains.
pub(crate) fn explore(name: &str, seed: u64, effort: &Effort) -> Result<Figures, String> {
    match name {
        "cceh" => histories::explore(seed, effort, || Of(Cceh::default())),
        "masstree" => histories::explore(seed, effort, || Of(Masstree::new())),
        // Every other shape of keys has small tables, and the other half with the next number of keys.
        "directory" if (seed + seed / histories::keys::SEEDS).is_multiple_of(2) => {
            histories::explore(seed, effort, || Of(Directory::with_capacity(0)))
        }
        "directory" => histories::explore(seed, effort, || Of(Directory::with_small_tables())),
        other => Err(format!("{other} is no index")),
    }
}

/// An index under test.
struct Of<T>(T);

/// Lets others run in the midst of a call that meets this word, now and then: where processors are busy it takes milliseconds.
fn give_way(number: u64) {
    if histories::value_of(number) % 256 == 3 {
        std::thread::yield_now();
    }
}

fn word(number: u64) -> Word {
    Word::new(number).expect("numbers of histories are words")
}

fn link(number: u64) -> Link {
    Link::record(number, 1).expect("numbers of histories are addresses")
}

impl Index for Of<Cceh> {
    const ORDERED: bool = false;
    const AT_ONCE: bool = true;

    fn insert(&self, key: &Key, number: u64) -> Option<u64> {
        self.0.insert(key.hash, word(number));
        None
    }

    fn insert_many(&self, entries: &[(&Key, u64)]) {
        let entries: Vec<_> =
            entries.iter().map(|(key, number)| (key.hash, word(*number))).collect();
        self.0.insert_many(&entries);
    }

    fn replace(&self, key: &Key, old: u64, new: u64) -> bool {
        self.0.replace(key.hash, word(old), word(new))
    }

    fn remove(&self, key: &Key, old: u64) -> bool {
        self.0.remove(key.hash, word(old))
    }

    fn find(&self, key: &Key) -> Vec<u64> {
        if !key.number.is_multiple_of(4) {
            return self.0.lookup(key.hash).iter().map(Word::get).collect();
        }
        // As gets do it, and others come in the midst.
        let mut found = Vec::new();
        self.0.find(key.hash, |word| {
            match word {
                Some(word) => {
                    found.push(word.get());
                    give_way(word.get());
                }
                None => found.clear(),
            }
            ControlFlow::<()>::Continue(())
        });
        found
    }

    fn find_many(&self, keys: &[&Key]) -> Vec<Vec<u64>> {
        let hashes: Vec<u64> = keys.iter().map(|key| key.hash).collect();
        let mut all = Vec::new();
        self.0.lookup_many(&hashes, |n, found| {
            assert_eq!(n, all.len());
            all.push(found.iter().map(Word::get).collect());
        });
        all
    }

    fn walk(&self) -> Vec<u64> {
        let (mut all, mut cursor) = (Vec::new(), 0);
        while let Some((entries, next)) = self.0.walk(cursor) {
            assert!(next > cursor, "a walk goes on");
            assert!(entries.iter().all(|(hash, _)| (cursor..=next).contains(hash)));
            all.extend(entries.iter().map(|(_, word)| word.get()));
            cursor = next;
        }
        all
    }

    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl Index for Of<Directory> {
    const ORDERED: bool = false;
    const AT_ONCE: bool = false;

    fn insert(&self, key: &Key, number: u64) -> Option<u64> {
        self.0.insert(key.hash, link(number));
        None
    }

    fn insert_many(&self, entries: &[(&Key, u64)]) {
        let entries: Vec<_> =
            entries.iter().map(|(key, number)| (key.hash, link(*number))).collect();
        self.0.insert_many(&entries);
    }

    fn replace(&self, key: &Key, old: u64, new: u64) -> bool {
        // An entry that replaces itself gets a whole tag again.
        if new.is_multiple_of(7) {
            self.0.replace(key.hash, link(old), link(old));
        }
        self.0.replace(key.hash, link(old), link(new))
    }

    fn remove(&self, key: &Key, old: u64) -> bool {
        self.0.remove(key.hash, link(old))
    }

    fn find(&self, key: &Key) -> Vec<u64> {
        let mut found: Vec<u64> = self.0.lookup(key.hash).iter().map(Link::grain).collect();
        // One that moves may be seen in both places.
        found.sort_unstable();
        found.dedup();
        found
    }

    fn find_many(&self, keys: &[&Key]) -> Vec<Vec<u64>> {
        let hashes: Vec<u64> = keys.iter().map(|key| key.hash).collect();
        let mut all = Vec::new();
        self.0.lookup_many(&hashes, |n, found| {
            assert_eq!(n, all.len());
            let mut found: Vec<u64> = found.iter().map(Link::grain).collect();
            found.sort_unstable();
            found.dedup();
            all.push(found);
        });
        all
    }

    fn walk(&self) -> Vec<u64> {
        let (mut all, mut cursor) = (Vec::new(), 0);
        while let Some((links, next)) = self.0.walk(cursor) {
            assert!(next > cursor, "a walk goes on");
            all.extend(links.into_iter().map(Link::grain));
            cursor = next;
        }
        all
    }

    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl Index for Of<Masstree> {
    const ORDERED: bool = true;
    const AT_ONCE: bool = true;

    fn insert(&self, key: &Key, number: u64) -> Option<u64> {
        self.0.insert(&key.bytes, word(number)).map(Word::get)
    }

    fn insert_many(&self, entries: &[(&Key, u64)]) {
        let entries: Vec<_> =
            entries.iter().map(|(key, number)| (&key.bytes, word(*number))).collect();
        self.0.insert_many(&entries);
    }

    fn swap(&self, key: &Key, number: u64, goes: impl Fn(u64) -> bool) -> Option<u64> {
        let goes = |word: Word| goes(word.get());
        let held = if number.is_multiple_of(2) {
            self.0.swap(&key.bytes, word(number), goes)
        } else {
            self.0.near(&key.bytes).swap(&key.bytes, word(number), goes)
        };
        held.map(Word::get)
    }

    fn replace(&self, key: &Key, old: u64, new: u64) -> bool {
        self.0.replace(&key.bytes, word(old), word(new))
    }

    fn remove(&self, key: &Key, old: u64) -> bool {
        self.0.remove(&key.bytes, word(old))
    }

    fn find(&self, key: &Key) -> Vec<u64> {
        self.0.get(&key.bytes).map(Word::get).into_iter().collect()
    }

    fn find_many(&self, keys: &[&Key]) -> Vec<Vec<u64>> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key.bytes[..]).collect();
        let mut all = Vec::new();
        self.0.lookup_many(&keys, |n, found| {
            assert_eq!(n, all.len());
            all.push(found.map(Word::get).into_iter().collect());
        });
        all
    }

    fn scan(&self, from: Bound<&[u8]>, back: bool, limit: usize) -> Pairs {
        let mut pairs = Vec::new();
        let visit = |key: &[u8], word: Word| {
            pairs.push((key.to_vec(), word.get()));
            give_way(word.get());
            if pairs.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        match back {
            true => self.0.scan_back(from, limit, visit),
            false => self.0.scan(from, limit, visit),
        }
        pairs
    }

    fn walk(&self) -> Vec<u64> {
        let mut all: Vec<(Vec<u8>, Word)> = Vec::new();
        loop {
            let part = self.0.walk(all.last().map(|(key, _)| &key[..]), 37);
            if part.is_empty() {
                return all.into_iter().map(|(_, word)| word.get()).collect();
            }
            all.extend(part);
        }
    }

    fn len(&self) -> u64 {
        self.0.len()
    }
}
