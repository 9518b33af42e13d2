//! The index against a model while it grows, and threads beside splits. Colliding hashes, and histories of threads, are in `tests/histories.rs`.

use super::*;
use esker_base::rng::Rng;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn word(n: u64) -> Word {
    Word::new(n + 1).unwrap()
}

fn found(index: &Cceh, hash: u64) -> Vec<Word> {
    let mut found: Vec<Word> = index.lookup(hash).iter().collect();
    found.sort();
    found
}

fn walked(index: &Cceh) -> Vec<(u64, Word)> {
    let (mut all, mut cursor) = (Vec::new(), 0);
    while let Some((entries, next)) = index.walk(cursor) {
        assert!(next > cursor, "a walk goes on");
        assert!(entries.iter().all(|(hash, _)| (cursor..=next).contains(hash)));
        all.extend(entries);
        cursor = next;
    }
    all.sort_unstable();
    all
}

type Model = BTreeMap<u64, Vec<Word>>;

/// Everything that the index says about its contents agrees with the model.
fn check_contents(index: &Cceh, model: &Model) {
    let mut all: Vec<(u64, Word)> =
        model.iter().flat_map(|(hash, words)| words.iter().map(|word| (*hash, *word))).collect();
    all.sort_unstable();
    assert_eq!(index.len(), all.len() as u64);
    assert!(walked(index) == all, "a walk meets other entries");
    let hashes: Vec<u64> = model.keys().copied().collect();
    let mut visited = 0;
    index.lookup_many(&hashes, |n, candidates| {
        assert_eq!(n, visited);
        let mut words: Vec<Word> = candidates.iter().collect();
        words.sort();
        let mut expected = model[&hashes[n]].clone();
        expected.sort();
        assert_eq!(words, expected, "{:016x}", hashes[n]);
        visited += 1;
    });
    assert_eq!(visited, hashes.len());
}

/// Random changes of keys with these hashes, beside a model.
fn agrees_with_a_model(hashes: &[u64], steps: u64, seed: u64) -> Cceh {
    let index = Cceh::default();
    let mut model = Model::new();
    let mut rng = Rng::from_seed(seed);
    for step in 1..=steps {
        let hash = hashes[rng.index(hashes.len())];
        let words = model.entry(hash).or_default();
        let old = (!words.is_empty()).then(|| words[rng.index(words.len())]);
        match old {
            Some(old) if rng.chance(1, 4) => {
                assert!(index.remove(hash, old));
                assert!(!index.remove(hash, old), "removed twice");
                words.retain(|held| *held != old);
            }
            Some(old) if rng.chance(2, 3) => {
                assert!(index.replace(hash, old, word(step)));
                assert!(!index.replace(hash, old, word(step)), "replaced twice");
                words.retain(|held| *held != old);
                words.push(word(step));
            }
            _ => {
                index.insert(hash, word(step));
                words.push(word(step));
            }
        }
        let mut expected = words.clone();
        expected.sort();
        assert_eq!(found(&index, hash), expected);
        if words.is_empty() {
            model.remove(&hash);
        }
        if step % (steps / 4) == 0 {
            check_contents(&index, &model);
        }
    }
    assert!(!model.is_empty());
    index
}

fn random(count: u64, seed: u64, shape: impl Fn(u64) -> u64) -> Vec<u64> {
    let mut rng = Rng::from_seed(seed);
    (0..count).map(|_| shape(rng.next_u64())).collect()
}

#[test]
fn agrees_with_a_model_while_it_grows() {
    for seed in 0..3 {
        let hashes = random(30_000, seed, |hash| hash);
        let index = agrees_with_a_model(&hashes, 150_000, seed);
        assert_eq!(index.stash_len(), 0, "nothing collides");
    }
}

#[test]
fn every_bit_of_a_hash_tells_entries_apart() {
    let index = Cceh::default();
    for base in random(20, 3, |hash| hash) {
        index.insert(base, word(7));
        for bit in 0..64 {
            assert!(index.lookup(base ^ 1 << bit).is_empty(), "bit {bit}");
        }
        (0..64).for_each(|bit| index.insert(base ^ 1 << bit, word(bit)));
        for bit in 0..64 {
            assert!(found(&index, base ^ 1 << bit).contains(&word(bit)), "bit {bit}");
        }
        assert_eq!(found(&index, base), [word(7)]);
    }
}

#[test]
#[cfg_attr(feature = "small", ignore = "about segments of the usual size")]
fn collisions_take_memory_in_proportion() {
    type Shape = fn(u64) -> u64;
    let shapes: [(Shape, u64); 3] =
        [(|hash| hash << 8 | 5, 50_000), (|hash| hash >> 24, 50_000), (|_| 42, 2000)];
    for (shape, count) in shapes {
        let index = Cceh::default();
        let hashes = random(count, 4, shape);
        hashes.iter().zip(0..).for_each(|(hash, n)| index.insert(*hash, word(n)));
        assert!(index.stash_len() > count / 4, "these collide");
        let bytes = index.memory_bytes() as u64 - 64 * index.stash_len();
        assert!(bytes < 3 << 20, "{bytes} bytes");
        for (hash, n) in hashes.iter().zip(0..) {
            assert!(index.lookup(*hash).iter().any(|found| found == word(n)));
        }
        hashes.iter().zip(0..).for_each(|(hash, n)| assert!(index.remove(*hash, word(n))));
        assert!(index.is_empty() && index.stash_len() == 0);
    }
}

#[test]
#[cfg_attr(feature = "small", ignore = "about segments of the usual size")]
fn memory_follows_the_data() {
    let index = Cceh::with_capacity(0);
    let empty = index.memory_bytes();
    assert!(empty < 20 << 10, "{empty} bytes when empty");
    let mut rng = Rng::from_seed(9);
    let (mut sum, mut samples) = (0.0, 0u32);
    for n in 1..1_500_000u32 {
        index.insert(rng.next_u64(), word(u64::from(n)));
        if n % 1000 == 0 && n > 100_000 {
            sum += index.memory_bytes() as f64 / f64::from(n);
            samples += 1;
        }
    }
    let average = sum / f64::from(samples);
    assert!(average < 40.0, "{average:.2} bytes per entry on average");
}

#[test]
fn an_expected_size_makes_room_at_once() {
    for entries in [1u64, 1000, 59_000, 1_000_000] {
        let index = Cceh::with_capacity(entries);
        let before = index.capacity();
        assert!(before >= entries && before < 4 * entries + 2000, "{before} slots for {entries}");
        let all: Vec<(u64, Word)> =
            random(entries, 10, |hash| hash).into_iter().zip((0..).map(word)).collect();
        std::thread::scope(|scope| {
            for half in all.chunks(all.len().div_ceil(2)) {
                scope.spawn(|| index.insert_many(half));
            }
        });
        assert_eq!(index.len(), entries);
        assert!(index.capacity() <= before + before / 4, "split {before} for {entries}");
        assert!(all.iter().all(|(hash, word)| found(&index, *hash) == [*word]));
    }
}

#[test]
fn a_load_in_the_order_of_hashes_needs_no_stash_if_it_is_expected() {
    let mut hashes = random(300_000, 12, |hash| hash);
    hashes.sort_unstable();
    let all: Vec<(u64, Word)> = hashes.into_iter().zip((0..).map(word)).collect();
    let load = |expected| {
        let index = Cceh::default();
        index.expect(expected);
        index.insert_many(&all);
        assert!(all.iter().all(|(hash, word)| found(&index, *hash) == [*word]));
        index.stash_len()
    };
    assert!(load(0) > 0, "then this test shows nothing");
    assert_eq!(load(300_000), 0);
    let index = Cceh::default();
    index.insert(1, word(1));
    index.expect(300_000);
    assert_eq!(found(&index, 1), [word(1)]);
    assert!(index.capacity() < 10_000, "an index that is in use grows with what it gets");
}

#[test]
fn lookups_and_walks_beside_splits_miss_nothing_that_stays() {
    let index = Cceh::default();
    let residents = random(3000, 11, |hash| hash);
    residents.iter().zip(0..).for_each(|(hash, n)| index.insert(*hash, word(n)));
    let (done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (index, done) = (&index, &done);
            scope.spawn(move || {
                let mut rng = Rng::from_seed(100 + thread);
                // In and out, so that slots are used again by other hashes.
                let mut own = Vec::new();
                for n in 0..300_000u64 {
                    let hash = rng.next_u64();
                    index.insert(hash, word(1_000_000 + n));
                    own.push((hash, word(1_000_000 + n)));
                    if n % 3 > 0 {
                        let (hash, word) = own.swap_remove(rng.index(own.len()));
                        assert!(index.remove(hash, word));
                    }
                }
                assert!(own.iter().all(|(hash, word)| found(index, *hash) == [*word]));
                done.store(true, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            let mut over = false;
            while !over {
                over = done.load(Ordering::Relaxed);
                for (hash, n) in residents.iter().zip(0..) {
                    assert_eq!(found(&index, *hash), [word(n)]);
                }
                let walked: Vec<Word> = walked(&index).into_iter().map(|(_, word)| word).collect();
                let met: Vec<Word> =
                    walked.iter().copied().filter(|met| *met < word(1_000_000)).collect();
                assert_eq!(met.len(), residents.len(), "each is met once");
                assert_eq!(met.iter().collect::<HashSet<_>>().len(), residents.len());
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    assert!(rounds.load(Ordering::Relaxed) > 0);
    assert_eq!(index.len(), 3000 + 200_000);
}

/// Buckets behind their homes that lookups of all hashes would read.
fn reaches(index: &Cceh, hashes: impl Iterator<Item = u64>) -> usize {
    let root = index.roots.now().unwrap();
    let reach = |hash| {
        let segment = root.located(hash).unwrap().segment(&index.base.arena);
        segment.home(hash).unwrap().header().reach()
    };
    hashes.map(reach).sum()
}

#[test]
fn homes_reach_no_farther_than_their_entries_after_many_have_come_and_gone() {
    const COUNT: u64 = 20_000;
    let index = Cceh::with_capacity(COUNT);
    let mut rng = Rng::from_seed(21);
    let mut held = Model::new();
    let mut number = 0;
    let mut come = |held: &mut Model, rng: &mut Rng| {
        number += 1;
        let hash = rng.next_u64();
        index.insert(hash, word(number));
        held.insert(hash, vec![word(number)]);
    };
    (0..COUNT).for_each(|_| come(&mut held, &mut rng));
    for _ in 0..20 * COUNT {
        let after = rng.next_u64();
        let hash = *held.range(after..).next().or(held.iter().next()).unwrap().0;
        let words = held.remove(&hash).unwrap();
        assert!(index.remove(hash, words[0]));
        come(&mut held, &mut rng);
    }
    check_contents(&index, &held);
    let fresh = Cceh::with_capacity(COUNT);
    held.iter().for_each(|(hash, words)| fresh.insert(*hash, words[0]));
    let [now, then] = [&index, &fresh].map(|index| reaches(index, held.keys().copied()));
    assert!(then > 100 && now < 2 * then, "{now}, {then} in an index that was just made");
    for (hash, words) in &held {
        assert!(index.remove(*hash, words[0]));
    }
    assert_eq!(reaches(&index, held.keys().copied()), 0, "there is nothing any more");
}
