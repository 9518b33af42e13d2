//! Records outside the log: values over 256 bytes, and keys that are too long for it (FlatStore §3.2:
//! `v_len` and value). A record has a block of its size class, or whole chunks.

use super::{KEY_SIZE_MAX_BYTES, VALUE_SIZE_MAX_BYTES};
use crate::Flaw;
use esker_base::checksum::Crc32c;
use esker_base::ids::StoreId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a record's header in bytes.
pub const RECORD_HEADER_SIZE: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawRecord {
    pub(crate) checksum: U32,
    pub(crate) key_length: U32,
    pub(crate) value_length: U64,
}

const _: () = assert!(size_of::<RawRecord>() == RECORD_HEADER_SIZE);

/// What a record's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes of the key behind the header; 0 if the entry has it. The checksum is over the key in both cases.
    pub key_length: usize,
    /// Bytes of the value behind the key.
    pub value_length: u64,
    checksum: u32,
}

fn checksum(raw: &RawRecord, store_id: &StoreId, offset: u64) -> Crc32c {
    let mut checksum = Crc32c::new();
    checksum.update(&store_id.0);
    checksum.update(&offset.to_le_bytes());
    checksum.update(raw.key_length.as_bytes());
    checksum.update(raw.value_length.as_bytes());
    checksum
}

impl Record {
    /// The header of a record at `offset`: of a key that stands behind it or, if not `key_here`, in the entry.
    #[must_use]
    pub fn encode(
        key: &[u8],
        key_here: bool,
        value: &[u8],
        store_id: &StoreId,
        offset: u64,
    ) -> [u8; RECORD_HEADER_SIZE] {
        let key_length = if key_here { u32::try_from(key.len()).unwrap_or(0) } else { 0 };
        let mut raw = RawRecord {
            checksum: 0.into(),
            key_length: key_length.into(),
            value_length: (value.len() as u64).into(),
        };
        let mut crc = checksum(&raw, store_id, offset);
        crc.update(key);
        crc.update(value);
        raw.checksum = crc.finish().into();
        let mut bytes = [0; RECORD_HEADER_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a header without its checksum.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn peek(bytes: &[u8]) -> Result<Record, Flaw> {
        let (raw, _) = RawRecord::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        let key_length =
            usize::try_from(raw.key_length.get()).map_err(|_| Flaw::Field("key_length"))?;
        if key_length > KEY_SIZE_MAX_BYTES {
            return Err(Flaw::Field("key_length"));
        }
        if raw.value_length.get() > VALUE_SIZE_MAX_BYTES {
            return Err(Flaw::Field("value_length"));
        }
        Ok(Record {
            key_length,
            value_length: raw.value_length.get(),
            checksum: raw.checksum.get(),
        })
    }

    /// Whether `content`, the value behind the key if that stands here, is what was written at `offset` for this key.
    #[must_use]
    pub fn is_sound(&self, key: &[u8], content: &[u8], store_id: &StoreId, offset: u64) -> bool {
        let raw = RawRecord {
            checksum: 0.into(),
            key_length: u32::try_from(self.key_length).unwrap_or(0).into(),
            value_length: self.value_length.into(),
        };
        let mut crc = checksum(&raw, store_id, offset);
        if self.key_length == 0 {
            crc.update(key);
        }
        crc.update(content);
        crc.finish() == self.checksum
    }
}

/// Bytes of a record.
#[must_use]
pub const fn record_size(key_length: usize, value_length: u64) -> u64 {
    (RECORD_HEADER_SIZE + key_length) as u64 + value_length
}
