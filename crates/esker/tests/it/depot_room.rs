//! A full `depot`: what frees room always works, whatever copies take, and the room comes back.

use crate::support::{open, options};
use esker::{Durability, ErrorKind, Options, Store};
use esker_base::rng::Rng;
use esker_media::sim::{SimBlock, SimBlockOptions};
use std::sync::Arc;

/// With segments of 128 KiB there are 63 of them.
const SIZE: u64 = 8 << 20;
const SEGMENT: u64 = 128 << 10;

fn store(seed: u64, durability: Durability) -> (Store, Arc<SimBlock>, Options) {
    let mut inner = SimBlockOptions::new(SIZE, seed);
    (inner.record, inner.latency_max) = (false, std::time::Duration::ZERO);
    let device = Arc::new(SimBlock::new(inner));
    let mut options = options(seed);
    options.durability = durability;
    options.testing.segment_size_bytes = Some(SEGMENT);
    (open(&device, &options).unwrap(), device, options)
}

/// Puts keys from 0 on until there is no room; gives their number.
fn fill(store: &Store, value_size: usize) -> u32 {
    let value = vec![5; value_size];
    for number in 0..u32::MAX {
        match store.put(&number.to_be_bytes(), &value) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => return number,
            Err(error) => panic!("put {number}: {error}"),
        }
    }
    u32::MAX
}

fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut rng = Rng::from_seed(seed);
    let mut numbers: Vec<u32> = (0..count).collect();
    for place in (1..numbers.len()).rev() {
        numbers.swap(place, rng.index(place + 1));
    }
    numbers
}

/// Fills a store, deletes all in any order, and fills it again.
fn is_emptied(durability: Durability, value_size: usize) {
    let context = format!("{durability:?}, values of {value_size} bytes");
    let (store, _, _) = store(1, durability);
    let full = fill(&store, value_size);
    let bytes = u64::from(full) * (4 + value_size as u64);
    if value_size >= 50 {
        assert!(bytes > SIZE / 10 * 6, "{context}: {bytes} bytes");
    }
    for (count, number) in shuffled(full, 2).into_iter().enumerate() {
        let deleted = store.delete(&number.to_be_bytes());
        let deleted =
            deleted.unwrap_or_else(|error| panic!("{context}, {count} of {full}: {error}"));
        assert!(deleted, "{context}: {number}");
    }
    assert_eq!(store.stats().items, 0, "{context}");
    let again = fill(&store, value_size);
    assert!(u64::from(again) * 100 >= u64::from(full) * 95, "{context}: {again} after {full}");
    // What is full can be cleared as well.
    store.clear().unwrap();
    let again = fill(&store, value_size);
    assert!(u64::from(again) * 100 >= u64::from(full) * 95, "{context}: {again} after {full}");
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{context}: {:?}", report.problems);
}

#[test]
fn a_full_store_can_be_emptied_in_any_order_and_filled_again() {
    [0, 50, 1000].into_iter().for_each(|size| is_emptied(Durability::None, size));
}

#[test]
fn a_full_store_can_be_emptied_one_durable_delete_at_a_time() {
    [50, 1000].into_iter().for_each(|size| is_emptied(Durability::Sync, size));
}

/// What a crash or a new session finds of a full store can be emptied as well.
#[test]
fn a_full_store_can_be_emptied_after_it_was_opened_again() {
    let (full, device, options) = store(3, Durability::None);
    let count = fill(&full, 50);
    full.write_out().unwrap();
    full.forget();
    let store = open(&device, &options).unwrap();
    let numbers = shuffled(count, 4);
    let (first, rest) = numbers.split_at(numbers.len() / 100);
    for number in first {
        assert!(store.delete(&number.to_be_bytes()).unwrap());
    }
    store.write_out().unwrap();
    store.forget();
    let store = open(&device, &options).unwrap();
    for (place, number) in rest.iter().enumerate() {
        let deleted = store.delete(&number.to_be_bytes());
        assert!(deleted.unwrap_or_else(|error| panic!("{place} of {count}: {error}")));
    }
    let again = fill(&store, 50);
    assert!(again * 100 >= count * 95, "{again} after {count}");
}

/// Of small records that were written once as many fit as of those that were moved again and again: what was
/// accepted can be overwritten.
fn is_written_over(percent: u64, value_size: usize) {
    let (store, _, _) = store(5, Durability::None);
    // What a record takes with its key, and its part of summary and batch.
    let count = u32::try_from(SIZE / 100 * percent / (value_size as u64 + 20)).unwrap();
    let mut rng = Rng::from_seed(6);
    let value = vec![6; value_size];
    for number in 0..count * 4 {
        let any = u32::try_from(rng.below(u64::from(count))).unwrap();
        let key = if number < count { number } else { any };
        let done = store.put(&key.to_be_bytes(), &value);
        done.unwrap_or_else(|error| panic!("put {number} of {count}, {value_size}: {error}"));
    }
    assert_eq!(store.stats().items, u64::from(count));
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

#[test]
fn small_records_are_written_over_again_and_again() {
    is_written_over(75, 50);
    is_written_over(80, 100);
}
