//! Entries of the log: what was done to one key (FlatStore §3.2, Figure 3).
//!
//! ```text
//! value here: | head 1 | check 4 | stamp 0, 2, 8 | value length 1 | key length 0, 1 | attributes 0, 13 | key | value |
//! others:     | head 1 | check 2 | stamp 0, 2, 8 | key length 0, 1 | attributes 0, 13 | key or its hash | pointer 5 |
//! head: 7   | 6..5  | 4        | 3          | 2               | 1..0
//!       odd | stamp | key of 8 | attributes | value has 256 B | 0 none, 1 value here, 2 value elsewhere, 3 deleted
//! ```
//!
//! A key of 8 bytes has no length byte: a pointer entry of such a key has 16 bytes. A key length of 0 means that
//! the key stands in the record that the pointer names, and the entry has its hash, in 8 bytes: if the record does not fit
//! it, its place was used anew, and the entry has been overtaken. Pointers count lines of the store. Entries begin
//! on even bytes: `odd` says that a byte of padding follows.
//!
//! Whoever reads one entry does not read its batch: so each entry has a check of its own, over what stands behind the
//! stamp, its head and its version. An entry is *bound* to its version once that is known, when its batch is sealed.

use super::{INLINE_KEY_MAX, INLINE_VALUE_MAX};
use crate::{Flaw, bounded};
use esker_base::checksum::crc32c;

const KIND: u8 = 0b11;
const LONG_VALUE: u8 = 1 << 2;
const ATTRIBUTES: u8 = 1 << 3;
const KEY_OF_8: u8 = 1 << 4;
const STAMP_SHIFT: u32 = 5;
/// The code of a stamp that is the version.
const WHOLE: u8 = 2;
const ODD: u8 = 1 << 7;
const POINTER_SIZE: usize = 5;
const ATTRIBUTES_SIZE: usize = 13;

/// Bytes of the check of an entry with a value.
const CHECK_SIZE: usize = 4;
/// Of one without: what it points at has a checksum of its own.
const SHORT_CHECK_SIZE: usize = 2;

/// Bytes that are enough to read an entry's head up to the key.
pub const ENTRY_HEAD_MAX: usize = 3 + CHECK_SIZE + 8 + ATTRIBUTES_SIZE;
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
    /// The check, and what it is of besides the version.
    check: u32,
    head: u8,
    content: &'a [u8],
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

    /// All bytes that were added.
    fn written(&mut self) -> &mut [u8];
}

impl EntrySink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn written(&mut self) -> &mut [u8] {
        self
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

    #[inline]
    fn written(&mut self) -> &mut [u8] {
        match self.far.is_empty() {
            true => self.near.get_mut(..self.length).unwrap_or_default(),
            false => &mut self.far,
        }
    }
}

/// Cuts `length` bytes off the front.
#[inline]
fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Flaw> {
    let (front, rest) = bytes.split_at_checked(length).ok_or(Flaw::TooShort)?;
    *bytes = rest;
    Ok(front)
}

#[inline]
fn take_array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Flaw> {
    let (front, rest) = bytes.split_first_chunk::<N>().ok_or(Flaw::TooShort)?;
    *bytes = rest;
    Ok(*front)
}

#[inline]
fn pointer(bytes: &mut &[u8]) -> Result<u64, Flaw> {
    let short = take_array::<POINTER_SIZE>(bytes)?;
    let mut long = [0; 8];
    if let Some(low) = long.first_chunk_mut::<POINTER_SIZE>() {
        *low = short;
    }
    Ok(u64::from_le_bytes(long))
}

/// Bytes of the check, by the head.
const fn check_size(head: u8) -> usize {
    if head & KIND == 1 { CHECK_SIZE } else { SHORT_CHECK_SIZE }
}

/// Bytes of the stamp, by the head.
const fn stamp_size(head: u8) -> usize {
    match head >> STAMP_SHIFT & 0b11 {
        0 => 0,
        1 => 2,
        _ => 8,
    }
}

/// What head and content give a check of so many bytes. In 2 bytes, too, each damaged byte makes a difference: it does not
/// with any fold (a test tries them all).
#[inline]
fn check_of(head: u8, content: &[u8], size: usize) -> u32 {
    let check = crc32c(content) ^ u32::from(head);
    if size == CHECK_SIZE { check } else { (check ^ check >> 15) & 0xFFFF }
}

/// What the version gives a check of so many bytes.
#[expect(clippy::cast_possible_truncation, reason = "both halves count")]
const fn check_of_version(version: u64, size: usize) -> u32 {
    let check = version as u32 ^ (version >> 32) as u32;
    if size == CHECK_SIZE { check } else { (check ^ check >> 16) & 0xFFFF }
}

/// Adds to the check of an entry.
fn add_check(entry: &mut [u8], size: usize, more: u32) {
    let place = entry.get_mut(1..1 + size).unwrap_or_default();
    place.iter_mut().zip(more.to_le_bytes()).for_each(|(byte, more)| *byte ^= more);
}

/// Binds the entry at the start of `bytes`, which was encoded there, to its version, as the `ordinal`th of a batch with this base. Once.
#[inline]
pub fn bind_entry(bytes: &mut [u8], base_version: u64, ordinal: u64) {
    let Some(head) = bytes.first().copied() else { return };
    let size = check_size(head);
    let mut rest = bytes.get(1 + size..).unwrap_or_default();
    let Ok(stamp) = Stamp::read(head, &mut rest) else { return };
    add_check(bytes, size, check_of_version(stamp.version(base_version, ordinal), size));
}

/// Gives the entry at the start of `bytes` its version, if it carries that: before it is bound.
#[inline]
pub fn stamp_entry(bytes: &mut [u8], version: u64) {
    let Some(head) = bytes.first().copied() else { return };
    if head >> STAMP_SHIFT & 0b11 == WHOLE {
        let at = 1 + check_size(head);
        let place = bytes.get_mut(at..at + stamp_size(head)).unwrap_or_default();
        place.iter_mut().zip(version.to_le_bytes()).for_each(|(byte, new)| *byte = new);
    }
}

impl Stamp {
    #[inline]
    fn read(head: u8, bytes: &mut &[u8]) -> Result<Stamp, Flaw> {
        Ok(match head >> STAMP_SHIFT & 0b11 {
            0 => Stamp::Place,
            1 => Stamp::Delta(u16::from_le_bytes(take_array(bytes)?)),
            WHOLE => Stamp::Whole(bounded("stamp", u64::from_le_bytes(take_array(bytes)?))?),
            _ => return Err(Flaw::Field("stamp")),
        })
    }

    /// The version of the `ordinal`th entry of a batch with this base.
    #[inline]
    #[must_use]
    pub fn version(self, base_version: u64, ordinal: u64) -> u64 {
        match self {
            Stamp::Place => base_version.wrapping_add(ordinal),
            Stamp::Delta(delta) => base_version.wrapping_add(u64::from(delta)),
            Stamp::Whole(version) => version,
        }
    }
}

impl EncodeEntry<'_> {
    /// Writes the entry with a stamp, not bound to its version yet. The caller knows the limits of keys and values.
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
            Stamp::Whole(_) => WHOLE,
        };
        head |= stamp_code << STAMP_SHIFT;
        let here = kind == 1;
        let check = check_size(head);
        let mut size = 1 + check + usize::from(here) + usize::from(!of_8);
        size += key.len() + value.len();
        size += if self.attributes.is_some() { ATTRIBUTES_SIZE } else { 0 };
        size += if pointer.is_some() { POINTER_SIZE } else { 0 };
        if size % 2 == 1 {
            head |= ODD;
        }
        let start = to.written().len();
        to.put(&[head]);
        to.put([0; CHECK_SIZE].get(..check).unwrap_or_default());
        match stamp {
            Stamp::Place => {}
            Stamp::Delta(delta) => to.put(&delta.to_le_bytes()),
            Stamp::Whole(version) => to.put(&version.to_le_bytes()),
        }
        if here {
            #[expect(clippy::cast_possible_truncation, reason = "256 is said by the head")]
            to.put(&[value.len() as u8]);
        }
        if !of_8 {
            to.put(&[u8::try_from(key_length).unwrap_or(0)]);
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
        let entry = to.written().get_mut(start..).unwrap_or_default();
        let content = entry.get(1 + check + stamp_size(head)..).unwrap_or_default();
        let of = check_of(head, content, check);
        add_check(entry, check, of);
    }
}

impl<'a> Entry<'a> {
    /// Reads the entry at the start of `bytes`.
    ///
    /// # Errors
    /// The first [`Flaw`] found; `TooShort` if it goes on behind `bytes`.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Flaw> {
        let all = bytes;
        let mut rest = bytes;
        let [head] = take_array::<1>(&mut rest)?;
        let value_here = head & KIND == 1;
        let check = match value_here {
            true => u32::from_le_bytes(take_array(&mut rest)?),
            false => u16::from_le_bytes(take_array(&mut rest)?).into(),
        };
        let stamp = Stamp::read(head, &mut rest)?;
        let content = rest;
        let value_length = match (value_here, head & LONG_VALUE) {
            (true, 0) => usize::from(take_array::<1>(&mut rest)?[0]),
            (true, _) if take_array::<1>(&mut rest)? == [0] => INLINE_VALUE_MAX,
            (false, 0) => 0,
            _ => return Err(Flaw::Field("value length")),
        };
        let key_length = match head & KEY_OF_8 {
            0 => usize::from(take_array::<1>(&mut rest)?[0]),
            _ => 8,
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
        if head & ODD != 0 {
            take(&mut rest, 1)?;
        }
        let content = content.get(..content.len() - rest.len()).unwrap_or_default();
        let size = all.len() - rest.len();
        Ok(Entry { key, action, attributes, stamp, size, check, head, content })
    }

    /// Whether the entry is what was written, with this version.
    #[inline]
    #[must_use]
    pub fn is_sound(&self, version: u64) -> bool {
        let size = check_size(self.head);
        self.check == check_of(self.head, self.content, size) ^ check_of_version(version, size)
    }

    /// The entry with a stamp of its own, for another place.
    #[must_use]
    pub fn moved(&self) -> EncodeEntry<'a> {
        EncodeEntry { key: self.key, action: self.action, attributes: self.attributes }
    }
}
