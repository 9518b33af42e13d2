//! A place in a table: its keys in order, in either direction, some of them at a time.
//!
//! # Concurrency
//! The table goes on meanwhile: a key that is there during all of the walk is met, a new one may be.

use super::memtable::{MemTable, Slot};
use crate::store::Direction;
use esker_index::Word;
use std::ops::{Bound, ControlFlow};

/// Keys that are fetched first, as most scans end before the table has one; then more and more, up to the most.
const FETCHED_FIRST: usize = 2;
const FETCHED_MOST: usize = 256;

/// So many keys ahead a place begins to come, and what it holds.
const SLOTS_AHEAD: usize = 24;
const VALUES_AHEAD: usize = 12;

/// See the module's text.
pub(super) struct TableCursor<'t> {
    table: &'t MemTable,
    direction: Direction,
    /// Keys one behind the other, and where each ends, and its place.
    keys: Vec<u8>,
    found: Vec<(usize, Word)>,
    /// The one that is next, and where it begins.
    at: usize,
    start: usize,
    fetch: usize,
    ended: bool,
}

impl<'t> TableCursor<'t> {
    /// At the first key within `from`, in a direction.
    pub(super) fn new(table: &'t MemTable, from: Bound<&[u8]>, direction: Direction) -> Self {
        let mut cursor = TableCursor {
            table,
            direction,
            keys: Vec::new(),
            found: Vec::new(),
            at: 0,
            start: 0,
            fetch: FETCHED_FIRST,
            ended: table.has_no_keys(),
        };
        cursor.fetch(from);
        cursor
    }

    fn fetch(&mut self, from: Bound<&[u8]>) {
        if self.ended {
            return;
        }
        let (mut keys, mut found) = (Vec::new(), Vec::new());
        self.table.visit(from, self.direction, self.fetch, |key, word| {
            keys.extend_from_slice(key);
            found.push((keys.len(), word));
            if found.len() < self.fetch {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        self.ended = found.len() < self.fetch;
        let is_first = self.fetch == FETCHED_FIRST;
        self.fetch = (self.fetch * 4).min(FETCHED_MOST);
        (self.keys, self.found, self.at, self.start) = (keys, found, 0, 0);
        let words = || self.found.iter().map(|(_, word)| *word);
        words().take(SLOTS_AHEAD).for_each(|word| self.table.prefetch_slot(word));
        // What a place holds can only be asked for when it is there, which the first of them is not yet.
        if !is_first {
            words().take(VALUES_AHEAD).for_each(|word| self.table.prefetch_value(word));
        }
    }

    /// What is met soon begins to come, while the caller works on what is met now.
    #[inline]
    fn prefetch(&self) {
        if let Some((_, word)) = self.found.get(self.at + SLOTS_AHEAD - 1) {
            self.table.prefetch_slot(*word);
        }
        if let Some((_, word)) = self.found.get(self.at + VALUES_AHEAD - 1) {
            self.table.prefetch_value(*word);
        }
    }

    /// The key that is next.
    #[inline]
    pub(super) fn key(&self) -> Option<&[u8]> {
        let (end, _) = self.found.get(self.at)?;
        self.keys.get(self.start..*end)
    }

    /// The number of its place.
    pub(super) fn word(&self) -> Option<Word> {
        Some(self.found.get(self.at)?.1)
    }

    /// Its place.
    pub(super) fn slot(&self) -> Option<&'t Slot> {
        self.table.slot(self.word()?)
    }

    /// Goes to the next key.
    pub(super) fn next(&mut self) {
        let Some((end, _)) = self.found.get(self.at) else { return };
        if self.at + 1 == self.found.len() && !self.ended {
            let last = self.keys.get(self.start..*end).unwrap_or_default().to_vec();
            return self.fetch(Bound::Excluded(&last));
        }
        self.start = *end;
        self.at += 1;
        self.prefetch();
    }
}
