//! The tree against an ordered map, and threads beside splits and removals. Most shapes of keys, and histories of threads, are in
//! `tests/histories.rs`.

use super::node::LEADING;
use super::*;
use esker_base::rng::Rng;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn word(n: u64) -> Word {
    Word::new(n + 1).unwrap()
}

type Model = BTreeMap<Vec<u8>, Word>;

fn scanned(tree: &Masstree, from: Bound<&[u8]>, max: usize) -> Vec<(Vec<u8>, Word)> {
    let mut found = Vec::new();
    tree.scan(from, max, |key, word| {
        found.push((key.to_vec(), word));
        if found.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    found
}

fn scanned_back(tree: &Masstree, from: Bound<&[u8]>, max: usize) -> Vec<(Vec<u8>, Word)> {
    let mut found = Vec::new();
    tree.scan_back(from, max, |key, word| {
        found.push((key.to_vec(), word));
        if found.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    found
}

fn owned<'a>(pairs: impl Iterator<Item = (&'a Vec<u8>, &'a Word)>) -> Vec<(Vec<u8>, Word)> {
    pairs.map(|(key, word)| (key.clone(), *word)).collect()
}

/// Everything that the tree says about its contents agrees with the model.
fn check_contents(tree: &Masstree, model: &Model, rng: &mut Rng, keys: &[Vec<u8>]) {
    assert_eq!(tree.len(), model.len() as u64);
    assert!(scanned(tree, Bound::Unbounded, usize::MAX) == owned(model.iter()));
    assert!(scanned_back(tree, Bound::Unbounded, usize::MAX) == owned(model.iter().rev()));
    let mut parts: Vec<(Vec<u8>, Word)> = Vec::new();
    loop {
        let part = tree.walk(parts.last().map(|(key, _)| &key[..]), 1 + rng.index(50));
        if part.is_empty() {
            break;
        }
        parts.extend(part);
    }
    assert!(parts == owned(model.iter()));
    let mut visited = 0;
    tree.lookup_many(keys, |n, word| {
        assert_eq!(n, visited);
        assert_eq!(word, model.get(&keys[n]).copied());
        visited += 1;
    });
    assert_eq!(visited, keys.len());
    for _ in 0..200 {
        // Also keys that are not there: neighbours of those that are.
        let mut key = keys[rng.index(keys.len())].clone();
        match rng.below(4) {
            0 => key.push(0),
            1 => drop(key.pop()),
            2 => *key.last_mut().unwrap() ^= 1,
            _ => {}
        }
        let max = 1 + rng.index(40);
        let key = &key[..];
        let all = Bound::Unbounded;
        for from in [Bound::Included(key), Bound::Excluded(key)] {
            let expected = owned(model.range::<[u8], _>((from, all)).take(max));
            assert_eq!(scanned(tree, from, max), expected);
            let expected = owned(model.range::<[u8], _>((all, from)).rev().take(max));
            assert_eq!(scanned_back(tree, from, max), expected);
        }
    }
}

fn agrees_with_a_map(keys: &[Vec<u8>], steps: u64, seed: u64) -> (Masstree, Model) {
    let tree = Masstree::new();
    let mut model = Model::new();
    let mut rng = Rng::from_seed(seed);
    for step in 1..=steps {
        let key = &keys[rng.index(keys.len())];
        // Phases in which the tree grows, and in which it shrinks.
        let removes = [1, 8][usize::from((step / (steps / 6 + 1)) & 1 == 1)];
        match model.get(key).copied() {
            Some(old) if rng.chance(removes, 10) => {
                assert!(!tree.remove(key, word(u64::from(u32::MAX))), "removes another word");
                assert!(tree.remove(key, old));
                assert!(!tree.remove(key, old), "removed twice");
                model.remove(key);
            }
            Some(old) if step % 2 == 0 => {
                assert_eq!(tree.swap(key, word(step), |held| held != old), Some(old));
                assert_eq!(tree.get(key), Some(old), "that one does not go");
                assert_eq!(tree.swap(key, word(step), |held| held == old), Some(old));
                model.insert(key.clone(), word(step));
            }
            None if step % 2 == 0 => {
                assert_eq!(tree.swap(key, word(step), |_| true), None);
                model.insert(key.clone(), word(step));
            }
            Some(old) => {
                assert_eq!(tree.insert(key, word(step)), Some(old));
                assert!(tree.replace(key, old, word(step)));
                assert!(!tree.replace(key, old, word(step)), "replaced twice");
                model.insert(key.clone(), word(step));
            }
            None => {
                assert!(!tree.replace(key, word(1), word(step)));
                assert_eq!(tree.insert(key, word(step)), None);
                model.insert(key.clone(), word(step));
            }
        }
        assert_eq!(tree.get(key), model.get(key).copied());
        if step % (steps / 6) == 0 {
            check_contents(&tree, &model, &mut rng, keys);
        }
    }
    (tree, model)
}

fn keys(count: usize, seed: u64, shape: impl Fn(&mut Rng) -> Vec<u8>) -> Vec<Vec<u8>> {
    let mut rng = Rng::from_seed(seed);
    (0..count).map(|_| shape(&mut rng)).collect()
}

fn random_key(rng: &mut Rng, length_max: u64, letters: u64) -> Vec<u8> {
    let length = 1 + rng.below(length_max);
    (0..length).map(|_| u8::try_from(rng.below(letters)).unwrap() * 51).collect()
}

/// Takes everything out again; what is left is as small as an empty tree, and its nodes are used
/// again.
fn empties(tree: &Masstree, mut model: Model, seed: u64) {
    let mut rng = Rng::from_seed(seed);
    let mut left: Vec<(Vec<u8>, Word)> = owned(model.iter());
    while !left.is_empty() {
        let (key, word) = match seed % 3 {
            0 => left.swap_remove(rng.index(left.len())),
            1 => left.pop().unwrap(),
            _ => left.remove(0),
        };
        assert!(tree.remove(&key, word));
        model.remove(&key);
        if left.len().is_multiple_of(2000) {
            assert!(scanned(tree, Bound::Unbounded, usize::MAX) == owned(model.iter()));
            assert!(scanned_back(tree, Bound::Unbounded, usize::MAX) == owned(model.iter().rev()));
        }
    }
    let (nodes, height) = shape(tree);
    assert!(nodes <= height + 1, "{nodes} nodes are left, {height} levels");
}

/// Nodes of the first layer, and its levels above the borders.
fn shape(tree: &Masstree) -> (u64, u64) {
    let guard = tree.memory.guard();
    let root = tree.root(&guard).unwrap();
    let (mut nodes, height) = (0, root.version().level());
    for level in 0..=height {
        let mut node = descend(root, 0, level, &guard);
        assert_eq!(node.unwrap().low(), 0, "the first node begins with 0");
        while let Some(here) = node {
            nodes += 1;
            node = here.next(&guard);
            assert_eq!(node.map_or(0, Node::low), here.high(), "neighbours touch");
        }
    }
    (nodes, height)
}

#[test]
fn nodes_and_layers_that_become_empty_are_removed() {
    for seed in 0..6 {
        let shapes: [fn(&mut Rng) -> Vec<u8>; 3] = [
            |rng| rng.next_u64().to_be_bytes().to_vec(),
            |rng| random_key(rng, 40, 2),
            |rng| [b"one layer", &rng.next_u64().to_be_bytes()[..]].concat(),
        ];
        for shape in shapes {
            let (tree, model) = agrees_with_a_map(&keys(6000, seed, shape), 20_000, seed);
            empties(&tree, model, seed);
        }
    }
}

#[test]
fn a_queue_of_keys_takes_no_more_memory_than_what_is_in_it() {
    let tree = Masstree::new();
    let key = |n: u64| [&b"queue of"[..], &n.to_be_bytes()].concat();
    let mut early = 0;
    for n in 0..300_000u64 {
        tree.insert(&key(n), word(n));
        if n >= 1000 {
            assert!(tree.remove(&key(n - 1000), word(n - 1000)));
        }
        if n == 30_000 {
            early = tree.memory_bytes();
        }
    }
    let late = tree.memory_bytes();
    assert!(late < early + (4 << 20), "{early} bytes, then {late}");
    assert_eq!(tree.len(), 1000);
}

#[test]
fn keys_of_the_greatest_length_may_differ_in_their_last_byte() {
    let tree = Masstree::new();
    let mut key = vec![9; 64 << 10];
    for last in 0..3 {
        *key.last_mut().unwrap() = last;
        assert_eq!(tree.insert(&key, word(u64::from(last))), None);
    }
    assert_eq!(scanned(&tree, Bound::Included(&key[..]), 9), [(key.clone(), word(2))]);
    assert_eq!(scanned_back(&tree, Bound::Unbounded, 9).len(), 3);
    for last in 0..3 {
        *key.last_mut().unwrap() = last;
        assert_eq!(tree.get(&key), Some(word(u64::from(last))));
        assert!(tree.remove(&key, word(u64::from(last))));
    }
    assert!(tree.is_empty() && scanned(&tree, Bound::Unbounded, 9).is_empty());
}

#[test]
fn rising_keys_fill_their_nodes_and_memory_follows_the_data() {
    let tree = Masstree::new();
    assert!(tree.memory_bytes() < 10 << 10, "{} bytes when empty", tree.memory_bytes());
    let entries: Vec<_> = (0..1_000_000u64).map(|n| (n.to_be_bytes(), word(n))).collect();
    std::thread::scope(|scope| {
        for half in entries.chunks(entries.len() / 2) {
            scope.spawn(|| tree.insert_many(half));
        }
    });
    assert_eq!(tree.len(), 1_000_000);
    let each = tree.memory_bytes() as f64 / 1_000_000.0;
    assert!(each < 36.0, "{each:.1} bytes per rising key");
    assert!(
        scanned(&tree, Bound::Unbounded, usize::MAX)
            .into_iter()
            .eq(entries.iter().map(|(key, word)| (key.to_vec(), *word)))
    );
}

#[test]
fn scans_beside_changes_meet_everything_that_stays_once() {
    let tree = Masstree::new();
    let name = |n: u64| {
        let mut key = format!("{:08}", n / 4).into_bytes();
        key.extend(&b"-and then"[..2 * (n % 4) as usize]);
        key
    };
    let stays: Vec<u64> = (0..20_000).filter(|n| n % 5 == 0).collect();
    stays.iter().for_each(|n| assert_eq!(tree.insert(&name(*n), word(*n)), None));
    let (done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (tree, done) = (&tree, &done);
            scope.spawn(move || {
                let mut rng = Rng::from_seed(thread);
                for _ in 0..12 {
                    // Whole runs come and go, so that nodes and layers do.
                    let start = rng.below(15_000);
                    let run = || (start..start + 5000).filter(|n| n % 5 == 1 + thread);
                    run().for_each(|n| assert_eq!(tree.insert(&name(n), word(n)), None));
                    run().for_each(|n| assert_eq!(tree.get(&name(n)), Some(word(n))));
                    run().for_each(|n| assert!(tree.remove(&name(n), word(n))));
                    run().for_each(|n| assert_eq!(tree.get(&name(n)), None));
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            let mut over = false;
            while !over {
                over = done.load(Ordering::Relaxed);
                for back in [false, true] {
                    let mut met = match back {
                        false => scanned(&tree, Bound::Unbounded, usize::MAX),
                        true => scanned_back(&tree, Bound::Unbounded, usize::MAX),
                    };
                    if back {
                        met.reverse();
                    }
                    assert!(met.is_sorted_by(|a, b| a.0 < b.0), "in order, none twice");
                    met.retain(|(_, met)| (met.get() - 1) % 5 == 0);
                    assert!(met.iter().map(|(_, word)| word.get() - 1).eq(stays.iter().copied()));
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    assert!(rounds.load(Ordering::Relaxed) > 0);
    assert_eq!(tree.len(), stays.len() as u64);
}

/// A border comes and goes where the scan begins: in the moment when it is told the way there, and behind that.
#[test]
fn a_scan_back_does_not_go_up_again_where_it_is_led_past_its_place() {
    let tree = Arc::new(Masstree::new());
    let key = |n: u64| n.to_be_bytes();
    (0..16).for_each(|n| assert_eq!(tree.insert(&key(2 * n), word(2 * n)), None));
    let (changed, changes) = (Arc::clone(&tree), Arc::new(AtomicU64::new(0)));
    let done = Arc::clone(&changes);
    LEADING.set(Some(Box::new(move |high| {
        match (done.load(Ordering::Relaxed), high) {
            (0, 30) | (2, _) => assert_eq!(changed.insert(&key(29), word(29)), None),
            (1, 29) => assert!(changed.remove(&key(29), word(29))),
            _ => return,
        }
        done.fetch_add(1, Ordering::Relaxed);
    })));
    let met = scanned_back(&tree, Bound::Excluded(&key(29)), usize::MAX);
    LEADING.set(None);
    assert_eq!(changes.load(Ordering::Relaxed), 3);
    assert!(met.iter().map(|(_, word)| word.get() - 1).eq((0..15).rev().map(|n| 2 * n)), "{met:?}");
}

/// One thread adds, another one removes, and what it frees is its own to use again.
#[test]
fn memory_that_one_thread_frees_is_used_again_by_another() {
    const KEYS: u64 = 40_000;
    let tree = Masstree::new();
    let key = |n: u64| format!("{n:020}").into_bytes();
    let mut taken = Vec::new();
    for round in 0..10 {
        let keys = round * KEYS..(round + 1) * KEYS;
        let (added, removed) = (keys.clone(), keys);
        std::thread::scope(|scope| {
            scope.spawn(|| added.for_each(|n| assert_eq!(tree.insert(&key(n), word(n)), None)));
        });
        // This thread all the time.
        for n in removed {
            assert!(tree.remove(&key(n), word(n)));
            assert_eq!(tree.get(&key(n)), None);
        }
        taken.push(tree.memory_bytes());
    }
    assert!(taken[9] * 2 <= taken[1] * 3, "{taken:?}");
}

#[test]
fn two_long_keys_with_one_beginning_take_a_layer_for_each_slice_and_no_more() {
    let mut keys = [vec![b'k'; 65_536], vec![b'k'; 65_536]];
    keys[1][65_535] = b'l';
    let tree = Masstree::new();
    for (key, n) in keys.iter().zip(0..) {
        assert_eq!(tree.insert(key, word(n)), None);
    }
    // 8192 layers of one node are 2.5 MiB.
    assert!(tree.memory_bytes() < 4 << 20, "{} bytes", tree.memory_bytes());
    for (key, n) in keys.iter().zip(0..) {
        assert_eq!(tree.get(key), Some(word(n)));
    }
    assert_eq!(scanned(&tree, Bound::Unbounded, 9).len(), 2);
    assert!(tree.remove(&keys[0], word(0)) && tree.remove(&keys[1], word(1)));
    assert!(tree.is_empty() && scanned(&tree, Bound::Unbounded, 9).is_empty());
}

/// Where keys part, and where they end, beside the ends of slices.
#[test]
fn keys_that_part_anywhere_are_all_there() {
    let beginning = [b'x'; 40];
    for shared in 0..=40 {
        for (one, other) in (0..20).flat_map(|one| (0..20).map(move |other| (one, other))) {
            let key = |rest: usize, byte: u8| [&beginning[..shared], &vec![byte; rest]].concat();
            let keys = [key(one, b'a'), key(other, b'b')];
            if keys[0] == keys[1] {
                continue;
            }
            let tree = Masstree::new();
            for (key, n) in keys.iter().zip(0..) {
                assert_eq!(tree.insert(key, word(n)), None);
            }
            let mut expected: Vec<_> = keys.iter().cloned().zip((0..).map(word)).collect();
            expected.sort();
            assert_eq!(scanned(&tree, Bound::Unbounded, 9), expected);
            assert_eq!([0, 1].map(|n| tree.get(&keys[n])), [Some(word(0)), Some(word(1))]);
        }
    }
}
