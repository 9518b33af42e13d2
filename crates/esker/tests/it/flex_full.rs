//! `flex`: a file system that is full before the store is. Puts are refused, in time; everything else goes on, and gives room back.

use crate::client::Map;
use crate::flex::{assert_sound, content};
use crate::flex_db::{Devices, SIZES, options};
use crate::flex_whole::{bytes, held, sound};
use crate::support::START;
use esker::flex::{Space, SpaceFiles, SpaceOptions};
use esker::{Batch, Durability, ErrorKind, FlexFiles, Options, Result, Store};
use esker_base::Error;
use esker_base::clock::{Clock, ManualClock};
use esker_base::rng::Rng;
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, SimBlock, SimBlockOptions, SimDevices};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const BLOCK: u64 = 512;
/// Data, tree and log of the space, two logs, and the saved index.
const FIRST_SIZES: [u64; 6] = [4096, 8192, 4096, 4096, 4096, 4096];

/// A file system: how many of its blocks are left.
#[derive(Debug)]
struct FileSystem {
    left: AtomicUsize,
}

impl FileSystem {
    /// Whether so many blocks were left: they are not any more.
    fn take(&self, count: usize) -> bool {
        self.left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(count))
            .is_ok()
    }

    fn give(&self, count: usize) {
        self.left.fetch_add(count, Ordering::SeqCst);
    }
}

/// A file in it: blocks are taken with the first write there, and given back by discards.
fn file(system: &Arc<FileSystem>, size: u64) -> Arc<Asking> {
    let mut options = SimBlockOptions::new(size, 1);
    options.size_bytes_max = 64 << 20;
    let allocated: Mutex<HashSet<u64>> = Mutex::new((0..size / BLOCK).collect());
    let system = Arc::clone(system);
    Asking::new(Arc::new(SimBlock::new(options)), move |call| {
        let Range { start, end } = call.range;
        let mut allocated = allocated.lock();
        match call.act {
            Act::Write | Act::Reserve => {
                let blocks = start / BLOCK..end.div_ceil(BLOCK);
                let missing: Vec<u64> = blocks.filter(|block| !allocated.contains(block)).collect();
                if !system.take(missing.len()) {
                    return Err(Error::new(ErrorKind::NoSpace, "allocate").at(start, end - start));
                }
                allocated.extend(missing);
            }
            Act::Discard => {
                let before = allocated.len();
                allocated.retain(|block| !(start / BLOCK..end / BLOCK).contains(block));
                system.give(before - allocated.len());
            }
            Act::Read | Act::Flush | Act::Prepare => {}
        }
        Ok(())
    })
}

/// Six files of a file system with so many blocks.
fn files(blocks: usize) -> (Arc<FileSystem>, Vec<Arc<Asking>>) {
    let system = Arc::new(FileSystem { left: AtomicUsize::new(blocks) });
    let files = FIRST_SIZES.iter().map(|size| file(&system, *size)).collect();
    (system, files)
}

/// As [`options`], with segments in which leaves find room, and nodes that have some extents: a tree of small ones is as large as
/// the data.
fn wide(seed: u64, durability: Durability) -> (Options, Arc<ManualClock>) {
    let mut options = options(seed);
    options.durability = durability;
    let clock = Arc::new(ManualClock::new(START));
    options.clock = Arc::clone(&clock) as Arc<dyn Clock>;
    options.size_bytes = 16 << 20;
    options.flex.memtable_size_bytes = 32 << 10;
    if let Some(space) = &mut options.flex.space {
        space.shape.segment_size_bytes = 32 << 10;
        (space.shape.leaf_capacity, space.shape.children_max) = (16, 12);
    }
    (options, clock)
}

fn open(files: &[Arc<Asking>], options: &Options) -> Result<Store> {
    let file = |index: usize| Arc::clone(&files[index]) as Arc<dyn BlockDevice>;
    let files = FlexFiles {
        space: SpaceFiles { data: file(0), tree: file(1), log: file(2) },
        logs: [file(3), file(4)],
        index: file(5),
    };
    Store::open_flex_on(files, options)
}

/// Puts pairs until one is refused; how many there were.
fn fill(store: &Store, known: &mut Map, rng: &mut Rng) -> usize {
    for count in 0.. {
        let key = rng.below(1 << 20).to_be_bytes();
        let value = bytes(rng.next_u64(), 20 + rng.index(300));
        match store.put(&key, &value) {
            Ok(_) => drop(known.insert(key.to_vec(), value)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                let words = "the file system is full, and the store has ";
                assert!(error.to_string().contains(words), "{error}");
                return count;
            }
        }
    }
    unreachable!("every file system is full some time")
}

/// Seeds, and whether there is a log before there is a commit.
const CASES: [(u64, Durability); 8] = [
    (1, Durability::Sync),
    (2, Durability::Sync),
    (3, Durability::Sync),
    (4, Durability::Sync),
    (1, Durability::None),
    (2, Durability::None),
    (3, Durability::None),
    (4, Durability::None),
];

#[test]
fn a_full_file_system_refuses_puts_and_nothing_else() {
    const BLOCKS: usize = 6400;
    for (seed, durability) in CASES {
        let (system, files) = files(BLOCKS);
        let (mut options, clock) = wide(seed, durability);
        let mut rng = Rng::from_seed(seed);
        let mut known = Map::new();
        let mut store = open(&files, &options).unwrap();
        for round in 0..4 {
            // Salts are not those of the open before.
            options.testing.seed = Some(seed + 10 * (round + 1));
            let context = format!("{durability:?}, seed {seed}, round {round}");
            let put = fill(&store, &mut known, &mut rng);
            let size: usize = known.iter().map(|(key, value)| key.len() + value.len()).sum();
            assert!(size as u64 > BLOCKS as u64 * BLOCK / 4, "{context}: {size} bytes, {put} puts");
            assert_eq!(held(&store), known, "{context}");
            // Any order; what is gone gives its room back in the end.
            let keys: Vec<Vec<u8>> = known.keys().cloned().collect();
            for key in keys {
                if rng.chance(2, 3) {
                    let deleted = store.delete(&key).map_err(|error| format!("{context}: {error}"));
                    assert!(deleted.unwrap(), "{context}");
                    known.remove(&key);
                }
            }
            assert_eq!(held(&store), known, "{context}");
            // Nobody looks for room again at once.
            clock.advance(Duration::from_secs(1));
            sound(&store);
            if round % 2 == 0 {
                store.close().unwrap();
                store = open(&files, &options).unwrap();
            }
        }
        // Others may have what is left over.
        store.delete_range(&[], None).unwrap();
        let before = system.left.load(Ordering::SeqCst);
        store.clean(usize::MAX).unwrap();
        store.trim().unwrap();
        assert!(system.left.load(Ordering::SeqCst) > before.max(BLOCKS / 2), "seed {seed}");
        store.close().unwrap();
    }
}

#[test]
fn what_others_take_of_a_file_system_is_missed_by_puts_only() {
    for (seed, durability) in CASES {
        let (system, files) = files(16_000);
        let (options, clock) = wide(seed, durability);
        let mut rng = Rng::from_seed(seed);
        let mut known = Map::new();
        let store = open(&files, &options).unwrap();
        for _ in 0..4000 {
            let key = rng.below(1 << 20).to_be_bytes();
            let value = bytes(rng.next_u64(), 20 + rng.index(300));
            store.put(&key, &value).unwrap();
            known.insert(key.to_vec(), value);
        }
        let others = system.left.swap(0, Ordering::SeqCst);
        fill(&store, &mut known, &mut rng);
        assert_eq!(held(&store), known, "seed {seed}");
        for key in known.keys() {
            store.delete(key).unwrap();
        }
        assert_eq!(held(&store), Map::new(), "seed {seed}");
        store.clean(usize::MAX).unwrap();
        sound(&store);
        known.clear();
        clock.advance(Duration::from_secs(1));
        assert!(fill(&store, &mut known, &mut rng) > 2000, "seed {seed}");
        // They give it back.
        system.give(others);
        clock.advance(Duration::from_secs(1));
        assert!(fill(&store, &mut known, &mut rng) > 2000, "seed {seed}");
        assert_eq!(held(&store), known, "seed {seed}");
        store.close().unwrap();
    }
}

/// A trim leaves segments that are allocated, whichever these are, and as many as the collector needs.
#[test]
fn what_others_take_of_what_was_given_back_is_missed_by_puts_only() {
    for (seed, durability) in CASES {
        let is_opened_again = seed % 2 == 0;
        let context = format!("{durability:?}, seed {seed}, opened again: {is_opened_again}");
        let (system, files) = files(16_000);
        let (mut options, clock) = wide(seed, durability);
        let mut rng = Rng::from_seed(seed);
        let mut known = Map::new();
        let mut store = open(&files, &options).unwrap();
        for _ in 0..5000 {
            let key = rng.below(1 << 20).to_be_bytes();
            let value = bytes(rng.next_u64(), 20 + rng.index(300));
            store.put(&key, &value).unwrap();
            known.insert(key.to_vec(), value);
        }
        for _ in 0..3 {
            known.retain(|key, _| {
                let stays = rng.chance(2, 3);
                assert!(stays || store.delete(key).unwrap(), "{context}");
                stays
            });
            store.clean(usize::MAX).unwrap();
            store.trim().unwrap();
        }
        if is_opened_again {
            store.close().unwrap();
            options.testing.seed = Some(seed + 10);
            store = open(&files, &options).unwrap();
        }
        let others = system.left.swap(0, Ordering::SeqCst);
        fill(&store, &mut known, &mut rng);
        known.retain(|key, _| {
            let stays = rng.chance(1, 2);
            let deleted =
                stays || store.delete(key).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(deleted, "{context}");
            stays
        });
        sound(&store);
        assert_eq!(held(&store), known, "{context}");
        store.clean(usize::MAX).unwrap();
        clock.advance(Duration::from_secs(1));
        assert!(fill(&store, &mut known, &mut rng) > 300, "{context}");
        system.give(others);
        clock.advance(Duration::from_secs(1));
        assert!(fill(&store, &mut known, &mut rng) > 2000, "{context}");
        assert_eq!(held(&store), known, "{context}");
        store.close().unwrap();
    }
}

/// What is written over is moved by the collector, whose segments are not given back.
#[test]
fn a_space_is_written_over_while_others_have_what_it_gave_back() {
    const PIECE: usize = 400;
    const PIECES: usize = 6000;
    for (seed, is_opened_again) in (1..5).flat_map(|seed| [(seed, false), (seed, true)]) {
        let context = format!("seed {seed}, opened again: {is_opened_again}");
        let system = Arc::new(FileSystem { left: AtomicUsize::new(16_000) });
        let files: Vec<_> = FIRST_SIZES[..3].iter().map(|size| file(&system, *size)).collect();
        let open = |seed: u64| {
            let mut options = SpaceOptions::new("");
            options.testing = wide(seed, Durability::None).0.flex.space.unwrap();
            options.testing.seed = Some(seed);
            let file = |index: usize| Arc::clone(&files[index]) as Arc<dyn BlockDevice>;
            Space::open_on(SpaceFiles { data: file(0), tree: file(1), log: file(2) }, &options)
        };
        let mut space = open(seed).unwrap();
        let mut rng = Rng::from_seed(seed);
        // The number of the piece that stands there: one after the other goes to the segments.
        let mut pieces: Vec<usize> = Vec::new();
        for number in 0..PIECES {
            let place = rng.index(pieces.len() + 1);
            space.insert_range((place * PIECE) as u64, &bytes(number as u64, PIECE)).unwrap();
            pieces.insert(place, number);
        }
        // The first segments go, and then some of each.
        for round in 0..2 {
            let mut place = 0;
            while let Some(number) = pieces.get(place).copied() {
                if number < PIECES / 3 || round > 0 && rng.chance(1, 3) {
                    space.collapse_range((place * PIECE) as u64, PIECE as u64).unwrap();
                    pieces.remove(place);
                } else {
                    place += 1;
                }
            }
            space.compact().unwrap();
        }
        if is_opened_again {
            space.close().unwrap();
            space = open(seed + 10).unwrap();
        }
        system.left.store(0, Ordering::SeqCst);
        for number in PIECES..PIECES + 2000 {
            let place = rng.index(pieces.len());
            let written = space.write((place * PIECE) as u64, &bytes(number as u64, PIECE));
            written.unwrap_or_else(|error| panic!("{context}, {}: {error}", number - PIECES));
            pieces[place] = number;
        }
        let all = pieces.iter().flat_map(|number| bytes(*number as u64, PIECE));
        assert!(content(&space).unwrap() == all.collect::<Vec<u8>>(), "{context}");
        assert_sound(&space);
        space.close().unwrap();
    }
}

/// Its log refuses room to the pair that would name it: nothing does.
#[test]
fn a_large_value_that_found_no_place_in_the_log_takes_no_room() {
    let refuses = Arc::new(AtomicBool::new(false));
    let file = |(index, size): (usize, &u64)| {
        let mut options = SimBlockOptions::new(*size, 1);
        options.size_bytes_max = 64 << 20;
        let refuses = Arc::clone(&refuses);
        Asking::new(Arc::new(SimBlock::new(options)), move |call| {
            let is_log = (3..=4).contains(&index);
            match is_log && call.act == Act::Reserve && refuses.load(Ordering::SeqCst) {
                true => Err(Error::new(ErrorKind::NoSpace, "allocate")),
                false => Ok(()),
            }
        })
    };
    let files: Vec<_> = FIRST_SIZES.iter().enumerate().map(file).collect();
    let store = open(&files, &wide(1, Durability::Sync).0).unwrap();
    let before = store.stats().live_bytes;
    refuses.store(true, Ordering::SeqCst);
    // Longer than what the log has room for.
    let (key, value) = (bytes(1, 8 << 10), bytes(2, 64 << 10));
    for _ in 0..10 {
        assert_eq!(store.put(&key, &value).unwrap_err().kind(), ErrorKind::NoSpace);
    }
    assert_eq!(store.stats().live_bytes, before);
    refuses.store(false, Ordering::SeqCst);
    store.put(&key, &value).unwrap();
    assert!(store.get(&key).unwrap().is_some_and(|found| *found == *value));
    assert!(store.stats().live_bytes >= before + value.len() as u64);
    sound(&store);
}

/// Logs grow as they are written: those that are shorter than tables of this size would have them are no reason to refuse an open, without
/// which nobody could delete anything.
#[test]
fn a_store_with_short_logs_on_a_full_file_system_is_opened_with_larger_tables() {
    let (system, files) = files(6400);
    let (mut options, clock) = wide(1, Durability::Sync);
    let store = open(&files, &options).unwrap();
    let (mut known, mut rng) = (Map::new(), Rng::from_seed(1));
    fill(&store, &mut known, &mut rng);
    store.forget();
    let others = system.left.swap(0, Ordering::SeqCst);
    options.flex.memtable_size_bytes = 8 << 20;
    options.testing.seed = Some(9);
    let store = open(&files, &options).unwrap();
    assert_eq!(held(&store), known);
    for key in known.keys() {
        assert!(store.delete(key).unwrap());
    }
    known.clear();
    store.clean(usize::MAX).unwrap();
    sound(&store);
    system.give(others);
    clock.advance(Duration::from_secs(1));
    assert!(fill(&store, &mut known, &mut rng) > 1000);
    assert_eq!(held(&store), known);
    store.close().unwrap();
}

/// Of two attempts to bring a table to the space the first one may have brought all of it, and the word that it is there, which some commit
/// makes durable while the second one goes on.
#[test]
fn a_second_attempt_takes_nothing_out_that_came_behind_a_range_delete() {
    let mut options = options(3);
    options.flex.memtable_size_bytes = 512 << 10;
    if let Some(space) = &mut options.flex.space {
        // The first attempt commits at its end, the second one before: it has the records of both by then.
        space.records_max = 450;
    }
    let (mut attempts, mut states) = (0, 0);
    // So many groups of the space's log go before, that one of the first attempts finds it full at its end: it needs room for nodes then.
    for groups in 0..7 {
        let context = format!("behind {groups} groups");
        let devices = SimDevices::new(6, |index| {
            let mut options = SimBlockOptions::new(SIZES[index].0, groups);
            options.size_bytes_max = 4 << 20;
            options
        });
        // For nodes and records there is no more room than is needed at once, and then none.
        let most = Arc::new(AtomicU64::new(64 << 10));
        let file = |index: usize| {
            let most = Arc::clone(&most);
            Asking::new(Arc::clone(&devices.devices()[index]), move |call| {
                let is_of_space = call.act == Act::Reserve && (1..=2).contains(&index);
                let length = call.range.end - call.range.start;
                match is_of_space && length >= most.load(Ordering::SeqCst) {
                    true => Err(Error::new(ErrorKind::NoSpace, "allocate")),
                    false => Ok(()),
                }
            })
        };
        let files: Vec<_> = (0..6).map(file).collect();
        let store = open(&files, &options).unwrap();
        for _ in 0..groups {
            store.put(b"before", b"").unwrap();
            sound(&store);
        }
        store.clear().unwrap();
        let mut known = Map::new();
        // More than go to the space at once.
        for first in (0..1300_u64).step_by(100) {
            let pairs: Vec<_> =
                (first..first + 100).map(|key| (key.to_be_bytes(), bytes(key, 20))).collect();
            let mut batch = Batch::new();
            for (key, value) in &pairs {
                batch.put(key, value);
            }
            store.write(&batch).unwrap();
            known.extend(pairs.into_iter().map(|(key, value)| (key.to_vec(), value)));
        }
        most.store(0, Ordering::SeqCst);
        let first = store.check();
        most.store(u64::MAX, Ordering::SeqCst);
        let Err(error) = first else { continue };
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{context}: {error}");
        attempts += 1;
        let before = devices.position();
        sound(&store);
        assert_eq!(held(&store), known, "{context}");
        let behind = devices.position();
        store.forget();
        let traces = devices.traces();
        let step = usize::try_from((behind - before) / 30).unwrap() + 1;
        for position in (before..=behind).step_by(step) {
            let cut = SimDevices::cut(&traces, position, position);
            let again = Devices::with(cut, position).open(&options);
            let again = again.unwrap_or_else(|error| panic!("{context}, {position}: {error}"));
            let found = held(&again);
            assert!(found == known, "{context}: {} are left at {position}", found.len());
            again.forget();
            states += 1;
        }
    }
    assert!(attempts > 1 && states > 20, "{attempts} attempts, {states} states");
}
