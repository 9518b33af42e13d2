//! How long a session waits for the rest of a request, or for a reply to be taken.
//!
//! Without a limit (`request_timeout` is zero) a slow client is let be, as by memcached: what it holds is nobody's
//! loss while there is memory for the others. Once memory is short, it has the default's time, from its last progress.
//! Who takes a reply then has to keep pace besides: values are held until they are sent, so that a few readers that are
//! just fast enough would hold the memory of all for hours.

use crate::limits::BODY_STEP_BYTES;
use crate::shared::Shared;
use esker_base::units::MIB;
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};
use std::time::Duration;

/// What a client takes of a reply in a second on an average, beyond the time without progress, while memory is short.
const PACE_BYTES: u64 = MIB;
/// How long a send or the rest of a request waits before it looks whether the server stops.
const PATIENCE_SLICE: Duration = Duration::from_millis(200);
/// What `request_timeout` shrinks to once the server stops.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// What is left of the time for a request with this progress.
pub(crate) fn remaining(shared: &Shared, progress: &Progress) -> IoResult<Duration> {
    let now = shared.clock.monotonic();
    let passed = now.saturating_sub(progress.since);
    let idle = progress.idle_limit(shared);
    let most = progress.end.map_or(Duration::MAX, |end| end.saturating_sub(now));
    if most.is_zero()
        || idle.is_some_and(|idle| passed >= idle)
        || progress.is_behind(shared) && shared.budget.is_short()
    {
        return Err(IoErrorKind::TimedOut.into());
    }
    let mut limit = shared.limits.wait_timeout();
    let stops = shared.is_stopping();
    if stops {
        limit = limit.min(STOP_TIMEOUT);
    }
    let left = limit.min(idle.unwrap_or(limit)).saturating_sub(passed);
    if !left.is_zero() {
        return Ok(left.min(most));
    }
    let unlimited = progress.streams || shared.limits.request_timeout.is_zero();
    if unlimited && !stops && !shared.memory_is_short() {
        return Ok(PATIENCE_SLICE.min(most));
    }
    Err(IoErrorKind::TimedOut.into())
}

/// When a client that begins a session now has to have said who it is, or what it speaks, by the monotonic clock, whatever it says
/// or does not take: else strangers would hold all places.
pub(crate) fn until_admitted(shared: &Shared) -> Duration {
    shared.clock.monotonic().saturating_add(shared.limits.wait_timeout())
}

/// How long a session waits for something to come: as long as a connection may be `idle`, if there is a limit, and until then
/// for one who has `to_say` who it is. `None`: for ever.
pub(crate) fn patience(
    shared: &Shared,
    idle: Duration,
    to_say: Option<Duration>,
) -> Option<Duration> {
    let idle = (!idle.is_zero()).then_some(idle);
    let left = to_say.map(|until| until.saturating_sub(shared.clock.monotonic()));
    idle.into_iter().chain(left).min()
}

/// Since when a transfer has made no progress worth mentioning.
pub(crate) struct Progress {
    since: Duration,
    bytes: usize,
    /// When it began, and what was moved since.
    begun: Duration,
    moved: u64,
    /// When it is given up, whatever it has come to.
    end: Option<Duration>,
    /// A reply is sent to its end, if it is taken; what is not whole yet is given up when the server stops.
    sends: bool,
    /// Of a stream that holds no more than it was given: nobody is hurried while there is memory.
    streams: bool,
    /// A line: who never ends one is as idle as who never begins one.
    is_line: bool,
}

impl Progress {
    /// Of a request that arrives, from now.
    pub(crate) fn receiving(shared: &Shared) -> Progress {
        let now = shared.clock.monotonic();
        let (sends, streams, is_line) = (false, false, false);
        Progress { since: now, bytes: 0, begun: now, moved: 0, end: None, sends, streams, is_line }
    }

    /// Of the line of a request that arrives, from now.
    pub(crate) fn receiving_line(shared: &Shared) -> Progress {
        Progress { is_line: true, ..Progress::receiving(shared) }
    }

    /// Of replies that are sent, from now.
    pub(crate) fn sending(shared: &Shared) -> Progress {
        Progress { sends: true, ..Progress::receiving(shared) }
    }

    /// Of lines for a watcher that are sent, from now.
    pub(crate) fn streaming(shared: &Shared) -> Progress {
        Progress { streams: true, ..Progress::sending(shared) }
    }

    /// Goes on now, after a rest since `since` for which the client has not to answer.
    pub(crate) fn pass_over(&mut self, shared: &Shared, since: Duration) {
        let rest = shared.clock.monotonic().saturating_sub(since);
        self.since = self.since.saturating_add(rest);
        self.begun = self.begun.saturating_add(rest);
    }

    /// The same, to this `end`, if there is one.
    pub(crate) fn until(self, end: Option<Duration>) -> Progress {
        Progress { end, ..self }
    }

    /// A line takes no longer than a connection may be idle, where there is no other limit (as in memcached).
    fn idle_limit(&self, shared: &Shared) -> Option<Duration> {
        let idle = shared.limits.idle_timeout;
        let limits = self.is_line && shared.limits.request_timeout.is_zero() && !idle.is_zero();
        limits.then_some(idle)
    }

    /// Whether it took longer than that.
    pub(crate) fn is_idle(&self, shared: &Shared) -> bool {
        let passed = shared.clock.monotonic().saturating_sub(self.since);
        self.idle_limit(shared).is_some_and(|idle| passed >= idle)
    }

    /// Whether a reply is taken more slowly than it has to be while memory is short.
    fn is_behind(&self, shared: &Shared) -> bool {
        let passed = shared.clock.monotonic().saturating_sub(self.begun);
        let pace = Duration::from_micros(self.moved.saturating_mul(1_000_000) / PACE_BYTES);
        self.sends && passed >= shared.limits.wait_timeout().saturating_add(pace)
    }

    /// `bytes` more were moved.
    pub(crate) fn add(&mut self, shared: &Shared, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes as u64);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= BODY_STEP_BYTES && (self.sends || !shared.is_stopping()) {
            self.bytes = 0;
            self.since = shared.clock.monotonic();
        }
    }
}

/// Runs `call`, which waits at most as long as it is told, until it succeeds or the time for a
/// request with this progress is over; a stop of the server shortens it under way.
pub(crate) fn patiently<T>(
    shared: &Shared,
    progress: &Progress,
    mut call: impl FnMut(Duration) -> IoResult<T>,
) -> IoResult<T> {
    loop {
        let left = remaining(shared, progress)?;
        match call(left.min(PATIENCE_SLICE)) {
            Err(error) if error.kind() == IoErrorKind::TimedOut => {}
            result => return result,
        }
    }
}
