//! Large values: a value that does not go well into one record stands in extents, records of their
//! own, and the key's record says which they are (uDepot §4.1 has large records in contiguous
//! segments; here they may lie anywhere).
//!
//! An extent belongs to the value whose id it carries, not to a key: it counts as long as the newest
//! record of some key names that value, and nothing has to be written to make it go away. Its key is
//! made longer by zeros so that its value starts at a block's start: a device can then read it
//! straight to its place.

use super::record::{RecordKind, RecordMeta, VersionForm};
use super::varint;
use super::{BATCH_HEADER_SIZE, KEY_SIZE_MAX_BYTES};
use crate::Flaw;
use esker_base::ids::Version;

/// What the record of a key says of its large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeValue {
    /// Drawn at random; its extents carry it.
    pub id: u64,
    /// Size of the value in bytes.
    pub size_bytes: u64,
    /// Bytes of the value in each extent; the last one may have fewer.
    pub extent_size_bytes: u32,
}

/// Size of [`LargeValue`] in bytes.
pub const LARGE_VALUE_SIZE: usize = 20;

impl LargeValue {
    /// The value of the key's record.
    #[must_use]
    pub fn encode(&self) -> [u8; LARGE_VALUE_SIZE] {
        let mut out = [0; LARGE_VALUE_SIZE];
        put(&mut out, 0, &self.id.to_le_bytes());
        put(&mut out, 8, &self.size_bytes.to_le_bytes());
        put(&mut out, 16, &self.extent_size_bytes.to_le_bytes());
        out
    }

    /// Reads the value of a record of kind `Large`.
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, Flaw> {
        let id = u64::from_le_bytes(take(&mut bytes)?);
        let size_bytes = u64::from_le_bytes(take(&mut bytes)?);
        let extent_size_bytes = u32::from_le_bytes(take(&mut bytes)?);
        let large = LargeValue { id, size_bytes, extent_size_bytes };
        if extent_size_bytes == 0 || large.counted().is_none() {
            return Err(Flaw::Field("extent_size_bytes"));
        }
        Ok(large)
    }

    fn counted(&self) -> Option<u32> {
        u32::try_from(self.size_bytes.div_ceil(u64::from(self.extent_size_bytes).max(1))).ok()
    }

    /// Number of its extents.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.counted().unwrap_or(u32::MAX)
    }

    /// Bytes of the value in extent `number`.
    #[must_use]
    pub fn length_of(&self, number: u32) -> u64 {
        let size = u64::from(self.extent_size_bytes);
        self.size_bytes.saturating_sub(u64::from(number) * size).min(size)
    }
}

/// What stands in place of a key in an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentKey {
    /// Which value it is a piece of.
    pub id: u64,
    /// Which piece, from 0.
    pub number: u32,
    /// Hash of the key that the value was put under, as in summaries.
    pub hash: u64,
}

/// Bytes of an extent's key that say something.
const EXTENT_KEY_SIZE: usize = 20;

impl ExtentKey {
    /// The key of an extent of `value_size` bytes that stands alone in a batch: with zeros behind it,
    /// so that its value starts at a multiple of `block_size` bytes. The record tells its version in this form.
    #[must_use]
    pub fn encode(
        &self,
        (form, version): (VersionForm, Version),
        block_size: usize,
        value_size: usize,
    ) -> Vec<u8> {
        let meta = RecordMeta { version, ..RecordMeta::new(RecordKind::Extent) };
        let size = aligned_size(&meta, form, block_size, value_size).unwrap_or(EXTENT_KEY_SIZE);
        let mut out = vec![0; size];
        put(&mut out, 0, &self.id.to_le_bytes());
        put(&mut out, 8, &self.number.to_le_bytes());
        put(&mut out, 12, &self.hash.to_le_bytes());
        out
    }

    /// Reads the key of a record of kind `Extent`.
    ///
    /// # Errors
    /// `TooShort`.
    pub fn decode(mut key: &[u8]) -> Result<Self, Flaw> {
        let id = u64::from_le_bytes(take(&mut key)?);
        let number = u32::from_le_bytes(take(&mut key)?);
        let hash = u64::from_le_bytes(take(&mut key)?);
        Ok(ExtentKey { id, number, hash })
    }
}

/// Size of a key behind which the value of the batch's only record starts at a block's start.
fn aligned_size(
    meta: &RecordMeta,
    form: VersionForm,
    block_size: usize,
    value_size: usize,
) -> Option<usize> {
    // The header is longer by what the size of the key takes; with a key of one byte that is one.
    let before = BATCH_HEADER_SIZE + meta.body_start(form, 1, value_size) - 1;
    let sizes = (1..=2).flat_map(|blocks| (1..=3).map(move |digits| (blocks, digits)));
    sizes
        .filter_map(|(blocks, digits)| {
            let size = (blocks * block_size).checked_sub(before + digits)?;
            (varint::size(size as u64) == digits).then_some(size)
        })
        .find(|size| (EXTENT_KEY_SIZE..=KEY_SIZE_MAX_BYTES).contains(size))
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = out.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Flaw> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(Flaw::TooShort)?;
    *rest = tail;
    Ok(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_value_comes_back_and_counts_its_extents() {
        let large = LargeValue { id: 7, size_bytes: 2500, extent_size_bytes: 1000 };
        assert_eq!(LargeValue::decode(&large.encode()), Ok(large));
        assert_eq!(LargeValue::decode(&large.encode()[1..]), Err(Flaw::TooShort));
        assert_eq!((large.count(), large.length_of(1), large.length_of(2)), (3, 1000, 500));
        let endless = LargeValue { extent_size_bytes: 0, ..large };
        assert_eq!(LargeValue::decode(&endless.encode()), Err(Flaw::Field("extent_size_bytes")));
        let endless = LargeValue { size_bytes: u64::MAX, extent_size_bytes: 1, id: 0 };
        assert_eq!(LargeValue::decode(&endless.encode()), Err(Flaw::Field("extent_size_bytes")));
    }

    #[test]
    fn the_value_of_an_extent_starts_at_a_block() {
        let key = ExtentKey { id: 1, number: 2, hash: 3 };
        let whole = [9, 1 << 40, u64::MAX].map(|version| (VersionForm::Whole, version));
        for (form, version) in whole.into_iter().chain([(VersionForm::Distance, 0)]) {
            for block in [512, 4096, 16384] {
                for value in [1, 127, 128, 512, 70_000, 1 << 20] {
                    let version = Version(version);
                    let bytes = key.encode((form, version), block, value);
                    assert_eq!(ExtentKey::decode(&bytes), Ok(key));
                    let meta = RecordMeta { version, ..RecordMeta::new(RecordKind::Extent) };
                    let start = meta.body_start(form, bytes.len(), value) + bytes.len();
                    assert_eq!((BATCH_HEADER_SIZE + start) % block, 0, "{form:?} {block} {value}");
                }
            }
        }
    }
}
