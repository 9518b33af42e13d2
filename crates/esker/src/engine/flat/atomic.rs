//! Several changes at once: one batch of one log, which a crash leaves whole or not at all.

use super::chunks::For;
use super::commit::{LogEntry, Placed};
use super::layout::Kind;
use super::read::entry_attributes;
use super::{Flat, write::Prepared};
use crate::batch::{Batch, Change};
use esker_base::ids::Version;
use esker_base::{Error, Result};
use esker_format::flat::{
    Action, EncodeEntry, EntryBytes, INLINE_KEY_MAX, INLINE_VALUE_MAX, Stamp,
};
use esker_index::Word;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// A change of a key that takes place.
struct Step<'a> {
    hash: u64,
    key: &'a [u8],
    change: Change<'a>,
    found: Option<Word>,
}

/// Versions that were given out before their entries were appended.
struct UnderWay<'a> {
    flat: &'a Flat,
    first: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.flat.wide.lock().remove(&self.first);
    }
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
        let _locks = self.keys.lock_many(changes.iter().map(|(key, _)| hash(key)));
        let mut steps = Vec::with_capacity(changes.len());
        for (key, change) in changes {
            let hash = hash(key);
            let found = self.find(hash, key)?;
            // What is not there needs no tombstone, and one that is there stays.
            let gone = found.is_none_or(|word| super::layout::kind_of(word).is_tombstone());
            if !(gone && change == Change::Delete) {
                steps.push(Step { hash, key, change, found });
            }
        }
        let Some(first) = steps.first() else { return Ok(self.last_version()) };
        let puts = steps.iter().any(|step| step.change != Change::Delete);
        let whom = if puts { For::Puts } else { For::Deletes };
        self.write_steps(&steps, self.core_of(first.hash), whom)
    }

    fn write_steps(&self, steps: &[Step<'_>], core: usize, whom: For) -> Result<Version> {
        self.check_size(steps)?;
        let mut records: Vec<Option<u64>> = Vec::with_capacity(steps.len());
        let mut entries: Vec<LogEntry> = Vec::with_capacity(steps.len());
        let mut prepare = || {
            for step in steps {
                let prepared = match step.change {
                    Change::Put(value, attributes) => {
                        self.prepare_put(core, step.key, value, attributes)
                    }
                    Change::Delete => self.prepare_delete(core, step.key),
                };
                let Prepared { entry, record } = prepared?;
                records.push(record);
                entries.push(entry);
            }
            Ok(())
        };
        let prepared: Result<()> = prepare();
        let give_back = |error: Error, records: &[Option<u64>]| {
            records.iter().for_each(|record| self.give_back(&error, *record));
            error
        };
        prepared.map_err(|error| give_back(error, &records))?;
        let payload = entries.iter().map(|entry| entry.bytes.as_slice().len()).sum();
        let wide = !Flat::has_places(entries.len(), payload);
        let under_way = wide.then(|| self.begin_wide(steps.len()));
        let first = under_way.as_ref().map_or(0, |under_way| under_way.first);
        if wide {
            self.stamp_all(steps, &mut entries, &records, first);
        }
        let mut landed: Vec<Placed> = Vec::with_capacity(entries.len());
        let appended = self.append(core, whom, entries.iter(), |_, placed| landed.push(placed));
        appended.map_err(|error| give_back(error, &records))?;
        for (step, placed) in steps.iter().zip(&landed) {
            self.publish(step.hash, step.key, step.found, placed.word)?;
        }
        let version = landed.last().map_or(0, |placed| placed.version.0);
        Ok(Version(if wide { first + steps.len() as u64 - 1 } else { version }))
    }

    /// Entries that are too many, or too far from the start of their batch, carry their versions.
    fn stamp_all(
        &self,
        steps: &[Step<'_>],
        entries: &mut [LogEntry],
        records: &[Option<u64>],
        first: u64,
    ) {
        for (((step, entry), record), version) in
            steps.iter().zip(entries).zip(records).zip(first..)
        {
            let key = self.entry_key(step.key);
            let (action, attributes) = match (step.change, *record) {
                (Change::Put(value, attributes), None) => {
                    (Action::Value(value), entry_attributes(attributes))
                }
                (Change::Put(_, attributes), Some(line)) => {
                    (Action::Pointer(line), entry_attributes(attributes))
                }
                (Change::Delete, line) => (Action::Delete(line), None),
            };
            let mut bytes = EntryBytes::default();
            EncodeEntry { key, action, attributes }.encode(Stamp::Whole(version), &mut bytes);
            entry.bytes = bytes;
        }
    }

    /// Gives versions to the entries of a batch that carry their own; the cleaner knows of them until the index
    /// follows.
    fn begin_wide(&self, count: usize) -> UnderWay<'_> {
        let mut wide = self.wide.lock();
        let first = self.sequence.fetch_add(count as u64, Ordering::AcqRel);
        wide.insert(first);
        UnderWay { flat: self, first }
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
