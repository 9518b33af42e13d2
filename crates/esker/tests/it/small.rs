//! Small stores: what counts fills them, and not what they are made of.

use crate::flex_whole::{bytes, sound};
use crate::support::{folder_in_memory, number};
use esker::{Durability, EngineKind, ErrorKind, Options, Store};
use esker_base::rng::Rng;
use std::path::Path;

const SIZE: usize = 64 << 20;

fn store(folder: &Path, engine: EngineKind, size: usize, table_size: usize) -> Store {
    let mut options = Options::new(folder);
    options.engine = Some(engine);
    options.pmem_emulate = true;
    options.durability = Durability::None;
    options.size_bytes = size as u64;
    options.flex.memtable_size_bytes = table_size as u64;
    Store::open(&options).unwrap()
}

/// Fills so many percent of a store, and writes over it at random, once and a half.
#[track_caller]
fn is_written_over(engine: EngineKind, percent: usize, value_size: usize) {
    is_overwritten(engine, SIZE, percent, value_size, 150);
}

/// Fills so many percent of a store, and writes over so many percent of that, at random.
#[track_caller]
fn is_overwritten(engine: EngineKind, size: usize, percent: usize, value_size: usize, over: u32) {
    let folder = folder_in_memory();
    // Tables as large as the store: it is not taken at its word.
    let open = || store(folder.path(), engine, size, size);
    let store = open();
    let mut value = bytes(1, value_size);
    let pairs = u32::try_from(size * percent / 100 / (value_size + 20)).unwrap();
    let mut rng = Rng::from_seed(4);
    // The number of each key's last write.
    let mut last: Vec<u32> = (0..pairs).collect();
    for write in 0..pairs + pairs / 100 * over {
        let any = u32::try_from(rng.below(u64::from(pairs))).unwrap();
        let of = if write < pairs { write } else { any };
        value = number(value, write);
        let done = store.put(&of.to_be_bytes(), &value);
        done.unwrap_or_else(|error| panic!("put {write} of {pairs}, {value_size}: {error}"));
        last[of as usize] = write;
    }
    let mut is_the_last = |store: &Store, when: &str| {
        for (key, write) in (0..pairs).zip(&last) {
            value = number(std::mem::take(&mut value), *write);
            let found = store.get(&key.to_be_bytes()).unwrap();
            assert!(found.as_deref() == Some(&value[..]), "{engine}, {when}: {key} of {pairs}");
        }
    };
    is_the_last(&store, "written over");
    assert!(store.stats().live_bytes <= size as u64);
    sound(&store);
    store.write_out().unwrap();
    store.forget();
    is_the_last(&open(), "opened after a kill");
}

#[test]
fn ninety_five_percent_of_depot_are_written_over() {
    is_overwritten(EngineKind::Depot, 4 * SIZE, 95, 1000, 3);
}

#[test]
fn three_quarters_of_depot_are_written_over_again_and_again() {
    [500, 2000, 200_000].into_iter().for_each(|size| is_written_over(EngineKind::Depot, 75, size));
}

#[test]
fn three_quarters_of_depot_may_be_small_records() {
    // Each put reads: there are a million records, so fewer of them; `depot_room` has more.
    is_overwritten(EngineKind::Depot, SIZE, 75, 50, 30);
}

#[test]
fn three_quarters_of_flat_are_written_over_again_and_again() {
    for engine in [EngineKind::FlatCceh, EngineKind::FlatMasstree] {
        [50, 500, 2000, 100_000].into_iter().for_each(|size| is_written_over(engine, 75, size));
    }
}

#[test]
fn two_thirds_of_flex_are_written_over_again_and_again() {
    [500, 2000, 200_000].into_iter().for_each(|size| is_written_over(EngineKind::Flex, 62, size));
}

/// Fills a store until nothing fits, deletes all in any order, each delete done, and fills it again.
#[track_caller]
fn is_emptied(engine: EngineKind, size: usize, key_size: usize, value_size: usize) {
    let context = format!("{engine}: keys of {key_size}, values of {value_size} bytes");
    let folder = folder_in_memory();
    let store = store(folder.path(), engine, size, size / 16);
    let key = |number: u32| [&vec![b'k'; key_size - 4][..], &number.to_be_bytes()].concat();
    let value = bytes(1, value_size);
    let fill = || {
        let is_full = |number: &u32| match store.put(&key(*number), &value) {
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::NoSpace => true,
            Err(error) => panic!("{context}: put {number}: {error}"),
        };
        (0..u32::MAX).find(is_full).unwrap()
    };
    let full = fill();
    let mut numbers: Vec<u32> = (0..full).collect();
    let mut rng = Rng::from_seed(2);
    (1..numbers.len()).rev().for_each(|place| numbers.swap(place, rng.index(place + 1)));
    for (count, number) in numbers.into_iter().enumerate() {
        let deleted = store.delete(&key(number));
        let deleted =
            deleted.unwrap_or_else(|error| panic!("{context}: {count} of {full}: {error}"));
        assert!(deleted, "{context}: {number}");
    }
    assert_eq!(store.iter().count(), 0, "{context}");
    let again = fill();
    assert!(u64::from(again) * 100 >= u64::from(full) * 90, "{context}: {again} after {full}");
    sound(&store);
}

/// A tombstone whose key has a record of its own takes as much as a pair.
#[test]
fn a_full_flat_of_long_keys_is_emptied_in_any_order() {
    [EngineKind::FlatCceh, EngineKind::FlatMasstree]
        .into_iter()
        .for_each(|engine| is_emptied(engine, SIZE / 2, 8000, 0));
}

/// What is appended for a delete takes more than a pair whose key begins as those beside it.
#[test]
fn a_full_flex_of_keys_with_much_in_common_is_emptied_in_any_order() {
    is_emptied(EngineKind::Flex, SIZE / 2, 250, 50);
}
