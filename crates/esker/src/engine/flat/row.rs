//! Chunks in a row for large records, where the free ones lie apart (FlatStore §3.2: contiguous chunks for huge values).
//!
//! Of all stretches of so many chunks the one with the least in use is chosen. What is free there is kept back; chunks of logs
//! are cleaned, and chunks of blocks emptied ([`pack`](super::pack)), to chunks elsewhere if there are no blocks; what comes free is kept back,
//! too, until the row is whole.
//!
//! # Concurrency
//! One row at a time. The locks of packer and cleaners are given to others between two chunks of logs; who needs room then goes on with what is
//! under way. A chunk that others keep ends the attempt: what was kept back is free for all again.

use super::Flat;
use super::chunks::{Chunk, For, Use};
use esker_base::{ErrorKind, Result};
use esker_format::flat::LINE;
use std::sync::atomic::Ordering;

/// Free chunks, beyond those that the row takes and one for each cleaner's log, with which it can be made: what is moved to.
const SPARE: usize = 2;
/// Records of which one has its entry in a chunk of a log in which no other has.
const FEW: u64 = 16;

impl Flat {
    /// Makes a row of so many chunks for somebody and takes it; `None` if there are too few that others do not keep.
    pub(super) fn make_row(&self, count: usize, whom: For) -> Result<Option<u32>> {
        let _row = self.row.lock();
        // Others may have made room.
        if let Some(first) = self.take_free(count, whom)? {
            return Ok(Some(first));
        }
        let spare = SPARE + self.cleaners.count();
        if self.chunks.free_count() < count + self.chunks.kept(whom).max(spare) {
            return Ok(None);
        }
        let Some((first, live_bytes)) = self.emptiest_row(count) else { return Ok(None) };
        self.chunks.keep_back(first, count);
        let moved_to = usize::try_from(live_bytes / self.layout.room()).unwrap_or(usize::MAX);
        let made = match self.chunks.free_count() > moved_to.saturating_add(spare) {
            true => {
                let emptied = self.empty_row((first..).take(count));
                // Whatever came of it: who packs next is not to go on with this row.
                self.end_packing(&mut self.cleaners.packer.lock());
                emptied
            }
            false => Ok(()),
        };
        let taken = self.chunks.take_kept_back();
        match made {
            Err(error) if error.kind() != ErrorKind::NoSpace => {
                let row = taken.into_iter().flat_map(|first| (first..).take(count));
                row.for_each(|number| self.chunks.add_free(number));
                Err(error)
            }
            _ => taken.map_or(Ok(None), |first| self.keep_good(first, count)),
        }
    }

    /// The stretch of so many chunks of which the least is in use, and how many bytes that are.
    fn emptiest_row(&self, count: usize) -> Option<(u32, u64)> {
        let to_move = |(number, chunk)| (number, self.bytes_to_move(number, chunk));
        let chunks: Vec<(u32, Option<Moved>)> = self.chunks.iter().map(to_move).collect();
        let rows = chunks.windows(count.max(1)).filter_map(|row| {
            let add = |(bytes, entries), (_, moved): &(u32, Option<Moved>)| {
                moved.as_ref().map(|moved| (bytes + moved.bytes, entries + moved.entries))
            };
            let (bytes, entries) = row.iter().try_fold((0, 0), add)?;
            // With each of the entries a whole chunk of a log may have to go.
            Some((bytes + entries * self.layout.chunk_size / FEW, row.first()?.0, bytes))
        });
        rows.min().map(|(_, first, bytes)| (first, bytes))
    }

    /// What must go elsewhere before a chunk is free; `None` if it cannot.
    fn bytes_to_move(&self, number: u32, chunk: &Chunk) -> Option<Moved> {
        match chunk.usage() {
            Use::Free => Some(Moved { bytes: 0, entries: 0 }),
            _ if self.hold.holds(number) => None,
            Use::Log if chunk.is_published() => {
                Some(Moved { bytes: chunk.live_bytes(self.clock.now()), entries: 0 })
            }
            Use::Blocks => {
                let entries = u64::from(chunk.live.load(Ordering::Relaxed));
                let lines = u64::from(chunk.lines.load(Ordering::Relaxed));
                Some(Moved { bytes: entries * lines * LINE as u64, entries })
            }
            Use::Log | Use::OpenLog | Use::Large | Use::Tail | Use::Other | Use::Bad => None,
        }
    }

    /// Moves what counts out of the chunks of a row.
    fn empty_row(&self, numbers: impl Iterator<Item = u32> + Clone) -> Result<()> {
        let of = |usage| {
            let chunks =
                numbers.clone().filter_map(|number| Some((number, self.chunks.get(number)?)));
            chunks.filter(move |(_, chunk)| chunk.usage() == usage)
        };
        {
            let mut packer = self.cleaners.packer.lock();
            // Its chunks of blocks may be among these.
            self.end_packing(&mut packer);
            let victims = of(Use::Blocks).map(|(number, chunk)| (number, chunk.generation()));
            self.begin_packing(&mut packer, victims.collect(), true)?;
        }
        // A list: some may stay.
        let logs: Vec<u32> = of(Use::Log).map(|(number, _)| number).collect();
        for number in logs {
            let mut cleaner = self.cleaner_of_log(number);
            let may_go = |chunk: &Chunk| chunk.usage() == Use::Log && chunk.is_published();
            if self.log_of(&cleaner, number).is_some_and(may_go) {
                self.clean_chunk(&mut cleaner, number)?;
            }
        }
        let packer = &self.cleaners.packer;
        while of(Use::Blocks).next().is_some() && self.pack_more(&mut packer.lock())? {}
        Ok(())
    }
}

/// What must go elsewhere.
struct Moved {
    bytes: u64,
    /// Records, each with its entry.
    entries: u64,
}
