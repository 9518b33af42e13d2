//! A number of entries that many threads change without sharing a cache line.
//!
//! Each thread adds to one of a few stripes; the sum is exact while nothing changes.

use esker_base::striped::Striped;
use esker_base::sync::atomic::{AtomicI64, Ordering};

/// The counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(Striped<AtomicI64>);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, number: i64) {
        self.0.here().fetch_add(number, Ordering::Relaxed);
    }

    /// The sum; never below 0.
    pub(crate) fn sum(&self) -> u64 {
        let sum: i64 = self.0.iter().map(|stripe| stripe.load(Ordering::Relaxed)).sum();
        u64::try_from(sum).unwrap_or(0)
    }
}
