//! Summaries: what recovery needs to know of a sealed segment's records, without reading them.
//!
//! ```text
//! per batch:  | offset in blocks 4 | records 4 | first sequence 8 |
//! per record: | hash 6 | size, kind, mark 1 | size if large? varint | version if moved? 8 |
//!             and where needed: | kind 1 | id of a large value 8 | number 4 |
//! ```
//!
//! The payload of a batch of kind `Summary`, which a checksum covers as any batch. A record's
//! place follows from the sizes of those before it; a client's record's version from its place in
//! the order. Small records take 7 bytes (uDepot §4.4 reads keys and headers of all records).

use super::batch::BATCH_HEADER_SIZE;
use super::extent::{ExtentKey, LargeValue};
use super::record::{REPLACES, RecordKind};
use super::varint;
use super::{GRAIN_SIZE_BYTES, HASH_BITS, VersionForm};
use crate::Flaw;
use esker_base::ids::{Sequence, Version};

const HASH_SIZE: usize = 6;
const _: () = assert!(HASH_SIZE * 8 == HASH_BITS as usize);
/// Size of a batch's entry in bytes.
pub const SUMMARY_BATCH_SIZE: usize = 16;
/// Sizes in grains below this stand in the byte that has kind and mark; it itself says that the
/// size follows.
const SIZE_FOLLOWS: u8 = 31;
const KIND_MASK: u8 = 3;
/// In place of a kind: the kind follows, as in the record.
const KIND_FOLLOWS: u8 = 0;
const LARGE_REF_SIZE: usize = 12;
const COLLIDES: u8 = 4;
const SIZE_SHIFT: u32 = 3;

/// What a summary says of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryRecord {
    /// Hash of the key, [`HASH_BITS`] bits.
    pub hash: u64,
    /// Order of the write.
    pub version: Version,
    /// Offset in the segment in bytes.
    pub offset: u64,
    /// Size in bytes, padding included.
    pub size_bytes: u64,
    /// What the record says.
    pub kind: RecordKind,
    /// As in the record.
    pub collides: bool,
    /// As in the record.
    pub replaces: bool,
    /// For records of kinds `Large` and `Extent`.
    pub piece: LargeRef,
}

/// What a record of a large value says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LargeRef {
    /// Id of the value.
    pub id: u64,
    /// Number of the extent, or of all extents in a record of kind `Large`.
    pub number: u32,
}

impl LargeRef {
    /// What a record with this key and value says of a large value; nothing for other kinds.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn of(kind: RecordKind, key: &[u8], value: &[u8]) -> Result<LargeRef, Flaw> {
        match kind {
            RecordKind::Large => {
                let large = LargeValue::decode(value)?;
                Ok(LargeRef { id: large.id, number: large.count() })
            }
            RecordKind::Extent => {
                let key = ExtentKey::decode(key)?;
                Ok(LargeRef { id: key.id, number: key.number })
            }
            _ => Ok(LargeRef::default()),
        }
    }
}

/// Whether the kind stands behind the size, with what goes with it.
fn kind_follows(kind: RecordKind, replaces: bool) -> bool {
    replaces || !matches!(kind, RecordKind::Put | RecordKind::Delete | RecordKind::Clear)
}

fn has_large_ref(kind: RecordKind) -> bool {
    matches!(kind, RecordKind::Large | RecordKind::Extent)
}

/// Bytes that a record takes in a summary.
#[must_use]
pub fn summary_record_size(
    form: VersionForm,
    kind: RecordKind,
    replaces: bool,
    size_bytes: u64,
) -> usize {
    let grains = size_bytes / GRAIN_SIZE_BYTES;
    let large = if grains >= u64::from(SIZE_FOLLOWS) { varint::size(grains) } else { 0 };
    let kind_size = usize::from(kind_follows(kind, replaces));
    let of_value = if has_large_ref(kind) { LARGE_REF_SIZE } else { 0 };
    HASH_SIZE + 1 + large + kind_size + of_value + if form == VersionForm::Whole { 8 } else { 0 }
}

/// Starts a batch in the summary `out`.
pub fn push_batch(out: &mut Vec<u8>, offset_blocks: u32, records: u32, first: Sequence) {
    out.extend_from_slice(&offset_blocks.to_le_bytes());
    out.extend_from_slice(&records.to_le_bytes());
    out.extend_from_slice(&first.0.to_le_bytes());
}

/// Adds a record of the last batch to the summary `out`; its offset is not written.
pub fn push_record(out: &mut Vec<u8>, form: VersionForm, record: &SummaryRecord) {
    out.extend_from_slice(record.hash.to_le_bytes().get(..HASH_SIZE).unwrap_or(&[]));
    let grains = record.size_bytes / GRAIN_SIZE_BYTES;
    let small = u8::try_from(grains).ok().filter(|grains| *grains < SIZE_FOLLOWS);
    let mark = if record.collides { COLLIDES } else { 0 };
    let follows = kind_follows(record.kind, record.replaces);
    let kind = if follows { KIND_FOLLOWS } else { record.kind as u8 };
    out.push(small.unwrap_or(SIZE_FOLLOWS) << SIZE_SHIFT | mark | kind);
    if small.is_none() {
        let (bytes, length) = varint::encode(grains);
        out.extend_from_slice(bytes.get(..length).unwrap_or(&[]));
    }
    if form == VersionForm::Whole {
        out.extend_from_slice(&record.version.0.to_le_bytes());
    }
    if follows {
        out.push(record.kind as u8 | if record.replaces { REPLACES } else { 0 });
    }
    if has_large_ref(record.kind) {
        out.extend_from_slice(&record.piece.id.to_le_bytes());
        out.extend_from_slice(&record.piece.number.to_le_bytes());
    }
}

/// Reads a summary of a segment of `segment_size` bytes and gives each record to `visit`; returns
/// the number of batches.
///
/// # Errors
/// The first [`Flaw`] found; `visit` may have been called before.
pub fn read_summary(
    mut rest: &[u8],
    form: VersionForm,
    block_size: u64,
    segment_size: u64,
    mut visit: impl FnMut(SummaryRecord),
) -> Result<u64, Flaw> {
    let mut batches = 0;
    while !rest.is_empty() {
        let blocks = u64::from(u32::from_le_bytes(take(&mut rest)?));
        let records = u32::from_le_bytes(take(&mut rest)?);
        let first = u64::from_le_bytes(take(&mut rest)?);
        let mut offset = blocks.saturating_mul(block_size) + BATCH_HEADER_SIZE as u64;
        for place in 0..u64::from(records) {
            let mut hash = [0; 8];
            let bytes: [u8; HASH_SIZE] = take(&mut rest)?;
            hash.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            let [byte] = take(&mut rest)?;
            let small = byte >> SIZE_SHIFT;
            let grains = match small {
                SIZE_FOLLOWS => varint::decode(&mut rest)?,
                small => u64::from(small),
            };
            let version = match form {
                VersionForm::Distance => first.saturating_add(place),
                VersionForm::Whole => u64::from_le_bytes(take(&mut rest)?),
            };
            let [kind] = match byte & KIND_MASK {
                KIND_FOLLOWS => take(&mut rest)?,
                kind => [kind],
            };
            let replaces = kind & REPLACES != 0;
            let kind = RecordKind::from_number(kind & !REPLACES).ok_or(Flaw::Field("kind"))?;
            let mut piece = LargeRef::default();
            if has_large_ref(kind) {
                piece.id = u64::from_le_bytes(take(&mut rest)?);
                piece.number = u32::from_le_bytes(take(&mut rest)?);
            }
            let size_bytes = grains.saturating_mul(GRAIN_SIZE_BYTES);
            let end = offset.saturating_add(size_bytes);
            if grains == 0 || end > segment_size {
                return Err(Flaw::Field("size"));
            }
            visit(SummaryRecord {
                hash: u64::from_le_bytes(hash),
                version: Version(version),
                offset,
                size_bytes,
                kind,
                collides: byte & COLLIDES != 0,
                replaces,
                piece,
            });
            offset = end;
        }
        batches += 1;
    }
    Ok(batches)
}

/// The payload of a trailer: where in the segment the summary starts, in bytes.
#[must_use]
pub fn encode_trailer(summary_offset: u64) -> [u8; 8] {
    summary_offset.to_le_bytes()
}

/// What [`encode_trailer`] wrote; `None` if there are too few bytes.
#[must_use]
pub fn decode_trailer(payload: &[u8]) -> Option<u64> {
    payload.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Flaw> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(Flaw::TooShort)?;
    *rest = tail;
    Ok(*head)
}
