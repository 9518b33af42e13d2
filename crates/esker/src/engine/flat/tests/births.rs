//! No entry of a core's log is older than its chunk's birth (L4): on that rests which tombstones are needed.

use super::*;
use crate::batch::Batch;
use std::time::Duration;

/// A chunk that has room for a batch whose entries carry their versions.
const CHUNK_SIZE: u64 = 4096;
/// Entries of such a batch.
const MANY: u8 = 65;

/// Keys of a batch.
fn of_batch(number: u8) -> [u8; 2] {
    [b'z', number]
}

fn batch() -> Batch {
    let mut batch = Batch::new();
    for number in 0..MANY {
        batch.put(&of_batch(number), b"1");
    }
    batch
}

/// Every chunk of a log, how many entries it has, and how many of them are older than it.
fn older_than_their_chunks(store: &Flat) -> Vec<(u32, usize, usize)> {
    let mut found = Vec::new();
    let mut buffer = Vec::new();
    for (number, chunk) in store.chunks.iter().filter(|(_, chunk)| chunk.is_log()) {
        store.read_log(number, &mut buffer).unwrap();
        let mut batches = store.batches_of(number, &mut buffer);
        let (mut all, mut older) = (0, 0);
        while let Some(batch) = batches.take_next().unwrap() {
            for entry in batch.entries() {
                let entry = entry.unwrap();
                assert!(entry.entry.is_sound(entry.version), "bound to its version");
                all += 1;
                older += usize::from(entry.version < chunk.born());
            }
        }
        found.push((number, all, older));
    }
    found
}

#[test]
fn entries_that_carry_their_versions_are_no_older_than_a_chunk_that_is_begun_for_them() {
    for engine in [EngineKind::FlatCceh, EngineKind::FlatMasstree] {
        let memory: Arc<dyn Pmem> = Arc::new(SimPm::new(SimPmOptions::new(40 * CHUNK_SIZE, 1)));
        let mut options = options(engine);
        options.testing.segment_size_bytes = Some(CHUNK_SIZE);
        let store = Flat::open(Arc::clone(&memory), &options).unwrap();
        for round in 0..20_u8 {
            // However full the chunk is that the batch comes to.
            (0..round).for_each(|number| put(&store, &[number, 1]));
            let version = store.write_atomic(&batch()).unwrap();
            assert_eq!(version, store.last_version(), "the highest of them");
            let found = store.get_value(&of_batch(0), &mut |_| Ok(())).unwrap().unwrap();
            assert!(found.version() <= version && found.version().0 + u64::from(MANY) > version.0);
        }
        let found = older_than_their_chunks(&store);
        assert!(found.iter().map(|(_, all, _)| all).sum::<usize>() > usize::from(MANY));
        assert!(found.iter().all(|(.., older)| *older == 0), "{engine}: {found:?}");
        store.state.store(super::super::CLOSED, Ordering::Release);
        let reopened = Flat::open(memory, &options).unwrap();
        for number in 0..MANY {
            let found = reopened.get_value(&of_batch(number), &mut |_| Ok(())).unwrap();
            assert_eq!(found.map(|value| value.to_vec()), Some(b"1".to_vec()));
        }
    }
}

/// The batch waits for the log while others append to it, and then finds no room in its chunk.
#[test]
fn what_a_waiting_batch_put_stays_deleted() {
    let (store, memory, stop) = two_groups(sites::COMMIT_FENCE, CHUNK_SIZE);
    let key = of_batch(0);
    let hash = store.hasher.hash(&key);
    // The first in order chooses the log.
    let wide_core = store.core_of(hash);
    let other = 1 - wide_core;
    // Less room is left than the batch takes.
    put_on(&store, wide_core, b"begin");
    let room = |store: &Flat| CHUNK_SIZE - store.logs[wide_core].0.lock().open.unwrap().1;
    while room(&store) > 1500 {
        put_on(&store, wide_core, b"begin");
    }
    stop.armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || put_on(store, wide_core, b"first"));
        stop.barrier.wait();
        let pause = || esker_trt::sleep(Duration::from_millis(100));
        scope.spawn(move || put_on(store, wide_core, b"second"));
        pause();
        scope.spawn(|| store.write_atomic(&batch()).unwrap());
        pause();
        stop.barrier.wait();
    });
    let found = store.find(hash, &key).unwrap();
    let prepared = store.prepare_delete(other, &key).unwrap();
    let lock = store.keys.lock(hash);
    let deleted = store.commit(other, lock.last(), &prepared.entry, || ()).unwrap().0;
    lock.follow(deleted.version);
    drop(lock);
    store.publish(hash, &key, found, deleted.word).unwrap();
    assert_eq!(older_than_their_chunks(&store).iter().map(|it| it.2).sum::<usize>(), 0);
    // The tombstone's chunk is cleaned, that with what it deletes is not.
    let chunk = open_chunk(&store, other);
    fill(&store, other);
    store.clean_chunk(&mut store.cleaner_of_log(chunk), chunk).unwrap();
    store.state.store(super::super::CLOSED, Ordering::Release);
    let mut options = options(EngineKind::FlatCceh);
    options.testing.segment_size_bytes = Some(CHUNK_SIZE);
    let reopened = Flat::open(memory, &options).unwrap();
    assert!(reopened.get_value(&key, &mut |_| Ok(())).unwrap().is_none());
    let kept = reopened.get_value(&of_batch(1), &mut |_| Ok(())).unwrap();
    assert_eq!(kept.map(|value| value.to_vec()), Some(b"1".to_vec()));
}
