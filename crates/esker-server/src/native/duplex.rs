//! A connection of which one task reads while another writes.
//!
//! [`Plain`] is a socket. [`Encrypted`] drives the state machine of `rustls`: it borrows it only between
//! suspensions, and carries its records to and from the socket.
//!
//! # Invariants
//! - X1: records leave in the order in which the state machine made them: whoever sends holds the
//!   turn until all are sent, or puts the rest back.
//! - X2: a call that fails with `TimedOut` has lost nothing: the same call may be made again.
//! - X3: the reader sends nothing: a client that takes its replies late would else stop what it sends from being
//!   received, and wait for that itself.

use crate::budget::Share;
use crate::tls;
use crate::transport::{Plain, linger};
use esker_trt::local::{Permit, Semaphore};
use rustls::ServerConnection;
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind as IoErrorKind, IoSlice, Read as _, Result as IoResult, Write as _};
use std::net::Shutdown;
use std::time::Duration;

/// Ciphertext that is received at once.
const RECEIVE_BYTES: usize = 4096;

/// A stream of bytes in both directions at once.
pub(crate) trait Duplex {
    /// Reads what is there; 0 at the end of the stream. Others may run before it takes what it returns, and not after: a session
    /// rests until then.
    fn read(&self, into: &mut [u8], timeout: Option<Duration>) -> IoResult<usize>;

    /// Takes what fits of `slices`.
    fn write_vectored(&self, slices: &[IoSlice<'_>], timeout: Duration) -> IoResult<usize>;

    /// Sends what was taken and is held back.
    fn flush(&self, timeout: Duration) -> IoResult<()>;

    /// Ends both directions at once: a task that reads or writes comes back.
    fn break_off(&self);

    /// As the `linger` of a [`Transport`](crate::transport::Transport).
    fn linger(&self, limit: Duration);

    /// How long nothing has come from the client and it has waited for no reply, by whichever of its streams; `None` if it has
    /// only this one.
    fn silent_for(&self) -> Option<Duration> {
        None
    }

    /// From here on the client `waits` for replies by this stream, or does not any more.
    fn note_waiting(&self, _waits: bool) {}
}

impl Duplex for Plain {
    fn read(&self, into: &mut [u8], timeout: Option<Duration>) -> IoResult<usize> {
        self.stream().set_read_deadline(timeout);
        self.stream().read(into)
    }

    fn write_vectored(&self, slices: &[IoSlice<'_>], timeout: Duration) -> IoResult<usize> {
        self.stream().set_write_deadline(Some(timeout));
        match slices {
            // The plain call is cheaper in the kernel.
            [only] => self.stream().write(only),
            _ => self.stream().write_vectored(slices),
        }
    }

    fn flush(&self, _timeout: Duration) -> IoResult<()> {
        Ok(())
    }

    fn break_off(&self) {
        // It may be broken off already.
        let _ = self.stream().shutdown(Shutdown::Both);
    }

    fn linger(&self, limit: Duration) {
        linger(self.stream(), limit);
    }
}

/// Ciphertext that is not sent yet.
#[derive(Default)]
struct Records {
    bytes: Vec<u8>,
    sent: usize,
}

/// Ciphertext that the state machine has not taken yet: it takes no more while it holds text.
#[derive(Default)]
struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// An encrypted connection.
pub(crate) struct Encrypted {
    socket: Plain,
    machine: RefCell<ServerConnection>,
    records: RefCell<Records>,
    /// The reader's; elsewhere while it reads.
    incoming: Cell<Incoming>,
    turn: Semaphore,
    _share: Share,
}

impl Encrypted {
    /// Takes over a connection that has shaken hands.
    pub(crate) fn new(connection: tls::Encrypted) -> Encrypted {
        let (socket, machine, share) = connection.into_parts();
        Encrypted {
            socket,
            machine: RefCell::new(machine),
            records: RefCell::default(),
            incoming: Cell::default(),
            turn: Semaphore::new(1),
            _share: share,
        }
    }

    /// Sends every record there is.
    fn send_records(&self, timeout: Duration) -> IoResult<()> {
        let turn = self.turn.acquire(1);
        self.send_records_in(turn, timeout)
    }

    fn send_records_in(&self, _turn: Permit<'_>, timeout: Duration) -> IoResult<()> {
        self.socket.stream().set_write_deadline(Some(timeout));
        loop {
            let mut records = self.records.take();
            if records.sent == records.bytes.len() {
                records.bytes.clear();
                records.sent = 0;
                let mut machine = self.machine.borrow_mut();
                while machine.wants_write() {
                    machine.write_tls(&mut records.bytes)?;
                }
            }
            let rest = records.bytes.get(records.sent..).unwrap_or_default();
            let sent = if rest.is_empty() { Ok(0) } else { self.socket.stream().write(rest) };
            let done = rest.is_empty();
            records.sent = records.sent.saturating_add(*sent.as_ref().unwrap_or(&0));
            self.records.replace(records);
            if sent? == 0 {
                return if done { Ok(()) } else { Err(IoErrorKind::WriteZero.into()) };
            }
        }
    }

    /// What the client has sent as text; `None` if more ciphertext is needed for some.
    fn take_text(&self, into: &mut [u8]) -> Option<IoResult<usize>> {
        match self.machine.borrow_mut().reader().read(into) {
            Err(error) if error.kind() == IoErrorKind::WouldBlock => None,
            Err(error) if error.kind() == IoErrorKind::UnexpectedEof => Some(Ok(0)),
            result => Some(result),
        }
    }

    /// Gives the state machine some of what came; says whether there was something.
    fn take_records(&self, incoming: &mut Incoming) -> IoResult<bool> {
        let mut rest = incoming.bytes.get(incoming.start..incoming.end).unwrap_or_default();
        if rest.is_empty() {
            return Ok(false);
        }
        let mut machine = self.machine.borrow_mut();
        let taken = machine.read_tls(&mut rest)?;
        if taken == 0 {
            return Err(IoErrorKind::InvalidData.into());
        }
        incoming.start = incoming.start.saturating_add(taken);
        machine
            .process_new_packets()
            .map_err(|error| std::io::Error::new(IoErrorKind::InvalidData, error))?;
        Ok(true)
    }

    fn read_with(
        &self,
        incoming: &mut Incoming,
        into: &mut [u8],
        timeout: Option<Duration>,
    ) -> IoResult<usize> {
        self.socket.stream().set_read_deadline(timeout);
        incoming.bytes.resize(RECEIVE_BYTES, 0);
        loop {
            if let Some(result) = self.take_text(into) {
                return result;
            }
            match self.take_records(incoming) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    // The alert is a courtesy, for which nobody waits.
                    if let Some(turn) = self.turn.try_acquire(1) {
                        let _ = self.send_records_in(turn, Duration::ZERO);
                    }
                    return Err(error);
                }
            }
            // Nothing is sent here, not even what the protocol itself has to say, such as an answer to a new key: that
            // leaves with the next reply (X3).
            let count = self.socket.stream().read(&mut incoming.bytes)?;
            if count == 0 {
                return Ok(0);
            }
            (incoming.start, incoming.end) = (0, count);
        }
    }
}

impl Duplex for Encrypted {
    fn read(&self, into: &mut [u8], timeout: Option<Duration>) -> IoResult<usize> {
        let mut incoming = self.incoming.take();
        let result = self.read_with(&mut incoming, into, timeout);
        self.incoming.set(incoming);
        result
    }

    fn write_vectored(&self, slices: &[IoSlice<'_>], timeout: Duration) -> IoResult<usize> {
        loop {
            let taken = self.machine.borrow_mut().writer().write_vectored(slices)?;
            if taken > 0 {
                return Ok(taken);
            }
            self.send_records(timeout)?;
        }
    }

    fn flush(&self, timeout: Duration) -> IoResult<()> {
        self.send_records(timeout)
    }

    fn break_off(&self) {
        self.socket.break_off();
    }

    fn linger(&self, limit: Duration) {
        self.machine.borrow_mut().send_close_notify();
        // Any failure means that nobody listens.
        if self.send_records(limit).is_ok() {
            linger(self.socket.stream(), limit);
        }
    }
}
