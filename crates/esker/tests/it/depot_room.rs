//! A full `depot`: what frees room always works, whatever copies take, and the room comes back.

use crate::checkpoint::of_checkpoints;
use crate::support::{flip_on, number, open, options};
use esker::{Durability, ErrorKind, Options, Result, Store};
use esker_base::Error;
use esker_base::rng::Rng;
use esker_format::depot::{SegmentHeader, Superblock};
use esker_media::BlockDevice;
use esker_media::sim::{Asking, Image, Initial, SimBlock, SimBlockOptions};
use esker_trt::{sim, spawn, yield_now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// With segments of 128 KiB there are 63 of them.
const SIZE: u64 = 8 << 20;
const SEGMENT: u64 = 128 << 10;

fn store(seed: u64, durability: Durability) -> (Store, Arc<SimBlock>, Options) {
    let mut inner = SimBlockOptions::new(SIZE, seed);
    (inner.record, inner.latency_max) = (false, std::time::Duration::ZERO);
    let device = Arc::new(SimBlock::new(inner));
    let mut options = options(seed);
    options.durability = durability;
    options.testing.segment_size_bytes = Some(SEGMENT);
    (open(&device, &options).unwrap(), device, options)
}

/// Puts keys from 0 on until there is no room; gives their number.
fn fill(store: &Store, value_size: usize) -> u32 {
    fill_with(store, 4, value_size)
}

/// A key of so many bytes.
fn key(number: u32, size: usize) -> Vec<u8> {
    let mut key = vec![b'k'; size - 4];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// As [`fill`], with keys of so many bytes.
fn fill_with(store: &Store, key_size: usize, value_size: usize) -> u32 {
    let value = vec![5; value_size];
    for number in 0..u32::MAX {
        match store.put(&key(number, key_size), &value) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => return number,
            Err(error) => panic!("put {number}: {error}"),
        }
    }
    u32::MAX
}

fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut rng = Rng::from_seed(seed);
    let mut numbers: Vec<u32> = (0..count).collect();
    for place in (1..numbers.len()).rev() {
        numbers.swap(place, rng.index(place + 1));
    }
    numbers
}

/// Fills a store, deletes all in any order, and fills it again.
fn is_emptied(durability: Durability, key_size: usize, value_size: usize) {
    let context = format!("{durability:?}, keys of {key_size}, values of {value_size} bytes");
    let (store, _, _) = store(1, durability);
    let full = fill_with(&store, key_size, value_size);
    let bytes = u64::from(full) * (key_size + value_size) as u64;
    if value_size >= 50 {
        assert!(bytes > SIZE / 10 * 6, "{context}: {bytes} bytes");
    }
    for (count, number) in shuffled(full, 2).into_iter().enumerate() {
        let deleted = store.delete(&key(number, key_size));
        let deleted =
            deleted.unwrap_or_else(|error| panic!("{context}, {count} of {full}: {error}"));
        assert!(deleted, "{context}: {number}");
    }
    assert_eq!(store.stats().items, 0, "{context}");
    let again = fill_with(&store, key_size, value_size);
    assert!(u64::from(again) * 100 >= u64::from(full) * 95, "{context}: {again} after {full}");
    // What is full can be cleared as well.
    store.clear().unwrap();
    let again = fill_with(&store, key_size, value_size);
    assert!(u64::from(again) * 100 >= u64::from(full) * 95, "{context}: {again} after {full}");
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{context}: {:?}", report.problems);
}

#[test]
fn a_full_store_can_be_emptied_in_any_order_and_filled_again() {
    [0, 50, 1000].into_iter().for_each(|size| is_emptied(Durability::None, 4, size));
}

/// A tombstone of a long key takes as much as its record, or nearly so.
#[test]
fn a_full_store_of_long_keys_can_be_emptied_in_any_order_and_filled_again() {
    for key_size in [60, 250, 8000] {
        [0, 50].into_iter().for_each(|size| is_emptied(Durability::None, key_size, size));
    }
}

#[test]
fn a_full_store_can_be_emptied_one_durable_delete_at_a_time() {
    [50, 1000].into_iter().for_each(|size| is_emptied(Durability::Sync, 4, size));
}

/// What the tombstones of long keys take is known again after an open, from a checkpoint and from summaries.
#[test]
fn an_open_knows_what_tombstones_of_long_keys_take() {
    let (mut store, device, options) = store(9, Durability::None);
    let live = |store: &Store| store.stats().live_bytes;
    let full = fill_with(&store, 250, 50);
    let before = live(&store);
    (0..full).step_by(2).for_each(|number| {
        assert!(store.delete(&key(number, 250)).unwrap());
    });
    let half = live(&store);
    assert!(half * 100 > before * 85, "a tombstone takes nearly as much: {half} of {before}");
    store.close().unwrap();
    for reason in ["a clean stop", "a crash"] {
        drop(store);
        store = open(&device, &options).unwrap();
        let known = live(&store);
        assert!(known.abs_diff(half) * 100 < half, "after {reason}: {known}, {half} before");
        // No more than one is written behind the checkpoint.
        store.put(b"another", reason.as_bytes()).unwrap();
        store.write_out().unwrap();
        store.clone().forget();
    }
}

/// What a crash or a new session finds of a full store can be emptied as well.
#[test]
fn a_full_store_can_be_emptied_after_it_was_opened_again() {
    let (full, device, options) = store(3, Durability::None);
    let count = fill(&full, 50);
    full.write_out().unwrap();
    full.forget();
    let store = open(&device, &options).unwrap();
    let numbers = shuffled(count, 4);
    let (first, rest) = numbers.split_at(numbers.len() / 100);
    for number in first {
        assert!(store.delete(&number.to_be_bytes()).unwrap());
    }
    store.write_out().unwrap();
    store.forget();
    let store = open(&device, &options).unwrap();
    for (place, number) in rest.iter().enumerate() {
        let deleted = store.delete(&number.to_be_bytes());
        assert!(deleted.unwrap_or_else(|error| panic!("{place} of {count}: {error}")));
    }
    let again = fill(&store, 50);
    assert!(again * 100 >= count * 95, "{again} after {count}");
}

/// Of small records that were written once as many fit as of those that were moved again and again: what was
/// accepted can be overwritten.
fn is_written_over(percent: u64, value_size: usize) {
    let (store, device, options) = store(5, Durability::None);
    // What a record takes with its key, and its part of summary and batch.
    let count = u32::try_from(SIZE / 100 * percent / (value_size as u64 + 20)).unwrap();
    let mut rng = Rng::from_seed(6);
    let value = |write: u32| number(vec![6; value_size], write);
    // The number of each key's last write.
    let mut last: Vec<u32> = (0..count).collect();
    for write in 0..count * 4 {
        let any = u32::try_from(rng.below(u64::from(count))).unwrap();
        let key = if write < count { write } else { any };
        let done = store.put(&key.to_be_bytes(), &value(write));
        done.unwrap_or_else(|error| panic!("put {write} of {count}, {value_size}: {error}"));
        last[key as usize] = write;
    }
    let is_the_last = |store: &Store| {
        assert_eq!(store.stats().items, u64::from(count));
        for (key, write) in (0..count).zip(&last) {
            let found = store.get(&key.to_be_bytes()).unwrap();
            assert_eq!(found.as_deref(), Some(&value(*write)[..]), "{key} of {count}");
        }
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
    };
    is_the_last(&store);
    store.write_out().unwrap();
    store.forget();
    is_the_last(&open(&device, &options).unwrap());
}

#[test]
fn small_records_are_written_over_again_and_again() {
    is_written_over(75, 50);
    is_written_over(80, 100);
}

/// A batch was promised a segment while it formed. When its turn comes, the headers of the free ones are being made invalid, for far
/// longer than it takes to give up.
#[test]
fn a_batch_finds_the_segment_that_it_was_promised_while_free_ones_lose_their_headers() {
    (0..10).for_each(|puts| {
        let outcome = sim::run(puts, move || beside_a_slow_trim(puts)).outcome;
        outcome.unwrap().unwrap_or_else(|error| panic!("after {puts} puts: {error}"));
    });
}

fn beside_a_slow_trim(puts: u64) -> Result<()> {
    let slow: [Arc<AtomicBool>; 2] = Default::default();
    let is_slow = slow.clone();
    let inner = Arc::new(SimBlock::new(SimBlockOptions::new(128 << 10, puts)));
    let asking = Asking::new(inner, move |call| {
        let sites = [esker::sites::depot::COMMIT_WRITE, esker::sites::depot::BLANK_FLUSH];
        for ((site, seconds), is_slow) in sites.into_iter().zip([2, 30]).zip(&is_slow) {
            if call.site == site && is_slow.swap(false, Ordering::SeqCst) {
                esker_trt::sleep(Duration::from_secs(seconds));
            }
        }
        Ok(())
    });
    let store = Store::open_on(asking as Arc<dyn BlockDevice>, &options(puts))?;
    // All segments were in use once, so that all that are free have headers.
    for number in 0..120 + puts {
        store.put(&[number.to_le_bytes()[0] % 2], &[1; 900])?;
    }
    slow.iter().for_each(|is_slow| is_slow.store(true, Ordering::SeqCst));
    let [commit, blank] = slow;
    let task = |body: fn(&Store) -> Result<()>| {
        let store = store.clone();
        spawn(move || body(&store))
    };
    let mut tasks = vec![task(|store| store.put(b"first", &[2; 900]).map(drop))];
    while commit.load(Ordering::SeqCst) {
        yield_now();
    }
    // They form a batch that is too long for what is left of the segment, sooner or later.
    tasks.push(task(|store| store.put(b"second", &[3; 900]).map(drop)));
    tasks.push(task(|store| store.put(b"third", &[4; 900]).map(drop)));
    (0..10).for_each(|_| yield_now());
    tasks.push(task(|store| store.trim().map(drop)));
    while blank.load(Ordering::SeqCst) {
        yield_now();
    }
    for task in tasks {
        task.join().map_err(|_| Error::new(ErrorKind::Corrupted, "a task panicked"))??;
    }
    store.put(b"fourth", b"").map(drop)
}

/// The cleaner finds a record damaged when it has copied others of its segment. What that took may have been the last free segment: it is
/// free again at once.
#[test]
fn damaged_records_leave_the_cleaner_of_a_full_store_its_segment() {
    const SMALL: u8 = 60;
    let (store, device, _) = store(7, Durability::Sync);
    // Each is an extent, so that its copy is a batch.
    let value = |number: u32| number.to_be_bytes().repeat(5000);
    let small = |number: u32, place: u8| [&number.to_be_bytes()[..], &[place]].concat();
    let put = |number: &u32| {
        let smalls = (0..SMALL).all(|place| store.put(&small(*number, place), b"").is_ok());
        smalls && store.put(&number.to_be_bytes(), &value(*number)).is_ok()
    };
    let full = (0..).take_while(put).count() as u32;
    let image = device.image().to_vec();
    let delete = |key: &[u8]| {
        let deleted = store.delete(key);
        assert!(deleted.unwrap_or_else(|error| panic!("{key:?} of {full}: {error}")));
    };
    let damaged = || (30..full).step_by(17);
    for number in damaged() {
        let wanted = value(number);
        let place = image.chunks(512).position(|block| block == &wanted[..512]).unwrap();
        flip_on(&device, place as u64 * 512);
        assert_eq!(store.get(&number.to_be_bytes()).unwrap_err().kind(), ErrorKind::Corrupted);
        // So that its segment is cleaned first.
        delete(&(number - 1).to_be_bytes());
    }
    for number in 0..full {
        (0..SMALL).for_each(|place| delete(&small(number, place)));
    }
    for number in (0..full).filter(|number| damaged().all(|damaged| damaged != number + 1)) {
        delete(&number.to_be_bytes());
    }
}

/// A device with this content.
fn recycled(image: &Image) -> Arc<SimBlock> {
    let mut inner = SimBlockOptions::new(SIZE, 1).initial(Initial::Recycled(image.clone()));
    (inner.record, inner.latency_max) = (false, Duration::ZERO);
    Arc::new(SimBlock::new(inner))
}

/// Opens what is there, in which these keys are; returns how often the device was read for that.
fn reads_of_an_open(image: &Image, options: &Options, keys: u32) -> u64 {
    let store = open(&recycled(image), options).unwrap();
    let reads = store.stats().device.reads;
    assert_eq!(store.stats().items, u64::from(keys));
    for number in 0..keys {
        let found = store.get(&number.to_be_bytes()).unwrap();
        assert_eq!(found.as_deref(), Some(&number.to_be_bytes()[..]), "{number}");
    }
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    reads
}

/// Headers of the newest checkpoint, or of what is left of it.
fn newest_checkpoint(device: &SimBlock) -> Vec<SegmentHeader> {
    let mut headers = of_checkpoints(&device.image().to_vec());
    let newest = headers.iter().map(|header| header.session_epoch).max();
    headers.retain(|header| Some(header.session_epoch) == newest);
    headers
}

/// The same, as if no segment of a checkpoint had a header.
fn without_checkpoint(image: &Image) -> Image {
    let bytes = image.to_vec();
    let start = Superblock::decode(&bytes).unwrap().data_offset;
    let mut image = image.clone();
    for header in of_checkpoints(&bytes) {
        let base = start + u64::from(header.segment_id.0) * SEGMENT;
        for at in [base, base + SEGMENT - 512] {
            image.write(at, &[0; 512]);
        }
    }
    image
}

/// What there is of the checkpoint is of use to an open, and all keys are there.
fn is_of_use(image: &Image, options: &Options, keys: u32) {
    let [with, without] =
        [image, &without_checkpoint(image)].map(|image| reads_of_an_open(image, options, keys));
    assert!(with < without, "{with} reads with a checkpoint, {without} without");
}

/// Puts so many keys from this one on, or as many as there is room for; returns the next one.
fn put_some(store: &Store, from: u32, count: u32) -> u32 {
    let put = |number: &u32| match store.put(&number.to_be_bytes(), &number.to_be_bytes()) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "put {number}: {error}");
            false
        }
    };
    (from..from + count).take_while(put).last().map_or(from, |last| last + 1)
}

/// Of small records, the index is a third. Where there is no room for two checkpoints, one takes the place of the last.
#[test]
fn a_checkpoint_is_renewed_as_long_as_there_is_room_for_one() {
    const STEP: u32 = 2000;
    let (store, device, options) = store(11, Durability::None);
    let (mut keys, mut last, mut in_place) = (0, 0, 0);
    loop {
        let next = put_some(&store, keys, STEP);
        let is_full = next < keys + STEP;
        keys = next;
        let free = store.stats().free_segments;
        let is_renewed = store.checkpoint().unwrap();
        if !is_renewed {
            // The three that puts leave alone, one for the index's growth, and what it grew by.
            assert!(free <= last + 5, "{free} free segments with {last} of the last checkpoint");
            break;
        }
        last = newest_checkpoint(&device).len() as u64;
        // Nobody writes less than he did, so there was no room for both.
        in_place += u32::from(free < 2 * last + 3);
        if is_full {
            break;
        }
    }
    assert!(in_place > 0, "there was room for two");
    store.write_out().unwrap();
    is_of_use(&device.image(), &options, keys);
}

#[test]
fn a_clean_stop_without_room_for_a_checkpoint_leaves_the_last_one() {
    let (store, device, options) = store(12, Durability::None);
    let keys = put_some(&store, 0, 80_000);
    assert!(store.checkpoint().unwrap());
    let last = newest_checkpoint(&device);
    let keys = put_some(&store, keys, u32::MAX / 2);
    assert_eq!(newest_checkpoint(&device), last, "it stands before");
    store.close().unwrap();
    assert_eq!(newest_checkpoint(&device), last, "it stands");
    // What came later overtakes it.
    reads_of_an_open(&device.image(), &options, keys);
}
