//! Locks: those of `parking_lot`, or of shuttle where it explores interleavings.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

#[cfg(shuttle)]
pub(crate) use explored::Mutex;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::MutexGuard;

#[cfg(shuttle)]
mod explored {
    use std::sync::PoisonError;

    /// Shuttle's lock with the face of `parking_lot`'s.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<shuttle::sync::MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}
