//! A number of entries that many threads change without sharing a cache line.
//!
//! Each thread adds to one of a few stripes; the sum is exact while nothing changes.

use esker_base::sync::atomic::{AtomicI64, Ordering};
use std::sync::atomic::AtomicUsize;

/// Stripes: threads beyond as many share them.
pub(crate) const STRIPES: usize = 16;

// Not of the sync shim: which stripe a thread uses is no part of an explored program.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
}

/// The stripe of this thread.
#[inline]
pub(crate) fn stripe() -> usize {
    // A thread that is ending uses the first.
    STRIPE.try_with(|stripe| *stripe).unwrap_or(0)
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicI64);

/// The counter.
#[derive(Debug, Default)]
pub(crate) struct Counter([Stripe; STRIPES]);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, number: i64) {
        if let Some(stripe) = self.0.get(stripe()) {
            stripe.0.fetch_add(number, Ordering::Relaxed);
        }
    }

    /// The sum; never below 0.
    pub(crate) fn sum(&self) -> u64 {
        let sum: i64 = self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum();
        u64::try_from(sum).unwrap_or(0)
    }
}
