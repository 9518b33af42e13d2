//! The directory against a map while it grows, under colliding hashes and under concurrent readers.
//!
//! Small tables, so that all steps of growth come often.

mod grown;
mod parts;

use super::*;
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use std::collections::HashMap;
use std::time::Duration;

/// Tables of 64 homes in two regions.
const TINY: Geometry = Geometry { home_bits: 6, region_bits: 5 };
/// Tables of 1024 homes in eight regions.
const SMALL: Geometry = Geometry { home_bits: 10, region_bits: 7 };

fn link(n: u64) -> Link {
    Link::record(n + 1, 3).unwrap()
}

fn found(directory: &Directory, hash: u64) -> Vec<Link> {
    directory.lookup(hash).iter().collect()
}

fn holds(directory: &Directory, hash: u64, link: Link) -> bool {
    directory.lookup(hash).iter().any(|found| found == link)
}

fn walked(directory: &Directory) -> Vec<Link> {
    let (mut all, mut cursor) = (Vec::new(), 0);
    while let Some((links, next)) = directory.walk(cursor) {
        assert!(next > cursor, "a walk goes on");
        all.extend(links);
        cursor = next;
    }
    all.sort();
    all
}

/// Everything that the directory says about its contents agrees with the model.
fn check_contents(directory: &Directory, model: &HashMap<u64, Link>) {
    assert_eq!(directory.len(), model.len() as u64);
    for (hash, link) in model {
        assert!(holds(directory, *hash, *link), "{hash:016x} is missing");
    }
    let mut expected: Vec<Link> = model.values().copied().collect();
    expected.sort();
    assert_eq!(walked(directory), expected);
    let hashes: Vec<u64> = model.keys().copied().collect();
    let mut visited = 0;
    directory.lookup_many(&hashes, |n, candidates| {
        assert_eq!(n, visited);
        assert!(candidates.iter().any(|found| found == model[&hashes[n]]));
        visited += 1;
    });
    assert_eq!(visited, hashes.len());
}

fn agrees_with_a_map(geometry: Geometry, keys: usize, steps: u64, seed: u64) {
    let directory = Directory::with_geometry(geometry, 0);
    let mut model: HashMap<u64, Link> = HashMap::new();
    let mut rng = Rng::from_seed(seed);
    let hashes: Vec<u64> = (0..keys).map(|_| rng.next_u64()).collect();
    for step in 1..=steps {
        let hash = hashes[rng.index(hashes.len())];
        match model.get(&hash).copied() {
            Some(old) if rng.chance(1, 20) => {
                assert!(directory.remove(hash, old));
                assert!(!directory.remove(hash, old), "removed twice");
                model.remove(&hash);
            }
            Some(old) => {
                assert!(directory.replace(hash, old, link(step)));
                model.insert(hash, link(step));
            }
            None => {
                directory.insert(hash, link(step));
                model.insert(hash, link(step));
            }
        }
        assert!(model.get(&hash).is_none_or(|link| holds(&directory, hash, *link)));
        if step % (steps / 5) == 0 {
            check_contents(&directory, &model);
        }
    }
    assert!(model.len() > keys / 2);
}

#[test]
fn agrees_with_a_map_while_it_grows_from_nothing() {
    agrees_with_a_map(SMALL, 200_000, 1_000_000, 1);
    for seed in 0..4 {
        agrees_with_a_map(TINY, 20_000, 100_000, seed);
    }
    agrees_with_a_map(GEOMETRY, 300_000, 900_000, 2);
}

#[test]
fn inserts_of_a_batch_are_those_of_its_entries_one_by_one() {
    let mut rng = Rng::from_seed(5);
    for geometry in [TINY, GEOMETRY] {
        let directory = Directory::with_geometry(geometry, 0);
        let entries: Vec<_> = (0..100_000).map(|n| (rng.next_u64(), link(n))).collect();
        let mut rest = &entries[..];
        while !rest.is_empty() {
            let (batch, others) = rest.split_at(rng.index(2 * GROUP + 3).min(rest.len()));
            directory.insert_many(batch);
            rest = others;
        }
        check_contents(&directory, &entries.into_iter().collect());
    }
}

#[test]
fn a_helper_changes_nothing() {
    let directory = Directory::with_geometry(SMALL, 0);
    directory.allow_helper();
    let mut rng = Rng::from_seed(3);
    let model: HashMap<u64, Link> = (0..200_000).map(|n| (rng.next_u64(), link(n))).collect();
    model.iter().for_each(|(hash, link)| directory.insert(*hash, *link));
    check_contents(&directory, &model);
}

#[test]
fn entries_that_spent_their_tags_stay_reachable_and_are_few() {
    // From 64 homes to 2^17: the first entries know 16 bits of their hashes, and belong to two homes.
    let directory = Directory::with_geometry(TINY, 0);
    let mut rng = Rng::from_seed(4);
    let mut model: HashMap<u64, Link> = HashMap::new();
    for n in 0..150_000 {
        let hash = rng.next_u64();
        directory.insert(hash, link(n));
        model.insert(hash, link(n));
    }
    let spent = directory.overflow_len();
    assert!((20..1500).contains(&spent), "{spent} entries without tag");
    check_contents(&directory, &model);
    // All ways to change them.
    for (n, (hash, held)) in model.clone().into_iter().enumerate() {
        match n % 3 {
            0 => {
                assert!(directory.remove(hash, held));
                model.remove(&hash);
            }
            1 => {
                assert!(directory.replace(hash, held, link(1_000_000 + n as u64)));
                model.insert(hash, link(1_000_000 + n as u64));
            }
            _ => assert!(directory.replace(hash, held, held)),
        }
    }
    check_contents(&directory, &model);
    for (hash, held) in model {
        assert!(directory.remove(hash, held));
    }
    assert!(directory.is_empty() && directory.overflow_len() == 0);
}

#[test]
fn false_candidates_stay_rare_however_often_tables_doubled() {
    let directory = Directory::with_geometry(SMALL, 0);
    let mut rng = Rng::from_seed(5);
    let kept: Vec<(u64, Link)> = (0..300_000).map(|n| (rng.next_u64(), link(n))).collect();
    kept.iter().for_each(|(hash, link)| directory.insert(*hash, *link));
    let absent = |rng: &mut Rng| -> usize {
        (0..100_000).map(|_| found(&directory, rng.next_u64()).len()).sum()
    };
    // About one in 1024 for each of a dozen doublings, at 0.9 to 1.4 entries for each home.
    let grown = absent(&mut rng);
    assert!(grown < 1700, "{grown} of 100000 lookups of absent keys");
    kept.iter().for_each(|(hash, link)| assert!(directory.replace(*hash, *link, *link)));
    let fresh = absent(&mut rng);
    // What is left: those whose tag was spent before, which stay where walks expect them.
    assert!(fresh < 500 && 2 * fresh < grown, "{fresh} of 100000 with all tags renewed");
}

#[test]
fn equal_hashes_overflow_stay_reachable_and_make_nothing_grow() {
    let directory = Directory::with_geometry(TINY, 0);
    for n in 0..5000 {
        directory.insert(42, link(n));
    }
    assert!(directory.overflow_len() >= 5000 - 32);
    assert!(directory.capacity() <= 96, "{} slots for one hash", directory.capacity());
    assert_eq!(found(&directory, 42).len(), 5000);
    for n in 0..5000 {
        assert!(directory.replace(42, link(n), link(n + 10_000)));
    }
    assert!(!directory.replace(42, link(1), link(2)), "replaced links are gone");
    // They survive growth around them.
    let mut rng = Rng::from_seed(6);
    let others: Vec<u64> = (0..20_000).map(|_| rng.next_u64()).collect();
    others.iter().for_each(|hash| directory.insert(*hash, link(77)));
    assert_eq!(found(&directory, 42).len(), 5000);
    for n in 0..5000 {
        assert!(directory.remove(42, link(n + 10_000)));
    }
    others.iter().for_each(|hash| assert!(directory.remove(*hash, link(77))));
    assert!(directory.is_empty());
    assert_eq!(found(&directory, 42), []);
}

/// Homes that reach beyond their first line for entries in slots, of all tables, and all homes.
fn reaching(directory: &Directory) -> (usize, usize) {
    let pin = pin();
    let root = directory.root.load(&pin);
    let (mut hash, mut reaching, mut all) = (0_u64, 0, 0);
    loop {
        let table = root.table(hash, &pin).unwrap();
        reaching += table.reaching();
        all += table.shape().homes();
        let (_, last) = table.shape().hashes(&(0..table.shape().homes()));
        match last.checked_add(1) {
            Some(next) => hash = next,
            None => return (reaching, all),
        }
    }
}

#[test]
fn homes_reach_no_farther_than_their_entries_however_often_those_were_replaced() {
    const COUNT: usize = 20_000;
    let mut rng = Rng::from_seed(6);
    let old = Directory::with_geometry(SMALL, 0);
    let mut model: HashMap<u64, Link> = HashMap::new();
    let mut hashes: Vec<u64> = Vec::new();
    for n in 0..COUNT as u64 * 10 {
        let hash = rng.next_u64();
        if hashes.len() == COUNT {
            let gone = hashes.swap_remove(rng.index(COUNT));
            assert!(old.remove(gone, model.remove(&gone).unwrap()));
        }
        old.insert(hash, link(n));
        model.insert(hash, link(n));
        hashes.push(hash);
    }
    check_contents(&old, &model);
    // Entries that go leave holes in first lines, which others fill; those that stand elsewhere stay there.
    let (aged, homes) = reaching(&old);
    assert!(aged * 5 < homes * 2, "{aged} of {homes} homes reach beyond their line");
    for (hash, held) in model {
        assert!(old.remove(hash, held));
    }
    assert_eq!(reaching(&old), (0, homes));
}

#[test]
fn a_table_that_fills_before_it_is_linked_grows_later() {
    let directory = Directory::with_geometry(TINY, 0);
    let mut rng = Rng::from_seed(11);
    let mut count = 0;
    let mut fill = |entries: u64| {
        (0..entries).for_each(|n| directory.insert(rng.next_u64(), link(count + n)));
        count += entries;
    };
    let pin = pin();
    let root = directory.root.load(&pin);
    let table = root.table(0, &pin).unwrap();
    table.grow();
    let growth = table.growth().unwrap();
    // Somebody has moved all regions, and is held up before it can link the new table.
    assert!((0..64).any(|home| table.migrate(growth, home << 58, root.overflow())));
    fill(200);
    assert_eq!(directory.capacity(), 64, "only linked tables grow");
    directory.finish(root, table, &pin);
    fill(20_000);
    let spent = directory.overflow_len();
    assert!(spent < 1000, "{spent} of {} never found a slot", directory.len());
}

#[test]
fn keys_chosen_to_share_a_table_end_in_the_overflow() {
    // All hashes begin with the same 20 bits, and the rest is random: every split is in vain.
    let directory = Directory::with_geometry(SMALL, 0);
    let mut rng = Rng::from_seed(7);
    let hashes: Vec<u64> = (0..50_000).map(|_| 0xABCDE << 44 | rng.next_u64() >> 20).collect();
    hashes.iter().enumerate().for_each(|(n, hash)| directory.insert(*hash, link(n as u64)));
    assert!(directory.capacity() < 200_000, "{} slots", directory.capacity());
    assert!(directory.memory_bytes() < 8 << 20, "{} bytes", directory.memory_bytes());
    for (n, hash) in hashes.iter().enumerate() {
        assert!(holds(&directory, *hash, link(n as u64)));
    }
}

#[test]
fn clear_leaves_nothing_and_gives_the_memory_back() {
    let directory = Directory::with_geometry(SMALL, 0);
    let mut rng = Rng::from_seed(8);
    let hashes: Vec<u64> = (0..100_000).map(|_| rng.next_u64()).collect();
    for _ in 0..2 {
        hashes.iter().enumerate().for_each(|(n, hash)| directory.insert(*hash, link(n as u64)));
        assert_eq!(directory.len(), 100_000);
        directory.clear();
        assert!(directory.is_empty() && directory.overflow_len() == 0);
        assert_eq!(directory.capacity(), 64);
        assert_eq!(walked(&directory), []);
        assert!(hashes.iter().all(|hash| directory.lookup(*hash).is_empty()));
    }
    directory.insert(1, link(1));
    assert_eq!(found(&directory, 1), [link(1)]);
}

#[test]
fn a_helper_keeps_nothing_ready_for_a_directory_that_was_cleared() {
    let directory = Directory::with_geometry(SMALL, 0);
    directory.allow_helper();
    let mut rng = Rng::from_seed(8);
    for n in 0..200_000 {
        directory.insert(rng.next_u64(), link(n));
    }
    directory.clear();
    let start = SystemClock.monotonic();
    while directory.memory_bytes() > 8 << 10 {
        // Tables go once nobody reads them.
        crate::reclaim::collect();
        std::thread::yield_now();
        let took = SystemClock.monotonic() - start;
        assert!(took < Duration::from_secs(20), "{} bytes", directory.memory_bytes());
    }
}

#[test]
fn a_hint_makes_room_at_once() {
    for entries in [1u64, 1000, 59_000, 61_000, 1_000_000, 3_000_000] {
        let directory = Directory::with_capacity(entries);
        let before = directory.capacity();
        assert!(before > entries && before < 3 * entries + 200, "{before} slots for {entries}");
        let mut rng = Rng::from_seed(10);
        (0..entries).for_each(|n| directory.insert(rng.next_u64(), link(n)));
        let after = directory.capacity();
        assert!(after <= before + before / 2, "grew from {before} to {after} for {entries}");
    }
}
