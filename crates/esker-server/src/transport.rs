//! A connection as a session sees it: a stream of bytes, each call with its own time limit.
//!
//! Sessions are generic over [`Transport`]: [`Plain`] is a socket of the run-time, TCP or Unix, and
//! `tls` has one that encrypts.
//!
//! # Failure
//! A call that has waited for its limit fails with `TimedOut` and has done nothing: the same call
//! may be made again.

use esker_trt::net::Stream;
use std::io::{IoSlice, Result};
use std::net::Shutdown;
use std::time::Duration;

/// How long a connection that the server ends waits for the client to see it.
pub(crate) const LINGER: Duration = Duration::from_millis(500);
/// What is read, and dropped, of a connection that the server has ended.
const LINGER_BYTES_MAX: usize = 1 << 20;

/// A stream of bytes in both directions.
pub(crate) trait Transport {
    /// Reads what is there; 0 at the end of the stream.
    fn read(&mut self, into: &mut [u8], timeout: Option<Duration>) -> Result<usize>;

    /// Takes what fits of `slices`.
    fn write_vectored(
        &mut self,
        slices: &[IoSlice<'_>],
        timeout: Option<Duration>,
    ) -> Result<usize>;

    /// Whether something that was taken is not sent yet.
    fn holds_back(&self) -> bool;

    /// Sends what was taken and is held back.
    fn flush(&mut self, timeout: Duration) -> Result<()>;

    /// Says that no more is sent, and waits until the client has closed, too, at most `limit`: bytes
    /// that nobody has read would make the kernel reset the connection, and the client could lose
    /// the last reply.
    fn linger(&mut self, limit: Duration);
}

/// A socket.
#[derive(Debug)]
pub(crate) struct Plain(Stream);

impl Plain {
    /// Takes over an accepted stream. Replies are whole, so they are sent without delay; a client
    /// that vanished is noticed in the end.
    pub(crate) fn new(stream: Stream) -> Plain {
        if let Ok(fd) = stream.as_fd() {
            let socket = socket2::SockRef::from(&fd);
            // Neither exists on a Unix socket, and nothing depends on them.
            let _ = socket.set_tcp_nodelay(true);
            let _ = socket.set_keepalive(true);
        }
        Plain(stream)
    }

    /// The socket, for a transport on top of this one.
    pub(crate) fn stream(&self) -> &Stream {
        &self.0
    }
}

impl Transport for Plain {
    fn read(&mut self, into: &mut [u8], timeout: Option<Duration>) -> Result<usize> {
        self.0.set_deadline(timeout);
        self.0.read(into)
    }

    fn write_vectored(
        &mut self,
        slices: &[IoSlice<'_>],
        timeout: Option<Duration>,
    ) -> Result<usize> {
        self.0.set_deadline(timeout);
        match slices {
            // The plain call is cheaper in the kernel.
            [only] => self.0.write(only),
            _ => self.0.write_vectored(slices),
        }
    }

    fn holds_back(&self) -> bool {
        false
    }

    fn flush(&mut self, _timeout: Duration) -> Result<()> {
        Ok(())
    }

    fn linger(&mut self, limit: Duration) {
        linger(&self.0, limit);
    }
}

/// See [`Transport::linger`].
pub(crate) fn linger(stream: &Stream, limit: Duration) {
    let mut scrap = [0; 4096];
    stream.set_deadline(Some(limit));
    // Any failure means that there is nothing left to wait for.
    if stream.shutdown(Shutdown::Write).is_ok() {
        let mut left = LINGER_BYTES_MAX;
        while let Ok(count) = stream.read(&mut scrap)
            && count > 0
            && left > 0
        {
            left = left.saturating_sub(count);
        }
    }
}
