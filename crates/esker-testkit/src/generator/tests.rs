//! Operations follow their seed, their odds and their limits.

use super::*;
use std::collections::BTreeSet;

fn ops(seed: u64, stream: u64, count: usize) -> Vec<Op> {
    let mut generator = Generator::new(seed, stream, Weights::USUAL, Limits::default());
    (0..count).map(|_| generator.next_op(0, &Known::default())).collect()
}

#[test]
fn a_seed_gives_the_same_operations_and_another_gives_others() {
    assert_eq!(ops(1, 0, 200), ops(1, 0, 200));
    assert_ne!(ops(1, 0, 200), ops(2, 0, 200));
    assert_ne!(ops(1, 0, 200), ops(1, 1, 200));
    let keys = |stream| Generator::new(1, stream, Weights::USUAL, Limits::default()).keys;
    assert_eq!(keys(0), keys(1), "streams meet on the same keys");
}

#[test]
fn many_seeds_reach_every_operation_and_every_edge() {
    let mut kinds = BTreeSet::new();
    let mut sizes = BTreeSet::new();
    let weights = Weights { batch: 5, compare: 5, time: 2, ..Weights::USUAL };
    let mut known = Known::default();
    for seed in 0..60 {
        let mut generator = Generator::new(seed, 0, weights, Limits::default());
        for _ in 0..200 {
            let op = generator.next_op(0, &known);
            if let Op::Put(key, entry) = &op {
                sizes.insert(entry.bytes.len());
                known.learn(key, &Held { entry: entry.clone(), version: 1 });
            }
            let words = format!("{op:?}");
            kinds.insert(words.split(['(', ' ']).next().unwrap().to_owned());
        }
    }
    assert_eq!(kinds.len(), 13, "{kinds:?}");
    for size in [0, 1, 7, 8, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097] {
        assert!(sizes.contains(&size), "{size}");
    }
}

#[test]
fn keys_have_the_shortest_and_the_longest_length_and_shared_prefixes() {
    let generator = Generator::new(9, 0, Weights::USUAL, Limits::default());
    let lengths: Vec<usize> = generator.keys().iter().map(Vec::len).collect();
    assert!(lengths.contains(&1) && lengths.contains(&250));
    let prefixed = generator.keys().iter().filter(|key| key.starts_with(b"key/")).count();
    assert!(prefixed > 5);
    let limits = Limits { key_size_bytes_max: 1, ..Limits::default() };
    assert_eq!(Generator::new(9, 0, Weights::USUAL, limits).keys().len(), 1);
}

#[test]
fn values_differ_if_they_have_flags() {
    let entries = |seed| {
        let all = [ops(seed, 0, 500), ops(seed, 1, 500)].concat();
        all.into_iter().filter_map(|op| match op {
            Op::Put(_, entry) => Some(entry),
            _ => None,
        })
    };
    let values: Vec<Entry> = entries(4).chain(entries(5)).collect();
    let distinct: BTreeSet<_> = values.iter().collect();
    assert_eq!(distinct.len(), values.len(), "in two runs");
}

#[test]
fn some_values_expire_behind_the_present() {
    let limits = Limits { expires: true, ..Limits::default() };
    let mut generator = Generator::new(1, 0, Weights::USUAL, limits);
    let mut seen = [0; 2];
    for _ in 0..500 {
        if let Op::Put(_, entry) = generator.next_op(100, &Known::default()) {
            assert!(entry.expires_at == 0 || (101..=130).contains(&entry.expires_at));
            seen[usize::from(entry.expires_at != 0)] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}
