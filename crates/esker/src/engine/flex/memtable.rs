//! MemTable: what was written and is not in the space yet, in order, in memory (FlexSpace §5.3).
//!
//! A key has one place in a concurrent skip list, whatever the number of its writes: a write replaces the one before,
//! which stays only if a snapshot needs it. So a key that is written often takes room once, and goes to the space once.
//!
//! # Invariants
//! - M1: a table has exactly the changes of one generation of the log.
//! - M2: of one key the newest version is first.
//!
//! # Concurrency
//! Any number of readers and writers; writers of one key take turns outside. A place has a lock of its own, held for a copy.

use crossbeam_skiplist::SkipMap;
use crossbeam_skiplist::map::Entry;
use esker_format::flex_db::Extra;
use parking_lot::{Mutex, RwLock};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a key has.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A value.
    Put(Extra, Box<[u8]>),
    /// Nothing.
    Delete,
    /// A value that stands by itself: number and length.
    Large(Extra, u64, u64),
}

/// What a key has since a version.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) version: u64,
    pub(super) what: What,
}

impl Item {
    fn size_bytes(&self) -> u64 {
        match &self.what {
            What::Put(_, value) => value.len() as u64,
            What::Delete | What::Large(..) => 0,
        }
    }
}

/// All that is known of a key, the newest first.
#[derive(Debug, Default)]
pub(super) struct Versions {
    newest: Option<Item>,
    older: Vec<Item>,
}

impl Versions {
    /// As of version `at`.
    pub(super) fn at(&self, at: u64) -> Option<&Item> {
        self.iter().find(|item| item.version <= at)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.newest.iter().chain(&self.older)
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
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.to.as_ref().is_none_or(|to| *key < **to)
    }
}

/// A place in the table.
pub(super) type Slot = Mutex<Versions>;
/// A key and its place.
pub(super) type TableEntry<'a> = Entry<'a, Box<[u8]>, Slot>;

/// Memory of a key beside its bytes and those of its value: the node of the skip list and two allocations.
const KEY_OVERHEAD_BYTES: u64 = 160;
/// Bits of the filter for each byte of the table.
const FILTER_SHARE: u64 = 16;

/// A table. See the module's text.
#[derive(Debug)]
pub(super) struct MemTable {
    /// Of the log that has its changes.
    pub(super) generation: u64,
    /// No version in it is lower.
    pub(super) first_version: u64,
    /// Part of it may be in the space already: it comes from a log that was found.
    pub(super) replayed: bool,
    map: SkipMap<Box<[u8]>, Slot>,
    filter: Box<[AtomicU64]>,
    bytes: AtomicU64,
    ranges: RwLock<Vec<RangeDelete>>,
    has_ranges: AtomicBool,
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
            replayed,
            map: SkipMap::new(),
            filter: (0..words).map(|_| AtomicU64::new(0)).collect(),
            bytes: AtomicU64::new(0),
            ranges: RwLock::default(),
            has_ranges: AtomicBool::new(false),
        }
    }

    /// About the memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty() && !self.has_ranges()
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
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
    pub(super) fn may_have(&self, hash: u64) -> bool {
        self.bits(hash)
            .iter()
            .all(|(word, bit)| word.is_none_or(|word| word.load(Ordering::Acquire) & bit != 0))
    }

    /// Adds a change; the one before stays if `keep` says so of its version.
    pub(super) fn insert(&self, key: &[u8], hash: u64, item: Item, keep: impl Fn(u64) -> bool) {
        for (word, bit) in self.bits(hash) {
            if let Some(word) = word
                && word.load(Ordering::Relaxed) & bit == 0
            {
                word.fetch_or(bit, Ordering::Release);
            }
        }
        let mut more = item.size_bytes();
        let entry = match self.map.get(key) {
            Some(entry) => entry,
            None => {
                more += KEY_OVERHEAD_BYTES + key.len() as u64;
                self.map.get_or_insert_with(key.into(), Slot::default)
            }
        };
        let mut versions = entry.value().lock();
        let mut less = 0;
        if versions.newest.as_ref().is_some_and(|newest| newest.version > item.version) {
            // Late: its order among the older ones.
            let at = versions.older.partition_point(|older| older.version > item.version);
            versions.older.insert(at, item);
        } else if let Some(before) = versions.newest.replace(item) {
            if keep(before.version) {
                more += size_of::<Item>() as u64;
                versions.older.insert(0, before);
            } else {
                less = before.size_bytes();
            }
        }
        drop(versions);
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
        look: impl FnOnce(&Item) -> T,
    ) -> Option<T> {
        if !self.may_have(hash) {
            return None;
        }
        let entry = self.map.get(key)?;
        let versions = entry.value().lock();
        versions.at(at).map(look)
    }

    /// Adds a range that has no values from a version on.
    pub(super) fn delete_range(&self, range: RangeDelete) {
        self.bytes.fetch_add(128 + range.from.len() as u64, Ordering::Relaxed);
        self.ranges.write().push(range);
        self.has_ranges.store(true, Ordering::Release);
    }

    #[inline]
    fn has_ranges(&self) -> bool {
        self.has_ranges.load(Ordering::Acquire)
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

    /// All keys in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = TableEntry<'_>> {
        self.map.iter()
    }

    /// The first key of a range.
    pub(super) fn first(&self, from: Bound<&[u8]>) -> Option<TableEntry<'_>> {
        self.map.lower_bound(from)
    }

    /// The last key of a range.
    pub(super) fn last(&self, to: Bound<&[u8]>) -> Option<TableEntry<'_>> {
        self.map.upper_bound(to)
    }
}
