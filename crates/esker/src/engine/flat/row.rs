//! Chunks in a row for large records, where the free ones lie apart (FlatStore §3.2: contiguous chunks for huge values).
//!
//! Of all stretches of so many chunks the one with the least in use is chosen. What is free there is kept back; chunks of logs
//! are cleaned, and chunks of blocks emptied ([`pack`](super::pack)), to chunks elsewhere if there are no blocks; what comes free is kept back,
//! too, until the row is whole.
//!
//! # Concurrency
//! Under the cleaner's lock, all the while. A chunk that others keep ends the attempt: what was kept back is free for all again.

use super::Flat;
use super::chunks::{Chunk, For, Use};
use super::clean::Cleaner;
use esker_base::{ErrorKind, Result};
use esker_format::flat::LINE;
use std::sync::atomic::Ordering;

/// Free chunks, beyond those that the row takes, with which it can be made: for the cleaner's log, and what is moved to.
const SPARE: usize = 3;

impl Flat {
    /// Makes a row of so many chunks for somebody and takes it; `None` if there are too few that others do not keep.
    pub(super) fn make_row(&self, count: usize, whom: For) -> Result<Option<u32>> {
        let mut cleaner = self.cleaner.lock();
        // Others may have made room.
        if let Some(first) = self.chunks.take(count, whom) {
            return Ok(Some(first));
        }
        let spare = (count + whom.kept()).max(count + SPARE);
        if self.chunks.free_count() < spare {
            return Ok(None);
        }
        // Its chunks of blocks may be in the way.
        self.end_packing(&mut cleaner);
        let Some((first, live_bytes)) = self.emptiest_row(count) else { return Ok(None) };
        let numbers = || (first..).take(count);
        self.chunks.keep_back(first, count);
        let moved_to = usize::try_from(live_bytes / self.layout.room()).unwrap_or(usize::MAX);
        let made = match self.chunks.free_count() > moved_to.saturating_add(SPARE) {
            true => self.empty_row(&mut cleaner, numbers()),
            false => Ok(()),
        };
        self.end_packing(&mut cleaner);
        let taken = self.chunks.take_kept_back();
        match made {
            Err(error) if error.kind() != ErrorKind::NoSpace => Err(error),
            _ => Ok(taken),
        }
    }

    /// The stretch of so many chunks of which the least is in use, and how many bytes that are.
    fn emptiest_row(&self, count: usize) -> Option<(u32, u64)> {
        let costs: Vec<(u32, Option<u64>)> = self
            .chunks
            .iter()
            .map(|(number, chunk)| (number, self.bytes_to_move(number, chunk)))
            .collect();
        let rows = costs.windows(count.max(1)).filter_map(|row| {
            let bytes = row.iter().try_fold(0, |sum, (_, bytes)| Some(sum + (*bytes)?));
            Some((bytes?, row.first()?.0))
        });
        rows.min().map(|(bytes, first)| (first, bytes))
    }

    /// Bytes that must go elsewhere before a chunk is free; `None` if they cannot.
    fn bytes_to_move(&self, number: u32, chunk: &Chunk) -> Option<u64> {
        let live = u64::from(chunk.live.load(Ordering::Relaxed));
        match chunk.usage() {
            Use::Free => Some(0),
            _ if self.hold.holds(number) => None,
            Use::Log if chunk.is_published() => {
                let (entries, dead) = chunk.counts();
                let tail = u64::from(chunk.tail.load(Ordering::Relaxed));
                Some(tail * u64::from(entries.saturating_sub(dead)) / u64::from(entries.max(1)))
            }
            Use::Blocks => {
                Some(live * u64::from(chunk.lines.load(Ordering::Relaxed)) * LINE as u64)
            }
            Use::Log | Use::OpenLog | Use::Large | Use::Tail | Use::Other => None,
        }
    }

    /// Moves what counts out of the chunks of a row.
    fn empty_row(
        &self,
        cleaner: &mut Cleaner,
        numbers: impl Iterator<Item = u32> + Clone,
    ) -> Result<()> {
        let of = |usage| {
            let chunks =
                numbers.clone().filter_map(|number| Some((number, self.chunks.get(number)?)));
            chunks.filter(move |(_, chunk)| chunk.usage() == usage)
        };
        let victims = of(Use::Blocks).map(|(number, chunk)| (number, chunk.generation())).collect();
        self.begin_packing(cleaner, victims, true)?;
        for (number, _) in of(Use::Log) {
            self.clean_chunk(cleaner, number)?;
        }
        while of(Use::Blocks).next().is_some() && self.pack_more(cleaner)? {}
        Ok(())
    }
}
