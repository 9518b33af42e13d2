//! Replies: what the payload of a reply says. Those that are not here are empty, or words.
//!
//! A value is sent from the buffer that the store read it into; so its head is made apart, and small
//! enough to live on the stack.

use super::{Attributes, MARK_LOW, Reader};
use crate::Flaw;
use esker_base::ids::Version;
use std::fmt;

/// Largest head of an item in bytes.
pub const ITEM_HEAD_SIZE_MAX: usize = 1 + 8 + 4 + 8;
/// Bytes before each item of a `multi_get`'s reply.
pub const MULTI_GET_ENTRY_SIZE: usize = 4;

/// A value with what is kept beside it: the reply to a `get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The version of the record.
    pub version: Version,
    /// What is kept beside the value.
    pub attributes: Attributes,
    /// The value.
    pub value: &'a [u8],
}

/// What stands before the value of an item.
#[derive(Clone, Copy, Debug)]
pub struct ItemHead {
    bytes: [u8; ITEM_HEAD_SIZE_MAX],
    size: usize,
}

impl ItemHead {
    /// The head of an item.
    #[must_use]
    pub fn new(version: Version, attributes: Attributes) -> ItemHead {
        let mut head = ItemHead { bytes: [0; ITEM_HEAD_SIZE_MAX], size: 0 };
        head.push(&[attributes.marks()]);
        head.push(&version.0.to_le_bytes());
        attributes.push(&mut |bytes| head.push(bytes));
        head
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.get_mut(self.size..).unwrap_or_default();
        room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.size = self.size.saturating_add(bytes.len()).min(ITEM_HEAD_SIZE_MAX);
    }

    /// The head as bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.size).unwrap_or_default()
    }
}

impl<'a> Item<'a> {
    /// Reads an item, whose value is all that follows its head.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(payload: &'a [u8]) -> Result<Item<'a>, Flaw> {
        let mut reader = Reader(payload);
        let marks = reader.u8()?;
        if marks & MARK_LOW != 0 {
            return Err(Flaw::Field("marks"));
        }
        let version = Version(reader.u64()?);
        let attributes = Attributes::take(marks, &mut reader)?;
        Ok(Item { version, attributes, value: reader.rest() })
    }
}

/// What stands before an item of a `multi_get`'s reply; `None`: the key has no value, and nothing
/// follows. `None` is returned for an item that is too large to say so.
#[must_use]
pub fn multi_get_entry(item_size: Option<usize>) -> Option<[u8; MULTI_GET_ENTRY_SIZE]> {
    u32::try_from(item_size.unwrap_or(0)).ok().map(u32::to_le_bytes)
}

/// The reply to a `multi_get`: what the first of its keys hold.
#[derive(Clone, Copy, Debug)]
pub struct Items<'a>(Reader<'a>);

impl<'a> Items<'a> {
    /// The reply in `payload`. Each entry is checked when it is met.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Items<'a> {
        Items(Reader(payload))
    }

    fn take(&mut self) -> Result<Option<Item<'a>>, Flaw> {
        match self.0.size()? {
            0 => Ok(None),
            size => Item::decode(self.0.bytes(size)?).map(Some),
        }
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Option<Item<'a>>, Flaw>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_err() {
            // Where the next one would begin is unknown.
            self.0.rest();
        }
        Some(taken)
    }
}

/// The reply to a write: the version that it made.
#[must_use]
pub fn encode_version(version: Version) -> [u8; 8] {
    version.0.to_le_bytes()
}

/// Reads the reply to a write: the version that it made.
///
/// # Errors
/// `TooShort`, or `Field` for more than a version.
pub fn decode_version(payload: &[u8]) -> Result<Version, Flaw> {
    let mut reader = Reader(payload);
    let version = reader.u64()?;
    if reader.is_empty() { Ok(Version(version)) } else { Err(Flaw::Field("version")) }
}

/// The reply to a backup: what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Segments that were copied; of `flex`, parts and large values.
    pub segments_copied: u64,
    /// Bytes that were copied.
    pub bytes_copied: u64,
    /// Segments that an earlier backup in the folder had already.
    pub segments_reused: u64,
    /// The backup holds every write up to this version, and none after it.
    pub last_version: Version,
}

impl fmt::Display for BackupReport {
    /// The payload: a line for each figure, name and value with a blank between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "segments_copied {}", self.segments_copied)?;
        writeln!(f, "bytes_copied {}", self.bytes_copied)?;
        writeln!(f, "segments_reused {}", self.segments_reused)?;
        writeln!(f, "last_version {}", self.last_version.0)
    }
}

impl BackupReport {
    /// Reads the payload. Lines with other names are of a later server, and left aside.
    ///
    /// # Errors
    /// `Field` for bytes that are no text, and for a figure that is missing or no number.
    pub fn decode(payload: &[u8]) -> Result<BackupReport, Flaw> {
        let text = std::str::from_utf8(payload).map_err(|_| Flaw::Field("payload"))?;
        let figure = |name: &'static str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|(told, _)| *told == name);
            found.and_then(|(_, value)| value.parse().ok()).ok_or(Flaw::Field(name))
        };
        Ok(BackupReport {
            segments_copied: figure("segments_copied")?,
            bytes_copied: figure("bytes_copied")?,
            segments_reused: figure("segments_reused")?,
            last_version: Version(figure("last_version")?),
        })
    }
}
