//! FlexSpace: a persistent flexible address space (FlexSpace §4).
//!
//! A [`Space`] is a sequence of bytes in which ranges can be inserted and removed anywhere, at any byte,
//! at the cost of a small write. What is written goes, in the order in which it comes, to segments of a
//! data file; a [`FlexTree`](esker_index::FlexTree) says where each range of the space stands. Changes of the
//! tree go to a logical log; now and then the tree itself is stored, node by node, copy on write.
//!
//! ```text
//! write ─► place (open segment) ─► tree, records ─► commit: data │ log │ nodes │ header
//! read  ─► tree ─► segment in memory, cache, or device ─► checksum
//! ```
//!
//! # Invariants
//! - P1: after a crash the space is what some beginning of the operations made, none missing that was
//!   before the last [`Space::sync`] that returned; an operation is there as a whole or not at all.
//! - P2: the order of writes is in one place: `commit`.
//! - P3: a segment is written again only after the log that freed it is durable; so is a slot of the tree
//!   file after the header.
//! - P4: each byte that is read was verified: blocks, nodes and groups have checksums that are bound to
//!   place and time.
//!
//! # Concurrency
//! Any number of readers, one writer after the other, from threads and tasks. The writer's lock (`writer`,
//! which tasks may hold across a suspension) comes before that of the shared state (`shared`, short, never held across
//! I/O). A reader notes where bytes are under the shared lock and reads them without one: what was written
//! in a segment stays until the segment is taken anew, and then its checksums fail and the reader starts over.
//!
//! # Failure
//! After a failed write or flush the space refuses writes until it is opened again; reads go on. A full file
//! system, or a space that is full, is `NoSpace`: nothing happened, and the space goes on. Where room was allocated, a lack of it is a
//! failed write.

mod cache;
mod check;
mod collect;
mod commit;
mod defrag;
mod files;
mod filled;
mod hidden;
mod lost;
mod mend;
mod nodes;
mod options;
mod place;
mod read;
mod recover;
pub mod sites;
mod slots;
mod state;
mod stuck;
mod write;

pub use check::SpaceCheck;
pub use files::SpaceFiles;
use files::refuse_store;
pub(crate) use files::{
    DATA_FILE, STORE_LOGS, TREE_FILE, open_device, refuse_remains, refuse_without,
};
pub use mend::SpaceRepair;
pub use options::SpaceOptions;
#[doc(hidden)]
pub use options::SpaceTesting;
pub(crate) use place::live_bytes_max;
pub use read::SpaceExtent;
pub use write::Splice;

use cache::Cache;
use collect::Round;
use commit::Log;
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex::{Packed, SpaceShape, StoredAt};
use esker_media::{BufferPool, Counters};
use esker_trt::sync::{Mutex, MutexGuard};
use filled::Behind;
use parking_lot::RwLock;
use slots::Slots;
use state::Shared;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use stuck::Stuck;

/// Percent of what live bytes should fill of their segments, up to which [`Space::compact`] collects.
const COMPACT_PERCENT: u32 = 108;

/// A flexible address space. See the module's text. Clones are the same space.
#[derive(Clone, Debug)]
pub struct Space(Arc<Inner>);

struct Inner {
    files: SpaceFiles,
    id: [u8; 16],
    shape: SpaceShape,
    options: SpaceOptions,
    shared: RwLock<Shared>,
    writer: Mutex<Writer>,
    /// Why writes are refused.
    failed: parking_lot::Mutex<Option<Error>>,
    cache: Cache,
    pool: BufferPool,
    /// What has to happen before a commit while operations are held.
    before_commit: OnceLock<BeforeCommit>,
    /// Live bytes that the file system is known to have segments for.
    room: AtomicU64,
    /// Whether it had no room for another segment.
    is_full: AtomicBool,
    /// Bytes that are about to come.
    expected: OnceLock<Expected>,
    /// Who writes segments that are full.
    behind: Behind,
    /// See [`Space::expect_no_holes`].
    has_no_holes: AtomicBool,
    /// While the space is being mended: what nodes covered that cannot be read.
    lost_nodes: parking_lot::Mutex<Option<Vec<Range<u64>>>>,
}

/// See [`Space::on_commit`].
type BeforeCommit = Box<dyn Fn() -> Result<()> + Send + Sync>;
/// See [`Space::expect`].
type Expected = Box<dyn Fn() -> u64 + Send + Sync>;

/// What only the writer knows.
struct Writer {
    /// Operations wait for each other: see [`Space::hold`].
    held: bool,
    /// What is rewritten leaves whole segments behind: see [`Space::loosen`].
    loose: bool,
    /// The space was mended, and the next commit stores all of it: see `mend`.
    is_mended: bool,
    /// No leaf is forgotten: a checkpoint is under way, or it failed and may not have written those that are taken for stored; or a
    /// repair needs all of them.
    keeps_leaves: bool,
    /// See [`SpaceOptions::data_size_bytes_max`].
    data_size_bytes_max: Option<u64>,
    log: Log,
    /// Done to the tree, in no group yet.
    records: Packed,
    /// Data that was written and not flushed.
    data_dirty: bool,
    /// Segments that nothing durable points at.
    free: BTreeSet<u64>,
    /// Free segments that are allocated in the file.
    allocated: BTreeSet<u64>,
    /// Segments without valid bytes that the file system has no room for; no free ones.
    holes: BTreeSet<u64>,
    slots: Slots,
    /// Whether the tree file is long enough for checkpoints of all nodes.
    nodes_backed: bool,
    /// The map of the last checkpoint, and how many slots it has.
    map: (StoredAt, u64),
    rng: Rng,
    /// What is being collected.
    round: Option<Round>,
    /// What was written for the collector and `defrag`, in bytes.
    moved_bytes: u64,
    stuck: Stuck,
    /// Segments that a repair keeps as they are, whatever goes from them: what nothing points at is still to be found there.
    kept: BTreeSet<u64>,
}

/// Figures of a space.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceStat {
    /// Bytes of the space.
    pub size_bytes: u64,
    /// Bytes of it that are mapped to data: the rest are holes.
    pub data_bytes: u64,
    /// Extents, holes among them.
    pub extents: u64,
    /// Size of the data file in bytes.
    pub file_size_bytes: u64,
    /// Segments of the data file.
    pub segments: u64,
    /// Of these, segments that can be taken.
    pub free_segments: u64,
    /// Size of a segment in bytes.
    pub segment_size_bytes: u64,
    /// Checkpoints since the space was made.
    pub generation: u64,
    /// Bytes of the log since the last checkpoint.
    pub log_bytes: u64,
    /// Nodes of the tree in memory: leaves, and others.
    pub resident_nodes: (usize, usize),
    /// Bytes that the collector and `defrag` moved since the space was opened.
    pub moved_bytes: u64,
    /// What the data file did since the space was opened.
    pub data: Counters,
    /// What the tree file did.
    pub tree: Counters,
    /// What the log did.
    pub log: Counters,
}

impl Space {
    /// Opens the space in the folder that `options` name, or makes one.
    ///
    /// # Errors
    /// `Locked` if another process has it, `UnsupportedFormat`, `Corrupted` if what is there is damaged,
    /// `InvalidArgument` if there is nothing and `create` is false, if the space is that of a store, or an option is out of its
    /// range, `NoSpace`, `Io`.
    pub fn open(options: &SpaceOptions) -> Result<Space> {
        options.check()?;
        refuse_store(options)?;
        let space = Space::open_on(SpaceFiles::open(options)?, options)?;
        if options.read_only {
            let why = Error::new(ErrorKind::ReadOnly, "open space");
            *space.0.failed.lock() = Some(why.context("the space was opened to be read"));
        }
        Ok(space)
    }

    /// As [`Space::open`], on these devices.
    ///
    /// # Errors
    /// As for [`Space::open`].
    #[doc(hidden)]
    pub fn open_on(files: SpaceFiles, options: &SpaceOptions) -> Result<Space> {
        Ok(Space(Arc::new(Inner::open(files, options)?)))
    }

    /// Bytes of the space.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.shared.read().tree.size_bytes()
    }

    /// Fills `buf` from `offset`; returns how many bytes there were, fewer than `buf` has at the end of the
    /// space. Holes read as zeros. What is read is of one moment.
    ///
    /// # Errors
    /// `Corrupted` with file and place if bytes are not what was written, `Io`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read(offset, buf)
    }

    /// The extent that covers `offset`, whole, and its first bytes in `buf` (FlexSpace §5.4); `None` behind the
    /// end. An extent ends where something was inserted or removed, where a write was cut (at the end of a segment, or every
    /// [`SpaceOptions`]' longest extent, 128 KiB), and before a mark. Writes that go on where the one before ended are one extent,
    /// unless a `sync` was between them: who has to find where his records begin marks them ([`Space::next_mark`]).
    ///
    /// # Errors
    /// As for [`Space::read`].
    pub fn read_extent(&self, offset: u64, buf: &mut [u8]) -> Result<Option<SpaceExtent>> {
        self.0.read_extent(offset, buf)
    }

    /// Writes `data` at `offset`, over what is there; a space that ends before is made longer, with a hole
    /// if `offset` is behind its end. Durable after [`Space::sync`].
    ///
    /// # Errors
    /// `InvalidArgument` if the space would reach 2^48 bytes, twice what a data file has at most, `NoSpace`, `ReadOnly` after a failure, `Io`,
    /// `Corrupted` if the tree is damaged.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write(offset, data)
    }

    /// Inserts `data` at `offset`; what stood there and behind moves back.
    ///
    /// # Errors
    /// As for [`Space::write`]; `InvalidArgument` also if `offset` is behind the end.
    pub fn insert_range(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.insert_range(offset, data)
    }

    /// Inserts a hole of `length` bytes at `offset`; as [`Space::insert_range`].
    ///
    /// # Errors
    /// As for [`Space::insert_range`].
    pub fn insert_hole(&self, offset: u64, length: u64) -> Result<()> {
        self.0.insert_hole(offset, length)
    }

    /// Removes `length` bytes at `offset`; what stood behind moves forward.
    ///
    /// # Errors
    /// As for [`Space::write`]; `InvalidArgument` also if the range goes past the end.
    pub fn collapse_range(&self, offset: u64, length: u64) -> Result<()> {
        self.0.collapse_range(offset, length)
    }

    /// Does a change of a range at once: a crash leaves all of it or nothing, and a reader sees all of it or
    /// nothing. `publish` is called when readers of [`Space::read_where`] begin to see it, and no earlier: what it changes
    /// and they look at in `locate` changes with the space.
    ///
    /// # Errors
    /// As for [`Space::write`]; `InvalidArgument` also if the range goes past the end, or a mark is no place in the data or not behind
    /// the one before. `publish` was not called then.
    pub fn splice(&self, splice: &Splice<'_>, publish: &mut dyn FnMut()) -> Result<()> {
        self.0.splice(&|| splice.offset, splice, publish)
    }

    /// Fills `bytes` with the range that `locate` gives, offset and length: it is asked in the moment of which the bytes
    /// are, possibly more than once, and must neither block for long nor call this space. `None` if it gives none, else
    /// how many bytes there were; zeros behind them.
    ///
    /// # Errors
    /// As for [`Space::read`].
    pub fn read_where(
        &self,
        locate: &mut dyn FnMut() -> Option<(u64, usize)>,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<usize>> {
        self.0.read_where(locate, bytes, true)
    }

    /// As [`Space::read_where`]; the cache of blocks does not keep what is read. For who has a cache of its own, and reads
    /// here and there.
    ///
    /// # Errors
    /// As for [`Space::read`].
    pub fn read_once_where(
        &self,
        locate: &mut dyn FnMut() -> Option<(u64, usize)>,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<usize>> {
        self.0.read_where(locate, bytes, false)
    }

    /// As [`Space::read_where`], into a buffer that is there.
    ///
    /// # Errors
    /// As for [`Space::read`].
    pub fn read_into_where(
        &self,
        locate: &mut dyn FnMut() -> Option<u64>,
        buf: &mut [u8],
    ) -> Result<Option<usize>> {
        self.0.read_into_where(locate, buf)
    }

    /// The first marked byte from `offset` on. Bytes are marked by [`Space::splice`], and stay so wherever they move,
    /// until they are removed or written over (FlexSpace §5.4: where a record begins).
    ///
    /// # Errors
    /// As for [`Space::read`].
    pub fn next_mark(&self, offset: u64) -> Result<Option<u64>> {
        self.0.next_mark(offset)
    }

    /// Writes `data` behind the end, and returns where it stands.
    ///
    /// # Errors
    /// As for [`Space::write`].
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.0.append(data)
    }

    /// Writes short extents of a range anew, side by side, so that they can be read with few calls (FlexSpace §4.1): extents of half the
    /// longest length (64 KiB) and more stay as they are, so do holes and marks. Writers come in between. How many bytes were moved.
    ///
    /// # Errors
    /// As for [`Space::read`] and [`Space::write`].
    pub fn defrag(&self, offset: u64, length: u64) -> Result<u64> {
        self.0.defrag(offset, length)
    }

    /// Makes everything durable that was done before. Writes the blocks that are new, and a group of the log.
    ///
    /// # Errors
    /// `NoSpace`: nothing is lost, but nothing more is durable. `Io` and others: the space failed, and what was
    /// done since the last `sync` may be durable or not.
    pub fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    /// As [`Space::sync`], and stores the tree, so that the next open has no log to replay.
    ///
    /// # Errors
    /// As for [`Space::sync`].
    pub fn checkpoint(&self) -> Result<()> {
        self.0.checkpoint()
    }

    /// Moves what is in the emptiest segments, to free about `segments` of them. This also happens by itself,
    /// when it is needed. Writers come in between. How many bytes were moved.
    ///
    /// # Errors
    /// As for [`Space::read`] and [`Space::write`].
    pub fn collect(&self, segments: u64) -> Result<u64> {
        let mut moved = 0;
        loop {
            let mut writer = self.0.begin("collect segments")?;
            moved += self.0.collect_some(&mut writer, segments)?.0;
            if writer.round.is_none() {
                return Ok(moved);
            }
        }
    }

    /// Whoever uses the space makes no holes: what maps to nothing is lost, and an error for who reads it.
    pub(crate) fn expect_no_holes(&self) {
        self.0.has_no_holes.store(true, Ordering::Relaxed);
    }

    /// Most bytes of the data file from now on, in place of [`SpaceOptions::data_size_bytes_max`]. A file that has more stays as
    /// it is, but no segment is added to it.
    pub fn limit_data(&self, size_bytes_max: Option<u64>) {
        self.0.writer.lock().data_size_bytes_max = size_bytes_max;
    }

    /// Collects segments until the data file holds little more than what lives, and gives the others back to the file
    /// system: by itself a space keeps what removals leave free, for what comes next. Writers come in between. How many
    /// bytes were given back.
    ///
    /// # Errors
    /// As for [`Space::collect`].
    pub fn compact(&self) -> Result<u64> {
        self.settle(COMPACT_PERCENT, &|_| false)?;
        self.trim()
    }

    /// Gives free segments back to the file system; how many bytes.
    ///
    /// # Errors
    /// `ReadOnly`; `Io`, of a device that refuses to take a segment back: the space goes on then.
    pub fn trim(&self) -> Result<u64> {
        let mut writer = self.0.begin("trim space")?;
        let done = self.0.commit(&mut writer, false);
        self.0.fail_on(done)?;
        self.0.trim(&mut writer, 0)
    }

    /// Figures.
    #[must_use]
    pub fn stat(&self) -> SpaceStat {
        let writer = self.0.writer.lock();
        let shared = self.0.shared.read();
        SpaceStat {
            size_bytes: shared.tree.size_bytes(),
            data_bytes: shared.valid_bytes,
            extents: shared.tree.extent_count(),
            file_size_bytes: self.0.files.data.geometry().size_bytes,
            segments: shared.segments.len() as u64,
            free_segments: writer.free.len() as u64,
            segment_size_bytes: self.0.shape.segment_size_bytes,
            generation: writer.log.generation,
            log_bytes: writer.log.position,
            resident_nodes: shared.tree.resident(),
            moved_bytes: writer.moved_bytes,
            data: self.0.files.data.counters(),
            tree: self.0.files.tree.counters(),
            log: self.0.files.log.counters(),
        }
    }

    /// Reads and verifies everything. Writers wait meanwhile.
    ///
    /// # Errors
    /// `Io`; damage is in the report.
    pub fn check(&self) -> Result<SpaceCheck> {
        self.0.check()
    }

    /// Longest extent in bytes.
    #[must_use]
    pub fn extent_size_bytes_max(&self) -> u64 {
        u64::from(self.0.shape.extent_size_bytes_max)
    }

    /// Size of a segment in bytes.
    #[must_use]
    pub fn segment_size_bytes(&self) -> u64 {
        self.0.shape.segment_size_bytes
    }

    /// What the data lie on and what makes a write durable there, in words.
    #[must_use]
    pub fn report(&self) -> String {
        self.0.files.data.report()
    }

    /// Why writes are refused, if they are.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.0.failed.lock().clone()
    }

    /// Stores the tree and closes the space; clones that are left can still be used.
    ///
    /// # Errors
    /// As for [`Space::sync`].
    pub fn close(self) -> Result<()> {
        if self.0.options.read_only { Ok(()) } else { self.checkpoint() }
    }
}

impl Inner {
    /// The writer, unless the space failed.
    fn begin(&self, operation: &'static str) -> Result<MutexGuard<'_, Writer>> {
        let writer = self.writer.lock();
        match &*self.failed.lock() {
            None => Ok(writer),
            Some(cause) => Err(Error::new(ErrorKind::ReadOnly, operation).source(cause.clone())),
        }
    }

    /// Fails the space if `result` says so. A lack of space is no failure: it comes before anything changed.
    fn fail_on<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && error.kind() != ErrorKind::NoSpace
        {
            self.failed.lock().get_or_insert_with(|| error.clone());
        }
        result
    }

    /// Makes a file so long, growing it in larger steps if possible. Whether the file system has room for it.
    fn has_room_in(
        &self,
        device: &dyn esker_media::BlockDevice,
        end: u64,
        step_min: u64,
    ) -> Result<bool> {
        let size = device.geometry().size_bytes;
        if end <= size {
            return Ok(true);
        }
        let block = u64::from(device.geometry().block_size_bytes);
        let wanted = (end - size).max(size / 8).max(step_min).next_multiple_of(block);
        let least = (end - size).next_multiple_of(block);
        for length in [wanted, least] {
            match device.reserve(sites::RESERVE, size, length) {
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                done => return done.map(|()| true),
            }
        }
        Ok(false)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("files", &self.files).finish_non_exhaustive()
    }
}
