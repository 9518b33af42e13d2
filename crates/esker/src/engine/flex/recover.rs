//! Opening: the root, the logs whose tables are not in the space, and an index of where intervals begin (FlexSpace §5.4).
//!
//! # Invariants
//! - O1: logs are replayed in the order of their generations, each as far as its batches follow each other.
//! - O2: what was found is durable before anybody reads it, and stays in its log until its table is in the space.
//! - O3: a batch that does not count ends its log, unless there is proof that it was durable: that is damage, and the open
//!   fails. So does it if a log is missing between what the root names and those that are there, or is in the file of the other one.
//! - O4: the headers of batches that do not count, and whose generation comes again, are gone, durably, before anything
//!   else is written. Else a later batch, torn in its turn, could make a lost one whole that ends in the same
//!   bytes, or go before lost ones that follow it.

use super::index::{Entry, Fresh};
use super::memtable::{MemTable, RangeDelete};
use super::wal::Tail;
use super::wal::reader::{FoundLog, Reader, readers};
use super::{ROOT_BYTES, sites};
use crate::engine::threads::{THREADS_MAX, on_threads};
use crate::flex::Space;
use crate::options::FlexOptions;
use esker_base::hash::KeyHasher;
use esker_base::{Error, ErrorKind, Result};
use esker_format::Flaw;
use esker_format::flex_db::{Batch, Change, KEY_SIZE_MAX_BYTES, ROOT_SIZE, Root, Run};
use esker_media::BlockDevice;
use std::ops::Range;

pub(super) const OPERATION: &str = "open store";

/// What an open found in the logs.
#[derive(Debug)]
pub(super) struct FoundTables {
    /// Oldest first.
    pub(super) tables: Vec<MemTable>,
    pub(super) next_version: u64,
    /// Where the log goes on.
    pub(super) tail: Tail,
}

/// Reads the root of a store; one that is new gets `fresh`.
pub(super) fn root(space: &Space, fresh: Option<Root>, name: &str) -> Result<Root> {
    if space.size_bytes() == 0
        && let Some(root) = fresh
    {
        space.insert_range(0, &root.encode())?;
        // Twice, in a log and in a tree: without it the space is empty, as is one of a store that is only being made.
        space.checkpoint()?;
        return Ok(root);
    }
    let mut bytes = [0; ROOT_SIZE];
    let read = space.read(0, &mut bytes)?;
    let bytes = bytes.get(..read).unwrap_or_default();
    Root::decode(bytes, || false).map_err(|flaw| match flaw {
        Flaw::Version(version) => Error::new(ErrorKind::UnsupportedFormat, OPERATION)
            .device(name)
            .context(format!("format version {version}")),
        flaw => Error::corrupted(OPERATION, flaw.to_string()).device(name),
    })
}

/// Replays the logs whose tables are not in the space. Versions go on so far behind all that was found: those of writes that were lost,
/// of which nothing is known, do not come again.
pub(super) fn logs(
    devices: [&dyn BlockDevice; 2],
    root: &Root,
    hasher: &KeyHasher,
    (memtable_size_bytes, versions_skipped): (u64, u64),
) -> Result<FoundTables> {
    let readers = readers(devices, root);
    let mut found: Vec<(FoundLog, &Reader<'_>)> = Vec::new();
    let mut lost = Vec::new();
    let mut newest = root.committed_generation;
    for reader in &readers {
        // PERSIST: what is found, which may be in a cache only, before anybody reads it.
        reader.device().flush(sites::WAL_RECOVER_FLUSH)?;
        if !sites::WAL_DAMAGE.disabled() {
            reader.check_start()?;
        }
        let log = reader.walk(|_, _| Ok(()))?;
        log.as_ref().map_or(Ok(()), |log| reader.check_place(log.generation))?;
        lost.push((reader, reader.lost_batches(log.as_ref())?));
        if let Some(log) = log {
            let is_old = log.generation <= root.committed_generation;
            if !is_old || sites::WAL_GENERATION.disabled() {
                newest = newest.max(log.generation);
                found.push((log, reader));
            }
        }
    }
    found.sort_by_key(|(log, _)| log.generation);
    let damaged = |words: &str| Error::corrupted(OPERATION, words);
    if let [(older, _), (newer, reader)] = &*found
        && (older.generation + 1 != newer.generation
            || newer.follows != older.end.previous_checksum)
        && !sites::WAL_DAMAGE.disabled()
    {
        return Err(damaged("the end of a log is missing").device(reader.device().name()));
    }
    if let Some((first, reader)) = found.first()
        && first.generation > root.committed_generation + 1
        && !sites::WAL_DAMAGE.disabled()
    {
        return Err(damaged("a log is missing").device(reader.device().name()));
    }
    if sites::WAL_ORDER.disabled() {
        found.reverse();
    }
    let mut next_version = root.last_version + 1;
    let mut previous_checksum = 0;
    let mut tables = Vec::new();
    for (log, reader) in &found {
        let table = MemTable::new(log.generation, log.first_version, memtable_size_bytes, true);
        let again = reader.walk(|batch, bytes| replay(batch, bytes, &table, hasher))?;
        // What is proven to be whole is what was found before.
        if again.as_ref() != Some(log) {
            return Err(damaged("the log changed while it was read").device(reader.device().name()));
        }
        next_version = next_version.max(log.next_version);
        previous_checksum = log.end.previous_checksum;
        tables.push(table);
    }
    for (reader, batches) in lost {
        let again = |(at, generation)| (generation > newest).then_some(at);
        reader.erase(batches.into_iter().filter_map(again))?;
    }
    let tail = Tail { generation: newest + 1, previous_checksum, ..Tail::default() };
    Ok(FoundTables { tables, next_version: next_version + versions_skipped, tail })
}

/// Notes durably that versions up to this one were given, before others are: what comes now may be lost without a trace, and if the next
/// open began where this one does, its versions would come again. So may as many as are `ahead`; if none may, there is nothing to note.
pub(super) fn note_versions(
    space: &Space,
    root: &mut Root,
    last_version: u64,
    ahead: u64,
) -> Result<()> {
    if ahead == 0 {
        return Ok(());
    }
    root.last_version = root.last_version.max(last_version);
    let done = space.write(0, &ahead_by(root, ahead).encode()).and_then(|()| space.sync());
    match done {
        // It is open for reads and deletes.
        Err(error) if error.kind() == ErrorKind::NoSpace => Ok(()),
        done => done,
    }
}

/// The root as it is to be on media. Who looks at the space as of the last commit goes by what was given until then, and not by this.
pub(super) fn ahead_by(root: &Root, ahead: u64) -> Root {
    Root { last_version: root.last_version.saturating_add(ahead), ..*root }
}

pub(super) fn replay(
    batch: &Batch,
    bytes: &[u8],
    table: &MemTable,
    hasher: &KeyHasher,
) -> Result<()> {
    batch
        .changes(bytes, |version, change| {
            match change {
                Change::Set(key, content) => {
                    table.insert((key, hasher.hash(key)), (version, content), None, |_, _| false);
                }
                // A version that was written over before its table got a log.
                Change::DeleteRange(from, Some(to)) if to <= from => {}
                Change::DeleteRange(from, to) => table.delete_range(RangeDelete {
                    from: from.to_vec(),
                    to: to.map(<[u8]>::to_vec),
                    version,
                }),
            }
            Ok::<(), Flaw>(())
        })
        .map_err(|flaw| Error::corrupted(OPERATION, flaw.to_string()))
}

/// Where intervals begin, and their anchors.
type Anchors = Vec<(u64, Vec<u8>)>;

/// Looks up about one interval in each step of the space up to `end`, by several threads: FlexSpace §5.4.
pub(super) fn intervals(
    space: &Space,
    end: u64,
    options: &FlexOptions,
    name: &str,
) -> Result<Vec<Fresh>> {
    let found = marks(space, end, options, name)?;
    let is_whole =
        end <= ROOT_BYTES || found.first().is_some_and(|(offset, _)| *offset == ROOT_BYTES);
    if !is_whole {
        return Err(Error::corrupted(OPERATION, "no interval begins behind the root").device(name));
    }
    between(found, end, name)
}

/// As [`intervals`]; what cannot be read of the beginning is an interval, too.
pub(super) fn intervals_over_damage(
    space: &Space,
    end: u64,
    options: &FlexOptions,
    name: &str,
) -> Result<Vec<Fresh>> {
    let mut found = marks(space, end, options, name)?;
    if end > ROOT_BYTES && found.first().is_none_or(|(offset, _)| *offset != ROOT_BYTES) {
        found.insert(0, (ROOT_BYTES, Vec::new()));
    }
    between(found, end, name)
}

/// About one mark in each step.
fn marks(space: &Space, end: u64, options: &FlexOptions, name: &str) -> Result<Anchors> {
    let (step, threads) = (options.rebuild_step_bytes, options.rebuild_threads);
    if end <= ROOT_BYTES {
        return Ok(Anchors::new());
    }
    in_parts(ROOT_BYTES..end, step, threads, |part| {
        anchors(space, part.start, part.end, step, name)
    })
}

/// What `part` finds in each part of a range, one behind the other, by so many threads, each of which has `least` or more of it.
pub(super) fn in_parts<T: Send>(
    all: Range<u64>,
    least: u64,
    threads: usize,
    part: impl Fn(Range<u64>) -> Result<Vec<T>> + Sync,
) -> Result<Vec<T>> {
    let length = all.end.saturating_sub(all.start);
    let most = usize::try_from(length / least.max(1)).unwrap_or(usize::MAX);
    let threads = threads.clamp(1, THREADS_MAX).min(most.saturating_add(1));
    let share = length.div_ceil(threads as u64).max(1);
    let parts = on_threads(OPERATION, threads, |number| {
        let start = all.start + number as u64 * share;
        part(start.min(all.end)..(start + share).min(all.end))
    })?;
    Ok(parts.into_iter().flatten().collect())
}

/// The intervals that begin at these marks, of which nobody knows what is inside.
fn between(found: Anchors, end: u64, name: &str) -> Result<Vec<Fresh>> {
    // That of the first one does not matter: it holds whatever is before the second.
    let anchors = || found.iter().skip(1).map(|(_, anchor)| anchor);
    if anchors().next().is_some_and(Vec::is_empty) || !anchors().is_sorted_by(|a, b| a < b) {
        return Err(Error::corrupted(OPERATION, "intervals are out of order").device(name));
    }
    let ends: Vec<u64> = found.iter().skip(1).map(|(offset, _)| *offset).chain([end]).collect();
    let too_long = || Error::corrupted(OPERATION, "an interval of 4 GiB").device(name);
    let fresh = found.into_iter().zip(ends).map(|((offset, anchor), end)| {
        let size = u32::try_from(end - offset).map_err(|_| too_long())?;
        Ok(Fresh::new(anchor, Entry::coarse(size)))
    });
    fresh.collect()
}

/// Marks and anchors between two offsets, `step` apart.
fn anchors(space: &Space, start: u64, end: u64, step: u64, name: &str) -> Result<Anchors> {
    let mut found = Vec::new();
    let mut at = start;
    while let Some(mark) = space.next_mark(at)? {
        if mark >= end {
            break;
        }
        let anchor = match mark {
            ROOT_BYTES => Ok(Vec::new()),
            _ => anchor_at(space, mark, name),
        };
        at = match anchor {
            Ok(anchor) => {
                found.push((mark, anchor));
                mark.saturating_add(step.max(1))
            }
            // It is a part of what is before it until somebody looks inside.
            Err(error) if error.is_unread() => {
                tracing::error!(%error, "an interval whose beginning cannot be read");
                mark + 1
            }
            Err(error) => return Err(error),
        };
        if at >= end {
            break;
        }
    }
    Ok(found)
}

fn anchor_at(space: &Space, offset: u64, name: &str) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 256];
    loop {
        let read = space.read(offset, &mut bytes)?;
        let damaged = |words: &str| Error::corrupted(OPERATION, words.to_owned()).device(name);
        match Run::peek_anchor(bytes.get(..read).unwrap_or_default()) {
            Ok(Some(anchor)) => return Ok(anchor.to_vec()),
            Ok(None) if bytes.len() <= KEY_SIZE_MAX_BYTES => {
                bytes.resize(KEY_SIZE_MAX_BYTES + 256, 0)
            }
            Ok(None) => return Err(damaged("no interval where one is marked")),
            Err(flaw) => return Err(damaged(&flaw.to_string())),
        }
    }
}
