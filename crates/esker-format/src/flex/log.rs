//! The logical log: groups of records that become durable together (FlexSpace §4.2).

use super::bound;
use crate::{Flaw, bounded};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"ESKG";
/// Size of a group's header in bytes.
pub const GROUP_HEADER_SIZE: usize = 48;
/// Size of a record in bytes.
pub const RECORD_SIZE: usize = 24;

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

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawRecord {
    pub(crate) offset: U64,
    pub(crate) address: [u8; 6],
    pub(crate) kind: u8,
    pub(crate) reserved: u8,
    pub(crate) length: U64,
}

const _: () = assert!(size_of::<RawGroup>() == GROUP_HEADER_SIZE);
const _: () = assert!(size_of::<RawRecord>() == RECORD_SIZE);

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

impl Record {
    fn raw(self) -> RawRecord {
        let (kind, offset, length, address) = match self {
            Record::Insert { offset, length, address } => (1, offset, length, address),
            Record::Map { offset, length, address } => (2, offset, length, address),
            Record::Collapse { offset, length } => (3, offset, length, 0),
            Record::Take { segment, salt } => (4, segment, salt, 0),
        };
        let [a, b, c, d, e, f, ..] = address.to_le_bytes();
        RawRecord {
            offset: offset.into(),
            address: [a, b, c, d, e, f],
            kind,
            reserved: 0,
            length: length.into(),
        }
    }

    fn of(raw: &RawRecord) -> Result<Self, Flaw> {
        let [a, b, c, d, e, f] = raw.address;
        let address = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        let (offset, length) = (raw.offset.get(), raw.length.get());
        match raw.kind {
            1 => Ok(Record::Insert { offset, length, address }),
            2 => Ok(Record::Map { offset, length, address }),
            3 => Ok(Record::Collapse { offset, length }),
            4 => Ok(Record::Take { segment: offset, salt: length }),
            _ => Err(Flaw::Field("kind")),
        }
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
    /// Size in bytes of a group of so many records.
    #[must_use]
    pub fn size(record_count: usize, log_block_size_bytes: u32) -> usize {
        (GROUP_HEADER_SIZE + record_count * RECORD_SIZE)
            .next_multiple_of(log_block_size_bytes.max(1) as usize)
    }

    /// Writes a group of `records` into `bytes`, which is as long as [`Group::size`] says, and returns its
    /// checksum. Size and count are set here.
    pub fn encode(mut self, bytes: &mut [u8], space_id: &[u8; 16], records: &[Record]) -> u32 {
        self.total_bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.record_count = u32::try_from(records.len()).unwrap_or(u32::MAX);
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
        for (record, place) in records.iter().zip(body.chunks_exact_mut(RECORD_SIZE)) {
            place.copy_from_slice(record.raw().as_bytes());
        }
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
        let records = u64::from(group.record_count) * RECORD_SIZE as u64;
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
        let count = group.record_count as usize;
        let (records, _) = <[RawRecord]>::ref_from_prefix_with_elems(body, count)
            .map_err(|_| Flaw::Field("record_count"))?;
        let records = records.iter().map(Record::of).collect::<Result<_, _>>()?;
        Ok((group, raw.checksum.get(), records))
    }
}
