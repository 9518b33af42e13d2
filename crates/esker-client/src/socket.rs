//! A connected socket, TCP or Unix, that one thread reads while others write.

use crate::address::Address;
use esker_base::{Error, ErrorKind, Result};
use std::io::{Read, Result as IoResult, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects within `limit`, each address of the host in turn.
    pub(crate) fn connect(address: &Address, limit: Duration) -> Result<Socket> {
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
            Address::Unix(path) => UnixStream::connect(path).map(Socket::Unix).map_err(failed),
            Address::Tcp(host, port) => {
                let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
                for address in (host.as_str(), *port).to_socket_addrs().map_err(failed)? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => {
                            // Requests are whole: they are sent without delay.
                            stream.set_nodelay(true).map_err(failed)?;
                            return Ok(Socket::Tcp(stream));
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
        // Zero would mean for ever.
        let (read, write) = (read.map(at_least), Some(at_least(write)));
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
        }
    }

    pub(crate) fn read(&self, into: &mut [u8]) -> IoResult<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(into),
            Socket::Unix(stream) => (&*stream).read(into),
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> IoResult<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write(bytes),
            Socket::Unix(stream) => (&*stream).write(bytes),
        }
    }

    /// Ends both directions: whoever reads or writes comes back.
    pub(crate) fn shut_down(&self) {
        // It may have ended already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

fn at_least(limit: Duration) -> Duration {
    limit.max(Duration::from_millis(1))
}
