//! `flex`: what is deleted or overwritten in a full store makes room for the next put at once, and a full store is restored as it was.

use crate::flex_whole::{bytes, held, sound};
use crate::support::folder_in_memory;
use esker::{Batch, Durability, EngineKind, Error, ErrorKind, Options, Store, restore};
use esker_base::rng::Rng;
use std::path::Path;
use std::thread;

fn options(folder: &Path, size_mib: u64, durability: Durability) -> Options {
    let mut options = Options::new(folder);
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = size_mib << 20;
    options.durability = durability;
    options
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:08}").into_bytes()
}

/// Puts values of this size until three are refused; those that are there.
fn fill(store: &Store, size: usize) -> Vec<Vec<u8>> {
    let (mut keys, mut refused) = (Vec::new(), 0);
    for number in 0.. {
        match store.put(&key(number), &bytes(number, size)) {
            Ok(_) => keys.push(key(number)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                refused += 1;
                if refused == 3 {
                    break;
                }
            }
        }
    }
    keys
}

#[test]
fn a_full_store_that_is_emptied_takes_the_next_put_at_once() {
    for (size_mib, size, durability) in
        [(20, 4000, Durability::Sync), (32, 1 << 20, Durability::Sync), (32, 300, Durability::None)]
    {
        let folder = folder_in_memory();
        let store = Store::open(&options(folder.path(), size_mib, durability)).unwrap();
        for round in 0..2 {
            let context = format!("{size_mib} MiB, values of {size}, round {round}");
            let keys = fill(&store, size);
            let filled = keys.len() * size;
            assert!(filled > 3 << 20, "{context}: {filled} bytes");
            for key in &keys {
                assert!(store.delete(key).unwrap(), "{context}");
            }
            // As much as a half of what there was, without a pause.
            for number in 0..keys.len() as u64 / 2 {
                let put = store.put(&key(number), &bytes(number, size));
                put.unwrap_or_else(|error| panic!("{context}, put {number}: {error}"));
            }
            assert_eq!(held(&store).len(), keys.len() / 2, "{context}");
            store.clear().unwrap();
        }
        sound(&store);
        store.close().unwrap();
    }
}

#[test]
fn batches_that_only_delete_are_taken_by_a_full_store() {
    for (size, together) in [(1500, 100), (300, 1)] {
        let folder = folder_in_memory();
        let store = Store::open(&options(folder.path(), 24, Durability::Sync)).unwrap();
        let keys = fill(&store, size);
        assert_eq!(store.put(b"more", &[1; 1500]).unwrap_err().kind(), ErrorKind::NoSpace);
        let mut mixed = Batch::new();
        mixed.delete(&keys[0]).put(b"more", &[1; 1500]);
        assert_eq!(store.write(&mixed).unwrap_err().kind(), ErrorKind::NoSpace);
        for keys in keys.chunks(together).take(300) {
            let mut batch = Batch::new();
            for key in keys {
                batch.delete(key);
            }
            store.write(&batch).unwrap_or_else(|error| panic!("{together}: {error}"));
        }
        let left = keys.len() - (300 * together).min(keys.len());
        assert_eq!(held(&store).len(), left);
        store.put(b"more", &[1; 1500]).unwrap();
        sound(&store);
    }
}

#[test]
fn few_keys_that_are_written_over_by_several_threads_fill_no_store() {
    for durability in [Durability::None, Durability::Sync] {
        let folder = folder_in_memory();
        let store = Store::open(&options(folder.path(), 32, durability)).unwrap();
        // Of 200 KB many are large values, of which the old one goes with the next table.
        let work = |thread: u64| -> Result<(), Error> {
            let mut rng = Rng::from_seed(thread);
            for _ in 0..800 {
                let size = if rng.chance(1, 3) { rng.index(200_000) } else { rng.index(2000) };
                store.put(&key(thread * 100 + rng.below(10)), &bytes(thread, size))?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || work(thread))).collect();
            for thread in threads {
                thread.join().unwrap().unwrap_or_else(|error| panic!("{durability:?}: {error}"));
            }
        });
        assert_eq!(held(&store).len(), 30);
        sound(&store);
    }
}

#[test]
fn a_full_store_is_restored_with_the_capacity_that_it_had() {
    for size in [300, 4000] {
        let folder = folder_in_memory();
        let place = |name: &str| folder.path().join(name);
        let store = Store::open(&options(&place("full"), 32, Durability::Sync)).unwrap();
        fill(&store, size);
        let before = held(&store);
        store.backup(&place("backup")).unwrap();
        let capacity = store.stats().capacity_bytes;
        store.close().unwrap();
        let mut to = options(&place("restored"), 0, Durability::Sync);
        restore(&place("backup"), &to).unwrap();
        let store = Store::open(&to).unwrap();
        assert!(held(&store) == before, "values of {size}");
        assert_eq!(store.stats().capacity_bytes, capacity);
        sound(&store);
        // It is as full as it was, and goes on as that does.
        for key in before.keys() {
            store.delete(key).unwrap();
        }
        store.put(b"another", &bytes(1, size)).unwrap();
        store.close().unwrap();
        // One that is too small says so.
        to = options(&place("small"), 24, Durability::Sync);
        let error = restore(&place("backup"), &to).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(error.to_string().contains("a larger size may fit"), "{error}");
    }
}
