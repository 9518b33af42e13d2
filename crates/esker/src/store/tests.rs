//! What handles of a store do.

use super::*;
use crate::options::Durability;

/// Whoever drops the last handle can open the store anew at once: also while its thread is at work, as it is here.
#[test]
fn nobody_has_a_store_that_was_dropped() {
    for engine in [EngineKind::Flex, EngineKind::Depot] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path().join("store"));
        options.engine = Some(engine);
        options.size_bytes = 256 << 20;
        options.durability = Durability::None;
        options.flex.memtable_size_bytes = 1 << 20;
        for round in 0..6_u32 {
            let store = Store::open(&options).unwrap();
            for number in 0..4000_u32 {
                let key = (number.wrapping_mul(0x9E37_79B1) + round).to_be_bytes();
                store.put(&key, &[7; 1000]).unwrap();
            }
            let engine = Arc::downgrade(&store.engine.0);
            let other = store.clone();
            drop(store);
            assert!(engine.upgrade().is_some(), "there is another handle");
            drop(other);
            assert!(engine.upgrade().is_none(), "its thread still has it");
        }
    }
}

/// Nobody has to close a store: what it holds in memory only is brought to the device when the last handle goes.
#[test]
fn what_was_put_is_there_after_a_drop() {
    for engine in [EngineKind::Flex, EngineKind::Depot, EngineKind::FlatMasstree] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path().join("store"));
        options.engine = Some(engine);
        options.size_bytes = 256 << 20;
        options.durability = Durability::None;
        options.pmem_emulate = true;
        for round in 0..3_u32 {
            let store = Store::open(&options).unwrap();
            for number in 0..100 * round {
                assert!(store.contains(&number.to_be_bytes()).unwrap(), "{engine:?}: {number}");
            }
            for number in 100 * round..100 * (round + 1) {
                store.put(&number.to_be_bytes(), b"value").unwrap();
            }
        }
    }
}

/// Of the keys that begin with some bytes none is missed, and no other is met, also where bytes cannot be counted up.
#[test]
fn scans_of_a_prefix_meet_the_keys_that_begin_with_it() {
    let keys: [&[u8]; 12] = [
        b"\0",
        b"a",
        b"a\0",
        b"a\xfe",
        b"a\xff",
        b"a\xff\0",
        b"a\xff\xff",
        b"b",
        b"\xfe",
        b"\xff",
        b"\xff\0",
        b"\xff\xff\xff",
    ];
    let prefixes: [&[u8]; 8] =
        [b"", b"a", b"a\xff", b"a\xff\xff\xff", b"c", b"\xfe", b"\xff", b"\xff\xff"];
    for engine in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path().join("store"));
        options.engine = Some(engine);
        options.size_bytes = 64 << 20;
        options.pmem_emulate = true;
        let store = Store::open(&options).unwrap();
        for key in keys {
            store.put(key, b"value").unwrap();
        }
        if !store.is_ordered() {
            let refused = store.scan_prefix(b"a", Direction::Forward, 9).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{engine}");
            continue;
        }
        let snapshot = (engine == EngineKind::Flex).then(|| store.snapshot().unwrap());
        for prefix in prefixes {
            let mut wanted: Vec<&[u8]> =
                keys.iter().copied().filter(|key| key.starts_with(prefix)).collect();
            for (direction, limit) in
                [(Direction::Forward, 2), (Direction::Forward, 99), (Direction::Reverse, 99)]
            {
                wanted.sort_unstable();
                if direction == Direction::Reverse {
                    wanted.reverse();
                }
                let is_as_wanted = |found: Vec<(Vec<u8>, Value)>| {
                    found.iter().map(|(key, _)| &key[..]).eq(wanted.iter().copied().take(limit))
                };
                let found = store.scan_prefix(prefix, direction, limit).unwrap();
                assert!(is_as_wanted(found), "{engine}: {prefix:?} {direction:?} {limit}");
            }
        }
        let Some(snapshot) = snapshot else { continue };
        // The same end serves to delete them at once.
        store.delete_range(b"a\xff", behind_prefix(b"a\xff").as_deref()).unwrap();
        store.delete_range(b"\xff", behind_prefix(b"\xff").as_deref()).unwrap();
        let count =
            |prefix: &[u8]| store.scan_prefix(prefix, Direction::Forward, 99).unwrap().len();
        assert_eq!((count(b"a"), count(b"a\xff"), count(b"\xff"), count(b"")), (3, 0, 0, 6));
        let before =
            |prefix: &[u8]| snapshot.scan_prefix(prefix, Direction::Reverse, 99).unwrap().len();
        assert_eq!((before(b"a"), before(b"a\xff"), before(b"\xff"), before(b"")), (6, 3, 3, 12));
    }
}

/// Whatever cores share their batches, what each thread put is there.
#[test]
fn groups_of_any_size_keep_what_they_are_given() {
    for group in [0, 1, 2, 3, 100] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path().join("store"));
        options.engine = Some(EngineKind::FlatCceh);
        options.size_bytes = 64 << 20;
        options.pmem_emulate = true;
        options.batching_group = group;
        options.testing.cores = Some(4);
        for round in 0..2_u32 {
            let store = Store::open(&options).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..4_u32 {
                    let store = &store;
                    scope.spawn(move || {
                        for number in 0..200_u32 {
                            let key = [thread, number].map(u32::to_be_bytes).concat();
                            let found = store.get(&key).unwrap().map(|value| value.to_vec());
                            let old = round.checked_sub(1).map(|old| old.to_be_bytes().to_vec());
                            assert_eq!(found, old, "groups of {group}");
                            store.put(&key, &round.to_be_bytes()).unwrap();
                        }
                    });
                }
            });
            store.forget();
        }
    }
}
