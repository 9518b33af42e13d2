//! A device of which everything can be read: a block that the one below refuses for ever reads as damage.
//!
//! For repairs. Who repairs a store knows what to do about bytes that are wrong; so a place that cannot be read is shown as such bytes, and
//! is lost as they are. That must not happen to a place that is merely not read now: a block is asked for again, and only if it still
//! fails, and another one that was read before does not, is it taken to be lost. If that fails as well, it is the device that does.
//! Once nothing of what stood around is needed there any more, those that are lost are written, which makes them readable again
//! where the medium can.
//!
//! # Invariants
//! - F1: nothing is shown but what stands below, or, of a block that was refused while others were not, the mark. Nobody but this
//!   process knows that, so nothing that a client wrote looks like it.
//! - F2: writes and errors of writes are those of the device below. A block that was written is lost no more.
//! - F3: what was shown of a block once is shown until it is written: one that is lost stays so, and once all was looked at, one that
//!   was not lost is no more than an error.
//! - F4: a device behind the kernel's cache shows nothing: a block that was read before is no witness there.
//!
//! # Concurrency
//! As the trait says: no lock is held while the device below is asked.
//!
//! # Failure
//! What is lost is known to this process only: a crash leaves what was written.

use crate::block::{BlockDevice, BlockGeometry, Counters, total_length};
use crate::buffer::BufferPool;
use esker_base::rng::Rng;
use esker_base::{Error, ErrorKind, Result, Site};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// How often a block is asked for before it is refused.
const TRIES: u32 = 3;
/// Bytes of the mark, which comes again and again in a block.
const MARK: usize = 64;
/// Bytes of the smallest blocks that there are.
const BLOCK_MIN: usize = 512;
/// No place: nothing was read yet.
const NOWHERE: u64 = u64::MAX;

/// Reads that fail are errors.
const HIDDEN: u8 = 0;
/// Blocks that are refused are lost, and shown.
const SHOWN: u8 = 1;
/// Those that are lost are shown, and no others.
const KNOWN: u8 = 2;

/// Where the blocks of a device are that are lost, in bytes.
type Lost = Arc<Mutex<BTreeSet<u64>>>;

/// What blocks that are refused read as, on all devices of a store, from when a repair asks for that. Thread-safe.
#[derive(Debug)]
pub struct Refused {
    mark: [u8; MARK],
    stage: AtomicU8,
    devices: Mutex<Vec<(Arc<dyn BlockDevice>, Lost)>>,
}

impl Refused {
    /// A mark that nobody knows; until [`Refused::show`], reads that fail are errors.
    #[must_use]
    pub fn new(rng: &mut Rng) -> Refused {
        let mut mark = [0; MARK];
        rng.fill(&mut mark);
        Refused { mark, stage: AtomicU8::new(HIDDEN), devices: Mutex::default() }
    }

    /// `device` with all of its blocks, these among them.
    #[must_use]
    pub fn over(self: &Arc<Self>, device: Arc<dyn BlockDevice>) -> ReadableDevice {
        let lost = Lost::default();
        self.devices.lock().push((Arc::clone(&device), Arc::clone(&lost)));
        let refused = Arc::clone(self);
        ReadableDevice { below: device, refused, lost, witness: AtomicU64::new(NOWHERE) }
    }

    /// From now on blocks that are refused read as damage.
    pub fn show(&self) {
        self.stage.store(SHOWN, Ordering::Release);
    }

    /// All that is needed was read: which blocks are lost is known, and others that fail are errors.
    pub fn know(&self) {
        self.stage.store(KNOWN, Ordering::Release);
    }

    /// Whether a block that reads like this was refused.
    #[must_use]
    pub fn is_one(&self, block: &[u8]) -> bool {
        block.starts_with(&self.mark)
    }

    /// Whether any block was refused of those that `bytes` begin with and have.
    #[must_use]
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        bytes.chunks(BLOCK_MIN).any(|block| self.is_one(block))
    }

    /// Writes zeros to all blocks that are lost, durably: to how many, and how many the device does not take.
    ///
    /// # Errors
    /// As for writes and flushes, but for `Io` of a write.
    pub fn write_anew(&self, site: Site, flush: Site) -> Result<(u64, u64)> {
        let devices = self.devices.lock().clone();
        let (mut written, mut refused) = (0, 0);
        for (device, lost) in devices {
            let lost = std::mem::take(&mut *lost.lock());
            let mut zeros = BufferPool::default().get(place(block_of(&*device)));
            zeros.fill(0);
            for offset in &lost {
                match device.write_at(site, *offset, &[IoSlice::new(&zeros)]) {
                    Err(error) if error.kind() == ErrorKind::Io => refused += 1,
                    done => {
                        done?;
                        written += 1;
                    }
                }
            }
            if !lost.is_empty() {
                device.flush(flush)?;
            }
        }
        Ok((written, refused))
    }

    /// Marks what stands at `offset`.
    fn fill(&self, offset: u64, buf: &mut [u8]) {
        let skipped = place(offset % MARK as u64);
        let mark = self.mark.iter().cycle().skip(skipped);
        buf.iter_mut().zip(mark).for_each(|(to, from)| *to = *from);
    }
}

/// A device over another one. See the module's text.
#[derive(Debug)]
pub struct ReadableDevice {
    below: Arc<dyn BlockDevice>,
    refused: Arc<Refused>,
    lost: Lost,
    /// Where a block was read last.
    witness: AtomicU64,
}

/// Bytes of a block.
fn block_of(device: &dyn BlockDevice) -> u64 {
    u64::from(device.geometry().block_size_bytes.max(1))
}

/// As a place in memory.
fn place(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl ReadableDevice {
    fn block(&self) -> u64 {
        block_of(&*self.below)
    }

    /// What a read that failed comes to: of its blocks those that are there, and the mark in place of others.
    fn read_apart(&self, site: Site, offset: u64, buf: &mut [u8], error: Error) -> Result<()> {
        let is_hidden = self.refused.stage.load(Ordering::Acquire) == HIDDEN;
        if error.kind() != ErrorKind::Io || is_hidden || self.reads_bytes() {
            return Err(error);
        }
        self.read_blocks(site, offset, buf)
    }

    fn read_blocks(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        let block = self.block();
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let length = place(block - at % block).min(rest.len());
            let (piece, behind) = rest.split_at_mut(length);
            self.read_block(site, at, piece)?;
            (at, rest) = (at.saturating_add(length as u64), behind);
        }
        Ok(())
    }

    /// Reads (a part of) one block, or marks it.
    fn read_block(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = offset / self.block() * self.block();
        if self.lost.lock().contains(&at) {
            self.refused.fill(offset, buf);
            return Ok(());
        }
        let error = match self.read_again(site, offset, buf) {
            Err(error) if error.kind() == ErrorKind::Io => error,
            read => return read,
        };
        if self.refused.stage.load(Ordering::Acquire) == KNOWN {
            return Err(error.context("what was read before"));
        }
        self.ask_witness(site, error)?;
        // Both failed for a while, it may be.
        match self.read_again(site, offset, buf) {
            Err(error) if error.kind() == ErrorKind::Io => {
                self.lost.lock().insert(at);
                self.refused.fill(offset, buf);
                Ok(())
            }
            read => read,
        }
    }

    fn read_again(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut tries = 1;
        loop {
            match self.below.read_at(site, offset, buf) {
                Err(error) if tries < TRIES && error.kind() == ErrorKind::Io => tries += 1,
                read => {
                    if read.is_ok() {
                        self.note(offset);
                    }
                    return read;
                }
            }
        }
    }

    /// `error`, unless a block can be read that could be before: it is the device that fails then.
    fn ask_witness(&self, site: Site, error: Error) -> Result<()> {
        let at = self.witness.load(Ordering::Relaxed);
        let mut block = BufferPool::default().get(place(self.block()));
        match at == NOWHERE || self.below.read_at(site, at, &mut block).is_err() {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Whether something of a range is lost (F3).
    fn has_lost(&self, offset: u64, length: u64) -> bool {
        let lost = self.lost.lock();
        let first = offset / self.block() * self.block();
        !lost.is_empty() && lost.range(first..offset.saturating_add(length)).next().is_some()
    }

    /// Blocks were written.
    fn restore(&self, offset: u64, length: u64) {
        let mut lost = self.lost.lock();
        if !lost.is_empty() {
            let block = self.block();
            let whole =
                offset.div_ceil(block) * block..offset.saturating_add(length) / block * block;
            lost.retain(|at| !whole.contains(at));
        }
    }

    /// A block was read.
    fn note(&self, offset: u64) {
        self.witness.store(offset / self.block() * self.block(), Ordering::Relaxed);
    }
}

impl BlockDevice for ReadableDevice {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn geometry(&self) -> BlockGeometry {
        self.below.geometry()
    }

    fn report(&self) -> String {
        self.below.report()
    }

    fn counters(&self) -> Counters {
        self.below.counters()
    }

    fn is_nowait(&self) -> bool {
        self.below.is_nowait()
    }

    fn answers_at_once(&self) -> bool {
        self.below.answers_at_once()
    }

    fn reads_bytes(&self) -> bool {
        self.below.reads_bytes()
    }

    fn read_at(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.has_lost(offset, buf.len() as u64) {
            return self.read_blocks(site, offset, buf);
        }
        match self.below.read_at(site, offset, buf) {
            Ok(()) => {
                self.note(offset);
                Ok(())
            }
            Err(error) => self.read_apart(site, offset, buf, error),
        }
    }

    fn read_vectored_at(&self, site: Site, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let length = bufs.iter().map(|buf| buf.len() as u64).sum();
        if !self.has_lost(offset, length) && self.below.read_vectored_at(site, offset, bufs).is_ok()
        {
            self.note(offset);
            return Ok(());
        }
        let mut at = offset;
        for buf in bufs {
            self.read_at(site, at, buf)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    fn read_many_at(&self, site: Site, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        let has_lost = reads.iter().any(|(offset, buf)| self.has_lost(*offset, buf.len() as u64));
        if !has_lost && self.below.read_many_at(site, reads).is_ok() {
            return Ok(());
        }
        reads.iter_mut().try_for_each(|(offset, buf)| self.read_at(site, *offset, buf))
    }

    fn write_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.below.write_at(site, offset, bufs)?;
        self.restore(offset, total_length(bufs));
        Ok(())
    }

    fn write_durable_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.below.write_durable_at(site, offset, bufs)?;
        self.restore(offset, total_length(bufs));
        Ok(())
    }

    fn flush(&self, site: Site) -> Result<()> {
        self.below.flush(site)
    }

    fn discard(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.below.discard(site, offset, length)
    }

    fn prepare(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.below.prepare(site, offset, length)
    }

    fn reserve(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.below.reserve(site, offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Act, Asking, SimBlock, SimBlockOptions};
    use parking_lot::Mutex;
    use std::ops::Range;

    const SITE: Site = Site::new("test.read", esker_base::SiteKind::Read);
    const BLOCK: u64 = 512;
    const SIZE: u64 = 16 * BLOCK;

    /// Ranges of which reads fail, and how often.
    type Fails = Arc<Mutex<Vec<(Range<u64>, u32)>>>;

    /// A device, block `n` of which is full of `n`, whose reads of some ranges fail so many times.
    fn device(fails: &Fails) -> (ReadableDevice, Arc<Refused>) {
        let inner = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1)));
        for number in 0..16_u8 {
            let bytes = [number; 512];
            inner.write_at(SITE, u64::from(number) * BLOCK, &[IoSlice::new(&bytes)]).unwrap();
        }
        let fails = Fails::clone(fails);
        let asking = Asking::new(inner, move |call| {
            let mut fails = fails.lock();
            let meets =
                |range: &Range<u64>| range.start < call.range.end && call.range.start < range.end;
            let met = fails.iter_mut().find(|(range, left)| *left > 0 && meets(range));
            match met.filter(|_| call.act == Act::Read) {
                Some((_, left)) => {
                    *left -= 1;
                    Err(Error::new(ErrorKind::Io, "read"))
                }
                None => Ok(()),
            }
        });
        let refused = Arc::new(Refused::new(&mut Rng::from_seed(1)));
        (refused.over(asking), refused)
    }

    #[test]
    fn what_is_refused_for_ever_reads_as_damage_and_its_neighbours_as_they_are() {
        let fails = Arc::new(Mutex::new(vec![(3 * BLOCK..5 * BLOCK, u32::MAX)]));
        let (device, refused) = device(&fails);
        let mut buf = vec![0; 8 * 512];
        let error = device.read_at(SITE, 0, &mut buf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "nobody asked for damage");
        refused.show();
        // As a row, as several buffers, and as several reads.
        for way in 0..3 {
            buf.fill(0xEE);
            let (left, right) = buf.split_at_mut(4 * 512);
            match way {
                0 => device.read_at(SITE, 0, &mut buf).unwrap(),
                1 => {
                    let mut bufs = [IoSliceMut::new(left), IoSliceMut::new(right)];
                    device.read_vectored_at(SITE, 0, &mut bufs).unwrap();
                }
                _ => {
                    let mut reads = [(0, left), (4 * BLOCK, right)];
                    device.read_many_at(SITE, &mut reads).unwrap();
                }
            }
            for (number, block) in buf.chunks(512).enumerate() {
                let is_lost = (3..5).contains(&number);
                assert_eq!(refused.is_one(block), is_lost, "way {way}, block {number}");
                let is_whole = block.iter().all(|byte| usize::from(*byte) == number);
                assert_eq!(is_whole, !is_lost, "way {way}, block {number}");
            }
        }
        // Once it is written it can be read; the other one is when all are.
        device.write_at(SITE, 3 * BLOCK, &[IoSlice::new(&[9; 512])]).unwrap();
        fails.lock().clear();
        device.read_at(SITE, 4 * BLOCK, &mut buf[..512]).unwrap();
        assert!(refused.is_one(&buf), "what was lost once stays so");
        assert_eq!(refused.write_anew(SITE, SITE).unwrap(), (1, 0));
        assert_eq!(refused.write_anew(SITE, SITE).unwrap(), (0, 0));
        device.read_at(SITE, 0, &mut buf).unwrap();
        for (number, block) in buf.chunks(512).enumerate() {
            let expected = [0, 1, 2, 9, 0, 5, 6, 7][number];
            assert!(block.iter().all(|byte| *byte == expected), "block {number}");
        }
    }

    #[test]
    fn what_fails_for_a_while_is_read() {
        for times in 1..=6 {
            let fails = Arc::new(Mutex::new(Vec::new()));
            let (device, refused) = device(&fails);
            refused.show();
            let mut buf = vec![0; 512];
            device.read_at(SITE, 0, &mut buf).unwrap();
            fails.lock().push((7 * BLOCK..8 * BLOCK, times));
            device.read_at(SITE, 7 * BLOCK, &mut buf).unwrap();
            assert!(buf.iter().all(|byte| *byte == 7), "{times} times");
        }
    }

    #[test]
    fn once_all_is_known_nothing_more_is_lost() {
        let fails = Arc::new(Mutex::new(vec![(3 * BLOCK..4 * BLOCK, u32::MAX)]));
        let (device, refused) = device(&fails);
        refused.show();
        let mut buf = vec![0; 4 * 512];
        device.read_at(SITE, 0, &mut buf).unwrap();
        refused.know();
        fails.lock().push((5 * BLOCK..6 * BLOCK, u32::MAX));
        device.read_at(SITE, 3 * BLOCK, &mut buf[..512]).unwrap();
        assert!(refused.is_one(&buf));
        let error = device.read_at(SITE, 3 * BLOCK, &mut buf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(refused.write_anew(SITE, SITE).unwrap(), (1, 0));
    }

    #[test]
    fn a_device_that_fails_loses_nothing() {
        let fails = Arc::new(Mutex::new(vec![(0..SIZE, u32::MAX)]));
        let (device, refused) = device(&fails);
        refused.show();
        let mut buf = vec![0; 512];
        assert!(device.read_at(SITE, 0, &mut buf).is_err(), "nothing was ever read");
        fails.lock().clear();
        device.read_at(SITE, 0, &mut buf).unwrap();
        fails.lock().push((0..SIZE, u32::MAX));
        let error = device.read_at(SITE, 5 * BLOCK, &mut buf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(!refused.is_one(&buf));
    }
}
