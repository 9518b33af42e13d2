//! Rules that chance does not reach: damage of what was durable, and batches that were lost.

use crate::torn;
use crate::workload::{DEVICES, devices, files, options};
use esker::{Attributes, Batch, Direction, Durability, ErrorKind, PutOptions, Store};
use esker_base::clock::ManualClock;
use esker_media::sim::{Image, Initial, SimDevices};
use std::sync::Arc;

pub(crate) type Told = std::result::Result<(), String>;

pub(crate) fn all() -> Told {
    damage().map_err(|words| format!("damage: {words}"))?;
    pairs().map_err(|words| format!("pairs in memory: {words}"))?;
    lost_batch().map_err(|words| format!("a lost batch: {words}"))?;
    lost_batches_behind().map_err(|words| format!("lost batches behind one: {words}"))?;
    large_heads().map_err(|words| format!("heads of large values: {words}"))?;
    expired().map_err(|words| format!("what has expired: {words}"))?;
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
    store.forget();
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

/// Single pairs that are in memory, because there is no room for intervals, are those that the space has, when they were
/// written over or deleted and their table is gone.
fn pairs() -> Told {
    const KEYS: u16 = 240;
    let devices = devices(&vec![Initial::Zeros; DEVICES], 3, false);
    let mut options = options(1);
    options.size_bytes = 1 << 20;
    options.format = true;
    let store = Store::open_flex_on(files(&devices), &options).map_err(words)?;
    for round in 0..40_u8 {
        // What each key has: its table is in the space afterwards.
        let has = |number: u16| !(number + u16::from(round)).is_multiple_of(5);
        for number in 0..KEYS {
            let key = number.to_be_bytes();
            if has(number) {
                store.put(&key, &[round; 9]).map_err(words)?;
            } else {
                store.delete(&key).map_err(words)?;
            }
        }
        store.check().map_err(words)?;
        // Some, far from each other: their pairs stay in memory, as they are asked for again and again, and those of the
        // round before do not count. Now and then all, which takes their place.
        let some = (0..KEYS).step_by(7).flat_map(|number| [number; 4]);
        let all = if round % 4 == 3 { 0..KEYS } else { 0..0 };
        for number in some.chain(all) {
            let found = store.get(&number.to_be_bytes()).map_err(words)?;
            let found = found.as_deref();
            if found != has(number).then_some(&[round; 9][..]) {
                return Err(format!("round {round}: key {number} has {found:?}"));
            }
        }
    }
    Ok(())
}

/// Where the log of the first generation is among the devices.
const LOG: usize = 4;

fn open(devices: &SimDevices, seed: u64, durability: Durability) -> Result<Store, String> {
    let mut options = options(seed);
    options.durability = durability;
    options.flex.memtable_size_bytes = 3000;
    options.create = true;
    Store::open_flex_on(files(devices), &options).map_err(words)
}

fn of_images(images: &[Image]) -> SimDevices {
    let initial: Vec<_> = images.iter().cloned().map(Initial::Recycled).collect();
    devices(&initial, 3, true)
}

fn images_of(devices: &SimDevices) -> Vec<Image> {
    devices.devices().iter().map(|device| device.image()).collect()
}

fn expect(store: &Store, key: &[u8], value: Option<&[u8]>) -> Told {
    let found = store.get(key).map_err(words)?;
    if found.as_deref() == value {
        return Ok(());
    }
    Err(format!("{:?} has {:?}", key, found.map(|found| found.first().copied())))
}

/// A batch of two blocks is torn; then one that ends in the same bytes, the other way round: what is left must not be the
/// first one.
fn lost_batch() -> Told {
    const SECOND: (u64, u64) = (512, 1024);
    let write = |store: &Store, first: u8| {
        let mut batch = Batch::new();
        batch.put(b"a", &[first; 100]);
        batch.put(b"b", &[9; 280]);
        batch.put(b"c", &[9; 280]);
        store.write(&batch).map_err(words)
    };
    let devices = devices(&vec![Initial::Zeros; DEVICES], 1, true);
    let store = open(&devices, 1, Durability::Sync)?;
    let before = images_of(&devices);
    write(&store, 1)?;
    store.forget();
    let mut torn = images_of(&devices);
    let second = |image: &Image| image.to_vec()[512..1024].to_vec();
    if !torn[LOG].to_vec().starts_with(b"ESKW") {
        return Err("no batch at the start of the log".to_owned());
    }
    let first = torn[LOG].clone();
    torn::copy(&before[LOG], &mut torn[LOG], SECOND);

    let devices = of_images(&torn);
    let store = open(&devices, 2, Durability::Sync)?;
    expect(&store, b"a", None)?;
    write(&store, 2)?;
    store.forget();
    if second(&images_of(&devices)[LOG]) != second(&first) {
        return Err("the batches do not end in the same bytes".to_owned());
    }
    let torn = torn::cut(&devices, LOG, esker::sites::flex_db::WAL_FLUSH, SECOND);
    let store = open(&of_images(&torn), 4, Durability::Sync)?;
    expect(&store, b"a", None)
}

/// Of two batches that nobody made durable the first one is lost; a later session writes it again, byte for byte. The second one
/// must not come back behind it.
fn lost_batches_behind() -> Told {
    let devices = devices(&vec![Initial::Zeros; DEVICES], 1, true);
    let periodic = Durability::Periodic(std::time::Duration::from_secs(3600));
    let store = open(&devices, 1, periodic)?;
    let before = images_of(&devices);
    store.put(b"a", &[1; 100]).map_err(words)?;
    store.write_out().map_err(words)?;
    store.put(b"b", &[2; 100]).map_err(words)?;
    store.write_out().map_err(words)?;
    store.forget();
    let mut torn = images_of(&devices);
    torn::copy(&before[LOG], &mut torn[LOG], (0, 512));

    let devices = of_images(&torn);
    let store = open(&devices, 2, periodic)?;
    expect(&store, b"a", None)?;
    expect(&store, b"b", None)?;
    store.put(b"a", &[1; 100]).map_err(words)?;
    store.sync().map_err(words)?;
    store.forget();
    let torn = torn::cut(&devices, LOG, esker::sites::flex_db::WAL_FLUSH, (0, 512));
    let store = open(&of_images(&torn), 4, periodic)?;
    expect(&store, b"a", Some(&[1; 100]))?;
    expect(&store, b"b", None)
}

/// Large values go in pieces. Wherever that is cut, what is left of each is nothing, or begins with its whole head: else the
/// store could not be opened.
fn large_heads() -> Told {
    const PIECE: usize = 4 * 508;
    let devices = devices(&vec![Initial::Zeros; DEVICES], 1, true);
    // Few changes belong together there.
    let store = open(&devices, 6, Durability::Sync)?;
    let key = |number: u8| [b'k', number];
    for number in 0..10_u8 {
        // One piece; or a piece and a part of the head, which go with two changes.
        let length = if number == 0 { 400 } else { PIECE - 33 + 3 * usize::from(number) };
        store.put(&key(number), &vec![number; length]).map_err(words)?;
    }
    let from = devices.position();
    for number in 0..10 {
        store.put(&key(number), b"short").map_err(words)?;
    }
    store.check().map_err(words)?;
    let to = devices.position();
    store.forget();
    for cut in from..=to {
        let images = SimDevices::cut(&devices.traces(), cut, cut);
        let store = open(&of_images(&images), 8, Durability::Sync)
            .map_err(|words| format!("cut at {cut} of {from} to {to}: {words}"))?;
        let items = store.scan(.., Direction::Forward, usize::MAX).map_err(words)?;
        if items.len() != 10 {
            return Err(format!("cut at {cut}: {} of 10 items", items.len()));
        }
    }
    Ok(())
}

/// Keys have values that last, and then some that expire: of some keys these are in the space when their time comes, of others in the
/// log. While they are left out, wherever that is cut, a store with a clock that is behind finds these values or none, never
/// those before, and every one whole; what is put meanwhile, and acknowledged, is there.
fn expired() -> Told {
    const BEGIN: u64 = 1_000_000;
    const TIME: u64 = BEGIN + 100;
    let open = |devices: &SimDevices, seconds: u64| {
        let mut options = options(7);
        options.clock = Arc::new(ManualClock::new(seconds));
        options.durability = Durability::Sync;
        options.flex.memtable_size_bytes = 3000;
        options.create = true;
        Store::open_flex_on(files(devices), &options).map_err(words)
    };
    let key = |number: u8| [b'k', number];
    let value =
        |number: u8, first: u8| vec![first; if number.is_multiple_of(3) { 400 } else { 30 }];
    let put = |store: &Store, numbers: std::ops::Range<u8>, first: u8, expires_at| {
        for number in numbers {
            let value = value(number, first);
            let attributes = Attributes { expires_at, ..Attributes::default() };
            let options = PutOptions { attributes, ..PutOptions::default() };
            store.put_with(&key(number), &value, options).map_err(words)?;
        }
        Told::Ok(())
    };
    let devices = devices(&vec![Initial::Zeros; DEVICES], 1, true);
    let store = open(&devices, BEGIN)?;
    put(&store, 0..16, 1, None)?;
    store.check().map_err(words)?;
    put(&store, 0..12, 2, Some(TIME))?;
    store.check().map_err(words)?;
    put(&store, 8..16, 3, Some(TIME))?;
    store.forget();
    let store = open(&devices, TIME)?;
    let from = devices.position();
    store.clean(usize::MAX).map_err(words)?;
    let mut acknowledged = Vec::new();
    for number in 0..4 {
        put(&store, number..number + 1, 4, None)?;
        acknowledged.push(devices.position());
    }
    store.check().map_err(words)?;
    let to = devices.position();
    for number in 0..16 {
        let right = (number < 4).then(|| value(number, 4));
        expect(&store, &key(number), right.as_deref())?;
    }
    store.forget();
    for cut in from..=to {
        let images = SimDevices::cut(&devices.traces(), cut, cut);
        let judged = || -> Told {
            let store = open(&of_images(&images), BEGIN)?;
            for number in 0..16 {
                let expired = value(number, if number < 8 { 2 } else { 3 });
                let put = acknowledged.get(usize::from(number)).map(|at| (*at, value(number, 4)));
                let right = match put {
                    Some((at, put)) if cut >= at => vec![Some(put)],
                    Some((_, put)) => vec![None, Some(expired), Some(put)],
                    None => vec![None, Some(expired)],
                };
                expect_one(&store, &key(number), &right)?;
            }
            if let Some(problem) = store.check().map_err(words)?.problems.first() {
                return Err(problem.clone());
            }
            store.forget();
            Ok(())
        };
        judged().map_err(|words| format!("cut at {cut} of {from} to {to}: {words}"))?;
    }
    Ok(())
}

/// A key has one of these values, or nothing if that is among them.
fn expect_one(store: &Store, key: &[u8], right: &[Option<Vec<u8>>]) -> Told {
    let found = store.get(key).map_err(words)?.map(|found| found.to_vec());
    if right.contains(&found) {
        return Ok(());
    }
    let found = found.map(|found| (found.len(), found.first().copied()));
    Err(format!("{key:?} has {found:?}"))
}
