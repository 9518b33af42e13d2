//! Defragmentation: what stands in short extents is written anew, side by side (FlexSpace §4.1).
//!
//! # Invariants
//! - Bytes and marks of the space stay where they are; only places on the device change.
//! - Before others come to their turn, no more is moved than by the collector (G2 of [`collect`](super::collect)).
//! - What was written anew is not written again, but for a few extents where segments end.
//!
//! # Concurrency
//! The writer's lock is held for a part of the range. Between two parts the space may change: the next one begins at the same offset.
//!
//! # Failure
//! As of the collector: a crash leaves copies that nothing points at, or that the log points at. What cannot be read stays, and ends it.

use super::collect::WALK_OF_A_PART;
use super::{Inner, Writer};
use esker_base::Result;
use esker_format::flex::SpaceShape;
use esker_index::flex_tree::Extent;

impl Inner {
    /// Writes anew what stands in short extents, part by part: others come to their turn between two.
    pub(super) fn defrag(&self, offset: u64, length: u64) -> Result<u64> {
        let end = offset.saturating_add(length);
        let (mut at, mut moved) = (offset, 0);
        loop {
            let mut writer = self.begin("defragment range")?;
            if at >= end.min(self.shared.read().tree.size_bytes()) {
                return Ok(moved);
            }
            let (behind, bytes) = self.defrag_part(&mut writer, at, end)?;
            at = behind;
            moved += bytes;
        }
    }

    /// Finds runs of short extents from `offset` on, and writes each anew, as one. Where it ended, and how many bytes were moved.
    fn defrag_part(&self, writer: &mut Writer, offset: u64, end: u64) -> Result<(u64, u64)> {
        let (most, mut bytes) = (self.moved_at_once(), 0);
        let mut runs = Runs::new(&self.shape);
        self.load_range(offset, 1)?;
        let from = self.start_of_extent(offset)?;
        let visit = |extent: Extent| {
            let is_enough = extent.offset >= end
                || bytes >= most
                || extent.offset.saturating_sub(from) > WALK_OF_A_PART;
            if !is_enough {
                bytes += runs.add(&extent);
            }
            !is_enough
        };
        let next = self.walk(writer, from, visit, &mut Err)?;
        let mut moved = 0;
        for Run { offset, length, is_marked, .. } in runs.end() {
            self.load_range(offset, length)?;
            let room = self.make_room(writer, length, (offset, length));
            self.fail_on(room)?;
            // Some may be forgotten by now: one that cannot be read fails no space as long as nothing is placed.
            self.load_range(offset, length)?;
            let mut bytes = self.pool.get(usize::try_from(length).unwrap_or(0));
            // Who cannot be read stays where it is.
            self.read(offset, &mut bytes)?;
            let done = self.put_elsewhere(writer, offset, &bytes, is_marked);
            let done = done.and_then(|()| self.commit_if_due(writer));
            self.fail_on(done)?;
            moved += length;
            writer.moved_bytes += length;
        }
        Ok((next, moved))
    }
}

/// Short extents side by side that become one.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    offset: u64,
    length: u64,
    extents: u32,
    is_marked: bool,
}

impl Run {
    fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// Finds runs among extents that come one behind the other.
///
/// Extents of half the longest length and more stay as they are, so that what was written anew is not written again: a run ends where
/// the next extent would make it too long. It also ends behind the last bytes of a segment, where every run is cut, and before a
/// mark, which stays where it is.
#[derive(Debug)]
struct Runs<'s> {
    shape: &'s SpaceShape,
    ended: Vec<Run>,
    open: Run,
}

impl<'s> Runs<'s> {
    fn new(shape: &'s SpaceShape) -> Self {
        Runs { shape, ended: Vec::new(), open: Run::default() }
    }

    /// Adds the next extent; how many bytes of a run this brings.
    fn add(&mut self, extent: &Extent) -> u64 {
        let (length, longest) =
            (u64::from(extent.length), u64::from(self.shape.extent_size_bytes_max));
        let is_next = self.open.end() == extent.offset && self.open.length + length <= longest;
        if extent.is_hole() || extent.is_marked() || !is_next || length >= longest / 2 {
            self.close();
        }
        if extent.is_hole() || length >= longest / 2 {
            return 0;
        }
        if self.open.extents == 0 {
            let is_marked = extent.is_marked();
            self.open = Run { offset: extent.offset, length: 0, extents: 0, is_marked };
        }
        self.open.length += length;
        self.open.extents += 1;
        if (extent.place() + length).is_multiple_of(self.shape.segment_payload()) {
            self.close();
        }
        length
    }

    fn close(&mut self) {
        let run = std::mem::take(&mut self.open);
        if run.extents > 1 {
            self.ended.push(run);
        }
    }

    fn end(mut self) -> Vec<Run> {
        self.close();
        self.ended
    }
}
