//! Garbage collection and defragmentation: live bytes move to other segments (FlexSpace §4.1).
//!
//! # Invariants
//! - G1: a victim has a byte that nothing points at, and what it holds is moved without gaps: so each round
//!   frees more than it fills. The cap on live bytes makes sure that there is a victim, the collector's own
//!   segments that there is room.
//!
//! # Failure
//! A crash leaves copies that nothing points at, or that the log points at; the originals stay until then. What
//! cannot be read stays where it is, and is named.

use super::read::{Outcome, Part};
use super::{Inner, Writer};
use esker_base::{ErrorKind, Result};
use esker_format::flex::Record;
use esker_index::flex_tree::{Extent, MARK};
use std::collections::HashSet;

/// Bytes of extents that are read at once.
const BYTES_AT_ONCE: u64 = 2 << 20;
/// Blocks between two extents that are read along: one long read costs less than many short ones.
const BLOCKS_BETWEEN: u64 = 16;
/// Bytes of extents that a walk over the tree looks at under one lock.
const WALK_STEP: u64 = 1 << 30;

impl Inner {
    /// Moves what is in the emptiest segments, until `segments` more are free or there is no more room
    /// to move to. How many bytes were moved.
    pub(super) fn collect(&self, writer: &mut Writer, segments: u64) -> Result<u64> {
        let victims = self.victims(writer, segments);
        if victims.is_empty() {
            return Ok(0);
        }
        let mut found = Vec::new();
        let payload = self.shape.segment_payload();
        self.walk(|extent| {
            if !extent.is_hole() && victims.contains(&(extent.place() / payload)) {
                found.push(extent);
            }
        })?;
        let mut moved = 0;
        let mut rest = &found[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let of_batch = rest.iter().take_while(|extent| {
                bytes += u64::from(extent.length);
                bytes <= BYTES_AT_ONCE
            });
            let (batch, more) = rest.split_at(of_batch.count().max(1));
            rest = more;
            let done = self.move_batch(writer, batch);
            moved += match done {
                Err(error) if error.kind() == ErrorKind::Corrupted => self.move_each(writer, batch),
                done => done,
            }
            .or_else(|error| self.fail_on(Err(error)))?;
        }
        writer.moved_bytes += moved;
        // New places are durable before the old ones are written again.
        let done = self.commit(writer, false);
        self.fail_on(done)?;
        Ok(moved)
    }

    /// The emptiest segments: as few as free so many, and no more than there is room to move.
    fn victims(&self, writer: &Writer, segments: u64) -> HashSet<u64> {
        let payload = self.shape.segment_payload();
        let shared = self.shared.read();
        let mut all: Vec<(u64, u64)> = (0..)
            .zip(&shared.segments)
            .map(|(number, segment)| (u64::from(segment.valid_bytes), number))
            .filter(|(valid, number)| {
                *valid > 0 && *valid < payload && shared.open.number != Some(*number)
            })
            .collect();
        all.sort_unstable();
        let mut room = shared.open.room(&self.shape) + writer.free.len() as u64 * payload;
        let mut gain = 0;
        let mut victims = HashSet::new();
        for (valid, number) in all {
            if valid > room || gain >= segments.saturating_mul(payload) {
                break;
            }
            room -= valid;
            gain += payload - valid;
            victims.insert(number);
        }
        victims
    }

    /// Calls `visit` with all extents, each as a whole. The writer's lock is held, so they stay as they are.
    pub(super) fn walk(&self, mut visit: impl FnMut(Extent)) -> Result<()> {
        let mut offset = 0;
        let size = self.shared.read().tree.size_bytes();
        while offset < size {
            let mut last = None;
            let shared = self.shared.read();
            let done = shared.tree.visit(offset, WALK_STEP, |extent| {
                if let Some(before) = last.replace(extent) {
                    visit(before);
                }
            });
            // The step may have cut it.
            if let Some(whole) = last.and_then(|cut| shared.tree.lookup(cut.offset).ok().flatten())
            {
                visit(whole);
                offset = whole.end();
            }
            drop(shared);
            if let Err(missing) = done {
                self.load(&missing)?;
            }
        }
        Ok(())
    }

    /// Moves extents that are not in the open segment, which are read at once; how many bytes that were.
    fn move_batch(&self, writer: &mut Writer, batch: &[Extent]) -> Result<u64> {
        let payload = self.shape.segment_payload();
        let mut parts = Vec::with_capacity(batch.len());
        let mut end = 0;
        {
            let shared = self.shared.read();
            for extent in batch {
                let (segment, position) = (extent.place() / payload, extent.place() % payload);
                let salt = shared.salt(segment).unwrap_or(0);
                let range = end..end + extent.length as usize;
                end = range.end;
                parts.push(Part { segment, salt, position, range });
            }
        }
        let mut bytes = self.pool.get(end);
        if let Outcome::Stale = self.read_parts(&mut parts, &mut bytes, (BLOCKS_BETWEEN, false))? {
            return self.move_each(writer, batch);
        }
        let mut rest = &bytes[..];
        for extent in batch {
            let (own, behind) = rest.split_at_checked(extent.length as usize).unwrap_or_default();
            rest = behind;
            self.put_elsewhere(writer, extent.offset, own, extent.is_marked())?;
        }
        Ok(end as u64)
    }

    /// Moves extents one by one, but for those that cannot be read.
    fn move_each(&self, writer: &mut Writer, batch: &[Extent]) -> Result<u64> {
        let mut moved = 0;
        for extent in batch {
            let length = u64::from(extent.length);
            match self.move_extent(writer, extent.offset, length, extent.is_marked()) {
                Ok(()) => moved += length,
                Err(error) if error.kind() == ErrorKind::Corrupted => {
                    tracing::error!(%error, "the collector leaves what it cannot read");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Writes the bytes of an extent at another place, with its mark if it has one.
    fn move_extent(
        &self,
        writer: &mut Writer,
        offset: u64,
        length: u64,
        marked: bool,
    ) -> Result<()> {
        let mut bytes = self.pool.get(usize::try_from(length).unwrap_or(0));
        self.read(offset, &mut bytes)?;
        self.put_elsewhere(writer, offset, &bytes, marked)
    }

    /// Lets what is at `offset`, which has these bytes, stand at another place.
    fn put_elsewhere(
        &self,
        writer: &mut Writer,
        offset: u64,
        bytes: &[u8],
        marked: bool,
    ) -> Result<()> {
        self.load_range(offset, bytes.len() as u64)?;
        let pieces = self.place(writer, bytes)?;
        let mut records = Vec::with_capacity(pieces.len());
        let mut at = offset;
        for (address, length) in pieces {
            let address = if marked && at == offset { address | MARK } else { address };
            records.push(Record::Map { offset: at, length, address });
            at += length;
        }
        self.apply_all(writer, &records)
    }

    pub(super) fn defrag(&self, offset: u64, length: u64) -> Result<u64> {
        let mut writer = self.begin("defragment range")?;
        let size = self.shared.read().tree.size_bytes();
        let end = offset.saturating_add(length).min(size);
        let longest = u64::from(self.shape.extent_size_bytes_max);
        let mut moved = 0;
        let mut at = offset;
        while at < end {
            // A run of short extents between holes and long ones, up to the longest extent.
            self.load_range(at, longest)?;
            let mut run = (at, 0, false);
            let mut extents = 0;
            let mut ended = false;
            let mut next = at;
            let part = (end - at).min(longest);
            let done = self.shared.read().tree.visit(at, part, |extent| {
                // A mark begins a run of its own, so that it stays where it is.
                ended |= extent.is_marked() && extents > 0;
                if ended {
                    return;
                }
                next = extent.end();
                if extent.is_hole() {
                    if extents <= 1 {
                        run = (extent.end(), 0, false);
                        extents = 0;
                    }
                } else if run.0 + run.1 == extent.offset {
                    run.1 += u64::from(extent.length);
                    run.2 |= extent.is_marked();
                    extents += 1;
                }
            });
            if let Err(missing) = done {
                self.load(&missing)?;
                continue;
            }
            if extents > 1 {
                let room = self.make_room(&mut writer, run.1);
                self.fail_on(room)?;
                let done = self.move_extent(&mut writer, run.0, run.1, run.2);
                match done {
                    // Damage is what it is: nothing was moved.
                    Err(error) if error.kind() == ErrorKind::Corrupted => return Err(error),
                    done => self.fail_on(done)?,
                }
                moved += run.1;
            }
            at = next;
        }
        writer.moved_bytes += moved;
        let done = self.commit_if_due(&mut writer);
        self.fail_on(done)?;
        Ok(moved)
    }
}
