//! Records: one key-value pair, or what stands in its place.
//!
//! A record has a checksum of its own beside its batch's, because a GET reads one record, not a
//! batch. uDepot's two-byte segment tag does not cover the data (uDepot §4.4); this one covers all
//! of it, and the place.

use super::{GRAIN_SIZE_BYTES, Place};
use crate::Flaw;
use esker_base::ids::Version;
use esker_base::units::round_up;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a record header in bytes, without the optional expiry.
pub const RECORD_HEADER_SIZE: usize = 24;
const EXPIRY_SIZE: usize = 8;
const FLAG_EXPIRES: u8 = 1;
const FLAG_COLLIDES: u8 = 2;
const STATE_SHIFT: u32 = 4;
const STATE_MASK: u8 = 0xF0;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) checksum: U32,
    pub(crate) key_size_less_one: U16,
    pub(crate) kind: u8,
    pub(crate) marks: u8,
    pub(crate) value_size: U32,
    pub(crate) flags: U32,
    pub(crate) version: U64,
}

const _: () = assert!(size_of::<Raw>() == RECORD_HEADER_SIZE);

/// What a record says about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// The key has this value (which may be empty).
    Put = 1,
    /// The key has no value: a tombstone.
    Delete = 2,
    /// No key has a value that was written before this record.
    Clear = 3,
}

/// Everything a record says besides key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    /// What the record says.
    pub kind: RecordKind,
    /// Order of the write.
    pub version: Version,
    /// Opaque number of the client.
    pub flags: u32,
    /// Wall time in seconds since 1970 from which the record is gone.
    pub expires_at: Option<u64>,
    /// Four opaque bits of the client.
    pub state: u8,
    /// Another key with the same 64-bit hash had a value or tombstone when this was written. Without
    /// this mark, recovery may take records with equal hashes for records of one key.
    pub collides: bool,
}

/// A record that passed its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it says.
    pub meta: RecordMeta,
    /// The key; empty only for `Clear`.
    pub key: &'a [u8],
    /// The value; empty for tombstones.
    pub value: &'a [u8],
    /// Bytes of the record on media, padding included.
    pub size_bytes: usize,
}

impl RecordMeta {
    /// Bytes that a record with this key and value takes, padding included.
    #[must_use]
    pub fn size_bytes(&self, key_size: usize, value_size: usize) -> usize {
        let expiry = if self.expires_at.is_some() { EXPIRY_SIZE } else { 0 };
        let grain = usize::try_from(GRAIN_SIZE_BYTES).unwrap_or(usize::MAX);
        (RECORD_HEADER_SIZE + expiry + key_size + value_size).next_multiple_of(grain)
    }
}

/// Writes a record into `out`, whose length is [`RecordMeta::size_bytes`], without its checksum:
/// [`seal_record`] adds it once the place is known. The caller has checked that key and value are
/// within the limits of the header's fields.
pub fn encode_record(out: &mut [u8], meta: &RecordMeta, key: &[u8], value: &[u8]) {
    let mut marks = meta.state << STATE_SHIFT;
    if meta.expires_at.is_some() {
        marks |= FLAG_EXPIRES;
    }
    if meta.collides {
        marks |= FLAG_COLLIDES;
    }
    let raw = Raw {
        checksum: 0.into(),
        key_size_less_one: u16::try_from(key.len().saturating_sub(1)).unwrap_or(u16::MAX).into(),
        kind: meta.kind as u8,
        marks,
        value_size: u32::try_from(value.len()).unwrap_or(u32::MAX).into(),
        flags: meta.flags.into(),
        version: meta.version.0.into(),
    };
    let mut rest = out;
    let mut put = |bytes: &[u8]| {
        if let Some((target, tail)) = std::mem::take(&mut rest).split_at_mut_checked(bytes.len()) {
            target.copy_from_slice(bytes);
            rest = tail;
        }
    };
    put(raw.as_bytes());
    if let Some(expires_at) = meta.expires_at {
        put(&expires_at.to_le_bytes());
    }
    put(key);
    put(value);
    rest.fill(0);
}

/// Adds the checksum to the encoded `record`, which will stand at `place`.
pub fn seal_record(record: &mut [u8], place: Place) {
    let Some((head, body)) = record.split_at_mut_checked(4) else { return };
    let mut crc = place.checksum();
    crc.update(body);
    head.copy_from_slice(&crc.finish().to_le_bytes());
}

impl<'a> Record<'a> {
    /// Offset of the key from the start of the record in bytes; the value follows it.
    #[must_use]
    pub fn body_start(&self) -> usize {
        RECORD_HEADER_SIZE + if self.meta.expires_at.is_some() { EXPIRY_SIZE } else { 0 }
    }

    /// Size in bytes of the record whose first bytes these are, unchecked: only good for learning
    /// how many bytes to read.
    ///
    /// # Errors
    /// `TooShort` or a field that no writer produces.
    pub fn peek_size(bytes: &[u8]) -> Result<usize, Flaw> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        Ok(raw.sizes()?.2)
    }

    /// Reads the record at the start of `bytes` and checks it against `place`, if there is one:
    /// inside a checked batch the batch's checksum has spoken for it.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(bytes: &'a [u8], place: Option<Place>) -> Result<Self, Flaw> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let (kind, body_start, size_bytes) = raw.sizes()?;
        let whole = bytes.get(..size_bytes).ok_or(Flaw::TooShort)?;
        if let Some(place) = place {
            let mut crc = place.checksum();
            crc.update(whole.get(4..).ok_or(Flaw::TooShort)?);
            if crc.finish() != raw.checksum.get() {
                return Err(Flaw::Checksum);
            }
        }
        let expires_at = if raw.marks & FLAG_EXPIRES != 0 {
            let bytes = whole.get(RECORD_HEADER_SIZE..body_start).ok_or(Flaw::TooShort)?;
            Some(U64::read_from_bytes(bytes).map_err(|_| Flaw::TooShort)?.get())
        } else {
            None
        };
        let body = whole.get(body_start..).ok_or(Flaw::TooShort)?;
        let (key, rest) = body.split_at_checked(raw.key_size(kind)).ok_or(Flaw::TooShort)?;
        let value_size = usize::try_from(raw.value_size.get()).map_err(|_| Flaw::TooShort)?;
        let value = rest.get(..value_size).ok_or(Flaw::TooShort)?;
        Ok(Record {
            meta: RecordMeta {
                kind,
                version: Version(raw.version.get()),
                flags: raw.flags.get(),
                expires_at,
                state: raw.marks >> STATE_SHIFT,
                collides: raw.marks & FLAG_COLLIDES != 0,
            },
            key,
            value,
            size_bytes,
        })
    }
}

impl Raw {
    /// Keys have 1 byte to 64 KiB; only `Clear` has none.
    fn key_size(&self, kind: RecordKind) -> usize {
        match kind {
            RecordKind::Clear => 0,
            RecordKind::Put | RecordKind::Delete => usize::from(self.key_size_less_one.get()) + 1,
        }
    }

    /// Kind, offset of the key and size of the record in bytes.
    fn sizes(&self) -> Result<(RecordKind, usize, usize), Flaw> {
        let kind = match self.kind {
            1 => RecordKind::Put,
            2 => RecordKind::Delete,
            3 => RecordKind::Clear,
            _ => return Err(Flaw::Field("kind")),
        };
        if self.marks & !(FLAG_EXPIRES | FLAG_COLLIDES | STATE_MASK) != 0 {
            return Err(Flaw::Field("marks"));
        }
        if kind != RecordKind::Put && self.value_size.get() != 0 {
            return Err(Flaw::Field("value_size"));
        }
        let expiry = if self.marks & FLAG_EXPIRES != 0 { EXPIRY_SIZE } else { 0 };
        let body_start = RECORD_HEADER_SIZE + expiry;
        let used =
            body_start as u64 + self.key_size(kind) as u64 + u64::from(self.value_size.get());
        let size = round_up(used, GRAIN_SIZE_BYTES).ok_or(Flaw::Field("value_size"))?;
        Ok((kind, body_start, usize::try_from(size).map_err(|_| Flaw::Field("value_size"))?))
    }
}
