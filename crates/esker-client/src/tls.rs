//! TLS over a socket that one thread reads while others write: `rustls` driven by hand.
//!
//! # Invariants
//! - Y1: the state machine is locked only while nobody waits for the socket.
//! - Y2: records leave in the order in which the machine made them: whoever writes has the turn from before its text goes in
//!   until all records that came out are sent.
//! - Y3: the reader never sends, so that it never waits for the server to read: one that waits for its replies to be taken
//!   would not. What the protocol itself has to say, such as an answer to a new key, leaves before the next text.

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{ErrorKind as IoErrorKind, Read, Result as IoResult, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// Ciphertext that is received at once.
const RECEIVE_BYTES: usize = 16 << 10;

/// Whom a client trusts. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

impl Tls {
    /// Trusts servers with a certificate that one of `roots`, in PEM, has signed, or is. One that is an authority's by its own
    /// words (`CA:TRUE`) can only sign.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that is something else.
    pub fn from_pem(roots: &[u8]) -> Result<Tls> {
        let wrong =
            |error: &dyn std::fmt::Display| Error::invalid(format!("certificates: {error}"));
        let mut store = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(roots) {
            let root = root.map_err(|error| wrong(&error))?;
            store.add(root).map_err(|error| wrong(&error))?;
        }
        if store.is_empty() {
            return Err(wrong(&"there is none"));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?
            .with_root_certificates(store)
            .with_no_client_auth();
        Ok(Tls { config: Arc::new(config), name: None })
    }

    /// The name that the certificate has to be for, if it is not the host of the address.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no name.
    pub fn with_name(mut self, name: &str) -> Result<Tls> {
        let parsed = ServerName::try_from(name.to_owned());
        self.name = Some(parsed.map_err(|error| Error::invalid(format!("{name:?}: {error}")))?);
        Ok(self)
    }
}

/// Ciphertext that the state machine has not taken yet: it takes no more while it holds text.
#[derive(Debug)]
struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// An encrypted connection.
#[derive(Debug)]
pub(crate) struct Encrypted {
    socket: TcpStream,
    machine: Mutex<ClientConnection>,
    /// The reader's.
    incoming: Mutex<Incoming>,
    /// Held by whoever writes.
    turn: Mutex<()>,
}

impl Encrypted {
    /// Shakes hands with `host` on `socket`.
    pub(crate) fn connect(
        socket: TcpStream,
        tls: &Tls,
        host: &str,
        deadline: Deadline,
    ) -> IoResult<Encrypted> {
        let name = match &tls.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?,
        };
        let mut machine =
            ClientConnection::new(tls.config.clone(), name).map_err(std::io::Error::other)?;
        while machine.is_handshaking() {
            machine.complete_io(&mut Until { socket: &socket, deadline })?;
        }
        let incoming = Incoming { bytes: vec![0; RECEIVE_BYTES], start: 0, end: 0 };
        Ok(Encrypted {
            socket,
            machine: Mutex::new(machine),
            incoming: Mutex::new(incoming),
            turn: Mutex::new(()),
        })
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Reads what is there; 0 at the end. One thread reads. `left` says how long it may wait, if that is not what it may wait
    /// otherwise.
    pub(crate) fn read(
        &self,
        into: &mut [u8],
        left: impl Fn() -> IoResult<Option<Duration>>,
    ) -> IoResult<usize> {
        let mut incoming = self.incoming.lock();
        loop {
            let mut machine = self.machine.lock();
            match machine.reader().read(into) {
                Err(error) if error.kind() == IoErrorKind::WouldBlock => {}
                // Frames say how long they are: an end without TLS's own end is an end.
                Err(error) if error.kind() == IoErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            let (start, end) = (incoming.start, incoming.end);
            let mut rest = incoming.bytes.get(start..end).unwrap_or_default();
            if !rest.is_empty() {
                let taken = machine.read_tls(&mut rest)?;
                if taken == 0 {
                    return Err(IoErrorKind::InvalidData.into());
                }
                let processed = machine.process_new_packets();
                processed.map_err(|error| std::io::Error::new(IoErrorKind::InvalidData, error))?;
                incoming.start = start.saturating_add(taken);
                continue;
            }
            drop(machine);
            if let Some(left) = left()? {
                self.socket.set_read_timeout(Some(left))?;
            }
            let count = (&self.socket).read(&mut incoming.bytes)?;
            if count == 0 {
                return Ok(0);
            }
            (incoming.start, incoming.end) = (0, count);
        }
    }

    /// Takes and sends what fits of `bytes`. After an error any part of them may have been sent.
    pub(crate) fn write(&self, bytes: &[u8]) -> IoResult<usize> {
        let _turn = self.turn.lock();
        loop {
            let taken = self.machine.lock().writer().write(bytes)?;
            self.send_records()?;
            if taken > 0 || bytes.is_empty() {
                return Ok(taken);
            }
        }
    }

    /// Sends all records there are; the caller has the turn.
    fn send_records(&self) -> IoResult<()> {
        let mut records = Vec::new();
        {
            let mut machine = self.machine.lock();
            while machine.wants_write() {
                machine.write_tls(&mut records)?;
            }
        }
        (&self.socket).write_all(&records)
    }
}

/// A socket up to a deadline: each read and each write waits for what is left.
struct Until<'s> {
    socket: &'s TcpStream,
    deadline: Deadline,
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> IoResult<usize> {
        loop {
            self.socket.set_read_timeout(Some(self.deadline.left()?))?;
            match (&*self.socket).read(into) {
                Err(error) if error.kind() == IoErrorKind::Interrupted => {}
                Err(error) if error.kind() == IoErrorKind::WouldBlock => {
                    return Err(IoErrorKind::TimedOut.into());
                }
                done => return done,
            }
        }
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        loop {
            self.socket.set_write_timeout(Some(self.deadline.left()?))?;
            match (&*self.socket).write(bytes) {
                Err(error) if error.kind() == IoErrorKind::Interrupted => {}
                Err(error) if error.kind() == IoErrorKind::WouldBlock => {
                    return Err(IoErrorKind::TimedOut.into());
                }
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};
    use std::net::TcpListener;

    /// A server that takes nothing while its replies are not taken.
    #[test]
    fn replies_are_read_while_a_writer_waits_for_the_server() {
        const TURNS: usize = 2;
        /// More than sockets hold.
        const TURN_BYTES: usize = 24 << 20;
        const PIECE_BYTES: usize = 4000;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("bound");
        let patient = |socket: TcpStream| {
            socket.set_nodelay(true).expect("nodelay");
            socket.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
            socket.set_write_timeout(Some(Duration::from_secs(20))).expect("timeout");
            socket
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = patient(listener.accept().expect("accept").0);
                let machine = ServerConnection::new(Arc::new(config)).expect("server");
                let mut stream = StreamOwned::new(machine, socket);
                let mut turn = vec![7; TURN_BYTES];
                for _ in 0..TURNS {
                    stream.write_all(&turn).expect("the client reads");
                    stream.read_exact(&mut turn).expect("the client writes");
                }
                stream.flush().expect("sent");
            });
            let tls = Tls::from_pem(made.cert.pem().as_bytes()).expect("valid");
            let socket = patient(TcpStream::connect(address).expect("connect"));
            let deadline = Deadline::after(Duration::from_secs(20));
            let reader = Encrypted::connect(socket, &tls, "localhost", deadline);
            let reader = reader.expect("shaken hands");
            let reader = Arc::new(reader);
            let client = Arc::clone(&reader);
            scope.spawn(move || {
                let mut left = TURNS * TURN_BYTES;
                while left > 0 {
                    let piece = [7; PIECE_BYTES];
                    let piece = piece.get(..left.min(PIECE_BYTES)).unwrap_or_default();
                    left -= client.write(piece).expect("the server reads in the end");
                }
            });
            let (mut seen, mut into) = (0, vec![0; 4 << 10]);
            while seen < TURNS * TURN_BYTES {
                let count = reader.read(&mut into, || Ok(None)).expect("the server writes");
                assert!(count > 0 && into.iter().take(count).all(|byte| *byte == 7));
                seen += count;
            }
        });
    }
}
