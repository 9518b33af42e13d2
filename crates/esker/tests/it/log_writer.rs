//! The thread that writes full pieces of the log, under durability `none`: writers never see it, and it changes nothing
//! of what a crash, a failure or the end of the store leaves.
//!
//! The thread is real, so the device is the one thing that these tests can hold up: at its first write of a piece.

use crate::support::{SEGMENT_SIZE, open, options};
use esker::{Durability, ErrorKind, Options, Store};
use esker_base::{Error, Result};
use esker_media::BlockDevice;
use esker_media::sim::{Asking, Image, Initial, SimBlock, SimBlockOptions};
use esker_trt::sync::Gate;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Room for all that a test writes, so that no segment is reused.
const WIDE: u64 = 8192 + 80 * SEGMENT_SIZE;
/// Bytes of a value: a piece, which ends with its segment here, takes eleven.
const VALUE_SIZE: usize = 500;
/// Records of a piece.
const IN_PIECE: u32 = 11;
/// What a test begins with: more than two pieces.
const COUNT: u32 = 25;
/// Most full pieces that wait for the device.
const QUEUE_MAX: u32 = 4;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn blank(size: u64, seed: u64) -> Arc<SimBlock> {
    Arc::new(SimBlock::new(SimBlockOptions::new(size, seed)))
}

/// Options of a store with threads of its own that flushes only when it is asked.
fn threaded(seed: u64) -> Options {
    let mut options = options(seed);
    options.durability = Durability::None;
    options.testing.background = true;
    options
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn value(number: u32) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; VALUE_SIZE]
}

fn put(store: &Store, number: u32) {
    store.put(&key(number), &value(number)).unwrap();
}

fn held(store: &Store) -> Map {
    let items = store.iter().map(|item| item.map(|(key, value)| (key, value.to_vec())));
    items.collect::<Result<_>>().unwrap()
}

/// Numbers up to which all are there, and how many there are: a hole makes them differ.
fn prefix(store: &Store) -> (u32, usize) {
    let found = held(store);
    let whole = (0..).take_while(|n| found.get(&key(*n)[..]) == Some(&value(*n))).count();
    (u32::try_from(whole).unwrap(), found.len())
}

/// The store that is found on a medium.
fn reopened(image: Image) -> Store {
    let size = image.size_bytes();
    let options_of = SimBlockOptions::new(size, 3).initial(Initial::Recycled(image));
    open(&Arc::new(SimBlock::new(options_of)), &options(6)).unwrap()
}

/// Waits until something is so; a test that waits for ever fails.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if so() {
            return;
        }
        esker_trt::sleep(Duration::from_millis(1));
    }
    panic!("never: {what}");
}

/// Holds up the first write of a piece.
#[derive(Default)]
struct Latch {
    is_reached: AtomicBool,
    passed: Gate,
}

/// Lets the log's writer go on at the end of a test that fails, too.
struct Release<'a>(&'a Latch);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.passed.open();
    }
}

/// A store whose log's writer stops at its first write until the latch is opened.
fn held_up(seed: u64) -> (Arc<Asking>, Store, Arc<Latch>) {
    let latch = Arc::new(Latch::default());
    let seen = Arc::clone(&latch);
    let device = Asking::new(blank(WIDE, seed), move |call| {
        if call.site == esker::sites::depot::COMMIT_PLAIN_WRITE {
            seen.is_reached.store(true, Ordering::SeqCst);
            seen.passed.wait();
        }
        Ok(())
    });
    let on = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let store = Store::open_on(on, &threaded(seed)).unwrap();
    (device, store, latch)
}

/// Writes more than one piece, and waits for the thread to be at work on it.
fn begin(store: &Store, latch: &Latch) {
    (0..COUNT).for_each(|n| put(store, n));
    until("the thread writes", || latch.is_reached.load(Ordering::SeqCst));
}

#[test]
fn a_crash_beside_the_logs_writer_leaves_a_prefix_of_the_writes() {
    let mut judged = 0;
    for seed in 0..6 {
        let device = blank(8192 + 24 * SEGMENT_SIZE, seed);
        let store = open(&device, &threaded(seed)).unwrap();
        let mut model = Map::new();
        // Before each write: the device's position; after it: what the store held.
        let mut history = vec![(device.position(), model.clone())];
        let mut synced = vec![(device.position(), 0)];
        for n in 0..500_u32 {
            let (key, value) = (key(n % 23), value(n));
            let begun = device.position();
            model.insert(key.to_vec(), value.clone());
            history.push((begun, model.clone()));
            store.put(&key, &value).unwrap();
            if n % 97 == 96 {
                store.sync().unwrap();
                synced.push((device.position(), history.len() - 1));
            }
        }
        store.close().unwrap();
        let trace = device.trace();
        let mut replay = trace.replay();
        while replay.step() {
            let point = replay.position();
            let kept = synced.iter().rfind(|(at, _)| *at <= point).map(|(_, kept)| *kept);
            let Some(kept) = kept else { continue };
            let begun = history.iter().take_while(|(at, _)| *at <= point).count();
            for state in replay.states(4, seed ^ point) {
                let found = held(&reopened(state.image()));
                assert!(
                    history[kept..begun].iter().any(|(_, map)| *map == found),
                    "seed {seed}, point {point}: no prefix [{}]",
                    state.describe()
                );
                judged += 1;
            }
        }
    }
    assert!(judged > 1000, "{judged} states");
}

#[test]
fn writers_go_on_while_the_logs_writer_is_held_up_until_its_queue_is_full() {
    let (_device, store, latch) = held_up(1);
    begin(&store, &latch);
    let written = AtomicU32::new(COUNT);
    std::thread::scope(|scope| {
        let _release = Release(&latch);
        let writer = scope.spawn(|| {
            for n in COUNT..300 {
                store.put(&key(n), &value(n)).unwrap();
                written.fetch_add(1, Ordering::SeqCst);
            }
        });
        until("the queue is full", || written.load(Ordering::SeqCst) >= QUEUE_MAX * IN_PIECE);
        // What waits for the device is read from memory.
        for n in 0..written.load(Ordering::SeqCst) {
            assert_eq!(store.get(&key(n)).unwrap().unwrap().to_vec(), value(n));
        }
        esker_trt::sleep(Duration::from_millis(100));
        let bound = (QUEUE_MAX + 2) * (IN_PIECE + 1);
        assert!(written.load(Ordering::SeqCst) <= bound, "memory is bounded");
        assert!(!writer.is_finished());
    });
    store.sync().unwrap();
    assert_eq!(prefix(&store), (300, 300));
    store.close().unwrap();
}

#[test]
fn a_failure_in_the_logs_writer_refuses_all_that_comes_after() {
    for failing in 1..8 {
        let seen = AtomicU32::new(0);
        let device = Asking::new(blank(WIDE, 2), move |call| {
            let is_piece = call.site == esker::sites::depot::COMMIT_PLAIN_WRITE;
            if is_piece && seen.fetch_add(1, Ordering::SeqCst) + 1 == failing {
                return Err(Error::new(ErrorKind::Io, "write device").context("planned fault"));
            }
            Ok(())
        });
        let on = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let store = Store::open_on(on, &threaded(2)).unwrap();
        (0..10).for_each(|n| put(&store, n));
        let synced = if failing > 1 { store.sync().map(|()| 10).unwrap() } else { 0 };
        let refused = (10..600).find(|n| match store.put(&key(*n), &value(*n)) {
            Ok(_) => false,
            Err(error) => {
                let kinds = [ErrorKind::ReadOnly, ErrorKind::DurabilityUnknown];
                assert!(kinds.contains(&error.kind()), "{error}");
                true
            }
        });
        let refused = refused.expect("a write after the failure");
        assert!(store.stats().read_only.is_some_and(|why| why.contains("planned fault")));
        for _ in 0..3 {
            assert_eq!(store.put(b"new", b"").unwrap_err().kind(), ErrorKind::ReadOnly);
            assert_eq!(store.delete(&key(0)).unwrap_err().kind(), ErrorKind::ReadOnly);
            assert_eq!(store.sync().unwrap_err().kind(), ErrorKind::ReadOnly);
        }
        let writes = device.counters().writes;
        // What was acknowledged and never written is still read, as long as the store is open.
        for n in 0..refused {
            assert_eq!(store.get(&key(n)).unwrap().unwrap().to_vec(), value(n), "{failing}");
        }
        assert!(store.close().is_err());
        drop(store);
        assert_eq!(device.counters().writes, writes, "nothing is written after a failure");
        let (whole, found) = prefix(&reopened(device.inner().image()));
        assert_eq!(usize::try_from(whole).unwrap(), found, "{failing}: a hole in what is found");
        assert!((synced..=refused).contains(&whole), "{failing}: {whole} of {refused}");
    }
}

#[test]
fn a_close_waits_for_the_logs_writer_and_for_all_that_was_written() {
    let (device, store, latch) = held_up(3);
    begin(&store, &latch);
    let closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _release = Release(&latch);
        scope.spawn(|| {
            store.close().unwrap();
            closed.store(true, Ordering::SeqCst);
        });
        until("the store refuses writes", || {
            store.put(b"late", b"").is_err_and(|error| error.kind() == ErrorKind::Closed)
        });
        esker_trt::sleep(Duration::from_millis(50));
        assert!(!closed.load(Ordering::SeqCst), "closed before its data were written");
    });
    let (image, writes) = (device.inner().image(), device.counters().writes);
    drop(store);
    assert_eq!(device.counters().writes, writes, "the device belongs to the next opener");
    let (whole, found) = prefix(&reopened(image));
    // The attempts to write came in before the store was closed, or never.
    assert!(whole == COUNT && found <= 1 + COUNT as usize, "{whole}, {found}");
}

#[test]
fn a_drop_beside_the_logs_writer_loses_nothing() {
    for release_first in [false, true] {
        let (device, store, latch) = held_up(4);
        begin(&store, &latch);
        let inner = Arc::clone(device.inner());
        std::thread::scope(|scope| {
            if release_first {
                latch.passed.open();
            }
            // Whoever lets go of the store last closes it: this thread, or the log's writer.
            scope.spawn(move || drop(store));
            esker_trt::sleep(Duration::from_millis(20));
            latch.passed.open();
        });
        until("the store is gone", || Arc::strong_count(&device) == 1);
        assert_eq!(prefix(&reopened(inner.image())), (COUNT, COUNT as usize));
    }
}

#[test]
fn writers_and_readers_beside_the_logs_writer_see_their_own_writes() {
    let device = blank(8192 + 64 * SEGMENT_SIZE, 5);
    let mut options = threaded(5);
    options.durability = Durability::Periodic(Duration::from_millis(5));
    let store = open(&device, &options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let store = store.clone();
            scope.spawn(move || {
                for n in 0..2000 {
                    let key = key(thread * 16 + n % 16);
                    store.put(&key, &value(n)).unwrap();
                    assert_eq!(store.get(&key).unwrap().unwrap().to_vec(), value(n));
                    if n % 500 == 0 {
                        store.sync().unwrap();
                    }
                }
            });
        }
    });
    store.close().unwrap();
    let store = reopened(device.image());
    let found = held(&store);
    assert_eq!(found.len(), 64);
    for thread in 0..4 {
        for n in 1984..2000 {
            assert_eq!(found.get(&key(thread * 16 + n % 16)[..]), Some(&value(n)));
        }
    }
    assert!(store.check().unwrap().is_sound());
}
