//! Scenarios of backups: what a crash leaves of one, and of a restore.

use crate::scenarios::{Told, words};
use crate::workload::{DEVICES, devices, files, options};
use esker::options::Progress;
use esker::{Direction, Durability, Store, restore_flex_on};
use esker_media::Archive;
use esker_media::sim::{Image, Initial, SimArchive, SimDevices};
use std::collections::BTreeMap;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Result<T> = std::result::Result<T, String>;

pub(crate) fn all() -> Told {
    a_backup_is_there_or_the_one_before().map_err(|words| format!("backup: {words}"))?;
    a_damaged_backup_is_refused().map_err(|words| format!("damaged backup: {words}"))?;
    a_restore_is_whole_or_none().map_err(|words| format!("restore: {words}"))
}

fn held(store: &Store) -> Result<Map> {
    let items = store.scan(.., Direction::Forward, usize::MAX).map_err(words)?;
    Ok(items.into_iter().map(|(key, value)| (key, value.to_vec())).collect())
}

/// A store of some pairs, two of them large.
fn store(devices: &SimDevices) -> Result<Store> {
    let mut options = options(1);
    options.durability = Durability::Sync;
    options.format = true;
    let store = Store::open_flex_on(files(devices), &options).map_err(words)?;
    change(&store, 30, 100)?;
    Ok(store)
}

fn change(store: &Store, count: u8, size: usize) -> Told {
    for number in 0..count {
        let size = if number % 13 == 5 { 20 * size } else { size };
        store.put(&[b'k', number], &vec![number; size]).map_err(words)?;
    }
    Ok(())
}

fn fresh() -> SimDevices {
    devices(&vec![Initial::Zeros; DEVICES], 3, true)
}

fn restore_to(archive: &dyn Archive, devices: &SimDevices) -> esker::Result<()> {
    let mut options = options(7);
    options.format = true;
    restore_flex_on(archive, files(devices), &options).map(drop)
}

fn opened(devices: &SimDevices) -> esker::Result<Store> {
    let mut options = options(9);
    options.create = false;
    Store::open_flex_on(files(devices), &options)
}

/// As those do who serve a store, whatever there is.
fn opened_or_made(devices: &SimDevices) -> esker::Result<Store> {
    Store::open_flex_on(files(devices), &options(9))
}

fn restored(archive: &dyn Archive) -> Result<Map> {
    let devices = fresh();
    restore_to(archive, &devices).map_err(words)?;
    held(&opened(&devices).map_err(words)?)
}

/// A changed store's second backup, which may stop anywhere: one of both is there.
fn a_backup_is_there_or_the_one_before() -> Told {
    for call in 1.. {
        let devices = fresh();
        let store = store(&devices)?;
        let archive = SimArchive::new();
        let old = held(&store)?;
        store.backup_to(&archive, &Progress::default()).map_err(words)?;
        change(&store, 20, 90)?;
        let new = held(&store)?;
        archive.fail_from(call);
        let backup = store.backup_to(&archive, &Progress::default());
        for seed in 0..12 {
            let found = restored(&archive.crash(seed))?;
            if found != new && (backup.is_ok() || found != old) {
                return Err(format!("call {call}, seed {seed}: neither backup is there"));
            }
        }
        if backup.is_ok() {
            break;
        }
    }
    Ok(())
}

/// A damaged file is refused, wherever the damage is.
fn a_damaged_backup_is_refused() -> Told {
    let devices = fresh();
    let archive = SimArchive::new();
    store(&devices)?.backup_to(&archive, &Progress::default()).map_err(words)?;
    for file in archive.list().map_err(words)? {
        let damaged = archive.copy();
        damaged.flip(&file, 60, 3);
        if let Ok(found) = restored(&damaged) {
            return Err(format!("{file} is damaged, and {} items were restored", found.len()));
        }
    }
    Ok(())
}

/// Power fails while a store is restored in place of a newer state of itself: it is all there, or none, and then nobody makes another one.
fn a_restore_is_whole_or_none() -> Told {
    let first = fresh();
    let store = store(&first)?;
    let archive = SimArchive::new();
    store.backup_to(&archive, &Progress::default()).map_err(words)?;
    let old = held(&store)?;
    change(&store, 30, 80)?;
    let new = held(&store)?;
    store.forget();
    let images: Vec<Image> = first.devices().iter().map(|device| device.image()).collect();
    let initial: Vec<_> = images.into_iter().map(Initial::Recycled).collect();
    let target = devices(&initial, 5, true);
    restore_to(&archive, &target).map_err(words)?;
    let (traces, end) = (target.traces(), target.position());
    for position in (0..=end).rev() {
        for seed in 0..3 {
            let images = SimDevices::cut(&traces, position, seed);
            let initial: Vec<_> = images.into_iter().map(Initial::Recycled).collect();
            let survived = devices(&initial, 8, false);
            let store = match opened_or_made(&survived) {
                Ok(store) => store,
                Err(error) if error.to_string().contains("restore again") => continue,
                Err(error) => return Err(error.to_string()),
            };
            let found = held(&store)?;
            // Behind its last call, it is what the backup has.
            if found != old && (position == end || found != new) {
                return Err(format!("half a store after a cut at {position} of {end}"));
            }
        }
        if position == end {
            let survived = SimDevices::cut(&traces, end, 99);
            let initial: Vec<_> = survived.into_iter().map(Initial::Recycled).collect();
            let found = held(&opened(&devices(&initial, 8, false)).map_err(words)?)?;
            if found != old {
                return Err("what was restored is not durable".to_owned());
            }
        }
    }
    Ok(())
}
