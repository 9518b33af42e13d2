//! Tests of the index by itself.

use super::*;
use esker_base::hash::KeyHasher;
use esker_format::flex_db::{Content, Extra, Key, Pair, RunWriter};

fn interval(key: &[u8]) -> Arc<Interval> {
    let mut run = RunWriter::new(1);
    run.push(&Pair {
        key: Key::from(key),
        version: 1,
        content: Content::Put(Extra::default(), b"value"),
    });
    let mut bytes = Vec::new();
    run.finish(Some(key), &mut bytes);
    Arc::new(Interval::decode(bytes, &KeyHasher::new([1; 16])).unwrap())
}

pub(super) fn found_at_open(count: u8) -> Index {
    let fresh = |number: u8| Fresh::new(vec![number], Entry::new(40, 1, 0, 1));
    Index::new((0..count).map(fresh).collect(), 1 << 20, Arc::default())
}

#[test]
fn what_was_read_of_an_interval_that_went_is_not_taken_for_the_one_before_it() {
    // Nothing changed the one before since the store was opened: its stamp is that of the open.
    let index = found_at_open(100);
    for key in 1..100 {
        let placed = index.place(Some(&[key]), false, Ahead::ONE, None);
        let (_, stamp, _) = placed.sizes[0];
        index.replace(index.locate(&[key]).spot, 1, Vec::new());
        index.keep(&[key], &[(0, stamp, interval(&[key]))]);
        index.keep_pair(&[key], stamp, |_| unreachable!("{key}"));
        assert!(index.with(&[key], |entry| entry.cached.is_none()), "{key}");
    }
}

#[test]
fn who_asks_for_a_key_gets_the_interval_that_holds_it_while_others_come_and_go() {
    const KEY: u8 = 40;
    let index = found_at_open(60);
    for key in 1..60 {
        let (_, stamp, _) = index.place(Some(&[key]), false, Ahead::ONE, None).sizes[0];
        index.keep(&[key], &[(0, stamp, interval(&[key]))]);
    }
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            // Those before the key become one, and many again.
            for _ in 0..20_000 {
                let fresh = |number: u8| Fresh::new(vec![number], Entry::new(40, 1, 0, 1));
                index.replace(index.locate(&[3]).spot, 30, vec![fresh(3)]);
                index.replace(index.locate(&[3]).spot, 1, (3..33).map(fresh).collect());
            }
        });
        while !changes.is_finished() {
            let found = index.cached(Some(&[KEY]), false, Ahead::ONE);
            assert!(found.intervals.len() == 1 && found.intervals[0].pair(0).key == [KEY][..]);
            let seen = found.first;
            let found = index.cached(Some(&[KEY]), false, Ahead { reverse: true, ..Ahead::ONE });
            assert!(found.intervals.len() == 1 && found.intervals[0].pair(0).key == [KEY][..]);
            assert_eq!(found.end.as_deref(), Some(&[KEY][..]));
            assert_eq!(index.place(Some(&[KEY]), false, Ahead::ONE, Some(seen)).anchor, [KEY]);
            assert_eq!(index.place(Some(&[KEY]), false, Ahead::ONE, None).anchor, [KEY]);
            assert_eq!(index.locate(&[KEY]).anchor, [KEY]);
        }
    });
}

fn with_budget(index: Index, bytes: u64) -> Index {
    Index { budget_bytes: bytes, allowed_bytes: AtomicU64::new(bytes), ..index }
}

#[test]
fn who_comes_by_once_takes_no_place_while_there_is_no_room() {
    let index = with_budget(found_at_open(60), 20 * interval(&[1]).memory_bytes());
    let pass = |key: u8| {
        let (_, stamp, _) = index.place(Some(&[key]), false, Ahead::ONE, None).sizes[0];
        if index.is_worth_keeping(stamp, true) {
            index.keep(&[key], &[(0, stamp, interval(&[key]))]);
        }
        index.with(&[key], |entry| entry.cached.is_some())
    };
    // There is room.
    assert!((1..=19).all(pass));
    assert!(!pass(30), "came by for the first time");
    assert!(!pass(31), "another one");
    assert!(pass(30), "came again");
}

#[test]
fn who_looks_ahead_takes_what_has_as_many_pairs() {
    let sizes = [40_u64, 12, 12, 30];
    let entries: Vec<Entry> = sizes.iter().map(|pairs| Entry::new(100, *pairs, 0, 1)).collect();
    let of = |pairs, intervals| Ahead { pairs, intervals, ..Ahead::ONE }.of(entries.iter());
    assert_eq!([0, 20, 21, 32, 33, 44, 45].map(|pairs| of(pairs, 16)), [1, 1, 2, 2, 3, 3, 4]);
    assert_eq!([of(1000, 16), of(1000, 2), of(1000, 0)], [4, 2, 1]);
    let surely =
        |first, pairs| Ahead { pairs, intervals: 16, first, ..Ahead::ONE }.of(entries.iter());
    assert_eq!([1, 12, 13, 24, 25].map(|pairs| surely(First::None, pairs)), [2, 2, 3, 3, 4]);
    assert_eq!([1, 40, 41, 52, 53].map(|pairs| surely(First::All, pairs)), [1, 1, 2, 2, 3]);
    let in_block = |size_bytes| Ahead { size_bytes, ..Ahead::BLOCK }.of(entries.iter());
    assert_eq!([0, 100, 101, 300, 301, 4096].map(in_block), [1, 1, 2, 3, 4, 4]);
}

#[test]
fn what_is_read_of_a_leaf_is_the_same_in_both_directions() {
    // Nobody has looked into number 20.
    let entry = |number| if number == 20 { Entry::coarse(900) } else { Entry::new(40, 1, 0, 1) };
    let fresh = |number: u8| Fresh::new(vec![number], entry(number));
    let index = Index::new((0..40).map(fresh).collect(), 1 << 20, Arc::default());
    let place = |key: u8, ahead| index.place(Some(&[key]), false, ahead, None);
    for key in [7, 8, 12] {
        let (_, stamp, _) = place(key, Ahead::ONE).sizes[0];
        index.keep(&[key], &[(0, stamp, interval(&[key]))]);
    }
    for (from, to, reverse, count) in [
        (9_u8, 13_u8, false, 5_u8),
        (9, 12, false, 3),
        (11, 6, true, 6),
        (11, 7, true, 3),
        (11, 8, true, 3),
        (2, 0, true, 3),
        (18, 22, false, 2),
        (22, 18, true, 2),
        (20, 22, false, 1),
        (20, 18, true, 1),
    ] {
        let intervals = usize::from(from.max(to) - from.min(to)) + 1;
        let placed = place(from, Ahead { reverse, pairs: 1000, intervals, ..Ahead::ONE });
        assert_eq!(placed.sizes.len(), usize::from(count), "from {from} to {to}");
        let first = if reverse { from + 1 - count } else { from };
        let alone = place(first, Ahead::ONE);
        assert_eq!((placed.offset, &placed.anchor), (alone.offset, &alone.anchor));
        assert_eq!(placed.upper, place(first + count - 1, Ahead::ONE).upper);
    }
}

#[test]
fn what_is_lent_is_used_and_given_back() {
    let index = found_at_open(200);
    let size = interval(&[1]).memory_bytes();
    let index = with_budget(index, 20 * size);
    let keep_all = || {
        for key in 0..200 {
            let (_, stamp, _) = index.place(Some(&[key]), false, Ahead::ONE, None).sizes[0];
            index.keep(&[key], &[(0, stamp, interval(&[key]))]);
        }
    };
    keep_all();
    assert!(index.cached_bytes() <= 20 * size);
    index.allow(120 * size);
    keep_all();
    assert!((100 * size..=120 * size).contains(&index.cached_bytes()));
    index.allow(20 * size);
    assert!(index.cached_bytes() <= 20 * size);
    index.allow(0);
    keep_all();
    assert!((size..=5 * size).contains(&index.cached_bytes()), "a share stays");
    let none = Index::new(Leaves::default(), 0, Arc::default());
    none.allow(1 << 20);
    none.keep(b"", &[(0, none.place(None, false, Ahead::ONE, None).sizes[0].1, interval(b""))]);
    assert_eq!(none.cached_bytes(), 0);
}

#[test]
fn bytes_of_which_media_say_any_number_are_summed_up() {
    let mut expiries = Expiries::default();
    expiries.add(1, u64::MAX);
    let fresh = |number: u8| Fresh {
        lapsing: expiries.clone().into(),
        ..Fresh::new(vec![number], Entry::new(40, 1, 0, 1))
    };
    let index = Index::new((0..200).map(fresh).collect(), 1 << 20, Arc::default());
    assert_eq!((index.expired_bytes(0), index.expired_bytes(1)), (0, u64::MAX));
    let leaf = index.next_leaf(&[], 1, &|leaf| leaf.expired == u64::MAX);
    assert_eq!(leaf.as_deref(), Some(&[][..]));
}

#[test]
fn an_open_makes_leaves_of_intervals_as_they_come() {
    let mut leaves = Leaves::default();
    for number in 0..5000_u16 {
        leaves.push(Fresh::new(number.to_be_bytes().to_vec(), Entry::new(40, 3, 1, 2)));
        assert!(leaves.next.len() < LEAF_FOUND, "those of one leaf are all that waits");
    }
    let index = Index::new(leaves, 1 << 20, Arc::default());
    assert_eq!((index.intervals(), index.pairs(), index.size_bytes()), (5000, 15_000, 200_000));
    assert_eq!(index.appended_bytes(), 5000 * (40 / 3));
    let mut stamps = Vec::new();
    let mut anchors = Vec::new();
    index.visit(|anchor, entry, _, _| {
        stamps.push(entry.stamp);
        anchors.push(anchor.to_vec());
    });
    assert!(anchors[0].is_empty() && anchors[4999] == 4999_u16.to_be_bytes());
    assert!(anchors.is_sorted_by(|a, b| a < b));
    stamps.push(index.stamp());
    assert!(stamps.is_sorted_by(|a, b| a < b), "no two have the same one");
}
