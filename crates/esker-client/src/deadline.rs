//! A moment up to which several steps may take together.

use esker_base::clock::{Clock, SystemClock};
use std::io::{ErrorKind, Result};
use std::time::Duration;

/// A moment up to which several steps may take together. None of them begins a time of its own, however often it is
/// interrupted and however little of it comes at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    /// The moment `limit` from now.
    pub(crate) fn after(limit: Duration) -> Deadline {
        Deadline(SystemClock.monotonic().saturating_add(limit))
    }

    /// What is left of the time, more than nothing.
    ///
    /// # Errors
    /// `TimedOut` if nothing is.
    pub(crate) fn left(self) -> Result<Duration> {
        match self.0.saturating_sub(SystemClock.monotonic()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }

    /// When one of `count` steps that may each take as long has to end, the one that is next.
    pub(crate) fn share(self, count: usize) -> Result<Deadline> {
        let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        Ok(Deadline::after(self.left()? / count))
    }
}
