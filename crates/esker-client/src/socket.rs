//! A connected socket, TCP, encrypted or Unix, or a stream in shared memory, that one thread reads while others
//! write.

use crate::address::Address;
use crate::options::Options;
use crate::shared::SharedMemory;
use crate::tls::Encrypted;
use esker_base::{Error, ErrorKind, Result};
use std::io::{Read, Result as IoResult, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
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
    /// TCP only, as on the server. Through shared memory there is a stream for each core of the server, else one.
    pub(crate) fn connect(address: &Address, options: &Options) -> Result<Vec<Socket>> {
        let limit = options.connect_timeout;
        let failed = |source| {
            let error = Error::io("connect", source);
            // What the system calls an invalid argument is not the caller's.
            let kind = match error.kind() {
                ErrorKind::Timeout => ErrorKind::Timeout,
                _ => ErrorKind::Io,
            };
            error.with_kind(kind).context(address.to_string())
        };
        match address {
            Address::Unix(path) => {
                UnixStream::connect(path).map(|stream| vec![Socket::Unix(stream)]).map_err(failed)
            }
            Address::Shared(path) => {
                let socket = UnixStream::connect(path).map_err(failed)?;
                socket.set_read_timeout(Some(at_least(limit))).map_err(failed)?;
                let streams = SharedMemory::connect(&socket)?.into_iter();
                Ok(streams.map(|stream| Socket::Shared(Box::new(stream))).collect())
            }
            Address::Tcp(host, port) => {
                let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
                for address in (host.as_str(), *port).to_socket_addrs().map_err(failed)? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => {
                            // Requests are whole: they are sent without delay.
                            stream.set_nodelay(true).map_err(failed)?;
                            let Some(tls) = &options.tls else {
                                return Ok(vec![Socket::Tcp(stream)]);
                            };
                            set_tcp_timeouts(&stream, Some(limit), limit).map_err(failed)?;
                            let encrypted = Encrypted::connect(stream, tls, host);
                            return Ok(vec![Socket::Encrypted(Box::new(
                                encrypted.map_err(failed)?,
                            ))]);
                        }
                        Err(error) => last = error,
                    }
                }
                Err(failed(last))
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

    pub(crate) fn read(&self, into: &mut [u8]) -> IoResult<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(into),
            Socket::Encrypted(stream) => stream.read(into),
            Socket::Unix(stream) => (&*stream).read(into),
            Socket::Shared(stream) => stream.read(into),
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

fn set_tcp_timeouts(stream: &TcpStream, read: Option<Duration>, write: Duration) -> IoResult<()> {
    stream.set_read_timeout(read.map(at_least))?;
    stream.set_write_timeout(Some(at_least(write)))
}

/// Zero would mean for ever.
fn at_least(limit: Duration) -> Duration {
    limit.max(Duration::from_millis(1))
}
