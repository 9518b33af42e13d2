//! Views of a store: as it was at one moment, and item by item.

use super::{Direction, Store};
use crate::value::Value;
use esker_base::Result;
use std::collections::VecDeque;
use std::ops::{Bound, RangeBounds};

/// A store as it was at one moment; see [`Store::snapshot`].
#[derive(Debug)]
pub struct Snapshot {
    pub(super) store: Store,
    pub(super) version: u64,
}

impl Snapshot {
    /// The value that `key` had.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.store.engine.get_as_of(key, self.version)
    }

    /// As [`Store::scan`], with all items as they were.
    ///
    /// # Errors
    /// As [`Store::scan`].
    pub fn scan<'a>(
        &self,
        range: impl RangeBounds<&'a [u8]>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Value)>> {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        self.store.engine.scan_as_of(range, direction, limit, self.version)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.store.engine.release(self.version);
    }
}

/// A walk over all items; see [`Store::iter`].
#[derive(Debug)]
pub struct Iter {
    pub(super) store: Store,
    pub(super) cursor: u64,
    /// Of an engine that keeps order: where the walk goes on.
    pub(super) after: Option<Bound<Vec<u8>>>,
    pub(super) items: VecDeque<(Vec<u8>, Option<Value>)>,
    pub(super) ended: bool,
}

impl Iterator for Iter {
    type Item = Result<(Vec<u8>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.items.pop_front() {
                Some((key, Some(value))) => return Some(Ok((key, value))),
                Some((key, None)) => match self.store.get(&key) {
                    Ok(Some(value)) => return Some(Ok((key, value))),
                    // Deleted meanwhile.
                    Ok(None) => continue,
                    Err(error) => return Some(Err(error)),
                },
                None => {}
            }
            if self.ended {
                return None;
            }
            if let Some(after) = &self.after {
                const AT_ONCE: usize = 128;
                let from = after.as_ref().map(Vec::as_slice);
                let scanned =
                    self.store.engine.scan(from, Bound::Unbounded, Direction::Forward, AT_ONCE);
                match scanned {
                    Ok(items) => {
                        self.ended = items.len() < AT_ONCE;
                        self.after = items.last().map(|(key, _)| Bound::Excluded(key.clone()));
                        self.items =
                            items.into_iter().map(|(key, value)| (key, Some(value))).collect();
                    }
                    Err(error) => {
                        self.ended = true;
                        return Some(Err(error));
                    }
                }
                continue;
            }
            match self.store.engine.walk(self.cursor) {
                Ok(Some((items, next))) => {
                    self.cursor = next;
                    self.items = items.into();
                }
                Ok(None) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
    }
}
