//! One connection: callers append frames and send them, a thread reads replies and hands them out.
//!
//! There is no thread for sending, most of the time. Whoever wants his frames to leave sends all there are, unless
//! somebody does; what is appended meanwhile leaves with that one's next write. Where that does not end, a thread of its own
//! goes on with it, so that nobody is kept by what others want.
//!
//! # Invariants
//! - C1: frames leave in the order in which they were appended, so that requests on one key take
//!   effect in the order in which they were submitted.
//! - C2: at most one thread sends; it ends only when the queue is empty or the connection is broken, or another one goes on.
//! - C3: once broken a connection stays so: nothing is appended, and nobody waits any more.
//! - C4: once nobody has a handle, what was submitted still leaves: the reader ends with the last reply, or when a server has
//!   taken too long for that. One that closes with replies unread takes back what the network has not delivered.
//! - C5: what a server says is never believed before it is checked: buffers grow by what arrived.
//!
//! # Concurrency
//! One lock, held for a few instructions: never while the socket is read or written.

use crate::address::Address;
use crate::deadline::Deadline;
use crate::error::{Error, Fate, Result};
use crate::greeting::{greet, greeting_failed};
use crate::options::Options;
use crate::socket::Socket;
use crate::table::{Reply, Slot, Table};
use esker_base::ErrorKind;
use esker_base::clock::{Clock, SystemClock};
use esker_format::native::{
    FRAME_HEADER_SIZE, FrameHeader, NO_REQUEST, Request, ServerHello, Status, begin_frame,
    end_frame,
};
use parking_lot::{Condvar, Mutex};
use std::io::ErrorKind as IoErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Frames that nobody has asked to leave do so once they come to this.
pub(crate) const QUEUE_BYTES: usize = 32 << 10;
/// Callers wait while the queue is longer.
const QUEUE_BYTES_MAX: usize = 4 << 20;
/// Bytes that are received at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// Stack of a thread that reads, or sends.
const STACK_BYTES: usize = 256 << 10;
/// How long who sends goes on with the frames of others once his own have left.
const FOR_OTHERS: Duration = Duration::from_millis(10);
/// So many times as long as a reply may take, a stream is broken whose own server's core says nothing, whatever the others say.
const SILENT_TIMES: u32 = 3;
/// What the network takes after so long had to wait for the server, which has read something then.
const TAKEN_LATE: Duration = Duration::from_millis(100);
/// Bytes that the network is given at once: so that what it takes is seen.
const PIECE_BYTES: usize = 256 << 10;

#[derive(Debug)]
struct State {
    table: Table,
    queue: Vec<u8>,
    /// Bytes of the connection up to the end of the queue.
    queued: u64,
    sending: bool,
    /// Until when what was submitted may leave, and be answered, since nobody has a handle any more.
    left_until: Option<Deadline>,
    broken: Option<esker_base::Error>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    pub(crate) hello: ServerHello,
    options: Options,
    state: Mutex<State>,
    /// There is room in queue or table, or the connection is broken.
    room: Condvar,
    /// Bytes of the connection that the network was offered, and may have taken: more than it has, while
    /// somebody writes.
    offered: AtomicU64,
    /// When the server last gave a sign of life, to whichever of its streams, in nanoseconds of the clock.
    heard_at: Arc<AtomicU64>,
    /// The same of this stream alone, or since when it has owed something, if that is later.
    silent_since: AtomicU64,
    itself: Weak<Connection>,
}

/// What keeps a connection open: without one it ends once what was submitted is answered (C4).
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Arc<Connection>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A request that was submitted.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) id: u32,
    pub(crate) slot: Arc<Slot>,
    /// When that was, in nanoseconds of the clock.
    at: u64,
    /// Its reply may take longer than any other: that of a backup.
    lasts: bool,
}

impl Connection {
    /// Connects, exchanges hellos and says who the client is, if it is asked; once, or with each core of the server: the
    /// first one and the others.
    pub(crate) fn open(address: &Address, options: &Options) -> Result<(Handle, Vec<Handle>)> {
        let (sockets, deadline) = Socket::connect(address, options).map_err(Error::not_sent)?;
        let mut handles = Vec::with_capacity(sockets.len());
        let heard_at = Arc::new(AtomicU64::new(now_ns()));
        for socket in sockets {
            handles.push(Self::over(socket, address, options, deadline, &heard_at)?);
        }
        let mut handles = handles.into_iter();
        let none = || greeting_failed(address, IoErrorKind::UnexpectedEof.into());
        Ok((handles.next().ok_or_else(none)?, handles.collect()))
    }

    fn over(
        socket: Socket,
        address: &Address,
        options: &Options,
        deadline: Deadline,
        heard_at: &Arc<AtomicU64>,
    ) -> Result<Handle> {
        let hello = greet(&socket, options, deadline).map_err(|greeting| greeting.told(address))?;
        // The reader looks now and then whether anybody is left (C4).
        let limit = options.request_timeout;
        socket
            .set_timeouts(Some(limit), limit)
            .map_err(|source| greeting_failed(address, source))?;
        let state = State {
            table: Table::default(),
            queue: Vec::new(),
            queued: 0,
            sending: false,
            left_until: None,
            broken: None,
        };
        let connection = Arc::new_cyclic(|itself| Connection {
            socket,
            hello,
            options: options.clone(),
            state: Mutex::new(state),
            room: Condvar::new(),
            offered: AtomicU64::new(0),
            heard_at: Arc::clone(heard_at),
            silent_since: AtomicU64::new(now_ns()),
            itself: itself.clone(),
        });
        let reader = connection.clone();
        let started = std::thread::Builder::new()
            .name("esker-client".into())
            .stack_size(STACK_BYTES)
            .spawn(move || reader.read_all());
        started.map_err(|source| greeting_failed(address, source))?;
        Ok(Handle(connection))
    }

    /// Whether it can no longer be used.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.lock().broken.is_some()
    }

    /// What it broke with, if it can no longer be used.
    pub(crate) fn why_broken(&self) -> Option<esker_base::Error> {
        self.state.lock().broken.clone()
    }

    /// Whether a request would be appended at once.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.table.len() < self.options.in_flight_max.max(1) && state.queue.len() < QUEUE_BYTES_MAX
    }

    /// Whether everything is answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().table.is_empty()
    }

    /// Appends a request. It leaves at the next [`Connection::send`], or when much has come together.
    pub(crate) fn submit(&self, request: &Request<'_>) -> Result<Submitted> {
        let opcode = request.opcode() as u8;
        let mut frame = Vec::new();
        let start = begin_frame(&mut frame);
        request.encode(&mut frame).map_err(Error::unsayable)?;
        let payload_size = frame.len().saturating_sub(FRAME_HEADER_SIZE);
        if payload_size as u64 > self.hello.request_size_max.into() {
            return Err(Error::invalid(format!(
                "a request of {payload_size} bytes, and the server takes {}",
                self.hello.request_size_max
            )));
        }
        let begun = now_ns();
        let end = SystemClock.monotonic().saturating_add(self.options.request_timeout);
        // One that asks whether the server lives finds room beside those that may take for ever.
        let beside = usize::from(matches!(request, Request::Ping));
        let in_flight_max = self.options.in_flight_max.max(1).saturating_add(beside);
        let mut state = self.state.lock();
        let before = state.queued;
        loop {
            if let Some(cause) = &state.broken {
                return Err(Error::not_sent(cause.clone()));
            }
            let full = state.table.len() >= in_flight_max || state.queue.len() >= QUEUE_BYTES_MAX;
            if !full {
                break;
            }
            if !state.sending && !state.queue.is_empty() {
                // Nothing gets less unless what is queued leaves.
                drop(state);
                self.send();
                state = self.state.lock();
                continue;
            }
            let left = end.saturating_sub(SystemClock.monotonic());
            if left.is_zero() {
                // Of backups alone silence says nothing.
                let is_owed = state.table.is_waited_for(before);
                drop(state);
                let cause = esker_base::Error::new(ErrorKind::Timeout, "submit request");
                let cause = cause.context("too many requests are in flight");
                if is_owed {
                    self.break_if_silent(begun, &cause);
                }
                return Err(Error::not_sent(cause));
            }
            self.room.wait_for(&mut state, left);
        }
        if state.table.is_empty() {
            self.silent_since.store(now_ns(), Ordering::Relaxed);
        }
        let id = state.table.next_id();
        // The id is part of the checksum, so the frame ends here.
        end_frame(&mut frame, start, id, opcode, Status::Ok).map_err(Error::unsayable)?;
        state.queue.extend_from_slice(&frame);
        state.queued = state.queued.saturating_add(frame.len() as u64);
        let end = state.queued;
        let slot = state.table.insert(id, opcode, end);
        let much = state.queue.len() >= QUEUE_BYTES;
        drop(state);
        if much {
            self.send();
        }
        Ok(Submitted { id, slot, at: now_ns(), lasts: matches!(request, Request::Backup) })
    }

    /// Sends what is queued, unless somebody does.
    pub(crate) fn send(&self) {
        let own = {
            let mut state = self.state.lock();
            if state.sending {
                return;
            }
            state.sending = true;
            state.queued
        };
        let start = SystemClock.monotonic();
        let for_others = start.saturating_add(FOR_OTHERS);
        let is_enough =
            || self.offered.load(Ordering::Relaxed) >= own && SystemClock.monotonic() >= for_others;
        // A server that takes a little now and then keeps nobody any longer.
        let late = start.saturating_add(self.options.request_timeout);
        if !self.send_until(is_enough, || SystemClock.monotonic() >= late) {
            self.hand_over();
        }
    }

    /// Lets a thread of its own send what others go on appending.
    #[cold]
    fn hand_over(&self) {
        let sender = std::thread::Builder::new().name("esker-sender".into());
        let started = self.itself.upgrade().map(|connection| {
            let sends = move || {
                connection.send_until(|| false, || false);
            };
            sender.stack_size(STACK_BYTES).spawn(sends)
        });
        if started.is_none_or(|started| started.is_err()) {
            self.send_until(|| false, || false);
        }
    }

    /// Sends what is queued, as the one who does (C2), until nothing is; false if `is_enough` says so before, or `is_late` within a
    /// frame: then another one has to go on.
    fn send_until(&self, is_enough: impl Fn() -> bool, is_late: impl Fn() -> bool) -> bool {
        let mut frames = Vec::new();
        let mut state = self.state.lock();
        while state.broken.is_none() && !state.queue.is_empty() {
            if is_enough() {
                return false;
            }
            frames.clear();
            std::mem::swap(&mut frames, &mut state.queue);
            drop(state);
            self.room.notify_all();
            let rest = self.write(&frames, &is_late).unwrap_or_else(|source| {
                self.break_off(esker_base::Error::io("send request", source));
                &[]
            });
            state = self.state.lock();
            if !rest.is_empty() {
                state.queue.splice(..0, rest.iter().copied());
                return false;
            }
        }
        state.sending = false;
        if state.left_until.is_some() {
            self.socket.end_writing();
        }
        true
    }

    /// Sends all bytes, unless it is late before they are taken: gives back what is left.
    fn write<'b>(
        &self,
        mut rest: &'b [u8],
        is_late: impl Fn() -> bool,
    ) -> std::io::Result<&'b [u8]> {
        // Before, not after: whoever breaks the connection meanwhile must not take for unsent what the
        // server may have.
        self.offered.fetch_add(rest.len() as u64, Ordering::SeqCst);
        let start = SystemClock.monotonic();
        while !rest.is_empty() {
            let piece = rest.get(..PIECE_BYTES).unwrap_or(rest);
            let error = match self.socket.write(piece) {
                Ok(count) if count > 0 => {
                    if SystemClock.monotonic().saturating_sub(start) >= TAKEN_LATE {
                        self.hear();
                    }
                    rest = rest.get(count..).unwrap_or_default();
                    if !rest.is_empty() && is_late() {
                        self.offered.fetch_sub(rest.len() as u64, Ordering::SeqCst);
                        break;
                    }
                    continue;
                }
                Ok(_) => IoErrorKind::WriteZero.into(),
                Err(error) if error.kind() == IoErrorKind::Interrupted => continue,
                Err(error) if error.kind() == IoErrorKind::WouldBlock => {
                    IoErrorKind::TimedOut.into()
                }
                Err(error) => error,
            };
            if self.socket.fails_whole() {
                // The rest was surely not taken.
                self.offered.fetch_sub(rest.len() as u64, Ordering::SeqCst);
            }
            return Err(error);
        }
        Ok(rest)
    }

    /// Waits for the reply to a request.
    pub(crate) fn wait(&self, request: &Submitted) -> Result<Reply> {
        if !request.slot.is_filled() {
            self.send();
        }
        self.wait_at_most(request, self.options.request_timeout)
    }

    /// As [`Connection::wait`], for a request that was sent, at most `limit`; a backup's after that for as long as there are signs of
    /// life.
    pub(crate) fn wait_at_most(&self, request: &Submitted, mut limit: Duration) -> Result<Reply> {
        loop {
            if let Some(reply) = request.slot.wait(limit) {
                return reply;
            }
            if !request.lasts {
                break;
            }
            limit = self.options.request_timeout;
            let ping = self.submit(&Request::Ping).and_then(|ping| self.wait(&ping));
            if ping.is_err_and(|error| error.kind() == ErrorKind::Timeout) && self.is_broken() {
                // The slot may say that the connection was closed, but not that it was we who did so.
                let late = request.slot.wait(Duration::ZERO).filter(Result::is_ok);
                let cause = esker_base::Error::new(ErrorKind::Timeout, "wait for reply");
                let cause = cause.context("the server is silent");
                return late.unwrap_or(Err(Error::new(Fate::Unknown, cause)));
            }
        }
        self.state.lock().table.give_up(request.id);
        self.room.notify_all();
        let cause = esker_base::Error::new(ErrorKind::Timeout, "wait for reply");
        self.break_if_silent(request.at, &cause);
        // It may have come between the two looks.
        request.slot.wait(Duration::ZERO).unwrap_or_else(|| Err(Error::new(Fate::Unknown, cause)))
    }

    /// The server has given a sign of life.
    fn hear(&self) {
        let now = now_ns();
        self.heard_at.store(now, Ordering::Relaxed);
        self.silent_since.store(now, Ordering::Relaxed);
    }

    /// Breaks the connection if a server that owes a reply `since` as long as is allowed has given no other sign of life either, to no
    /// stream, or for much longer not to this one. Whoever waited for anything looks: nobody may wait for the reply itself.
    fn break_if_silent(&self, since: u64, cause: &esker_base::Error) {
        let heard_at = self.heard_at.load(Ordering::Relaxed);
        let now = now_ns();
        let silent = now.saturating_sub(heard_at.max(since));
        let limit = self.options.request_timeout.as_nanos();
        let of_stream = now.saturating_sub(self.silent_since.load(Ordering::Relaxed));
        // A backup may be silent for long: then who looks has waited himself, but for what it took him to begin.
        let has_waited = u128::from(now.saturating_sub(since)) >= limit / 8 * 7;
        if u128::from(silent) >= limit
            || has_waited && u128::from(of_stream) >= limit.saturating_mul(SILENT_TIMES.into())
        {
            self.break_off(cause.clone().context("the server is silent"));
        }
    }

    /// Sends what is queued, and waits until everything that was submitted before is answered, but for backups.
    pub(crate) fn wait_until_answered(&self, deadline: Deadline) -> Result<()> {
        // Not for what others submit meanwhile, which may never end, and which nobody may send yet: so before what is queued is sent.
        let (before, begun) = (self.state.lock().queued, now_ns());
        self.send();
        let mut state = self.state.lock();
        while state.table.is_waited_for(before) {
            let Ok(left) = deadline.left() else {
                drop(state);
                let cause = not_answered();
                self.break_if_silent(begun, &cause);
                return Err(Error::not_sent(cause));
            };
            self.room.wait_for(&mut state, left);
        }
        Ok(())
    }

    /// Breaks the connection: all who wait learn it (C3).
    pub(crate) fn break_off(&self, cause: esker_base::Error) {
        let mut state = self.state.lock();
        if state.broken.is_some() {
            return;
        }
        // Under the lock, or the reader, who then finds the end, would say that the server has closed it.
        self.socket.shut_down();
        let offered = self.offered.load(Ordering::SeqCst);
        state.table.fail_all(offered, &cause);
        state.broken = Some(cause);
        drop(state);
        self.room.notify_all();
    }

    /// Ends the connection for who submits nothing more: at once, or when what was submitted is answered (C4). Waits for nobody.
    fn leave(&self) {
        let mut state = self.state.lock();
        if state.table.is_empty() {
            return self.socket.shut_down();
        }
        state.left_until = Some(Deadline::after(self.options.request_timeout));
        // Whoever sends does so when he is done.
        if !state.sending {
            self.socket.end_writing();
        }
    }

    /// The reader's whole life.
    fn read_all(&self) {
        let cause = match self.read_until_end() {
            Ok(()) => esker_base::Error::new(ErrorKind::Closed, "read reply")
                .context("the server has closed the connection"),
            Err(cause) => cause,
        };
        self.break_off(cause);
    }

    fn read_until_end(&self) -> esker_base::Result<()> {
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut filled = 0_usize;
        loop {
            let room = buffer.get_mut(filled..).unwrap_or_default();
            let left_until = {
                let state = self.state.lock();
                // Whether the server closes it or not (C4).
                if state.left_until.is_some() && state.table.is_empty() {
                    return Ok(());
                }
                state.left_until
            };
            let count = match self.socket.read(room, left_until) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == IoErrorKind::Interrupted => continue,
                Err(error) if error.kind() == IoErrorKind::WouldBlock && left_until.is_none() => {
                    continue;
                }
                Err(error) => return Err(esker_base::Error::io("read reply", error)),
            };
            self.hear();
            filled = filled.saturating_add(count);
            let used = self.take_frames(buffer.get(..filled).unwrap_or_default())?;
            buffer.copy_within(used..filled, 0);
            filled = filled.saturating_sub(used);
            if filled == buffer.len() {
                // One frame fills it all: by twice what arrived (C5).
                buffer.resize(filled.saturating_mul(2), 0);
            } else if filled == 0 && buffer.len() > RECEIVE_BYTES {
                buffer.truncate(RECEIVE_BYTES);
                buffer.shrink_to_fit();
            }
        }
    }

    /// Hands out the whole replies at the start of `bytes`; returns how much they were. Those before something that
    /// ends the connection were done all the same.
    fn take_frames(&self, bytes: &[u8]) -> esker_base::Result<usize> {
        let mut replies = Vec::new();
        let mut used = 0_usize;
        let mut ended = Ok(());
        loop {
            match first_frame(bytes.get(used..).unwrap_or_default(), self.hello.reply_size_max) {
                Ok(Some((size, id, reply))) => {
                    used = used.saturating_add(size);
                    replies.push((id, reply));
                }
                Ok(None) => break,
                Err(cause) => {
                    ended = Err(cause);
                    break;
                }
            }
        }
        let mut filled = Vec::with_capacity(replies.len());
        let mut state = self.state.lock();
        for (id, reply) in replies {
            match state.table.take(id, reply.opcode) {
                Ok(Some(slot)) => filled.push((slot, reply)),
                // Its caller has given up.
                Ok(None) => {}
                Err(_) => {
                    ended = Err(no_sense("a reply to something else"));
                    break;
                }
            }
        }
        drop(state);
        self.room.notify_all();
        for (slot, reply) in filled {
            slot.fill(Ok(reply));
        }
        ended.map(|()| used)
    }
}

/// The reply at the start of `bytes`, with the size of its frame and its id; none if it is not whole. The server has said how large
/// a payload may be.
pub(crate) fn first_frame(
    bytes: &[u8],
    reply_size_max: u32,
) -> esker_base::Result<Option<(usize, u32, Reply)>> {
    if bytes.len() < FRAME_HEADER_SIZE {
        return Ok(None);
    }
    let damaged = |flaw| no_sense("a frame").source(flaw);
    let header = FrameHeader::peek(bytes).map_err(damaged)?;
    if header.payload_size > reply_size_max {
        return Err(no_sense("a reply over the server's own limit"));
    }
    let payload_size = usize::try_from(header.payload_size).unwrap_or(usize::MAX);
    let Some(frame) = bytes.get(..FRAME_HEADER_SIZE.saturating_add(payload_size)) else {
        return Ok(None);
    };
    header.verify_frame(frame).map_err(damaged)?;
    let Some(status) = Status::from_number(header.status) else {
        return Err(no_sense("a status that has no meaning"));
    };
    if header.id == NO_REQUEST {
        let said = Error::of_status(status);
        let cause = esker_base::Error::new(said.kind(), "read reply");
        return Err(cause.context(format!("the server says goodbye: {}", status.words())));
    }
    let payload = frame.get(FRAME_HEADER_SIZE..).unwrap_or_default().to_vec();
    Ok(Some((frame.len(), header.id, Reply { opcode: header.opcode, status, payload })))
}

/// Why a request is not submitted that takes effect after others.
pub(crate) fn not_answered() -> esker_base::Error {
    esker_base::Error::new(ErrorKind::Timeout, "submit request")
        .context("requests before it are not answered")
}

/// What a server says that breaks the protocol.
fn no_sense(words: &str) -> esker_base::Error {
    esker_base::Error::corrupted("read reply", words)
}

fn now_ns() -> u64 {
    u64::try_from(SystemClock.monotonic().as_nanos()).unwrap_or(u64::MAX)
}
