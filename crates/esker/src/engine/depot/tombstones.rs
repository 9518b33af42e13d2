//! Which tombstones may go (uDepot §4.5 recycles them in its GC; some came back to life there).
//!
//! A tombstone stands for its key's older records on media: while there is one, a crash without the
//! tombstone would bring it back. The cleaner moves tombstones like records. A purge finds those
//! that nothing older is left of: it notes the live tombstones of full segments, reads the summaries
//! of all segments, and drops those whose hash nobody has under a lower version. Where there are very many, it looks at some of them, and the
//! next purge at those behind.
//!
//! # Invariants
//! - T1: a tombstone is dropped only if no segment that recovery would read has a value with its
//!   hash and no higher version. Free segments whose headers recovery would accept lose them durably first, and those that were
//!   taken have their new ones durably; those that a backup holds back are read like full ones.
//!
//! # Concurrency
//! Under the cleaner's lock. What clients write meanwhile is newer than any tombstone that was noted. As they wait for nobody else,
//! segments are cleaned in between while they are short of free ones: what is moved then was live, and so no older record of a key
//! whose tombstone was. What had been moved before, and died, stands in segments that are listed, or were open, when the purge began.
//!
//! # Failure
//! Dropping changes DRAM only: after a crash the tombstone is back, until its segment is reused. Of a segment that is damaged, or
//! cannot be read, nobody knows what it hides: tombstones that may be for that stay.

use super::clean::Cleaner;
use super::scan::form_of;
use super::segments::Free;
use super::unread::FAILURES_MAX;
use super::{Depot, sites, spread};
use esker_base::ids::{SegmentEpoch, SegmentId, Version};
use esker_base::{ErrorKind, Result};
use esker_format::depot::{Stream, SummaryRecord, read_summary};
use esker_index::Link;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most tombstones that one purge looks at: this share of the items, as each purge reads the summaries of all of them; and so many at least and
/// at most. Each takes 32 bytes of memory for its time.
const PURGE_SHARE: u64 = 128;
const PURGE_MIN: u64 = 1 << 20;
const PURGE_MAX: u64 = 1 << 23;
/// Bits for each of them that tell most records of other keys from those of theirs.
const FILTER_BITS: usize = 16;
/// A purge is due when tombstones are more than this many, and this share of the items.
const DUE_MIN: u64 = 4096;
const DUE_SHARE: u64 = 16;

/// Between two looks whether others have written a header.
const RENEWAL: Duration = Duration::from_micros(100);

/// Where a tombstone stands: its segment, and the offset there.
pub(super) type TombstonePlace = (SegmentId, u64);

/// A live tombstone.
#[derive(Clone, Copy, Debug)]
struct Tombstone {
    /// Of its key.
    hash: u64,
    version: Version,
    link: Link,
    needed: bool,
}

/// Tombstones that a purge looks at, by the hashes of their keys.
#[derive(Debug)]
struct Noted {
    tombstones: Vec<Tombstone>,
    filter: Vec<u64>,
}

impl Noted {
    /// In an order that a second run has as well.
    fn new(mut tombstones: Vec<Tombstone>) -> Self {
        tombstones.sort_by_key(|tombstone| tombstone.hash);
        let words = (tombstones.len() * FILTER_BITS / 64).next_power_of_two();
        let mut noted = Noted { tombstones, filter: vec![0; words] };
        for place in 0..noted.tombstones.len() {
            let hash = noted.tombstones.get(place).map_or(0, |tombstone| tombstone.hash);
            let (word, bit) = noted.bit(hash);
            if let Some(word) = noted.filter.get_mut(word) {
                *word |= bit;
            }
        }
        noted
    }

    fn bit(&self, hash: u64) -> (usize, u64) {
        let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let word = usize::try_from(mixed >> 32).unwrap_or(0) & (self.filter.len() - 1);
        (word, 1 << (mixed >> 26 & 63))
    }

    /// The tombstones of keys with this hash.
    fn of(&mut self, hash: u64) -> &mut [Tombstone] {
        let (word, bit) = self.bit(hash);
        if self.filter.get(word).is_none_or(|word| word & bit == 0) {
            return &mut [];
        }
        let start = self.tombstones.partition_point(|tombstone| tombstone.hash < hash);
        let rest = self.tombstones.get_mut(start..).unwrap_or_default();
        let count = rest.iter().take_while(|tombstone| tombstone.hash == hash).count();
        rest.get_mut(..count).unwrap_or_default()
    }
}

/// Whether a purge is due that the one before left so many tombstones to, and perhaps stopped amid them.
fn is_due(tombstones: u64, items: u64, (kept, stopped): (u64, bool)) -> bool {
    let more = stopped || tombstones > kept / 4 * 5;
    tombstones > DUE_MIN.max(items / DUE_SHARE) && more
}

/// What a purge did that ended at a device which could not be read: who asked for room is told.
pub(super) fn unless_unread<T: Default>(cleaner: &mut Cleaner, purged: Result<T>) -> Result<T> {
    match purged {
        Err(error) if error.kind() == ErrorKind::Io => {
            cleaner.unread.tell(error);
            Ok(T::default())
        }
        purged => purged,
    }
}

impl Depot {
    /// Whether tombstones are many, and more by a quarter than the last purge left, or it did not come to all.
    pub(super) fn purge_due(&self, cleaner: &mut Cleaner) -> bool {
        let stopped = cleaner.purge_from.is_some();
        // Others count anew, once those that were left are gone.
        cleaner.tombstones_kept = cleaner.tombstones_kept.min(self.tombstones());
        is_due(self.tombstones(), self.items(), (cleaner.tombstones_kept, stopped))
    }

    /// As [`Depot::purge_tombstones`], for a writer that finds no room; false if nothing was dropped. Where no segment came or
    /// went since that was so, it is so again: a full store refuses writes without reading its summaries for each.
    pub(super) fn purge_for_room(&self, cleaner: &mut Cleaner) -> Result<bool> {
        let now = (self.segments.generation(), self.segments.free_count());
        if cleaner.purged_in_vain == Some(now) {
            return Ok(false);
        }
        let mut from_first = cleaner.purge_from.is_none();
        let dropped = loop {
            let dropped = self.purge_tombstones(cleaner)? > 0;
            let to_last = cleaner.purge_from.is_none();
            if dropped || to_last && std::mem::replace(&mut from_first, true) {
                break dropped;
            }
            // Who closes the store waits; no purge looks at anything any more.
            self.log.refuse()?;
            if self.background.is_stopping() {
                return Ok(false);
            }
        };
        cleaner.purged_in_vain = (!dropped).then_some(now);
        Ok(dropped)
    }

    /// Drops the tombstones that nothing older is left of; returns how many.
    pub(super) fn purge_tombstones(&self, cleaner: &mut Cleaner) -> Result<usize> {
        let most = (self.items() / PURGE_SHARE).clamp(PURGE_MIN, PURGE_MAX);
        self.purge_some(cleaner, usize::try_from(most).unwrap_or(usize::MAX))
    }

    /// As [`Depot::purge_tombstones`], of so many of them; the next purge goes on behind.
    fn purge_some(&self, cleaner: &mut Cleaner, most: usize) -> Result<usize> {
        if self.tombstones() == 0 {
            // Cleared: there is nothing to go on with.
            cleaner.purge_from = None;
            return Ok(0);
        }
        // What is not full yet is not read, and newer than all tombstones of clients. But the note that a
        // large value was evicted has the version of its head, wherever that stands.
        let open_from = self.segments.open_from();
        // Before the free segments are blanked: one that goes free meanwhile was listed.
        let mut full = self.segments.full_or_held();
        full.sort_unstable();
        self.blank_stale()?;
        self.renew_taken()?;
        let begun: Vec<SegmentId> = cleaner.open().map(|(id, ..)| id).collect();
        let mut in_vain = None;
        let mut noted: Vec<Tombstone> = Vec::new();
        let (from, mut rest) = (cleaner.purge_from, None);
        let epochs: BTreeMap<SegmentId, SegmentEpoch> =
            full.iter().map(|id| (*id, self.segments.epoch(*id))).collect();
        let behind = from.map_or(SegmentId(0), |(id, _)| id);
        let noted_from: Vec<SegmentId> = full.iter().copied().filter(|id| *id >= behind).collect();
        let is_more = Cell::new(true);
        let mut clean = || {
            self.clean_between(cleaner, &mut in_vain)?;
            Ok(is_more.get() && !self.background.is_stopping())
        };
        self.each_of(&noted_from, &mut clean, |record, id| {
            let place = (id, record.offset);
            if !record.kind.is_tombstone() || Some(place) < from || !is_more.get() {
                return;
            }
            let base = self.layout.segment_offset(id);
            let Some(link) = self.layout.link(record.kind, base + record.offset, 0) else { return };
            let hash = spread(record.hash);
            if self.index.lookup(hash).iter().any(|found| found == link) {
                if noted.len() >= most {
                    rest = Some(place);
                    is_more.set(false);
                    return;
                }
                let needed = record.version >= open_from;
                noted.push(Tombstone { hash, version: record.version, link, needed });
            }
        })?;
        let mut noted = Noted::new(noted);
        let mut meet = |record: SummaryRecord| {
            if !record.kind.has_value() {
                return;
            }
            for tombstone in noted.of(spread(record.hash)) {
                // The same version: of a record that expired or was evicted.
                tombstone.needed |=
                    record.version <= tombstone.version && !sites::TOMBSTONE_NEEDED.disabled();
            }
        };
        // Before any of them is full: what comes to them from now on is live.
        for (_, stream, summary) in cleaner.open() {
            // Of our own making, in memory.
            let _ = read_summary(summary, form_of(stream), self.layout.of_summaries(), &mut meet);
        }
        let is_open = |id: &SegmentId| cleaner.open().any(|(open, ..)| open == *id);
        let mut full = [full, begun, self.segments.full_or_held()].concat();
        full.retain(|id| !is_open(id));
        full.sort_unstable();
        full.dedup();
        let mut clean = || {
            self.clean_between(cleaner, &mut in_vain)?;
            Ok(!self.background.is_stopping())
        };
        let hidden_from = self.each_of(&full, &mut clean, |record, _| meet(record))?;
        if self.background.is_stopping() {
            // Not all may have been read; who closes the store waits.
            return Ok(0);
        }
        // Of those that were listed and taken meanwhile, what they were before has not been read.
        self.renew_taken()?;
        let mut dropped = 0;
        let unneeded =
            |tombstone: &&Tombstone| !tombstone.needed && tombstone.version < hidden_from;
        for Tombstone { hash, link, .. } in noted.tombstones.iter().filter(unneeded) {
            dropped += usize::from(self.drop_tombstone(*hash, *link, &epochs));
        }
        cleaner.tombstones_kept = self.tombstones();
        cleaner.purge_from = rest;
        Ok(dropped)
    }

    /// Gives the records of these segments to `visit`, with their segment; `between` comes between two of them, and says whether it goes
    /// on. Returns the version from which on records may be hidden in what cannot be read.
    fn each_of(
        &self,
        segments: &[SegmentId],
        between: &mut dyn FnMut() -> Result<bool>,
        mut visit: impl FnMut(SummaryRecord, SegmentId),
    ) -> Result<Version> {
        let mut hidden_from = Version(u64::MAX);
        let mut failures = 0;
        for id in segments.iter().copied() {
            if !between()? {
                break;
            }
            let of = self.segments.incarnation(id);
            if of.stream == Stream::Checkpoint {
                continue;
            }
            let error = match self.every_record(id, of, &mut |record| visit(record, id)) {
                Ok(()) => {
                    failures = 0;
                    continue;
                }
                Err(error) => error,
            };
            failures += usize::from(error.kind() == ErrorKind::Io);
            if failures >= FAILURES_MAX
                || !matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupted)
            {
                return Err(error);
            }
            tracing::warn!(%error, segment = id.0, "tombstones stay for what cannot be read of a segment");
            // What clients write is numbered by its version; what was moved may be of any age.
            let oldest = if of.stream == Stream::Fresh { of.base.0 } else { 0 };
            hidden_from = hidden_from.min(Version(oldest));
        }
        Ok(hidden_from)
    }

    /// Drops a tombstone that stood there when its segment had this epoch.
    fn drop_tombstone(
        &self,
        hash: u64,
        link: Link,
        epochs: &BTreeMap<SegmentId, SegmentEpoch>,
    ) -> bool {
        let segment = self.layout.segment_of(self.layout.offset_of(link)).unwrap_or_default();
        // Not one of the segment's next incarnation, which may look the same.
        let same = || epochs.get(&segment) == Some(&self.segments.epoch(segment));
        let remove = || same() && self.index.remove(hash, link);
        let gone = self.pending.relocate(hash, link, None, remove);
        if gone {
            self.segments.remove(segment, link, Version(0));
        }
        gone
    }

    /// Tells the device of up to `most` segments that they are free, but not of the first `kept` of those
    /// that it was not told of, nor of those that are to have room; returns their bytes. A file gives the space back to its file
    /// system.
    pub(super) fn trim_free(&self, kept: usize, most: usize) -> Result<u64> {
        let _cleaner = self.lock_cleaner()?;
        // A discarded segment may lose any part of its content at once: nobody may look for records
        // there, and whatever made them dead must be durable.
        self.blank_stale()?;
        // Behind that, those that are to have room are the first again.
        self.reserve_ahead();
        let (size, kept) = (self.layout.segment_size, kept.max(self.room_ahead()));
        let mut bytes = 0;
        // One after the other: what is not on the list is not there for those who were promised a place.
        for _ in 0..most.min(self.segments.count()) {
            let Some(free) = self.segments.take_untrimmed(kept) else { break };
            let done = self.device.discard(sites::TRIM, self.layout.segment_offset(free.id), size);
            let trimmed = done.is_ok();
            let (prepared, has_room) = (free.prepared && !trimmed, free.has_room && !trimmed);
            self.segments.put_back(Free { trimmed, prepared, has_room, ..free });
            done?;
            bytes += size;
        }
        Ok(bytes)
    }

    /// Waits until each segment that was taken has its new header durably: until then a crash brings back what it held.
    fn renew_taken(&self) -> Result<()> {
        let taken = self.segments.not_renewed();
        if taken.is_empty() || sites::TOMBSTONE_RENEWED.disabled() {
            return Ok(());
        }
        // In memory a segment may wait for its first write.
        self.write_out()?;
        // Who writes to one of the others is at it.
        while self.segments.not_renewed().iter().any(|id| taken.contains(id)) {
            self.log.refuse()?;
            esker_trt::sleep(RENEWAL);
        }
        Ok(())
    }

    /// Takes the validity from the headers of free segments, so that recovery does not read them. Half of what is free stays on the
    /// list for who writes meanwhile.
    pub(super) fn blank_stale(&self) -> Result<()> {
        loop {
            let most = (self.segments.free_count() / 2).max(1);
            let stale: Vec<Free> = (0..most).map_while(|_| self.segments.take_stale()).collect();
            if stale.is_empty() {
                return Ok(());
            }
            let blanked = self.blank_headers(&stale);
            for free in stale {
                self.segments.put_back(Free { stale: blanked.is_err(), ..free });
            }
            blanked.map_err(|error| self.poison(&error))?;
        }
    }

    /// Takes the validity from the headers of free segments that are on no list, durably.
    fn blank_headers(&self, stale: &[Free]) -> Result<()> {
        for free in stale {
            if free.after >= self.log.durable() {
                // PERSIST: what made the segment free must be durable before its header goes. Asked of each one: some went free
                //          after what made others so was flushed.
                self.flush_published()?;
            }
            self.blank_copies(free.id)?;
        }
        // PERSIST: T1. Crash before: the tombstones are still there.
        self.device.flush(sites::BLANK_FLUSH)
    }
}

#[cfg(test)]
mod tests;
