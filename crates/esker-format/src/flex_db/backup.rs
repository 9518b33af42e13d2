//! What a backup of a store of `flex` says of itself (`docs/format/flex-db.md`).
//!
//! A backup is a folder: parts with the pairs of a range of keys each, a file for each large value, and a manifest that
//! names them, in order of keys. The manifest is the backup: files that it does not name are none of it.
//!
//! # Invariants
//! - K1: the checksum of the manifest covers every byte of it, and each entry has the checksum of its file.
//! - K2: a file that a manifest names is never written again: its name has the number of the backup that wrote it.

use crate::head::Head;
use crate::{Flaw, bounded};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// What a manifest begins with.
pub const BACKUP_MAGIC: [u8; 8] = *b"ESKBACKF";
const HEAD: Head = Head { magic: BACKUP_MAGIC, format_version: super::FORMAT_VERSION };
/// Size of what comes before the entries, in bytes.
pub const BACKUP_HEADER_SIZE: usize = 96;
/// Size of an entry in bytes.
pub const BACKUP_ENTRY_SIZE: usize = 48;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawBackup {
    pub(crate) magic: [u8; 8],
    pub(crate) format_version: U32,
    pub(crate) checksum: U32,
    pub(crate) store_id: [u8; 16],
    pub(crate) number: U64,
    pub(crate) last_version: U64,
    pub(crate) created_unix_seconds: U64,
    pub(crate) entry_count: U64,
    pub(crate) capacity_bytes: U64,
    pub(crate) reserved: [u8; 24],
}

const _: () = assert!(size_of::<RawBackup>() == BACKUP_HEADER_SIZE);

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawBackupEntry {
    pub(crate) form: U32,
    pub(crate) checksum: U32,
    pub(crate) number: U64,
    pub(crate) id: U64,
    pub(crate) length_bytes: U64,
    pub(crate) hash: U64,
    pub(crate) reserved: U64,
}

const _: () = assert!(size_of::<RawBackupEntry>() == BACKUP_ENTRY_SIZE);

/// What a file of a backup holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BackupForm {
    /// Runs of pairs, all above those of the part before.
    Part = 1,
    /// The bytes of a large value.
    Large = 2,
}

/// A file of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupEntry {
    /// What it holds.
    pub form: BackupForm,
    /// CRC32C of the file.
    pub checksum: u32,
    /// Number of the backup that wrote it.
    pub number: u64,
    /// Of a part, its place in that backup; of a large value, its number in the store.
    pub id: u64,
    /// Bytes of the file.
    pub length_bytes: u64,
    /// Of a part, the keyed hash of its bytes; else 0.
    pub hash: u64,
}

impl BackupEntry {
    /// Name of the file.
    #[must_use]
    pub fn file_name(&self) -> String {
        let form = match self.form {
            BackupForm::Part => "part",
            BackupForm::Large => "large",
        };
        format!("{form}-{:016x}-{:08}", self.id, self.number)
    }
}

/// Whether a backup of `flex` may have made a file with this name, other than a manifest.
#[must_use]
pub fn is_backup_file(name: &str) -> bool {
    let mut parts = name.split('-');
    let form = parts.next();
    let mut is_number = |least: usize| {
        let part = parts.next().unwrap_or("");
        part.len() >= least && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    matches!(form, Some("part" | "large"))
        && is_number(16)
        && is_number(8)
        && parts.next().is_none()
}

/// A backup: which files it is made of, and what they cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlexBackup {
    /// Identity of the store.
    pub store_id: [u8; 16],
    /// Counts the backups of a folder, from 1.
    pub number: u64,
    /// Every write up to this version is covered, and none after it.
    pub last_version: u64,
    /// Wall time of the backup, for people.
    pub created_unix_seconds: u64,
    /// Most bytes that the store may have.
    pub capacity_bytes: u64,
    /// The files: parts in order of keys, large values anywhere between.
    pub entries: Vec<BackupEntry>,
}

impl FlexBackup {
    /// The bytes of the manifest.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let raw = RawBackup {
            store_id: self.store_id,
            number: self.number.into(),
            last_version: self.last_version.into(),
            created_unix_seconds: self.created_unix_seconds.into(),
            entry_count: (self.entries.len() as u64).into(),
            capacity_bytes: self.capacity_bytes.into(),
            ..RawBackup::new_zeroed()
        };
        let mut bytes = raw.as_bytes().to_vec();
        for entry in &self.entries {
            let raw = RawBackupEntry {
                form: (entry.form as u32).into(),
                checksum: entry.checksum.into(),
                number: entry.number.into(),
                id: entry.id.into(),
                length_bytes: entry.length_bytes.into(),
                hash: entry.hash.into(),
                reserved: 0.into(),
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
        let (raw, rest) = RawBackup::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let count = usize::try_from(raw.entry_count.get()).unwrap_or(usize::MAX);
        if rest.len() != count.saturating_mul(BACKUP_ENTRY_SIZE) {
            return Err(Flaw::TooShort);
        }
        let entry = |bytes: &[u8]| -> Result<BackupEntry, Flaw> {
            let raw = RawBackupEntry::read_from_bytes(bytes).map_err(|_| Flaw::TooShort)?;
            let form = match raw.form.get() {
                1 => BackupForm::Part,
                2 => BackupForm::Large,
                _ => return Err(Flaw::Field("form")),
            };
            Ok(BackupEntry {
                form,
                checksum: raw.checksum.get(),
                number: bounded("number", raw.number.get())?,
                id: raw.id.get(),
                length_bytes: raw.length_bytes.get(),
                hash: raw.hash.get(),
            })
        };
        Ok(FlexBackup {
            store_id: raw.store_id,
            number: bounded("number", raw.number.get())?,
            last_version: bounded("last_version", raw.last_version.get())?,
            created_unix_seconds: raw.created_unix_seconds.get(),
            capacity_bytes: raw.capacity_bytes.get(),
            entries: rest.chunks_exact(BACKUP_ENTRY_SIZE).map(entry).collect::<Result<_, _>>()?,
        })
    }
}
