//! Locks: those of `parking_lot`, or of shuttle where it explores interleavings.

use esker_base::sync::atomic::{AtomicBool, Ordering};

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::Mutex;

#[cfg(feature = "shuttle")]
pub(crate) use esker_base::sync::Mutex;

/// Orders what was read before it before what is read after it. Together with [`release`] it makes
/// a changed version visible to whoever saw what was written after the change.
#[inline]
pub(crate) fn acquire() {
    // Shuttle has no fences and orders everything.
    #[cfg(not(feature = "shuttle"))]
    esker_base::sync::atomic::fence(esker_base::sync::atomic::Ordering::Acquire);
}

/// Orders what was written before it before what is written after it.
#[inline]
pub(crate) fn release() {
    #[cfg(not(feature = "shuttle"))]
    esker_base::sync::atomic::fence(esker_base::sync::atomic::Ordering::Release);
}

/// Waiting for a lock of one bit, which is held for some hundred instructions: unless its holder
/// was suspended.
#[derive(Debug, Default)]
pub(crate) struct Wait(u32);

impl Wait {
    const SPINS: u32 = if cfg!(feature = "shuttle") { 0 } else { 128 };

    #[cold]
    pub(crate) fn turn(&mut self) {
        if self.0 < Self::SPINS {
            self.0 += 1;
            esker_base::sync::hint::spin_loop();
        } else {
            esker_base::sync::thread::yield_now();
        }
    }
}

/// A lock of one bit, for what takes some hundred instructions and is rarely contended: a read-modify-write
/// to take it, none to give it back.
#[derive(Debug, Default)]
pub(crate) struct Latch(AtomicBool);

impl Latch {
    #[inline]
    pub(crate) fn lock(&self) -> Latched<'_> {
        let mut wait = Wait::default();
        while self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.load(Ordering::Relaxed) {
                wait.turn();
            }
        }
        Latched(self)
    }
}

/// The lock is held until this is dropped.
#[derive(Debug)]
pub(crate) struct Latched<'a>(&'a Latch);

impl Drop for Latched<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}
