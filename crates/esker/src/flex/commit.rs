//! The order of writes (FlexSpace §4.2), in one place.
//!
//! ```text
//! 1. data of full and open segments    ─ flush data
//! 2. a group of records                ─ flush log      the operations are durable
//!    -- a checkpoint goes on --
//! 3. changed nodes, and the map        ─ flush tree
//! 4. the header, in the older slot     ─ flush tree
//! 5. only now: segments without valid bytes are free, slots that left are free, the log begins anew
//! ```
//!
//! A checkpoint has its group, too, although the header says the same: who finds that header damaged, or never written, takes the
//! older one and its log, and these have to say it as well. Where the log finds no room for the group, the checkpoint ends with an
//! empty group of the new generation in place of the old log: then the older header is proof of damage.
//!
//! Each step needs the one before: records point at data, the header at nodes, and what step 5 lets others
//! overwrite is needed until step 2 or 4 is durable. A crash between two steps leaves the space as the last
//! durable group or header says; what the later steps had written is not looked at, or is written again.

use super::nodes::{node_of, stored, stored_at};
use super::{Inner, Writer, sites};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex::header::SLOTS_OFFSET;
use esker_format::flex::map::size_of_map;
use esker_format::flex::{Group, HEADER_OFFSETS, Header, Map, StoredAt};
use esker_index::flex_tree::{Root, Walk};
use parking_lot::RwLockWriteGuard;
use std::io::IoSlice;
use std::sync::atomic::Ordering;

/// The log grows in steps of so many bytes, or an eighth.
const LOG_STEP: u64 = 256 << 10;
/// The tree file, too.
const TREE_STEP: u64 = 64 << 10;
/// Most nodes that are encoded while readers wait.
const NODES_AT_ONCE: usize = 64;
/// Most nodes of one write.
const NODES_OF_A_WRITE: usize = 512;

/// Where the log goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Log {
    /// Of the tree that the records build on.
    pub(super) generation: u64,
    /// Where the next group goes, in bytes.
    pub(super) position: u64,
    pub(super) sequence: u64,
    pub(super) previous_checksum: u32,
}

/// A node on its way to the tree file.
type Outgoing = (u64, Vec<u8>);

/// Of what was written where there was room: a part of it may have happened, and what it leaves is not what was there before. So
/// a lack of room, which file systems that copy on write may have even there, is a failure like others; and so is whatever a device
/// says of an argument (`EINVAL`), which came from nobody who could choose another one.
pub(super) fn no_lack(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoSpace | ErrorKind::InvalidArgument => error.with_kind(ErrorKind::Io),
        _ => error,
    }
}

impl Inner {
    pub(super) fn sync(&self) -> Result<()> {
        let mut writer = self.begin("sync space")?;
        let done = self.commit(&mut writer, false);
        self.fail_on(done)
    }

    pub(super) fn checkpoint(&self) -> Result<()> {
        let mut writer = self.begin("store tree")?;
        if writer.records.is_empty() && writer.log.position == 0 && !writer.is_mended {
            return Ok(());
        }
        let done = self.commit(&mut writer, true);
        self.fail_on(done)
    }

    /// Commits if many records wait.
    pub(super) fn commit_if_due(&self, writer: &mut Writer) -> Result<()> {
        if self.is_commit_due(writer) { self.commit(writer, false) } else { Ok(()) }
    }

    /// Whether there are as many records as one group may have.
    pub(super) fn is_commit_due(&self, writer: &Writer) -> bool {
        let testing = &self.options.testing;
        let most = if writer.held { testing.records_held_max } else { testing.records_max };
        writer.records.len() >= most
    }

    /// Makes all operations durable that are done, by a group of the log, or by a checkpoint if the log is
    /// full or `checkpoint` says so. The steps and their order: see the module's text.
    pub(super) fn commit(&self, writer: &mut Writer, checkpoint: bool) -> Result<()> {
        let checkpoint = checkpoint || writer.is_mended;
        if writer.records.is_empty() && !checkpoint {
            return Ok(());
        }
        if writer.held {
            if let Some(before) = self.before_commit.get() {
                before()?;
            }
            writer.held = false;
        }
        let group_size = writer.records.group_size(self.shape.log_block_size_bytes) as u64;
        let log_end = writer.log.position + group_size;
        // Room first: without, nothing happened. A log that finds none begins anew; one that is full does not grow for its last group.
        let log = &*self.files.log;
        let is_full = log_end > self.options.log_size_bytes_max;
        // What was mended is in no log, and the old one is needed until there is a header that says it (M1).
        let fits = !writer.is_mended
            && (writer.records.is_empty()
                || log_end <= log.geometry().size_bytes
                || (!is_full && self.has_room_in(log, log_end, LOG_STEP)?));
        let checkpoint = checkpoint || is_full || !fits;
        if checkpoint {
            self.reserve_nodes(writer)?;
        }

        self.persist(writer, fits.then_some(group_size), checkpoint).map_err(no_lack)?;
        writer.records.clear();
        // PERSIST 5: nothing durable needs these any more.
        let dying = std::mem::take(&mut self.shared.write().dying);
        self.release(writer, dying);
        if checkpoint {
            self.trim_surplus(writer);
        }
        self.back_own(writer)
    }

    /// Steps 1 to 4: by a group of so many bytes, unless the log has no room for it, and by a checkpoint.
    fn persist(
        &self,
        writer: &mut Writer,
        group_size: Option<u64>,
        checkpoint: bool,
    ) -> Result<()> {
        // PERSIST 1: what records point at.
        self.shared.write().open.end_block(&self.shape);
        if !sites::FILLED_WAIT.disabled() {
            self.write_filled()?;
        }
        self.write_blocks(writer)?;
        if writer.data_dirty {
            self.files.data.flush(sites::DATA_FLUSH)?;
            writer.data_dirty = false;
        }
        // PERSIST 2: the records. A crash before leaves a torn group, which ends the log.
        match group_size {
            Some(_) if writer.records.is_empty() => {}
            Some(size) => {
                self.write_group(writer, size)?;
                self.files.log.flush(sites::LOG_FLUSH)?;
            }
            None => {}
        }
        if !checkpoint {
            return Ok(());
        }
        self.store_tree(writer)?;
        if group_size.is_none() {
            // PERSIST: that there was this header, before anybody hears of what only it says.
            writer.records.clear();
            let size = writer.records.group_size(self.shape.log_block_size_bytes) as u64;
            self.write_group(writer, size)?;
            self.files.log.flush(sites::LOG_FLUSH)?;
        }
        Ok(())
    }

    /// Lets the segments among these be taken that have no valid bytes.
    pub(super) fn release(&self, writer: &mut Writer, dying: Vec<u64>) {
        let shared = self.shared.read();
        for number in dying {
            // M3: what a repair keeps is free once the space is opened again.
            let is_kept = writer.kept.contains(&number);
            if shared.is_empty(number)
                && !is_kept
                && shared.buffer_of(number).is_none()
                && writer.free.insert(number)
            {
                writer.allocated.insert(number);
            }
        }
    }

    fn write_group(&self, writer: &mut Writer, size: u64) -> Result<()> {
        let log = &mut writer.log;
        let group = Group {
            generation: log.generation,
            sequence: log.sequence,
            position: log.position,
            total_bytes: 0,
            record_count: 0,
            previous_checksum: log.previous_checksum,
        };
        let mut bytes = self.pool.get(usize::try_from(size).unwrap_or(0));
        let checksum = group.encode(&mut bytes, &self.id, &writer.records);
        self.files.log.write_at(sites::LOG_WRITE, log.position, &[IoSlice::new(&bytes)])?;
        log.position += size;
        log.sequence += 1;
        log.previous_checksum = checksum;
        Ok(())
    }

    /// Steps 3 and 4, and what of step 5 concerns the tree file.
    fn store_tree(&self, writer: &mut Writer) -> Result<()> {
        let generation = writer.log.generation + 1;
        let size = self.shape.node_size_bytes as usize;
        // PERSIST 3: nodes and map, in slots that the header on media does not need.
        writer.keeps_leaves = true;
        let root = self.write_tree(writer, generation)?;
        let map_slots = self.map_slots(writer, 0);
        let map_slot = writer.slots.take_run(map_slots);
        let segments = self.shared.read().segments.clone();
        let map = Map { segments, slots: writer.slots.bits() };
        let (mut bytes, checksum) = map.encode(&self.id, generation);
        let map_bytes = bytes.len() as u64;
        bytes.resize(map_slots * size, 0);
        let map = bytes.chunks(size).zip(map_slot..).map(|(part, slot)| (slot, part.to_vec()));
        self.write_nodes(map.collect())?;
        self.files.tree.flush(sites::NODE_FLUSH)?;
        let map_at = StoredAt { slot: map_slot, checksum };
        // PERSIST 4: the header. A crash before leaves the older one, and the log that builds on it.
        self.write_header(&Header {
            space_id: self.id,
            generation,
            shape: self.shape,
            root: stored_at(root.stored),
            root_shift: root.shift,
            root_height: u32::from(root.height),
            size_bytes: root.size_bytes,
            extent_count: root.extent_count,
            map: map_at,
            map_size_bytes: map_bytes,
        })?;
        self.files.tree.flush(sites::HEADER_FLUSH)?;

        writer.keeps_leaves = false;
        writer.slots.release();
        writer.map = (map_at, map_slots as u64);
        writer.log = Log { generation, ..Log::default() };
        writer.is_mended = false;
        self.forget_idle(writer, usize::MAX);
        Ok(())
    }

    /// B2: allocates what the collector has for itself, and then what a checkpoint of all nodes takes, and some more, or notes that the file
    /// system has no room for that.
    pub(super) fn back_own(&self, writer: &mut Writer) -> Result<()> {
        self.back(writer, self.reserve())?;
        self.back_nodes(writer)
    }

    /// Makes the tree file long enough for a checkpoint of all nodes, or notes that it is not.
    fn back_nodes(&self, writer: &mut Writer) -> Result<()> {
        let (dirty, released) = {
            let tree = &self.shared.read().tree;
            (tree.dirty_count() as u64, tree.released_count() as u64)
        };
        let size = u64::from(self.shape.node_size_bytes);
        let used = writer.slots.count() - writer.slots.free_count();
        let nodes = (used + dirty).saturating_sub(released);
        let more = nodes / 8;
        let end = used + nodes + more + self.map_slots(writer, nodes + more) as u64;
        // What the collector has for itself, and what is open next, stays.
        let keep = self.reserve() + 1;
        writer.nodes_backed = self.grow_tree(writer, end * size, keep)?;
        if !writer.nodes_backed {
            self.is_full.store(true, Ordering::Relaxed);
        }
        self.note_room(writer);
        Ok(())
    }

    /// Makes the tree file long enough for whatever the next checkpoint writes. Without a tree that is stored no segment is ever free
    /// again.
    fn reserve_nodes(&self, writer: &mut Writer) -> Result<()> {
        let dirty = self.shared.read().tree.dirty_count() as u64;
        let more = dirty.saturating_sub(writer.slots.free_count());
        let end = writer.slots.count() + more + self.map_slots(writer, more) as u64;
        let size = u64::from(self.shape.node_size_bytes);
        if self.grow_tree(writer, end * size, 1)? {
            return Ok(());
        }
        Err(self.no_space("the file system is full"))
    }

    /// Makes the tree file so long. On a file system that is full free segments make way, all but `keep`. Whether it is.
    fn grow_tree(&self, writer: &mut Writer, end: u64, keep: u64) -> Result<bool> {
        while !self.has_room_in(&*self.files.tree, end, TREE_STEP)? {
            let number = writer.allocated.last().copied();
            let Some(number) = number.filter(|_| writer.allocated.len() as u64 > keep) else {
                return Ok(false);
            };
            if let Err(error) = self.discard(number) {
                tracing::warn!(%error, "a free segment does not make way for nodes");
                return Ok(false);
            }
            self.note_hole(writer, number);
            self.note_room(writer);
        }
        Ok(true)
    }

    /// Slots that the map takes if so many more are in use: it has a bit for its own, too.
    fn map_slots(&self, writer: &Writer, more: u64) -> usize {
        let segments = self.shared.read().segments.len() as u64;
        let size = self.shape.node_size_bytes as usize;
        let mut slots = 1;
        loop {
            let count = writer.slots.count() + more + slots as u64;
            let bytes = size_of_map(segments, count.next_multiple_of(8)).unwrap_or(u64::MAX);
            let needed = usize::try_from(bytes).unwrap_or(usize::MAX).div_ceil(size);
            if needed <= slots {
                return slots;
            }
            slots = needed;
        }
    }

    /// Encodes all changed nodes, each for a slot of its own, and writes them, many at a time; readers get between some of
    /// them and the next ones.
    fn write_tree(&self, writer: &mut Writer, generation: u64) -> Result<Root> {
        let size = self.shape.node_size_bytes as usize;
        for stored in self.shared.write().tree.take_released() {
            writer.slots.leave(stored.slot, 1, sites::SLOT_WAIT);
        }
        let (map, map_slots) = writer.map;
        writer.slots.leave(map.slot, map_slots, sites::SLOT_WAIT);
        let (mut outgoing, mut walk) = (Vec::new(), Walk::default());
        let nodes_max = self.options.testing.nodes_max;
        let at_once = nodes_max.min(NODES_AT_ONCE);
        loop {
            let mut shared = self.shared.write();
            let root = shared.tree.store(&mut walk, at_once, |content, level| {
                let slot = writer.slots.take();
                let mut bytes = vec![0; size];
                let node = node_of(content, u16::from(level));
                let checksum = node.encode(&mut bytes, &self.id, slot, generation);
                outgoing.push((slot, bytes));
                stored(StoredAt { slot, checksum })
            });
            RwLockWriteGuard::unlock_fair(shared);
            if root.is_some() || outgoing.len() >= nodes_max {
                self.write_nodes(std::mem::take(&mut outgoing))?;
            }
            if let Some(root) = root {
                return Ok(root);
            }
        }
    }

    /// Writes nodes, neighbours with one call.
    fn write_nodes(&self, mut outgoing: Vec<Outgoing>) -> Result<()> {
        outgoing.sort_unstable_by_key(|(slot, _)| *slot);
        let size = u64::from(self.shape.node_size_bytes);
        for run in outgoing.chunk_by(|a, b| a.0 + 1 == b.0) {
            for part in run.chunks(NODES_OF_A_WRITE) {
                let Some((first, _)) = part.first() else { continue };
                let slices: Vec<_> = part.iter().map(|(_, bytes)| IoSlice::new(bytes)).collect();
                self.files.tree.write_at(sites::NODE_WRITE, first * size, &slices)?;
            }
        }
        Ok(())
    }

    fn write_header(&self, header: &Header) -> Result<()> {
        let [even, odd] = HEADER_OFFSETS;
        let offset = if header.generation.is_multiple_of(2) { even } else { odd };
        let block = self.files.tree.geometry().block_size_bytes as usize;
        if block as u64 > SLOTS_OFFSET / 2 {
            return Err(Error::invalid("store tree", "blocks of the device are too large"));
        }
        let mut bytes = header.encode().to_vec();
        bytes.resize(bytes.len().next_multiple_of(block), 0);
        self.files.tree.write_at(sites::HEADER_WRITE, offset, &[IoSlice::new(&bytes)])
    }

    /// Gives free segments back to the file system if they are many: a 32nd of all. Half as many stay for what comes next. Where that
    /// fails nothing is amiss but room.
    pub(super) fn trim_surplus(&self, writer: &mut Writer) {
        let total = self.shared.read().segments.len();
        let reserve = usize::try_from(self.reserve()).unwrap_or(0);
        if writer.allocated.len() > reserve + total / 32
            && let Err(error) = self.trim(writer, total / 64)
        {
            tracing::warn!(%error, "free segments are not given back");
        }
    }

    /// Gives free segments back to the file system, of those that are allocated all but the first `keep`, as many as the collector needs (B1),
    /// and those without which what is there and what is expected would leave it no victim (G1); their bytes. An error is no failure of
    /// the space: what is in a free segment does not matter, and it is allocated again before it is taken.
    pub(super) fn trim(&self, writer: &mut Writer, keep: usize) -> Result<u64> {
        let valid = self.shared.read().valid_bytes;
        let reserve = usize::try_from(self.reserve()).unwrap_or(0);
        let surplus = writer.allocated.iter().skip(keep.saturating_add(reserve));
        let surplus: Vec<u64> = surplus.copied().collect();
        let mut given_back = 0;
        for number in surplus.into_iter().rev() {
            // Told before it is asked what is expected, so that hardly anybody counts on what goes.
            writer.allocated.remove(&number);
            self.note_room(writer);
            let expected = self.expected.get().map_or(0, |expected| expected());
            if valid + expected > self.room.load(Ordering::Relaxed) {
                writer.allocated.insert(number);
                self.note_room(writer);
                break;
            }
            self.discard(number)?;
            given_back += self.shape.segment_size_bytes;
        }
        Ok(given_back)
    }

    /// Gives a free segment back to the file system.
    fn discard(&self, number: u64) -> Result<()> {
        let size = self.shape.segment_size_bytes;
        self.files.data.discard(sites::TRIM, number * size, size)
    }
}
