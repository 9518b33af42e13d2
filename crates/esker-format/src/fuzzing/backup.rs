//! Manifests of backups, and names of their files.

use super::{STORE_ID, choose};
use crate::backup::{
    FlatManifest, Manifest, ManifestEntry, ManifestOf, Root, SegmentForm, encode_restoring,
    engine_of, is_backup_name, is_restoring,
};
use crate::flex_db::backup::{BackupEntry, BackupForm, FlexBackup, is_backup_file};
use crate::{depot, flat};
use esker_base::ids::{SegmentEpoch, SegmentId, Version};
use std::fmt::Debug;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((decoder, bytes)) = input.split_first() else { return };
    match decoder % 4 {
        0 => manifest::<depot::Superblock>(bytes),
        1 => manifest::<flat::Superblock>(bytes),
        2 => {
            let Ok(backup) = FlexBackup::decode(bytes) else { return };
            assert_eq!(FlexBackup::decode(&backup.encode()).as_ref(), Ok(&backup));
            assert!(backup.entries.iter().all(|entry| is_backup_file(&entry.file_name())));
        }
        _ => {
            let _ = (engine_of(bytes), is_restoring(bytes));
            let name = String::from_utf8_lossy(bytes);
            assert!(!(is_backup_name(&name) && is_backup_file(&name)), "whose file it is");
        }
    }
}

fn manifest<R: Root + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(manifest) = ManifestOf::<R>::decode(bytes) else { return };
    assert_eq!(engine_of(bytes), Ok(R::ENGINE));
    assert_eq!(ManifestOf::<R>::decode(&manifest.encode()).as_ref(), Ok(&manifest));
    assert!(manifest.segments.iter().all(|entry| is_backup_name(&entry.file_name())));
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let entry = |id, form, length_bytes| ManifestEntry {
        id: SegmentId(id),
        epoch: SegmentEpoch(9),
        salt: 5,
        form,
        length_bytes,
        number: 2,
        checksum: 0x1234_5678,
    };
    let of_depot = Manifest {
        number: 3,
        next_version: Version(1000),
        clear_version: Version(10),
        created_unix_seconds: 1_767_225_600,
        superblock: super::depot::superblock(),
        segments: vec![entry(0, SegmentForm::Whole, 64 << 10), entry(2, SegmentForm::Cut, 4096)],
    };
    let of_flat = FlatManifest {
        number: 1,
        next_version: Version(7),
        clear_version: Version(0),
        created_unix_seconds: 1,
        superblock: super::flat::superblock(),
        segments: vec![entry(1, SegmentForm::Whole, 4096), entry(3, SegmentForm::Cut, 64)],
    };
    let file =
        |form, id| BackupEntry { form, checksum: 7, number: 2, id, length_bytes: 512, hash: 99 };
    let of_flex = FlexBackup {
        store_id: STORE_ID.0,
        number: 2,
        last_version: 50,
        created_unix_seconds: 3,
        capacity_bytes: 1 << 30,
        entries: vec![file(BackupForm::Part, 0), file(BackupForm::Large, 17)],
    };
    vec![
        choose(0, of_depot.encode()),
        choose(1, of_flat.encode()),
        choose(2, of_flex.encode()),
        choose(3, encode_restoring()),
        choose(3, "segment-00000001-0000000000000009-00000002"),
        choose(3, "part-0000000000000001-00000002"),
    ]
}
