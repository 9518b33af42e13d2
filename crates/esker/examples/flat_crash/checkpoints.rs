//! Scenarios of checkpoints of an open store: what they cover, and until when.

use super::races::{Slow, one_core};
use super::scenarios::{Verdict, cut, expect, find, flip, memory, open, put, usual, words};
use super::subject::CHUNK_SIZE;
use esker_media::Pmem;
use esker_media::sim::Initial;

/// A checkpoint is found after a power cut: what it covers of the logs, some of it damaged, is not read.
pub(super) fn a_checkpoint_survives() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "key00001", b"value of 1")?;
    put(&store, "key00001", b"value of 2")?;
    put(&store, "key00001", b"value of 3")?;
    if !store.checkpoint().map_err(words)? {
        return Err("there was no checkpoint".to_owned());
    }
    let memory = cut(&memory);
    flip(&memory, find(&memory, b"value of 1")?)?;
    let store = open(&memory, &usual())?;
    expect(&store, "key00001", Some(b"value of 3"))?;
    put(&store, "key00002", b"value of 4")?;
    let store = open(&cut(&memory), &usual())?;
    expect(&store, "key00001", Some(b"value of 3"))?;
    expect(&store, "key00002", Some(b"value of 4"))
}

/// Chunks that a checkpoint knows are cleaned, freed and used anew.
pub(super) fn a_checkpoint_counts_for_what_stands() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &one_core())?;
    put(&store, "kept0000", &[1; 40])?;
    put(&store, "gone0000", &[2; 40])?;
    for _ in 0..10 {
        put(&store, "filler00", &[3; 180])?;
    }
    if !store.checkpoint().map_err(words)? {
        return Err("there was no checkpoint".to_owned());
    }
    let place = find(&memory, &[1; 40])? / CHUNK_SIZE * CHUNK_SIZE;
    let epoch = |memory: &dyn Pmem| memory.load_u64(place + 8).map_err(words);
    let before = epoch(&*memory)?;
    store.delete(b"gone0000").map_err(words)?;
    for round in 0..400_u32 {
        put(&store, &format!("more{:04}", round % 9), &round.to_le_bytes())?;
        put(&store, "filler00", &[4; 180])?;
        if round % 16 == 15 {
            store.clean(64).map_err(words)?;
        }
        if round % 40 == 0 || epoch(&*memory)? != before && round % 8 == 0 {
            let store = open(&cut(&memory), &one_core())?;
            expect(&store, "kept0000", Some(&[1; 40]))?;
            expect(&store, "gone0000", None)?;
            expect(&store, "filler00", Some(&[4; 180]))?;
            expect(&store, &format!("more{:04}", round % 9), Some(&round.to_le_bytes()))?;
        }
    }
    if epoch(&*memory)? == before { Err("the chunk stayed".to_owned()) } else { Ok(()) }
}

pub(super) fn what_was_cleared_is_not_covered() -> Verdict {
    let memory = memory(Initial::Zeros);
    let store = open(&memory, &usual())?;
    put(&store, "a", b"1")?;
    store.checkpoint().map_err(words)?;
    store.clear().map_err(words)?;
    put(&store, "b", b"2")?;
    let store = open(&cut(&memory), &usual())?;
    expect(&store, "a", None)?;
    expect(&store, "b", Some(b"2"))
}

/// An entry is in its log, and the index does not follow it yet, when a checkpoint begins.
pub(super) fn a_checkpoint_waits_for_writes_under_way() -> Verdict {
    let memory = memory(Initial::Zeros);
    let slow = Slow::new(&memory, None);
    let store = slow.open(&one_core())?;
    put(&store, "slow0000", &[5; 300])?;
    slow.arm_read(96);
    let shared = store.clone();
    let task = esker_trt::spawn(move || put(&shared, "slow0000", &[6; 300]));
    slow.wait()?;
    store.checkpoint().map_err(words)?;
    task.join().map_err(|error| error.to_string())??;
    let store = open(&cut(&memory), &one_core())?;
    expect(&store, "slow0000", Some(&[6; 300]))
}
