//! Stream sockets for tasks and threads: TCP and Unix, one pair of types for both.
//!
//! Every call tries the non-blocking system call first. If it would block, a task is suspended
//! until its core's poller (epoll, or a multishot poll of io_uring) says that the socket is ready;
//! a thread blocks in `poll`. A socket belongs to the core on which it first had to wait: it may
//! move before that for nothing, and afterwards at the price of a new registration.
//!
//! A call that never has to wait is counted as work ([`work`]): a peer that sends faster than a task receives
//! does not keep the core from the others. They run before a read takes something, not between that and its return: the caller
//! can say in time that he has something to do.
//!
//! # Concurrency
//! `Send`, not `Sync`: calls take `&self`, so that two tasks of one core may read and write through
//! one `Rc<Stream>`.
//!
//! # Failure
//! A deadline that passes gives `TimedOut`. A shutdown gives `Interrupted` to a call that would
//! wait, never to one that can go on; `EINTR` itself is never returned, so that `Interrupted`
//! always means cancelled: do not retry it.

use crate::context;
use crate::sockets::{Interest, SocketKey};
use crate::task::{cancelled_error, is_cancelled, work, worked};
use crate::time::now;
use crate::wake::{Mailbox, Message, park, park_for};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// What accepting a connection counts for, as bytes of a transfer.
const ACCEPT_WORK: usize = 4 << 10;

/// Where a socket is watched.
struct Registration {
    mailbox: Arc<Mailbox>,
    key: SocketKey,
}

/// A socket with its registration and deadline.
struct Socket {
    /// Always there until the drop, which may have to send it to another core.
    fd: Option<OwnedFd>,
    registration: RefCell<Option<Registration>>,
    deadlines: Deadlines,
}

/// Until when calls may wait, by what they wait for: one task may read while another writes.
#[derive(Default)]
struct Deadlines {
    read: Cell<Option<Duration>>,
    write: Cell<Option<Duration>>,
}

impl Deadlines {
    fn of(&self, interest: Interest) -> &Cell<Option<Duration>> {
        match interest {
            Interest::Read => &self.read,
            Interest::Write => &self.write,
        }
    }
}

impl Socket {
    fn new(fd: OwnedFd) -> io::Result<Socket> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Socket::nonblocking(fd))
    }

    fn nonblocking(fd: OwnedFd) -> Socket {
        let deadlines = Deadlines::default();
        Socket { fd: Some(fd), registration: RefCell::new(None), deadlines }
    }

    fn fd(&self) -> io::Result<&OwnedFd> {
        self.fd.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn set_deadline(&self, from_now: Option<Duration>) {
        let deadline = from_now.map(|limit| now().saturating_add(limit));
        self.deadlines.read.set(deadline);
        self.deadlines.write.set(deadline);
    }

    fn set_deadline_of(&self, interest: Interest, from_now: Option<Duration>) {
        self.deadlines.of(interest).set(from_now.map(|limit| now().saturating_add(limit)));
    }

    /// The key of this socket on the calling task's core, if it is watched there.
    fn key_here(&self) -> Option<SocketKey> {
        let registration = self.registration.borrow();
        let registration = registration.as_ref()?;
        context::with_task(|core, _| {
            Arc::ptr_eq(core.mailbox(), &registration.mailbox).then_some(registration.key)
        })
        .flatten()
    }

    /// Runs `call` until it does not say "would block".
    fn retry<T>(
        &self,
        interest: Interest,
        mut call: impl FnMut(&OwnedFd) -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        let fd = self.fd()?;
        loop {
            // A socket known to be empty is not asked again.
            let key = self.key_here();
            let known_blocked = key.is_some_and(|key| {
                context::with(|core| !core.socket_is_ready(key, interest)) == Some(true)
            });
            if !known_blocked {
                match call(fd) {
                    Err(Errno::AGAIN) => {
                        if let Some(key) = key {
                            context::with(|core| core.socket_drained(key, interest, true));
                        }
                    }
                    Err(Errno::INTR) => continue,
                    result => return Ok(result?),
                }
            }
            self.wait(fd, interest)?;
        }
    }

    /// Sends what fits of `bufs`, with what other tasks send if there are some, else by `call`.
    fn send(
        &self,
        bufs: &[IoSlice<'_>],
        call: impl FnMut(&OwnedFd) -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        let fd = self.fd()?;
        loop {
            let key = self.key_here();
            let known_blocked = key.is_some_and(|key| {
                context::with(|core| !core.socket_is_ready(key, Interest::Write)) == Some(true)
            });
            if known_blocked {
                return self.retry(Interest::Write, call);
            }
            let Some(sent) = crate::io::send_together(fd.as_fd(), key, bufs) else {
                return self.retry(Interest::Write, call);
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(fd, Interest::Write)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return sent,
            }
        }
    }

    /// Notes that a transfer gave less than was asked for: the next call need not try first.
    fn drained(&self, interest: Interest) {
        if let Some(key) = self.key_here() {
            context::with(|core| core.socket_drained(key, interest, false));
        }
    }

    fn wait(&self, fd: &OwnedFd, interest: Interest) -> io::Result<()> {
        if !crate::in_task() {
            return self.wait_on_thread(fd, interest);
        }
        let key = match self.key_here() {
            Some(key) => key,
            None => self.register(fd)?,
        };
        let me = context::with_task(|_, task| task.id);
        let result = loop {
            if context::with(|core| core.socket_is_ready(key, interest)) == Some(true) {
                break Ok(());
            }
            if is_cancelled() {
                let cause = cancelled_error("wait for socket");
                break Err(io::Error::new(io::ErrorKind::Interrupted, cause));
            }
            let left =
                self.deadlines.of(interest).get().map(|deadline| deadline.saturating_sub(now()));
            if left.is_some_and(|left| left.is_zero()) {
                break Err(io::ErrorKind::TimedOut.into());
            }
            // Again every time: an event takes all waiters off the list, and another task may have
            // used up what it announced.
            context::with_task(|core, task| core.socket_waits(key, interest, task.id));
            match left {
                None => park("socket"),
                Some(left) => park_for("socket", left),
            }
        };
        if let (Some(me), Err(_)) = (me, &result) {
            context::with(|core| core.socket_stops_waiting(key, interest, me));
        }
        result
    }

    /// Has the calling task's core watch the socket.
    fn register(&self, fd: &OwnedFd) -> io::Result<SocketKey> {
        if self.registration.borrow().is_some() {
            // The old core gets a duplicate to stop watching with. Where there is none it goes on, and hears of the drop.
            let duplicate = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
            if let Some(earlier) = self.registration.take() {
                earlier.mailbox.post(Message::Forget(earlier.key, duplicate));
            }
        }
        let watched = context::with_task(|core, _| {
            core.watch_socket(fd.as_fd()).map(|key| (Arc::clone(core.mailbox()), key))
        });
        match watched {
            Some(Ok((mailbox, key))) => {
                *self.registration.borrow_mut() = Some(Registration { mailbox, key });
                Ok(key)
            }
            Some(Err(error)) => Err(error),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn wait_on_thread(&self, fd: &OwnedFd, interest: Interest) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let flags = match interest {
            Interest::Read => PollFlags::IN,
            Interest::Write => PollFlags::OUT,
        };
        let limit = match self.deadlines.of(interest).get() {
            None => None,
            Some(deadline) => {
                let left = deadline.saturating_sub(now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Timespec::try_from(left).ok()
            }
        };
        match poll(&mut [PollFd::new(fd, flags)], limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let (Some(registration), Some(fd)) = (self.registration.take(), self.fd.take()) else {
            return;
        };
        let mut fd = Some(fd);
        context::with(|core| {
            if Arc::ptr_eq(core.mailbox(), &registration.mailbox)
                && let Some(fd) = fd.take()
            {
                core.forget_socket(registration.key, fd);
            }
        });
        if let Some(fd) = fd {
            registration.mailbox.post(Message::Forget(registration.key, fd));
        }
    }
}

/// A listening socket.
pub struct Listener(Socket);

/// A connected stream socket.
pub struct Stream(Socket);

impl Listener {
    /// Takes over a bound and listening socket, and makes it non-blocking.
    ///
    /// # Errors
    /// The kernel's.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Listener> {
        Socket::new(fd).map(Listener)
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// `Interrupted` at shutdown; `TimedOut` at the deadline; the kernel's, after some of which
    /// (`ECONNABORTED`, `EMFILE`) accepting can go on.
    pub fn accept(&self) -> io::Result<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd =
            self.0.retry(Interest::Read, |listener| rustix::net::accept_with(listener, flags))?;
        work(ACCEPT_WORK);
        Ok(Stream(Socket::nonblocking(fd)))
    }

    /// From now, how long a call may wait; `None`: for ever.
    pub fn set_deadline(&self, from_now: Option<Duration>) {
        self.0.set_deadline(from_now);
    }

    /// The address it listens on; `None` for a Unix socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn local_addr(&self) -> io::Result<Option<SocketAddr>> {
        let address = rustix::net::getsockname(self.0.fd()?)?;
        Ok(SocketAddr::try_from(address).ok())
    }
}

impl Stream {
    /// Takes over a connected socket, and makes it non-blocking.
    ///
    /// # Errors
    /// The kernel's.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Stream> {
        Socket::new(fd).map(Stream)
    }

    /// Reads what is there, at least one byte; 0 at the end of the stream, or for an empty buffer.
    ///
    /// # Errors
    /// `TimedOut` at the deadline; `Interrupted` at shutdown; the kernel's.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        work(0);
        let wanted = buf.len();
        let count = self.0.retry(Interest::Read, |fd| {
            rustix::net::recv(fd, &mut *buf, RecvFlags::empty()).map(|(count, _)| count)
        })?;
        if count > 0 && count < wanted {
            self.0.drained(Interest::Read);
        }
        worked(count);
        Ok(count)
    }

    /// Writes what fits, at least one byte unless `buf` is empty.
    ///
    /// # Errors
    /// As [`Stream::read`]. A closed peer is an error, never a signal.
    pub fn write(&self, buf: &[u8]) -> io::Result<usize> {
        let send = |fd: &OwnedFd| rustix::net::send(fd, buf, SendFlags::NOSIGNAL);
        let count = self.0.send(&[IoSlice::new(buf)], send)?;
        work(count);
        Ok(count)
    }

    /// Writes what fits of several buffers.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = self.0.send(bufs, |fd| {
            let mut control = rustix::net::SendAncillaryBuffer::default();
            rustix::net::sendmsg(fd, bufs, &mut control, SendFlags::NOSIGNAL)
        })?;
        work(count);
        Ok(count)
    }

    /// Writes all of `buf`.
    ///
    /// # Errors
    /// As [`Stream::write`]; how much was written is then unknown.
    pub fn write_all(&self, buf: &[u8]) -> io::Result<()> {
        self.write_all_vectored(&mut [IoSlice::new(buf)])
    }

    /// Writes all of several buffers. The slices are used up.
    ///
    /// # Errors
    /// As [`Stream::write`]; how much was written is then unknown.
    pub fn write_all_vectored(&self, bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        const VECTORS_MAX: usize = 1024;
        let mut left = bufs;
        // Empty buffers at the front are taken off without a call.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let batch = left.get(..VECTORS_MAX).unwrap_or(left);
            let count = self.write_vectored(batch)?;
            if count == 0 && batch.iter().any(|buf| !buf.is_empty()) {
                return Err(io::ErrorKind::WriteZero.into());
            }
            if count == 0 {
                let empty = batch.len();
                left = left.split_at_mut(empty).1;
            } else {
                IoSlice::advance_slices(&mut left, count);
            }
        }
        Ok(())
    }

    /// From now, how long reads and writes may wait, all together; `None`: for ever. Costs no
    /// system call: set it for every request.
    pub fn set_deadline(&self, from_now: Option<Duration>) {
        self.0.set_deadline(from_now);
    }

    /// As [`Stream::set_deadline`], for reads only: another task may write meanwhile.
    pub fn set_read_deadline(&self, from_now: Option<Duration>) {
        self.0.set_deadline_of(Interest::Read, from_now);
    }

    /// As [`Stream::set_deadline`], for writes only: another task may read meanwhile.
    pub fn set_write_deadline(&self, from_now: Option<Duration>) {
        self.0.set_deadline_of(Interest::Write, from_now);
    }

    /// The peer's address; `None` for a Unix socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn peer(&self) -> io::Result<Option<SocketAddr>> {
        let address = rustix::net::getpeername(self.0.fd()?)?;
        Ok(address.and_then(|address| SocketAddr::try_from(address).ok()))
    }

    /// Shuts down one direction or both.
    ///
    /// # Errors
    /// The kernel's.
    pub fn shutdown(&self, how: std::net::Shutdown) -> io::Result<()> {
        let how = match how {
            std::net::Shutdown::Read => Shutdown::Read,
            std::net::Shutdown::Write => Shutdown::Write,
            std::net::Shutdown::Both => Shutdown::Both,
        };
        Ok(rustix::net::shutdown(self.0.fd()?, how)?)
    }

    /// The socket itself, to set options.
    ///
    /// # Errors
    /// None while the stream is in use.
    pub fn as_fd(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.0.fd()?.as_fd())
    }
}

macro_rules! from_std {
    ($($wrapper:ident from $std:ty;)*) => {$(
        impl TryFrom<$std> for $wrapper {
            type Error = io::Error;

            fn try_from(socket: $std) -> io::Result<Self> {
                Self::from_fd(OwnedFd::from(socket))
            }
        }
    )*};
}

from_std! {
    Listener from std::net::TcpListener;
    Listener from std::os::unix::net::UnixListener;
    Stream from std::net::TcpStream;
    Stream from std::os::unix::net::UnixStream;
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.0.fd).finish()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.0.fd).finish()
    }
}

#[cfg(test)]
mod tests;
