//! What a store keeps under a key, and on which condition it does.

use esker_base::ids::Version;
use esker_media::{BufferPool, IoBuf};
use std::ops::{Deref, Range};

/// What a record says besides key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Opaque number of the client, as memcache's `flags`.
    pub flags: u32,
    /// Wall time in seconds since 1970 from which the record is gone; `None`: never.
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

/// Where the bytes of a value are.
enum Bytes {
    /// In the buffer that they were read into.
    Buffer(IoBuf, Range<usize>),
    /// By themselves.
    Owned(Box<[u8]>),
}

impl Value {
    pub(crate) fn owned(bytes: Box<[u8]>, version: Version, attributes: Attributes) -> Self {
        Value { bytes: Bytes::Owned(bytes), version, attributes }
    }

    pub(crate) fn new(
        buffer: IoBuf,
        range: Range<usize>,
        version: Version,
        attributes: Attributes,
    ) -> Self {
        Value { bytes: Bytes::Buffer(buffer, range), version, attributes }
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
            Bytes::Buffer(buffer, _) => BufferPool::capacity_for(buffer.len()) as u64,
            Bytes::Owned(bytes) => bytes.len() as u64,
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
            Bytes::Buffer(buffer, range) => buffer.get(range.clone()).unwrap_or(&[]),
            Bytes::Owned(bytes) => bytes,
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
