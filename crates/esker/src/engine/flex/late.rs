//! Tables without a log, under `none`: nobody waits for a log, so nothing writes one. The space takes such a table as a
//! whole: a crash leaves all of it or nothing, and so what some beginning of all writes made.
//!
//! Where the space cannot wait (it needs segments that only a commit frees, or a large value has to become durable while
//! a table is on its way), the table gets its log late: all of its changes, durable before the first of them is in the
//! space. From then on it is a table like others. The file of the log grows with the table: there is room for it.
//!
//! # Invariants
//! - A1: a late log counts as a whole or not at all: a part of it would not be what some beginning of the writes made, for
//!   it has only the last write of a key. So its first batch, without which a log is empty, is written last. Each batch says that it is
//!   durable itself, so one that is missing before it is damage.
//!
//! # Concurrency
//! The log is written under the space's lock by whoever has to commit. The table is sealed: nobody changes it.
//!
//! # Failure
//! A log that cannot be written fails the space, unless there is no room for it. Nobody is told of that here, under the lock that who is
//! told may want: who brings the table to the space tells, behind it.

use super::cursor::TableCursor;
use super::memtable::MemTable;
use super::{Flex, sites};
use crate::store::Direction;
use esker_base::Result;
use esker_format::flex_db::{Change, WalWriter};
use esker_index::Word;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A change of a table: a key's, or that of a range.
enum Late {
    Key(Word, Range<usize>),
    Range(usize),
}

impl Flex {
    /// Sees to it that a table gets to the space as a whole, if it has no log.
    pub(super) fn hold(self: &Flex, table: &MemTable) {
        let has_log = table.replayed || table.is_logged.load(Ordering::Acquire);
        if !self.keeps_log() && !has_log && !sites::HOLD_WAIT.disabled() {
            self.space.hold();
        }
    }

    /// Writes the log of the sealed table, which has none. Called by the space.
    pub(super) fn log_late(&self) -> Result<()> {
        let Some((table, _)) = self.tables().sealed.clone() else { return Ok(()) };
        self.write_late(&table)
    }

    fn write_late(&self, table: &Arc<MemTable>) -> Result<()> {
        let ranges = table.ranges();
        let mut keys: Vec<u8> = Vec::new();
        let mut changes: Vec<(u64, Late)> = Vec::new();
        let mut cursor = TableCursor::new(table, Bound::Unbounded, Direction::Forward);
        while let (Some(key), Some(word)) = (cursor.key(), cursor.word()) {
            let place = keys.len()..keys.len() + key.len();
            keys.extend_from_slice(key);
            if let Some(slot) = table.slot(word) {
                let versions = slot.lock();
                let of_key = versions.iter().map(|(version, _)| version);
                changes.extend(of_key.map(|version| (version, Late::Key(word, place.clone()))));
            }
            cursor.next();
        }
        let of_ranges = ranges.iter().enumerate();
        changes.extend(of_ranges.map(|(index, range)| (range.version, Late::Range(index))));
        changes.sort_unstable_by_key(|(version, _)| *version);

        let mut late = self.wal.late(table.generation);
        let most = self.wal.late_batch_bytes();
        let mut writer = WalWriter::default();
        let gap_max = self.wal.late_gap_max();
        let (mut first_version, mut next_version) = (0, 0);
        for (version, change) in &changes {
            let is_far = version.saturating_sub(next_version) > gap_max;
            if !writer.is_empty() && (is_far || writer.size_bytes() > most) {
                self.wal.write_late(&mut late, first_version, &mut writer)?;
            }
            if writer.is_empty() {
                (first_version, next_version) = (*version, *version);
            }
            // Versions of a batch follow each other: those that were written over say nothing. Of many of them the next batch leaves a gap.
            while next_version < *version {
                writer.push(&Change::DeleteRange(&[], Some(&[])));
                next_version += 1;
            }
            match change {
                Late::Key(word, place) => {
                    let key = keys.get(place.clone()).unwrap_or_default();
                    if let Some(slot) = table.slot(*word) {
                        let versions = slot.lock();
                        let content = versions.iter().find(|(other, _)| other == version);
                        if let Some((_, content)) = content {
                            writer.push(&Change::Set(key, content));
                        }
                    }
                }
                Late::Range(index) => {
                    if let Some(range) = ranges.get(*index) {
                        writer.push(&Change::DeleteRange(&range.from, range.to.as_deref()));
                    }
                }
            }
            next_version += 1;
        }
        if !writer.is_empty() {
            self.wal.write_late(&mut late, first_version, &mut writer)?;
        }
        // PERSIST: all of the table, before any of it is in the space.
        self.wal.end_late(late, next_version)?;
        table.is_logged.store(true, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{opened_with, sites};
    use crate::engine::Engine;
    use crate::options::Durability;
    use crate::value::PutOptions;
    use esker_format::flex_db::Batch;

    /// Versions that were written over take no room in memory, however many there are.
    #[test]
    fn a_late_log_leaves_out_what_was_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_with(&folder, Durability::None);
        let put = |key: &[u8], value: &[u8]| flex.put(key, value, PutOptions::default()).unwrap();
        put(b"before", b"1");
        for number in 0..50_000_u32 {
            put(b"hot", &number.to_be_bytes());
        }
        put(b"after", b"2");
        let generation = flex.tables().active.generation;
        flex.change_table(generation).unwrap();
        flex.log_late().unwrap();

        let device = flex.wal.device(generation);
        let mut bytes = vec![0; usize::try_from(device.geometry().size_bytes).unwrap()];
        device.read_at(sites::WAL_READ, 0, &mut bytes).unwrap();
        let (mut changes, mut longest, mut at) = (0, 0, 0);
        while let Ok((batch, _)) = Batch::decode(&bytes[at..], &flex.store_id, at as u64, || false)
        {
            changes += batch.change_count;
            longest = longest.max(batch.total_bytes);
            at += usize::try_from(batch.total_bytes).unwrap();
        }
        assert!((3..5000).contains(&changes), "{changes} changes");
        assert!(longest <= 16 << 10, "a batch of {longest} bytes");
    }
}
