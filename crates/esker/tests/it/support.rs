//! Small stores on simulated devices.

use esker::{EngineKind, Options, Result, Store};
use esker_base::clock::ManualClock;
use esker_base::{Site, SiteKind};
use esker_media::sim::{SimBlock, SimBlockOptions, SimPm, SimPmOptions};
use esker_media::{BlockDevice, Pmem};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Size of a test device in bytes: with segments of 8 KiB, reuse comes within a hundred writes.
pub(crate) const DEVICE_SIZE: u64 = 128 << 10;
/// Size of a test segment in bytes.
pub(crate) const SEGMENT_SIZE: u64 = 8 << 10;
/// Size of a test chunk of `flat` in bytes.
pub(crate) const CHUNK_SIZE: u64 = 4 << 10;
/// Wall time at which tests start, in seconds.
pub(crate) const START: u64 = 1_800_000_000;

/// Ends the threads beside a test, also when it fails: who waits for their end would wait for ever.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Options with tiny geometry, a fixed seed and a clock that stands still.
pub(crate) fn options(seed: u64) -> Options {
    let mut options = Options::new("");
    options.clock = Arc::new(ManualClock::new(START));
    options.testing.seed = Some(seed);
    options.testing.segment_size_bytes = Some(SEGMENT_SIZE);
    options.testing.background = false;
    options
}

/// A blank simulated device.
pub(crate) fn device(seed: u64) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, seed)))
}

/// Opens the store on `device`.
pub(crate) fn open(device: &Arc<SimBlock>, options: &Options) -> Result<Store> {
    Store::open_on(Arc::clone(device) as Arc<dyn BlockDevice>, options)
}

/// A folder in memory for tests that do hundreds of thousands of operations, or on disk where
/// memory has no room for them: they ask what a store does, and a disk only makes them wait.
pub(crate) fn folder_in_memory() -> tempfile::TempDir {
    const ROOM_BYTES: u64 = 2 << 30;
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |of| of.f_bavail.saturating_mul(of.f_frsize));
    let folder = if free >= ROOM_BYTES { memory } else { &std::env::temp_dir() };
    tempfile::tempdir_in(folder).unwrap()
}

/// Flips a bit on a device in use.
pub(crate) fn flip_on(device: &SimBlock, offset: u64) {
    const SITE: Site = Site::new("test.damage", SiteKind::Write);
    let mut block = [0; 512];
    device.read_at(SITE, offset / 512 * 512, &mut block).unwrap();
    block[usize::try_from(offset % 512).unwrap()] ^= 8;
    device.write_at(SITE, offset / 512 * 512, &[IoSlice::new(&block)]).unwrap();
}

/// Says which write this value is of, so that none that was taken back looks like the one behind it.
pub(crate) fn number(mut value: Vec<u8>, write: u32) -> Vec<u8> {
    value[..4].copy_from_slice(&write.to_be_bytes());
    value
}

/// The value of `key` as bytes.
pub(crate) fn get(store: &Store, key: &str) -> Option<Vec<u8>> {
    store.get(key.as_bytes()).expect("get works").map(|value| value.to_vec())
}

/// The engines that are tested by what every engine does.
pub(crate) const ENGINES: [EngineKind; 3] =
    [EngineKind::Depot, EngineKind::FlatCceh, EngineKind::FlatMasstree];

/// A simulated medium and the engine that keeps its data there.
pub(crate) enum Bed {
    Device(Arc<SimBlock>),
    Memory(Arc<SimPm>, EngineKind),
}

impl Bed {
    /// A blank medium for an engine.
    pub(crate) fn new(engine: EngineKind, seed: u64) -> Bed {
        match engine {
            EngineKind::FlatCceh | EngineKind::FlatMasstree => {
                let mut options = SimPmOptions::new(DEVICE_SIZE, seed);
                options.record = false;
                Bed::Memory(Arc::new(SimPm::new(options)), engine)
            }
            _ => Bed::Device(device(seed)),
        }
    }

    /// Options for the engine, with tiny geometry.
    pub(crate) fn options(&self, seed: u64) -> Options {
        let mut options = options(seed);
        if let Bed::Memory(_, engine) = self {
            options.engine = Some(*engine);
            options.testing.segment_size_bytes = Some(CHUNK_SIZE);
            options.testing.cores = Some(2);
        }
        options
    }

    /// Opens the store.
    pub(crate) fn open(&self, options: &Options) -> Result<Store> {
        match self {
            Bed::Device(device) => open(device, options),
            Bed::Memory(memory, _) => {
                Store::open_on_memory(Arc::clone(memory) as Arc<dyn Pmem>, options)
            }
        }
    }
}
