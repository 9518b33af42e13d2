//! A simulated archive: a folder in memory that fails when told to and forgets in a crash what was
//! not flushed.
//!
//! # Invariants
//! - I1: a crash keeps the bytes of every file that was finished, and of others any beginning.
//! - I2: a crash keeps the names of the last flush; of what was created, renamed and removed since,
//!   each by itself, any part.
//! - I3: the same seed and the same calls give the same crash.
//!
//! # Concurrency
//! Safe from tasks and threads; the inner lock is held for a call at most. Nothing suspends.
//!
//! # Failure
//! From the n-th call on that changes something, every one fails, if told so: what a process that
//! ended there would have left is [`SimArchive::crash`].

use crate::archive::{Archive, ArchiveWriter};
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result, Site};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

type FileId = usize;

#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    finished: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Name(String, FileId),
    Rename(String, String, FileId),
    Remove(String),
}

#[derive(Clone, Debug, Default)]
struct State {
    files: Vec<File>,
    names: BTreeMap<String, FileId>,
    durable_names: BTreeMap<String, FileId>,
    /// Changes of names since the last flush.
    changes: Vec<Change>,
    calls: u64,
    fails_from: Option<u64>,
    written_bytes: u64,
}

type Work = Arc<dyn Fn(&str) + Send + Sync>;

/// A simulated archive. See the module's text.
#[derive(Default)]
pub struct SimArchive {
    state: Mutex<State>,
    before_create: Mutex<Option<Work>>,
}

impl fmt::Debug for SimArchive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimArchive").field("names", &self.state.lock().names).finish()
    }
}

impl SimArchive {
    /// An empty archive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An archive with the same files, all of them durable, that fails never.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut state = self.state.lock().clone();
        state.durable_names = state.names.clone();
        state.changes.clear();
        state.files.iter_mut().for_each(|file| file.finished = true);
        (state.fails_from, state.calls, state.written_bytes) = (None, 0, 0);
        SimArchive { state: Mutex::new(state), before_create: Mutex::default() }
    }

    /// Calls `work` with the name of each file before it is created: something that happens in the
    /// middle of a backup. A copy forgets it.
    pub fn before_create(&self, work: impl Fn(&str) + Send + Sync + 'static) {
        *self.before_create.lock() = Some(Arc::new(work));
    }

    /// Lets every call fail that changes something, from the `call`-th on, counted from 1 and from
    /// now.
    pub fn fail_from(&self, call: u64) {
        let mut state = self.state.lock();
        state.calls = 0;
        state.fails_from = Some(call);
    }

    /// Number of calls that changed something, or would have.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Bytes that were written to files.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.state.lock().written_bytes
    }

    /// What a power cut now may leave; which of it, `seed` decides.
    #[must_use]
    pub fn crash(&self, seed: u64) -> SimArchive {
        let mut rng = Rng::from_seed(seed);
        let mut state = self.state.lock().clone();
        // All or nothing for some, any part for others.
        let style = rng.below(4);
        let mut keep = move || match style {
            0 => false,
            1 => true,
            _ => rng.chance(1, 2),
        };
        let mut names = state.durable_names.clone();
        for change in std::mem::take(&mut state.changes) {
            if !keep() {
                continue;
            }
            match change {
                Change::Name(name, id) => drop(names.insert(name, id)),
                Change::Rename(from, to, id) => {
                    names.remove(&from);
                    names.insert(to, id);
                }
                Change::Remove(name) => drop(names.remove(&name)),
            }
        }
        let mut rng = Rng::from_seed(seed ^ 1);
        for file in &mut state.files {
            if !file.finished && style != 1 {
                let length = if style == 0 { 0 } else { rng.index(file.bytes.len() + 1) };
                file.bytes.truncate(length);
            }
        }
        state.names = names;
        SimArchive { state: Mutex::new(state), before_create: Mutex::default() }.copy()
    }

    /// Flips a bit of a file; false if the file has no such byte.
    pub fn flip(&self, file: &str, offset: u64, bit: u32) -> bool {
        let mut state = self.state.lock();
        let Some(id) = state.names.get(file).copied() else { return false };
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let byte = state.files.get_mut(id).and_then(|file| file.bytes.get_mut(offset));
        byte.is_some_and(|byte| {
            *byte ^= 1 << (bit % 8);
            true
        })
    }
}

impl State {
    fn call(&mut self, operation: &'static str) -> Result<()> {
        self.calls += 1;
        if self.fails_from.is_some_and(|from| self.calls >= from) {
            let error = Error::new(ErrorKind::Io, operation).device("sim archive");
            return Err(error.context("planned fault"));
        }
        Ok(())
    }

    fn find(&self, operation: &'static str, file: &str) -> Result<FileId> {
        self.names.get(file).copied().ok_or_else(|| {
            Error::new(ErrorKind::Io, operation)
                .context("no such file")
                .device(format!("sim archive/{file}"))
        })
    }
}

impl Archive for SimArchive {
    fn name(&self) -> &str {
        "sim archive"
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.state.lock().names.keys().cloned().collect())
    }

    fn size_bytes_of(&self, file: &str) -> Result<Option<u64>> {
        let state = self.state.lock();
        let id = state.names.get(file);
        Ok(id.and_then(|id| state.files.get(*id)).map(|file| file.bytes.len() as u64))
    }

    fn create(&self, file: &str) -> Result<Box<dyn ArchiveWriter + '_>> {
        let work = self.before_create.lock().clone();
        if let Some(work) = work {
            work(file);
        }
        let mut state = self.state.lock();
        state.call("create file")?;
        let id = match state.names.get(file) {
            // The same file, cut to nothing.
            Some(id) => *id,
            None => {
                state.files.push(File::default());
                let id = state.files.len() - 1;
                state.names.insert(file.to_owned(), id);
                state.changes.push(Change::Name(file.to_owned(), id));
                id
            }
        };
        if let Some(file) = state.files.get_mut(id) {
            *file = File::default();
        }
        Ok(Box::new(Writer { archive: self, id }))
    }

    fn read_at(&self, file: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let state = self.state.lock();
        let id = state.find("read file", file)?;
        let bytes = state.files.get(id).map_or(&[][..], |file| &file.bytes);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = bytes.get(start..).unwrap_or(&[]);
        let count = rest.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..count), rest.get(..count)) {
            to.copy_from_slice(from);
        }
        Ok(count)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut state = self.state.lock();
        state.call("rename file")?;
        let id = state.find("rename file", from)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), id);
        state.changes.push(Change::Rename(from.to_owned(), to.to_owned(), id));
        Ok(())
    }

    fn remove(&self, file: &str) -> Result<()> {
        let mut state = self.state.lock();
        state.call("remove file")?;
        state.find("remove file", file)?;
        state.names.remove(file);
        state.changes.push(Change::Remove(file.to_owned()));
        Ok(())
    }

    fn flush(&self, site: Site) -> Result<()> {
        let mut state = self.state.lock();
        if site.disabled() {
            return Ok(());
        }
        state.call("flush archive")?;
        state.durable_names = state.names.clone();
        state.changes.clear();
        Ok(())
    }
}

/// A file of a [`SimArchive`] on its way.
#[derive(Debug)]
struct Writer<'a> {
    archive: &'a SimArchive,
    id: FileId,
}

impl ArchiveWriter for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut state = self.archive.state.lock();
        state.call("write file")?;
        state.written_bytes += bytes.len() as u64;
        if let Some(file) = state.files.get_mut(self.id) {
            file.bytes.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn finish(self: Box<Self>, site: Site) -> Result<()> {
        let mut state = self.archive.state.lock();
        if site.disabled() {
            return Ok(());
        }
        state.call("flush file")?;
        if let Some(file) = state.files.get_mut(self.id) {
            file.finished = true;
        }
        Ok(())
    }
}
