//! One connection: requests in, replies out, in order.
//!
//! The session parses what it received into units (`execute`), runs as many of them at once as the
//! protocol and the limits allow (a wave), and sends the replies of a whole batch in one write. So
//! pipelined `set`s share one group commit of the store, and pipelined `get`s overlap their I/O.
//!
//! # Invariants
//! - N1: replies leave in the order of the requests.
//! - N2: in one wave no unit writes a key that another unit reads or writes: requests of one
//!   connection on one key take effect in their order.
//! - N3: no memory is held because of a number that a client named: buffers grow by what arrived,
//!   each step charged to the budget.
//! - N4: the session never waits for the budget while it holds replies (B2).
//! - N5: a data block is never parsed as a command, unless the client declared it too short, which
//!   no server can tell from the next command (memcached resumes behind the declared length, too).
//!
//! `plan` makes units of requests, `wave` runs them, `reply` writes what they answer, `alone` has the
//! requests that are no units, `dump` those that list items, `watch` the stream of what others do,
//! `transfer` the bytes of the connection, `auth` what comes before the
//! first command where clients must say who they are.
//!
//! # Concurrency
//! One task of one core; its units run as tasks of the same core. A client may send for ever what waits for
//! nothing: each unit counts as work (`esker_trt::work`), as transfers do, so that the core goes round.
//!
//! # Failure
//! An error of the connection ends the session. Requests that were whole when the connection broke
//! may have taken effect; a request that was not never has.

mod alone;
mod auth;
mod dump;
mod plan;
mod reply;
mod transfer;
mod watch;
mod wave;

#[cfg(test)]
mod tests;

use crate::budget::Share;
use crate::counters::{Counter, Shard};
use crate::execute::{Ground, Unit};
use crate::guests::{Doing, Stay};
use crate::limits::{FLUSH_BYTES, UNCHARGED_BYTES_MAX};
use crate::output::Output;
use crate::patience::{Progress, until_admitted};
use crate::protocol::{CRLF, Parser, Request, Span};
use crate::receive::Received;
use crate::shared::Shared;
use crate::transport::{LINGER, Transport};
use crate::watch::CloseReason;
use std::collections::VecDeque;
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};
use std::sync::Arc;
use std::time::Duration;

/// Length of the end of line behind a data block.
const CRLF_BYTES: usize = CRLF.len();
/// Who ended a connection, if it did not break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Client,
    /// The server, because the client asked for it.
    Quit,
    /// The server, because of what the client said.
    Refused,
    /// The server, which stops, or is to.
    Shutdown,
    /// The server, after a silence between two requests.
    Silence,
}

/// Why watchers hear that a connection ended.
fn close_reason(ended: &IoResult<End>) -> CloseReason {
    match ended {
        Ok(End::Client | End::Quit) => CloseReason::Normal,
        Ok(End::Silence) => CloseReason::IdleTimeout,
        Ok(End::Shutdown) => CloseReason::Shutdown,
        Ok(End::Refused) => CloseReason::Error,
        Err(error) => match error.kind() {
            // The client has closed amid a data block, or the run-time stops.
            IoErrorKind::UnexpectedEof => CloseReason::Normal,
            IoErrorKind::Interrupted => CloseReason::Shutdown,
            _ => CloseReason::Error,
        },
    }
}

/// A `get` line whose keys are not all units yet.
#[derive(Clone, Copy)]
struct Listing {
    keys: Span,
    with_cas: bool,
    exptime: Option<i64>,
    request: u64,
}

/// Why planning stopped.
enum Pause {
    /// The wave is full, or the next unit does not fit in.
    Run,
    /// No whole request is left in the receive buffer.
    Receive,
    /// The next unit needs memory that is not free.
    Starve,
    /// This request goes alone, after the wave.
    Alone(Request),
    /// The client has to go.
    Close,
}

/// One connection and what it is doing.
pub(crate) struct Session<T> {
    shared: Arc<Shared>,
    core: usize,
    connection: T,
    received: Received,
    parser: Parser,
    output: Output,
    wave: Vec<Unit>,
    /// Units that wait for a place in a wave: the first has been refused one, or they were just parsed.
    ahead: VecDeque<Unit>,
    /// The request behind them, if it goes alone.
    alone: Option<Request>,
    listing: Option<Listing>,
    requests: u64,
    /// Number of a request whose reply has ended early, in an error.
    broken: Option<u64>,
    /// Memory for values that the wave's units have.
    wave_bytes: u64,
    share: Share,
    /// What of it counts as a data block: the longer part of a long line.
    long_line: Share,
    /// Memory for values that is kept between requests, and how much that may be.
    pocket: Option<Share>,
    pocket_bytes: u64,
    /// Of the request that came in part.
    partial: Option<Progress>,
    /// Whether the receive buffer is full of it, without memory to grow.
    crowded: bool,
    busy: bool,
    /// Until when the client has to have said who it is; it may give commands if `None`.
    to_say: Option<Duration>,
    /// Says who is there; nobody in tests of sessions alone.
    stay: Option<Stay>,
}

impl<T: Transport> Session<T> {
    /// A session of `connection` on `core`; `share` is for its receive buffer.
    pub(crate) fn new(shared: Arc<Shared>, core: usize, connection: T, share: Share) -> Self {
        let to_say = shared.auth.is_some().then(|| until_admitted(&shared));
        let pocket_bytes = shared.limits.pocket_bytes(shared.tls.is_some());
        let long_line = shared.bodies.nothing();
        Session {
            pocket: None,
            pocket_bytes,
            shared,
            core,
            connection,
            received: Received::new(),
            parser: Parser::new(),
            output: Output::default(),
            wave: Vec::new(),
            ahead: VecDeque::new(),
            alone: None,
            listing: None,
            requests: 0,
            broken: None,
            wave_bytes: 0,
            share,
            long_line,
            partial: None,
            crowded: false,
            busy: false,
            to_say,
            stay: None,
        }
    }

    /// The same session, of somebody who is known.
    pub(crate) fn of(mut self, stay: Option<Stay>) -> Self {
        self.stay = stay;
        self
    }

    /// Serves the connection until either side ends it.
    pub(crate) fn run(mut self) {
        let ended = self.serve();
        self.rest();
        if let Some(stay) = self.stay.take() {
            stay.end(close_reason(&ended));
        }
        match ended {
            Ok(End::Client) => {}
            Ok(End::Quit | End::Refused | End::Shutdown) => self.connection.linger(LINGER),
            Ok(End::Silence) => {
                self.count(Counter::IdleKicks, 1);
            }
            Err(error) => {
                if error.kind() == IoErrorKind::TimedOut {
                    self.count(Counter::RequestTimeouts, 1);
                }
                tracing::debug!("connection ended: {error}");
            }
        }
    }

    fn serve(&mut self) -> IoResult<End> {
        loop {
            match self.plan() {
                Pause::Run => self.run_wave(),
                Pause::Starve => {
                    self.flush()?;
                    self.pocket = None;
                    if let Some(unit) = self.ahead.pop_front() {
                        self.endow_waiting(unit);
                    }
                }
                Pause::Receive => {
                    self.run_wave();
                    self.flush()?;
                    self.rest();
                    if self.shared.is_stopping() {
                        return Ok(End::Shutdown);
                    }
                    if let Some(end) = self.receive()? {
                        return Ok(end);
                    }
                }
                Pause::Close => {
                    self.flush()?;
                    return Ok(End::Refused);
                }
                Pause::Alone(request) => {
                    self.run_wave();
                    if let Some(end) = self.run_alone(request)? {
                        self.flush()?;
                        return Ok(end);
                    }
                }
            }
            if self.output.len() >= FLUSH_BYTES
                || self.output.uncharged_bytes() >= UNCHARGED_BYTES_MAX
            {
                self.flush()?;
            }
        }
    }

    fn ground(&self) -> Ground<'_> {
        let connection = self.number();
        Ground { connection, ..self.shared.ground(self.core) }
    }

    fn count(&self, counter: Counter, step: u64) {
        self.shard().add(counter, step);
    }
}

impl<T> Session<T> {
    fn shard(&self) -> &Shard {
        self.shared.counters.shard(self.core)
    }

    fn note_request(&self) {
        if let Some(stay) = &self.stay {
            stay.note_request();
        }
    }

    fn note_waiting(&self, partial: bool) {
        self.note_doing(if partial { Doing::Sends } else { Doing::Nothing });
    }

    fn note_doing(&self, doing: Doing) {
        if let Some(stay) = &self.stay {
            stay.note_doing(doing);
        }
    }

    /// The number of the connection, as `stats conns` tells it.
    fn number(&self) -> u64 {
        self.stay.as_ref().map_or(0, Stay::shown_number)
    }

    fn work(&mut self) {
        if !self.busy {
            self.busy = true;
            self.shard().enter();
        }
    }

    fn rest(&mut self) {
        if self.busy {
            self.busy = false;
            self.shard().leave();
        }
    }
}

/// A session that panics keeps no stop of the server waiting.
impl<T> Drop for Session<T> {
    fn drop(&mut self) {
        self.rest();
    }
}
