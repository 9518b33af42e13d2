//! Where a store's data file is, or will be.
//!
//! A crash leaves a folder without a file, or a file that is still blank: both are made whole by
//! the next open.

use esker_base::{Error, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, StatVfs};
use std::path::{Path, PathBuf};

/// A data file or raw device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Its path.
    pub path: PathBuf,
    /// Whether it exists and is not empty.
    pub exists: bool,
}

/// Finds the data of the store at `path`: the file `file_name` in a folder, or the file or block
/// device that `path` is itself. A missing folder is made if `create` says so, for its owner only.
///
/// # Errors
/// `InvalidArgument` if there is nothing and `create` is false, `Io`.
pub fn locate(path: &Path, file_name: &str, create: bool) -> Result<Located> {
    let failed = |source: rustix::io::Errno| {
        Error::io("find store", source.into()).device(path.display().to_string())
    };
    match rustix::fs::stat(path) {
        Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => {}
        Ok(_) => return Ok(Located { path: path.to_path_buf(), exists: true }),
        Err(rustix::io::Errno::NOENT) if create => {
            make_folders(path)?;
        }
        Err(rustix::io::Errno::NOENT) => {
            return Err(Error::invalid("find store", "there is no store at this path")
                .device(path.display().to_string()));
        }
        Err(error) => return Err(failed(error)),
    }
    let file = path.join(file_name);
    match rustix::fs::stat(&file) {
        Ok(found) if found.st_size > 0 => Ok(Located { path: file, exists: true }),
        Ok(_) | Err(rustix::io::Errno::NOENT) if create => {
            Ok(Located { path: file, exists: false })
        }
        Ok(_) | Err(rustix::io::Errno::NOENT) => {
            Err(Error::invalid("find store", "there is no store in this folder")
                .device(path.display().to_string()))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Takes a data file away that was made for nothing; if an empty one `was_there` before, it is empty again.
///
/// # Errors
/// `Io`.
pub fn take_away(path: &Path, was_there: bool) -> Result<()> {
    let done = match was_there {
        true => rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| rustix::fs::ftruncate(file, 0)),
        false => rustix::fs::unlink(path),
    };
    done.map_err(|source| {
        Error::io("take file away", source.into()).device(path.display().to_string())
    })
}

/// Bytes that the file system of a folder still has; none if it counts none, or does not tell.
#[must_use]
pub fn room_below(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().and_then(|of| room_of(&of))
}

/// See [`room_below`]. A file system that counts none (ramfs, some of FUSE) is not full.
pub(crate) fn room_of(of: &StatVfs) -> Option<u64> {
    (of.f_blocks > 0).then(|| of.f_bavail.saturating_mul(of.f_frsize))
}

/// Folders that are missing: those that are made meanwhile, and still empty when this is dropped, go again.
#[derive(Debug, Default)]
pub struct NewFolders(Vec<PathBuf>);

impl NewFolders {
    /// Of `path`, and those above it.
    pub fn note(&mut self, path: &Path) {
        let is_missing = |path: &&Path| {
            let found = rustix::fs::stat(*path).err();
            !path.as_os_str().is_empty() && found == Some(rustix::io::Errno::NOENT)
        };
        self.0.extend(path.ancestors().take_while(is_missing).map(Path::to_path_buf));
    }

    /// They stay.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewFolders {
    fn drop(&mut self) {
        for path in &self.0 {
            // One that has something in it stays, be it of somebody else.
            let _ = rustix::fs::rmdir(path);
        }
    }
}

/// Makes a folder and the missing ones above it, and makes each durable in the one above.
pub(crate) fn make_folders(path: &Path) -> Result<()> {
    let failed = |source: rustix::io::Errno| {
        Error::io("make folder", source.into()).device(path.display().to_string())
    };
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(rustix::io::Errno::NOENT) => {
            let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
                return Err(failed(rustix::io::Errno::NOENT));
            };
            make_folders(parent)?;
            rustix::fs::mkdir(path, Mode::RWXU).map_err(failed)?;
        }
        Err(error) => return Err(failed(error)),
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::openat(CWD, parent, flags, Mode::empty()).map_err(failed)?;
    rustix::fs::fsync(parent).map_err(failed)
}
