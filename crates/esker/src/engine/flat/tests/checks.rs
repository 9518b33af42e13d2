//! A check tells of a record that two entries have, and of none that only was met twice.

use super::*;
use crate::value::Condition;

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
