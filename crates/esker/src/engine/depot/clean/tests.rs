//! Longer work of a cleaner does not keep clients from free segments, and how far it is with a segment counts for them.

use super::*;
use crate::engine::Engine as _;
use crate::options::{Durability, Options};
use crate::value::{Attributes, Condition};
use esker_base::rng::Rng;
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, Call, SimBlock, SimBlockOptions};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

const SEGMENT_SIZE: u64 = 8 << 10;
const HOUR: Duration = Duration::from_secs(3600);

fn blank() -> Arc<SimBlock> {
    blank_of(48)
}

fn blank_of(segments: u64) -> Arc<SimBlock> {
    let mut options = SimBlockOptions::new(segments * SEGMENT_SIZE, 1);
    options.record = false;
    Arc::new(SimBlock::new(options))
}

fn open(device: Arc<dyn BlockDevice>) -> Arc<Depot> {
    open_with(device, Durability::Sync)
}

fn open_with(device: Arc<dyn BlockDevice>, durability: Durability) -> Arc<Depot> {
    let mut options = Options::new("");
    options.durability = durability;
    options.testing.segment_size_bytes = Some(SEGMENT_SIZE);
    options.testing.background = false;
    let store = Depot::open(device, &options).unwrap();
    // As if there were a thread that cleans ahead of clients.
    store.background.start("test", HOUR, || Some(HOUR)).unwrap();
    store
}

fn put(store: &Depot, key: &[u8], size: usize) {
    store.put_record(key, &vec![1; size], Attributes::default(), Condition::Always).unwrap();
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Writes until so few segments are free: in each of the others something is live, and most is not.
fn fill(store: &Depot, free: usize, from: u32) -> u32 {
    for number in from.. {
        if store.segments.free_count() == free {
            return number;
        }
        put(store, &key(number), 60);
        put(store, b"again", 900);
    }
    unreachable!()
}

#[test]
fn segments_are_cleaned_amid_a_purge_while_clients_are_short_of_them() {
    let store = open(blank());
    let next = fill(&store, 20, 0);
    for number in 0..20 {
        // Something lives beside each of them.
        store.delete_record(&key(number), Condition::Present).unwrap();
        put(&store, &key(next + number), 60);
    }
    fill(&store, 4, next + 20);
    let mut cleaner = store.lock_cleaner().unwrap();
    assert_eq!(store.tombstones(), 20);
    store.purge_tombstones(&mut cleaner).unwrap();
    assert!(store.segments.free_count() >= store.clean_below(), "nobody cleaned");
}

#[test]
fn segments_are_cleaned_amid_a_checkpoint_while_clients_are_short_of_them() {
    let store = open(blank());
    fill(&store, 5, 0);
    assert!(store.write_checkpoint_beside().unwrap());
    assert!(store.segments.free_count() >= store.clean_below(), "nobody cleaned");
}

/// Copies that died, in segments that were open for them when a purge began, and are full before it ends.
#[test]
fn what_was_deleted_stays_so_when_segments_are_cleaned_amid_purges() {
    let mut dropped = 0;
    for seed in 0..10 {
        let device = blank();
        let mut rng = Rng::from_seed(seed);
        let mut store = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let mut there = BTreeSet::new();
        let mut crashed = Vec::new();
        fill(&store, 8, 1000);
        for _ in 0..6 {
            for _ in 0..150 {
                let number = u32::try_from(rng.below(40)).unwrap();
                if rng.below(3) > 0 {
                    put(&store, &key(number), 100);
                    there.insert(number);
                } else {
                    let outcome = store.delete_record(&key(number), Condition::Always);
                    outcome.unwrap();
                    there.remove(&number);
                }
                if rng.below(12) == 0 && store.segments.free_count() < store.clean_below() + 2 {
                    let mut cleaner = store.lock_cleaner().unwrap();
                    dropped += store.purge_tombstones(&mut cleaner).unwrap();
                }
            }
            // As a crash leaves it.
            let next = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
            crashed.push(std::mem::replace(&mut store, next));
            for number in 0..40 {
                let found = store.get(&key(number), &mut |_| Ok(())).unwrap().is_some();
                assert_eq!(found, there.contains(&number), "seed {seed}: {number}");
            }
        }
    }
    assert!(dropped > 0, "{dropped} tombstones were dropped");
}

#[test]
fn what_the_cleaner_has_gained_of_a_segment_counts_before_that_is_free() {
    let shared: Arc<OnceLock<Arc<Depot>>> = Arc::default();
    let debts: Arc<Mutex<Vec<(Act, f64)>>> = Arc::default();
    let (of_store, noted) = (Arc::clone(&shared), Arc::clone(&debts));
    let device = Asking::new(blank(), move |call: &Call| {
        if let Some(store) = of_store.get()
            && [sites::CLEAN_READ, sites::MOVE_FLUSH].contains(&call.site)
        {
            noted.lock().push((call.act, store.debt(0)));
        }
        Ok(())
    });
    let store = shared.get_or_init(|| open(device));
    fill(store, 4, 0);
    let mut cleaner = store.lock_cleaner().unwrap();
    // From now on the cleaner has a segment for its copies.
    assert!(store.free_one_ahead(&mut cleaner).unwrap());
    debts.lock().clear();
    let (free, before) = (store.segments.free_count(), store.debt(0));
    assert!(before > 0.0);
    assert!(store.free_one_ahead(&mut cleaner).unwrap());
    assert_eq!(store.segments.free_count(), free + 1);
    let debts = debts.lock().clone();
    assert!(debts.iter().filter(|(act, _)| *act == Act::Read).all(|(_, debt)| *debt >= before));
    let (act, last) = *debts.last().unwrap();
    assert_eq!(act, Act::Flush);
    assert!(last < before, "all is copied: {last} {before}");
    let after = store.debt(0);
    store.pace.gained(0);
    assert_eq!(after.to_bits(), store.debt(0).to_bits(), "it is free, and counts as that alone");
}

/// What survived a cleaning is written apart from what clients write, and what survived two of them apart from both.
#[test]
fn records_lie_with_those_that_survived_as_often() {
    let store = open(blank());
    let clean_all_of = |stream| {
        let mut cleaner = store.lock_cleaner().unwrap();
        let sealed = store.segments.sealed().filter(|id| store.segments.is_cleanable(*id));
        let of_stream = |id: &SegmentId| store.segments.incarnation(*id).stream == stream;
        for victim in sealed.filter(of_stream).collect::<Vec<_>>() {
            store.clean_segment(&mut cleaner, victim, false).unwrap();
        }
    };
    let stream_of = |number| {
        let link = store.index.lookup(store.hash(&key(number))).iter().next().unwrap();
        let segment = store.layout.segment_of(store.layout.offset_of(link)).unwrap();
        store.segments.incarnation(segment).stream
    };
    let next = fill(&store, 10, 0);
    assert_eq!(stream_of(0), Stream::Fresh);
    clean_all_of(Stream::Fresh);
    assert_eq!(stream_of(0), Stream::Warm);
    fill(&store, 10, next);
    clean_all_of(Stream::Warm);
    assert_eq!((stream_of(0), stream_of(next)), (Stream::Cold, Stream::Fresh));
    clean_all_of(Stream::Fresh);
    assert_eq!((stream_of(0), stream_of(next)), (Stream::Cold, Stream::Warm));
}

/// Small records, of which a checkpoint takes more than the cleaner keeps free.
#[test]
fn steady_writes_leave_the_checkpoint_where_cleaning_gains_much() {
    const RECORDS: u32 = 6000;
    let store = open_with(blank_of(200), Durability::None);
    let checkpoint = || store.segments.free_count() - store.segments.free_beside(true);
    for number in 0..RECORDS {
        put(&store, &key(number), 100);
    }
    assert!(store.write_checkpoint_beside().unwrap());
    let before = checkpoint();
    assert!(before > store.clean_below() - store.segments.reserve_of_puts(), "{before} segments");
    let mut rng = Rng::from_seed(1);
    for _ in 0..4 * RECORDS {
        put(&store, &key(u32::try_from(rng.below(u64::from(RECORDS))).unwrap()), 100);
        store.clean_ahead(|| false).unwrap();
    }
    assert_eq!(checkpoint(), before);
}
