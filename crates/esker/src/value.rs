//! What a store keeps under a key, and on which condition it does.

use esker_base::ids::Version;
use esker_media::{BufferPool, IoBuf};
use std::ops::{Deref, Range};

/// What a record says besides key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Opaque number of the client, as memcache's `flags`.
    pub flags: u32,
    /// Wall time in seconds since 1970 from which the record is gone; `None`: never. The last two seconds of 64 bits may come back as
    /// `None`, or as one another.
    pub expires_at: Option<u64>,
    /// Four bits for the layer above, 0 to 15; higher bits are not kept. The memcache server notes
    /// here that an item is stale.
    pub state: u8,
}

/// A value read from a store. Dereferences to its bytes; owns the buffer they were read into.
pub struct Value {
    bytes: Bytes,
    version: Version,
    attributes: Attributes,
}

/// Where the bytes are.
enum Bytes {
    /// Here: no memory of their own.
    Near([u8; NEAR], u8),
    /// In memory of their size.
    Far(Box<[u8]>),
    /// Part of the buffer that they were read into.
    Read(IoBuf, Range<usize>),
}

/// Bytes that a value has room for itself.
const NEAR: usize = 64;

impl Value {
    /// A value that is copied.
    #[inline]
    pub(crate) fn small(value: &[u8], version: Version, attributes: Attributes) -> Self {
        let mut near = [0; NEAR];
        let bytes = match (near.get_mut(..value.len()), u8::try_from(value.len())) {
            (Some(place), Ok(length)) => {
                place.copy_from_slice(value);
                Bytes::Near(near, length)
            }
            _ => Bytes::Far(value.into()),
        };
        Value { bytes, version, attributes }
    }

    /// A value in memory of its own.
    pub(crate) fn owned(bytes: Box<[u8]>, version: Version, attributes: Attributes) -> Self {
        Value { bytes: Bytes::Far(bytes), version, attributes }
    }

    pub(crate) fn new(
        buffer: IoBuf,
        range: Range<usize>,
        version: Version,
        attributes: Attributes,
    ) -> Self {
        Value { bytes: Bytes::Read(buffer, range), version, attributes }
    }

    /// The version of the record: changes with every write of the key, and never repeats.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Memory that the value keeps, in bytes: that of the buffer it was read into.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        match &self.bytes {
            Bytes::Near(..) => 0,
            Bytes::Far(bytes) => bytes.len() as u64,
            Bytes::Read(buffer, _) => BufferPool::capacity_for(buffer.len()) as u64,
        }
    }

    /// Flags and expiry.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Near(bytes, length) => bytes.get(..usize::from(*length)).unwrap_or(&[]),
            Bytes::Far(bytes) => bytes,
            Bytes::Read(buffer, range) => buffer.get(range.clone()).unwrap_or(&[]),
        }
    }
}

impl std::fmt::Debug for Value {
    /// Without the bytes: values do not belong in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Value({} bytes, version {})", self.len(), self.version)
    }
}

/// When a write takes place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl Condition {
    /// Why it does not hold, if it does not, of a key with a value of this version, or with none: what has expired is none.
    pub(crate) fn refused(self, live: Option<Version>) -> Option<Outcome> {
        match (self, live) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => {
                None
            }
            (Condition::Absent, Some(_)) => Some(Outcome::KeyExists),
            (Condition::Present | Condition::VersionIs(_), None) => Some(Outcome::KeyMissing),
            (Condition::VersionIs(wanted), Some(live)) => {
                (live != wanted).then_some(Outcome::VersionDiffers)
            }
        }
    }
}

/// How a value is put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Flags and expiry of the new record.
    pub attributes: Attributes,
    /// When to write.
    pub condition: Condition,
}

/// What became of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Written, as this version.
    Stored(Version),
    /// `Condition::Absent` failed: the key has a value.
    KeyExists,
    /// `Condition::Present` or `VersionIs` failed: the key has no value.
    KeyMissing,
    /// `Condition::VersionIs` failed: the key's value has another version.
    VersionDiffers,
}
