//! A store of `flex` that is new, or looks as if it were: nothing that was acknowledged is taken for nothing.

use crate::flex_db::{Devices, options};
use crate::flex_whole::bytes;
use esker::flex::{Space, SpaceOptions};
use esker::{EngineKind, ErrorKind, Options, Store};
use esker_media::sim::Image;
use std::fs;
use std::path::Path;

#[test]
fn a_flipped_bit_makes_no_new_store_of_one_that_was_only_just_made() {
    let devices = Devices::new(2);
    let mut options = options(2);
    let store = devices.open(&options).unwrap();
    for n in 0..20_u8 {
        store.put(&[n], &bytes(u64::from(n), 50)).unwrap();
    }
    store.forget();
    // Another store would have another identity.
    options.testing.seed = Some(3);
    let images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
    let (mut told, mut harmless) = (0, 0);
    for index in 0..6 {
        let size = images[index].size_bytes();
        let all = (0..size.min(1024)).chain((1024..size).step_by(61));
        for at in all {
            let mut damaged = images.clone();
            damaged[index].flip(at, (at % 8) as u32);
            let context = format!("file {index}, {at}");
            match Devices::with(damaged, 3).open(&options) {
                Err(error) => {
                    let kinds = [ErrorKind::Corrupted, ErrorKind::UnsupportedFormat];
                    assert!(kinds.contains(&error.kind()), "{context}: {error}");
                    told += 1;
                }
                Ok(store) => {
                    for n in 0..20_u8 {
                        let found = store.get(&[n]).map(|value| value.map(|value| value.to_vec()));
                        let Ok(found) = found else { continue };
                        // Of the last batch nobody knows that it was ever whole.
                        let is_last = n == 19 && index >= 3;
                        let is_right = found == Some(bytes(u64::from(n), 50));
                        assert!(is_right || (is_last && found.is_none()), "{context}, key {n}");
                    }
                    harmless += 1;
                }
            }
        }
    }
    assert!(told > 200 && harmless > 200, "{told} told, {harmless} harmless");
}

#[test]
fn a_version_that_is_damaged_is_not_one_that_nobody_knows() {
    let devices = Devices::new(2);
    let options = options(2);
    let store = devices.open(&options).unwrap();
    store.put(b"a", b"b").unwrap();
    store.close().unwrap();
    for slot in [0, 4096] {
        for bit in 0..32 {
            let mut images: Vec<Image> =
                (0..6).map(|index| devices.device(index).image()).collect();
            images[1].flip(slot + 8 + bit / 8, (bit % 8) as u32);
            let store = Devices::with(images, 3).open(&options).unwrap();
            assert_eq!(&*store.get(b"a").unwrap().unwrap(), b"b", "slot {slot}, bit {bit}");
        }
    }
}

fn file_options(folder: &Path) -> Options {
    let mut options = Options::new(folder);
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 64 << 20;
    options
}

fn wipe(folder: &Path, file: &str, range: std::ops::Range<usize>) {
    let path = folder.join(file);
    let mut bytes = fs::read(&path).unwrap();
    bytes[range].fill(0);
    fs::write(&path, bytes).unwrap();
}

#[test]
fn files_that_lost_their_headers_are_no_place_for_a_new_store() {
    for is_closed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let options = file_options(folder.path());
        let store = Store::open(&options).unwrap();
        for n in 0..2000_u32 {
            store.put(&n.to_be_bytes(), &bytes(u64::from(n), 100)).unwrap();
        }
        if is_closed {
            store.close().unwrap();
            drop(store);
        } else {
            store.forget();
        }
        wipe(folder.path(), "space.tree", 0..8192);
        for create in [false, true] {
            let error = Store::open(&Options { create, ..options.clone() }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{is_closed}, {create}: {error}");
            assert!(error.to_string().contains("headers are lost"), "{error}");
        }
        // What was asked for in so many words is done.
        let store = Store::open(&Options { format: true, ..options.clone() }).unwrap();
        assert!(store.get(&7_u32.to_be_bytes()).unwrap().is_none());
    }
}

#[test]
fn a_store_that_was_being_made_is_made_by_the_next_open() {
    let folder = tempfile::tempdir().unwrap();
    let options = file_options(folder.path());
    for file in ["space.tree", "space.log", "space.data", "flex.wal.0", "flex.wal.1"] {
        // As a crash leaves them: one after the other, and all of them blank.
        fs::write(folder.path().join(file), vec![0; 64 << 10]).unwrap();
    }
    let store = Store::open(&options).unwrap();
    store.put(b"a", b"b").unwrap();
    store.close().unwrap();
    drop(store);
    assert_eq!(&*Store::open(&options).unwrap().get(b"a").unwrap().unwrap(), b"b");
}

#[test]
fn a_log_of_other_bytes_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let options = file_options(folder.path());
    let store = Store::open(&options).unwrap();
    store.put(b"a", b"b").unwrap();
    store.forget();
    for log in ["flex.wal.0", "flex.wal.1"] {
        let path = folder.path().join(log);
        let before = fs::read(&path).unwrap();
        fs::write(&path, bytes(7, before.len())).unwrap();
        let error = Store::open(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{log}: {error}");
        fs::write(&path, before).unwrap();
    }
    assert_eq!(&*Store::open(&options).unwrap().get(b"a").unwrap().unwrap(), b"b");
}

#[test]
fn flex_takes_one_path_and_what_it_has_there_is_no_place_for_others() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut options = file_options(one.path());
    Store::open(&options).unwrap().close().unwrap();
    for engine in [None, Some(EngineKind::Flex), Some(EngineKind::Depot)] {
        for paths in [[one.path(), two.path()], [two.path(), one.path()]] {
            options.path = paths[0].into();
            options.devices = vec![paths[1].into()];
            options.engine = engine;
            let error = Store::open(&options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{engine:?}: {error}");
            assert_eq!(fs::read_dir(two.path()).unwrap().count(), 0, "{engine:?}");
        }
    }
}

#[test]
fn the_space_of_a_store_is_opened_by_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 64 << 20;
    let store = Store::open(&options).unwrap();
    store.put(b"key", b"value").unwrap();
    store.close().unwrap();
    drop(store);
    for format in [false, true] {
        let mut of_space = SpaceOptions::new(folder.path());
        of_space.format = format;
        assert_eq!(Space::open(&of_space).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(Space::repair(&of_space).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let store = Store::open(&options).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_cache_of_blocks_that_no_machine_has_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = SpaceOptions::new(folder.path());
    for size in [u64::MAX, 1 << 46] {
        options.cache_size_bytes = size;
        assert_eq!(Space::open(&options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_space_that_is_only_read_is_not_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = SpaceOptions::new(folder.path());
    Space::open(&options).unwrap().close().unwrap();
    options.read_only = true;
    assert_eq!(Space::repair(&options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    options.read_only = false;
    assert!(!Space::repair(&options).unwrap().is_mended);
}
