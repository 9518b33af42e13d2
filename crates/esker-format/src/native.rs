//! What native clients and servers say to each other (`docs/format/native.md`).
//!
//! ```text
//! client:  | hello | frame | frame | ...
//! server:  | hello | frame | frame | ...          replies in any order, told apart by their id
//! frame:   | checksum | payload size | id | opcode | status | payload |
//! ```
//!
//! # Invariants
//! - W1: a decoder takes any bytes: it never panics, and allocates nothing at all. What it returns
//!   borrows from what it was given, so that no number of a peer asks for memory.
//! - W2: there is one way to write each request: what decodes is what its encoder writes.
//! - W3: a checksum covers every byte of a frame but itself.
//! - W4: opcodes, statuses and marks keep their numbers for ever; a number that has no meaning is
//!   refused and never guessed at.

mod frame;
mod hello;
mod reply;
mod request;

pub use frame::{FRAME_HEADER_SIZE, FrameHeader, begin_frame, end_frame, frame_header};
pub use hello::{CLIENT_HELLO_SIZE, ClientHello, SERVER_HELLO_SIZE, ServerHello};
pub use reply::{
    BackupReport, ITEM_HEAD_SIZE_MAX, Item, ItemHead, Items, MULTI_GET_ENTRY_SIZE, decode_version,
    encode_version, multi_get_entry,
};
pub use request::{
    Change, ChangeKind, Changes, Keys, PUT_OVERHEAD_MAX, Put, Request, push_change, push_key,
};

use crate::Flaw;
use esker_base::ErrorKind;
use esker_base::ids::Version;

/// The version of the protocol that this build speaks.
pub const VERSION: u16 = 1;

/// Longest key in bytes: sizes of keys take two bytes, where 0 stands for this.
pub const KEY_SIZE_MAX_BYTES: usize = 64 << 10;

/// The id of frames that belong to no request.
pub const NO_REQUEST: u32 = 0;

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// From the server, with id [`NO_REQUEST`]: why it ends the connection.
    Goodbye = 0,
    /// Answered at once.
    Ping = 1,
    /// Who the client is.
    Authenticate = 2,
    /// The value of a key.
    Get = 3,
    /// The values of several keys.
    MultiGet = 4,
    /// A value for a key.
    Put = 5,
    /// No value for a key.
    Delete = 6,
    /// Several puts and deletes, all or nothing.
    Batch = 7,
    /// Makes durable what was acknowledged.
    Sync = 8,
    /// Figures of the server, in words.
    Stats = 9,
    /// Deletes everything.
    Clear = 10,
    /// Copies the store to the folder that the server has for that.
    Backup = 11,
}

impl Opcode {
    /// Every opcode, in the order of their numbers.
    pub const ALL: [Opcode; 12] = [
        Opcode::Goodbye,
        Opcode::Ping,
        Opcode::Authenticate,
        Opcode::Get,
        Opcode::MultiGet,
        Opcode::Put,
        Opcode::Delete,
        Opcode::Batch,
        Opcode::Sync,
        Opcode::Stats,
        Opcode::Clear,
        Opcode::Backup,
    ];

    /// The opcode with that number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Opcode> {
        Opcode::ALL.get(usize::from(number)).copied()
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done.
    Ok,
    /// Not put: the key has a value.
    KeyExists,
    /// The key has no value.
    KeyMissing,
    /// The key's value has not the version that was asked for.
    VersionDiffers,
    /// The payload is none of this opcode. Nothing was done; the connection goes on.
    Malformed,
    /// The server does not know the opcode. Nothing was done; the connection goes on.
    UnknownOperation,
    /// The client has to say first who it is. Nothing was done.
    Unauthenticated,
    /// No such user, or another password.
    CredentialsRefused,
    /// A frame, value or batch over the server's limit. Nothing was done.
    TooLarge,
    /// The server's configuration forbids the operation.
    Forbidden,
    /// The bytes are no frame, or damaged: the server ends the connection.
    BadFrame,
    /// The server has all the connections it takes.
    TooManyConnections,
    /// The server does not speak the client's version.
    UnsupportedVersion,
    /// The rest of a frame did not come in time: the server ends the connection.
    TooSlow,
    /// The store failed.
    Failed(ErrorKind),
}

/// Numbers from here on are kinds of failures of the store.
const FAILED_BASE: u8 = 64;

impl Status {
    /// Every status that is no failure of the store, with its number.
    pub const PLAIN: [(Status, u8); 14] = [
        (Status::Ok, 0),
        (Status::KeyExists, 1),
        (Status::KeyMissing, 2),
        (Status::VersionDiffers, 3),
        (Status::Malformed, 16),
        (Status::UnknownOperation, 17),
        (Status::Unauthenticated, 18),
        (Status::CredentialsRefused, 19),
        (Status::TooLarge, 20),
        (Status::Forbidden, 21),
        (Status::BadFrame, 32),
        (Status::TooManyConnections, 33),
        (Status::UnsupportedVersion, 34),
        (Status::TooSlow, 35),
    ];

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Status::Failed(kind) => {
                FAILED_BASE.saturating_add(u8::try_from(kind as u32).unwrap_or(u8::MAX))
            }
            plain => {
                let found = Status::PLAIN.iter().find(|(status, _)| *status == plain);
                found.map_or(u8::MAX, |(_, number)| *number)
            }
        }
    }

    /// The status with that number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Status> {
        match number.checked_sub(FAILED_BASE) {
            None => {
                let found = Status::PLAIN.iter().find(|(_, plain)| *plain == number);
                found.map(|(status, _)| *status)
            }
            Some(kind) => {
                let found = ErrorKind::ALL.into_iter().find(|known| *known as u32 == kind.into());
                found.map(Status::Failed)
            }
        }
    }

    /// The status in words for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Status::Ok => "done",
            Status::KeyExists => "the key has a value",
            Status::KeyMissing => "the key has no value",
            Status::VersionDiffers => "the key's value has another version",
            Status::Malformed => "the payload does not fit the operation",
            Status::UnknownOperation => "the operation is not known",
            Status::Unauthenticated => "the client has not said who it is",
            Status::CredentialsRefused => "user or password is wrong",
            Status::TooLarge => "over a limit of the server",
            Status::Forbidden => "forbidden by the server's configuration",
            Status::BadFrame => "the bytes are no valid frame",
            Status::TooManyConnections => "too many connections",
            Status::UnsupportedVersion => "the version of the protocol is not spoken",
            Status::TooSlow => "the rest of the frame did not come in time",
            Status::Failed(kind) => kind.words(),
        }
    }
}

/// When a put or delete takes place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Always.
    #[default]
    Always,
    /// Only if the key has no value.
    Absent,
    /// Only if the key has a value.
    Present,
    /// Only if the key's value has this version.
    VersionIs(Version),
}

/// What is kept beside a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// Opaque number of the client.
    pub flags: u32,
    /// Wall time in seconds since 1970 from which the value is gone; `None`: never.
    pub expires_at: Option<u64>,
    /// Four bits for the layer above, 0 to 15; higher bits are not sent.
    pub state: u8,
}

/// Flags follow; without the mark they are 0.
const MARK_FLAGS: u8 = 4;
/// An expiry follows.
const MARK_EXPIRES: u8 = 8;
/// The low two bits are a condition, or a kind of change.
const MARK_LOW: u8 = 3;
const STATE_SHIFT: u32 = 4;

impl Attributes {
    /// The marks that announce what [`Attributes::push`] writes.
    fn marks(self) -> u8 {
        let flags = if self.flags != 0 { MARK_FLAGS } else { 0 };
        let expires = if self.expires_at.is_some() { MARK_EXPIRES } else { 0 };
        flags | expires | self.state << STATE_SHIFT
    }

    fn push(self, put: &mut impl FnMut(&[u8])) {
        if self.flags != 0 {
            put(&self.flags.to_le_bytes());
        }
        if let Some(expires_at) = self.expires_at {
            put(&expires_at.to_le_bytes());
        }
    }

    fn take(marks: u8, reader: &mut Reader<'_>) -> Result<Attributes, Flaw> {
        let flags = if marks & MARK_FLAGS == 0 { 0 } else { reader.u32()? };
        if marks & MARK_FLAGS != 0 && flags == 0 {
            return Err(Flaw::Field("flags"));
        }
        let expires_at = if marks & MARK_EXPIRES == 0 { None } else { Some(reader.u64()?) };
        Ok(Attributes { flags, expires_at, state: marks >> STATE_SHIFT })
    }
}

/// Takes fields from the start of some bytes, each after a check.
#[derive(Clone, Copy, Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Flaw> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Flaw::TooShort)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Flaw::TooShort)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Flaw> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Flaw> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Flaw> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Flaw> {
        self.array().map(u64::from_le_bytes)
    }

    /// A size in four bytes.
    fn size(&mut self) -> Result<usize, Flaw> {
        usize::try_from(self.u32()?).map_err(|_| Flaw::Field("size"))
    }

    /// The size of a key: no key is empty, so that 0 stands for the largest.
    fn key_size(&mut self) -> Result<usize, Flaw> {
        Ok(match self.u16()? {
            0 => KEY_SIZE_MAX_BYTES,
            size => usize::from(size),
        })
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A size that fits four bytes.
fn size32(size: usize, field: &'static str) -> Result<[u8; 4], Flaw> {
    u32::try_from(size).map(u32::to_le_bytes).map_err(|_| Flaw::Field(field))
}

/// The size of a key as it is written.
fn key_size16(key: &[u8]) -> Result<[u8; 2], Flaw> {
    match key.len() {
        0 => Err(Flaw::Field("key")),
        KEY_SIZE_MAX_BYTES => Ok([0; 2]),
        size => u16::try_from(size).map(u16::to_le_bytes).map_err(|_| Flaw::Field("key")),
    }
}

#[cfg(test)]
mod tests;
