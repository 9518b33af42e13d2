//! TLS over a socket of the run-time: `rustls` driven by hand.
//!
//! The state machine of `rustls` does no input or output; this module carries its records between
//! it and the socket, where a task is suspended as on any other socket.
//!
//! # Invariants
//! - T1: plaintext that was taken is never offered again: what the socket did not take in time stays
//!   with the state machine, and [`Transport::flush`] goes on with it.
//! - T2: the handshake has a limit of time of its own: nobody holds a place by beginning one.
//!
//! # Failure
//! A client that does not speak TLS, or speaks it wrong, hears an alert and is closed. An end of the
//! stream without TLS's own end is an end: every request says how long it is.

use crate::budget::Share;
use crate::transport::{Plain, Transport};
use esker::{Error, Result};
use esker_trt::net::Stream;
use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use std::io::{ErrorKind as IoErrorKind, IoSlice, Read, Result as IoResult, Write};
use std::sync::Arc;
use std::time::Duration;

/// Memory that the state machine of a connection may take, both directions.
pub(crate) const CONNECTION_BYTES: u64 = 64 << 10;
/// Ciphertext of replies that the state machine holds at most.
const SEND_BYTES_MAX: usize = 32 << 10;

/// Certificate and key of a server. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl Tls {
    /// Reads the chain of certificates and the private key, both in PEM; one text may have both.
    ///
    /// # Errors
    /// `InvalidArgument` for texts that are something else, or do not fit.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Tls> {
        let wrong = |what: &str, error: &dyn std::fmt::Display| {
            Error::invalid("read TLS files", format!("{what}: {error}"))
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| wrong("certificates", &error))?;
        if chain.is_empty() {
            return Err(wrong("certificates", &"there is none"));
        }
        let key_der =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong("private key", &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key_der))
            .map_err(|error| wrong("certificates and key", &error))?;
        Ok(Tls(Arc::new(RwLock::new(Arc::new(config)))))
    }

    /// From now on connections begin with certificate and key of `other`; those that there are go on.
    pub fn replace_by(&self, other: &Tls) {
        let other = other.0.read().clone();
        *self.0.write() = other;
    }
}

/// An encrypted connection.
#[derive(Debug)]
pub(crate) struct Encrypted {
    socket: Plain,
    machine: ServerConnection,
    share: Share,
}

/// The socket as the state machine's reader and writer.
struct Wire<'s>(&'s Stream);

impl Read for Wire<'_> {
    fn read(&mut self, into: &mut [u8]) -> IoResult<usize> {
        self.0.read(into)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> IoResult<usize> {
        self.0.write_vectored(slices)
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }
}

impl Encrypted {
    /// Shakes hands on `socket` within `limit`. `share` is for [`CONNECTION_BYTES`].
    pub(crate) fn accept(
        socket: Plain,
        tls: &Tls,
        share: Share,
        limit: Duration,
    ) -> IoResult<Encrypted> {
        let mut machine =
            ServerConnection::new(tls.0.read().clone()).map_err(std::io::Error::other)?;
        machine.set_buffer_limit(Some(SEND_BYTES_MAX));
        let mut connection = Encrypted { socket, machine, share };
        connection.socket.stream().set_deadline(Some(limit));
        while connection.machine.is_handshaking() {
            connection.send_records()?;
            if connection.machine.is_handshaking() && !connection.receive_records()? {
                return Err(IoErrorKind::UnexpectedEof.into());
            }
        }
        connection.send_records()?;
        Ok(connection)
    }

    /// Socket, state machine and share of memory, for those who read and write at the same time.
    pub(crate) fn into_parts(self) -> (Plain, ServerConnection, Share) {
        (self.socket, self.machine, self.share)
    }

    /// Sends every record there is. The deadline is set.
    fn send_records(&mut self) -> IoResult<()> {
        while self.machine.wants_write() {
            if self.machine.write_tls(&mut Wire(self.socket.stream()))? == 0 {
                return Err(IoErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Receives something; says whether the stream goes on. The deadline is set.
    fn receive_records(&mut self) -> IoResult<bool> {
        if self.machine.read_tls(&mut Wire(self.socket.stream()))? == 0 {
            return Ok(false);
        }
        if let Err(error) = self.machine.process_new_packets() {
            // The alert is a courtesy.
            let _ = self.send_records();
            return Err(std::io::Error::new(IoErrorKind::InvalidData, error));
        }
        Ok(true)
    }
}

impl Transport for Encrypted {
    fn read(&mut self, into: &mut [u8], timeout: Option<Duration>) -> IoResult<usize> {
        self.socket.stream().set_deadline(timeout);
        loop {
            match self.machine.reader().read(into) {
                Err(error) if error.kind() == IoErrorKind::WouldBlock => {}
                Err(error) if error.kind() == IoErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            // What the protocol itself has to say, such as an answer to a new key.
            self.send_records()?;
            if !self.receive_records()? {
                return Ok(0);
            }
        }
    }

    fn write_vectored(
        &mut self,
        slices: &[IoSlice<'_>],
        timeout: Option<Duration>,
    ) -> IoResult<usize> {
        self.socket.stream().set_deadline(timeout);
        loop {
            match self.machine.writer().write_vectored(slices)? {
                0 => self.send_records()?,
                taken => return Ok(taken),
            }
        }
    }

    fn holds_back(&self) -> bool {
        self.machine.wants_write()
    }

    fn flush(&mut self, timeout: Duration) -> IoResult<()> {
        self.socket.stream().set_deadline(Some(timeout));
        self.send_records()
    }

    fn linger(&mut self, limit: Duration) {
        self.machine.send_close_notify();
        self.socket.stream().set_deadline(Some(limit));
        // Any failure means that nobody listens.
        if self.send_records().is_ok() {
            self.socket.linger(limit);
        }
    }
}
