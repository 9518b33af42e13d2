//! Two that open one path at once, and files whose making was cut off.

use super::{BESIDE, try_direct};
use crate::block::BlockDevice;
use crate::file::tests::SmallDisk;
use crate::file::{FileDevice, OpenOptions};
use crate::folder::locate;
use crate::locked::LockedFile;
use esker_base::{ErrorKind, Result};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::cell::{Cell, RefCell};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::rc::Rc;

thread_local! {
    static BEFORE_LOCK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    static BEFORE_WHOLE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Called when all of a new file is there, and nobody sees it yet.
pub(super) fn before_whole() {
    let what = BEFORE_WHOLE.take();
    if let Some(what) = what {
        what();
    }
}

/// Called between the opening of a file and its lock.
pub(super) fn before_lock() {
    let what = BEFORE_LOCK.take();
    if let Some(what) = what {
        what();
    }
}

fn create(path: &Path) -> Result<FileDevice> {
    FileDevice::open(
        path,
        OpenOptions { create_size_bytes: Some(1 << 20), ..OpenOptions::default() },
    )
}

#[test]
fn who_is_refused_leaves_the_file_of_whoever_was_faster() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let (faster, place) = (std::rc::Rc::new(RefCell::new(None)), path.clone());
    let winner = faster.clone();
    BEFORE_LOCK.set(Some(Box::new(move || *winner.borrow_mut() = Some(create(&place).unwrap()))));
    assert_eq!(create(&path).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20, "the other one's file");
    drop(faster.take());
    create(&path).unwrap();
}

#[test]
fn a_file_that_was_taken_away_before_it_was_locked_is_not_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    std::fs::write(&path, b"").unwrap();
    for made_again in [false, true] {
        let place = path.clone();
        BEFORE_LOCK.set(Some(Box::new(move || {
            std::fs::remove_file(&place).unwrap();
            if made_again {
                std::fs::write(&place, b"").unwrap();
            }
        })));
        assert_eq!(create(&path).unwrap_err().kind(), ErrorKind::Locked);
        // As callers do, who try again.
        create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().nlink(), 1);
    }
}

/// Makes `folder/device`, and asserts that a crash when all of it has just been taken leaves nothing that an open takes
/// for a file.
fn is_not_there_until_it_is_whole(folder: &Path) {
    let (told, place) = (Rc::new(Cell::new(false)), folder.to_path_buf());
    let tell = Rc::clone(&told);
    BEFORE_WHOLE.set(Some(Box::new(move || {
        tell.set(!locate(&place, "device", true).unwrap().exists);
    })));
    create(&folder.join("device")).unwrap();
    assert!(told.get());
    assert!(locate(folder, "device", false).unwrap().exists);
    assert_eq!(std::fs::metadata(folder.join("device")).unwrap().len(), 1 << 20);
}

#[test]
fn a_file_has_no_size_before_all_of_it_is_allocated() {
    let folder = tempfile::tempdir().unwrap();
    is_not_there_until_it_is_whole(folder.path());
}

#[test]
fn what_a_making_took_that_was_cut_off_is_given_back_to_the_next_one() {
    let Some(disk) = SmallDisk::new("size=1m") else {
        crate::skipped::because("mounting a small tmpfs is not allowed here");
        return;
    };
    let path = disk.0.path().join("device");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 700 << 10).unwrap();
    drop(file);
    let options = OpenOptions { create_size_bytes: Some(512 << 10), ..OpenOptions::default() };
    let device = FileDevice::open(&path, options).unwrap();
    assert_eq!(device.geometry().size_bytes, 512 << 10);
}

#[test]
fn where_nothing_can_be_allocated_a_file_is_filled_beside_its_place() {
    // It does not say how large it is, either.
    let Some(disk) = SmallDisk::mount(&["-t", "ramfs", "esker-test"]) else {
        crate::skipped::because("mounting a ramfs is not allowed here");
        return;
    };
    let (folder, path) = (disk.0.path(), disk.0.path().join("device"));
    let beside = folder.join(format!("device{BESIDE}"));
    std::fs::write(&beside, b"of one that was cut off").unwrap();
    is_not_there_until_it_is_whole(folder);
    assert!(!beside.exists());

    // One that somebody made empty keeps what it was given, and a link leads there.
    let empty = folder.join("empty");
    std::fs::write(&empty, b"").unwrap();
    std::fs::set_permissions(&empty, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("empty", &path).unwrap();
    let device = create(&path).unwrap();
    assert_eq!(create(&path).unwrap_err().kind(), ErrorKind::Locked);
    drop(device);
    let made = std::fs::symlink_metadata(&empty).unwrap();
    assert_eq!((made.len(), made.mode() & 0o777), (1 << 20, 0o640));
    assert!(std::fs::symlink_metadata(&path).unwrap().is_symlink());
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 2);
}

#[test]
fn direct_access_to_a_first_block_that_cannot_be_read_is_still_direct() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    if !create(&path).unwrap().is_direct() {
        crate::skipped::because("this file system refuses O_DIRECT");
        return;
    }
    // Every read of it fails, with another error than a wrong alignment.
    let file = rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    assert!(try_direct(&LockedFile::without_lock(file), 512).unwrap().is_some());
}
