//! Files that have their name only once they are whole: until then they stand beside, under a name that says what they are.
//!
//! # Concurrency
//! Who makes such a file has it locked, and whoever wants to make the same one is refused. The lock is of the file, not of its
//! name: so whoever has it looks whether the name still leads there.
//!
//! # Failure
//! What a process that was killed left under the name is taken away, and so is what somebody else put there: a file
//! of another owner, or one that others may read, is no place for what is written next.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Symbolic links that are followed one after another: as many as the kernel does.
const LINKS_MAX: u32 = 40;

/// The file that is to be replaced where `path` is written to: what a symbolic link names, also where nothing is there yet, and
/// not the link.
#[must_use]
pub fn replaced(path: &Path) -> PathBuf {
    if let Ok(path) = std::fs::canonicalize(path) {
        return path;
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        // Links of the kernel's lead to what has no name, such as a pipe.
        if std::fs::metadata(&path).is_ok() {
            break;
        }
        let Ok(next) = std::fs::read_link(&path) else { break };
        path.set_file_name("");
        path.push(next);
    }
    path
}

/// What a file that is to be at `path` is called until it is whole; `None` if `path` names no file.
#[must_use]
pub fn unfinished_name(path: &Path) -> Option<PathBuf> {
    Some(path.with_file_name(format!(".{}.esker", path.file_name()?.display())))
}

/// Makes the file `until`, which is empty, of this process alone, and locked for as long as the descriptor is open; `None` if somebody
/// else is making it.
///
/// # Errors
/// The kernel's.
pub fn create_unfinished(until: &Path) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = || rustix::fs::open(until, flags, Mode::RUSR | Mode::WUSR);
    let created = match create() {
        Err(Errno::EXIST) if take_away(until)? => create(),
        created => created,
    };
    match created {
        // Somebody is as fast.
        Err(Errno::EXIST) => Ok(None),
        Err(errno) => Err(errno),
        // It may have been taken away for a leftover before it was locked.
        Ok(fd) => Ok(own(&fd, until)?.then_some(fd)),
    }
}

/// Removes what is there and nobody is making; says whether that was so.
fn take_away(until: &Path) -> rustix::io::Result<bool> {
    let found = match rustix::fs::statat(CWD, until, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(true),
        found => found?,
    };
    // Anything else was not made here, and is not opened.
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(until, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(true),
            fd => fd?,
        };
        if !own(&fd, until)? {
            return Ok(false);
        }
        rustix::fs::unlink(until)?;
        return Ok(true);
    }
    rustix::fs::unlink(until)?;
    Ok(true)
}

/// Locks a file, and says whether it is this process's and still has its name: whoever had it before may have been done
/// just then, and given it another one.
fn own(fd: &OwnedFd, until: &Path) -> rustix::io::Result<bool> {
    match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(false),
        locked => locked?,
    }
    let here = rustix::fs::fstat(fd)?;
    let there = rustix::fs::statat(CWD, until, AtFlags::SYMLINK_NOFOLLOW);
    Ok(there.is_ok_and(|there| (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode()
    }

    #[test]
    fn what_is_there_is_taken_away_and_not_written_to() {
        let scratch = tempfile::tempdir().unwrap();
        let until = unfinished_name(&scratch.path().join("it")).unwrap();
        let (letter, beside) = (scratch.path().join("letter"), scratch.path().join("beside"));
        std::fs::write(&letter, b"dear").unwrap();
        std::fs::set_permissions(&letter, PermissionsExt::from_mode(0o666)).unwrap();
        std::fs::hard_link(&letter, &until).unwrap();
        drop(create_unfinished(&until).unwrap().expect("nobody makes it"));
        assert_eq!(mode(&until), 0o100_600);
        for target in [&letter, &beside] {
            std::fs::remove_file(&until).unwrap();
            symlink(target, &until).unwrap();
            drop(create_unfinished(&until).unwrap().expect("nobody makes it"));
            assert_eq!(mode(&until), 0o100_600);
        }
        assert_eq!(std::fs::read(&letter).unwrap(), b"dear");
        assert!(!beside.exists());
    }

    #[test]
    fn one_at_a_time_makes_a_file() {
        let scratch = tempfile::tempdir().unwrap();
        let until = scratch.path().join(".it.esker");
        let first = create_unfinished(&until).unwrap().expect("nobody makes it");
        assert!(create_unfinished(&until).unwrap().is_none());
        std::fs::rename(&until, scratch.path().join("it")).unwrap();
        let second = create_unfinished(&until).unwrap().expect("the first one has its name");
        drop(first);
        assert!(create_unfinished(&until).unwrap().is_none());
        drop(second);
        assert!(create_unfinished(&until).unwrap().is_some());
    }

    #[test]
    fn a_link_stands_for_what_it_names_whether_that_is_there_or_not() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        symlink("second", at("first")).unwrap();
        symlink(at("folder/file"), at("second")).unwrap();
        assert_eq!(replaced(&at("first")), at("folder/file"));
        assert_eq!(replaced(&at("plain")), at("plain"));
        symlink("round", at("round")).unwrap();
        assert_eq!(replaced(&at("round")), at("round"));
        let (_reader, writer) = std::io::pipe().unwrap();
        let pipe = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        assert_eq!(replaced(Path::new(&pipe)), Path::new(&pipe));
    }
}
