//! Purges of more tombstones than one looks at.

use super::*;
use crate::options::Options;
use crate::value::{Attributes, Condition};
use esker_base::{Site, SiteKind};
use esker_media::sim::{SimBlock, SimBlockOptions};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Overwrites a block of the segment that the record of `key` stands in.
fn damage(store: &Depot, key: &[u8], offset: u64) {
    const DAMAGE: Site = Site::new("test.damage", SiteKind::Write);
    let link = store.index.lookup(spread(store.hasher.hash(key))).iter().next().unwrap();
    let segment = store.layout.segment_of(store.layout.offset_of(link)).unwrap();
    let at = store.layout.segment_offset(segment) + offset;
    store.device.write_at(DAMAGE, at, &[IoSlice::new(&[7; 512])]).unwrap();
}

#[test]
fn tombstones_stay_for_what_a_damaged_segment_may_hide() {
    let store = with_tombstones();
    damage(&store, b"lives", store.layout.trailer());
    damage(&store, b"lives", store.layout.first_batch());
    let mut cleaner = store.lock_cleaner().unwrap();
    assert_eq!(store.purge_tombstones(&mut cleaner).unwrap(), 0);
    assert_eq!((store.tombstones(), cleaner.tombstones_kept), (20, 20), "and the purge is done");
    // Damage to the summary alone hides nothing.
    drop(cleaner);
    let store = with_tombstones();
    damage(&store, b"lives", store.layout.trailer());
    assert_eq!(store.purge_tombstones(&mut store.lock_cleaner().unwrap()).unwrap(), 10);
}

#[test]
fn a_purge_that_stopped_amid_the_tombstones_is_followed_by_another() {
    assert!(!is_due(4096, 0, (0, true)), "few");
    assert!(is_due(4097, 0, (0, false)));
    assert!(!is_due(5000, 0, (4001, false)), "about as many as the last one left");
    assert!(is_due(5000, 0, (4001, true)));
    assert!(!is_due(5000, 16 * 5000, (0, true)), "a small share of the items");
}

#[test]
fn who_finds_room_does_not_wait_for_the_cleaner() {
    let store = with_tombstones();
    let cleaner = store.lock_cleaner().unwrap();
    let went_on = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store.make_room(0).unwrap();
            went_on.store(true, Ordering::SeqCst);
        });
        let mut tries = 0;
        while !went_on.load(Ordering::SeqCst) && tries < 5000 {
            esker_trt::sleep(Duration::from_millis(1));
            tries += 1;
        }
        let in_time = went_on.load(Ordering::SeqCst);
        drop(cleaner);
        assert!(in_time);
    });
}

/// A purge stopped amid the tombstones; then they are cleared away, or the store is about to be closed.
#[test]
fn who_purges_for_room_ends_where_there_is_nothing_to_go_on_with() {
    for is_cleared in [true, false] {
        let store = with_tombstones();
        assert!(store.purge_some(&mut store.lock_cleaner().unwrap(), 15).is_ok());
        assert!(store.lock_cleaner().unwrap().purge_from.is_some());
        if is_cleared {
            store.clear_records().unwrap();
        } else {
            store.background.stop();
        }
        let has_ended = Arc::new(AtomicBool::new(false));
        let (ended, purged) = (Arc::clone(&has_ended), Arc::clone(&store));
        // It is left to itself if it does not end.
        let _thread = std::thread::Builder::new().spawn(move || {
            let mut cleaner = purged.lock_cleaner().unwrap();
            assert!(!purged.purge_for_room(&mut cleaner).unwrap());
            ended.store(true, Ordering::SeqCst);
        });
        let mut tries = 0;
        while !has_ended.load(Ordering::SeqCst) && tries < 5000 {
            esker_trt::sleep(Duration::from_millis(1));
            tries += 1;
        }
        assert!(has_ended.load(Ordering::SeqCst), "cleared: {is_cleared}");
    }
}
