//! The table against a map, at high load, under colliding hashes and under concurrent displacement.

use super::*;
use esker_base::rng::Rng;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

fn link(n: u64) -> Link {
    Link::record(n, 3).unwrap()
}

fn found(table: &Hopscotch, hash: u64) -> Vec<Link> {
    table.lookup(hash).iter().collect()
}

#[test]
fn agrees_with_a_map_over_random_changes_at_ninety_percent_load() {
    let table = Hopscotch::with_capacity(4096);
    let mut model: HashMap<u64, Link> = HashMap::new();
    let mut rng = Rng::from_seed(7);
    let hashes: Vec<u64> = (0..3700).map(|_| rng.next_u64()).collect();
    for step in 1..200_000u64 {
        let hash = hashes[rng.index(hashes.len())];
        match model.get(&hash).copied() {
            Some(old) if rng.chance(1, 20) => {
                assert!(table.remove(hash, old));
                model.remove(&hash);
            }
            Some(old) => {
                assert!(table.replace(hash, old, link(step)));
                model.insert(hash, link(step));
            }
            None => {
                table.insert(hash, link(step));
                model.insert(hash, link(step));
            }
        }
    }
    assert!(model.len() > 3000);
    assert_eq!(table.len(), model.len() as u64);
    for (hash, link) in &model {
        assert!(found(&table, *hash).contains(link));
    }
    let mut walked: Vec<Link> = (0..table.parts()).flat_map(|part| table.part(part)).collect();
    let mut expected: Vec<Link> = model.values().copied().collect();
    walked.sort();
    expected.sort();
    assert_eq!(walked, expected);
}

#[test]
fn false_candidates_are_rare() {
    let table = Hopscotch::with_capacity(1 << 16);
    let mut rng = Rng::from_seed(8);
    for n in 1..58_000 {
        table.insert(rng.next_u64(), link(n));
    }
    let false_candidates: usize = (0..100_000).map(|_| found(&table, rng.next_u64()).len()).sum();
    assert!(false_candidates < 1000, "{false_candidates} of 100000 lookups of absent keys");
}

#[test]
fn more_equal_hashes_than_slots_overflow_and_stay_reachable() {
    let table = Hopscotch::with_capacity(64);
    for n in 1..=100 {
        table.insert(42, link(n));
    }
    assert!(table.overflow_len() >= 68);
    assert_eq!(found(&table, 42).len(), 100);
    for n in 1..=100 {
        assert!(table.replace(42, link(n), link(n + 1000)));
    }
    assert!(!table.replace(42, link(1), link(2)), "replaced links are gone");
    for n in 1..=100 {
        assert!(table.remove(42, link(n + 1000)));
    }
    assert!(table.is_empty());
    assert_eq!(found(&table, 42), []);
}

#[test]
fn clear_leaves_nothing() {
    let table = Hopscotch::with_capacity(256);
    let mut rng = Rng::from_seed(9);
    let hashes: Vec<u64> = (0..400).map(|_| rng.next_u64()).collect();
    hashes.iter().enumerate().for_each(|(n, hash)| table.insert(*hash, link(n as u64 + 1)));
    table.clear();
    assert!(table.is_empty() && table.overflow_len() == 0);
    assert!(hashes.iter().all(|hash| table.lookup(*hash).is_empty()));
}

#[test]
fn displacement_never_hides_an_entry_from_lookups() {
    // Inserting and removing neighbours forces moves, while readers insist on the residents.
    let table = Hopscotch::with_capacity(2048);
    let mut rng = Rng::from_seed(10);
    let residents: Vec<u64> = (0..900).map(|_| rng.next_u64() & !0x700).collect();
    residents.iter().enumerate().for_each(|(n, hash)| table.insert(*hash, link(n as u64 + 1)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for (n, hash) in residents.iter().enumerate() {
                        assert!(found(&table, *hash).contains(&link(n as u64 + 1)));
                    }
                }
            });
        }
        for round in 0..300u64 {
            let hashes: Vec<u64> = (0..600).map(|_| rng.next_u64() & !0x700).collect();
            hashes.iter().for_each(|hash| table.insert(*hash, link(5000 + round)));
            hashes.iter().for_each(|hash| assert!(table.remove(*hash, link(5000 + round))));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(table.len(), 900);
}
