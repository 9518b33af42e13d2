//! `depot`: records whose time has come give their room back.

use crate::support::{START, open};
use esker::{Attributes, Durability, EngineKind, ErrorKind, Options, PutOptions, Store};
use esker_base::clock::{Clock, ManualClock, SystemClock};
use esker_media::sim::{Initial, SimBlock, SimBlockOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seconds after [`START`] at which records expire here.
const TTL: u64 = 100;
const DEVICE: u64 = 4 << 20;
const SEGMENT: u64 = 64 << 10;
/// Bytes of values: in records that share blocks, in longer ones, and in extents of several segments.
const SIZES: [usize; 4] = [100, 700, 5000, 100_000];

/// Options of a small store, and its clock.
fn options(durability: Durability) -> (Options, Arc<ManualClock>) {
    let mut options = crate::support::options(1);
    let clock = Arc::new(ManualClock::new(START));
    options.clock = Arc::clone(&clock) as Arc<_>;
    options.durability = durability;
    options.testing.segment_size_bytes = Some(SEGMENT);
    (options, clock)
}

fn device() -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE, 1)))
}

/// The device as it is now, without the end of the store that has it open.
fn cut_off(device: &SimBlock) -> Arc<SimBlock> {
    let options = SimBlockOptions::new(DEVICE, 2);
    Arc::new(SimBlock::new(options.initial(Initial::Recycled(device.image()))))
}

fn value(number: u64, size: usize) -> Vec<u8> {
    number.to_le_bytes().iter().copied().cycle().take(size).collect()
}

fn put(store: &Store, key: &str, value: &[u8], expires_at: Option<u64>) -> Result<(), ErrorKind> {
    let attributes = Attributes { expires_at, ..Attributes::default() };
    let options = PutOptions { attributes, ..PutOptions::default() };
    store.put_with(key.as_bytes(), value, options).map(drop).map_err(|error| error.kind())
}

/// Puts new keys until there is no room; returns how many there was room for. Of key `n`, `expires_at` says when it expires.
fn fill(store: &Store, round: u64, size: usize, expires_at: impl Fn(u64) -> Option<u64>) -> u64 {
    let put = |n: &u64| put(store, &format!("{round}/{n}"), &value(*n, size), expires_at(*n));
    let refused = (0..).map(|n| (n, put(&n))).find(|(_, result)| result.is_err());
    let (count, result) = refused.expect("a store is full at some time");
    assert_eq!(result, Err(ErrorKind::NoSpace));
    count
}

/// Every `step`-th key of a round is there, as it was put.
fn is_there(store: &Store, round: u64, size: usize, count: u64, step: usize) {
    for number in (0..count).step_by(step) {
        let key = format!("{round}/{number}");
        let found = store.get(key.as_bytes()).unwrap();
        assert!(found.is_some_and(|found| *found == *value(number, size)), "{key}");
    }
}

fn is_sound(store: &Store) {
    assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
}

/// What had room for `first` records has room for nine tenths as many now.
fn takes_as_many_again(store: &Store, size: usize, first: u64) {
    let again = fill(store, 1, size, |_| None);
    assert!(again * 10 >= first * 9, "{again} values of {size} bytes, {first} before");
    is_there(store, 1, size, again, 1);
    assert_eq!(store.iter().count() as u64, again);
    is_sound(store);
}

#[test]
fn expired_records_give_their_room_back() {
    for size in [1].into_iter().chain(SIZES) {
        for durability in [Durability::Sync, Durability::None] {
            let (options, clock) = options(durability);
            let store = open(&device(), &options).unwrap();
            let first = fill(&store, 0, size, |_| Some(START + TTL));
            assert!(first * (size as u64 + 30) > DEVICE / 2, "{first} values of {size} bytes");
            clock.advance(Duration::from_secs(TTL));
            takes_as_many_again(&store, size, first);
        }
    }
}

#[test]
fn a_large_value_has_the_room_of_what_expired() {
    for reopened in [false, true] {
        let (options, clock) = options(Durability::Sync);
        let device = device();
        let mut store = open(&device, &options).unwrap();
        fill(&store, 0, 5000, |_| Some(START + TTL));
        assert_eq!(put(&store, "a", &value(1, 500_000), None), Err(ErrorKind::NoSpace));
        clock.advance(Duration::from_secs(TTL));
        if reopened {
            store.close().unwrap();
            store = open(&device, &options).unwrap();
        }
        put(&store, "a", &value(1, 500_000), None).unwrap();
        assert!(*store.get(b"a").unwrap().unwrap() == *value(1, 500_000));
        is_sound(&store);
    }
}

#[test]
fn records_that_expired_before_or_after_an_open_give_their_room_back() {
    for size in SIZES {
        for (closes, before) in [(true, true), (true, false), (false, true), (false, false)] {
            let (options, clock) = options(Durability::Sync);
            let mut device = device();
            let mut store = open(&device, &options).unwrap();
            let first = fill(&store, 0, size, |_| Some(START + TTL));
            if before {
                clock.advance(Duration::from_secs(TTL));
            }
            if closes {
                store.close().unwrap();
            } else {
                device = cut_off(&device);
            }
            store = open(&device, &options).unwrap();
            if !before {
                is_there(&store, 0, size, first, 7);
                clock.advance(Duration::from_secs(TTL));
            }
            takes_as_many_again(&store, size, first);
        }
    }
}

#[test]
fn the_room_of_every_second_record_comes_back() {
    for size in SIZES {
        for reopened in [false, true] {
            let (options, clock) = options(Durability::None);
            let device = device();
            let mut store = open(&device, &options).unwrap();
            let first = fill(&store, 0, size, |n| n.is_multiple_of(2).then_some(START + TTL));
            if reopened {
                store.close().unwrap();
                store = open(&device, &options).unwrap();
            }
            clock.advance(Duration::from_secs(TTL));
            let again = fill(&store, 1, size, |_| None);
            assert!(again * 10 >= first / 2 * 8, "{again} values of {size} bytes, {first} before");
            for number in 0..first {
                let found = store.get(format!("0/{number}").as_bytes()).unwrap();
                let expected = (number % 2 == 1).then(|| value(number, size));
                assert!(found.as_deref() == expected.as_deref(), "{number} of {size} bytes");
            }
            is_there(&store, 1, size, again, 1);
            is_sound(&store);
        }
    }
}

/// Extents alone in their segments; the records of their keys are few among what stays.
#[test]
fn large_values_expire_wherever_the_records_of_their_keys_are() {
    for reopened in [false, true] {
        let (options, clock) = options(Durability::Sync);
        let device = device();
        let mut store = open(&device, &options).unwrap();
        let lasting = |number: u64| format!("lasting{number}");
        let mut count = 0;
        while put(&store, &format!("{count}"), &value(1, 100_000), Some(START + TTL)).is_ok() {
            for number in 0..12 {
                put(&store, &lasting(count * 12 + number), &value(number, 1000), None).unwrap();
            }
            count += 1;
        }
        assert!(count * 100_000 > DEVICE / 3);
        if reopened {
            store.close().unwrap();
            store = open(&device, &options).unwrap();
        }
        clock.advance(Duration::from_secs(TTL));
        let written = store.stats().device.write_bytes;
        let again = fill(&store, 1, 100_000, |_| None);
        assert!(again * 10 >= count * 9, "{again} values, {count} before");
        // Once, and no more than what stays beside it.
        let written = store.stats().device.write_bytes - written;
        assert!(written < 2 * again * 100_000, "{written} bytes for {again} values");
        for number in 0..count * 12 {
            let found = store.get(lasting(number).as_bytes()).unwrap().unwrap();
            assert_eq!(*found, *value(number % 12, 1000));
        }
        is_there(&store, 1, 100_000, again, 1);
        is_sound(&store);
    }
}

#[test]
fn a_store_whose_content_expires_over_and_over_keeps_working() {
    for size in SIZES {
        let (options, clock) = options(Durability::None);
        let device = device();
        let mut store = open(&device, &options).unwrap();
        let mut first = 0;
        for round in 0..20 {
            let expires_at = START + (round + 1) * TTL;
            let count = fill(&store, round, size, |_| Some(expires_at));
            first = first.max(count);
            assert!(count * 10 >= first * 9, "{count} values of {size} bytes in round {round}");
            is_there(&store, round, size, count, 5);
            clock.advance(Duration::from_secs(TTL));
            if round % 7 == 3 {
                store.close().unwrap();
                store = open(&device, &options).unwrap();
            }
        }
        assert_eq!(store.iter().count(), 0);
        // All but those that are being written, and those with tombstones that stand for what is there.
        store.clean(1000).unwrap();
        let stats = store.stats();
        assert!(stats.segments - stats.free_segments <= 6, "{stats:?}");
        is_sound(&store);
    }
}

/// A segment that others keep has the old value; the new one expires and goes, and the clock goes back over a crash.
#[test]
fn an_expired_value_leaves_no_older_one() {
    for (old, new) in [(100, 100), (100, 5000), (5000, 100), (5000, 100_000)] {
        for durability in [Durability::Sync, Durability::None] {
            let (mut options, clock) = options(durability);
            let mut device = device();
            let store = open(&device, &options).unwrap();
            put(&store, "a", &value(1, old), None).unwrap();
            for number in 0..30 {
                put(&store, &format!("kept{number}"), &value(1, 1000), None).unwrap();
            }
            put(&store, "a", &value(2, new), Some(START + TTL)).unwrap();
            let first = fill(&store, 0, 700, |_| Some(START + TTL));
            clock.advance(Duration::from_secs(TTL));
            // Its clock does not go back while a store is open.
            assert_eq!(store.get(b"a").unwrap().map(|found| found.len()), None);
            clock.set_unix_seconds(START);
            let again = fill(&store, 1, 700, |_| Some(START + 1000 * TTL));
            assert!(again * 10 >= first * 9, "{again} values, {first} before");
            assert_eq!(store.get(b"a").unwrap().map(|found| found.len()), None);
            store.clean(1000).unwrap();
            store.sync().unwrap();
            for _ in 0..2 {
                device = cut_off(&device);
                options.clock = Arc::new(ManualClock::new(START));
                let store = open(&device, &options).unwrap();
                let found = store.get(b"a").unwrap();
                let right = found.is_none_or(|found| *found == *value(2, new));
                assert!(right, "{old} bytes were there before {new}");
                is_there(&store, 1, 700, again, 7);
                is_sound(&store);
                store.clean(1000).unwrap();
                store.forget();
            }
        }
    }
}

#[test]
fn nothing_is_looked_at_while_there_is_room_and_once_when_there_is_none() {
    let (options, _) = options(Durability::Sync);
    let device = device();
    let store = open(&device, &options).unwrap();
    let count = fill(&store, 0, 700, |n| n.is_multiple_of(2).then_some(START + TTL));
    for number in 0..count / 2 {
        assert!(store.delete(format!("0/{number}").as_bytes()).unwrap());
    }
    store.clean(1000).unwrap();
    store.close().unwrap();
    let store = open(&device, &options).unwrap();
    let reads = || store.stats().device.reads;
    let before = reads();
    for number in 0..20 {
        put(&store, &format!("more{number}"), &value(1, 700), None).unwrap();
    }
    // None of these has a record to read.
    assert_eq!(reads(), before);
    fill(&store, 2, 700, |_| None);
    // A tombstone that stands for what is in a segment that others keep.
    assert!(store.delete(b"2/0").unwrap());
    fill(&store, 3, 700, |_| None);
    assert!(store.stats().tombstones > 0);
    // What there was to look at and to purge has been.
    let before = reads();
    for _ in 0..10 {
        assert_eq!(put(&store, "refused", &value(1, 700), None), Err(ErrorKind::NoSpace));
    }
    assert_eq!(reads(), before, "a full store refuses without reading");
}

/// A cache takes what has expired before what was not used for longer.
#[test]
fn a_cache_evicts_what_has_expired_first() {
    let (mut options, clock) = options(Durability::None);
    options.cache = true;
    let store = open(&device(), &options).unwrap();
    let segments = DEVICE / SEGMENT;
    let each = SEGMENT / 700;
    let key = |part: &str, number: u64| format!("{part}{number}");
    for number in 0..each * segments / 4 {
        put(&store, &key("lasting", number), &value(number, 700), None).unwrap();
    }
    for number in 0..each * segments / 2 {
        put(&store, &key("short", number), &value(number, 700), Some(START + TTL)).unwrap();
    }
    clock.advance(Duration::from_secs(TTL));
    for number in 0..each * segments / 2 {
        put(&store, &key("new", number), &value(number, 700), None).unwrap();
    }
    for (part, count) in [("lasting", each * segments / 4), ("new", each * segments / 2)] {
        for number in 0..count {
            assert!(store.get(key(part, number).as_bytes()).unwrap().is_some(), "{part}{number}");
        }
    }
    is_sound(&store);
}

/// Time goes on; the wall clock says what it is told to.
#[derive(Debug)]
struct Wall(AtomicU64);

impl Clock for Wall {
    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn unix_seconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// In a folder, beside the store's own threads.
fn comes_back_in_a_folder(size: usize, durability: Durability, ends: Option<fn(Store)>) {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(Wall(AtomicU64::new(START)));
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::Depot);
    options.clock = Arc::clone(&clock) as Arc<_>;
    options.durability = durability;
    options.size_bytes = 16 << 20;
    options.testing.segment_size_bytes = Some(256 << 10);
    let mut store = Store::open(&options).unwrap();
    let first = fill(&store, 0, size, |_| Some(START + TTL));
    clock.0.store(START + TTL, Ordering::Relaxed);
    if let Some(end) = ends {
        end(store);
        store = Store::open(&options).unwrap();
    }
    let again = fill(&store, 1, size, |_| None);
    assert!(again * 10 >= first * 9, "{again} values of {size} bytes, {first} before");
    is_there(&store, 1, size, again, again as usize / 100 + 1);
    is_sound(&store);
}

#[test]
fn room_comes_back_in_a_folder() {
    for size in [700, 5000, 1 << 20] {
        comes_back_in_a_folder(size, Durability::None, None);
    }
    comes_back_in_a_folder(200_000, Durability::Sync, None);
}

#[test]
fn room_comes_back_in_a_folder_after_an_open() {
    let close = |store: Store| store.close().unwrap();
    for size in [5000, 1 << 20] {
        comes_back_in_a_folder(size, Durability::None, Some(close));
        comes_back_in_a_folder(size, Durability::None, Some(Store::forget));
    }
}
