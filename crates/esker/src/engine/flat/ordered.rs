//! The ordered index of a store: what has a value in one tree, and what was deleted in another, so that scans do not go over keys
//! that are not there: as behind the head of a queue (FlatStore §4.2).
//!
//! # Invariants
//! - O1: a key is in one of the trees. In that of the living it may stand with a tombstone too: one that an open read, or the
//!   cleaner made of what had expired. The first scan that meets it buries it.
//! - O2: between the trees keys go under their locks alone, so that who holds one finds the key in one tree or in none. A tombstone that
//!   is buried goes only while no cleaner works, which looks for it by its word.
//! - O3: a tombstone that is buried is in both trees for a moment, never in none, and walks look at the living first: a checkpoint, which
//!   holds no lock, would lack it, and it may be older than the tails of the logs.
//!
//! # Concurrency
//! As [`KeyIndex`] says. Who holds no lock may miss a key that is being deleted, or written where it was deleted: a checkpoint finds what is
//! new of it behind the tails.

use super::index::{KeyIndex, Part, Same};
use super::layout::kind_of;
use crate::engine::Cursor;
use esker_base::Result;
use esker_index::{Masstree, Near, Word};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys of a part of a walk.
const PART: usize = 1000;
/// Levels of the tree that are rarely in the processor's caches: of ten million keys, those above have a few thousand nodes.
const LEVELS_FAR: u64 = 2;

/// Looks at the trees.
#[cfg(test)]
type Look = Box<dyn FnMut(&Ordered)>;

#[cfg(test)]
thread_local! {
    /// In the midst of each burial of this thread.
    static BURYING: std::cell::RefCell<Option<Look>> = const { std::cell::RefCell::new(None) };
}

/// Both trees.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    living: Masstree,
    graves: Masstree,
    /// Keys that ever went to the graves, so that who never deletes does not look there.
    buried: AtomicU64,
}

impl Ordered {
    #[inline]
    fn has_graves(&self) -> bool {
        // What concerns a key was stored under its lock.
        self.buried.load(Ordering::Relaxed) > 0
    }

    #[inline]
    fn grave(&self, key: &[u8]) -> Option<Word> {
        if self.has_graves() { self.graves.get(key) } else { None }
    }

    fn add_grave(&self, key: &[u8], word: Word) {
        self.buried.fetch_add(1, Ordering::Relaxed);
        let before = self.graves.insert(key, word);
        debug_assert_eq!(before, None, "O1");
    }
}

fn is_tombstone(word: Word) -> bool {
    kind_of(word).is_tombstone()
}

/// Two runs of keys in order as one, up to where both are complete. Of a key in both, the word of the second, which was read later.
fn merged(first: Vec<(Vec<u8>, Word)>, second: Vec<(Vec<u8>, Word)>) -> Vec<(Vec<u8>, Word)> {
    if second.is_empty() {
        return first;
    }
    let cut = |run: &[(Vec<u8>, Word)]| match run.last() {
        Some((key, _)) if run.len() >= PART => Some(key.clone()),
        _ => None,
    };
    let (cut_first, cut_second) = (cut(&first), cut(&second));
    let end = match (cut_first, cut_second) {
        (Some(first), Some(second)) => Some(first.min(second)),
        (first, second) => first.or(second),
    };
    let is_within = |key: &[u8]| end.as_deref().is_none_or(|end| key <= end);
    let mut merged = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    loop {
        let order = match (first.peek(), second.peek()) {
            (Some((left, _)), Some((right, _))) => left.cmp(right),
            (Some(_), None) => Less,
            (None, Some(_)) => Greater,
            (None, None) => return merged,
        };
        if order == Equal {
            first.next();
        }
        let next = if order == Less { first.next() } else { second.next() };
        merged.extend(next.filter(|(key, _)| is_within(key)));
    }
}

impl KeyIndex for Ordered {
    #[inline]
    fn find(&self, _hash: u64, key: &[u8], _same: Same<'_>) -> Result<Option<Word>> {
        Ok(self.living.get(key).or_else(|| self.grave(key)))
    }

    #[inline]
    fn is_exact(&self, _key: &[u8]) -> bool {
        true
    }

    fn holds(&self, _hash: u64, key: &[u8], word: Word) -> bool {
        self.living.get(key) == Some(word) || is_tombstone(word) && self.grave(key) == Some(word)
    }

    fn insert(&self, _hash: u64, key: &[u8], word: Word) {
        match is_tombstone(word) {
            true => self.add_grave(key, word),
            false => drop(self.living.insert(key, word)),
        }
    }

    fn replace(&self, _hash: u64, key: &[u8], old: Word, new: Word) -> bool {
        let in_grave = || is_tombstone(old) && self.graves.replace(key, old, new);
        self.living.replace(key, old, new) || in_grave()
    }

    fn supersede(&self, hash: u64, key: &[u8], old: Word, new: Word) -> bool {
        match (is_tombstone(old), is_tombstone(new)) {
            (false, true) => {
                let is_there = self.living.remove(key, old);
                if is_there {
                    self.add_grave(key, new);
                }
                is_there
            }
            (true, false) => {
                let is_grave = !self.living.replace(key, old, new);
                let is_there = !is_grave || self.graves.remove(key, old);
                if is_grave && is_there {
                    self.living.insert(key, new);
                }
                is_there
            }
            _ => self.replace(hash, key, old, new),
        }
    }

    fn remove(&self, _hash: u64, key: &[u8], old: Word) -> bool {
        self.living.remove(key, old) || is_tombstone(old) && self.graves.remove(key, old)
    }

    fn bury(&self, key: &[u8], word: Word) {
        if self.living.get(key) == Some(word) {
            // In this order (O3).
            self.add_grave(key, word);
            #[cfg(test)]
            BURYING.with_borrow_mut(|burying| burying.iter_mut().for_each(|look| look(self)));
            self.living.remove(key, word);
        }
    }

    fn prefetch(&self, keys: &[(u64, &[u8])]) {
        // What a descent reads is known only as it goes.
        let keys: Vec<&[u8]> = keys.iter().map(|(_, key)| *key).collect();
        self.living.lookup_many(&keys, |_, _| ());
    }

    fn guess(&self, _hash: u64, key: &[u8]) -> Option<Word> {
        self.living.get(key)
    }

    fn prefetch_one(&self, _hash: u64) {}

    #[inline]
    fn prefetch_step(&self, _hash: u64, key: &[u8], step: u64) -> bool {
        let level = LEVELS_FAR.saturating_sub(1 + step);
        self.living.prefetch(key, level);
        level > 0
    }

    #[inline]
    fn near(&self, key: &[u8]) -> Option<Near<'_>> {
        self.grave(key).is_none().then(|| self.living.near(key))
    }

    fn walk(&self, cursor: &Cursor) -> Option<(Part, Cursor)> {
        let after = match cursor {
            Cursor::Key(key) => Some(&key[..]),
            Cursor::Start | Cursor::Hash(_) => None,
        };
        let living = self.living.walk(after, PART);
        let entries = merged(living, self.graves.walk(after, PART));
        let last = entries.last()?.0.clone();
        Some((Part::Keys(entries), Cursor::Key(last)))
    }

    fn ordered(&self) -> Option<&Masstree> {
        Some(&self.living)
    }

    fn expect(&self, _hashes: u64) {}

    fn load_hashes(&self, _entries: &[(u64, Word)]) {}

    fn load_keys(&self, entries: &[(&[u8], Word)]) {
        self.living.insert_many(entries);
    }

    fn len(&self) -> u64 {
        self.living.len() + self.graves.len()
    }

    fn capacity(&self) -> u64 {
        self.len()
    }

    fn memory_bytes(&self) -> u64 {
        (self.living.memory_bytes() + self.graves.memory_bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;
    use std::collections::BTreeMap;

    fn word(kind: super::super::layout::Kind, number: u64) -> Word {
        let offset = (1 + number) * 4096;
        super::super::layout::Place { offset, kind, key_of_8: false, ordinal: 0, lines: 0 }.word()
    }

    /// Both trees are walked as one, whatever is in which.
    #[test]
    fn a_walk_over_both_trees_meets_each_key_once_and_in_order() {
        use super::super::layout::Kind;
        for share in [0, 1, 50, 99, 100] {
            let mut rng = Rng::from_seed(share);
            let (index, mut model) = (Ordered::default(), BTreeMap::new());
            for number in 0..20_000 {
                let key = rng.below(30_000).to_be_bytes().to_vec();
                let kind = if rng.below(100) < share { Kind::Tombstone } else { Kind::Value };
                let new = word(kind, number);
                match model.insert(key.clone(), new) {
                    None => index.insert(0, &key, new),
                    Some(old) => {
                        assert!(index.supersede(0, &key, old, new));
                        assert!(!index.supersede(0, &key, old, new), "that is gone");
                    }
                }
                if number % 7 == 0
                    && let Some(held) = model.remove(&key)
                {
                    assert!(index.remove(0, &key, held));
                    assert!(!index.holds(0, &key, held));
                }
            }
            let (mut cursor, mut walked) = (Cursor::Start, Vec::new());
            while let Some((Part::Keys(entries), next)) = index.walk(&cursor) {
                walked.extend(entries);
                cursor = next;
            }
            assert!(walked.iter().map(|(key, word)| (key, word)).eq(&model), "{share}");
            assert_eq!(index.len(), model.len() as u64);
            for (key, word) in &model {
                assert_eq!(index.find(0, key, &mut |_| Ok(None)).unwrap(), Some(*word));
                assert!(index.holds(0, key, *word));
                assert_eq!(index.near(key).is_none(), is_tombstone(*word));
                assert_eq!(index.living.get(key).is_some(), !is_tombstone(*word), "O1");
            }
        }
    }

    /// In the midst of it, too: a checkpoint holds no lock, and a tombstone may be older than what it reads of the logs later.
    #[test]
    fn no_walk_misses_a_tombstone_that_is_buried() {
        use super::super::layout::Kind;
        const KEYS: u64 = 2500;
        let index = Ordered::default();
        let entries: Vec<_> =
            (0..KEYS).map(|key| (key.to_be_bytes(), word(Kind::Tombstone, key))).collect();
        let borrowed: Vec<(&[u8], Word)> =
            entries.iter().map(|(key, word)| (&key[..], *word)).collect();
        index.load_keys(&borrowed);
        BURYING.set(Some(Box::new(|index| {
            let (mut cursor, mut walked) = (Cursor::Start, 0);
            while let Some((Part::Keys(entries), next)) = index.walk(&cursor) {
                walked += entries.len() as u64;
                cursor = next;
            }
            assert_eq!(walked, KEYS);
        })));
        for (key, word) in borrowed.iter().step_by(50) {
            index.bury(key, *word);
            assert!(index.living.get(key).is_none() && index.holds(0, key, *word), "O1");
        }
        BURYING.set(None);
        assert_eq!(index.graves.len(), KEYS / 50);
        // What is another's by now stays.
        let (key, old) = borrowed[1];
        assert!(index.supersede(0, key, old, word(Kind::Value, KEYS)));
        index.bury(key, old);
        assert!(index.grave(key).is_none());
    }
}
