//! Reads: where bytes are, of one moment, and then the bytes, each verified.
//!
//! # Concurrency
//! The tree is asked under the shared lock, and what stands in the open segment is copied under it. Devices
//! are read without a lock. A segment that is taken anew meanwhile has another salt: then the checksums
//! fail, the salt that was noted is not the segment's any more, and the read starts over.

use super::state::{Shared, blocks_of};
use super::{Inner, sites};
use esker_base::{Error, Result};
use esker_format::flex::block_is_sound;
use esker_index::flex_tree::{Extent, Missing};
use std::ops::Range;

/// An extent as [`Space::read_extent`](super::Space::read_extent) finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceExtent {
    /// Where it begins in the space, in bytes.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// How many of them were read.
    pub read: usize,
}

/// Bytes that are on the device.
#[derive(Debug)]
struct Part {
    segment: u64,
    salt: u64,
    /// In the segment's payload.
    position: u64,
    /// In the caller's buffer.
    range: Range<usize>,
}

/// Whether a read has to start over.
enum Outcome {
    Done,
    Stale,
}

impl Inner {
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut parts = Vec::new();
        loop {
            parts.clear();
            let planned = self.plan(&self.shared.read(), offset, buf, &mut parts);
            match planned {
                Ok(count) => {
                    if let Outcome::Done = self.read_parts(&parts, buf)? {
                        return Ok(count);
                    }
                }
                Err(missing) => self.load(&missing)?,
            }
        }
    }

    pub(super) fn read_extent(&self, offset: u64, buf: &mut [u8]) -> Result<Option<SpaceExtent>> {
        loop {
            let mut parts = Vec::new();
            let planned = {
                let shared = self.shared.read();
                shared.tree.lookup(offset).and_then(|found| {
                    let Some(extent) = found else { return Ok(None) };
                    let length = u64::from(extent.length);
                    let most = usize::try_from(length).unwrap_or(usize::MAX).min(buf.len());
                    let to = buf.get_mut(..most).unwrap_or_default();
                    let read = self.plan(&shared, extent.offset, to, &mut parts)?;
                    Ok(Some(SpaceExtent { offset: extent.offset, length, read }))
                })
            };
            match planned {
                Ok(found) => {
                    if let Outcome::Done = self.read_parts(&parts, buf)? {
                        return Ok(found);
                    }
                }
                Err(missing) => self.load(&missing)?,
            }
        }
    }

    /// Fills what is a hole or in the open segment, and notes the rest.
    fn plan(
        &self,
        shared: &Shared,
        offset: u64,
        buf: &mut [u8],
        parts: &mut Vec<Part>,
    ) -> Result<usize, Missing> {
        let payload = self.shape.segment_payload();
        let mut done = 0;
        shared.tree.visit(offset, buf.len() as u64, |extent: Extent| {
            let range = done..done + extent.length as usize;
            done = range.end;
            let Some(to) = buf.get_mut(range.clone()) else { return };
            if extent.is_hole() {
                to.fill(0);
                return;
            }
            let (segment, position) = (extent.address / payload, extent.address % payload);
            if shared.open.number == Some(segment) {
                shared.open.read(&self.shape, position, to);
            } else {
                let salt = shared.salt(segment).unwrap_or(0);
                parts.push(Part { segment, salt, position, range });
            }
        })?;
        Ok(done)
    }

    fn read_parts(&self, parts: &[Part], buf: &mut [u8]) -> Result<Outcome> {
        for part in parts {
            let to = buf.get_mut(part.range.clone()).unwrap_or_default();
            if let Outcome::Stale = self.read_part(part, to)? {
                return Ok(Outcome::Stale);
            }
        }
        Ok(Outcome::Done)
    }

    fn read_part(&self, part: &Part, to: &mut [u8]) -> Result<Outcome> {
        let first_block = part.segment * self.shape.blocks();
        // Blocks that are in memory; from the first one that is not, all are read with one call.
        let mut missing: Option<(u64, u64, usize)> = None;
        blocks_of(&self.shape, part.position, to.len(), |block, range, at| {
            if let Some((_, last, _)) = &mut missing {
                *last = block;
                return;
            }
            let into = to.get_mut(at..at + range.len()).unwrap_or_default();
            if !self.cache.get(first_block + block, part.salt, range.start, into) {
                missing = Some((block, block, at));
            }
        });
        let Some((first, last, at)) = missing else { return Ok(Outcome::Done) };
        let size = self.shape.block_size_bytes as usize;
        let count = usize::try_from(last + 1 - first).unwrap_or(0);
        let mut bytes = self.pool.get(count * size);
        let offset = (first_block + first) * size as u64;
        self.files.data.read_at(sites::DATA_READ, offset, &mut bytes)?;
        let payload = usize::try_from(self.shape.block_payload()).unwrap_or(0);
        for (block, bytes) in (first_block + first..).zip(bytes.chunks(size)) {
            if !block_is_sound(bytes, part.salt, block) && !sites::BLOCK_CHECKSUM.disabled() {
                return self.unsound(part, block);
            }
            self.cache.put(block, part.salt, bytes.get(..payload).unwrap_or_default());
        }
        let rest = to.get_mut(at..).unwrap_or_default();
        blocks_of(&self.shape, part.position + at as u64, rest.len(), |block, range, at| {
            let start = usize::try_from(block - first).unwrap_or(0) * size;
            let from = bytes.get(start + range.start..start + range.end);
            if let (Some(to), Some(from)) = (rest.get_mut(at..at + range.len()), from) {
                to.copy_from_slice(from);
            }
        });
        Ok(Outcome::Done)
    }

    /// A block that is not what was written there under the salt that was noted.
    #[cold]
    fn unsound(&self, part: &Part, block: u64) -> Result<Outcome> {
        let now = self.shared.read().salt(part.segment);
        if now != Some(part.salt) && !sites::READ_SALT.disabled() {
            return Ok(Outcome::Stale);
        }
        let size = u64::from(self.shape.block_size_bytes);
        Err(Error::corrupted("read space", "the block does not have its checksum")
            .device(self.files.data.name())
            .at(block * size, size))
    }
}
