//! Backups of a store, and stores from backups.
//!
//! [`Store::backup`](crate::Store::backup) copies an open store to a folder while everything goes on,
//! [`Store::backup_file`](crate::Store::backup_file) to a file;
//! [`restore`] makes a store of it elsewhere. Format: `docs/format/backup.md`.
//!
//! # Failure
//! A backup that fails leaves the earlier one in the folder as it was. A restore that fails leaves
//! a place that no open takes for a store; restore again.

use crate::devices;
use crate::engine::backup::{Backup, Listing, engine_of};
use crate::engine::depot::restore::restore as restore_depot;
use crate::engine::flat::restore::restore as restore_flat;
use crate::engine::flex::{FlexFiles, restore as flex};
use crate::engine::refuse_others;
use crate::options::{EngineKind, Options};
use esker_base::ids::Version;
use esker_base::units::format_size_bytes;
use esker_base::{Error, ErrorKind, Result};
use esker_format::backup::{BackupEngine, MANIFEST_NAME};
use esker_media::{Archive, BlockDevice, BufferPool, FolderArchive, Pmem, TarArchive};
use std::fmt;
use std::path::Path;

/// What a backup did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Segments that were copied; of `flex`, parts and large values.
    pub segments_copied: u64,
    /// Segments that an earlier backup in the folder had already.
    pub segments_reused: u64,
    /// Bytes that were copied.
    pub bytes_copied: u64,
    /// The backup holds every write up to this version, and none after it.
    pub last_version: Version,
}

impl fmt::Display for BackupReport {
    /// In one line, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} segments copied ({}), {} were there already; holds all writes up to version {}",
            self.segments_copied,
            format_size_bytes(self.bytes_copied),
            self.segments_reused,
            self.last_version
        )
    }
}

/// What a restore did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Segments that were written.
    pub segments: u64,
    /// Bytes of theirs in the backup.
    pub bytes: u64,
    /// The store holds every write up to this version, and none after it.
    pub last_version: Version,
}

/// Makes a store at `options.path` (and `options.devices`) from the backup in the folder or file `source`; it is opened as any other
/// afterwards. Its size is `options.size_bytes`, or that of the store that was backed up if it is 0;
/// segments keep their places, so a smaller one must still reach to the last one in use. It has the
/// identity of that store: do not use both as one.
///
/// Every checksum is compared. `options.format` replaces what is at the path, after the whole backup
/// was found sound; of `flex`, a size that turns out to be too small is found only behind that. `options.progress` is told the segments done and in all.
///
/// # Errors
/// `InvalidArgument` if there is no backup, if `options.read_only` is set, if there is something at the path (of another engine: also with `options.format`),
/// if it is too small, or if the store would be none that these options open (another engine, a cache);
/// `Corrupted` naming the file of the backup that is damaged or missing; `UnsupportedFormat`;
/// `Locked`; `NoSpace`; `Io`.
pub fn restore(source: &Path, options: &Options) -> Result<RestoreReport> {
    if options.read_only {
        return Err(Error::invalid(
            "restore store",
            "a store is not made by somebody who only reads",
        ));
    }
    let archive: &dyn Archive = match source.is_file() {
        true => &TarArchive::open(source)?,
        false => &FolderArchive::open(source)?,
    };
    if flex::is_flex(archive)? {
        check_engine(options, EngineKind::Flex)?;
        return flex::restore(archive, None, options);
    }
    let mut sized = options.clone();
    if engine_of(archive)? == Some(BackupEngine::Flat) {
        let backup = Backup::open(archive)?;
        check_engine(options, backup.kind())?;
        if sized.size_bytes == 0 {
            sized.size_bytes = backup.memory_size_bytes();
        }
        // Before there is a file that it does not fit in.
        backup.chunks_in(sized.size_bytes)?;
        before_replacing(&backup, options)?;
        let is_free = |memory: &dyn Pmem| backup.is_free_memory(memory);
        let memory = devices::open_memory_to_restore(&sized, is_free)?;
        return restore_flat(&backup, &*memory, options.format, &options.progress);
    }
    check_engine(options, EngineKind::Depot)?;
    let backup = Backup::open(archive)?;
    backup.fits_a_cache(options.cache)?;
    if sized.size_bytes == 0 {
        sized.size_bytes = backup.device_size_bytes();
    }
    // As above.
    backup.segments_in(sized.size_bytes)?;
    if options.format {
        // Opening takes what is there, if it is a set, or a file that gets another size: only for a backup that is sound, and fits there.
        let there = Options { create: false, format: false, ..sized.clone() };
        if let Ok(device) = devices::open(&there, None) {
            match options.devices.is_empty() {
                true => backup.check_blocks(&*device)?,
                false => backup.superblock(&*device).map(drop)?,
            }
        }
    }
    before_replacing(&backup, options)?;
    let is_free = |device: &dyn BlockDevice| backup.is_free_device(device);
    let device = devices::open_to_restore(&sized, backup.shape(), is_free)?;
    restore_depot(&backup, &*device, options.format, &options.progress)
}

/// Refuses a file that a new backup is not to take the place of: one that is no backup, or that somebody uses. It may be a store's.
pub(crate) fn check_replaced(target: &Path) -> Result<()> {
    if !target.metadata().is_ok_and(|found| found.is_file() && found.len() > 0) {
        return Ok(());
    }
    match TarArchive::open(target) {
        Ok(tar) if tar.size_bytes_of(MANIFEST_NAME)?.is_some() => Ok(()),
        Err(error) if error.kind() != ErrorKind::Corrupted => Err(error),
        _ => {
            let words = "the file is no backup: it stays, and a backup needs another name";
            Err(Error::invalid("back up store", words).device(target.display().to_string()))
        }
    }
}

/// Reads all of a backup, if it is to take the place of something.
fn before_replacing<M: Listing>(backup: &Backup<'_, M>, options: &Options) -> Result<()> {
    if options.format { backup.verify(&BufferPool::new(0)) } else { Ok(()) }
}

/// Refuses a backup of a store of `kind` if that of another engine is wanted, or is there, and options that no open takes.
fn check_engine(options: &Options, kind: EngineKind) -> Result<()> {
    const OPERATION: &str = "restore store";
    if options.engine.is_some_and(|wanted| wanted != kind) {
        return Err(Error::invalid(OPERATION, format!("this is a backup of a store of {kind}")));
    }
    options.check_for(kind)?;
    refuse_others(options, kind, OPERATION)
}

/// As [`restore`], of a store of `flex`, to devices that the caller opened.
#[doc(hidden)]
pub fn restore_flex_on(
    archive: &dyn Archive,
    files: FlexFiles,
    options: &Options,
) -> Result<RestoreReport> {
    flex::restore(archive, Some(files), options)
}

/// As [`restore`], from an archive to a device that the caller opened.
#[doc(hidden)]
pub fn restore_on(
    archive: &dyn Archive,
    device: &dyn BlockDevice,
    options: &Options,
) -> Result<RestoreReport> {
    let backup = Backup::open(archive)?;
    before_replacing(&backup, options)?;
    restore_depot(&backup, device, options.format, &options.progress)
}

/// As [`restore`], of a store of `flat` to memory that the caller opened.
#[doc(hidden)]
pub fn restore_on_memory(
    archive: &dyn Archive,
    memory: &dyn Pmem,
    options: &Options,
) -> Result<RestoreReport> {
    let backup = Backup::open(archive)?;
    before_replacing(&backup, options)?;
    restore_flat(&backup, memory, options.format, &options.progress)
}
