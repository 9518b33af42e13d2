//! What only the inside shows: writers that stand still at a bad moment.

use super::Flat;
use super::commit::Placed;
use crate::options::{EngineKind, Options};
use crate::value::Attributes;
use esker_base::clock::ManualClock;
use esker_media::Pmem;
use esker_media::sim::{SimPm, SimPmOptions};
use std::sync::Arc;

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
    store.commit(0, lock.last(), &prepared.entry, || ()).unwrap()
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
        store.state.store(super::CLOSED, std::sync::atomic::Ordering::Release);
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
