//! What a client reads, and what became of its conditional writes.

use esker_base::ids::Version;
use esker_format::native::{Attributes, Item};
use std::ops::Deref;

/// A value read from a server. Dereferences to its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    bytes: Vec<u8>,
    version: Version,
    attributes: Attributes,
}

impl Value {
    pub(crate) fn of(item: &Item<'_>) -> Value {
        let Item { version, attributes, value } = *item;
        Value { bytes: value.to_vec(), version, attributes }
    }

    /// The version of the record: changes with every write of the key on its server, and never
    /// repeats there.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Flags, expiry and state.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// The bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for Value {
    /// Without the bytes: values do not belong in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Value({} bytes, version {})", self.len(), self.version)
    }
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
