//! Restoring: a store from a backup, in a place that holds none.
//!
//! # Invariants
//! - Z1: until everything is durable, the root says that a restore did not end, and until there is a root the places of the space's headers
//!   do: an open refuses the store.
//! - Z2: no byte of the backup is believed before its checksum was compared.
//!
//! # Failure
//! A crash or an error leaves a store that is refused by an open, until it is restored again.

use super::commit::{Committer, GROUP_BYTES_MAX, GROUP_PAIRS_MAX};
use super::open::Restoring;
use super::{Flex, FlexFiles};
use crate::backup::RestoreReport;
use crate::engine::backup::Backup;
use crate::options::Options;
use esker_base::ids::Version;
use esker_base::units::format_size_bytes;
use esker_base::{ErrorKind, Result};
use esker_format::backup::MANIFEST_NAME;
use esker_format::flex_db::backup::{BACKUP_MAGIC, BackupEntry, BackupForm, FlexBackup};
use esker_format::flex_db::{Content, Pair, Run, RunWriter, Unfinished};
use esker_media::{Archive, BufferPool};
use std::collections::HashMap;

/// Whether the backup in an archive is one of a store of `flex`.
pub(crate) fn is_flex(archive: &dyn Archive) -> Result<bool> {
    let mut magic = [0; 8];
    if archive.size_bytes_of(MANIFEST_NAME)?.is_none() {
        return Ok(false);
    }
    archive.read_at(MANIFEST_NAME, 0, &mut magic)?;
    Ok(magic == BACKUP_MAGIC)
}

impl Backup<'_, FlexBackup> {
    fn bytes_of(&self, entry: &BackupEntry) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        self.each_piece(&BufferPool::new(0), entry, &mut |_, bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(all)
    }
}

/// Makes a store in these files, or in those of `options`, from the backup in `archive`.
///
/// # Errors
/// As for [`crate::restore`].
pub(crate) fn restore(
    archive: &dyn Archive,
    files: Option<FlexFiles>,
    options: &Options,
) -> Result<RestoreReport> {
    let backup: Backup<'_, FlexBackup> = Backup::open(archive)?;
    // Z2, and all of it before anything is replaced.
    backup.verify(&BufferPool::new(0))?;
    let mut sized = options.clone();
    sized.create = true;
    sized.testing.background = false;
    let fits = sized.size_bytes == 0;
    if fits {
        sized.size_bytes = backup.manifest.capacity_bytes;
    }
    let restoring = Restoring { store_id: backup.manifest.store_id, fits };
    let flex = Flex::open_to_restore(files, &sized, restoring)?;
    let report = flex.take_in(&backup, options).map_err(|error| match error.kind() {
        ErrorKind::NoSpace if !fits => {
            let own = format_size_bytes(backup.manifest.capacity_bytes);
            error.context(format!("the store that was backed up has {own}; a larger size may fit"))
        }
        _ => error,
    })?;
    // PERSIST: everything, before the root says that it is a store.
    flex.end_restore(backup.manifest.last_version)?;
    Ok(report)
}

impl Flex {
    fn take_in(&self, backup: &Backup<'_, FlexBackup>, options: &Options) -> Result<RestoreReport> {
        let mut report = RestoreReport {
            last_version: Version(backup.manifest.last_version),
            ..RestoreReport::default()
        };
        let entries = &backup.manifest.entries;
        let values: HashMap<u64, &BackupEntry> = entries
            .iter()
            .filter(|entry| entry.form == BackupForm::Large)
            .map(|entry| (entry.id, entry))
            .collect();
        // Later backups to the same folder tell values by their numbers.
        self.large.begin_above(values.keys().copied().max().unwrap_or(0));
        let mut committer = self.committer.lock();
        let mut last = Vec::new();
        for (done, entry) in (0..).zip(entries) {
            options.progress.report(done, entries.len() as u64);
            report.segments += 1;
            report.bytes += entry.length_bytes;
            if entry.form == BackupForm::Part {
                self.take_in_part(&mut committer, backup, entry, &values, &mut last)?;
            }
        }
        options.progress.report(entries.len() as u64, entries.len() as u64);
        Ok(report)
    }

    /// Puts the pairs of a part behind everything else.
    fn take_in_part(
        &self,
        committer: &mut Committer,
        backup: &Backup<'_, FlexBackup>,
        part: &BackupEntry,
        values: &HashMap<u64, &BackupEntry>,
        last: &mut Vec<u8>,
    ) -> Result<()> {
        let damaged = |words: &str| backup.damaged(part, words);
        let bytes = backup.bytes_of(part)?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let run = Run::take(&mut rest, || false).map_err(|flaw| damaged(&flaw.to_string()))?;
            let mut pairs = run.pairs();
            let mut group = RunWriter::new(0);
            for _ in 0..run.count {
                let pair = pairs.next().ok_or_else(|| damaged("a pair is not whole"))?;
                if pair.key <= last[..] {
                    return Err(damaged("keys are out of order"));
                }
                if group.count() >= GROUP_PAIRS_MAX || group.size_bytes() >= GROUP_BYTES_MAX {
                    self.put_group(committer, &group, last)?;
                    group.restart(0);
                }
                pair.key.copy_to(last);
                let content = match pair.content {
                    Content::Large(extra, number, length) => {
                        let entry = values
                            .get(&number)
                            .ok_or_else(|| damaged("a large value is missing"))?;
                        let bytes = backup.bytes_of(entry)?;
                        let mut reserved = self.reserve(Flex::large_size(last, &bytes));
                        let mut staged = self.stage(last, &bytes, &mut reserved)?;
                        let number = staged.number;
                        staged.keep(self.tables().active.generation, false);
                        Content::Large(extra, number, length)
                    }
                    content => content,
                };
                group.push(&Pair { content, ..pair });
            }
            self.put_group(committer, &group, last)?;
        }
        Ok(())
    }

    /// Adds pairs, whose last key is `last`, to the last interval, and cuts it.
    fn put_group(&self, committer: &mut Committer, group: &RunWriter, last: &[u8]) -> Result<()> {
        if group.count() == 0 {
            return Ok(());
        }
        self.admit_as_is(group.size_bytes())?;
        let located = self.index.locate(last);
        self.rewrite(committer, &located, Some(group), None)
    }

    /// Makes the store one that opens.
    fn end_restore(&self, last_version: u64) -> Result<()> {
        {
            let mut committer = self.committer.lock();
            self.space.sync()?;
            committer.root.last_version = last_version;
            committer.root.unfinished = Unfinished::No;
            self.space.write(0, &committer.root.encode())?;
        }
        self.space.checkpoint()?;
        // What was written anew on the way took more than what there is.
        let is_over = self.space.stat().file_size_bytes > self.capacity_bytes;
        if is_over { self.space.compact().map(drop) } else { Ok(()) }
    }
}
