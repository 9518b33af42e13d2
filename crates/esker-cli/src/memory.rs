//! Memory of the program: the allocator, and how soon it gives back what is free.
//!
//! Stores keep what one thread allocated until another one drops it: where that takes a lock, they wait for each other.
//!
//! # Safety invariants
//! - S1: the call stores a number in a table of the allocator's, within its bounds or not at all; it takes no pointer. Who
//!   reads the number meanwhile reads a word, the one before or this one.
#![expect(unsafe_code, reason = "an option of the allocator is set by a call of C")]

use std::ffi::{c_int, c_long};

// A fuzzer looks at what the system's allocator does.
#[cfg(not(fuzzing))]
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay`.
const PURGE_DELAY: c_int = 15;
/// Milliseconds after which pages that are free go back. A second, which is usual, keeps half as much again as is used: sizes of what
/// stores keep change with what they are asked. At 10 pages go and come back all
/// the time: YCSB-A of `flex` was a tenth slower.
const PURGE_DELAY_MS: c_long = 50;

/// Sets what is not as usual, unless the environment says so (`MIMALLOC_PURGE_DELAY`).
pub(crate) fn set_up() {
    // SAFETY: S1.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        if std::env::var_os("MIMALLOC_PURGE_DELAY").is_some() {
            return;
        }
        // SAFETY: S1, and the same of a call that reads it.
        let delay = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), 1000, "what is usual of this option, and of no other");
        set_up();
        assert_eq!(delay(), PURGE_DELAY_MS);
    }
}
