//! Several changes that are made at once.

use crate::value::Attributes;

/// What a batch does to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    Put(&'a [u8], Attributes),
    Delete,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key_end: usize,
    value_end: usize,
    /// `None` deletes.
    put: Option<Attributes>,
}

/// Puts and deletes that become visible after one commit, and survive a crash together or not at
/// all. Of several changes of one key the last one counts. See [`Store::write`](crate::Store::write).
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
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
        self.push(key, value, Some(attributes))
    }

    /// Deletes `key`; it need not have a value.
    pub fn delete(&mut self, key: &[u8]) -> &mut Self {
        self.push(key, &[], None)
    }

    fn push(&mut self, key: &[u8], value: &[u8], put: Option<Attributes>) -> &mut Self {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.entries.push(Entry { key_end, value_end: self.bytes.len(), put });
        self
    }

    /// Number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the batch changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all changes; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// The changes in their order.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (&[u8], Change<'_>)> {
        let mut start = 0;
        self.entries.iter().map(move |entry| {
            let key = self.bytes.get(start..entry.key_end).unwrap_or(&[]);
            let value = self.bytes.get(entry.key_end..entry.value_end).unwrap_or(&[]);
            start = entry.value_end;
            (key, entry.put.map_or(Change::Delete, |attributes| Change::Put(value, attributes)))
        })
    }
}
