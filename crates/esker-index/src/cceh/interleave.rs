//! Splits under random interleavings (`cargo xtask interleave`): nothing is missed, lost or met twice.
//!
//! Segments have four homes here. All keys of a story have one home, whose window is nearly full, so that
//! one insert or two make the segment split, and the threads meet in the middle of it.

use super::bucket::{SLOTS, WINDOW};
use super::*;
use shuttle::sync::Arc;
use shuttle::thread;

fn word(n: u64) -> Word {
    Word::new(n + 1).unwrap_or_else(|| unreachable!("it is in range"))
}

/// Hashes of home 1 that differ in their first bits, so that a split parts them.
fn hash(n: u64) -> u64 {
    n.reverse_bits() | 1
}

const FULL: u64 = (SLOTS * WINDOW) as u64;

/// An index in which `count` keys are, all in one segment's window.
fn filled(count: u64) -> Arc<Cceh> {
    let index = Cceh::default();
    (0..count).for_each(|n| index.insert(hash(n), word(n)));
    assert_eq!(index.stash_len(), 0);
    Arc::new(index)
}

fn found(index: &Cceh, n: u64) -> Vec<u64> {
    let mut found: Vec<u64> = index.lookup(hash(n)).iter().map(|word| word.get() - 1).collect();
    found.sort_unstable();
    found
}

fn segments(index: &Cceh) -> u64 {
    index.capacity() / ROOM as u64
}

fn lookups_beside_splits() {
    let index = filled(FULL);
    let reader = {
        let index = Arc::clone(&index);
        thread::spawn(move || {
            for n in (0..FULL).step_by(7) {
                assert_eq!(found(&index, n), [n]);
            }
        })
    };
    // The second one reuses what the split has left behind.
    (FULL..FULL + 3).for_each(|n| index.insert(hash(n), word(n)));
    assert!(segments(&index) > 1, "nothing split");
    reader.join().unwrap();
    (0..FULL + 3).for_each(|n| assert_eq!(found(&index, n), [n]));
}

fn changes_beside_splits() {
    let index = filled(FULL);
    let changer = {
        let index = Arc::clone(&index);
        thread::spawn(move || {
            for n in [2, 13, 30] {
                assert!(index.replace(hash(n), word(n), word(n + 1000)));
                assert_eq!(found(&index, n), [n + 1000]);
                assert!(index.remove(hash(n - 1), word(n - 1)));
                assert_eq!(found(&index, n - 1), []);
                // Into a segment with a free slot, but perhaps not the right one any more: these
                // belong to the second half.
                index.insert(hash(n | 65), word(n | 65));
                assert_eq!(found(&index, n | 65), [n | 65]);
            }
        })
    };
    (FULL..FULL + 3).for_each(|n| index.insert(hash(n), word(n)));
    changer.join().unwrap();
    assert_eq!(index.len(), FULL + 3);
    for n in [2, 13, 30] {
        assert_eq!(found(&index, n | 65), [n | 65]);
        assert_eq!((found(&index, n), found(&index, n - 1)), (vec![n + 1000], vec![]));
    }
}

fn splits_beside_splits() {
    let index = filled(FULL);
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                for n in [FULL + 2 * thread, FULL + 2 * thread + 1] {
                    index.insert(hash(n), word(n));
                    assert_eq!(found(&index, n), [n]);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    (0..FULL + 4).for_each(|n| assert_eq!(found(&index, n), [n]));
    assert_eq!(index.len(), FULL + 4);
}

fn walks_beside_splits() {
    let index = filled(FULL);
    let walker = {
        let index = Arc::clone(&index);
        thread::spawn(move || {
            let (mut met, mut cursor) = (Vec::new(), 0);
            while let Some((entries, next)) = index.walk(cursor) {
                met.extend(entries.into_iter().map(|(_, word)| word.get() - 1));
                cursor = next;
            }
            met.retain(|n| *n < FULL);
            met.sort_unstable();
            assert!(met.into_iter().eq(0..FULL));
        })
    };
    (FULL..FULL + 2).for_each(|n| index.insert(hash(n), word(n)));
    walker.join().unwrap();
}

/// Slots that go from one hash to another: a reader sees words of its own hash only, and a key that
/// moves within its window (new before old) at any time.
fn slots_that_are_used_again() {
    let index = Arc::new(Cceh::default());
    (0..6).for_each(|n| index.insert(hash(n), word(n)));
    let reader = {
        let index = Arc::clone(&index);
        thread::spawn(move || {
            for _ in 0..3 {
                let words = found(&index, 5);
                assert!(!words.is_empty(), "a key is missed while it moves");
                assert!(words.iter().all(|n| n % 100 == 5), "{words:?} of another key");
                let words = found(&index, 700);
                assert!(words.iter().all(|n| *n == 700), "{words:?} of another key");
            }
        })
    };
    assert!(index.remove(hash(0), word(0)));
    index.insert(hash(5), word(105));
    assert!(index.remove(hash(5), word(5)));
    index.insert(hash(700), word(700));
    assert!(index.remove(hash(700), word(700)));
    index.insert(hash(6), word(6));
    reader.join().unwrap();
}

/// A key that gets a new word in one bucket away from its home before it loses the old one in another.
fn moves_away_from_home() {
    let index = Arc::new(Cceh::default());
    (0..9).for_each(|n| index.insert(hash(n), word(n)));
    let reader = {
        let index = Arc::clone(&index);
        thread::spawn(move || {
            for _ in 0..3 {
                assert!(!found(&index, 8).is_empty(), "a key is missed while it moves");
            }
        })
    };
    assert!(index.remove(hash(5), word(5)));
    index.insert(hash(8), word(108));
    assert!(index.remove(hash(8), word(8)));
    reader.join().unwrap();
    assert_eq!(found(&index, 8), [108]);
}

fn explore(story: fn()) {
    crate::explore(story, 1000);
}

#[test]
fn interleave_cceh_lookups_beside_splits_miss_nothing() {
    explore(lookups_beside_splits);
}

#[test]
fn interleave_cceh_changes_beside_splits_lose_nothing() {
    explore(changes_beside_splits);
}

/// Somebody who makes room for many, beside somebody who needs some.
fn expectations_beside_splits() {
    let index = Arc::new(Cceh::default());
    let other = {
        let index = Arc::clone(&index);
        thread::spawn(move || index.expect(10 * FULL))
    };
    (0..FULL + 3).for_each(|n| index.insert(hash(n), word(n)));
    other.join().unwrap();
    (0..FULL + 3).for_each(|n| assert_eq!(found(&index, n), [n]));
}

#[test]
fn interleave_cceh_expectations_beside_splits_end() {
    explore(expectations_beside_splits);
}

/// The segment that splits has four places of the directory, which follow one after the other.
fn expectations_beside_splits_of_many_places() {
    let index = Arc::new(Cceh::default());
    let deep = |n: u64| hash(n) >> 2 | 3 << 62;
    (0..=FULL).for_each(|n| index.insert(deep(n), word(n)));
    (0..=FULL).for_each(|n| assert!(index.remove(deep(n), word(n))));
    assert!(index.is_empty() && segments(&index) == 4, "one half has not split, the other one has");
    let wide = |n: u64| hash(n) >> 1 | 1;
    (0..FULL).for_each(|n| index.insert(wide(n), word(n)));
    let other = {
        let index = Arc::clone(&index);
        // As who has found it empty just before.
        thread::spawn(move || index.expect_now(10 * FULL))
    };
    (FULL..FULL + 3).for_each(|n| index.insert(wide(n), word(n)));
    other.join().unwrap();
    assert!(segments(&index) > 4, "nothing split");
    (0..FULL + 3)
        .for_each(|n| assert_eq!(index.lookup(wide(n)).iter().collect::<Vec<_>>(), [word(n)]));
}

#[test]
fn interleave_cceh_expectations_beside_splits_of_many_places_end() {
    explore(expectations_beside_splits_of_many_places);
}

#[test]
fn interleave_cceh_splits_beside_splits_lose_nothing() {
    explore(splits_beside_splits);
}

#[test]
fn interleave_cceh_walks_beside_splits_meet_everything_once() {
    explore(walks_beside_splits);
}

#[test]
fn interleave_cceh_slots_used_again_show_no_other_key() {
    explore(slots_that_are_used_again);
}

#[test]
fn interleave_cceh_moves_away_from_home_miss_nothing() {
    explore(moves_away_from_home);
}
