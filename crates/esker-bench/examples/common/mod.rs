//! What the benchmarks of indexes have in common: keys that are hashes already, and time on a core.

use esker_base::clock::{Clock, SystemClock};

/// The hash of the n-th key: an invertible function that mixes well.
pub(crate) fn hash(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ n >> 31
}

/// Nanoseconds since some moment.
pub(crate) fn now() -> u64 {
    u64::try_from(SystemClock.monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds per operation that this thread was on a core: other work counts little.
pub(crate) fn time(operations: u64, work: impl FnOnce()) -> f64 {
    let start = on_core();
    work();
    (on_core() - start) / operations as f64
}

/// Nanoseconds that this thread was on a core; all that passed, where the kernel does not tell.
fn on_core() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let told = told.and_then(|told| told.split_whitespace().next()?.parse().ok());
    told.unwrap_or_else(|| now() as f64)
}

/// Keys are hashes already: all maps take them as they are.
#[derive(Clone, Copy, Default)]
pub(crate) struct AsIs(u64);

impl std::hash::Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

pub(crate) type BuildAsIs = std::hash::BuildHasherDefault<AsIs>;
