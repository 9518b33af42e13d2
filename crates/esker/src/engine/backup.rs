//! What backups of all engines share: manifests of archives, files that an earlier backup has, and reading them back.
//!
//! # Failure
//! Files are durable before a manifest names them, and it gets its name at once; older files go last. A crash or an error
//! leaves the earlier backup and files that the next one removes before it begins.

use crate::engine::depot::sites;
use esker_base::checksum::Crc32c;
use esker_base::ids::SegmentId;
use esker_base::{Error, ErrorKind, Result};
use esker_format::backup::{
    BackupEngine, FlatManifest, MANIFEST_NAME, MANIFEST_NEW_NAME, Manifest, ManifestEntry,
    ManifestOf, Root, SegmentForm, is_backup_name,
};
use esker_format::flex_db::backup::FlexBackup;
use esker_media::{Archive, BufferPool, IoBuf};
use std::collections::{HashMap, HashSet};

/// Bytes read and written at once.
pub(crate) const COPY_SIZE: u64 = 1 << 20;

/// Full segments that an earlier backup has, by number, epoch and salt.
pub(crate) type Copied = HashMap<(SegmentId, u64, u64), ManifestEntry>;

/// The bytes of the manifest of an archive, if there is one.
fn read_bytes(archive: &dyn Archive) -> Result<Option<Vec<u8>>> {
    let Some(size) = archive.size_bytes_of(MANIFEST_NAME)? else {
        if let Some(other) = archive.list()?.into_iter().find(|name| !is_backup_name(name)) {
            let words = format!("the folder holds {other:?}, which is no part of a backup");
            return Err(Error::invalid("read backup", words).device(archive.name()));
        }
        return Ok(None);
    };
    // No more than a manifest of the largest store takes.
    const SIZE_MAX: u64 = 256 << 20;
    let size = usize::try_from(size.min(SIZE_MAX)).unwrap_or(0);
    let mut bytes = vec![0; size];
    let read = archive.read_at(MANIFEST_NAME, 0, &mut bytes)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// The engine of the backup in an archive; `None` if there is none, or nothing that tells.
pub(crate) fn engine_of(archive: &dyn Archive) -> Result<Option<BackupEngine>> {
    let bytes = read_bytes(archive)?;
    Ok(bytes.and_then(|bytes| esker_format::backup::engine_of(&bytes).ok()))
}

/// The manifest of an archive, if there is one.
///
/// # Errors
/// `Corrupted` naming the file, `UnsupportedFormat`, `Io`; `InvalidArgument` if the folder holds
/// something else.
pub(crate) fn read_manifest<R: Root>(archive: &dyn Archive) -> Result<Option<ManifestOf<R>>> {
    let named = |error: Error| error.device(format!("{}/{MANIFEST_NAME}", archive.name()));
    let Some(bytes) = read_bytes(archive)? else { return Ok(None) };
    let decoded = ManifestOf::decode(&bytes);
    decoded.map(Some).map_err(|flaw| match flaw {
        esker_format::Flaw::Version(version) => {
            let words = format!("format version {version} is not known to this build");
            named(Error::new(ErrorKind::UnsupportedFormat, "read backup").context(words))
        }
        flaw => match other_engine::<R>(&bytes) {
            Some(other) => {
                let words = format!("the folder has backups of a store of {other}");
                named(Error::invalid("read backup", words))
            }
            None => named(Error::corrupted("read backup", flaw.to_string())),
        },
    })
}

/// The engine of another kind of store, if this is the whole manifest of a backup of one.
fn other_engine<R: Root>(bytes: &[u8]) -> Option<&'static str> {
    if FlexBackup::decode(bytes).is_ok() {
        return Some("flex");
    }
    match R::ENGINE {
        BackupEngine::Depot => FlatManifest::decode(bytes).ok().map(|_| "flat"),
        BackupEngine::Flat => Manifest::decode(bytes).ok().map(|_| "depot"),
    }
}

/// Full segments of an earlier backup whose files are there.
pub(crate) fn copied<R>(archive: &dyn Archive, earlier: Option<&ManifestOf<R>>) -> Result<Copied> {
    let mut copied = HashMap::new();
    for entry in earlier.into_iter().flat_map(|manifest| &manifest.segments) {
        if entry.form == SegmentForm::Whole
            && archive.size_bytes_of(&entry.file_name())? == Some(entry.length_bytes)
        {
            copied.insert((entry.id, entry.epoch.0, entry.salt), *entry);
        }
    }
    Ok(copied)
}

/// Makes the manifest the one of the archive, and removes what it does not name.
pub(crate) fn publish<R: Root>(archive: &dyn Archive, manifest: &ManifestOf<R>) -> Result<()> {
    // PERSIST: the files and their names, before a manifest names them. Crash before: the earlier
    //          manifest, and files that nobody names.
    archive.flush(sites::BACKUP_FOLDER_FLUSH)?;
    let mut writer = archive.create(MANIFEST_NEW_NAME)?;
    writer.write(&manifest.encode())?;
    writer.finish(sites::BACKUP_FILE_FLUSH)?;
    archive.rename(MANIFEST_NEW_NAME, MANIFEST_NAME)?;
    // PERSIST: the new manifest's name, before files go that only the earlier one names.
    archive.flush(sites::BACKUP_FOLDER_FLUSH)?;
    remove_unnamed(archive, Some(manifest))
}

/// Removes the files that the manifest of an archive does not name, if there is one: before a backup what those that failed have left,
/// which would else be more with each, until there is no room for one that succeeds.
pub(crate) fn remove_unnamed<R>(
    archive: &dyn Archive,
    manifest: Option<&ManifestOf<R>>,
) -> Result<()> {
    let entries = manifest.into_iter().flat_map(|manifest| &manifest.segments);
    let named: HashSet<String> = entries.map(ManifestEntry::file_name).collect();
    for name in archive.list()? {
        // A manifest that did not become one is written over.
        let is_manifest = [MANIFEST_NAME, MANIFEST_NEW_NAME].contains(&name.as_str());
        if is_backup_name(&name) && !is_manifest && !named.contains(&name) {
            archive.remove(&name)?;
        }
    }
    Ok(())
}

/// A backup that is there.
#[derive(Debug)]
pub(crate) struct Backup<'a, R> {
    archive: &'a dyn Archive,
    pub(crate) manifest: ManifestOf<R>,
}

impl<'a, R: Root> Backup<'a, R> {
    /// Reads the manifest of an archive.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no backup, `Corrupted` naming the file, `UnsupportedFormat`,
    /// `Io`.
    pub(crate) fn open(archive: &'a dyn Archive) -> Result<Self> {
        let Some(manifest) = read_manifest(archive)? else {
            let words = "there is no backup in this folder";
            return Err(Error::invalid("read backup", words).device(archive.name()));
        };
        let backup = Backup { archive, manifest };
        for entry in &backup.manifest.segments {
            let size = archive.size_bytes_of(&entry.file_name())?;
            if size != Some(entry.length_bytes) {
                let words = match size {
                    None => "the file is missing".to_owned(),
                    Some(size) => {
                        format!("the file has {size} bytes instead of {}", entry.length_bytes)
                    }
                };
                return Err(backup.damaged(entry, &words));
            }
        }
        Ok(backup)
    }

    pub(crate) fn damaged(&self, entry: &ManifestEntry, words: &str) -> Error {
        let device = format!("{}/{}", self.archive.name(), entry.file_name());
        Error::corrupted("read backup", words).device(device)
    }

    /// Compares all checksums.
    ///
    /// # Errors
    /// `Corrupted` naming the file, `Io`.
    pub(crate) fn verify(&self, pool: &BufferPool) -> Result<()> {
        let each = |entry| self.each_piece(pool, entry, &mut |_, _| Ok(()));
        self.manifest.segments.iter().try_for_each(each)
    }

    /// Gives the content of a file to `visit`, piece by piece with offsets; then compares the
    /// checksum.
    pub(crate) fn each_piece(
        &self,
        pool: &BufferPool,
        entry: &ManifestEntry,
        visit: &mut dyn FnMut(u64, &mut IoBuf) -> Result<()>,
    ) -> Result<()> {
        let name = entry.file_name();
        let mut crc = Crc32c::new();
        let mut done = 0;
        while done < entry.length_bytes {
            let size = COPY_SIZE.min(entry.length_bytes - done);
            let mut buffer = pool.get(usize::try_from(size).unwrap_or(0));
            if self.archive.read_at(&name, done, &mut buffer)? < buffer.len() {
                return Err(self.damaged(entry, "the file is cut short"));
            }
            crc.update(&buffer);
            visit(done, &mut buffer)?;
            done += size;
        }
        if crc.finish() != entry.checksum && !sites::RESTORE_CHECKSUM.disabled() {
            return Err(self.damaged(entry, "checksum does not match"));
        }
        Ok(())
    }
}
