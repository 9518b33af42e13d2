//! The logical log: groups of records that become durable together (FlexSpace §4.2).
//!
//! Most records go on where the one before them ends, and their bytes stand behind that one's: they take six bytes or so.

use super::{HOLE, bound};
use crate::flex_db::varint;
use crate::{Flaw, bounded};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"ESKG";
/// Size of a group's header in bytes.
pub const GROUP_HEADER_SIZE: usize = 48;
/// Least size of a record in bytes: what it says of its place and its address may be told by the one before it.
const RECORD_SIZE_MIN: u32 = 2;
/// Bits of a record's first byte: its kind; whether its offset is where the record before it ends, and its address where that one's does; and
/// whether, if so, it has [`MARK`].
const KIND: u8 = 0x07;
const GOES_ON: u8 = 0x08;
const FOLLOWS: u8 = 0x10;
const MARKED: u8 = 0x20;
/// The bit of an address that is no part of it.
const MARK: u64 = 1 << 47;
/// Bytes of an address.
const ADDRESS_SIZE: usize = 6;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawGroup {
    pub(crate) magic: [u8; 4],
    pub(crate) checksum: U32,
    pub(crate) generation: U64,
    pub(crate) sequence: U64,
    pub(crate) position: U64,
    pub(crate) total_bytes: U32,
    pub(crate) record_count: U32,
    pub(crate) previous_checksum: U32,
    pub(crate) reserved: U32,
}

const _: () = assert!(size_of::<RawGroup>() == GROUP_HEADER_SIZE);

/// One change of the address space, or of the segments below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// `length` bytes at `offset`, mapped to `address` or to nothing; what stood there moves back.
    Insert {
        /// Logical offset in bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Where they are, or [`super::HOLE`].
        address: u64,
    },
    /// `length` existing bytes at `offset` are at `address` from now on.
    Map {
        /// Logical offset in bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Where they are.
        address: u64,
    },
    /// `length` bytes at `offset` are gone; what stood behind them moves forward.
    Collapse {
        /// Logical offset in bytes.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// A free segment is written from now on.
    Take {
        /// Its number.
        segment: u64,
        /// The salt of its new incarnation.
        salt: u64,
    },
}

/// Where the record before one ends: most go on from there.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    offset: u64,
    address: u64,
}

impl Before {
    /// Behind another record.
    fn follow(&mut self, record: Record) {
        match record {
            Record::Insert { offset, length, address }
            | Record::Map { offset, length, address } => {
                self.offset = offset.saturating_add(length);
                self.address = (address & !MARK).saturating_add(length);
            }
            Record::Collapse { offset, .. } => self.offset = offset,
            Record::Take { .. } => {}
        }
    }
}

impl Record {
    /// Appends the record, which stands behind `before`.
    fn put(self, before: Before, to: &mut Vec<u8>) {
        let (kind, offset, length, address) = match self {
            Record::Insert { offset, length, address } => (1, offset, length, Some(address)),
            Record::Map { offset, length, address } => (2, offset, length, Some(address)),
            Record::Collapse { offset, length } => (3, offset, length, None),
            Record::Take { segment, salt } => {
                to.push(4);
                varint::put(to, segment);
                return to.extend_from_slice(&salt.to_le_bytes());
            }
        };
        let goes_on = offset == before.offset;
        let follows = address.is_some_and(|address| address & !MARK == before.address);
        let marked = follows && address.is_some_and(|address| address & MARK != 0);
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        to.push(kind | flag(goes_on, GOES_ON) | flag(follows, FOLLOWS) | flag(marked, MARKED));
        if !goes_on {
            varint::put(to, folded(offset, before.offset));
        }
        varint::put(to, length);
        if let Some(address) = address.filter(|_| !follows) {
            to.extend(address.to_le_bytes().into_iter().take(ADDRESS_SIZE));
        }
    }

    /// Takes a record off the front that stands behind `before`.
    fn take(rest: &mut &[u8], before: Before) -> Result<Self, Flaw> {
        let (first, behind) = rest.split_first().ok_or(Flaw::TooShort)?;
        *rest = behind;
        let kind = first & KIND;
        if kind == 4 && *first == kind {
            let segment = varint::take(rest).ok_or(Flaw::Field("segment"))?;
            let (salt, behind) = rest.split_first_chunk().ok_or(Flaw::TooShort)?;
            *rest = behind;
            return Ok(Record::Take { segment, salt: u64::from_le_bytes(*salt) });
        }
        let flags = first & !KIND;
        let allowed = match kind {
            1 | 2 if flags & FOLLOWS != 0 => GOES_ON | FOLLOWS | MARKED,
            1..=3 => GOES_ON,
            _ => return Err(Flaw::Field("kind")),
        };
        if flags & !allowed != 0 {
            return Err(Flaw::Field("kind"));
        }
        let offset = match flags & GOES_ON {
            0 => unfolded(varint::take(rest).ok_or(Flaw::Field("offset"))?, before.offset),
            _ => before.offset,
        };
        let length = varint::take(rest).ok_or(Flaw::Field("length"))?;
        if kind == 3 {
            return Ok(Record::Collapse { offset, length });
        }
        let address = if flags & FOLLOWS != 0 {
            before.address | if flags & MARKED != 0 { MARK } else { 0 }
        } else {
            let ([a, b, c, d, e, f], behind) =
                rest.split_first_chunk::<ADDRESS_SIZE>().ok_or(Flaw::TooShort)?;
            *rest = behind;
            u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0])
        };
        if address > HOLE {
            return Err(Flaw::Field("address"));
        }
        Ok(match kind {
            1 => Record::Insert { offset, length, address },
            _ => Record::Map { offset, length, address },
        })
    }
}

/// The way from an offset to another one, forward or back, as a number that is small if it is short.
fn folded(to: u64, from: u64) -> u64 {
    let way = to.wrapping_sub(from).cast_signed();
    ((way << 1) ^ (way >> 63)).cast_unsigned()
}

/// The inverse of [`folded`].
fn unfolded(way: u64, from: u64) -> u64 {
    from.wrapping_add((way >> 1) ^ (way & 1).wrapping_neg())
}

/// Records of a group, one behind the other, as they stand in it.
#[derive(Debug, Default)]
pub struct Packed {
    bytes: Vec<u8>,
    count: u32,
    before: Before,
}

impl Packed {
    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        record.put(self.before, &mut self.bytes);
        self.before.follow(record);
        self.count = self.count.saturating_add(1);
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.bytes.clear();
        (self.count, self.before) = (0, Before::default());
    }

    /// Size in bytes of a group of these records.
    #[must_use]
    pub fn group_size(&self, log_block_size_bytes: u32) -> usize {
        (GROUP_HEADER_SIZE + self.bytes.len())
            .next_multiple_of(log_block_size_bytes.max(1) as usize)
    }

    /// The records in these bytes.
    fn unpack(mut bytes: &[u8], count: u32) -> Result<Vec<Record>, Flaw> {
        let mut before = Before::default();
        let each = (0..count).map(|_| {
            let record = Record::take(&mut bytes, before)?;
            before.follow(record);
            Ok(record)
        });
        each.collect()
    }
}

impl Extend<Record> for Packed {
    fn extend<I: IntoIterator<Item = Record>>(&mut self, records: I) {
        records.into_iter().for_each(|record| self.push(record));
    }
}

/// The header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The checkpoint on which it builds.
    pub generation: u64,
    /// Its number since that, from 0.
    pub sequence: u64,
    /// Where it stands in the log, in bytes.
    pub position: u64,
    /// Its size in bytes: whole log blocks.
    pub total_bytes: u32,
    /// Its records.
    pub record_count: u32,
    /// Checksum of the group before it; 0 for the first.
    pub previous_checksum: u32,
}

impl Group {
    /// Writes a group of `records` into `bytes`, which is as long as [`Packed::group_size`] says, and returns its
    /// checksum. Size and count are set here.
    pub fn encode(mut self, bytes: &mut [u8], space_id: &[u8; 16], records: &Packed) -> u32 {
        self.total_bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.record_count = records.count;
        bytes.fill(0);
        let mut raw = RawGroup {
            magic: MAGIC,
            checksum: 0.into(),
            generation: self.generation.into(),
            sequence: self.sequence.into(),
            position: self.position.into(),
            total_bytes: self.total_bytes.into(),
            record_count: self.record_count.into(),
            previous_checksum: self.previous_checksum.into(),
            reserved: 0.into(),
        };
        let Some((head, body)) = bytes.split_at_mut_checked(GROUP_HEADER_SIZE) else { return 0 };
        head.copy_from_slice(raw.as_bytes());
        body.iter_mut().zip(&records.bytes).for_each(|(to, from)| *to = *from);
        let checksum = bound(space_id, bytes);
        raw.checksum = checksum.into();
        bytes.iter_mut().zip(raw.as_bytes()).for_each(|(to, from)| *to = *from);
        checksum
    }

    /// Reads the header of the group at `position`, without its checksum: what it says is checked by
    /// [`Group::decode`].
    ///
    /// # Errors
    /// `TooShort`, `Magic`, `Foreign` at another position, `Field` for an impossible size.
    pub fn peek(bytes: &[u8], position: u64) -> Result<Self, Flaw> {
        let (raw, _) = RawGroup::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        let group = Group {
            generation: bounded("generation", raw.generation.get())?,
            sequence: raw.sequence.get(),
            position: raw.position.get(),
            total_bytes: raw.total_bytes.get(),
            record_count: raw.record_count.get(),
            previous_checksum: raw.previous_checksum.get(),
        };
        if group.position != position {
            return Err(Flaw::Foreign);
        }
        let records = u64::from(group.record_count) * u64::from(RECORD_SIZE_MIN);
        let total = u64::from(group.total_bytes);
        if records + GROUP_HEADER_SIZE as u64 > total || !total.is_multiple_of(512) {
            return Err(Flaw::Field("total_bytes"));
        }
        Ok(group)
    }

    /// Reads a group: header, records and checksum. `sound`: as for [`super::Header::decode`].
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(
        bytes: &[u8],
        space_id: &[u8; 16],
        position: u64,
        sound: impl Fn() -> bool,
    ) -> Result<(Self, u32, Vec<Record>), Flaw> {
        let group = Group::peek(bytes, position)?;
        let mut whole = bytes.get(..group.total_bytes as usize).ok_or(Flaw::TooShort)?.to_vec();
        let (raw, _) = RawGroup::read_from_prefix(&whole).map_err(|_| Flaw::TooShort)?;
        whole.iter_mut().skip(4).take(4).for_each(|byte| *byte = 0);
        if bound(space_id, &whole) != raw.checksum.get() && !sound() {
            return Err(Flaw::Checksum);
        }
        let body = whole.get(GROUP_HEADER_SIZE..).ok_or(Flaw::TooShort)?;
        let records = Packed::unpack(body, group.record_count)?;
        Ok((group, raw.checksum.get(), records))
    }
}
