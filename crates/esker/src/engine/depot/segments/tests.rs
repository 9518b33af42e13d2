//! The segment table, on its own.

use super::*;

const ID: SegmentId = SegmentId(2);

fn incarnation(epoch: u64) -> Incarnation {
    let epoch = SegmentEpoch(epoch);
    Incarnation { stream: Stream::Fresh, epoch, salt: epoch.0 * 77, base: Sequence(1) }
}

fn victims(segments: &Segments) -> [Option<SegmentId>; 2] {
    [true, false].map(|greedy| segments.victim(SegmentEpoch(50), 0, greedy))
}

/// A writer of the log in memory may stand still between its append and the entry, while others
/// fill the segment, write it and look for one to reuse.
#[test]
fn a_full_segment_with_a_record_that_is_not_entered_yet_is_neither_free_nor_cleaned() {
    let segments = Segments::new(4, 8192, false);
    segments.open(ID, incarnation(7));
    segments.add(ID, 100);
    segments.begin_entry(ID);
    segments.seal(ID);
    assert!(!segments.is_cleanable(ID));
    assert_eq!(victims(&segments), [None; 2]);
    segments.remove(ID, 100, Version(3));
    assert_eq!((segments.state(ID), segments.free_count()), (Use::Sealed, 0));
    segments.add(ID, 64);
    segments.end_entry(ID);
    assert!(segments.is_cleanable(ID));
    assert_eq!((segments.state(ID), segments.live_records(ID)), (Use::Sealed, 1));
    segments.remove(ID, 64, Version(4));
    assert_eq!((segments.state(ID), segments.free_count()), (Use::Free, 1));
}

#[test]
fn a_segment_whose_last_entry_is_dead_at_once_is_free() {
    let segments = Segments::new(4, 8192, false);
    segments.open(ID, incarnation(7));
    segments.begin_entry(ID);
    segments.seal(ID);
    assert_eq!(segments.free_count(), 0);
    segments.end_entry(ID);
    assert_eq!((segments.state(ID), segments.free_count()), (Use::Free, 1));
}

#[test]
fn what_is_set_aside_is_a_victim_again_in_its_next_life() {
    let segments = Segments::new(4, 8192, false);
    segments.open(ID, incarnation(7));
    segments.add(ID, 100);
    segments.seal(ID);
    assert_eq!(victims(&segments), [Some(ID); 2]);
    segments.set_aside(ID, SegmentEpoch(7));
    assert_eq!(victims(&segments), [None; 2]);
    // Whoever was late to say so said it of an earlier life.
    segments.remove(ID, 100, Version(3));
    assert_eq!(segments.take().map(|free| free.id), Some(ID));
    segments.open(ID, incarnation(8));
    segments.set_aside(ID, SegmentEpoch(7));
    segments.add(ID, 100);
    segments.seal(ID);
    assert_eq!(victims(&segments), [Some(ID); 2]);
}
