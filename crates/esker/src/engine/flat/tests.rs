//! What only the inside shows: writers that stand still at a bad moment.

mod births;
mod bounds;
mod checks;
mod clears;
mod killed;
mod losses;
mod mended;
mod purge;
mod restored;
mod room;
mod twins;

use super::chunks::For;
use super::commit::Placed;
use super::{Flat, sites};
use crate::options::{EngineKind, Options};
use crate::value::Attributes;
use esker_base::clock::ManualClock;
use esker_base::{ErrorKind, Result, Site};
use esker_format::NUMBER_END;
use esker_format::flat::{ChunkHeader, ChunkKind};
use esker_media::Pmem;
use esker_media::sim::{AskingMemory, MemoryCall, SimPm, SimPmOptions};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;

const CHUNK_SIZE: u64 = 2048;

fn options(engine: EngineKind) -> Options {
    let mut options = Options::new("");
    options.engine = Some(engine);
    options.clock = Arc::new(ManualClock::new(1));
    options.testing.seed = Some(7);
    options.testing.segment_size_bytes = Some(CHUNK_SIZE);
    options.testing.cores = Some(2);
    options
}

fn put(store: &Flat, key: &[u8]) {
    store
        .put_value(key, &[3; 200], Attributes::default(), crate::value::Condition::Always)
        .unwrap();
}

/// Appends a tombstone of a key, and leaves the index as it is.
fn append_tombstone(store: &Flat, key: &[u8]) -> Placed {
    let prepared = store.prepare_delete(0, key).unwrap();
    let lock = store.keys.lock(store.hasher.hash(key));
    store.commit(0, lock.last(), &prepared.entry, || ()).unwrap().0
}

#[test]
fn a_tombstone_whose_writer_stands_still_outlives_copies_of_what_it_deletes() {
    for engine in [EngineKind::FlatCceh, EngineKind::FlatMasstree] {
        let memory: Arc<dyn Pmem> = Arc::new(SimPm::new(SimPmOptions::new(40 * CHUNK_SIZE, 1)));
        let store = Flat::open(Arc::clone(&memory), &options(engine)).unwrap();
        let (key, hash) = (b"the key", store.hasher.hash(b"the key"));
        put(&store, key);
        let found = store.find(hash, key).unwrap();
        let deleted = append_tombstone(&store, key);
        // Its chunks fill up, and everything that has anything to drop is cleaned, before the index follows.
        (0..60_u8).for_each(|number| put(&store, &[number % 5, 1]));
        store.clean_now(8).unwrap();
        assert_ne!(store.find(hash, key).unwrap(), found, "the entry was moved");
        store.publish(hash, key, found, deleted.word).unwrap();
        // The tombstone may go, but not before the copy.
        (0..60_u8).for_each(|number| put(&store, &[number % 5, 1]));
        store.clean_now(8).unwrap();
        let reopened = Flat::open(memory, &options(engine)).unwrap();
        assert!(reopened.get_value(key, &mut |_| Ok(())).unwrap().is_none(), "{engine}");
        store.state.store(super::CLOSED, Ordering::Release);
        drop(reopened);
    }
}

#[test]
fn groups_are_as_large_as_the_options_say() {
    let memory: Arc<dyn Pmem> = Arc::new(SimPm::new(SimPmOptions::new(40 * CHUNK_SIZE, 1)));
    let mut options = options(EngineKind::FlatCceh);
    let store = Flat::open(memory, &options).unwrap();
    let size_of = |options: &Options| super::commit::batching(options, 2, &store.layout).group_size;
    assert_eq!(size_of(&options), 0, "those of a socket");
    options.batching_group = 3;
    assert_eq!(size_of(&options), 3);
}

/// Who has made something durable at a site, such as copies of a cleaner, waits for others at a barrier, and again to go on: once, when
/// this is armed.
#[derive(Debug)]
struct Stop {
    armed: AtomicBool,
    barrier: Barrier,
}

/// A store of two groups, its memory, and the stop behind the fences at `site`.
fn two_groups(site: Site, chunk_size: u64) -> (Arc<Flat>, Arc<SimPm>, Arc<Stop>) {
    let inner = Arc::new(SimPm::new(SimPmOptions::new(40 * chunk_size, 1)));
    let stop = Arc::new(Stop { armed: AtomicBool::new(false), barrier: Barrier::new(2) });
    let shared = Arc::clone(&stop);
    let memory = AskingMemory::new(Arc::clone(&inner), move |call| {
        if *call == MemoryCall::Fenced(site) && shared.armed.swap(false, Ordering::SeqCst) {
            shared.barrier.wait();
            shared.barrier.wait();
        }
        Ok(())
    });
    let mut options = options(EngineKind::FlatCceh);
    options.testing.segment_size_bytes = Some(chunk_size);
    options.batching_group = 1;
    options.testing.background = false;
    let store = Flat::open(memory, &options).unwrap();
    assert_eq!(store.cleaners.count(), 2);
    (store, inner, stop)
}

/// Puts a key into the log of a core, whatever its hash says.
fn put_on(store: &Flat, core: usize, key: &[u8]) {
    let hash = store.hasher.hash(key);
    let prepared = store.prepare_put(core, key, &[3; 200], Attributes::default()).unwrap();
    let lock = store.keys.lock(hash);
    let found = store.find(hash, key).unwrap();
    let placed = store.commit(core, lock.last(), &prepared.entry, || ()).unwrap().0;
    lock.follow(placed.version);
    store.publish(hash, key, found, placed.word).unwrap();
}

fn open_chunk(store: &Flat, core: usize) -> u32 {
    store.logs[core].0.lock().open.unwrap().0
}

/// Puts keys into the log of a core until its chunk is another one.
fn fill(store: &Flat, core: usize) {
    let first = open_chunk(store, core);
    for number in 0..u8::MAX {
        put_on(store, core, &[b'f', u8::try_from(core).unwrap(), number]);
        if open_chunk(store, core) != first {
            return;
        }
    }
    panic!("the chunk is never full");
}

#[test]
fn a_group_is_cleaned_while_the_cleaner_of_another_one_is_at_work() {
    let (store, _, stop) = two_groups(sites::MOVE_FENCE, CHUNK_SIZE);
    for core in 0..2 {
        put_on(&store, core, b"key");
        fill(&store, core);
        put_on(&store, core, b"key");
    }
    stop.armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| store.clean_now(1).unwrap());
        stop.barrier.wait();
        let free = store.chunks.free_count();
        assert_eq!(store.clean_now(1).unwrap(), 1, "that of the other group");
        assert_eq!(store.chunks.free_count(), free, "one came free, one is for the copies");
        stop.barrier.wait();
        assert_eq!(first.join().unwrap(), 1);
    });
    assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new());
    let owners = [0, 1].map(|group| {
        let (chunk, _) = store.cleaners.of_group(group).lock().log.open.unwrap();
        store.group_of_log(chunk)
    });
    assert_eq!(owners, [0, 1], "copies stay with the group");
}

#[test]
fn a_tombstone_stays_while_another_cleaner_brings_a_copy_of_what_it_deletes_past_the_look() {
    let (store, _, stop) = two_groups(sites::MOVE_FENCE, CHUNK_SIZE);
    let (key, hash) = (b"the key", store.hasher.hash(b"the key"));
    // The chunk with the entry is the last one, so that its copy comes to one that is looked at before.
    let last = store.layout.chunk_count - 1;
    while store.chunks.take(1, For::Cleaner).inspect(|chunk| store.chunks.add_free(*chunk))
        != Some(last - 1)
    {}
    put_on(&store, 0, key);
    assert_eq!(open_chunk(&store, 0), last);
    fill(&store, 0);
    stop.armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut cleaner = store.cleaner_of_log(last);
            store.clean_chunk(&mut cleaner, last).unwrap();
        });
        stop.barrier.wait();
        let prepared = store.prepare_delete(1, key).unwrap();
        let lock = store.keys.lock(hash);
        let deleted = store.commit(1, lock.last(), &prepared.entry, || ()).unwrap().0;
        lock.follow(deleted.version);
        let found = store.find(hash, key).unwrap();
        store.publish(hash, key, found, deleted.word).unwrap();
        let mut other = Some(other);
        let needed = store.tombstones_needed(|looks| {
            if looks == last
                && let Some(other) = other.take()
            {
                stop.barrier.wait();
                other.join().unwrap();
            }
        });
        let own = open_chunk(&store, 1);
        let needed = needed.by_others(own, store.chunks.get(own).unwrap().generation());
        assert!(needed <= deleted.version.0, "{needed} {}", deleted.version.0);
    });
}

/// Writers free chunks all the time: who looks through all does not begin anew for ever.
#[test]
fn a_look_for_what_tombstones_are_needed_for_ends_while_chunks_come_free() {
    let (store, ..) = two_groups(sites::MOVE_FENCE, CHUNK_SIZE);
    put_on(&store, 0, b"key");
    put_on(&store, 0, b"key");
    let born = store.chunks.get(open_chunk(&store, 0)).unwrap().born();
    let mut looks = 0;
    let needed = store.tombstones_needed(|_| {
        looks += 1;
        assert!(looks < 5 * store.layout.chunk_count, "it does not end");
        let number = store.chunks.take(1, For::Puts).unwrap();
        let header = ChunkHeader {
            epoch: 0,
            born: 0,
            kind: ChunkKind::Large,
            owner: 0,
            number,
            lines: 0,
            chunks: 1,
            next_version: store.versions.next(),
        };
        store.chunks.begin(&*store.memory, header).unwrap();
        store.chunks.release(&*store.memory, number, store.versions.next()).unwrap();
    });
    assert_eq!(needed.by_any, born);
}

/// The cleaner looks for what it may free at any moment, also between a log's beginning and the first entry.
#[test]
fn a_log_that_was_just_begun_is_nobodys_to_free() {
    let (store, ..) = two_groups(sites::MOVE_FENCE, CHUNK_SIZE);
    for core in 0..2 {
        let number = store.chunks.take(1, For::Puts).unwrap();
        let header = ChunkHeader {
            epoch: 0,
            born: store.versions.now(core),
            kind: ChunkKind::Log,
            owner: u16::try_from(core).unwrap(),
            number,
            lines: 0,
            chunks: 0,
            next_version: store.versions.next(),
        };
        store.chunks.begin(&*store.memory, header).unwrap();
        assert_eq!(store.clean_now(8).unwrap(), 0);
        assert!(store.chunks.get(number).unwrap().is_log(), "it was freed");
    }
}

/// The index was copied in part, and then a cleaner leaves a record for a chunk of a log.
#[test]
fn no_record_is_left_for_a_chunk_when_a_checkpoint_counts() {
    let shared: Arc<OnceLock<Arc<Flat>>> = Arc::default();
    let leaves = Arc::new(AtomicU32::new(0));
    let (of_store, leave) = (Arc::clone(&shared), Arc::clone(&leaves));
    let inner = Arc::new(SimPm::new(SimPmOptions::new(60 * CHUNK_SIZE, 1)));
    let memory = AskingMemory::new(inner, move |call| {
        let Some(store) = of_store.get() else { return Ok(()) };
        // That of the image's first part.
        if *call == MemoryCall::Fenced(sites::CHUNK_COPY_FENCE) {
            let number = leave.swap(0, Ordering::SeqCst);
            if number > 0 {
                let record = store.prepare_put(0, b"gone", &[3; 1000], Attributes::default());
                store.cleaner_of_log(number).leave(number, record?.record);
            }
        }
        Ok(())
    });
    let mut options = options(EngineKind::FlatCceh);
    options.testing.background = false;
    let store = shared.get_or_init(|| Flat::open(memory, &options).unwrap());
    put_on(store, 0, b"key");
    let first = open_chunk(store, 0);
    fill(store, 0);
    for number in 0..250_u8 {
        let value = crate::value::Condition::Always;
        store.put_value(&[b'k', number], b"1", Attributes::default(), value).unwrap();
    }
    let generation = store.chunks.get(first).unwrap().generation();
    leaves.store(first, Ordering::SeqCst);
    assert!(store.write_checkpoint().unwrap());
    assert_eq!(leaves.load(Ordering::SeqCst), 0, "the image has one part");
    let chunk = store.chunks.get(first).unwrap();
    assert!(!chunk.is_log() || chunk.generation() != generation, "its record is left");
    assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new());
}

/// `clear` has looked whether the store is open, and then waits behind a stop that writes the image of everything.
#[test]
fn a_clear_that_comes_behind_a_stop_is_refused() {
    let (store, memory, _) = two_groups(sites::MOVE_FENCE, CHUNK_SIZE);
    put_on(&store, 0, b"key");
    let slow = store.keys.lock(store.hasher.hash(b"key"));
    std::thread::scope(|scope| {
        let pause = || esker_trt::sleep(Duration::from_millis(100));
        let stop = scope.spawn(|| store.close_store());
        while !store.background.iter().all(|background| background.is_stopping()) {
            esker_trt::sleep(Duration::from_millis(1));
        }
        pause();
        let clear = scope.spawn(|| store.clear_all());
        pause();
        drop(slow);
        stop.join().unwrap().unwrap();
        assert_eq!(clear.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    });
    let mut options = options(EngineKind::FlatCceh);
    options.testing.segment_size_bytes = Some(CHUNK_SIZE);
    let reopened = Flat::open(memory, &options).unwrap();
    assert!(reopened.get_value(b"key", &mut |_| Ok(())).unwrap().is_some());
}

#[test]
fn the_newest_entry_counts_wherever_versions_stand() {
    // Where the two bytes of a stamp, the half of a version that a check folds, and its sign go over, and near the end.
    let firsts =
        [1 << 16, 1 << 17, 1 << 31, 1 << 32, 1 << 33, 1 << 48, 1 << 61, NUMBER_END - (1 << 20)];
    for (engine, first) in [EngineKind::FlatCceh, EngineKind::FlatMasstree]
        .into_iter()
        .flat_map(|engine| firsts.map(|first| (engine, first)))
    {
        let memory: Arc<dyn Pmem> = Arc::new(SimPm::new(SimPmOptions::new(40 * CHUNK_SIZE, 1)));
        let mut options = options(engine);
        options.batching_group = 1;
        options.testing.background = false;
        // Six entries before, and others from there on.
        options.testing.first_version = first - 6;
        let value = |round: u8, number: u8| [round, number, 1];
        let key = |number: u8| [b'k', number];
        let put = |store: &Flat, number: u8, round: u8| {
            let condition = crate::value::Condition::Always;
            let value = value(round, number);
            store.put_value(&key(number), &value, Attributes::default(), condition).unwrap();
        };
        let mut store = Flat::open(Arc::clone(&memory), &options).unwrap();
        for round in 0..40_u8 {
            (0..9).for_each(|number| put(&store, number, round));
            store.delete_key(&key(round % 9), crate::value::Condition::Present).unwrap();
            if round % 4 == 3 {
                // Entries of both sides of the bound stand in one chunk of copies, and beside their overtakers.
                store.clean_now(usize::from(round % 3)).unwrap();
            }
            if round % 16 == 8 {
                assert!(store.write_checkpoint().unwrap());
            }
            // As after a crash.
            store.state.store(super::CLOSED, Ordering::Release);
            store = Flat::open(Arc::clone(&memory), &options).unwrap();
            for number in 0..9 {
                let found = store.get_value(&key(number), &mut |_| Ok(())).unwrap();
                let expected = (number != round % 9).then(|| value(round, number).to_vec());
                assert_eq!(
                    found.map(|found| found.to_vec()),
                    expected,
                    "{engine}, {first}, {round}"
                );
            }
            assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new());
        }
        assert!(store.last_version().0 > first, "{engine}, {first}: the bound was passed");
    }
}
