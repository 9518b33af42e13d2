//! Memory of a table: zeroed words, in huge pages where the kernel has them.
//!
//! A lookup touches one random place. With pages of 4 KiB its address translation misses nearly as
//! often, and costs nearly as much, as the place itself; with pages of 2 MiB it hits. Large tables are
//! therefore mapped at a multiple of that, with the advice to use such pages; small ones come from the
//! allocator.
//!
//! # Safety invariants
//! 1. `Mapped` owns the mapping of `bytes` bytes at `start`, private, readable and writable, zeroed by
//!    the kernel, from `map` until it is dropped. All bit patterns are valid words.
//! 2. A part of a mapping of our own, to which nothing points, may be unmapped.
//!
//! # Failure
//! Where nothing can be mapped, the allocator is asked, which ends the process if it has nothing either.

#![expect(unsafe_code, reason = "memory mapped at an alignment")]

use esker_base::sync::atomic::AtomicU64;

/// Zeroed words.
#[derive(Debug)]
pub(crate) enum Words {
    Boxed(Box<[AtomicU64]>),
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    Mapped(mapped::Mapped),
}

impl Default for Words {
    fn default() -> Self {
        Words::Boxed(Box::default())
    }
}

impl std::ops::Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        match self {
            Words::Boxed(words) => words,
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            Words::Mapped(words) => words.words(),
        }
    }
}

/// `length` words of 0.
pub(crate) fn zeroed(length: usize) -> Words {
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    if let Some(mapped) = mapped::Mapped::new(length) {
        return Words::Mapped(mapped);
    }
    #[cfg(not(any(loom, shuttle)))]
    return Words::Boxed(bytemuck::allocation::zeroed_slice_box(length));
    #[cfg(any(loom, shuttle))]
    return Words::Boxed((0..length).map(|_| AtomicU64::new(0)).collect());
}

#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
mod mapped {
    use super::AtomicU64;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ffi::c_void;
    use std::ptr::NonNull;

    const HUGE_PAGE: usize = 2 << 20;
    const PAGE: usize = 4096;

    /// A mapping.
    #[derive(Debug)]
    pub(crate) struct Mapped {
        start: NonNull<AtomicU64>,
        length: usize,
        bytes: usize,
    }

    // SAFETY: by 1 nobody else has the memory, and shared access is to atomics only.
    unsafe impl Send for Mapped {}
    // SAFETY: as above.
    unsafe impl Sync for Mapped {}

    impl Mapped {
        /// `None` if that is less than a huge page, or cannot be had.
        pub(super) fn new(length: usize) -> Option<Mapped> {
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
            let mapped = Mapped { start: NonNull::new(start.cast())?, length, bytes };
            unmap(map, before);
            unmap(start.wrapping_byte_add(bytes), HUGE_PAGE - before);
            // SAFETY: 1; this advice changes no contents. Without huge pages all else works.
            let _ = unsafe { madvise(start, bytes / HUGE_PAGE * HUGE_PAGE, Advice::LinuxHugepage) };
            Some(mapped)
        }

        #[inline]
        pub(super) fn words(&self) -> &[AtomicU64] {
            // SAFETY: 1: `length` aligned, initialized words that live as long as self.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            unmap(self.start.as_ptr().cast(), self.bytes);
        }
    }

    /// Unmaps a part of a mapping of our own that nobody uses any more.
    fn unmap(start: *mut c_void, bytes: usize) {
        if bytes > 0 {
            // SAFETY: 2. A failure leaves the memory mapped and unused.
            let _ = unsafe { munmap(start, bytes) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use esker_base::sync::atomic::Ordering;

    #[test]
    fn words_are_zero_and_keep_what_is_written() {
        for length in [0, 1, 100, (2 << 20) / 8 - 1, (2 << 20) / 8, (3 << 20) / 8 + 32] {
            let words = zeroed(length);
            assert_eq!(words.len(), length);
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
            words.iter().zip(1..).for_each(|(word, n)| word.store(n, Ordering::Relaxed));
            assert!(words.iter().zip(1..).all(|(word, n)| word.load(Ordering::Relaxed) == n));
        }
    }
}
