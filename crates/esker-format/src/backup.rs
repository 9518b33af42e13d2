//! What a backup of a `depot` or a `flat` says of itself (`docs/format/backup.md`).
//!
//! A backup is a folder: one file for each segment (a chunk, of `flat`) with that segment's bytes as they stood on the
//! device, and a manifest that names them. The manifest is the backup: files that it does not name
//! are none of it.
//!
//! ```text
//! manifest: | header, 128 | superblock, 512 | entry, 64 | entry, 64 | ...
//! ```
//!
//! # Invariants
//! - M1: the checksum of the manifest covers every byte of it, and each entry has the checksum of
//!   its file's content; so no damage to a backup goes unnoticed.
//! - M2: an entry names its file by segment, epoch and the number of the backup that wrote it: a
//!   later backup never writes to a file that an earlier manifest names.

use crate::depot::{SUPERBLOCK_SIZE, Superblock};
use crate::flat;
use crate::head::Head;
use crate::{Flaw, bounded};
use esker_base::ids::{SegmentEpoch, SegmentId, StoreId, Version};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Name of the manifest in its folder.
pub const MANIFEST_NAME: &str = "MANIFEST";
/// Name of a manifest that is being written: none until it has its own name.
pub const MANIFEST_NEW_NAME: &str = "MANIFEST.new";
/// The format that this build writes. Others are refused by number.
pub const BACKUP_FORMAT_VERSION: u32 = 1;
/// Size of what comes before the entries, in bytes.
pub const MANIFEST_HEADER_SIZE: usize = HEADER_SIZE + SUPERBLOCK_SIZE;
/// Size of an entry in bytes.
pub const MANIFEST_ENTRY_SIZE: usize = 64;

const HEADER_SIZE: usize = 128;
const HEAD: Head = Head { magic: *b"ESKBACKU", format_version: BACKUP_FORMAT_VERSION };
/// What stands in place of both superblocks while a store is restored, padded with zeros.
const RESTORING: &[u8] = b"ESKRESTR a restore of this store did not end; restore again";

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 8],
    pub(crate) format_version: U32,
    pub(crate) checksum: U32,
    pub(crate) number: U64,
    pub(crate) next_version: U64,
    pub(crate) clear_version: U64,
    pub(crate) created_unix_seconds: U64,
    pub(crate) entry_count: U32,
    pub(crate) engine: U32,
    pub(crate) reserved: [u8; 72],
}

const _: () = assert!(size_of::<Raw>() == HEADER_SIZE);

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawEntry {
    pub(crate) segment_id: U32,
    pub(crate) form: U32,
    pub(crate) epoch: U64,
    pub(crate) salt: U64,
    pub(crate) length_bytes: U64,
    pub(crate) number: U64,
    pub(crate) checksum: U32,
    pub(crate) reserved: [u8; 20],
}

const _: () = assert!(size_of::<RawEntry>() == MANIFEST_ENTRY_SIZE);

/// How much of a segment a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SegmentForm {
    /// All of it: it was full, and no byte of this incarnation changes any more.
    Whole = 1,
    /// Its start, up to the end of the last batch that the backup covers.
    Cut = 2,
}

/// One segment of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// Which segment.
    pub id: SegmentId,
    /// Its incarnation.
    pub epoch: SegmentEpoch,
    /// The salt of the incarnation, which tells two of one epoch apart that a restore made.
    pub salt: u64,
    /// How much of it the file holds.
    pub form: SegmentForm,
    /// Bytes of the file, at most those of a segment.
    pub length_bytes: u64,
    /// Number of the backup that wrote the file.
    pub number: u64,
    /// CRC32C of the file.
    pub checksum: u32,
}

impl ManifestEntry {
    /// Name of the file.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("segment-{:08}-{:016x}-{:08}", self.id.0, self.epoch.0, self.number)
    }
}

/// Whether a backup may have made a file with this name.
#[must_use]
pub fn is_backup_name(name: &str) -> bool {
    if name == MANIFEST_NAME || name == MANIFEST_NEW_NAME {
        return true;
    }
    let Some(numbers) = name.strip_prefix("segment-") else { return false };
    let mut parts = numbers.split('-');
    let mut is_number = |least: usize| {
        let part = parts.next().unwrap_or("");
        part.len() >= least && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    is_number(8) && is_number(16) && is_number(8) && parts.next().is_none()
}

/// Which engine's store was backed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BackupEngine {
    /// `depot`.
    Depot = 0,
    /// `flat`.
    Flat = 1,
}

/// The root of a store, as a manifest keeps it.
pub trait Root: Sized {
    /// Whose root it is.
    const ENGINE: BackupEngine;
    /// The bytes, at most [`SUPERBLOCK_SIZE`].
    fn encode_root(&self) -> Vec<u8>;
    /// Reads and checks them.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    fn decode_root(bytes: &[u8]) -> Result<Self, Flaw>;
    /// Identity of the store.
    fn identity(&self) -> StoreId;
    /// The first segment that can have data.
    const FIRST_SEGMENT: u32;
    /// Segments of the store.
    fn segments(&self) -> u32;
    /// Whether a file of this form can have so many bytes.
    fn fits(&self, form: SegmentForm, length_bytes: u64) -> bool;
}

impl Root for Superblock {
    const ENGINE: BackupEngine = BackupEngine::Depot;
    const FIRST_SEGMENT: u32 = 0;

    fn encode_root(&self) -> Vec<u8> {
        self.encode().to_vec()
    }

    fn decode_root(bytes: &[u8]) -> Result<Self, Flaw> {
        Superblock::decode(bytes)
    }

    fn identity(&self) -> StoreId {
        self.store_id
    }

    fn segments(&self) -> u32 {
        self.segment_count
    }

    fn fits(&self, form: SegmentForm, length_bytes: u64) -> bool {
        let (size, block) = (self.segment_size_bytes, u64::from(self.block_size_bytes));
        // A cut segment ends before the trailer.
        match form {
            SegmentForm::Whole => length_bytes == size,
            SegmentForm::Cut => {
                length_bytes >= block
                    && length_bytes.is_multiple_of(block)
                    && length_bytes <= size - 2 * block
            }
        }
    }
}

impl Root for flat::Superblock {
    const ENGINE: BackupEngine = BackupEngine::Flat;
    // Before it stands what the store is.
    const FIRST_SEGMENT: u32 = 1;

    fn encode_root(&self) -> Vec<u8> {
        self.encode().to_vec()
    }

    fn decode_root(bytes: &[u8]) -> Result<Self, Flaw> {
        flat::Superblock::decode(bytes.get(..flat::SUPERBLOCK_SIZE).ok_or(Flaw::TooShort)?)
    }

    fn identity(&self) -> StoreId {
        self.store_id
    }

    fn segments(&self) -> u32 {
        self.chunk_count
    }

    fn fits(&self, _form: SegmentForm, length_bytes: u64) -> bool {
        let line = flat::LINE as u64;
        (line..=self.chunk_size_bytes).contains(&length_bytes) && length_bytes.is_multiple_of(line)
    }
}

/// The engine of the backup whose manifest this is; its checksum is compared when it is decoded.
///
/// # Errors
/// `TooShort`, or `Field` for an engine that this build does not know.
pub fn engine_of(bytes: &[u8]) -> Result<BackupEngine, Flaw> {
    let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
    match raw.engine.get() {
        0 => Ok(BackupEngine::Depot),
        1 => Ok(BackupEngine::Flat),
        _ => Err(Flaw::Field("engine")),
    }
}

/// The manifest of a backup of a `depot`.
pub type Manifest = ManifestOf<Superblock>;
/// The manifest of a backup of a `flat`.
pub type FlatManifest = ManifestOf<flat::Superblock>;

/// A backup: which files it is made of, and what they cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestOf<R> {
    /// Counts the backups of a folder, from 1.
    pub number: u64,
    /// Every record with a lower version is covered, and none with this or a higher one.
    pub next_version: Version,
    /// Records of lower versions were cleared.
    pub clear_version: Version,
    /// Wall time of the backup, for people.
    pub created_unix_seconds: u64,
    /// Root of the store that was backed up.
    pub superblock: R,
    /// The segments, by id.
    pub segments: Vec<ManifestEntry>,
}

impl<R: Root> ManifestOf<R> {
    /// The bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let raw = Raw {
            number: self.number.into(),
            next_version: self.next_version.0.into(),
            clear_version: self.clear_version.0.into(),
            created_unix_seconds: self.created_unix_seconds.into(),
            entry_count: u32::try_from(self.segments.len()).unwrap_or(u32::MAX).into(),
            engine: (R::ENGINE as u32).into(),
            ..Raw::new_zeroed()
        };
        let mut bytes = [raw.as_bytes(), &self.superblock.encode_root()].concat();
        bytes.resize(MANIFEST_HEADER_SIZE, 0);
        for entry in &self.segments {
            let raw = RawEntry {
                segment_id: entry.id.0.into(),
                form: (entry.form as u32).into(),
                epoch: entry.epoch.0.into(),
                salt: entry.salt.into(),
                length_bytes: entry.length_bytes.into(),
                number: entry.number.into(),
                checksum: entry.checksum.into(),
                reserved: [0; 20],
            };
            bytes.extend_from_slice(raw.as_bytes());
        }
        HEAD.seal(&mut bytes);
        bytes
    }

    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// The first [`Flaw`] found; a newer version is named before its checksum is looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        HEAD.check(bytes)?;
        let (raw, rest) = Raw::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let (superblock, entries) = rest.split_at_checked(SUPERBLOCK_SIZE).ok_or(Flaw::TooShort)?;
        if raw.engine.get() != R::ENGINE as u32 {
            return Err(Flaw::Field("engine"));
        }
        let superblock = R::decode_root(superblock)?;
        let count = usize::try_from(raw.entry_count.get()).map_err(|_| Flaw::TooShort)?;
        if entries.len() != count.saturating_mul(MANIFEST_ENTRY_SIZE) {
            return Err(Flaw::TooShort);
        }
        let mut segments: Vec<ManifestEntry> = Vec::with_capacity(count);
        for bytes in entries.chunks_exact(MANIFEST_ENTRY_SIZE) {
            let entry = decode_entry(bytes, &superblock)?;
            if segments.last().is_some_and(|last| last.id >= entry.id) {
                return Err(Flaw::Field("segment_id"));
            }
            segments.push(entry);
        }
        Ok(ManifestOf {
            number: bounded("number", raw.number.get())?,
            next_version: Version(bounded("next_version", raw.next_version.get())?),
            clear_version: Version(bounded("clear_version", raw.clear_version.get())?),
            created_unix_seconds: raw.created_unix_seconds.get(),
            superblock,
            segments,
        })
    }
}

fn decode_entry<R: Root>(bytes: &[u8], superblock: &R) -> Result<ManifestEntry, Flaw> {
    let raw = RawEntry::read_from_bytes(bytes).map_err(|_| Flaw::TooShort)?;
    let form = match raw.form.get() {
        1 => SegmentForm::Whole,
        2 => SegmentForm::Cut,
        _ => return Err(Flaw::Field("form")),
    };
    let length_bytes = raw.length_bytes.get();
    if !superblock.fits(form, length_bytes) {
        return Err(Flaw::Field("length_bytes"));
    }
    if !(R::FIRST_SEGMENT..superblock.segments()).contains(&raw.segment_id.get()) {
        return Err(Flaw::Field("segment_id"));
    }
    Ok(ManifestEntry {
        id: SegmentId(raw.segment_id.get()),
        epoch: SegmentEpoch(bounded("epoch", raw.epoch.get())?),
        salt: raw.salt.get(),
        form,
        length_bytes,
        number: bounded("number", raw.number.get())?,
        checksum: raw.checksum.get(),
    })
}

/// What stands in place of a superblock until a restore is complete: no store.
#[must_use]
pub fn encode_restoring() -> [u8; SUPERBLOCK_SIZE] {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    for (to, from) in bytes.iter_mut().zip(RESTORING) {
        *to = *from;
    }
    bytes
}

/// Whether a superblock's place says that a restore did not end.
#[must_use]
pub fn is_restoring(bytes: &[u8]) -> bool {
    bytes.starts_with(RESTORING.get(..8).unwrap_or(RESTORING))
}

#[cfg(test)]
mod tests;
