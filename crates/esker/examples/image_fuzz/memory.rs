//! An allocator that counts: what each thread holds, and the most that it held.
//!
//! # Invariants
//! - U1: every call goes on to the allocator of the system with what it was given; a call that is refused returns null,
//!   which says that there is no memory.
//! - U2: counting allocates nothing and does not panic.
//!
//! # Concurrency
//! Each thread counts for itself: what another one frees is missing there. Runs share nothing.
#![expect(unsafe_code, reason = "an allocator is unsafe by its interface")]

use crate::watch;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// Bytes that a thread may hold: more is refused. No run needs a hundredth of it.
const HELD_MAX: i64 = 2 << 30;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// The allocator.
pub(crate) struct Counting;

/// What `work` returns, and the most bytes that this thread held meanwhile beyond what it held before.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = HELD.get();
    PEAK.set(before);
    let done = work();
    (done, u64::try_from(PEAK.get() - before).unwrap_or(0))
}

/// Counts what comes and goes; false if it is too much.
fn count(taken: usize, given: usize) -> bool {
    let as_bytes = |size: usize| i64::try_from(size).unwrap_or(i64::MAX / 2);
    let held = HELD.get().saturating_add(as_bytes(taken)).saturating_sub(as_bytes(given));
    // What was asked for counts, also if it is refused.
    PEAK.set(PEAK.get().max(held));
    if held > HELD_MAX && taken > given {
        watch::say_refused(taken);
        return false;
    }
    HELD.set(held);
    true
}

// SAFETY: U1, U2.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !count(layout.size(), 0) {
            return ptr::null_mut();
        }
        // SAFETY: the caller's promises are those that the system's allocator asks for (U1).
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !count(layout.size(), 0) {
            return ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !count(size, layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, size) }
    }
}
