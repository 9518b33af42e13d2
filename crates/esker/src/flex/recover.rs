//! Opening: the newer header, its map, and the records of the log that build on it (FlexSpace §4.2).
//!
//! # Invariants
//! - R1: nothing is written but what makes an empty space, and R4; a second recovery finds the same.
//! - R2: what was found is made durable before anything that it replaced may be overwritten: after a killed
//!   process it may be in the page cache only.
//! - R3: a group that does not count ends the log, unless there is proof that it was durable: a valid group
//!   behind it, or one that builds on a newer header, be it torn if that header's place holds a damaged one. That is damage, and the open
//!   fails.
//! - R4: the headers of groups that do not count are gone, durably, before anything else is written. What follows a crash
//!   is often the same work over again: a later group, torn in its turn, can leave just those blocks at the same place
//!   that make the lost one whole, and that one's data were written over.

use super::cache::Cache;
use super::commit::Log;
use super::filled::Behind;
use super::nodes::stored;
use super::slots::Slots;
use super::state::{OpenSegment, Shared, Unfit};
use super::{Inner, SpaceFiles, SpaceOptions, Writer, sites};
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::backup::{encode_restoring, is_restoring};
use esker_format::flex::header::SLOTS_OFFSET;
use esker_format::flex::{
    Group, HEADER_OFFSETS, HEADER_SIZE, Header, Map, Packed, Record, SegmentState, SpaceShape,
    StoredAt,
};
use esker_index::FlexTree;
use esker_index::flex_tree::{Root, Shape};
use esker_media::{BlockDevice, BufferPool};
use esker_trt::sync::Mutex;
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

const OPERATION: &str = "open space";
/// Idle buffers that are kept, in bytes.
const POOL_BYTES: usize = 4 << 20;
/// Bytes of the log that are looked at with one call.
const LOG_STEP: u64 = 256 << 10;

impl Inner {
    pub(super) fn open(files: SpaceFiles, options: &SpaceOptions) -> Result<Inner> {
        let mut rng = Rng::seeded(options.testing.seed)?;
        let header = if options.format { None } else { find_header(&*files.tree, options)? };
        let header = match header {
            Some(header) => header,
            None if options.create || options.format => make(&files, options, &mut rng)?,
            None => {
                return Err(Error::invalid(OPERATION, "there is no FlexSpace here")
                    .device(files.tree.name()));
            }
        };
        let map = read_map(&files, &header)?;
        if map.segments.len() as u64 > segments_in(&files, &header) {
            return Err(Error::corrupted(OPERATION, "the data file is shorter than its map")
                .device(files.data.name()));
        }
        let inner = Inner::of(files, options, (&header, map), rng)?;
        inner.replay(&header)?;
        Ok(inner)
    }

    /// The space of a header and its map, without what the log says.
    pub(super) fn of(
        files: SpaceFiles,
        options: &SpaceOptions,
        (header, map): (&Header, Map),
        rng: Rng,
    ) -> Result<Inner> {
        // R2: only then may the other header, and what only that one needs, be written over.
        files.tree.flush(sites::RECOVER_FLUSH)?;
        files.log.flush(sites::RECOVER_FLUSH)?;
        let shape = header.shape;
        let block = files.tree.geometry().block_size_bytes;
        if !shape.node_size_bytes.is_multiple_of(block)
            || !shape.log_block_size_bytes.is_multiple_of(files.log.geometry().block_size_bytes)
            || !shape.block_size_bytes.is_multiple_of(files.data.geometry().block_size_bytes)
        {
            let words = "the space was made for devices with smaller blocks";
            return Err(Error::new(ErrorKind::Unsupported, OPERATION).context(words));
        }
        let in_file = segments_in(&files, header);
        let mut segments = map.segments;
        segments.resize(
            segments.len().max(usize::try_from(in_file).unwrap_or(0)),
            SegmentState::default(),
        );
        let valid_bytes = segments.iter().map(|segment| u64::from(segment.valid_bytes)).sum();
        let slot_size = u64::from(shape.node_size_bytes);
        let slots = Slots::new(SLOTS_OFFSET / slot_size, &map.slots);
        let pool = BufferPool::new(POOL_BYTES);
        let segment_size = usize::try_from(shape.segment_size_bytes).unwrap_or(0);
        let open = OpenSegment {
            number: None,
            salt: 0,
            buffer: Arc::new(pool.get_zeroed(segment_size)),
            position: 0,
            written_blocks: 0,
        };
        let tree = tree_of(header);
        let shared =
            Shared { tree, segments, open, filled: Vec::new(), valid_bytes, dying: Vec::new() };
        let writer = Writer {
            held: false,
            loose: false,
            is_mended: false,
            keeps_leaves: false,
            data_size_bytes_max: options.data_size_bytes_max,
            log: Log { generation: header.generation, ..Log::default() },
            records: Packed::default(),
            data_dirty: false,
            free: BTreeSet::new(),
            allocated: BTreeSet::new(),
            holes: BTreeSet::new(),
            slots,
            nodes_backed: false,
            map: (header.map, header.map_size_bytes.div_ceil(slot_size)),
            rng,
            round: None,
            moved_bytes: 0,
            stuck: Default::default(),
            kept: BTreeSet::new(),
        };
        let cache_size = options.cache_size_bytes;
        Ok(Inner {
            cache: Cache::new(cache_size, u64::from(shape.block_size_bytes)),
            files,
            id: header.space_id,
            shape,
            options: options.clone(),
            shared: RwLock::new(shared),
            writer: Mutex::new(writer),
            failed: parking_lot::Mutex::new(None),
            pool,
            before_commit: OnceLock::new(),
            room: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            expected: OnceLock::new(),
            behind: Behind::new(options.testing.filled_max),
            has_no_holes: AtomicBool::new(false),
            lost_nodes: parking_lot::Mutex::default(),
        })
    }

    /// Does all records of the log that count, and finds out what is free.
    fn replay(&self, header: &Header) -> Result<()> {
        let mut writer = self.writer.lock();
        while let Some((group, checksum, records)) = self.next_group(&writer.log)? {
            for record in records {
                self.redo(record)?;
            }
            let log = &mut writer.log;
            log.position += u64::from(group.total_bytes);
            log.sequence = group.sequence + 1;
            log.previous_checksum = checksum;
        }
        let lost = self.lost_groups(header, &writer.log)?;
        self.erase(&lost)?;
        self.find_free(&mut writer);
        Ok(())
    }

    /// Notes which segments are free.
    pub(super) fn find_free(&self, writer: &mut Writer) {
        let mut shared = self.shared.write();
        shared.dying.clear();
        writer.free = (0..)
            .zip(&shared.segments)
            .filter(|(_, segment)| segment.valid_bytes == 0)
            .map(|(number, _)| number)
            .collect();
        drop(shared);
        self.note_room(writer);
    }

    pub(super) fn redo(&self, record: Record) -> Result<()> {
        loop {
            let done = self.shared.write().apply(&self.shape, record);
            match done {
                Ok(()) => return Ok(()),
                Err(Unfit::Missing(missing)) => self.load(&missing)?,
                Err(Unfit::Wrong(words)) => {
                    return Err(Error::corrupted(OPERATION, words).device(self.files.log.name()));
                }
            }
        }
    }

    /// The group that follows, if it counts.
    #[allow(clippy::type_complexity, reason = "a group and what is in it")]
    pub(super) fn next_group(&self, log: &Log) -> Result<Option<(Group, u32, Vec<Record>)>> {
        let Some(found) = self.group_at(log.position)? else { return Ok(None) };
        let group = &found.0;
        if group.generation != log.generation && !sites::LOG_GENERATION.disabled() {
            return Ok(None);
        }
        let follows =
            group.sequence == log.sequence && group.previous_checksum == log.previous_checksum;
        if !follows {
            return Ok(None);
        }
        Ok(Some(found))
    }

    /// The group at `position`, if there is a sound one.
    #[allow(clippy::type_complexity, reason = "a group and what is in it")]
    pub(super) fn group_at(&self, position: u64) -> Result<Option<(Group, u32, Vec<Record>)>> {
        let device = &*self.files.log;
        let size = device.geometry().size_bytes;
        let block = u64::from(self.shape.log_block_size_bytes);
        if position.saturating_add(block) > size {
            return Ok(None);
        }
        let mut head = self.pool.get(self.shape.log_block_size_bytes as usize);
        device.read_at(sites::LOG_READ, position, &mut head)?;
        let Ok(group) = Group::peek(&head, position) else { return Ok(None) };
        let total = u64::from(group.total_bytes);
        if position.saturating_add(total) > size || !total.is_multiple_of(block) {
            return Ok(None);
        }
        let mut bytes = self.pool.get(group.total_bytes as usize);
        device.read_at(sites::LOG_READ, position, &mut bytes)?;
        let sound = || sites::LOG_CHECKSUM.disabled();
        Ok(Group::decode(&bytes, &self.id, position, sound).ok())
    }

    /// Where groups begin that do not count although nothing newer stands there.
    ///
    /// R3: fails if one of them would not be there if the log ended where it seems to.
    pub(super) fn lost_groups(&self, header: &Header, log: &Log) -> Result<Vec<u64>> {
        let device = &*self.files.log;
        let block = u64::from(self.shape.log_block_size_bytes);
        let size = device.geometry().size_bytes / block * block;
        let mut lost = Vec::new();
        let mut start = 0;
        while start < size {
            let length = (size - start).min(LOG_STEP);
            let mut bytes = self.pool.get(usize::try_from(length).unwrap_or(0));
            device.read_at(sites::LOG_READ, start, &mut bytes)?;
            let blocks = bytes.chunks(usize::try_from(block).unwrap_or(512));
            for (part, at) in blocks.zip((start..).step_by(usize::try_from(block).unwrap_or(512))) {
                let Ok(group) = Group::peek(part, at) else { continue };
                let newer = group.generation > header.generation;
                let behind = group.generation == header.generation && at >= log.position;
                if !newer && !behind {
                    continue;
                }
                lost.push(at);
                // Data of other groups never looks like this, but ask for the checksum all the same: what another space left may, too.
                let proof = newer || group.sequence > log.sequence;
                // The first group of a log may be torn, and what it took the place of is gone.
                let is_whole = || self.group_at(at).map(|group| group.is_some());
                let follows = at == 0 && group.generation == header.generation + 1;
                if proof
                    && !sites::LOG_DAMAGE.disabled()
                    && (is_whole()? || (follows && self.is_next_damaged(header)?))
                {
                    let words = if newer {
                        "the log builds on a header that is damaged"
                    } else {
                        "a group of the log is damaged, and a later one is not"
                    };
                    return Err(Error::corrupted(OPERATION, words)
                        .device(device.name())
                        .at(log.position, at - log.position.min(at)));
                }
            }
            start += length;
        }
        Ok(lost)
    }

    /// Whether the place of the header behind this one holds a damaged one.
    fn is_next_damaged(&self, header: &Header) -> Result<bool> {
        let device = &*self.files.tree;
        let block = device.geometry().block_size_bytes as usize;
        let mut bytes = BufferPool::new(0).get(HEADER_SIZE.next_multiple_of(block));
        let offset = next_header_at(header.generation);
        if offset + bytes.len() as u64 > device.geometry().size_bytes {
            // Each space has both places: the file was cut.
            return Ok(true);
        }
        device.read_at(sites::OPEN_READ, offset, &mut bytes)?;
        let found = Header::decode(&bytes, || false);
        Ok(found.is_err_and(|flaw| !matches!(flaw, Flaw::Magic | Flaw::TooShort)))
    }

    /// R4: nothing can make these groups whole any more.
    pub(super) fn erase(&self, groups: &[u64]) -> Result<()> {
        let device = &*self.files.log;
        let zeros = self.pool.get_zeroed(self.shape.log_block_size_bytes as usize);
        for at in groups {
            device.write_at(sites::LOG_ERASE, *at, &[IoSlice::new(&zeros)])?;
        }
        if !groups.is_empty() {
            // PERSIST: before data are written over that these groups name.
            device.flush(sites::LOG_ERASE_FLUSH)?;
        }
        Ok(())
    }
}

pub(super) fn tree_shape(shape: &SpaceShape) -> Shape {
    Shape {
        leaf_capacity: shape.leaf_capacity as usize,
        children_max: shape.children_max as usize,
        extent_size_bytes_max: shape.extent_size_bytes_max,
        boundary: shape.segment_payload(),
        ..Shape::default()
    }
}

fn tree_of(header: &Header) -> FlexTree {
    let root = Root {
        stored: stored(header.root),
        shift: header.root_shift,
        height: u8::try_from(header.root_height).unwrap_or(0),
        size_bytes: header.size_bytes,
        extent_count: header.extent_count,
    };
    FlexTree::stored(tree_shape(&header.shape), root)
}

/// Where the header of the next generation goes.
fn next_header_at(generation: u64) -> u64 {
    let [even, odd] = HEADER_OFFSETS;
    if generation.is_multiple_of(2) { odd } else { even }
}

/// Segments that the data file has room for.
pub(super) fn segments_in(files: &SpaceFiles, header: &Header) -> u64 {
    files.data.geometry().size_bytes / header.shape.segment_size_bytes
}

/// Whether a header's place says that a restore did not end. The other one may have a header: of what is being restored, or of what was there.
pub(super) fn is_being_restored(device: &dyn BlockDevice) -> Result<bool> {
    let geometry = device.geometry();
    for offset in HEADER_OFFSETS {
        let mut bytes = BufferPool::new(0).get(geometry.block_size_bytes as usize);
        if offset + bytes.len() as u64 > geometry.size_bytes {
            continue;
        }
        device.read_at(sites::OPEN_READ, offset, &mut bytes)?;
        if is_restoring(&bytes) && !sites::RESTORE_MARK.disabled() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The header that counts. `None` if there is none, and nothing that says there was one.
pub(super) fn find_header(
    device: &dyn BlockDevice,
    options: &SpaceOptions,
) -> Result<Option<Header>> {
    if is_being_restored(device)? {
        if options.restoring {
            return Ok(None);
        }
        let words = "a restore of this store did not end: restore again";
        return Err(Error::invalid(OPERATION, words).device(device.name()));
    }
    let size = device.geometry().size_bytes;
    let mut found: Option<Header> = None;
    let (mut damaged, mut unknown) = (None, None);
    for offset in HEADER_OFFSETS {
        let block = device.geometry().block_size_bytes as usize;
        let mut bytes = BufferPool::new(0).get(HEADER_SIZE.next_multiple_of(block));
        if offset + bytes.len() as u64 > size {
            continue;
        }
        device.read_at(sites::OPEN_READ, offset, &mut bytes)?;
        match Header::decode(&bytes, || sites::HEADER_CHECKSUM.disabled()) {
            Ok(header) => {
                let newer = found.as_ref().is_none_or(|found| header.generation > found.generation);
                if newer != (sites::HEADER_NEWEST.disabled() && found.is_some()) {
                    found = Some(header);
                }
            }
            Err(Flaw::Version(version)) => {
                unknown.get_or_insert((version, Header::is_sealed(&bytes)));
            }
            Err(Flaw::Magic | Flaw::TooShort) => {}
            Err(flaw) => damaged = Some((offset, flaw)),
        }
    }
    // A version that is not sealed is damage, if the other header can be read.
    if let Some((version, is_sealed)) = unknown
        && (is_sealed || found.is_none())
    {
        return Err(Error::new(ErrorKind::UnsupportedFormat, OPERATION)
            .device(device.name())
            .context(format!("format version {version}")));
    }
    match (found, damaged) {
        (None, Some((offset, flaw))) => Err(Error::corrupted(OPERATION, flaw.to_string())
            .device(device.name())
            .at(offset, HEADER_SIZE as u64)),
        (found, _) => Ok(found),
    }
}

pub(super) fn read_map(files: &SpaceFiles, header: &Header) -> Result<Map> {
    if header.map.slot == 0 {
        return Ok(Map::default());
    }
    let device = &*files.tree;
    let offset = header.map.slot.saturating_mul(u64::from(header.shape.node_size_bytes));
    let damaged = |words: String| {
        Error::corrupted(OPERATION, words).device(device.name()).at(offset, header.map_size_bytes)
    };
    let block = u64::from(device.geometry().block_size_bytes);
    let whole = header.map_size_bytes.checked_next_multiple_of(block).unwrap_or(u64::MAX);
    if offset.saturating_add(whole) > device.geometry().size_bytes {
        return Err(damaged("the map is behind the end of the file".to_owned()));
    }
    let mut bytes = BufferPool::new(0).get(usize::try_from(whole).unwrap_or(0));
    device.read_at(sites::OPEN_READ, offset, &mut bytes)?;
    bytes.truncate(usize::try_from(header.map_size_bytes).unwrap_or(0));
    let sound = || sites::MAP_CHECKSUM.disabled();
    Map::decode(&bytes, &header.space_id, header.generation, header.map.checksum, sound)
        .map_err(|flaw| damaged(flaw.to_string()))
}

/// An empty space. A crash in between leaves none, or an empty one; of one that is restored, what says so.
fn make(files: &SpaceFiles, options: &SpaceOptions, rng: &mut Rng) -> Result<Header> {
    let device = &*files.tree;
    let block = device.geometry().block_size_bytes;
    let testing = &options.testing;
    let mut shape: SpaceShape = testing.shape;
    shape.node_size_bytes = shape.node_size_bytes.max(block);
    shape.log_block_size_bytes =
        shape.log_block_size_bytes.max(files.log.geometry().block_size_bytes);
    shape.block_size_bytes = shape.block_size_bytes.max(files.data.geometry().block_size_bytes);
    shape.check().map_err(|flaw| Error::invalid(OPERATION, flaw.to_string()))?;
    let mut space_id = [0; 16];
    rng.fill(&mut space_id);
    let header = Header {
        space_id,
        generation: 1,
        shape,
        root: StoredAt::default(),
        root_shift: 0,
        root_height: 0,
        size_bytes: 0,
        extent_count: 0,
        map: StoredAt::default(),
        map_size_bytes: 0,
    };
    let size = device.geometry().size_bytes;
    if size < SLOTS_OFFSET {
        device.reserve(sites::RESERVE, size, SLOTS_OFFSET - size)?;
    }
    // PERSIST: the flush of an open makes both durable. A crash before may leave what was there.
    let [even, odd] = HEADER_OFFSETS;
    let mut bytes = vec![0; HEADER_SIZE.next_multiple_of(block as usize)];
    if options.restoring {
        // The checkpoint with what says that it is unfinished writes the first header. An empty space would pass for a store that is only
        // being made.
        bytes.splice(..HEADER_SIZE, encode_restoring());
        device.write_at(sites::FORMAT_WRITE, even, &[IoSlice::new(&bytes)])?;
        device.write_at(sites::FORMAT_WRITE, odd, &[IoSlice::new(&bytes)])?;
        return Ok(header);
    }
    device.write_at(sites::FORMAT_WRITE, even, &[IoSlice::new(&bytes)])?;
    bytes.splice(..HEADER_SIZE, header.encode());
    device.write_at(sites::FORMAT_WRITE, odd, &[IoSlice::new(&bytes)])?;
    Ok(header)
}
