//! Backups of `flat`: taken beside writers and the cleaner, one after another in a folder, damaged, and restored.

use crate::support::End;
use esker::{EngineKind, ErrorKind, Options, Store, restore};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const CHUNK: u64 = 16 << 10;

fn options(path: &Path, engine: Option<EngineKind>) -> Options {
    let mut options = Options::new(path);
    options.engine = engine;
    options.size_bytes = 128 * CHUNK;
    options.pmem_emulate = true;
    options.testing.segment_size_bytes = Some(CHUNK);
    options
}

/// A value that tells its number, in the log, in a block or in chunks of its own.
fn value(number: u64) -> Vec<u8> {
    let size = [8, 30, 200, 300, 700, 2000, 9000, 20_000][usize::try_from(number % 8).unwrap()];
    let mut value = vec![number as u8; size];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

fn held(store: &Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let items = store.iter().map(|item| item.unwrap());
    items.map(|(key, value)| (key, value.to_vec())).collect()
}

#[test]
fn a_backup_beside_writers_is_all_that_was_written_up_to_its_version() {
    for engine in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder.path().join("store"), Some(engine))).unwrap();
        let ended = AtomicBool::new(false);
        // Two keys may have one version.
        let mut history: BTreeMap<(u64, String), u64> = BTreeMap::new();
        let mut reports = Vec::new();
        std::thread::scope(|scope| {
            let end = End(&ended);
            let writers: Vec<_> = (0..2_u64)
                .map(|thread| {
                    let (store, ended) = (&store, &ended);
                    scope.spawn(move || {
                        let mut noted = Vec::new();
                        for step in 0.. {
                            if ended.load(Ordering::Relaxed) {
                                break;
                            }
                            let number = step * 2 + thread;
                            let long =
                                if number % 7 == 0 { "l".repeat(300) } else { String::new() };
                            let key = format!("{long}{thread}/{}", step % 20);
                            let put = store.put(key.as_bytes(), &value(number)).unwrap();
                            noted.push(((put.0, key), number));
                            if step % 50 == 0 {
                                store.clean(2).unwrap();
                            }
                        }
                        noted
                    })
                })
                .collect();
            while reports.len() < 4 {
                esker_trt::sleep(std::time::Duration::from_millis(20));
                let target = folder.path().join("backup");
                match store.backup(&target) {
                    Ok(report) => {
                        let made = folder.path().join(format!("restored{}", reports.len()));
                        restore(&target, &options(&made, None)).unwrap();
                        reports.push((report, made));
                    }
                    // Somebody needed the room.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
                }
            }
            drop(end);
            writers.into_iter().for_each(|writer| history.extend(writer.join().unwrap()));
        });
        for (report, made) in reports {
            let mut expected = BTreeMap::new();
            for ((_, key), number) in history.range(..(report.last_version.0 + 1, String::new())) {
                expected.insert(key.clone().into_bytes(), value(*number));
            }
            let restored = Store::open(&options(&made, None)).unwrap();
            assert_eq!(restored.engine(), engine);
            assert!(held(&restored) == expected, "{engine}, up to {:?}", report.last_version);
            assert!(restored.check().unwrap().is_sound());
            let version = restored.put(b"goes on", b"v").unwrap();
            assert!(version > report.last_version, "{engine}");
        }
    }
}

#[test]
fn a_second_backup_copies_what_changed_and_damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (data, target) = (folder.path().join("store"), folder.path().join("backup"));
    let store = Store::open(&options(&data, Some(EngineKind::FlatCceh))).unwrap();
    for number in 0..600_u64 {
        store.put(&number.to_le_bytes(), &value(number % 2)).unwrap();
    }
    store.put(b"large", &value(7)).unwrap();
    let first = store.backup(&target).unwrap();
    assert!(first.segments_reused == 0 && first.segments_copied > 3, "{first:?}");
    store.put(b"more", b"v").unwrap();
    let second = store.backup(&target).unwrap();
    assert!(second.segments_reused >= 3, "{second:?}");
    assert!(second.segments_copied < first.segments_copied, "{second:?}");
    let expected = held(&store);
    store.put(b"after it", b"v").unwrap();
    store.close().unwrap();
    drop(store);
    // Over the very store: what it wrote after the backup is gone.
    let error = restore(&target, &options(&data, None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let mut over = options(&data, None);
    over.format = true;
    restore(&target, &over).unwrap();
    let store = Store::open(&options(&data, None)).unwrap();
    assert!(held(&store) == expected);
    drop(store);
    let files = std::fs::read_dir(&target).unwrap().map(|file| file.unwrap().path());
    let file = files.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let error = restore(&target, &over).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted);
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    assert!(error.to_string().contains(&name), "{error}");
    // It was found before anything was replaced.
    assert!(held(&Store::open(&options(&data, None)).unwrap()) == expected);
}

#[test]
fn a_backup_of_a_store_that_did_not_change_copies_nothing() {
    for engine in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("backup");
        let data = options(&folder.path().join("store"), Some(engine));
        let store = Store::open(&data).unwrap();
        for number in 0..400_u64 {
            store.put(&(number % 90).to_le_bytes(), &value(number)).unwrap();
        }
        let first = store.backup(&target).unwrap();
        assert_eq!(first.segments_reused, 0, "{engine}");
        for _ in 0..2 {
            let again = store.backup(&target).unwrap();
            assert_eq!((again.segments_copied, again.bytes_copied), (0, 0), "{engine}: {again:?}");
            assert_eq!(again.segments_reused, first.segments_copied, "{engine}: {again:?}");
            assert_eq!(again.last_version, first.last_version, "{engine}");
        }
        store.put(&5_u64.to_le_bytes(), &value(2)).unwrap();
        let after = store.backup(&target).unwrap();
        // The log that was open and the one that is, and a chunk of blocks.
        assert!((1..=3).contains(&after.segments_copied), "{engine}: {after:?}");
        // Blocks of one size take the places of others.
        for number in 0..90_u64 {
            store.delete(&number.to_le_bytes()).unwrap();
            store.put(&number.to_le_bytes(), &[number as u8; 300]).unwrap();
        }
        store.backup(&target).unwrap();
        assert_eq!(store.backup(&target).unwrap().segments_copied, 0, "{engine}");
        let expected = held(&store);
        store.close().unwrap();
        drop(store);
        let store = Store::open(&data).unwrap();
        let opened = store.backup(&target).unwrap();
        assert_eq!(opened.segments_copied, 0, "{engine}, opened again: {opened:?}");
        let made = options(&folder.path().join("restored"), None);
        restore(&target, &made).unwrap();
        let restored = Store::open(&made).unwrap();
        assert!(held(&restored) == expected, "{engine}");
        assert!(restored.check().unwrap().is_sound());
    }
}

#[test]
fn a_file_that_has_not_what_its_chunk_has_is_copied_again() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("backup");
    let store =
        Store::open(&options(&folder.path().join("store"), Some(EngineKind::FlatCceh))).unwrap();
    for number in 0..20_u64 {
        store.put(&number.to_le_bytes(), &value(number % 4)).unwrap();
    }
    let first = store.backup(&target).unwrap();
    let mut damaged = 0;
    let files = std::fs::read_dir(&target).unwrap().map(|file| file.unwrap().path());
    for file in files.filter(|path| !path.ends_with("MANIFEST")) {
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        damaged += 1;
    }
    // None of them is full.
    assert_eq!(damaged, first.segments_copied);
    let second = store.backup(&target).unwrap();
    assert_eq!((second.segments_copied, second.segments_reused), (damaged, 0));
    let made = options(&folder.path().join("restored"), None);
    restore(&target, &made).unwrap();
    assert!(held(&Store::open(&made).unwrap()) == held(&store));
}
