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
mod large;
mod late;
mod memtable;
mod merge;
mod pace;
mod pairs;
mod read;
mod recover;
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

pub use files::FlexFiles;

use crate::engine::background::Background;
use crate::flex::{Space, SpaceOptions};
use crate::options::{Durability, FlexOptions, Options};
use crate::store::Direction;
use crate::value::Value;
use commit::Committer;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use esker_base::clock::Clock;
use esker_base::hash::KeyHasher;
use esker_base::rng::{self, Rng};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::{ROOT_SIZE, Root};
use esker_media::BlockDevice;
use esker_trt::sync::{self, Gate};
use index::Index;
use memtable::MemTable;
use parking_lot::Mutex;
use snapshots::Snapshots;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use wal::Wal;

/// Where intervals begin in the space, in bytes.
const ROOT_BYTES: u64 = ROOT_SIZE as u64;
/// Turns of keys: a power of two; fewer where there are no threads, so that tests open many stores soon.
const STRIPES: usize = 1024;
const STRIPES_OF_TESTS: usize = 32;

/// Most of the capacity that a table has, as one in so many, and what it may have in any case.
const TABLE_SHARE_OF_ALL: u64 = 64;
const TABLE_MIN: u64 = 256 << 10;

/// How many times as many bytes as the options say a table takes while nothing is kept of what was read.
const TABLE_GROWN: u64 = 2;

/// See [`versions_skipped`].
const VERSIONS_SKIPPED_MIN: u64 = 1 << 20;

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
    /// Read by everybody all the time, changed seldom: readers of several threads do not touch the same line.
    tables: ShardedLock<Tables>,
    stripes: Box<[sync::Mutex<()>]>,
    rotating: sync::Mutex<()>,
    committer: sync::Mutex<Committer>,
    /// Why the committer gets no further.
    stuck: Mutex<Option<Error>>,
    snapshots: Snapshots,
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
    clock: Arc<dyn Clock>,
    /// Latest wall time seen, so that a clock that jumps back brings nothing back.
    latest_unix_seconds: AtomicU64,
    fruitless: room::Fruitless,
    reservations: room::Reservations,
    closed: AtomicBool,
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
    /// Opens the store in the folder of `options`, or makes one there.
    ///
    /// # Errors
    /// As for [`crate::Store::open`].
    pub(crate) fn open(options: &Options) -> Result<Arc<Flex>> {
        Flex::open_on(open_files(options)?, options)
    }

    /// As [`Flex::open`], on these devices.
    ///
    /// # Errors
    /// As for [`crate::Store::open`].
    pub(crate) fn open_on(files: FlexFiles, options: &Options) -> Result<Arc<Flex>> {
        Flex::open_with(files, options, None)
    }

    /// Makes a store with this identity that is none until its restore has ended; replaces one of which that is so, too.
    fn open_to_restore(
        files: Option<FlexFiles>,
        options: &Options,
        store_id: [u8; 16],
    ) -> Result<Arc<Flex>> {
        let files = match files {
            Some(files) => files,
            None => open_files(options)?,
        };
        let mut options = options.clone();
        if !options.format {
            let name = files.space.data.name().to_owned();
            let space = Space::open_on(files.space.clone(), &space_options(&options))?;
            if space.size_bytes() > 0 && !recover::root(&space, None, &name)?.is_restoring {
                let words = "there is a store here already";
                return Err(Error::invalid("restore store", words).device(name));
            }
            options.format = true;
        }
        Flex::open_with(files, &options, Some(store_id))
    }

    fn open_with(
        files: FlexFiles,
        options: &Options,
        restoring: Option<[u8; 16]>,
    ) -> Result<Arc<Flex>> {
        let name = files.space.data.name().to_owned();
        let space = Space::open_on(files.space.clone(), &space_options(options))?;
        let is_new = space.size_bytes() == 0;
        for device in &files.logs {
            let (size, first) = (device.geometry().size_bytes, log_first_size(options));
            if size < first {
                device.reserve(sites::WAL_RESERVE, size, first - size)?;
            }
            if is_new {
                recover::blank(&**device, restoring.is_some())?;
            }
        }
        if is_new && !options.create && !options.format {
            return Err(Error::invalid("open store", "there is no store here").device(name));
        }
        let made = Root { capacity_bytes: options.size_bytes, ..Root::default() };
        let fresh = match restoring {
            Some(store_id) => Root { store_id, is_restoring: true, ..made },
            None => Root { store_id: identity(options)?, ..made },
        };
        let mut root = recover::root(&space, Some(fresh), &name)?;
        if root.is_restoring && restoring.is_none() {
            let words = "a restore of this store did not end: restore again";
            return Err(Error::invalid("open store", words).device(name));
        }
        let capacity_bytes = match root.capacity_bytes {
            0 => options.size_bytes,
            own => own,
        };
        space.limit_data(Some(capacity_bytes));
        let bounds = room::Bounds::new(capacity_bytes, space.shape());
        let mut options = options.clone();
        options.flex.memtable_size_bytes = table_size(&options, capacity_bytes);
        let options = &options;
        let hasher = KeyHasher::new(root.store_id).weakened(options.testing.hash_mask);
        let devices = files.logs.each_ref().map(|device| &**device);
        let size = options.flex.memtable_size_bytes;
        let skipped = if is_new { 0 } else { versions_skipped(options) };
        let mut found = recover::logs(devices, &root, &hasher, (size, skipped))?;
        let step = options.flex.rebuild_step_bytes;
        let mut behind = large::find(&space, &name)?;
        let threads = options.flex.rebuild_threads;
        let mut ends_at = |total| behind.end_at(total);
        let intervals = match saved::load(&*files.index, &space, root.store_id, &mut ends_at)? {
            Some(intervals) => intervals,
            None => recover::intervals(&space, behind.intervals_end, step, threads, &name)?,
        };
        if options.durability != Durability::Sync && !is_new && restoring.is_none() {
            recover::note_versions(&space, &mut root, found.next_version - 1)?;
        }
        let tail = found.tail;
        let large =
            large::Directory::new(behind.values, tail.generation - 1, found.next_version, &hasher);
        let active = Arc::new(MemTable::new(tail.generation, found.next_version, size, false));
        let wal = Wal::new(files.logs, root.store_id, size, tail, Arc::clone(&active));
        let last = found.tables.pop().map(Arc::new);
        let stripes = if options.testing.background { STRIPES } else { STRIPES_OF_TESTS };
        let live_bytes = space.stat().data_bytes;
        let flex = Arc::new(Flex {
            name,
            space,
            wal,
            index: Index::new(intervals, options.flex.cache_size_bytes),
            large,
            staging: sync::Mutex::default(),
            tables: ShardedLock::new(Tables { active, sealed: None }),
            stripes: (0..stripes).map(|_| sync::Mutex::new(())).collect(),
            rotating: sync::Mutex::default(),
            committer: sync::Mutex::new(Committer::new(root)),
            stuck: Mutex::new(None),
            snapshots: Snapshots::default(),
            scrubbed: tend::Scrubbed::default(),
            backing_up: sync::Mutex::default(),
            store_id: root.store_id,
            fragmented: Mutex::default(),
            loose: tend::Loose::of(live_bytes),
            hasher,
            options: options.flex.clone(),
            capacity_bytes,
            bounds,
            durability: options.durability,
            clock: Arc::clone(&options.clock),
            latest_unix_seconds: AtomicU64::new(0),
            fruitless: room::Fruitless::default(),
            reservations: room::Reservations::default(),
            closed: AtomicBool::new(false),
            background: Arc::default(),
            log_writer: Arc::default(),
            helper: Arc::default(),
            retired: Mutex::default(),
            saved: files.index,
        });
        let weak = Arc::downgrade(&flex);
        flex.space.on_commit(move || match weak.upgrade() {
            Some(flex) => flex.log_late(),
            None => Err(Error::new(ErrorKind::Closed, "commit table")),
        });
        let weak = Arc::downgrade(&flex);
        flex.space.expect(move || weak.upgrade().map_or(0, |flex| flex.coming_bytes()));
        // Of two tables the older one goes to the space at once: the next log takes its file (F2).
        for table in found.tables.into_iter().map(Arc::new) {
            flex.adopt(table);
            flex.commit_sealed()?;
        }
        if let Some(table) = last {
            flex.adopt(table);
        }
        flex.share_memory();
        if options.testing.background {
            flex.start_background()?;
            flex.background.wake();
        }
        Ok(flex)
    }

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

    /// Brings everything to the space.
    fn commit_all(&self) -> Result<()> {
        let generation = {
            let tables = self.tables();
            (!tables.active.is_empty()).then_some(tables.active.generation)
        };
        if let Some(generation) = generation {
            self.change_table(generation)?;
        }
        while self.commit_sealed()? {}
        Ok(())
    }

    fn collect_scan(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        at: u64,
    ) -> Result<Vec<(Vec<u8>, Value)>> {
        self.begin("scan")?;
        let mut items = Vec::new();
        if limit > 0 {
            self.scan_at(range, direction, limit, at, &mut |met| {
                items.push((met.key.to_vec(), met.to_value()));
                if items.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        Ok(items)
    }

    fn begin(&self, operation: &'static str) -> Result<()> {
        if self.is_closed() { Err(Error::new(ErrorKind::Closed, operation)) } else { Ok(()) }
    }
}

/// Opens the files of the store in the folder of `options`, or makes them.
fn open_files(options: &Options) -> Result<FlexFiles> {
    let space = space_options(options);
    if options.format || options.engine_there().is_none() {
        // Before there is a file that nothing fits in.
        room::plan(options.size_bytes, &space.testing.shape)?;
    }
    FlexFiles::open(&space, log_first_size(options))
}

/// Options of the space below.
fn space_options(options: &Options) -> SpaceOptions {
    let mut space = SpaceOptions::new(&options.path);
    space.create = options.create;
    space.format = options.format;
    space.data_size_bytes_max = Some(options.size_bytes);
    // Intervals have a cache of their own; this one is for neighbours in a block.
    space.cache_size_bytes = (options.flex.cache_size_bytes / 16).min(16 << 20);
    if let Some(testing) = &options.flex.space {
        space.testing = testing.clone();
        space.log_size_bytes_max = 3 << 10;
        space.tree_size_bytes_max = 2 << 10;
    }
    space.testing.seed = options.testing.seed.or(space.testing.seed);
    space
}

/// Bytes of a table: two of them are not to take much of what a small store may have.
fn table_size(options: &Options, capacity_bytes: u64) -> u64 {
    let most = (capacity_bytes / TABLE_SHARE_OF_ALL).max(TABLE_MIN);
    options.flex.memtable_size_bytes.min(most)
}

/// How far versions jump at an open: further than those go that may have been lost, which came to two tables at most. Under `none` each
/// takes three bytes of what a log could have, and where there is a log, more.
fn versions_skipped(options: &Options) -> u64 {
    let size = options.flex.memtable_size_bytes;
    wal::capacity(TABLE_GROWN * size, size).max(VERSIONS_SKIPPED_MIN)
}

/// Bytes of a log to begin with. It grows as far as it is written.
fn log_first_size(options: &Options) -> u64 {
    let size = options.flex.memtable_size_bytes;
    (wal::capacity(size, size) / 64).clamp(4096, 1 << 20).next_multiple_of(4096)
}

fn identity(options: &Options) -> Result<[u8; 16]> {
    match options.testing.seed {
        Some(seed) => {
            let mut id = [0; 16];
            Rng::from_seed(seed ^ 0x464C_4558).fill(&mut id);
            Ok(id)
        }
        None => rng::secret(),
    }
}

impl Drop for Flex {
    fn drop(&mut self) {
        self.background.stop();
        self.log_writer.stop();
        self.helper.stop();
    }
}
