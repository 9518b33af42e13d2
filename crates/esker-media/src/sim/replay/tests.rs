//! Crash states of a block device, enumerated and by chance.

use super::*;
use crate::block::BlockDevice;
use crate::sim::{SimBlock, SimBlockOptions};
use esker_base::SiteKind;
use std::collections::{BTreeSet, HashSet};
use std::io::IoSlice;

const WRITE: Site = Site::new("test.replay.write", SiteKind::Write);
const DURABLE: Site = Site::new("test.replay.durable", SiteKind::DurableWrite);
const FLUSH: Site = Site::new("test.replay.flush", SiteKind::Flush);

fn device() -> SimBlock {
    SimBlock::new(SimBlockOptions::new(16 << 10, 1))
}

fn put(device: &SimBlock, block: u64, bytes: &[u8]) {
    let data: Vec<u8> = bytes.iter().flat_map(|byte| [*byte; 512]).collect();
    device.write_at(WRITE, block * 512, &[IoSlice::new(&data)]).unwrap();
}

/// First bytes of the first `count` blocks.
fn blocks(image: &Image, count: usize) -> Vec<u8> {
    image.to_vec().chunks(512).take(count).map(|block| block[0]).collect()
}

/// What the first `count` blocks may be after a crash at the end of the trace.
fn outcomes(trace: &Trace, count: usize) -> BTreeSet<Vec<u8>> {
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    let states = replay.states(1000, 5);
    assert!(states.is_exhaustive());
    states.map(|state| blocks(&state.image(), count)).collect()
}

#[test]
fn an_unflushed_write_survives_in_any_part_and_a_flushed_one_whole() {
    let device = device();
    put(&device, 0, &[1, 2, 3]);
    let torn = outcomes(&device.trace(), 3);
    assert_eq!(torn.len(), 8);
    assert!(torn.contains(&vec![0, 2, 0]) && torn.contains(&vec![1, 0, 3]));
    device.flush(FLUSH).unwrap();
    assert_eq!(outcomes(&device.trace(), 3), BTreeSet::from([vec![1, 2, 3]]));
}

#[test]
fn overlapping_writes_leave_either() {
    let device = device();
    put(&device, 0, &[1, 1]);
    put(&device, 1, &[2, 2]);
    let found = outcomes(&device.trace(), 3);
    let middle: BTreeSet<u8> = found.iter().map(|blocks| blocks[1]).collect();
    assert_eq!(middle, BTreeSet::from([0, 1, 2]));
    device.flush(FLUSH).unwrap();
    assert_eq!(outcomes(&device.trace(), 3), BTreeSet::from([vec![1, 2, 2]]));
}

#[test]
fn a_durable_write_settles_its_own_bytes_only() {
    let device = device();
    put(&device, 0, &[1, 1]);
    device.write_durable_at(DURABLE, 512, &[IoSlice::new(&[2; 512])]).unwrap();
    let found = outcomes(&device.trace(), 2);
    assert_eq!(found, BTreeSet::from([vec![0, 2], vec![1, 2]]), "the old write is gone there");
}

#[test]
fn a_write_that_returned_after_the_flush_began_is_not_covered() {
    let device = device();
    put(&device, 0, &[1]);
    device.flush(FLUSH).unwrap();
    let mut trace = device.trace();
    // The same calls, but the write returns between the flush's begin and its end.
    assert_eq!(trace.events.len(), 4);
    trace.events.swap(1, 2);
    for (event, stamp) in trace.events.iter_mut().zip(1..) {
        event.stamp = stamp;
    }
    assert_eq!(outcomes(&trace, 1), BTreeSet::from([vec![0], vec![1]]));
}

#[test]
fn a_discard_is_never_settled_until_it_is_overwritten() {
    let device = device();
    put(&device, 0, &[7, 7]);
    device.flush(FLUSH).unwrap();
    device.discard(WRITE, 0, 1024).unwrap();
    device.flush(FLUSH).unwrap();
    assert_eq!(outcomes(&device.trace(), 2).len(), 4, "old, zeros, or a mix");
    put(&device, 0, &[8, 8]);
    device.flush(FLUSH).unwrap();
    assert_eq!(outcomes(&device.trace(), 2), BTreeSet::from([vec![8, 8]]));
}

#[test]
fn hashes_tell_images_apart_and_only_images() {
    let device = SimBlock::new(SimBlockOptions::new(16 << 10, 3));
    for round in 0..4_u8 {
        for block in 0..6 {
            put(&device, block, &[round, round ^ 1]);
        }
        if round == 1 {
            device.flush(FLUSH).unwrap();
        }
    }
    let trace = device.trace();
    let mut replay = trace.replay();
    let (mut hashes, mut images) = (HashSet::new(), HashSet::new());
    while replay.step() {
        for state in replay.states(60, 11) {
            let image = state.image();
            assert_eq!(state.hash(), image.hash(512));
            hashes.insert(state.hash());
            images.insert(image.to_vec());
        }
    }
    assert_eq!(hashes.len(), images.len());
    assert!(hashes.len() > 300, "{}", hashes.len());
}

#[test]
fn states_replay_by_number() {
    let device = device();
    for block in 0..12 {
        put(&device, block, &[1, 2, 3]);
    }
    let trace = device.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    let all: Vec<u128> = replay.states(300, 9).map(|state| state.hash()).collect();
    let mut again = replay.states(300, 9);
    assert!(!again.is_exhaustive());
    assert_eq!(again.state(200).hash(), all[200]);
    assert_eq!(all.len(), 300);
    assert_eq!(all[0], replay.durable().hash(512), "state 0 keeps nothing");
    assert_eq!(all[1], device.image().hash(512), "state 1 keeps all");
    assert!(all.iter().collect::<HashSet<_>>().len() > 200);
    assert!(all[200] != 0 && !again.state(200).describe().is_empty());
}

#[test]
fn a_bit_that_turned_over_stays_so_after_the_crash() {
    let mut trace = device().trace();
    let kind = EventKind::Flip { offset: 700, bit: 2 };
    trace.events.push(super::super::trace::Event { stamp: 1, kind });
    let mut replay = trace.replay();
    assert!(replay.step() && !replay.step());
    assert_eq!(replay.durable().to_vec()[700], 4);
    assert_eq!(replay.hash, replay.durable().hash(512));
}

#[test]
fn a_device_that_grew_has_the_old_size_or_the_new_one_with_zeros() {
    let mut options = SimBlockOptions::new(1024, 3);
    options.size_bytes_max = 4096;
    let device = SimBlock::new(options);
    device.reserve(WRITE, 1024, 1024).unwrap();
    device.write_at(WRITE, 1536, &[IoSlice::new(&[7; 512])]).unwrap();
    assert_eq!(device.geometry().size_bytes, 2048);
    assert!(device.reserve(WRITE, 4096, 512).is_err(), "longer than it can be");
    let trace = device.trace();
    let mut replay = trace.replay();
    assert_eq!(replay.durable().size_bytes(), 1024);
    replay.advance_to(u64::MAX);
    let states: Vec<_> =
        replay.states(8, 1).map(|state| (state.image().to_vec(), state.hash())).collect();
    assert_eq!(states.len(), 2);
    for (bytes, hash) in states {
        assert_eq!(bytes.len(), 2048);
        assert!(bytes[1536..].iter().all(|byte| *byte == bytes[1536]), "{:?}", bytes[1536]);
        assert_eq!(Image::from_bytes(&bytes).hash(512), hash);
    }
}
