//! How long a session waits for the rest of a request, or for a reply to be taken.

use crate::shared::Shared;
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};
use std::time::Duration;

/// How long a send or the rest of a request waits before it looks whether the server stops.
const PATIENCE_SLICE: Duration = Duration::from_millis(200);
/// What `request_timeout` shrinks to once the server stops.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// What is left of the time for a request, from `since`.
pub(crate) fn remaining(shared: &Shared, since: Duration) -> IoResult<Duration> {
    let passed = shared.clock.monotonic().saturating_sub(since);
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
    since: Duration,
    mut call: impl FnMut(Duration) -> IoResult<T>,
) -> IoResult<T> {
    loop {
        let left = remaining(shared, since)?;
        match call(left.min(PATIENCE_SLICE)) {
            Err(error) if error.kind() == IoErrorKind::TimedOut => {}
            result => return result,
        }
    }
}
