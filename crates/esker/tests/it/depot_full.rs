//! `depot`: a file of which space was given back, on a file system that others filled meanwhile. Puts are refused in time; everything else
//! goes on, also behind an open.

use crate::client::Map;
use crate::support::{SEGMENT_SIZE, options};
use esker::{ErrorKind, Options, Store};
use esker_base::Error;
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, SimBlock, SimBlockOptions};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: u64 = 512;
const SIZE: u64 = 1 << 20;

/// A file: what is discarded of it is a hole, and while the file system is full no hole can be written to.
fn file() -> (Arc<Asking>, Arc<AtomicBool>) {
    let is_full = Arc::new(AtomicBool::new(false));
    let full = Arc::clone(&is_full);
    let holes: Mutex<HashSet<u64>> = Mutex::default();
    let device = Asking::new(Arc::new(SimBlock::new(SimBlockOptions::new(SIZE, 1))), move |call| {
        let Range { start, end } = call.range;
        let mut holes = holes.lock();
        let blocks = start / BLOCK..end.div_ceil(BLOCK);
        match call.act {
            Act::Write | Act::Reserve | Act::Prepare => {
                if full.load(Ordering::SeqCst) && blocks.clone().any(|block| holes.contains(&block))
                {
                    return Err(Error::new(ErrorKind::NoSpace, "allocate").at(start, end - start));
                }
                holes.retain(|block| !blocks.contains(block));
            }
            Act::Discard => holes.extend(blocks),
            Act::Read | Act::Flush => {}
        }
        Ok(())
    });
    (device, is_full)
}

fn open(device: &Arc<Asking>, options: &Options) -> Store {
    Store::open_on(Arc::clone(device) as Arc<dyn BlockDevice>, options).unwrap()
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Puts pairs until one is refused; how many there were.
fn fill(store: &Store, known: &mut Map, first: u32) -> u32 {
    for number in first.. {
        let value = vec![number.to_be_bytes()[3]; 1000];
        match store.put(&key(number), &value) {
            Ok(_) => drop(known.insert(key(number), value)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return number - first;
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
    for is_cache in [false, true] {
        let (device, is_full) = file();
        let mut options = options(1);
        options.cache = is_cache;
        let store = open(&device, &options);
        store.put(b"first", b"value").unwrap();
        assert!(store.trim().unwrap() > SIZE / 4);
        is_full.store(true, Ordering::SeqCst);
        let mut known = Map::from([(b"first".to_vec(), b"value".to_vec())]);
        if is_cache {
            // It evicts instead.
            for number in 0..4 * u32::try_from(SIZE / 1000).unwrap() {
                store.put(&key(number), &[7; 1000]).unwrap();
            }
            continue;
        }
        assert!(fill(&store, &mut known, 0) < 300);
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
            refused += u32::from(fill(&store, &mut known, 1000 * (round + 1)) == 0);
            check(&store, &known);
        }
        assert_eq!(refused, 0);
        store.close().unwrap();
        drop(store);
        let store = open(&device, &options);
        check(&store, &known);
        fill(&store, &mut known, 10_000);
        assert!(store.delete(b"first").unwrap());
        known.remove(&b"first"[..]);
        check(&store, &known);
        // Others go.
        is_full.store(false, Ordering::SeqCst);
        assert!(fill(&store, &mut known, 20_000) > u32::try_from(SIZE / SEGMENT_SIZE / 4).unwrap());
        check(&store, &known);
    }
}
