//! MemTable: what was written and is not in the space yet, in order, in memory (FlexSpace §5.3).
//!
//! A key has one place, whatever the number of its writes: a write replaces the one before, which stays only if a
//! snapshot needs it. So a key that is written often takes room once, and goes to the space once. Where the paper has a
//! skip list there is a Masstree here: it looks at a few lines of memory where a skip list goes to a node, and from
//! there to a key, for each of its comparisons.
//!
//! # Invariants
//! - M1: a table has exactly the changes of one generation of the log.
//! - M2: of one key the newest version is first.
//! - M3: changes of a batch count for readers from one moment on: when its gate opens. Nobody asks for the table's
//!   content as a whole before.
//!
//! # Concurrency
//! Any number of readers and writers; writers of one key take turns outside. A place has a lock of its own, held for a copy.

use super::expired::expiry_of;
use super::kept::Kept;
use crate::store::Direction;
use esker_format::flex_db::{Content, Key};
use esker_index::{Masstree, Word, prefetch};
use parking_lot::{Mutex, RwLock};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Opens for all changes of a batch at once; without one, a change counts when it is there.
pub(super) type BatchGate = Option<Arc<AtomicBool>>;

/// What a key has since a version.
#[derive(Debug)]
pub(super) struct Item {
    version: u64,
    kept: Kept,
    gate: BatchGate,
}

impl Item {
    fn counts(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.load(Ordering::Acquire))
    }
}

/// All that is known of a key. Nearly always that is one thing, which takes no more than it has to.
#[derive(Debug)]
pub(super) enum Versions {
    One(u64, Kept),
    /// Nothing yet, or several, or what waits for a gate: the newest first.
    #[expect(clippy::box_collection, reason = "so that a place is as small as one version")]
    Several(Option<Box<Vec<Item>>>),
}

impl Default for Versions {
    fn default() -> Self {
        Versions::Several(None)
    }
}

impl Versions {
    fn parts(&self) -> (Option<(u64, &Kept)>, &[Item]) {
        match self {
            Versions::One(version, kept) => (Some((*version, kept)), &[]),
            Versions::Several(items) => (None, items.as_ref().map_or(&[], |items| items)),
        }
    }

    /// Starts to fetch what is usually there.
    #[inline]
    fn prefetch(&self) {
        if let Versions::One(_, kept) = self {
            kept.prefetch();
        }
    }

    /// As of version `at`.
    pub(super) fn at(&self, at: u64) -> Option<(u64, Content<'_>)> {
        let (one, several) = self.parts();
        match one {
            Some((version, kept)) => (version <= at).then(|| (version, kept.content())),
            None => {
                let found = several.iter().find(|item| item.version <= at && item.counts())?;
                Some((found.version, found.kept.content()))
            }
        }
    }

    /// The newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Content<'_>)> {
        let (one, several) = self.parts();
        let several = several.iter().map(|item| (item.version, &item.kept));
        one.into_iter().chain(several).map(|(version, kept)| (version, kept.content()))
    }

    /// The only one, if there is no other.
    pub(super) fn only(&self) -> Option<(u64, Content<'_>)> {
        let mut all = self.iter();
        all.next().filter(|_| all.next().is_none())
    }

    /// How many there are beside one.
    fn others(&self) -> u64 {
        self.parts().1.len().saturating_sub(1) as u64
    }

    /// Memory beside the place itself.
    fn size_bytes(&self) -> u64 {
        let (one, several) = self.parts();
        let several = several.iter().map(|item| item.kept.size_bytes() + size_of::<Item>() as u64);
        one.map_or(0, |(_, kept)| kept.size_bytes()) + several.sum::<u64>()
    }

    /// Adds what a key has from a version on; what it had before that counts stays if `keep` says so of its version and the next newer
    /// one. How many bytes more and less.
    fn push(
        &mut self,
        version: u64,
        content: &Content<'_>,
        gate: BatchGate,
        keep: impl Fn(u64, u64) -> bool,
    ) -> (u64, u64) {
        let before = self.size_bytes();
        match self {
            // The usual cases.
            Versions::Several(None) if gate.is_none() => {
                *self = Versions::One(version, Kept::new(content));
            }
            Versions::One(last, kept)
                if gate.is_none() && *last < version && !keep(*last, version) =>
            {
                *last = version;
                kept.set(content);
            }
            _ => {
                let mut all = match std::mem::take(self) {
                    Versions::One(version, kept) => vec![Item { version, kept, gate: None }],
                    Versions::Several(all) => all.map_or_else(Vec::new, |all| *all),
                };
                let at = all.partition_point(|item| item.version > version);
                all.insert(at, Item { version, kept: Kept::new(content), gate });
                // Until a batch counts, what was there before does; what is behind that, only for snapshots.
                let mut newer = None;
                all.retain(|item| {
                    let stays = newer.is_none_or(|newer| keep(item.version, newer));
                    if item.counts() {
                        newer = Some(item.version);
                    }
                    stays
                });
                *self = match all.pop_if(|item| item.counts()) {
                    Some(only) if all.is_empty() => Versions::One(only.version, only.kept),
                    last => {
                        all.extend(last);
                        Versions::Several(Some(Box::new(all)))
                    }
                };
            }
        }
        (self.size_bytes(), before)
    }
}

/// A range without values since a version.
#[derive(Clone, Debug)]
pub(super) struct RangeDelete {
    pub(super) from: Vec<u8>,
    pub(super) to: Option<Vec<u8>>,
    pub(super) version: u64,
}

impl RangeDelete {
    pub(super) fn covers<'k>(&self, key: impl Into<Key<'k>>) -> bool {
        let key = key.into();
        key >= self.from[..] && self.to.as_ref().is_none_or(|to| key < to[..])
    }
}

/// A place in the table.
pub(super) type Slot = Mutex<Versions>;

const _: () = assert!(size_of::<Slot>() == 32);

/// Places that are made at once.
const CHUNK: u64 = 64;
/// The place in a chunk that is taken when the next chunk is made.
const CHUNK_AHEAD: usize = 32;
/// Rows of chunks, each with twice as many as the one before.
const ROWS: usize = 40;

type Chunk = OnceLock<Box<[Slot]>>;

/// Places, which stay where they are. Their number is the word of their key in the tree.
#[derive(Debug)]
struct Slots {
    rows: [OnceLock<Box<[Chunk]>>; ROWS],
    next: AtomicU64,
}

impl Slots {
    fn new() -> Self {
        Slots { rows: [const { OnceLock::new() }; ROWS], next: AtomicU64::new(CHUNK) }
    }

    /// Row, chunk and place of a number, which is at least [`CHUNK`].
    #[inline]
    fn place(number: u64) -> (usize, usize, usize) {
        let chunk = number / CHUNK;
        let row = chunk.checked_ilog2().unwrap_or(0);
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        (row as usize, index(chunk - (1 << row)), index(number % CHUNK))
    }

    /// A new place.
    fn take(&self) -> Option<(Word, &Slot)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (slots, place) = self.make(number)?;
        if place == CHUNK_AHEAD {
            // By the time the next chunk is needed it is there, and nobody waits for who makes it.
            self.make(number + CHUNK);
        }
        Some((Word::new(number)?, slots.get(place)?))
    }

    /// The chunk of a number, made if it is not there, and the place in it.
    fn make(&self, number: u64) -> Option<(&[Slot], usize)> {
        fn several<T: Default>(count: usize) -> Box<[T]> {
            std::iter::repeat_with(T::default).take(count).collect()
        }
        let (row, chunk, place) = Slots::place(number);
        let row = self.rows.get(row)?.get_or_init(|| several(1 << row));
        let slots = row.get(chunk)?.get_or_init(|| several(usize::try_from(CHUNK).unwrap_or(0)));
        Some((slots, place))
    }

    #[inline]
    fn get(&self, word: Word) -> Option<&Slot> {
        let (row, chunk, place) = Slots::place(word.get());
        self.rows.get(row)?.get()?.get(chunk)?.get()?.get(place)
    }
}

/// Memory of a key beside its bytes and those of its value: its place, its share of the tree, and an allocation.
const KEY_OVERHEAD_BYTES: u64 = 72;
/// Memory of the tree that does not count: what it takes for few keys.
const TREE_LEAST_BYTES: u64 = 1 << 20;
/// Bits of the filter for each byte of the table.
const FILTER_SHARE: u64 = 16;

/// Deleted keys that scans go past before a table is to go to the space, where what is deleted goes; and more for each key of the table.
/// About as long as they have taken then, that takes: so nobody loses more than twice what the best choice would have cost.
const PASSED: u64 = 1 << 16;
const PASSED_EACH: u64 = 64;

/// A table. See the module's text.
#[derive(Debug)]
pub(super) struct MemTable {
    /// Of the log that has its changes.
    pub(super) generation: u64,
    /// No version in it is lower.
    pub(super) first_version: u64,
    /// Bytes that it may take before the next one begins.
    pub(super) size_bytes: u64,
    /// Part of it may be in the space already: it comes from a log that was found.
    pub(super) replayed: bool,
    /// It had no log, and has one now.
    pub(super) is_logged: AtomicBool,
    tree: Masstree,
    slots: Slots,
    filter: Box<[AtomicU64]>,
    bytes: AtomicU64,
    /// Bytes of changes that are in no log, and on their way into it.
    expected: AtomicU64,
    /// Pairs of it that were brought to the space.
    brought: AtomicU64,
    ranges: RwLock<Vec<RangeDelete>>,
    has_ranges: AtomicBool,
    /// Before this time, in Unix seconds, nothing in it expires.
    expires_first: AtomicU64,
    /// How often a key was deleted.
    deletes: AtomicU64,
    /// Keys without a value that scans went past.
    passed: AtomicU64,
    /// Bytes of large values that expire, and were named by it at some time.
    expiring_large: AtomicU64,
}

impl MemTable {
    /// An empty table that is to hold about `size_bytes`.
    pub(super) fn new(
        generation: u64,
        first_version: u64,
        size_bytes: u64,
        replayed: bool,
    ) -> Self {
        let words = (size_bytes / FILTER_SHARE / 64).clamp(16, 1 << 20).next_power_of_two();
        MemTable {
            generation,
            first_version,
            size_bytes,
            replayed,
            is_logged: AtomicBool::new(false),
            tree: Masstree::new(),
            slots: Slots::new(),
            filter: (0..words).map(|_| AtomicU64::new(0)).collect(),
            bytes: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            brought: AtomicU64::new(0),
            ranges: RwLock::default(),
            has_ranges: AtomicBool::new(false),
            expires_first: AtomicU64::new(u64::MAX),
            deletes: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            expiring_large: AtomicU64::new(0),
        }
    }

    /// About the memory that it takes, and no less than a late log of it has of changes.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Changes of so many bytes are on their way into it.
    pub(super) fn expect(&self, bytes: u64) {
        self.expected.fetch_add(bytes, Ordering::Relaxed);
    }

    /// They are in it now, or never will be.
    pub(super) fn expect_less(&self, bytes: u64) {
        self.expected.fetch_sub(bytes, Ordering::Release);
    }

    /// As [`MemTable::bytes`], with what is on its way.
    pub(super) fn bytes_expected(&self) -> u64 {
        // First that: what arrives meanwhile counts twice, and not never.
        let expected = self.expected.load(Ordering::Acquire);
        expected + self.bytes()
    }

    /// Whether it takes `times` the memory that it is to have. The tree has nodes of its own for what few keys have in common, which may be
    /// much more than the keys.
    #[inline]
    pub(super) fn has_grown(&self, times: u64) -> bool {
        let (most, tree) = (times * self.size_bytes, self.tree.memory_bytes() as u64);
        self.bytes() >= most || tree >= most + TREE_LEAST_BYTES
    }

    /// Bytes that may have expired by now: all of it if something has, and large values.
    pub(super) fn expired_bytes(&self, now: u64) -> u64 {
        match self.expires_first.load(Ordering::Relaxed) <= now {
            true => self.bytes().saturating_add(self.expiring_large.load(Ordering::Relaxed)),
            false => 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.has_no_keys() && !self.has_ranges()
    }

    /// Whether there may be ranges, but no keys.
    pub(super) fn has_no_keys(&self) -> bool {
        self.tree.is_empty()
    }

    /// Keys in it.
    pub(super) fn len(&self) -> u64 {
        self.tree.len()
    }

    /// So many pairs more were brought to the space.
    pub(super) fn note_brought(&self, pairs: u64) {
        self.brought.fetch_add(pairs, Ordering::Relaxed);
    }

    /// Whether pairs of it may be in the space already: a log that was found, or an attempt that did not end, may have brought some.
    pub(super) fn may_be_there(&self) -> bool {
        self.replayed || self.brought() > 0
    }

    /// Pairs that were brought to the space, in all attempts.
    pub(super) fn brought(&self) -> u64 {
        self.brought.load(Ordering::Relaxed)
    }

    /// Two words and bits of the filter.
    fn bits(&self, hash: u64) -> [(Option<&AtomicU64>, u64); 2] {
        let word = |hash: u64| {
            let index = usize::try_from(hash >> 6).unwrap_or(0) & (self.filter.len() - 1);
            (self.filter.get(index), 1 << (hash & 63))
        };
        [word(hash), word(hash.rotate_right(32))]
    }

    /// Whether a key with this hash may be here.
    #[inline]
    fn may_have(&self, hash: u64) -> bool {
        let has = |(word, bit): (Option<&AtomicU64>, u64)| {
            word.is_none_or(|word| word.load(Ordering::Acquire) & bit != 0)
        };
        let [first, second] = self.bits(hash);
        has(first) && has(second)
    }

    /// Adds what a key has from a version on. What it had before stays if `keep` says that its version is needed, although there is
    /// this newer one.
    pub(super) fn insert(
        &self,
        (key, hash): (&[u8], u64),
        (version, content): (u64, Content<'_>),
        gate: BatchGate,
        keep: impl Fn(u64, u64) -> bool,
    ) {
        if let Some(at) = expiry_of(&content) {
            if at < self.expires_first.load(Ordering::Relaxed) {
                self.expires_first.fetch_min(at, Ordering::Relaxed);
            }
            if let Content::Large(.., length) = content {
                self.expiring_large.fetch_add(length, Ordering::Relaxed);
            }
        }
        if content == Content::Delete {
            self.deletes.fetch_add(1, Ordering::Relaxed);
        }
        let known = self.may_have(hash);
        if !known {
            for (word, bit) in self.bits(hash) {
                if let Some(word) = word
                    && word.load(Ordering::Relaxed) & bit == 0
                {
                    word.fetch_or(bit, Ordering::Release);
                }
            }
        }
        // Writers of one key take turns: who does not find it adds it.
        let found = if known { self.tree.get(key) } else { None };
        // In a late log each version has the key.
        let key_bytes = key.len() as u64;
        let push = |versions: &mut Versions| {
            let others = versions.others();
            let (more, less) = versions.push(version, &content, gate, keep);
            (more + versions.others() * key_bytes, less + others * key_bytes)
        };
        let (more, less) = match found.and_then(|word| self.slots.get(word)) {
            Some(slot) => push(&mut slot.lock()),
            None => {
                let Some((word, slot)) = self.slots.take() else { return };
                // Filled before anybody finds it.
                let (more, _) = push(&mut slot.lock());
                if let Some(held) =
                    self.tree.insert(key, word).and_then(|word| self.slots.get(word))
                {
                    debug_assert!(false, "two writers of one key at a time");
                    held.lock().push(version, &content, None, |_, _| true);
                }
                (more + KEY_OVERHEAD_BYTES + key_bytes, 0)
            }
        };
        if more >= less {
            self.bytes.fetch_add(more - less, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(less - more, Ordering::Relaxed);
        }
    }

    /// What `look` makes of what the key has as of version `at`, if the table knows it.
    #[inline]
    pub(super) fn get<T>(
        &self,
        key: &[u8],
        hash: u64,
        at: u64,
        look: impl FnOnce(u64, Content<'_>) -> T,
    ) -> Option<T> {
        if !self.may_have(hash) {
            return None;
        }
        let slot = self.slots.get(self.tree.get(key)?)?;
        let versions = slot.lock();
        versions.at(at).map(|(version, content)| look(version, content))
    }

    /// Whether the table knows the key, whatever of it.
    pub(super) fn has(&self, key: &[u8], hash: u64) -> bool {
        self.may_have(hash) && self.tree.get(key).is_some()
    }

    /// Adds a range that has no values from a version on.
    pub(super) fn delete_range(&self, range: RangeDelete) {
        let ends = range.from.len() + range.to.as_ref().map_or(0, Vec::len);
        self.bytes.fetch_add(128 + ends as u64, Ordering::Relaxed);
        self.ranges.write().push(range);
        self.has_ranges.store(true, Ordering::Release);
    }

    /// How often a key was deleted.
    pub(super) fn deletes(&self) -> u64 {
        self.deletes.load(Ordering::Relaxed)
    }

    /// A scan went past so many deleted keys; whether scans have by now gone past more than it costs to bring the table to the space: who
    /// takes items off the front of a queue goes past all that were taken before, each time.
    pub(super) fn is_littered(&self, passed: u64) -> bool {
        let all = self.passed.fetch_add(passed, Ordering::Relaxed).saturating_add(passed);
        all >= PASSED && all >= PASSED.saturating_add(PASSED_EACH * self.len())
    }

    /// Whether a range was deleted.
    #[inline]
    pub(super) fn has_ranges(&self) -> bool {
        self.has_ranges.load(Ordering::Acquire)
    }

    /// How many ranges were deleted.
    pub(super) fn range_count(&self) -> usize {
        if self.has_ranges() { self.ranges.read().len() } else { 0 }
    }

    /// Version of the last deletion of a range that covers `key`, as of version `at`; 0 if none does.
    #[inline]
    pub(super) fn covered(&self, key: &[u8], at: u64) -> u64 {
        if !self.has_ranges() {
            return 0;
        }
        let ranges = self.ranges.read();
        let covering = ranges.iter().filter(|range| range.version <= at && range.covers(key));
        covering.map(|range| range.version).max().unwrap_or(0)
    }

    /// Deletions of ranges, in their order.
    pub(super) fn ranges(&self) -> Vec<RangeDelete> {
        let mut ranges = self.ranges.read().clone();
        ranges.sort_by_key(|range| range.version);
        ranges
    }

    /// Gives keys and their places to `visit`, in order from `from` on in a direction, until it breaks; about `expected`.
    pub(super) fn visit(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        expected: usize,
        mut visit: impl FnMut(&[u8], Word) -> ControlFlow<()>,
    ) {
        match direction {
            Direction::Forward => self.tree.scan(from, expected, &mut visit),
            Direction::Reverse => self.tree.scan_back(from, expected, &mut visit),
        }
    }

    /// Starts to fetch a place that [`MemTable::visit`] gave. They were filled in the order of time: in that of keys each is waited
    /// for, and then what it holds.
    #[inline]
    pub(super) fn prefetch_slot(&self, word: Word) {
        if let Some(slot) = self.slots.get(word) {
            prefetch::value(slot);
        }
    }

    /// Starts to fetch what such a place holds.
    #[inline]
    pub(super) fn prefetch_value(&self, word: Word) {
        if let Some(slot) = self.slots.get(word) {
            slot.lock().prefetch();
        }
    }

    /// A place that [`MemTable::visit`] gave.
    pub(super) fn slot(&self, word: Word) -> Option<&Slot> {
        self.slots.get(word)
    }
}

#[cfg(test)]
mod tests;
