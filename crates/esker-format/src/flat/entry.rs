//! Entries of the log: what was done to one key (FlatStore §3.2, Figure 3).
//!
//! ```text
//! | head 1 | value length 1 | key length 1 | stamp 0, 2, 8 | attributes 0, 13 | key or its hash | pointer 6 | value |
//! head: 7   | 6..5  | 4        | 3          | 2               | 1..0
//!       odd | stamp | key of 8 | attributes | value has 256 B | 0 none, 1 value here, 2 value elsewhere, 3 deleted
//! ```
//!
//! A key of 8 bytes has no length byte: a pointer entry of such a key has 16 bytes. A key length of 0 means that
//! the key stands in the record that the pointer names, and the entry has its hash, in 8 bytes: if the record does not fit
//! it, its place was used anew, and the entry has been overtaken. Pointers count lines of the store. Entries begin
//! on even bytes: `odd` says that a byte of padding follows.

use super::{INLINE_KEY_MAX, INLINE_VALUE_MAX};
use crate::Flaw;

const KIND: u8 = 0b11;
const LONG_VALUE: u8 = 1 << 2;
const ATTRIBUTES: u8 = 1 << 3;
const KEY_OF_8: u8 = 1 << 4;
const STAMP_SHIFT: u32 = 5;
const ODD: u8 = 1 << 7;
const POINTER_SIZE: usize = 6;
const ATTRIBUTES_SIZE: usize = 13;

/// Bytes that are enough to read an entry's head up to the key.
pub const ENTRY_HEAD_MAX: usize = 3 + 8 + ATTRIBUTES_SIZE;
/// Bytes of the hash of a key that stands elsewhere.
const HASH_SIZE: usize = 8;
/// Longest entry in bytes.
pub const ENTRY_SIZE_MAX: usize =
    ENTRY_HEAD_MAX + INLINE_KEY_MAX + POINTER_SIZE + INLINE_VALUE_MAX + 1;

/// Where an entry's version comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// The batch's base and the number of entries before it.
    Place,
    /// The batch's base and this.
    Delta(u16),
    /// This.
    Whole(u64),
}

/// What an entry did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Put the value that stands here.
    Value(&'a [u8]),
    /// Put the value of the record at this line of the store.
    Pointer(u64),
    /// Deleted the key; if that is long, the record at this line has it.
    Delete(Option<u64>),
}

/// Flags, expiry and state of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryAttributes {
    /// Opaque number of the client.
    pub flags: u32,
    /// Wall time in seconds from which the value is gone; `u64::MAX`: never.
    pub expires_at: u64,
    /// Four bits for the layer above.
    pub state: u8,
}

/// The key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKey<'a> {
    /// It stands here.
    Here(&'a [u8]),
    /// The record has it; this is its hash.
    Record(u64),
}

impl EntryKey<'_> {
    /// Whether the key has 8 bytes and stands here.
    #[inline]
    #[must_use]
    pub fn is_of_8(&self) -> bool {
        matches!(self, EntryKey::Here(key) if key.len() == 8)
    }
}

/// An entry that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: EntryKey<'a>,
    /// What was done.
    pub action: Action<'a>,
    /// What the value has besides, if anything.
    pub attributes: Option<EntryAttributes>,
    /// Where the version comes from.
    pub stamp: Stamp,
    /// Its bytes, padding included.
    pub size: usize,
}

/// An entry that is to be written. The stamp comes when it is appended.
#[derive(Clone, Copy, Debug)]
pub struct EncodeEntry<'a> {
    /// The key.
    pub key: EntryKey<'a>,
    /// What is done.
    pub action: Action<'a>,
    /// What the value has besides, if anything.
    pub attributes: Option<EntryAttributes>,
}

/// Where an entry is written.
pub trait EntrySink {
    /// Adds bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl EntrySink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The bytes of an entry on its way to the log: without an allocation, if it is short.
#[derive(Clone, Debug)]
pub struct EntryBytes {
    near: [u8; Self::NEAR],
    length: usize,
    /// All of them, if they are more.
    far: Vec<u8>,
}

impl EntryBytes {
    const NEAR: usize = 112;

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        if self.far.is_empty() { self.near.get(..self.length).unwrap_or(&[]) } else { &self.far }
    }
}

impl Default for EntryBytes {
    #[inline]
    fn default() -> Self {
        EntryBytes { near: [0; Self::NEAR], length: 0, far: Vec::new() }
    }
}

impl EntrySink for EntryBytes {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.near.get_mut(self.length..end) {
            Some(place) if self.far.is_empty() => {
                place.copy_from_slice(bytes);
                self.length = end;
            }
            _ => {
                if self.far.is_empty() {
                    self.far.extend_from_slice(self.near.get(..self.length).unwrap_or(&[]));
                }
                self.far.extend_from_slice(bytes);
            }
        }
    }
}

/// Cuts `length` bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Flaw> {
    let (front, rest) = bytes.split_at_checked(length).ok_or(Flaw::TooShort)?;
    *bytes = rest;
    Ok(front)
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Flaw> {
    let (front, rest) = bytes.split_first_chunk::<N>().ok_or(Flaw::TooShort)?;
    *bytes = rest;
    Ok(*front)
}

fn pointer(bytes: &mut &[u8]) -> Result<u64, Flaw> {
    let short = take_array::<POINTER_SIZE>(bytes)?;
    let mut long = [0; 8];
    if let Some(low) = long.first_chunk_mut::<POINTER_SIZE>() {
        *low = short;
    }
    Ok(u64::from_le_bytes(long))
}

impl EncodeEntry<'_> {
    /// Writes the entry with a stamp. The caller knows the limits of keys and values.
    #[inline]
    pub fn encode(&self, stamp: Stamp, to: &mut impl EntrySink) {
        let (kind, value, pointer) = match self.action {
            Action::Value(value) => (1, value, None),
            Action::Pointer(line) => (2, &[][..], Some(line)),
            Action::Delete(line) => (3, &[][..], line),
        };
        let hash;
        let (key, key_length) = match self.key {
            EntryKey::Here(key) => (key, key.len()),
            EntryKey::Record(number) => {
                hash = number.to_le_bytes();
                (&hash[..], 0)
            }
        };
        let of_8 = key_length == 8;
        let mut head = kind;
        let mut flag = |bit: u8, set: bool| head |= if set { bit } else { 0 };
        flag(LONG_VALUE, value.len() == INLINE_VALUE_MAX);
        flag(ATTRIBUTES, self.attributes.is_some());
        flag(KEY_OF_8, of_8);
        let stamp_code = match stamp {
            Stamp::Place => 0,
            Stamp::Delta(_) => 1,
            Stamp::Whole(_) => 2,
        };
        head |= stamp_code << STAMP_SHIFT;
        let mut size = 2 + usize::from(!of_8) + key.len() + value.len();
        size += if self.attributes.is_some() { ATTRIBUTES_SIZE } else { 0 };
        size += if pointer.is_some() { POINTER_SIZE } else { 0 };
        if size % 2 == 1 {
            head |= ODD;
        }
        #[expect(clippy::cast_possible_truncation, reason = "256 is said by the head")]
        to.put(&[head, value.len() as u8]);
        if !of_8 {
            to.put(&[u8::try_from(key_length).unwrap_or(0)]);
        }
        match stamp {
            Stamp::Place => {}
            Stamp::Delta(delta) => to.put(&delta.to_le_bytes()),
            Stamp::Whole(version) => to.put(&version.to_le_bytes()),
        }
        if let Some(attributes) = self.attributes {
            to.put(&attributes.flags.to_le_bytes());
            to.put(&attributes.expires_at.to_le_bytes());
            to.put(&[attributes.state]);
        }
        to.put(key);
        if let Some(line) = pointer {
            to.put(line.to_le_bytes().first_chunk::<POINTER_SIZE>().unwrap_or(&[0; POINTER_SIZE]));
        }
        to.put(value);
        if head & ODD != 0 {
            to.put(&[0]);
        }
    }
}

impl<'a> Entry<'a> {
    /// Reads the entry at the start of `bytes`.
    ///
    /// # Errors
    /// The first [`Flaw`] found; `TooShort` if it goes on behind `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Flaw> {
        let all = bytes;
        let mut rest = bytes;
        let [head, value_length] = take_array::<2>(&mut rest)?;
        let value_length = match head & LONG_VALUE {
            0 => usize::from(value_length),
            _ if value_length == 0 => INLINE_VALUE_MAX,
            _ => return Err(Flaw::Field("value length")),
        };
        let key_length = match head & KEY_OF_8 {
            0 => usize::from(take_array::<1>(&mut rest)?[0]),
            _ => 8,
        };
        let stamp = match head >> STAMP_SHIFT & 0b11 {
            0 => Stamp::Place,
            1 => Stamp::Delta(u16::from_le_bytes(take_array(&mut rest)?)),
            2 => Stamp::Whole(u64::from_le_bytes(take_array(&mut rest)?)),
            _ => return Err(Flaw::Field("stamp")),
        };
        let attributes = match head & ATTRIBUTES {
            0 => None,
            _ => Some(EntryAttributes {
                flags: u32::from_le_bytes(take_array(&mut rest)?),
                expires_at: u64::from_le_bytes(take_array(&mut rest)?),
                state: take_array::<1>(&mut rest)?[0],
            }),
        };
        let here = key_length > 0;
        let key = match here {
            true => EntryKey::Here(take(&mut rest, key_length)?),
            false => EntryKey::Record(u64::from_le_bytes(take_array::<HASH_SIZE>(&mut rest)?)),
        };
        let action = match head & KIND {
            1 if here => Action::Value(take(&mut rest, value_length)?),
            2 => Action::Pointer(pointer(&mut rest)?),
            3 if here => Action::Delete(None),
            3 => Action::Delete(Some(pointer(&mut rest)?)),
            _ => return Err(Flaw::Field("kind")),
        };
        if value_length > 0 && !matches!(action, Action::Value(_)) {
            return Err(Flaw::Field("value length"));
        }
        if head & ODD != 0 {
            take(&mut rest, 1)?;
        }
        Ok(Entry { key, action, attributes, stamp, size: all.len() - rest.len() })
    }

    /// The entry with a stamp of its own, for another place.
    #[must_use]
    pub fn moved(&self) -> EncodeEntry<'a> {
        EncodeEntry { key: self.key, action: self.action, attributes: self.attributes }
    }
}
