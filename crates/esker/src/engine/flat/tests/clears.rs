//! What was cleared is gone at once, also while it is in the index still.

use super::super::chunks::Use;
use super::super::index::Part;
use super::*;
use crate::batch::Batch;
use crate::engine::{Cursor, Engine};
use crate::store::Direction;
use crate::value::{Condition, Outcome};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::mpsc;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const CHUNK_SIZE: u64 = 64 << 10;

fn opened(memory: &Arc<dyn Pmem>, engine: EngineKind, hash_mask: u64) -> Arc<Flat> {
    let mut options = options(engine);
    options.testing.hash_mask = hash_mask;
    options.testing.segment_size_bytes = Some(CHUNK_SIZE);
    options.testing.background = false;
    Flat::open(Arc::clone(memory), &options).unwrap()
}

/// Short keys, keys whose hash tells them, and keys that stand in records.
fn key(number: u8) -> Vec<u8> {
    match number % 3 {
        0 => vec![b's', number],
        1 => [[b'e'; 7].as_slice(), &[number]].concat(),
        _ => [[b'l'; 300].as_slice(), &[number]].concat(),
    }
}

/// A value that stands in the log, one with a block, or one with a chunk of its own.
fn write(store: &Flat, number: u8, condition: Condition) -> Outcome {
    let value = vec![number; [9, 900, 900, 9, 40_000][usize::from(number % 5)]];
    store.put_value(&key(number), &value, Attributes::default(), condition).unwrap()
}

/// Everybody sees these keys and no others.
fn assert_holds(store: &Flat, numbers: &BTreeSet<u8>, words: &str) {
    let mut keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
    keys.sort();
    for number in 0..60 {
        let found = store.get_value(&key(number), &mut |_| Ok(())).unwrap();
        assert_eq!(found.is_some(), numbers.contains(&number), "{words}: {number}");
        assert_eq!(store.value_size(&key(number)) > 0, found.is_some(), "{words}: {number}");
    }
    let (mut walked, mut cursor) = (Vec::new(), Some(Cursor::Start));
    while let Some(from) = cursor {
        let (items, next) = store.walk_part(&from).unwrap();
        walked.extend(items.into_iter().map(|item| item.unwrap().0));
        cursor = next;
    }
    walked.sort();
    assert_eq!(walked, keys, "{words}");
    if store.is_ordered() {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let found = store.scan(all.0, all.1, Direction::Forward, 100).unwrap();
        assert_eq!(found.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), keys, "{words}");
    }
    assert_eq!(store.stats().items, numbers.len() as u64, "{words}");
    assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new(), "{words}");
}

/// What counts in logs is in the index, and what is in use of blocks has a word there.
fn assert_counted(store: &Flat, words: &str) {
    store.clean_left(&mut store.hold_cleaning()).unwrap();
    let (mut entries, mut records) = (0, 0);
    for (_, chunk) in store.chunks.iter() {
        match chunk.usage() {
            Use::OpenLog | Use::Log => entries += chunk.counts().0 - chunk.counts().1,
            Use::Blocks | Use::Large => records += chunk.live.load(Ordering::Relaxed),
            _ => {}
        }
    }
    let (mut all, mut pointing, mut cursor) = (0, 0, Cursor::Start);
    while let Some((part, next)) = store.index.walk(&cursor) {
        cursor = next;
        let found: Vec<_> = match part {
            Part::Hashes(found) => found.into_iter().map(|(_, word)| word).collect(),
            Part::Keys(found) => found.into_iter().map(|(_, word)| word).collect(),
        };
        all += u32::try_from(found.len()).unwrap();
        let has_record =
            |word: &&esker_index::Word| super::super::layout::kind_of(**word).has_record();
        pointing += u32::try_from(found.iter().filter(has_record).count()).unwrap();
    }
    assert_eq!((entries, records), (all, pointing), "{words}");
    assert_eq!(store.unswept.load(Ordering::Relaxed), 0, "{words}");
}

/// What happens between a clear and the end of its sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amid {
    Nothing,
    Clean,
    Clear,
    Checkpoint,
    Crash,
    Close,
}

#[test]
fn what_was_cleared_is_gone_while_the_index_has_it_still() {
    let amid =
        [Amid::Nothing, Amid::Clean, Amid::Clear, Amid::Checkpoint, Amid::Crash, Amid::Close];
    for (engine, hash_mask) in [(KINDS[0], u64::MAX), (KINDS[0], 7), (KINDS[1], u64::MAX)] {
        for amid in amid {
            let words = format!("{engine} {hash_mask:x} {amid:?}");
            let memory: Arc<dyn Pmem> =
                Arc::new(SimPm::new(SimPmOptions::new(100 * CHUNK_SIZE, 1)));
            let mut store = opened(&memory, engine, hash_mask);
            for number in 0..40 {
                write(&store, number, Condition::Always);
            }
            for number in [3, 4, 5] {
                store.delete_key(&key(number), Condition::Present).unwrap();
            }
            store.clear_at_once().unwrap();
            assert!(store.index.len() >= 40, "{words}: they are there");
            let mut numbers = BTreeSet::new();
            assert_holds(&store, &numbers, &words);
            // Nothing is decided by what is gone, and what comes in its place counts.
            for number in 6..9 {
                assert_eq!(write(&store, number, Condition::Present), Outcome::KeyMissing);
                let deleted = store.delete_key(&key(number), Condition::Present).unwrap();
                assert_eq!(deleted, Outcome::KeyMissing, "{words}");
            }
            let versions = store.versions.given();
            let mut batch = Batch::new();
            for number in 9..12 {
                batch.delete(&key(number));
            }
            store.write_atomic(&batch).unwrap();
            assert_eq!(store.versions.given(), versions, "{words}: nothing was to be deleted");
            for number in 0..18 {
                let condition = if number % 2 == 0 { Condition::Absent } else { Condition::Always };
                assert!(matches!(write(&store, number, condition), Outcome::Stored(_)), "{words}");
                numbers.insert(number);
            }
            for number in 12..18 {
                store.delete_key(&key(number), Condition::Present).unwrap();
                numbers.remove(&number);
            }
            let mut batch = Batch::new();
            batch.put(&key(20), b"20");
            batch.put(&key(50), b"50");
            store.write_atomic(&batch).unwrap();
            numbers.extend([20, 50]);
            assert_holds(&store, &numbers, &words);
            let reopens = |store: &mut Arc<Flat>, closes: bool| {
                if closes {
                    store.close_store().unwrap();
                }
                store.state.store(super::super::CLOSED, Ordering::Release);
                *store = opened(&memory, engine, hash_mask);
            };
            match amid {
                Amid::Nothing => {}
                Amid::Clean => drop(store.clean_now(20).unwrap()),
                Amid::Clear => {
                    store.clear_at_once().unwrap();
                    numbers.clear();
                    write(&store, 1, Condition::Absent);
                    numbers.insert(1);
                }
                Amid::Checkpoint => {
                    assert!(store.write_checkpoint().unwrap());
                    reopens(&mut store, false);
                }
                Amid::Crash => reopens(&mut store, false),
                Amid::Close => reopens(&mut store, true),
            }
            assert_holds(&store, &numbers, &words);
            store.sweep_rest().unwrap();
            assert_holds(&store, &numbers, &words);
            assert_counted(&store, &words);
            for number in 0..60 {
                write(&store, number, Condition::Always);
                numbers.insert(number);
            }
            reopens(&mut store, amid == Amid::Close);
            assert_holds(&store, &numbers, &words);
            assert_counted(&store, &words);
            store.clear_all().unwrap();
            assert_holds(&store, &BTreeSet::new(), &words);
            assert_counted(&store, &words);
            assert_eq!(store.index.len(), 0, "{words}");
        }
    }
}

#[test]
fn others_go_on_while_what_was_cleared_leaves_the_index() {
    let (store, _, stop) = two_groups(sites::CHUNK_FENCE, super::CHUNK_SIZE);
    let put = |key: &[u8], size: usize| {
        let value = vec![1; size];
        store.put_value(key, &value, Attributes::default(), Condition::Always).unwrap();
    };
    // It has a chunk of its own, which comes free.
    put(b"large", 1900);
    put(b"small", 9);
    stop.armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let clear = scope.spawn(|| store.clear_all());
        stop.barrier.wait();
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            put(b"small", 5);
            put(b"other", 5);
            tell.send(()).unwrap();
        });
        let has_put = told.recv_timeout(Duration::from_secs(10));
        let found = store.get_value(b"large", &mut |_| Ok(())).unwrap();
        stop.barrier.wait();
        clear.join().unwrap().unwrap();
        assert!(has_put.is_ok(), "a put waits until all is gone");
        assert!(found.is_none());
    });
    assert_eq!(store.stats().items, 2);
    assert_eq!(store.check_store().unwrap().problems, Vec::<String>::new());
}
