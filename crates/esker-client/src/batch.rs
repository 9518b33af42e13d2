//! Several changes that one server makes at once.

use crate::error::{Error, Result};
use esker_format::native::{Attributes, Change, ChangeKind, push_change};

/// Puts and deletes that become visible together, and survive a crash together or not at all. Of
/// several changes of one key the last one counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) payload: Vec<u8>,
    count: usize,
    /// Why it cannot be sent.
    wrong: Option<&'static str>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts `value` under `key`.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.put_with(key, value, Attributes::default())
    }

    /// Puts `value` under `key` with attributes.
    pub fn put_with(&mut self, key: &[u8], value: &[u8], attributes: Attributes) -> &mut Self {
        self.push(&Change { key, kind: ChangeKind::Put(value, attributes) })
    }

    /// Deletes `key`; it need not have a value.
    pub fn delete(&mut self, key: &[u8]) -> &mut Self {
        self.push(&Change { key, kind: ChangeKind::Delete })
    }

    pub(crate) fn push(&mut self, change: &Change<'_>) -> &mut Self {
        match push_change(&mut self.payload, change) {
            Ok(()) => self.count = self.count.saturating_add(1),
            Err(_) => self.wrong = Some("a key has 1 byte to 64 KiB, and a value less than 4 GiB"),
        }
        self
    }

    /// Number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the batch changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether it can be sent.
    pub(crate) fn check(&self) -> Result<()> {
        match self.wrong {
            Some(words) => Err(Error::invalid(words)),
            None if self.is_empty() => Err(Error::invalid("the batch is empty")),
            None => Ok(()),
        }
    }
}
