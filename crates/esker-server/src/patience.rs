//! How long a session waits for the rest of a request, or for a reply to be taken.
//!
//! Without a limit (`request_timeout` is zero) a slow client is let be, as by memcached: what it holds is nobody's
//! loss while there is memory for the others. Once memory is short, it has the default's time, from its last progress.

use crate::limits::BODY_STEP_BYTES;
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
    let mut limit = shared.limits.wait_timeout();
    let stops = shared.is_stopping();
    if stops {
        limit = limit.min(STOP_TIMEOUT);
    }
    let left = limit.saturating_sub(passed);
    if !left.is_zero() {
        return Ok(left);
    }
    let unlimited = shared.limits.request_timeout.is_zero();
    if unlimited && !stops && !shared.memory_is_short() {
        return Ok(PATIENCE_SLICE);
    }
    Err(IoErrorKind::TimedOut.into())
}

/// Since when a transfer has made no progress worth mentioning.
pub(crate) struct Progress {
    since: Duration,
    bytes: usize,
    /// A reply is sent to its end, if it is taken; what is not whole yet is given up when the server stops.
    sends: bool,
}

impl Progress {
    /// Of a request that arrives, from now.
    pub(crate) fn receiving(shared: &Shared) -> Progress {
        Progress { since: shared.clock.monotonic(), bytes: 0, sends: false }
    }

    /// Of replies that are sent, from now.
    pub(crate) fn sending(shared: &Shared) -> Progress {
        Progress { sends: true, ..Progress::receiving(shared) }
    }

    pub(crate) fn since(&self) -> Duration {
        self.since
    }

    /// `bytes` more were moved.
    pub(crate) fn add(&mut self, shared: &Shared, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= BODY_STEP_BYTES && (self.sends || !shared.is_stopping()) {
            self.bytes = 0;
            self.since = shared.clock.monotonic();
        }
    }
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
