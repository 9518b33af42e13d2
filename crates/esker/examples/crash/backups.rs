//! Scenarios of backups: what a copy of a store in use must hold, and what a crash leaves of it.

use super::scenarios::{Verdict, device, open, put, words};
use super::subject::{SEGMENT_SIZE, options};
use esker::options::Progress;
use esker::{Options, Store, restore_on};
use esker_media::BlockDevice;
use esker_media::sim::{Initial, SimArchive, SimBlock, SimBlockOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn held(store: &Store) -> std::result::Result<Map, String> {
    let items = store.iter().map(|item| item.map(|(key, value)| (key, value.to_vec())));
    items.collect::<esker::Result<_>>().map_err(words)
}

fn format() -> Options {
    options(u64::MAX, true)
}

/// What a backup is restored to, on a device with `earlier` content.
fn restored(
    archive: &SimArchive,
    earlier: Initial,
) -> std::result::Result<(Store, esker::RestoreReport), String> {
    let target = device(earlier);
    let report = restore_on(archive, &*target, &format()).map_err(words)?;
    Ok((open(&target, &options(u64::MAX, false))?, report))
}

/// Tasks that overwrite a few keys and a cleaner run beside backups; each backup holds exactly the
/// writes up to its last version.
pub(super) fn a_backup_is_a_prefix() -> Verdict {
    for seed in 0..12 {
        prefix(seed)?;
    }
    Ok(())
}

fn prefix(seed: u64) -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(u64::MAX, false))?;
    let stop = Arc::new(AtomicBool::new(false));
    let (note, noted) = channel();
    let mut tasks = Vec::new();
    for name in 0..3_u64 {
        let (store, stop, note) = (store.clone(), Arc::clone(&stop), note.clone());
        tasks.push(esker_trt::spawn(move || -> Verdict {
            for n in 0..2000_u64 {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let key = format!("{name}/{}", (n * 7 + seed) % 11);
                let value = format!("{n} of {name};").repeat(1 + (n % 40) as usize);
                let version = store.put(key.as_bytes(), value.as_bytes()).map_err(words)?;
                let _ = note.send((version.0, key, value));
            }
            Ok(())
        }));
    }
    let (cleaned, stop_cleaner) = (store.clone(), Arc::clone(&stop));
    tasks.push(esker_trt::spawn(move || -> Verdict {
        while !stop_cleaner.load(Ordering::SeqCst) {
            cleaned.clean(1).map_err(words)?;
            esker_trt::sleep(Duration::from_micros(50));
        }
        Ok(())
    }));
    let mut done = Vec::new();
    for _ in 0..4 {
        esker_trt::sleep(Duration::from_millis(2));
        let archive = SimArchive::new();
        match store.backup_to(&archive, &Progress::default()) {
            Ok(report) => done.push((report.last_version.0, archive)),
            // Somebody needed the room.
            Err(error) if error.kind() == esker::ErrorKind::NoSpace => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.join().map_err(words)??;
    }
    drop(note);
    judge(&noted, &done)
}

fn judge(noted: &Receiver<(u64, String, String)>, done: &[(u64, SimArchive)]) -> Verdict {
    let history: BTreeMap<u64, (String, String)> =
        noted.iter().map(|(version, key, value)| (version, (key, value))).collect();
    for (last, archive) in done {
        let mut expected = Map::new();
        for (key, value) in history.range(..=last).map(|(_, change)| change) {
            expected.insert(key.clone().into_bytes(), value.clone().into_bytes());
        }
        let (store, _) = restored(archive, Initial::Zeros)?;
        if held(&store)? != expected {
            return Err(format!("a backup up to version {last} is not the writes up to there"));
        }
        drop(store);
    }
    Ok(())
}

/// Everything dies and segments are reused while a backup copies them.
pub(super) fn what_is_copied_is_not_overwritten() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(u64::MAX, false))?;
    for number in 0..40_u8 {
        put(&store, &format!("key{number}"), &[number; 500])?;
    }
    let old = held(&store)?;
    let archive = SimArchive::new();
    let beside = store.clone();
    archive.before_create(move |file| {
        if file.starts_with("segment") {
            for number in 0..40_u8 {
                let _ = beside.delete(format!("key{number}").as_bytes());
            }
            for number in 0..200_u8 {
                let _ = beside.put(b"filler", &[number; 900]);
            }
        }
    });
    store.backup_to(&archive, &Progress::default()).map_err(words)?;
    let (store, _) = restored(&archive, Initial::Zeros)?;
    if held(&store)? != old {
        return Err("a segment was overwritten before its copy was read".to_owned());
    }
    Ok(())
}

/// A backup and a changed store's second one, which may stop anywhere: one of both is there.
pub(super) fn a_backup_is_there_or_the_one_before() -> Verdict {
    for call in 1.. {
        let device = device(Initial::Zeros);
        let store = open(&device, &options(u64::MAX, false))?;
        let archive = SimArchive::new();
        for number in 0..30_u8 {
            put(&store, &format!("key{number}"), &[number; 500])?;
        }
        let old = held(&store)?;
        store.backup_to(&archive, &Progress::default()).map_err(words)?;
        for number in 0..20_u8 {
            put(&store, &format!("key{number}"), &[number; 400])?;
        }
        let new = held(&store)?;
        archive.fail_from(call);
        let ended = store.backup_to(&archive, &Progress::default()).is_ok();
        for seed in 0..12 {
            let (store, _) = restored(&archive.crash(seed), Initial::Zeros)?;
            let found = held(&store)?;
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

/// A damaged file is refused, wherever the damage is.
pub(super) fn a_damaged_backup_is_refused() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &options(u64::MAX, false))?;
    for number in 0..30_u8 {
        put(&store, &format!("key{number}"), &[number; 500])?;
    }
    let archive = SimArchive::new();
    store.backup_to(&archive, &Progress::default()).map_err(words)?;
    for file in esker_media::Archive::list(&archive).map_err(words)? {
        let damaged = archive.copy();
        damaged.flip(&file, 600, 3);
        if let Ok((store, _)) = restored(&damaged, Initial::Zeros) {
            return Err(format!(
                "{file} is damaged, and {} items were restored",
                held(&store)?.len()
            ));
        }
    }
    Ok(())
}

/// Power fails while a store is restored in place of a newer state of itself: it is all there, or
/// none.
pub(super) fn a_restore_is_whole_or_none() -> Verdict {
    let first = device(Initial::Zeros);
    let store = open(&first, &options(u64::MAX, false))?;
    for number in 0..24_u8 {
        put(&store, &format!("key{number}"), &[number; 500])?;
    }
    let archive = SimArchive::new();
    store.backup_to(&archive, &Progress::default()).map_err(words)?;
    let old = held(&store)?;
    for number in 0..24_u8 {
        put(&store, &format!("key{number}"), &[number; 450])?;
    }
    let new = held(&store)?;
    drop(store);
    let size = first.geometry().size_bytes;
    let target = SimBlockOptions::new(size, 3).initial(Initial::Recycled(first.image()));
    let target = SimBlock::new(target);
    restore_on(&archive, &target, &format()).map_err(words)?;
    let trace = target.trace();
    let mut replay = trace.replay();
    while replay.step() {
        for state in replay.states(8, replay.position()) {
            let survived = device(Initial::Recycled(state.image()));
            let Ok(store) = open(&survived, &options(u64::MAX, false)) else { continue };
            let found = held(&store).map_err(|words| format!("{words} [{}]", state.describe()))?;
            if found != old && found != new {
                return Err(format!("half a store [{}] of {SEGMENT_SIZE}", state.describe()));
            }
        }
    }
    let survived = device(Initial::Recycled(super::scenarios::cut(&target)));
    if held(&open(&survived, &options(u64::MAX, false))?)? != old {
        return Err("what was restored is not durable".to_owned());
    }
    Ok(())
}
