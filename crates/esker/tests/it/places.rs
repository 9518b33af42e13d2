//! What is at the place that a store, a backup or a restore is to take: nothing of somebody's goes, and nothing is taken for what it is not.

use esker::{EngineKind, ErrorKind, Options, Store, restore};
use std::path::Path;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn options(folder: &TempDir, name: &str, engine: Option<EngineKind>) -> Options {
    let mut options = Options::new(folder.path().join(name));
    options.size_bytes = 64 * MIB;
    options.engine = engine;
    options.pmem_emulate = true;
    options
}

/// A backup of a store with 300 values, in a folder.
fn backed_up(folder: &TempDir, kind: EngineKind) -> std::path::PathBuf {
    let store = Store::open(&options(folder, "source", Some(kind))).unwrap();
    for n in 0..300_u32 {
        store.put(&n.to_be_bytes(), &[n as u8; 20_000]).unwrap();
    }
    let target = folder.path().join("backup");
    store.backup(&target).unwrap();
    store.close().unwrap();
    target
}

/// The longest file of a folder but for the manifest.
fn longest(folder: &Path) -> std::path::PathBuf {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| !path.ends_with("MANIFEST"));
    files.max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

#[test]
fn a_restore_that_failed_leaves_no_place_for_a_new_store() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let backup = backed_up(&folder, kind);
        let file = longest(&backup);
        let whole = std::fs::read(&file).unwrap();
        let mut damaged = whole.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        std::fs::write(&file, damaged).unwrap();
        let target = options(&folder, "target", None);
        let error = restore(&backup, &target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{kind}: {error}");
        match Store::open(&target) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{kind}: {error}");
                assert!(error.to_string().contains("restore again"), "{kind}: {error}");
            }
            // It verified the backup first, and left nothing: a store is made where none is.
            Ok(store) => {
                assert_eq!(kind, EngineKind::Flex);
                store.close().unwrap();
                std::fs::remove_dir_all(&target.path).unwrap();
            }
        }
        // The whole backup goes there without more ado.
        std::fs::write(&file, whole).unwrap();
        restore(&backup, &target).unwrap();
        let store = Store::open(&target).unwrap();
        assert_eq!(store.iter().count(), 300, "{kind}");
        assert_eq!(store.engine(), kind);
    }
}

#[test]
fn a_restore_that_is_done_again_has_the_size_that_is_asked_for_then() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let backup = backed_up(&folder, kind);
        let file = longest(&backup);
        let whole = std::fs::read(&file).unwrap();
        let mut target = options(&folder, "target", None);
        // Smaller and larger than before, and than what was backed up.
        for (first, then) in [(32, 96), (96, 32), (48, 0)] {
            std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
            target.size_bytes = first * MIB;
            restore(&backup, &target).unwrap_err();
            std::fs::write(&file, &whole).unwrap();
            target.size_bytes = then * MIB;
            restore(&backup, &target).unwrap();
            let store = Store::open(&target).unwrap();
            let wanted = if then == 0 { 64 } else { then };
            assert!(is_about(&store, wanted * MIB), "{kind}, {then}: {:?}", store.stats());
            assert_eq!(store.iter().count(), 300, "{kind}");
            store.close().unwrap();
            drop(store);
            // What is there now is a store, whichever size is asked for.
            target.size_bytes = 80 * MIB;
            restore(&backup, &target).unwrap_err();
            assert_eq!(Store::open(&target).unwrap().iter().count(), 300, "{kind}");
            std::fs::remove_dir_all(&target.path).unwrap();
        }
    }
}

#[test]
fn a_backup_takes_the_place_of_no_file_but_a_backup() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder, "store", Some(kind))).unwrap();
        let other = Store::open(&options(&folder, "other", Some(kind))).unwrap();
        for store in [&store, &other] {
            store.put(b"key", b"value").unwrap();
        }
        let data = |name: &str| {
            let files = std::fs::read_dir(folder.path().join(name)).unwrap();
            let files = files.map(|entry| entry.unwrap().path());
            files.filter(|path| path.metadata().unwrap().len() > 0).collect::<Vec<_>>()
        };
        let open = data("store");
        other.close().unwrap();
        drop(other);
        for target in open.iter().chain(&data("other")) {
            let error = store.backup_file(target).unwrap_err();
            let refused = [ErrorKind::Locked, ErrorKind::InvalidArgument];
            assert!(refused.contains(&error.kind()), "{kind}, {}: {error}", target.display());
        }
        let foreign = folder.path().join("words");
        std::fs::write(&foreign, b"some words of somebody").unwrap();
        let error = store.backup_file(&foreign).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{kind}: {error}");
        assert_eq!(std::fs::read(&foreign).unwrap(), b"some words of somebody");
        // An empty file is nobody's, and an earlier backup gives way.
        std::fs::write(&foreign, b"").unwrap();
        store.backup_file(&foreign).unwrap();
        store.put(b"later", b"value").unwrap();
        store.backup_file(&foreign).unwrap();
        store.close().unwrap();
        drop(store);
        for name in ["store", "other"] {
            let store = Store::open(&options(&folder, name, None)).unwrap();
            assert_eq!(
                store.get(b"key").unwrap().as_deref(),
                Some(&b"value"[..]),
                "{kind}, {name}"
            );
            assert_eq!(store.get(b"later").unwrap().is_some(), name == "store");
        }
    }
}

/// Of what a store of this size says that it has.
fn is_about(store: &Store, size_bytes: u64) -> bool {
    let capacity = store.stats().capacity_bytes;
    capacity <= size_bytes && capacity > size_bytes / 8 * 7
}

#[test]
fn a_store_that_is_made_anew_has_the_size_that_is_asked_for() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        for size in [64 * MIB, 256 * MIB, 32 * MIB] {
            let mut options = options(&folder, "store", Some(kind));
            (options.format, options.size_bytes) = (true, size);
            let store = Store::open(&options).unwrap();
            assert!(is_about(&store, size), "{kind}: {:?} of {size}", store.stats());
            assert_eq!(store.iter().count(), 0);
            store.put(b"key", b"value").unwrap();
            store.close().unwrap();
            drop(store);
            options.format = false;
            let store = Store::open(&options).unwrap();
            assert!(is_about(&store, size), "{kind}");
            assert_eq!(store.iter().count(), 1);
        }
        // A size that no store has is refused before anything goes.
        let mut options = options(&folder, "store", Some(kind));
        (options.format, options.size_bytes) = (true, 1);
        Store::open(&options).unwrap_err();
        options.format = false;
        assert_eq!(Store::open(&options).unwrap().iter().count(), 1, "{kind}");
    }
}

#[test]
fn a_restore_in_place_of_a_store_of_another_size_has_the_size_that_is_asked_for() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let backup = backed_up(&folder, kind);
        for (there, wanted, size) in [(32, 128, 128), (128, 0, 64)] {
            let mut target = options(&folder, "target", Some(kind));
            (target.format, target.size_bytes) = (true, there * MIB);
            Store::open(&target).unwrap().close().unwrap();
            target.size_bytes = wanted * MIB;
            restore(&backup, &target).unwrap();
            target.format = false;
            let store = Store::open(&target).unwrap();
            assert!(is_about(&store, size * MIB), "{kind}, {there}: {:?}", store.stats());
            assert_eq!(store.iter().count(), 300, "{kind}");
        }
    }
}
