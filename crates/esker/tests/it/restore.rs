//! Restoring: onto devices of other sizes and with other content, cut off in the middle, damaged on the way.

use crate::backup::{backup, filled, held, restored, restored_on};
use crate::support::{DEVICE_SIZE, SEGMENT_SIZE, device, flip_on, open, options};
use esker::{ErrorKind, Store, Version, restore_on};
use esker_media::Archive;
use esker_media::sim::{Image, Initial, SimArchive, SimBlock, SimBlockOptions};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

#[test]
fn damage_found_while_restoring_leaves_no_store() {
    let (_, store, _) = filled(6, 60);
    let archive = SimArchive::new();
    backup(&store, &archive).unwrap();
    let mut files = archive.list().unwrap();
    files.sort();
    archive.flip(files.last().unwrap(), 700, 1);
    let device = device(6);
    restore_on(&archive, &*device, &options(6)).unwrap_err();
    let error = open(&device, &options(6)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    // Where there is a store, it is only replaced once the backup is known to be sound.
    let (device, store, model) = filled(7, 20);
    drop(store);
    let mut options = options(7);
    options.format = true;
    restore_on(&archive, &*device, &options).unwrap_err();
    options.format = false;
    assert_eq!(held(&open(&device, &options).unwrap()), model);
}

#[test]
fn a_restored_store_may_have_another_size_as_long_as_segments_keep_their_places() {
    let (_, store, model) = filled(15, 60);
    let archive = SimArchive::new();
    backup(&store, &archive).unwrap();
    let (_, larger) = restored_on(&archive, 4 * DEVICE_SIZE, Initial::Zeros).unwrap();
    assert_eq!(held(&larger), model);
    assert!(larger.stats().segments > 3 * store.stats().segments);
    let (_, smaller) =
        restored_on(&archive, DEVICE_SIZE - 3 * SEGMENT_SIZE, Initial::Zeros).unwrap();
    assert_eq!(held(&smaller), model);
    let error = restored_on(&archive, 4 * SEGMENT_SIZE, Initial::Zeros).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("bytes)"), "names the size: {error}");
    let four_kib =
        SimBlockOptions { block_size_bytes: 4096, ..SimBlockOptions::new(DEVICE_SIZE, 1) };
    let error = restore_on(&archive, &SimBlock::new(four_kib), &options(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_backup_of_a_restored_store_does_not_take_files_of_the_other_future() {
    let (_, store, _) = filled(16, 60);
    let archive = SimArchive::new();
    backup(&store, &archive).unwrap();
    let other = restored(&archive).unwrap();
    for n in 0..60u32 {
        store.put(format!("key{n}").as_bytes(), &[1; 300]).unwrap();
        other.put(format!("key{n}").as_bytes(), &[2; 300]).unwrap();
    }
    backup(&store, &archive).unwrap();
    backup(&other, &archive).unwrap();
    assert_eq!(held(&restored(&archive).unwrap()), held(&other));
    backup(&store, &archive).unwrap();
    assert_eq!(held(&restored(&archive).unwrap()), held(&store));
}

#[test]
fn a_restore_that_is_cut_off_leaves_no_store_or_all_of_it() {
    let (old_device, store, model) = filled(17, 60);
    let archive = SimArchive::new();
    backup(&store, &archive).unwrap();
    for n in 0..60u32 {
        store.put(format!("key{n}").as_bytes(), &[1; 280]).unwrap();
    }
    let newer = held(&store);
    drop(store);
    let (mut none, mut all) = (0, 0);
    for earlier in [Initial::Zeros, Initial::Recycled(old_device.image())] {
        let had_store = matches!(earlier, Initial::Recycled(_));
        let device = Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 5).initial(earlier)));
        let mut options = options(18);
        options.format = true;
        restore_on(&archive, &*device, &options).unwrap();
        options.format = false;
        let trace = device.trace();
        let mut replay = trace.replay();
        while replay.step() {
            for state in replay.states(12, replay.position()) {
                let image: Image = state.image();
                let survived =
                    SimBlockOptions::new(DEVICE_SIZE, 6).initial(Initial::Recycled(image));
                match open(&Arc::new(SimBlock::new(survived)), &options) {
                    Ok(store) => {
                        let found = held(&store);
                        let untouched = if had_store { found == newer } else { found.is_empty() };
                        assert!(found == model || untouched, "{}", state.describe());
                        all += u32::from(found == model);
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                        none += 1;
                    }
                }
            }
        }
    }
    assert!(none > 100 && all > 4, "{none} without a store, {all} with all of it");
}

/// What only the headers of free segments said, the manifest says: the restored store knows it.
#[test]
fn versions_and_clears_of_the_manifest_hold_in_the_restored_store() {
    use esker_format::backup::{MANIFEST_NAME, Manifest};
    let (_, store, model) = filled(22, 60);
    let archive = SimArchive::new();
    let last = backup(&store, &archive).unwrap().last_version;
    let size = archive.size_bytes_of(MANIFEST_NAME).unwrap().unwrap();
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    archive.read_at(MANIFEST_NAME, 0, &mut bytes).unwrap();
    let mut manifest = Manifest::decode(&bytes).unwrap();
    manifest.next_version = Version(last.0 + 1000);
    manifest.clear_version = Version(31);
    archive.create(MANIFEST_NAME).unwrap().write(&manifest.encode()).unwrap();
    let (device, store) = restored_on(&archive, DEVICE_SIZE, Initial::Zeros).unwrap();
    assert_eq!(held(&store).len(), model.len() - 30, "thirty records were cleared");
    assert_eq!(store.put(b"new", b"1").unwrap(), Version(last.0 + 1000));
    drop(store);
    assert_eq!(held(&open(&device, &options(1)).unwrap()).len(), model.len() - 29);
}

#[test]
fn a_device_that_holds_something_behind_its_first_blocks_is_no_place_for_a_backup() {
    let (_, store, old) = filled(31, 50);
    let archive = SimArchive::new();
    backup(&store, &archive).unwrap();
    let device = device(32);
    flip_on(&device, 1024);
    let before = device.image();
    let error = restore_on(&archive, &*device, &options(33)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(device.image() == before);
    flip_on(&device, 1024);
    restore_on(&archive, &*device, &options(33)).unwrap();
    assert_eq!(held(&open(&device, &options(33)).unwrap()), old);
}

/// A store from the backup in `archive`; stores with other seeds go on otherwise.
fn restored_with(archive: &SimArchive, seed: u64) -> Store {
    let device = device(seed);
    restore_on(archive, &*device, &options(seed)).unwrap();
    open(&device, &options(seed)).unwrap()
}

/// The log goes on in the segment that was open: two stores from one backup fill it with different records.
#[test]
fn backups_of_two_stores_from_one_take_no_segment_of_each_other() {
    for count in 30..60 {
        let (_, store, _) = filled(41, count);
        let archive = SimArchive::new();
        backup(&store, &archive).unwrap();
        let [one, other] = [42, 43].map(|seed| restored_with(&archive, seed));
        for n in 0..60_u8 {
            one.put(&[n], &[1; 300]).unwrap();
            other.put(&[n], &[2; 300]).unwrap();
        }
        backup(&one, &archive).unwrap();
        backup(&other, &archive).unwrap();
        assert_eq!(held(&restored(&archive).unwrap()), held(&other), "{count}");
        let again = backup(&other, &archive).unwrap();
        assert!(again.segments_reused > 4, "{count}: {again:?}");
        backup(&one, &archive).unwrap();
        assert_eq!(held(&restored(&archive).unwrap()), held(&one), "{count}");
    }
}

/// A segment of the cleaner that is left open says nowhere how far it goes: one store went on there after the backup, the other did not.
#[test]
fn backups_take_no_segment_that_another_store_of_one_origin_left_open() {
    let mut moved_on = 0;
    for count in 30..60 {
        let (device, store, _) = filled(44, count);
        (0..count).step_by(2).for_each(|n| drop(store.delete(format!("key{n}").as_bytes())));
        store.clean(1).unwrap();
        let archive = SimArchive::new();
        backup(&store, &archive).unwrap();
        let other = restored_with(&archive, 45);
        for n in 0..30_u8 {
            store.put(&[n], &[1; 200]).unwrap();
        }
        (0..30).step_by(3).for_each(|n| drop(store.delete(&[n])));
        moved_on += store.clean(9).unwrap();
        store.forget();
        let store = open(&device, &options(46)).unwrap();
        backup(&store, &archive).unwrap();
        backup(&other, &archive).unwrap();
        assert_eq!(held(&restored(&archive).unwrap()), held(&other), "{count}");
    }
    assert!(moved_on > 30, "{moved_on}");
}

/// Of a store in which nothing is left there is no segment to restore, but the versions that it gave are not given again.
#[test]
fn a_store_that_was_emptied_gives_no_version_again_after_it_was_restored() {
    let mut empty = 0;
    for count in 0..40 {
        let (device, store, _) = filled(47, count);
        store.clear().unwrap();
        store.close().unwrap();
        let store = open(&device, &options(48)).unwrap();
        let archive = SimArchive::new();
        let report = backup(&store, &archive).unwrap();
        empty += u32::from(report.segments_copied + report.segments_reused == 0);
        let restored = restored(&archive).unwrap();
        assert_eq!(held(&restored).len(), 0);
        let (next, after) = (store.put(b"key", b"").unwrap(), restored.put(b"key", b"").unwrap());
        assert!(next > report.last_version && after > report.last_version, "{count}: {after:?}");
        let archive = SimArchive::new();
        backup(&restored, &archive).unwrap();
        assert_eq!(held(&super::backup::restored(&archive).unwrap()), held(&restored));
    }
    assert!(empty > 0);
}

/// A file system on a disk that writes no less than 4 KiB, gone at the end; `None` where that is not allowed.
struct CoarseDisk {
    disk: String,
    folder: tempfile::TempDir,
}

impl CoarseDisk {
    fn new(image: &Path) -> Option<CoarseDisk> {
        let run = |program: &str, words: &[&str], path: &Path| {
            let output = Command::new(program).args(words).arg(path).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        run("truncate", &["-s", "96M"], image)?;
        let disk = run("losetup", &["--sector-size", "4096", "--find", "--show"], image)?;
        let disk = disk.trim().to_owned();
        let made = CoarseDisk { disk, folder: tempfile::tempdir().unwrap() };
        run("mkfs.ext4", &["-q"], Path::new(&made.disk))?;
        run("mount", &[&made.disk], made.folder.path())?;
        Some(made)
    }
}

impl Drop for CoarseDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).output();
        let _ = Command::new("losetup").arg("-d").arg(&self.disk).output();
    }
}

#[test]
fn a_store_stays_whole_where_the_blocks_of_the_one_that_is_to_replace_it_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    let (_, store, _) = filled(8, 20);
    store.backup(&backup).unwrap();
    let Some(disk) = CoarseDisk::new(&folder.path().join("image")) else {
        esker_testkit::skipped::because(
            "making and mounting a file system on a disk of 4 KiB blocks is not allowed here",
        );
        return;
    };
    let mut target = esker::Options::new(disk.folder.path().join("store"));
    (target.create, target.size_bytes) = (true, 32 << 20);
    let there = Store::open(&target).unwrap();
    let value = vec![3; 20 << 10];
    for number in 0..400u32 {
        there.put(&number.to_be_bytes(), &value).unwrap();
    }
    drop(there);
    let replacing = esker::Options { format: true, size_bytes: DEVICE_SIZE, ..target.clone() };
    let error = esker::restore(&backup, &replacing).unwrap_err();
    assert!(error.to_string().contains("the device writes 4096"), "{error}");
    let there = Store::open(&target).unwrap();
    for number in 0..400u32 {
        assert_eq!(there.get(&number.to_be_bytes()).unwrap().as_deref(), Some(&value[..]));
    }
}
