//! A check tells of a record that two entries have, and of none that only was met twice.

use super::super::check::PARTS;
use super::*;
use crate::value::Condition;
use esker_base::rng::Rng;
use std::sync::atomic::AtomicBool;

const KEYS: u8 = 40;

fn key(number: u8) -> [u8; 2] {
    [b'k', number]
}

#[test]
fn two_entries_that_have_one_record_are_told_for_as_long_as_they_do() {
    let memory: Arc<dyn Pmem> = Arc::new(SimPm::new(SimPmOptions::new(64 * (16 << 10), 1)));
    let mut options = options(EngineKind::FlatCceh);
    options.testing.segment_size_bytes = Some(16 << 10);
    let store = Flat::open(Arc::clone(&memory), &options).unwrap();
    for number in 0..KEYS {
        let plain = Attributes::default();
        store.put_value(&key(number), &[number; 300], plain, Condition::Always).unwrap();
    }
    assert_eq!(store.check_store().unwrap().problems, [""; 0]);
    // The hash index keeps what it is told, one beside the other.
    let words = [3, 17].map(|number| {
        let hash = store.hasher.hash(&key(number));
        let word = store.find(hash, &key(number)).unwrap().unwrap();
        store.index.insert(hash, &key(number), word);
        (hash, word, number)
    });
    let told = store.check_store().unwrap().problems;
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|told| told.starts_with("two entries have the record")), "{told:?}");
    for (hash, word, number) in words {
        assert!(store.index.remove(hash, &key(number), word));
    }
    assert_eq!(store.check_store().unwrap().problems, [""; 0]);
}

/// Whoever is checked while it is written meets many lines twice, as other entries have them by then. That costs few more walks, however
/// many there are.
#[test]
fn a_check_beside_writers_goes_through_the_index_a_few_times() {
    const KEYS: u64 = 20_000;
    let mut memory = SimPmOptions::new(64 << 20, 1);
    memory.record = false;
    for engine in [EngineKind::FlatCceh, EngineKind::FlatMasstree] {
        let memory: Arc<dyn Pmem> = Arc::new(SimPm::new(memory.clone()));
        let mut options = options(engine);
        options.testing.segment_size_bytes = Some(256 << 10);
        let store = Flat::open(Arc::clone(&memory), &options).unwrap();
        let put = |key: u64| {
            let plain = Attributes::default();
            store.put_value(&key.to_be_bytes(), &[7; 300], plain, Condition::Always).unwrap();
        };
        (0..KEYS).for_each(put);
        PARTS.set(0);
        assert_eq!(store.check_store().unwrap().problems, [""; 0]);
        let once = PARTS.replace(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = Rng::from_seed(1);
                while !done.load(Ordering::Relaxed) {
                    put(rng.below(KEYS));
                }
            });
            let found = store.check_store();
            done.store(true, Ordering::Relaxed);
            assert_eq!(found.unwrap().problems, [""; 0]);
        });
        let parts = PARTS.get();
        assert!((once..=10 * once).contains(&parts), "{engine}: {parts} parts, {once} alone");
    }
}
