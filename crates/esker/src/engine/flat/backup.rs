//! Backups: a copy of the logs and records as they stood at one moment, taken while everything goes on.
//!
//! A backup is what a power cut at that moment, the *cut*, could have left, so restoring is recovery. The cut is made with
//! the locks of all keys and of all cleaners: no write and no move is under way, all versions below the next one are in the
//! logs, durable, and none above. Each log is copied up to its tail then; a log only grows behind it. What the entries
//! there point at is not overwritten before it is copied ([`super::hold`]): records that are freed meanwhile are parked, and
//! their chunks change only where nothing was in use.
//!
//! What is copied was verified, as `check` does: logs in the memory that they are copied from, records before the cut, with their
//! entries, which have the keys that checksums of records cover. What is written from then on is as it was written.
//!
//! Full logs and large records do not change in one incarnation, so those that an earlier backup has, by number, epoch, salt and
//! the checksum of what they hold, are not copied again and not held. Open logs and chunks of blocks may change, so they are held and
//! read; where the file of an earlier backup has the same bytes it is kept. All of it is compared: a checksum would not tell all
//! changes.
//!
//! # Concurrency
//! One backup at a time. The locks are held for a look at each chunk; then nothing is held across a copy that anybody
//! waits for. If a writer finds no room, the hold is broken and the backup fails.
//!
//! # Failure
//! As [`crate::engine::backup`].

use super::chunks::{Chunk, Since, Use};
use super::hold::Holding;
use super::index::Part as IndexPart;
use super::layout::kind_of;
use super::recover::read_header;
use super::{Flat, sites};
use crate::backup::BackupReport;
use crate::engine;
use crate::engine::Cursor;
use crate::engine::backup::{Copied, copied, publish, read_manifest, remove_unnamed};
use crate::options::Progress;
use esker_base::checksum::Crc32c;
use esker_base::ids::{SegmentEpoch, SegmentId, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::backup::{FlatManifest, ManifestEntry, SegmentForm};
use esker_format::flat::{CHUNK_HEADER_SIZE, CHUNK_START, ChunkHeader};
use esker_index::Word;
use esker_media::{Archive, IoBuf};
use std::sync::atomic::Ordering;

/// A chunk of the cut, or the chunks of a large record.
struct Part {
    header: ChunkHeader,
    chunks: u32,
    form: SegmentForm,
    is_log: bool,
    /// Bytes to copy of each.
    length: u64,
}

/// What a backup covers.
struct Cut {
    next_version: u64,
    clear_version: u64,
    /// Chunks to copy, if no earlier backup turns out to have them.
    missing: Vec<Part>,
    /// Chunks that do not change, and that an earlier backup has.
    entries: Vec<ManifestEntry>,
}

impl Flat {
    /// Copies the store to `archive`.
    pub(super) fn backup_store(
        &self,
        archive: &dyn Archive,
        progress: &Progress,
    ) -> Result<BackupReport> {
        self.refuse()?;
        let earlier: Option<FlatManifest> = read_manifest(archive)?;
        if let Some(earlier) = &earlier
            && earlier.superblock.store_id != self.layout.store_id
        {
            let words = format!(
                "the folder has backups of store {}, this one is {}",
                earlier.superblock.store_id, self.layout.store_id
            );
            return Err(Error::invalid("back up", words).device(archive.name()));
        }
        remove_unnamed(archive, earlier.as_ref())?;
        let copied = copied(archive, earlier.as_ref())?;
        let same = self.same_of(&copied, progress)?;
        let number = earlier.map_or(1, |earlier| earlier.number + 1);
        self.verify_records(progress)?;
        let (holding, cut) = self.cut(&same)?;
        let Cut { next_version, clear_version, missing, mut entries } = cut;
        for (done, part) in (0..).zip(&missing) {
            progress.report(done, missing.len() as u64);
            let part = (part, number);
            self.copy_part(archive, &copied, &holding, part, progress, &mut entries)?;
        }
        progress.report(missing.len() as u64, missing.len() as u64);
        drop(holding);
        entries.sort_by_key(|entry| entry.id);
        let new = entries.iter().filter(|entry| entry.number == number);
        let segments_copied = new.clone().count() as u64;
        let report = BackupReport {
            segments_copied,
            segments_reused: entries.len() as u64 - segments_copied,
            bytes_copied: new.map(|entry| entry.length_bytes).sum(),
            last_version: Version(next_version.saturating_sub(1)),
        };
        let manifest = FlatManifest {
            number,
            next_version: Version(next_version),
            clear_version: Version(clear_version),
            created_unix_seconds: self.clock.unix_seconds(),
            superblock: self.superblock,
            segments: entries,
        };
        publish(archive, &manifest)?;
        Ok(report)
    }

    /// Chooses what the backup covers, and begins to hold what is not copied yet.
    fn cut(&self, same: &Copied) -> Result<(Holding<'_>, Cut)> {
        let _locks = self.keys.lock_all();
        let _still = self.hold_cleaning();
        self.refuse()?;
        let mut cut = Cut {
            next_version: self.versions.meet(),
            clear_version: self.cleared.lock().version,
            missing: Vec::new(),
            entries: Vec::new(),
        };
        for (number, chunk) in self.chunks.iter() {
            let Some(part) = self.part_of(number, chunk)? else { continue };
            let numbers = number..number + part.chunks;
            let known: Option<Vec<ManifestEntry>> =
                numbers.map(|number| self.known_in(same, &part, number)).collect();
            match known.filter(|_| part.form == SegmentForm::Whole) {
                Some(known) => cut.entries.extend(known),
                None => cut.missing.push(part),
            }
        }
        let kept = cut.missing.iter().map(|part| part.header.number).collect();
        let holding = self.begin_hold(kept).ok_or_else(|| {
            Error::new(ErrorKind::Locked, "back up")
                .context("another backup of this store is under way")
        })?;
        Ok((holding, cut))
    }

    /// What is to be copied of a chunk, or of the chunks of the large record that begins there; `None` if nothing is.
    fn part_of(&self, number: u32, chunk: &Chunk) -> Result<Option<Part>> {
        let tail = u64::from(chunk.tail.load(Ordering::Relaxed)).max(CHUNK_START);
        let live = chunk.live.load(Ordering::Relaxed) > 0;
        let (form, length) = match chunk.usage() {
            Use::Log => (SegmentForm::Whole, tail),
            Use::OpenLog => (SegmentForm::Cut, tail),
            Use::Blocks if live => (SegmentForm::Cut, self.layout.chunk_size),
            Use::Large if live => (SegmentForm::Whole, self.layout.chunk_size),
            _ => return Ok(None),
        };
        let Some((header, _)) = read_header(&*self.memory, &self.layout, number)? else {
            let words = format!("neither header of chunk {number} is whole");
            return Err(Error::corrupted("back up", words).device(self.memory.name()));
        };
        let chunks = if chunk.usage() == Use::Large { header.chunks.max(1) } else { 1 };
        Ok(Some(Part { header, chunks, form, is_log: chunk.is_log(), length }))
    }

    /// The file of an earlier backup that has as much of a chunk of a part.
    fn known_in(&self, earlier: &Copied, part: &Part, number: u32) -> Option<ManifestEntry> {
        let entry = self.entry_of(part, number, 0);
        let known = earlier.get(&(entry.id, entry.epoch.0, entry.salt));
        let known = known.filter(|known| known.length_bytes == entry.length_bytes);
        known.map(|known| ManifestEntry { form: part.form, ..*known })
    }

    /// Of the files that an earlier backup has, those of chunks that do not change, with what these hold. A store whose medium is put
    /// back to what it was goes on from there, with the same epochs as after the first time.
    fn same_of(&self, copied: &Copied, progress: &Progress) -> Result<Copied> {
        let mut same = Copied::new();
        for (number, chunk) in self.chunks.iter().filter(|_| !copied.is_empty()) {
            progress.check("back up")?;
            // It may be freed meanwhile; what cannot be read is told when it is copied.
            let Ok(Some(part)) = self.part_of(number, chunk) else { continue };
            if part.form != SegmentForm::Whole {
                continue;
            }
            for number in number..number + part.chunks {
                if let Some(known) = self.known_in(copied, &part, number)
                    && self.part_bytes(number, &part).is_ok_and(|(_, sum)| sum == known.checksum)
                {
                    same.insert((known.id, known.epoch.0, known.salt), known);
                }
            }
        }
        Ok(same)
    }

    fn entry_of(&self, part: &Part, number: u32, backup: u64) -> ManifestEntry {
        ManifestEntry {
            id: SegmentId(number),
            epoch: SegmentEpoch(part.header.epoch),
            salt: part.header.salt(&self.layout.store_id),
            form: part.form,
            length_bytes: part.length,
            number: backup,
            checksum: 0,
        }
    }

    /// Copies one part, each chunk to a file of its own, unless there is one.
    fn copy_part(
        &self,
        archive: &dyn Archive,
        earlier: &Copied,
        holding: &Holding<'_>,
        (part, backup): (&Part, u64),
        progress: &Progress,
        entries: &mut Vec<ManifestEntry>,
    ) -> Result<()> {
        let first = part.header.number;
        for number in first..first + part.chunks {
            progress.check("back up")?;
            self.check_open()?;
            if holding.is_broken() {
                // The end of this part tells.
                break;
            }
            let (bytes, checksum) = self.part_bytes(number, part)?;
            let known = self.known_in(earlier, part, number);
            let known = known.filter(|known| {
                (known.checksum == checksum && self.has_bytes(archive, known, &bytes))
                    || sites::BACKUP_SAME.disabled()
            });
            if let Some(known) = known {
                entries.push(known);
                continue;
            }
            let entry = ManifestEntry { checksum, ..self.entry_of(part, number, backup) };
            let mut writer = archive.create(&entry.file_name())?;
            writer.write(&bytes)?;
            writer.finish(engine::sites::BACKUP_FILE_FLUSH)?;
            entries.push(entry);
        }
        if !holding.release(first) && !sites::BACKUP_HOLD.disabled() {
            self.check_open()?;
            return Err(Error::new(ErrorKind::NoSpace, "back up").context(
                "the store ran short of free chunks while they were copied, and went on without the \
                 backup; the earlier backup is as it was",
            ));
        }
        Ok(())
    }

    /// Whether the file of an earlier backup has these bytes. One that cannot be read has not.
    fn has_bytes(&self, archive: &dyn Archive, known: &ManifestEntry, bytes: &[u8]) -> bool {
        let mut found = self.pool.get(bytes.len());
        let read = archive.read_at(&known.file_name(), 0, &mut found);
        read.is_ok_and(|read| read == bytes.len()) && *found == *bytes
    }

    /// The bytes of a chunk of a part as they are copied, and their checksum.
    fn part_bytes(&self, number: u32, part: &Part) -> Result<(IoBuf, u32)> {
        let mut bytes = self.pool.get(usize::try_from(part.length).unwrap_or(0));
        self.memory.read(self.layout.start_of(number), &mut bytes)?;
        if part.is_log {
            let mut damage = None;
            self.verify_log(number, &mut bytes, &mut |error| {
                damage.get_or_insert(error);
            });
            damage.map_or(Ok(()), Err)?;
        }
        if number == part.header.number {
            // Of two copies the one that is whole.
            let header = part.header.encode(&self.layout.store_id);
            for copy in bytes.chunks_exact_mut(CHUNK_HEADER_SIZE).take(2) {
                copy.copy_from_slice(&header);
            }
        }
        let mut crc = Crc32c::new();
        crc.update(&bytes);
        Ok((bytes, crc.finish()))
    }

    /// Reads all records that the index knows, each with its entry.
    fn verify_records(&self, progress: &Progress) -> Result<()> {
        let mut cursor = Cursor::Start;
        loop {
            // The caller's word, while nothing is held.
            progress.check("back up")?;
            // For one part: nothing in it is moved, and what is gone was written anew.
            let _still = self.hold_cleaning();
            self.check_open()?;
            let Some((part, next)) = self.index.walk(&cursor) else { return Ok(()) };
            cursor = next;
            match part {
                IndexPart::Hashes(entries) => {
                    for (hash, word) in entries {
                        self.verify_record((hash, &[]), word)?;
                    }
                }
                IndexPart::Keys(entries) => {
                    for (key, word) in entries {
                        self.verify_record((self.hasher.hash(&key), &key), word)?;
                    }
                }
            }
        }
    }

    /// Reads the record of an entry, if it has one. Nothing is moved meanwhile.
    fn verify_record(&self, (hash, key): (u64, &[u8]), word: Word) -> Result<()> {
        if kind_of(word).has_record()
            && !self.is_cleared(word)
            && let Some(key) = self.key_of((hash, key), word, Since::HELD)?
        {
            self.read_value(hash, &key, word, Since::HELD, &mut |_| Ok(()))?;
        }
        Ok(())
    }
}
