//! Shared pointers that are read without a lock and freed when nobody can read them any more.
//!
//! A [`Cell`] owns one count of an `Arc`. Readers pin the epoch (`crossbeam-epoch`) and borrow from the
//! cell; replacing the content lets the old count go only after all who were pinned are done.
//! Everything that borrows is bound by lifetimes to the pin and to the cell, so that the face of
//! this module is safe.
//!
//! # Safety invariants
//! 1. The pointer in a cell comes from `Arc::into_raw`, and the cell owns one strong count of it.
//! 2. That count is let go only after the pointer left the cell and every thread that was pinned
//!    then has unpinned, or when the cell itself is dropped, which nobody can borrow then.
//! 3. A [`Pin`] is made only by [`pin`], so that it pins the collector that 2 defers to.
//!
//! # Concurrency
//! Any thread may load and store at once; a load costs a pin (one fence) once per operation.

#![expect(unsafe_code, reason = "borrowing from an Arc that another thread may replace")]

use crossbeam_epoch::{Collector, Guard, LocalHandle};
use esker_base::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, LazyLock};

/// Proof that what this thread reads from cells stays.
#[derive(Debug)]
pub(crate) struct Pin(Guard);

/// Pins the epoch of this thread until the result is dropped.
#[inline]
pub(crate) fn pin() -> Pin {
    Pin(crossbeam_epoch::pin())
}

/// As a [`Pin`], of epochs of its own: what lasts, as a scan does, delays nobody who uses cells.
#[derive(Debug)]
pub(crate) struct LongPin(#[cfg_attr(shuttle, expect(dead_code, reason = "held only"))] Guard);

static LONG: LazyLock<Collector> = LazyLock::new(Collector::new);

thread_local! {
    static HANDLE: LocalHandle = LONG.register();
}

/// Pins the other epoch of this thread until the result is dropped.
#[inline]
pub(crate) fn pin_long() -> LongPin {
    let pin = HANDLE.try_with(LocalHandle::pin);
    // A thread that is ending has no handle any more.
    LongPin(pin.unwrap_or_else(|_| LONG.register().pin()))
}

impl LongPin {
    /// Runs `work` when everyone who is pinned so now is done, on any thread.
    #[cfg(not(shuttle))]
    pub(crate) fn defer(&self, work: impl FnOnce() + Send + 'static) {
        self.0.defer(work);
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
    pub(crate) fn store(&self, content: Arc<T>, pin: &Pin) {
        let old = self.0.swap(Arc::into_raw(content).cast_mut(), Ordering::AcqRel);
        // SAFETY: 1, and the swap took the pointer out of the cell, so the count is ours.
        let old = unsafe { Arc::from_raw(old) };
        let_go(old, pin);
    }
}

/// Lets a count go when everyone who is pinned now is done.
#[cfg(not(shuttle))]
fn let_go<T: Send + Sync + 'static>(old: Arc<T>, pin: &Pin) {
    // SAFETY: what is deferred owns all it touches, may run on any thread (T is Send and Sync) and at
    // any time (T is 'static). That it runs late enough is 2.
    unsafe { pin.0.defer_unchecked(move || drop(old)) };
    pin.0.flush();
}

/// The collector is no part of the explored program: it would drop what one run made while another
/// goes, or none. So what is replaced stays.
#[cfg(shuttle)]
fn let_go<T>(old: Arc<T>, _pin: &Pin) {
    std::mem::forget(old);
}

impl<T: Send + Sync + 'static> Drop for Cell<T> {
    fn drop(&mut self) {
        let pointer = self.0.load(Ordering::Relaxed);
        // SAFETY: 1; nobody borrows a cell that is dropped, and its count is let go once, here.
        drop(unsafe { Arc::from_raw(pointer) });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

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
            pin().0.flush();
            turns += 1;
            assert!(turns < 10_000_000, "never let go");
        }
        drop(cell);
        assert!(second.load(Ordering::SeqCst), "a cell lets its content go at once");
    }
}
