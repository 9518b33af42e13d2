//! Scenarios of backups: what a copy of a store in use must hold, and what a crash leaves of a restore.

use super::races::one_core;
use super::scenarios::{Verdict, cut, each_state, memory, memory_of, open, put, words};
use super::subject::CHUNK_SIZE;
use esker::options::Progress;
use esker::{Store, restore_on_memory};
use esker_media::sim::{Initial, SimArchive, SimPm};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Chunks of the small stores that are restored.
const SMALL: u64 = 16 * CHUNK_SIZE;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn held(store: &Store) -> std::result::Result<Map, String> {
    let items = store.iter().map(|item| item.map(|(key, value)| (key, value.to_vec())));
    items.collect::<esker::Result<_>>().map_err(words)
}

/// Memory that had something else, to which a backup was restored.
fn restore_to(archive: &SimArchive) -> std::result::Result<Arc<SimPm>, String> {
    let target = memory_of(super::scenarios::SIZE, Initial::Ones);
    let mut options = one_core();
    options.format = true;
    restore_on_memory(archive, &*target, &options).map_err(words)?;
    Ok(target)
}

fn restored(archive: &SimArchive) -> std::result::Result<Map, String> {
    held(&open(&restore_to(archive)?, &one_core())?)
}

/// Records are freed and their blocks used anew, and logs cleaned, before each chunk is copied.
pub(super) fn what_is_copied_is_not_overwritten() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &one_core())?;
    for number in 0..8_u8 {
        put(&store, &format!("key{number}"), &[number; 400])?;
        // So that the chunk of the record is not free without it.
        put(&store, &format!("kept{number}"), &[number; 400])?;
        put(&store, &format!("small{number}"), &[number; 30])?;
    }
    let old = held(&store)?;
    let archive = SimArchive::new();
    let beside = store.clone();
    archive.before_create(move |file| {
        if file.starts_with("segment") {
            for number in 0..8_u8 {
                let _ = beside.put(format!("key{number}").as_bytes(), &[!number; 400]);
                let _ = beside.put(format!("small{number}").as_bytes(), &[!number; 30]);
            }
            let _ = beside.clean(8);
        }
    });
    match store.backup_to(&archive, &Progress::default()) {
        Ok(_) => {}
        Err(error) => return Err(format!("backup: {error}")),
    }
    if restored(&archive)? != old {
        return Err("something was overwritten before it was copied".to_owned());
    }
    Ok(())
}

/// A changed store's second backup, which may stop anywhere: one of both is there.
pub(super) fn a_backup_is_there_or_the_one_before() -> Verdict {
    for call in 1.. {
        let memory = memory(Initial::Zeros);
        let store = open(&memory, &one_core())?;
        let archive = SimArchive::new();
        for number in 0..8_u8 {
            put(&store, &format!("key{number}"), &[number; 400])?;
        }
        let old = held(&store)?;
        store.backup_to(&archive, &Progress::default()).map_err(words)?;
        for number in 0..6_u8 {
            put(&store, &format!("key{number}"), &[number; 300])?;
        }
        let new = held(&store)?;
        archive.fail_from(call);
        let ended = store.backup_to(&archive, &Progress::default()).is_ok();
        for seed in 0..12 {
            let found = restored(&archive.crash(seed))
                .map_err(|words| format!("call {call}, seed {seed}: {words}"))?;
            if found != new && (ended || found != old) {
                return Err(format!("call {call}, seed {seed}: neither backup is there"));
            }
        }
        if ended {
            break;
        }
    }
    Ok(())
}

/// Blocks of a chunk that an earlier backup has are taken between two backups, and none besides.
pub(super) fn a_chunk_that_changed_is_copied_again() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &one_core())?;
    let archive = SimArchive::new();
    for round in 0..3_u8 {
        for number in 0..3_u8 {
            put(&store, &format!("key{number}"), &[number ^ round; 400])?;
        }
        store.backup_to(&archive, &Progress::default()).map_err(words)?;
        if restored(&archive)? != held(&store)? {
            return Err(format!("backup {round} has not what the store has"));
        }
        let again = store.backup_to(&archive, &Progress::default()).map_err(words)?;
        if again.segments_copied > 0 {
            return Err(format!("nothing changed, and it was copied: {again}"));
        }
    }
    Ok(())
}

/// A damaged file is refused, whichever it is, before anybody reads what was in it.
pub(super) fn a_damaged_backup_is_refused() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &one_core())?;
    for number in 0..8_u8 {
        put(&store, &format!("key{number}"), &[number; 400])?;
    }
    let archive = SimArchive::new();
    store.backup_to(&archive, &Progress::default()).map_err(words)?;
    for file in esker_media::Archive::list(&archive).map_err(words)? {
        let damaged = archive.copy();
        if !damaged.flip(&file, 300, 3) {
            return Err(format!("{file} is shorter than it should be"));
        }
        if restore_to(&damaged).is_ok() {
            return Err(format!("{file} is damaged, and was restored"));
        }
    }
    Ok(())
}

/// A store is replaced by its own backup: until that is whole, the one that was there is, or none.
pub(super) fn a_restore_is_whole_or_none() -> Verdict {
    let memory = memory_of(SMALL, Initial::Zeros);
    let store = open(&memory, &one_core())?;
    put(&store, "key", &[1; 400])?;
    put(&store, "small", &[1; 30])?;
    let backed_up = held(&store)?;
    let archive = SimArchive::new();
    store.backup_to(&archive, &Progress::default()).map_err(words)?;
    put(&store, "key", &[2; 400])?;
    put(&store, "later", &[2; 30])?;
    let replaced = held(&store)?;
    let target = memory_of(SMALL, Initial::Recycled(memory.image()));
    let mut options = one_core();
    options.format = true;
    restore_on_memory(&archive, &*target, &options).map_err(words)?;
    if held(&open(&cut(&target), &one_core())?)? != backed_up {
        return Err("what was restored did not survive".to_owned());
    }
    let (mut number, mut refused) = (0_u32, 0);
    each_state(&target, 0, 24, |image| {
        // More than enough states: a part of them.
        number += 1;
        if !number.is_multiple_of(5) {
            return Ok(());
        }
        let opened = open(&memory_of(SMALL, Initial::Recycled(image)), &one_core());
        let found = match opened {
            // It is no store, and no place for a new one.
            Err(words) if words.contains("restore again") => {
                refused += 1;
                return Ok(());
            }
            opened => held(&opened?)?,
        };
        match found == backed_up || found == replaced {
            true => Ok(()),
            false => Err(format!("a part of a store: {} items", found.len())),
        }
    })?;
    if refused == 0 { Err("no cut was amid the restore".to_owned()) } else { Ok(()) }
}
