//! `flat` as the crash explorer sees it: tiny geometry, everything decided by the seed.

use crate::operation::{Ticking, apply, counted_items, empty};
use esker::{Batching, EngineKind, Options, Result, Store};
use esker_base::{Error, ErrorKind};
use esker_media::Pmem;
use esker_testkit::explore::{Config, Memory, Subject};
use esker_testkit::generator::{Limits, Op, Weights};
use esker_testkit::model::{Map, Reply};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Size of a chunk in bytes: a log is full after some ten writes.
pub(crate) const CHUNK_SIZE: u64 = 2048;

/// Kinds of hashes: all bits; few enough that keys share a hash; none.
const HASH_MASKS: [u64; 3] = [u64::MAX, 0x0300_0000_0000_0001, 0];

/// Versions below which stores begin: the first, and where the bytes of a stamp, the halves of a version, and its highest bit change.
const FIRST_VERSIONS: [u64; 4] = [0, (1 << 16) - 40, (1 << 32) - 40, (1 << 61) - 40];

/// A `flat` with an index, a hash of some bits, and chunks of some size.
#[derive(Clone, Debug)]
pub(crate) struct Flat {
    engine: EngineKind,
    hash_mask: u64,
    chunk_size: u64,
    /// Whether values expire, so that some are counted that nobody finds.
    expires: bool,
    seconds: Arc<AtomicU64>,
}

/// Options of a store in a simulation.
pub(crate) fn options(engine: EngineKind, hash_mask: u64, format: bool) -> Options {
    let mut options = Options::new("");
    options.engine = Some(engine);
    options.clock = Arc::new(Ticking::default());
    options.format = format;
    // Each open draws its own identities, as outside simulations, but from the simulation's seed.
    options.testing.seed = Some(esker_trt::sim::random(u64::MAX).unwrap_or(1));
    options.testing.segment_size_bytes = Some(CHUNK_SIZE);
    options.testing.hash_mask = hash_mask;
    options.testing.cores = Some(2);
    // One cleaner, or one for each log, and another number after each open.
    options.batching_group =
        1 + usize::try_from(esker_trt::sim::random(2).unwrap_or(0)).unwrap_or(0);
    // Each log for itself, or all at once.
    options.testing.collect_bytes = Some(esker_trt::sim::random(2).unwrap_or(0) * u64::MAX);
    options.testing.background = false;
    // Each look at all chunks for itself, or for some that are taken and come free.
    let known = usize::try_from(esker_trt::sim::random(2).unwrap_or(0)).unwrap_or(0);
    options.testing.known_share = [4096, 8][known];
    let first = usize::try_from(esker_trt::sim::random(4).unwrap_or(0)).unwrap_or(0);
    options.testing.first_version = FIRST_VERSIONS[first];
    // In every other store the default, in the others one of all.
    let model = usize::try_from(esker_trt::sim::random(8).unwrap_or(0)).unwrap_or(0);
    options.batching = Batching::ALL.get(model).copied().unwrap_or_default();
    options
}

/// The store and the workload of a piece of work: both indexes, weak hashes, and one of four geometries.
pub(crate) fn subject(piece: u64) -> (Flat, Config) {
    let engine =
        if piece.is_multiple_of(2) { EngineKind::FlatCceh } else { EngineKind::FlatMasstree };
    let hash_mask = if piece.is_multiple_of(3) {
        u64::MAX
    } else {
        HASH_MASKS[usize::try_from(piece / 3 % 3).unwrap_or(0)]
    };
    // Of those where nothing expires, all items are counted.
    let expires = (piece % 5).is_multiple_of(2);
    let weights = Weights {
        batch: 8,
        clean: 10,
        check: 3,
        sync: 6,
        reopen: 4,
        compare: 6,
        time: if expires { 3 } else { 0 },
        ..Weights::USUAL
    };
    let limits = Limits {
        // Longer than what stands in the log.
        key_size_bytes_max: 300,
        value_size_bytes_max: 1500,
        segment_size_bytes: usize::try_from(CHUNK_SIZE).unwrap_or(0),
        expires,
        ..Limits::default()
    };
    let usual = Config {
        size_bytes: 28 * CHUNK_SIZE,
        op_count: 80,
        limits,
        weights,
        // A nested crash is a hundred recoveries.
        nested_one_in: 256,
        ..Config::default()
    };
    let (chunk_size, config) = match piece / 2 % 4 {
        // Many small entries: batches of copies behind one another, an index that grows.
        1 => {
            let limits = Limits {
                value_size_bytes_max: 20,
                key_count: 150,
                key_size_bytes_max: 40,
                ..limits
            };
            let size_bytes = 16 * 2 * CHUNK_SIZE;
            (2 * CHUNK_SIZE, Config { size_bytes, op_count: 240, limits, ..usual })
        }
        // Records of several chunks.
        2 => {
            let limits = Limits { value_size_bytes_max: 5000, ..limits };
            (CHUNK_SIZE, Config { size_bytes: 40 * CHUNK_SIZE, limits, ..usual })
        }
        // So little room that cleaning goes on all the time.
        3 => {
            let limits = Limits { value_size_bytes_max: 300, ..limits };
            (CHUNK_SIZE, Config { size_bytes: 16 * CHUNK_SIZE, op_count: 120, limits, ..usual })
        }
        _ => (CHUNK_SIZE, usual),
    };
    let seconds = Arc::default();
    (Flat { engine, hash_mask, chunk_size, expires, seconds }, config)
}

/// A store that the power cut ends: dropped, it writes no image.
pub(crate) struct Open(Store);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.clone().forget();
    }
}

impl Subject for Flat {
    type Medium = Memory;
    type Store = Open;

    fn with_clock(&self, seconds: Arc<AtomicU64>) -> Self {
        Flat { seconds, ..self.clone() }
    }

    fn open(&self, memory: Arc<dyn Pmem>, fresh: bool) -> Result<Open> {
        let mut options = options(self.engine, self.hash_mask, fresh);
        options.clock = Ticking::of(&self.seconds);
        options.testing.segment_size_bytes = Some(self.chunk_size);
        // Logs of a core that is no more end.
        let fewer = usize::from(esker_trt::sim::random(3) == Some(0));
        options.testing.cores = options.testing.cores.map(|cores| cores - fewer);
        Store::open_on_memory(memory, &options).map(Open)
    }

    fn apply(&self, Open(store): &Open, op: &Op) -> Result<Reply> {
        apply(store, op, 2)
    }

    fn fault_refuses(&self, error: &Error) -> bool {
        // The store could not read what the key holds: it promises that nothing was written.
        matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupted)
    }

    fn dump(&self, Open(store): &Open) -> Result<Map> {
        counted_items(store, self.expires)
    }

    fn empty(&self, Open(store): &Open) -> Result<()> {
        // That of the checkpoint.
        empty(store, 1)
    }

    fn close(&self, store: Open) -> Result<()> {
        store.0.close()
    }
}
