//! Where new data goes: segments are taken, filled and written (FlexSpace §4.1).
//!
//! # Failure
//! A lack of space is told before anything is placed. A crash leaves data that nothing points at, in segments
//! that are free again.

use super::state::{OpenSegment, place_of};
use super::{Inner, Writer, sites};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex::{Record, SegmentState, SpaceShape};
use std::io::IoSlice;
use std::sync::Arc;

/// Most segments that the data file grows by at once, unless more are needed.
const SEGMENTS_GROWN_MAX: u64 = 16;

/// Segments that may wait for a commit while operations are held, beside an eighth of all.
const HELD_SEGMENTS: u64 = 4;

/// Whether live bytes fill so many percent of a room.
fn is_dense(valid: u64, room: u64, percent: u64) -> bool {
    u128::from(valid) * 100 >= u128::from(room) * u128::from(percent)
}

/// Data at its place: address and length.
pub(super) type Piece = (u64, u64);

/// A shared state that should be there is not: a defect of this module, told rather than panicked about.
fn lost(what: &'static str) -> Error {
    Error::corrupted("write space", what)
}

/// Most live bytes of so many segments, the cap of the paper: with less than 30/32 live, the emptiest of those that the collector
/// has not for itself always give room.
pub(crate) fn live_bytes_max(shape: &SpaceShape, segments: u64) -> u64 {
    let usable = segments.saturating_sub(Inner::reserve_segments(segments) + 1);
    usable * shape.segment_payload() / 32 * 30
}

impl Inner {
    /// Segments that only the collector may take.
    pub(super) fn reserve_segments(total: u64) -> u64 {
        (total / 64).clamp(2, 64)
    }

    /// See [`live_bytes_max`].
    pub(super) fn live_bytes_max(&self, segments: u64) -> u64 {
        live_bytes_max(&self.shape, segments)
    }

    /// Most segments that the data file may have.
    fn segments_max(&self, writer: &Writer) -> u64 {
        let most = (1 << 47) / self.shape.segment_payload();
        let size = self.shape.segment_size_bytes;
        writer.data_size_bytes_max.map_or(most, |bytes| (bytes / size).min(most))
    }

    /// Makes sure that `length` bytes can be placed without touching the collector's segments.
    pub(super) fn make_room(&self, writer: &mut Writer, length: u64) -> Result<()> {
        let payload = self.shape.segment_payload();
        let room = self.shared.read().open.room(&self.shape);
        if length <= room {
            return Ok(());
        }
        let needed = (length - room).div_ceil(payload);
        let mut collected = false;
        loop {
            let (total, valid) = {
                let shared = self.shared.read();
                (shared.segments.len() as u64, shared.valid_bytes)
            };
            let reserve = Inner::reserve_segments(total);
            let missing = (needed + reserve).saturating_sub(writer.free.len() as u64);
            if missing == 0 {
                return Ok(());
            }
            let most = self.segments_max(writer);
            let dying = self.shared.read().dying.len() as u64;
            if dying > 0 {
                // Operations that belong together go on in new segments, within reason.
                if writer.held && total < most && dying < total / 8 + HELD_SEGMENTS {
                    self.grow(writer, missing, most)?;
                } else {
                    self.commit(writer, false)?;
                }
                continue;
            }
            if writer.data_size_bytes_max.is_some() && valid + length > self.live_bytes_max(most) {
                return Err(self.no_space("live bytes are at the cap of the space"));
            }
            let in_use = total.saturating_sub(writer.free.len() as u64);
            let fill = u64::from(self.options.fill_percent_min);
            // What belongs together is not to be committed by the collector: it comes later.
            let fill = if writer.held || writer.loose { fill / 2 } else { fill };
            let dense = is_dense(valid, in_use * payload, fill);
            let can_grow = total < most;
            if can_grow && (dense || collected || in_use < 4) {
                match self.grow(writer, missing, most) {
                    // The file system is full: the collector may find something.
                    Err(error) if error.kind() == ErrorKind::NoSpace && !collected => {}
                    grown => {
                        grown?;
                        collected = false;
                        continue;
                    }
                }
            }
            let before = writer.free.len();
            // A walk over the tree is made once for several segments.
            let moved = self.collect(writer, missing.max(total / 32).max(4))?;
            if writer.free.len() <= before && (moved == 0 || collected) && !can_grow {
                return Err(self.no_space("there is nothing left to collect"));
            }
            collected = writer.free.len() <= before;
        }
    }

    /// Collects some segments, one part in so `many` of all, if live bytes do not fill enough of those in use. Whether there may be
    /// more to do.
    pub(super) fn settle(&self, writer: &mut Writer, percent: u32, many: u64) -> Result<bool> {
        let fill = u64::from(self.options.fill_percent_min) * u64::from(percent) / 100;
        let payload = self.shape.segment_payload();
        let (total, valid) = {
            let shared = self.shared.read();
            (shared.segments.len() as u64, shared.valid_bytes)
        };
        let in_use = total.saturating_sub(writer.free.len() as u64);
        if in_use < 4 || is_dense(valid, in_use * payload, fill) {
            return Ok(false);
        }
        let before = writer.free.len();
        self.collect(writer, total.div_ceil(many))?;
        Ok(writer.free.len() > before)
    }

    fn no_space(&self, words: &'static str) -> Error {
        Error::new(ErrorKind::NoSpace, "write space").device(self.files.data.name()).context(words)
    }

    /// Adds segments to the data file.
    fn grow(&self, writer: &mut Writer, missing: u64, most: u64) -> Result<()> {
        let size = self.shape.segment_size_bytes;
        let total = self.shared.read().segments.len() as u64;
        let device = &*self.files.data;
        let wanted = (total / 8).clamp(1, SEGMENTS_GROWN_MAX).max(missing).min(most - total);
        let at = total * size;
        let grown = match device.reserve(sites::RESERVE, at, wanted * size) {
            Ok(()) => wanted,
            Err(error) if error.kind() == ErrorKind::NoSpace && wanted > 1 => {
                device.reserve(sites::RESERVE, at, size)?;
                1
            }
            Err(error) => return Err(error),
        };
        let mut shared = self.shared.write();
        for segment in total..total + grown {
            shared.segments.push(SegmentState::default());
            writer.free.insert(segment);
            writer.allocated.insert(segment);
        }
        Ok(())
    }

    /// Puts `data` into the open segment and as many more as it takes. Nothing points at it yet.
    pub(super) fn place(&self, writer: &mut Writer, mut data: &[u8]) -> Result<Vec<Piece>> {
        let longest = self.shape.extent_size_bytes_max as usize;
        let mut pieces = Vec::new();
        while !data.is_empty() {
            let room = self.shared.read().open.room(&self.shape);
            if room == 0 {
                self.roll(writer)?;
                continue;
            }
            let count = data.len().min(longest).min(usize::try_from(room).unwrap_or(usize::MAX));
            let (now, rest) = data.split_at(count);
            let address = self.shared.write().open.append(&self.shape, now);
            pieces.push((address.ok_or_else(|| lost("the open segment"))?, count as u64));
            data = rest;
        }
        Ok(pieces)
    }

    /// Writes what is left of the open segment, and takes another one.
    fn roll(&self, writer: &mut Writer) -> Result<()> {
        self.write_blocks(writer)?;
        let number = match writer.free.pop_first() {
            Some(number) => number,
            None => return Err(self.no_space("no segment is free")),
        };
        if !writer.allocated.remove(&number) {
            let size = self.shape.segment_size_bytes;
            if let Err(error) = self.files.data.reserve(sites::RESERVE, number * size, size) {
                writer.free.insert(number);
                return Err(error);
            }
        }
        let salt = writer.rng.next_u64();
        let mut shared = self.shared.write();
        let record = Record::Take { segment: number, salt };
        shared.apply(&self.shape, record).map_err(|_| lost("a free segment"))?;
        writer.records.push(record);
        let before = shared.open.number;
        let buffer = Arc::clone(&shared.open.buffer);
        shared.open =
            OpenSegment { number: Some(number), salt, buffer, position: 0, written_blocks: 0 };
        // It was open, so nobody noticed if nothing in it counts any more.
        if let Some(number) = before
            && shared.is_empty(number)
        {
            shared.dying.push(number);
        }
        Ok(())
    }

    /// Writes the blocks of the open segment that are complete and not on the device.
    pub(super) fn write_blocks(&self, writer: &mut Writer) -> Result<()> {
        let (number, first, end, buffer) = {
            let shared = self.shared.read();
            let open = &shared.open;
            let Some(number) = open.number else { return Ok(()) };
            let (end, _) = place_of(&self.shape, open.position);
            (number, open.written_blocks, end, Arc::clone(&open.buffer))
        };
        if first == end {
            return Ok(());
        }
        let size = u64::from(self.shape.block_size_bytes);
        let index = |block: u64| usize::try_from(block * size).unwrap_or(usize::MAX);
        let bytes = buffer.get(index(first)..index(end)).ok_or_else(|| lost("blocks"))?;
        let offset = number * self.shape.segment_size_bytes + first * size;
        writer.data_dirty = true;
        let done = self.files.data.write_at(sites::DATA_WRITE, offset, &[IoSlice::new(bytes)]);
        drop(buffer);
        done.map_err(|error| match error.kind() {
            // The segment was allocated: whatever this is, part of the write may have happened.
            ErrorKind::NoSpace => error.with_kind(ErrorKind::Io),
            _ => error,
        })?;
        self.shared.write().open.written_blocks = end;
        Ok(())
    }
}
