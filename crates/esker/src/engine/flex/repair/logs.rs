//! Logs of which a batch is damaged: what is whole counts, also behind the damage.

use super::super::memtable::MemTable;
use super::super::recover::{FoundTables, replay};
use super::super::sites;
use super::super::wal::Tail;
use super::super::wal::reader::{blank, readers, starts_soundly};
use esker_base::hash::KeyHasher;
use esker_base::{Error, Result};
use esker_format::flex_db::Root;
use esker_media::BlockDevice;

/// The tables of all sound batches that are not in the space, of the newest generation that each log has. Versions decide between
/// them and what the space has, so it does not matter what is missing; but keys that were written in a damaged batch have older values.
pub(super) fn over_damage(
    devices: [&dyn BlockDevice; 2],
    root: &Root,
    hasher: &KeyHasher,
    (memtable_size_bytes, versions_skipped): (u64, u64),
) -> Result<FoundTables> {
    let mut found = Vec::new();
    let mut newest = root.committed_generation;
    for reader in readers(devices, root) {
        reader.device().flush(sites::WAL_RECOVER_FLUSH)?;
        let mut batches = reader.all_batches()?;
        // What is left of older ones is in the space, and was changed there since.
        let generation = batches.iter().map(|(generation, ..)| *generation).max().unwrap_or(0);
        newest = newest.max(generation);
        batches.retain(|(of, ..)| *of == generation && *of > root.committed_generation);
        batches.sort_unstable();
        if !batches.is_empty() {
            reader.check_place(generation)?;
            found.push((generation, reader, batches));
        }
    }
    found.sort_by_key(|(generation, ..)| *generation);
    let mut next_version = root.last_version + 1;
    let mut tables = Vec::new();
    for (generation, reader, batches) in &found {
        let mut table: Option<MemTable> = None;
        for (_, _, at) in batches {
            let gone = || Error::corrupted("repair store", "a batch of the log changed");
            let (batch, _, bytes) = reader.batch_at(*at)?.ok_or_else(gone)?;
            let table = table.get_or_insert_with(|| {
                MemTable::new(*generation, batch.first_version, memtable_size_bytes, true)
            });
            replay(&batch, &bytes, table, hasher)?;
            next_version = next_version.max(batch.first_version + u64::from(batch.change_count));
        }
        tables.extend(table);
    }
    let tail = Tail { generation: newest + 1, ..Tail::default() };
    Ok(FoundTables { tables, next_version: next_version + versions_skipped, tail })
}

/// Makes a log say nothing that does not begin as one: an open would refuse it. Nothing in it counts any more.
pub(super) fn blank_damaged(device: &dyn BlockDevice) -> Result<()> {
    if starts_soundly(device)? { Ok(()) } else { blank(device, false) }
}
