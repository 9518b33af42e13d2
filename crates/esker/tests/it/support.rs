//! Small stores on simulated devices.

use esker::{Options, Result, Store};
use esker_base::clock::ManualClock;
use esker_media::BlockDevice;
use esker_media::sim::{SimBlock, SimBlockOptions};
use std::sync::Arc;

/// Size of a test device in bytes: with segments of 8 KiB, reuse comes within a hundred writes.
pub(crate) const DEVICE_SIZE: u64 = 128 << 10;
/// Size of a test segment in bytes.
pub(crate) const SEGMENT_SIZE: u64 = 8 << 10;
/// Wall time at which tests start, in seconds.
pub(crate) const START: u64 = 1_800_000_000;

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

/// The value of `key` as bytes.
pub(crate) fn get(store: &Store, key: &str) -> Option<Vec<u8>> {
    store.get(key.as_bytes()).expect("get works").map(|value| value.to_vec())
}
