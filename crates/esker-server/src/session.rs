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
//! # Concurrency
//! One task of one core; its units run as tasks of the same core.
//!
//! # Failure
//! An error of the connection ends the session. Requests that were whole when the connection broke
//! may have taken effect; a request that was not never has.

use crate::budget::Share;
use crate::counters::{Counter, Shard};
use crate::errors::reply_line;
use crate::execute::{Action, Answer, Body, Ground, Unit};
use crate::limits::{
    BODY_STEP_BYTES, FLUSH_BYTES, INLINE_BODY_BYTES_MAX, OUTPUT_BYTES_MAX, PIPELINE_DEPTH,
    RECEIVE_BYTES_MIN, TASKS_MAX, UNCHARGED_BYTES_MAX, ZERO_COPY_BYTES_MIN,
};
use crate::output::Output;
use crate::protocol::{
    CRLF, GET_LINE_BYTES_MAX, Parsed, Parser, Request, Span, StoreRequest, StoreVerb, Then, Tokens,
    line,
};
use crate::receive::Received;
use crate::shared::Shared;
use crate::transport::Connection;
use esker::ErrorKind;
use esker_trt::JoinHandle;
use std::io::{ErrorKind as IoErrorKind, Result as IoResult};
use std::sync::Arc;
use std::time::Duration;

/// Length of the end of line behind a data block.
const CRLF_BYTES: usize = CRLF.len();

/// How long a connection that the server ends waits for the client to see it.
const LINGER: Duration = Duration::from_millis(500);
/// How long a send or the rest of a request waits before it looks whether the server stops.
const PATIENCE_SLICE: Duration = Duration::from_millis(200);
/// What `request_timeout` shrinks to once the server stops.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// Who ended a connection, if it did not break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Client,
    Server,
}

/// A `get` line whose keys are not all units yet.
#[derive(Clone, Copy)]
struct Listing {
    keys: Span,
    with_cas: bool,
    exptime: Option<i64>,
    request: u64,
}

/// A unit of a wave that was started.
enum Begun {
    Done((Unit, Answer)),
    /// What is known of the unit, should its task fail, and the task.
    Task(Unit, JoinHandle<(Unit, Answer)>),
}

/// One of the tasks that a core may have beside its sessions: each has a stack, for which no memory
/// is taken.
struct TaskPlace {
    shared: Arc<Shared>,
    core: usize,
}

impl TaskPlace {
    fn take(shared: &Arc<Shared>, core: usize) -> Option<TaskPlace> {
        let taken = shared.counters.shard(core).try_begin_task(TASKS_MAX);
        taken.then(|| TaskPlace { shared: shared.clone(), core })
    }
}

impl Drop for TaskPlace {
    fn drop(&mut self) {
        self.shared.counters.shard(self.core).end_task();
    }
}

/// Why planning stopped.
enum Pause {
    /// The wave is full, or the next unit does not fit in.
    Run,
    /// No whole request is left in the receive buffer.
    Receive,
    /// The held unit needs memory that is not free.
    Starve,
    /// This request goes alone, after the wave.
    Alone(Request),
}

/// One connection and what it is doing.
pub(crate) struct Session {
    shared: Arc<Shared>,
    core: usize,
    connection: Connection,
    received: Received,
    parser: Parser,
    output: Output,
    wave: Vec<Unit>,
    held: Option<Unit>,
    listing: Option<Listing>,
    requests: u64,
    /// Number of a request whose reply has ended early, in an error.
    broken: Option<u64>,
    /// Memory for values that the wave's units have.
    wave_bytes: u64,
    share: Share,
    partial_since: Option<Duration>,
    busy: bool,
}

impl Session {
    /// A session of `connection` on `core`; `share` is for its receive buffer.
    pub(crate) fn new(
        shared: Arc<Shared>,
        core: usize,
        connection: Connection,
        share: Share,
    ) -> Self {
        Session {
            shared,
            core,
            connection,
            received: Received::new(),
            parser: Parser::new(),
            output: Output::default(),
            wave: Vec::new(),
            held: None,
            listing: None,
            requests: 0,
            broken: None,
            wave_bytes: 0,
            share,
            partial_since: None,
            busy: false,
        }
    }

    /// Serves the connection until either side ends it.
    pub(crate) fn run(mut self) {
        let ended = self.serve();
        self.rest();
        match ended {
            Ok(End::Client) => {}
            Ok(End::Server) => self.connection.linger(LINGER),
            Err(error) => {
                if error.kind() == IoErrorKind::TimedOut {
                    let idle = self.received.pending().is_empty() && self.output.is_empty();
                    self.count(if idle { Counter::IdleKicks } else { Counter::RequestTimeouts }, 1);
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
                    if let Some(unit) = self.held.take() {
                        self.endow_waiting(unit);
                    }
                }
                Pause::Receive => {
                    self.run_wave();
                    self.flush()?;
                    self.rest();
                    if self.shared.is_stopping() {
                        return Ok(End::Server);
                    }
                    if let Some(end) = self.receive()? {
                        return Ok(end);
                    }
                }
                Pause::Alone(request) => {
                    self.run_wave();
                    if !self.run_alone(request)? {
                        self.flush()?;
                        return Ok(End::Server);
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

    fn shard(&self) -> &Shard {
        self.shared.counters.shard(self.core)
    }

    fn count(&self, counter: Counter, step: u64) {
        self.shard().add(counter, step);
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

    // Planning

    /// Fills the wave from the receive buffer.
    fn plan(&mut self) -> Pause {
        loop {
            if self.wave.len() >= PIPELINE_DEPTH {
                return Pause::Run;
            }
            let unit = if let Some(unit) = self.held.take() {
                unit
            } else if let Some(listing) = self.listing.take() {
                self.next_of(listing)
            } else {
                match self.parser.next(self.received.pending()) {
                    Parsed::Incomplete => return Pause::Receive,
                    Parsed::Request(request, consumed) => match self.accept(request, consumed) {
                        Ok(unit) => unit,
                        Err(pause) => return pause,
                    },
                }
            };
            if let Err(unit) = self.admit(unit) {
                self.held = Some(unit);
                // In an empty wave there is nothing to wait for but memory.
                return if self.wave.is_empty() { Pause::Starve } else { Pause::Run };
            }
        }
    }

    /// Turns a request into its first unit.
    fn accept(&mut self, request: Request, consumed: usize) -> Result<Unit, Pause> {
        let base = self.received.position();
        if let Request::Store(store) = request {
            return self.accept_store(store, consumed);
        }
        self.received.consume(consumed);
        let number = self.begin_request();
        let unit = |key: Span, action, noreply| Unit {
            key: key.shifted(base),
            action,
            noreply,
            request: number,
            ends: false,
            share: None,
        };
        let say = |line, noreply| unit(Span::default(), Action::Say(line), noreply);
        Ok(match request {
            Request::Get { with_cas, exptime, keys } => {
                let keys = keys.shifted(base);
                self.next_of(Listing { keys, with_cas, exptime, request: number })
            }
            Request::Delete { key, noreply } => unit(key, Action::Delete, noreply),
            Request::Touch { key, exptime, noreply } => {
                unit(key, Action::Touch { exptime }, noreply)
            }
            Request::Arithmetic { direction, key, delta, noreply } => {
                unit(key, Action::Step { direction, delta }, noreply)
            }
            Request::Version => say(crate::VERSION_LINE, false),
            Request::Verbosity { noreply } => say(line::OK, noreply),
            Request::Refused(refusal) if refusal.then == Then::Continue => say(refusal.line, false),
            Request::Stats { section } => {
                return Err(Pause::Alone(Request::Stats { section: section.shifted(base) }));
            }
            other => return Err(Pause::Alone(other)),
        })
    }

    /// Numbers the request that begins here: the client made progress.
    fn begin_request(&mut self) -> u64 {
        self.partial_since = None;
        self.requests = self.requests.wrapping_add(1);
        self.requests
    }

    /// A storage command whose data block came with it; anything else goes alone.
    fn accept_store(&mut self, store: StoreRequest, consumed: usize) -> Result<Unit, Pause> {
        let base = self.received.position();
        let alone = StoreRequest { key: store.key.shifted(base), ..store };
        let length = usize::try_from(store.length).unwrap_or(usize::MAX);
        let block = self.received.pending().get(consumed..).unwrap_or_default();
        let complete = block.len() >= length.saturating_add(CRLF_BYTES);
        let ends_well = block.get(length..).is_some_and(|rest| rest.starts_with(CRLF));
        let fits = store.length <= self.shared.limits.item_size_max_bytes;
        if fits && !complete && length <= INLINE_BODY_BYTES_MAX {
            return Err(Pause::Receive);
        }
        self.begin_request();
        if !fits || !complete {
            self.received.consume(consumed);
            return Err(Pause::Alone(Request::Store(alone)));
        }
        let start = base.saturating_add(consumed);
        let body = Body::Inline(Span::new(start, start.saturating_add(length)));
        self.received.consume(consumed.saturating_add(length).saturating_add(CRLF_BYTES));
        Ok(self.store_unit(&alone, ends_well.then_some(body)))
    }

    /// The unit of a storage command; without a body, its data block was malformed.
    fn store_unit(&self, store: &StoreRequest, body: Option<Body>) -> Unit {
        let StoreRequest { verb, key, flags, exptime, cas, noreply, .. } = *store;
        let action = match body {
            Some(body) => Action::Put { verb, flags, exptime, cas, body },
            None => Action::Say(line::BAD_CHUNK),
        };
        Unit { key, action, noreply, request: self.requests, ends: false, share: None }
    }

    /// The unit of the next key of a `get` line.
    fn next_of(&mut self, listing: Listing) -> Unit {
        let Listing { keys, with_cas, exptime, request } = listing;
        let (key, rest, ends) = {
            let mut tokens = Tokens::new(self.received.all(), keys);
            let key = tokens.next();
            (key, tokens.rest(), tokens.next().is_none())
        };
        if !ends {
            self.listing = Some(Listing { keys: rest, ..listing });
        }
        match key {
            Some(key) => {
                let action = Action::Get { with_cas, exptime };
                Unit { key, action, noreply: false, request, ends, share: None }
            }
            // `gat` with a time and nothing else.
            None => {
                let (key, action) = (Span::default(), Action::Say(b""));
                Unit { key, action, noreply: false, request, ends, share: None }
            }
        }
    }

    /// Takes the unit into the wave, or gives it back if it has to wait for the wave to end.
    fn admit(&mut self, mut unit: Unit) -> Result<(), Unit> {
        if !matches!(unit.action, Action::Say(_)) {
            let key = unit.key.of(self.received.all());
            let conflicts = self.wave.iter().any(|other| {
                (unit.action.writes() || other.action.writes())
                    && !matches!(other.action, Action::Say(_))
                    && other.key.of(self.received.all()) == key
            });
            if conflicts {
                // Keeps its share, if it has one: it runs next.
                return Err(unit);
            }
        }
        if unit.share.is_none() && unit.action.holds_values() {
            let bytes = self.bytes_held(&unit);
            if self.wave_bytes > 0 && self.wave_bytes.saturating_add(bytes) > OUTPUT_BYTES_MAX {
                return Err(unit);
            }
            match self.shared.budget.try_take(bytes) {
                Some(share) => unit.share = Some(share),
                None => return Err(unit),
            }
        }
        let bytes = unit.share.as_ref().map_or(0, Share::bytes);
        self.wave_bytes = self.wave_bytes.saturating_add(bytes);
        self.wave.push(unit);
        Ok(())
    }

    /// Waits for the memory that `unit` needs; no reply is held meanwhile (N4).
    fn endow_waiting(&mut self, mut unit: Unit) {
        let bytes = self.bytes_held(&unit);
        unit.share = self.shared.budget.take(bytes, self.shared.limits.request_timeout);
        if unit.share.is_some() {
            self.held = Some(unit);
            return;
        }
        self.count(Counter::StoreNoMemory, 1);
        let line = match unit.action {
            Action::Get { .. } => line::NO_MEMORY_GET,
            _ => line::NO_MEMORY,
        };
        if !unit.noreply && self.broken != Some(unit.request) {
            self.output.push(line);
        }
        self.broken = Some(unit.request);
    }

    /// The most memory that `unit` may hold besides its body: of a plain `get` what the index says
    /// that it reads.
    fn bytes_held(&self, unit: &Unit) -> u64 {
        let most = self.shared.limits.item_size_max_bytes;
        match unit.action {
            Action::Get { exptime: None, .. } => {
                let key = unit.key.of(self.received.all());
                let bytes = self.shared.store.read_size_bytes(key);
                // The store may hold items from a time with another limit.
                bytes.min(self.shared.limits.memory_max_bytes)
            }
            _ => unit.action.values_held().saturating_mul(most),
        }
    }

    // Running

    fn ground(&self) -> Ground<'_> {
        self.shared.ground(self.core)
    }

    /// Runs the wave and appends its replies.
    fn run_wave(&mut self) {
        if self.wave.is_empty() {
            return;
        }
        self.work();
        self.wave_bytes = 0;
        let mut wave = std::mem::take(&mut self.wave);
        let last = wave.pop();
        let begun = self.begin_all(&mut wave);
        // The only unit of most waves runs in the session's own task.
        let last = last.map(|unit| self.run_here(unit));
        for begun in begun {
            let (unit, answer) = match begun {
                Begun::Done(done) => done,
                Begun::Task(blank, task) => task.join().unwrap_or_else(|error| {
                    // It panicked, or never began.
                    self.ground().report(&error);
                    (blank, Answer::Failed(error))
                }),
            };
            self.reply(unit, answer);
        }
        if let Some((unit, answer)) = last {
            self.reply(unit, answer);
        }
        // Its room serves the next wave.
        self.wave = wave;
    }

    fn run_here(&self, mut unit: Unit) -> (Unit, Answer) {
        let answer = self.ground().run(&mut unit, self.received.all());
        (unit, answer)
    }

    /// Starts all units of `wave` that take time as tasks beside this one.
    fn begin_all(&self, wave: &mut Vec<Unit>) -> Vec<Begun> {
        let concurrent = esker_trt::in_task();
        let units = wave.drain(..);
        units
            .map(|unit| match unit.action {
                Action::Say(_) => Begun::Done(self.run_here(unit)),
                _ if !concurrent => Begun::Done(self.run_here(unit)),
                _ => match TaskPlace::take(&self.shared, self.core) {
                    Some(place) => Begun::Task(unit.blank(), self.begin(unit, place)),
                    None => Begun::Done(self.run_here(unit)),
                },
            })
            .collect()
    }

    /// Runs a unit in a task of its own.
    fn begin(&self, mut unit: Unit, place: TaskPlace) -> JoinHandle<(Unit, Answer)> {
        let buffer = self.received.share();
        esker_trt::spawn(move || {
            let answer = place.shared.ground(place.core).run(&mut unit, &buffer);
            (unit, answer)
        })
    }

    /// Appends the reply of one unit.
    fn reply(&mut self, mut unit: Unit, answer: Answer) {
        if unit.noreply || self.broken == Some(unit.request) {
            return;
        }
        match answer {
            Answer::Line(line) => self.output.push(line),
            Answer::Number(number) => {
                self.output.push_number(number);
                self.output.push(CRLF);
            }
            Answer::Miss => {}
            Answer::Failed(error) => {
                let starved = error.kind() == ErrorKind::OutOfMemory
                    && matches!(unit.action, Action::Get { .. });
                let line = if starved { line::NO_MEMORY_GET } else { reply_line(error.kind()) };
                self.output.push(line);
                self.broken = Some(unit.request);
                return;
            }
            Answer::Value { value, cas } => {
                self.output.push(b"VALUE ");
                self.output.push(unit.key.of(self.received.all()));
                self.output.push(b" ");
                self.output.push_number(value.attributes().flags.into());
                self.output.push(b" ");
                self.output.push_number(value.len() as u64);
                if let Some(cas) = cas {
                    self.output.push(b" ");
                    self.output.push_number(cas.0);
                }
                self.output.push(CRLF);
                let mut share = unit.share.take();
                let copied = value.len() < ZERO_COPY_BYTES_MIN;
                if let Some(share) = &mut share {
                    // Text that grows takes up to twice its length.
                    let twice = (value.len() as u64).saturating_mul(2);
                    share.shrink_to(if copied { twice } else { value.memory_bytes() });
                }
                if copied {
                    self.output.push_copy(&value, share);
                } else {
                    self.output.push_value(value, share);
                }
                self.output.push(CRLF);
            }
        }
        if unit.ends {
            self.output.push(line::END);
        }
    }

    /// Runs a request that goes alone; says whether the connection goes on.
    fn run_alone(&mut self, request: Request) -> IoResult<bool> {
        self.work();
        match request {
            Request::Store(store) if store.length > self.shared.limits.item_size_max_bytes => {
                self.refuse_large(&store)?;
            }
            Request::Store(store) => self.store_large(&store)?,
            Request::Stats { section } => {
                let section = section.of(self.received.all()).to_vec();
                self.shared.stats(&section, &mut self.output);
            }
            Request::FlushAll { delay, noreply } => {
                let line = self.shared.flush_all(self.core, delay);
                if !noreply {
                    self.output.push(line);
                }
            }
            Request::Refused(refusal) => {
                self.output.push(refusal.line);
                match refusal.then {
                    Then::Continue => {}
                    Then::Swallow(bytes) => self.swallow(bytes)?,
                    Then::Close => return Ok(false),
                }
            }
            Request::Quit => return Ok(false),
            Request::Get { .. }
            | Request::Delete { .. }
            | Request::Touch { .. }
            | Request::Arithmetic { .. }
            | Request::Version
            | Request::Verbosity { .. } => {}
        }
        Ok(true)
    }

    /// An item above the limit. As in memcached, a `set` leaves no older value behind.
    fn refuse_large(&mut self, store: &StoreRequest) -> IoResult<()> {
        self.count(Counter::StoreTooLarge, 1);
        if store.verb == StoreVerb::Set {
            let key = store.key.of(self.received.all());
            if let Err(error) = self.shared.store.delete(key) {
                self.ground().report(&error);
            }
        }
        if !store.noreply {
            self.output.push(line::TOO_LARGE);
        }
        self.swallow(store.length.saturating_add(CRLF_BYTES as u64))
    }

    /// A data block that did not come whole with its command: it is received into a buffer of its
    /// own, which grows by what came (N3).
    fn store_large(&mut self, store: &StoreRequest) -> IoResult<()> {
        self.flush()?;
        let length = usize::try_from(store.length).unwrap_or(usize::MAX);
        let whole = length.saturating_add(CRLF_BYTES);
        let Some(mut share) = self.shared.budget.try_take(0) else {
            return self.refuse_memory(store, whole);
        };
        let mut body = Vec::new();
        let mut since = self.shared.clock.monotonic();
        let mut received = 0;
        while received < whole {
            if received == body.len() {
                let step = BODY_STEP_BYTES.min(whole - received);
                if !share.try_grow(step as u64) {
                    drop((body, share));
                    return self.refuse_memory(store, whole - received);
                }
                body.resize(received + step, 0);
                since = self.shared.clock.monotonic();
            }
            let room = body.get_mut(received..).unwrap_or_default();
            let pending = self.received.pending();
            let taken = if pending.is_empty() {
                let connection = &mut self.connection;
                let taken =
                    patiently(&self.shared, since, |limit| connection.read(room, Some(limit)))?;
                self.count(Counter::BytesRead, taken as u64);
                if taken == 0 {
                    return Err(IoErrorKind::UnexpectedEof.into());
                }
                taken
            } else {
                let taken = pending.len().min(room.len());
                for (to, from) in room.iter_mut().zip(pending) {
                    *to = *from;
                }
                self.received.consume(taken);
                taken
            };
            received += taken;
        }
        let ends_well = body.ends_with(CRLF);
        body.truncate(length);
        let mut unit = self.store_unit(store, ends_well.then_some(Body::Owned(body)));
        if unit.action.values_held() > 0 {
            // No waiting here: the body's own share is held.
            unit.share = self.shared.budget.try_take(self.bytes_held(&unit));
            if unit.share.is_none() {
                drop((unit, share));
                return self.refuse_memory(store, 0);
            }
        }
        let (unit, answer) = self.run_here(unit);
        self.reply(unit, answer);
        drop(share);
        Ok(())
    }

    fn refuse_memory(&mut self, store: &StoreRequest, rest: usize) -> IoResult<()> {
        self.count(Counter::StoreNoMemory, 1);
        if !store.noreply {
            self.output.push(line::NO_MEMORY);
        }
        self.swallow(rest as u64)
    }

    // Receiving and sending

    /// Receives something, or says who ended the connection.
    fn receive(&mut self) -> IoResult<Option<End>> {
        let timeout = if self.received.pending().is_empty() {
            self.partial_since = None;
            if self.received.shrink() {
                self.share.shrink_to(RECEIVE_BYTES_MIN as u64);
            }
            let idle = self.shared.limits.idle_timeout;
            (!idle.is_zero()).then_some(idle)
        } else {
            let now = self.shared.clock.monotonic();
            let since = *self.partial_since.get_or_insert(now);
            Some(remaining(&self.shared, since)?)
        };
        let mut capacity = self.received.capacity();
        if let Some(wanted) = self.received.wanted_capacity() {
            let wanted = wanted.min(GET_LINE_BYTES_MAX.saturating_mul(2));
            let full = self.received.pending().len() == capacity;
            if self.share.try_grow(wanted.saturating_sub(capacity) as u64) {
                capacity = wanted;
            } else if full {
                self.output.push(line::NO_MEMORY_GET);
                self.flush()?;
                return Ok(Some(End::Server));
            }
        }
        let room = self.received.make_room(capacity);
        let count = self.connection.read(room, timeout)?;
        self.received.filled(count);
        self.count(Counter::BytesRead, count as u64);
        if count > 0 {
            self.work();
        }
        Ok((count == 0).then_some(End::Client))
    }

    /// Takes `bytes` from the stream and drops them.
    fn swallow(&mut self, bytes: u64) -> IoResult<()> {
        self.flush()?;
        let mut rest = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut since = self.shared.clock.monotonic();
        let mut progress = 0_usize;
        loop {
            let pending = self.received.pending().len().min(rest);
            self.received.consume(pending);
            rest = rest.saturating_sub(pending);
            if rest == 0 {
                return Ok(());
            }
            let room = self.received.make_room(0);
            let connection = &mut self.connection;
            let count = patiently(&self.shared, since, |limit| connection.read(room, Some(limit)))?;
            if count == 0 {
                return Err(IoErrorKind::UnexpectedEof.into());
            }
            self.received.filled(count);
            self.count(Counter::BytesRead, count as u64);
            progress = progress.saturating_add(count);
            if progress >= BODY_STEP_BYTES {
                progress = 0;
                since = self.shared.clock.monotonic();
            }
        }
    }

    /// Sends all replies. A client that takes too little for too long is cut off.
    fn flush(&mut self) -> IoResult<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        let mut since = self.shared.clock.monotonic();
        let mut progress = 0_usize;
        let (connection, shared) = (&mut self.connection, &self.shared);
        let sent = self.output.send(|slices| {
            let taken =
                patiently(shared, since, |limit| connection.write_vectored(slices, Some(limit)))?;
            progress = progress.saturating_add(taken);
            if progress >= BODY_STEP_BYTES {
                progress = 0;
                since = shared.clock.monotonic();
            }
            Ok(taken)
        })?;
        self.count(Counter::BytesWritten, sent as u64);
        Ok(())
    }
}

/// What is left of the time for a request, from `since`.
fn remaining(shared: &Shared, since: Duration) -> IoResult<Duration> {
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
fn patiently<T>(
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
