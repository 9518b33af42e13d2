//! Backups: the pairs of a snapshot, in parts, and large values, each in a file; taken while everything goes on.
//!
//! A part ends at a key whose hash says so, so neighbours of a change fall into the same parts again: parts and values that
//! an earlier backup in the folder has are named once more and not written. Format: `docs/format/flex-db.md`.
//!
//! # Concurrency
//! One backup of a store at a time. It holds a snapshot, and nothing that others wait for.
//!
//! # Failure
//! Files are durable before the manifest names them, and it gets its name at once; older files go last. A crash or an
//! error leaves the earlier backup, and files that the next one removes.

use super::Flex;
use super::expired::expiry_of;
use crate::backup::BackupReport;
use crate::engine::backup::{publish, read_manifest, remove_unnamed};
use crate::engine::{self, Engine};
use crate::options::Progress;
use crate::store::Direction;
use esker_base::checksum::{Crc32c, crc32c};
use esker_base::ids::Version;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::backup::{
    BACKUP_ENTRY_SIZE, BACKUP_HEADER_SIZE, BackupEntry, BackupForm, FlexBackup,
};
use esker_format::flex_db::{Content, Pair, RunWriter};
use esker_media::Archive;
use std::collections::HashMap;
use std::ops::Bound;
use std::ops::ControlFlow::Continue;

const BACK_UP: &str = "back up";

/// A part ends behind a key whose hash has no bit of this mask, if it is not too short, and in any case when it is long.
const PART_MASK: u64 = (1 << 12) - 1;
const PART_BYTES_MIN: usize = 64 << 10;
const PART_BYTES_MAX: usize = 8 << 20;
/// No manifest is larger: a backup of more files fails before it is one.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// A backup that is being made.
struct Making<'a> {
    flex: &'a Flex,
    archive: &'a dyn Archive,
    progress: &'a Progress,
    number: u64,
    /// Files of the earlier backup: parts by hash, checksum and length, values by number.
    parts: HashMap<(u64, u32, u64), BackupEntry>,
    values: HashMap<u64, BackupEntry>,
    run: RunWriter,
    /// For keys that do not stand side by side.
    key: Vec<u8>,
    entries: Vec<BackupEntry>,
    report: BackupReport,
}

/// What a backup reads, which the store keeps until this is dropped, also by a panic of whoever is told of the progress, or until somebody
/// needs the room (H2).
struct Released<'a>(&'a Flex);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.0.release_backup();
    }
}

impl Making<'_> {
    fn add(&mut self, pair: &Pair<'_>) -> Result<()> {
        if let Content::Large(_, number, length) = pair.content
            && !self.add_large(number, length)?
        {
            // The time of the pair may have come meanwhile. What was copied is no file of the backup.
            return match self.flex.clock.is_expired(expiry_of(&pair.content)) {
                true => Ok(()),
                false => Err(self.flex.damaged("a large value is missing")),
            };
        }
        self.run.push(pair);
        let size = self.run.size_bytes();
        let ends = self.flex.hasher.hash(pair.key.bytes(&mut self.key)) & PART_MASK == 0
            && size >= PART_BYTES_MIN;
        if ends || size >= PART_BYTES_MAX {
            self.end_part()?;
        }
        Ok(())
    }

    fn end_part(&mut self) -> Result<()> {
        if self.run.count() == 0 {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.run.finish(Some(&[]), &mut bytes);
        self.run.restart(0);
        let mut entry = BackupEntry {
            form: BackupForm::Part,
            checksum: crc32c(&bytes),
            number: self.number,
            id: self.entries.len() as u64,
            length_bytes: bytes.len() as u64,
            hash: self.flex.hasher.hash(&bytes),
        };
        match self.parts.get(&(entry.hash, entry.checksum, entry.length_bytes)) {
            Some(earlier) => {
                entry = *earlier;
                self.report.segments_reused += 1;
            }
            None => {
                let mut writer = self.archive.create(&entry.file_name())?;
                writer.write(&bytes)?;
                writer.finish(engine::sites::BACKUP_FILE_FLUSH)?;
                self.copied(&entry);
            }
        }
        self.name(entry)
    }

    /// Whether the value was there until it was copied.
    fn add_large(&mut self, number: u64, length: u64) -> Result<bool> {
        let checksum = self.flex.large.checksum_of(number);
        let is_same =
            |entry: &&BackupEntry| entry.length_bytes == length && Some(entry.checksum) == checksum;
        if let Some(earlier) = self.values.get(&number).filter(is_same) {
            self.report.segments_reused += 1;
            return self.name(*earlier).map(|()| true);
        }
        let mut entry = BackupEntry {
            form: BackupForm::Large,
            checksum: 0,
            number: self.number,
            id: number,
            length_bytes: length,
            hash: 0,
        };
        let mut writer = self.archive.create(&entry.file_name())?;
        let mut checksum = Crc32c::new();
        let found = self.flex.visit_large(number, length, &mut |bytes| {
            self.progress.check(BACK_UP)?;
            checksum.update(bytes);
            writer.write(bytes)
        })?;
        if !found {
            return Ok(false);
        }
        writer.finish(engine::sites::BACKUP_FILE_FLUSH)?;
        entry.checksum = checksum.finish();
        self.copied(&entry);
        self.name(entry).map(|()| true)
    }

    /// The manifest is to name a file.
    fn name(&mut self, entry: BackupEntry) -> Result<()> {
        self.entries.push(entry);
        let entries = self.entries.len() as u64 * BACKUP_ENTRY_SIZE as u64;
        let most = self.flex.options.manifest_bytes_max;
        if BACKUP_HEADER_SIZE as u64 + entries <= most {
            return Ok(());
        }
        let files = most.saturating_sub(BACKUP_HEADER_SIZE as u64) / BACKUP_ENTRY_SIZE as u64;
        let words = format!("a backup has up to {files} files: large values, and parts of others");
        Err(Error::new(ErrorKind::Unsupported, BACK_UP).context(words))
    }

    fn copied(&mut self, entry: &BackupEntry) {
        self.report.segments_copied += 1;
        self.report.bytes_copied += entry.length_bytes;
    }
}

impl Flex {
    /// Copies the store to `archive`.
    pub(super) fn backup_store(
        &self,
        archive: &dyn Archive,
        progress: &Progress,
    ) -> Result<BackupReport> {
        self.begin(BACK_UP)?;
        self.wal.check()?;
        let Some(_turn) = self.backing_up.try_lock() else {
            return Err(Error::new(ErrorKind::Locked, BACK_UP)
                .context("another backup of this store is under way"));
        };
        let earlier: Option<FlexBackup> = read_manifest(archive)?;
        if earlier.as_ref().is_some_and(|earlier| earlier.store_id != self.store_id) {
            let words = "the folder has backups of another store";
            return Err(Error::invalid(BACK_UP, words).device(archive.name()));
        }
        remove_unnamed(archive, earlier.as_ref())?;
        let mut making = Making {
            flex: self,
            archive,
            progress,
            number: earlier.as_ref().map_or(1, |earlier| earlier.number + 1),
            parts: HashMap::new(),
            values: HashMap::new(),
            run: RunWriter::new(0),
            key: Vec::new(),
            entries: Vec::new(),
            report: BackupReport::default(),
        };
        for entry in earlier.into_iter().flat_map(|earlier| earlier.entries) {
            if archive.size_bytes_of(&entry.file_name())? == Some(entry.length_bytes) {
                match entry.form {
                    BackupForm::Part => drop(
                        making
                            .parts
                            .insert((entry.hash, entry.checksum, entry.length_bytes), entry),
                    ),
                    BackupForm::Large => drop(making.values.insert(entry.id, entry)),
                }
            }
        }
        let version = self.snapshot()?;
        self.snapshots.begin_backup(version);
        let released = Released(self);
        let copied = self.copy_snapshot(&mut making, version);
        // H2. Whatever it met then.
        self.check_kept()?;
        copied?;
        drop(released);
        let Making { entries, mut report, number, .. } = making;
        report.last_version = Version(version);
        let manifest = FlexBackup {
            store_id: self.store_id,
            number,
            last_version: version,
            created_unix_seconds: self.clock.unix_seconds(),
            capacity_bytes: self.capacity_bytes,
            entries,
        };
        publish(archive, &manifest)?;
        Ok(report)
    }

    /// Gives up what is kept for the backup under way; false if there is none, or that was done.
    pub(super) fn release_backup(&self) -> bool {
        let version = self.snapshots.end_backup();
        version.into_iter().for_each(|version| self.release(version));
        version.is_some()
    }

    /// Fails if a writer needed the room of what was kept for the backup.
    fn check_kept(&self) -> Result<()> {
        if self.snapshots.keeps_for_backup() {
            return Ok(());
        }
        let words = "the store was full: it went on without what was not copied yet";
        Err(Error::new(ErrorKind::NoSpace, BACK_UP).context(words))
    }

    fn copy_snapshot(&self, making: &mut Making<'_>, version: u64) -> Result<()> {
        // About: what the store has now.
        let all = self.index.size_bytes() + self.large.size_bytes();
        let mut done = 0;
        let range = (Bound::Unbounded, Bound::Unbounded);
        self.visit_at(range, Direction::Forward, usize::MAX, version, |pair| {
            let pair = pair?;
            self.begin(BACK_UP)?;
            making.progress.check(BACK_UP)?;
            // Behind the read: it was kept until then.
            self.check_kept()?;
            if self.clock.is_expired(expiry_of(&pair.content)) {
                // Its large value may be gone meanwhile.
                return Ok(Continue(()));
            }
            making.add(pair)?;
            let value = match pair.content {
                Content::Put(_, value) => value.len() as u64,
                Content::Large(.., length) => length,
                Content::Delete => 0,
            };
            done += pair.key.len() as u64 + value;
            making.progress.report(done.min(all), all);
            Ok(Continue(()))
        })?;
        making.end_part()?;
        making.progress.report(all, all);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Durability, EngineKind, Options};
    use crate::value::PutOptions;
    use esker_media::sim::SimArchive;

    #[test]
    fn a_backup_of_more_files_than_a_manifest_names_fails_and_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        // As many as there are: five large values, and a part with their keys.
        let mut options = Options::new(folder.path());
        options.engine = Some(EngineKind::Flex);
        options.durability = Durability::None;
        options.testing.background = false;
        options.flex.large_value_size_bytes = 1000;
        options.flex.manifest_bytes_max = (BACKUP_HEADER_SIZE + 6 * BACKUP_ENTRY_SIZE) as u64;
        let flex = Flex::open(&options).unwrap();
        let put = |flex: &Flex, number: u8| {
            flex.put(&[number], &[number; 2000], PutOptions::default()).unwrap();
        };
        (0..5).for_each(|number| put(&flex, number));
        let archive = SimArchive::new();
        let back_up = || flex.backup_store(&archive, &Progress::default());
        assert_eq!(back_up().unwrap().segments_copied, 6);
        let read = || read_manifest::<FlexBackup>(&archive).unwrap().unwrap();
        let before = read();
        put(&flex, 5);
        let error = back_up().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(read(), before);
        for entry in &before.entries {
            let size = archive.size_bytes_of(&entry.file_name()).unwrap();
            assert_eq!(size, Some(entry.length_bytes), "{}", entry.file_name());
        }
        // With one value less it is possible again.
        flex.delete(&[0], None).unwrap();
        assert_eq!(back_up().unwrap().segments_copied, 2);
        assert_eq!(read().number, before.number + 1);
        flex.close().unwrap();
    }
}
