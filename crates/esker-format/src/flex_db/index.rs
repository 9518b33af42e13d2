//! The saved index: where intervals and their runs begin, as of a checkpoint of the space. It spares an open, and the first
//! gets behind it, from looking them up, and says nothing that the space does not say.

use super::{KEY_SIZE_MAX_BYTES, split, varint};
use crate::Flaw;
use esker_base::checksum::Crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"ESKFLEXI";
/// The version of its format that this build writes. Others are passed over: nothing but time is lost.
pub const INDEX_VERSION: u32 = 4;
/// Most moments at which bytes of an interval expire.
const EXPIRIES_MAX: u64 = 64;
/// Size of the head in bytes.
pub const INDEX_HEAD_SIZE: usize = 64;
/// Where entries begin in the file, in bytes.
pub const INDEX_BODY_OFFSET: u64 = 4096;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawIndex {
    pub(crate) magic: [u8; 8],
    pub(crate) format_version: U32,
    pub(crate) checksum: U32,
    pub(crate) store_id: [u8; 16],
    pub(crate) generation: U64,
    pub(crate) interval_count: U64,
    pub(crate) body_bytes: U64,
    pub(crate) map_checksum: U32,
    pub(crate) reserved: [u8; 4],
}

const _: () = assert!(size_of::<RawIndex>() == INDEX_HEAD_SIZE);

/// Whose index it is, and of which moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexHead {
    /// Of the store.
    pub store_id: [u8; 16],
    /// Of the space's header.
    pub generation: u64,
    /// Of the map that this header names: it has the salts of all segments, so no other history of a space has it.
    pub map_checksum: u32,
    /// Entries.
    pub interval_count: u64,
    /// Bytes of all entries.
    pub body_bytes: u64,
}

/// An interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry<'a> {
    /// Bytes in the space.
    pub size: u64,
    /// Pairs; `None`: these are several intervals in which nobody has looked.
    pub pairs: Option<u64>,
    /// Pairs of appended runs.
    pub appended: u64,
    /// Runs.
    pub runs: u64,
    /// What is known of each appended run, one behind the other: its size and the number of its pairs as varints,
    /// and a byte of each key's hash, the highest one. Empty: nothing, or there are none.
    pub tail: &'a [u8],
    /// About how many bytes expire when: moments, in Unix seconds, ascending, with their bytes. Large values that its pairs name
    /// are counted with them.
    pub expiries: &'a [(u64, u64)],
}

/// Makes the entries.
#[derive(Debug, Default)]
pub struct IndexWriter {
    body: Vec<u8>,
    last: Vec<u8>,
    count: u64,
}

impl IndexWriter {
    /// Adds the interval that comes next.
    pub fn push(&mut self, anchor: &[u8], entry: &IndexEntry<'_>) {
        let shared = self.last.iter().zip(anchor).take_while(|(a, b)| a == b).count();
        let rest = anchor.get(shared..).unwrap_or_default();
        let pairs = entry.pairs.map_or(0, |pairs| pairs + 1);
        for number in [shared as u64, rest.len() as u64] {
            varint::put(&mut self.body, number);
        }
        self.body.extend_from_slice(rest);
        for number in [entry.size, pairs, entry.appended, entry.runs, entry.tail.len() as u64] {
            varint::put(&mut self.body, number);
        }
        self.body.extend_from_slice(entry.tail);
        varint::put(&mut self.body, entry.expiries.len() as u64);
        let mut before = 0;
        for (at, bytes) in entry.expiries {
            varint::put(&mut self.body, at.saturating_sub(before));
            varint::put(&mut self.body, *bytes);
            before = *at;
        }
        self.last.truncate(shared);
        self.last.extend_from_slice(rest);
        self.count += 1;
    }

    /// Head and entries; `head` says whose they are.
    #[must_use]
    pub fn finish(self, head: &IndexHead) -> ([u8; INDEX_HEAD_SIZE], Vec<u8>) {
        let mut raw = RawIndex {
            magic: MAGIC,
            format_version: INDEX_VERSION.into(),
            checksum: 0.into(),
            store_id: head.store_id,
            generation: head.generation.into(),
            interval_count: self.count.into(),
            body_bytes: (self.body.len() as u64).into(),
            map_checksum: head.map_checksum.into(),
            reserved: [0; 4],
        };
        raw.checksum = checksum_of(&raw, &self.body).into();
        let mut bytes = [0; INDEX_HEAD_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        (bytes, self.body)
    }
}

/// Over a head with the field as zero, and the entries.
fn checksum_of(head: &RawIndex, body: &[u8]) -> u32 {
    let mut checksum = Crc32c::new();
    checksum.update(head.as_bytes());
    checksum.update(body);
    checksum.finish()
}

impl IndexHead {
    /// Reads a head. The checksum over it and the entries is still to be compared: [`IndexHead::check`].
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn peek(bytes: &[u8]) -> Result<Self, Flaw> {
        let (raw, _) = RawIndex::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        if raw.format_version.get() != INDEX_VERSION {
            return Err(Flaw::Version(raw.format_version.get()));
        }
        Ok(IndexHead {
            store_id: raw.store_id,
            generation: raw.generation.get(),
            map_checksum: raw.map_checksum.get(),
            interval_count: raw.interval_count.get(),
            body_bytes: raw.body_bytes.get(),
        })
    }

    /// Whether head and entries have their checksum.
    ///
    /// # Errors
    /// `Checksum`, `TooShort`.
    pub fn check(head: &[u8], body: &[u8]) -> Result<(), Flaw> {
        let (raw, _) = RawIndex::read_from_prefix(head).map_err(|_| Flaw::TooShort)?;
        let blank = RawIndex { checksum: 0.into(), ..raw };
        let computed = checksum_of(&blank, body);
        if computed == raw.checksum.get() { Ok(()) } else { Err(Flaw::Checksum) }
    }

    /// Gives each entry and its anchor to `visit`, in order.
    ///
    /// # Errors
    /// `Field` for an entry that is none.
    pub fn entries(
        &self,
        body: &[u8],
        mut visit: impl FnMut(&[u8], IndexEntry<'_>),
    ) -> Result<(), Flaw> {
        let mut rest = body;
        let (mut anchor, mut expiries) = (Vec::new(), Vec::new());
        for _ in 0..self.interval_count {
            let mut field = || varint::take(&mut rest).ok_or(Flaw::Field("entry"));
            let (shared, length) = (field()?, field()?);
            let shared = usize::try_from(shared).unwrap_or(usize::MAX);
            let room = KEY_SIZE_MAX_BYTES.checked_sub(shared).map(|room| room as u64);
            if shared > anchor.len() || room.is_none_or(|room| length > room) {
                return Err(Flaw::Field("anchor"));
            }
            anchor.truncate(shared);
            anchor.extend_from_slice(split(&mut rest, length).ok_or(Flaw::Field("anchor"))?);
            let mut field = || varint::take(&mut rest).ok_or(Flaw::Field("entry"));
            let (size, pairs, appended, runs) = (field()?, field()?, field()?, field()?);
            let length = field()?;
            let tail = split(&mut rest, length).ok_or(Flaw::Field("tail"))?;
            let mut field = || varint::take(&mut rest).ok_or(Flaw::Field("expiries"));
            let count = field()?;
            if count > EXPIRIES_MAX {
                return Err(Flaw::Field("expiries"));
            }
            expiries.clear();
            let mut at: u64 = 0;
            for _ in 0..count {
                at = at.checked_add(field()?).ok_or(Flaw::Field("expiries"))?;
                expiries.push((at, field()?));
            }
            let pairs = pairs.checked_sub(1);
            visit(&anchor, IndexEntry { size, pairs, appended, runs, tail, expiries: &expiries });
        }
        if rest.is_empty() { Ok(()) } else { Err(Flaw::Field("entries")) }
    }
}
