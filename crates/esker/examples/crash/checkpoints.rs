//! Scenarios of checkpoints of an open store: what they cover, and until when.

use super::scenarios::{
    Verdict, cut, device, expect, find, open, put, slow_at, without_flushes, words,
};
use super::subject::{SEGMENT_SIZE, options};
use esker::{Options, Store};
use esker_media::BlockDevice;
use esker_media::sim::{Initial, SimBlock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn usual() -> Options {
    options(u64::MAX, false)
}

fn checkpoint(store: &Store) -> Verdict {
    match store.checkpoint().map_err(words)? {
        true => Ok(()),
        false => Err("there was no checkpoint".to_owned()),
    }
}

/// The store as it is after a power cut now.
fn after_cut(of: &SimBlock) -> std::result::Result<Store, String> {
    open(&device(Initial::Recycled(cut(of))), &usual())
}

/// What a checkpoint covers is not read again, what came later is.
pub(super) fn a_checkpoint_survives() -> Verdict {
    let with = reads_of_an_open(true)?;
    let without = reads_of_an_open(false)?;
    if with < without {
        Ok(())
    } else {
        Err(format!("{with} reads with a checkpoint, {without} without"))
    }
}

fn reads_of_an_open(with: bool) -> std::result::Result<u64, String> {
    let device = device(Initial::Zeros);
    let store = open(&device, &usual())?;
    for round in 0..40_u32 {
        put(&store, "filler", &[3; 400])?;
        put(&store, &format!("key{}", round % 12), &round.to_le_bytes())?;
    }
    store.clean(64).map_err(words)?;
    if with {
        checkpoint(&store)?;
        if store.checkpoint().map_err(words)? {
            return Err("nothing was new, and there was another checkpoint".to_owned());
        }
    }
    put(&store, "key3", b"a newer value")?;
    store.delete(b"key4").map_err(words)?;
    let store = after_cut(&device)?;
    let reads = store.stats().device.reads;
    expect(&store, "key2", Some(&38_u32.to_le_bytes()))?;
    expect(&store, "key3", Some(b"a newer value"))?;
    expect(&store, "key4", None)?;
    if store.stats().items != 12 {
        return Err(format!("{} items of 12", store.stats().items));
    }
    let report = store.check().map_err(words)?;
    report.problems.first().map_or(Ok(reads), |problem| Err(problem.clone()))
}

/// Segments that a checkpoint knows are cleaned, freed and used anew.
pub(super) fn a_checkpoint_counts_for_what_stands() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &usual())?;
    put(&store, "kept", &[1; 900])?;
    put(&store, "gone", &[2; 900])?;
    for _ in 0..8 {
        put(&store, "filler", &[3; 1200])?;
    }
    store.clean(64).map_err(words)?;
    checkpoint(&store)?;
    let place = find(&device, &[1; 900])? / SEGMENT_SIZE;
    store.delete(b"gone").map_err(words)?;
    for round in 0..60_u32 {
        put(&store, &format!("more{}", round % 5), &round.to_le_bytes())?;
        put(&store, "filler", &[4; 1200])?;
        if round % 4 == 3 {
            store.clean(64).map_err(words)?;
        }
        let store = after_cut(&device)?;
        expect(&store, "kept", Some(&[1; 900]))?;
        expect(&store, "gone", None)?;
        expect(&store, "filler", Some(&[4; 1200]))?;
        expect(&store, &format!("more{}", round % 5), Some(&round.to_le_bytes()))?;
    }
    if find(&device, &[1; 900])? / SEGMENT_SIZE == place {
        return Err("the record stayed where it was".to_owned());
    }
    Ok(())
}

pub(super) fn what_was_cleared_is_not_covered() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &usual())?;
    put(&store, "a", b"1")?;
    checkpoint(&store)?;
    store.clear().map_err(words)?;
    put(&store, "b", b"2")?;
    let store = after_cut(&device)?;
    expect(&store, "a", None)?;
    expect(&store, "b", Some(b"2"))
}

/// A record is in its place in the log, and the index does not know it yet, when a checkpoint begins.
pub(super) fn a_checkpoint_waits_for_writes_under_way() -> Verdict {
    let (device, armed) = slow_at(esker::sites::depot::COMMIT_WRITE);
    let inner = Arc::clone(device.inner());
    let store = Store::open_on(device as Arc<dyn BlockDevice>, &usual()).map_err(words)?;
    put(&store, "a", b"an old value")?;
    armed.store(true, Ordering::SeqCst);
    let shared = store.clone();
    let task = esker_trt::spawn(move || put(&shared, "a", b"a new value"));
    while armed.load(Ordering::SeqCst) {
        esker_trt::yield_now();
    }
    checkpoint(&store)?;
    task.join().map_err(|error| error.to_string())??;
    let store = after_cut(&inner)?;
    expect(&store, "a", Some(b"a new value"))
}

/// What a checkpoint covers is still in memory when it begins.
pub(super) fn what_is_covered_is_durable() -> Verdict {
    let device = device(Initial::Zeros);
    let store = open(&device, &without_flushes())?;
    put(&store, "a", b"1")?;
    put(&store, "b", b"2")?;
    checkpoint(&store)?;
    let store = after_cut(&device)?;
    expect(&store, "a", Some(b"1"))?;
    expect(&store, "b", Some(b"2"))
}

/// A large value is half written when a checkpoint begins, and its key's record comes later.
pub(super) fn a_value_that_is_half_written_is_whole_later() -> Verdict {
    let (device, armed) = slow_at(esker::sites::depot::COMMIT_WRITE);
    let inner = Arc::clone(device.inner());
    let store = Store::open_on(device as Arc<dyn BlockDevice>, &usual()).map_err(words)?;
    let value: Vec<u8> = (0..4000_u32).map(|n| (n / 7) as u8).collect();
    put(&store, "a", b"an old value")?;
    let (shared, long) = (store.clone(), value.clone());
    let task = esker_trt::spawn(move || put(&shared, "large", &long));
    // One extent after the other is written.
    for _ in 0..2 {
        armed.store(true, Ordering::SeqCst);
        while armed.load(Ordering::SeqCst) {
            // Not by turns of the scheduler: the write before takes ten seconds.
            esker_trt::sleep(Duration::from_millis(1));
        }
    }
    checkpoint(&store)?;
    task.join().map_err(|error| error.to_string())??;
    put(&store, "b", b"2")?;
    let store = after_cut(&inner)?;
    expect(&store, "large", Some(&value))?;
    expect(&store, "b", Some(b"2"))?;
    let report = store.check().map_err(words)?;
    report.problems.first().map_or(Ok(()), |problem| Err(problem.clone()))
}
