//! Two that open one path at once.

use crate::file::{FileDevice, OpenOptions};
use esker_base::{ErrorKind, Result};
use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

thread_local! {
    static BEFORE_LOCK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
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
