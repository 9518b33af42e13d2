//! Reads of the cleaner that fail: an outage costs what it lasts, and a place that is lost for ever only what is there.

use crate::support::{DEVICE_SIZE, SEGMENT_SIZE, START, device, flip_on, open, options};
use esker::{Attributes, ErrorKind, Options, PutOptions, Store};
use esker_base::Error;
use esker_base::clock::ManualClock;
use esker_media::BlockDevice;
use esker_media::sim::{
    Act, Asking, FaultKind, FaultPlan, Initial, SimBlock, SimBlockOptions, Trigger,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const KEYS: u8 = 48;

/// Eight full segments, half of each garbage, and some.
fn half_garbage(store: &Store) {
    for key in 0..KEYS {
        store.put(&[key], &[key; 700]).unwrap();
    }
    for key in (0..KEYS).step_by(2) {
        store.put(&[key], &[key; 20]).unwrap();
    }
}

fn is_whole(store: &Store) {
    for key in 0..KEYS {
        let size = if key % 2 == 0 { 20 } else { 700 };
        assert_eq!(store.get(&[key]).unwrap().as_deref(), Some(&vec![key; size][..]), "{key}");
    }
    assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
}

fn outage(device: &SimBlock, during: impl FnOnce()) {
    device.set_faults(FaultPlan::none().with(FaultKind::ReadError, Trigger::FromNth(1)));
    during();
    device.set_faults(FaultPlan::none());
}

#[test]
fn after_an_outage_of_reads_all_is_cleaned_again() {
    let device = device(3);
    let store = open(&device, &options(3)).unwrap();
    half_garbage(&store);
    let free = store.stats().free_segments;
    outage(&device, || {
        for _ in 0..50 {
            assert_eq!(store.clean(usize::MAX).unwrap_err().kind(), ErrorKind::Io);
        }
    });
    assert!(store.clean(usize::MAX).unwrap() >= 6);
    assert!(store.stats().free_segments >= free + 2);
    is_whole(&store);
}

/// Puts that find no room while nothing can be read are refused, and fit once it can.
#[test]
fn after_an_outage_of_reads_puts_find_room_again() {
    let device = device(4);
    let mut options = options(4);
    let clock = Arc::new(ManualClock::new(START));
    options.clock = Arc::clone(&clock) as Arc<_>;
    let store = open(&device, &options).unwrap();
    half_garbage(&store);
    // Nothing has to be read for a key that is new.
    let mut refused = 0;
    outage(&device, || {
        for number in 0..200_u8 {
            if let Err(error) = store.put(&[b'n', number], &[1; 700]) {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                refused += 1;
            }
        }
    });
    assert!(refused > 100, "{refused}");
    // As long as the outage was, at most.
    clock.advance(Duration::from_secs(600));
    assert!(store.put(b"more", &[1; 700]).is_ok());
    is_whole(&store);
}

#[test]
fn a_place_that_is_never_read_leaves_the_others_to_be_cleaned() {
    // In the trailer of the second segment: its records can be read, but for the cleaner.
    const LOST: u64 = 8192 + 2 * SEGMENT_SIZE - 1024;
    let (is_lost, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (lost, met) = (Arc::clone(&is_lost), Arc::clone(&tries));
    let inner = Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 5)));
    let asking = Asking::new(inner, move |call| {
        if call.act != Act::Read || !call.range.contains(&LOST) {
            return Ok(());
        }
        met.fetch_add(1, Ordering::SeqCst);
        if lost.load(Ordering::SeqCst) { Err(Error::new(ErrorKind::Io, "read")) } else { Ok(()) }
    });
    let clock = Arc::new(ManualClock::new(START));
    let options = Options { clock: Arc::clone(&clock) as Arc<_>, ..options(5) };
    let store = Store::open_on(asking as Arc<dyn BlockDevice>, &options).unwrap();
    half_garbage(&store);
    is_lost.store(true, Ordering::SeqCst);
    assert!(store.clean(usize::MAX).unwrap() >= 5);
    let free = store.stats().free_segments;
    clock.advance(Duration::from_secs(1));
    assert!(store.clean(usize::MAX).is_ok());
    let tried = tries.load(Ordering::SeqCst);
    assert!(tried > 3, "more than once: {tried}");
    is_lost.store(false, Ordering::SeqCst);
    clock.advance(Duration::from_secs(1));
    assert!(store.clean(usize::MAX).unwrap() >= 1);
    assert!(store.stats().free_segments >= free);
    assert_eq!(tries.load(Ordering::SeqCst), tried + 1, "it was read at last");
    is_whole(&store);
}

#[test]
fn what_expired_before_an_outage_of_reads_is_found_after_it() {
    let device = device(6);
    let clock = Arc::new(ManualClock::new(START));
    let options = Options { clock: Arc::clone(&clock) as Arc<_>, ..options(6) };
    let store = open(&device, &options).unwrap();
    let attributes = Attributes { expires_at: Some(START + 60), ..Attributes::default() };
    for key in 0..KEYS {
        let put = PutOptions { attributes, ..PutOptions::default() };
        store.put_with(&[key], &[key; 700], put).unwrap();
    }
    store.close().unwrap();
    let store = open(&device, &options).unwrap();
    clock.advance(Duration::from_secs(61));
    outage(&device, || {
        for _ in 0..50 {
            assert_eq!(store.clean(usize::MAX).unwrap_err().kind(), ErrorKind::Io);
        }
    });
    assert!(store.clean(usize::MAX).unwrap() >= 7);
}

#[test]
fn after_an_outage_of_reads_a_cache_evicts_again() {
    let device = device(7);
    let options = Options { cache: true, ..options(7) };
    let store = open(&device, &options).unwrap();
    half_garbage(&store);
    outage(&device, || {
        for _ in 0..50 {
            assert_eq!(store.evict(usize::MAX).unwrap_err().kind(), ErrorKind::Io);
        }
    });
    assert!(store.evict(usize::MAX).unwrap() >= 7);
}

/// What a move has copied before it found damage is given back as a full segment: by then it is durable, as its summary says.
#[test]
fn copies_of_a_move_that_found_damage_are_whole_after_a_power_cut() {
    const SIZE: u64 = 512 << 10;
    const COUNT: u8 = 20;
    let mut options = options(8);
    options.testing.segment_size_bytes = Some(SIZE / 16);
    let device = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 8)));
    let store = open(&device, &options).unwrap();
    // Each is an extent, so that its copy is a batch.
    for key in 1..=COUNT {
        store.put(&[key], &[key; 4200]).unwrap();
    }
    let image = device.image().to_vec();
    let place = |key: &u8| image.windows(64).position(|bytes| bytes == [*key; 64]).unwrap();
    let in_first = |key: &u8| (place(key) as u64) < SIZE / 16;
    let damaged = (1..=COUNT).take_while(in_first).last().unwrap();
    assert!(damaged > 3);
    flip_on(&device, place(&damaged) as u64);
    store.delete(&[1]).unwrap();
    store.delete(&[2]).unwrap();
    let (before, free) = (device.position(), store.stats().free_segments);
    store.clean(1).unwrap();
    assert_eq!(store.stats().free_segments, free);
    store.delete(&[COUNT]).unwrap();
    store.clean(usize::MAX).unwrap();
    let trace = device.trace();
    let mut replay = trace.replay();
    replay.advance_to(before);
    let mut states = 0;
    while replay.step() {
        for state in replay.states(40, replay.position()) {
            let survived = SimBlockOptions::new(SIZE, 1).initial(Initial::Recycled(state.image()));
            let store = open(&Arc::new(SimBlock::new(survived)), &options).unwrap();
            for key in (3..COUNT).filter(|key| *key != damaged) {
                let found = store.get(&[key]).unwrap();
                let is_whole = found.as_deref() == Some(&[key; 4200][..]);
                assert!(is_whole, "{key}: {}", state.describe());
            }
            store.forget();
            states += 1;
        }
    }
    assert!(states > 500, "{states}");
}

#[test]
fn a_first_block_that_cannot_be_read_leaves_the_other_superblock() {
    let device = device(9);
    let store = open(&device, &options(9)).unwrap();
    store.put(b"key", b"value").unwrap();
    store.close().unwrap();
    drop(store);
    device.set_faults(FaultPlan::none().with(FaultKind::ReadError, Trigger::Nth(1)));
    let store = open(&device, &options(9)).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    store.close().unwrap();
    drop(store);
    // Neither can be: that is not a blank device.
    let both = FaultPlan::none().with(FaultKind::ReadError, Trigger::Nth(1));
    device.set_faults(both.with(FaultKind::ReadError, Trigger::Nth(2)));
    assert_eq!(open(&device, &options(9)).unwrap_err().kind(), ErrorKind::Io);
    let store = open(&device, &options(9)).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}
