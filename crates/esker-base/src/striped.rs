//! Values that many threads change without sharing a cache line: a copy for each of a few groups of threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Copies: threads beyond as many share them.
const STRIPES: usize = 16;

/// Number of the calling thread, counted from 0 in the order in which threads first ask; 0 for a thread that is ending.
#[inline]
#[must_use]
pub fn thread_number() -> usize {
    // Not of the sync shim: which number a thread has is no part of an explored program.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

/// A `T` for each of 16 groups of threads, on lines of its own.
#[derive(Debug, Default)]
pub struct Striped<T>([Stripe<T>; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe<T>(T);

impl<T> Striped<T> {
    /// The calling thread's; others may have the same one.
    #[inline]
    pub fn here(&self) -> &T {
        #[expect(clippy::indexing_slicing, reason = "a remainder is in range")]
        &self.0[thread_number() % STRIPES].0
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|stripe| &stripe.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn what_threads_add_is_all_there_and_neighbours_are_apart() {
        let sum = Striped::<AtomicU64>::default();
        std::thread::scope(|scope| {
            for _ in 0..STRIPES + 3 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        sum.here().fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let all: u64 = sum.iter().map(|stripe| stripe.load(Ordering::Relaxed)).sum();
        assert_eq!(all, 1000 * (STRIPES as u64 + 3));
        let places: Vec<_> = sum.iter().map(|stripe| std::ptr::from_ref(stripe).addr()).collect();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 128));
    }

    #[test]
    fn a_thread_keeps_its_number_and_others_have_other_numbers() {
        let before = thread_number();
        let other = std::thread::scope(|scope| scope.spawn(thread_number).join().unwrap());
        assert_ne!(other, before);
        assert_eq!(thread_number(), before);
    }
}
