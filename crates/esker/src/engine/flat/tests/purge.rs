//! Tombstones that nothing needs any more go, whatever keeps them.

use super::super::purge::Why;
use super::*;
use crate::value::Condition;
use std::collections::BTreeMap;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const CHUNK: u64 = 4096;

fn memory(chunks: u64) -> Arc<dyn Pmem> {
    let mut options = SimPmOptions::new(chunks * CHUNK, 1);
    options.record = false;
    Arc::new(SimPm::new(options))
}

fn open(memory: &Arc<dyn Pmem>, engine: EngineKind) -> Arc<Flat> {
    let mut options = options(engine);
    options.testing.segment_size_bytes = Some(CHUNK);
    options.testing.background = false;
    Flat::open(Arc::clone(memory), &options).unwrap()
}

fn put_value(store: &Flat, key: &[u8], value: &[u8]) -> Result<()> {
    store.put_value(key, value, Attributes::default(), Condition::Always).map(drop)
}

/// Keys that stay, in chunks of which nobody is ever the victim: one entry there was overtaken.
fn put_old(store: &Flat) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let old = (0..200_u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 100]));
    let mut old: BTreeMap<_, _> = old.collect();
    old.iter().for_each(|(key, value)| put_value(store, key, value).unwrap());
    // What was written one by one fills lines up: cleaned, it stands side by side, and there is nothing to gain any more.
    store.clean_now(100).unwrap();
    let first = 0_u32.to_be_bytes().to_vec();
    put_value(store, &first, b"anew").unwrap();
    old.insert(first, b"anew".to_vec());
    old
}

/// Keys come and go.
fn come_and_go(store: &Flat, numbers: std::ops::Range<u32>) -> Result<()> {
    for number in numbers {
        let key = [b"a key that goes ", &number.to_be_bytes()[..]].concat();
        put_value(store, &key, b"value")?;
        store.delete_key(&key, Condition::Present)?;
    }
    Ok(())
}

fn tombstones(store: &Flat) -> u64 {
    store.tombstones.load(Ordering::SeqCst)
}

fn assert_has(store: &Flat, old: &BTreeMap<Vec<u8>, Vec<u8>>) {
    assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new());
    for (key, value) in old {
        let found = store.get_value(key, &mut |_| Ok(())).unwrap();
        assert_eq!(found.map(|value| value.to_vec()).as_ref(), Some(value));
    }
    assert_eq!(store.index.len() - tombstones(store), old.len() as u64);
}

/// What a crash leaves of it.
fn reopened(store: Arc<Flat>, memory: &Arc<dyn Pmem>, engine: EngineKind) -> Arc<Flat> {
    store.state.store(super::super::CLOSED, Ordering::Release);
    drop(store);
    open(memory, engine)
}

#[test]
fn a_store_where_keys_come_and_go_is_never_full_of_tombstones() {
    for engine in KINDS {
        let memory = memory(120);
        let store = open(&memory, engine);
        let old = put_old(&store);
        let room = store.chunks.free_count() * usize::try_from(CHUNK).unwrap();
        let rounds = u32::try_from(room / 20).unwrap();
        come_and_go(&store, 0..rounds).unwrap_or_else(|error| panic!("{engine}: {error}"));
        assert_has(&store, &old);
        assert_has(&reopened(store, &memory, engine), &old);
    }
}

#[test]
fn tombstones_go_in_the_background_while_there_is_room() {
    for engine in KINDS {
        let memory = memory(400);
        let mut store = open(&memory, engine);
        let old = put_old(&store);
        let mut number = 0;
        for round in 0..6 {
            come_and_go(&store, number..number + 500).unwrap();
            number += 500;
            let before = tombstones(&store);
            assert!(before >= 500, "{engine}: {before}");
            if round % 2 == 1 {
                // Nobody knows what stands where, and tombstones that stand alone are of chunks that nothing else is to gain of.
                store = reopened(store, &memory, engine);
            }
            let free = store.chunks.free_count();
            let mut steps = 0;
            while store.is_purge_due(Why::Many) && store.purge_next().unwrap() {
                steps += 1;
                assert!(steps < 1000, "{engine}: it does not end");
            }
            assert!(!store.is_purge_due(Why::Many), "{engine}");
            // Those of the logs that go on.
            let after = tombstones(&store);
            assert!(after < 200, "{engine}: {after} of {before}");
            assert!(store.chunks.free_count() > free, "{engine}");
            assert_has(&store, &old);
        }
        assert_has(&reopened(store, &memory, engine), &old);
    }
}

#[test]
fn a_purge_that_can_do_no_more_begins_again_when_there_are_more() {
    for engine in KINDS {
        let memory = memory(400);
        let store = open(&memory, engine);
        put_old(&store);
        come_and_go(&store, 0..500).unwrap();
        // The oldest chunk is damaged, and stays.
        let first = store.tombstones_needed(|_| ()).first.0;
        store.cleaner_of_log(first).damaged.insert(first);
        while store.purge_next().unwrap() {}
        let left = tombstones(&store);
        assert!(left > 400, "{engine}: {left}");
        assert!(!store.is_purge_due(Why::Many), "{engine}");
        come_and_go(&store, 500..800).unwrap();
        assert!(store.is_purge_due(Why::Many), "{engine}");
        store.cleaner_of_log(first).damaged.remove(&first);
        while store.purge_next().unwrap() {}
        assert!(tombstones(&store) < 200, "{engine}");
    }
}
