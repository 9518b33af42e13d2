//! A process that is killed leaves what it wrote where the next one reads it, durable or not: what that one has read is there after a power
//! cut, too.

use crate::client::{Map, cut};
use crate::support::{DEVICE_SIZE, device, open, options};
use esker::{Durability, Store};
use esker_base::{Site, SiteKind};
use esker_media::BlockDevice;
use esker_media::sim::{Image, Initial, SimBlock, SimBlockOptions};
use std::io::IoSlice;
use std::sync::Arc;

const LEFT: Site = Site::new("test.left", SiteKind::Write);
const SECTOR: usize = 512;

fn device_of(image: Image) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image))))
}

/// A device of which this is durable, and that is in its cache.
fn device_with(durable: &Image, cached: &[u8]) -> Arc<SimBlock> {
    let device = device_of(durable.clone());
    let durable = durable.to_vec();
    let sectors = durable.chunks(SECTOR).zip(cached.chunks(SECTOR));
    for ((before, after), offset) in sectors.zip((0..).step_by(SECTOR)) {
        if before != after {
            device.write_at(LEFT, offset, &[IoSlice::new(after)]).unwrap();
        }
    }
    device
}

fn held(store: &Store) -> Map {
    let items = store.iter().map(|item| item.unwrap());
    items.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Puts, deletes, large values, moves, a checkpoint, a clear, a trim: at whatever moment the process is killed.
fn killed_anywhere(durability: Durability, cache: bool) {
    let device = device(9);
    let mut options = options(9);
    (options.durability, options.cache) = (durability, cache);
    let store = open(&device, &options).unwrap();
    for round in 0..8_u8 {
        for key in 0..9 {
            store.put(&[key], &[round; 400]).unwrap();
        }
        store.delete(&[round]).unwrap();
        store.put(b"large", &vec![round; 3000]).unwrap();
        match round {
            1 | 5 if cache => drop(store.evict(1).unwrap()),
            1 | 5 => drop(store.clean(3).unwrap()),
            2 => assert!(store.checkpoint().unwrap()),
            3 => store.clear().unwrap(),
            4 => drop(store.trim().unwrap()),
            6 => store.sync().unwrap(),
            _ => {}
        }
    }
    let trace = device.trace();
    let (mut replay, mut kills) = (trace.replay(), 0);
    // So that what is acknowledged then is durable, and a cache keeps what it had.
    options.durability = Durability::Sync;
    while replay.step() {
        let cached = replay.states(2, 0).last().map(|state| state.image().to_vec());
        let Some(cached) = cached.filter(|cached| *cached != replay.durable().to_vec()) else {
            continue;
        };
        kills += 1;
        let context = format!("{durability:?}, killed at {}", replay.position());
        let left = device_with(replay.durable(), &cached);
        let next = open(&left, &options).unwrap();
        let mut expected = held(&next);
        let only_read = cut(&left, false);
        let later = next.put(b"later", b"").unwrap();
        let written = cut(&left, false);
        next.forget();
        let is_there = |image, expected: &Map| {
            let last = open(&device_of(image), &options).unwrap();
            assert_eq!(held(&last), *expected, "{context}");
            assert_eq!(last.check().unwrap().problems, Vec::<String>::new(), "{context}");
            last
        };
        is_there(only_read, &expected).forget();
        expected.insert(b"later".to_vec(), Vec::new());
        let last = is_there(written, &expected);
        assert!(last.put(b"last", b"").unwrap() > later, "{context}");
        last.forget();
    }
    assert!(kills > 100, "{kills}");
    store.forget();
}

#[test]
fn what_was_read_after_a_kill_is_there_after_a_power_cut() {
    killed_anywhere(Durability::Sync, false);
    killed_anywhere(Durability::None, false);
}

#[test]
fn what_was_read_of_a_cache_after_a_kill_is_there_after_a_power_cut() {
    killed_anywhere(Durability::Sync, true);
}
