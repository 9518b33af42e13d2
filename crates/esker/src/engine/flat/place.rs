//! The lazy-persist allocator: blocks for records that do not stand in the log (FlatStore §3.2).
//!
//! A chunk is cut into blocks of one size, which its header says. Which blocks are in use is known in DRAM only:
//! the entries of the log that count point at them, and recovery marks those. So an allocation persists
//! nothing, and a crash leaks nothing. What is larger than half a chunk has chunks of its own, in a row.
//!
//! # Invariants
//! - A1: a block's chunk says its size durably before anything points at a block of it.
//! - A2: a block is free once nothing that counts points at it, nor an entry that recovery may take for one that does (C4 of
//!   [`clean`](super::clean)), and not before.
//!
//! # Concurrency
//! Blocks are allocated from the chunks of a core, under its lock, by others only when chunks are scarce; anybody frees, without
//! a lock but where a full chunk gets room or a chunk becomes empty. The one that a core takes blocks from stays with it when it is
//! empty, until somebody finds no room.

use super::chunks::{Chunk, For, Use};
use super::{Flat, sites};
use esker_base::{ErrorKind, Result};
use esker_format::flat::record::record_size;
use esker_format::flat::{
    CHUNK_START, ChunkHeader, ChunkKind, INLINE_KEY_MAX, LINE, RECORD_HEADER_SIZE, Record,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Chunks are scarce when fewer are free beyond the reserve than one of so many.
const SCARCE_SHARE: u32 = 16;

/// The chunks of a core with room, by size class.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CoreBlocks(Mutex<Classes>);

/// The size classes that a core had a chunk of.
#[derive(Debug, Default)]
struct Classes(Vec<Class>);

impl Classes {
    fn of(&mut self, class: usize) -> Option<&mut Class> {
        if self.0.len() <= class {
            self.0.resize_with(class + 1, Class::default);
        }
        self.0.get_mut(class)
    }
}

#[derive(Debug, Default)]
struct Class {
    /// The chunk that blocks are taken from.
    current: Option<u32>,
    /// Others with free blocks.
    more: Vec<u32>,
}

/// Marks a free block of a chunk as in use.
fn take_bit(bits: &[AtomicU64], count: u64) -> Option<u64> {
    for (word, first) in bits.iter().zip((0..count).step_by(64)) {
        let mut seen = word.load(Ordering::Relaxed);
        while seen != u64::MAX {
            let bit = seen.trailing_ones();
            if first + u64::from(bit) >= count {
                break;
            }
            match word.compare_exchange_weak(
                seen,
                seen | 1 << bit,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(first + u64::from(bit)),
                Err(now) => seen = now,
            }
        }
    }
    None
}

/// The word of a block's bit, and the bit.
fn bit_of(chunk: &Chunk, block: u64) -> Option<(&AtomicU64, u64)> {
    let word = chunk.bits.get()?.get(usize::try_from(block / 64).ok()?)?;
    Some((word, 1 << (block % 64)))
}

impl Flat {
    pub(super) fn blocks_of(&self, lines: u64) -> u64 {
        self.layout.room() / (lines.max(1) * LINE as u64)
    }

    pub(super) fn bits(&self, chunk: &Chunk) {
        let words = self.blocks_of(1).div_ceil(64);
        chunk.bits.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
    }

    /// Allocates a place for a record, writes it there and makes it durable; returns its line. It has the key if that
    /// is too long for an entry.
    pub(super) fn place_record(
        &self,
        core: usize,
        whom: For,
        key: &[u8],
        value: &[u8],
    ) -> Result<u64> {
        let key_here = key.len() > INLINE_KEY_MAX;
        let stored = if key_here { key.len() } else { 0 };
        let offset = self.allocate(core, whom, record_size(stored, value.len() as u64))?;
        self.write_record(offset, key, key_here, value)?;
        Ok(offset / LINE as u64)
    }

    /// Writes a record to its place and makes it durable.
    pub(super) fn write_record(
        &self,
        offset: u64,
        key: &[u8],
        key_here: bool,
        value: &[u8],
    ) -> Result<()> {
        let stored = if key_here { key } else { &[] };
        let size = record_size(stored.len(), value.len() as u64);
        let header = Record::encode(key, key_here, value, &self.layout.store_id, offset);
        let memory = &*self.memory;
        let written = || {
            // PERSIST: durable before an entry points at it (l-persist). Until then nobody knows of it.
            memory.store(sites::RECORD_STORE, offset, &header)?;
            let at = offset + RECORD_HEADER_SIZE as u64;
            memory.store(sites::RECORD_STORE, at, stored)?;
            memory.store(sites::RECORD_STORE, at + stored.len() as u64, value)?;
            memory.flush(sites::RECORD_FLUSH, offset, size)?;
            memory.fence(sites::RECORD_FENCE)
        };
        written().map_err(|error| self.poison(&error))
    }

    fn allocate(&self, core: usize, whom: For, size: u64) -> Result<u64> {
        // One that no block has room for has chunks of its own.
        let Some((class, lines)) = self.sizes.for_record(size.div_ceil(LINE as u64)) else {
            // The first chunk's headers stay; those of the others are overwritten.
            let count = (size + CHUNK_START).div_ceil(self.layout.chunk_size);
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let first = self.take_chunks(core, count, whom)?;
            let chunks = u32::try_from(count).unwrap_or(u32::MAX);
            self.begin_chunk(first, core, ChunkKind::Large, 0, chunks)?;
            if let Some(chunk) = self.chunks.get(first) {
                chunk.live.store(1, Ordering::Relaxed);
            }
            return Ok(self.layout.start_of(first) + CHUNK_START);
        };
        loop {
            let own = || self.allocate_block(core, class);
            // Before one of the last chunks is taken, which the logs need: what others do not need now, of up to twice the size.
            let alike = || self.allocate_anywhere(core, self.sizes.alike(class));
            let others = || self.is_scarce().then(alike).flatten();
            if let Some(offset) = own().or_else(others) {
                return Ok(offset);
            }
            // Without the lock: making room may free blocks.
            let chunk = match self.take_chunks(core, 1, whom) {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    // A block that is too large is better than none.
                    let found = self.allocate_anywhere(core, class..self.sizes.count());
                    return found.ok_or(error);
                }
                taken => taken?,
            };
            self.begin_blocks(chunk, core, lines)?;
        }
    }

    /// Cuts a chunk that was taken into blocks.
    pub(super) fn begin_blocks(&self, chunk: u32, core: usize, lines: u64) -> Result<()> {
        self.begin_chunk(chunk, core, ChunkKind::Blocks, lines, 0)?;
        if let Some(state) = self.chunks.get(chunk) {
            self.bits(state);
            state.bits.get().into_iter().flatten().for_each(|bits| {
                bits.store(0, Ordering::Relaxed);
            });
        }
        self.list(core, lines, chunk);
        Ok(())
    }

    fn begin_chunk(
        &self,
        number: u32,
        core: usize,
        kind: ChunkKind,
        lines: u64,
        chunks: u32,
    ) -> Result<()> {
        let header = ChunkHeader {
            epoch: 0,
            born: 0,
            kind,
            owner: u16::try_from(core % self.blocks.len().max(1)).unwrap_or(0),
            number,
            lines: u32::try_from(lines).unwrap_or(0),
            chunks,
            next_version: self.versions.next(),
        };
        self.chunks.begin(&*self.memory, header).map_err(|error| self.poison(&error))
    }

    fn core_blocks(&self, core: usize) -> Option<&CoreBlocks> {
        self.blocks.get(core % self.blocks.len().max(1))
    }

    /// Puts a chunk with blocks of so many lines among those of a core with room.
    pub(super) fn list(&self, core: usize, lines: u64, chunk: u32) {
        let Some(blocks) = self.core_blocks(core) else { return };
        let class = self.sizes.of_chunk(lines);
        let mut classes = blocks.0.lock();
        if let (Some(class), Some(state)) = (classes.of(class), self.chunks.get(chunk))
            && !state.listed.swap(true, Ordering::AcqRel)
        {
            class.more.push(chunk);
        }
    }

    /// Takes a chunk from among those with room: nobody allocates there, nor lists it, until [`relist`](Flat::relist) says that it was. False if it came free
    /// since it had this generation.
    pub(super) fn unlist(&self, number: u32, generation: u64) -> bool {
        let Some(chunk) = self.chunks.get(number) else { return false };
        let owner = usize::try_from(chunk.owner.load(Ordering::Relaxed)).unwrap_or(0);
        let Some(blocks) = self.core_blocks(owner) else { return false };
        let mut classes = blocks.0.lock();
        // A chunk comes free under this lock.
        if chunk.usage() != Use::Blocks || chunk.generation() != generation {
            return false;
        }
        let class = self.sizes.of_chunk(u64::from(chunk.lines.load(Ordering::Relaxed)));
        if let Some(class) = classes.of(class) {
            class.current = class.current.filter(|current| *current != number);
            class.more.retain(|listed| *listed != number);
        }
        chunk.listed.store(true, Ordering::SeqCst);
        true
    }

    /// The chunk in which a line of the store stands.
    pub(super) fn chunk_of_line(&self, line: u64) -> u32 {
        self.layout.chunk_of(line.saturating_mul(LINE as u64))
    }

    /// Lists a chunk of blocks that recovery found, by its size.
    pub(super) fn list_found(&self, chunk: u32) {
        let Some(state) = self.chunks.get(chunk) else { return };
        let lines = u64::from(state.lines.load(Ordering::Relaxed));
        if u64::from(state.live.load(Ordering::Relaxed)) < self.blocks_of(lines) {
            let owner = usize::try_from(state.owner.load(Ordering::Relaxed)).unwrap_or(0);
            self.list(owner, lines, chunk);
        }
    }

    fn allocate_block(&self, core: usize, class: usize) -> Option<u64> {
        let mut classes = self.core_blocks(core)?.0.lock();
        let class = classes.of(class)?;
        loop {
            let number = match class.current {
                Some(number) => number,
                None => *class.current.insert(class.more.pop()?),
            };
            let chunk = self.chunks.get(number)?;
            let lines = u64::from(chunk.lines.load(Ordering::Relaxed));
            let count = self.blocks_of(lines);
            if chunk.usage() == Use::Blocks
                && let Some(block) = take_bit(chunk.bits.get()?, count)
            {
                chunk.live.fetch_add(1, Ordering::Relaxed);
                return Some(
                    self.layout.start_of(number) + CHUNK_START + block * lines * LINE as u64,
                );
            }
            // Full: whoever frees one of its blocks lists it again.
            class.current = None;
            // In one order with the count, so that one of the two sees the other.
            chunk.listed.swap(false, Ordering::SeqCst);
            if u64::from(chunk.live.load(Ordering::SeqCst)) < count
                && !chunk.listed.swap(true, Ordering::AcqRel)
            {
                class.more.push(number);
            }
        }
    }

    /// Whether few chunks are left.
    fn is_scarce(&self) -> bool {
        let some = usize::try_from(self.layout.chunk_count / SCARCE_SHARE).unwrap_or(0);
        self.chunks.free_count() < self.reserve().1 + some
    }

    /// A free block of the first of these classes that has one, of whatever core.
    pub(super) fn allocate_anywhere(&self, core: usize, classes: Range<usize>) -> Option<u64> {
        let cores = self.blocks.len();
        let of_class =
            |class| (core..core + cores).find_map(|core| self.allocate_block(core, class));
        classes.into_iter().find_map(of_class)
    }

    /// Marks a record's place as in use: recovery. False if there is no such place, or it is taken.
    pub(super) fn mark(&self, line: u64) -> bool {
        let offset = line.saturating_mul(LINE as u64);
        let number = self.layout.chunk_of(offset);
        let Some(chunk) = self.chunks.get(number) else { return false };
        match chunk.usage() {
            Use::Large => {
                offset == self.layout.start_of(number) + CHUNK_START
                    && chunk.live.swap(1, Ordering::Relaxed) == 0
            }
            Use::Blocks => {
                self.bits(chunk);
                let Some(block) = self.block_of(chunk, number, offset) else { return false };
                let Some((word, bit)) = bit_of(chunk, block) else { return false };
                let fresh = word.fetch_or(bit, Ordering::Relaxed) & bit == 0;
                chunk.live.fetch_add(u32::from(fresh), Ordering::Relaxed);
                fresh
            }
            _ => false,
        }
    }

    fn block_of(&self, chunk: &Chunk, number: u32, offset: u64) -> Option<u64> {
        let size = u64::from(chunk.lines.load(Ordering::Relaxed)) * LINE as u64;
        let within = offset.checked_sub(self.layout.start_of(number) + CHUNK_START)?;
        (size > 0 && within.is_multiple_of(size)).then(|| within / size)
    }

    /// Bytes of the place of a record that begins at `offset`: a block, or the chunks of a large one. `None` if none begins there. The chunk
    /// may be taken anew meanwhile, for something else. In a repair, one in a
    /// chunk without a header goes on to the next chunk with one at most.
    pub(super) fn record_room(&self, offset: u64) -> Option<u64> {
        let number = self.layout.chunk_of(offset);
        let chunk = self.chunks.get(number)?;
        let lines = u64::from(chunk.lines.load(Ordering::Relaxed));
        match chunk.usage() {
            Use::Blocks => {
                let block = self.block_of(chunk, number, offset)?;
                (block < self.blocks_of(lines)).then_some(lines * LINE as u64)
            }
            Use::Large if offset == self.layout.start_of(number) + CHUNK_START => {
                Some(lines.max(1).saturating_mul(self.layout.chunk_size) - CHUNK_START)
            }
            Use::Bad if self.is_in_repair() => {
                let is_bad = |number: &u32| {
                    self.chunks.get(*number).is_some_and(|chunk| chunk.usage() == Use::Bad)
                };
                let end = (number..self.layout.chunk_count).take_while(is_bad).last()?;
                Some((self.layout.start_of(end) + self.layout.chunk_size).saturating_sub(offset))
            }
            _ => None,
        }
    }

    /// Frees a record's place; not that of another's, which a damaged store may point at.
    pub(super) fn free_record(&self, line: u64) {
        if self.is_not_own(line) {
            return;
        }
        let offset = line.saturating_mul(LINE as u64);
        let number = self.layout.chunk_of(offset);
        let Some(chunk) = self.chunks.get(number) else { return };
        if self.hold.park(number, line) {
            return;
        }
        match chunk.usage() {
            Use::Large if chunk.live.swap(0, Ordering::AcqRel) == 1 => self.release_chunk(number),
            Use::Blocks => {
                let Some(block) = self.block_of(chunk, number, offset) else { return };
                let Some((word, bit)) = bit_of(chunk, block) else { return };
                // As long as the block is in use, the chunk is.
                let generation = chunk.generation();
                if word.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
                    return;
                }
                let left = chunk.live.fetch_sub(1, Ordering::SeqCst).saturating_sub(1);
                if left == 0 || !chunk.listed.load(Ordering::SeqCst) {
                    self.relist(number, chunk, generation, false);
                }
            }
            _ => {}
        }
    }

    /// A chunk of blocks became empty, or got room, when it had this generation, or it `was_unlisted`.
    pub(super) fn relist(&self, number: u32, chunk: &Chunk, generation: u64, was_unlisted: bool) {
        let lines = u64::from(chunk.lines.load(Ordering::Relaxed));
        let owner = usize::try_from(chunk.owner.load(Ordering::Relaxed)).unwrap_or(0);
        let Some(blocks) = self.core_blocks(owner) else { return };
        let mut classes = blocks.0.lock();
        let Some(class) = classes.of(self.sizes.of_chunk(lines)) else { return };
        // Others may have freed it meanwhile, and taken it anew.
        let is_gone = chunk.usage() != Use::Blocks || chunk.generation() != generation;
        if is_gone || class.current == Some(number) {
            return;
        }
        if was_unlisted {
            // Not before: taken anew, it may be in a list.
            chunk.listed.store(false, Ordering::SeqCst);
        }
        if chunk.live.load(Ordering::Acquire) > 0 {
            if !chunk.listed.swap(true, Ordering::AcqRel) {
                class.more.push(number);
            }
            return;
        }
        class.more.retain(|listed| *listed != number);
        chunk.listed.store(false, Ordering::Release);
        // Nobody finds it any more.
        chunk.set_usage(Use::Other);
        drop(classes);
        self.release_chunk(number);
    }

    /// Whether a chunk is empty and nobody else keeps it. Under the lock of those of its core, blocks of it are neither taken nor listed.
    fn is_empty(&self, number: u32) -> bool {
        self.chunks.get(number).is_some_and(|chunk| {
            // What a hold parks is in use.
            chunk.usage() == Use::Blocks
                && chunk.live.load(Ordering::Acquire) == 0
                && !self.hold.holds(number)
        })
    }

    /// Frees the empty chunks that cores keep to take blocks from; false if there is none. For who finds no room: each core has one of
    /// each size.
    pub(super) fn release_empty(&self) -> bool {
        let is_empty = |class: &Class| class.current.is_some_and(|number| self.is_empty(number));
        if !self.blocks.iter().any(|blocks| blocks.0.lock().0.iter().any(is_empty)) {
            return false;
        }
        // With the lock: nothing may change once a close has written the image.
        let _packer = self.cleaners.packer.lock();
        if self.refuse().is_err() {
            return false;
        }
        let mut empty = Vec::new();
        for blocks in &self.blocks {
            let mut classes = blocks.0.lock();
            for class in classes.0.iter_mut().filter(|class| is_empty(class)) {
                let number = class.current.take();
                for chunk in number.into_iter().filter_map(|number| self.chunks.get(number)) {
                    chunk.listed.store(false, Ordering::Release);
                    chunk.set_usage(Use::Other);
                }
                empty.extend(number);
            }
        }
        empty.iter().for_each(|number| self.release_chunk(*number));
        !empty.is_empty()
    }

    /// Frees a chunk that nothing points into. If that fails the store is read-only.
    fn release_chunk(&self, number: u32) {
        if self.refuse().is_ok()
            && let Err(error) = self.chunks.release(&*self.memory, number, self.versions.next())
        {
            self.poison(&error);
        }
    }
}
