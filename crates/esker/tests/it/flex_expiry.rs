//! `flex`: pairs whose time has come give their room back, and nothing that was there before them comes back.

use crate::flex_damage::refusing_all;
use crate::flex_db::{self, Devices};
use crate::flex_whole::{bytes, sound};
use crate::support::{START, folder_in_memory};
use esker::flex::SpaceFiles;
use esker::{
    Attributes, Direction, Durability, EngineKind, ErrorKind, FlexFiles, Options, PutOptions, Store,
};
use esker_base::clock::ManualClock;
use esker_base::rng::Rng;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long pairs live, in seconds.
const LIFE: u64 = 100;
const SIZE: u64 = 64 << 20;

/// A small store on real files whose clock stands still.
struct Bed {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
    options: Options,
}

impl Bed {
    fn new() -> Self {
        let folder = folder_in_memory();
        let clock = Arc::new(ManualClock::new(START));
        let mut options = Options::new(folder.path());
        options.engine = Some(EngineKind::Flex);
        options.durability = Durability::None;
        options.size_bytes = SIZE;
        options.clock = Arc::clone(&clock) as _;
        options.flex.memtable_size_bytes = 2 << 20;
        options.flex.large_value_size_bytes = 128 << 10;
        options.flex.scrub_bytes_per_second = 0;
        Bed { folder, clock, options }
    }

    fn open(&self) -> Store {
        Store::open(&self.options).unwrap()
    }

    fn pass(&self) {
        self.clock.advance(Duration::from_secs(LIFE));
    }

    fn now(&self) -> u64 {
        use esker_base::clock::Clock;
        self.clock.unix_seconds()
    }
}

fn key(round: u64, number: u64) -> [u8; 16] {
    let mixed = (round << 32 | number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mixed.to_be_bytes());
    key[8..].copy_from_slice(&round.to_be_bytes());
    key
}

fn expiring(at: u64) -> PutOptions {
    let attributes = Attributes { expires_at: Some(at), ..Attributes::default() };
    PutOptions { attributes, ..PutOptions::default() }
}

/// Puts pairs until there is no room for one: how many. Those of which `lives` says so have no expiry.
fn fill(bed: &Bed, store: &Store, round: u64, size: usize, lives: impl Fn(u64) -> bool) -> u64 {
    let value = bytes(round, size);
    let at = bed.now() + LIFE;
    let mut number = 0;
    loop {
        let options = if lives(number) { PutOptions::default() } else { expiring(at) };
        match store.put_with(&key(round, number), &value, options) {
            Ok(_) => number += 1,
            Err(error) if error.kind() == ErrorKind::NoSpace => return number,
            Err(error) => panic!("{error}"),
        }
    }
}

fn held(store: &Store) -> usize {
    let forward = store.scan(.., Direction::Forward, usize::MAX).unwrap().len();
    assert_eq!(store.scan(.., Direction::Reverse, usize::MAX).unwrap().len(), forward);
    forward
}

#[track_caller]
fn fits_again(again: u64, first: u64) {
    assert!(again * 10 >= first * 9, "{again} pairs and not {first}");
}

#[test]
fn what_has_expired_makes_way_for_as_much() {
    for size in [100, 700, 5000, 100_000, 300_000, 300_001, 1_500_000] {
        let mut bed = Bed::new();
        if size == 300_001 {
            // In intervals: a leaf of these is too large to be read at once.
            bed.options.flex.large_value_size_bytes = 1 << 20;
        }
        let store = bed.open();
        let first = fill(&bed, &store, 0, size, |_| false);
        assert!(first * size as u64 > SIZE / 4, "{first} pairs of {size} bytes");
        bed.pass();
        fits_again(fill(&bed, &store, 1, size, |_| false), first);
        assert!(store.get(&key(0, 0)).unwrap().is_none());
        assert_eq!(&*store.get(&key(1, 1)).unwrap().unwrap(), bytes(1, size));
        sound(&store);
    }
}

#[test]
fn pairs_of_a_table_that_holds_all_of_them_make_way_too() {
    let mut bed = Bed::new();
    bed.options.flex.memtable_size_bytes = 64 << 20;
    let store = bed.open();
    for (round, size) in [(0, 5000), (1, 5000), (2, 700)] {
        let count = fill(&bed, &store, round, size, |_| false);
        assert!(count * size as u64 > SIZE / 4, "{count} pairs of {size} bytes");
        bed.pass();
    }
    sound(&store);
}

#[test]
fn what_expired_before_or_after_an_open_makes_way() {
    for case in 0..4 {
        let (is_clean, is_late) = (case % 2 == 0, case / 2 == 0);
        let mut bed = Bed::new();
        bed.options.durability = Durability::Periodic(Duration::from_secs(1));
        let store = bed.open();
        let first = fill(&bed, &store, 0, 700, |_| false);
        if is_late {
            bed.pass();
        }
        if is_clean {
            store.close().unwrap();
            drop(store);
        } else {
            store.forget();
        }
        let store = bed.open();
        if !is_late {
            bed.pass();
        }
        let again = fill(&bed, &store, 1, 700, |_| false);
        assert!(again * 10 >= first * 9, "{again} pairs and not {first}: {is_clean} {is_late}");
        assert_eq!(held(&store) as u64, again);
        sound(&store);
    }
}

#[test]
fn what_lives_stays_where_others_expired() {
    for size in [100, 700, 5000, 300_000] {
        let bed = Bed::new();
        let store = bed.open();
        let first = fill(&bed, &store, 0, size, |number| number % 2 == 0);
        if size == 300_000 {
            // All pairs that name large values are in the space when they expire.
            sound(&store);
        }
        bed.pass();
        let again = fill(&bed, &store, 1, size, |_| false);
        let half = first / 2;
        assert!(again * 10 >= half * 7, "{again} pairs of {size} bytes and not {half}");
        let value = bytes(0, size);
        let mut all = Vec::new();
        let show = |met: esker::Met<'_>| {
            assert!(*met.value == *value || met.key[8..] == 1_u64.to_be_bytes());
            all.push(met.key.to_vec());
        };
        store.scan_with(.., Direction::Forward, usize::MAX, show).unwrap();
        assert_eq!(all.len() as u64, first.div_ceil(2) + again);
        assert!(
            (0..first).step_by(2).all(|number| all.binary_search(&key(0, number).into()).is_ok())
        );
        for number in (0..first).step_by(101) {
            let found = store.get(&key(0, number)).unwrap();
            assert_eq!(found.as_deref() == Some(&*value), number % 2 == 0, "{number}");
        }
        sound(&store);
    }
}

#[test]
fn a_store_is_filled_again_and_again_with_keys_that_expire() {
    let bed = Bed::new();
    let store = bed.open();
    let first = fill(&bed, &store, 0, 1000, |_| false);
    for round in 1..6 {
        bed.pass();
        fits_again(fill(&bed, &store, round, 1000, |_| false), first);
    }
    sound(&store);
}

#[test]
fn what_expires_while_others_come_never_fills_a_store() {
    let bed = Bed::new();
    let store = bed.open();
    let value = bytes(1, 1000);
    // A tenth of what fits lives at a time; ten times as much as fits comes.
    let each = SIZE / 20 / 1000 / LIFE;
    let mut most = 0;
    for second in 0..100 * LIFE / 4 {
        // Keys grow with time: nothing comes again to leaves of which much has expired.
        for number in 0..each {
            let options = expiring(bed.now() + LIFE / 2);
            store.put_with(&(second << 32 | number).to_be_bytes(), &value, options).unwrap();
        }
        bed.clock.advance(Duration::from_secs(1));
        most = most.max(store.stats().live_bytes);
    }
    // A quarter of all may not count, and there are tables.
    assert!(most < SIZE / 5, "{most} bytes at a time");
    sound(&store);
}

#[test]
fn what_has_expired_goes_when_a_store_is_cleaned() {
    for crashes in [false, true] {
        let mut bed = Bed::new();
        bed.options.durability = Durability::Periodic(Duration::from_secs(1));
        let mut store = bed.open();
        fill(&bed, &store, 0, 1000, |number| number % 10 == 0);
        bed.pass();
        if crashes {
            store.forget();
            store = bed.open();
        }
        let before = store.stats().live_bytes;
        store.clean(usize::MAX).unwrap();
        let after = store.stats().live_bytes;
        assert!(after < before / 8, "{after} bytes of {before}");
        sound(&store);
    }
}

/// Bytes that the file system has of the data file.
fn taken(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(folder.join("space.data")).unwrap().blocks() * 512
}

#[test]
fn what_has_expired_gives_its_space_back_while_nobody_writes() {
    for size in [700, 300_000] {
        let bed = Bed::new();
        let store = bed.open();
        let pairs = fill(&bed, &store, 0, size, |number| number % 8 == 0);
        let rests = |rounds: u32, most: u64| {
            (0..rounds).any(|_| {
                bed.clock.advance(Duration::from_millis(250));
                esker_trt::sleep(Duration::from_millis(20));
                store.stats().live_bytes < most && taken(bed.folder.path()) < most + (20 << 20)
            })
        };
        // All that was to do is done before they expire.
        assert!(!rests(100, SIZE / 4), "{} bytes", store.stats().live_bytes);
        bed.pass();
        let lives = pairs * size as u64 / 8 * 13 / 10;
        assert!(rests(1000, lives), "{} bytes of {size}, {lives}", store.stats().live_bytes);
        sound(&store);
    }
}

#[test]
fn nothing_older_comes_back_when_the_newest_has_expired() {
    // Whether older values stand by themselves; whether the newest one is in the space when it expires; what an open snapshot is of.
    for seed in 0..24 {
        let (is_large, is_committed) = (seed % 2 == 0, seed / 2 % 2 == 0);
        let snapshot_of = seed / 4 % 3;
        let context = format!("large {is_large}, committed {is_committed}, snapshot {snapshot_of}");
        let devices = Devices::new(seed);
        let clock = Arc::new(ManualClock::new(START));
        let mut options = flex_db::options(seed);
        options.clock = Arc::clone(&clock) as _;
        let store = devices.open(&options).unwrap();
        let mut rng = Rng::from_seed(seed);
        let old = bytes(1, if is_large { 6000 } else { 60 });
        for number in 0..60_u8 {
            store.put(&[b'k', number], &old).unwrap();
        }
        sound(&store);
        let mut snapshot = (snapshot_of == 1).then(|| store.snapshot().unwrap());
        for number in 0..60_u8 {
            let value = vec![7; rng.index(200)];
            store.put_with(&[b'k', number], &value, expiring(START + LIFE)).unwrap();
            if is_committed && rng.chance(1, 10) {
                sound(&store);
            }
        }
        if snapshot_of == 2 {
            snapshot = Some(store.snapshot().unwrap());
        }
        clock.advance(Duration::from_secs(LIFE));
        let judge = |store: &Store, words: &str| {
            for number in 0..60_u8 {
                let found = store.get(&[b'k', number]).unwrap();
                let is_old = found.is_some_and(|found| *found == *old);
                assert!(!is_old, "{context}: {number} {words}");
            }
            let all = store.scan(.., Direction::Forward, usize::MAX).unwrap();
            assert!(all.iter().all(|(_, value)| **value != *old), "{context}: {words}");
        };
        store.clean(usize::MAX).unwrap();
        judge(&store, "cleaned");
        if let Some(snapshot) = &snapshot {
            for number in 0..60_u8 {
                let found = snapshot.get(&[b'k', number]).unwrap();
                let expected = (snapshot_of == 1).then_some(&*old);
                assert_eq!(found.as_deref(), expected, "{context}: as of then");
            }
        }
        sound(&store);
        // A crash, and a clock that is behind.
        let again = devices.again();
        let mut behind = options.clone();
        behind.clock = Arc::new(ManualClock::new(START));
        let other = again.open(&behind).unwrap();
        judge(&other, "opened with a clock that is behind");
        other.clean(usize::MAX).unwrap();
        judge(&other, "opened and cleaned");
        sound(&other);
        other.forget();
        drop(snapshot);
        store.clean(usize::MAX).unwrap();
        judge(&store, "without the snapshot");
        assert_eq!(store.scan(.., Direction::Forward, usize::MAX).unwrap().len(), 0, "{context}");
        sound(&store);
        for number in 0..60_u8 {
            store.put(&[b'k', number], b"new").unwrap();
        }
        sound(&store);
        let size = store.stats().live_bytes;
        assert!(size < 60 * 200, "{context}: {size} bytes");
        store.forget();
    }
}

#[test]
fn to_know_what_expires_takes_little_memory() {
    let mut bed = Bed::new();
    bed.options.size_bytes = 256 << 20;
    let store = bed.open();
    let (value, mut rng) = (bytes(1, 134), Rng::from_seed(1));
    let count = 200_000;
    for number in 0..count {
        let options = expiring(bed.now() + 1 + rng.below(1 << 20));
        store.put_with(&key(0, number), &value, options).unwrap();
    }
    sound(&store);
    let bytes = store.stats().index_bytes;
    assert!(bytes < 5 * count, "{bytes} bytes for {count} pairs");
}

/// What is refused for a moment is not damaged.
#[test]
fn what_expired_makes_way_although_a_device_refused_to_read_it_for_a_while() {
    for is_reopened in [false, true] {
        let clock = Arc::new(ManualClock::new(START));
        let mut options = flex_db::options(4);
        options.clock = Arc::clone(&clock) as _;
        let devices = Devices::new(5);
        let (data, refuses) = refusing_all(&devices.shared(0));
        let files = || {
            let files = devices.files();
            FlexFiles { space: SpaceFiles { data: Arc::clone(&data) as _, ..files.space }, ..files }
        };
        let mut store = Store::open_flex_on(files(), &options).unwrap();
        let fill = |store: &Store, round: u64| {
            let life = START + (round + 1) * LIFE;
            (0..)
                .find(|number| {
                    let put =
                        store.put_with(&key(round, *number), &bytes(round, 200), expiring(life));
                    put.is_err()
                })
                .unwrap()
        };
        let first = fill(&store, 0);
        assert!(first > 1000, "{first}");
        // Brings all together: nothing is appended anywhere.
        store.clean(0).unwrap();
        clock.advance(Duration::from_secs(LIFE + 1));
        refuses.store(true, Ordering::Relaxed);
        for number in 0..20 {
            drop(store.put(&key(7, number), &bytes(7, 200)));
            drop(store.clean(0));
        }
        refuses.store(false, Ordering::Relaxed);
        if is_reopened {
            store.close().unwrap();
            drop(store);
            store = Store::open_flex_on(files(), &options).unwrap();
        }
        clock.advance(Duration::from_secs(1));
        let second = fill(&store, 1);
        assert!(second * 10 > first * 9, "{second} of {first}, reopened: {is_reopened}");
    }
}
