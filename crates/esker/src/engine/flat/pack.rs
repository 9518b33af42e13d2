//! Packing: records of chunks of blocks that are not full move to where others of their size are, so that whole chunks become free.
//!
//! A block's chunk says its size, so what is free in it is of use to records of about that size only: a store whose values
//! grow would be full of half-empty chunks. The lazy-persist allocator does not know who points at a block; the logs do. So the
//! cleaner moves the entries of all chunks of logs that point into the chunks to be emptied, and their records with them (C1 to C4): a
//! record is free once its entry's chunk is, and a chunk of blocks once all its records are.
//!
//! # Concurrency
//! One packer a store, whose lock is given to others between two chunks of logs; it takes the lock of each one's cleaner in turn. Cleaners that are at
//! work for another reason move the records of their entries, too, so each chunk of a log is looked through once, whoever cleans it. From chunks that are being
//! emptied nobody allocates: they are in no list of a core, and pass for listed, so that whoever frees a block there does not list them.
//!
//! # Failure
//! A crash finds each record at least once, by the entry that it finds.

use super::chunks::{Chunk, For, Use};
use super::moves::{record_of_action, unless_damaged};
use super::victims::Search;
use super::{Flat, sites};
use esker_base::{Error, ErrorKind, Result};
use esker_format::flat::record::record_size;
use esker_format::flat::{LINE, RECORD_HEADER_SIZE};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Most bytes of records that are moved at once.
const MOVED_MAX_BYTES: u64 = 16 << 20;
/// Most chunks of logs that are looked through at once without cleaning one.
const LOOKS: usize = 8;
/// A chunk that could not be emptied is tried again after so many chunks were taken, or when less is in use by one in so many.
const AGAIN_CHUNKS: u64 = 16;
const AGAIN_SHARE: u32 = 8;

/// A chunk of blocks of which some are free.
struct Loose {
    number: u32,
    generation: u64,
    /// Its class, and those that may take its records.
    classes: Range<usize>,
    live: u64,
    free: u64,
    lines: u64,
}

/// Chunks of blocks that are being emptied.
#[derive(Debug, Default)]
pub(super) struct Emptying {
    /// With their generations: who finds another one finds a chunk that came free and was taken anew.
    victims: BTreeMap<u32, u64>,
    /// Whether free chunks may be taken for what finds no block.
    takes_chunks: bool,
}

/// State of the packer.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// Chunks of logs that are still to be looked through; `None`: nothing is being emptied.
    logs: Option<Vec<u32>>,
    /// Chunks of blocks that could not be emptied: how many chunks had been taken, and blocks in use.
    stuck: BTreeMap<u32, (u64, u32)>,
    /// After how many moves of chunks there was nothing to gain, and nothing for little.
    nothing: Option<u64>,
    nothing_ahead: Option<u64>,
}

impl Flat {
    /// Goes on to move records out of chunks of blocks, as many as fit where others are free; false if there is nothing to
    /// gain, or nothing was gained in the end. `ahead`: begins only where much is to gain for little.
    pub(super) fn pack(&self, search: &mut Search<'_>, ahead: bool) -> Result<bool> {
        let mut packer = self.cleaners.packer.lock();
        if (search.is_over)() {
            return Ok(true);
        }
        if packer.logs.is_none() {
            let nothing = if ahead { packer.nothing_ahead } else { packer.nothing };
            if search.trusts && nothing.is_some_and(|at| self.is_recent(at)) {
                search.has_trusted = true;
                return Ok(false);
            }
            let at = self.moves();
            let victims = self.packable(&mut packer, ahead);
            if victims.is_empty() {
                let nothing = if ahead { &mut packer.nothing_ahead } else { &mut packer.nothing };
                *nothing = Some(at);
            }
            if !self.begin_packing(&mut packer, victims, false)? {
                return Ok(false);
            }
        }
        match self.pack_more(&mut packer) {
            Ok(true) => Ok(true),
            Ok(false) => Ok(self.end_packing(&mut packer)),
            Err(error) => {
                let came_free = self.end_packing(&mut packer);
                // What moved so far did.
                if error.kind() == ErrorKind::NoSpace { Ok(came_free) } else { Err(error) }
            }
        }
    }

    /// Begins to empty chunks of blocks; false if they all came free meanwhile.
    pub(super) fn begin_packing(
        &self,
        packer: &mut Packer,
        mut victims: BTreeMap<u32, u64>,
        takes_chunks: bool,
    ) -> Result<bool> {
        victims.retain(|number, generation| self.unlist(*number, *generation));
        if victims.is_empty() {
            return Ok(false);
        }
        packer.logs = Some(Vec::new());
        // First: who copies an entry afterwards, to a log that is not looked through any more, moves its record.
        self.cleaners.set_emptying(Emptying { victims, takes_chunks });
        let sealed = self.seal_pointing(&self.cleaners.emptying());
        let logs = self.chunks.iter().filter(|(_, chunk)| chunk.usage() == Use::Log);
        packer.logs = Some(logs.map(|(number, _)| number).collect());
        if sealed.is_err() {
            self.end_packing(packer);
        }
        sealed.map(|()| true)
    }

    /// Ends the logs that point into chunks that are being emptied, and waits for who moves entries without knowing of these.
    fn seal_pointing(&self, emptying: &Emptying) -> Result<()> {
        let mut buffer = Vec::new();
        let mut points = |number, _: &Chunk| {
            let points = self.points_into(number, emptying, &mut buffer);
            unless_damaged(points, "a log goes on as it is").map(Option::unwrap_or_default)
        };
        for group in 0..self.cleaners.count() {
            let mut cleaner = self.cleaners.of_group(group).lock();
            self.refuse()?;
            self.seal_logs(&mut cleaner, &mut points)?;
        }
        Ok(())
    }

    /// Cleans the next chunk of a log that points into chunks that are being emptied, or looks at some; false if there are no more.
    pub(super) fn pack_more(&self, packer: &mut Packer) -> Result<bool> {
        let mut buffer = Vec::new();
        let emptying = self.cleaners.emptying();
        for _ in 0..LOOKS {
            let Some(logs) = &mut packer.logs else { return Ok(false) };
            let Some(number) = logs.pop() else { return Ok(false) };
            let mut cleaner = self.cleaner_of_log(number);
            // With the lock: nothing may change once a close has written the image.
            self.refuse()?;
            let may_go = self
                .log_of(&cleaner, number)
                .is_some_and(|chunk| chunk.usage() == Use::Log && chunk.is_published())
                && !self.hold.holds(number)
                && !cleaner.damaged.contains(&number);
            if !may_go {
                continue;
            }
            match unless_damaged(
                self.points_into(number, &emptying, &mut buffer),
                "a chunk is left as it is",
            )? {
                None => drop(cleaner.damaged.insert(number)),
                Some(false) => {}
                Some(true) => {
                    self.clean_chunk(&mut cleaner, number)?;
                    break;
                }
            }
        }
        Ok(true)
    }

    /// Whether the records of a chunk are to move.
    pub(super) fn is_among(&self, emptying: &Emptying, number: u32) -> bool {
        let Some(victim) = emptying.victims.get(&number) else { return false };
        self.chunks.get(number).is_some_and(|chunk| chunk.generation() == *victim)
    }

    /// Gives chunks that could not be emptied back; true if some could.
    pub(super) fn end_packing(&self, packer: &mut Packer) -> bool {
        packer.logs = None;
        let mut came_free = false;
        for (number, generation) in &self.cleaners.set_emptying(Emptying::default()).victims {
            let Some(chunk) = self.chunks.get(*number) else { continue };
            if chunk.usage() != Use::Blocks || chunk.generation() != *generation {
                came_free = true;
                continue;
            }
            let live = chunk.live.load(Ordering::Relaxed);
            packer.stuck.insert(*number, (self.chunks.taken(), live));
            self.relist(*number, chunk, *generation, true);
        }
        came_free
    }

    /// Chunks of blocks whose records fit into the free blocks of others: those with the least in use first.
    fn packable(&self, packer: &mut Packer, ahead: bool) -> BTreeMap<u32, u64> {
        let taken = self.chunks.taken();
        packer.stuck.retain(|_, (at, _)| taken < *at + AGAIN_CHUNKS);
        let mut loose: Vec<Loose> = self.chunks.iter().filter_map(|it| self.loose(it)).collect();
        loose.sort_unstable_by_key(|chunk| chunk.live * chunk.lines);
        let mut free = vec![0; self.sizes.count()];
        for chunk in &loose {
            if let Some(free) = free.get_mut(chunk.classes.start) {
                *free += chunk.free;
            }
        }
        let mut victims = BTreeMap::new();
        let (mut moved, mut gained) = (0, 0);
        for chunk in &loose {
            let bytes = chunk.live * chunk.lines * LINE as u64;
            if ahead && chunk.live > chunk.free || moved + bytes > MOVED_MAX_BYTES {
                break;
            }
            let live = u32::try_from(chunk.live).unwrap_or(u32::MAX);
            let is_stuck = packer
                .stuck
                .get(&chunk.number)
                .is_some_and(|(_, before)| live > *before - (*before).div_ceil(AGAIN_SHARE));
            if !is_stuck && !self.hold.holds(chunk.number) && reserve(&mut free, chunk) {
                moved += bytes;
                gained += self.layout.chunk_size - bytes;
                victims.insert(chunk.number, chunk.generation);
            }
        }
        // The logs are read, and what counts of them may be written anew.
        let is_much = ahead && !victims.is_empty() && self.log_bytes() > 4 * gained;
        if is_much { BTreeMap::new() } else { victims }
    }

    fn loose(&self, (number, chunk): (u32, &Chunk)) -> Option<Loose> {
        let generation = chunk.generation();
        let lines = u64::from(chunk.lines.load(Ordering::Relaxed));
        let live = u64::from(chunk.live.load(Ordering::Relaxed));
        let free = (chunk.usage() == Use::Blocks).then(|| self.blocks_of(lines))?.checked_sub(live);
        let classes = self.sizes.alike(self.sizes.of_chunk(lines));
        (live > 0).then_some(Loose { number, generation, classes, live, free: free?, lines })
    }

    /// Bytes of all logs.
    fn log_bytes(&self) -> u64 {
        let logs = self.chunks.iter().filter(|(_, chunk)| chunk.is_log());
        logs.map(|(_, chunk)| u64::from(chunk.tail.load(Ordering::Relaxed))).sum()
    }

    /// Whether an entry of a log points into one of these chunks.
    fn points_into(&self, number: u32, emptying: &Emptying, buffer: &mut Vec<u8>) -> Result<bool> {
        self.read_log(number, buffer)?;
        let mut batches = self.batches_of(number, buffer);
        while let Ok(Some(batch)) = batches.take_next() {
            let found = batch.entries().flatten();
            let mut lines = found.filter_map(|found| record_of_action(found.entry.action));
            if lines.any(|line| self.is_among(emptying, self.chunk_of_line(line))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies a record to a free block of another chunk, durably; `None` if there is none, or the record is damaged.
    pub(super) fn move_record(
        &self,
        emptying: &Emptying,
        key: &[u8],
        line: u64,
    ) -> Result<Option<u64>> {
        let stays = "a record stays";
        let peeked = unless_damaged(self.peek_record(line), stays)?.flatten();
        let Some((record, offset)) = peeked else { return Ok(None) };
        let Ok(value_length) = usize::try_from(record.value_length) else { return Ok(None) };
        let mut buffer = self.pool.get(record.key_length + value_length);
        let read = self.memory.read(offset + RECORD_HEADER_SIZE as u64, &mut buffer);
        if unless_damaged(read, stays)?.is_none() {
            return Ok(None);
        }
        let sound = record.is_sound(key, &buffer, &self.layout.store_id, offset);
        if !sound && !sites::RECORD_CHECKSUM.disabled() {
            let error = Error::corrupted("move record", "its checksum does not match");
            tracing::warn!(error = %error.at(offset, record.value_length), "a record stays");
            return Ok(None);
        }
        let value = buffer.get(record.key_length..).unwrap_or(&[]);
        self.place_moved(key, record.key_length > 0, value, emptying.takes_chunks)
    }

    /// Writes a record to a free block, durably; `None` if there is none, nor a free chunk that it may take, or no block is as large.
    pub(super) fn place_moved(
        &self,
        key: &[u8],
        key_here: bool,
        value: &[u8],
        takes_chunks: bool,
    ) -> Result<Option<u64>> {
        let stored = if key_here { key.len() } else { 0 };
        let lines = record_size(stored, value.len() as u64).div_ceil(LINE as u64);
        let Some((class, lines)) = self.sizes.for_record(lines) else { return Ok(None) };
        let place = || self.allocate_anywhere(0, self.sizes.alike(class));
        let mut found = place();
        // One for each cleaner's log stays.
        if found.is_none()
            && takes_chunks
            && self.chunks.free_count() > self.cleaners.count()
            && let Some(chunk) = self.take_free(1, For::Cleaner)?
        {
            self.begin_blocks(chunk, 0, lines)?;
            found = place();
        }
        let Some(offset) = found else { return Ok(None) };
        self.write_record(offset, key, key_here, value)?;
        Ok(Some(offset / LINE as u64))
    }
}

/// Takes blocks for what is in use in a chunk from the free ones of others; false if there are too few.
fn reserve(free: &mut Vec<u64>, chunk: &Loose) -> bool {
    let mut left = free.clone();
    // Its own are no help; if some of them are spoken for, it stays.
    let Some(own) = left.get_mut(chunk.classes.start) else { return false };
    let Some(others) = own.checked_sub(chunk.free) else { return false };
    *own = others;
    let mut needed = chunk.live;
    for free in left.get_mut(chunk.classes.clone()).into_iter().flatten() {
        let found = needed.min(*free);
        *free -= found;
        needed -= found;
    }
    if needed == 0 {
        *free = left;
    }
    needed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_finds_its_place_among_the_free_blocks_of_others_or_stays() {
        let chunk = |class, live, free| Loose {
            number: 0,
            generation: 0,
            classes: class..class + 9,
            live,
            free,
            lines: 1,
        };
        let mut free = vec![0; 30];
        free[7] = 12;
        assert!(!reserve(&mut free, &chunk(7, 5, 8)), "four of others are too few");
        assert_eq!(free[7], 12);
        assert!(reserve(&mut free, &chunk(7, 3, 9)));
        assert_eq!(free[7], 0, "its own went, and those of others were taken");
        free[9] = 4;
        assert!(!reserve(&mut free, &chunk(9, 1, 5)), "some of its own are spoken for");
        assert!(reserve(&mut free, &chunk(7, 4, 0)), "a larger block will do");
        assert_eq!(free[9], 0);
        free[7 + 9] = 100;
        assert!(!reserve(&mut free, &chunk(7, 1, 0)), "but not one of more than twice the size");
    }
}
