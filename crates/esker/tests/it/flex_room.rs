//! `flex`: the space that a store takes, and gives back.

use crate::flex_whole::{bytes, held, sound};
use crate::support::number;
use esker::{Durability, EngineKind, Options, Store};
use esker_base::rng::Rng;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const PAIRS: u32 = 20_000;
/// Bytes of keys and values that count once [`write_over`] is done.
const LIVE: u64 = PAIRS as u64 * 1004;
/// A few segments are kept for what comes next.
const SPARE: u64 = 5 * (4 << 20);

fn options(folder: &Path) -> Options {
    let mut options = Options::new(folder);
    options.engine = Some(EngineKind::Flex);
    options.durability = Durability::None;
    options.flex.memtable_size_bytes = 2 << 20;
    options
}

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9E37_79B1).to_be_bytes()
}

/// Every key once, then so many times as many writes of any; what each of them holds then.
fn write_over(store: &Store, times: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut last = BTreeMap::new();
    let mut rng = Rng::from_seed(2);
    for write in 0..(1 + times) * PAIRS {
        let mut any = || u32::try_from(rng.below(u64::from(PAIRS))).unwrap();
        let key = key(if write < PAIRS { write } else { any() });
        let value = number(bytes(1, 1000), write);
        store.put(&key, &value).unwrap();
        last.insert(key.to_vec(), value);
    }
    last
}

/// Bytes that the file system has of the data file.
fn taken(folder: &Path) -> u64 {
    std::fs::metadata(folder.join("space.data")).unwrap().blocks() * 512
}

#[test]
fn a_store_keeps_the_capacity_that_it_was_made_with() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.size_bytes = 3 << 30;
    for others in [3_u64 << 30, 1 << 20, 1 << 40] {
        let store = Store::open(&options).unwrap();
        assert_eq!(store.stats().capacity_bytes, 3 << 30);
        store.put(&others.to_be_bytes(), b"").unwrap();
        store.close().unwrap();
        options.size_bytes = others;
    }
}

#[test]
fn a_store_that_is_compacted_takes_little_more_than_what_counts() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(folder.path())).unwrap();
    let last = write_over(&store, 3);
    let before = taken(folder.path());
    let freed = store.clean(usize::MAX).unwrap();
    assert!(freed > 0);
    assert_eq!(store.clean(usize::MAX).unwrap(), 0, "nothing is left to gain");
    let given_back = store.trim().unwrap();
    let after = taken(folder.path());
    // Blocks of the file system are as large as those of the store, or smaller.
    assert!(before - after <= given_back && given_back > 0, "{before}, {after}, {given_back}");
    assert!(after < LIVE * 11 / 10 + SPARE, "{after} bytes for {LIVE}");
    assert!(last.len() == PAIRS as usize && held(&store) == last);
    sound(&store);
}

#[test]
fn what_keys_begin_with_takes_its_place_once_for_several() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(folder.path())).unwrap();
    const LONG: u32 = 200_000;
    let key = |number: u32| format!("{number:0200}").into_bytes();
    let all = || (0..LONG).map(|number| number.wrapping_mul(7919) % LONG);
    for number in all() {
        store.put(&key(number), &number.to_be_bytes()).unwrap();
    }
    store.clean(usize::MAX).unwrap();
    store.trim().unwrap();
    let (user, after) = (u64::from(LONG) * 204, taken(folder.path()));
    assert!(after < user / 5 + SPARE, "{after} bytes for {user}");
    let mut next = 0;
    let shown = store.scan_with(.., esker::Direction::Forward, usize::MAX, |met| {
        assert_eq!((met.key, met.value), (&*key(next), &next.to_be_bytes()[..]));
        next += 1;
    });
    assert_eq!((shown.unwrap(), next), (LONG as usize, LONG));
    for number in all() {
        assert_eq!(store.get(&key(number)).unwrap().unwrap().to_vec(), number.to_be_bytes());
    }
    sound(&store);
}

#[test]
fn small_pairs_that_came_in_any_order_lie_side_by_side_after_a_rest() {
    const SMALL: u32 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.flex.memtable_size_bytes = 1 << 20;
    options.flex.cache_size_bytes = 32 << 20;
    options.flex.scrub_bytes_per_second = 0;
    let pair = |number: u32| u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let store = Store::open(&options).unwrap();
    for number in 0..SMALL {
        store.put(&pair(number), &pair(number + 1)).unwrap();
    }
    // It rests once nobody wrote for two seconds, and is done when it writes no more, which it may also not do for a while on
    // a busy machine.
    let (mut before, mut still) = (u64::MAX, 0);
    let rests = (0..120).any(|_| {
        esker_trt::sleep(std::time::Duration::from_secs(1));
        let now = store.stats().device.write_bytes;
        still = if std::mem::replace(&mut before, now) == now { still + 1 } else { 0 };
        still == 5
    });
    assert!(rests, "it goes on and on");
    store.close().unwrap();
    drop(store);
    let store = Store::open(&options).unwrap();
    let mut rng = Rng::from_seed(3);
    let reads = store.stats().device.reads;
    for _ in 0..SMALL / 4 {
        let number = u32::try_from(rng.below(u64::from(SMALL))).unwrap();
        assert_eq!(&*store.get(&pair(number)).unwrap().unwrap(), pair(number + 1));
    }
    // An interval has up to 16 pairs, and a block has several intervals.
    let reads = store.stats().device.reads - reads;
    assert!(reads < u64::from(SMALL) / 50, "{reads} reads");
}

#[test]
fn a_store_that_was_written_over_and_emptied_gives_its_space_back_while_nobody_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(folder.path())).unwrap();
    let mut last = write_over(&store, 11);
    let takes = || taken(folder.path());
    let waits = |most: u64| {
        let waited = (0..600).any(|_| {
            esker_trt::sleep(std::time::Duration::from_millis(100));
            takes() <= most
        });
        assert!(waited, "{} bytes and not {most}", takes());
    };
    // Of twelve times as much as counts. What is spare, four segments, is there while there is a table, which is larger than the
    // options say; some segments have been left and not been freed yet.
    let most = LIVE * 3 + SPARE + 12 * (4 << 20);
    assert!(takes() < most, "{} bytes while it was written over", takes());
    waits(LIVE * 13 / 10 + SPARE);
    for number in 0..PAIRS / 4 * 3 {
        assert!(store.delete(&key(number)).unwrap());
        last.remove(&key(number)[..]);
    }
    waits(LIVE / 4 * 13 / 10 + SPARE);
    assert!(last.len() == PAIRS as usize / 4 && held(&store) == last);
    sound(&store);
}

/// A range, and deletes that are few beside a table, but not beside what they delete.
#[test]
fn what_little_deletes_gives_its_space_back_while_nobody_writes_as_well() {
    for by_range in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(folder.path());
        options.flex = esker::FlexOptions::default();
        let store = Store::open(&options).unwrap();
        for number in 0..PAIRS {
            store.put(&key(number), &bytes(1, 1000)).unwrap();
        }
        store.clean(usize::MAX).unwrap();
        assert!(taken(folder.path()) > LIVE);
        if by_range {
            store.delete_range(&[], None).unwrap();
        } else {
            (0..PAIRS).for_each(|number| assert!(store.delete(&key(number)).unwrap()));
        }
        let waited = (0..300).any(|_| {
            esker_trt::sleep(std::time::Duration::from_millis(100));
            taken(folder.path()) <= SPARE
        });
        assert!(waited, "{by_range}: {} bytes", taken(folder.path()));
        let read = store.stats().device.read_bytes;
        assert!(store.scan(.., esker::Direction::Forward, 1).unwrap().is_empty());
        assert!(store.stats().device.read_bytes - read < 1 << 20);
    }
}

#[test]
fn leaves_that_grow_alike_are_rewritten_one_after_the_other() {
    const TABLE: u64 = 128 << 10;
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.testing.background = false;
    options.flex.memtable_size_bytes = TABLE;
    let store = Store::open(&options).unwrap();
    let value = bytes(1, 100);
    let (mut most, mut before) = (0, 0);
    for number in 0..300_000 {
        store.put(&key(number), &value).unwrap();
        // More often than tables are full.
        if number % 500 == 0 {
            let report = store.report();
            let (words, _) = report.split_once(" written anew").unwrap();
            let rewritten: u64 = words.rsplit("appended, ").next().unwrap().parse().unwrap();
            most = most.max(rewritten - before);
            before = rewritten;
        }
    }
    assert!(most < before / 8, "{most} bytes of {before} by one table of {TABLE}");
    sound(&store);
}
