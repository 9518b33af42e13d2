//! The segment table, on its own.

use super::*;
use crate::engine::expiries::Expiries;

const ID: SegmentId = SegmentId(2);

fn incarnation(epoch: u64) -> Incarnation {
    let epoch = SegmentEpoch(epoch);
    Incarnation { stream: Stream::Fresh, epoch, salt: epoch.0 * 77, base: Sequence(1) }
}

/// A record of a value that takes so many bytes.
fn of(bytes: u64) -> Live {
    Live { records: 1, bytes, items: true, tombstones: 0 }
}

fn add(segments: &Segments, id: SegmentId, bytes: u64) {
    segments.restore_live(id, of(bytes));
    segments.add_written(id, Written { bytes, ..Written::default() });
}

fn remove(segments: &Segments, id: SegmentId, bytes: u64, by: Version) {
    segments.remove_live(id, of(bytes), by);
}

fn victims(segments: &Segments) -> [Option<SegmentId>; 2] {
    [Urgency::Full, Urgency::Ahead]
        .map(|urgency| segments.victim(SegmentEpoch(50), 0, urgency, &[]))
}

/// A writer of the log in memory may stand still between its append and the entry, while others
/// fill the segment, write it and look for one to reuse.
#[test]
fn a_full_segment_with_a_record_that_is_not_entered_yet_is_neither_free_nor_cleaned() {
    let segments = Segments::new(4, 8192, false);
    segments.open(ID, incarnation(7));
    add(&segments, ID, 100);
    segments.begin_entry(ID);
    segments.seal(ID);
    assert!(!segments.is_cleanable(ID));
    assert_eq!(victims(&segments), [None; 2]);
    remove(&segments, ID, 100, Version(3));
    assert_eq!((segments.state(ID), segments.free_count()), (Use::Sealed, 0));
    add(&segments, ID, 64);
    segments.end_entry(ID);
    assert!(segments.is_cleanable(ID));
    assert_eq!((segments.state(ID), segments.live_records(ID)), (Use::Sealed, 1));
    remove(&segments, ID, 64, Version(4));
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

thread_local! {
    static BEFORE_FREE: std::cell::Cell<Option<Box<dyn FnOnce()>>> = const { std::cell::Cell::new(None) };
}

/// Where whoever found a segment dead frees it.
pub(super) fn before_free() {
    BEFORE_FREE.take().into_iter().for_each(|meanwhile| meanwhile());
}

/// Whoever found an open segment dead may stand still while others add to it and seal it.
#[test]
fn a_segment_that_was_open_when_it_was_dead_is_not_freed() {
    let segments = std::sync::Arc::new(Segments::new(4, 8192, false));
    segments.open(ID, incarnation(7));
    add(&segments, ID, 100);
    let others = std::sync::Arc::clone(&segments);
    BEFORE_FREE.set(Some(Box::new(move || {
        add(&others, ID, 50);
        others.get(ID).unwrap().state.store(Use::Sealed as u8, Ordering::SeqCst);
    })));
    remove(&segments, ID, 100, Version(3));
    before_free();
    assert_eq!((segments.state(ID), segments.live_records(ID)), (Use::Sealed, 1));
    assert_eq!(segments.free_count(), 0);
}

#[test]
fn what_is_set_aside_is_a_victim_again_in_its_next_life() {
    let segments = Segments::new(4, 8192, false);
    segments.open(ID, incarnation(7));
    add(&segments, ID, 100);
    segments.seal(ID);
    assert_eq!(victims(&segments), [Some(ID); 2]);
    segments.set_aside(ID, SegmentEpoch(7));
    assert_eq!(victims(&segments), [None; 2]);
    // Whoever was late to say so said it of an earlier life.
    remove(&segments, ID, 100, Version(3));
    assert_eq!(segments.take().map(|free| free.id), Some(ID));
    segments.open(ID, incarnation(8));
    segments.set_aside(ID, SegmentEpoch(7));
    add(&segments, ID, 100);
    segments.seal(ID);
    assert_eq!(victims(&segments), [Some(ID); 2]);
}

#[test]
fn what_has_expired_is_worth_cleaning_and_never_more_than_what_is_live() {
    let segments = Segments::new(4, 8192, false);
    segments.open(ID, incarnation(7));
    (0..80).for_each(|_| add(&segments, ID, 100));
    segments.expire(ID, [(10, 1000), (20, 3000), (30, 4000)]);
    segments.seal(ID);
    let victims_at = |now| segments.victim(SegmentEpoch(50), now, Urgency::Full, &[]);
    assert_eq!((victims_at(9), victims_at(10)), (None, Some(ID)));
    let live_at = |now| segments.unexpired_bytes(now);
    assert_eq!([9, 10, 20, 30].map(live_at), [8000, 7000, 4000, 0]);
    // Of what expires, as much was superseded as of all.
    (0..40).for_each(|_| remove(&segments, ID, 100, Version(1)));
    assert_eq!([9, 10, 20, 30].map(live_at), [4000, 3500, 2000, 0]);
    assert_eq!((segments.expired(29, &[]), segments.expired(30, &[])), (None, Some(ID)));
    // What is live now was twice as much when it was written.
    segments.expire_live(ID, 9, 500);
    assert_eq!([8, 9, 10, 20, 30].map(live_at), [4000, 3500, 3000, 1500, 0]);
    segments.open(ID, incarnation(8));
    add(&segments, ID, 100);
    assert_eq!(live_at(100), 4100, "nothing is known of its next life");
}

#[test]
fn a_segment_is_looked_at_once_in_each_life_that_recovery_found() {
    let segments = Segments::new(4, 8192, false);
    for (id, epoch) in [(SegmentId(1), 9), (ID, 7)] {
        segments.restore(id, Use::Sealed, incarnation(epoch));
        add(&segments, id, 100);
    }
    assert_eq!(segments.unknown(&[]), Some(ID), "the older one");
    let mut found = Expiries::default();
    found.add(10, segments.as_written(ID, 60));
    // Of a life that is over.
    segments.know(ID, SegmentEpoch(6), &found);
    assert_eq!((segments.unknown(&[]), segments.unexpired_bytes(10)), (Some(ID), 200));
    segments.expire_live(ID, 10, 20);
    segments.know(ID, SegmentEpoch(7), &found);
    assert_eq!((segments.unknown(&[]), segments.unexpired_bytes(10)), (Some(SegmentId(1)), 140));
    segments.know(SegmentId(1), SegmentEpoch(9), &Expiries::default());
    segments.open(SegmentId(3), incarnation(10));
    add(&segments, SegmentId(3), 100);
    segments.seal(SegmentId(3));
    assert_eq!(segments.unknown(&[]), None);
}

#[test]
fn what_is_said_of_a_header_late_is_not_said_of_the_next_one() {
    let segments = Segments::new(4, 8192, false);
    let live = |epoch| {
        segments.open(ID, incarnation(epoch));
        segments.begin_entry(ID);
        segments.seal(ID);
        segments.end_entry(ID);
    };
    live(7);
    assert_eq!(segments.take_stale().map(|free| free.id), Some(ID));
    live(8);
    segments.forget_header(ID, SegmentEpoch(7));
    assert_eq!(segments.take_stale().map(|free| free.id), Some(ID));
    live(9);
    segments.forget_header(ID, SegmentEpoch(9));
    assert!(segments.take_stale().is_none());
}

#[test]
fn a_hold_that_is_broken_holds_nothing_any_more() {
    let segments = Segments::new(4, 8192, false);
    let holding = segments.begin_hold().unwrap();
    assert!(segments.is_holding());
    holding.keep([ID].into());
    assert!(segments.is_holding());
    assert!(segments.break_hold());
    assert!(!segments.is_holding(), "nobody waits for the backup's end");
}

/// Nothing bounds what a checkpoint says of tombstones.
#[test]
fn sizes_that_no_segment_has_do_not_overflow() {
    let segments = Segments::new(4, 8192, false);
    for id in [SegmentId(1), ID] {
        segments.open(id, incarnation(7));
        segments.restore_live(id, Live { records: 1, bytes: 40, items: false, tombstones: 1 });
        segments.add_written(id, Written { bytes: 0, tombstones: 1, beyond_bytes: u64::MAX });
        assert_eq!(segments.live_bytes(id), u64::MAX);
        segments.seal(id);
    }
    assert_eq!(segments.live(), (2, u64::MAX));
    assert_eq!(segments.unexpired_bytes(0), u64::MAX);
    assert_eq!((victims(&segments), segments.moved_victim(&[])), ([None; 2], None));
    assert!(segments.is_crowded(0));
    for id in [SegmentId(1), ID] {
        segments.restore(id, Use::Sealed, Incarnation { stream: Stream::Warm, ..incarnation(8) });
        segments.add_written(id, Written { bytes: u64::MAX, ..Written::default() });
    }
    assert_eq!(segments.moved_victim(&[]), Some(SegmentId(1)));
    assert_eq!(segments.idle_gain(0, &[]), u64::MAX);
}

/// Of a store with room to spare all segments are looked at now and then.
#[test]
fn a_store_is_crowded_as_soon_as_its_segments_are() {
    const SEGMENT: u64 = 8192;
    // Eight records each, half of which expire.
    let fill = |segments: &Segments, id: u32| {
        segments.open(SegmentId(id), incarnation(7));
        (0..8).for_each(|_| add(segments, SegmentId(id), SEGMENT / 8));
        segments.expire(SegmentId(id), [(100, SEGMENT / 2)]);
        segments.seal(SegmentId(id));
    };
    for count in [8_u32, 40, 200, 1000] {
        let asked = Segments::new(count, SEGMENT, false);
        let looked_at = Segments::new(count, SEGMENT, false);
        let mut looks = 0;
        let filled = (0..count).position(|id| {
            let before = asked.roomy.lock().until;
            let is_crowded = asked.is_crowded(0);
            looks += u32::from(asked.roomy.lock().until != before);
            *looked_at.roomy.lock() = Roomy::default();
            assert_eq!(looked_at.is_crowded(0), is_crowded, "{id} of {count} are full");
            fill(&asked, id);
            fill(&looked_at, id);
            is_crowded
        });
        assert!(filled.is_some(), "{count}");
        assert!(looks < 40, "of {count}: {looks}");
        // What is as good as dead at a time is not so at an earlier one.
        assert!(!asked.is_crowded(100));
        assert!(asked.is_crowded(99));
    }
}

/// Of what an open finds in use nobody knows whether a copy left it whole.
#[test]
fn a_segment_without_room_whose_header_is_valid_is_found_by_who_makes_headers_invalid() {
    let segments = Segments::new(4, 8192, false);
    segments.restore(ID, Use::Open, incarnation(7));
    segments.seal(ID);
    assert!(!segments.has_more_than(0) && segments.take().is_none());
    let asked = segments.to_ask(1).unwrap();
    assert_eq!((asked.id, segments.free_count()), (ID, 1), "it stays on the list");
    segments.asked(asked, false);
    assert_eq!((segments.free_count(), segments.hole_count()), (0, 1));
    let stale = segments.take_stale().unwrap();
    segments.put_back(Free { stale: false, ..stale });
    // Whoever asked before is late: it may have been given back.
    segments.asked(asked, true);
    assert!(!segments.has_more_than(0));
    let asked = segments.to_ask(1).unwrap();
    assert_eq!(segments.free_count(), 0, "somebody has it");
    segments.asked(asked, true);
    assert!(segments.has_more_than(0));
    assert_eq!(segments.take().map(|free| free.id), Some(ID));
}

/// It holds nothing when the checkpoint begins, and what it gets is behind that.
#[test]
fn a_segment_that_is_taken_for_records_to_come_is_not_covered() {
    let segments = Segments::new(4, 8192, false);
    segments.restore(ID, Use::Open, Incarnation { base: Sequence(10), ..incarnation(8) });
    let covered = |open: &[(SegmentId, u64)], next| segments.covered(open, Version(next)).len();
    assert_eq!(covered(&[], 10), 0);
    assert_eq!((covered(&[(ID, 0)], 10), covered(&[], 11)), (1, 1));
}
