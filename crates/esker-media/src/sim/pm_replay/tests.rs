//! Crash states of persistent memory, enumerated and by chance.

use super::*;
use crate::pmem::Pmem;
use crate::sim::{SimPm, SimPmOptions};
use esker_base::SiteKind;
use std::collections::{BTreeSet, HashSet};

const STORE: Site = Site::new("test.pmreplay.store", SiteKind::Write);
const FLUSH: Site = Site::new("test.pmreplay.flush", SiteKind::Flush);
const FENCE: Site = Site::new("test.pmreplay.fence", SiteKind::Fence);

fn memory() -> SimPm {
    SimPm::new(SimPmOptions::new(4096, 1))
}

/// Values of these words in every state that a crash at the end may leave.
fn outcomes<const N: usize>(memory: &SimPm, words: [u32; N]) -> BTreeSet<[u64; N]> {
    let trace = memory.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    let states = replay.states(1000, 5);
    assert!(states.is_exhaustive());
    states
        .map(|state| {
            let image = state.image();
            assert_eq!(state.hash(), pm_image_hash(&image));
            words.map(|word| read_word(&image, word))
        })
        .collect()
}

#[test]
fn stores_of_one_line_survive_as_a_prefix_and_lines_by_themselves() {
    let memory = memory();
    memory.store_u64(STORE, 0, 1).unwrap();
    memory.store_u64(STORE, 8, 2).unwrap();
    memory.store_u64(STORE, 64, 3).unwrap();
    let found = outcomes(&memory, [0, 1, 8]);
    let expected =
        [[0, 0, 0], [1, 0, 0], [1, 2, 0], [0, 0, 3], [1, 0, 3], [1, 2, 3]].into_iter().collect();
    assert_eq!(found, expected);
}

#[test]
fn a_flush_alone_settles_nothing_and_with_a_fence_its_prefix() {
    let memory = memory();
    memory.store_u64(STORE, 0, 1).unwrap();
    memory.flush(FLUSH, 0, 8).unwrap();
    assert_eq!(outcomes(&memory, [0]), BTreeSet::from([[0], [1]]));
    memory.store_u64(STORE, 8, 2).unwrap();
    memory.fence(FENCE).unwrap();
    assert_eq!(outcomes(&memory, [0, 1]), BTreeSet::from([[1, 0], [1, 2]]), "stored too late");
    memory.fence(FENCE).unwrap();
    assert_eq!(outcomes(&memory, [0, 1]).len(), 2, "a fence without a flush does nothing");
}

#[test]
fn non_temporal_words_survive_in_any_subset_until_the_fence() {
    let memory = memory();
    memory.ntstore(STORE, 0, &[1; 24]).unwrap();
    assert_eq!(outcomes(&memory, [0, 1, 2]).len(), 8);
    memory.fence(FENCE).unwrap();
    assert_eq!(outcomes(&memory, [0, 1, 2]).len(), 1);
}

#[test]
fn an_older_store_does_not_undo_a_newer_durable_one() {
    let memory = memory();
    memory.store_u64(STORE, 0, 1).unwrap();
    memory.ntstore(STORE, 0, &2_u64.to_le_bytes()).unwrap();
    memory.fence(FENCE).unwrap();
    assert_eq!(outcomes(&memory, [0]), BTreeSet::from([[2]]));
}

#[test]
fn another_threads_fence_does_not_cover_this_flush() {
    let memory = memory();
    memory.store_u64(STORE, 0, 1).unwrap();
    memory.flush(FLUSH, 0, 8).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| memory.fence(FENCE).unwrap());
    });
    assert_eq!(outcomes(&memory, [0]).len(), 2);
    memory.fence(FENCE).unwrap();
    assert_eq!(outcomes(&memory, [0]).len(), 1);
}

#[test]
fn a_store_of_several_words_may_be_torn_in_either_direction() {
    let mut found = BTreeSet::new();
    for seed in 0..20 {
        let memory = SimPm::new(SimPmOptions::new(4096, seed));
        memory.store(STORE, 0, &[1; 16]).unwrap();
        found.extend(outcomes(&memory, [0, 1]).into_iter().map(|words| words.map(|word| word > 0)));
    }
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn many_lines_are_sampled_without_doubling() {
    let memory = memory();
    for word in 0..200 {
        memory.store_u64(STORE, word * 8, word + 1).unwrap();
    }
    let trace = memory.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    let states = replay.states(500, 3);
    assert!(!states.is_exhaustive());
    assert_eq!(states.state(0).image(), *replay.durable());
    assert_eq!(states.state(1).image(), memory.image());
    assert_eq!(states.state(77).hash(), replay.states(500, 3).state(77).hash());
    let hashes: HashSet<u128> = states.map(|state| state.hash()).collect();
    assert!(hashes.len() > 480, "{}", hashes.len());
}

/// More than states are asked for: those of single lines leave room for others.
#[test]
fn of_many_lines_few_states_are_mixed_and_torn_too() {
    let memory = memory();
    for word in 0..64 * 8 {
        memory.store_u64(STORE, word * 8, word + 1).unwrap();
    }
    let trace = memory.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    let (mut mixed, mut torn, mut single) = (0, 0, 0);
    for state in replay.states(40, 3) {
        let bytes = state.image().to_vec();
        let survived = |line: &[u8]| line.chunks(8).filter(|word| **word != [0; 8]).count();
        let lines: Vec<usize> = bytes[..64 * 64].chunks(64).map(survived).collect();
        let whole = lines.iter().filter(|words| **words == 8).count();
        single += usize::from(whole == 1 || whole == 63);
        mixed += usize::from((4..60).contains(&whole));
        torn += usize::from(lines.iter().any(|words| (1..8).contains(words)));
    }
    assert!(mixed > 8 && torn > 8 && single > 8, "{mixed} {torn} {single}");
}

/// Each task may have a core for itself.
#[test]
fn a_fence_covers_no_flush_of_another_task() {
    for same in [false, true] {
        let memory = std::sync::Arc::new(memory());
        let within = std::sync::Arc::clone(&memory);
        let run = esker_trt::sim::run(1, move || {
            within.store_u64(STORE, 0, 1).unwrap();
            within.flush(FLUSH, 0, 8).unwrap();
            if same {
                within.fence(FENCE).unwrap();
            } else {
                esker_trt::spawn(move || within.fence(FENCE).unwrap()).join().unwrap();
            }
        });
        run.outcome.unwrap();
        let expected = if same { BTreeSet::from([[1]]) } else { BTreeSet::from([[0], [1]]) };
        assert_eq!(outcomes(&memory, [0]), expected);
    }
}
