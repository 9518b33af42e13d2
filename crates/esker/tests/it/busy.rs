//! What ends though others go on writing all the while.

use crate::support::{DEVICE_SIZE, End, folder_in_memory, options};
use esker::{Batch, Durability, EngineKind, ErrorKind, Options, Progress, Store, restore};
use esker_base::clock::{Clock, SystemClock};
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, SimBlock, SimBlockOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// In this time what ends has ended, on a slow machine, too.
const LONG: Duration = Duration::from_secs(60);

/// What `done` does has to end while `busy` threads call `write` with their numbers.
fn ends_beside(busy: u32, write: impl Fn(u32) + Sync, done: impl FnOnce() + Send) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = End(&over);
        for number in 0..busy {
            let (over, write) = (&over, &write);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    write(number);
                }
            });
        }
        let doing = scope.spawn(done);
        let until = SystemClock.monotonic() + LONG;
        while !doing.is_finished() && SystemClock.monotonic() < until {
            std::thread::yield_now();
        }
        let ended = doing.is_finished();
        drop(end);
        assert!(ended, "it does not end");
        doing.join().unwrap();
    });
}

#[test]
fn a_sync_without_a_log_waits_for_what_was_written_before_it() {
    let folder = folder_in_memory();
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 256 << 20;
    options.durability = Durability::None;
    options.flex.memtable_size_bytes = 16 << 10;
    let store = Store::open(&options).unwrap();
    let value = [7; 500];
    let put = |thread: u32| {
        for number in 0..20_u32 {
            store.put(&[thread.to_be_bytes(), number.to_be_bytes()].concat(), &value).unwrap();
        }
    };
    ends_beside(4, put, || {
        for _ in 0..3 {
            store.sync().unwrap();
            store.clean(1).unwrap();
        }
    });
    store.close().unwrap();
}

/// Each try of a batch reads its keys one after the other, and by the end of that the first ones are others again.
#[test]
fn a_batch_over_keys_that_others_keep_writing_is_written() {
    for durability in [Durability::Sync, Durability::None] {
        let inner = Arc::new(SimBlock::new(SimBlockOptions::new(64 * DEVICE_SIZE, 3)));
        let device = Asking::new(inner, |call| {
            let until = SystemClock.monotonic() + Duration::from_millis(2);
            while call.act == Act::Read && SystemClock.monotonic() < until {
                std::thread::yield_now();
            }
            Ok(())
        });
        let options = Options { durability, ..options(3) };
        let store = Store::open_on(device as Arc<dyn BlockDevice>, &options).unwrap();
        let key = |number: u32| [b'k', u8::try_from(number).unwrap()];
        let mut batch = Batch::new();
        for number in 0..12 {
            store.put(&key(number), b"first").unwrap();
            batch.put(&key(number), b"batch");
        }
        let written = |number| {
            for number in [number, number + 4, number + 8] {
                store.put(&key(number), b"other").unwrap();
            }
        };
        ends_beside(4, written, || {
            for _ in 0..3 {
                store.write(&batch).unwrap();
            }
        });
        store.close().unwrap();
    }
}

/// Writers come first: a backup that keeps what they need the room of gives it up, and has to begin anew.
#[test]
fn a_backup_of_flex_keeps_no_room_that_writers_need() {
    let folder = folder_in_memory();
    let mut options = Options::new(folder.path().join("store"));
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 48 << 20;
    options.flex.memtable_size_bytes = 256 << 10;
    options.durability = Durability::None;
    let store = Store::open(&options).unwrap();
    let count = u32::try_from(store.stats().capacity_bytes * 6 / 10 / 1000).unwrap();
    let value = |number: u32, round: u8| [&number.to_be_bytes()[..], &[round; 1000]].concat();
    let put_all = move |store: &Store, round| {
        for number in 0..count {
            let put = store.put(&number.to_be_bytes(), &value(number, round));
            put.unwrap_or_else(|error| panic!("{number} of {count}, round {round}: {error}"));
        }
    };
    let holds = |store: &Store, round: u8| {
        assert_eq!(store.iter().count(), count as usize);
        for number in 0..count {
            let found = store.get(&number.to_be_bytes()).unwrap();
            assert_eq!(found.as_deref(), Some(&value(number, round)[..]), "{number}");
        }
    };
    let target = folder.path().join("backup");
    put_all(&store, 0);
    store.backup(&target).unwrap();
    put_all(&store, 1);
    let (beside, begun) = (store.clone(), AtomicBool::new(false));
    let progress = Progress::new(move |_, _| {
        if !begun.swap(true, Ordering::SeqCst) {
            (2..4).for_each(|round| put_all(&beside, round));
        }
    });
    let error = store.backup_with(&target, &progress).unwrap_err();
    drop(progress);
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("went on without"), "{error}");
    holds(&store, 3);
    // The earlier one is as it was, and the next one finds what it needs.
    for round in [0, 3] {
        let copy = Options { path: folder.path().join(format!("copy {round}")), ..options.clone() };
        restore(&target, &copy).unwrap();
        holds(&Store::open(&copy).unwrap(), round);
        store.backup(&target).unwrap();
    }
    store.close().unwrap();
}
