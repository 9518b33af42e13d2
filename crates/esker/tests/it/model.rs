//! A store against a map, over random operations and reopenings, with strong and with weak hashes.

use crate::support::{Bed, ENGINES};
use esker::{EngineKind, Outcome};
use esker_base::rng::Rng;
use std::collections::BTreeMap;

/// Values whose sizes touch the edges of grains, blocks and batches.
fn value(rng: &mut Rng) -> Vec<u8> {
    const SIZES: [usize; 12] = [0, 1, 7, 8, 63, 64, 65, 480, 511, 512, 513, 1500];
    let mut value = vec![0; SIZES[rng.index(SIZES.len())]];
    rng.fill(&mut value);
    value
}

/// Keys of 8 bytes, others, and some that are too long to stand in a log.
fn key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(24) {
        number @ 0..10 => format!("user{number}").into_bytes(),
        number @ 10..20 => format!("user{number:04}").into_bytes(),
        number => format!("user{number:0300}").into_bytes(),
    }
}

fn run(engine: EngineKind, seed: u64, hash_mask: u64) {
    let bed = Bed::new(engine, seed);
    let mut options = bed.options(seed);
    options.record_cache_bytes = if seed.is_multiple_of(3) { 8 << 10 } else { 0 };
    options.testing.hash_mask = hash_mask;
    let mut store = bed.open(&options).unwrap();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut rng = Rng::from_seed(seed);
    for step in 0..3000 {
        let key = key(&mut rng);
        let context = format!("{engine}, seed {seed}, step {step}");
        match rng.below(100) {
            0..45 => {
                let value = value(&mut rng);
                store.put(&key, &value).expect(&context);
                model.insert(key, value);
            }
            45..60 => {
                let existed = store.delete(&key).expect(&context);
                assert_eq!(existed, model.remove(&key).is_some(), "{context}");
            }
            60..65 => {
                let value = value(&mut rng);
                let outcome = store.put_if_absent(&key, &value).expect(&context);
                assert_eq!(outcome == Outcome::KeyExists, model.contains_key(&key), "{context}");
                model.entry(key).or_insert(value);
            }
            65..90 => {
                let found = store.get(&key).expect(&context).map(|value| value.to_vec());
                assert_eq!(found.as_ref(), model.get(&key), "{context}");
            }
            90 => drop(store.checkpoint().expect(&context)),
            91..97 => {
                let items = store.iter().map(|item| item.expect(&context));
                let items: Vec<_> = items.map(|(key, value)| (key, value.to_vec())).collect();
                let map: BTreeMap<_, _> = items.iter().cloned().collect();
                assert_eq!((map, items.len()), (model.clone(), model.len()), "{context}");
            }
            97 => {
                store.clear().expect(&context);
                model.clear();
            }
            _ => {
                if rng.chance(1, 2) {
                    store.close().expect(&context);
                }
                drop(store);
                store = bed.open(&options).expect(&context);
            }
        }
        assert_eq!(store.stats().items, model.len() as u64, "{context}");
    }
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{engine}, seed {seed}: {:?}", report.problems);
}

#[test]
fn agrees_with_a_map() {
    for engine in ENGINES {
        (0..20).for_each(|seed| run(engine, seed, u64::MAX));
    }
}

#[test]
fn agrees_with_a_map_when_all_keys_share_a_few_hashes() {
    for engine in ENGINES {
        (0..10).for_each(|seed| run(engine, seed, 0b11));
        (0..10).for_each(|seed| run(engine, seed, 0));
    }
}

#[test]
fn agrees_with_a_map_when_all_keys_share_home_or_tag() {
    for engine in ENGINES {
        (0..5).for_each(|seed| run(engine, seed, 0xFF << 56));
        (0..5).for_each(|seed| run(engine, seed, 0xFFFF));
    }
}
