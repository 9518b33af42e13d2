//! Connecting to a socket file in limited time, for which `std` has no call.

use esker_base::clock::{Clock, SystemClock};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io::{ErrorKind, Result};
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
