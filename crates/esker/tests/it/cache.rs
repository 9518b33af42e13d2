//! Caches: a full one evicts, and never has an older value than it had.

use crate::support::{SEGMENT_SIZE, device, flip_on, open, options};
use esker::{Batch, Condition, Durability, ErrorKind, Options, Outcome, PutOptions, Store};
use esker_base::clock::Clock;
use esker_base::rng::Rng;
use esker_media::BlockDevice;
use esker_media::sim::{
    Act, Asking, FaultKind, FaultPlan, Initial, SimBlock, SimBlockOptions, Trigger,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a value that stands in extents.
const LARGE: usize = 4000;

/// Goes on whenever it is looked at.
#[derive(Debug, Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> u64 {
        1000
    }
}

fn cache_options(seed: u64) -> Options {
    let mut options = options(seed);
    options.cache = true;
    options.clock = Arc::new(Ticking::default());
    options
}

fn roomy(seed: u64, size: u64) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(size, seed)))
}

/// Draws numbers from 0 with the odds of a zipfian distribution of exponent 0.99.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(count: u32) -> Zipf {
        let mut sum = 0.0;
        let weights = (1..=count).map(|n| {
            sum += f64::from(n).powf(-0.99);
            sum
        });
        Zipf(weights.collect())
    }

    fn draw(&self, rng: &mut Rng) -> u32 {
        let point = rng.next_u64() as f64 / u64::MAX as f64 * self.0.last().unwrap();
        self.0.partition_point(|sum| *sum < point) as u32
    }
}

/// The keys of a cache that evicts exactly what was used least recently.
#[derive(Default)]
struct ExactLru {
    used: HashMap<u32, u64>,
    order: BTreeMap<u64, u32>,
    now: u64,
}

impl ExactLru {
    /// Uses a key; whether it was there. There is room for `room` keys.
    fn hit(&mut self, key: u32, room: usize) -> bool {
        self.now += 1;
        let old = self.used.insert(key, self.now);
        self.order.insert(self.now, key);
        if let Some(old) = old {
            self.order.remove(&old);
        } else if self.used.len() > room {
            let (_, oldest) = self.order.pop_first().unwrap();
            self.used.remove(&oldest);
        }
        old.is_some()
    }
}

/// uDepot §4.8 pays for eviction without relocation with hits: they are few.
#[test]
fn hits_are_nearly_those_of_exact_lru_and_nothing_is_relocated() {
    const KEYS: u32 = 100_000;
    const SIZE: u64 = 8 << 20;
    let device = roomy(1, SIZE);
    let mut options = cache_options(1);
    options.durability = Durability::None;
    options.testing.segment_size_bytes = Some(64 << 10);
    let store = open(&device, &options).unwrap();
    let (zipf, mut rng) = (Zipf::new(KEYS), Rng::from_seed(5));
    let (mut exact, mut hits, mut user_bytes) = (ExactLru::default(), [0_u32; 2], 0);
    let (warm, all) = (200_000, 400_000);
    for step in 0..all {
        let key = zipf.draw(&mut rng);
        let value = vec![7; 184];
        let hit = store.get(&key.to_le_bytes()).unwrap().is_some();
        if !hit {
            store.put(&key.to_le_bytes(), &value).unwrap();
            // With its header, in grains of 8 bytes.
            user_bytes += 200;
        }
        let exact_hit = exact.hit(key, (SIZE / 200) as usize);
        if step >= warm {
            hits[0] += u32::from(hit);
            hits[1] += u32::from(exact_hit);
        }
    }
    let [ours, exact] = hits.map(|hits| f64::from(hits) / f64::from(all - warm) * 100.0);
    let stats = store.stats();
    let written = stats.device.write_bytes as f64 / f64::from(user_bytes);
    println!("hits {ours:.2} %, exact LRU {exact:.2} %, {written:.2} bytes written for one");
    assert!(stats.evictions > 10_000 && stats.cache, "{stats:?}");
    assert!(ours > exact - 3.0, "{ours:.2} % against {exact:.2} %");
    // Headers, summaries and ends of batches, in segments of 64 KiB.
    assert!(written < 1.15, "{written:.2} bytes written for one");
}

/// Random operations; a key may be gone, but what is found is the newest value, also after a crash.
fn never_older(seed: u64, hash_mask: u64) {
    let mut device = device(seed);
    let mut options = cache_options(seed);
    options.testing.hash_mask = hash_mask;
    let mut store = open(&device, &options).unwrap();
    let mut newest: HashMap<u8, Option<Vec<u8>>> = HashMap::new();
    let mut rng = Rng::from_seed(seed);
    let (mut found, mut evicted) = (0, 0);
    for step in 0..4000_u32 {
        let key = rng.below(120) as u8;
        let context = format!("seed {seed}, step {step}, key {key}");
        match rng.below(20) {
            0..8 => {
                let mut value = vec![key; 20 + rng.index(900)];
                if rng.chance(1, 10) {
                    value.resize(1000 + rng.index(4000), 0);
                }
                value[..4].copy_from_slice(&step.to_le_bytes());
                store.put(&[key], &value).expect(&context);
                newest.insert(key, Some(value));
            }
            8 => {
                store.delete(&[key]).expect(&context);
                newest.insert(key, None);
            }
            9 if rng.chance(1, 10) => {
                store.evict(1).expect(&context);
            }
            9 if rng.chance(1, 10) => {
                store.clean(1).expect(&context);
            }
            9 if rng.chance(1, 20) => {
                if rng.chance(1, 2) {
                    store.close().expect(&context);
                }
                evicted += store.stats().evictions;
                let initial = Initial::Recycled(device.image());
                let size = esker_media::BlockDevice::geometry(&*device).size_bytes;
                device = Arc::new(SimBlock::new(SimBlockOptions::new(size, 1).initial(initial)));
                options.testing.seed = Some(seed + u64::from(step) + 1);
                options.cache = false;
                store = open(&device, &options).expect(&context);
                assert!(store.stats().cache, "it stays what it is");
            }
            _ => match store.get(&[key]).expect(&context) {
                None => drop(newest.insert(key, None)),
                Some(value) => {
                    let expected = newest.get(&key).cloned().flatten();
                    assert!(expected.as_deref() == Some(&*value), "{context}: an older value");
                    found += 1;
                }
            },
        }
    }
    assert!(found > 200, "only {found} found");
    evicted += store.stats().evictions;
    assert!(evicted > 500, "only {evicted} evicted");
    assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
}

#[test]
fn no_key_ever_has_an_older_value() {
    (0..6).for_each(|seed| never_older(seed, u64::MAX));
}

#[test]
fn no_key_ever_has_an_older_value_when_all_keys_share_a_few_hashes() {
    (10..14).for_each(|seed| never_older(seed, 0x0300_0000_0000_0001));
}

#[test]
fn a_store_that_keeps_is_no_cache_and_a_value_over_half_of_one_is_refused() {
    let device = device(3);
    let store = open(&device, &options(3)).unwrap();
    assert_eq!(store.evict(1).unwrap_err().kind(), ErrorKind::Unsupported);
    store.close().unwrap();
    drop(store);
    let error = open(&device, &cache_options(3)).map(|_: Store| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let store = open(&crate::support::device(4), &cache_options(4)).unwrap();
    let error = store.put(b"k", &vec![0; 100_000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains(", and this cache "), "{error}");
    for n in 0..100_u8 {
        store.put(b"k", &vec![n; 15_000]).unwrap();
        assert_eq!(store.get(b"k").unwrap().map(|value| value[14_999]), Some(n));
    }
}

#[test]
fn many_writers_of_a_full_cache_are_never_refused() {
    for round in 0..10 {
        let durability = if round % 2 == 0 { Durability::Sync } else { Durability::None };
        let device = roomy(round, 256 << 10);
        let mut options = cache_options(round);
        options.durability = durability;
        options.testing.background = true;
        let store = open(&device, &options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let store = &store;
                scope.spawn(move || {
                    let mut rng = Rng::from_seed(4 * round + thread);
                    for n in 0..1500_u64 {
                        let key = rng.below(400).to_le_bytes();
                        if n % 3 == 0 {
                            drop(store.get(&key).unwrap());
                        } else {
                            store.put(&key, &vec![1; 100 + rng.index(1500)]).unwrap();
                        }
                    }
                });
            }
        });
        assert!(store.stats().evictions > 100, "{:?}", store.stats());
        assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
        store.close().unwrap();
    }
}

/// The note that a large value is gone has the version of its head, which may be in the segment that
/// is written now: a purge that does not look there must not drop it.
#[test]
fn a_large_value_that_lost_its_extents_stays_gone() {
    let (mut options, mut device) = (cache_options(30), device(30));
    let mut store = open(&device, &options).unwrap();
    store.put(b"large", &[1; 10_000]).unwrap();
    assert_eq!(store.evict(1).unwrap(), 1);
    for seed in 31..34 {
        assert_eq!(store.get(b"large").unwrap().map(|value| value.len()), None);
        assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
        store.clean(1).unwrap();
        // What is free now does not come back.
        store.trim().unwrap();
        drop(store);
        let initial = Initial::Recycled(device.image());
        let size = esker_media::BlockDevice::geometry(&*device).size_bytes;
        device = Arc::new(SimBlock::new(SimBlockOptions::new(size, seed).initial(initial)));
        options.testing.seed = Some(seed);
        store = open(&device, &options).unwrap();
    }
}

/// While a value is written whose extents fill half of the cache, all that is small is used: so what is there of the value is what was not used for the
/// longest time, and has to stay.
#[test]
fn a_large_value_finds_room_while_all_else_is_in_use() {
    const COUNT: u64 = 64;
    let reading: Arc<Mutex<Option<Store>>> = Arc::default();
    let shared = Arc::clone(&reading);
    let inner = roomy(8, 8192 + COUNT * SEGMENT_SIZE);
    let asking = Asking::new(inner, move |call| {
        let written = call.site == esker::sites::depot::COMMIT_WRITE;
        if written && let Some(store) = &*shared.lock() {
            (0..400_u16).for_each(|key| drop(store.get(&key.to_be_bytes()).unwrap()));
        }
        Ok(())
    });
    let store = Store::open_on(asking as Arc<dyn BlockDevice>, &cache_options(8)).unwrap();
    for key in 0..400_u16 {
        store.put(&key.to_be_bytes(), &[1; 900]).unwrap();
    }
    *reading.lock() = Some(store.clone());
    let large = vec![7; 15 * SEGMENT_SIZE as usize];
    store.put(b"large", &large).unwrap();
    *reading.lock() = None;
    assert_eq!(store.get(b"large").unwrap().as_deref(), Some(&large[..]));
}

/// Tombstones and notes are evicted as well, and are no items.
#[test]
fn evictions_are_items_that_went() {
    let store = open(&device(9), &cache_options(9)).unwrap();
    let mut evicted = 0;
    for round in 0..20_u8 {
        for number in 0..30_u8 {
            store.put(&[number], &[round; 400]).unwrap();
            store.put(&[number], &[round; 300]).unwrap();
            if number % 3 == 0 {
                store.delete(&[number]).unwrap();
            }
        }
        let before = store.stats();
        store.evict(4).unwrap();
        let after = store.stats();
        evicted += before.items - after.items;
        assert_eq!(after.evictions - before.evictions, before.items - after.items, "{round}");
    }
    assert!(evicted > 50, "{evicted}");
}

/// A cache in which the value of `k`, of so many bytes, cannot be read.
fn with_damage(seed: u64, hash_mask: u64, length: usize) -> (Arc<SimBlock>, Options) {
    let (mut options, old) = (cache_options(seed), device(seed));
    options.testing.hash_mask = hash_mask;
    let store = open(&old, &options).unwrap();
    for (key, length) in [(b"a", 300), (b"k", length), (b"b", 300)] {
        store.put(key, &vec![key[0]; length]).unwrap();
    }
    // Its segment is full, and has a summary.
    for number in 0..20_u8 {
        store.put(&[number, 0], &[number; 900]).unwrap();
    }
    store.close().unwrap();
    let mut image = old.image();
    let bytes = image.to_vec();
    let value = bytes.windows(300).position(|bytes| bytes == [b'k'; 300]).unwrap();
    image.flip(value as u64 + 7, 3);
    options.testing.seed = Some(seed + 1);
    let size = old.geometry().size_bytes;
    let initial = Initial::Recycled(image);
    (Arc::new(SimBlock::new(SimBlockOptions::new(size, seed).initial(initial))), options)
}

#[test]
fn what_cannot_be_read_of_a_cache_is_gone_and_keeps_no_write_from_its_key() {
    let put = |store: &Store, condition| {
        let put = PutOptions { condition, ..PutOptions::default() };
        store.put_with(b"k", b"new", put).unwrap()
    };
    type Write<'a> = &'a dyn Fn(&Store) -> Option<&'static [u8]>;
    let stored: fn(Outcome) -> Option<&'static [u8]> =
        |outcome| matches!(outcome, Outcome::Stored(_)).then_some(b"new");
    let writes: [Write<'_>; 5] = [
        &|store| stored(put(store, Condition::Always)),
        &|store| stored(put(store, Condition::Absent)),
        &|store| stored(put(store, Condition::Present)),
        &|store| {
            assert!(store.delete(b"k").unwrap());
            None
        },
        &|store| {
            let version = store.get(b"a").unwrap().unwrap().version();
            assert_eq!(put(store, Condition::VersionIs(version)), Outcome::VersionDiffers);
            None
        },
    ];
    // In the record of its key, and in extents; of a write nobody has read before, and of one somebody has.
    let ways = [(300, true), (300, false), (LARGE, true), (LARGE, false)];
    let all =
        ways.into_iter().flat_map(|way| writes.into_iter().enumerate().map(move |w| (way, w)));
    for ((length, is_read), (place, write)) in all {
        let seed = 40 + 3 * place as u64;
        let (damaged, options) = with_damage(seed, u64::MAX, length);
        let mut store = open(&damaged, &options).unwrap();
        let values = |store: &Store| {
            let bytes = |value: Option<esker::Value>| value.map(|value| value.to_vec());
            let each = [b"a", b"k", b"b"].map(|key| bytes(store.get(key).unwrap()));
            let many = store.multi_get(&[b"a", b"k", b"b"]).unwrap();
            assert_eq!(many.into_iter().map(bytes).collect::<Vec<_>>(), each);
            each
        };
        let others = |of_k: Option<&[u8]>| {
            [Some(vec![b'a'; 300]), of_k.map(<[u8]>::to_vec), Some(vec![b'b'; 300])]
        };
        if is_read {
            assert_eq!(values(&store), others(None));
        }
        let due = write(&store);
        assert_eq!(due.is_some(), place < 3);
        for _ in 0..2 {
            assert_eq!(values(&store), others(due), "{length} {is_read} {place}");
            store.close().unwrap();
            store = open(&damaged, &options).unwrap();
        }
    }
}

#[test]
fn a_large_value_refuses_adds_for_as_long_as_it_can_be_read_and_is_read_for_the_first_of_them() {
    let reads = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reads);
    let asking = Asking::new(device(74), move |call| {
        let is_extent = call.act == Act::Read && call.range.end - call.range.start == 1024;
        counted.fetch_add(u64::from(is_extent), Ordering::SeqCst);
        Ok(())
    });
    let inner = Arc::clone(asking.inner());
    let mut options = cache_options(74);
    options.record_cache_bytes = 1 << 20;
    let store = Store::open_on(asking as Arc<dyn BlockDevice>, &options).unwrap();
    let value = vec![b'k'; LARGE];
    let add = |length: usize| {
        let put = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
        store.put_with(b"k", &vec![b'n'; length], put).unwrap()
    };
    store.put(b"k", &value).unwrap();
    for length in [3, LARGE, 3, LARGE] {
        assert_eq!(add(length), Outcome::KeyExists);
    }
    assert_eq!(reads.load(Ordering::SeqCst), LARGE.div_ceil(1024) as u64);
    // What cannot be read for a while counts again when it can be.
    inner.set_faults(FaultPlan::none().with(FaultKind::ReadError, Trigger::FromNth(1)));
    assert!(store.get(b"k").unwrap().is_none());
    inner.set_faults(FaultPlan::none());
    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&value[..]));
    assert_eq!(add(3), Outcome::KeyExists);
    let place =
        inner.image().to_vec().windows(LARGE / 4).position(|part| part == &value[..LARGE / 4]);
    flip_on(&inner, place.unwrap() as u64 + 7);
    assert!(store.get(b"k").unwrap().is_none());
    assert!(matches!(add(LARGE), Outcome::Stored(_)));
    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&[b'n'; LARGE][..]));
}

/// The index tells keys apart by a few bits of their hashes, here by none.
#[test]
fn what_was_deleted_while_nothing_could_be_read_does_not_come_back() {
    let (mut options, device) = (cache_options(71), device(71));
    options.testing.hash_mask = 0;
    options.record_cache_bytes = 0;
    let mut store = open(&device, &options).unwrap();
    let keys: Vec<[u8; 2]> = (0..22_u8).map(|number| [number, 0]).collect();
    for key in &keys {
        store.put(key, &[key[0]; 900]).unwrap();
    }
    device.set_faults(FaultPlan::none().with(FaultKind::ReadError, Trigger::FromNth(1)));
    // Not in the order in which the index has them.
    let mut deletes =
        |number: usize| number % 3 == 2 && store.delete(&keys[number]).unwrap_or(false);
    let deleted: Vec<bool> = (0..keys.len()).map(&mut deletes).collect();
    device.set_faults(FaultPlan::none());
    for _ in 0..2 {
        for (key, deleted) in keys.iter().zip(&deleted) {
            let found = store.get(key).unwrap().map(|value| value.to_vec());
            assert_eq!(found, (!deleted).then(|| vec![key[0]; 900]), "{key:?}");
        }
        store.close().unwrap();
        store = open(&device, &options).unwrap();
    }
}

#[test]
fn of_two_keys_with_the_hash_of_what_cannot_be_read_both_are_there() {
    let (damaged, options) = with_damage(73, 0, 300);
    let mut store = open(&damaged, &options).unwrap();
    let mut batch = Batch::new();
    batch.put(b"x", b"1").put(b"y", b"2");
    store.write(&batch).unwrap();
    for _ in 0..2 {
        for (key, value) in [(b"x", &b"1"[..]), (b"y", b"2"), (b"a", &[b'a'; 300])] {
            assert_eq!(store.get(key).unwrap().unwrap().as_ref(), value, "{key:?}");
        }
        store.close().unwrap();
        store = open(&damaged, &options).unwrap();
    }
}
