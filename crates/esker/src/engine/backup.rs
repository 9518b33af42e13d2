//! What backups of all engines share: manifests of archives, files that an earlier backup has, and reading them back.
//!
//! # Failure
//! Files are durable before a manifest names them, and it gets its name at once; older files go last. A crash or an error
//! leaves the earlier backup and files that the next one removes before it begins.

use crate::engine::flex::MANIFEST_BYTES_MAX;
use crate::engine::sites;
use esker_base::checksum::Crc32c;
use esker_base::ids::SegmentId;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::backup::{
    BackupEngine, FlatManifest, MANIFEST_NAME, MANIFEST_NEW_NAME, Manifest, ManifestEntry,
    ManifestOf, Root, is_backup_name,
};
use esker_format::flex_db::backup::{BackupEntry, FlexBackup, is_backup_file};
use esker_media::{Archive, BufferPool, IoBuf};
use std::collections::{HashMap, HashSet};

/// Bytes read and written at once.
pub(crate) const COPY_SIZE: u64 = 1 << 20;

/// Segments that an earlier backup has, by number, epoch and salt.
pub(crate) type Copied = HashMap<(SegmentId, u64, u64), ManifestEntry>;

/// What names the files of a backup: the manifest of whatever engine.
pub(crate) trait Listing: Sized {
    /// No manifest is larger.
    const BYTES_MAX: u64;
    fn encode(&self) -> Vec<u8>;
    fn decode(bytes: &[u8]) -> Result<Self, Flaw>;
    fn files(&self) -> impl Iterator<Item = Listed>;
    /// Whether a backup may have made a file with this name, other than a manifest.
    fn is_file(name: &str) -> bool;
}

/// A file of a backup, as the manifest has it.
#[derive(Debug)]
pub(crate) struct Listed {
    name: String,
    length_bytes: u64,
    checksum: u32,
}

impl From<&ManifestEntry> for Listed {
    fn from(entry: &ManifestEntry) -> Self {
        let ManifestEntry { length_bytes, checksum, .. } = *entry;
        Listed { name: entry.file_name(), length_bytes, checksum }
    }
}

impl From<&BackupEntry> for Listed {
    fn from(entry: &BackupEntry) -> Self {
        let BackupEntry { length_bytes, checksum, .. } = *entry;
        Listed { name: entry.file_name(), length_bytes, checksum }
    }
}

impl<R: Root> Listing for ManifestOf<R> {
    // That of the largest store takes less.
    const BYTES_MAX: u64 = 256 << 20;

    fn encode(&self) -> Vec<u8> {
        ManifestOf::encode(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        ManifestOf::decode(bytes)
    }

    fn files(&self) -> impl Iterator<Item = Listed> {
        self.segments.iter().map(Listed::from)
    }

    fn is_file(name: &str) -> bool {
        is_backup_name(name)
    }
}

impl Listing for FlexBackup {
    const BYTES_MAX: u64 = MANIFEST_BYTES_MAX;

    fn encode(&self) -> Vec<u8> {
        FlexBackup::encode(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        FlexBackup::decode(bytes)
    }

    fn files(&self) -> impl Iterator<Item = Listed> {
        self.entries.iter().map(Listed::from)
    }

    fn is_file(name: &str) -> bool {
        is_backup_file(name)
    }
}

fn is_manifest(name: &str) -> bool {
    name == MANIFEST_NAME || name == MANIFEST_NEW_NAME
}

/// The bytes of the manifest of an archive, if there is one.
fn read_bytes<M: Listing>(archive: &dyn Archive) -> Result<Option<Vec<u8>>> {
    let Some(size) = archive.size_bytes_of(MANIFEST_NAME)? else {
        let is_other = |name: &String| !is_manifest(name) && !M::is_file(name);
        if let Some(other) = archive.list()?.into_iter().find(is_other) {
            let words = format!("the folder holds {other:?}, which is no part of a backup");
            return Err(Error::invalid("read backup", words).device(archive.name()));
        }
        return Ok(None);
    };
    let mut bytes = vec![0; usize::try_from(size.min(M::BYTES_MAX)).unwrap_or(0)];
    let read = archive.read_at(MANIFEST_NAME, 0, &mut bytes)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// The engine of the backup in an archive; `None` if there is none, or nothing that tells.
pub(crate) fn engine_of(archive: &dyn Archive) -> Result<Option<BackupEngine>> {
    let bytes = read_bytes::<Manifest>(archive)?;
    Ok(bytes.and_then(|bytes| esker_format::backup::engine_of(&bytes).ok()))
}

/// The manifest of an archive, if there is one.
///
/// # Errors
/// `Corrupted` naming the file, `UnsupportedFormat`, `Io`; `InvalidArgument` if the folder holds
/// something else.
pub(crate) fn read_manifest<M: Listing>(archive: &dyn Archive) -> Result<Option<M>> {
    let named = |error: Error| error.device(format!("{}/{MANIFEST_NAME}", archive.name()));
    let Some(bytes) = read_bytes::<M>(archive)? else { return Ok(None) };
    M::decode(&bytes).map(Some).map_err(|flaw| match flaw {
        Flaw::Version(version) => {
            let words = format!("format version {version} is not known to this build");
            named(Error::new(ErrorKind::UnsupportedFormat, "read backup").context(words))
        }
        flaw => match engine_in(&bytes) {
            Some(other) => {
                let words = format!("the folder has backups of a store of {other}");
                named(Error::invalid("read backup", words))
            }
            None => named(Error::corrupted("read backup", flaw.to_string())),
        },
    })
}

/// The engine of a store, if this is the whole manifest of a backup of one.
fn engine_in(bytes: &[u8]) -> Option<&'static str> {
    match () {
        () if Manifest::decode(bytes).is_ok() => Some("depot"),
        () if FlatManifest::decode(bytes).is_ok() => Some("flat"),
        () if FlexBackup::decode(bytes).is_ok() => Some("flex"),
        () => None,
    }
}

/// Segments of an earlier backup whose files are there.
pub(crate) fn copied<R>(archive: &dyn Archive, earlier: Option<&ManifestOf<R>>) -> Result<Copied> {
    let mut copied = HashMap::new();
    for entry in earlier.into_iter().flat_map(|manifest| &manifest.segments) {
        if archive.size_bytes_of(&entry.file_name())? == Some(entry.length_bytes) {
            copied.insert((entry.id, entry.epoch.0, entry.salt), *entry);
        }
    }
    Ok(copied)
}

/// Makes the manifest the one of the archive, and removes what it does not name.
pub(crate) fn publish<M: Listing>(archive: &dyn Archive, manifest: &M) -> Result<()> {
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
pub(crate) fn remove_unnamed<M: Listing>(
    archive: &dyn Archive,
    manifest: Option<&M>,
) -> Result<()> {
    let named: HashSet<String> =
        manifest.into_iter().flat_map(M::files).map(|file| file.name).collect();
    for name in archive.list()? {
        // A manifest that did not become one is written over.
        if M::is_file(&name) && !is_manifest(&name) && !named.contains(&name) {
            archive.remove(&name)?;
        }
    }
    Ok(())
}

/// A backup that is there.
#[derive(Debug)]
pub(crate) struct Backup<'a, M> {
    archive: &'a dyn Archive,
    pub(crate) manifest: M,
}

impl<'a, M: Listing> Backup<'a, M> {
    /// Reads the manifest of an archive.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no backup, `Corrupted` naming the file, `UnsupportedFormat`,
    /// `Io`.
    pub(crate) fn open(archive: &'a dyn Archive) -> Result<Self> {
        let Some(manifest) = read_manifest::<M>(archive)? else {
            let words = "there is no backup in this folder";
            return Err(Error::invalid("read backup", words).device(archive.name()));
        };
        let backup = Backup { archive, manifest };
        for file in backup.manifest.files() {
            let words = match archive.size_bytes_of(&file.name)? {
                None => "the file is missing".to_owned(),
                Some(size) if size == file.length_bytes => continue,
                Some(size) => format!("the file has {size} bytes instead of {}", file.length_bytes),
            };
            return Err(backup.damaged(file, &words));
        }
        Ok(backup)
    }

    pub(crate) fn damaged(&self, file: impl Into<Listed>, words: &str) -> Error {
        let device = format!("{}/{}", self.archive.name(), file.into().name);
        Error::corrupted("read backup", words).device(device)
    }

    /// Compares all checksums.
    ///
    /// # Errors
    /// `Corrupted` naming the file, `Io`.
    pub(crate) fn verify(&self, pool: &BufferPool) -> Result<()> {
        self.manifest.files().try_for_each(|file| self.each_piece(pool, file, &mut |_, _| Ok(())))
    }

    /// Gives the content of a file to `visit`, piece by piece with offsets; then compares the
    /// checksum.
    pub(crate) fn each_piece(
        &self,
        pool: &BufferPool,
        file: impl Into<Listed>,
        visit: &mut dyn FnMut(u64, &mut IoBuf) -> Result<()>,
    ) -> Result<()> {
        let file = file.into();
        let mut crc = Crc32c::new();
        let mut done = 0;
        while done < file.length_bytes {
            let size = COPY_SIZE.min(file.length_bytes - done);
            let mut buffer = pool.get(usize::try_from(size).unwrap_or(0));
            if self.archive.read_at(&file.name, done, &mut buffer)? < buffer.len() {
                return Err(self.damaged(file, "the file is cut short"));
            }
            crc.update(&buffer);
            visit(done, &mut buffer)?;
            done += size;
        }
        if crc.finish() != file.checksum && !sites::RESTORE_CHECKSUM.disabled() {
            return Err(self.damaged(file, "checksum does not match"));
        }
        Ok(())
    }
}
