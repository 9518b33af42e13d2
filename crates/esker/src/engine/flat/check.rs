//! Verifies what is on media against what DRAM knows, while other calls go on.
//!
//! Whether two entries have one record takes a bit for each line that has one, whatever the number of keys is (`lines`).

use super::Flat;
use super::batches::{Batches, FoundEntry};
use super::chunks::{Since, Use};
use super::index::Part;
use super::layout::Place;
use super::lines::Lines;
use super::recover::read_header;
use crate::check::CheckReport;
use crate::engine::Cursor;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::flat::{
    Action, CHUNK_START, CLEAR_OFFSETS, CLEAR_SIZE, ChunkKind, Clear, LINE, SUPERBLOCK_OFFSETS,
    SUPERBLOCK_SIZE, Stamp,
};
use esker_index::Word;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Lines that were met twice whose entries there is memory for.
const AGAIN_MAX: usize = if cfg!(test) { 64 } else { 1 << 16 };

#[cfg(test)]
thread_local! {
    /// Parts of the index that checks of this thread have gone through.
    pub(super) static PARTS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// What is done with each entry: with the hash, the key if the index has it, and the word.
type Check<'a> = &'a mut dyn FnMut(u64, Option<&[u8]>, Word) -> Result<()>;

/// What an entry says.
struct Met {
    key: Option<Vec<u8>>,
    /// Whether it is of the kind that its word says.
    same_kind: bool,
    /// Where its record is.
    line: Option<u64>,
}

/// What was read; `None` if it is damaged, which the report tells.
fn told<T>(read: Result<T>, report: &mut CheckReport) -> Result<Option<T>> {
    match read {
        Err(error) if error.kind() == ErrorKind::Corrupted => {
            report.problem(error.to_string());
            Ok(None)
        }
        read => read.map(Some),
    }
}

impl Flat {
    /// What is wrong with the log at an offset.
    pub(super) fn damage(&self, flaw: Flaw, offset: u64) -> Error {
        Error::corrupted("read log", flaw.to_string())
            .device(self.memory.name())
            .at(offset, LINE as u64)
    }

    pub(super) fn check_store(&self) -> Result<CheckReport> {
        self.check_open()?;
        let mut report = CheckReport::default();
        self.check_superblocks(&mut report)?;
        self.check_clear(&mut report)?;
        for (number, chunk) in self.chunks.iter() {
            // Nothing of it is moved meanwhile. Writers go on, and the cleaner before the next one: somebody may need room.
            let _cleaner = self.cleaner_of_log(number);
            let kind = match chunk.usage() {
                Use::OpenLog | Use::Log => ChunkKind::Log,
                Use::Blocks => ChunkKind::Blocks,
                Use::Large => ChunkKind::Large,
                Use::Free | Use::Bad => {
                    // It may be taken meanwhile, which does not matter.
                    if self.probe(number)? {
                        report.problem(format!(
                            "the memory of chunk {number}, which is free, is bad"
                        ));
                    }
                    continue;
                }
                Use::Tail | Use::Other => continue,
            };
            let Some(header) = told(read_header(&*self.memory, &self.layout, number), &mut report)?
            else {
                continue;
            };
            // Blocks may be freed while we look.
            if header.is_none_or(|(header, _)| header.kind != kind) && chunk.is_log() {
                report.problem(format!("the header of chunk {number} is not that of its use"));
            }
            if header.is_some_and(|(_, differs)| differs.is_some()) && chunk.is_log() {
                report.problem(format!("one of the two headers of chunk {number} is damaged"));
            }
            if kind == ChunkKind::Log {
                self.check_log(number, &mut report)?;
            }
        }
        self.check_index(&mut report)?;
        Ok(report)
    }

    /// Both superblocks are those of the store. Nobody writes them once it is open.
    fn check_superblocks(&self, report: &mut CheckReport) -> Result<()> {
        let whole = self.superblock.encode();
        for offset in SUPERBLOCK_OFFSETS {
            let mut bytes = [0; SUPERBLOCK_SIZE];
            let read = self.memory.read(offset, &mut bytes);
            if told(read, report)?.is_some() && bytes != whole {
                report.problem(format!("the superblock at {offset} is not that of the store"));
            }
        }
        Ok(())
    }

    /// Both slots say what was cleared.
    fn check_clear(&self, report: &mut CheckReport) -> Result<()> {
        // Nobody clears meanwhile.
        let cleared = self.cleared.lock();
        for offset in CLEAR_OFFSETS {
            let mut bytes = [0; CLEAR_SIZE];
            let read = self.memory.read(offset, &mut bytes);
            let says = |cleared| Clear::decode(&bytes, &self.layout.store_id) == Ok(cleared);
            if told(read, report)?.is_some() && !says(*cleared) {
                report.problem(format!("the slot at {offset} does not say what was cleared"));
            }
        }
        Ok(())
    }

    fn check_log(&self, number: u32, report: &mut CheckReport) -> Result<()> {
        let Some(chunk) = self.chunks.get(number) else { return Ok(()) };
        let tail = usize::try_from(chunk.tail.load(Ordering::Acquire)).unwrap_or(0);
        let mut buffer = vec![0; tail];
        let read = self.memory.read(self.layout.start_of(number), &mut buffer);
        if told(read.and_then(|()| self.look_behind(number, tail as u64)), report)?.is_none() {
            return Ok(());
        }
        let mut problem = |error: Error| report.problem(error.to_string());
        let (batches, bytes) = self.verify_log(number, &mut buffer, &mut problem);
        report.batches += batches;
        report.bytes += bytes;
        Ok(())
    }

    /// Whether the chunk of a log can be read behind its tail, where the open after a crash looks for more. Somebody may write there.
    pub(super) fn look_behind(&self, number: u32, tail: u64) -> Result<()> {
        let start = self.layout.start_of(number);
        (start + tail..start + self.layout.chunk_size)
            .step_by(LINE)
            .try_for_each(|offset| self.memory.load_u64(offset).map(drop))
    }

    /// Tells what is wrong with the log of a chunk, up to where it cannot be read any more; returns its batches and the bytes of
    /// their entries. `chunk_bytes` are those of the chunk up to the log's tail.
    pub(super) fn verify_log(
        &self,
        number: u32,
        chunk_bytes: &mut [u8],
        problem: &mut dyn FnMut(Error),
    ) -> (u64, u64) {
        let Some(chunk) = self.chunks.get(number) else { return (0, 0) };
        let start = self.layout.start_of(number) + CHUNK_START;
        let first = chunk_bytes.get_mut(usize::try_from(CHUNK_START).unwrap_or(0)..);
        let mut found = Batches::new(first.unwrap_or_default(), start, chunk.salt());
        let (mut batches, mut bytes, mut last) = (0, 0, 0);
        loop {
            let batch = match found.take_next() {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(flaw) => {
                    problem(self.damage(flaw, found.offset()));
                    break;
                }
            };
            batches += 1;
            bytes += batch.payload_bytes();
            for found in batch.entries() {
                let Ok(FoundEntry { entry, version, .. }) = found else {
                    problem(self.damage(Flaw::Field("entry"), batch.offset));
                    return (batches, bytes);
                };
                if !entry.is_sound(version) {
                    problem(self.damage(Flaw::Checksum, batch.offset));
                }
                if entry.stamp == Stamp::Place && version < last && version < chunk.born() {
                    problem(self.damage(Flaw::Field("version"), batch.offset));
                }
                last = version;
            }
        }
        (batches, bytes)
    }

    /// Reads what every entry of the index says, records included.
    fn check_index(&self, report: &mut CheckReport) -> Result<()> {
        let (mut lines, mut again) = (Lines::default(), Lines::default());
        self.check_parts(&mut |hash, key, word| {
            if let Some(line) = self.check_entry(hash, key, word, report)?
                && lines.insert(line)
            {
                again.insert(line);
            }
            Ok(())
        })?;
        // Mostly it was one that took the place of another meanwhile: no entry is remembered for each line, so all are looked at once
        // more. Beside writers fewer are met twice each time, until there is memory for their entries.
        while again.len() > AGAIN_MAX {
            let (mut lines, mut left) = (Lines::default(), Lines::default());
            self.check_parts(&mut |hash, key, word| {
                if let Some((_, line)) = self.entry_again(hash, key, word)?
                    && again.contains(line)
                    && lines.insert(line)
                {
                    left.insert(line);
                }
                Ok(())
            })?;
            let are_few = left.len() <= again.len() / 2;
            again = left;
            if !are_few {
                break;
            }
        }
        self.check_again(&again, report)
    }

    /// Tells of lines that were met twice whether two entries have their record.
    fn check_again(&self, again: &Lines, report: &mut CheckReport) -> Result<()> {
        if again.len() == 0 {
            return Ok(());
        }
        let mut met = HashMap::new();
        self.check_parts(&mut |hash, key, word| {
            let found = self.entry_again(hash, key, word)?;
            let Some((key, line)) = found.filter(|(_, line)| again.contains(*line)) else {
                return Ok(());
            };
            // In this order: this entry had the record before the question whether the other one still has it.
            let before = met.insert(line, word);
            if before.is_some_and(|before| self.is_current(before, line))
                && self.index.holds(hash, &key, word)
            {
                report.problem(format!("two entries have the record at line {line}"));
            }
            Ok(())
        })
    }

    /// Gives all entries of the index to `check`.
    fn check_parts(&self, check: Check<'_>) -> Result<()> {
        let mut cursor = Cursor::Start;
        while self.check_part(&mut cursor, check)?.is_some() {}
        Ok(())
    }

    /// Gives the entries of the next part of the index to `check`; `None` behind the last one.
    fn check_part(&self, cursor: &mut Cursor, check: Check<'_>) -> Result<Option<()>> {
        #[cfg(test)]
        PARTS.set(PARTS.get() + 1);
        // For one part: nothing in it is moved, and what is gone was written anew.
        let _still = self.hold_cleaning();
        self.check_open()?;
        let Some((part, next)) = self.index.walk(cursor) else { return Ok(None) };
        *cursor = next;
        match part {
            Part::Hashes(entries) => {
                entries.into_iter().try_for_each(|(hash, word)| check(hash, None, word))?;
            }
            Part::Keys(entries) => {
                for (key, word) in entries {
                    check(self.hasher.hash(&key), Some(&key), word)?;
                }
            }
        }
        Ok(Some(()))
    }

    /// Checks what an entry of the index says; the line of its record, if it has one.
    fn check_entry(
        &self,
        hash: u64,
        key: Option<&[u8]>,
        word: Word,
        report: &mut CheckReport,
    ) -> Result<Option<u64>> {
        if self.is_cleared(word) {
            return Ok(None);
        }
        let place = Place::of(word);
        let number = self.layout.chunk_of(place.offset);
        if !self.chunks.get(number).is_some_and(super::chunks::Chunk::is_log) {
            report.problem(format!("an entry of the index points into chunk {number}, no log"));
            return Ok(None);
        }
        let Some(Some(met)) = told(self.met(word).and_then(Option::transpose), report)? else {
            return Ok(None);
        };
        let Met { key: found, same_kind, line } = met;
        report.records += 1;
        let right = found.as_ref().is_some_and(|found| {
            self.hasher.hash(found) == hash && key.is_none_or(|key| key == found)
        });
        // Whoever wrote the key meanwhile may have freed the record.
        let stands = |key: &[u8]| self.index.holds(hash, key, word);
        let key = key.map(<[u8]>::to_vec).or(found).unwrap_or_default();
        if !(right && same_kind) && stands(&key) {
            report.problem(format!("the entry at {} is not what the index says", place.offset));
        }
        if line.is_some() {
            match self.read_value(hash, &key, word, Since::HELD, &mut |_| Ok(())) {
                Err(error) if stands(&key) => report.problem(error.to_string()),
                _ => {}
            }
        }
        Ok(line)
    }

    /// Key and line of an entry that has a record, if it is still there. What is damaged has been told.
    fn entry_again(
        &self,
        hash: u64,
        key: Option<&[u8]>,
        word: Word,
    ) -> Result<Option<(Vec<u8>, u64)>> {
        if self.is_cleared(word) {
            return Ok(None);
        }
        let mut ignored = CheckReport::default();
        let met = told(self.met(word).and_then(Option::transpose), &mut ignored)?.flatten();
        let Some(Met { key: found, line: Some(line), .. }) = met else { return Ok(None) };
        let key = key.map(<[u8]>::to_vec).or(found).unwrap_or_default();
        Ok(self.index.holds(hash, &key, word).then_some((key, line)))
    }

    /// What stands where a word says. The cleaners' locks are held.
    fn met(&self, word: Word) -> Result<Option<Result<Met>>> {
        let place = Place::of(word);
        self.with_entry(place, Since::HELD, |entry, _| {
            let found = self.key_of_entry(entry)?;
            let same_kind = Flat::kind_of_action(entry.action) == place.kind;
            let line = match entry.action {
                Action::Pointer(line) | Action::Delete(Some(line)) => Some(line),
                Action::Value(_) | Action::Delete(None) => None,
            };
            Ok(Met { key: found.map(Cow::into_owned), same_kind, line })
        })
    }

    /// Whether the index still says this of the key whose entry it is, and that still has the record at this line: by now the word may be
    /// another's. The cleaners' locks are held.
    fn is_current(&self, word: Word, line: u64) -> bool {
        let Ok(Some(Ok(Met { key: Some(key), line: found, .. }))) = self.met(word) else {
            return false;
        };
        found == Some(line) && self.index.holds(self.hasher.hash(&key), &key, word)
    }
}
