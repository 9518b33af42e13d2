//! `depot`: records in a log on a block device, found through 8 bytes of DRAM each (uDepot §4).
//!
//! The device is a row of segments. A write appends its record to the batch that forms, waits until
//! the batch is durable, and changes one index entry; a read looks the entry up and reads the record
//! with one device read. A segment without live records is reused. After a crash the index comes
//! back from the log.
//!
//! # Invariants
//! - D1: what was acknowledged is on media ([`commit`]), and found again ([`recover`]).
//! - D2: a value that is returned has the full key that was asked for and a checksum that fits its
//!   place.
//!
//! # Concurrency
//! Everything may be called from any number of threads and tasks. Lock order: the checkpoint, the cleaner, the gate that
//! writers wait at ([`Exclusive`]), a key's stripe, the log's state, index regions, the free list.
//!
//! # Failure
//! A failed write or flush makes the store read-only until it is opened again; reads go on. Full:
//! `NoSpace`; reads and deletes go on.

mod adopt;
mod atomic;
mod background;
mod backup;
mod batch;
mod blank;
mod check;
mod checkpoint;
mod clean;
mod commit;
mod doubt;
mod engine;
mod evict;
mod expire;
mod extents;
mod hold;
mod large;
mod later;
mod layout;
mod log;
mod many;
mod moves;
mod overtaken;
mod pace;
mod pending;
mod place;
mod read;
mod record_cache;
mod recover;
pub(crate) mod repair;
pub(crate) mod restore;
mod room;
mod scan;
mod segments;
pub mod sites;
mod tombstones;
mod unread;
mod whole;
mod window;
mod write;

use crate::engine::background::Background;
use crate::engine::closing::Closing;
use crate::engine::wall::Wall;
use crate::options::{Durability, Options};
use checkpoint::Taken;
use clean::Cleaner;
use doubt::Doubt;
use esker_base::hash::KeyHasher;
use esker_base::ids::{SegmentEpoch, StoreId, Version};
use esker_base::rng::Rng;
use esker_base::striped::Striped;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::backup::is_restoring;
use esker_format::depot::{
    HASH_BITS, SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_SIZE, SegmentHeader, Stream, Superblock,
};
use esker_index::{Directory, Link};
use esker_media::{BlockDevice, BlockGeometry, BufferPool, IoBuf, Refused, is_zero};
use esker_trt::sync::{self, Gate};
use extents::Extents;
use layout::Layout;
pub(crate) use layout::STORE_SIZE_MAX_BYTES;
use log::Log;
use pace::Pace;
use parking_lot::Mutex;
use pending::Pending;
use record_cache::RecordCache;
use recover::{Damage, Recovered};
use scan::Source;
use segments::Segments;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use whole::Known;

/// The bits of a key's hash that summaries have room for.
const HASH_MASK: u64 = (1 << HASH_BITS) - 1;
/// An odd number and its inverse: multiplying by the one and then by the other changes nothing.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
const GATHER: u64 = 0xF1DE_83E1_9937_733D;

/// A hash of [`HASH_BITS`] bits spread over 64, as the index wants it; different ones stay different.
fn spread(hash: u64) -> u64 {
    hash.wrapping_mul(SPREAD)
}

/// The hash that [`spread`] spread.
fn gather(hash: u64) -> u64 {
    hash.wrapping_mul(GATHER)
}

/// Whether writers wait for somebody, and the gate that they wait at: for who deletes everything, or for a batch that was overtaken too often.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Exclusive {
    /// Whether there is a gate: writers look at nothing else.
    is_on: AtomicBool,
    gate: Mutex<Option<Arc<Gate>>>,
}

/// Counts evicted items.
#[derive(Debug, Default)]
struct Evictions(AtomicU64);

impl Evictions {
    fn add(&self, items: u64) {
        self.0.fetch_add(items, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An open store. See the module's text.
#[derive(Debug)]
pub(crate) struct Depot {
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    layout: Layout,
    hasher: KeyHasher,
    index: Directory,
    extents: Extents,
    segments: Segments,
    evictions: Evictions,
    pending: Pending,
    exclusive: Exclusive,
    log: Log,
    /// Epoch that was next when the store was opened.
    session_epoch: SegmentEpoch,
    checkpoint: sync::Mutex<Taken>,
    cleaner: sync::Mutex<Cleaner>,
    pace: Pace,
    /// What a repair knows beside the log; `None`: this is none.
    repair: Option<Known>,
    record_cache: Option<RecordCache>,
    /// Whether free space is given back while nobody writes.
    trim_idle: bool,
    /// Milliseconds of the clock until which holes are not asked for again.
    holes_asked: AtomicU64,
    durability: Durability,
    doubt: Doubt,
    /// A batch leaves one of so many records to the next one, at most.
    leave_share: usize,
    pool: BufferPool,
    clock: Wall,
    /// What threads added to the number of items, and took from it.
    items: Striped<AtomicU64>,
    rng: Mutex<Rng>,
    background: Arc<Background>,
    /// Writes pieces of the log that are full, where writes go to memory first.
    log_writer: Arc<Background>,
    closing: Closing,
}

impl Depot {
    /// Opens the store on `device`, or makes one there if the device is blank.
    ///
    /// # Errors
    /// `InvalidArgument` if the device holds something else, `UnsupportedFormat`, `Corrupted`, also if it lost its superblocks, `Io`.
    pub(crate) fn open(device: Arc<dyn BlockDevice>, options: &Options) -> Result<Arc<Depot>> {
        let (depot, _) = Depot::open_as(device, options, None)?;
        Ok(depot)
    }

    /// As [`Depot::open`]; to repair it, what is left of damaged segments is taken, and it tells which these are. What `repairing` says to be
    /// refused is damage then.
    fn open_as(
        device: Arc<dyn BlockDevice>,
        options: &Options,
        repairing: Option<&Refused>,
    ) -> Result<(Arc<Depot>, Vec<Damage>)> {
        let lenient = repairing.is_some();
        check_blocks(&*device)?;
        let pool = BufferPool::default();
        let mut rng = Rng::seeded(options.testing.seed)?;
        let found = read_superblock(&*device, &pool, options.format_foreign);
        if !options.format && matches!(found, Ok(None)) {
            blank::check_blank(&*device, &pool, options)?;
        }
        let mut superblock = match found {
            Ok(Some((found, damaged))) if !options.format => {
                if damaged {
                    write_superblock(&*device, &pool, &found)?;
                }
                found
            }
            Err(error) if !options.format || error.kind() == ErrorKind::Io => return Err(error),
            Ok(None) if lenient || !(options.create || options.format) => {
                let words = "there is no store here";
                return Err(Error::invalid("open store", words).device(device.name()));
            }
            found => {
                let old = found.ok().flatten().map(|(old, _)| old);
                format(&*device, &pool, options, &mut rng, old)?
            }
        };
        if superblock.device_size_bytes > device.geometry().size_bytes {
            return Err(Error::corrupted(
                "open store",
                format!("the store has {} bytes, the device fewer: a file that was cut short is to be as long again before it is repaired", superblock.device_size_bytes),
            )
            .device(device.name()));
        }
        if u64::from(superblock.block_size_bytes) < u64::from(device.geometry().block_size_bytes) {
            return Err(Error::new(ErrorKind::Unsupported, "open store")
                .context(format!(
                    "the store was made with blocks of {} bytes, the device writes {}",
                    superblock.block_size_bytes,
                    device.geometry().block_size_bytes
                ))
                .device(device.name()));
        }
        if options.cache && !superblock.cache {
            let words = "the store was made to keep what it is given; a cache is made as one";
            return Err(Error::invalid("open store", words).device(device.name()));
        }
        // A repair leaves it as it is.
        let was_in_doubt = std::mem::take(&mut superblock.in_doubt) && !lenient;
        let may_be = superblock.cache && options.durability != Durability::Sync && !lenient;
        let layout = Layout::of(&superblock);
        let unused = device.geometry().size_bytes.saturating_sub(STORE_SIZE_MAX_BYTES);
        if unused > 0 {
            tracing::warn!(unused, "the device is larger than a store can be");
        }
        let hasher = KeyHasher::new(superblock.hash_key).weakened(superblock.hash_mask);
        // Behind the superblocks, of which one that cannot be read is done without.
        repairing.inspect(|refused| refused.show());
        let source =
            Source { device: &*device, pool: &pool, layout: &layout, site: sites::RECOVER_READ };
        let (mut log, index) =
            Recovered::scan(&source, &superblock, &hasher, &options.progress, repairing)?;
        mend_copies(&*device, &pool, &superblock, &log.copies)?;
        // PERSIST: a new superblock; and what recovery found, which may still be in a cache if only
        //          the process ended and not the machine: nobody may read it before it is durable.
        device.flush(sites::RECOVER_FLUSH)?;
        let entries = options.index_entries_within(device.geometry().size_bytes);
        let index = adopt::directory_with_room(&log.found, log.clear_version, index, entries)?;
        let end = log.log_end();
        end.check()?;
        let new = end.next_version == Version(1);
        let depot = Arc::new(Depot {
            superblock,
            layout,
            hasher,
            index,
            extents: Extents::default(),
            segments: Segments::new(
                superblock.segment_count,
                superblock.segment_size_bytes,
                superblock.cache,
            ),
            evictions: Evictions::default(),
            pending: Pending::new(),
            exclusive: Exclusive::default(),
            checkpoint: sync::Mutex::new(log.checkpoint.as_ref().map(|known| {
                // Numbers that nobody got are nothing to write down.
                let covered = known.end.next_version;
                (if end.durable <= covered { end.next_version } else { covered }, end.next_epoch)
            })),
            session_epoch: end.next_epoch,
            log: Log::new(&pool, &layout, end),
            cleaner: sync::Mutex::new(Cleaner::new(
                log.next_sequence(Stream::Warm),
                log.next_sequence(Stream::Cold),
            )),
            pace: Pace::default(),
            repair: lenient.then(|| std::mem::take(&mut log.known)),
            record_cache: RecordCache::new(options.record_cache_bytes, !device.reads_bytes()),
            trim_idle: options.trim_idle,
            holes_asked: AtomicU64::new(0),
            durability: options.durability,
            doubt: Doubt::new(may_be, was_in_doubt),
            leave_share: options.testing.leave_share,
            pool,
            clock: Wall::new(&options.clock),
            items: Striped::default(),
            rng: Mutex::new(rng),
            background: Arc::default(),
            log_writer: Arc::default(),
            closing: Closing::default(),
            device,
        });
        depot.adopt(&mut log)?;
        if !lenient {
            depot.reserve_tail();
            depot.reserve_versions()?;
            depot.reserve_ahead();
        }
        let damaged = std::mem::take(&mut log.damaged);
        drop(log);
        if was_in_doubt {
            depot.forget_after_crash()?;
        }
        if options.testing.background && !lenient {
            depot.index.allow_helper();
            depot.start_background(new)?;
        }
        Ok((depot, damaged))
    }

    /// Hash of a key as the index takes it.
    fn hash(&self, key: &[u8]) -> u64 {
        spread(self.hasher.hash(key))
    }

    fn items(&self) -> u64 {
        let parts = self.items.iter().map(|part| part.load(Ordering::Relaxed));
        // Less than none while a part of a change was seen and another was not.
        let sum = parts.fold(0, u64::wrapping_add).cast_signed();
        sum.max(0).cast_unsigned()
    }

    fn tombstones(&self) -> u64 {
        self.segments.live().0.saturating_sub(self.items() + self.extents.count())
    }

    fn random(&self) -> u64 {
        self.rng.lock().next_u64()
    }

    /// Takes a superseded record out of the count of its segment.
    fn let_go(&self, old: Link, by: Version) {
        let offset = self.layout.offset_of(old);
        if let Some(segment) = self.layout.segment_of(offset) {
            self.segments.remove(segment, old, by);
        }
    }

    /// An item is gone, and nothing stands in its place.
    fn count_gone(&self, old: Link) {
        if !old.is_tombstone() {
            self.items.here().fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn count_items(&self, old: Option<Link>, new: Link) {
        let existed = old.is_some_and(|old| !old.is_tombstone());
        match (existed, !new.is_tombstone()) {
            (false, true) => self.items.here().fetch_add(1, Ordering::Relaxed),
            (true, false) => self.items.here().fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Makes durable what closing wrote.
    fn end_close(&self) -> Result<()> {
        // PERSIST: the mark of a clean end.
        self.device.flush(sites::CLOSE_FLUSH).map_err(|error| self.poison(&error))?;
        self.end_doubt()
    }

    /// Nobody writes items meanwhile.
    fn restore_items(&self, items: u64) {
        self.items.iter().for_each(|part| part.store(0, Ordering::Relaxed));
        self.items.here().store(items, Ordering::Relaxed);
    }

    fn forget_items(&self) {
        self.restore_items(0);
    }
}

/// Where the segments of a new store on such a device start and how long one is, in bytes.
///
/// # Errors
/// `InvalidArgument` if the device is too small.
pub(crate) fn plan(geometry: BlockGeometry, segment_size: Option<u64>) -> Result<(u64, u64)> {
    let (data_offset, segment_size, _) =
        Layout::plan(geometry, segment_size, Layout::grain_for(geometry.size_bytes))?;
    Ok((data_offset, segment_size))
}

const HOLDS_SOMETHING: &str = "the device holds something that is no esker store";

/// Reads the superblock: the newer valid copy, and whether the other one needs repair, as one that cannot be read does;
/// `None` if both places are blank.
fn read_superblock(
    device: &dyn BlockDevice,
    pool: &BufferPool,
    over_foreign: bool,
) -> Result<Option<(Superblock, bool)>> {
    let block = device.geometry().block_size_bytes as usize;
    let mut newest: Option<Superblock> = None;
    let mut copies = 0;
    let (mut flaw, mut restoring, mut unread) = (None, false, None);
    for offset in [0, SUPERBLOCK_COPY_OFFSET] {
        let mut buffer = pool.get(block.max(SUPERBLOCK_SIZE));
        match device.read_at(sites::OPEN_READ, offset, &mut buffer) {
            Ok(()) => {}
            // The other one may be whole.
            Err(error) if error.kind() == ErrorKind::Io => {
                unread = unread.or(Some(error));
                continue;
            }
            Err(error) => return Err(error),
        }
        match Superblock::decode(&buffer) {
            Ok(found) => match newest {
                Some(other) if other == found => copies = 2,
                Some(other) if other.generation >= found.generation => {}
                _ => (newest, copies) = (Some(found), 1),
            },
            Err(_) if buffer.iter().all(|byte| *byte == 0) => {}
            Err(_) if is_restoring(&buffer) => restoring = true,
            // Of two copies one that was a superblock tells more.
            Err(found) => flaw = flaw.filter(|flaw| *flaw != Flaw::Magic).or(Some(found)),
        }
    }
    if let Some(superblock) = newest {
        return Ok(Some((superblock, copies < 2)));
    }
    if let Some(error) = unread {
        return Err(error);
    }
    let error = match flaw {
        None if restoring => {
            Error::invalid("open store", "a restore of this store did not end: restore again")
        }
        None => return Ok(None),
        Some(Flaw::Version(version)) => Error::new(ErrorKind::UnsupportedFormat, "open store")
            .context(format!("format version {version} is not known to this build")),
        Some(Flaw::Magic) if over_foreign => return Ok(None),
        Some(Flaw::Magic) => Error::invalid("open store", HOLDS_SOMETHING),
        Some(flaw) => Error::corrupted("open store", flaw.to_string()).at(0, 512),
    };
    Err(error.device(device.name()))
}

/// Refuses a device that cannot write the copy of the superblock where it stands.
pub(super) fn check_blocks(device: &dyn BlockDevice) -> Result<()> {
    let block = device.geometry().block_size_bytes;
    if u64::from(block) <= SUPERBLOCK_COPY_OFFSET {
        return Ok(());
    }
    let words = format!(
        "the device writes blocks of {block} bytes: a store has at most {SUPERBLOCK_COPY_OFFSET}"
    );
    Err(Error::new(ErrorKind::Unsupported, "open store").context(words).device(device.name()))
}

/// Writes both copies of the superblock.
fn write_superblock(
    device: &dyn BlockDevice,
    pool: &BufferPool,
    superblock: &Superblock,
) -> Result<()> {
    let mut block: IoBuf = pool.get_zeroed(device.geometry().block_size_bytes as usize);
    if let Some(head) = block.get_mut(..SUPERBLOCK_SIZE) {
        head.copy_from_slice(&superblock.encode());
    }
    for offset in [0, SUPERBLOCK_COPY_OFFSET] {
        // PERSIST: each fits a sector, so a crash leaves either copy old or new; the flush at open
        //          makes both durable before anything else is written.
        device.write_at(sites::FORMAT_WRITE, offset, &[IoSlice::new(&block)])?;
    }
    Ok(())
}

/// Writes copies of segments' headers anew that are not like those that count: with one of them the next fault would cost the segment.
fn mend_copies(
    device: &dyn BlockDevice,
    pool: &BufferPool,
    superblock: &Superblock,
    copies: &[(u64, SegmentHeader)],
) -> Result<()> {
    for (offset, header) in copies {
        tracing::warn!(segment = header.segment_id.0, offset, "a header's copy is written anew");
        let mut block = pool.get_zeroed(superblock.block_size_bytes as usize);
        let bytes = header.encode(superblock.store_id);
        block.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        // PERSIST: the other copy stays as it is; durable with what recovery found.
        match device.write_at(sites::ROLL_WRITE, *offset, &[IoSlice::new(&block)]) {
            // On another day: the other one tells what this one would.
            Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Io) => {
                tracing::warn!(%error, "not now");
            }
            done => done?,
        }
    }
    Ok(())
}

/// Makes a new store: the segments' headers lose their validity with the store's new identity.
fn format(
    device: &dyn BlockDevice,
    pool: &BufferPool,
    options: &Options,
    rng: &mut Rng,
    old: Option<Superblock>,
) -> Result<Superblock> {
    let geometry = device.geometry();
    let grain =
        options.testing.grain_size_bytes.unwrap_or_else(|| Layout::grain_for(geometry.size_bytes));
    let (data_offset, segment_size_bytes, segment_count) =
        Layout::plan(geometry, options.testing.segment_size_bytes, grain)?;
    // A file system may leave both places of a superblock as zeros.
    let over = options.format || options.format_foreign;
    if !over && !is_zero(device, sites::OPEN_READ, pool, data_offset)? {
        return Err(Error::invalid("open store", HOLDS_SOMETHING).device(device.name()));
    }
    let mut identity = [[0; 16]; 2];
    identity.iter_mut().for_each(|bytes| rng.fill(bytes));
    let [store_id, hash_key] = identity;
    let superblock = Superblock {
        store_id: StoreId(store_id),
        hash_key,
        hash_mask: options.testing.hash_mask & HASH_MASK,
        device_size_bytes: geometry.size_bytes,
        data_offset,
        segment_size_bytes,
        segment_count,
        block_size_bytes: geometry.block_size_bytes,
        generation: old.map_or(1, |old| old.generation.saturating_add(1)),
        created_unix_seconds: options.clock.unix_seconds(),
        cache: options.cache,
        in_doubt: false,
        grain_size_bytes: grain,
    };
    write_superblock(device, pool, &superblock)?;
    Ok(superblock)
}

impl Drop for Depot {
    /// Best effort for a store that nobody closed: `periodic` and `none` lose nothing then.
    fn drop(&mut self) {
        // Without waiting: this may be the background thread itself.
        self.background.stop();
        self.log_writer.stop();
        if !self.log.is_closed()
            && let Err(error) =
                self.close_log().and_then(|()| self.complete_open()).and_then(|()| self.end_close())
        {
            tracing::warn!(%error, "closing the store failed");
        }
    }
}
