//! A connected socket, TCP, encrypted or Unix, or a stream in shared memory, that one thread reads while others
//! write.

use crate::address::Address;
use crate::deadline::Deadline;
use crate::options::Options;
use crate::shared::SharedMemory;
use crate::tls::Encrypted;
use esker_base::{Error, ErrorKind, Result};
use std::io::{Error as IoError, ErrorKind as IoErrorKind, Read, Result as IoResult, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Encrypted(Box<Encrypted>),
    Unix(UnixStream),
    Shared(Box<SharedMemory>),
}

impl Socket {
    /// Connects, each address of the host in turn, and shakes hands if TLS is asked for: that is for
    /// TCP only, as on the server. Through shared memory there is a stream for each core of the server, else one. Says
    /// until when the server has to have greeted.
    pub(crate) fn connect(address: &Address, options: &Options) -> Result<(Vec<Socket>, Deadline)> {
        let failed = |source: std::io::Error| {
            let error = Error::io("connect", source);
            // What the system calls an invalid argument is not the caller's.
            let kind = match error.kind() {
                ErrorKind::Timeout => ErrorKind::Timeout,
                _ => ErrorKind::Io,
            };
            error.with_kind(kind).context(address.to_string())
        };
        let begin = || Deadline::after(options.connect_timeout);
        match address {
            Address::Unix(path) => {
                let deadline = begin();
                let stream = esker_shm::connect(path, options.connect_timeout).map_err(failed)?;
                Ok((vec![Socket::Unix(stream)], deadline))
            }
            Address::Shared(path) => {
                let deadline = begin();
                let socket = esker_shm::connect(path, options.connect_timeout).map_err(failed)?;
                let left = deadline.left().map_err(failed)?;
                socket.set_read_timeout(Some(left)).map_err(failed)?;
                let streams = SharedMemory::connect(&socket)?.into_iter();
                Ok((streams.map(|stream| Socket::Shared(Box::new(stream))).collect(), deadline))
            }
            Address::Tcp(host, port) => {
                let found = (host.as_str(), *port).to_socket_addrs().map_err(failed)?;
                // The system takes as long as it takes to find a name: that does not count.
                let deadline = begin();
                let stream = connect_tcp(found.collect(), deadline).map_err(failed)?;
                let socket = match &options.tls {
                    None => Socket::Tcp(stream),
                    Some(tls) => {
                        let encrypted = Encrypted::connect(stream, tls, host, deadline);
                        Socket::Encrypted(Box::new(encrypted.map_err(failed)?))
                    }
                };
                Ok((vec![socket], deadline))
            }
        }
    }

    /// How long reads and writes may wait.
    pub(crate) fn set_timeouts(&self, read: Option<Duration>, write: Duration) -> IoResult<()> {
        match self {
            Socket::Tcp(stream) => set_tcp_timeouts(stream, read, write),
            Socket::Encrypted(stream) => set_tcp_timeouts(stream.socket(), read, write),
            Socket::Unix(stream) => {
                stream.set_read_timeout(read.map(at_least))?;
                stream.set_write_timeout(Some(at_least(write)))
            }
            Socket::Shared(stream) => stream.set_timeouts(read.map(at_least), at_least(write)),
        }
    }

    /// Whether a write that fails has taken nothing.
    pub(crate) fn fails_whole(&self) -> bool {
        !matches!(self, Socket::Encrypted(_))
    }

    /// Reads what is there, until a moment if there is one, else for as long as reads may wait.
    pub(crate) fn read(&self, into: &mut [u8], until: Option<Deadline>) -> IoResult<usize> {
        // What has to come more than once before there is something to read has no more time for that.
        let left = || until.map(|until| until.left().map(at_least)).transpose();
        match self {
            Socket::Tcp(stream) => {
                left()?.map_or(Ok(()), |left| stream.set_read_timeout(Some(left)))?;
                (&*stream).read(into)
            }
            Socket::Encrypted(stream) => stream.read(into, left),
            Socket::Unix(stream) => {
                left()?.map_or(Ok(()), |left| stream.set_read_timeout(Some(left)))?;
                (&*stream).read(into)
            }
            Socket::Shared(stream) => stream.read(into, left),
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> IoResult<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write(bytes),
            Socket::Encrypted(stream) => stream.write(bytes),
            Socket::Unix(stream) => (&*stream).write(bytes),
            Socket::Shared(stream) => stream.write(bytes),
        }
    }

    /// Says that nothing more will be written. What was written reaches the server, whose replies can be read.
    pub(crate) fn end_writing(&self) {
        // It may have ended already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Encrypted(stream) => stream.socket().shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
            // What stands in the memory is read whether there is an end or not.
            Socket::Shared(stream) => stream.shut_down(),
        };
    }

    /// Ends both directions: whoever reads or writes comes back.
    pub(crate) fn shut_down(&self) {
        // It may have ended already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Encrypted(stream) => stream.socket().shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
            Socket::Shared(stream) => stream.shut_down(),
        };
    }
}

/// Connects to the first of `addresses` that answers: one that does not leaves the others their share of the time.
fn connect_tcp(addresses: Vec<SocketAddr>, deadline: Deadline) -> IoResult<TcpStream> {
    let mut last = IoError::from(IoErrorKind::NotFound);
    let count = addresses.len();
    for (tried, address) in addresses.into_iter().enumerate() {
        let share = deadline.share(count.saturating_sub(tried))?;
        match TcpStream::connect_timeout(&address, share.left()?) {
            Ok(stream) => {
                // Requests are whole: they are sent without delay.
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn set_tcp_timeouts(stream: &TcpStream, read: Option<Duration>, write: Duration) -> IoResult<()> {
    stream.set_read_timeout(read.map(at_least))?;
    stream.set_write_timeout(Some(at_least(write)))
}

/// Zero would mean for ever.
fn at_least(limit: Duration) -> Duration {
    limit.max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next_one() {
        let [silent, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("bind"));
        // Once its queue is full, the system answers nobody.
        rustix::net::listen(&silent, 0).expect("a short queue");
        let at = |listener: &TcpListener| listener.local_addr().expect("bound");
        let moment = Duration::from_millis(200);
        let waiting: Vec<TcpStream> =
            (0..4).map_while(|_| TcpStream::connect_timeout(&at(&silent), moment).ok()).collect();
        assert!(waiting.len() < 4, "the queue is full");
        let deadline = Deadline::after(Duration::from_secs(2));
        let found = connect_tcp(vec![at(&silent), at(&other)], deadline).expect("the other one");
        assert_eq!(found.peer_addr().expect("connected"), at(&other));
    }
}
