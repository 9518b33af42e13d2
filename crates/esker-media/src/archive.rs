//! Archives: folders of files that are written once and read whole, for backups.
//!
//! What a backup needs of a medium, so that it can be tested on one that fails and crashes:
//! [`FolderArchive`] is a folder of the file system, [`TarArchive`] one file of it, [`SimArchive`](crate::sim::SimArchive) the
//! simulated twin of the first.
//!
//! # Invariants
//! - A1: a file's bytes are durable once [`ArchiveWriter::finish`] returned, its name once a later
//!   [`Archive::flush`] did; so are removals and new names of files.
//! - A2: two who change an archive exclude each other; so do one who changes and one who reads.
//!
//! # Concurrency
//! Calls may come from tasks and threads. Bytes move through `esker_trt::io`, so a task that waits
//! lets its core run others; opening, renaming and flushing a folder block the caller.
//!
//! # Failure
//! A crash leaves, of what was not durable, any part: a file may be missing, empty or cut short, a
//! new name may be there or the old one.

mod tar;

use crate::locked::LockedFile;
use esker_base::{Error, ErrorKind, Result, Site};
use esker_trt::io::{self, WriteMode};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::fmt::Debug;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

pub use tar::TarArchive;

/// A folder of files. See the module's text.
pub trait Archive: Send + Sync + Debug {
    /// Name for errors.
    fn name(&self) -> &str;

    /// Names of all files, in no order.
    ///
    /// # Errors
    /// `Io`.
    fn list(&self) -> Result<Vec<String>>;

    /// Size of a file in bytes, or `None` if there is none.
    ///
    /// # Errors
    /// `Io`.
    fn size_bytes_of(&self, file: &str) -> Result<Option<u64>>;

    /// Starts a file, in place of one that has the name.
    ///
    /// # Errors
    /// `Io`, `NoSpace`, `ReadOnly` if the archive was opened for reading.
    fn create(&self, file: &str) -> Result<Box<dyn ArchiveWriter + '_>>;

    /// Fills `buf` from `offset`; returns the number of bytes, fewer only at the file's end.
    ///
    /// # Errors
    /// `Io`, also if there is no such file.
    fn read_at(&self, file: &str, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Gives a file another name, in place of one that has it.
    ///
    /// # Errors
    /// As for [`Archive::create`].
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// As for [`Archive::create`].
    fn remove(&self, file: &str) -> Result<()>;

    /// Makes the names of all files durable as they are.
    ///
    /// # Errors
    /// `Io`.
    fn flush(&self, site: Site) -> Result<()>;
}

/// A file that is being written, from its start to its end.
pub trait ArchiveWriter {
    /// Adds bytes.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Makes the file's bytes durable.
    ///
    /// # Errors
    /// `Io`. The file must not be used then.
    fn finish(self: Box<Self>, site: Site) -> Result<()>;
}

/// A folder of the file system.
#[derive(Debug)]
pub struct FolderArchive {
    name: String,
    folder: LockedFile,
    writable: bool,
}

impl FolderArchive {
    /// Opens the folder at `path` for changes; makes it, and those above, if it is missing, for its
    /// owner only.
    ///
    /// # Errors
    /// `Locked` if somebody else uses it, `Io`.
    pub fn create(path: &Path) -> Result<Self> {
        match rustix::fs::stat(path) {
            Err(Errno::NOENT) => crate::folder::make_folders(path)?,
            Err(errno) => return Err(failed(path, "open archive")(errno)),
            Ok(_) => {}
        }
        Self::open_with(path, true)
    }

    /// Opens the folder at `path` for reading.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none, `Locked` if somebody changes it, `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, false)
    }

    fn open_with(path: &Path, writable: bool) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder =
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::NOENT | Errno::NOTDIR => Error::invalid("open archive", "no such folder")
                    .device(path.display().to_string()),
                errno => failed(path, "open archive")(errno),
            })?;
        let folder = LockedFile::lock(folder, !writable)
            .map_err(failed(path, "lock archive"))?
            .ok_or_else(|| {
                Error::new(ErrorKind::Locked, "lock archive")
                    .context("another process uses the folder")
                    .device(path.display().to_string())
            })?;
        Ok(FolderArchive { name: path.display().to_string(), folder, writable })
    }

    fn failed(&self, operation: &'static str, file: &str) -> impl Fn(Errno) -> Error {
        let device = format!("{}/{file}", self.name);
        move |errno| Error::io(operation, errno.into()).device(&device)
    }

    fn check_writable(&self, operation: &'static str) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        let words = "the folder was opened for reading";
        Err(Error::new(ErrorKind::ReadOnly, operation).context(words).device(&self.name))
    }
}

fn failed(path: &Path, operation: &'static str) -> impl Fn(Errno) -> Error {
    let device = path.display().to_string();
    move |errno| Error::io(operation, errno.into()).device(&device)
}

impl Archive for FolderArchive {
    fn name(&self) -> &str {
        &self.name
    }

    fn list(&self) -> Result<Vec<String>> {
        let failed = self.failed("list archive", "");
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn size_bytes_of(&self, file: &str) -> Result<Option<u64>> {
        match rustix::fs::statat(&self.folder, file, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(u64::try_from(stat.st_size).unwrap_or(0))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("examine file", file)(errno)),
        }
    }

    fn create(&self, file: &str) -> Result<Box<dyn ArchiveWriter + '_>> {
        const OPERATION: &str = "create file";
        self.check_writable(OPERATION)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::openat(&self.folder, file, flags, mode)
            .map_err(self.failed(OPERATION, file))?;
        let name = format!("{}/{file}", self.name);
        Ok(Box::new(FileWriter { fd, name, length_bytes: 0 }))
    }

    fn read_at(&self, file: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        const OPERATION: &str = "read file";
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.folder, file, flags, Mode::empty())
            .map_err(self.failed(OPERATION, file))?;
        read_all(fd.as_fd(), &format!("{}/{file}", self.name), offset, buf)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.check_writable("rename file")?;
        rustix::fs::renameat(&self.folder, from, &self.folder, to)
            .map_err(self.failed("rename file", from))
    }

    fn remove(&self, file: &str) -> Result<()> {
        self.check_writable("remove file")?;
        rustix::fs::unlinkat(&self.folder, file, AtFlags::empty())
            .map_err(self.failed("remove file", file))
    }

    fn flush(&self, site: Site) -> Result<()> {
        if site.disabled() {
            return Ok(());
        }
        rustix::fs::fsync(&self.folder).map_err(self.failed("flush archive", ""))
    }
}

/// A file of a [`FolderArchive`] on its way.
#[derive(Debug)]
struct FileWriter {
    fd: OwnedFd,
    name: String,
    length_bytes: u64,
}

impl ArchiveWriter for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        write_all(self.fd.as_fd(), &self.name, self.length_bytes, bytes)?;
        self.length_bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(self: Box<Self>, site: Site) -> Result<()> {
        if site.disabled() { Ok(()) } else { sync(self.fd.as_fd(), &self.name) }
    }
}

/// Writes all of `bytes` to the file called `name`.
fn write_all(fd: BorrowedFd<'_>, name: &str, mut at: u64, mut bytes: &[u8]) -> Result<()> {
    const OPERATION: &str = "write file";
    while !bytes.is_empty() {
        match io::write_vectored_at(fd, &[IoSlice::new(bytes)], at, WriteMode::Plain) {
            Ok(0) => {
                let words = "the file takes no more bytes";
                return Err(Error::new(ErrorKind::Io, OPERATION).context(words).device(name));
            }
            Ok(count) => {
                at += count as u64;
                bytes = bytes.get(count..).unwrap_or(&[]);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(OPERATION, error).device(name)),
        }
    }
    Ok(())
}

/// Fills `buf` from the file called `name`, as far as that goes; how many bytes.
fn read_all(fd: BorrowedFd<'_>, name: &str, at: u64, buf: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match io::read_at(fd, rest, at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("read file", error).device(name)),
        }
    }
    Ok(done)
}

/// Makes what was written to the file called `name` durable.
fn sync(fd: BorrowedFd<'_>, name: &str) -> Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fsync(fd))
        .map_err(|errno| Error::io("flush file", errno.into()).device(name))
}

#[cfg(test)]
mod tests;
