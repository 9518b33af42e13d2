//! What stayed for snapshots goes with them.

use super::*;
use crate::engine::Engine;
use crate::engine::flex::{Flex, opened_with};
use crate::options::Durability;
use crate::value::PutOptions;
use esker_base::ErrorKind;
use esker_format::flex_db::{Extra, Pair, RunWriter};

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn put(flex: &Flex, number: u32, value: &[u8]) -> esker_base::Result<()> {
    flex.put(&key(number), value, PutOptions::default()).map(drop)
}

#[test]
fn a_store_that_was_filled_beside_a_snapshot_takes_puts_again_when_it_is_gone() {
    for size in [500, 100_000] {
        let folder = tempfile::tempdir().unwrap();
        let flex = opened_with(&folder, Durability::None);
        let keys = u32::try_from(flex.capacity_bytes / 100 * 45 / size).unwrap();
        let size = usize::try_from(size).unwrap();
        (0..keys).for_each(|number| put(&flex, number, &vec![1; size]).unwrap());
        flex.commit_all().unwrap();
        let snapshot = flex.snapshot().unwrap();
        let refused = (0..2 * keys).find_map(|n| put(&flex, n % keys, &vec![2; size]).err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::NoSpace), "{size}");
        let found = flex.get_as_of(&key(0), snapshot).unwrap().unwrap();
        assert_eq!(found.as_ref(), vec![1; size]);
        flex.release(snapshot);
        for number in 0..keys {
            put(&flex, number, &vec![3; size]).unwrap();
        }
        assert_eq!(flex.get(&key(0), &mut |_| Ok(())).unwrap().unwrap().as_ref(), vec![3; size]);
        assert_eq!(flex.check().unwrap().problems, Vec::<String>::new());
    }
}

#[test]
fn what_was_cleared_beside_a_snapshot_goes_when_it_is_gone_and_after_an_open() {
    // How the store is opened before it is cleaned: not at all, after a clean stop, after a crash.
    for opened in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let mut flex = opened_with(&folder, Durability::None);
        (0..1000).for_each(|number| put(&flex, number, &[1; 100]).unwrap());
        flex.commit_all().unwrap();
        let snapshot = flex.snapshot().unwrap();
        flex.clear().unwrap();
        flex.commit_all().unwrap();
        flex.clean(usize::MAX).unwrap();
        assert!(flex.index.size_bytes() > 100_000, "the snapshot sees all of it");
        assert!(flex.get_as_of(&key(7), snapshot).unwrap().is_some());
        match opened {
            0 => flex.release(snapshot),
            1 => {
                flex.close().unwrap();
                drop(flex);
                flex = opened_with(&folder, Durability::None);
            }
            _ => {
                drop(flex);
                flex = opened_with(&folder, Durability::None);
            }
        }
        flex.clean(usize::MAX).unwrap();
        let left = flex.index.size_bytes();
        assert!(left < 1000, "{left} bytes of nothing, case {opened}");
        assert_eq!(flex.index.expired_bytes(u64::MAX), 0);
        assert_eq!(flex.check().unwrap().problems, Vec::<String>::new());
    }
}

#[test]
fn bytes_that_stay_for_snapshots_count_as_gone_once_no_older_one_is_left() {
    let put = Content::Put(Extra::default(), b"value");
    let pair = |key: &'static [u8], version, content| (Key::from(key), version, content);
    let pairs = [
        pair(b"a", 9, Content::Delete),
        pair(b"a", 7, put),
        pair(b"a", 2, put),
        pair(b"b", 8, put),
        pair(b"b", 1, put),
        pair(b"c", 5, put),
    ];
    let of = |number: usize| size_of(&pairs[number]) as u64;
    let lapsing = Moment { now: 0, snapshots: vec![8, 6, 3] }.lapsing(&pairs);
    assert_eq!(lapsing.let_go(3), 0);
    assert_eq!(lapsing.let_go(6), 0);
    assert_eq!(lapsing.let_go(7), of(2) + of(4), "of snapshots 6 and 3");
    assert_eq!(lapsing.let_go(8), of(2) + of(4));
    let all = of(0) + of(1) + of(2) + of(4);
    assert_eq!(lapsing.let_go(u64::MAX), all);
    assert_eq!(lapsing.without_snapshots().expired(0), all);
    // An open finds the same, and that nobody sees it.
    let (mut run, mut bytes) = (RunWriter::new(1), Vec::new());
    for &(key, version, content) in &pairs {
        run.push(&Pair { key, version, content });
    }
    run.finish(Some(b""), &mut bytes);
    assert_eq!(lapsing_in(&bytes, 0).unwrap().let_go(1), all);
    assert_eq!(lapsing_in(&bytes, 4).unwrap().let_go(4), 0);
}
