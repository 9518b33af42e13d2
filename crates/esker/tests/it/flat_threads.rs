//! `flat` under many threads, with tiny chunks, the cleaner and checkpoints beside them: histories are linearizable, walks
//! and scans are whole, the background thread keeps room and writes checkpoints.
//!
//! `ESKER_FLAT_OPERATIONS` says how many operations each test makes; a few by default.

use crate::support::End;
use esker::{Direction, EngineKind, Options, Outcome, Store};
use esker_base::rng::Rng;
use esker_testkit::linearizability::{Action, Call, Verdict, check};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const THREADS: u64 = 4;
/// Operations of a thread whose history is checked at once.
const ROUND: u64 = 5_000;
const KEYS: u64 = 24;

fn operations(few: u64) -> u64 {
    let wanted = std::env::var("ESKER_FLAT_OPERATIONS").ok();
    wanted.and_then(|number| number.parse().ok()).unwrap_or(few)
}

fn options(folder: &tempfile::TempDir, engine: EngineKind, chunk: u64, size: u64) -> Options {
    let mut options = Options::new(folder.path());
    options.engine = Some(engine);
    options.size_bytes = size;
    options.pmem_emulate = true;
    options.testing.segment_size_bytes = Some(chunk);
    options
}

/// Keys of 8 bytes, of others, and some that are too long to stand in a log.
fn key(number: u64) -> Vec<u8> {
    match number % 8 {
        0 => format!("long{number:0300}").into_bytes(),
        1 | 2 => format!("k{number}").into_bytes(),
        _ => format!("key{number:05}").into_bytes(),
    }
}

/// A value that tells its number, of a size that goes with it: in the log, in a block, in chunks of its own.
fn value(number: u64) -> Vec<u8> {
    let size = [8, 20, 100, 256, 257, 400, 1000, 3000][usize::try_from(number % 8).unwrap()];
    let mut value = vec![number as u8; size];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

fn number_of(found: &[u8]) -> u64 {
    let number = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert_eq!(found, value(number), "a value is whole");
    number
}

/// One call, with its reply.
fn call(store: &Store, rng: &mut Rng, key_number: u64, next: u64) -> Action {
    let key = key(key_number);
    match rng.below(100) {
        0..35 => {
            store.put(&key, &value(next)).unwrap();
            Action::Write(next)
        }
        35..45 => Action::Delete(Some(store.delete(&key).unwrap())),
        45..55 => {
            let done = store.put_if_absent(&key, &value(next)).unwrap();
            let done = Some(matches!(done, Outcome::Stored(_)));
            Action::WriteIf { present: false, value: next, done }
        }
        55..60 => {
            let done = store.put_if_present(&key, &value(next)).unwrap();
            let done = Some(matches!(done, Outcome::Stored(_)));
            Action::WriteIf { present: true, value: next, done }
        }
        _ => Action::Read(Some(store.get(&key).unwrap().map(|found| number_of(&found)))),
    }
}

/// What a thread did in a round.
fn history(store: &Store, time: &AtomicU64, seed: u64, thread: u64) -> Vec<Call> {
    let mut rng = Rng::from_seed(seed * THREADS + thread);
    (0..ROUND)
        .map(|step| {
            let key = rng.below(KEYS);
            let next = (seed * THREADS + thread) * ROUND + step;
            let begin = time.fetch_add(1, Ordering::SeqCst);
            let action = call(store, &mut rng, key, next);
            let end = Some(time.fetch_add(1, Ordering::SeqCst));
            Call { key, action, begin, end }
        })
        .collect()
}

#[test]
fn what_threads_see_of_flat_is_linearizable_and_survives() {
    for engine in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(&folder, engine, 4 << 10, 256 << 10);
        // A cleaner for each processor.
        options.batching_group = 1;
        let mut store = Store::open(&options).unwrap();
        let mut cleaned = 0;
        for seed in 0..operations(3 * ROUND * THREADS).div_ceil(ROUND * THREADS) {
            let (time, ended) = (AtomicU64::new(0), AtomicBool::new(false));
            let mut calls = std::thread::scope(|scope| {
                let end = End(&ended);
                let beside = scope.spawn(|| {
                    let mut cleaned = 0;
                    while !ended.load(Ordering::Relaxed) {
                        cleaned += store.clean(2).unwrap();
                        store.checkpoint().unwrap();
                        std::thread::yield_now();
                    }
                    cleaned
                });
                let threads: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        let (store, time) = (&store, &time);
                        scope.spawn(move || history(store, time, seed, thread))
                    })
                    .collect();
                let calls = threads.into_iter().flat_map(|thread| thread.join().unwrap());
                let calls: Vec<Call> = calls.collect();
                drop(end);
                cleaned += beside.join().unwrap();
                calls
            });
            let report = store.check().unwrap();
            assert!(report.is_sound(), "{engine}, seed {seed}: {:?}", report.problems);
            // What is there in the end is explained too, and is there after a crash.
            store.forget();
            store = Store::open(&options).unwrap();
            for key_number in 0..KEYS {
                let found = store.get(&key(key_number)).unwrap();
                let action = Action::Read(Some(found.map(|found| number_of(&found))));
                let begin = time.fetch_add(1, Ordering::SeqCst);
                calls.push(Call { key: key_number, action, begin, end: Some(begin) });
            }
            assert_eq!(check(&calls), Verdict::Linearizable, "{engine}, seed {seed}");
            store.clear().unwrap();
        }
        assert!(cleaned > 0, "the cleaner was at work");
    }
}

#[test]
fn walks_and_scans_meet_each_key_that_stands_once() {
    const STANDING: u64 = 600;
    for engine in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder, engine, 16 << 10, 2 << 20)).unwrap();
        let standing = |number: u64| format!("stand{number:03}").into_bytes();
        for number in 0..STANDING {
            store.put(&standing(number), &[1; 30]).unwrap();
        }
        let expected: Vec<Vec<u8>> = (0..STANDING).map(standing).collect();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = End(&ended);
            for thread in 0..2_u64 {
                let (store, ended, standing) = (&store, &ended, &standing);
                scope.spawn(move || {
                    let mut rng = Rng::from_seed(thread);
                    while !ended.load(Ordering::Relaxed) {
                        // Values change, and other keys come and go between the standing ones.
                        store.put(&standing(rng.below(STANDING)), &[2; 40]).unwrap();
                        let guest = format!("stand{:03}x{}", rng.below(STANDING), rng.below(9));
                        if rng.chance(1, 2) {
                            store.put(guest.as_bytes(), &[3; 20]).unwrap();
                        } else {
                            store.delete(guest.as_bytes()).unwrap();
                        }
                        if rng.chance(1, 500) {
                            store.clean(2).unwrap();
                        }
                    }
                });
            }
            for round in 0..operations(30 * STANDING).div_ceil(STANDING) {
                let all = (Bound::<&[u8]>::Unbounded, Bound::Unbounded);
                let mut keys: Vec<Vec<u8>> = match (engine, round % 3) {
                    (EngineKind::FlatMasstree, 0) => {
                        let found = store.scan(all, Direction::Forward, usize::MAX).unwrap();
                        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order");
                        found.into_iter().map(|(key, _)| key).collect()
                    }
                    (EngineKind::FlatMasstree, 1) => {
                        let found = store.scan(all, Direction::Reverse, usize::MAX).unwrap();
                        assert!(found.windows(2).all(|pair| pair[0].0 > pair[1].0), "in order");
                        found.into_iter().map(|(key, _)| key).collect()
                    }
                    _ => store.iter().map(|item| item.unwrap().0).collect(),
                };
                keys.retain(|key| key.len() == 8);
                keys.sort_unstable();
                let twice: Vec<_> = keys.windows(2).filter(|pair| pair[0] == pair[1]).collect();
                let missed: Vec<_> = expected.iter().filter(|key| !keys.contains(key)).collect();
                assert!(
                    twice.is_empty() && missed.is_empty() && keys == expected,
                    "{engine}, round {round}: twice {twice:?}, missed {missed:?}"
                );
            }
        });
    }
}

#[test]
fn the_background_keeps_room_and_writes_a_checkpoint_while_nobody_writes() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(&folder, EngineKind::FlatCceh, 64 << 10, 16 << 20);
    let store = Store::open(&options).unwrap();
    let mut last = BTreeMap::new();
    for number in 0..450_000_u64 {
        let key = (number % 60_000).to_be_bytes();
        store.put(&key, &number.to_le_bytes()).unwrap();
        last.insert(number % 60_000, number);
    }
    // 5 chunks are kept from writers; an 32nd part of the store is kept for them.
    let wait = |words: &str, reached: &dyn Fn() -> bool| {
        let reached = (0..300).any(|_| {
            esker_trt::sleep(Duration::from_millis(100));
            reached()
        });
        assert!(reached, "{words}: {} chunks are free", store.stats().free_segments);
    };
    wait("room ahead", &|| store.stats().free_segments >= 5 + 256 / 32);
    // 60,000 entries of 16 bytes, in chunks that say so.
    let file = folder.path().join("flat.esker");
    let parts = || {
        let bytes = std::fs::read(&file).unwrap();
        bytes.chunks_exact(64 << 10).filter(|chunk| &chunk[128..132] == b"ESKI").count()
    };
    wait("a checkpoint", &|| parts() > 60_000 * 16 / (64 << 10));
    store.put(b"after it", b"v").unwrap();
    store.forget();
    let store = Store::open(&options).unwrap();
    assert_eq!(store.stats().items, 60_001);
    for (key, number) in last {
        let found = store.get(&key.to_be_bytes()).unwrap().unwrap();
        assert_eq!(*found, number.to_le_bytes());
    }
    assert!(store.check().unwrap().is_sound());
}
