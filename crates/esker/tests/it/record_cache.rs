//! Records in DRAM: fewer device reads, the same answers, one budget.

use crate::support::{open, options};
use esker::{Durability, ErrorKind};
use esker_base::rng::Rng;
use esker_media::sim::{SimBlock, SimBlockOptions};
use std::sync::Arc;
use std::time::Duration;

/// A device that reads bytes, from memory as it were, or blocks.
fn sim(seed: u64, reads_bytes: bool) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions { reads_bytes, ..SimBlockOptions::new(16 << 20, seed) }))
}

#[test]
fn where_reads_are_cheap_only_what_is_asked_for_twice_is_kept() {
    let device = sim(3, true);
    let mut options = options(3);
    options.testing.segment_size_bytes = Some(1 << 20);
    options.record_cache_bytes = 8 << 20;
    let store = open(&device, &options).unwrap();
    let sizes = [0, 60, 170, 180, 190, 700, 5000];
    for n in 0..70_u8 {
        store.put(&[n], &vec![n; sizes[usize::from(n) % 7]]).unwrap();
    }
    for (round, expected) in [(1, 70), (2, 70), (3, 0)] {
        let before = store.stats().device;
        for n in 0..70_u8 {
            let value = store.get(&[n]).unwrap().unwrap();
            assert!(value.len() == sizes[usize::from(n) % 7] && value.iter().all(|b| *b == n));
        }
        let device = store.stats().device - before;
        assert_eq!(device.reads, expected, "round {round}");
        let most = 15 * sizes.iter().sum::<usize>() as u64;
        assert!(device.read_bytes <= most, "records, not blocks");
    }
}

#[test]
fn what_was_written_or_read_is_in_dram_until_it_moves() {
    let device = sim(1, false);
    let mut options = options(1);
    // So much that no share of it is short.
    options.record_cache_bytes = 8 << 20;
    let store = open(&device, &options).unwrap();
    let reads = || store.stats().device.reads;
    let all = |value: u8| {
        for n in 0..40_u8 {
            let expected = if n < 10 { [value; 300] } else { [n; 300] };
            assert!(store.get(&[n]).unwrap().is_some_and(|value| *value == expected));
        }
    };
    let put = |value: u8| {
        for n in 0..10_u8 {
            store.put(&[n], &[value; 300]).unwrap();
        }
    };
    let before = reads();
    for n in 0..40_u8 {
        store.put(&[n], &[n; 300]).unwrap();
    }
    for value in [100, 101] {
        put(value);
        all(value);
    }
    assert_eq!(reads(), before, "neither what is written over nor what replaces it is read");
    store.clean(usize::MAX).unwrap();
    let before = reads();
    all(101);
    let moved = reads() - before;
    assert!(moved > 0, "what moved is read again");
    all(101);
    assert_eq!(reads(), before + moved, "nothing is read twice");
    assert!(store.delete(&[0]).unwrap());
    assert!(store.get(&[0]).unwrap().is_none());
    let [hits, misses, bytes] = store.stats().record_cache;
    assert!(hits >= 120 && misses == moved && bytes > 40 * 300, "{hits} {misses} {bytes}");
}

#[test]
fn of_what_is_written_to_a_full_cache_only_what_replaces_is_kept() {
    let device = sim(4, true);
    let mut options = options(4);
    options.testing.segment_size_bytes = Some(1 << 20);
    options.record_cache_bytes = 8 << 20;
    // There, the cache takes nothing but what is asked for twice.
    let store = open(&device, &options).unwrap();
    let reads = |keys: &[u8]| {
        let before = store.stats().device.reads;
        for key in keys {
            assert!(store.get(&[*key]).unwrap().is_some());
        }
        store.stats().device.reads - before
    };
    for round in 0..3 {
        store.put(b"a", &[round; 50]).unwrap();
        store.put(b"b", &[round; 50]).unwrap();
    }
    assert_eq!(reads(b"ab"), 2);
    assert_eq!(reads(b"a"), 1, "kept from now on");
    store.put(b"a", &[9; 50]).unwrap();
    store.put(b"b", &[9; 50]).unwrap();
    assert_eq!(reads(b"a"), 0, "as its older record was");
    assert_eq!(reads(b"b"), 1);
}

#[test]
fn the_budget_is_obeyed_and_long_records_are_not_kept() {
    let budget = 1 << 20;
    let device = sim(2, false);
    let mut options = options(2);
    options.testing.segment_size_bytes = Some(1 << 20);
    options.record_cache_bytes = budget;
    let store = open(&device, &options).unwrap();
    let mut rng = Rng::from_seed(2);
    for n in 0..5000_u32 {
        let value = vec![1; rng.index(1500)];
        store.put(&n.to_le_bytes(), &value).unwrap();
        assert_eq!(store.get(&n.to_le_bytes()).unwrap().map(|v| v.len()), Some(value.len()));
        let [_, _, bytes] = store.stats().record_cache;
        assert!(bytes <= budget, "{bytes} bytes");
    }
    let [_, _, full] = store.stats().record_cache;
    assert!(full > budget / 4 * 3, "{full} bytes are used");
    store.put(b"long", &[1; 40_000]).unwrap();
    for _ in 0..3 {
        let before = store.stats().device.reads;
        store.get(b"long").unwrap();
        assert_eq!(store.stats().device.reads, before + 1);
    }
}

#[test]
fn the_largest_budget_there_is_takes_what_it_needs_by_and_by() {
    let mut options = options(4);
    options.durability = Durability::Periodic(Duration::ZERO);
    let refused = open(&sim(4, false), &options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "on an open device, too");
    options.durability = Durability::Sync;
    options.record_cache_bytes = (16 << 40) + 1;
    let refused = open(&sim(4, false), &options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    options.record_cache_bytes = 16 << 40;
    let store = open(&sim(4, false), &options).unwrap();
    store.put(b"k", b"v").unwrap();
    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}
