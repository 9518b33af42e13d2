//! Evictions of a cache beside what clients write meanwhile.

use crate::client::cut;
use crate::support::{DEVICE_SIZE, SEGMENT_SIZE, START, device, flip_on, open, options};
use esker::{Durability, ErrorKind, Options, Store};
use esker_base::clock::ManualClock;
use esker_media::BlockDevice;
use esker_media::sim::{Asking, Image, Initial, SimBlock, SimBlockOptions};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn cache_options(seed: u64) -> Options {
    let mut options = options(seed);
    options.cache = true;
    options
}

fn reopened(image: Image, options: &Options) -> (Store, Arc<SimBlock>) {
    let inner = SimBlockOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image));
    let device = Arc::new(SimBlock::new(inner));
    (open(&device, options).unwrap(), device)
}

fn all(store: &Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let items = store.iter().map(|item| item.unwrap());
    items.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// While an eviction waits for its flush, all that was in the segment is written over, and the log goes around: the segment
/// must not be blanked once it holds something else.
#[test]
fn a_segment_that_died_while_it_was_evicted_is_not_blanked_in_its_next_life() {
    let mut reached = 0;
    for puts in (20..200).step_by(3) {
        let armed: Arc<Mutex<Option<Store>>> = Arc::default();
        let shared = Arc::clone(&armed);
        let inner = Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 3)));
        let asking = Asking::new(Arc::clone(&inner), move |call| {
            if call.site == esker::sites::depot::MOVE_FLUSH
                && let Some(store) = shared.lock().take()
            {
                for number in 0..6_u8 {
                    store.put(&[number], b"new").unwrap();
                }
                for number in 0..puts {
                    store.put(b"filler", &[9; 900]).unwrap();
                    store.put(&[number % 30], &[number; 20]).unwrap();
                }
            }
            Ok(())
        });
        let store = Store::open_on(asking as Arc<dyn BlockDevice>, &cache_options(3)).unwrap();
        for round in 0..2_u8 {
            for number in 0..6_u8 {
                store.put(&[number], &[round; 400]).unwrap();
            }
        }
        for _ in 0..40 {
            store.put(b"filler", &[9; 900]).unwrap();
        }
        *armed.lock() = Some(store.clone());
        store.evict(1).unwrap();
        reached += u32::from(armed.lock().take().is_none());
        let expected = all(&store);
        store.forget();
        let (store, _) = reopened(inner.image(), &cache_options(4));
        assert_eq!(all(&store), expected, "after {puts} puts");
    }
    assert!(reached > 50, "{reached}");
}

/// Extents of a large value are evicted while the record of its key is in memory only. If the note of it came to media before
/// the record, it would be newer than what is written after a crash.
#[test]
fn the_note_of_an_eviction_is_not_newer_than_what_is_written_after_a_crash() {
    // Somewhere in its segment, so that the header of that tells of no later versions.
    (6..24).for_each(|extents| is_not_hidden(extents << 10));
}

fn is_not_hidden(size: usize) {
    let device = device(5);
    let mut options = cache_options(5);
    options.durability = Durability::None;
    let store = open(&device, &options).unwrap();
    // So that the stream of notes has a segment open, whose header tells of none either.
    store.put(b"noted", &[1; 300]).unwrap();
    store.put(b"noted", &[2; 300]).unwrap();
    for number in 0..30_u8 {
        store.put(&[number], &[3; 400]).unwrap();
    }
    store.evict(1).unwrap();
    assert!(!store.contains(b"noted").unwrap());
    store.put(b"large", &vec![4; size]).unwrap();
    store.evict(100).unwrap();
    let evicted = !store.contains(b"large").unwrap();
    assert!(evicted || size < 2 * SEGMENT_SIZE as usize, "{size}");
    let image = cut(&device, false);
    store.forget();
    // A cache that is left so again would have nothing.
    options.durability = Durability::Sync;
    let (store, device) = reopened(image, &options);
    store.put(b"large", b"written after a crash").unwrap();
    let image = cut(&device, false);
    store.forget();
    let (store, _) = reopened(image, &options);
    let found = store.get(b"large").unwrap();
    assert_eq!(found.as_deref(), Some(&b"written after a crash"[..]), "{size}");
}

/// A large value goes with the first of its extents that is evicted, also if the record of its key cannot be read: what its note has to
/// say stands in the summary of that one's segment.
#[test]
fn a_damaged_head_does_not_keep_the_extents_of_its_value() {
    const KEY: &[u8] = b"the key of a large value";
    let device = device(8);
    let clock = Arc::new(ManualClock::new(START));
    let options = Options { clock: Arc::clone(&clock) as Arc<_>, ..cache_options(8) };
    let store = open(&device, &options).unwrap();
    store.put(KEY, b"older").unwrap();
    store.put(b"hot", &[5; 4000]).unwrap();
    store.put(KEY, &[4; 2 * SEGMENT_SIZE as usize]).unwrap();
    let image = device.image().to_vec();
    let head = image.windows(KEY.len()).rposition(|bytes| bytes == KEY).unwrap();
    for number in 0..20_u8 {
        store.put(&[number], &[number; 900]).unwrap();
    }
    // The segment of the older value goes last.
    clock.advance(Duration::from_secs(1));
    assert!(store.get(b"hot").unwrap().is_some());
    flip_on(&device, head as u64);
    // To a cache it is as good as evicted.
    assert!(store.get(KEY).unwrap().is_none());
    store.evict(1).unwrap();
    assert!(!store.contains(KEY).unwrap());
    let image = cut(&device, false);
    store.forget();
    let (store, _) = reopened(image, &cache_options(9));
    assert!(store.get(b"hot").unwrap().is_some());
    assert!(!store.contains(KEY).unwrap());
}

/// What stands behind a damaged batch of a segment whose summary is damaged, too, is not known to the eviction: it would take the
/// segment's header away, and leave the older values of other segments to be found after a crash.
#[test]
fn a_segment_that_hides_records_is_not_evicted() {
    const KEY: &[u8] = b"a key with two values";
    let device = device(9);
    let clock = Arc::new(ManualClock::new(START));
    let options = Options { clock: Arc::clone(&clock) as Arc<_>, ..cache_options(9) };
    let store = open(&device, &options).unwrap();
    store.put(KEY, b"older").unwrap();
    for number in 0..8_u8 {
        store.put(&[b'h', number], &[5; 900]).unwrap();
    }
    for number in 0..20_u8 {
        store.put(&[b'f', number], &[number; 900]).unwrap();
        if number == 3 {
            store.put(KEY, &[4; 100]).unwrap();
        }
    }
    let image = device.image().to_vec();
    let newer = image.windows(KEY.len()).rposition(|bytes| bytes == KEY).unwrap() as u64;
    let segment = newer / SEGMENT_SIZE * SEGMENT_SIZE;
    let older = image.windows(KEY.len()).position(|bytes| bytes == KEY).unwrap() as u64;
    assert!(older < segment);
    // Its first batch, and its trailer.
    flip_on(&device, segment + 512 + 100);
    flip_on(&device, segment + SEGMENT_SIZE - 1000);
    clock.advance(Duration::from_secs(1));
    assert!(store.get(b"h\0").unwrap().is_some(), "the segment of the older value goes last");
    store.evict(2).unwrap();
    assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&[4; 100][..]));
    let image = cut(&device, false);
    store.forget();
    let survived = SimBlockOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image));
    match open(&Arc::new(SimBlock::new(survived)), &cache_options(9)) {
        Ok(store) => assert_ne!(store.get(KEY).unwrap().as_deref(), Some(&b"older"[..])),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupted),
    }
}
