//! Readers, writers and walks of several threads while tables grow.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn hashes(seed: u64, count: usize) -> Vec<u64> {
    let mut rng = Rng::from_seed(seed);
    (0..count).map(|_| rng.next_u64()).collect()
}

/// Runs `change` while two threads insist on what they must find.
fn beside_readers(directory: &Directory, read: impl Fn(usize) + Sync, change: impl FnOnce()) {
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (stop, rounds, read) = (&stop, &rounds, &read);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    read(reader);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        change();
        while rounds.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!directory.is_empty());
}

#[test]
fn readers_never_miss_a_key_while_tables_grow() {
    for geometry in [TINY, SMALL] {
        for round in 0..5 {
            let directory = Directory::with_geometry(geometry, 0);
            let residents = hashes(1, 500);
            residents.iter().enumerate().for_each(|(n, hash)| {
                directory.insert(*hash, link(n as u64));
            });
            let insist = |_| {
                for (n, hash) in residents.iter().enumerate() {
                    assert!(holds(&directory, *hash, link(n as u64)));
                }
                directory.lookup_many(&residents, |n, candidates| {
                    assert!(candidates.iter().any(|found| found == link(n as u64)));
                });
            };
            beside_readers(&directory, insist, || {
                for hash in hashes(100 + round, 60_000) {
                    directory.insert(hash, link(1 << 20));
                }
            });
        }
    }
}

#[test]
fn readers_find_the_old_or_the_new_link_of_a_key_that_is_replaced() {
    let directory = Directory::with_geometry(TINY, 0);
    let residents = hashes(2, 300);
    let newest: Vec<AtomicU64> = (0..300).map(AtomicU64::new).collect();
    residents.iter().enumerate().for_each(|(n, hash)| directory.insert(*hash, link(n as u64)));
    let insist = |_| {
        for (hash, newest) in residents.iter().zip(&newest) {
            let before = newest.load(Ordering::SeqCst);
            let found = found(&directory, *hash);
            let after = newest.load(Ordering::SeqCst);
            let allowed = (before..=after + 300).step_by(300);
            assert!(allowed.into_iter().any(|n| found.contains(&link(n))), "{found:?}");
        }
    };
    beside_readers(&directory, insist, || {
        let mut rng = Rng::from_seed(3);
        for (n, hash) in hashes(4, 100_000).into_iter().enumerate() {
            directory.insert(hash, link((1 << 30) + n as u64));
            let place = rng.index(300);
            let old = newest[place].load(Ordering::SeqCst);
            assert!(directory.replace(residents[place], link(old), link(old + 300)));
            newest[place].store(old + 300, Ordering::SeqCst);
        }
    });
}

#[test]
fn walks_meet_what_stays_exactly_once_while_tables_grow() {
    let directory = Directory::with_geometry(TINY, 0);
    let residents = hashes(5, 2000);
    residents.iter().enumerate().for_each(|(n, hash)| directory.insert(*hash, link(n as u64)));
    let insist = |_| {
        let mut met = walked(&directory);
        met.retain(|found| *found < link(2000));
        assert!(met.iter().copied().eq((0..2000).map(link)), "{} met", met.len());
    };
    beside_readers(&directory, insist, || {
        for (n, hash) in hashes(6, 150_000).into_iter().enumerate() {
            directory.insert(hash, link(10_000 + n as u64));
        }
    });
}

#[test]
fn writers_in_several_threads_lose_nothing() {
    for geometry in [TINY, SMALL] {
        let directory = Directory::with_geometry(geometry, 0);
        directory.allow_helper();
        std::thread::scope(|scope| {
            for writer in 0..4u64 {
                let directory = &directory;
                scope.spawn(move || {
                    for (n, hash) in hashes(10 + writer, 30_000).into_iter().enumerate() {
                        let first = link(writer << 32 | n as u64);
                        let second = link(writer << 32 | 1 << 31 | n as u64);
                        directory.insert(hash, first);
                        assert!(directory.replace(hash, first, second));
                        if n % 3 == 0 {
                            assert!(directory.remove(hash, second));
                        }
                    }
                });
            }
        });
        assert_eq!(directory.len(), 80_000);
        let mut model = HashMap::new();
        for writer in 0..4u64 {
            for (n, hash) in hashes(10 + writer, 30_000).into_iter().enumerate() {
                if n % 3 != 0 {
                    model.insert(hash, link(writer << 32 | 1 << 31 | n as u64));
                }
            }
        }
        check_contents(&directory, &model);
    }
}

#[test]
fn clearing_beside_changes_harms_nothing() {
    let directory = Directory::with_geometry(TINY, 0);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let directory = &directory;
            scope.spawn(move || {
                for (n, hash) in hashes(20 + writer, 50_000).into_iter().enumerate() {
                    directory.insert(hash, link(n as u64));
                    let _ = directory.lookup(hash);
                    let _ = directory.remove(hash, link(n as u64));
                }
            });
        }
        for _ in 0..200 {
            directory.clear();
            let _ = walked(&directory);
        }
    });
    directory.clear();
    assert!(directory.is_empty());
    assert_eq!(walked(&directory), []);
}
