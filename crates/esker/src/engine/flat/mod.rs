//! `flat`: small entries in a log for each core on persistent memory, any index in DRAM (FlatStore).
//!
//! A write appends one entry, which holds key and value or points at a record outside the log, and makes it durable
//! with one fence; then the index follows. A read looks the index up and copies the value out.
//!
//! # Invariants
//! - F1: what was acknowledged is on media ([`commit`]), and found again ([`recover`]).
//! - F2: nobody sees what is not durable: the index follows after the fence.
//! - F3: a value that is returned is that of the key that was asked for.
//!
//! # Concurrency
//! Everything may be called from any number of threads and tasks. Lock order: keys in order of their stripes, a core's
//! log, the row, the packer, the cleaners in their order, the checkpoint, a core's blocks, free chunks. Readers take none of them. For
//! each group of cores a thread cleans ahead of writers ([`cleaners`]), and one writes a checkpoint when they rest ([`background`]).
//!
//! # Failure
//! After a failed store, flush or fence the store is read-only until it is opened again; reads go on. Full:
//! `NoSpace`; reads and deletes go on. Every write is durable when it returns, whatever `durability` says: there is
//! nothing to gain by less.

mod atomic;
mod background;
mod backup;
mod batches;
pub(crate) mod batching;
mod check;
mod checkpoint;
mod chunks;
mod clean;
mod cleaners;
mod clear;
mod commit;
mod engine;
mod fruitless;
mod hold;
mod index;
mod keys;
mod known;
mod layout;
mod lines;
mod lost;
mod moves;
mod ordered;
mod pack;
mod periodic;
mod place;
mod probe;
mod purge;
mod read;
mod recover;
pub(crate) mod repair;
mod replay;
pub(crate) mod restore;
mod row;
mod sample;
mod scan;
pub mod sites;
mod sizes;
mod sorted;
#[cfg(test)]
mod tests;
mod twins;
mod versions;
mod victims;
mod write;

use crate::engine::background::Background;
use crate::engine::closing::Closing;
use crate::engine::wall::Wall;
use crate::options::{EngineKind, Options};
use batching::Batcher;
use chunks::{Chunks, Use};
use cleaners::Cleaners;
use commit::{CoreLog, Log};
use esker_base::hash::KeyHasher;
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flat::{Clear, IndexKind, LINE, Superblock};
use esker_index::Cceh;
use esker_media::{BufferPool, Pmem};
use fruitless::Fruitless;
use hold::Hold;
use index::{HashIndex, KeyIndex};
use keys::KeyLocks;
use layout::Layout;
use lost::Lost;
use ordered::Ordered;
use parking_lot::Mutex;
use periodic::Checkpoint;
use place::CoreBlocks;
use recover::Root;
use repair::Damaged;
use sizes::Sizes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use versions::Versions;

/// Refuses a size that no new store may have.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn plan_memory(size_bytes: u64, chunk_size: Option<u64>) -> Result<()> {
    Layout::plan(size_bytes, chunk_size).map(drop)
}

/// Locks of keys: 512 KiB.
const KEY_STRIPES: usize = 1 << 17;
/// A log of its own for a core is worth as many chunks.
const LOG_CHUNKS_MIN: u32 = 8;
/// Most cores that have a log of their own.
const CORES_MAX: usize = 60;

const OPEN: u32 = 0;
const FAILED: u32 = 1;
const CLOSED: u32 = 2;

/// A value on a line that nothing else shares.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// An open store. See the module's text.
#[derive(Debug)]
pub(crate) struct Flat {
    memory: Arc<dyn Pmem>,
    superblock: Superblock,
    layout: Layout,
    hasher: KeyHasher,
    index: Box<dyn KeyIndex>,
    chunks: Chunks,
    logs: Box<[CoreLog]>,
    batcher: Batcher<Flat>,
    sizes: Sizes,
    blocks: Box<[CoreBlocks]>,
    keys: KeyLocks,
    /// Held by who makes a row of chunks.
    row: Mutex<()>,
    cleaners: Cleaners,
    cleared: Mutex<Clear>,
    /// Words of the index of what was cleared.
    unswept: AtomicU64,
    checkpoint: Mutex<Checkpoint>,
    hold: Hold,
    fruitless: Fruitless,
    lost: Lost,
    /// Of each cleaner.
    background: Box<[Arc<Background>]>,
    pool: BufferPool,
    clock: Wall,
    /// Keys choose their cores, as in tests; else cores of the run-time and threads do.
    core_by_key: bool,
    /// Threads of recovery.
    threads: usize,
    session: AtomicU64,
    tombstones: AtomicU64,
    /// Chunks that are taken or come free until what is known of all is not known any more.
    known_moves: u64,
    failure: Mutex<Option<Error>>,
    state: Apart<AtomicU32>,
    closing: Closing,
    versions: Versions,
    /// What is damaged, while the store is open for a repair.
    damaged: Option<Damaged>,
}

/// Logs of a store of so many chunks on a machine of so many processors: each has a chunk that is open, and all of these together are
/// a small part of the store.
fn logs_of(processors: usize, chunk_count: u32) -> usize {
    let most = usize::try_from(chunk_count / LOG_CHUNKS_MIN).unwrap_or(CORES_MAX);
    processors.min(CORES_MAX).min(most).max(1)
}

impl Flat {
    /// Opens the store in `memory`, or makes one there if it is blank.
    ///
    /// # Errors
    /// `InvalidArgument` if something else is there, `UnsupportedFormat`, `Corrupted`, `Io`.
    pub(crate) fn open(memory: Arc<dyn Pmem>, options: &Options) -> Result<Arc<Flat>> {
        let index = match options.engine {
            Some(EngineKind::FlatCceh) => Some(IndexKind::Cceh),
            Some(EngineKind::FlatMasstree) => Some(IndexKind::Masstree),
            _ => None,
        };
        let mut rng = Rng::seeded(options.testing.seed)?;
        let root = Root::open(&*memory, options, index, &mut rng, false)?;
        let recovered = |images| {
            let flat = Flat::empty(&memory, options, &root);
            let done = flat.recover(&root, options, images);
            if !matches!(done, Ok(true)) {
                // What was made of it goes, and writes nothing: nobody needs memory for two indexes.
                crate::engine::Engine::abandon(&flat);
            }
            done.map(|is_whole| is_whole.then_some(flat))
        };
        let flat = match recovered(true)? {
            Some(flat) => flat,
            None => {
                tracing::warn!("an image of the index is damaged: the logs are read");
                let damaged = || Error::corrupted("open store", "images are damaged");
                recovered(false)?.ok_or_else(damaged)?
            }
        };
        flat.versions.raise(options.testing.first_version);
        let flat = Arc::new(flat);
        if options.testing.background {
            flat.start_background()?;
        }
        Ok(flat)
    }

    /// Ends the use of the store, and writes the image. Waits for nobody.
    fn close_store(&self) -> Result<()> {
        self.stop_background();
        let _locks = self.keys.lock_all();
        let mut still = self.hold_cleaning();
        // What is parked would be in use for ever: the image says so, and nobody frees it afterwards.
        self.break_hold();
        let refused = self.refuse();
        let left = refused.is_ok().then(|| {
            self.sweep_rest()?;
            self.clean_left(&mut still)
        });
        match (self.state.swap(CLOSED, Ordering::AcqRel), left) {
            (OPEN, Some(Ok(true))) => self.write_image(),
            (FAILED, None) => refused,
            // Records that are left for a chunk would be in use for ever: the next open reads the logs, and knows of them.
            (_, left) => left.unwrap_or(Ok(false)).map(drop),
        }
    }

    fn empty(memory: &Arc<dyn Pmem>, options: &Options, root: &Root) -> Flat {
        let superblock = &root.superblock;
        let layout = Layout::of(superblock);
        let processors = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (cores, threads) = match options.testing.cores {
            Some(cores) => (cores.clamp(1, CORES_MAX), 1),
            None => (logs_of(processors(), layout.chunk_count), processors()),
        };
        let index: Box<dyn KeyIndex> = match superblock.index {
            IndexKind::Cceh => Box::new(HashIndex {
                table: Cceh::with_capacity(options.index_entries_within(superblock.size_bytes)),
                exact: superblock.hash_mask == u64::MAX,
            }),
            IndexKind::Masstree => Box::new(Ordered::default()),
        };
        let batching = commit::batching(options, cores, &layout);
        let group_size = cleaners::group_size(cores, batching.cores_together(), layout.chunk_count);
        let cleaners = Cleaners::new(cores, group_size);
        Flat {
            memory: Arc::clone(memory),
            superblock: *superblock,
            layout,
            hasher: KeyHasher::new(superblock.hash_key).weakened(superblock.hash_mask),
            index,
            chunks: Chunks::new(&layout, cleaners.count()),
            batcher: Batcher::new(batching),
            logs: (0..cores).map(|_| CoreLog(Mutex::new(Log::new(None)))).collect(),
            sizes: Sizes::of(layout.room() / LINE as u64),
            blocks: (0..cores).map(|_| CoreBlocks::default()).collect(),
            keys: KeyLocks::new(if options.testing.cores.is_some() { 64 } else { KEY_STRIPES }),
            row: Mutex::default(),
            background: (0..cleaners.count()).map(|_| Arc::default()).collect(),
            cleaners,
            cleared: Mutex::new(root.clear),
            unswept: AtomicU64::new(0),
            checkpoint: Mutex::default(),
            hold: Hold::default(),
            fruitless: Fruitless::default(),
            lost: Lost::default(),
            pool: BufferPool::default(),
            clock: Wall::new(&options.clock),
            core_by_key: options.testing.cores.is_some(),
            threads,
            session: AtomicU64::new(0),
            tombstones: AtomicU64::new(0),
            known_moves: u64::from(layout.chunk_count / options.testing.known_share.max(1)),
            failure: Mutex::new(None),
            state: Apart::default(),
            closing: Closing::default(),
            versions: Versions::new(cores),
            damaged: None,
        }
    }

    /// The core whose log a write goes to.
    #[inline]
    fn core_of(&self, hash: u64) -> usize {
        match self.core_by_key {
            true => usize::try_from(hash >> 7).unwrap_or(0) % self.logs.len().max(1),
            false => self.batcher.here(),
        }
    }

    /// Refuses writes to a store that failed or was closed.
    #[inline]
    fn refuse(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) == OPEN { Ok(()) } else { self.refusal() }
    }

    #[cold]
    fn refusal(&self) -> Result<()> {
        self.check_open()?;
        match &*self.failure.lock() {
            Some(cause) => {
                Err(Error::new(ErrorKind::ReadOnly, "write store").source(cause.clone()))
            }
            None => Ok(()),
        }
    }

    #[inline]
    fn check_open(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) == CLOSED {
            return Err(Error::new(ErrorKind::Closed, "use store"));
        }
        Ok(())
    }

    /// After a failed write nobody knows what is durable: the store is read-only from now on.
    fn poison(&self, cause: &Error) -> Error {
        let mut failure = self.failure.lock();
        let is_first = failure.is_none();
        if is_first {
            *failure = Some(cause.clone());
            let _ = self.state.compare_exchange(OPEN, FAILED, Ordering::AcqRel, Ordering::Acquire);
        }
        drop(failure);
        // Behind everything that depends on it: a log may take its time, or worse.
        if is_first {
            tracing::error!(error = %cause, "a write failed: the store is read-only until reopened");
        }
        Error::new(ErrorKind::DurabilityUnknown, "write store").source(cause.clone())
    }

    fn live_bytes(&self) -> u64 {
        self.chunks
            .iter()
            .map(|(_, chunk)| match chunk.usage() {
                Use::OpenLog | Use::Log => {
                    let (entries, dead) = chunk.counts();
                    let tail = u64::from(chunk.tail.load(Ordering::Relaxed));
                    tail * u64::from(entries.saturating_sub(dead)) / u64::from(entries.max(1))
                }
                Use::Blocks => {
                    let lines = u64::from(chunk.lines.load(Ordering::Relaxed));
                    u64::from(chunk.live.load(Ordering::Relaxed)) * lines * LINE as u64
                }
                Use::Large => {
                    u64::from(chunk.lines.load(Ordering::Relaxed)) * self.layout.chunk_size
                }
                Use::Free | Use::Tail | Use::Other | Use::Bad => 0,
            })
            .sum()
    }
}

impl Drop for Flat {
    /// Best effort for a store that nobody closed: nothing is lost without, but the next open takes longer.
    fn drop(&mut self) {
        // Without waiting: this may be a background thread itself.
        self.stop_background();
        if self.state.load(Ordering::Acquire) == OPEN
            && !std::thread::panicking()
            && let Err(error) = self.close_store()
        {
            tracing::warn!(%error, "closing the store failed");
        }
    }
}
