//! Values that stand in extents.

use crate::support::{device, open, options};
use esker::{Attributes, Batch, Condition, Durability, ErrorKind, Outcome, PutOptions, Store};
use esker_base::clock::ManualClock;
use esker_base::rng::Rng;
use esker_media::sim::{Initial, SimBlock, SimBlockOptions};
use std::sync::Arc;

fn value(seed: u64, size: usize) -> Vec<u8> {
    let mut value = vec![0; size];
    Rng::from_seed(seed).fill(&mut value);
    value
}

/// A device with room for some large values.
fn roomy(seed: u64) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(512 << 10, seed)))
}

/// The device as it is now, without the end of the store that has it open.
fn cut_off(device: &SimBlock) -> Arc<SimBlock> {
    let options = SimBlockOptions::new(512 << 10, 99);
    Arc::new(SimBlock::new(options.initial(Initial::Recycled(device.image()))))
}

#[test]
fn values_of_every_size_come_back_after_every_kind_of_end() {
    for durability in [Durability::Sync, Durability::None] {
        let (mut device, mut options) = (roomy(1), options(1));
        options.durability = durability;
        let sizes = [1023, 1024, 1025, 2047, 2048, 2049, 5000, 9000, 20_000];
        let mut store = open(&device, &options).unwrap();
        for end in 0..3 {
            for (n, size) in sizes.iter().enumerate() {
                store.put(&[n as u8], &value(end + *size as u64, *size)).unwrap();
            }
            match end {
                0 => {}
                1 => store.close().unwrap(),
                _ => store.sync().unwrap(),
            }
            if end > 0 {
                // The last one without a clean end.
                device = cut_off(&device);
                store = open(&device, &options).unwrap();
            }
            for (n, size) in sizes.iter().enumerate() {
                let found = store.get(&[n as u8]).unwrap().unwrap();
                assert!(*found == *value(end + *size as u64, *size), "end {end}, size {size}");
            }
            let met = store.iter().map(|item| item.unwrap().1.len()).sum::<usize>();
            assert_eq!(met, sizes.iter().sum::<usize>());
            assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
        }
    }
}

#[test]
fn replaced_and_deleted_values_give_their_space_back() {
    let store = open(&device(2), &options(2)).unwrap();
    for n in 0..60 {
        store.put(b"k", &value(n, 15_000)).unwrap();
        if n % 3 == 0 {
            assert!(store.delete(b"k").unwrap());
        }
        if n % 7 == 0 {
            store.put(b"k", b"short").unwrap();
        }
    }
    assert!(store.delete(b"k").unwrap());
    store.clean(100).unwrap();
    let stats = store.stats();
    assert_eq!(stats.items, 0);
    assert!(stats.live_bytes < 100, "no more than a tombstone: {stats:?}");
}

#[test]
fn what_does_not_fit_is_refused_and_takes_no_space() {
    let store = open(&roomy(3), &options(3)).unwrap();
    store.put(b"kept", &value(1, 100_000)).unwrap();
    let live = store.stats().live_bytes;
    for n in 0..20 {
        // Over what is left, but not by so much that it is known before.
        let error = store.put(b"more", &value(n, 250_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(store.stats().live_bytes, live);
    }
    assert_eq!(*store.get(b"kept").unwrap().unwrap(), *value(1, 100_000));
    assert_eq!(store.get(b"more").unwrap().map(|value| value.len()), None);
    store.put(b"less", &value(2, 50_000)).unwrap();
}

#[test]
fn a_value_over_what_a_store_takes_is_refused_with_what_there_is() {
    let store = open(&roomy(3), &options(3)).unwrap();
    let error = store.put(b"k", &value(1, 1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let text = error.to_string();
    let (_, words) = text.split_once("large values take 1 MiB, and ").expect(&text);
    let (left, all) = words.split_once(" of ").expect(&text);
    assert_eq!(format!("{left} are left"), all, "nothing is stored");
    assert!(left.ends_with(" KiB"), "{text}");
}

#[test]
fn conditions_and_attributes_hold_for_large_values() {
    let (device, mut options) = (device(4), options(4));
    let clock = Arc::new(ManualClock::new(1000));
    options.clock = Arc::clone(&clock) as Arc<_>;
    let store = open(&device, &options).unwrap();
    let attributes = Attributes { flags: 7, expires_at: Some(1010), state: 3 };
    let put = |condition| {
        store.put_with(b"k", &value(5, 6000), PutOptions { attributes, condition }).unwrap()
    };
    assert_eq!(put(Condition::Present), Outcome::KeyMissing);
    let Outcome::Stored(version) = put(Condition::Absent) else { panic!("it was absent") };
    assert_eq!(put(Condition::Absent), Outcome::KeyExists);
    let found = store.get(b"k").unwrap().unwrap();
    assert_eq!((found.version(), found.attributes()), (version, attributes));
    assert!(store.read_size_bytes(b"k") >= 6000);
    let Outcome::Stored(newer) = put(Condition::VersionIs(version)) else { panic!("it was so") };
    assert_eq!(put(Condition::VersionIs(version)), Outcome::VersionDiffers);
    assert!(newer > version);
    clock.advance(std::time::Duration::from_secs(11));
    assert_eq!(store.get(b"k").unwrap().map(|value| value.len()), None);
    // The cleaner drops what has expired, extents and all.
    for n in 0..200u32 {
        store.put(&n.to_le_bytes(), &[0; 100]).unwrap();
    }
    store.clean(100).unwrap();
    assert!(store.stats().live_bytes < 200 * 160, "{:?}", store.stats());
}

#[test]
fn batches_with_large_values_are_whole() {
    let (device, options) = (roomy(5), options(5));
    let store = open(&device, &options).unwrap();
    store.put(b"gone", &value(1, 3000)).unwrap();
    let mut batch = Batch::new();
    batch.put(b"a", &value(2, 4000));
    batch.put(b"b", b"small");
    batch.put(b"c", &value(3, 7000));
    batch.delete(b"gone");
    store.write(&batch).unwrap();
    let store = open(&cut_off(&device), &options).unwrap();
    assert_eq!(*store.get(b"a").unwrap().unwrap(), *value(2, 4000));
    assert_eq!(*store.get(b"b").unwrap().unwrap(), *b"small");
    assert_eq!(*store.get(b"c").unwrap().unwrap(), *value(3, 7000));
    assert_eq!(store.get(b"gone").unwrap().map(|value| value.len()), None);
}

#[test]
fn an_aligned_extent_is_one_read_and_no_more() {
    let store = open(&device(6), &options(6)).unwrap();
    store.put(b"k", &value(1, 4096)).unwrap();
    let before = store.stats().device.reads;
    assert_eq!(*store.get(b"k").unwrap().unwrap(), *value(1, 4096));
    // The record of the key, and four extents; a simulated device counts each part of a vector.
    let reads = store.stats().device.reads - before;
    assert!(reads <= 1 + 2 * 4, "{reads} reads");
}

#[test]
fn readers_see_whole_values_while_they_are_replaced_and_moved() {
    let (device, options) = (device(7), options(7));
    let store = open(&device, &options).unwrap();
    let size = |n: u8| 2000 + 700 * usize::from(n % 5);
    let put = |store: &Store, n: u8| store.put(b"k", &vec![n; size(n)]).unwrap();
    put(&store, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 1..120 {
                put(&store, n);
                if n % 10 == 0 {
                    store.clean(2).unwrap();
                }
            }
        });
        let mut seen = 0;
        while !writer.is_finished() {
            let found = store.get(b"k").unwrap().unwrap();
            let n = found[0];
            assert!(found.len() == size(n) && found.iter().all(|byte| *byte == n), "{n} is torn");
            assert!(n >= seen, "{n} after {seen}");
            seen = n;
        }
    });
    assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
}

#[test]
fn clearing_under_a_large_put_leaves_a_whole_value_or_none() {
    let (device, options) = (device(8), options(8));
    let store = open(&device, &options).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..60).for_each(|n| drop(store.put(b"k", &value(n, 8000)))));
        while !writer.is_finished() {
            store.clear().unwrap();
            if let Some(found) = store.get(b"k").unwrap() {
                assert_eq!(found.len(), 8000);
            }
        }
    });
    store.put(b"last", &value(1, 9000)).unwrap();
    store.close().unwrap();
    let store = open(&device, &options).unwrap();
    assert_eq!(*store.get(b"last").unwrap().unwrap(), *value(1, 9000));
    assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
}
