//! Several changes at once: one batch of one log, which a crash leaves whole or not at all.

use super::Flat;
use super::commit::LogEntry;
use super::keys::KeyLock;
use super::layout::{Kind, kind_of};
use super::write::Prepared;
use crate::batch::{Batch, Change};
use esker_base::ids::Version;
use esker_base::{Error, Result};
use esker_format::flat::{Action, INLINE_KEY_MAX, INLINE_VALUE_MAX, Stamp};
use esker_index::Word;
use std::collections::HashMap;

/// A change of a key that takes place.
struct Step<'a> {
    hash: u64,
    key: &'a [u8],
    change: Change<'a>,
    found: Option<Word>,
    /// As [`Flat::find_to_write`] says.
    lost: bool,
}

impl Flat {
    pub(super) fn write_atomic(&self, batch: &Batch) -> Result<Version> {
        self.refuse()?;
        let mut last: HashMap<&[u8], Change<'_>> = HashMap::new();
        for (key, change) in batch.changes() {
            self.check_key(key, "write batch")?;
            if let Change::Put(value, _) = change {
                self.check_value(value)?;
            }
            last.insert(key, change);
        }
        let mut changes: Vec<(&[u8], Change<'_>)> = last.into_iter().collect();
        // One seed, one run.
        changes.sort_unstable_by_key(|(key, _)| *key);
        let hash = |key| self.hasher.hash(key);
        let locks = self.keys.lock_many(changes.iter().map(|(key, _)| hash(key)));
        let mut steps = Vec::with_capacity(changes.len());
        for (key, change) in changes {
            let hash = hash(key);
            let (found, lost) = self.find_to_write(hash, key)?;
            // What is not there needs no tombstone, and one that is there stays.
            let is_gone = |word| kind_of(word).is_tombstone() || self.is_cleared(word);
            let gone = found.is_none_or(is_gone);
            if lost || !(gone && change == Change::Delete) {
                steps.push(Step { hash, key, change, found, lost });
            }
        }
        let Some(first) = steps.first() else { return Ok(self.last_version()) };
        self.write_steps(&steps, &locks, self.core_of(first.hash))
    }

    fn write_steps(
        &self,
        steps: &[Step<'_>],
        locks: &[KeyLock<'_>],
        core: usize,
    ) -> Result<Version> {
        self.check_size(steps)?;
        let mut prepared: Vec<Prepared<'_>> = Vec::with_capacity(steps.len());
        let mut prepare = || {
            for step in steps {
                prepared.push(match step.change {
                    Change::Put(value, attributes) => {
                        self.prepare_put(core, step.key, value, attributes)
                    }
                    Change::Delete => self.prepare_delete(core, step.key),
                }?);
            }
            Ok(())
        };
        let done: Result<()> = prepare();
        let give_back = |error: &Error, prepared: &[Prepared<'_>]| {
            prepared.iter().for_each(|prepared| self.give_back(error, prepared.record));
        };
        done.inspect_err(|error| give_back(error, &prepared))?;
        let entries = |stamp| prepared.iter().map(|it| LogEntry::new(&it.entry, stamp)).collect();
        let near: Vec<_> = entries(Stamp::Place);
        // Those that are too many, or too far from the start of their batch, carry their versions, which they get when they are
        // appended, as all do: before, the log's chunk could be born past them.
        let entries = if Flat::has_places(&near) { near } else { entries(Stamp::Whole(0)) };
        let after = locks.iter().map(KeyLock::last).max().unwrap_or(0);
        let landed = self.commit_all(core, after, entries);
        let landed = landed.inspect_err(|error| give_back(error, &prepared))?;
        for (step, placed) in steps.iter().zip(landed.placed()) {
            if let Change::Put(_, attributes) = step.change {
                self.note_expiry(placed.word, attributes);
            }
            if step.lost {
                self.lose(step.hash, step.key)?;
            }
            self.publish(step.hash, step.key, step.found, placed.word)?;
        }
        let last = landed.placed().last().map_or(Version(0), |placed| placed.version);
        locks.iter().for_each(|lock| lock.follow(last));
        Ok(last)
    }

    /// Refuses what does not fit one batch, before anything is written.
    fn check_size(&self, steps: &[Step<'_>]) -> Result<()> {
        /// Most bytes of an entry beside key and value, version included.
        const BESIDE: usize = 40;
        let size: usize = steps
            .iter()
            .map(|step| {
                let key = Some(step.key.len()).filter(|length| *length <= INLINE_KEY_MAX);
                let value = match step.change {
                    Change::Put(value, _) if value.len() <= INLINE_VALUE_MAX && key.is_some() => {
                        value.len()
                    }
                    _ => 0,
                };
                key.unwrap_or(0) + value + BESIDE
            })
            .sum();
        if size > self.layout.batch_room() {
            let words = format!(
                "batches have at most {} bytes here, this one {size}",
                self.layout.batch_room()
            );
            return Err(Error::invalid("write batch", words));
        }
        Ok(())
    }

    /// Whether an entry is of a kind that recovery knows by its bytes alone.
    pub(super) fn kind_of_action(action: Action<'_>) -> Kind {
        match action {
            Action::Value(_) => Kind::Value,
            Action::Pointer(_) => Kind::Record,
            Action::Delete(None) => Kind::Tombstone,
            Action::Delete(Some(_)) => Kind::TombstoneRecord,
        }
    }
}
