//! A stream in memory that is shared with a server of this host: the client's side of FlatRPC's shape (FlatStore
//! §4.3).
//!
//! Requests are written straight into the ring of the core that serves them. Whoever finds nothing to read looks
//! for a moment longer, then announces that it sleeps and waits for its bell.
//!
//! # Concurrency
//! One thread reads, one at a time writes.
//!
//! # Failure
//! The end of the bell is the end of the server; what it wrote before is read first.

use esker_base::clock::{Clock, SystemClock};
use esker_base::{Error, ErrorKind, Result};
use esker_format::native::Status;
use esker_shm::{Endpoint, Reader, Writer};
use std::io::{Error as IoError, ErrorKind as IoErrorKind, Read, Result as IoResult};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often a reader looks before it sleeps: some microseconds, about the time of a reply.
const LOOKS: u32 = 300;
/// How long a writer that waits for room rests, at first and at most.
const REST_MIN: Duration = Duration::from_micros(20);
const REST_MAX: Duration = Duration::from_millis(1);

/// A stream to one core of a server.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    reader: Reader,
    writer: Writer,
    bell: UnixStream,
    ended: AtomicBool,
    write_timeout_ns: AtomicU64,
}

impl SharedMemory {
    /// The streams that the server at the other end of `socket` offers, one for each of its cores.
    pub(crate) fn connect(socket: &UnixStream) -> Result<Vec<SharedMemory>> {
        let endpoints = esker_shm::accept(socket.as_fd())?.map_err(|status| {
            let status = u8::try_from(status).ok().and_then(Status::from_number);
            match status.unwrap_or(Status::BadFrame) {
                Status::Failed(kind) => Error::new(kind, "greet server"),
                status => Error::new(ErrorKind::Io, "greet server").context(status.words()),
            }
        })?;
        let stream = |Endpoint { reader, writer, bell }| SharedMemory {
            reader,
            writer,
            bell: bell.into(),
            ended: AtomicBool::new(false),
            write_timeout_ns: AtomicU64::new(u64::MAX),
        };
        Ok(endpoints.into_iter().map(stream).collect())
    }

    pub(crate) fn set_timeouts(&self, read: Option<Duration>, write: Duration) -> IoResult<()> {
        let write_ns = u64::try_from(write.as_nanos()).unwrap_or(u64::MAX);
        self.write_timeout_ns.store(write_ns, Ordering::Relaxed);
        self.bell.set_read_timeout(read)
    }

    /// Reads what is there; 0 at the end. One thread reads. `left` says how long it may wait, if that is not what it may wait
    /// otherwise.
    pub(crate) fn read(
        &self,
        into: &mut [u8],
        left: impl Fn() -> IoResult<Option<Duration>>,
    ) -> IoResult<usize> {
        let mut looks = 0_u32;
        loop {
            let count = self.reader.read(into)?;
            if count > 0 || self.ended.load(Ordering::Acquire) {
                return Ok(count);
            }
            if looks < LOOKS {
                looks = looks.saturating_add(1);
                std::hint::spin_loop();
                continue;
            }
            if let Some(left) = left()? {
                self.bell.set_read_timeout(Some(left))?;
            }
            if self.reader.announce_sleep() {
                let rung = (&self.bell).read(&mut [0; 64]);
                self.reader.awake();
                let is_reset = |error: &IoError| error.kind() == IoErrorKind::ConnectionReset;
                match rung {
                    // What was written before is read first; by a server that left bells unread, too.
                    Ok(0) => self.ended.store(true, Ordering::Release),
                    Err(error) if is_reset(&error) => self.ended.store(true, Ordering::Release),
                    rung => drop(rung?),
                }
            }
            looks = 0;
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> IoResult<usize> {
        let limit = Duration::from_nanos(self.write_timeout_ns.load(Ordering::Relaxed));
        let end = SystemClock.monotonic().saturating_add(limit);
        let mut rest = REST_MIN;
        loop {
            if self.ended.load(Ordering::SeqCst) {
                return Err(IoErrorKind::BrokenPipe.into());
            }
            let count = self.writer.write(bytes)?;
            if self.writer.must_ring() {
                esker_shm::ring_bell(&self.bell);
            }
            if count > 0 || bytes.is_empty() {
                return Ok(count);
            }
            if SystemClock.monotonic() >= end {
                return Err(IoErrorKind::TimedOut.into());
            }
            std::thread::park_timeout(rest);
            rest = rest.saturating_mul(2).min(REST_MAX);
        }
    }

    pub(crate) fn shut_down(&self) -> IoResult<()> {
        // With what was offered (`Connection::write`): of two who each say one thing and look at the other, one sees it.
        self.ended.store(true, Ordering::SeqCst);
        self.bell.shutdown(Shutdown::Both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A bell that the server has not read resets the connection.
    #[test]
    fn what_a_server_wrote_before_it_ended_is_read_whether_it_heard_the_bell_or_not() {
        for rings in [false, true] {
            let (server, client) = UnixStream::pair().expect("sockets");
            let offered = esker_shm::offer(server.as_fd(), 1, 4096).expect("offer");
            let client = SharedMemory::connect(&client).expect("accept").remove(0);
            if rings {
                assert_eq!((&client.bell).write(b"!").expect("ring"), 1);
            }
            for server in offered {
                assert_eq!(server.writer.write(b"bye").expect("write"), 3);
            }
            let mut into = [0; 8];
            let mut read = || client.read(&mut into, || Ok(None));
            assert_eq!((read().expect("words"), read().expect("end")), (3, 0), "{rings}");
            assert_eq!(&into[..3], b"bye");
        }
    }
}
