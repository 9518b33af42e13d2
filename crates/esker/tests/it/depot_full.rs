//! `depot`: a file of which space was given back, on a file system that others filled meanwhile. Puts are refused in time; everything else
//! goes on, also behind an open.

use crate::checkpoint::of_checkpoints;
use crate::client::{Map, cut};
use crate::support::{self, SEGMENT_SIZE, START, options};
use esker::{Durability, ErrorKind, Options, Store};
use esker_base::Error;
use esker_base::clock::{Clock, ManualClock};
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, Image, Initial, SimBlock, SimBlockOptions};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: u64 = 512;
const SIZE: u64 = 1 << 20;

/// What a file system knows of the file.
#[derive(Default)]
struct Room {
    holes: HashSet<u64>,
    /// Blocks for which it has room although it is full.
    left: u64,
    /// Where room was asked for in vain, and what may have been taken of it not given back.
    owed: HashSet<u64>,
}

/// A file: what is discarded of it is a hole, and while the file system is full no hole can be written to.
fn file() -> (Arc<Asking>, Arc<AtomicBool>, Arc<Mutex<Room>>) {
    file_on(Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1))), Room::default())
}

fn file_on(device: Arc<SimBlock>, room: Room) -> (Arc<Asking>, Arc<AtomicBool>, Arc<Mutex<Room>>) {
    let (is_full, room) = (Arc::<AtomicBool>::default(), Arc::new(Mutex::new(room)));
    let (full, known) = (Arc::clone(&is_full), Arc::clone(&room));
    let device = Asking::new(device, move |call| {
        let Range { start, end } = call.range;
        let mut known = known.lock();
        let blocks = start / BLOCK..end.div_ceil(BLOCK);
        match call.act {
            Act::Write | Act::Reserve | Act::Prepare => {
                let missing = blocks.clone().filter(|block| known.holes.contains(block)).count();
                if full.load(Ordering::SeqCst) && missing as u64 > known.left {
                    assert_ne!(call.act, Act::Write, "room is asked for before");
                    known.owed.insert(start);
                    return Err(Error::new(ErrorKind::NoSpace, "allocate").at(start, end - start));
                }
                known.left = known.left.saturating_sub(missing as u64);
                known.holes.retain(|block| !blocks.contains(block));
            }
            Act::Discard => {
                known.holes.extend(blocks);
                known.owed.remove(&start);
            }
            Act::Read | Act::Flush => {}
        }
        Ok(())
    });
    (device, is_full, room)
}

fn open(device: &Arc<Asking>, options: &Options) -> Store {
    Store::open_on(Arc::clone(device) as Arc<dyn BlockDevice>, options).unwrap()
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Puts pairs until one is refused; how many there were, and the refusal.
fn fill(store: &Store, known: &mut Map, first: u32) -> (u32, Error) {
    for number in first.. {
        let value = vec![number.to_be_bytes()[3]; 1000];
        match store.put(&key(number), &value) {
            Ok(_) => drop(known.insert(key(number), value)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return (number - first, error);
            }
        }
    }
    unreachable!("every store is full some time")
}

fn check(store: &Store, known: &Map) {
    let mut found: Vec<_> = store.iter().map(|pair| pair.unwrap()).collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    let found = found.iter().map(|(key, value)| (&key[..], &value[..]));
    assert!(found.eq(known.iter().map(|(key, value)| (&key[..], &value[..]))));
}

#[test]
fn space_that_others_took_is_missed_by_puts_and_by_nothing_else() {
    for (is_cache, durability) in
        [(false, Durability::Sync), (false, Durability::None), (true, Durability::Sync)]
    {
        let (device, is_full, room) = file();
        let clock = Arc::new(ManualClock::new(START));
        let mut options = options(1);
        options.clock = Arc::clone(&clock) as Arc<dyn Clock>;
        (options.cache, options.durability) = (is_cache, durability);
        let store = open(&device, &options);
        store.put(b"first", b"value").unwrap();
        let mut known = Map::from([(b"first".to_vec(), b"value".to_vec())]);
        for number in 5000..5100 {
            let value = vec![1; 1000];
            store.put(&key(number), &value).unwrap();
            known.insert(key(number), value);
        }
        store.sync().unwrap();
        assert!(store.trim().unwrap() > SIZE / 4);
        is_full.store(true, Ordering::SeqCst);
        if is_cache {
            // It evicts instead.
            for number in 0..4 * u32::try_from(SIZE / 1000).unwrap() {
                store.put(&key(number), &[7; 1000]).unwrap();
            }
            continue;
        }
        assert!(fill(&store, &mut known, 0).0 < 300);
        check(&store, &known);
        // Deletes find room, and make it.
        let mut refused = 0;
        for round in 0..3 {
            let gone: Vec<Vec<u8>> =
                known.keys().filter(|key| key.len() == 4).step_by(2).cloned().collect();
            for key in gone {
                assert!(store.delete(&key).unwrap());
                known.remove(&key);
            }
            store.clean(usize::MAX).unwrap();
            refused += u32::from(fill(&store, &mut known, 1000 * (round + 1)).0 == 0);
            check(&store, &known);
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(refused, 0);
        store.close().unwrap();
        drop(store);
        let store = open(&device, &options);
        check(&store, &known);
        let (_, error) = fill(&store, &mut known, 10_000);
        assert!(error.to_string().contains("the file system has no room for"), "{error}");
        assert!(store.delete(b"first").unwrap());
        known.remove(&b"first"[..]);
        check(&store, &known);
        assert!(room.lock().owed.is_empty(), "{:?}", room.lock().owed);
        // Others go.
        is_full.store(false, Ordering::SeqCst);
        clock.advance(Duration::from_secs(1));
        assert!(
            fill(&store, &mut known, 20_000).0 > u32::try_from(SIZE / SEGMENT_SIZE / 4).unwrap()
        );
        check(&store, &known);
    }
}

/// A device with this content.
fn recycled(image: &Image) -> Arc<SimBlock> {
    let initial = Initial::Recycled(image.clone());
    Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1).initial(initial)))
}

/// A device with this content, of which these segments, by their places, have no room.
fn without_room_at(
    image: &Image,
    lacks: impl Fn(u64) -> bool + Send + Sync + 'static,
) -> Arc<Asking> {
    Asking::new(recycled(image), move |call| match call.act {
        Act::Reserve if lacks(call.range.start) => {
            Err(Error::new(ErrorKind::NoSpace, "allocate").at(call.range.start, SEGMENT_SIZE))
        }
        _ => Ok(()),
    })
}

/// Places of segments that nothing was written to, or that were given back.
fn blank(image: &Image) -> Vec<u64> {
    let bytes = image.to_vec();
    let all = (8192..SIZE - SEGMENT_SIZE + 1).step_by(SEGMENT_SIZE as usize);
    all.filter(|at| bytes[*at as usize..][..512].iter().all(|byte| *byte == 0)).collect()
}

#[test]
fn room_that_the_first_segments_lack_is_found_in_others() {
    let device = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1)));
    let store = support::open(&device, &options(1)).unwrap();
    store.put(b"first", b"value").unwrap();
    store.close().unwrap();
    let mut lacking = blank(&device.image());
    let count = lacking.len() as u32;
    lacking.truncate(40);
    let device = without_room_at(&device.image(), move |at| lacking.contains(&at));
    let store = open(&device, &options(2));
    for number in 0..(count - 40) * 4 {
        store.put(&key(number), &[7; 1000]).unwrap();
    }
    assert!(store.delete(b"first").unwrap());
}

#[test]
fn an_open_needs_no_room() {
    let (mut refused, mut done) = (0, 0);
    for count in 0..40 {
        let device = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1)));
        let store = support::open(&device, &options(1)).unwrap();
        (0..count).for_each(|number| {
            store.put(&key(number), &[7; 400]).unwrap();
        });
        // Without a checkpoint.
        drop(store);
        let lacking = blank(&device.image());
        let device = without_room_at(&device.image(), move |at| lacking.contains(&at));
        let store = open(&device, &options(2));
        (0..count).for_each(|number| assert!(store.get(&key(number)).unwrap().is_some()));
        match store.delete(&key(0)) {
            Ok(_) => done += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "of {count}: {error}");
                refused += 1;
            }
        }
        assert!(store.stats().read_only.is_none());
    }
    assert!(refused > 0 && done > 0, "{refused} refused, {done} done");
}

/// Room for a header that tells which versions are given comes with the first write.
#[test]
fn versions_given_behind_an_open_without_room_are_not_given_again() {
    for durability in [Durability::None, Durability::Periodic(Duration::from_secs(3600))] {
        for count in 0..40 {
            let device = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1)));
            let store = support::open(&device, &options(1)).unwrap();
            (0..count).for_each(|number| {
                store.put(&key(number), &[7; 400]).unwrap();
            });
            drop(store);
            let (lacking, is_full) = (blank(&device.image()), Arc::new(AtomicBool::new(true)));
            let full = Arc::clone(&is_full);
            let device = without_room_at(&device.image(), move |at| {
                full.load(Ordering::SeqCst) && lacking.contains(&at)
            });
            let mut options = options(2);
            options.durability = durability;
            let store = open(&device, &options);
            is_full.store(false, Ordering::SeqCst);
            let seen = store.put(b"key", b"value").unwrap();
            let image = cut(device.inner(), false);
            store.forget();
            let store = support::open(&recycled(&image), &options).unwrap();
            let next = store.put(b"key", b"other").unwrap();
            assert!(next > seen, "of {count}: {next:?} behind {seen:?}");
            store.forget();
        }
    }
}

#[test]
fn a_cache_without_room_for_a_value_evicts_nothing_for_it() {
    let device = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1)));
    let mut options = options(1);
    options.cache = true;
    let store = support::open(&device, &options).unwrap();
    (0..60).for_each(|number| {
        store.put(&key(number), &[7; 1000]).unwrap();
    });
    store.close().unwrap();
    let lacking = blank(&device.image()).split_off(10);
    let device = without_room_at(&device.image(), move |at| lacking.contains(&at));
    let store = open(&device, &options);
    for _ in 0..3 {
        // The cache of this size takes it.
        let error = store.put(b"large", &vec![5; 300_000]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let stats = store.stats();
        assert_eq!((stats.evictions, stats.items), (0, 60));
    }
    store.put(b"less", &vec![5; 40_000]).unwrap();
    assert!(store.get(b"less").unwrap().is_some());
}

#[test]
fn a_clean_stop_on_a_full_file_system_leaves_a_checkpoint() {
    let (device, is_full, _) = file();
    let mut options = options(1);
    options.durability = Durability::None;
    let store = open(&device, &options);
    let put = |numbers: Range<u32>| {
        numbers.for_each(|number| {
            store.put(&key(number), b"").unwrap();
        });
    };
    let newest = || {
        let mut headers = of_checkpoints(&device.inner().image().to_vec());
        let newest = headers.iter().map(|header| header.session_epoch).max();
        headers.retain(|header| Some(header.session_epoch) == newest);
        headers
    };
    put(0..3000);
    assert!(store.checkpoint().unwrap());
    let last = newest();
    put(3000..12_000);
    store.sync().unwrap();
    assert!(store.trim().unwrap() > SIZE / 4);
    is_full.store(true, Ordering::SeqCst);
    store.close().unwrap();
    assert_eq!(newest(), last, "it stands");
    drop(store);
    let store = open(&device, &options);
    assert_eq!(store.stats().items, 12_000);
}

/// What a copy with `cp --sparse=always` leaves of a file: blocks of zeros are holes, those in values and those behind the log's end.
fn sparse(image: &Image, left: u64) -> (Arc<Asking>, Arc<AtomicBool>, Arc<Mutex<Room>>) {
    let bytes = image.to_vec();
    let blocks = (0..).zip(bytes.chunks(BLOCK as usize));
    let holes = blocks.filter(|(_, block)| block.iter().all(|byte| *byte == 0)).map(|(n, _)| n);
    file_on(recycled(image), Room { holes: holes.collect(), left, ..Room::default() })
}

#[test]
fn a_sparse_copy_on_a_full_file_system_takes_no_write_that_there_is_no_room_for() {
    let (mut done, mut refused, mut stuck) = ([0, 0], [0, 0], 0);
    for (count, left) in (0..24).flat_map(|count| [(count, 0), (count, 10)]) {
        for (is_cache, durability) in [
            (false, Durability::Sync),
            (false, Durability::None),
            (true, Durability::Sync),
            (true, Durability::None),
        ] {
            let device = Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1)));
            let clock = Arc::new(ManualClock::new(START));
            let mut options = options(1);
            options.clock = Arc::clone(&clock) as Arc<dyn Clock>;
            (options.cache, options.durability) = (is_cache, durability);
            let store = support::open(&device, &options).unwrap();
            // Of zeros, of none, and of zeros again; those of the first two count no more.
            for number in 0..300 {
                let value = [u8::from((100..220).contains(&number)); 1000];
                store.put(&key(number % 100), &value).unwrap();
            }
            if is_cache {
                // Evicted without notes, and so without room.
                for number in 1000..1060 {
                    store.put(&key(number), &[2; 1000]).unwrap();
                }
            }
            (0..count).for_each(|number| {
                store.put(&key(number), &[3; 400]).unwrap();
            });
            store.close().unwrap();
            drop(store);
            let (device, is_full, _) = sparse(&device.image(), left);
            is_full.store(true, Ordering::SeqCst);
            let store = open(&device, &options);
            let place = usize::from(left > 0);
            for number in 0..100 {
                let deleted = store.delete(&key(number)).and_then(|_| store.sync());
                match deleted {
                    Ok(()) => done[place] += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NoSpace, "{count}: {error}");
                        refused[place] += 1;
                        if is_cache && error.to_string().contains("in which the log goes on") {
                            assert_eq!(store.stats().evictions, 0, "of no use: {count}, {left}");
                            stuck += 1;
                        }
                    }
                }
            }
            assert!(store.stats().read_only.is_none());
            is_full.store(false, Ordering::SeqCst);
            clock.advance(Duration::from_secs(1));
            for number in 0..200 {
                store.put(&key(number), &[9; 1000]).unwrap();
            }
            assert!(store.check().unwrap().is_sound());
            store.close().unwrap();
            drop(store);
            let items = open(&device, &options).stats().items;
            assert!(items == 200 || is_cache && items > 200, "{items}");
        }
    }
    println!("{done:?} done, {refused:?} refused, {stuck} by caches");
    assert!(stuck > 0);
    assert!(done[0] > 0 && refused[0] > 0 && done[1] > done[0], "{done:?} {refused:?}");
}
