//! Where new data goes: segments are taken, filled and written (FlexSpace §4.1).
//!
//! # Invariants
//! - B1: of free segments as many are allocated in the file as an operation is promised, and as the collector needs, whichever these are. One
//!   for which the file system has no room is a hole: no segment at all until it is allocated again.
//! - B2: who asks for room gets it only while the collector has its segments, and the tree file is long enough for checkpoints of all
//!   nodes.
//!
//! # Failure
//! A lack of space is told before anything is placed. A crash leaves data that nothing points at, in segments
//! that are free again.

use super::commit::no_lack;
use super::filled::FilledSegment;
use super::state::{OpenSegment, place_of};
use super::{Inner, Writer, sites};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex::{Record, SegmentState, SpaceShape};
use esker_index::flex_tree::Extent;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

    /// Makes sure that `length` bytes can be placed without touching the collector's segments, in place of what is in the range
    /// `replaced`, offset and length, whose nodes are there.
    pub(super) fn make_room(
        &self,
        writer: &mut Writer,
        length: u64,
        replaced: (u64, u64),
    ) -> Result<()> {
        let payload = self.shape.segment_payload();
        let room = self.shared.read().open.room(&self.shape);
        if length <= room {
            return Ok(());
        }
        let needed = (length - room).div_ceil(payload);
        let more = length.saturating_sub(self.live_in(replaced));
        let mut collected = false;
        loop {
            let (total, valid) = {
                let shared = self.shared.read();
                (shared.segments.len() as u64, shared.valid_bytes)
            };
            let most = self.segments_max(writer);
            let is_capped = writer.data_size_bytes_max.is_some() && more > 0;
            if is_capped && valid + more > self.live_bytes_max(most) {
                return Err(self.no_space("live bytes are at the cap of the space"));
            }
            let promised = needed + Inner::reserve_segments(total);
            if self.back(writer, promised)? {
                return Ok(());
            }
            // All that are free are allocated now.
            let missing = promised - writer.allocated.len() as u64;
            let mut can_grow = total < most || !writer.holes.is_empty();
            let dying = self.shared.read().dying.len() as u64;
            if dying > 0 {
                // Operations that belong together go on in new segments, within reason.
                let is_within = writer.held && can_grow && dying < total / 8 + HELD_SEGMENTS;
                if !is_within || !self.grow(writer, missing, most)? {
                    self.commit(writer, false)?;
                }
                continue;
            }
            let in_use = self.in_use(writer);
            let fill = u64::from(self.options.fill_percent_min);
            // What belongs together is not to be committed by the collector: it comes later.
            let fill = if writer.held || writer.loose { fill / 2 } else { fill };
            let dense = is_dense(valid, in_use * payload, fill);
            if can_grow && (dense || collected || in_use < 4) {
                if self.grow(writer, missing, most)? {
                    collected = false;
                    continue;
                }
                // The file system is full: the collector may find something.
                can_grow = false;
            }
            let before = self.taken_bytes(writer);
            // A walk over the tree is made once for several segments.
            self.collect(writer, missing.max(total / 32).max(4))?;
            // Segments become free one by one, bytes in each round (G1): a 64th of a segment at least, or it is not worth it.
            collected = self.taken_bytes(writer) + payload / 64 > before;
            if collected && !can_grow {
                return Err(self.no_space("there is nothing left to collect"));
            }
        }
    }

    /// Bytes of a range that are no holes.
    fn live_in(&self, (offset, length): (u64, u64)) -> u64 {
        let mut live = 0;
        let add = |extent: Extent| {
            if !extent.is_hole() {
                live += u64::from(extent.length);
            }
        };
        // Of what is not loaded nothing counts.
        let _ = self.shared.read().tree.visit(offset, length, add);
        live
    }

    /// Collects some segments, in rounds of one part in so `many` of all, if live bytes do not fill enough of those in use. How many
    /// bytes were moved, and whether there may be more to do.
    pub(super) fn settle(
        &self,
        writer: &mut Writer,
        percent: u32,
        many: u64,
    ) -> Result<(u64, bool)> {
        let fill = u64::from(self.options.fill_percent_min) * u64::from(percent) / 100;
        let payload = self.shape.segment_payload();
        let (total, valid) = {
            let shared = self.shared.read();
            (shared.segments.len() as u64, shared.valid_bytes)
        };
        let in_use = self.in_use(writer);
        if in_use < 4 || is_dense(valid, in_use * payload, fill) {
            writer.round = None;
            return Ok((0, false));
        }
        self.collect_some(writer, total.div_ceil(many))
    }

    pub(super) fn no_space(&self, words: &'static str) -> Error {
        Error::new(ErrorKind::NoSpace, "write space").device(self.files.data.name()).context(words)
    }

    /// Bytes of segments that are in use, but for those that could be placed in the open one: what the collector makes less (G1), whatever
    /// becomes of the segments that it frees.
    fn taken_bytes(&self, writer: &Writer) -> u64 {
        let taken = self.in_use(writer) * self.shape.segment_payload();
        taken.saturating_sub(self.shared.read().open.room(&self.shape))
    }

    /// Segments of the data file that are neither free nor holes.
    fn in_use(&self, writer: &Writer) -> u64 {
        let total = self.shared.read().segments.len();
        total.saturating_sub(writer.free.len() + writer.holes.len()) as u64
    }

    /// Segments that the file system is known to have room for.
    fn backed(&self, writer: &Writer) -> u64 {
        self.in_use(writer) + writer.allocated.len() as u64
    }

    /// Segments that the collector has for itself.
    pub(super) fn reserve(&self) -> u64 {
        Inner::reserve_segments(self.shared.read().segments.len() as u64)
    }

    /// B2: whether the collector has its segments, and the tree file its length.
    fn is_sure(&self, writer: &Writer) -> bool {
        writer.nodes_backed && writer.allocated.len() as u64 >= self.reserve()
    }

    /// Tells everybody how many live bytes there are segments for.
    pub(super) fn note_room(&self, writer: &Writer) {
        let segments = if self.is_sure(writer) { self.backed(writer) } else { 0 };
        self.room.store(self.live_bytes_max(segments), Ordering::Relaxed);
    }

    /// Allocates a segment in the file. Whether there is room for it.
    fn allocate(&self, number: u64) -> Result<bool> {
        let size = self.shape.segment_size_bytes;
        match self.files.data.reserve(sites::RESERVE, number * size, size) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// B1: allocates free segments, the first ones first, until so many are. Whether there are; if not, all that are free are allocated.
    pub(super) fn back(&self, writer: &mut Writer, count: u64) -> Result<bool> {
        while (writer.allocated.len() as u64) < count
            && let Some(number) = writer.free.difference(&writer.allocated).next().copied()
        {
            if self.allocate(number)? {
                writer.allocated.insert(number);
            } else {
                self.note_hole(writer, number);
            }
        }
        self.note_room(writer);
        Ok(writer.allocated.len() as u64 >= count)
    }

    /// A free segment is a hole.
    pub(super) fn note_hole(&self, writer: &mut Writer, number: u64) {
        writer.free.remove(&number);
        writer.allocated.remove(&number);
        writer.holes.insert(number);
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// Adds segments to the data file, holes of it first. Whether the file system had room for one.
    fn grow(&self, writer: &mut Writer, missing: u64, most: u64) -> Result<bool> {
        let mut filled = 0;
        while filled < missing
            && let Some(number) = writer.holes.first().copied()
            && self.allocate(number)?
        {
            writer.holes.remove(&number);
            writer.free.insert(number);
            writer.allocated.insert(number);
            filled += 1;
        }
        let total = self.shared.read().segments.len() as u64;
        let grown = match most.saturating_sub(total) {
            more if more > 0 && filled == 0 && writer.holes.is_empty() => {
                self.append_segments(writer, missing, more)?
            }
            _ => 0,
        };
        let has_grown = filled + grown > 0;
        self.is_full.store(!has_grown, Ordering::Relaxed);
        self.note_room(writer);
        Ok(has_grown)
    }

    /// Makes the data file longer, by `missing` segments or more, and up to `most`; by how many.
    fn append_segments(&self, writer: &mut Writer, missing: u64, most: u64) -> Result<u64> {
        let size = self.shape.segment_size_bytes;
        let total = self.shared.read().segments.len() as u64;
        let device = &*self.files.data;
        let wanted = (total / 32).clamp(1, SEGMENTS_GROWN_MAX).max(missing).min(most);
        let grown = match device.reserve(sites::RESERVE, total * size, wanted * size) {
            Ok(()) => wanted,
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                u64::from(wanted > 1 && self.allocate(total)?)
            }
            Err(error) => return Err(error),
        };
        let mut shared = self.shared.write();
        for segment in total..total + grown {
            shared.segments.push(SegmentState::default());
            writer.free.insert(segment);
            writer.allocated.insert(segment);
        }
        Ok(grown)
    }

    /// Lets the file have segments for so many live bytes, if the file system and the limit of the data file allow it. Whether it has.
    pub(super) fn reach(&self, writer: &mut Writer, live_bytes: u64) -> Result<bool> {
        let most = self.segments_max(writer);
        if live_bytes > self.live_bytes_max(most) {
            return Ok(false);
        }
        self.back_own(writer)?;
        while !self.is_sure(writer) {
            let missing = self.reserve().saturating_sub(writer.allocated.len() as u64);
            let total = self.shared.read().segments.len() as u64;
            if missing > 0
                && (total < most || !writer.holes.is_empty())
                && self.grow(writer, missing, most)?
            {
                continue;
            }
            // Segments that become free are the collector's, or make way for nodes.
            let before = self.taken_bytes(writer);
            self.collect(writer, missing.max(Inner::reserve_segments(0)))?;
            if self.taken_bytes(writer) + self.shape.segment_payload() / 64 > before {
                return Ok(false);
            }
            self.back_own(writer)?;
        }
        while live_bytes > self.room.load(Ordering::Relaxed) {
            let backed = writer.allocated.len() as u64;
            let free = writer.free.len() as u64;
            if backed < free {
                // Free ones first: as many more as the file would grow by.
                self.back(writer, backed + SEGMENTS_GROWN_MAX.min(free - backed))?;
                continue;
            }
            if !self.grow(writer, 1, most)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts `data` into the open segment and as many more as it takes. Nothing points at it yet.
    pub(super) fn place(&self, writer: &mut Writer, mut data: &[u8]) -> Result<Vec<Piece>> {
        let longest = self.shape.extent_size_bytes_max as usize;
        let mut pieces = Vec::new();
        while !data.is_empty() {
            let mut shared = self.shared.write();
            let room = shared.open.room(&self.shape);
            if room == 0 {
                drop(shared);
                self.roll(writer)?;
                continue;
            }
            let count = data.len().min(longest).min(usize::try_from(room).unwrap_or(usize::MAX));
            let (now, rest) = data.split_at(count);
            let address = shared.open.append(&self.shape, now);
            drop(shared);
            pieces.push((address.ok_or_else(|| lost("the open segment"))?, count as u64));
            data = rest;
        }
        Ok(pieces)
    }

    /// Takes another segment in place of the open one, which is full: what is left of that is written, here or by somebody else.
    fn roll(&self, writer: &mut Writer) -> Result<()> {
        let stays = self.behind.is_on() && self.shared.read().open.is_in_part(&self.shape);
        if !stays {
            self.write_blocks(writer)?;
        }
        let number = loop {
            let Some(number) = writer.free.first().copied() else {
                return Err(self.no_space("no segment is free"));
            };
            if writer.allocated.remove(&number) || self.allocate(number)? {
                writer.free.remove(&number);
                break number;
            }
            self.note_hole(writer, number);
        };
        let salt = writer.rng.next_u64();
        let another = stays.then(|| self.segment_buffer());
        let mut shared = self.shared.write();
        let record = Record::Take { segment: number, salt };
        shared.apply(&self.shape, record).map_err(|_| lost("a free segment"))?;
        writer.records.push(record);
        let before = shared.open.number;
        let buffer = another.unwrap_or_else(|| Arc::clone(&shared.open.buffer));
        let open =
            OpenSegment { number: Some(number), salt, buffer, position: 0, written_blocks: 0 };
        let full = std::mem::replace(&mut shared.open, open);
        if stays && let Some(number) = before {
            let first_block = full.written_blocks;
            shared.filled.push(FilledSegment { number, first_block, buffer: full.buffer });
            writer.data_dirty = true;
        }
        // It was open, so nobody noticed if nothing in it counts any more.
        if let Some(number) = before
            && shared.is_empty(number)
        {
            shared.dying.push(number);
        }
        drop(shared);
        if stays { self.leave_filled() } else { Ok(()) }
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
        done.map_err(no_lack)?;
        self.shared.write().open.written_blocks = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::flex::{Space, SpaceOptions};

    #[test]
    fn the_collector_has_its_segments_behind_a_trim_and_before_room_is_promised() {
        const PIECE: u64 = 4000;
        let folder = tempfile::tempdir().unwrap();
        let mut options = SpaceOptions::new(folder.path());
        options.testing.shape.segment_size_bytes = 64 << 10;
        options.testing.shape.extent_size_bytes_max = 4092;
        let space = Space::open(&options).unwrap();
        let has_own =
            |space: &Space| space.0.writer.lock().allocated.len() as u64 >= space.0.reserve();
        for _ in 0..2000 {
            space.append(&[1; 4000]).unwrap();
        }
        // The first segments are free, and what is moved from others goes there.
        space.collapse_range(0, 500 * PIECE).unwrap();
        for _ in 0..3 {
            space.compact().unwrap();
            assert!(has_own(&space), "{:?}", space.stat());
            for piece in 1..250 {
                space.collapse_range(piece * PIECE, PIECE).unwrap();
            }
        }
        space.compact().unwrap();
        let live = space.stat().data_bytes;
        space.close().unwrap();
        let space = Space::open(&options).unwrap();
        // Nobody knows what is allocated.
        assert!(!has_own(&space) && space.room() == 0);
        assert!(space.reach(live).unwrap());
        assert!(has_own(&space) && space.room() >= live);
    }
}
