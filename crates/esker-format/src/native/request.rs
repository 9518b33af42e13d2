//! Requests: what a payload says to the opcode of its frame.
//!
//! Lists (`multi_get`, `batch`) are checked from their first entry to their last when they are
//! decoded; afterwards they are walked without a way to fail.

use super::{
    Attributes, Condition, KEY_SIZE_MAX_BYTES, MARK_EXPIRES, MARK_FLAGS, MARK_LOW, Opcode, Reader,
    key_size16, size32,
};
use crate::Flaw;
use esker_base::ids::Version;

/// Bytes of a put besides key and value, at most; of a change in a batch, too.
pub const PUT_OVERHEAD_MAX: usize = 1 + 2 + 4 + 8 + 8;

const CONDITION_ALWAYS: u8 = 0;
const CONDITION_ABSENT: u8 = 1;
const CONDITION_PRESENT: u8 = 2;
const CONDITION_VERSION: u8 = 3;

const CHANGE_PUT: u8 = 0;
const CHANGE_DELETE: u8 = 1;

/// A request; see [`Opcode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Answered at once.
    Ping,
    /// Who the client is.
    Authenticate {
        /// Name.
        user: &'a [u8],
        /// Password.
        password: &'a [u8],
    },
    /// The value of a key.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// The values of several keys.
    MultiGet(Keys<'a>),
    /// A value for a key.
    Put(Put<'a>),
    /// No value for a key.
    Delete {
        /// The key.
        key: &'a [u8],
        /// `Always` or `VersionIs`; no other is valid.
        condition: Condition,
    },
    /// Several puts and deletes, all or nothing.
    Batch(Changes<'a>),
    /// Makes durable what was acknowledged.
    Sync,
    /// Figures of the server.
    Stats,
    /// Deletes everything.
    Clear,
    /// Copies the store to the folder that the server has for that.
    Backup,
}

/// A value for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// What is kept beside it.
    pub attributes: Attributes,
    /// When to put it.
    pub condition: Condition,
}

/// Keys of a `multi_get`, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'a>(&'a [u8]);

/// Changes of a batch, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes<'a>(&'a [u8]);

/// What a batch does to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What is done to it.
    pub kind: ChangeKind<'a>,
}

/// Put or delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind<'a> {
    /// This value, with its attributes.
    Put(&'a [u8], Attributes),
    /// No value.
    Delete,
}

impl<'a> Request<'a> {
    /// Reads the payload of a frame with that opcode.
    ///
    /// # Errors
    /// `Field` for an opcode that is none of a request; the first flaw of the payload.
    pub fn decode(opcode: u8, payload: &'a [u8]) -> Result<Request<'a>, Flaw> {
        let unknown = Flaw::Field("opcode");
        let empty = |request| match payload {
            [] => Ok(request),
            _ => Err(Flaw::Field("payload")),
        };
        match Opcode::from_number(opcode).ok_or(unknown)? {
            Opcode::Goodbye => Err(unknown),
            Opcode::Ping => empty(Request::Ping),
            Opcode::Authenticate => {
                let mut reader = Reader(payload);
                let user_size = reader.u16()?;
                let user = reader.bytes(user_size.into())?;
                Ok(Request::Authenticate { user, password: reader.rest() })
            }
            Opcode::Get => {
                check_key(payload)?;
                Ok(Request::Get { key: payload })
            }
            Opcode::MultiGet => Keys::decode(payload).map(Request::MultiGet),
            Opcode::Put => Put::decode(payload).map(Request::Put),
            Opcode::Delete => {
                let mut reader = Reader(payload);
                let condition = match reader.u8()? {
                    CONDITION_ALWAYS => Condition::Always,
                    CONDITION_VERSION => Condition::VersionIs(Version(reader.u64()?)),
                    _ => return Err(Flaw::Field("condition")),
                };
                let key = reader.rest();
                check_key(key)?;
                Ok(Request::Delete { key, condition })
            }
            Opcode::Batch => Changes::decode(payload).map(Request::Batch),
            Opcode::Sync => empty(Request::Sync),
            Opcode::Stats => empty(Request::Stats),
            Opcode::Clear => empty(Request::Clear),
            Opcode::Backup => empty(Request::Backup),
        }
    }

    /// The opcode of the request's frame.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        match self {
            Request::Ping => Opcode::Ping,
            Request::Authenticate { .. } => Opcode::Authenticate,
            Request::Get { .. } => Opcode::Get,
            Request::MultiGet(_) => Opcode::MultiGet,
            Request::Put(_) => Opcode::Put,
            Request::Delete { .. } => Opcode::Delete,
            Request::Batch(_) => Opcode::Batch,
            Request::Sync => Opcode::Sync,
            Request::Stats => Opcode::Stats,
            Request::Clear => Opcode::Clear,
            Request::Backup => Opcode::Backup,
        }
    }

    /// Appends the payload.
    ///
    /// # Errors
    /// `Field` for what cannot be said: a key that is empty or over 64 KiB, a user over 65,535 bytes, a
    /// condition that a delete does not have. Nothing that was appended then is of use.
    pub fn encode(&self, payload: &mut Vec<u8>) -> Result<(), Flaw> {
        match self {
            Request::Ping | Request::Sync | Request::Stats | Request::Clear | Request::Backup => {}
            Request::Authenticate { user, password } => {
                let size = u16::try_from(user.len()).map_err(|_| Flaw::Field("user"))?;
                payload.extend_from_slice(&size.to_le_bytes());
                payload.extend_from_slice(user);
                payload.extend_from_slice(password);
            }
            Request::Get { key } => {
                check_key(key)?;
                payload.extend_from_slice(key);
            }
            Request::MultiGet(Keys(list)) | Request::Batch(Changes(list)) => {
                payload.extend_from_slice(list);
            }
            Request::Put(put) => put.encode(payload)?,
            Request::Delete { key, condition } => {
                check_key(key)?;
                match condition {
                    Condition::Always => payload.push(CONDITION_ALWAYS),
                    Condition::VersionIs(version) => {
                        payload.push(CONDITION_VERSION);
                        payload.extend_from_slice(&version.0.to_le_bytes());
                    }
                    _ => return Err(Flaw::Field("condition")),
                }
                payload.extend_from_slice(key);
            }
        }
        Ok(())
    }
}

impl<'a> Put<'a> {
    fn decode(payload: &'a [u8]) -> Result<Put<'a>, Flaw> {
        let mut reader = Reader(payload);
        let marks = reader.u8()?;
        let key_size = reader.key_size()?;
        let attributes = Attributes::take(marks, &mut reader)?;
        let condition = match marks & MARK_LOW {
            CONDITION_ABSENT => Condition::Absent,
            CONDITION_PRESENT => Condition::Present,
            CONDITION_VERSION => Condition::VersionIs(Version(reader.u64()?)),
            _ => Condition::Always,
        };
        let key = reader.bytes(key_size)?;
        Ok(Put { key, value: reader.rest(), attributes, condition })
    }

    fn encode(&self, payload: &mut Vec<u8>) -> Result<(), Flaw> {
        let condition = match self.condition {
            Condition::Always => CONDITION_ALWAYS,
            Condition::Absent => CONDITION_ABSENT,
            Condition::Present => CONDITION_PRESENT,
            Condition::VersionIs(_) => CONDITION_VERSION,
        };
        let key_size = key_size16(self.key)?;
        payload.push(condition | self.attributes.marks());
        payload.extend_from_slice(&key_size);
        self.attributes.push(&mut |bytes| payload.extend_from_slice(bytes));
        if let Condition::VersionIs(version) = self.condition {
            payload.extend_from_slice(&version.0.to_le_bytes());
        }
        payload.extend_from_slice(self.key);
        payload.extend_from_slice(self.value);
        Ok(())
    }
}

impl<'a> Keys<'a> {
    /// Reads keys that [`push_key`] wrote, at least one.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(payload: &'a [u8]) -> Result<Keys<'a>, Flaw> {
        let mut reader = Reader(payload);
        take_key(&mut reader)?;
        while !reader.is_empty() {
            take_key(&mut reader)?;
        }
        Ok(Keys(payload))
    }

    /// The keys in their order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader(self.0);
        // Every entry has been read once before.
        std::iter::from_fn(move || take_key(&mut reader).ok())
    }
}

impl<'a> Changes<'a> {
    /// Reads changes that [`push_change`] wrote, at least one.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(payload: &'a [u8]) -> Result<Changes<'a>, Flaw> {
        let mut reader = Reader(payload);
        take_change(&mut reader)?;
        while !reader.is_empty() {
            take_change(&mut reader)?;
        }
        Ok(Changes(payload))
    }

    /// The changes in their order.
    pub fn iter(&self) -> impl Iterator<Item = Change<'a>> + use<'a> {
        let mut reader = Reader(self.0);
        // Every entry has been read once before.
        std::iter::from_fn(move || take_change(&mut reader).ok())
    }
}

fn check_key(key: &[u8]) -> Result<(), Flaw> {
    let fits = (1..=KEY_SIZE_MAX_BYTES).contains(&key.len());
    if fits { Ok(()) } else { Err(Flaw::Field("key")) }
}

/// Appends a key to the payload of a `multi_get`.
///
/// # Errors
/// `Field` for a key that is empty or over 64 KiB; nothing is appended then.
pub fn push_key(payload: &mut Vec<u8>, key: &[u8]) -> Result<(), Flaw> {
    let size = key_size16(key)?;
    payload.extend_from_slice(&size);
    payload.extend_from_slice(key);
    Ok(())
}

fn take_key<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Flaw> {
    let size = reader.key_size()?;
    reader.bytes(size)
}

/// Appends a change to the payload of a batch.
///
/// # Errors
/// `Field` for a key that is empty or over 64 KiB, or a value of 4 GiB; nothing is appended then.
pub fn push_change(payload: &mut Vec<u8>, change: &Change<'_>) -> Result<(), Flaw> {
    let key_size = key_size16(change.key)?;
    match change.kind {
        ChangeKind::Put(value, attributes) => {
            let value_size = size32(value.len(), "value")?;
            payload.push(CHANGE_PUT | attributes.marks());
            payload.extend_from_slice(&key_size);
            payload.extend_from_slice(&value_size);
            attributes.push(&mut |bytes| payload.extend_from_slice(bytes));
            payload.extend_from_slice(change.key);
            payload.extend_from_slice(value);
        }
        ChangeKind::Delete => {
            payload.push(CHANGE_DELETE);
            payload.extend_from_slice(&key_size);
            payload.extend_from_slice(change.key);
        }
    }
    Ok(())
}

fn take_change<'a>(reader: &mut Reader<'a>) -> Result<Change<'a>, Flaw> {
    let marks = reader.u8()?;
    let key_size = reader.key_size()?;
    match marks & MARK_LOW {
        CHANGE_PUT => {
            let value_size = reader.size()?;
            let attributes = Attributes::take(marks, reader)?;
            let key = reader.bytes(key_size)?;
            let value = reader.bytes(value_size)?;
            Ok(Change { key, kind: ChangeKind::Put(value, attributes) })
        }
        CHANGE_DELETE if marks == CHANGE_DELETE => {
            Ok(Change { key: reader.bytes(key_size)?, kind: ChangeKind::Delete })
        }
        _ => Err(Flaw::Field("change")),
    }
}

const _: () = assert!(MARK_LOW & (MARK_FLAGS | MARK_EXPIRES) == 0);
