//! Restoring: a store from a backup, on a device that holds none.
//!
//! Batches and records are bound to their place, so every segment goes back to where it was; the rest
//! of the device becomes such that recovery finds nothing there. What stands on the device then is
//! what a power cut at the moment of the backup could have left, and the next open recovers it.
//!
//! # Invariants
//! - Z1: until everything is durable, the device holds no store, and says that a restore did not
//!   end.
//! - Z2: no byte of the backup is believed before its checksum was compared.
//! - Z3: nothing that stood on the device before can be taken for a part of the store, also if it was
//!   the same store: every segment's header places are written, and all of a segment that is cut.
//!
//! # Concurrency
//! One caller, who has the device to himself.
//!
//! # Failure
//! A crash or an error leaves a device that is refused by an open, until it is restored again.

use super::blank::find_remains;
use super::layout::{Layout, SEGMENT_COUNT_MIN};
use super::{sites, spread};
use crate::backup::RestoreReport;
use crate::engine::backup::{Backup, COPY_SIZE};
use crate::options::Progress;
use esker_base::ids::{SegmentEpoch, SegmentId, Sequence, Version};
use esker_base::units::format_size_bytes;
use esker_base::{Error, Result};
use esker_format::backup::{Manifest, ManifestEntry, encode_restoring, is_restoring};
use esker_format::depot::{
    SEGMENT_HEADER_SIZE, SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_SIZE, SegmentHeader, Stream, Superblock,
};
use esker_media::{BlockDevice, BufferPool, is_zero};
use std::io::IoSlice;

impl Backup<'_, Manifest> {
    /// Size of the device that was backed up, in bytes.
    pub(crate) fn device_size_bytes(&self) -> u64 {
        self.manifest.superblock.device_size_bytes
    }

    /// Where its segments start and how long one is, in bytes.
    pub(crate) fn shape(&self) -> (u64, u64) {
        (self.manifest.superblock.data_offset, self.manifest.superblock.segment_size_bytes)
    }

    /// How many segments a store of so many bytes has.
    ///
    /// # Errors
    /// `InvalidArgument` if it does not reach to the last one in use.
    pub(crate) fn segments_in(&self, size_bytes: u64) -> Result<u64> {
        let (start, size) = self.shape();
        let count = u64::from(self.superblock_of(size_bytes).segment_count);
        let last = self.manifest.segments.last().map_or(0, |entry| u64::from(entry.id.0) + 1);
        let least = last.max(SEGMENT_COUNT_MIN);
        if count < least {
            let needed = start + least * size;
            let words = format!(
                "{} are too few: segments keep their places, and the last one in use ends at {} ({needed} bytes)",
                format_size_bytes(size_bytes),
                format_size_bytes(needed)
            );
            return Err(Error::invalid("restore", words));
        }
        Ok(count)
    }

    /// Refuses to make a cache of a store that keeps what it is given: no open takes one for it.
    pub(crate) fn fits_a_cache(&self, wanted: bool) -> Result<()> {
        if wanted && !self.manifest.superblock.cache {
            let words = "this is a backup of a store that keeps what it is given: it is no cache";
            return Err(Error::invalid("restore", words));
        }
        Ok(())
    }

    /// Refuses a device that cannot write blocks as short as those of the store.
    pub(crate) fn check_blocks(&self, device: &dyn BlockDevice) -> Result<()> {
        let ours = self.manifest.superblock.block_size_bytes;
        let block = device.geometry().block_size_bytes;
        if block <= ours {
            return Ok(());
        }
        let words = format!("the store has blocks of {ours} bytes, the device writes {block}");
        Err(Error::invalid("restore", words).device(device.name()))
    }

    /// The superblock of the new store on `device`.
    ///
    /// # Errors
    /// `InvalidArgument` if the store does not fit there.
    pub(crate) fn superblock(&self, device: &dyn BlockDevice) -> Result<Superblock> {
        self.check_blocks(device)?;
        let size = device.geometry().size_bytes;
        self.segments_in(size).map_err(|error| error.device(device.name()))?;
        Ok(self.superblock_of(size))
    }

    /// See [`Backup::superblock`], of whatever size.
    fn superblock_of(&self, size_bytes: u64) -> Superblock {
        let old = &self.manifest.superblock;
        let (start, size, grain) = (old.data_offset, old.segment_size_bytes, old.grain_size_bytes);
        let count = Layout::segments_in(size_bytes, start, size, grain);
        Superblock {
            device_size_bytes: size_bytes,
            segment_count: u32::try_from(count).unwrap_or(u32::MAX),
            generation: old.generation.saturating_add(1),
            ..*old
        }
    }

    /// Whether there is nothing on `device` but what a restore left that did not end.
    pub(crate) fn is_free_device(&self, device: &dyn BlockDevice) -> Result<bool> {
        let superblock = self.superblock_of(device.geometry().size_bytes);
        let (layout, pool) = (Layout::of(&superblock), BufferPool::default());
        Ok(!Target { device, layout, pool }.is_taken()?)
    }
}

/// A device that becomes a store.
struct Target<'a> {
    device: &'a dyn BlockDevice,
    layout: Layout,
    pool: BufferPool,
}

impl Target<'_> {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.device.write_at(sites::RESTORE_WRITE, offset, &[IoSlice::new(bytes)])
    }

    fn flush(&self) -> Result<()> {
        self.device.flush(sites::RESTORE_FLUSH)
    }

    /// Whether there is anything, but for the mark of a restore and what that wrote.
    fn is_taken(&self) -> Result<bool> {
        let mut is_marked = false;
        let block = self.device.geometry().block_size_bytes as usize;
        for offset in [0, SUPERBLOCK_COPY_OFFSET] {
            let mut buffer = self.pool.get(block.max(SUPERBLOCK_SIZE));
            self.device.read_at(sites::BACKUP_READ, offset, &mut buffer)?;
            let head = buffer.get(..SUPERBLOCK_SIZE).unwrap_or(&[]);
            if is_restoring(head) {
                is_marked = true;
            } else if head.iter().any(|byte| *byte != 0) {
                return Ok(true);
            }
        }
        let end = self.layout.segment_offset(SegmentId(0));
        if is_marked || !is_zero(self.device, sites::BACKUP_READ, &self.pool, end)? {
            return Ok(!is_marked);
        }
        let segments = (end, self.layout.segment_size, self.layout.segment_count);
        Ok(find_remains(self.device, &self.pool, sites::BACKUP_READ, segments)?.is_some())
    }

    /// Writes what stands at both places of the superblock.
    fn write_roots(&self, bytes: &[u8]) -> Result<()> {
        let mut block = self.pool.get_zeroed(self.device.geometry().block_size_bytes as usize);
        if let Some(head) = block.get_mut(..bytes.len()) {
            head.copy_from_slice(bytes);
        }
        self.write(0, &block)?;
        self.write(SUPERBLOCK_COPY_OFFSET, &block)
    }

    fn write_zeros(&self, mut offset: u64, end: u64) -> Result<()> {
        let zeros = self.pool.get_zeroed(usize::try_from(COPY_SIZE).unwrap_or(0));
        while offset < end {
            let size = COPY_SIZE.min(end - offset);
            let zeros = zeros.get(..usize::try_from(size).unwrap_or(0)).unwrap_or(&zeros);
            self.write(offset, zeros)?;
            offset += size;
        }
        Ok(())
    }

    /// Writes one segment from its file, zeros behind it, and the copy of its header, which a file that ends before that place has not.
    /// `newest`: its header is to say what those of free segments said.
    fn write_segment(
        &self,
        backup: &Backup<'_, Manifest>,
        entry: &ManifestEntry,
        newest: bool,
    ) -> Result<()> {
        let base = self.layout.segment_offset(entry.id);
        let store_id = backup.manifest.superblock.store_id;
        let mut copy = self.pool.get_zeroed(usize::try_from(self.layout.block).unwrap_or(0));
        backup.each_piece(&self.pool, entry, &mut |offset, buffer| {
            if offset == 0 && newest {
                let head = buffer.get(..SEGMENT_HEADER_SIZE).unwrap_or(&[]);
                let mut header = SegmentHeader::decode(head, store_id, entry.id)
                    .map_err(|flaw| backup.damaged(entry, &flaw.to_string()))?;
                let Manifest { next_version, clear_version, .. } = backup.manifest;
                header.next_version = header.next_version.max(next_version);
                header.clear_version = header.clear_version.max(clear_version);
                let bytes = header.encode(store_id);
                if let Some(head) = buffer.get_mut(..SEGMENT_HEADER_SIZE) {
                    head.copy_from_slice(&bytes);
                }
            }
            if offset == 0 {
                let head = buffer.get(..SEGMENT_HEADER_SIZE).unwrap_or(&[]);
                copy.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
            }
            self.write(base + offset, buffer)
        })?;
        self.write_zeros(base + entry.length_bytes, base + self.layout.segment_size)?;
        self.write(base + self.layout.header_copy(), &copy)
    }

    /// Writes the header of a segment without records: of a store in which nothing is left, versions and clears would be forgotten.
    fn write_header(&self, backup: &Backup<'_, Manifest>) -> Result<()> {
        let Manifest { next_version, clear_version, .. } = backup.manifest;
        let header = SegmentHeader {
            segment_id: SegmentId(0),
            stream: Stream::Fresh,
            epoch: SegmentEpoch(1),
            // The log does not go on where nothing is.
            salt: spread(next_version.0),
            first_sequence: Sequence(next_version.0),
            clear_version,
            next_version,
            session_epoch: SegmentEpoch(1),
        };
        let mut block = self.pool.get_zeroed(usize::try_from(self.layout.block).unwrap_or(0));
        let bytes = header.encode(backup.manifest.superblock.store_id);
        if let Some(head) = block.get_mut(..bytes.len()) {
            head.copy_from_slice(&bytes);
        }
        let base = self.layout.segment_offset(header.segment_id);
        self.write(base, &block)?;
        self.write(base + self.layout.header_copy(), &block)
    }

    /// Takes any header from a segment that holds nothing.
    fn write_blank(&self, id: SegmentId) -> Result<()> {
        let base = self.layout.segment_offset(id);
        self.write_zeros(base, base + self.layout.first_batch())?;
        self.write_zeros(base + self.layout.trailer(), base + self.layout.segment_size)
    }
}

/// Makes the store of a backup on `device`; `format` overwrites what is there.
///
/// # Errors
/// `InvalidArgument` if the device holds something or is too small, `Corrupted` naming the file of
/// the backup, `Io`.
pub(crate) fn restore(
    backup: &Backup<'_, Manifest>,
    device: &dyn BlockDevice,
    format: bool,
    progress: &Progress,
) -> Result<RestoreReport> {
    let superblock = backup.superblock(device)?;
    let pool = BufferPool::default();
    let target = Target { device, layout: Layout::of(&superblock), pool };
    if !format && target.is_taken()? {
        let words = "there is something here already; a backup is restored to an empty place";
        return Err(Error::invalid("restore", words).device(device.name()));
    }
    // PERSIST: Z1. Crash before: what was here; after: no store.
    target.write_roots(&encode_restoring())?;
    target.flush()?;
    let entries = &backup.manifest.segments;
    let newest = entries.iter().max_by_key(|entry| entry.epoch).map(|entry| entry.id);
    let mut named = entries.iter().peekable();
    let mut report = RestoreReport {
        last_version: Version(backup.manifest.next_version.0.saturating_sub(1)),
        ..RestoreReport::default()
    };
    for id in (0..superblock.segment_count).map(SegmentId) {
        match named.next_if(|entry| entry.id == id) {
            Some(entry) => {
                progress.report(report.segments, entries.len() as u64);
                target.write_segment(backup, entry, newest == Some(id))?;
                report.segments += 1;
                report.bytes += entry.length_bytes;
            }
            None => target.write_blank(id)?,
        }
    }
    progress.report(report.segments, entries.len() as u64);
    if entries.is_empty() {
        target.write_header(backup)?;
    }
    // PERSIST: all segments, before a superblock says that there is a store; then that.
    target.flush()?;
    target.write_roots(&superblock.encode())?;
    target.flush()?;
    Ok(report)
}
