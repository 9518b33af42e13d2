//! Backups that clients ask for: where they go, and that there is one at a time.
//!
//! The folder is the server's: no client names one. A backup runs on a thread of its own, beside the cores, for it reads
//! and compares whole segments and flushes files, and a core that did so would keep its connections waiting. None of the
//! run-time's helpers: one in a folder that hangs would keep the run-time from its end. It takes nothing of the memory
//! budget: like a cleaner, it holds a segment or two.
//!
//! # Invariants
//! - U1: at most one backup runs in a server. Whoever begins one holds the [`Turn`] until its thread has ended.
//! - U2: who waits for a backup holds nothing that others wait for.
//!
//! # Failure
//! As `esker::Store::backup`: the earlier backup in the folder is as it was. A server that stops, and a run-time that shuts
//! down, end a backup before its next piece; the task that waits for it comes back at once in the second case.

use crate::shared::Shared;
use esker::{BackupReport, Error, ErrorKind, Progress, Result};
use esker_format::native::Status;
use esker_trt::sync::channel;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where backups go, and whether one runs.
#[derive(Debug)]
pub(crate) struct Backups {
    folder: Option<PathBuf>,
    running: AtomicBool,
}

impl Backups {
    /// Backups to `folder`; all are refused if there is none.
    pub(crate) fn new(folder: Option<PathBuf>) -> Backups {
        Backups { folder, running: AtomicBool::new(false) }
    }
}

/// The only one who may back the store up, until it is dropped (U1).
pub(crate) struct Turn {
    shared: Arc<Shared>,
    folder: PathBuf,
}

impl Turn {
    /// The turn, or why there is none.
    pub(crate) fn take(shared: &Arc<Shared>) -> Result<Turn, Status> {
        let Some(folder) = shared.backups.folder.clone() else { return Err(Status::Forbidden) };
        if shared.backups.running.swap(true, Ordering::AcqRel) {
            return Err(Status::TooLarge);
        }
        Ok(Turn { shared: shared.clone(), folder })
    }

    /// Backs the store up, and waits for that.
    ///
    /// # Errors
    /// Those of `Store::backup`; `Cancelled` if the server stops; `Io` if the system has no thread for it.
    pub(crate) fn run(self) -> Result<BackupReport> {
        let left = Arc::new(AtomicBool::new(false));
        let (ends, ended) = channel(1);
        let given_up = left.clone();
        let copy = move || {
            let report = copy(&self.shared, &self.folder, given_up);
            // Whoever hears of the end may ask for the next one.
            drop(self);
            // Nobody waits any more if the run-time has shut down.
            let _ = ends.try_send(report);
        };
        let started = std::thread::Builder::new().name("esker-backup".into()).spawn(copy);
        started.map_err(|source| Error::io("start backup", source))?;
        ended.receive().unwrap_or_else(|error| {
            left.store(true, Ordering::Release);
            let panicked = error.kind() == ErrorKind::Closed;
            Err(if panicked { Error::new(ErrorKind::Panicked, "back up") } else { error })
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shared.backups.running.store(false, Ordering::Release);
    }
}

/// The thread's whole life.
fn copy(shared: &Arc<Shared>, folder: &Path, given_up: Arc<AtomicBool>) -> Result<BackupReport> {
    let place = folder.display();
    tracing::info!("backup to {place} begins");
    let stopping = shared.clone();
    let ends = move || stopping.is_stopping() || given_up.load(Ordering::Acquire);
    let done = shared.store.backup_with(folder, &Progress::default().until(ends));
    match &done {
        Ok(report) => tracing::info!("backup to {place} done: {report}"),
        Err(error) => tracing::warn!("backup to {place} failed: {error}"),
    }
    done
}
