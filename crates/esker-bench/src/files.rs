//! The files that the benchmark itself reads and writes: results, reports, traces, and what the
//! kernel tells in `/proc` and `/sys`. Data of the systems under test are theirs to open.

use crate::failure::{Failure, Outcome};
use std::fmt::Display;
use std::fs;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};

fn at(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |error| named(&path.display(), &error)
}

fn named(path: &dyn Display, error: &std::io::Error) -> Failure {
    Failure::new(format!("{path}: {error}"))
}

/// The text of a file.
pub fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(at(path))
}

/// The text of a file of the kernel, if there is such a file.
#[must_use]
pub fn read_kernel(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Writes to the file itself: to one of the kernel, which is there, or where a part of the text says as much as all of it.
pub(crate) fn write_in_place(path: &Path, text: &str) -> Outcome<()> {
    fs::write(path, text).map_err(at(path))
}

/// Removes a folder that has nothing in it; else it stays.
pub(crate) fn remove_empty_folder(path: &Path) {
    let _ = fs::remove_dir(path);
}

/// Replaces a file as a whole: a reader finds the old text or the new one.
pub fn write(path: &Path, text: &str) -> Outcome<()> {
    let new = new_name(path);
    fs::write(&new, text).map_err(at(&new))?;
    fs::rename(&new, path).map_err(at(path))
}

/// Finds out whether [`write()`] could put a file there now; what is there stays, and nothing is added.
pub fn check_writable(path: &Path) -> Outcome<()> {
    if path.is_dir() {
        return Err(named(&path.display(), &ErrorKind::IsADirectory.into()));
    }
    let new = new_name(path);
    if new.exists() {
        #[expect(clippy::disallowed_methods, reason = "a result is no medium")]
        fs::OpenOptions::new().write(true).open(&new).map_err(at(&new))?;
    }
    // Beside it, by a name that nobody has: what was begun before may be somebody else's.
    let tried = with_added(path, &format!(".{}.new", std::process::id()));
    fs::File::create_new(&tried).and_then(|_| fs::remove_file(&tried)).map_err(at(path))
}

/// What a file is called until all of it is there.
fn new_name(path: &Path) -> PathBuf {
    with_added(path, ".new")
}

fn with_added(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Lines of a file.
pub(crate) fn lines(path: &Path) -> Outcome<BufReader<fs::File>> {
    #[expect(clippy::disallowed_methods, reason = "a trace is no medium")]
    let file = fs::File::open(path).map_err(at(path))?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// Makes a folder and those above it.
pub fn create_folder(path: &Path) -> Outcome<()> {
    fs::create_dir_all(path).map_err(at(path))
}

/// Whether a folder has nothing in it, or is not there.
pub(crate) fn is_empty_folder(path: &Path) -> bool {
    fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none())
}

/// Removes a folder with all in it; it need not be there.
pub fn remove_folder(path: &Path) -> Outcome<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(named(&path.display(), &error)),
        _ => Ok(()),
    }
}

/// Removes a file; it need not be there.
pub(crate) fn remove_file(path: &Path) -> Outcome<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(named(&path.display(), &error)),
        _ => Ok(()),
    }
}

/// Bytes that the files in a folder take on the device, holes left out.
#[must_use]
pub fn disk_usage_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_usage_bytes(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_beside_a_file_that_can_be_written_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("result.json");
        let others = [path.clone(), new_name(&path)];
        for other in &others {
            fs::write(other, "mine").unwrap();
        }
        check_writable(&path).unwrap();
        for other in &others {
            assert_eq!(read(other).unwrap(), "mine");
        }
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2);
        let refused = check_writable(&scratch.path().join("none/result.json")).unwrap_err();
        assert!(refused.to_string().contains("none/result.json: "), "{refused}");
        check_writable(&scratch.path().join("none/")).unwrap_err();
        // What would be written is a folder.
        fs::create_dir(new_name(&scratch.path().join("other"))).unwrap();
        check_writable(&scratch.path().join("other")).unwrap_err();
    }
}
