//! What a crash leaves damaged is told when the store is opened, and nothing is missing without a word.

use super::super::layout::Place;
use super::super::pack::Emptying;
use super::*;
use crate::batch::Batch;
use crate::value::Condition;
use esker_base::{ErrorKind, SiteKind};
use esker_format::flat::RECORD_HEADER_SIZE;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const DAMAGE: Site = Site::new("test.damage", SiteKind::Write);
const CHUNK_SIZE: u64 = 64 << 10;

fn opened(memory: &Arc<dyn Pmem>, engine: EngineKind) -> Result<Arc<Flat>> {
    opened_with(2, memory, engine)
}

/// With a log for each of so many cores.
fn opened_with(cores: usize, memory: &Arc<dyn Pmem>, engine: EngineKind) -> Result<Arc<Flat>> {
    let mut options = options(engine);
    options.testing.cores = Some(cores);
    options.testing.segment_size_bytes = Some(CHUNK_SIZE);
    options.testing.background = false;
    Flat::open(Arc::clone(memory), &options)
}

fn blank() -> Arc<dyn Pmem> {
    Arc::new(SimPm::new(SimPmOptions::new(16 * CHUNK_SIZE, 1)))
}

fn flip(memory: &dyn Pmem, offset: u64) {
    let mut byte = [0];
    memory.read(offset, &mut byte).unwrap();
    memory.store(DAMAGE, offset, &[byte[0] ^ 8]).unwrap();
}

/// Leaves the store as a crash does.
fn crash(store: Arc<Flat>) {
    store.state.store(super::super::CLOSED, Ordering::Release);
    drop(store);
}

/// Where the record of a key stands.
fn record(store: &Flat, key: &[u8]) -> u64 {
    let word = store.find(store.hasher.hash(key), key).unwrap().unwrap();
    let line = store.record_of(word, store.chunks.now()).unwrap().unwrap().unwrap();
    line * esker_format::flat::LINE as u64
}

#[test]
fn a_key_that_is_damaged_in_its_record_is_not_taken_for_one_that_was_overtaken() {
    for (engine, checkpoint) in KINDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let memory = blank();
        let store = opened(&memory, engine).unwrap();
        let (key, other) = ([b'k'; 300], [b'o'; 300]);
        put(&store, &other);
        put(&store, &key);
        if checkpoint {
            assert!(store.write_checkpoint().unwrap());
        }
        flip(&*memory, record(&store, &key) + RECORD_HEADER_SIZE as u64 + 5);
        crash(store);
        // An image has the keys of an ordered index.
        if !checkpoint || engine == EngineKind::FlatCceh {
            let error = opened(&memory, engine).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{engine}: {error}");
            assert!(error.range().is_some(), "{error}");
        } else {
            let store = opened(&memory, engine).unwrap();
            let read = store.get_value(&key, &mut |_| Ok(()));
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupted);
            crash(store);
        }
    }
}

#[test]
fn a_damaged_key_that_was_overtaken_is_missed_by_nobody() {
    for (engine, deletes, checkpoint) in KINDS.into_iter().flat_map(|engine| {
        [(false, false), (true, false), (false, true), (true, true)].map(|it| (engine, it.0, it.1))
    }) {
        let memory = blank();
        let store = opened(&memory, engine).unwrap();
        let key = [b'k'; 300];
        put(&store, &key);
        let damaged = record(&store, &key);
        if checkpoint {
            assert!(store.write_checkpoint().unwrap());
        }
        match deletes {
            true => drop(store.delete_key(&key, Condition::Present).unwrap()),
            false => put(&store, &key),
        }
        flip(&*memory, damaged + RECORD_HEADER_SIZE as u64 + 5);
        crash(store);
        let store = opened(&memory, engine).unwrap();
        let found = store.get_value(&key, &mut |_| Ok(())).unwrap();
        assert_eq!(found.is_none(), deletes, "{engine}, {checkpoint}");
        crash(store);
    }
}

#[test]
fn a_long_batch_that_is_damaged_does_not_end_the_log_of_those_behind_it() {
    for engine in KINDS {
        let memory = blank();
        let store = opened(&memory, engine).unwrap();
        let value = [5; 100];
        for round in 0..3_u8 {
            let mut batch = Batch::new();
            for number in 0..150_u8 {
                batch.put(&[round, number], &value);
            }
            store.write_atomic(&batch).unwrap();
        }
        let word = store.find(store.hasher.hash(&[0, 9]), &[0, 9]).unwrap().unwrap();
        flip(&*memory, Place::of(word).offset);
        crash(store);
        let error = opened(&memory, engine).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{engine}: {error}");
    }
}

#[test]
fn a_damaged_batch_at_the_end_of_an_earlier_log_does_not_pass_for_a_torn_one() {
    for (engine, checkpoint) in KINDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let memory = blank();
        let store = opened(&memory, engine).unwrap();
        put(&store, b"first");
        put(&store, b"last");
        if checkpoint {
            assert!(store.write_checkpoint().unwrap());
            put(&store, b"last");
        }
        crash(store);
        let store = opened(&memory, engine).unwrap();
        let last = entry(&store, b"last");
        crash(store);
        flip(&*memory, last);
        let error = opened(&memory, engine).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{engine}, {checkpoint}: {error}");
    }
}

/// Where the entry of a key stands.
fn entry(store: &Flat, key: &[u8]) -> u64 {
    let word = store.find(store.hasher.hash(key), key).unwrap().unwrap();
    Place::of(word).offset
}

#[test]
fn a_damaged_batch_at_the_end_of_a_full_chunk_does_not_pass_for_a_torn_one() {
    for engine in KINDS {
        let memory = blank();
        let store = opened_with(1, &memory, engine).unwrap();
        let keys: Vec<[u8; 4]> = (0..3000_u32).map(u32::to_be_bytes).collect();
        for key in &keys {
            store.put_value(key, b"v", Attributes::default(), Condition::Always).unwrap();
        }
        let chunk = |key: &[u8; 4]| entry(&store, key) / CHUNK_SIZE;
        let lasts: Vec<u64> = keys
            .windows(2)
            .filter(|pair| chunk(&pair[0]) != chunk(&pair[1]))
            .map(|pair| entry(&store, &pair[0]))
            .collect();
        assert!(lasts.len() > 1, "{lasts:?}");
        crash(store);
        for last in lasts {
            flip(&*memory, last);
            let error = opened_with(1, &memory, engine).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{engine}: {error}");
            flip(&*memory, last);
        }
        crash(opened_with(1, &memory, engine).unwrap());
    }
}

#[test]
fn the_end_of_a_log_that_nobody_goes_on_with_is_marked() {
    for engine in KINDS {
        let memory = blank();
        let with = |cores| opened_with(cores, &memory, engine);
        let store = with(2).unwrap();
        let tails = |store: &Flat| {
            let open = |log: &super::super::CoreLog| log.0.lock().open;
            store.logs.iter().map(open).collect::<Vec<_>>()
        };
        // Whichever log a thread has: each has something.
        let mut number = 0_u32;
        while tails(&store).contains(&None) {
            std::thread::scope(|scope| {
                scope.spawn(|| put(&store, &number.to_be_bytes()));
            });
            number += 1;
        }
        let left = tails(&store)[1].unwrap();
        store.close_store().unwrap();
        drop(store);
        let store = with(1).unwrap();
        assert!(tails(&store)[0].is_some_and(|(chunk, _)| chunk != left.0));
        crash(store);
        let end = u64::from(left.0) * CHUNK_SIZE + left.1;
        flip(&*memory, end - 64);
        let error = with(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{engine}: {error}");
    }
}

#[test]
fn a_chunk_with_a_key_that_cannot_be_told_is_left_until_that_is_written_anew() {
    for engine in KINDS {
        let memory = blank();
        let store = opened(&memory, engine).unwrap();
        let key = [b'k'; 300];
        put(&store, &key);
        let word = store.find(store.hasher.hash(&key), &key).unwrap().unwrap();
        let chunk = store.layout.chunk_of(Place::of(word).offset);
        flip(&*memory, record(&store, &key) + RECORD_HEADER_SIZE as u64 + 5);
        (0..5000_u32).for_each(|number| put(&store, &(number % 100).to_be_bytes()));
        let clean = || {
            store.clean_now(50).unwrap();
            let usage = store.chunks.get(chunk).unwrap().usage();
            (store.cleaner_of_log(chunk).damaged.contains(&chunk), usage)
        };
        assert_eq!(clean(), (true, super::super::chunks::Use::Log), "{engine}");
        if engine == EngineKind::FlatMasstree {
            put(&store, &key);
            assert!(!clean().0, "{engine}: it came free");
        }
        assert!(store.failure.lock().is_none());
        crash(store);
    }
}

/// A key under whose hash something was lost is deleted, and the cleaner drops the tombstone while the next put is under way.
#[test]
fn a_put_finds_no_tombstone_any_more_under_a_hash_of_which_something_was_lost() {
    let memory = blank();
    let store = opened(&memory, EngineKind::FlatCceh).unwrap();
    let key = b"a key of more bytes than a word";
    let hash = store.hasher.hash(key);
    put(&store, key);
    let word = store.find(hash, key).unwrap().unwrap();
    flip(&*memory, Place::of(word).offset + 9);
    assert_eq!(store.find(hash, key).unwrap_err().kind(), ErrorKind::Corrupted);
    put(&store, key);
    store.delete_key(key, Condition::Always).unwrap();
    let tombstone = store.find(hash, key).unwrap().unwrap();
    let prepared = store.prepare_put(0, key, b"new", Attributes::default()).unwrap();
    let lock = store.keys.lock(hash);
    let placed = store.commit(0, lock.last(), &prepared.entry, || ()).unwrap().0;
    lock.follow(placed.version);
    assert!(store.index.remove(hash, key, tombstone));
    store.let_go(tombstone, None);
    store.publish(hash, key, Some(tombstone), placed.word).unwrap();
    drop(lock);
    assert!(store.failure.lock().is_none());
    assert_eq!(&*store.get_value(key, &mut |_| Ok(())).unwrap().unwrap(), b"new");
    crash(store);
}

#[test]
fn a_length_that_is_damaged_takes_no_more_memory_than_the_place_of_its_record_has() {
    // In a block, and in chunks of its own.
    for (engine, size) in KINDS.into_iter().flat_map(|engine| [(engine, 300), (engine, 70 << 10)]) {
        let memory = blank();
        let store = opened(&memory, engine).unwrap();
        let (key, value) = (b"key", vec![7; size]);
        let attributes = Attributes::default();
        store.put_value(key, &value, attributes, Condition::Always).unwrap();
        let offset = record(&store, key);
        let mut lengths = [0; RECORD_HEADER_SIZE];
        memory.read(offset, &mut lengths).unwrap();
        // 512 KiB more: less than the store has.
        memory.store(DAMAGE, offset + 10, &[lengths[10] ^ 8]).unwrap();
        let (mut admitted, most) = (0, if size == 300 { 1 << 10 } else { 2 * CHUNK_SIZE });
        let read = store.get_value(key, &mut |bytes| {
            admitted = bytes.max(admitted);
            Ok(())
        });
        assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupted, "{engine}, {size}");
        admitted = admitted.max(store.value_size(key));
        assert!(admitted <= most, "{engine}, {size}: {admitted} bytes");
        let line = offset / esker_format::flat::LINE as u64;
        assert_eq!(store.move_record(&Emptying::default(), key, line).unwrap(), None);
        let kept = store.pool.idle_bytes() as u64;
        assert!(kept <= most, "{engine}, {size}: {kept} bytes for a move");
        crash(store);
    }
}

#[test]
fn an_overtaken_entry_whose_key_cannot_be_read_keeps_its_chunk_from_nothing() {
    for engine in KINDS {
        let memory = Arc::new(SimPm::new(SimPmOptions::new(16 * CHUNK_SIZE, 1)));
        let store = opened_with(1, &(Arc::clone(&memory) as Arc<dyn Pmem>), engine).unwrap();
        let (key, live) = ([b'k'; 300], [b'l'; 300]);
        put(&store, b"before");
        put(&store, &key);
        let (lost, first) = (record(&store, &key), open_chunk(&store, 0));
        put(&store, b"behind");
        put(&store, &live);
        put(&store, &key);
        // Not with records: they would take the room of the one that nothing points at.
        while open_chunk(&store, 0) == first {
            put(&store, b"fill");
        }
        memory.poison(lost, esker_format::flat::LINE as u64);
        let clean = || {
            let mut cleaner = store.cleaner_of_log(first);
            store.clean_chunk(&mut cleaner, first).unwrap();
            cleaner.damaged.contains(&first)
        };
        assert!(!clean(), "{engine}");
        assert!(!store.chunks.get(first).unwrap().is_log(), "{engine}: it is free");
        for key in [&b"before"[..], b"behind", &key, &live] {
            assert!(store.get_value(key, &mut |_| Ok(())).unwrap().is_some(), "{engine}");
        }
        // One that counts stays, and what stands behind it moves all the same.
        let lost = record(&store, &live);
        let second = store.layout.chunk_of(
            Place::of(store.find(store.hasher.hash(&live), &live).unwrap().unwrap()).offset,
        );
        put(&store, b"more");
        memory.poison(lost, esker_format::flat::LINE as u64);
        let mut cleaner = store.cleaner_of_log(second);
        if let Some((open, tail)) = cleaner.log.open.take() {
            store.seal(open, tail).unwrap();
        }
        store.clean_chunk(&mut cleaner, second).unwrap();
        assert!(cleaner.damaged.contains(&second), "{engine}");
        let chunk = store.chunks.get(second).unwrap();
        let (entries, dead) = chunk.counts();
        assert_eq!((chunk.is_log(), entries - dead), (true, 1), "{engine}: it alone stays");
        drop(cleaner);
        crash(store);
    }
}
