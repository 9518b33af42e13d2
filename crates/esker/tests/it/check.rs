//! Checks of `depot` beside writers and a cleaner, in a simulation: what is superseded while it is
//! looked at is no problem, and what is damaged is one.

use crate::support::{DEVICE_SIZE, device, flip_on, open, options};
use esker::Store;
use esker_base::rng::Rng;
use esker_base::{Site, SiteKind};
use esker_media::BlockDevice;
use esker_media::sim::{Initial, SimBlock, SimBlockOptions};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LOOK: Site = Site::new("test.look", SiteKind::Read);
/// Rounds of checks in one simulation.
const ROUNDS: u32 = 12;

/// Writes few keys over and over until told to stop; some values stand in extents.
fn write_over(store: &Store, name: u64, seed: u64, stop: &Cell<bool>) {
    let mut rng = Rng::from_seed(seed);
    while !stop.get() {
        let key = format!("{name}/{}", rng.below(8));
        let mut value = vec![7; if rng.chance(1, 12) { 2500 } else { rng.index(600) }];
        rng.fill(&mut value);
        store.put(key.as_bytes(), &value).unwrap();
        if rng.chance(1, 10) {
            store.delete(key.as_bytes()).unwrap();
        }
    }
}

/// Three writers and a cleaner, and `body` beside them; returns what it returns.
fn beside_writers<T: Send + 'static>(seed: u64, store: &Store, body: impl FnOnce() -> T) -> T {
    let stop = Rc::new(Cell::new(false));
    let mut tasks: Vec<_> = (0..3)
        .map(|name| {
            let (store, stop) = (store.clone(), Rc::clone(&stop));
            esker_trt::spawn(move || write_over(&store, name, seed ^ name, &stop))
        })
        .collect();
    let (cleaner, until) = (store.clone(), Rc::clone(&stop));
    tasks.push(esker_trt::spawn(move || {
        while !until.get() {
            cleaner.clean(1).unwrap();
            esker_trt::sleep(Duration::from_micros(50));
        }
    }));
    let result = body();
    stop.set(true);
    tasks.into_iter().for_each(|task| task.join().unwrap());
    result
}

#[test]
fn a_check_beside_writers_and_a_cleaner_finds_a_sound_store_sound() {
    for seed in 0..60 {
        let report = esker_trt::sim::run(seed, move || {
            let store = open(&device(seed), &options(seed)).unwrap();
            beside_writers(seed, &store, || {
                for round in 0..ROUNDS {
                    let problems = store.check().unwrap().problems;
                    assert!(problems.is_empty(), "seed {seed}, check {round}: {problems:?}");
                }
            });
        });
        report.outcome.unwrap();
    }
}

#[test]
fn a_check_beside_writers_and_a_cleaner_finds_damage() {
    for seed in 0..20 {
        let report = esker_trt::sim::run(seed, move || {
            let device = device(seed);
            let store = open(&device, &options(seed)).unwrap();
            let mark = [0xA5; 200];
            store.put(b"old", &mark).unwrap();
            let mut image = vec![0; usize::try_from(DEVICE_SIZE).unwrap()];
            device.read_at(LOOK, 0, &mut image).unwrap();
            let at = image.windows(mark.len()).position(|bytes| bytes == mark).unwrap();
            flip_on(&device, at as u64 + 100);
            beside_writers(seed, &store, || {
                for round in 0..ROUNDS {
                    let report = store.check().unwrap();
                    assert!(!report.is_sound(), "seed {seed}, check {round}");
                }
            });
        });
        report.outcome.unwrap();
    }
}

/// What a check does not see is no reason for the next open to refuse the store, or to show something else.
#[test]
fn a_store_that_a_check_finds_sound_opens_after_a_kill() {
    type Items = BTreeMap<Vec<u8>, Vec<u8>>;
    let items = |store: &Store| -> esker::Result<Items> {
        store.iter().map(|item| item.map(|(key, value)| (key, value.to_vec()))).collect()
    };
    let made = device(3);
    let mut rng = Rng::from_seed(3);
    let store = open(&made, &options(3)).unwrap();
    for round in 0..6_u32 {
        for _ in 0..40 {
            let key = [b"key", &rng.below(30).to_be_bytes()[..]].concat();
            store.put(&key, &vec![round as u8; rng.index(900)]).unwrap();
            if rng.chance(1, 6) {
                store.delete(&key).unwrap();
            }
        }
        // Two sorts of segments that the cleaner writes, full ones among them.
        store.clean(4).unwrap();
    }
    let wanted = items(&store).unwrap();
    // Its end is durable. As after a kill, there is no checkpoint.
    drop(store);
    let image = made.image();
    let (mut seen, mut unseen) = (0, 0);
    for offset in (0..DEVICE_SIZE).step_by(37) {
        let initial = Initial::Recycled(image.clone());
        let device = SimBlockOptions::new(DEVICE_SIZE, 3).initial(initial);
        let device = Arc::new(SimBlock::new(device));
        let store = open(&device, &options(3)).unwrap();
        flip_on(&device, offset);
        let report = store.check().unwrap();
        store.forget();
        if !report.is_sound() {
            seen += 1;
            continue;
        }
        unseen += 1;
        let store = open(&device, &options(3));
        let store = store.unwrap_or_else(|error| panic!("a flip at {offset}: {error}"));
        assert!(items(&store).unwrap() == wanted, "a flip at {offset}");
        store.forget();
    }
    assert!(seen > 500 && unseen > 100, "{seen}, {unseen}");
}
