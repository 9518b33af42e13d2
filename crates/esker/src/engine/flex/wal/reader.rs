//! A log as an open or a repair finds it: batches that follow each other, and what stands behind them.
//!
//! Anything may stand there, and clients choose what: a value may claim at each of its blocks to be a batch that takes all of the rest.
//! Once what only claimed to be one was as much as the log, the checksums of all blocks are taken, and no claim is gone through any more
//! to be refused.
//!
//! # Concurrency
//! None: a log is read before anybody writes it.
//!
//! # Failure
//! What is no batch ends the log or is passed over; whether something is missing is for `recover` to say.

use super::super::recover::OPERATION;
use super::super::sites;
use super::Tail;
use esker_base::checksum::Stretches;
use esker_base::{Error, ErrorKind, Result};
use esker_format::flex_db::{BATCH_HEADER_SIZE, Batch, Root};
use esker_media::{BlockDevice, BufferPool, IoBuf};
use std::io::IoSlice;

/// Bytes of a log that are looked at with one call.
const READ_STEP: u64 = 1 << 20;

/// What a log device holds.
#[derive(Debug, PartialEq)]
pub(in super::super) struct FoundLog {
    pub(in super::super) generation: u64,
    pub(in super::super) first_version: u64,
    /// Checksum of the batch before its first one, in the log before.
    pub(in super::super) follows: u32,
    pub(in super::super) end: Tail,
    /// Version behind its last change.
    pub(in super::super) next_version: u64,
}

/// A log that is read from its start.
pub(in super::super) struct Reader<'a> {
    device: &'a dyn BlockDevice,
    /// Generations that are even are in the log 0, others in the log 1.
    number: u64,
    store_id: &'a [u8; 16],
    /// The last generation whose table is in the space.
    committed: u64,
    block: u64,
    pool: BufferPool,
}

/// Readers of the two logs of a store.
pub(in super::super) fn readers<'a>(
    devices: [&'a dyn BlockDevice; 2],
    root: &'a Root,
) -> [Reader<'a>; 2] {
    let block =
        devices.iter().map(|device| device.geometry().block_size_bytes).max().unwrap_or(512);
    let mut number = 0..;
    devices.map(|device| Reader {
        device,
        number: number.next().unwrap_or(0),
        store_id: &root.store_id,
        committed: root.committed_generation,
        block: u64::from(block.max(512)),
        pool: BufferPool::default(),
    })
}

impl Reader<'_> {
    pub(in super::super) fn device(&self) -> &dyn BlockDevice {
        self.device
    }

    /// Where each sound batch begins that does not stand in another one, with its generation and sequence.
    pub(in super::super) fn all_batches(&self) -> Result<Vec<(u64, u64, u64)>> {
        let mut found = Vec::new();
        let mut claims = Claims::behind(self, 0);
        let mut at = 0;
        while at + self.block <= self.device.geometry().size_bytes {
            at += match claims.batch_at(at)? {
                Some(batch) => {
                    found.push((batch.generation, batch.sequence, at));
                    u64::from(batch.total_bytes).max(self.block)
                }
                None => self.block,
            };
        }
        Ok(found)
    }

    /// The batch at `position`, if there is a sound one, whole.
    pub(in super::super) fn batch_at(
        &self,
        position: u64,
    ) -> Result<Option<(Batch, u32, Vec<u8>)>> {
        match self.claim_at(position)? {
            Some((batch, _)) => self.whole(&batch, position),
            None => Ok(None),
        }
    }

    /// What stands at `position`, if it claims to be a batch that would have its place there: its header, and its first block.
    fn claim_at(&self, position: u64) -> Result<Option<(Batch, IoBuf)>> {
        let size = self.device.geometry().size_bytes;
        if position.saturating_add(self.block) > size {
            return Ok(None);
        }
        let mut first = self.pool.get(usize::try_from(self.block).unwrap_or(512));
        self.device.read_at(sites::WAL_READ, position, &mut first)?;
        let Ok(batch) = Batch::peek(&first, position) else { return Ok(None) };
        let counts = self.has_whole_blocks(&batch) || batch.generation > self.committed;
        let fits = position.saturating_add(self.blocks_of(&batch)) <= size;
        Ok((fits && counts).then_some((batch, first)))
    }

    /// Whether a batch ends where a block does. One of a device with smaller blocks may not, and then the next one begins amid a block.
    fn has_whole_blocks(&self, batch: &Batch) -> bool {
        u64::from(batch.total_bytes).is_multiple_of(self.block)
    }

    /// Bytes of the blocks that a batch stands in.
    fn blocks_of(&self, batch: &Batch) -> u64 {
        u64::from(batch.total_bytes).next_multiple_of(self.block)
    }

    /// The batch that claims to stand at `position`, if it does. Fails if it has what is not in the space, and smaller blocks: those behind
    /// it would be passed over, and written over.
    fn whole(&self, batch: &Batch, position: u64) -> Result<Option<(Batch, u32, Vec<u8>)>> {
        let mut bytes = self.pool.get(usize::try_from(self.blocks_of(batch)).unwrap_or(0));
        self.device.read_at(sites::WAL_READ, position, &mut bytes)?;
        let sound = || sites::WAL_CHECKSUM.disabled();
        match Batch::decode(&bytes, self.store_id, position, sound) {
            Ok((batch, _)) if !self.has_whole_blocks(&batch) => {
                let words = "the log is of a device with smaller blocks: close the store there";
                Err(Error::new(ErrorKind::Unsupported, OPERATION)
                    .device(self.device.name())
                    .context(words))
            }
            Ok((batch, checksum)) => Ok(Some((batch, checksum, bytes.to_vec()))),
            Err(_) => Ok(None),
        }
    }

    /// Fails if a log begins with neither a batch nor zeros: a head has one sector, which is not torn.
    pub(in super::super) fn check_start(&self) -> Result<()> {
        if starts_soundly(self.device)? {
            return Ok(());
        }
        Err(Error::corrupted(OPERATION, "the log does not begin with a batch")
            .device(self.device.name())
            .at(0, BATCH_HEADER_SIZE as u64))
    }

    /// Fails if this generation belongs in the other log. The next one would be written over it, before its table is in the space.
    pub(in super::super) fn check_place(&self, generation: u64) -> Result<()> {
        if generation % 2 == self.number {
            return Ok(());
        }
        let words =
            "this is the log with the other number: the names of the two files were exchanged";
        Err(Error::corrupted(OPERATION, words).device(self.device.name()))
    }

    /// Walks over the batches that follow each other from the start.
    pub(in super::super) fn walk(
        &self,
        mut visit: impl FnMut(&Batch, &[u8]) -> Result<()>,
    ) -> Result<Option<FoundLog>> {
        let mut found: Option<FoundLog> = None;
        loop {
            let position = found.as_ref().map_or(0, |found| found.end.position);
            let Some((batch, checksum, bytes)) = self.batch_at(position)? else { return Ok(found) };
            let follows = match &found {
                None => batch.sequence == 0,
                Some(log) => {
                    batch.generation == log.generation
                        && batch.sequence == log.end.sequence
                        && batch.previous_checksum == log.end.previous_checksum
                        && batch.first_version >= log.next_version
                }
            };
            if !follows {
                return Ok(found);
            }
            visit(&batch, &bytes)?;
            let log = found.get_or_insert(FoundLog {
                generation: batch.generation,
                first_version: batch.first_version,
                follows: batch.previous_checksum,
                end: Tail { generation: batch.generation, ..Tail::default() },
                next_version: batch.first_version,
            });
            log.end.position += u64::from(batch.total_bytes);
            log.end.sequence += 1;
            log.end.previous_checksum = checksum;
            log.next_version = batch.first_version + u64::from(batch.change_count);
        }
    }

    /// Where batches begin, with their generations, that do not count although nothing newer stands there.
    ///
    /// O3 of `recover`: fails if one of them would not be there if the log ended where it seems to.
    pub(in super::super) fn lost_batches(
        &self,
        found: Option<&FoundLog>,
    ) -> Result<Vec<(u64, u64)>> {
        let size = self.device.geometry().size_bytes / self.block * self.block;
        let mut start = found.map_or(0, |log| log.end.position);
        let mut claims = Claims::behind(self, start);
        let mut lost = Vec::new();
        while start < size {
            let length = (size - start).min(READ_STEP);
            let mut bytes = self.pool.get(usize::try_from(length).unwrap_or(0));
            self.device.read_at(sites::WAL_READ, start, &mut bytes)?;
            let block = usize::try_from(self.block).unwrap_or(512);
            for (part, at) in bytes.chunks(block).zip((start..).step_by(block)) {
                let Ok(batch) = Batch::peek(part, at) else { continue };
                if batch.generation <= self.committed {
                    continue;
                }
                lost.push((at, batch.generation));
                // How many of its log are there. A log that is here in its place is an old one, of which the first batch of this
                // one did not take the place.
                let is_of_log = |log: &&FoundLog| log.generation == batch.generation;
                let sequence = match found.filter(is_of_log) {
                    Some(log) => log.end.sequence,
                    // Without the first batch a late log was not durable (A1 of `late`).
                    None if batch.durable_sequence > batch.sequence => continue,
                    None => 0,
                };
                // What stands in a value may look like this: ask for the checksum.
                let proof = batch.durable_sequence > sequence;
                if proof && !sites::WAL_DAMAGE.disabled() && claims.batch_at(at)?.is_some() {
                    let words = "a batch of the log is damaged, and it was durable";
                    return Err(Error::corrupted(OPERATION, words)
                        .device(self.device.name())
                        .at(found.map_or(0, |log| log.end.position), self.block));
                }
            }
            start += length;
        }
        Ok(lost)
    }

    /// O4 of `recover`: nothing can make the batches whole any more that begin here.
    pub(in super::super) fn erase(&self, batches: impl Iterator<Item = u64>) -> Result<()> {
        let block = usize::try_from(self.block).unwrap_or(512);
        let zeros = self.pool.get_zeroed(block);
        let mut flush_due = false;
        for at in batches {
            self.device.write_at(sites::WAL_ERASE, at, &[IoSlice::new(&zeros)])?;
            flush_due = true;
        }
        if flush_due {
            // PERSIST: before a batch of the same generation is written.
            self.device.flush(sites::WAL_ERASE_FLUSH)?;
        }
        Ok(())
    }
}

/// What claims to be a batch, from a place in a log on.
struct Claims<'r, 'a> {
    reader: &'r Reader<'a>,
    start: u64,
    /// Bytes that were gone through for what was no batch.
    in_vain: u64,
    /// Checksums of the blocks from `start` on, once those were too many.
    blocks: Option<Stretches>,
}

impl<'r, 'a> Claims<'r, 'a> {
    fn behind(reader: &'r Reader<'a>, start: u64) -> Self {
        Claims { reader, start, in_vain: 0, blocks: None }
    }

    /// The batch at `position`, if there is a sound one.
    fn batch_at(&mut self, position: u64) -> Result<Option<Batch>> {
        let Some((batch, first)) = self.reader.claim_at(position)? else { return Ok(None) };
        let is_known = self.in_vain <= self.reader.device.geometry().size_bytes
            || sites::WAL_CHECKSUM.disabled()
            || self.is_known(&first, position)?;
        if !is_known {
            return Ok(None);
        }
        let found = self.reader.whole(&batch, position)?;
        if found.is_none() {
            self.in_vain = self.in_vain.saturating_add(u64::from(batch.total_bytes));
        }
        Ok(found.map(|(batch, ..)| batch))
    }

    /// Whether a batch that begins with this block stands at `position`, by the checksums of all blocks, which are taken the first time;
    /// true also if nobody knows.
    fn is_known(&mut self, first: &[u8], position: u64) -> Result<bool> {
        let (reader, start) = (self.reader, self.start);
        let Some(skipped) = position.checked_sub(start) else { return Ok(true) };
        if self.blocks.is_none() {
            let Some(mut sums) = Stretches::new(first.len()) else { return Ok(true) };
            let end = reader.device.geometry().size_bytes / reader.block * reader.block;
            let mut at = start;
            while at < end {
                let length = (end - at).min(READ_STEP);
                let mut bytes = reader.pool.get(usize::try_from(length).unwrap_or(0));
                reader.device.read_at(sites::WAL_READ, at, &mut bytes)?;
                sums.push(&bytes);
                at += length;
            }
            self.blocks = Some(sums);
        }
        let Some(sums) = &self.blocks else { return Ok(true) };
        let next = usize::try_from(skipped / reader.block).unwrap_or(usize::MAX).saturating_add(1);
        let behind = |head, blocks| sums.behind(head, next..next.saturating_add(blocks));
        Ok(Batch::is_at(first, reader.store_id, position, behind))
    }
}

/// Whether a log begins with a batch, or with zeros.
pub(in super::super) fn starts_soundly(device: &dyn BlockDevice) -> Result<bool> {
    let geometry = device.geometry();
    let size = u64::from(geometry.block_size_bytes.max(512)).min(geometry.size_bytes);
    let mut head = BufferPool::new(0).get(usize::try_from(size).unwrap_or(0));
    device.read_at(sites::WAL_READ, 0, &mut head)?;
    let head = head.get(..BATCH_HEADER_SIZE).unwrap_or_default();
    Ok(Batch::peek(head, 0).is_ok() || head.iter().all(|byte| *byte == 0))
}

/// Makes a device say nothing, be it a log or what was saved of the index, for a new store. A log with the identity of the store before
/// (`same`) would believe what stands anywhere in it: then all of it goes.
pub(in super::super) fn blank(device: &dyn BlockDevice, same: bool) -> Result<()> {
    let block = device.geometry().block_size_bytes as usize;
    let first = block.max(BATCH_HEADER_SIZE.next_multiple_of(block)) as u64;
    let end = if same { device.geometry().size_bytes } else { first };
    let mut at = 0;
    while at < end {
        let length = (end - at).min(READ_STEP);
        let zeros = BufferPool::new(0).get_zeroed(usize::try_from(length).unwrap_or(block));
        device.write_at(sites::WAL_WRITE, at, &[IoSlice::new(&zeros)])?;
        at += length;
    }
    // PERSIST: before there is a root, behind which a log begins with a batch, or with zeros.
    device.flush(sites::WAL_RECOVER_FLUSH)
}

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::*;
    use esker_base::checksum::work;
    use esker_format::flex_db::{Change, Content, Extra, WalWriter};
    use esker_media::sim::{SimBlock, SimBlockOptions};

    const STORE_ID: [u8; 16] = [7; 16];
    const SIZE: u64 = 256 << 10;

    #[test]
    fn whatever_claims_to_be_a_batch_behind_a_log_is_gone_through_no_more_than_some_times() {
        // A batch of `total` bytes at `at` that says that one before it was durable.
        let batch = |at: u64, total: u64, block: u64| {
            let mut writer = WalWriter::default();
            let value = vec![9; usize::try_from(total - block).unwrap()];
            writer.push(&Change::Set(b"key", Content::Put(Extra::default(), &value)));
            let (sequence, durable_sequence) = (5, 1);
            let batch = Batch {
                generation: 1,
                position: at,
                sequence,
                durable_sequence,
                ..Batch::default()
            };
            let block = usize::try_from(block).unwrap();
            writer.finish(batch, &STORE_ID, block).unwrap().0.to_vec()
        };
        for real in [None, Some(3), Some(300)] {
            let device = SimBlock::new(SimBlockOptions::new(SIZE, 1));
            let root = Root { store_id: STORE_ID, ..Root::default() };
            let [reader, _] = readers([&device, &device], &root);
            let block = reader.block;
            let mut places = 0;
            for (place, at) in (block..SIZE).step_by(usize::try_from(block).unwrap()).enumerate() {
                let is_real = Some(place) == real;
                let total = if is_real { block * 2 } else { SIZE - at };
                let bytes = batch(at, total.max(2 * block), block);
                let written = if is_real { bytes.len() } else { usize::try_from(block).unwrap() };
                if real.is_some_and(|real| place == real + 1) || at + block == SIZE {
                    continue;
                }
                device.write_at(sites::WAL_WRITE, at, &[IoSlice::new(&bytes[..written])]).unwrap();
                places += 1;
            }
            work::take();
            let lost = reader.lost_batches(None);
            let found = reader.all_batches().unwrap();
            let gone_through = work::take();
            match real {
                None => assert_eq!((lost.unwrap().len(), found.len()), (places, 0)),
                Some(place) => {
                    let at = block * (place as u64 + 1);
                    let error = lost.expect_err("it was durable");
                    assert_eq!(error.kind(), ErrorKind::Corrupted);
                    assert_eq!(found, [(1, 5, at)]);
                }
            }
            assert!(gone_through < 10 * SIZE, "{real:?}: {gone_through} bytes");
        }
    }
}
