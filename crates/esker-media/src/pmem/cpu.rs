//! Instructions that move cache lines to media, chosen once from what the processor has.
//!
//! # Safety invariants
//! - S1: a line is written back only through an address inside a live mapping; the instructions
//!   change no memory that the program can see.
//! - S2: an instruction is executed only if CPUID announced it.
#![expect(unsafe_code, reason = "cache instructions have no safe form")]

use std::sync::OnceLock;

/// How a cache line is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushInstruction {
    /// Written back, kept in the cache, unordered until a fence.
    Clwb,
    /// Written back, dropped from the cache, unordered until a fence.
    Clflushopt,
    /// Written back, dropped from the cache, one after another.
    Clflush,
    /// This build knows none: no mapping here is durable without `msync`.
    None,
}

impl FlushInstruction {
    /// The best that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        static FOUND: OnceLock<FlushInstruction> = OnceLock::new();
        *FOUND.get_or_init(detect)
    }

    /// Name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FlushInstruction::Clwb => "clwb",
            FlushInstruction::Clflushopt => "clflushopt",
            FlushInstruction::Clflush => "clflush",
            FlushInstruction::None => "no cache instruction",
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::FlushInstruction;
    use std::arch::asm;
    use std::arch::x86_64::{
        __cpuid, __cpuid_count, _MM_HINT_T0, _mm_clflush, _mm_prefetch, _mm_sfence, _mm_stream_si64,
    };

    pub(super) fn detect() -> FlushInstruction {
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        if __cpuid(0).eax < 7 {
            return FlushInstruction::Clflush;
        }
        let features = __cpuid_count(7, 0).ebx;
        if features & CLWB != 0 {
            FlushInstruction::Clwb
        } else if features & CLFLUSHOPT != 0 {
            FlushInstruction::Clflushopt
        } else {
            FlushInstruction::Clflush
        }
    }

    #[inline]
    pub(in super::super) fn write_back(instruction: FlushInstruction, line: *const u8) {
        match instruction {
            FlushInstruction::Clwb => {
                // SAFETY: announced (S2), inside a mapping (S1).
                unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) }
            }
            FlushInstruction::Clflushopt => {
                // SAFETY: announced (S2), inside a mapping (S1).
                unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) }
            }
            FlushInstruction::Clflush | FlushInstruction::None => {
                // SAFETY: part of every x86-64 processor, inside a mapping (S1).
                unsafe { _mm_clflush(line) }
            }
        }
    }

    #[inline]
    pub(in super::super) fn prefetch(line: *const u8) {
        // SAFETY: a hint: nothing is read that the program can see, and no address is refused.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }

    pub(in super::super) fn fence() {
        // SAFETY: part of every x86-64 processor; orders stores and changes nothing.
        unsafe { _mm_sfence() }
    }

    /// # Safety
    /// - `to` is aligned to 8 and inside a live mapping that may be written.
    pub(in super::super) unsafe fn stream(to: *mut u64, value: u64) {
        // SAFETY: the caller's promise.
        unsafe { _mm_stream_si64(to.cast::<i64>(), value.cast_signed()) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod portable {
    use super::FlushInstruction;
    use std::sync::atomic::{AtomicU64, Ordering, fence as atomic_fence};

    pub(super) fn detect() -> FlushInstruction {
        FlushInstruction::None
    }

    #[inline]
    pub(in super::super) fn write_back(_instruction: FlushInstruction, _line: *const u8) {}

    #[inline]
    pub(in super::super) fn prefetch(_line: *const u8) {}

    pub(in super::super) fn fence() {
        atomic_fence(Ordering::SeqCst);
    }

    /// # Safety
    /// - `to` is aligned to 8 and inside a live mapping that may be written.
    pub(in super::super) unsafe fn stream(to: *mut u64, value: u64) {
        // SAFETY: the caller's promise.
        let word = unsafe { AtomicU64::from_ptr(to) };
        word.store(value, Ordering::Relaxed);
    }
}

#[cfg(not(target_arch = "x86_64"))]
use portable as arch;
#[cfg(target_arch = "x86_64")]
use x86 as arch;

use arch::detect;
pub(super) use arch::{fence, prefetch, stream, write_back};
