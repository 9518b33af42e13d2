//! How long a session waits for the rest of a request, or for a reply to be taken.

use crate::shared::Shared;
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};
use std::time::Duration;

/// How long a send or the rest of a request waits before it looks whether the server stops.
const PATIENCE_SLICE: Duration = Duration::from_millis(200);
/// What `request_timeout` shrinks to once the server stops.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// From when on a wait counts; by default from where it begins: hardly any does, so the clock is not asked before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Since(Option<Duration>);

impl Since {
    /// From a time on the server's monotonic clock.
    pub(crate) fn at(time: Duration) -> Since {
        Since(Some(time))
    }
}

/// What is left of the time for a request, from `since`.
pub(crate) fn remaining(shared: &Shared, since: Duration) -> IoResult<Duration> {
    left_after(shared, shared.clock.monotonic().saturating_sub(since))
}

fn left_after(shared: &Shared, passed: Duration) -> IoResult<Duration> {
    let mut limit = shared.limits.request_timeout;
    if shared.is_stopping() {
        limit = limit.min(STOP_TIMEOUT);
    }
    let left = limit.saturating_sub(passed);
    if left.is_zero() { Err(IoErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Runs `call`, which waits at most as long as it is told, until it succeeds or the time for a
/// request, from `since`, is over; a stop of the server shortens it under way.
pub(crate) fn patiently<T>(
    shared: &Shared,
    since: &mut Since,
    mut call: impl FnMut(Duration) -> IoResult<T>,
) -> IoResult<T> {
    loop {
        let left = match since.0 {
            Some(since) => remaining(shared, since)?,
            None => left_after(shared, Duration::ZERO)?,
        };
        let slice = left.min(PATIENCE_SLICE);
        match call(slice) {
            Err(error) if error.kind() == IoErrorKind::TimedOut => {
                since.0.get_or_insert_with(|| shared.clock.monotonic().saturating_sub(slice));
            }
            result => return result,
        }
    }
}
