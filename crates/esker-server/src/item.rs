//! What the server keeps in a record besides what the client stored: the four bits of state that
//! the store has for it, and a CAS id that the client chose.
//!
//! The CAS id of an item is the version of its record, unless a client gave it one (`E` of the meta
//! commands): that one stands in the last [`CAS_BYTES`] bytes of the record's value, and a bit says
//! so. Readers of the store that are not this server see those bytes.
//!
//! # Failure
//! A record that claims a CAS id and is too short for one has the version for its CAS id.

use esker::Value;
use std::ops::Deref;

/// The item is stale: somebody should make it anew (`X`).
pub(crate) const STALE: u8 = 1;
/// Somebody was told to make it anew (`Z`).
pub(crate) const TOKEN_SENT: u8 = 2;
/// A CAS id stands behind the value.
pub(crate) const EXPLICIT_CAS: u8 = 4;
/// The key was stored in base64, and is shown so.
pub(crate) const BINARY_KEY: u8 = 8;

/// Length of a CAS id behind the value.
pub(crate) const CAS_BYTES: usize = 8;

/// An item read from the store. Dereferences to what the client stored.
#[derive(Debug)]
pub(crate) struct Item(Value);

impl Item {
    pub(crate) fn new(value: Value) -> Item {
        Item(value)
    }

    /// The record that it is.
    pub(crate) fn record(&self) -> &Value {
        &self.0
    }

    /// The record, and how much of its value is the client's.
    pub(crate) fn into_record(self) -> (Value, usize) {
        let length = self.len();
        (self.0, length)
    }

    /// What clients compare.
    pub(crate) fn cas(&self) -> u64 {
        self.explicit_cas().unwrap_or(self.0.version().0)
    }

    /// Whether `bit` is set.
    pub(crate) fn has(&self, bit: u8) -> bool {
        self.0.attributes().state & bit != 0
    }

    /// The CAS id that a client chose.
    pub(crate) fn explicit_cas(&self) -> Option<u64> {
        let (_, cas) = self.has(EXPLICIT_CAS).then(|| self.0.split_last_chunk())??;
        Some(u64::from_be_bytes(*cas))
    }
}

impl Deref for Item {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let behind = if self.explicit_cas().is_some() { CAS_BYTES } else { 0 };
        self.0.get(..self.0.len().saturating_sub(behind)).unwrap_or_default()
    }
}
