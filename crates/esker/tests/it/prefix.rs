//! Without a flush per write, a crash loses the newest writes, and never their order: what is found
//! is what the store held after some write, none of those that a `sync` covered undone.

use crate::support::{DEVICE_SIZE, SEGMENT_SIZE, open, options};
use esker::{Durability, Store};
use esker_base::rng::Rng;
use esker_media::sim::{Initial, SimBlock, SimBlockOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn held(store: &Store) -> Map {
    store
        .iter()
        .map(|item| item.expect("readable"))
        .map(|(key, value)| (key, value.to_vec()))
        .collect()
}

/// A workload without flushes, cut at every point in many states; returns how many were judged.
fn check_prefixes(seed: u64, earlier: Initial) -> usize {
    let device = Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, seed).initial(earlier)));
    let mut options = options(seed);
    options.durability = Durability::None;
    options.format = true;
    let store = open(&device, &options).unwrap();
    options.format = false;
    let mut rng = Rng::from_seed(seed);
    let mut model = Map::new();
    // After each write: the device's position, and what the store held.
    let mut history = vec![(device.position(), model.clone())];
    let mut synced = vec![(device.position(), 0)];
    for n in 0..60u8 {
        let key = format!("key{}", rng.below(6)).into_bytes();
        if rng.chance(1, 5) {
            store.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let value = vec![n; rng.index(usize::try_from(SEGMENT_SIZE).unwrap() / 5)];
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        history.push((device.position(), model.clone()));
        if rng.chance(1, 10) {
            store.clean(rng.index(3)).unwrap();
        }
        if rng.chance(1, 20) {
            store.trim().unwrap();
        }
        if rng.chance(1, 8) {
            store.sync().unwrap();
            synced.push((device.position(), history.len() - 1));
        }
    }
    let trace = device.trace();
    let mut replay = trace.replay();
    let mut judged = 0;
    while replay.step() {
        let point = replay.position();
        let Some(kept) = synced.iter().rfind(|(at, _)| *at <= point).map(|(_, kept)| *kept) else {
            continue;
        };
        // The write under way counts as well.
        let done = history.iter().take_while(|(at, _)| *at <= point).count();
        let allowed = &history[kept..(done + 1).min(history.len())];
        for state in replay.states(24, seed ^ point) {
            let initial = Initial::Recycled(state.image());
            let options_of = SimBlockOptions::new(DEVICE_SIZE, seed).initial(initial);
            let survived = Arc::new(SimBlock::new(options_of));
            let store = open(&survived, &options).unwrap_or_else(|error| {
                panic!("seed {seed}, point {point}: {error} [{}]", state.describe())
            });
            let found = held(&store);
            assert!(
                allowed.iter().any(|(_, map)| *map == found),
                "seed {seed}, point {point}: no prefix [{}]",
                state.describe()
            );
            judged += 1;
        }
    }
    judged
}

#[test]
fn a_crash_without_flushes_leaves_a_prefix_of_the_writes() {
    let judged: usize = (0..12).map(|seed| check_prefixes(seed, Initial::Zeros)).sum();
    assert!(judged > 2000, "{judged} states");
}

#[test]
fn a_crash_without_flushes_leaves_a_prefix_also_on_recycled_media() {
    let mut judged = 0;
    for seed in 0..12 {
        let earlier = Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, seed)));
        let store = open(&earlier, &options(seed)).unwrap();
        for n in 0..200u8 {
            store.put(&[n % 20], &[n; 300]).unwrap();
        }
        drop(store);
        judged += check_prefixes(seed + 100, Initial::Recycled(earlier.image()));
    }
    assert!(judged > 2000, "{judged} states");
}
