//! Repair of a space: whatever of tree, map and log can be read makes a space again.
//!
//! A node that cannot be read gives way to a hole: what it said of its bytes is lost, everything else stays where it is. A log that is
//! damaged ends there. Then the tree is built anew of what is left, with counts that are right, and the next commit stores all of it.
//! What data can be read is not looked at: damaged blocks are errors for those who read them, as before.
//!
//! ```text
//! header ─► all nodes, or holes ─► log, as far as it can be read ─► a new tree ─► the next commit: a checkpoint
//! ```
//!
//! # Invariants
//! - M1: nothing that the damaged space needs is written over before a header without it is durable: new nodes go where no slot is in
//!   use, and the log is not touched before.
//! - M2: the new header has a generation above all that is there, so that nothing of an old log counts for it.
//! - M3: segments that may hold bytes which nothing points at any more, because it is lost, are neither free nor collected until the
//!   space is opened again: who uses the space looks for what it knows ([`Space::visit_stray`]).
//! - M4: blocks are verified by the salt that their segment was given last, in groups of the log that do not count, too. So what is left of
//!   a tree that is older than that finds nothing of its own there: other bytes, which are whole.
//!
//! # Failure
//! A crash before that commit leaves the space as it was. So does a node that the device refuses: it may be there again soon, and a hole in
//! its place could not be taken back.

use super::lost::Lost;
use super::recover::{find_header, read_map, segments_in, tree_shape};
use super::slots::Slots;
use super::state::Shared;
use super::{Inner, Space, SpaceFiles, SpaceOptions, Writer, refuse_store, sites};
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex::header::SLOTS_OFFSET;
use esker_format::flex::{Group, Header, Map, Record, SegmentState, block_is_sound};
use esker_index::FlexTree;
use esker_index::flex_tree::{Extent, HOLE};
use esker_media::{BufferPool, IoBuf};
use std::collections::BTreeSet;
use std::ops::Range;

const OPERATION: &str = "repair space";
/// Bytes of a file that are looked at with one call.
const STEP: u64 = 256 << 10;

/// What [`Space::repair`] found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceRepair {
    /// Bytes of the space of which nobody knows where they stand: they read as zeros now.
    pub lost: Vec<Range<u64>>,
    /// Whether the log was damaged, or the header that it builds on, or the map of segments: of what was done last some is lost, although
    /// it was durable.
    pub is_older: bool,
    /// Whether anything was written. A sound space is left as it is.
    pub is_mended: bool,
}

/// Groups of a log that do not count, though they are whole.
#[derive(Default)]
struct Stranded {
    newest: u64,
    takes: Vec<(u64, u64)>,
}

impl Space {
    /// Makes a space of what can be read of a damaged one that nobody has open. Ranges that cannot be found any more become holes; damaged
    /// blocks of data stay as they are, and are errors for who reads them ([`Space::check`] names them).
    ///
    /// # Errors
    /// `Corrupted` if neither header is whole, `InvalidArgument` if there is no space, if it is a store's, or with `read_only`, `NoSpace` if
    /// there is no room for a new tree, `Locked`, `UnsupportedFormat`, `Io`. The space is as it was then.
    pub fn repair(options: &SpaceOptions) -> Result<SpaceRepair> {
        if options.read_only {
            return Err(Error::invalid(OPERATION, "a repair writes, and the space is only read"));
        }
        let options = SpaceOptions { create: false, format: false, ..options.clone() };
        refuse_store(&options)?;
        let (space, report) = Space::mend_on(SpaceFiles::open(&options)?, &options)?;
        space.close()?;
        Ok(report)
    }

    /// As [`Space::repair`], on these devices, and keeps the space open. The next commit stores what was mended.
    #[doc(hidden)]
    pub fn mend_on(files: SpaceFiles, options: &SpaceOptions) -> Result<(Space, SpaceRepair)> {
        let (inner, report) = Inner::open_mended(files, options)?;
        Ok((Space(std::sync::Arc::new(inner)), report))
    }

    /// Segments of which only a part is pointed at stay as they are until the space is opened again (M3), and so do those that are free.
    pub(crate) fn keep_stray(&self) {
        let mut writer = self.0.writer.lock();
        let shared = self.0.shared.read();
        for (number, segment) in (0..).zip(&shared.segments) {
            self.0.keep_segment(&mut writer, number, segment.salt);
        }
    }

    /// Gives pieces of the data file to `visit` that can be read and to which nothing points but these ranges of the space, which are in
    /// order, in segments that are kept (M3): bytes that were written one behind the other. How many blocks the device refused: what is in
    /// those is passed over, as nobody knows whether it is anything, and a device may refuse them for ever.
    ///
    /// # Errors
    /// Those of `visit`; `Io` for a node of the tree.
    pub(crate) fn visit_stray(
        &self,
        but: &[Range<u64>],
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
        self.0.visit_stray(but, visit)
    }
}

impl Inner {
    fn open_mended(files: SpaceFiles, options: &SpaceOptions) -> Result<(Inner, SpaceRepair)> {
        let rng = Rng::seeded(options.testing.seed)?;
        let header = find_header(&*files.tree, options)?.ok_or_else(|| {
            Error::invalid(OPERATION, "there is no FlexSpace here").device(files.tree.name())
        })?;
        let (map, has_map) = match read_map(&files, &header) {
            Ok(map) => (map, true),
            Err(error) if error.kind() == ErrorKind::Corrupted => {
                tracing::error!(%error, "what is known of segments is older");
                (older_map(&files, &header)?.unwrap_or_default(), false)
            }
            Err(error) => return Err(error),
        };
        let slots = map.slots.clone();
        let inner = Inner::of(files, options, (&header, map), rng)?;
        let report = inner.mend(&header, has_map.then_some(slots))?;
        Ok((inner, report))
    }

    /// See the module's text. `slots`: those in use, if that is known.
    fn mend(&self, header: &Header, slots: Option<Vec<u8>>) -> Result<SpaceRepair> {
        let mut writer = self.writer.lock();
        // All nodes, before the log moves anything.
        *self.lost_nodes.lock() = Some(Vec::new());
        writer.keeps_leaves = true;
        self.walk(&writer, 0, |_| true, &mut Err)?;
        let nodes = self.lost_nodes.lock().take().unwrap_or_default();
        let are_nodes_lost = !nodes.is_empty();
        let mut lost = Lost::default();
        nodes.into_iter().for_each(|range| lost.add(range));
        let is_cut = self.replay_over(&mut writer, &mut lost)?;
        let proof = match self.lost_groups(header, &writer.log) {
            Ok(groups) => Ok(groups),
            Err(error) if error.kind() == ErrorKind::Corrupted => Err(error),
            Err(error) => return Err(error),
        };
        let stranded = match &proof {
            Ok(_) => Stranded::default(),
            Err(error) => {
                tracing::error!(%error, "what the log says from there on is lost");
                self.stranded(&writer)?
            }
        };
        let in_file = segments_in(&self.files, header);
        let (extents, gone) = self.extents(in_file, &stranded.takes);
        writer.keeps_leaves = false;
        gone.into_iter().for_each(|range| lost.add(range));
        let valid = self.valid_bytes(&extents);
        let mut report = SpaceRepair {
            is_older: is_cut || proof.is_err() || slots.is_none(),
            // The log may have done away with all that was lost.
            is_mended: are_nodes_lost
                || !lost.is_empty()
                || slots.is_none()
                || is_cut
                || proof.is_err(),
            lost: lost.into_ranges(),
        };
        let counted: Vec<u32> =
            self.shared.read().segments.iter().map(|segment| segment.valid_bytes).collect();
        // An open refuses a map of more segments than the file has, also if nothing is in those.
        report.is_mended |= counted != valid || counted.len() as u64 > in_file;
        if !report.is_mended {
            self.erase(&proof.unwrap_or_default())?;
            self.find_free(&mut writer);
            return Ok(report);
        }
        {
            let mut shared = self.shared.write();
            for (segment, salt) in &stranded.takes {
                if let Some(state) = shared.segments.get_mut(usize::try_from(*segment).unwrap_or(0))
                {
                    state.salt = *salt;
                }
            }
            self.build(&mut shared, &extents, &valid);
            shared.segments.truncate(usize::try_from(in_file).unwrap_or(0));
        }
        self.find_free(&mut writer);
        // M3: those with more bytes by count than by what points at them; all, if nobody knows the count.
        let is_known = !report.is_older;
        let state = self.shared.read().segments.clone();
        for (number, ((counted, valid), segment)) in
            (0..).zip(counted.iter().zip(&valid).zip(&state))
        {
            if !is_known || counted > valid {
                self.keep_segment(&mut writer, number, segment.salt);
            }
        }
        self.note_room(&writer);
        self.renew(&mut writer, header, slots, stranded.newest);
        Ok(report)
    }

    /// Does all records of the log that count, as far as they make sense; whether that was not all of them.
    fn replay_over(&self, writer: &mut Writer, lost: &mut Lost) -> Result<bool> {
        while let Some((group, checksum, records)) = self.next_group(&writer.log)? {
            for record in records {
                let done = match record {
                    // What pointed into it may be lost, and is counted still.
                    Record::Take { segment, salt } => self.take_anew(segment, salt),
                    record => self.redo(record),
                };
                match done {
                    Err(error) if error.kind() == ErrorKind::Corrupted => return Ok(true),
                    done => done?,
                }
                lost.follow(&record);
            }
            let log = &mut writer.log;
            log.position += u64::from(group.total_bytes);
            log.sequence = group.sequence + 1;
            log.previous_checksum = checksum;
        }
        Ok(false)
    }

    fn take_anew(&self, segment: u64, salt: u64) -> Result<()> {
        let index = usize::try_from(segment).unwrap_or(usize::MAX);
        let mut shared = self.shared.write();
        match shared.segments.get_mut(index) {
            Some(state) => {
                *state = SegmentState { salt, valid_bytes: 0 };
                Ok(())
            }
            None => Err(Error::corrupted(OPERATION, "a segment behind the end of the file")),
        }
    }

    /// Looks at all groups behind those that count.
    fn stranded(&self, writer: &Writer) -> Result<Stranded> {
        let device = &*self.files.log;
        let block = u64::from(self.shape.log_block_size_bytes);
        let size = device.geometry().size_bytes / block * block;
        let mut stranded = Stranded::default();
        let mut groups: Vec<(Group, Vec<Record>)> = Vec::new();
        let mut at = 0;
        while at < size {
            let mut head = self.pool.get(usize::try_from(block).unwrap_or(512));
            device.read_at(sites::LOG_READ, at, &mut head)?;
            if Group::peek(&head, at).is_ok_and(|group| group.generation >= writer.log.generation)
                && let Some((group, _, records)) = self.group_at(at)?
            {
                stranded.newest = stranded.newest.max(group.generation);
                groups.push((group, records));
            }
            at += block;
        }
        groups.sort_by_key(|(group, _)| (group.generation, group.sequence));
        for (group, records) in groups {
            let behind =
                group.generation > writer.log.generation || group.sequence >= writer.log.sequence;
            let takes = records.iter().filter_map(|record| match record {
                Record::Take { segment, salt } if behind => Some((*segment, *salt)),
                _ => None,
            });
            stranded.takes.extend(takes);
        }
        Ok(stranded)
    }

    /// All extents, and what is lost because it stands behind the end of the data file, or where something else was written since: in a
    /// segment that was taken anew (M4).
    fn extents(&self, in_file: u64, takes: &[(u64, u64)]) -> (Vec<Extent>, Vec<Range<u64>>) {
        let payload = self.shape.segment_payload();
        let taken: BTreeSet<u64> = takes.iter().map(|(segment, _)| *segment).collect();
        let (mut extents, mut gone) = (Vec::new(), Vec::new());
        let shared = self.shared.read();
        let size = shared.tree.size_bytes();
        // All nodes are in memory.
        let _ = shared.tree.visit(0, size, |extent| {
            let segment = extent.place() / payload;
            let is_gone = !extent.is_hole() && (segment >= in_file || taken.contains(&segment));
            if is_gone {
                gone.push(extent.offset..extent.end());
            }
            extents.push(if is_gone { Extent { address: HOLE, ..extent } } else { extent });
        });
        (extents, gone)
    }

    /// How many bytes extents have in each segment.
    fn valid_bytes(&self, extents: &[Extent]) -> Vec<u32> {
        let payload = self.shape.segment_payload();
        let mut valid = vec![0_u32; self.shared.read().segments.len()];
        for extent in extents.iter().filter(|extent| !extent.is_hole()) {
            let index = usize::try_from(extent.place() / payload).unwrap_or(usize::MAX);
            if let Some(valid) = valid.get_mut(index) {
                *valid = valid.saturating_add(extent.length);
            }
        }
        valid
    }

    /// Makes a tree of extents, and counts their bytes.
    fn build(&self, shared: &mut Shared, extents: &[Extent], valid: &[u32]) {
        let mut tree = FlexTree::new(tree_shape(&self.shape));
        for extent in extents {
            let end = tree.size_bytes();
            // Nothing of a new tree is missing.
            let _ = tree.insert(end, u64::from(extent.length), extent.address);
        }
        shared.tree = tree;
        for (segment, valid) in shared.segments.iter_mut().zip(valid) {
            segment.valid_bytes = *valid;
        }
        shared.valid_bytes = valid.iter().map(|valid| u64::from(*valid)).sum();
    }

    /// Lets the next commit store everything anew (M1, M2).
    fn renew(&self, writer: &mut Writer, header: &Header, slots: Option<Vec<u8>>, newest: u64) {
        let slot_size = u64::from(self.shape.node_size_bytes);
        let in_file = self.files.tree.geometry().size_bytes.div_ceil(slot_size);
        let all = || vec![u8::MAX; usize::try_from(in_file.div_ceil(8)).unwrap_or(0)];
        let first = SLOTS_OFFSET / slot_size;
        writer.slots = Slots::new(first, &slots.unwrap_or_else(all));
        writer.slots.leave_all(first);
        writer.map = Default::default();
        let mut generation = newest.max(header.generation);
        // The header that counts is not the one that is written over.
        if (generation + 1) % 2 == header.generation % 2 {
            generation += 1;
        }
        writer.log = super::commit::Log { generation, ..Default::default() };
        writer.is_mended = true;
    }

    /// M3.
    fn keep_segment(&self, writer: &mut Writer, number: u64, salt: u64) {
        writer.free.remove(&number);
        writer.allocated.remove(&number);
        writer.holes.remove(&number);
        writer.stuck.note(number, salt, ErrorKind::Corrupted);
        writer.kept.insert(number);
    }

    fn visit_stray(
        &self,
        but: &[Range<u64>],
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
        let writer = self.writer.lock();
        let kept = writer.kept.clone();
        let payload = self.shape.segment_payload();
        let mut mapped: Vec<(u64, u64)> = Vec::new();
        let note = |extent: Extent| {
            let at = but.partition_point(|range| range.end <= extent.offset);
            let is_asked_for = but.get(at).is_some_and(|range| range.start < extent.end());
            let is_kept = !extent.is_hole() && kept.contains(&(extent.place() / payload));
            if is_kept && !is_asked_for {
                mapped.push((extent.place(), extent.place() + u64::from(extent.length)));
            }
            true
        };
        self.walk(&writer, 0, note, &mut Err)?;
        drop(writer);
        mapped.sort_unstable();
        let mut refused = 0;
        for number in kept {
            let start = number * payload;
            let first = mapped.partition_point(|(_, end)| *end <= start);
            let of_segment = mapped.get(first..).unwrap_or_default();
            let of_segment = of_segment.iter().take_while(|(at, _)| *at < start + payload);
            let taken: Vec<_> = of_segment.map(|(at, end)| (at - start, end - start)).collect();
            refused += self.visit_stray_in(number, &taken, visit)?;
        }
        Ok(refused)
    }

    /// As `visit_stray`, in one segment of which these parts are pointed at.
    fn visit_stray_in(
        &self,
        number: u64,
        taken: &[(u64, u64)],
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
        let Some(salt) = self.shared.read().salt(number) else { return Ok(0) };
        let size = self.shape.segment_size_bytes;
        if (number + 1) * size > self.files.data.geometry().size_bytes {
            return Ok(0);
        }
        let mut bytes = BufferPool::new(0).get(usize::try_from(size).unwrap_or(0));
        let refused = self.read_segment(number, &mut bytes)?;
        let block_size = self.shape.block_size_bytes as usize;
        let block_payload = usize::try_from(self.shape.block_payload()).unwrap_or(0);
        let first_block = number * self.shape.blocks();
        let mut taken = taken.iter().copied().peekable();
        let (mut piece, mut at) = (Vec::new(), 0_u64);
        for (block, number) in bytes.chunks(block_size).zip(first_block..) {
            let is_sound = block_is_sound(block, salt, number) && !refused.contains(&number);
            for byte in block.get(..block_payload).unwrap_or_default() {
                while taken.next_if(|(_, end)| *end <= at).is_some() {}
                let is_taken = taken.peek().is_some_and(|(start, _)| *start <= at);
                if is_sound && !is_taken {
                    piece.push(*byte);
                } else if !piece.is_empty() {
                    visit(&piece)?;
                    piece.clear();
                }
                at += 1;
            }
        }
        if !piece.is_empty() {
            visit(&piece)?;
        }
        Ok(refused.len() as u64)
    }

    /// Reads a segment, as far as the device gives it: numbers of the blocks that it refuses.
    fn read_segment(&self, number: u64, bytes: &mut IoBuf) -> Result<BTreeSet<u64>> {
        let read = |at, part: &mut [u8]| match self.files.data.read_at(sites::DATA_READ, at, part) {
            Err(error) if error.is_unread() => Ok(Err(error)),
            done => done.map(Ok),
        };
        let mut refused = BTreeSet::new();
        if read(number * self.shape.segment_size_bytes, bytes)?.is_ok() {
            return Ok(refused);
        }
        let size = u64::from(self.shape.block_size_bytes);
        let blocks = bytes.chunks_mut(self.shape.block_size_bytes as usize);
        for (block, number) in blocks.zip(number * self.shape.blocks()..) {
            if let Err(error) = read(number * size, block)? {
                tracing::error!(%error, "passed over, where something may be that is lost");
                refused.insert(number);
            }
        }
        Ok(refused)
    }
}

/// The newest map that the tree file has, besides that of the header.
fn older_map(files: &SpaceFiles, header: &Header) -> Result<Option<Map>> {
    let device = &*files.tree;
    let size = device.geometry().size_bytes;
    let slot = u64::from(header.shape.node_size_bytes);
    let block = u64::from(device.geometry().block_size_bytes);
    let mut found: Option<(u64, Map)> = None;
    let mut start = SLOTS_OFFSET;
    while start < size {
        let length = (size - start).min(STEP);
        let mut bytes = BufferPool::new(0).get(usize::try_from(length).unwrap_or(0));
        device.read_at(sites::OPEN_READ, start, &mut bytes)?;
        let slots = bytes.chunks(usize::try_from(slot).unwrap_or(512));
        for (part, at) in slots.zip((start..).step_by(usize::try_from(slot).unwrap_or(512))) {
            let Some((generation, map_size, checksum)) = Map::peek(part) else { continue };
            let whole = map_size.checked_next_multiple_of(block).unwrap_or(u64::MAX);
            let is_newer = found.as_ref().is_none_or(|(newest, _)| generation > *newest);
            if !is_newer || generation > header.generation || at.saturating_add(whole) > size {
                continue;
            }
            let mut map = BufferPool::new(0).get(usize::try_from(whole).unwrap_or(0));
            device.read_at(sites::OPEN_READ, at, &mut map)?;
            map.truncate(usize::try_from(map_size).unwrap_or(0));
            if let Ok(map) = Map::decode(&map, &header.space_id, generation, checksum, || false) {
                found = Some((generation, map));
            }
        }
        start += length;
    }
    Ok(found.map(|(_, map)| map))
}
