//! Large values, on their own.

use super::directory::LOOKED_AT;
use super::*;
use crate::engine::flex::{opened_in, opened_with};
use crate::engine::{Cursor, Engine};
use crate::options::{Durability, EngineKind, Options};
use crate::value::PutOptions;
use esker_base::ErrorKind;

#[test]
fn a_value_that_goes_while_it_is_verified_is_no_damage_of_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_in(&folder);
    for number in 0..3_u8 {
        let value = vec![number; 300_000];
        flex.put(&[number], &value, PutOptions::default()).unwrap();
    }
    let mut reading = Reading::default();
    let read = flex.verify_piece(&mut reading, 1).unwrap();
    assert_eq!((read, reading.at), (Some(PIECE_BYTES_MIN), PIECE_BYTES_MIN));
    flex.remove_large(reading.number).unwrap();
    let mut verified = 0;
    while let Some(read) = flex.verify_piece(&mut reading, 1).unwrap() {
        verified += read;
    }
    assert_eq!(verified, 600_000);
}

#[test]
fn two_who_remove_one_value_take_nothing_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_in(&folder);
    let others = [0, 1].map(|number| vec![number; 300_000]);
    for value in &others {
        flex.put(&value[..1], value, PutOptions::default()).unwrap();
    }
    let (first, _) = flex.large.next(0).unwrap();
    let (last, _) = flex.large.next(first + 1).unwrap();
    for round in 0..40 {
        flex.put(b"victim", &vec![7; 200_000], PutOptions::default()).unwrap();
        let (victim, _) = flex.large.next(last + 1).unwrap();
        let at_once = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    at_once.wait();
                    flex.remove_large(victim).unwrap();
                });
            }
        });
        for value in &others {
            let found = flex.get(&value[..1], &mut |_| Ok(())).unwrap();
            assert!(found.is_some_and(|found| *found == value[..]), "round {round}");
        }
    }
}

#[test]
fn a_pair_that_says_another_length_is_damage_before_there_is_memory_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_in(&folder);
    let value = vec![7; 2 << 20];
    flex.put(b"key", &value, PutOptions::default()).unwrap();
    let (number, length) = flex.large.next(0).unwrap();
    let read = |number, length| flex.read_large(number, length, &mut |_| Ok(()));
    assert_eq!(read(number, length).unwrap(), Some(value));
    for other in [length - 1, length + 1, 1 << 62, u64::MAX] {
        assert_eq!(read(number, other).unwrap_err().kind(), ErrorKind::Corrupted, "{other}");
    }
    assert_eq!(read(number + 1, 1 << 62).unwrap(), None);
}

/// However large the values are, a part of a walk holds few of them.
#[test]
fn a_part_of_a_walk_holds_no_more_than_some_values() {
    const COUNT: u32 = 200;
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 256 << 20;
    options.durability = Durability::None;
    options.testing.background = false;
    let flex = Flex::open(&options).unwrap();
    let (value, large) = (vec![7; 300 << 10], vec![8; 2 << 20]);
    for number in 0..COUNT {
        let value = if number % 20 == 0 { &large } else { &value };
        flex.put(&number.to_be_bytes(), value, PutOptions::default()).unwrap();
    }
    let (mut cursor, mut keys, mut left_out) = (Some(Cursor::Start), 0, 0);
    while let Some(from) = cursor {
        let (items, next) = flex.walk_part(&from).unwrap();
        let mut held = 0;
        for item in items {
            let (key, value) = item.unwrap();
            assert_eq!(key, u32::to_be_bytes(keys));
            keys += 1;
            left_out += u32::from(value.is_none());
            held += value.map_or(0, |value| value.memory_bytes());
        }
        assert!(held < (8 << 20) + (512 << 10), "{held} bytes");
        cursor = next;
    }
    assert!(keys == COUNT && left_out > COUNT / 20, "{keys} keys, {left_out} without a value");
    flex.close().unwrap();
}

/// What a table costs does not grow with the values that it does not concern.
#[test]
fn a_table_looks_at_the_values_of_its_keys_and_no_others() {
    const COUNT: u32 = 300;
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_with(&folder, Durability::None);
    let put = |key: &[u8], value: &[u8]| {
        flex.put(key, value, PutOptions::default()).unwrap();
    };
    let looks_of_a_table = || {
        let before = LOOKED_AT.get();
        let generation = flex.tables().active.generation;
        flex.change_table(generation).unwrap();
        assert!(flex.commit_sealed().unwrap());
        LOOKED_AT.get() - before
    };
    (0..COUNT).for_each(|number| put(&number.to_be_bytes(), &[7; 2000]));
    assert!(looks_of_a_table() >= COUNT as usize);
    put(b"another key", b"value");
    assert_eq!(looks_of_a_table(), 0);
    // Those that it concerns go.
    let size = flex.large.size_bytes();
    put(&5_u32.to_be_bytes(), b"small");
    assert!((1..3).contains(&looks_of_a_table()));
    assert_eq!((flex.large.count(), flex.large.size_bytes() < size), (COUNT as usize - 1, true));
    // What a snapshot sees is asked about again when it goes.
    let snapshot = flex.snapshot().unwrap();
    put(&6_u32.to_be_bytes(), b"small");
    put(&7_u32.to_be_bytes(), &[8; 3000]);
    looks_of_a_table();
    assert_eq!(flex.large.count(), COUNT as usize);
    put(b"another key", b"value");
    assert_eq!(looks_of_a_table(), 0);
    flex.release(snapshot);
    put(b"another key", b"value");
    assert_eq!((looks_of_a_table(), flex.large.count()), (2, COUNT as usize - 2));
    // Of a deleted range nobody knows the keys.
    flex.delete_range(&100_u32.to_be_bytes(), Some(&200_u32.to_be_bytes())).unwrap();
    assert!(looks_of_a_table() >= COUNT as usize - 2);
    assert_eq!(flex.large.count(), COUNT as usize - 102);
    flex.close().unwrap();
}

/// An open finds values of which nobody knows whether a pair names them: who opens a store does not wait for all to be asked about.
#[test]
fn a_table_behind_an_open_asks_about_few_of_the_values_that_were_found() {
    const COUNT: u32 = 300;
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_with(&folder, Durability::None);
    for number in 0..COUNT {
        flex.put(&number.to_be_bytes(), &[7; 2000], PutOptions::default()).unwrap();
    }
    flex.close().unwrap();
    drop(flex);
    let flex = opened_with(&folder, Durability::None);
    flex.put(b"another key", b"value", PutOptions::default()).unwrap();
    let before = LOOKED_AT.get();
    flex.commit_all().unwrap();
    let looks = LOOKED_AT.get() - before;
    assert!(looks < COUNT as usize / 2, "{looks} of {COUNT}");
    assert_eq!(flex.large.count(), COUNT as usize);
    flex.close().unwrap();
}

#[test]
fn parts_of_a_walk_over_all_values_leave_none_out() {
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_with(&folder, Durability::None);
    for number in 0..20_u32 {
        flex.put(&number.to_be_bytes(), &[7; 2000], PutOptions::default()).unwrap();
    }
    flex.large.doubt_all();
    for at_once in [1, 3, 20, 100] {
        let (mut all, mut doubtful) = (Vec::new(), Vec::new());
        flex.large.visit(at_once, |large| all.push(large.head.number));
        flex.large.visit_doubtful(at_once, |large| doubtful.push(large.head.number));
        assert!(all.len() == 20 && all.is_sorted() && all == doubtful, "{all:?} {doubtful:?}");
    }
    flex.close().unwrap();
}

/// Those of a table that was in no log came last.
#[test]
fn of_the_large_values_that_an_open_found_the_last_are_asked_about_first() {
    const COUNT: usize = 300;
    const LOST: usize = 10;
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_with(&folder, Durability::None);
    let put = |number: usize| {
        flex.put(&number.to_be_bytes(), &[7; 1001], PutOptions::default()).unwrap();
    };
    (0..COUNT).for_each(put);
    flex.commit_all().unwrap();
    (COUNT..COUNT + LOST).for_each(put);
    drop(flex);
    let flex = opened_with(&folder, Durability::None);
    assert_eq!(flex.large.count(), COUNT + LOST);
    flex.compact(0).unwrap();
    assert!(flex.large.has_unasked(), "who wants no room asks about none");
    flex.put(b"key", b"value", PutOptions::default()).unwrap();
    flex.commit_all().unwrap();
    assert_eq!(flex.large.count(), COUNT, "they are among the first that a table asks about");
}

#[test]
fn of_the_large_values_that_an_open_found_none_is_asked_about_twice_where_nothing_can_be_read() {
    const COUNT: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let flex = opened_with(&folder, Durability::None);
    for number in 0..COUNT {
        flex.put(&number.to_be_bytes(), &[7; 1001], PutOptions::default()).unwrap();
    }
    flex.commit_all().unwrap();
    flex.close().unwrap();
    drop(flex);
    let flex = opened_with(&folder, Durability::None);
    let leaf = flex.index.neighbours(b"", (0, 0), &|_, _| true);
    assert_eq!(leaf.upper, None, "there is one");
    let whole = vec![0x55; usize::try_from(leaf.size_bytes()).unwrap()];
    flex.space.write(ROOT_BYTES + leaf.offset, &whole).unwrap();
    let committer = flex.committer.lock();
    let before = LOOKED_AT.get();
    while flex.collect_found(&committer.root).unwrap() {}
    let looks = LOOKED_AT.get() - before;
    assert!(!flex.large.has_unasked() && looks <= COUNT, "{looks} of {COUNT}");
    let mut doubtful = 0;
    flex.large.visit_doubtful(1, |_| doubtful += 1);
    assert_eq!((doubtful, flex.large.count()), (COUNT, COUNT), "nobody knows of any");
}
