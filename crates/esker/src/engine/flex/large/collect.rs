//! Which large values nobody needs, and their end: when a table is in the space, and when somebody doubts whether one is needed.
//!
//! Asked about are those of keys that the table has, found by the keys where these are fewer than the values, those in its deleted ranges, and
//! doubtful ones. What an open found is doubtful, too, but a table has only some of it asked about, so that who opens a store does not wait
//! for all: the rest is asked about while nobody writes, and where room is wanted.
//!
//! # Concurrency
//! Under the committer's lock. That of the directory, for which readers and writers wait, is taken for a part of the values at a time: of those
//! that come meanwhile the pair is in a later table.

use super::super::expired::expiry_of;
use super::super::memtable::MemTable;
use super::Flex;
use super::directory::Large;
use crate::store::Direction;
use esker_base::{ErrorKind, Result};
use esker_format::flex_db::{Content, Root};
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

/// Values, or keys, that are looked at while others wait.
const LOOKS: usize = 1024;

/// Values that an open found, and that are asked about at once.
const FOUND_AT_ONCE: usize = 64;

/// Who needs a large value; by default nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Needs {
    /// The pair that counts names it, and whether that has expired.
    is_named: bool,
    is_expired: bool,
    /// Only a snapshot sees it: it is asked about again when one goes.
    is_seen: bool,
    /// Nobody knows, so that it is asked about again.
    is_doubtful: bool,
}

impl Flex {
    /// Removes values that nobody needs, in the space as this root has it: of keys that are in this table, which is there now, and
    /// doubtful ones. The committer's lock is held.
    pub(in super::super) fn collect_large(
        &self,
        root: &Root,
        table: Option<&MemTable>,
    ) -> Result<()> {
        if self.large.is_empty() {
            return Ok(());
        }
        self.large.is_doubted.store(false, Ordering::Relaxed);
        self.begin_asking();
        if table.is_some() {
            self.large.doubt_found(FOUND_AT_ONCE, root.committed_generation);
        }
        let mut gone = self.large.leaving();
        gone.extend(self.unneeded(root, table, self.concerned(root, table))?);
        self.remove_all(&gone)
    }

    /// Asks about some of the values that an open found, and about no others, and removes those that nobody needs. Whether there may be more.
    /// The committer's lock is held.
    pub(in super::super) fn collect_found(&self, root: &Root) -> Result<bool> {
        let found = self.large.doubt_found(FOUND_AT_ONCE, root.committed_generation);
        let Some(numbers) = found else { return Ok(false) };
        self.begin_asking();
        let gone = self.unneeded(root, None, numbers)?;
        self.remove_all(&gone)?;
        Ok(true)
    }

    /// Before anybody asks what snapshots see: one that goes meanwhile has it asked again.
    fn begin_asking(&self) {
        self.large.begin_asking(LOOKS, self.snapshots.oldest() != u64::MAX);
    }

    /// Which of these values nobody needs. Of the others is noted who does, as far as that is asked again.
    fn unneeded(
        &self,
        root: &Root,
        table: Option<&MemTable>,
        numbers: impl IntoIterator<Item = u64>,
    ) -> Result<Vec<u64>> {
        let in_table =
            |key: &[u8]| table.is_some_and(|table| table.has(key, self.hasher.hash(key)));
        let mut gone = Vec::new();
        for number in numbers {
            // Others give up what they wrote.
            let Some(key) = self.large.key_of(number) else { continue };
            let needs = match self.needs_large(root, number, &key) {
                // As long as nobody can read whether it is named, it stays, and is asked about again; others do not wait for it.
                Err(error) if error.is_unread() => {
                    self.note_unread(&error);
                    Needs { is_doubtful: true, ..Needs::default() }
                }
                needs => needs?,
            };
            if needs == Needs::default() {
                gone.push(number);
                continue;
            }
            // That of the table, which is about to go, may be left out of the space already: then somebody asks again.
            let is_doubted = needs.is_expired && in_table(&key);
            {
                let mut values = self.large.values.write();
                values.set_doubtful(number, needs.is_doubtful || is_doubted);
                values.set_seen(number, needs.is_seen);
            }
            self.large.is_doubted.fetch_or(is_doubted, Ordering::Relaxed);
        }
        Ok(gone)
    }

    /// Removes those that can be. What of the others cannot be read now keeps none of them back, and is tried again.
    fn remove_all(&self, numbers: &[u64]) -> Result<()> {
        // First: whatever happens to one of them, the others are known.
        for number in numbers {
            self.large.let_go(*number);
        }
        for number in numbers {
            match self.remove_large(*number) {
                Err(error) if error.kind() == ErrorKind::Corrupted => self.note_unread(&error),
                Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace) => {
                    tracing::warn!(%error, "a large value that nobody needs stays for now");
                    self.large.is_doubted.store(true, Ordering::Relaxed);
                }
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Numbers of the values that are to be asked about.
    fn concerned(&self, root: &Root, table: Option<&MemTable>) -> BTreeSet<u64> {
        let may_go = |large: &Large| large.may_go(root.committed_generation);
        let mut found = BTreeSet::new();
        self.large.visit_doubtful(LOOKS, |large| {
            found.extend(may_go(large).then_some(large.head.number));
        });
        let Some(table) = table else { return found };
        let ranges = table.ranges();
        if !ranges.is_empty() || table.len() >= self.large.count() as u64 {
            self.large.visit(LOOKS, |large| {
                let key = &large.head.key[..];
                let is_concerned = may_go(large)
                    && (table.has(key, self.hasher.hash(key))
                        || ranges.iter().any(|range| range.covers(key)));
                found.extend(is_concerned.then_some(large.head.number));
            });
            return found;
        }
        let mut looks = 0;
        let mut values = self.large.values.read();
        table.visit(Bound::Unbounded, Direction::Forward, usize::MAX, |key, _| {
            values.visit_of_key(key, self.hasher.hash(key), |large| {
                found.extend(may_go(large).then_some(large.head.number));
            });
            looks += 1;
            if looks % LOOKS == 0 {
                parking_lot::RwLockReadGuard::bump(&mut values);
            }
            ControlFlow::Continue(())
        });
        found
    }

    /// Who needs a value of `key`: what counts in the space, durably, and what snapshots see (B2). The committer's lock is held.
    fn needs_large(&self, root: &Root, number: u64, key: &[u8]) -> Result<Needs> {
        // Who asks finds nothing coarse.
        self.locate(key)?;
        let hash = self.hasher.hash(key);
        // Whether a pair that names it has expired.
        let names = |_, content: Content<'_>| match content {
            Content::Large(_, named, _) if named == number => {
                Some(self.clock.is_expired(expiry_of(&content)))
            }
            _ => None,
        };
        let current = self.find(key, hash, root.last_version, names)?;
        let mut is_seen = false;
        for version in self.snapshots.all() {
            is_seen |= self.find(key, hash, version, names)?.is_some();
        }
        Ok(Needs {
            is_named: current.is_some(),
            is_expired: current == Some(true),
            is_seen: is_seen && current.is_none(),
            is_doubtful: false,
        })
    }
}
