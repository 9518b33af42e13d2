//! Batches of the write-ahead log: changes that become durable together.

use super::run::{Content, put_content, take_content};
use super::{Key, split, varint};
use crate::{Flaw, bounded};
use esker_base::checksum::Crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 4] = *b"ESKW";
/// Size of a batch's header in bytes.
pub const BATCH_HEADER_SIZE: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RawBatch {
    pub(crate) magic: [u8; 4],
    pub(crate) checksum: U32,
    pub(crate) generation: U64,
    pub(crate) sequence: U64,
    pub(crate) position: U64,
    pub(crate) first_version: U64,
    pub(crate) total_bytes: U32,
    pub(crate) body_bytes: U32,
    pub(crate) change_count: U32,
    pub(crate) previous_checksum: U32,
    pub(crate) durable_sequence: U64,
}

const _: () = assert!(size_of::<RawBatch>() == BATCH_HEADER_SIZE);

/// One change of a batch; its version is that of the first one and its place behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A key has this from now on.
    Set(&'a [u8], Content<'a>),
    /// No key from the first on and before the second, if there is one, has a value.
    DeleteRange(&'a [u8], Option<&'a [u8]>),
}

const SET: u8 = 0;
const DELETE_RANGE: u8 = 1;
const DELETE_FROM: u8 = 2;

/// The header of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The log that it belongs to.
    pub generation: u64,
    /// Its number in that log, from 0.
    pub sequence: u64,
    /// Where it stands, in bytes.
    pub position: u64,
    /// Version of its first change.
    pub first_version: u64,
    /// Its size in bytes: whole blocks.
    pub total_bytes: u32,
    /// Bytes of its changes.
    pub body_bytes: u32,
    /// Its changes.
    pub change_count: u32,
    /// Checksum of the batch before it, also if that is the last one of the log before.
    pub previous_checksum: u32,
    /// How many batches of its log were durable when it was written; of a log that was written at once, the batch itself among them:
    /// that is so if there is a first one.
    pub durable_sequence: u64,
}

/// A batch that forms.
#[derive(Debug, Default)]
pub struct WalWriter {
    bytes: Vec<u8>,
    count: u32,
}

impl WalWriter {
    /// Adds a change.
    pub fn push(&mut self, change: &Change<'_>) {
        if self.bytes.is_empty() {
            self.bytes.resize(BATCH_HEADER_SIZE, 0);
        }
        let bytes = &mut self.bytes;
        match change {
            Change::Set(key, content) => {
                bytes.push(SET);
                put_content(bytes, Key::from(*key), content, None);
            }
            Change::DeleteRange(from, to) => {
                bytes.push(if to.is_some() { DELETE_RANGE } else { DELETE_FROM });
                varint::put(bytes, from.len() as u64);
                bytes.extend_from_slice(from);
                if let Some(to) = to {
                    varint::put(bytes, to.len() as u64);
                    bytes.extend_from_slice(to);
                }
            }
        }
        self.count += 1;
    }

    /// A batch without changes.
    #[must_use]
    pub fn empty() -> Self {
        WalWriter { bytes: vec![0; BATCH_HEADER_SIZE], count: 0 }
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Changes so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes so far.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Begins anew and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    /// The batch as it is written, in whole blocks, and its checksum. Sizes and count are set here.
    ///
    /// # Errors
    /// `Field` if the header cannot say its size: nobody could read it back.
    pub fn finish(
        &mut self,
        mut batch: Batch,
        store_id: &[u8; 16],
        block: usize,
    ) -> Result<(&[u8], u32), Flaw> {
        let body = self.bytes.len().saturating_sub(BATCH_HEADER_SIZE);
        (batch.total_bytes, batch.body_bytes) = sizes(body, block)?;
        self.bytes.resize(batch.total_bytes as usize, 0);
        batch.change_count = self.count;
        let mut raw = RawBatch {
            magic: MAGIC,
            checksum: 0.into(),
            generation: batch.generation.into(),
            sequence: batch.sequence.into(),
            position: batch.position.into(),
            first_version: batch.first_version.into(),
            total_bytes: batch.total_bytes.into(),
            body_bytes: batch.body_bytes.into(),
            change_count: batch.change_count.into(),
            previous_checksum: batch.previous_checksum.into(),
            durable_sequence: batch.durable_sequence.into(),
        };
        let checksum =
            checksum_of(&raw, store_id, self.bytes.get(BATCH_HEADER_SIZE..).unwrap_or_default());
        raw.checksum = checksum.into();
        if let Some(head) = self.bytes.get_mut(..BATCH_HEADER_SIZE) {
            head.copy_from_slice(raw.as_bytes());
        }
        Ok((&self.bytes, checksum))
    }
}

/// Bytes of a batch with so many bytes of changes, in whole blocks, and of its changes.
fn sizes(body: usize, block: usize) -> Result<(u32, u32), Flaw> {
    let whole = body.checked_add(BATCH_HEADER_SIZE);
    let total = whole.and_then(|whole| whole.checked_next_multiple_of(block.max(1)));
    let total = total.and_then(|total| u32::try_from(total).ok());
    let total = total.ok_or(Flaw::Field("total_bytes"))?;
    Ok((total, u32::try_from(body).map_err(|_| Flaw::Field("body_bytes"))?))
}

/// Of the header with its checksum as zero, and what follows, behind the identity of the store.
fn checksum_of(raw: &RawBatch, store_id: &[u8; 16], body: &[u8]) -> u32 {
    let mut checksum = Crc32c::new();
    checksum.update(store_id);
    checksum.update(RawBatch { checksum: 0.into(), ..*raw }.as_bytes());
    checksum.update(body);
    checksum.finish()
}

impl Batch {
    /// Reads the header of the batch at `position`; what it says is verified by [`Batch::decode`].
    ///
    /// # Errors
    /// `TooShort`, `Magic`, `Foreign` at another position, `Field` for an impossible size.
    pub fn peek(bytes: &[u8], position: u64) -> Result<Self, Flaw> {
        let (raw, _) = RawBatch::read_from_prefix(bytes).map_err(|_| Flaw::TooShort)?;
        if raw.magic != MAGIC {
            return Err(Flaw::Magic);
        }
        let batch = Batch {
            generation: bounded("generation", raw.generation.get())?,
            sequence: raw.sequence.get(),
            position: raw.position.get(),
            first_version: bounded("first_version", raw.first_version.get())?,
            total_bytes: raw.total_bytes.get(),
            body_bytes: raw.body_bytes.get(),
            change_count: raw.change_count.get(),
            previous_checksum: raw.previous_checksum.get(),
            durable_sequence: raw.durable_sequence.get(),
        };
        if batch.position != position {
            return Err(Flaw::Foreign);
        }
        let needed = u64::from(batch.body_bytes) + BATCH_HEADER_SIZE as u64;
        if needed > u64::from(batch.total_bytes) || !batch.total_bytes.is_multiple_of(512) {
            return Err(Flaw::Field("total_bytes"));
        }
        Ok(batch)
    }

    /// Verifies a whole batch; its checksum. `sound`: as for [`super::Root::decode`].
    ///
    /// # Errors
    /// The first [`Flaw`] found.
    pub fn decode(
        bytes: &[u8],
        store_id: &[u8; 16],
        position: u64,
        sound: impl Fn() -> bool,
    ) -> Result<(Self, u32), Flaw> {
        let batch = Batch::peek(bytes, position)?;
        let whole = bytes.get(..batch.total_bytes as usize).ok_or(Flaw::TooShort)?;
        let (raw, body) = RawBatch::read_from_prefix(whole).map_err(|_| Flaw::TooShort)?;
        if checksum_of(&raw, store_id, body) != raw.checksum.get() && !sound() {
            return Err(Flaw::Checksum);
        }
        Ok((batch, raw.checksum.get()))
    }

    /// Whether a batch stands at `position` and has its checksum; `first` is its first block, and `behind` tells the checksum of something
    /// that has this one and of so many blocks of the batch behind it.
    #[must_use]
    pub fn is_at(
        first: &[u8],
        store_id: &[u8; 16],
        position: u64,
        behind: impl FnOnce(u32, usize) -> Option<u32>,
    ) -> bool {
        let (Ok(batch), Ok((raw, rest))) =
            (Batch::peek(first, position), RawBatch::read_from_prefix(first))
        else {
            return false;
        };
        let others = (batch.total_bytes as usize / first.len().max(1)).checked_sub(1);
        others.and_then(|others| behind(checksum_of(&raw, store_id, rest), others))
            == Some(raw.checksum.get())
    }

    /// Calls `visit` with version and content of each change of a batch that was verified.
    ///
    /// # Errors
    /// `Field` if a change is not whole; `visit`'s.
    pub fn changes<E: From<Flaw>>(
        &self,
        bytes: &[u8],
        mut visit: impl FnMut(u64, Change<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = BATCH_HEADER_SIZE + self.body_bytes as usize;
        let mut rest = bytes.get(BATCH_HEADER_SIZE..end).ok_or(Flaw::TooShort)?;
        for number in 0..u64::from(self.change_count) {
            let change = take_change(&mut rest).ok_or(Flaw::Field("change"))?;
            visit(self.first_version.saturating_add(number), change)?;
        }
        Ok(())
    }
}

fn take_change<'a>(bytes: &mut &'a [u8]) -> Option<Change<'a>> {
    let (kind, rest) = bytes.split_first()?;
    *bytes = rest;
    match *kind {
        SET => {
            let (key, _, content) = take_content(bytes, false)?;
            Some(Change::Set(key, content))
        }
        DELETE_RANGE | DELETE_FROM => {
            let length = varint::take(bytes)?;
            let from = split(bytes, length)?;
            if *kind == DELETE_FROM {
                return Some(Change::DeleteRange(from, None));
            }
            let length = varint::take(bytes)?;
            Some(Change::DeleteRange(from, Some(split(bytes, length)?)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_which_the_header_cannot_say_the_size_is_refused() {
        let most = u32::MAX as usize / 512 * 512;
        let body = most - BATCH_HEADER_SIZE;
        assert_eq!(sizes(body, 512), Ok((u32::MAX - 511, u32::MAX - 511 - 64)));
        for body in [body + 1, most, u32::MAX as usize, 5 << 30, usize::MAX] {
            assert_eq!(sizes(body, 512), Err(Flaw::Field("total_bytes")), "{body}");
        }
    }
}
