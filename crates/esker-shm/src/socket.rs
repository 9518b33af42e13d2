//! What `std` has no call for: connecting to a socket file in limited time, and ringing without waiting.

use esker_base::clock::{Clock, SystemClock};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, send, socket_with,
};
use std::io::{ErrorKind, Result};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Connects to the socket file at `path`. Where a server accepts nobody, and as many as may wait for it do, whoever connects
/// waits, too: as a write would, up to `limit`.
///
/// # Errors
/// `TimedOut`; the kernel's.
pub fn connect(path: &Path, limit: Duration) -> Result<UnixStream> {
    let end = SystemClock.monotonic().saturating_add(limit);
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        let left = end.saturating_sub(SystemClock.monotonic());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        set_socket_timeout(&socket, Timeout::Send, Some(left))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Rings a bell. A full one has rung often enough, whether the other side hears it or not; a closed one is found by its reader.
pub fn ring_bell(bell: impl AsFd) {
    let _ = send(bell, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}
