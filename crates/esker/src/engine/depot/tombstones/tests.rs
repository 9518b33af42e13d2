//! Purges of more tombstones than one looks at.

use super::*;
use crate::options::Options;
use crate::value::{Attributes, Condition};
use esker_media::sim::{SimBlock, SimBlockOptions};
use std::sync::Arc;

/// A store with tombstones in full segments: ten that are needed for older records, then ten that are not.
fn with_tombstones() -> Arc<Depot> {
    let mut options = Options::new("");
    options.testing.segment_size_bytes = Some(8 << 10);
    options.testing.background = false;
    let device = Arc::new(SimBlock::new(SimBlockOptions::new(128 << 10, 1)));
    let store = Depot::open(device, &options).unwrap();
    let put = |key: &[u8], size: usize| {
        store.put_record(key, &vec![1; size], Attributes::default(), Condition::Always).unwrap();
    };
    let delete = |key: u8| {
        store.delete_record(&[key], Condition::Present).unwrap();
    };
    // The segment of the first ten lives, the segments of the others do not.
    put(b"lives", 100);
    (0..10).for_each(|key| put(&[key], 100));
    (0..8).for_each(|key| put(&[b'f', key], 900));
    (0..10).for_each(delete);
    (0..8).for_each(|_| put(b"again", 900));
    (10..20).for_each(|key| put(&[key], 900));
    (0..8).for_each(|_| put(b"again", 900));
    (10..20).for_each(delete);
    (8..16).for_each(|key| put(&[b'f', key], 900));
    assert_eq!(store.tombstones(), 20);
    store
}

#[test]
fn what_stands_behind_the_tombstones_that_a_purge_looked_at_is_purged_by_the_next_ones() {
    let store = with_tombstones();
    let mut cleaner = store.lock_cleaner().unwrap();
    let dropped: Vec<_> = (0..6).map(|_| store.purge_some(&mut cleaner, 5).unwrap()).collect();
    assert_eq!(dropped, [0, 0, 5, 5, 0, 0]);
    assert_eq!(store.tombstones(), 10);
}

#[test]
fn who_needs_room_looks_at_all_tombstones() {
    let store = with_tombstones();
    let mut cleaner = store.lock_cleaner().unwrap();
    for most in [3, 100] {
        cleaner.purge_from = None;
        store.purge_some(&mut cleaner, 15).unwrap();
        let stopped = cleaner.purge_from.is_some();
        assert_eq!(stopped, most == 3);
        assert_eq!(store.purge_for_room(&mut cleaner).unwrap(), stopped);
    }
    assert_eq!(store.tombstones(), 10);
}
