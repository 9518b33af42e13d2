//! Repair: a damaged store becomes a sound one that holds all that can still be read.
//!
//! After a clean stop the image tells what the index had, entries of damaged batches included. Else, or if nobody can read the key of
//! one of its entries, the logs are read as after a crash, but over what is damaged: of a log all whole batches count. Then every value is read. The keys of those that are damaged are deleted,
//! so that no older value of theirs comes back. What counts in logs with damage is copied elsewhere, as by the cleaner, versions
//! included, and their chunks are freed; whole entries of damaged batches are written anew. Chunks whose headers are damaged are freed
//! as well: what stood in their logs is lost, but records that entries elsewhere point at are found by their own checksums, and written
//! anew.
//!
//! What stood in a damaged batch, or in a log without a header, is not known by name. Keys that were written there, or deleted, may show
//! an older value, or be gone.
//!
//! # Concurrency
//! None: the store is open for the repair alone.
//!
//! # Failure
//! What is copied is durable before a chunk is freed. So a crash or an error leaves a store that can be repaired again.

use super::chunks::{Chunk, Since, Use};
use super::index::Part;
use super::layout::{Kind, Place};
use super::moves::Victim;
use super::probe::PAGE_SIZE_BYTES;
use super::recover::Root;
use super::{Flat, sites};
use crate::check::RepairReport;
use crate::engine::{Cursor, Engine};
use crate::options::Options;
use crate::value::{Condition, Value};
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flat::{CHUNK_START, LINE};
use esker_index::Word;
use esker_media::Pmem;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// What is damaged, as it is found.
#[derive(Debug, Default)]
pub(super) struct Damaged {
    /// Logs with damage.
    logs: Mutex<BTreeSet<u32>>,
    /// By hash: logs with entries whose records have not their keys.
    keyless: Mutex<BTreeMap<u64, Vec<u32>>>,
    /// Entries that point at what is no record of their own.
    misplaced: Mutex<HashSet<Word>>,
    /// The lines that they point at, which nobody frees before the next open: one may be another's.
    not_own: Mutex<HashSet<u64>>,
}

/// What the index has of a key.
struct Met {
    hash: u64,
    key: Vec<u8>,
    word: Word,
}

/// Repairs the store in `memory`.
///
/// # Errors
/// `Corrupted` if neither superblock is whole, or a header cannot be written, `NoSpace` if there is no room to copy what is left,
/// `UnsupportedFormat`, `Io`.
pub(crate) fn repair(memory: &Arc<dyn Pmem>, options: &Options) -> Result<RepairReport> {
    let mut options = Options { format: false, create: false, ..options.clone() };
    options.testing.background = false;
    // The image of a clean stop knows where entries are of which the batch is damaged. It counts once.
    let mut images = true;
    loop {
        let root = Root::open(&**memory, &options, None, &mut Rng::from_seed(0), true)?;
        images &= root.headless.is_empty() && root.session.clean;
        let mut flat = Flat::empty(memory, &options, &root);
        flat.damaged = Some(Damaged::default());
        let mended = flat.recover_and_mend(&root, &options, images);
        if let Ok(Some(report)) = mended {
            flat.close_store()?;
            return Ok(report);
        }
        // Without an image: of a store that is not sound it would say that it is.
        flat.abandon();
        mended?;
        images = false;
    }
}

impl Flat {
    /// Whether the store is open for a repair.
    pub(super) fn is_in_repair(&self) -> bool {
        self.damaged.is_some()
    }

    /// Reads bytes of a log; in a repair what the medium has lost of them is zeros, which are no batch.
    pub(super) fn read_of_log(&self, number: u32, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match self.memory.read(offset, buffer) {
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                self.note_damaged_log(number, error)?
            }
            read => return read,
        }
        let mut at = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let page = PAGE_SIZE_BYTES as u64 - at % PAGE_SIZE_BYTES as u64;
            let size = usize::try_from(page).unwrap_or(PAGE_SIZE_BYTES).min(rest.len());
            let (piece, behind) = rest.split_at_mut(size);
            match self.memory.read(at, piece) {
                Err(error) if error.kind() == ErrorKind::Corrupted => piece.fill(0),
                read => read?,
            }
            at += size as u64;
            rest = behind;
        }
        Ok(())
    }

    /// A log is damaged: a repair notes that and goes on.
    pub(super) fn note_damaged_log(&self, number: u32, error: Error) -> Result<()> {
        let Some(damaged) = self.damaged.as_ref().filter(|_| error.kind() == ErrorKind::Corrupted)
        else {
            return Err(error);
        };
        tracing::warn!(chunk = number, %error, "a log is damaged");
        damaged.logs.lock().insert(number);
        Ok(())
    }

    /// An entry of a log has a record without its key.
    pub(super) fn note_keyless_in(&self, hash: u64, number: u32) {
        if let Some(damaged) = &self.damaged {
            damaged.keyless.lock().entry(hash).or_default().push(number);
        }
    }

    /// Nothing newer was found of keyless entries with these hashes: their logs are damaged. False outside of a repair.
    pub(super) fn note_keyless_damaged(&self, hashes: impl Iterator<Item = u64>) -> bool {
        let Some(damaged) = &self.damaged else { return false };
        let keyless = damaged.keyless.lock();
        let logs = hashes.filter_map(|hash| keyless.get(&hash)).flatten();
        damaged.logs.lock().extend(logs);
        true
    }

    /// An entry points at a line that is no record of its own. False outside of a repair.
    pub(super) fn note_misplaced(&self, word: Word, line: u64) -> bool {
        let Some(damaged) = &self.damaged else { return false };
        damaged.misplaced.lock().insert(word);
        damaged.not_own.lock().insert(line);
        true
    }

    /// Whether an entry points at this line whose own it is not.
    pub(super) fn is_not_own(&self, line: u64) -> bool {
        self.damaged.as_ref().is_some_and(|damaged| damaged.not_own.lock().contains(&line))
    }

    /// Finds what there is and makes it sound; `None` if an image of the index is no help.
    fn recover_and_mend(
        &self,
        root: &Root,
        options: &Options,
        images: bool,
    ) -> Result<Option<RepairReport>> {
        let recovered = match self.recover(root, options, images) {
            Err(error) if images && error.kind() == ErrorKind::Corrupted => false,
            recovered => recovered?,
        };
        if !recovered {
            return Ok(None);
        }
        self.versions.raise(options.testing.first_version);
        self.mend(&root.headless, images)
    }

    /// Makes the store sound; `None` if its index is of an image and has an entry whose key nobody knows: without that, older ones
    /// would count, which the logs tell.
    fn mend(&self, headless: &[u32], is_of_image: bool) -> Result<Option<RepairReport>> {
        let Some(damaged) = &self.damaged else { return Ok(None) };
        // Whoever writes from here on begins a log of its own.
        for log in &self.logs {
            if let Some((number, tail)) = log.0.lock().open.take() {
                self.seal(number, tail)?;
            }
        }
        let (logs, others): (Vec<u32>, Vec<u32>) = self
            .chunks
            .iter()
            .map(|(number, _)| number)
            .partition(|number| self.chunks.get(*number).is_some_and(Chunk::is_log));
        others.into_iter().try_for_each(|number| self.blank(number))?;
        logs.into_iter().try_for_each(|number| self.look_at_log(number))?;
        let misplaced = std::mem::take(&mut *damaged.misplaced.lock());
        let count = damaged.logs.lock().len() + headless.len();
        let is_doubtful = count > 0;
        let mut report = RepairReport { damaged_segments: count as u64, ..RepairReport::default() };
        let (mut lost, mut found, mut nameless) = (Vec::new(), Vec::new(), Vec::new());
        self.each_word(&mut |met| {
            report.records += 1;
            match met {
                Err(word) => nameless.push(word),
                Ok(met) if misplaced.contains(&met.word) => found.push(met),
                Ok(met) if self.read_met(&met, is_doubtful)?.is_none() => lost.push(met),
                Ok(_) => {}
            }
            Ok(())
        })?;
        if is_of_image && !nameless.is_empty() {
            return Ok(None);
        }
        for met in found {
            self.rescue(&met, &mut report)?;
        }
        for met in lost {
            report.records_lost += 1;
            self.delete_key(&met.key, Condition::Always)?;
        }
        for (hash, word) in nameless {
            report.records_lost += 1;
            damaged.logs.lock().insert(self.layout.chunk_of(Place::of(word).offset));
            if self.index.remove(hash, &[], word) {
                self.let_go(word, None);
            }
        }
        let logs = std::mem::take(&mut *damaged.logs.lock());
        for number in logs {
            self.empty_log(number, &mut report)?;
        }
        for number in headless {
            // PERSIST: what could be read of it stands elsewhere, durably.
            self.chunks.release(&*self.memory, *number, self.versions.next())?;
        }
        Ok(Some(report))
    }

    /// Notes whether a log is damaged.
    fn look_at_log(&self, number: u32) -> Result<()> {
        let mut buffer = Vec::new();
        self.read_log(number, &mut buffer)?;
        let behind = self.look_behind(number, buffer.len() as u64);
        let mut noted = behind.or_else(|error| self.note_damaged_log(number, error));
        self.verify_log(number, &mut buffer, &mut |error| {
            if noted.is_ok() {
                noted = self.note_damaged_log(number, error);
            }
        });
        noted
    }

    /// Writes zeros over lines of a chunk that the medium has lost, which can be read again then. No record that is whole stands there. Where
    /// they cannot be written, the chunk is found to be bad when it is taken.
    fn blank(&self, number: u32) -> Result<()> {
        let start = self.layout.start_of(number);
        let is_lost = |offset: u64, size: usize| {
            let mut bytes = [0; PAGE_SIZE_BYTES];
            let bytes = bytes.get_mut(..size).unwrap_or_default();
            match self.memory.read(offset, bytes) {
                Err(error) if error.kind() == ErrorKind::Corrupted => Ok(true),
                read => read.map(|()| false),
            }
        };
        for from in (CHUNK_START..self.layout.chunk_size).step_by(PAGE_SIZE_BYTES) {
            let to = self.layout.chunk_size.min(from + PAGE_SIZE_BYTES as u64);
            if !is_lost(start + from, usize::try_from(to - from).unwrap_or(0))? {
                continue;
            }
            for offset in (start + from..start + to).step_by(LINE) {
                if !is_lost(offset, LINE)? {
                    continue;
                }
                let blanked = self
                    .memory
                    .store(sites::RESTORE_STORE, offset, &[0; LINE])
                    .and_then(|()| self.memory.flush(sites::RESTORE_FLUSH, offset, LINE as u64))
                    .and_then(|()| self.memory.fence(sites::RESTORE_FENCE));
                match blanked {
                    Err(error) if error.kind() == ErrorKind::Corrupted => {}
                    blanked => blanked?,
                }
            }
        }
        Ok(())
    }

    /// Gives everything that the index has to `visit`; hash and word, if nobody knows the key.
    fn each_word(
        &self,
        visit: &mut dyn FnMut(std::result::Result<Met, (u64, Word)>) -> Result<()>,
    ) -> Result<()> {
        let mut cursor = Cursor::Start;
        while let Some((part, next)) = self.index.walk(&cursor) {
            cursor = next;
            match part {
                Part::Hashes(entries) => entries.into_iter().try_for_each(|(hash, word)| {
                    let key = self.with_entry(Place::of(word), Since::HELD, |entry, _| {
                        self.key_of_entry(entry).map(|key| key.map(Cow::into_owned))
                    });
                    let key = match key.and_then(Option::transpose) {
                        Err(error) if error.kind() == ErrorKind::Corrupted => None,
                        key => key?.flatten(),
                    };
                    visit(key.map(|key| Met { hash, key, word }).ok_or((hash, word)))
                })?,
                Part::Keys(entries) => entries.into_iter().try_for_each(|(key, word)| {
                    visit(Ok(Met { hash: self.hasher.hash(&key), key, word }))
                })?,
            }
        }
        Ok(())
    }

    /// What a key has; `None` if that is damaged, the inner one if it has no value.
    ///
    /// Where logs are damaged, an entry may count that had been overtaken, and the place of its record may have the record of a
    /// tombstone of the same key by now, which looks like an empty value: that is lost as well.
    fn read_met(&self, met: &Met, is_doubtful: bool) -> Result<Option<Option<Value>>> {
        let place = Place::of(met.word);
        let is_named = match place.kind == Kind::TombstoneRecord {
            true => self.with_entry(place, Since::HELD, |entry, _| {
                self.key_of_entry(entry).map(|key| key.as_deref() == Some(&met.key))
            }),
            false => Ok(Some(Ok(true))),
        };
        let read = match is_named.and_then(Option::transpose) {
            Ok(Some(false)) => return Ok(None),
            Err(error) => Err(error),
            _ => self.read_value(met.hash, &met.key, met.word, Since::HELD, &mut |_| Ok(())),
        };
        match read {
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                tracing::warn!(%error, "a record is lost");
                Ok(None)
            }
            read => {
                let value = read?.flatten();
                let is_empty = value.as_ref().is_some_and(|value| value.is_empty());
                let in_record = place.kind == Kind::Record;
                Ok((!(is_doubtful && is_empty && in_record)).then_some(value))
            }
        }
    }

    /// Writes a value anew, or deletes its key. Until that is durable the index has what there was: no cleaner, which has to make room for
    /// it, frees the only copy.
    fn rescue(&self, met: &Met, report: &mut RepairReport) -> Result<()> {
        let value = self.read_met(met, true)?;
        report.records_lost += u64::from(value.is_none());
        match value.flatten() {
            Some(value) => {
                report.records_moved += 1;
                self.put_value(&met.key, &value, value.attributes(), Condition::Always)?;
            }
            None => drop(self.delete_key(&met.key, Condition::Always)?),
        }
        Ok(())
    }

    /// Copies what counts in a log elsewhere, and frees its chunk.
    fn empty_log(&self, number: u32, report: &mut RepairReport) -> Result<()> {
        let Some(chunk) = self.chunks.get(number) else { return Ok(()) };
        // One in which nothing counts may have been freed meanwhile, or have become the log of somebody who writes now.
        if chunk.usage() != Use::Log {
            return Ok(());
        }
        let (salt, (entries, dead)) = (chunk.salt(), chunk.counts());
        let victim = Victim { number, born: self.versions.meet(), needed: 0 };
        self.copy_live(&mut self.cleaner_of_log(number), victim, &mut Vec::new())?;
        // Entries that are whole, of batches that are not.
        let mut left = Vec::new();
        self.each_word(&mut |met| {
            let is_here = |met: &Met| self.layout.chunk_of(Place::of(met.word).offset) == number;
            left.extend(met.ok().filter(is_here));
            Ok(())
        })?;
        let live = u64::from(entries.saturating_sub(dead));
        report.records_moved += live.saturating_sub(left.len() as u64);
        left.into_iter().try_for_each(|met| self.rescue(&met, report))?;
        // The same once the last of them has left it.
        if chunk.usage() != Use::Log || chunk.salt() != salt {
            return Ok(());
        }
        self.blank(number)?;
        self.release_log(&mut self.cleaner_of_log(number), number)
    }
}
