//! Backups: a copy of the log as it stood at one moment, taken while everything goes on.
//!
//! A backup is what a power cut at one moment, the *cut*, could have left of a store that had just
//! told its device of all free space: the segments in use, each up to the last batch that was durable
//! by then. So restoring is recovery, and what recovery guarantees holds for backups.
//!
//! # Why it is right
//! The cut is made under the cleaner's lock, in this order: everything in use is held from now on;
//! the batch in flight is waited for, and what was published is flushed; then, under the log's lock,
//! `next_version` becomes the version below which everything is durable, and the segments in use are
//! listed.
//!
//! - *Nothing acknowledged is missing.* What was acknowledged before is published, so it is flushed
//!   and has a lower version. A segment that is not listed was free before the hold began; what
//!   killed its last record was published before, in a batch that was waited for or flushed. So each
//!   of its records is older than a record below `next_version`, whose segment is listed in turn: the
//!   newest record below the cut of each key is in the backup.
//! - *Order and batches.* The clients' stream is cut between two batches, by number, and complete
//!   below: versions below `next_version` and no others. Atomic batches are one batch of the log.
//! - *Moves.* The cleaner is between two segments at the cut: what it moved is in its streams as far
//!   as their next numbers, which are cut the same way, durable, and followed by the index. Originals
//!   that died of that are in a held segment or were free before. It may move anything afterwards:
//!   the listed segments keep their bytes.
//! - *Bytes.* A listed segment that is to be copied is held (H1 of [`super::hold`]) until its copy was
//!   read, so its bytes below the cut are those of the cut, and its epoch is checked as well. Full
//!   segments do not change in one incarnation, so those that an earlier backup has, by id, epoch and
//!   salt, are not read again and not held. But two stores that were made of one, by a restore or as a copy of its device, go on in the
//!   segment that was open, each in a session of its own. So their trailers are compared, which tell the session; and a segment of the
//!   cleaner that was left open, which has none, is copied again.
//! - *No damage.* What is copied was verified, in the memory that it is copied from, as `check` does: the batches of a segment
//!   are whole, one behind the other, and end with the summary, or where the cut says. A segment of the cleaner that an earlier
//!   session left open says nowhere how far it goes: it has to have all that the index knows there, and nothing behind it may
//!   say that there was more, which a recovery would say of the copy.
//! - *Deleted keys stay deleted.* A tombstone was dropped before the cut only if no segment that
//!   recovery would read had an older record; the listed ones are among those. Dropping one later
//!   changes no listed byte. What headers of free segments said of cleared records, the manifest says.
//!
//! # Concurrency
//! One backup at a time. The cleaner's lock is held for the cut: one batch and one flush at most. Then
//! nothing is held across a copy that anybody waits for; if a writer finds no room, the hold is broken
//! and the backup fails.
//!
//! # Failure
//! Files are durable before the manifest names them, and it gets its name at once; older files go
//! last. A crash or an error leaves the earlier backup and files that the next one removes.

use super::hold::Holding;
use super::log::Ticket;
use super::scan::{SegmentEnd, Step};
use super::segments::Incarnation;
use super::{Depot, sites};
use crate::backup::BackupReport;
use crate::engine;
use crate::engine::backup::{Copied, copied, publish, read_manifest, remove_unnamed};
use crate::options::Progress;
use esker_base::checksum::Crc32c;
use esker_base::ids::{SegmentId, Sequence, Version};
use esker_base::{Error, ErrorKind, Result};
use esker_format::backup::{Manifest, ManifestEntry, SegmentForm};
use esker_format::depot::{SEGMENT_HEADER_SIZE, SegmentHeader, Stream};
use esker_media::{Archive, IoBuf};
use std::collections::HashSet;

/// Bytes read at once.
const COPY_SIZE: usize = 1 << 20;

/// A segment of the cut.
#[derive(Clone, Copy, Debug)]
struct Part {
    id: SegmentId,
    of: Incarnation,
    end: End,
}

/// Where the copy of a segment ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// At the segment's end.
    Whole,
    /// Before the first batch with this number or a higher one. All lower ones are there.
    Before(Sequence),
    /// At this offset: the log ended here when the store was opened, and did not go on since.
    At(u64),
}

/// What a backup covers.
struct Cut {
    next_version: Version,
    clear_version: Version,
    /// Segments to copy.
    missing: Vec<Part>,
    /// Segments that an earlier backup has.
    entries: Vec<ManifestEntry>,
}

impl Depot {
    /// Copies the store to `archive`.
    pub(super) fn backup_store(
        &self,
        archive: &dyn Archive,
        progress: &Progress,
    ) -> Result<BackupReport> {
        self.log.refuse()?;
        let earlier: Option<Manifest> = read_manifest(archive)?;
        if let Some(earlier) = &earlier
            && earlier.superblock.store_id != self.superblock.store_id
        {
            let words = format!(
                "the folder has backups of store {}, this one is {}",
                earlier.superblock.store_id, self.superblock.store_id
            );
            return Err(Error::invalid("back up", words).device(archive.name()));
        }
        remove_unnamed(archive, earlier.as_ref())?;
        let copied = self.same_of(archive, copied(archive, earlier.as_ref())?)?;
        let number = earlier.map_or(1, |earlier| earlier.number + 1);
        let (holding, cut) = self.cut(&copied)?;
        let Cut { next_version, clear_version, mut missing, mut entries } = cut;
        // Those with little that lives first: they are what the cleaner wants next.
        missing.sort_by_key(|part| self.segments.live_bytes(part.id));
        let reused = entries.len() as u64;
        let mut bytes = 0;
        for (done, part) in (0..).zip(&missing) {
            progress.report(done, missing.len() as u64);
            let entry = self.copy_part(archive, &holding, part, number, progress)?;
            bytes += entry.length_bytes;
            entries.push(entry);
        }
        progress.report(missing.len() as u64, missing.len() as u64);
        drop(holding);
        entries.sort_by_key(|entry| entry.id);
        let manifest = Manifest {
            number,
            next_version,
            clear_version,
            created_unix_seconds: self.clock.unix_seconds(),
            superblock: self.superblock,
            segments: entries,
        };
        publish(archive, &manifest)?;
        Ok(BackupReport {
            segments_copied: missing.len() as u64,
            segments_reused: reused,
            bytes_copied: bytes,
            last_version: Version(next_version.0.saturating_sub(1)),
        })
    }

    /// Of the full segments that an earlier backup has, those that are full of the same.
    fn same_of(&self, archive: &dyn Archive, copied: Copied) -> Result<Copied> {
        let source = self.source(sites::BACKUP_READ);
        let mut same = Copied::new();
        for (key, entry) in copied {
            let (id, epoch, salt) = key;
            let of = self.segments.incarnation(id);
            if entry.form != SegmentForm::Whole || (of.epoch.0, of.salt) != (epoch, salt) {
                continue;
            }
            // Where it cannot be read, who copies the segment tells.
            let Ok(Some(ours)) = source.trailer(id, of) else { continue };
            let mut theirs = vec![0; ours.len()];
            let read = archive.read_at(&entry.file_name(), self.layout.trailer(), &mut theirs)?;
            if read == ours.len() && theirs == *ours {
                same.insert(key, entry);
            }
        }
        Ok(same)
    }

    /// Chooses what the backup covers, and begins to hold what is not copied yet.
    fn cut(&self, copied: &Copied) -> Result<(Holding<'_>, Cut)> {
        let cleaner = self.cleaner.lock();
        let Some(holding) = self.segments.begin_hold() else {
            return Err(Error::new(ErrorKind::Locked, "back up")
                .context("another backup of this store is under way"));
        };
        // What the batch in flight kills may have died before the hold began. (No site: its records
        // are published and counted as durable without a switch of tasks, so only threads get here.)
        if let Some(ticket) = self.log.in_flight() {
            // A failure shows below.
            let _ = Ticket::wait(&ticket);
        }
        self.flush_published()?;
        let (used, tail, next_version, clear_version) = {
            let state = self.log.lock();
            state.refuse()?;
            let used = self.segments.in_use_or_held().into_iter();
            let used: Vec<_> =
                used.map(|(id, full)| (self.segments.incarnation(id), id, full)).collect();
            (used, state.tail, state.durable(), state.clear_version())
        };
        let [warm, cold] = cleaner.next_sequences();
        let fresh = used.iter().filter(|(of, ..)| of.stream == Stream::Fresh);
        let mut bases: Vec<Sequence> = fresh.map(|(of, ..)| of.base).collect();
        bases.sort_unstable();
        let mut cut = Cut { next_version, clear_version, missing: Vec::new(), entries: Vec::new() };
        for (of, id, full) in used {
            let until = match of.stream {
                Stream::Fresh => Sequence(next_version.0),
                Stream::Warm => warm,
                Stream::Cold => cold,
                Stream::Checkpoint => continue,
            };
            if of.base >= until {
                // Taken into use after the cut.
                continue;
            }
            // Of the clients' stream, full and complete below the cut: the next one begins there.
            let next_base = bases.get(bases.partition_point(|base| *base <= of.base));
            let below = of.stream != Stream::Fresh || next_base.is_none_or(|base| *base <= until);
            let end = match tail {
                _ if full && below => End::Whole,
                Some(tail) if tail.segment == id && tail.barrier_due => End::At(tail.position),
                _ => End::Before(until),
            };
            let earlier = copied.get(&(id, of.epoch.0, of.salt));
            match earlier.filter(|_| matches!(end, End::Whole)) {
                Some(entry) => cut.entries.push(*entry),
                None => cut.missing.push(Part { id, of, end }),
            }
        }
        holding.keep(cut.missing.iter().map(|part| part.id).collect());
        Ok((holding, cut))
    }

    /// Copies one segment to a file of its own.
    fn copy_part(
        &self,
        archive: &dyn Archive,
        holding: &Holding<'_>,
        part: &Part,
        number: u64,
        progress: &Progress,
    ) -> Result<ManifestEntry> {
        let mut entry = ManifestEntry {
            id: part.id,
            epoch: part.of.epoch,
            salt: part.of.salt,
            form: if matches!(part.end, End::Whole) {
                SegmentForm::Whole
            } else {
                SegmentForm::Cut
            },
            length_bytes: 0,
            number,
            checksum: 0,
        };
        let mut writer = archive.create(&entry.file_name())?;
        let copied = self.copy_bytes(part, holding, progress, &mut |bytes| writer.write(bytes));
        let released = holding.release(part.id);
        if !released && holding.is_broken() && !sites::BACKUP_HOLD.disabled() {
            return Err(Error::new(ErrorKind::NoSpace, "back up").context(
                "the store ran short of free segments while they were copied, and went on without \
                 the backup; the earlier backup is as it was",
            ));
        }
        (entry.length_bytes, entry.checksum) = copied?;
        writer.finish(engine::sites::BACKUP_FILE_FLUSH)?;
        Ok(entry)
    }

    /// Gives the bytes of a segment to `write`, once they are verified; returns their number and checksum.
    fn copy_bytes(
        &self,
        part: &Part,
        holding: &Holding<'_>,
        progress: &Progress,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<(u64, u32)> {
        let source = self.source(sites::BACKUP_READ);
        let store_id = self.superblock.store_id;
        let base = self.layout.segment_offset(part.id);
        let header = source.header(store_id, part.id)?;
        let Some(header) = header.filter(|header| Incarnation::from(header) == part.of) else {
            let words = format!("segment {} has not the header that it was given", part.id);
            return Err(Error::corrupted("back up", words)
                .device(self.device.name())
                .at(base, self.layout.block));
        };
        let length = match part.end {
            End::Whole => self.layout.segment_size,
            End::At(position) => position,
            End::Before(until) => self.cut_position(part, until)?,
        };
        let mut bytes = self.pool.get(usize::try_from(length).unwrap_or(0));
        let mut offset = base;
        for piece in bytes.chunks_mut(COPY_SIZE) {
            if self.log.is_closed() {
                return Err(Error::new(ErrorKind::Closed, "back up"));
            }
            progress.check("back up")?;
            if holding.is_broken() && !sites::BACKUP_HOLD.disabled() {
                // Told by the caller.
                return Ok((0, 0));
            }
            source.read(offset, piece)?;
            offset += piece.len() as u64;
        }
        let mut bytes = self.verified(part, &header, bytes)?;
        if let Some(head) = bytes.get_mut(..SEGMENT_HEADER_SIZE) {
            // Of two copies the one that is sound.
            head.copy_from_slice(&header.encode(store_id));
        }
        let mut crc = Crc32c::new();
        crc.update(&bytes);
        write(&bytes)?;
        Ok((length, crc.finish()))
    }

    /// The bytes of a segment, if they are what was written there.
    fn verified(&self, part: &Part, header: &SegmentHeader, bytes: IoBuf) -> Result<IoBuf> {
        let source = self.source(sites::BACKUP_READ);
        let mut found = HashSet::new();
        let moved = part.of.stream != Stream::Fresh;
        let (end, bytes) = source.walk_through(part.id, part.of, bytes, &mut |step| {
            if let Step::Record(_, offset) = step
                && moved
            {
                found.insert(offset);
            }
            Ok(())
        })?;
        let whole = match part.end {
            End::Whole if moved && !end.sealed => self.was_left_open(header, &end, &found)?,
            End::Whole => end.sealed,
            End::Before(_) | End::At(_) => end.position == bytes.len() as u64,
        };
        if !whole {
            let base = self.layout.segment_offset(part.id);
            return Err(Error::corrupted("back up", "a batch of the log is damaged")
                .device(self.device.name())
                .at(base + end.position, self.layout.block));
        }
        Ok(bytes)
    }

    /// Whether a segment of the cleaner without a summary is one that was left open, in which nothing is missing.
    fn was_left_open(
        &self,
        header: &SegmentHeader,
        end: &SegmentEnd,
        found: &HashSet<u64>,
    ) -> Result<bool> {
        let source = self.source(sites::BACKUP_READ);
        let id = header.segment_id;
        let mut cursor = 0;
        while let Some((links, next)) = self.index.walk(cursor) {
            let mut offsets = links.iter().map(|link| self.layout.offset_of(*link));
            if offsets.any(|at| self.layout.segment_of(at) == Some(id) && !found.contains(&at)) {
                return Ok(false);
            }
            cursor = next;
        }
        for (later, _) in self.segments.in_use_or_held() {
            let of = self.segments.incarnation(later);
            if of.stream == header.stream
                && of.epoch > header.epoch
                && let Some(later) = source.header(self.superblock.store_id, later)?
                && later.session_epoch == header.session_epoch
            {
                // The cleaner went on behind it, so it was full.
                return Ok(false);
            }
        }
        Ok(end.durable.max(source.durable_behind(id, header.salt, end)?) <= end.next)
    }

    /// Offset in the segment behind the last batch with records below `until`.
    fn cut_position(&self, part: &Part, until: Sequence) -> Result<u64> {
        let source = self.source(sites::BACKUP_READ);
        let mut position = self.layout.first_batch();
        let end = source.walk(part.id, part.of, &mut |step| {
            if let Step::Batch { blocks, header } = step
                && (header.first_sequence < until || sites::BACKUP_CUT.disabled())
            {
                let start = u64::from(blocks) * self.layout.block;
                position = start + u64::from(header.total_bytes);
            }
            Ok(())
        })?;
        if !end.sealed && end.next < until {
            let words = format!("records from number {} on are missing", end.next);
            let base = self.layout.segment_offset(part.id);
            return Err(Error::corrupted("back up", words)
                .device(self.device.name())
                .at(base + end.position, self.layout.block));
        }
        Ok(position)
    }
}
