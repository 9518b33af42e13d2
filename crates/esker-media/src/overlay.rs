//! A device of which nothing is changed: what is written to it stays in memory, over what is there.
//!
//! A store that is opened to be read recovers as any other does, and a recovery writes: marks, headers, the end of a log. All of
//! that lands here, block by block, and is gone with the device.
//!
//! # Invariants
//! - O1: the device below is only read.
//! - O2: each block that is read is the one that was written last, here, or else the one below; behind the end of the device
//!   below they are zeros.
//! - B2 and B4 of [`crate::block`]. Nothing is ever durable: a flush has nothing to do.
//!
//! # Concurrency
//! As the trait says. The lock over the blocks is short: never held while the device below is read.
//!
//! # Failure
//! Errors of reads are those of the device below; a block that was written here is read from here, whatever is wrong below. Writes
//! do not fail. They take their bytes of memory, and no bound is set on that: it is for what a recovery writes.

use crate::block::{BlockDevice, BlockGeometry, Counters, total_length};
use esker_base::{Result, Site};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device over another one. See the module's text.
#[derive(Debug)]
pub struct OverlayDevice {
    below: Arc<dyn BlockDevice>,
    /// Bytes below that are seen.
    seen_bytes: u64,
    /// Grows only.
    size_bytes: AtomicU64,
    blocks: RwLock<HashMap<u64, Box<[u8]>>>,
}

impl OverlayDevice {
    /// A device with what is on `below`.
    #[must_use]
    pub fn over(below: Arc<dyn BlockDevice>) -> Self {
        let size_bytes = below.geometry().size_bytes;
        OverlayDevice {
            below,
            seen_bytes: size_bytes,
            size_bytes: AtomicU64::new(size_bytes),
            blocks: RwLock::default(),
        }
    }

    /// A device of zeros, with the name and the block size of `other`: it stands for a file beside that one which is not there.
    #[must_use]
    pub fn blank_beside(other: Arc<dyn BlockDevice>, size_bytes: u64) -> Self {
        let blank = OverlayDevice::over(other);
        OverlayDevice { seen_bytes: 0, size_bytes: AtomicU64::new(size_bytes), ..blank }
    }

    fn block(&self) -> u64 {
        u64::from(self.below.geometry().block_size_bytes)
    }

    /// Numbers of the blocks that a range touches.
    fn blocks_of(&self, offset: u64, length: u64) -> Range<u64> {
        let block = self.block();
        offset / block..offset.saturating_add(length).div_ceil(block)
    }

    /// Whether all of a range is as it is below.
    fn is_below(&self, offset: u64, length: u64) -> bool {
        let blocks = self.blocks.read();
        offset.saturating_add(length) <= self.seen_bytes
            && (blocks.is_empty()
                || !self.blocks_of(offset, length).any(|block| blocks.contains_key(&block)))
    }

    /// The parts of a range that were not written here, in pieces that are next to each other.
    fn parts_below(&self, offset: u64, length: u64) -> Vec<Range<u64>> {
        let (block, end) = (self.block(), offset.saturating_add(length));
        let blocks = self.blocks.read();
        let mut parts: Vec<Range<u64>> = Vec::new();
        for number in self.blocks_of(offset, length).filter(|number| !blocks.contains_key(number)) {
            let start = offset.max(number * block);
            let part = start..end.min((number + 1) * block);
            match parts.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => parts.push(part),
            }
        }
        parts
    }

    /// Puts what was written here into `buf`, which is read from `offset`.
    fn cover(&self, offset: u64, buf: &mut [u8]) {
        let block = self.block();
        let blocks = self.blocks.read();
        for number in self.blocks_of(offset, buf.len() as u64) {
            let Some(bytes) = blocks.get(&number) else { continue };
            let (start, skipped) = (number * block, offset.saturating_sub(number * block));
            let to = buf.get_mut(place(start.saturating_sub(offset))..).unwrap_or_default();
            let from = bytes.get(place(skipped)..).unwrap_or_default();
            for (to, from) in to.iter_mut().zip(from) {
                *to = *from;
            }
        }
    }

    fn write(&self, operation: &'static str, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let length = total_length(bufs);
        self.geometry()
            .check(operation, offset, length)
            .map_err(|error| error.device(self.name()))?;
        let size = place(self.block());
        let (mut bufs, mut buf): (_, &[u8]) = (bufs.iter(), &[]);
        let mut blocks = self.blocks.write();
        for number in self.blocks_of(offset, length) {
            let mut bytes = Vec::with_capacity(size);
            while bytes.len() < size {
                let (now, rest) = buf.split_at(buf.len().min(size - bytes.len()));
                bytes.extend_from_slice(now);
                buf = match (rest, bufs.as_slice()) {
                    ([], []) => break,
                    ([], _) => bufs.next().map_or(&[], |buf| buf),
                    _ => rest,
                };
            }
            blocks.insert(number, bytes.into());
        }
        Ok(())
    }
}

/// As a place in memory.
fn place(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl BlockDevice for OverlayDevice {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn geometry(&self) -> BlockGeometry {
        let size_bytes = self.size_bytes.load(Ordering::Acquire);
        BlockGeometry { size_bytes, ..self.below.geometry() }
    }

    fn report(&self) -> String {
        format!("{}; only read: what is written stays in memory", self.below.report())
    }

    fn counters(&self) -> Counters {
        self.below.counters()
    }

    fn is_nowait(&self) -> bool {
        self.below.is_nowait()
    }

    fn answers_at_once(&self) -> bool {
        self.below.answers_at_once()
    }

    fn reads_bytes(&self) -> bool {
        self.below.reads_bytes()
    }

    fn read_at(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        let length = buf.len() as u64;
        let checked = self.read_geometry().check("read device", offset, length);
        checked.map_err(|error| error.device(self.name()))?;
        if self.is_below(offset, length) {
            return self.below.read_at(site, offset, buf);
        }
        for part in self.parts_below(offset, length) {
            let bytes = place(part.start - offset)..place(part.end - offset);
            let buf = buf.get_mut(bytes).unwrap_or_default();
            let seen = place(self.seen_bytes.saturating_sub(part.start)).min(buf.len());
            let (there, behind) = buf.split_at_mut(seen);
            if !there.is_empty() {
                self.below.read_at(site, part.start, there)?;
            }
            behind.fill(0);
        }
        // What came meanwhile is newer than what was read.
        self.cover(offset, buf);
        Ok(())
    }

    fn read_vectored_at(&self, site: Site, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let length = bufs.iter().map(|buf| buf.len() as u64).sum();
        if self.is_below(offset, length) {
            return self.below.read_vectored_at(site, offset, bufs);
        }
        let mut at = offset;
        for buf in bufs {
            self.read_at(site, at, buf)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    fn read_many_at(&self, site: Site, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        let mut below = Vec::with_capacity(reads.len());
        for (offset, buf) in reads {
            match self.is_below(*offset, buf.len() as u64) {
                true => below.push((*offset, &mut **buf)),
                false => self.read_at(site, *offset, buf)?,
            }
        }
        self.below.read_many_at(site, &mut below)
    }

    fn write_at(&self, _site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write("write device", offset, bufs)
    }

    fn write_durable_at(&self, _site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write("write device durably", offset, bufs)
    }

    fn flush(&self, _site: Site) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _site: Site, offset: u64, length: u64) -> Result<()> {
        self.geometry().check("discard range", offset, length)
    }

    fn prepare(&self, _site: Site, offset: u64, length: u64) -> Result<()> {
        self.geometry().check("prepare range", offset, length)
    }

    fn reserve(&self, _site: Site, offset: u64, length: u64) -> Result<()> {
        let end = offset.saturating_add(length);
        let grown = BlockGeometry { size_bytes: end, ..self.geometry() };
        grown.check("reserve range", offset, length)?;
        self.size_bytes.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
