//! `depot`: a file of which space was given back, on a file system that others filled meanwhile. Puts are refused in time; everything else
//! goes on, also behind an open.

use crate::client::Map;
use crate::support::{SEGMENT_SIZE, START, options};
use esker::{Durability, ErrorKind, Options, Store};
use esker_base::Error;
use esker_base::clock::{Clock, ManualClock};
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, SimBlock, SimBlockOptions};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: u64 = 512;
const SIZE: u64 = 1 << 20;

/// What a file system knows of the file.
#[derive(Default)]
struct Room {
    holes: HashSet<u64>,
    /// Where room was asked for in vain, and what may have been taken of it not given back.
    owed: HashSet<u64>,
}

/// A file: what is discarded of it is a hole, and while the file system is full no hole can be written to.
fn file() -> (Arc<Asking>, Arc<AtomicBool>, Arc<Mutex<Room>>) {
    let (is_full, room) = <(Arc<AtomicBool>, Arc<Mutex<Room>>)>::default();
    let (full, known) = (Arc::clone(&is_full), Arc::clone(&room));
    let device = Asking::new(Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1))), move |call| {
        let Range { start, end } = call.range;
        let mut known = known.lock();
        let blocks = start / BLOCK..end.div_ceil(BLOCK);
        match call.act {
            Act::Write | Act::Reserve | Act::Prepare => {
                let lacks = blocks.clone().any(|block| known.holes.contains(&block));
                if full.load(Ordering::SeqCst) && lacks {
                    assert_ne!(call.act, Act::Write, "room is asked for before");
                    known.owed.insert(start);
                    return Err(Error::new(ErrorKind::NoSpace, "allocate").at(start, end - start));
                }
                known.holes.retain(|block| !blocks.contains(block));
            }
            Act::Discard => {
                known.holes.extend(blocks);
                known.owed.remove(&start);
            }
            Act::Read | Act::Flush => {}
        }
        Ok(())
    });
    (device, is_full, room)
}

fn open(device: &Arc<Asking>, options: &Options) -> Store {
    Store::open_on(Arc::clone(device) as Arc<dyn BlockDevice>, options).unwrap()
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Puts pairs until one is refused; how many there were, and the refusal.
fn fill(store: &Store, known: &mut Map, first: u32) -> (u32, Error) {
    for number in first.. {
        let value = vec![number.to_be_bytes()[3]; 1000];
        match store.put(&key(number), &value) {
            Ok(_) => drop(known.insert(key(number), value)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return (number - first, error);
            }
        }
    }
    unreachable!("every store is full some time")
}

fn check(store: &Store, known: &Map) {
    let mut found: Vec<_> = store.iter().map(|pair| pair.unwrap()).collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    let found = found.iter().map(|(key, value)| (&key[..], &value[..]));
    assert!(found.eq(known.iter().map(|(key, value)| (&key[..], &value[..]))));
}

#[test]
fn space_that_others_took_is_missed_by_puts_and_by_nothing_else() {
    for (is_cache, durability) in
        [(false, Durability::Sync), (false, Durability::None), (true, Durability::Sync)]
    {
        let (device, is_full, room) = file();
        let clock = Arc::new(ManualClock::new(START));
        let mut options = options(1);
        options.clock = Arc::clone(&clock) as Arc<dyn Clock>;
        (options.cache, options.durability) = (is_cache, durability);
        let store = open(&device, &options);
        store.put(b"first", b"value").unwrap();
        let mut known = Map::from([(b"first".to_vec(), b"value".to_vec())]);
        for number in 5000..5100 {
            let value = vec![1; 1000];
            store.put(&key(number), &value).unwrap();
            known.insert(key(number), value);
        }
        store.sync().unwrap();
        assert!(store.trim().unwrap() > SIZE / 4);
        is_full.store(true, Ordering::SeqCst);
        if is_cache {
            // It evicts instead.
            for number in 0..4 * u32::try_from(SIZE / 1000).unwrap() {
                store.put(&key(number), &[7; 1000]).unwrap();
            }
            continue;
        }
        assert!(fill(&store, &mut known, 0).0 < 300);
        check(&store, &known);
        // Deletes find room, and make it.
        let mut refused = 0;
        for round in 0..3 {
            let gone: Vec<Vec<u8>> =
                known.keys().filter(|key| key.len() == 4).step_by(2).cloned().collect();
            for key in gone {
                assert!(store.delete(&key).unwrap());
                known.remove(&key);
            }
            store.clean(usize::MAX).unwrap();
            refused += u32::from(fill(&store, &mut known, 1000 * (round + 1)).0 == 0);
            check(&store, &known);
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(refused, 0);
        store.close().unwrap();
        drop(store);
        let store = open(&device, &options);
        check(&store, &known);
        let (_, error) = fill(&store, &mut known, 10_000);
        assert!(error.to_string().contains("the file system has no room for"), "{error}");
        assert!(store.delete(b"first").unwrap());
        known.remove(&b"first"[..]);
        check(&store, &known);
        assert!(room.lock().owed.is_empty(), "{:?}", room.lock().owed);
        // Others go.
        is_full.store(false, Ordering::SeqCst);
        clock.advance(Duration::from_secs(1));
        assert!(
            fill(&store, &mut known, 20_000).0 > u32::try_from(SIZE / SEGMENT_SIZE / 4).unwrap()
        );
        check(&store, &known);
    }
}
