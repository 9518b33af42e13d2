//! Room that nobody uses comes back, and checkpoints come no more often than they are worth.

use super::super::chunks::{Use, WALKS};
use super::super::index::DESCENTS;
use super::super::scan::Item;
use super::super::{CORES_MAX, logs_of};
use super::*;
use crate::options::Progress;
use crate::store::Direction;
use crate::value::Condition;
use esker_base::rng::Rng;
use esker_base::{ErrorKind, SiteKind};
use esker_media::sim::SimArchive;
use std::ops::{Bound, ControlFlow};

const DAMAGE: Site = Site::new("test.damage", SiteKind::Write);
const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];

fn memory(chunks: u64, chunk_size: u64) -> Arc<dyn Pmem> {
    let mut options = SimPmOptions::new(chunks * chunk_size, 1);
    options.record = false;
    Arc::new(SimPm::new(options))
}

fn open(memory: &Arc<dyn Pmem>, engine: EngineKind, chunk_size: u64) -> Arc<Flat> {
    let mut options = options(engine);
    options.testing.segment_size_bytes = Some(chunk_size);
    options.testing.background = false;
    Flat::open(Arc::clone(memory), &options).unwrap()
}

fn put_value(store: &Flat, key: &[u8], size: usize) -> Result<()> {
    let value = vec![7; size];
    store.put_value(key, &value, Attributes::default(), Condition::Always).map(drop)
}

#[test]
fn a_close_amid_a_backup_leaves_no_room_in_use_that_a_crash_would_free() {
    for engine in KINDS {
        let memory = memory(80, CHUNK_SIZE);
        let store = open(&memory, engine, CHUNK_SIZE);
        (0..30_u8).for_each(|number| put_value(&store, &[number], 900).unwrap());
        let beside = Arc::clone(&store);
        let progress = Progress::new(move |done, _| {
            if done == 0 {
                (0..30_u8).for_each(|number| put_value(&beside, &[number], 9).unwrap());
                beside.close_store().unwrap();
            }
        });
        let error = store.backup_store(&SimArchive::new(), &progress).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        drop((store, progress));
        let after_close = open(&memory, engine, CHUNK_SIZE);
        after_close.state.store(super::super::CLOSED, Ordering::Release);
        let after_crash = open(&memory, engine, CHUNK_SIZE);
        let free = [&after_close, &after_crash].map(|store| store.chunks.free_count());
        assert_eq!(free[0], free[1], "{engine}");
        assert_eq!(after_crash.check_store().unwrap().problems, Vec::<String>::new());
    }
}

/// How many values of 100 bytes find room.
fn fill(store: &Flat) -> u32 {
    let is_full = |number: &u32| match put_value(store, &number.to_be_bytes(), 100) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            true
        }
    };
    (0..1 << 20).find(is_full).unwrap()
}

#[test]
fn chunks_of_every_size_that_are_empty_are_there_for_other_values() {
    const CHUNK_SIZE: u64 = 8192;
    for engine in KINDS {
        let fresh = open(&memory(80, CHUNK_SIZE), engine, CHUNK_SIZE);
        let store = open(&memory(80, CHUNK_SIZE), engine, CHUNK_SIZE);
        let mut kept = 0;
        for size in (300..4000).step_by(60) {
            for key in [[1, 0], [2, 0], [3, 0], [4, 0], [5, 0]] {
                if put_value(&store, &key, size).is_ok() {
                    store.delete_key(&key, Condition::Present).unwrap();
                }
            }
            kept = kept.max(fresh.chunks.free_count() - store.chunks.free_count());
        }
        assert!(kept > 30, "{engine}: {kept} chunks are kept while there is room");
        let (all, found) = (fill(&fresh), fill(&store));
        assert!(found * 50 >= all * 49, "{engine}: {found} of {all}");
    }
}

#[test]
fn a_chunk_that_could_not_be_emptied_has_room_again_and_one_that_was_taken_anew_is_left_alone() {
    const CHUNK_SIZE: u64 = 8192;
    const OF_A_CHUNK: usize = 8;
    for engine in KINDS {
        let store = open(&memory(40, CHUNK_SIZE), engine, CHUNK_SIZE);
        let place = |_| store.place_record(0, For::Puts, b"key", &[7; 900]).unwrap();
        // The first one is full, and in no list.
        let mut lines: Vec<u64> = (0..2 * OF_A_CHUNK).map(place).collect();
        let number = store.chunk_of_line(lines[0]);
        let is_there = |line: &u64| store.chunk_of_line(*line) == number;
        lines.retain(is_there);
        let chunk = store.chunks.get(number).unwrap();
        let generation = chunk.generation();
        let is_listed = || chunk.listed.load(Ordering::SeqCst);
        assert!(!is_listed());
        // While it is emptied nobody lists it who frees a block, and nobody takes one there.
        assert!(store.unlist(number, generation));
        store.free_record(lines[0]);
        assert!(!(0..3 * OF_A_CHUNK).map(place).any(|line| is_there(&line)), "{engine}");
        store.relist(number, chunk, generation, true);
        let found = (0..2 * OF_A_CHUNK).map(place).find(is_there);
        assert_eq!(found, Some(lines[0]), "{engine}: its free block is of use again");
        // Now it comes free meanwhile, and is taken anew and full when that is over.
        assert!(store.unlist(number, generation));
        lines.iter().for_each(|line| store.free_record(*line));
        assert_ne!(chunk.usage(), Use::Blocks, "{engine}");
        let more = |_| store.place_record(0, For::Cleaner, b"key", &[7; 900]).ok();
        let anew = (0..).map_while(more).filter(is_there).take(lines.len()).count();
        assert_eq!(anew, lines.len(), "{engine}: nobody took it");
        (0..OF_A_CHUNK).map_while(more).for_each(drop);
        assert!(chunk.generation() != generation && !is_listed(), "{engine}");
        store.relist(number, chunk, generation, true);
        assert!(!is_listed(), "{engine}: another one is listed");
    }
}

#[test]
fn a_checkpoint_is_worth_its_while_once_so_much_was_written_on_all_cores() {
    for engine in KINDS {
        let memory = memory(100, 64 << 10);
        let store = open(&memory, engine, 64 << 10);
        (0..300_000_u32).for_each(|number| put(&store, &(number % 2000).to_be_bytes()));
        assert!(store.is_checkpoint_worth(), "{engine}: there is none");
        store.clean_ahead(0..store.cleaners.count(), store.checkpoint_room(), || false).unwrap();
        assert!(store.write_checkpoint().unwrap());
        put(&store, b"one");
        assert!(!store.is_checkpoint_worth(), "{engine}: one put later");
        store.state.store(super::super::CLOSED, Ordering::Release);
        let store = open(&memory, engine, 64 << 10);
        assert!(!store.is_checkpoint_worth(), "{engine}: nor after a crash");
        (0..250_000_u32).for_each(|number| put(&store, &(number % 2000).to_be_bytes()));
        assert!(store.is_checkpoint_worth(), "{engine}: much later");
    }
}

/// A chunk of a log may have any number of entries of one key, each with its whole key.
#[test]
fn recovery_keeps_to_its_memory_however_long_keys_are() {
    const CHUNK: u64 = 64 << 10;
    const MOST: u64 = 100_000;
    let memory = memory(16, CHUNK);
    let store = open(&memory, EngineKind::FlatMasstree, CHUNK);
    let keys = [[b'a'; 3000], [b'b'; 3000]];
    for number in 0..400_usize {
        put_value(&store, &keys[number % 2], 1 + number % 9).unwrap();
    }
    store.state.store(super::super::CLOSED, Ordering::Release);
    drop(store);
    let mut options = options(EngineKind::FlatMasstree);
    options.testing.segment_size_bytes = Some(CHUNK);
    options.testing.collect_bytes = Some(MOST);
    super::super::sorted::COLLECTED_MOST.set(0);
    let store = Flat::open(memory, &options).unwrap();
    let most = super::super::sorted::COLLECTED_MOST.get() as u64;
    assert!((MOST / 2..=MOST + 4000).contains(&most), "{most} bytes");
    for (key, size) in keys.iter().zip([1 + 398 % 9, 1 + 399 % 9]) {
        assert_eq!(store.get_value(key, &mut |_| Ok(())).unwrap().unwrap().len(), size);
    }
    assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new());
}

/// Each log has a chunk that nobody else may use: on a machine of many cores a small store would be full of these.
#[test]
fn a_small_store_has_no_log_for_each_of_many_cores() {
    const CHUNK_SIZE: u64 = 64 << 10;
    assert_eq!((logs_of(4, 1 << 20), logs_of(200, 1 << 20)), (4, CORES_MAX));
    assert_eq!((logs_of(16, 12), logs_of(16, 0)), (1, 1));
    for engine in KINDS {
        let memory = memory(16, CHUNK_SIZE);
        let mut options = options(engine);
        options.testing.segment_size_bytes = Some(CHUNK_SIZE);
        options.testing.background = false;
        options.testing.cores = Some(logs_of(16, 16));
        let store = Flat::open(memory, &options).unwrap();
        for key in 0..200_u16 {
            put_value(&store, &key.to_le_bytes(), 9).unwrap();
        }
    }
}

/// Descents of the index in a scan for the only key that there is.
fn descents_to(only: &[u8], store: &Flat, direction: Direction) -> u32 {
    let (before, mut met) = (DESCENTS.get(), Vec::new());
    let all = (Bound::Unbounded, Bound::Unbounded);
    let one = |key: &[u8], _: Item<'_>| {
        met.push(key.to_vec());
        ControlFlow::Break(())
    };
    store.scan_each(all, direction, 1, one).unwrap();
    assert_eq!(met, [only]);
    DESCENTS.get() - before
}

/// Behind the head of a queue there may be any number of deleted keys: no scan meets them, but the first one behind an open, many at
/// a time.
#[test]
fn scans_do_not_go_over_deleted_keys() {
    const KEYS: u32 = 5000;
    const BOTH: [Direction; 2] = [Direction::Forward, Direction::Reverse];
    let only = (KEYS / 2).to_be_bytes();
    for closes in [false, true] {
        let memory = memory(64, 64 << 10);
        let store = open(&memory, EngineKind::FlatMasstree, 64 << 10);
        for key in 0..KEYS {
            put_value(&store, &key.to_be_bytes(), 9).unwrap();
        }
        for key in (0..KEYS).filter(|key| key.to_be_bytes() != only) {
            store.delete_key(&key.to_be_bytes(), Condition::Present).unwrap();
        }
        assert_eq!(BOTH.map(|direction| descents_to(&only, &store, direction)), [1, 1]);
        assert_eq!(store.index.len(), u64::from(KEYS), "older values of theirs are on media");
        match closes {
            true => store.close_store().unwrap(),
            false => store.state.store(super::super::CLOSED, Ordering::Release),
        }
        drop(store);
        let store = open(&memory, EngineKind::FlatMasstree, 64 << 10);
        {
            // Who cleans, or writes a key, is not waited for.
            let _still = store.hold_cleaning();
            for direction in BOTH.into_iter().chain(BOTH) {
                assert!((20..40).contains(&descents_to(&only, &store, direction)));
            }
        }
        for direction in BOTH {
            assert!((20..40).contains(&descents_to(&only, &store, direction)));
            assert_eq!(descents_to(&only, &store, direction), 1, "closed: {closes}");
        }
        assert_eq!(store.index.len(), u64::from(KEYS));
        assert_eq!(store.tombstones.load(Ordering::Relaxed), u64::from(KEYS) - 1);
        // What is written again, deleted again and cleaned is in one of the trees still.
        for round in 0..3 {
            for key in (0..KEYS).step_by(3 + round) {
                put_value(&store, &key.to_be_bytes(), 9).unwrap();
            }
            for key in (0..KEYS).step_by(3 + round).filter(|key| key.to_be_bytes() != only) {
                store.delete_key(&key.to_be_bytes(), Condition::Present).unwrap();
            }
            while store.clean_now(8).unwrap() > 0 {}
            assert_eq!(descents_to(&only, &store, Direction::Forward), 1);
            assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new());
        }
        let tombstones = store.tombstones.load(Ordering::Relaxed);
        assert_eq!(store.index.len(), tombstones + 1);
        assert!(tombstones < u64::from(KEYS) / 2, "{tombstones}: most went with what they deleted");
    }
}

#[test]
fn a_check_sees_damage_to_copies_that_only_an_open_reads() {
    for engine in KINDS {
        let memory = memory(64, CHUNK_SIZE);
        let store = open(&memory, engine, CHUNK_SIZE);
        put_value(&store, b"key", 9).unwrap();
        let log = store.chunks.iter().find(|(_, chunk)| chunk.is_log()).unwrap().0;
        let header = store.layout.start_of(log);
        let size = esker_format::flat::CHUNK_HEADER_SIZE as u64;
        let places = [0, esker_format::flat::SUPERBLOCK_OFFSETS[1], header, header + size];
        for place in places.map(|place| place + 20) {
            let flip = || {
                let mut byte = [0];
                memory.read(place, &mut byte).unwrap();
                memory.store(DAMAGE, place, &[byte[0] ^ 8]).unwrap();
            };
            flip();
            assert_eq!(store.check_store().unwrap().problems.len(), 1, "{engine} {place}");
            flip();
            assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new());
        }
    }
}

/// A look for room goes through all chunks, several times, and a full store is asked for some again and again.
#[test]
fn a_full_store_refuses_at_once_until_something_changed() {
    for engine in KINDS {
        let clock = Arc::new(ManualClock::new(1));
        let mut options = options(engine);
        options.clock = Arc::clone(&clock) as Arc<dyn esker_base::clock::Clock>;
        options.testing.background = false;
        let store = Flat::open(memory(60, CHUNK_SIZE), &options).unwrap();
        let soon = Attributes { expires_at: Some(5), ..Attributes::default() };
        // Until the logs of all cores are full; how many were stored before the first one was.
        let fill = |first: u32, attributes| {
            let put = |number: &u32| {
                let key = number.to_be_bytes();
                store.put_value(&key, &[7; 100], attributes, Condition::Always).is_err()
            };
            let refused: Vec<u32> = (first..1 << 20).filter(put).take(64).collect();
            refused[0] - first
        };
        let count = fill(0, soon);
        let refused = |size: usize| {
            let error = put_value(&store, b"one more", size).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{engine}");
        };
        let before = WALKS.get();
        for _ in 0..100 {
            refused(100);
            refused(900);
            refused(3000);
        }
        assert_eq!(WALKS.get(), before, "{engine}: somebody looked again");
        // What is deleted makes room, as far as it can.
        for number in 0..count / 2 {
            store.delete_key(&number.to_be_bytes(), Condition::Present).unwrap();
        }
        put_value(&store, b"one more", 100).unwrap();
        fill(1 << 16, Attributes::default());
        refused(100);
        // Nothing happens but that time passes.
        clock.advance(Duration::from_secs(10));
        put_value(&store, b"one more", 100).unwrap();
    }
}

/// In a large store a walk through all chunks takes longer than to clean one of them.
#[test]
fn a_walk_through_all_chunks_serves_for_many_that_are_cleaned() {
    const CHUNKS: u64 = 400;
    for engine in KINDS {
        // Walks and chunks that came free while keys are written anew, and how many of these a store that knows little took.
        let run = |known_share: u32| {
            let mut options = options(engine);
            options.testing.background = false;
            options.testing.known_share = known_share;
            let store = Flat::open(memory(CHUNKS, CHUNK_SIZE), &options).unwrap();
            let put = |number: u32| put_value(&store, &number.to_be_bytes(), 8).unwrap();
            let mut count = 0;
            while store.chunks.free_count() > usize::try_from(CHUNKS / 4).unwrap() {
                put(count);
                count += 1;
            }
            let mut rng = Rng::from_seed(6);
            // What is deleted leaves tombstones, which go in time.
            for _ in 0..2 * count {
                let number = u32::try_from(rng.below(count.into())).unwrap();
                if rng.chance(1, 10) {
                    store.delete_key(&number.to_be_bytes(), Condition::Always).unwrap();
                }
                put(number);
            }
            let (walks, released) = (WALKS.get(), store.chunks.released());
            for _ in 0..2 * count {
                put(u32::try_from(rng.below(count.into())).unwrap());
            }
            let walks = u64::from(WALKS.get() - walks);
            let released = store.chunks.released() - released;
            let cleaned = WALKS.get();
            assert!(store.clean_now(10).unwrap() > 5);
            let of_ten = WALKS.get() - cleaned;
            assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new());
            (walks, released, of_ten)
        };
        let (walks, released, of_ten) = run(8);
        assert!(released > 200, "{engine}: {released} chunks came free");
        assert!(4 * walks < released, "{engine}: {walks} walks for {released} chunks");
        assert!(of_ten < 8, "{engine}: {of_ten} walks for ten chunks");
        // Victims are hardly worse.
        let (more_walks, fewer, _) = run(u32::MAX);
        assert!(more_walks > 2 * fewer, "{engine}: {more_walks} walks for {fewer}");
        assert!(released < fewer + fewer / 8, "{engine}: {released} chunks for {fewer}");
    }
}
