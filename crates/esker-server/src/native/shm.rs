//! The native protocol through shared memory: FlatRPC's shape (FlatStore §4.3) for clients of the same host.
//!
//! A client has a stream to every core and chooses by the key's hash; each is a session of its core, as over a
//! socket. The client writes requests into the core's ring, the core writes replies into the client's. What asks for the
//! kernel is only the bell of a side that sleeps, and of a client's bells one core rings all: its *agent*. The other cores
//! delegate to it. A transport over RDMA verbs would put its work requests in the agent's place.
//!
//! # Invariants
//! - M1: bells of clients are rung by the client's agent core only.
//! - M2: a core that finds nothing polls for some turns of its tasks, then announces that it sleeps and waits for its
//!   bell: an idle connection takes no processor time.
//! - M3: whatever the client writes is copied before it is looked at (`esker-shm`); what breaks the rules of the ring
//!   ends the connection, and nothing else.
//!
//! # Failure
//! The end of a bell is the end of the connection: what came before it is served. Everything of a client goes back when its
//! sessions have ended: memory, descriptors, its place.

use super::Session;
use super::duplex::Duplex;
use crate::budget::{KindShare, Share};
use crate::limits::{Limits, RECEIVE_BYTES_MIN};
use crate::shared::Shared;
use esker::Result;
use esker_base::Error;
use esker_base::clock::Clock;
use esker_base::ids::CoreId;
use esker_format::native::Status;
use esker_shm::{Endpoint, Reader, STREAMS_MAX, Writer, handshake};
use esker_trt::net::Stream;
use esker_trt::sync::Signal;
use esker_trt::{Runtime, current_core};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::cell::Cell;
use std::io::{Error as IoError, ErrorKind as IoErrorKind, IoSlice, Result as IoResult};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of a ring.
const CAPACITY: usize = 64 << 10;
/// Turns of its core that a session polls before it sleeps.
const TURNS: u32 = 100;
/// How long a session that waits for room in a ring rests, at first and at most.
const REST_MIN: Duration = Duration::from_micros(20);
const REST_MAX: Duration = Duration::from_millis(1);

/// Streams of a connection to a server with `cores` cores.
fn streams(cores: usize) -> usize {
    cores.clamp(1, STREAMS_MAX)
}

/// Bytes that a client with so many streams takes as long as it is there: its rings, and a receive buffer for each stream.
fn client_bytes(streams: usize) -> u64 {
    let buffers = (streams as u64).saturating_mul(RECEIVE_BYTES_MIN as u64);
    handshake::memory_bytes(streams, CAPACITY).saturating_add(buffers)
}

/// How many clients of a server with `cores` cores find memory at the same time, and how many bytes each takes.
pub(crate) fn room(limits: &Limits, cores: usize) -> (u64, u64) {
    let each = client_bytes(streams(cores));
    (limits.rings_max_bytes() / each.max(1), each)
}

/// Who rings the bells of one client.
#[derive(Debug)]
pub(crate) struct Agent {
    core: CoreId,
    bells: Vec<OwnedFd>,
    /// Streams whose bell is asked for.
    wanted: AtomicU64,
    asked: Signal,
    /// Sessions that have not ended.
    sessions: AtomicUsize,
    /// When something came from the client last, or it had its last reply, by any stream, in nanoseconds of the server's clock.
    heard_at: AtomicU64,
    /// Streams by which it waits for replies.
    waiting: AtomicUsize,
}

impl Agent {
    /// Wakes the client's side of `stream`, or lets the agent core do so.
    fn ring(&self, stream: usize) {
        if current_core() == Some(self.core) {
            self.ring_now(stream);
        } else {
            self.wanted.fetch_or(1 << stream, Ordering::AcqRel);
            self.asked.set();
        }
    }

    fn ring_now(&self, stream: usize) {
        if let Some(bell) = self.bells.get(stream) {
            esker_shm::ring_bell(bell);
        }
    }

    /// The agent's whole life.
    pub(crate) fn run(&self) {
        while self.sessions.load(Ordering::Acquire) > 0 {
            self.asked.wait();
            let wanted = self.wanted.swap(0, Ordering::AcqRel);
            let asked = (0..self.bells.len()).filter(|stream| wanted & 1 << stream != 0);
            asked.for_each(|stream| self.ring_now(stream));
        }
    }

    fn session_ended(&self) {
        self.sessions.fetch_sub(1, Ordering::AcqRel);
        self.asked.set();
    }
}

/// A stream of a client.
pub(crate) struct SharedMemory {
    reader: Reader,
    writer: Writer,
    bell: Stream,
    agent: Arc<Agent>,
    stream: usize,
    clock: Arc<dyn Clock>,
    /// The client is gone, or was sent away.
    ended: Cell<bool>,
}

impl SharedMemory {
    /// What is left until the moment when a read has taken too long, which is `timeout` from the first time that this is asked.
    fn left(&self, until: &mut Option<Duration>, timeout: Duration) -> IoResult<Duration> {
        let now = self.clock.monotonic();
        let left = until.get_or_insert(now.saturating_add(timeout)).saturating_sub(now);
        if left.is_zero() { Err(IoErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Whether the client still holds its end of the bell; looked at without taking anything from it, and whatever it has rung.
    fn is_gone(&self) -> bool {
        let Ok(bell) = self.bell.as_fd() else { return true };
        let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        let mut polled = [PollFd::from_borrowed_fd(bell, gone)];
        let found = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        self.ended.get() || found.is_ok() && polled.iter().any(|fd| fd.revents().intersects(gone))
    }

    fn note_heard(&self) {
        self.agent.heard_at.store(nanoseconds(self.clock.monotonic()), Ordering::Relaxed);
    }

    fn write_some(&self, slices: &[IoSlice<'_>]) -> IoResult<usize> {
        let mut taken = 0_usize;
        for slice in slices {
            let count = self.writer.write(slice)?;
            taken = taken.saturating_add(count);
            if count < slice.len() {
                break;
            }
        }
        if self.writer.must_ring() {
            self.agent.ring(self.stream);
        }
        esker_trt::work(taken);
        Ok(taken)
    }
}

impl Duplex for SharedMemory {
    fn read(&self, into: &mut [u8], timeout: Option<Duration>) -> IoResult<usize> {
        esker_trt::work(0);
        let mut turns = 0;
        // A bell without anything in the ring gives no more time.
        let mut until = None;
        loop {
            let count = self.reader.read(into)?;
            if count > 0 || self.ended.get() {
                self.note_heard();
                esker_trt::worked(count);
                return Ok(count);
            }
            if turns < TURNS {
                turns = turns.saturating_add(1);
                esker_trt::yield_now();
                continue;
            }
            let left = timeout.map(|timeout| self.left(&mut until, timeout)).transpose()?;
            if self.reader.announce_sleep() {
                self.bell.set_read_deadline(left);
                let rung = self.bell.read(&mut [0; 64]);
                self.reader.awake();
                match rung {
                    // What was written before is read first.
                    Ok(0) => self.ended.set(true),
                    Ok(_) => {}
                    Err(error) if error.kind() == IoErrorKind::ConnectionReset => {
                        self.ended.set(true);
                    }
                    Err(error) => return Err(error),
                }
            }
            turns = 0;
        }
    }

    fn write_vectored(&self, slices: &[IoSlice<'_>], timeout: Duration) -> IoResult<usize> {
        let (mut rest, mut left) = (REST_MIN, timeout);
        loop {
            if self.ended.get() {
                return Err(IoErrorKind::BrokenPipe.into());
            }
            let taken = self.write_some(slices)?;
            if taken > 0 {
                return Ok(taken);
            }
            if self.is_gone() {
                return Err(IoErrorKind::BrokenPipe.into());
            }
            if left.is_zero() {
                return Err(IoErrorKind::TimedOut.into());
            }
            esker_trt::sleep_cancellable(rest)
                .map_err(|_| IoError::from(IoErrorKind::Interrupted))?;
            left = left.saturating_sub(rest);
            rest = rest.saturating_mul(2).min(REST_MAX);
        }
    }

    fn flush(&self, _timeout: Duration) -> IoResult<()> {
        Ok(())
    }

    fn break_off(&self) {
        self.ended.set(true);
        // It may be broken off already.
        let _ = self.bell.shutdown(Shutdown::Both);
    }

    fn linger(&self, _limit: Duration) {
        // What was written stays in the memory until the client has read it.
        let _ = self.bell.shutdown(Shutdown::Both);
    }

    fn silent_for(&self) -> Option<Duration> {
        if self.agent.waiting.load(Ordering::Acquire) > 0 {
            return Some(Duration::ZERO);
        }
        let heard_at = Duration::from_nanos(self.agent.heard_at.load(Ordering::Relaxed));
        Some(self.clock.monotonic().saturating_sub(heard_at))
    }

    fn note_waiting(&self, waits: bool) {
        if waits {
            self.agent.waiting.fetch_add(1, Ordering::AcqRel);
        } else {
            // Before that, or another stream could find it neither waiting nor heard.
            self.note_heard();
            self.agent.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // The agent has the bell, too, so its end must be said.
        let _ = self.bell.shutdown(Shutdown::Both);
        self.agent.session_ended();
    }
}

/// What all sessions of a client hold.
struct Held<P> {
    _place: P,
    _memory: (Share, Share),
}

/// Starts the sessions of the client that has connected by `socket`. The caller, a task of `core`, runs the agent that
/// comes back; none comes if the client was refused for want of memory. `place` goes back when the last session has
/// ended.
///
/// # Errors
/// The kernel's.
pub(crate) fn serve<P: Send + Sync + 'static>(
    shared: &Arc<Shared>,
    runtime: &Runtime,
    socket: &Stream,
    core: usize,
    place: P,
) -> Result<Option<Arc<Agent>>> {
    let failed = |source| Error::io("share memory", source);
    let fd = socket.as_fd().map_err(failed)?;
    let count = streams(runtime.cores());
    // Without waiting: who is there keeps what it has, and all requests would wait behind this one.
    let mut memory = KindShare::new(&shared.budget, &shared.rings);
    if !memory.try_grow(client_bytes(count)) {
        let status = Status::Failed(esker::ErrorKind::OutOfMemory);
        return esker_shm::refuse(fd, status.number().into()).map(|()| None);
    }
    let endpoints = esker_shm::offer(fd, count, CAPACITY)?;
    // All that may fail comes before the first session: no client is served by half.
    let (mut bells, mut sides) = (Vec::new(), Vec::new());
    for Endpoint { reader, writer, bell } in endpoints {
        bells.push(bell.as_fd().try_clone_to_owned().map_err(failed)?);
        sides.push((reader, writer, Stream::from_fd(bell).map_err(failed)?));
    }
    let core = CoreId(u16::try_from(core).unwrap_or(0));
    let agent = Arc::new(Agent {
        core,
        bells,
        wanted: AtomicU64::new(0),
        asked: Signal::new(),
        sessions: AtomicUsize::new(count),
        heard_at: AtomicU64::new(nanoseconds(shared.clock.monotonic())),
        waiting: AtomicUsize::new(0),
    });
    let (mut memory, counted) = memory.into_parts();
    let buffers: Vec<_> =
        sides.iter().filter_map(|_| memory.split(RECEIVE_BYTES_MIN as u64)).collect();
    let held = Arc::new(Held { _place: place, _memory: (memory, counted) });
    for (stream, ((reader, writer, bell), share)) in sides.into_iter().zip(buffers).enumerate() {
        let ended = Cell::new(false);
        let agent = Arc::clone(&agent);
        let clock = Arc::clone(&shared.clock);
        let duplex = SharedMemory { reader, writer, bell, agent, stream, clock, ended };
        let (shared, held) = (Arc::clone(shared), Arc::clone(&held));
        // Nobody joins a session: it ends with its client, and a panic ends only it.
        let _ = runtime.spawn_on(CoreId(u16::try_from(stream).unwrap_or(0)), move || {
            let _held = held;
            Session::new(shared, stream, duplex, share).run();
        });
    }
    Ok(Some(agent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::clock::SystemClock;
    use esker_trt::Config;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    /// The server's side of a stream, and the client's.
    fn stream() -> (SharedMemory, Endpoint) {
        let (server, client) = UnixStream::pair().expect("sockets");
        let mut offered = esker_shm::offer(server.as_fd(), 1, CAPACITY).expect("offer");
        let mut taken = esker_shm::accept(client.as_fd()).expect("accept").expect("no refusal");
        let Endpoint { reader, writer, bell } = offered.pop().expect("a stream");
        let agent = Arc::new(Agent {
            core: CoreId(0),
            bells: Vec::new(),
            wanted: AtomicU64::new(0),
            asked: Signal::new(),
            sessions: AtomicUsize::new(1),
            heard_at: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        });
        let bell = Stream::from_fd(bell).expect("a bell");
        let (clock, ended) = (Arc::new(SystemClock), Cell::new(false));
        let server = SharedMemory { reader, writer, bell, agent, stream: 0, clock, ended };
        (server, taken.pop().expect("a stream"))
    }

    /// A session rests until it has received something, and a stop must not find it so in between.
    #[test]
    fn a_read_gives_way_before_it_takes_something_and_never_after() {
        let runtime = Runtime::start(Config { cores: 1, ..Config::default() }).expect("run-time");
        let reads = runtime.spawn(|| {
            let (server, client) = stream();
            let (turns, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (counted, stop) = (turns.clone(), ended.clone());
            let other = esker_trt::spawn(move || {
                while !stop.get() {
                    counted.set(counted.get() + 1);
                    esker_trt::yield_now();
                }
            });
            let mut bytes = [0; 8 << 10];
            for _ in 0..100 {
                assert_eq!(client.writer.write(&bytes).expect("write"), bytes.len());
                // Here is the place to give way.
                esker_trt::work(0);
                let before = turns.get();
                assert_eq!(server.read(&mut bytes, None).expect("read"), bytes.len());
                assert_eq!(turns.get(), before);
            }
            assert!(turns.get() > 1, "the others had their turns");
            ended.set(true);
            other.join().expect("no panic");
        });
        reads.join().expect("no panic");
    }
}
