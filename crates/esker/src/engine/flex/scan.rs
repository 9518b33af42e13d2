//! Scans: tables and intervals merged in order of keys (FlexSpace §5.2).
//!
//! # Invariants
//! - N1: a key that has a value during all of the scan is met: tables are taken before intervals are read, and what leaves
//!   a table is in the space before.

use super::Flex;
use super::interval::Interval;
use super::memtable::{MemTable, TableEntry};
use super::read::{Loaded, found_of};
use crate::store::Direction;
use crate::value::Value;
use esker_base::Result;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// Pairs that an interval has about, for reading ahead.
const PAIRS_OF_AN_INTERVAL: usize = 8;
/// Most intervals that are read ahead.
const INTERVALS_AHEAD: usize = 15;

type Items = Vec<(Vec<u8>, Value)>;

/// Whether `key` is not behind the end of a range that is walked in `direction`.
fn is_inside(key: &[u8], end: Bound<&[u8]>, direction: Direction) -> bool {
    let (end, included) = match end {
        Bound::Unbounded => return true,
        Bound::Included(end) => (end, true),
        Bound::Excluded(end) => (end, false),
    };
    match (key.cmp(end), direction) {
        (Ordering::Equal, _) => included,
        (Ordering::Less, Direction::Forward) | (Ordering::Greater, Direction::Reverse) => true,
        _ => false,
    }
}

/// The pairs of an interval that count, in the direction of the scan, and where the scan is.
struct Cursor {
    interval: Arc<Interval>,
    visible: Vec<u32>,
    at: usize,
    direction: Direction,
}

impl Cursor {
    fn new(interval: Arc<Interval>, version: u64, direction: Direction) -> Self {
        let visible = interval.visible(version);
        Cursor { interval, visible, at: 0, direction }
    }

    fn pair(&self) -> Option<esker_format::flex_db::Pair<'_>> {
        let index = match self.direction {
            Direction::Forward => self.at,
            Direction::Reverse => self.visible.len().checked_sub(self.at + 1)?,
        };
        self.visible.get(index).map(|index| self.interval.pair(*index as usize))
    }

    /// Goes to the first pair that is not before `start`.
    fn seek(&mut self, start: Bound<&[u8]>) {
        let back = match self.direction {
            Direction::Forward => Direction::Reverse,
            Direction::Reverse => Direction::Forward,
        };
        while self.pair().is_some_and(|pair| !is_inside(pair.key, start, back)) {
            self.at += 1;
        }
    }
}

impl Flex {
    /// Up to `limit` items of a range as of version `at`.
    pub(super) fn scan_at(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        at: u64,
    ) -> Result<Items> {
        let tables: Vec<Arc<MemTable>> = self.tables.read().all().cloned().collect();
        let (start, end) = match direction {
            Direction::Forward => (from, to),
            Direction::Reverse => (to, from),
        };
        let heads = tables.iter().map(|table| match direction {
            Direction::Forward => table.first(start),
            Direction::Reverse => table.last(start),
        });
        let mut heads: Vec<Option<TableEntry<'_>>> = heads.collect();
        let mut items = Items::new();
        let mut position: Option<Vec<u8>> = match start {
            Bound::Included(key) | Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => (direction == Direction::Forward).then(Vec::new),
        };
        // A bound that is included going down: the interval that holds the key itself.
        let mut before = direction == Direction::Reverse && !matches!(start, Bound::Included(_));
        // An interval that is met after the first one may have become larger meanwhile: what comes before `position` in
        // it was met already.
        let mut first = true;
        while items.len() < limit {
            let ahead = (limit - items.len()) / PAIRS_OF_AN_INTERVAL;
            let loaded = self.interval_for(position.as_deref(), before, direction, ahead)?;
            let mut cursor = Cursor::new(loaded.interval, at, direction);
            cursor.seek(match (&position, direction) {
                (Some(position), Direction::Forward) if !first => Bound::Included(position),
                (Some(position), Direction::Reverse) if !first => Bound::Excluded(position),
                _ => start,
            });
            first = false;
            let ended = self.merge_next(
                (&tables, &mut heads),
                &mut cursor,
                |key| match direction {
                    Direction::Forward => loaded.upper.as_deref().is_none_or(|upper| key < upper),
                    Direction::Reverse => key >= &*loaded.anchor,
                },
                (end, limit, at),
                &mut items,
            )?;
            if ended {
                break;
            }
            position = match direction {
                Direction::Forward => loaded.upper,
                Direction::Reverse => Some(loaded.anchor).filter(|anchor| !anchor.is_empty()),
            };
            before = direction == Direction::Reverse;
            if position.as_ref().is_none_or(|key| {
                direction == Direction::Forward && !is_inside(key, end, direction)
            }) {
                break;
            }
        }
        Ok(items)
    }

    fn interval_for(
        &self,
        key: Option<&[u8]>,
        before: bool,
        direction: Direction,
        ahead: usize,
    ) -> Result<Loaded> {
        let (entry, anchor, upper) = self.index.around(key, before);
        if let Some(interval) = entry.cached {
            interval.touch();
            return Ok(Loaded { interval, anchor, upper });
        }
        let more = if direction == Direction::Forward { ahead.min(INTERVALS_AHEAD) } else { 0 };
        self.load(key, before, more)
    }

    /// Adds what an interval and the tables have of the interval's keys. Whether the scan is at its end.
    fn merge_next(
        &self,
        (tables, heads): (&[Arc<MemTable>], &mut [Option<TableEntry<'_>>]),
        cursor: &mut Cursor,
        in_interval: impl Fn(&[u8]) -> bool,
        (end, limit, at): (Bound<&[u8]>, usize, u64),
        items: &mut Items,
    ) -> Result<bool> {
        let direction = cursor.direction;
        let comes_before = |a: &[u8], b: &[u8]| match direction {
            Direction::Forward => a < b,
            Direction::Reverse => a > b,
        };
        loop {
            let mut next: Option<&[u8]> = cursor.pair().map(|pair| pair.key);
            for head in heads.iter().flatten() {
                let key = &**head.key();
                if in_interval(key) && next.is_none_or(|next| comes_before(key, next)) {
                    next = Some(key);
                }
            }
            let Some(key) = next else { return Ok(false) };
            if !is_inside(key, end, direction) {
                return Ok(true);
            }
            let key = key.to_vec();
            let mut covered = 0;
            let mut found = None;
            for (table, head) in tables.iter().zip(heads.iter_mut()) {
                covered = covered.max(table.covered(&key, at));
                let Some(entry) = head.as_ref().filter(|head| **head.key() == *key) else {
                    continue;
                };
                if found.is_none() {
                    let versions = entry.value().lock();
                    found = versions.at(at).map(|item| {
                        let counts = item.version >= covered;
                        counts.then(|| found_of(item.version, item.content())).flatten()
                    });
                }
                *head = match direction {
                    Direction::Forward => entry.next(),
                    Direction::Reverse => entry.prev(),
                };
            }
            if let Some(pair) = cursor.pair().filter(|pair| pair.key == key) {
                if found.is_none() && pair.version >= covered {
                    found = Some(found_of(pair.version, pair.content));
                }
                cursor.at += 1;
            }
            if let Some(found) = found.flatten() {
                // A large value that moved is looked up anew.
                let value = match self.value_of(found)? {
                    Some(value) => Some(value),
                    None => self.get_at(&key, at)?,
                };
                if let Some(value) =
                    value.filter(|value| !self.is_expired(value.attributes().expires_at))
                {
                    items.push((key, value));
                    if items.len() >= limit {
                        return Ok(true);
                    }
                }
            }
        }
    }
}
