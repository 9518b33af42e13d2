//! Where measurements have their data: in a folder of their own inside the one that `--data` names, which may be anybody's.
//!
//! # Invariants
//! - What is removed was made here: a folder without the mark of one is refused, whatever its name is, and inside one
//!   that has it only [`OwnFolder::data`] and the mark go.
//!
//! # Concurrency
//! A run has the folder of `--data` locked ([`take`]), for all runs have the same names in it.
//!
//! # Failure
//! What a run that was killed left has the mark, and the next run in the same place removes it.

use crate::failure::{Failure, Outcome};
use crate::files;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// The file that says whose a folder is, and what it says.
const MARK: &str = "of-esker-bench";
const MARK_WORDS: &str = "esker bench made this folder, and removes it.\n";

/// A folder that was made here, or is to be.
#[derive(Clone, Debug)]
pub struct OwnFolder(PathBuf);

impl OwnFolder {
    /// Of the system that is measured.
    #[must_use]
    pub fn of_cell(data: &Path) -> OwnFolder {
        OwnFolder(data.join("esker-bench-cell"))
    }

    /// Of the server that is measured.
    #[must_use]
    pub fn of_server(data: &Path) -> OwnFolder {
        OwnFolder(data.join("esker-bench-server"))
    }

    /// The part that whoever is measured has for itself.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn mark(&self) -> PathBuf {
        self.0.join(MARK)
    }

    /// Refuses a folder that somebody else made.
    fn check(&self) -> Outcome<()> {
        if self.mark().is_file() || files::is_empty_folder(&self.0) {
            return Ok(());
        }
        let folder = self.0.display();
        Err(Failure::new(format!(
            "{folder} is not of esker bench: it stays, and --data has to be elsewhere"
        )))
    }

    /// Makes it, with nothing in [`OwnFolder::data`].
    ///
    /// # Errors
    /// A folder that somebody else made; the kernel's.
    pub fn renew(&self) -> Outcome<()> {
        self.check()?;
        files::create_folder(&self.0)?;
        // Not by way of another name, which alone would be no mark: that the file is there says enough, cut short or not.
        if !self.mark().is_file() {
            files::write_in_place(&self.mark(), MARK_WORDS)?;
        }
        files::remove_folder(&self.data())?;
        files::create_folder(&self.data())
    }

    /// Removes it; it need not be there.
    ///
    /// # Errors
    /// As those of [`OwnFolder::renew`].
    pub fn remove(&self) -> Outcome<()> {
        self.check()?;
        files::remove_folder(&self.data())?;
        files::remove_file(&self.mark())?;
        files::remove_empty_folder(&self.0);
        Ok(())
    }
}

/// Takes the folder of `--data`, which is there, for one run: until the descriptor is closed, no other one gets it.
///
/// # Errors
/// Another run has it; what a run would remove there is somebody else's.
pub fn take(data: &Path) -> Outcome<OwnedFd> {
    let failed = |errno: Errno| Failure::from(errno).during(data.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(data, flags, Mode::empty()).map_err(failed)?;
    match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let words = "another process uses this folder, and --data has to be elsewhere";
            return Err(Failure::new(words).during(data.display()));
        }
        locked => locked.map_err(failed)?,
    }
    OwnFolder::of_cell(data).check()?;
    OwnFolder::of_server(data).check()?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_anew_and_removed_if_it_was_made_here() {
        let scratch = tempfile::tempdir().unwrap();
        let own = OwnFolder::of_cell(scratch.path());
        own.remove().unwrap();
        own.renew().unwrap();
        files::write(&own.data().join("file"), "old").unwrap();
        own.renew().unwrap();
        assert!(files::is_empty_folder(&own.data()));
        own.remove().unwrap();
        assert!(files::is_empty_folder(scratch.path()));
    }

    #[test]
    fn what_somebody_else_put_there_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let own = OwnFolder::of_server(scratch.path());
        files::create_folder(&own.data()).unwrap();
        let letter = own.data().join("letter");
        files::write(&letter, "dear").unwrap();
        for refused in [own.renew(), own.remove(), take(scratch.path()).map(drop)] {
            assert!(refused.unwrap_err().to_string().contains("it stays"));
        }
        assert!(letter.exists());
        // Beside what was made here, too.
        files::remove_folder(&own.data()).unwrap();
        own.renew().unwrap();
        let beside = scratch.path().join("esker-bench-server/letter");
        files::write(&beside, "dear").unwrap();
        own.remove().unwrap();
        assert!(beside.exists());
    }

    #[test]
    fn one_run_at_a_time_has_a_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let held = take(scratch.path()).unwrap();
        let refused = take(scratch.path()).unwrap_err().to_string();
        assert!(refused.contains("another process"), "{refused}");
        drop(held);
        assert!(take(scratch.path()).is_ok());
    }
}
