//! Asks the processor to fetch memory that is about to be read.
//!
//! # Safety invariants
//! 1. A prefetch is a hint: it reads nothing that the program can see and faults on no address.

#![expect(unsafe_code, reason = "the prefetch instruction")]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Starts to fetch a value: as many cache lines as it has.
#[inline]
pub fn value<T: ?Sized>(value: &T) {
    lines(std::ptr::from_ref(value).addr(), size_of_val(value).saturating_sub(1));
}

/// Starts to fetch the cache lines of `bytes` from an address on, whether anything
/// is there or not. Does nothing on processors other than x86-64.
#[inline]
pub(crate) fn lines(address: usize, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (address / LINE..).take(bytes / LINE + 1) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let pointer = std::ptr::without_provenance(line.wrapping_mul(LINE));
        // SAFETY: 1; every x86-64 processor has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes);
}
