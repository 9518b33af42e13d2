//! Walks over all keys of a `depot` whose segments are reused meanwhile.

use crate::support::{open, options};
use esker::Store;
use esker_media::BlockDevice;
use esker_media::sim::{Asking, SimBlock, SimBlockOptions};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Most reads beside which something is written.
const READS_MAX: u32 = 20_000;

/// A walk reads some 60 to 90 records at a time; here a segment is taken for the log at each of these reads.
#[test]
fn a_walk_ends_though_a_segment_is_reused_at_each_of_its_reads() {
    let mut inner = SimBlockOptions::new(2 << 20, 1);
    (inner.record, inner.latency_max) = (false, Duration::ZERO);
    let writer: Arc<Mutex<Option<Store>>> = Arc::default();
    let reads = Arc::new(AtomicU32::new(0));
    let (shared, counted, busy) = (Arc::clone(&writer), Arc::clone(&reads), AtomicBool::new(false));
    let device = Asking::new(Arc::new(SimBlock::new(inner)), move |call| {
        // What it writes reads, too.
        if call.site == esker::sites::depot::RECORD_READ && !busy.swap(true, Ordering::SeqCst) {
            let store = shared.lock().clone();
            if let Some(store) = store
                && counted.fetch_add(1, Ordering::SeqCst) < READS_MAX
            {
                for _ in 0..10 {
                    store.put(b"again", &[7; 900]).unwrap();
                }
            }
            busy.store(false, Ordering::SeqCst);
        }
        Ok(())
    });
    let store = Store::open_on(device as Arc<dyn BlockDevice>, &options(1)).unwrap();
    for number in 0..1000_u32 {
        store.put(&number.to_be_bytes(), &number.to_le_bytes()).unwrap();
    }
    store.put(b"again", b"0").unwrap();
    *writer.lock() = Some(store.clone());
    let mut keys: Vec<Vec<u8>> = store.iter().map(|item| item.unwrap().0.to_vec()).collect();
    *writer.lock() = None;
    keys.sort_unstable();
    let expected = (0..1000_u32).map(|number| number.to_be_bytes().to_vec());
    let expected: Vec<_> = expected.chain([b"again".to_vec()]).collect();
    assert!(keys == expected, "{} keys", keys.len());
    assert!(reads.load(Ordering::SeqCst) < 4000, "{reads:?} reads");
}

/// A record that cannot be read is an error in its place, and the walk goes on, though segments are reused.
#[test]
fn a_walk_beside_writes_goes_on_behind_damage() {
    let mut inner = SimBlockOptions::new(2 << 20, 2);
    (inner.record, inner.latency_max) = (false, Duration::ZERO);
    let device = Arc::new(SimBlock::new(inner));
    let store = open(&device, &options(2)).unwrap();
    let mark = *b"a value that is damaged";
    for number in 0..200_u32 {
        store.put(&number.to_be_bytes(), if number == 77 { &mark } else { b"fine" }).unwrap();
    }
    let bytes = device.image().to_vec();
    let place = bytes.windows(mark.len()).position(|window| window == mark).unwrap();
    crate::support::flip_on(&device, place as u64);
    let (mut good, mut bad) = (0, 0);
    for item in store.iter() {
        if item.is_ok() {
            good += 1
        } else {
            bad += 1
        }
        store.put(b"again", &[7; 900]).unwrap();
    }
    assert!((199..=200).contains(&good) && bad == 1, "{good} read, {bad} not");
}
