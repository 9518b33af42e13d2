//! Shared pointers that are read without a lock and freed when nobody can read them any more.
//!
//! A [`Cell`] owns one count of an `Arc`. Readers pin an epoch (see `epoch`) and borrow from the
//! cell; replacing the content lets the old count go only after all who were pinned are done.
//! Everything that borrows is bound by lifetimes to the pin and to the cell, so that the face of
//! this module is safe.
//!
//! # Safety invariants
//! 1. The pointer in a cell comes from `Arc::into_raw`, and the cell owns one strong count of it.
//! 2. That count is let go only after the pointer left the cell and every thread that was pinned
//!    then has unpinned, or when the cell itself is dropped, which nobody can borrow then.
//! 3. A [`Pin`] is made only by [`pin`], so that it pins the domain that 2 defers to, and stays on its
//!    thread.
//!
//! # Concurrency
//! Any thread may load and store at once; a load costs a pin (two stores) once per operation.

#![expect(unsafe_code, reason = "borrowing from an Arc that another thread may replace")]

mod epoch;

use epoch::{Domain, Slot};
use esker_base::sync::atomic::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::sync::Arc;

static CELLS: Domain<0> = Domain::new();
static LONG: Domain<1> = Domain::new();

/// Proof that what this thread reads from cells stays.
#[derive(Debug)]
pub(crate) struct Pin(&'static Slot, PhantomData<*const ()>);

/// Pins the epoch of this thread until the result is dropped.
#[inline]
pub(crate) fn pin() -> Pin {
    Pin(CELLS.enter(), PhantomData)
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        CELLS.leave(self.0);
    }
}

/// Lets go what nobody can read any more, if nobody else is at it.
pub(crate) fn collect() {
    CELLS.collect();
}

/// As a [`Pin`], of epochs of its own: what lasts, as a scan does, delays nobody who uses cells.
#[derive(Debug)]
pub(crate) struct LongPin(&'static Slot, PhantomData<*const ()>);

/// Pins the other epoch of this thread until the result is dropped.
#[inline]
pub(crate) fn pin_long() -> LongPin {
    LongPin(LONG.enter(), PhantomData)
}

impl LongPin {
    /// Runs `work` when everyone who is pinned so now is done, on any thread.
    #[cfg(not(feature = "shuttle"))]
    #[expect(clippy::unused_self, reason = "who defers is pinned")]
    pub(crate) fn defer(&self, work: impl FnOnce() + Send + 'static) {
        LONG.defer(work);
    }
}

impl Drop for LongPin {
    #[inline]
    fn drop(&mut self) {
        LONG.leave(self.0);
    }
}

/// A place that always holds an `Arc`.
#[derive(Debug)]
pub(crate) struct Cell<T: Send + Sync + 'static>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> Cell<T> {
    pub(crate) fn new(content: Arc<T>) -> Self {
        Cell(AtomicPtr::new(Arc::into_raw(content).cast_mut()))
    }

    /// The content.
    #[inline]
    pub(crate) fn load<'a>(&'a self, _pin: &'a Pin) -> &'a T {
        let pointer = self.0.load(Ordering::Acquire);
        // SAFETY: by 1 it points to a live T; by 2 and 3 that lives as long as the pin and the
        // borrow of the cell.
        unsafe { &*pointer }
    }

    /// The content, with a count of its own.
    pub(crate) fn share(&self, _pin: &Pin) -> Arc<T> {
        let pointer = self.0.load(Ordering::Acquire);
        // SAFETY: 1; by 2 the cell's own count keeps it alive while we are pinned.
        unsafe { Arc::increment_strong_count(pointer) };
        // SAFETY: 1, and the count that was just added is ours.
        unsafe { Arc::from_raw(pointer) }
    }

    /// Replaces the content. The old one is let go when nobody can still read it.
    pub(crate) fn store(&self, content: Arc<T>, _pin: &Pin) {
        let old = self.0.swap(Arc::into_raw(content).cast_mut(), Ordering::AcqRel);
        // SAFETY: 1, and the swap took the pointer out of the cell, so the count is ours.
        let old = unsafe { Arc::from_raw(old) };
        let_go(old);
    }
}

/// Lets a count go when everyone who is pinned now is done.
#[cfg(not(feature = "shuttle"))]
fn let_go<T: Send + Sync + 'static>(old: Arc<T>) {
    CELLS.defer(move || drop(old));
}

/// Epochs are no part of the explored program: they would drop what one run made while another
/// goes, or none. So what is replaced stays.
#[cfg(feature = "shuttle")]
fn let_go<T>(old: Arc<T>) {
    std::mem::forget(old);
}

impl<T: Send + Sync + 'static> Drop for Cell<T> {
    fn drop(&mut self) {
        let pointer = self.0.load(Ordering::Relaxed);
        // SAFETY: 1; nobody borrows a cell that is dropped, and its count is let go once, here.
        drop(unsafe { Arc::from_raw(pointer) });
    }
}

#[cfg(all(test, not(any(loom, feature = "shuttle"))))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[derive(Debug)]
    struct Noted(Arc<AtomicBool>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn content_outlives_its_readers_and_no_more() {
        let (first, second) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let cell = Cell::new(Arc::new(Noted(Arc::clone(&first))));
        let reader = pin();
        let seen = cell.load(&reader);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cell.store(Arc::new(Noted(Arc::clone(&second))), &pin());
                (0..1000).for_each(|_| drop(pin()));
            });
        });
        assert!(!seen.0.load(Ordering::SeqCst), "dropped under a reader");
        drop(reader);
        let mut turns = 0;
        while !first.load(Ordering::SeqCst) {
            // Other tests are pinned now and then.
            drop(pin());
            turns += 1;
            assert!(turns < 100_000_000, "never let go");
        }
        drop(cell);
        assert!(second.load(Ordering::SeqCst), "a cell lets its content go at once");
    }

    /// Readers beside a writer that replaces what they read: each content says when it was let go.
    #[test]
    fn nothing_is_let_go_while_it_is_read() {
        const ROUNDS: u64 = 100_000;
        static ALIVE: AtomicU64 = AtomicU64::new(0);
        struct Living(AtomicU64);
        impl Living {
            fn new(number: u64) -> Arc<Living> {
                ALIVE.fetch_add(1, Ordering::SeqCst);
                Arc::new(Living(AtomicU64::new(number)))
            }
        }
        impl Drop for Living {
            fn drop(&mut self) {
                self.0.store(u64::MAX, Ordering::SeqCst);
                ALIVE.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let cell = Cell::new(Living::new(0));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let outer = pin();
                        let seen = cell.load(&outer);
                        let number = seen.0.load(Ordering::Relaxed);
                        assert!((last..=ROUNDS).contains(&number), "{number} after {last}");
                        drop(pin());
                        std::hint::spin_loop();
                        assert_eq!(seen.0.load(Ordering::Relaxed), number, "let go under a reader");
                        last = number;
                    }
                });
            }
            (1..=ROUNDS).for_each(|number| cell.store(Living::new(number), &pin()));
            stop.store(true, Ordering::Relaxed);
        });
        let mut turns = 0;
        while ALIVE.load(Ordering::SeqCst) > 1 {
            drop(pin());
            turns += 1;
            assert!(turns < 100_000_000, "{} never let go", ALIVE.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn threads_that_end_leave_their_slots_to_others() {
        let slot = || std::ptr::from_ref(pin_long().0).addr();
        let one = |_| std::thread::scope(|scope| scope.spawn(slot).join().unwrap());
        let mut different: Vec<usize> = (0..100).map(one).collect();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() < 50, "{} slots for one thread at a time", different.len());
    }
}
