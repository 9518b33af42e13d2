//! An archive in one file: a tar of the files that a folder would have, and in no other way special. `tar` lists it, and what it
//! extracts is a folder again.
//!
//! # Invariants
//! - T1: a file has its name only when all of it is there, durably ([`TarArchive::publish`]): until then it stands beside, under a name of its own,
//!   and what had the name before is as it was.
//! - T2: the header of an entry is written behind its bytes, with their number; so an entry that was not finished is no part of the
//!   archive, and the next one takes its place.
//! - A2 of [`super`]: who writes has the file beside for himself, from the start.
//!
//! # Concurrency
//! One entry is written at a time; anything may be read meanwhile.
//!
//! # Failure
//! A crash leaves the file beside, which the next archive of that name takes away. Of a tar that somebody else made, entries that are no files
//! are passed over, and of two with one name the last one counts.

use super::{Archive, ArchiveWriter};
use crate::locked::LockedFile;
use crate::unfinished;
use esker_base::{Error, ErrorKind, Result, Site};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Everything in a tar stands at a multiple of this, in bytes; the end is two blocks of zeros.
const BLOCK: u64 = 512;
/// Zeros that end a tar, and fill up an entry.
const ZEROS: [u8; 1024] = [0; 1024];

/// Where an entry stands.
#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: u64,
    size: u64,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// Where the next entry begins.
    end: u64,
    /// Whether an entry is being written.
    is_busy: bool,
}

/// What a new archive is called until it is whole, and then.
#[derive(Clone, Debug)]
struct Names {
    until: PathBuf,
    path: PathBuf,
}

/// An archive in one file. See the module's text.
#[derive(Debug)]
pub struct TarArchive {
    name: String,
    file: LockedFile,
    /// Of one that is made; `None` for reading, or once it is whole.
    names: Mutex<Option<Names>>,
    state: Mutex<State>,
}

fn failed(path: &Path, operation: &'static str) -> impl Fn(Errno) -> Error {
    let device = path.display().to_string();
    move |errno| Error::io(operation, errno.into()).device(&device)
}

fn lock(fd: rustix::fd::OwnedFd, path: &Path, shared: bool) -> Result<LockedFile> {
    let locked = LockedFile::lock(fd, shared).map_err(failed(path, "lock archive"))?;
    locked.ok_or_else(|| {
        Error::new(ErrorKind::Locked, "lock archive")
            .context("another process uses the file")
            .device(path.display().to_string())
    })
}

impl TarArchive {
    /// Begins an archive that will be at `path`, in place of a file that is there.
    ///
    /// # Errors
    /// `InvalidArgument` if something else than a file is there, `Locked` if somebody else is making one, `Io`.
    pub fn create(path: &Path) -> Result<Self> {
        const OPERATION: &str = "create archive";
        let wrong = |words| Error::invalid(OPERATION, words).device(path.display().to_string());
        // What a symbolic link names is replaced, not the link.
        let path = unfinished::replaced(path);
        match std::fs::metadata(&path) {
            Ok(found) if !found.is_file() => return Err(wrong("this is no file")),
            _ => {}
        }
        let until =
            unfinished::unfinished_name(&path).ok_or_else(|| wrong("this names no file"))?;
        let fd = unfinished::create_unfinished(&until).map_err(failed(&until, OPERATION))?;
        let fd = fd.ok_or_else(|| {
            let words = "another process is making this archive";
            Error::new(ErrorKind::Locked, OPERATION)
                .context(words)
                .device(path.display().to_string())
        })?;
        let file = lock(fd, &until, false)?;
        Ok(TarArchive {
            name: path.display().to_string(),
            file,
            names: Mutex::new(Some(Names { until, path })),
            state: Mutex::default(),
        })
    }

    /// Opens the archive at `path` for reading.
    ///
    /// # Errors
    /// `Corrupted` if it is no tar, or cut short; `Locked` if somebody changes it, `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        const OPERATION: &str = "open archive";
        let name = path.display().to_string();
        let damaged = |words: String| Error::corrupted(OPERATION, words).device(&name);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed(path, OPERATION))?;
        let copy = rustix::io::fcntl_dupfd_cloexec(&fd, 0).map_err(failed(path, OPERATION))?;
        let file = lock(fd, path, true)?;
        let size = rustix::fs::fstat(&file).map_err(failed(path, OPERATION))?.st_size;
        let size = u64::try_from(size).unwrap_or(0);
        let mut state = State::default();
        let mut tar = ::tar::Archive::new(File::from(copy));
        let wrong = |error: std::io::Error| damaged(format!("this is no whole tar: {error}"));
        // Raw: no name of ours needs an extension, and those of others take no memory.
        for entry in tar.entries_with_seek().map_err(wrong)?.raw(true) {
            let entry = entry.map_err(wrong)?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let name = name.trim_start_matches("./").to_owned();
            let found = Entry { offset: entry.raw_file_position(), size: entry.size() };
            if found.offset.checked_add(found.size).is_none_or(|end| end > size) {
                return Err(damaged(format!("it ends before {name} does")));
            }
            state.entries.insert(name, found);
        }
        Ok(TarArchive { name, file, names: Mutex::new(None), state: Mutex::new(state) })
    }

    /// Ends an archive that was begun, and gives it its name, durably.
    ///
    /// # Errors
    /// `Io`, `NoSpace`; what was there before is as it was then, unless the last step failed: then either is there.
    pub fn publish(&self) -> Result<()> {
        const OPERATION: &str = "publish archive";
        // No lock is held while a task waits.
        let names = self.names.lock().clone();
        let Some(Names { until, path }) = names else { return Ok(()) };
        let end = self.state.lock().end;
        self.write(end, &ZEROS)?;
        // Of a file that was given up there may be bytes behind it.
        rustix::fs::ftruncate(&self.file, end + ZEROS.len() as u64)
            .map_err(failed(&path, OPERATION))?;
        self.sync()?;
        rustix::fs::rename(&until, &path).map_err(failed(&path, OPERATION))?;
        *self.names.lock() = None;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = folder.unwrap_or(Path::new("."));
        let folder = rustix::fs::open(folder, flags, Mode::empty());
        folder.and_then(rustix::fs::fsync).map_err(failed(&path, OPERATION))
    }

    fn missing(&self, file: &str) -> Error {
        Error::new(ErrorKind::Io, "read file")
            .context("there is no such file")
            .device(format!("{}/{file}", self.name))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        super::write_all(self.file.as_fd(), &self.name, at, bytes)
    }

    fn sync(&self) -> Result<()> {
        super::sync(self.file.as_fd(), &self.name)
    }

    /// Writes the header of an entry, in front of its bytes.
    fn write_header(&self, file: &str, entry: Entry) -> Result<()> {
        let mut header = ::tar::Header::new_ustar();
        header.set_path(file).map_err(|error| Error::io("write file", error).device(&self.name))?;
        header.set_size(entry.size);
        header.set_mode(0o600);
        header.set_entry_type(::tar::EntryType::Regular);
        header.set_cksum();
        self.write(entry.offset - BLOCK, header.as_bytes())
    }

    fn check_writable(&self, operation: &'static str) -> Result<()> {
        if self.names.lock().is_some() {
            return Ok(());
        }
        let words = "the archive was opened for reading";
        Err(Error::new(ErrorKind::ReadOnly, operation).context(words).device(&self.name))
    }
}

impl Drop for TarArchive {
    fn drop(&mut self) {
        if let Some(Names { until, .. }) = &*self.names.lock() {
            // It is gone, unless that was not published.
            let here = rustix::fs::fstat(&self.file);
            let there = rustix::fs::statat(CWD, until, AtFlags::SYMLINK_NOFOLLOW);
            if let (Ok(here), Ok(there)) = (here, there)
                && (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
            {
                let _ = rustix::fs::unlink(until);
            }
        }
    }
}

impl Archive for TarArchive {
    fn name(&self) -> &str {
        &self.name
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.state.lock().entries.keys().cloned().collect())
    }

    fn size_bytes_of(&self, file: &str) -> Result<Option<u64>> {
        Ok(self.state.lock().entries.get(file).map(|entry| entry.size))
    }

    fn create(&self, file: &str) -> Result<Box<dyn ArchiveWriter + '_>> {
        const OPERATION: &str = "create file";
        self.check_writable(OPERATION)?;
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.is_busy, true) {
            let words = "another file of the archive is being written";
            return Err(Error::new(ErrorKind::Locked, OPERATION).context(words).device(&self.name));
        }
        let entry = Entry { offset: state.end + BLOCK, size: 0 };
        Ok(Box::new(TarWriter { archive: self, file: file.to_owned(), entry }))
    }

    fn read_at(&self, file: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let entry = self.state.lock().entries.get(file).copied();
        let Entry { offset: start, size } = entry.ok_or_else(|| self.missing(file))?;
        let wanted = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = wanted.min(buf.len());
        let name = format!("{}/{file}", self.name);
        let buf = buf.get_mut(..wanted).unwrap_or_default();
        super::read_all(self.file.as_fd(), &name, start + offset, buf)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.check_writable("rename file")?;
        let mut state = self.state.lock();
        let entry = state.entries.get(from).copied().ok_or_else(|| self.missing(from))?;
        self.write_header(to, entry)?;
        state.entries.remove(from);
        state.entries.insert(to.to_owned(), entry);
        Ok(())
    }

    /// # Errors
    /// `Unsupported`: a new archive has nothing that is to go.
    fn remove(&self, file: &str) -> Result<()> {
        self.check_writable("remove file")?;
        Err(Error::new(ErrorKind::Unsupported, "remove file")
            .device(format!("{}/{file}", self.name)))
    }

    fn flush(&self, site: Site) -> Result<()> {
        if site.disabled() { Ok(()) } else { self.sync() }
    }
}

/// An entry of a [`TarArchive`] on its way.
#[derive(Debug)]
struct TarWriter<'a> {
    archive: &'a TarArchive,
    file: String,
    entry: Entry,
}

impl ArchiveWriter for TarWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.archive.write(self.entry.offset + self.entry.size, bytes)?;
        self.entry.size += bytes.len() as u64;
        Ok(())
    }

    fn finish(self: Box<Self>, site: Site) -> Result<()> {
        let end = self.entry.offset + self.entry.size;
        let fill = usize::try_from(end.next_multiple_of(BLOCK) - end).unwrap_or(0);
        self.archive.write(end, ZEROS.get(..fill).unwrap_or_default())?;
        self.archive.write_header(&self.file, self.entry)?;
        if !site.disabled() {
            self.archive.sync()?;
        }
        let mut state = self.archive.state.lock();
        state.end = end + fill as u64;
        state.entries.insert(self.file.clone(), self.entry);
        Ok(())
    }
}

impl Drop for TarWriter<'_> {
    fn drop(&mut self) {
        self.archive.state.lock().is_busy = false;
    }
}

#[cfg(test)]
mod tests;
