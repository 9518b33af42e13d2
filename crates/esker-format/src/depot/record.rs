//! Records: one key-value pair, or what stands in its place.
//!
//! A record has a checksum of its own beside its batch's, because a GET reads one record, not a
//! batch. uDepot's two-byte segment tag does not cover the data (uDepot §4.4); this one covers all
//! of it, and the place.
//!
//! The header is short, 12 bytes for most records, since small records are what batches are for:
//! sizes have variable length, and the version is told by its distance from the first one of the
//! segment. A record that was moved to another segment carries its whole version.

use super::varint::{self, VARINT_SIZE_MAX};
use super::{ExtentKey, GRAIN_SIZE_BYTES, Place};
use crate::Flaw;
use esker_base::ids::Version;
use esker_base::units::round_up;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size in bytes of the part of a record header that all records have.
pub const RECORD_HEADER_SIZE: usize = 10;
/// Largest size of a record's header in bytes, all optional fields included.
pub const RECORD_HEADER_SIZE_MAX: usize = RECORD_HEADER_SIZE + 2 * VARINT_SIZE_MAX + 4 + 8 + 4;
/// Longest key in bytes.
pub const KEY_SIZE_MAX_BYTES: usize = 64 << 10;
const EXPIRES: u8 = 1;
const COLLIDES: u8 = 2;
const FLAGS: u8 = 4;
const WHOLE_VERSION: u8 = 8;
const STATE_SHIFT: u32 = 4;
/// In the byte of the kind.
pub(super) const REPLACES: u8 = 128;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) checksum: U32,
    pub(crate) version_low: U32,
    pub(crate) kind: u8,
    pub(crate) marks: u8,
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
    /// The key has a value that stands in extents: a [`LargeValue`](super::LargeValue).
    Large = 4,
    /// A piece of a large value, under an [`ExtentKey`](super::ExtentKey).
    Extent = 5,
    /// A cache evicted the key with this hash (8 bytes in place of the key), so no record of it with
    /// this version or a lower one counts.
    Evict = 6,
}

impl RecordKind {
    /// Whether the record says that its key has no value.
    #[must_use]
    pub fn is_tombstone(self) -> bool {
        matches!(self, RecordKind::Delete | RecordKind::Evict)
    }

    /// Whether the record gives its key a value.
    #[must_use]
    pub fn has_value(self) -> bool {
        matches!(self, RecordKind::Put | RecordKind::Large)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(RecordKind::Put),
            2 => Some(RecordKind::Delete),
            3 => Some(RecordKind::Clear),
            4 => Some(RecordKind::Large),
            5 => Some(RecordKind::Extent),
            6 => Some(RecordKind::Evict),
            _ => None,
        }
    }
}

/// How a record tells its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionForm {
    /// As its distance from the first version of its segment: records of clients.
    Distance,
    /// Whole: records that were moved here.
    Whole,
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
    /// Another key with the same hash had a value or tombstone when this was written. Without
    /// this mark, recovery may take records with equal hashes for records of one key.
    pub collides: bool,
    /// In a cache: an older record of the key may be on media, so that the key's eviction has to be
    /// noted.
    pub replaces: bool,
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
    /// Offset of the key from the start of the record in bytes; the value follows it.
    pub body_start: usize,
    /// Bytes of the record on media, padding included.
    pub size_bytes: usize,
}

impl RecordMeta {
    /// A record of this kind that says nothing else.
    #[must_use]
    pub fn new(kind: RecordKind) -> Self {
        RecordMeta {
            kind,
            version: Version(0),
            flags: 0,
            expires_at: None,
            state: 0,
            collides: false,
            replaces: false,
        }
    }

    pub(super) fn body_start(
        &self,
        form: VersionForm,
        key_size: usize,
        value_size: usize,
    ) -> usize {
        let optional = |present: bool, size: usize| if present { size } else { 0 };
        RECORD_HEADER_SIZE
            + varint::size(key_size as u64)
            + varint::size(value_size as u64)
            + optional(form == VersionForm::Whole, 4)
            + optional(self.flags != 0, 4)
            + optional(self.expires_at.is_some(), 8)
    }

    /// Bytes that a record with this key and value takes, padding included.
    #[must_use]
    pub fn size_bytes(&self, form: VersionForm, key_size: usize, value_size: usize) -> usize {
        let grain = usize::try_from(GRAIN_SIZE_BYTES).unwrap_or(usize::MAX);
        (self.body_start(form, key_size, value_size) + key_size + value_size)
            .next_multiple_of(grain)
    }
}

/// Writes a record into `out`, whose length is [`RecordMeta::size_bytes`], without its checksum and
/// without a version that is told by distance: [`seal_record`] adds them once the place is known.
/// The caller has checked that key and value are within their limits.
pub fn encode_record(
    out: &mut [u8],
    meta: &RecordMeta,
    form: VersionForm,
    key: &[u8],
    value: &[u8],
) {
    let whole = form == VersionForm::Whole;
    let [low, high] = split(meta.version);
    let mut marks = meta.state << STATE_SHIFT;
    for (mark, set) in [
        (EXPIRES, meta.expires_at.is_some()),
        (COLLIDES, meta.collides),
        (FLAGS, meta.flags != 0),
        (WHOLE_VERSION, whole),
    ] {
        marks |= if set { mark } else { 0 };
    }
    let raw = Raw {
        checksum: 0.into(),
        version_low: if whole { low } else { 0 }.into(),
        kind: meta.kind as u8 | if meta.replaces { REPLACES } else { 0 },
        marks,
    };
    let mut rest = out;
    let mut put = |bytes: &[u8]| {
        if let Some((target, tail)) = std::mem::take(&mut rest).split_at_mut_checked(bytes.len()) {
            target.copy_from_slice(bytes);
            rest = tail;
        }
    };
    put(raw.as_bytes());
    for size in [key.len(), value.len()] {
        let (bytes, length) = varint::encode(size as u64);
        put(bytes.get(..length).unwrap_or(&[]));
    }
    if whole {
        put(&high.to_le_bytes());
    }
    if meta.flags != 0 {
        put(&meta.flags.to_le_bytes());
    }
    if let Some(expires_at) = meta.expires_at {
        put(&expires_at.to_le_bytes());
    }
    put(key);
    put(value);
    rest.fill(0);
}

fn split(version: Version) -> [u32; 2] {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
    [version.0 as u32, (version.0 >> 32) as u32]
}

/// Completes the encoded `record`, which will stand at `place`. `distance` is that of its version
/// from the first one of the segment, for records that tell it so.
pub fn seal_record(record: &mut [u8], distance: Option<u32>, place: Place) {
    if let (Some(distance), Some(low)) = (distance, record.get_mut(4..8)) {
        low.copy_from_slice(&distance.to_le_bytes());
    }
    let Some((head, body)) = record.split_at_mut_checked(4) else { return };
    let mut crc = place.checksum();
    crc.update(body);
    head.copy_from_slice(&crc.finish().to_le_bytes());
}

/// The fields of a header, and where they end.
struct Fields {
    meta: RecordMeta,
    checksum: u32,
    key_size: usize,
    value_size: usize,
    body_start: usize,
    size_bytes: usize,
}

/// Takes the first `N` bytes of `rest`.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Flaw> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(Flaw::TooShort)?;
    *rest = tail;
    Ok(*head)
}

impl Fields {
    /// Reads a header; `base` is the first version of the segment.
    fn read(bytes: &[u8], base: Version) -> Result<Fields, Flaw> {
        let (raw, mut rest) = Raw::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let kind = RecordKind::from_number(raw.kind & !REPLACES).ok_or(Flaw::Field("kind"))?;
        let mut size = |name| -> Result<usize, Flaw> {
            let number = varint::decode(&mut rest)?;
            usize::try_from(number).map_err(|_| Flaw::Field(name))
        };
        let (key_size, value_size) = (size("key_size")?, size("value_size")?);
        let low = raw.version_low.get();
        let version = if raw.marks & WHOLE_VERSION == 0 {
            Version(base.0.saturating_add(u64::from(low)))
        } else {
            let high = u32::from_le_bytes(take::<4>(&mut rest)?);
            Version(u64::from(high) << 32 | u64::from(low))
        };
        let flags = match raw.marks & FLAGS {
            0 => 0,
            _ => u32::from_le_bytes(take::<4>(&mut rest)?),
        };
        let expires_at = match raw.marks & EXPIRES {
            0 => None,
            _ => Some(u64::from_le_bytes(take::<8>(&mut rest)?)),
        };
        if (kind == RecordKind::Clear) != (key_size == 0) || key_size > KEY_SIZE_MAX_BYTES {
            return Err(Flaw::Field("key_size"));
        }
        let bare = matches!(kind, RecordKind::Delete | RecordKind::Clear | RecordKind::Evict);
        if (bare && value_size != 0) || value_size as u64 > u64::from(u32::MAX) {
            return Err(Flaw::Field("value_size"));
        }
        let body_start = bytes.len() - rest.len();
        let used = body_start as u64 + key_size as u64 + value_size as u64;
        let size = round_up(used, GRAIN_SIZE_BYTES).ok_or(Flaw::Field("value_size"))?;
        Ok(Fields {
            meta: RecordMeta {
                kind,
                version,
                flags,
                expires_at,
                state: raw.marks >> STATE_SHIFT,
                collides: raw.marks & COLLIDES != 0,
                replaces: raw.kind & REPLACES != 0,
            },
            checksum: raw.checksum.get(),
            key_size,
            value_size,
            body_start,
            size_bytes: usize::try_from(size).map_err(|_| Flaw::Field("value_size"))?,
        })
    }
}

impl Fields {
    /// Checks the record whose bytes these are, one behind the other.
    fn check(&self, place: Place, head: &[u8], tail: &[u8]) -> Result<(), Flaw> {
        let mut crc = place.checksum();
        crc.update(head.get(4..).ok_or(Flaw::TooShort)?);
        crc.update(tail);
        if crc.finish() == self.checksum { Ok(()) } else { Err(Flaw::Checksum) }
    }
}

/// What stands in place of a key in a record of kind `Evict`: the hash of the key, as in summaries.
#[must_use]
pub fn encode_evicted(hash: u64) -> [u8; 8] {
    hash.to_le_bytes()
}

/// The hash that [`encode_evicted`] wrote; `None` if there are too few bytes.
#[must_use]
pub fn decode_evicted(key: &[u8]) -> Option<u64> {
    key.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Checks the extent that starts at the start of `head`, where nothing of its value stands: that is at
/// the start of `tail`. Returns its key, and the size of its value in bytes.
///
/// # Errors
/// The first [`Flaw`] found.
pub fn decode_extent(
    head: &[u8],
    tail: &[u8],
    place: Option<Place>,
) -> Result<(ExtentKey, usize), Flaw> {
    let fields = Fields::read(head, Version(0))?;
    let key_end = fields.body_start + fields.key_size;
    if fields.meta.kind != RecordKind::Extent || key_end != head.len() {
        return Err(Flaw::Field("kind"));
    }
    let tail = tail.get(..fields.size_bytes - key_end).ok_or(Flaw::TooShort)?;
    if let Some(place) = place {
        fields.check(place, head, tail)?;
    }
    let key = ExtentKey::decode(head.get(fields.body_start..).ok_or(Flaw::TooShort)?)?;
    Ok((key, fields.value_size))
}

impl<'a> Record<'a> {
    /// Size in bytes of the record whose first bytes these are, unchecked: only good for learning
    /// how many bytes to read. [`RECORD_HEADER_SIZE_MAX`] bytes suffice.
    ///
    /// # Errors
    /// `TooShort` or a field that no writer produces.
    pub fn peek_size(bytes: &[u8]) -> Result<usize, Flaw> {
        Ok(Fields::read(bytes, Version(0))?.size_bytes)
    }

    /// Reads the record at the start of `bytes`, which lies in a segment whose first version is
    /// `base`, and checks it against `place`, if there is one: inside a checked batch the batch's
    /// checksum has spoken for it.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(bytes: &'a [u8], base: Version, place: Option<Place>) -> Result<Self, Flaw> {
        let fields = Fields::read(bytes, base)?;
        let whole = bytes.get(..fields.size_bytes).ok_or(Flaw::TooShort)?;
        if let Some(place) = place {
            fields.check(place, whole, &[])?;
        }
        let body = whole.get(fields.body_start..).ok_or(Flaw::TooShort)?;
        let (key, rest) = body.split_at_checked(fields.key_size).ok_or(Flaw::TooShort)?;
        let value = rest.get(..fields.value_size).ok_or(Flaw::TooShort)?;
        let Fields { meta, body_start, size_bytes, .. } = fields;
        Ok(Record { meta, key, value, body_start, size_bytes })
    }
}
