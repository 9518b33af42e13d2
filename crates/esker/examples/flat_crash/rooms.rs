//! Scenarios of records that move or go while nobody writes their keys: what a crash may leave of them, and then another one.

use super::races::one_core;
use super::scenarios::{
    Verdict, cut, each_state, expect, find, flip, memory, memory_of, open, put, words,
};
use super::subject::CHUNK_SIZE;
use crate::operation::NOW;
use esker::{Attributes, Condition, Options, PutOptions, Store};
use esker_base::clock::ManualClock;
use esker_media::sim::{Initial, SimPm};
use std::sync::Arc;

/// Size of a scenario's memory in bytes.
const SIZE: u64 = super::scenarios::SIZE;
/// Most states of one crash point.
const STATES: usize = 16;
/// Records of which a chunk holds six.
const RECORD: usize = 300;

fn record(number: u8) -> [u8; RECORD] {
    [number; RECORD]
}

/// Two chunks with a record each.
fn two_chunks(store: &Store) -> Verdict {
    (0..12).try_for_each(|n| put(store, &format!("record{n:02}"), &record(n)))?;
    let mut others = (0..12).filter(|n| n % 6 > 0);
    others
        .try_for_each(|n| store.delete(format!("record{n:02}").as_bytes()).map(drop).map_err(words))
}

fn both_stand(store: &Store) -> Verdict {
    expect(store, "record00", Some(&record(0)))?;
    expect(store, "record06", Some(&record(6)))?;
    expect(store, "record01", None)
}

/// Opens what each crash from `from` on may leave, lets others have what is free there, and crashes once more.
fn twice(
    memory: &SimPm,
    from: u64,
    between: impl Fn(&SimPm) -> Verdict,
    judge: impl Fn(&Store) -> Verdict,
) -> Verdict {
    each_state(memory, from, STATES, |image| {
        let memory = memory_of(SIZE, Initial::Recycled(image));
        let store = open(&memory, &one_core())?;
        judge(&store)?;
        for n in 0..12 {
            put(&store, &format!("later{n}"), &record(100 + n))?;
        }
        let memory = cut(&memory);
        between(&memory)?;
        let store = open(&memory, &one_core())?;
        judge(&store)?;
        (0..12).try_for_each(|n| expect(&store, &format!("later{n}"), Some(&record(100 + n))))?;
        let report = store.check().map_err(words)?;
        report.problems.first().map_or(Ok(()), |problem| Err(problem.clone()))
    })
}

/// Records move to another chunk, and their entries to a chunk of the cleaner that is older than the one they stood in.
pub(super) fn a_record_moves_whole() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &one_core())?;
    for number in 0..7 {
        put(&store, &format!("kept{number}"), &[1; 200])?;
    }
    put(&store, "kept0", &[2; 200])?;
    if store.clean(1).map_err(words)? != 1 {
        return Err("nothing was cleaned".to_owned());
    }
    two_chunks(&store)?;
    let (from, free) = (memory.position(), store.stats().free_segments);
    store.clean(64).map_err(words)?;
    if store.stats().free_segments <= free {
        return Err("no chunk came free".to_owned());
    }
    twice(&memory, from, |_| Ok(()), both_stand)
}

/// A checkpoint has entries whose records move afterwards, so that recovery takes the originals for those that count, and then another
/// recovery, without the checkpoint, their copies.
pub(super) fn a_record_that_moved_stays_while_both_entries_do() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &one_core())?;
    two_chunks(&store)?;
    store.checkpoint().map_err(words)?;
    let (from, free) = (memory.position(), store.stats().free_segments);
    store.clean(64).map_err(words)?;
    if store.stats().free_segments <= free {
        return Err("no chunk came free".to_owned());
    }
    let damage = |memory: &SimPm| flip(memory, find(memory, b"ESKI")? + 8);
    twice(&memory, from, damage, both_stand)
}

fn timed(now: u64) -> Options {
    let mut options = one_core();
    options.clock = Arc::new(ManualClock::new(now));
    options
}

/// A value has expired and is cleaned, while the one before it is still on media.
pub(super) fn what_has_expired_leaves_nothing_older() -> Verdict {
    let memory = memory(Initial::Zeros);
    let long = "long".repeat(75);
    let store = open(&memory, &timed(NOW))?;
    let expiring = |key: &str, value: &[u8]| {
        let attributes = Attributes { expires_at: Some(NOW + 10), ..Attributes::default() };
        let options = PutOptions { attributes, condition: Condition::Always };
        store.put_with(key.as_bytes(), value, options).map(drop).map_err(words)
    };
    for key in ["short", &long] {
        put(&store, key, &record(1))?;
    }
    // So that the older ones stay where they are.
    for number in 0..7 {
        put(&store, &format!("kept{number}"), &[1; 200])?;
    }
    for key in ["short", &long] {
        expiring(key, &record(2))?;
    }
    for number in 0..16 {
        put(&store, "filler", &[number; 200])?;
    }
    drop(store);
    let store = open(&memory, &timed(NOW + 10))?;
    let from = memory.position();
    store.clean(64).map_err(words)?;
    let chunk = |byte| find(&memory, &record(byte)).map(|place| place / CHUNK_SIZE);
    if chunk(1).is_err() {
        return Err("the older ones are gone from the media".to_owned());
    }
    each_state(&memory, from, STATES, |image| {
        let memory = memory_of(SIZE, Initial::Recycled(image));
        for _ in 0..2 {
            // The clock jumped back.
            let store = open(&cut(&memory), &timed(NOW))?;
            for key in ["short", &long] {
                let found = store.get(key.as_bytes()).map_err(words)?;
                if found.is_some_and(|value| *value != record(2)) {
                    return Err("an older value came back".to_owned());
                }
            }
            store.clean(64).map_err(words)?;
        }
        Ok(())
    })
}
