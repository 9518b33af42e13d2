//! Room in stores of `flat` that does not count any more without anybody saying so: what has expired, and what is free in chunks of
//! other sizes.

use crate::support::{Bed, START, number};
use esker::{Attributes, Condition, EngineKind, Options, PutOptions, Store};
use esker_base::clock::ManualClock;
use esker_media::Pmem;
use esker_media::sim::{SimPm, SimPmOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
/// More than any store here takes.
const MANY: u32 = 1 << 20;

/// A store whose clock is set by hand.
struct Timed {
    memory: Arc<SimPm>,
    options: Options,
    clock: Arc<ManualClock>,
}

impl Timed {
    /// A blank one of so many chunks.
    fn new(engine: EngineKind, chunks: u64) -> Timed {
        const CHUNK: u64 = 16 << 10;
        let mut options = Bed::new(engine, 9).options(9);
        options.testing.segment_size_bytes = Some(CHUNK);
        let clock = Arc::new(ManualClock::new(START));
        options.clock = Arc::clone(&clock) as _;
        let mut memory = SimPmOptions::new(chunks * CHUNK, 9);
        memory.record = false;
        Timed { memory: Arc::new(SimPm::new(memory)), options, clock }
    }

    fn open(&self) -> Store {
        Store::open_on_memory(Arc::clone(&self.memory) as Arc<dyn Pmem>, &self.options).unwrap()
    }
}

fn put(store: &Store, key: &[u8], value: &[u8], expires_at: Option<u64>) -> esker::Result<()> {
    let attributes = Attributes { expires_at, ..Attributes::default() };
    let options = PutOptions { attributes, condition: Condition::Always };
    store.put_with(key, value, options).map(drop)
}

/// Puts values from this number on until there is no room: how many fit.
fn fill(store: &Store, from: u32, size: usize, expires_at: impl Fn(u32) -> Option<u64>) -> u32 {
    let value = vec![7; size];
    let is_full = |n: &u32| put(store, &n.to_be_bytes(), &value, expires_at(*n)).is_err();
    (from..from + MANY).find(is_full).unwrap() - from
}

#[test]
fn what_has_expired_gives_its_room_back() {
    for engine in KINDS {
        for size in [40, 300, 3000, 20_000] {
            let timed = Timed::new(engine, 64);
            let store = timed.open();
            let mut from = 0;
            let first = fill(&store, from, size, |_| Some(START + 10));
            for round in 1..5_u64 {
                timed.clock.set_unix_seconds(START + 10 * round);
                from += MANY;
                let again = fill(&store, from, size, |_| Some(START + 10 * (round + 1)));
                assert!(
                    again * 10 >= first * 9,
                    "{engine}, {size} bytes, {round}: {again} {first}"
                );
            }
            assert!(store.get(&0_u32.to_be_bytes()).unwrap().is_none());
            assert!(store.get(&from.to_be_bytes()).unwrap().is_some());
            assert!(store.check().unwrap().is_sound());
        }
    }
}

#[test]
fn a_store_that_was_opened_knows_what_has_expired() {
    for engine in KINDS {
        for (is_clean, is_before) in [(true, true), (true, false), (false, true), (false, false)] {
            let timed = Timed::new(engine, 64);
            let store = timed.open();
            let first = fill(&store, 0, 300, |_| Some(START + 10));
            if is_before {
                timed.clock.set_unix_seconds(START + 10);
            }
            if is_clean {
                store.close().unwrap();
            } else {
                store.forget();
            }
            let store = timed.open();
            timed.clock.set_unix_seconds(START + 10);
            let again = fill(&store, MANY, 300, |_| None);
            assert!(again * 10 >= first * 9, "{engine}, {is_clean}, {is_before}: {again} {first}");
            assert!(store.check().unwrap().is_sound());
        }
    }
}

#[test]
fn what_has_not_expired_stays() {
    for engine in KINDS {
        for size in [40, 700] {
            let timed = Timed::new(engine, 64);
            let store = timed.open();
            let expires_at = |n: u32| n.is_multiple_of(2).then_some(START + 10);
            let first = fill(&store, 0, size, expires_at);
            timed.clock.set_unix_seconds(START + 10);
            let again = fill(&store, MANY, size, |_| None);
            assert!(again * 10 >= first / 2 * 8, "{engine}, {size}: {again} and {first}");
            store.forget();
            let store = timed.open();
            for n in 0..first {
                let found = store.get(&n.to_be_bytes()).unwrap();
                assert_eq!(found.is_some(), expires_at(n).is_none(), "{engine}, {size}, {n}");
                assert!(found.is_none_or(|value| value.len() == size && value[0] == 7));
            }
            assert!(store.check().unwrap().is_sound());
        }
    }
}

#[test]
fn an_older_value_does_not_come_back_when_a_newer_one_has_expired() {
    let long = [b'k'; 300];
    for engine in KINDS {
        for key in [&b"key"[..], &long] {
            let timed = Timed::new(engine, 64);
            let mut store = timed.open();
            put(&store, key, &[1; 400], None).unwrap();
            // So that the older one stays where it is.
            (0..200_u32).for_each(|n| put(&store, &n.to_be_bytes(), &[2; 100], None).unwrap());
            put(&store, key, &[3; 400], Some(START + 10)).unwrap();
            let filler = |n: u32| put(&store, &[n as u8 % 3], &[4; 200], None).unwrap();
            (0..600).for_each(filler);
            timed.clock.set_unix_seconds(START + 10);
            store.clean(64).unwrap();
            for _ in 0..3 {
                store.forget();
                timed.clock.set_unix_seconds(START);
                store = timed.open();
                let found = store.get(key).unwrap();
                assert!(found.is_none_or(|value| value[0] == 3), "{engine}: the older one");
                store.clean(64).unwrap();
            }
            assert!(store.check().unwrap().is_sound());
        }
    }
}

#[test]
fn values_that_grow_find_room_where_smaller_ones_were() {
    for engine in KINDS {
        let timed = Timed::new(engine, 96);
        let store = timed.open();
        // They never take half of the store: what smaller ones left would fill it.
        let count = 150_u32;
        let mut last = BTreeMap::new();
        for (round, size) in (0..).zip((300..4000).step_by(64)) {
            for n in 0..count {
                // Every third stays as it is for long, so that no chunk becomes empty by itself.
                if n % 3 > 0 || size % 1024 == 300 {
                    let value = number(vec![n as u8; size], round);
                    let stored = store.put(&n.to_be_bytes(), &value);
                    stored.unwrap_or_else(|error| panic!("{engine}, {size} bytes: {error}"));
                    last.insert(n, value);
                }
            }
        }
        let sound = |store: &Store| {
            for (n, value) in &last {
                let found = store.get(&n.to_be_bytes()).unwrap().unwrap();
                assert!(*found == **value, "{engine}: {n}");
            }
            assert_eq!(store.stats().items, u64::from(count));
            assert!(store.check().unwrap().is_sound());
        };
        sound(&store);
        store.forget();
        sound(&timed.open());
    }
}

#[test]
fn what_a_packed_store_frees_is_enough_to_fill_it_with_another_size() {
    for engine in KINDS {
        let timed = Timed::new(engine, 96);
        let store = timed.open();
        let first = fill(&store, 0, 300, |_| None);
        // One of eight stays: an eighth of each chunk.
        for n in (0..first).filter(|n| n % 8 > 0) {
            assert!(store.delete(&n.to_be_bytes()).unwrap());
        }
        let again = fill(&store, MANY, 5000, |_| None);
        assert!(again * 5000 >= first * 300 * 6 / 10, "{engine}: {again} beside {first}");
        for n in (0..first).step_by(8) {
            assert!(store.get(&n.to_be_bytes()).unwrap().is_some_and(|value| value.len() == 300));
        }
        assert!(store.check().unwrap().is_sound());
        store.close().unwrap();
        let store = timed.open();
        assert!(store.check().unwrap().is_sound());
        assert_eq!(store.stats().items, u64::from(first.div_ceil(8) + again));
    }
}

#[test]
fn a_large_value_finds_its_chunks_where_free_ones_lie_apart() {
    for engine in KINDS {
        let timed = Timed::new(engine, 128);
        let store = timed.open();
        let mut rng = esker_base::rng::Rng::from_seed(11);
        let mut last = BTreeMap::new();
        let mut put = |n: u32, size: usize, round: u32| {
            let value = number(vec![n as u8; size], round);
            let stored = store.put(&n.to_be_bytes(), &value);
            stored.unwrap_or_else(|error| {
                panic!("{engine}: {size} bytes: {error}, {:?}", store.stats())
            });
            last.insert(n.to_be_bytes().to_vec(), value);
        };
        // 2 MiB in all; of it 0.6 small, 0.5 large at most.
        for round in 0..12_000 {
            if round % 100 == 0 {
                put(MANY + round / 100 % 4, 20_000 + rng.index(100_000), round);
            }
            put(rng.below(400) as u32, 300 + rng.index(2400), round);
        }
        let sound = |store: &Store| {
            assert!(store.check().unwrap().is_sound());
            assert_eq!((store.stats().items, last.len()), (404, 404));
            let items = store.iter().map(Result::unwrap);
            let held: BTreeMap<_, _> = items.map(|(key, value)| (key, value.to_vec())).collect();
            assert!(held == last, "{engine}: a value is not the last one");
        };
        sound(&store);
        store.forget();
        sound(&timed.open());
    }
}

#[test]
fn short_entries_that_came_one_by_one_fill_the_store() {
    for engine in KINDS {
        let timed = Timed::new(engine, 64);
        let store = timed.open();
        let stored = fill(&store, 0, 70, |_| None);
        // Each took two lines when it came: a batch of its own.
        let share = u64::from(stored) * 74 * 100 / store.stats().capacity_bytes;
        // With stamps of four bits copies take so much that there is little to gain.
        let least = if cfg!(feature = "small") { 50 } else { 70 };
        assert!(share >= least, "{engine}: {share} %");
        assert!(store.check().unwrap().is_sound());
    }
}

#[test]
fn logs_that_many_crashes_ended_early_do_not_fill_the_store() {
    for engine in KINDS {
        let timed = Timed::new(engine, 32);
        for round in 0..100_u32 {
            let store = timed.open();
            for n in 0..4_u32 {
                store.put(&(round * 4 + n).to_be_bytes(), &[7; 40]).unwrap();
            }
            store.forget();
        }
        let store = timed.open();
        assert_eq!(store.stats().items, 400);
        assert!(store.check().unwrap().is_sound());
    }
}
