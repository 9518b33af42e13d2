//! `flat` under threads, with small chunks: walks and scans of many keys are whole, the background thread keeps room and writes
//! checkpoints. What threads see of few keys is in `histories`.
//!
//! `ESKER_FLAT_OPERATIONS` says how many operations the first test makes; a few by default.

use crate::support::End;
use esker::{Direction, EngineKind, Options, Store};
use esker_base::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];

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
