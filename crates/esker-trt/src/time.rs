//! Time as the calling task sees it: the machine's, or a simulation's.

use crate::context;
use crate::task::{cancelled_error, is_cancelled};
use crate::wake;
use esker_base::Result;
use esker_base::clock::{Clock, SystemClock};
use std::time::Duration;

/// Monotonic time: of the simulation inside one, else of the machine.
pub(crate) fn now() -> Duration {
    context::with(|core| Duration::from_nanos(core.now_ns()))
        .unwrap_or_else(|| SystemClock.monotonic())
}

/// Suspends the task, or blocks the thread, for `time`. A shutdown ends it early: a task that
/// sleeps in a loop looks at [`is_cancelled`], or uses [`sleep_cancellable`].
pub fn sleep(time: Duration) {
    if sleep_cancellable(time).is_err() {
        // A loop that only sleeps must not keep its core from the others.
        crate::yield_now();
    }
}

/// As [`sleep`], but says when a shutdown ended it early.
///
/// # Errors
/// `Cancelled`.
pub fn sleep_cancellable(time: Duration) -> Result<()> {
    let end = now().saturating_add(time);
    loop {
        let left = end.saturating_sub(now());
        if left.is_zero() {
            return Ok(());
        }
        if is_cancelled() {
            return Err(cancelled_error("sleep"));
        }
        wake::park_for("time", left);
    }
}
