//! Hellos: the first bytes of each side, of fixed size, so that nobody waits for a size that a
//! stranger named.
//!
//! The client says the highest version that it speaks. The server answers with the version that is
//! spoken from here on, not above the client's, and its limits; or with a status that says why it
//! ends the connection.

use super::{Status, VERSION};
use crate::Flaw;
use esker_base::checksum::crc32c;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a client's hello in bytes.
pub const CLIENT_HELLO_SIZE: usize = 16;
/// Size of a server's hello in bytes.
pub const SERVER_HELLO_SIZE: usize = 40;

const MAGIC: [u8; 8] = *b"ESKNATIV";
const MARK_AUTHENTICATE: u8 = 1;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawClient {
    pub(crate) checksum: U32,
    pub(crate) version: U16,
    pub(crate) reserved: [u8; 2],
    pub(crate) magic: [u8; 8],
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawServer {
    pub(crate) checksum: U32,
    pub(crate) version: U16,
    pub(crate) status: u8,
    pub(crate) marks: u8,
    pub(crate) magic: [u8; 8],
    pub(crate) in_flight_max: U32,
    pub(crate) request_size_max: U32,
    pub(crate) reply_size_max: U32,
    pub(crate) key_size_max: U32,
    pub(crate) value_size_max: U32,
    pub(crate) reserved: [u8; 4],
}

const _: () = assert!(size_of::<RawClient>() == CLIENT_HELLO_SIZE);
const _: () = assert!(size_of::<RawServer>() == SERVER_HELLO_SIZE);

/// The first bytes of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The highest version that the client speaks.
    pub version: u16,
}

/// The first bytes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHello {
    /// The version that is spoken.
    pub version: u16,
    /// `Ok`, or why the server ends the connection.
    pub status: Status,
    /// Whether the client has to authenticate before anything else.
    pub authenticate: bool,
    /// Requests of one connection that run at the same time; what is sent beyond waits in the
    /// connection.
    pub in_flight_max: u32,
    /// Largest payload of a request in bytes.
    pub request_size_max: u32,
    /// Largest payload of a reply in bytes.
    pub reply_size_max: u32,
    /// Largest key in bytes.
    pub key_size_max: u32,
    /// Largest value in bytes.
    pub value_size_max: u32,
}

impl ClientHello {
    /// The hello as bytes.
    #[must_use]
    pub fn encode(self) -> [u8; CLIENT_HELLO_SIZE] {
        let mut raw = RawClient {
            checksum: 0.into(),
            version: self.version.into(),
            reserved: [0; 2],
            magic: MAGIC,
        };
        raw.checksum = checksum(raw.as_bytes()).into();
        zerocopy::transmute!(raw)
    }

    /// Reads and checks a hello.
    ///
    /// # Errors
    /// The first [`Flaw`] found; `Magic` for something that does not speak this protocol.
    pub fn decode(bytes: &[u8; CLIENT_HELLO_SIZE]) -> Result<ClientHello, Flaw> {
        let raw: RawClient = zerocopy::transmute!(*bytes);
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        if raw.checksum.get() != checksum(bytes) {
            return Err(Flaw::Checksum);
        }
        if raw.version.get() == 0 || raw.reserved != [0; 2] {
            return Err(Flaw::Field("version"));
        }
        Ok(ClientHello { version: raw.version.get() })
    }
}

impl ServerHello {
    /// The hello of a server that ends the connection.
    #[must_use]
    pub fn refusal(status: Status) -> ServerHello {
        ServerHello {
            version: VERSION,
            status,
            authenticate: false,
            in_flight_max: 0,
            request_size_max: 0,
            reply_size_max: 0,
            key_size_max: 0,
            value_size_max: 0,
        }
    }

    /// The hello as bytes.
    #[must_use]
    pub fn encode(self) -> [u8; SERVER_HELLO_SIZE] {
        let mut raw = RawServer {
            checksum: 0.into(),
            version: self.version.into(),
            status: self.status.number(),
            marks: if self.authenticate { MARK_AUTHENTICATE } else { 0 },
            magic: MAGIC,
            in_flight_max: self.in_flight_max.into(),
            request_size_max: self.request_size_max.into(),
            reply_size_max: self.reply_size_max.into(),
            key_size_max: self.key_size_max.into(),
            value_size_max: self.value_size_max.into(),
            reserved: [0; 4],
        };
        raw.checksum = checksum(raw.as_bytes()).into();
        zerocopy::transmute!(raw)
    }

    /// Reads and checks a hello. Unknown marks are refused: a server sends those that the version
    /// has, and no others.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(bytes: &[u8; SERVER_HELLO_SIZE]) -> Result<ServerHello, Flaw> {
        let raw: RawServer = zerocopy::transmute!(*bytes);
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        if raw.checksum.get() != checksum(bytes) {
            return Err(Flaw::Checksum);
        }
        if raw.version.get() == 0 {
            return Err(Flaw::Field("version"));
        }
        if raw.marks & !MARK_AUTHENTICATE != 0 || raw.reserved != [0; 4] {
            return Err(Flaw::Field("marks"));
        }
        Ok(ServerHello {
            version: raw.version.get(),
            status: Status::from_number(raw.status).ok_or(Flaw::Field("status"))?,
            authenticate: raw.marks & MARK_AUTHENTICATE != 0,
            in_flight_max: raw.in_flight_max.get(),
            request_size_max: raw.request_size_max.get(),
            reply_size_max: raw.reply_size_max.get(),
            key_size_max: raw.key_size_max.get(),
            value_size_max: raw.value_size_max.get(),
        })
    }
}

/// Over everything behind the checksum.
fn checksum(hello: &[u8]) -> u32 {
    crc32c(hello.get(size_of::<u32>()..).unwrap_or_default())
}
