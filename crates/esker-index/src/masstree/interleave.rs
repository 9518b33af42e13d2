//! Splits, layers and removals under random interleavings (`cargo xtask interleave`): nothing is
//! missed, lost or met twice.

use super::node::WIDTH;
use super::*;
use shuttle::sync::Arc;
use shuttle::thread;
use std::ops::{Bound, ControlFlow};

fn word(n: u64) -> Word {
    Word::new(n + 1).unwrap_or_else(|| unreachable!("it is in range"))
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// A tree with the even numbers below twice this.
fn filled(count: u64) -> Arc<Masstree> {
    let tree = Masstree::new();
    (0..count).for_each(|n| assert_eq!(tree.insert(&key(2 * n), word(2 * n)), None));
    Arc::new(tree)
}

fn numbers(tree: &Masstree, back: bool) -> Vec<u64> {
    let mut met = Vec::new();
    let mut visit = |_: &[u8], word: Word| {
        met.push(word.get() - 1);
        ControlFlow::Continue(())
    };
    if back {
        tree.scan_back(Bound::Unbounded, 99, &mut visit);
        met.reverse();
    } else {
        tree.scan(Bound::Unbounded, 99, &mut visit);
    }
    met
}

/// Before the root splits as a border, before another border splits, and before the root splits
/// as an interior node (15 keys, each border after the first 8 or more keys).
const NEARLY: [u64; 3] = [WIDTH as u64, 23, 15 * 16];

fn lookups_beside_splits() {
    for count in NEARLY {
        let tree = filled(count);
        let reader = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                for n in (0..count).rev().step_by(5).take(6) {
                    assert_eq!(tree.get(&key(2 * n)), Some(word(2 * n)), "{n} of {count}");
                }
            })
        };
        for n in [2 * count - 1, 2 * count - 3, 2 * count - 5, 1, 2 * count] {
            assert_eq!(tree.insert(&key(n), word(n)), None);
        }
        reader.join().unwrap();
        assert_eq!(numbers(&tree, false).len() as u64, count + 5);
    }
}

fn changes_beside_splits() {
    for count in NEARLY {
        let tree = filled(count);
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let tree = Arc::clone(&tree);
                thread::spawn(move || {
                    for n in [2 * count - 1 - 2 * thread, 7 + 2 * thread] {
                        assert_eq!(tree.insert(&key(n), word(n)), None);
                        assert_eq!(tree.get(&key(n)), Some(word(n)));
                    }
                    let n = 2 * (count - 2 - thread);
                    assert_eq!(tree.swap(&key(n), word(n + 1000), |_| true), Some(word(n)));
                    assert_eq!(tree.get(&key(n)), Some(word(n + 1000)));
                    assert!(tree.remove(&key(4 * thread), word(4 * thread)));
                    assert_eq!(tree.get(&key(4 * thread)), None);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(numbers(&tree, false).len() as u64, count + 2);
        assert_eq!(numbers(&tree, true).len() as u64, count + 2);
    }
}

fn scans_beside_splits_and_removals() {
    let tree = filled(24);
    let scanner = {
        let tree = Arc::clone(&tree);
        thread::spawn(move || {
            for back in [false, true] {
                let met = numbers(&tree, back);
                assert!(met.is_sorted_by(|a, b| a < b), "{met:?}: none twice");
                let stays = met.into_iter().filter(|n| n % 16 == 0);
                assert!(stays.eq([0, 16, 32]));
            }
        })
    };
    (17..31).step_by(2).for_each(|n| assert_eq!(tree.insert(&key(n), word(n)), None));
    for n in (2..48).step_by(2).filter(|n| n % 16 > 0) {
        assert!(tree.remove(&key(n), word(n)));
    }
    scanner.join().unwrap();
}

/// A border takes over its right neighbour while others ask it for the way.
fn ways_beside_a_removal() {
    // Borders from 0, from 30 and from 60 on; the one between has a key left.
    let tree = filled(31);
    (16..30).for_each(|n| assert!(tree.remove(&key(2 * n), word(2 * n))));
    let reader = {
        let tree = Arc::clone(&tree);
        thread::spawn(move || {
            let guard = tree.memory.guard();
            let border = tree.root(&guard).and_then(|root| descend(root, 0, 0, &guard)).unwrap();
            for slice in [30, 59] {
                let mut version = border.version();
                let mut right = border.right_for(slice, &guard);
                while !border.unchanged(version) {
                    version = border.version();
                    right = border.right_for(slice, &guard);
                }
                let begin = right.map_or(0, Node::low);
                assert!(begin <= slice, "on the way to {slice} stands what begins with {begin}");
            }
        })
    };
    assert!(tree.remove(&key(30), word(30)));
    reader.join().unwrap();
}

/// Borders become empty and go while others look, insert and remove there.
fn removals_of_nodes() {
    let tree = filled(30);
    let threads: Vec<_> = (0..2u64)
        .map(|thread| {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                for n in (thread..30).step_by(2) {
                    assert!(tree.remove(&key(2 * n), word(2 * n)));
                    assert_eq!(tree.get(&key(2 * n)), None);
                    if n % 10 == thread {
                        assert_eq!(tree.insert(&key(2 * n + 1), word(2 * n + 1)), None);
                        assert_eq!(tree.get(&key(2 * n + 1)), Some(word(2 * n + 1)));
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(numbers(&tree, false), [1, 3, 21, 23, 41, 43]);
    assert_eq!(numbers(&tree, true), [1, 3, 21, 23, 41, 43]);
    assert_eq!(tree.len(), 6);
}

/// A layer comes, becomes empty and goes, again and again, under two writers and a reader.
fn layers_that_come_and_go() {
    let tree = Arc::new(Masstree::new());
    assert_eq!(tree.insert(b"the slice and a tail", word(9)), None);
    let threads: Vec<_> = (0..2u64)
        .map(|thread| {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                let name =
                    [&b"the slic"[..], b"e and all its layers", &[u8::from(thread > 0)]].concat();
                for n in 0..2 {
                    assert_eq!(tree.insert(&name, word(n)), None);
                    assert_eq!(tree.get(&name), Some(word(n)));
                    assert!(tree.remove(&name, word(n)));
                    assert_eq!(tree.get(&name), None);
                }
            })
        })
        .collect();
    assert_eq!(tree.get(b"the slice and a tail"), Some(word(9)));
    assert!(tree.remove(b"the slice and a tail", word(9)));
    assert_eq!(tree.get(b"the slice and a tail"), None);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(tree.is_empty() && numbers(&tree, false).is_empty());
}

/// A slot that goes from one key to another: a reader sees no word of another key.
fn slots_that_are_used_again() {
    let tree = filled(5);
    let reader = {
        let tree = Arc::clone(&tree);
        thread::spawn(move || {
            for n in [4, 101, 4] {
                let found = tree.get(&key(n));
                assert!(found.is_none() || found == Some(word(n)), "{found:?} for {n}");
            }
        })
    };
    for _ in 0..2 {
        assert!(tree.remove(&key(4), word(4)));
        assert_eq!(tree.insert(&key(101), word(101)), None);
        assert!(tree.remove(&key(101), word(101)));
        assert_eq!(tree.insert(&key(4), word(4)), None);
    }
    reader.join().unwrap();
}

fn explore(story: fn()) {
    crate::explore(story, 500);
}

#[test]
fn interleave_masstree_lookups_beside_splits_miss_nothing() {
    explore(lookups_beside_splits);
}

#[test]
fn interleave_masstree_changes_beside_splits_lose_nothing() {
    explore(changes_beside_splits);
}

#[test]
fn interleave_masstree_scans_meet_everything_once() {
    explore(scans_beside_splits_and_removals);
}

#[test]
fn interleave_masstree_a_node_that_takes_over_its_neighbour_leads_nobody_past_it() {
    explore(ways_beside_a_removal);
}

#[test]
fn interleave_masstree_removals_of_nodes_lose_nothing() {
    explore(removals_of_nodes);
}

#[test]
fn interleave_masstree_layers_come_and_go() {
    explore(layers_that_come_and_go);
}

#[test]
fn interleave_masstree_slots_used_again_show_no_other_key() {
    explore(slots_that_are_used_again);
}
