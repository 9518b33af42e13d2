//! Views of a store: as it was at one moment, and item by item.

use super::Store;
use crate::engine::Cursor;
use crate::value::Value;
use esker_base::{ErrorKind, Result};
use std::collections::VecDeque;

/// A store as it was at one moment, but for items that have expired by the time of a call: these are not there any more; see
/// [`Store::snapshot`].
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
    /// Where the walk goes on; `None`: it does not.
    pub(super) next: Option<Cursor>,
    pub(super) items: VecDeque<Result<(Vec<u8>, Option<Value>)>>,
}

impl Iter {
    /// The next item, for callers that count their memory: `admit` is asked before a value is read that the walk did not read on its
    /// way, with the memory that the read takes, as by [`Store::get_with`]. Its error takes the item's place, and the walk goes on.
    ///
    /// A walk reads some MiB of values ahead at most.
    pub fn next_with(
        &mut self,
        mut admit: impl FnMut(u64) -> Result<()>,
    ) -> Option<Result<(Vec<u8>, Value)>> {
        loop {
            match self.items.pop_front() {
                Some(Ok((key, Some(value)))) => return Some(Ok((key, value))),
                Some(Ok((key, None))) => match self.store.get_with(&key, &mut admit) {
                    Ok(Some(value)) => return Some(Ok((key, value))),
                    // Deleted meanwhile.
                    Ok(None) => continue,
                    Err(error) => {
                        if error.kind() == ErrorKind::Closed {
                            self.items.clear();
                            self.next = None;
                        }
                        return Some(Err(error));
                    }
                },
                Some(Err(error)) => return Some(Err(error)),
                None => {}
            }
            match self.store.engine.walk(self.next.take()?) {
                Ok((items, next)) => (self.items, self.next) = (items.into(), next),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Iterator for Iter {
    type Item = Result<(Vec<u8>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_with(|_| Ok(()))
    }
}
