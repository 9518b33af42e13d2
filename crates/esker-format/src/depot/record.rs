//! Records: one key-value pair, or what stands in its place.
//!
//! A record has a checksum of its own beside its batch's, because a GET reads one record, not a
//! batch. uDepot's two-byte segment tag does not cover the data (uDepot §4.4); this one covers all
//! of it, and the place.
//!
//! The header is short, 10 bytes for most records, since small records are what batches are for:
//! sizes have variable length, and the version is told by its distance from the first one of the
//! segment. A record that was moved to another segment carries its whole version: one to three bytes more in
//! the life of most stores, so that copies take hardly more room than what they are copies of.

use super::varint::{self, VARINT_SIZE_MAX};
use super::{ExtentKey, Place};
use crate::Flaw;
use esker_base::ids::Version;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size in bytes of the part of a record header that all records have.
pub const RECORD_HEADER_SIZE: usize = 8;
/// Largest size of a record's header in bytes, all optional fields included.
pub const RECORD_HEADER_SIZE_MAX: usize = RECORD_HEADER_SIZE + 2 * VARINT_SIZE_MAX + 1 + 6 + 4 + 8;
/// First distance of a version from its segment's that no record can tell.
pub const DISTANCE_END: u32 = 1 << 24;
/// Longest key in bytes.
pub const KEY_SIZE_MAX_BYTES: usize = 64 << 10;
/// In the byte of the kind.
const KIND_MASK: u8 = 7;
const COLLIDES: u8 = 8;
const REPLACES: u8 = 16;
const WHOLE_VERSION: u8 = 32;
/// Bits of a version in the part of the header that all records have.
const VERSION_LOW_BITS: u32 = 24;
/// A byte of what a client said follows the sizes.
const CLIENTS: u8 = 64;
const UNUSED: u8 = 128;
/// In that byte.
const EXPIRES: u8 = 1;
const FLAGS: u8 = 2;
const CLIENTS_UNUSED: u8 = 12;
const STATE_SHIFT: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Raw {
    pub(crate) checksum: U32,
    pub(crate) version_low: [u8; 3],
    pub(crate) kind: u8,
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
    /// Bytes of the record on media.
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

    /// What a client said of the record, in a byte.
    fn clients(&self) -> u8 {
        let mark = |set: bool, mark: u8| if set { mark } else { 0 };
        self.state << STATE_SHIFT
            | mark(self.expires_at.is_some(), EXPIRES)
            | mark(self.flags != 0, FLAGS)
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
            + optional(self.clients() != 0, 1)
            + optional(form == VersionForm::Whole, varint::size(self.version.0 >> VERSION_LOW_BITS))
            + optional(self.flags != 0, 4)
            + optional(self.expires_at.is_some(), 8)
    }

    /// Bytes that a record with this key and value takes.
    #[must_use]
    pub fn size_bytes(&self, form: VersionForm, key_size: usize, value_size: usize) -> usize {
        self.body_start(form, key_size, value_size) + key_size + value_size
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
    let [v0, v1, v2, ..] = meta.version.0.to_le_bytes();
    let clients = meta.clients();
    let mark = |set: bool, mark: u8| if set { mark } else { 0 };
    let marks = mark(meta.collides, COLLIDES)
        | mark(meta.replaces, REPLACES)
        | mark(whole, WHOLE_VERSION)
        | mark(clients != 0, CLIENTS);
    let version_low = if whole { [v0, v1, v2] } else { [0; 3] };
    let raw = Raw { checksum: 0.into(), version_low, kind: meta.kind as u8 | marks };
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
    if clients != 0 {
        put(&[clients]);
    }
    if whole {
        let (bytes, length) = varint::encode(meta.version.0 >> VERSION_LOW_BITS);
        put(bytes.get(..length).unwrap_or(&[]));
    }
    if meta.flags != 0 {
        put(&meta.flags.to_le_bytes());
    }
    if let Some(expires_at) = meta.expires_at {
        put(&expires_at.to_le_bytes());
    }
    put(key);
    put(value);
}

/// Completes the encoded `record`, which will stand at `place`. `distance` is that of its version
/// from the first one of the segment, below [`DISTANCE_END`], for records that tell it so.
pub fn seal_record(record: &mut [u8], distance: Option<u32>, place: Place) {
    if let (Some(distance), Some(low)) = (distance, record.get_mut(4..7)) {
        low.iter_mut().zip(distance.to_le_bytes()).for_each(|(to, from)| *to = from);
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
        let kind = RecordKind::from_number(raw.kind & KIND_MASK)
            .filter(|_| raw.kind & UNUSED == 0)
            .ok_or(Flaw::Field("kind"))?;
        let mut size = |name| -> Result<usize, Flaw> {
            let number = varint::decode(&mut rest)?;
            usize::try_from(number).map_err(|_| Flaw::Field(name))
        };
        let (key_size, value_size) = (size("key_size")?, size("value_size")?);
        let clients = match raw.kind & CLIENTS {
            0 => 0,
            _ => match take::<1>(&mut rest)? {
                [clients] if clients != 0 && clients & CLIENTS_UNUSED == 0 => clients,
                _ => return Err(Flaw::Field("clients")),
            },
        };
        let [v0, v1, v2] = raw.version_low;
        let low = u64::from(u32::from_le_bytes([v0, v1, v2, 0]));
        let version = if raw.kind & WHOLE_VERSION == 0 {
            Version(base.0.saturating_add(low))
        } else {
            let high = varint::decode(&mut rest)?;
            if high > u64::MAX >> VERSION_LOW_BITS {
                return Err(Flaw::Field("version"));
            }
            Version(high << VERSION_LOW_BITS | low)
        };
        let flags = match clients & FLAGS {
            0 => 0,
            _ => u32::from_le_bytes(take::<4>(&mut rest)?),
        };
        let expires_at = match clients & EXPIRES {
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
        Ok(Fields {
            meta: RecordMeta {
                kind,
                version,
                flags,
                expires_at,
                state: clients >> STATE_SHIFT,
                collides: raw.kind & COLLIDES != 0,
                replaces: raw.kind & REPLACES != 0,
            },
            checksum: raw.checksum.get(),
            key_size,
            value_size,
            body_start,
            size_bytes: usize::try_from(used).map_err(|_| Flaw::Field("value_size"))?,
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

    /// How the record whose first bytes these are tells its version, unchecked.
    #[must_use]
    pub fn peek_form(bytes: &[u8]) -> Option<VersionForm> {
        let (raw, _) = Raw::read_from_prefix(bytes).ok()?;
        Some(match raw.kind & WHOLE_VERSION {
            0 => VersionForm::Distance,
            _ => VersionForm::Whole,
        })
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
