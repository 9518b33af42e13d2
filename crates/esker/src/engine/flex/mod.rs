//! `flex`: pairs in order in a flexible address space, found through a sparse index (FlexSpace §5).
//!
//! A write goes to the log and to a table in memory. A full table is sealed, with its log, and brought to the space by the
//! committer, in order of keys: what falls into one interval is appended to it with one small insertion, or the interval is
//! written anew in its place. Nothing else is ever rewritten: there are no levels. The index knows where each interval of
//! about 16 pairs begins, and which ones are in memory.
//!
//! ```text
//! put ─► log ─► table ─► (sealed) ─► committer ─► space: | root | interval | interval | ... |
//! get ─► table ─► sealed table ─► index ─► interval in memory, or space
//! ```
//!
//! # Invariants
//! - F1: what was acknowledged is in a log that is durable as the options say, or in the space, durably. Under `none` there
//!   is no log: see `late`.
//! - F2: a table is in the space, durably, before its log is written over; logs go there oldest first.
//! - F3: of one key the highest version counts, wherever it is.
//! - F4: what a snapshot sees stays as long as it lives.
//! - F5: what has expired is gone for everybody from then on, and gives its room back: see `expired`.
//!
//! # Concurrency
//! Everything may be called from any number of threads and tasks. Lock order: turns of keys, rotation, the committer, the
//! space, the index; the log's state and the tables are held for a few instructions.
//!
//! # Failure
//! After a failed write or flush the store refuses writes until it is opened again; reads go on. Full, and nothing has expired
//! that makes way (`room`): `NoSpace` for puts; reads and deletes go on.

mod background;
mod backup;
mod check;
mod commit;
mod cursor;
mod damage;
mod engine;
mod erase;
mod expired;
mod files;
mod index;
mod interval;
mod kept;
mod lapsing;
mod large;
mod late;
mod memtable;
mod merge;
mod open;
mod pace;
mod pairs;
mod pending;
mod read;
mod recover;
mod refused;
pub(crate) mod repair;
pub(crate) mod restore;
mod room;
mod saved;
mod scan;
pub mod sites;
mod snapshots;
mod spare;
mod stretch;
mod sweep;
mod tend;
mod wal;
mod write;

pub(crate) use backup::MANIFEST_BYTES_MAX;
pub use files::FlexFiles;

use crate::engine::background::Background;
use crate::engine::closing::Closing;
use crate::engine::wall::Wall;
use crate::flex::Space;
use crate::options::{Durability, FlexOptions};
#[cfg(test)]
use crate::options::{EngineKind, Options};
use commit::Committer;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use esker_base::hash::KeyHasher;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::ROOT_SIZE;
use esker_media::BlockDevice;
use esker_trt::sync::{self, Gate};
use index::Index;
use memtable::MemTable;
use parking_lot::Mutex;
use snapshots::Snapshots;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use wal::Wal;

/// Where intervals begin in the space, in bytes.
const ROOT_BYTES: u64 = ROOT_SIZE as u64;
/// How many times as many bytes as the options say a table takes while nothing is kept of what was read.
const TABLE_GROWN: u64 = 2;

/// The table that takes writes, and the one on its way to the space, with what is opened when it is there.
#[derive(Debug)]
struct Tables {
    active: Arc<MemTable>,
    sealed: Option<(Arc<MemTable>, Arc<Gate>)>,
}

impl Tables {
    /// The newest first.
    fn all(&self) -> impl Iterator<Item = &Arc<MemTable>> {
        std::iter::once(&self.active).chain(self.sealed.as_ref().map(|(table, _)| table))
    }
}

/// An open store. See the module's text.
#[derive(Debug)]
pub(crate) struct Flex {
    name: String,
    space: Space,
    wal: Wal,
    index: Index,
    large: large::Directory,
    /// For the moment in which a large value gets its number and its place.
    staging: sync::Mutex<()>,
    /// For as long as a large value is taken out of the space.
    removing: sync::Mutex<()>,
    /// Read by everybody all the time, changed seldom: readers of several threads do not touch the same line.
    tables: ShardedLock<Tables>,
    pending: pending::Pending,
    rotating: sync::Mutex<()>,
    committer: sync::Mutex<Committer>,
    /// Why the committer gets no further.
    stuck: Mutex<Option<Error>>,
    snapshots: Arc<Snapshots>,
    scrubbed: tend::Scrubbed,
    backing_up: sync::Mutex<()>,
    store_id: [u8; 16],
    /// Keys of intervals in many places.
    fragmented: Mutex<tend::Noted>,
    loose: tend::Loose,
    hasher: KeyHasher,
    options: FlexOptions,
    capacity_bytes: u64,
    bounds: room::Bounds,
    durability: Durability,
    clock: Wall,
    fruitless: room::Fruitless,
    /// The generation of a table in which scans go past much that is deleted.
    littered: AtomicU64,
    reservations: room::Reservations,
    closed: AtomicBool,
    closing: Closing,
    background: Arc<Background>,
    /// Makes the log durable in time, for `periodic`.
    log_writer: Arc<Background>,
    /// Does what the committer need not wait for.
    helper: Arc<Background>,
    /// A table that is in the space.
    retired: Mutex<Option<Arc<MemTable>>>,
    /// Where the index is saved.
    saved: Arc<dyn BlockDevice>,
}

impl Flex {
    /// Takes a table that was found as the sealed one.
    fn adopt(&self, table: Arc<MemTable>) {
        self.tables_mut().sealed = Some((table, Arc::new(Gate::new())));
    }

    #[inline]
    fn tables(&self) -> ShardedLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables_mut(&self) -> ShardedLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether changes go to a log before anything else.
    fn keeps_log(&self) -> bool {
        self.durability != Durability::None
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Tables, and what is kept of what was read, have memory together: what the ones do not take is for the others. Here for what
    /// is read.
    fn share_memory(&self) {
        let all = 2 * self.options.memtable_size_bytes + self.options.cache_size_bytes;
        self.index.allow(all.saturating_sub(self.table_bytes()));
    }

    /// Bytes of the next table: more than the options say while little is kept of what was read, and there is much room. The larger
    /// a table, the more of it comes to an interval at once.
    fn next_table_bytes(&self) -> u64 {
        let size = self.options.memtable_size_bytes;
        let unused = self.options.cache_size_bytes.saturating_sub(self.index.cached_bytes());
        let most = (TABLE_GROWN * size).min(self.table_bytes_within_room());
        (size + unused / 2).min(most).max(size)
    }

    /// Brings everything to the space that was written before. What others write meanwhile is not waited for: there may be no end of it.
    fn commit_all(&self) -> Result<()> {
        let (last, is_empty) = {
            let active = &self.tables().active;
            (active.generation, active.is_empty())
        };
        if !is_empty {
            self.change_table(last)?;
        }
        let is_left = || {
            let tables = self.tables();
            tables.sealed.as_ref().is_some_and(|(table, _)| table.generation <= last)
        };
        while is_left() && self.commit_sealed()? {}
        Ok(())
    }

    /// Ends the threads and brings everything to the space, which is as it stays then. Once: by who closes the store.
    fn bring_to_rest(&self) -> Result<()> {
        self.background.join();
        self.log_writer.join();
        self.helper.join();
        self.wal.check()?;
        // A write that began before is in a table, or is refused: what is acknowledged is what is brought to the space.
        self.wal.close();
        self.commit_all()?;
        self.space.checkpoint()?;
        let _committer = self.committer.lock();
        if let Err(error) = self.save_index() {
            tracing::warn!(%error, "the next open looks intervals up");
        }
        Ok(())
    }

    fn begin(&self, operation: &'static str) -> Result<()> {
        if self.is_closed() { Err(Error::new(ErrorKind::Closed, operation)) } else { Ok(()) }
    }
}

/// A store in a folder, without its threads, in which values over 1000 bytes are large: for tests of what only the inside shows.
#[cfg(test)]
fn opened_in(folder: &tempfile::TempDir) -> Arc<Flex> {
    opened_with(folder, Durability::Sync)
}

/// The same, as durable as is said.
#[cfg(test)]
fn opened_with(folder: &tempfile::TempDir, durability: Durability) -> Arc<Flex> {
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 64 << 20;
    options.durability = durability;
    options.testing.background = false;
    options.flex.large_value_size_bytes = 1000;
    Flex::open(&options).unwrap()
}

impl Drop for Flex {
    fn drop(&mut self) {
        self.background.stop();
        self.log_writer.stop();
        self.helper.stop();
    }
}
