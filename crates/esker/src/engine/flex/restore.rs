//! Restoring: a store from a backup, in a place that holds none.
//!
//! # Invariants
//! - Z1: until everything is durable, the root says that a restore did not end: an open refuses the store.
//! - Z2: no byte of the backup is believed before its checksum was compared.
//!
//! # Failure
//! A crash or an error leaves a store that is refused by an open, until it is restored again.

use super::backup::read_manifest;
use super::commit::{Committer, GROUP_BYTES_MAX, GROUP_PAIRS_MAX};
use super::open::Restoring;
use super::{Flex, FlexFiles};
use crate::backup::RestoreReport;
use crate::options::Options;
use esker_base::checksum::Crc32c;
use esker_base::ids::Version;
use esker_base::units::format_size_bytes;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::backup::MANIFEST_NAME;
use esker_format::flex_db::backup::{BACKUP_MAGIC, BackupEntry, BackupForm, FlexBackup};
use esker_format::flex_db::{Content, Pair, Run, RunWriter, Unfinished};
use esker_media::Archive;
use std::collections::HashMap;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Whether the backup in an archive is one of a store of `flex`.
pub(crate) fn is_flex(archive: &dyn Archive) -> Result<bool> {
    let mut magic = [0; 8];
    if archive.size_bytes_of(MANIFEST_NAME)?.is_none() {
        return Ok(false);
    }
    archive.read_at(MANIFEST_NAME, 0, &mut magic)?;
    Ok(magic == BACKUP_MAGIC)
}

/// A backup that is there.
struct Backup<'a> {
    archive: &'a dyn Archive,
    manifest: FlexBackup,
}

impl Backup<'_> {
    /// Gives the bytes of a file to `visit`, piece by piece; then compares the checksum.
    fn each_piece(&self, entry: &BackupEntry, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let name = entry.file_name();
        let damaged = |words: &str| {
            let device = format!("{}/{name}", self.archive.name());
            Err(Error::corrupted("read backup", words.to_owned()).device(device))
        };
        if self.archive.size_bytes_of(&name)? != Some(entry.length_bytes) {
            return damaged("the file is missing, or not as long as the manifest says");
        }
        let mut buffer = vec![0; READ_BYTES];
        let mut checksum = Crc32c::new();
        let mut at = 0;
        while at < entry.length_bytes {
            let read = self.archive.read_at(&name, at, &mut buffer)?;
            let bytes = buffer.get(..read).unwrap_or_default();
            if bytes.is_empty() {
                return damaged("the file is cut short");
            }
            checksum.update(bytes);
            visit(bytes);
            at += bytes.len() as u64;
        }
        if checksum.finish() != entry.checksum && !super::sites::RESTORE_CHECKSUM.disabled() {
            return damaged("checksum does not match");
        }
        Ok(())
    }

    fn bytes_of(&self, entry: &BackupEntry) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        self.each_piece(entry, &mut |bytes| all.extend_from_slice(bytes))?;
        Ok(all)
    }

    fn damaged(&self, words: &str) -> Error {
        Error::corrupted("read backup", words.to_owned()).device(self.archive.name())
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
    let Some(manifest) = read_manifest(archive)? else {
        let words = "there is no backup in this folder";
        return Err(Error::invalid("read backup", words).device(archive.name()));
    };
    let backup = Backup { archive, manifest };
    // Z2, and all of it before anything is replaced.
    backup.manifest.entries.iter().try_for_each(|entry| backup.each_piece(entry, &mut |_| ()))?;
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
    fn take_in(&self, backup: &Backup<'_>, options: &Options) -> Result<RestoreReport> {
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
                let bytes = backup.bytes_of(entry)?;
                self.take_in_part(&mut committer, backup, &bytes, &values, &mut last)?;
            }
        }
        options.progress.report(entries.len() as u64, entries.len() as u64);
        Ok(report)
    }

    /// Puts the pairs of a part behind everything else.
    fn take_in_part(
        &self,
        committer: &mut Committer,
        backup: &Backup<'_>,
        bytes: &[u8],
        values: &HashMap<u64, &BackupEntry>,
        last: &mut Vec<u8>,
    ) -> Result<()> {
        let damaged = |flaw: Flaw| backup.damaged(&flaw.to_string());
        let mut rest = bytes;
        while !rest.is_empty() {
            let run = Run::take(&mut rest, || false).map_err(damaged)?;
            let mut pairs = run.pairs();
            let mut group = RunWriter::new(0);
            for _ in 0..run.count {
                let pair = pairs.next().ok_or_else(|| backup.damaged("a pair is not whole"))?;
                if pair.key <= last[..] {
                    return Err(backup.damaged("keys are out of order"));
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
                            .ok_or_else(|| backup.damaged("a large value is missing"))?;
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
