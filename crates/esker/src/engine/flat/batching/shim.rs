//! Locks and bells: the real ones, or shuttle's where it explores interleavings.

#[cfg(not(feature = "shuttle"))]
pub(super) use esker_trt::sync::Signal;
#[cfg(not(feature = "shuttle"))]
pub(super) use parking_lot::Mutex;

#[cfg(feature = "shuttle")]
pub(super) use esker_base::sync::Mutex;
#[cfg(feature = "shuttle")]
pub(super) use explored::Signal;

/// How long a thread looks for its result before it is blocked, in turns: about the time of a batch.
pub(super) const SPINS: u32 = if cfg!(feature = "shuttle") { 0 } else { 96 };

/// The same of a task that lets others run, in turns of its core.
pub(super) const TURNS: u32 = 24;

#[cfg(feature = "shuttle")]
mod explored {
    use super::Mutex;
    use shuttle::sync::Condvar;
    use std::sync::PoisonError;

    /// The run-time's bell for threads of shuttle.
    #[derive(Debug, Default)]
    pub(in super::super) struct Signal {
        rung: Mutex<bool>,
        changed: Condvar,
    }

    impl Signal {
        pub(in super::super) fn set(&self) {
            *self.rung.lock() = true;
            self.changed.notify_one();
        }

        pub(in super::super) fn is_set(&self) -> bool {
            *self.rung.lock()
        }

        pub(in super::super) fn wait(&self) {
            let mut rung = self.rung.lock();
            while !*rung {
                rung = self.changed.wait(rung).unwrap_or_else(PoisonError::into_inner);
            }
            *rung = false;
        }
    }
}
