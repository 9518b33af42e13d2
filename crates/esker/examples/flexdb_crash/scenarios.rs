//! Rules that chance does not reach: damage of what was durable.

use crate::workload::{DEVICES, devices, files, options};
use esker::{Direction, Durability, ErrorKind, Store};
use esker_media::sim::{Image, Initial};

pub(crate) type Told = std::result::Result<(), String>;

pub(crate) fn all() -> Told {
    damage().map_err(|words| format!("damage: {words}"))?;
    crate::backups::all()
}

pub(crate) fn words(error: esker::Error) -> String {
    error.to_string()
}

/// A store with one durable batch behind the other in its log, and pairs in its space.
fn images(committed: bool) -> std::result::Result<Vec<Image>, String> {
    let devices = devices(&vec![Initial::Zeros; DEVICES], 1, true);
    let mut options = options(1);
    options.durability = Durability::Sync;
    options.flex.memtable_size_bytes = 3000;
    options.format = true;
    let store = Store::open_flex_on(files(&devices), &options).map_err(words)?;
    for number in 0..8_u8 {
        store.put(&[b'k', number], &[number; 100]).map_err(words)?;
    }
    if committed {
        store.close().map_err(words)?;
    }
    drop(store);
    Ok(devices.devices().iter().map(|device| device.image()).collect())
}

/// What an open and a scan of these images say.
fn found(images: &[Image]) -> esker::Result<usize> {
    let initial: Vec<_> = images.iter().cloned().map(Initial::Recycled).collect();
    let devices = devices(&initial, 2, false);
    let mut options = options(7);
    options.create = false;
    let store = Store::open_flex_on(files(&devices), &options)?;
    Ok(store.scan(.., Direction::Forward, usize::MAX)?.len())
}

fn place_of(image: &Image, bytes: &[u8]) -> Option<u64> {
    let all = image.to_vec();
    all.windows(bytes.len()).position(|window| window == bytes).map(|at| at as u64)
}

fn damage() -> Told {
    let logged = images(false)?;
    if found(&logged).map_err(words)? != 8 {
        return Err("not all pairs come back".to_owned());
    }
    // The log of the first generation is the second device.
    let log = place_of(&logged[4], b"ESKW").ok_or("no batch")?;
    for batch in [0, 512, 3 * 512] {
        let mut damaged = logged.clone();
        damaged[4].flip(log + batch + 100, 1);
        match found(&damaged) {
            Err(error) if error.kind() == ErrorKind::Corrupted => {}
            other => return Err(format!("a flipped bit in batch {batch} passes: {other:?}")),
        }
    }
    let committed = images(true)?;
    if found(&committed).map_err(words)? != 8 {
        return Err("not all pairs are in the space".to_owned());
    }
    // The size of the first interval in the saved index: then it does not count, and nobody needs it.
    let mut damaged = committed.clone();
    damaged[5].flip(4096 + 2, 1);
    match found(&damaged) {
        Ok(8) => {}
        other => return Err(format!("a flipped bit in the saved index: {other:?}")),
    }
    Ok(())
}
