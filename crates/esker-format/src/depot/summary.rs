//! Summaries: what recovery needs to know of a sealed segment's records, without reading them.
//!
//! ```text
//! per batch:  | offset in blocks 4 | records, one shape? 4 | first sequence 8 | shape, if all have one |
//! per record: | hash 6 | shape, if not | version if moved |
//!             and of pieces of large values: | id 8 | number 4 |
//! shape:      | kind and marks 5 bits, low bits of the size 3 | the rest of the size, varint |
//! version:    | distance from the version of the record before in the batch, its sign in the lowest bit, varint |
//! ```
//!
//! The payload of a batch of kind `Summary`, which a checksum covers as any batch. A record's
//! place follows from the sizes of those before it; a client's record's version from its place in
//! the order. Records of one size take 6 bytes (uDepot §4.4 reads keys and headers of all records), moved ones 7 to 9,
//! as what was written in one order is moved in it.

use super::batch::BATCH_HEADER_SIZE;
use super::extent::{ExtentKey, LargeValue};
use super::record::RecordKind;
use super::varint;
use super::{HASH_BITS, VersionForm};
use crate::Flaw;
use esker_base::ids::{Sequence, Version};
use esker_base::units::round_up;

const HASH_SIZE: usize = 6;
const _: () = assert!(HASH_SIZE * 8 == HASH_BITS as usize);
/// Size in bytes of a batch's entry, without a shape.
const BATCH_SIZE: u64 = 16;
const LARGE_REF_SIZE: u64 = 12;
/// In the number of a batch's records: all have one shape, which stands here.
const ONE_SHAPE: u32 = 1 << 31;
const KIND_MASK: u8 = 7;
const COLLIDES: u8 = 8;
const REPLACES: u8 = 16;
/// Where the size's low bits stand in a shape's first byte, and how many they are.
const SIZE_SHIFT: u32 = 5;
const SIZE_LOW_BITS: u32 = 3;

/// What a summary says of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryRecord {
    /// Hash of the key, [`HASH_BITS`] bits.
    pub hash: u64,
    /// Order of the write.
    pub version: Version,
    /// Offset in the segment in bytes.
    pub offset: u64,
    /// Size in bytes.
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

/// What a summary says once of records that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What the record says.
    pub kind: RecordKind,
    /// As in the record.
    pub collides: bool,
    /// As in the record.
    pub replaces: bool,
    /// Size in bytes.
    pub size_bytes: u64,
}

impl Shape {
    fn size(self) -> u64 {
        1 + varint::size(self.size_bytes >> SIZE_LOW_BITS) as u64
    }

    fn push(self, out: &mut Vec<u8>) {
        let mark = |set: bool, mark: u8| if set { mark } else { 0 };
        let marks = mark(self.collides, COLLIDES) | mark(self.replaces, REPLACES);
        let low = (self.size_bytes & 7) as u8;
        out.push(self.kind as u8 | marks | low << SIZE_SHIFT);
        let (bytes, length) = varint::encode(self.size_bytes >> SIZE_LOW_BITS);
        out.extend_from_slice(bytes.get(..length).unwrap_or(&[]));
    }

    fn take(rest: &mut &[u8]) -> Result<Shape, Flaw> {
        let [byte] = take(rest)?;
        let high = varint::decode(rest)?;
        if high > u64::MAX >> SIZE_LOW_BITS {
            return Err(Flaw::Field("size"));
        }
        Ok(Shape {
            kind: RecordKind::from_number(byte & KIND_MASK).ok_or(Flaw::Field("kind"))?,
            collides: byte & COLLIDES != 0,
            replaces: byte & REPLACES != 0,
            size_bytes: high << SIZE_LOW_BITS | u64::from(byte >> SIZE_SHIFT),
        })
    }
}

impl SummaryRecord {
    /// What it may have in common with others.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let SummaryRecord { kind, collides, replaces, size_bytes, .. } = *self;
        Shape { kind, collides, replaces, size_bytes }
    }
}

/// How far a version is from the one before it, the sign in the lowest bit.
fn step_to(version: Version, before: Version) -> u64 {
    let step = version.0.wrapping_sub(before.0).cast_signed();
    (step << 1 ^ step >> 63).cast_unsigned()
}

/// The version that is so far from the one before it.
fn step_from(before: Version, step: u64) -> Version {
    let far = (step >> 1) ^ (step & 1).wrapping_neg();
    Version(before.0.wrapping_add(far))
}

fn has_large_ref(kind: RecordKind) -> bool {
    matches!(kind, RecordKind::Large | RecordKind::Extent)
}

/// Bytes that a batch takes in a summary, counted record by record.
#[derive(Clone, Copy, Debug)]
pub struct SummarySize {
    form: VersionForm,
    first: Option<Shape>,
    alike: bool,
    /// Bytes of the records without their shapes, and of these.
    records: u64,
    shapes: u64,
    /// Version of the last record.
    before: Version,
}

impl SummarySize {
    /// Of a batch without records.
    #[must_use]
    pub fn new(form: VersionForm) -> Self {
        SummarySize { form, first: None, alike: true, records: 0, shapes: 0, before: Version(0) }
    }

    /// A record of this version more.
    pub fn add(&mut self, shape: Shape, version: Version) {
        let before = std::mem::replace(&mut self.before, version);
        let version = match self.form {
            VersionForm::Distance => 0,
            VersionForm::Whole => varint::size(step_to(version, before)) as u64,
        };
        let of_value = if has_large_ref(shape.kind) { LARGE_REF_SIZE } else { 0 };
        self.records += HASH_SIZE as u64 + version + of_value;
        self.shapes += shape.size();
        self.alike &= *self.first.get_or_insert(shape) == shape;
    }

    /// The shape of all records, if they have one.
    #[must_use]
    pub fn common(&self) -> Option<Shape> {
        self.first.filter(|_| self.alike)
    }

    /// Bytes in the summary.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        BATCH_SIZE + self.records + self.common().map_or(self.shapes, Shape::size)
    }
}

/// Starts a batch of so many `records` in the summary `out`; with the shape that they have in `common`.
pub fn push_batch(
    out: &mut Vec<u8>,
    offset_blocks: u32,
    records: u32,
    first: Sequence,
    common: Option<Shape>,
) {
    let mark = if common.is_some() { ONE_SHAPE } else { 0 };
    out.extend_from_slice(&offset_blocks.to_le_bytes());
    out.extend_from_slice(&(records | mark).to_le_bytes());
    out.extend_from_slice(&first.0.to_le_bytes());
    if let Some(shape) = common {
        shape.push(out);
    }
}

/// Adds a record of the last batch, whose records have this shape in `common`, to the summary `out`; its offset is not
/// written. `before` is the version of the record before it in the batch, or 0.
pub fn push_record(
    out: &mut Vec<u8>,
    form: VersionForm,
    common: Option<Shape>,
    record: &SummaryRecord,
    before: Version,
) {
    out.extend_from_slice(record.hash.to_le_bytes().get(..HASH_SIZE).unwrap_or(&[]));
    if common.is_none() {
        record.shape().push(out);
    }
    if form == VersionForm::Whole {
        let (bytes, length) = varint::encode(step_to(record.version, before));
        out.extend_from_slice(bytes.get(..length).unwrap_or(&[]));
    }
    if has_large_ref(record.kind) {
        out.extend_from_slice(&record.piece.id.to_le_bytes());
        out.extend_from_slice(&record.piece.number.to_le_bytes());
    }
}

/// What a summary is read against, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct SummaryGeometry {
    /// Size of a block.
    pub block: u64,
    /// Size of the segment.
    pub segment: u64,
    /// Size of a grain.
    pub grain: u64,
}

/// Reads a summary and gives each record to `visit`; returns the number of batches.
///
/// # Errors
/// The first [`Flaw`] found; `visit` may have been called before.
pub fn read_summary(
    mut rest: &[u8],
    form: VersionForm,
    geometry: SummaryGeometry,
    mut visit: impl FnMut(SummaryRecord),
) -> Result<u64, Flaw> {
    let mut batches = 0;
    while !rest.is_empty() {
        let blocks = u64::from(u32::from_le_bytes(take(&mut rest)?));
        let records = u32::from_le_bytes(take(&mut rest)?);
        let first = u64::from_le_bytes(take(&mut rest)?);
        let common = match records & ONE_SHAPE {
            0 => None,
            _ => Some(Shape::take(&mut rest)?),
        };
        let mut offset = blocks.saturating_mul(geometry.block) + BATCH_HEADER_SIZE as u64;
        let mut before = Version(0);
        for place in 0..u64::from(records & !ONE_SHAPE) {
            let mut hash = [0; 8];
            let bytes: [u8; HASH_SIZE] = take(&mut rest)?;
            hash.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            let shape = match common {
                Some(shape) => shape,
                None => Shape::take(&mut rest)?,
            };
            let version = match form {
                VersionForm::Distance => Version(first.saturating_add(place)),
                VersionForm::Whole => step_from(before, varint::decode(&mut rest)?),
            };
            before = version;
            let mut piece = LargeRef::default();
            if has_large_ref(shape.kind) {
                piece.id = u64::from_le_bytes(take(&mut rest)?);
                piece.number = u32::from_le_bytes(take(&mut rest)?);
            }
            let Shape { kind, collides, replaces, size_bytes } = shape;
            let end = round_up(offset, geometry.grain).map(|at| (at, at.checked_add(size_bytes)));
            let Some((at, Some(end))) = end else { return Err(Flaw::Field("size")) };
            if size_bytes == 0 || end > geometry.segment {
                return Err(Flaw::Field("size"));
            }
            visit(SummaryRecord {
                hash: u64::from_le_bytes(hash),
                version,
                offset: at,
                size_bytes,
                kind,
                collides,
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
