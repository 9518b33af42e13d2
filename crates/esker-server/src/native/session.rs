//! One native connection: hello, then frames to requests until either side ends it.
//!
//! The session never runs what takes time, unless the core has no place for another task; so it keeps
//! receiving while requests run. A backup it never runs.

use super::connection::{Asked, Connection};
use super::duplex::Duplex;
use super::multi::charge;
use super::order::{Access, KEYS_MAX};
use super::run::{Job, Told};
use super::{IN_FLIGHT_MAX, MULTI_GET_BYTES_MAX};
use crate::backups::Turn;
use crate::budget::{KindShare, Share};
use crate::counters::Counter;
use crate::limits::{INLINE_BODY_BYTES_MAX, OUTPUT_BYTES_MAX, RECEIVE_BYTES_MIN, UNIT_WORK};
use crate::patience::{Progress, patience, patiently, remaining, until_admitted};
use crate::place::TaskPlace;
use crate::receive::Received;
use crate::shared::Shared;
use crate::transport::LINGER;
use esker_base::ErrorKind;
use esker_base::units::KIB;
use esker_format::Flaw;
use esker_format::native::{
    CLIENT_HELLO_SIZE, ClientHello, FRAME_HEADER_SIZE, FrameHeader, KEY_SIZE_MAX_BYTES, NO_REQUEST,
    Opcode, PUT_OVERHEAD_MAX, Request, ServerHello, Status, VERSION,
};
use std::io::{ErrorKind as IoErrorKind, IoSlice, Result as IoResult};
use std::rc::Rc;
use std::sync::Arc;

/// Longest payload of a client that has not said who it is: credentials are no longer.
const UNADMITTED_BYTES_MAX: usize = 1 << 10;
/// What a change of a batch takes besides its bytes: places in the batch, and in the lists of the engine that makes it, which are
/// 220 to 650 bytes at the most.
const CHANGE_BYTES: u64 = KIB / 2;
/// What `stats` may take.
const STATS_BYTES: u64 = 8 * KIB;

/// Who ended a connection, if it did not break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Server,
    /// The server, and it says why.
    Because(Status),
}

/// One connection and what it is doing.
pub(crate) struct Session<D: Duplex + 'static> {
    pub(super) connection: Rc<Connection<D>>,
    pub(super) received: Received,
    share: Share,
    hashes: Vec<u64>,
    pub(super) partial: Option<Progress>,
    /// It has received something, and may not have admitted all of it: requests that are count by themselves.
    busy: bool,
}

impl<D: Duplex + 'static> Session<D> {
    /// A session of `duplex` on `core`; `share` is for its receive buffer.
    pub(crate) fn new(shared: Arc<Shared>, core: usize, duplex: D, share: Share) -> Self {
        Session {
            connection: Rc::new(Connection::new(shared, core, duplex)),
            received: Received::new(),
            share,
            hashes: Vec::new(),
            partial: None,
            busy: false,
        }
    }

    /// Serves the connection until either side ends it.
    pub(crate) fn run(mut self) {
        let ended = self.greet().and_then(|end| match end {
            Some(end) => Ok(end),
            None => self.serve(),
        });
        self.rest();
        // Whatever ended it: what was admitted is answered, as far as somebody listens. A shutdown
        // ends the wait.
        while self.connection.in_flight() > 0 && self.connection.wait_for_room().is_ok() {}
        match ended {
            Ok(End::Client) => {}
            Ok(End::Server) => self.connection.duplex.linger(LINGER),
            Ok(End::Because(status)) => {
                self.connection.say_goodbye(status);
                self.connection.send();
                self.connection.duplex.linger(LINGER);
            }
            Err(error) => tracing::debug!("connection ended: {error}"),
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.connection.shared
    }

    /// Whether the client may give commands.
    fn is_admitted(&self) -> bool {
        self.connection.to_say.get().is_none()
    }

    /// Exchanges hellos. Nobody is waited for without an end who may not even speak the protocol.
    fn greet(&mut self) -> IoResult<Option<End>> {
        let end = until_admitted(self.shared());
        let progress = Progress::receiving(self.shared()).until(Some(end));
        while self.received.pending().len() < CLIENT_HELLO_SIZE {
            let shared = self.connection.shared.clone();
            let room = self.received.make_room(0);
            let read = |limit| self.connection.duplex.read(room, Some(limit));
            let count = patiently(&shared, &progress, read)?;
            if count == 0 {
                return Ok(Some(End::Client));
            }
            self.received.filled(count);
            self.connection.count(Counter::BytesRead, count as u64);
        }
        let hello = self.received.pending().first_chunk().copied().unwrap_or_default();
        self.received.consume(CLIENT_HELLO_SIZE);
        if !self.received.pending().is_empty() {
            // Requests may stand behind the hello.
            self.work();
        }
        let answer = match ClientHello::decode(&hello) {
            // There is one version so far, and no client speaks an older one.
            Ok(ClientHello { version: 1.. }) => self.hello(),
            Ok(_) => ServerHello::refusal(Status::UnsupportedVersion),
            Err(_) => ServerHello::refusal(Status::BadFrame),
        };
        let bytes = answer.encode();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let slices = [IoSlice::new(rest)];
            let write = |limit| self.connection.duplex.write_vectored(&slices, limit);
            let sent = patiently(self.shared(), &progress, write)?;
            rest = rest.get(sent..).unwrap_or_default();
        }
        patiently(self.shared(), &progress, |limit| self.connection.duplex.flush(limit))?;
        Ok((answer.status != Status::Ok).then_some(End::Server))
    }

    fn hello(&self) -> ServerHello {
        let shared = self.shared();
        let size = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let key = KEY_SIZE_MAX_BYTES as u64;
        let value = shared.limits.item_size_max_bytes;
        // The store may hold items from a time with another limit.
        let stored = shared.store.value_size_max_bytes() as u64;
        ServerHello {
            version: VERSION,
            status: Status::Ok,
            authenticate: !self.is_admitted(),
            in_flight_max: IN_FLIGHT_MAX,
            request_size_max: size(value + key + PUT_OVERHEAD_MAX as u64),
            reply_size_max: size(stored.max(value).saturating_add(2 * MULTI_GET_BYTES_MAX)),
            key_size_max: size(key.min(shared.store.key_size_max_bytes() as u64)),
            value_size_max: size(value),
        }
    }

    /// Largest payload of a request.
    pub(super) fn request_size_max(&self) -> u64 {
        self.shared().limits.item_size_max_bytes
            + KEY_SIZE_MAX_BYTES as u64
            + PUT_OVERHEAD_MAX as u64
    }

    fn serve(&mut self) -> IoResult<End> {
        loop {
            let header = match FrameHeader::peek(self.received.pending()) {
                Ok(header) => header,
                Err(Flaw::TooShort) => {
                    if let Some(end) = self.receive()? {
                        return Ok(end);
                    }
                    continue;
                }
                Err(_) => return Ok(End::Because(Status::BadFrame)),
            };
            if header.status != 0 || header.id == NO_REQUEST {
                return Ok(End::Because(Status::BadFrame));
            }
            if u64::from(header.payload_size) > self.request_size_max() {
                self.refuse(header, Status::TooLarge)?;
                return Ok(End::Because(Status::TooLarge));
            }
            let payload_size = usize::try_from(header.payload_size).unwrap_or(usize::MAX);
            if !self.is_admitted() && payload_size > UNADMITTED_BYTES_MAX {
                // It is not waited for: no strangers' bytes are held.
                self.refuse(header, Status::Unauthenticated)?;
                return Ok(End::Because(Status::Unauthenticated));
            }
            if payload_size > INLINE_BODY_BYTES_MAX {
                if let Some(end) = self.take_large(header, payload_size)? {
                    return Ok(end);
                }
                continue;
            }
            let size = FRAME_HEADER_SIZE.saturating_add(payload_size);
            let Some(frame) = self.received.pending().get(..size) else {
                if let Some(end) = self.receive()? {
                    return Ok(end);
                }
                continue;
            };
            if header.verify_frame(frame).is_err() {
                return Ok(End::Because(Status::BadFrame));
            }
            let payload = frame.get(FRAME_HEADER_SIZE..).unwrap_or_default().to_vec();
            self.received.consume(size);
            self.partial = None;
            // Requests that the session answers itself must not keep the core from the others.
            esker_trt::work(UNIT_WORK);
            self.accept(header, payload, None)?;
        }
    }

    /// Receives something, or says who ended the connection.
    fn receive(&mut self) -> IoResult<Option<End>> {
        // Nobody else may know of replies that the session itself has made.
        self.connection.send();
        // Half a frame is no request: a stop does not wait for the rest.
        self.rest();
        if self.shared().is_stopping() {
            // What was read is still answered; what the client goes on sending is not read.
            return Ok(Some(End::Server));
        }
        let to_say = self.connection.to_say.get();
        let patience = patience(self.shared(), self.shared().limits.idle_timeout, to_say);
        if patience.is_some_and(|patience| patience.is_zero()) {
            return Ok(Some(self.too_slow()));
        }
        let pending = !self.received.pending().is_empty();
        let timeout = if pending {
            let shared = &self.connection.shared;
            let partial =
                self.partial.get_or_insert_with(|| Progress::receiving_line(shared).until(to_say));
            match remaining(shared, partial) {
                Ok(left) => Some(left),
                Err(_) => return Ok(Some(self.too_slow())),
            }
        } else {
            self.partial = None;
            if self.received.shrink() {
                self.share.shrink_to(RECEIVE_BYTES_MIN as u64);
            }
            patience
        };
        let mut capacity = self.received.capacity();
        if let Some(wanted) = self.received.wanted_capacity() {
            let more = wanted.saturating_sub(capacity) as u64;
            if self.share.try_grow(more) {
                capacity = wanted;
            } else if self.received.pending().len() == capacity {
                if !self.wait_for_bytes(more)? {
                    return Ok(Some(End::Because(Status::Failed(ErrorKind::OutOfMemory))));
                }
                capacity = wanted;
            }
        }
        let count = match self.connection.duplex.read(self.received.make_room(capacity), timeout) {
            Ok(count) => count,
            Err(error) if error.kind() == IoErrorKind::TimedOut => {
                // Whoever waits for replies, or is heard by another stream, is not idle; what is late is found so next time.
                let silent = self.connection.duplex.silent_for();
                let is_heard =
                    silent.is_some_and(|silent| timeout.is_some_and(|idle| silent < idle));
                if pending || is_heard || self.connection.in_flight() > 0 {
                    return Ok(None);
                }
                if to_say.is_some_and(|until| self.shared().clock.monotonic() >= until) {
                    return Ok(Some(self.too_slow()));
                }
                self.connection.count(Counter::IdleKicks, 1);
                return Ok(Some(End::Server));
            }
            Err(error) => return Err(error),
        };
        self.received.filled(count);
        self.connection.count(Counter::BytesRead, count as u64);
        self.work();
        Ok((count == 0).then_some(End::Client))
    }

    /// A stop of the server waits for this session from here on.
    pub(super) fn work(&mut self) {
        if !self.busy {
            self.busy = true;
            self.connection.shard().enter();
        }
    }

    /// It waits for the requests in flight only.
    pub(super) fn rest(&mut self) {
        if self.busy {
            self.busy = false;
            self.connection.shard().leave();
        }
    }

    pub(super) fn too_slow(&self) -> End {
        self.connection.count(Counter::RequestTimeouts, 1);
        End::Because(Status::TooSlow)
    }

    /// Grows the receive buffer's share, with nothing in flight that holds memory (D4); says whether that was possible.
    fn wait_for_bytes(&mut self, more: u64) -> IoResult<bool> {
        let since = self.shared().clock.monotonic();
        while !self.connection.holds_nothing() {
            self.wait_for_room()?;
        }
        let limit = self.shared().limits.wait_timeout();
        let Some(more) = self.shared().budget.take(more, limit) else { return Ok(false) };
        self.share.absorb(more);
        if let Some(partial) = &mut self.partial {
            partial.pass_over(&self.connection.shared, since);
        }
        Ok(true)
    }

    fn wait_for_room(&self) -> IoResult<()> {
        self.connection.wait_for_room().map_err(|_| IoErrorKind::Interrupted.into())
    }

    /// Answers a request that is not admitted.
    pub(super) fn refuse(&mut self, header: FrameHeader, status: Status) -> IoResult<()> {
        while self.connection.in_flight() >= IN_FLIGHT_MAX {
            self.wait_for_room()?;
        }
        let (id, opcode) = (header.id, header.opcode);
        let asked = Asked { id, opcode, held_bytes: 0, reads: false };
        self.connection.begin(0);
        self.connection.answer(asked, Told::Status(status), None);
        Ok(())
    }

    /// A whole frame whose checksum is right. `body` is what its payload has been charged with
    /// already.
    pub(super) fn accept(
        &mut self,
        header: FrameHeader,
        payload: Vec<u8>,
        body: Option<KindShare>,
    ) -> IoResult<()> {
        let Ok(request) = Request::decode(header.opcode, &payload) else {
            let known = Opcode::from_number(header.opcode).is_some_and(|o| o != Opcode::Goodbye);
            let status = if known { Status::Malformed } else { Status::UnknownOperation };
            return self.refuse(header, status);
        };
        if let Request::Authenticate { user, password } = request {
            let status = self.authenticate(user, password);
            return self.refuse(header, status);
        }
        if !self.is_admitted() {
            return self.refuse(header, Status::Unauthenticated);
        }
        if request == Request::Ping {
            return self.refuse(header, Status::Ok);
        }
        let turn = match request {
            Request::Backup => match Turn::take(self.shared()) {
                Ok(turn) => Some(turn),
                Err(status) => return self.refuse(header, status),
            },
            _ => None,
        };
        let held_bytes = held_bytes(self.shared(), &request);
        let bytes = held_bytes.saturating_add(needed_bytes(&request, payload.len() as u64));
        let (share, counted) = body.map(KindShare::into_parts).unzip();
        let Some(share) = self.admit(held_bytes, bytes, share)? else {
            self.connection.count(Counter::StoreNoMemory, 1);
            return self.refuse(header, Status::Failed(ErrorKind::OutOfMemory));
        };
        let mut hashes = std::mem::take(&mut self.hashes);
        let access = access_of(&request, self.shared(), &mut hashes);
        let (ticket, waits) = self.connection.order.borrow_mut().line_up(access);
        self.hashes = hashes;
        self.connection.begin(held_bytes);
        let lasts = turn.is_some();
        if lasts {
            self.connection.begin_backup();
        }
        let job = Job {
            connection: self.connection.clone(),
            asked: Asked { id: header.id, opcode: header.opcode, held_bytes, reads: false },
            payload,
            share: Some(share),
            _counted: counted,
            ticket,
            waits,
            turn,
            answered: false,
        };
        match TaskPlace::take(self.shared(), self.connection.core) {
            None if !lasts => job.run().send(),
            // A backup needs no place: there is one at a time, and the session cannot wait for its end. Nobody joins a job:
            // it answers for itself (J1).
            place => drop(esker_trt::spawn(move || {
                let connection = job.run();
                // Sending lasts as long as the client likes. One task of a connection does (L1): such stacks are as few as sessions.
                drop(place);
                connection.send();
            })),
        }
        Ok(())
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Status {
        self.connection.count(Counter::AuthCmds, 1);
        // Where nobody is asked, everybody is known.
        let known = self.shared().auth.as_ref().is_none_or(|known| known.knows(user, password));
        if !known {
            self.connection.count(Counter::AuthErrors, 1);
            return Status::CredentialsRefused;
        }
        self.connection.to_say.set(None);
        Status::Ok
    }

    /// Waits until the connection has room for a request that holds `bytes`, `held_bytes` of them
    /// until its reply is sent; `None` if there was no memory for too long (D2, D4).
    fn admit(
        &mut self,
        held_bytes: u64,
        bytes: u64,
        mut share: Option<Share>,
    ) -> IoResult<Option<Share>> {
        if bytes.saturating_add(self.share.bytes()) > self.shared().budget.total_bytes() {
            return Ok(None);
        }
        loop {
            let (in_flight, held) = (self.connection.in_flight(), self.connection.held_bytes());
            let alone = self.connection.holds_nothing();
            let fits =
                held == 0 || held_bytes == 0 || held.saturating_add(held_bytes) <= OUTPUT_BYTES_MAX;
            if in_flight < IN_FLIGHT_MAX && fits {
                let more = bytes.saturating_sub(share.as_ref().map_or(0, Share::bytes));
                if let Some(taken) = &mut share {
                    if taken.try_grow(more) {
                        return Ok(share);
                    }
                    if alone {
                        // It holds what others may wait for: it does not wait itself.
                        return Ok(None);
                    }
                } else if let Some(taken) = self.shared().budget.try_take(more) {
                    return Ok(Some(taken));
                } else if alone {
                    return Ok(self.shared().take_waiting(more));
                }
            }
            self.wait_for_room()?;
        }
    }
}

/// A session that panics keeps no stop of the server waiting.
impl<D: Duplex + 'static> Drop for Session<D> {
    fn drop(&mut self) {
        self.rest();
    }
}

/// Bytes of values that a request may hold until its reply is sent.
pub(super) fn held_bytes(shared: &Shared, request: &Request<'_>) -> u64 {
    match request {
        Request::Get { key } => shared.store.read_size_bytes(key),
        Request::MultiGet(keys) => charge(shared, *keys, MULTI_GET_BYTES_MAX),
        Request::Stats => STATS_BYTES,
        _ => 0,
    }
}

/// Bytes that a request of `payload_bytes` takes besides what it reads.
fn needed_bytes(request: &Request<'_>, payload_bytes: u64) -> u64 {
    let Request::Batch(changes) = request else { return payload_bytes };
    // A batch is made of its changes anew.
    let places = (changes.iter().count() as u64).saturating_mul(CHANGE_BYTES);
    payload_bytes.saturating_mul(2).saturating_add(places)
}

/// What a request touches. `hashes` is room for those of its keys.
fn access_of<'k>(request: &Request<'_>, shared: &Shared, hashes: &'k mut Vec<u64>) -> Access<'k> {
    hashes.clear();
    let hash = |key: &[u8]| shared.access.hash(key);
    let writes = match request {
        Request::Sync | Request::Stats | Request::Backup => return Access::AfterAll,
        Request::Clear | Request::Ping | Request::Authenticate { .. } => return Access::Between,
        Request::Get { key } => {
            hashes.push(hash(key));
            false
        }
        Request::MultiGet(keys) => {
            hashes.extend(keys.iter().take(KEYS_MAX + 1).map(hash));
            false
        }
        Request::Put(put) => {
            hashes.push(hash(put.key));
            true
        }
        Request::Delete { key, .. } => {
            hashes.push(hash(key));
            true
        }
        Request::Batch(changes) => {
            hashes.extend(changes.iter().take(KEYS_MAX + 1).map(|change| hash(change.key)));
            true
        }
    };
    match hashes.len() > KEYS_MAX {
        true => Access::Between,
        false if writes => Access::Write(hashes),
        false => Access::Read(hashes),
    }
}
