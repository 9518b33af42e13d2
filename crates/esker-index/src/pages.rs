//! Memory of a table: zeroed words, in huge pages where the kernel has them.
//!
//! A lookup touches one random place. With pages of 4 KiB its address translation misses nearly as
//! often, and costs nearly as much, as the place itself; with pages of 2 MiB it hits. Large tables are
//! therefore mapped at a multiple of that, with the advice to use such pages; small ones come from the
//! allocator.
//!
//! # Safety invariants
//! 1. `Words` owns `length` words at `start`, aligned to cache lines, which are zeroed when they come
//!    and stay until it is dropped: in a mapping of `mapped` bytes of its own, private, readable and
//!    writable, or if `mapped` is 0 in a box. All bit patterns are valid words.
//! 2. A part of a mapping of our own, to which nothing points, may be unmapped.
//!
//! # Failure
//! Where nothing can be mapped, the allocator is asked, which ends the process if it has nothing either.

#![cfg_attr(
    not(any(loom, feature = "shuttle")),
    expect(unsafe_code, reason = "memory mapped at an alignment")
)]

use esker_base::sync::atomic::AtomicU64;

#[cfg(any(loom, feature = "shuttle"))]
pub(crate) type Words = Box<[AtomicU64]>;
#[cfg(not(any(loom, feature = "shuttle")))]
pub(crate) use words::Words;

/// `length` words of 0.
pub(crate) fn zeroed(length: usize) -> Words {
    #[cfg(not(any(loom, feature = "shuttle")))]
    return Words::new(length);
    #[cfg(any(loom, feature = "shuttle"))]
    return (0..length).map(|_| AtomicU64::new(0)).collect();
}

#[cfg(not(any(loom, feature = "shuttle")))]
mod words {
    use super::AtomicU64;
    use std::ptr::NonNull;

    const LINE_WORDS: usize = 8;

    /// A cache line.
    #[derive(Debug)]
    #[repr(C, align(64))]
    struct Line([AtomicU64; LINE_WORDS]);

    // SAFETY: atomics of zeros, which are valid.
    unsafe impl bytemuck::Zeroable for Line {}

    /// Zeroed words, from the start of a cache line on.
    #[derive(Debug)]
    pub(crate) struct Words {
        start: NonNull<AtomicU64>,
        length: usize,
        /// Bytes of the mapping; 0 if there is none.
        mapped: usize,
    }

    // SAFETY: by 1 nobody else has the memory, and shared access is to atomics only.
    unsafe impl Send for Words {}
    // SAFETY: as above.
    unsafe impl Sync for Words {}

    impl Words {
        pub(super) fn new(length: usize) -> Words {
            if let Some((start, mapped)) = super::mapped::map(length) {
                return Words { start, length, mapped };
            }
            let lines = length.div_ceil(LINE_WORDS);
            let lines: Box<[Line]> = bytemuck::allocation::zeroed_slice_box(lines);
            Words { start: NonNull::from(Box::leak(lines)).cast(), length, mapped: 0 }
        }
    }

    impl Default for Words {
        fn default() -> Self {
            Words::new(0)
        }
    }

    impl std::ops::Deref for Words {
        type Target = [AtomicU64];

        #[inline]
        fn deref(&self) -> &[AtomicU64] {
            // SAFETY: 1: `length` aligned, initialized words that live as long as self.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
        }
    }

    impl Drop for Words {
        fn drop(&mut self) {
            if self.mapped > 0 {
                super::mapped::unmap(self.start.as_ptr().cast(), self.mapped);
                return;
            }
            let lines = self.length.div_ceil(LINE_WORDS);
            let lines = NonNull::slice_from_raw_parts(self.start.cast::<Line>(), lines);
            // SAFETY: 1: what is not mapped was leaked from such a box, and goes once, here.
            drop(unsafe { Box::from_raw(lines.as_ptr()) });
        }
    }
}

/// Elsewhere nothing is mapped.
#[cfg(not(any(target_os = "linux", loom, feature = "shuttle")))]
mod mapped {
    use super::AtomicU64;
    use std::ffi::c_void;
    use std::ptr::NonNull;

    pub(super) fn map(_length: usize) -> Option<(NonNull<AtomicU64>, usize)> {
        None
    }

    pub(super) fn unmap(_start: *mut c_void, _bytes: usize) {}
}

#[cfg(all(target_os = "linux", not(any(loom, feature = "shuttle"))))]
mod mapped {
    use super::AtomicU64;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ffi::c_void;
    use std::ptr::NonNull;

    const HUGE_PAGE: usize = 2 << 20;
    /// A multiple of what the kernel maps at once, on every system.
    const PAGE: usize = 64 << 10;

    /// A mapping for so many words, and its bytes. `None` if that is less than a huge page, or cannot
    /// be had.
    pub(super) fn map(length: usize) -> Option<(NonNull<AtomicU64>, usize)> {
        let bytes = length.checked_mul(size_of::<u64>())?.checked_next_multiple_of(PAGE)?;
        if bytes < HUGE_PAGE {
            return None;
        }
        let whole = bytes.checked_add(HUGE_PAGE)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing of ours.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, access, flags) }.ok()?;
        let before = map.addr().next_multiple_of(HUGE_PAGE) - map.addr();
        let start = map.wrapping_byte_add(before);
        unmap(map, before);
        unmap(start.wrapping_byte_add(bytes), HUGE_PAGE - before);
        // SAFETY: 1; this advice changes no contents. Without huge pages all else works.
        let _ = unsafe { madvise(start, bytes / HUGE_PAGE * HUGE_PAGE, Advice::LinuxHugepage) };
        Some((NonNull::new(start.cast())?, bytes))
    }

    /// Unmaps a part of a mapping of our own that nobody uses any more.
    pub(super) fn unmap(start: *mut c_void, bytes: usize) {
        if bytes > 0 {
            // SAFETY: 2. A failure leaves the memory mapped and unused.
            let _ = unsafe { munmap(start, bytes) };
        }
    }
}

#[cfg(all(test, not(any(loom, feature = "shuttle"))))]
mod tests {
    use super::*;
    use esker_base::sync::atomic::Ordering;

    #[test]
    fn words_are_zero_begin_with_a_line_and_keep_what_is_written() {
        for length in [0, 1, 100, (2 << 20) / 8 - 1, (2 << 20) / 8, (3 << 20) / 8 + 32] {
            let words = zeroed(length);
            assert_eq!(words.len(), length);
            assert!(words.as_ptr().addr().is_multiple_of(64));
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
            words.iter().zip(1..).for_each(|(word, n)| word.store(n, Ordering::Relaxed));
            assert!(words.iter().zip(1..).all(|(word, n)| word.load(Ordering::Relaxed) == n));
        }
    }
}
