//! Opening a store: its files, what they hold, and the store of it.
//!
//! ```text
//! files ─► space ─► root ─► logs, intervals, large values ─► store, with the tables that were found
//! ```
//!
//! # Failure
//! A crash while a store is made leaves none, or an empty one; while one is restored, from the first write on, one that says so. An open
//! that fails leaves everything as it was. Where a table that was found does not get to the space, the store is as if that had happened
//! while it was open: all can be read, and nothing be written.

use super::commit::Committer;
use super::index::{Index, Leaves};
use super::memtable::MemTable;
use super::pending::Pending;
use super::recover::{self, FoundTables};
use super::snapshots::Snapshots;
use super::wal::{self, Wal, reader::blank};
use super::{Flex, FlexFiles, TABLE_GROWN, Tables, large, room, saved, sites, tend};
use crate::engine::closing::Closing;
use crate::engine::wall::Wall;
use crate::flex::{Space, SpaceOptions};
use crate::options::{Durability, Options};
use crossbeam_utils::sync::ShardedLock;
use esker_base::hash::KeyHasher;
use esker_base::rng::Rng;
use esker_base::units::format_size_bytes;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::{Root, Unfinished};
use esker_media::folder::room_below;
use esker_trt::sync;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Turns of keys: a power of two; fewer where there are no threads, so that tests open many stores soon.
const STRIPES: usize = 1024;
const STRIPES_OF_TESTS: usize = 32;

/// Most of the capacity that a table has, as one in so many, and what it may have in any case.
const TABLE_SHARE_OF_ALL: u64 = 64;
const TABLE_MIN: u64 = 256 << 10;

/// What leaves of the space's tree may take in any case, in bytes.
const TREE_MIN: u64 = 64 << 20;

/// See [`versions_skipped`].
const VERSIONS_SKIPPED_MIN: u64 = 1 << 20;

/// What was found of a store.
pub(super) struct Found {
    pub(super) files: FlexFiles,
    pub(super) space: Space,
    pub(super) root: Root,
    pub(super) tables: FoundTables,
    pub(super) intervals: Leaves,
    pub(super) values: Vec<large::FoundLarge>,
}

/// What follows from root and options before anything else is read.
pub(super) struct Plan {
    /// With the size that a table has in a store of this capacity.
    pub(super) options: Options,
    pub(super) capacity_bytes: u64,
    /// What it may take while it is open, which is more for who makes it as it was.
    pub(super) room_bytes: u64,
    pub(super) hasher: KeyHasher,
}

/// A store that a restore makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restoring {
    pub(super) store_id: [u8; 16],
    /// Whether what is restored finds room in any case: as much as the store had.
    pub(super) fits: bool,
}

impl Plan {
    pub(super) fn of(root: &Root, space: &Space, options: &Options) -> Self {
        let capacity_bytes = match root.capacity_bytes {
            0 => options.size_bytes,
            own => own,
        };
        space.limit_data(Some(capacity_bytes));
        let room_bytes = capacity_bytes;
        let mut options = options.clone();
        options.flex.memtable_size_bytes = table_size(&options, capacity_bytes);
        let hasher = KeyHasher::new(root.store_id).weakened(options.testing.hash_mask);
        Plan { options, capacity_bytes, room_bytes, hasher }
    }

    /// The store may take twice its capacity while it is open: what a full one had is written side by side with what there is.
    pub(super) fn exceed(&mut self, space: &Space) {
        self.room_bytes = self.capacity_bytes.saturating_mul(2);
        space.limit_data(Some(self.room_bytes));
    }
}

impl Flex {
    /// Opens the store in the folder of `options`, or makes one there.
    ///
    /// # Errors
    /// As for [`crate::Store::open`].
    pub(crate) fn open(options: &Options) -> Result<Arc<Flex>> {
        let flex = Flex::open_on(open_files(options)?, options)?;
        if !options.read_only {
            flex.compare_with_file_system(&options.path);
        }
        Ok(flex)
    }

    /// The file takes room as it grows, and others may take that before: who made the store is told early that it may end sooner.
    fn compare_with_file_system(&self, path: &Path) {
        let missing = self.capacity_bytes.saturating_sub(self.space.stat().file_size_bytes);
        if let Some(left) = room_below(path)
            && left < missing
        {
            let [missing, left] = [missing, left].map(format_size_bytes);
            tracing::warn!("the store may grow by {missing}, and the file system has {left} left");
        }
    }

    /// As [`Flex::open`], on these devices.
    ///
    /// # Errors
    /// As for [`crate::Store::open`].
    pub(crate) fn open_on(files: FlexFiles, options: &Options) -> Result<Arc<Flex>> {
        Flex::open_with(files, options, None)
    }

    /// Makes a store with this identity that is none until its restore has ended; replaces one of which that is so, too.
    pub(super) fn open_to_restore(
        files: Option<FlexFiles>,
        options: &Options,
        restoring: Restoring,
    ) -> Result<Arc<Flex>> {
        let files = match files {
            Some(files) => files,
            None => open_files_to(options, true)?,
        };
        let mut options = options.clone();
        if !options.format {
            let name = files.space.data.name().to_owned();
            let of_space = SpaceOptions { restoring: true, ..space_options(&options) };
            let space = Space::open_on(files.space.clone(), &of_space)?;
            if space.size_bytes() > 0
                && recover::root(&space, None, &name)?.unfinished != Unfinished::Restore
            {
                // Also one whose repair did not end: another repair finds what it has.
                let words = "there is a store here already";
                return Err(Error::invalid("restore store", words).device(name));
            }
            options.format = true;
        }
        Flex::open_with(files, &options, Some(restoring))
    }

    fn open_with(
        files: FlexFiles,
        options: &Options,
        restoring: Option<Restoring>,
    ) -> Result<Arc<Flex>> {
        options.flex.check()?;
        let name = files.space.data.name().to_owned();
        let restores = restoring.is_some();
        let of_space = SpaceOptions { restoring: restores, ..space_options(options) };
        let space = Space::open_on(files.space.clone(), &of_space)?;
        space.expect_no_holes();
        let is_new = space.size_bytes() == 0;
        if is_new && !options.create && !options.format {
            return Err(Error::invalid("open store", "there is no store here").device(name));
        }
        for device in &files.logs {
            let (size, first) = (device.geometry().size_bytes, log_first_size(options));
            if size < first {
                match device.reserve(sites::WAL_RESERVE, size, first - size) {
                    // It grows as it is written; until then there may be room: an open store can delete.
                    Err(error) if error.kind() == ErrorKind::NoSpace && !is_new => {}
                    done => done?,
                }
            }
            if is_new {
                blank(&**device, restores)?;
            }
        }
        // Nobody is to take the name of the store before for the new one's, and its logs for this one's.
        if is_new && files.index.geometry().size_bytes > 0 {
            blank(&*files.index, false)?;
        }
        let made = Root { capacity_bytes: options.size_bytes, ..Root::default() };
        let fresh = match restoring {
            Some(Restoring { store_id, .. }) => {
                Root { store_id, unfinished: Unfinished::Restore, ..made }
            }
            None => Root { store_id: identity(options)?, ..made },
        };
        let mut root = recover::root(&space, Some(fresh), &name)?;
        let words = match root.unfinished {
            Unfinished::Repair | Unfinished::RepairOfAll => {
                "a repair of this store did not end: repair it again"
            }
            Unfinished::Restore if !restores => {
                "a restore of this store did not end: restore again"
            }
            _ => "",
        };
        if !words.is_empty() {
            return Err(Error::invalid("open store", words).device(name));
        }
        let mut plan = Plan::of(&root, &space, options);
        if restoring.is_some_and(|restoring| restoring.fits) {
            plan.exceed(&space);
        }
        let of_flex = &plan.options.flex;
        let devices = files.logs.each_ref().map(|device| &**device);
        let skipped =
            if is_new { 0 } else { versions_skipped(plan.options.flex.memtable_size_bytes) };
        let sizes = (of_flex.memtable_size_bytes, skipped);
        let tables = recover::logs(devices, &root, &plan.hasher, sizes)?;
        let mut behind = large::find(&space, options.flex.rebuild_threads, &name)?;
        let mut ends_at = |total| behind.end_at(total);
        let intervals = match saved::load(&*files.index, &space, root.store_id, &mut ends_at)? {
            Some(intervals) => intervals,
            None => {
                let found = recover::intervals(&space, behind.intervals_end, of_flex, &name)?;
                found.into_iter().collect()
            }
        };
        if !restores {
            let ahead = versions_ahead(options.durability, of_flex.memtable_size_bytes);
            recover::note_versions(&space, &mut root, tables.next_version - 1, ahead)?;
        }
        let values = behind.values;
        Flex::of(Found { files, space, root, tables, intervals, values }, plan)
    }

    /// The store of what was found.
    pub(super) fn of(found: Found, plan: Plan) -> Result<Arc<Flex>> {
        let Found { files, space, root, tables: mut found, intervals, values } = found;
        let Plan { options, capacity_bytes, room_bytes, hasher } = plan;
        let options = &options;
        let name = files.space.data.name().to_owned();
        let bounds = room::Bounds::new(room_bytes, space.shape());
        let size = options.flex.memtable_size_bytes;
        let tail = found.tail;
        let large = large::Directory::new(values, tail.generation - 1, found.next_version, &hasher);
        let active = Arc::new(MemTable::new(tail.generation, found.next_version, size, false));
        let wal = Wal::new(files.logs, root.store_id, size, tail, Arc::clone(&active));
        let last = found.tables.pop().map(Arc::new);
        let stripes = if options.testing.background { STRIPES } else { STRIPES_OF_TESTS };
        let live_bytes = space.stat().data_bytes;
        let snapshots: Arc<Snapshots> = Arc::default();
        let flex = Arc::new(Flex {
            name,
            space,
            wal,
            index: Index::new(intervals, options.flex.cache_size_bytes, Arc::clone(&snapshots)),
            large,
            staging: sync::Mutex::default(),
            removing: sync::Mutex::default(),
            tables: ShardedLock::new(Tables { active, sealed: None }),
            pending: Pending::new(stripes),
            rotating: sync::Mutex::default(),
            committer: sync::Mutex::new(Committer::new(root)),
            stuck: Mutex::new(None),
            snapshots,
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
            clock: Wall::new(&options.clock),
            fruitless: room::Fruitless::default(),
            littered: AtomicU64::new(0),
            reservations: room::Reservations::default(),
            closed: AtomicBool::new(false),
            closing: Closing::default(),
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
        flex.space.expect(move || weak.upgrade().map_or(0, |flex| flex.expected_bytes()));
        // Of two tables the older one goes to the space at once: the next log takes its file (F2).
        let mut stays = None;
        for table in found.tables.into_iter().map(Arc::new) {
            flex.adopt(table);
            stays = flex.commit_sealed().err();
        }
        match (last, stays) {
            (Some(table), Some(error)) => {
                // The logs keep both; as nothing is written, no log begins over the older one.
                flex.wal.fail(&error);
                flex.tables_mut().active = table;
            }
            (Some(table), None) => flex.adopt(table),
            (None, _) => {}
        }
        flex.share_memory();
        if options.testing.background {
            flex.start_background()?;
            flex.background.wake();
        }
        Ok(flex)
    }
}

/// Opens the files of the store in the folder of `options`, or makes them.
pub(super) fn open_files(options: &Options) -> Result<FlexFiles> {
    open_files_to(options, false)
}

/// As [`open_files`], also to restore what was not restored to the end.
fn open_files_to(options: &Options, restoring: bool) -> Result<FlexFiles> {
    if !options.devices.is_empty() {
        return Err(Error::invalid("open store", "engine flex takes one path"));
    }
    // Sizes of files depend on them.
    options.flex.check()?;
    let space = SpaceOptions { restoring, ..space_options(options) };
    if options.format || options.engine_there().is_none() {
        // Before there is a file that nothing fits in.
        room::plan(options.size_bytes, &space.testing.shape)?;
    }
    FlexFiles::open(&space, log_first_size(options))
}

/// Options of the space below.
pub(super) fn space_options(options: &Options) -> SpaceOptions {
    let mut space = SpaceOptions::new(&options.path);
    space.create = options.create;
    space.read_only = options.read_only;
    space.format = options.format;
    space.data_size_bytes_max = Some(options.size_bytes);
    // Intervals have a cache of their own; this one is for neighbours in a block.
    space.cache_size_bytes = (options.flex.cache_size_bytes / 16).min(16 << 20);
    // A get that misses the other caches needs a leaf of it, and the collector meets them all.
    space.tree_size_bytes_max = options.flex.cache_size_bytes.max(TREE_MIN);
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

/// How far versions jump at an open: further than those go that may have been lost, which came to two tables of this size at most. Under
/// `none` each takes three bytes of what a log could have, and where there is a log, more.
pub(super) fn versions_skipped(size: u64) -> u64 {
    wal::capacity(TABLE_GROWN * size, size).max(VERSIONS_SKIPPED_MIN)
}

/// How far ahead of the versions that were given a root says that some may have been, and be lost without a trace: the next open may
/// have tables of another size.
pub(super) fn versions_ahead(durability: Durability, size: u64) -> u64 {
    if durability == Durability::Sync { 0 } else { versions_skipped(size) }
}

/// Bytes of a log to begin with. It grows as far as it is written.
fn log_first_size(options: &Options) -> u64 {
    let size = options.flex.memtable_size_bytes;
    (wal::capacity(size, size) / 64).clamp(4096, 1 << 20).next_multiple_of(4096)
}

pub(super) fn identity(options: &Options) -> Result<[u8; 16]> {
    let mut id = [0; 16];
    Rng::seeded(options.testing.seed.map(|seed| seed ^ 0x464C_4558))?.fill(&mut id);
    Ok(id)
}
