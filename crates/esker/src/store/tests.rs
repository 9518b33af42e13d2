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
