//! Growth under random interleavings (`cargo xtask interleave`): nothing is missed, lost or met twice
//! while entries move within a table and between tables.
//!
//! The directory begins as full as its first table gets, so that one insert more makes it grow, and
//! the threads meet in the middle of it.

use super::*;
use shuttle::sync::Arc;
use shuttle::thread;

/// Tables of 64 slots in two regions: the first one splits after it was stretched.
const TINY: Geometry = Geometry { home_bits: 6, region_bits: 5 };

fn link(n: u64) -> Link {
    Link::record(n + 1, 1).unwrap_or_else(|| unreachable!("it is in range"))
}

/// Hashes spread evenly over all homes.
fn hash(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A directory in which `count` keys are.
fn filled(count: u64) -> Arc<Directory> {
    let directory = Directory::with_geometry(TINY, 0);
    (0..count).for_each(|n| directory.insert(hash(n), link(n)));
    Arc::new(directory)
}

fn holds(directory: &Directory, n: u64, held: u64) -> bool {
    directory.lookup(hash(n)).iter().any(|found| found == link(held))
}

/// One insert short of the first growth, and of the split that follows.
const NEARLY: [u64; 2] = [55, 83];

/// Inserts that make the table grow, and move all its regions.
fn grow(directory: &Directory, from: u64) {
    for n in from..from + 6 {
        directory.insert(hash(n), link(n));
    }
    let expected = if from == NEARLY[0] { 96 } else { 128 };
    assert!(directory.capacity() >= expected, "nothing grew");
}

fn lookups_beside_growth() {
    for count in NEARLY {
        let directory = filled(count);
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let directory = Arc::clone(&directory);
                thread::spawn(move || {
                    for n in (reader..count).step_by(13) {
                        assert!(holds(&directory, n, n), "{n} of {count}");
                    }
                })
            })
            .collect();
        grow(&directory, count);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }
}

fn changes_beside_growth() {
    for count in NEARLY {
        let directory = filled(count);
        let changer = {
            let directory = Arc::clone(&directory);
            thread::spawn(move || {
                for n in [3, 20, 41] {
                    assert!(directory.replace(hash(n), link(n), link(n + 1000)));
                    assert!(holds(&directory, n, n + 1000));
                    assert!(!holds(&directory, n, n));
                    assert!(directory.remove(hash(n + 1), link(n + 1)));
                    assert!(!holds(&directory, n + 1, n + 1));
                }
            })
        };
        grow(&directory, count);
        changer.join().unwrap();
        for n in [3, 20, 41] {
            assert!(holds(&directory, n, n + 1000) && !holds(&directory, n + 1, n + 1));
        }
        assert_eq!(directory.len(), count + 6 - 3);
    }
}

fn growth_beside_growth() {
    for count in NEARLY {
        let directory = filled(count);
        let other = {
            let directory = Arc::clone(&directory);
            thread::spawn(move || {
                for n in 500..503 {
                    directory.insert(hash(n), link(n));
                    assert!(holds(&directory, n, n));
                }
            })
        };
        // Not `grow`: the other thread may have begun the growth and stand in the middle of it.
        (count..count + 6).for_each(|n| directory.insert(hash(n), link(n)));
        other.join().unwrap();
        let kept = (0..count + 6).chain(500..503);
        kept.for_each(|n| assert!(holds(&directory, n, n), "{n} of {count}"));
        assert_eq!(directory.len(), count + 9);
    }
}

fn walks_beside_growth() {
    for count in NEARLY {
        let directory = filled(count);
        let walker = {
            let directory = Arc::clone(&directory);
            thread::spawn(move || {
                let (mut met, mut cursor) = (Vec::new(), 0);
                while let Some((links, next)) = directory.walk(cursor) {
                    met.extend(links);
                    cursor = next;
                }
                met.retain(|found| *found < link(count));
                met.sort();
                assert!(met.into_iter().eq((0..count).map(link)));
            })
        };
        grow(&directory, count);
        walker.join().unwrap();
    }
}

/// Entries of the overflow that a table takes back when it splits: 55 for the 48 slots that their homes
/// have in a table of 64 homes, and in one that was stretched.
fn overflow_beside_growth() {
    let directory = Arc::new(Directory::with_geometry(TINY, 0));
    let crowd: Vec<u64> = (0..55).map(|n| (10 + n % 16) << 58 | n << 50).collect();
    for (n, hash) in crowd.iter().enumerate() {
        directory.insert(*hash, link(n as u64));
    }
    let mut others = (0..).map(|n| (40 + n % 24) << 58 | n << 48);
    // As full as it gets before it splits.
    while directory.len() - directory.overflow_len() < NEARLY[1] {
        others.next().into_iter().for_each(|hash| directory.insert(hash, link(1000)));
    }
    let before = directory.overflow_len();
    assert!(before > 0 && directory.capacity() == 96);
    let reader = {
        let (directory, crowd) = (Arc::clone(&directory), crowd.clone());
        thread::spawn(move || {
            for (n, hash) in crowd.iter().enumerate().skip(40) {
                let found = directory.lookup(*hash);
                assert!(found.iter().any(|found| found == link(n as u64)), "{n}");
            }
        })
    };
    others.take(8).for_each(|hash| directory.insert(hash, link(1000)));
    reader.join().unwrap();
    assert!(directory.overflow_len() < before, "nothing was taken back");
    for (n, hash) in crowd.iter().enumerate() {
        assert!(directory.remove(*hash, link(n as u64)));
    }
}

/// Inserts residents; two threads that look for every so many of them.
fn residents_and_readers(
    directory: &Arc<Directory>,
    residents: &[u64],
    step: usize,
) -> Vec<thread::JoinHandle<()>> {
    for (n, hash) in residents.iter().enumerate() {
        directory.insert(*hash, link(n as u64));
    }
    let reader = |reader| {
        let (directory, residents) = (Arc::clone(directory), residents.to_vec());
        thread::spawn(move || {
            for (n, hash) in residents.iter().enumerate().skip(reader).step_by(step) {
                let found = directory.lookup(*hash);
                assert!(found.iter().any(|found| found == link(n as u64)), "{n}");
            }
        })
    };
    (0..2).map(reader).collect()
}

/// Displacement within one table, which stays far from growing.
fn displacement_hides_nothing() {
    let directory = Arc::new(Directory::with_geometry(TINY, 0));
    let residents: Vec<u64> = (0..40u64).map(|n| (n % 24) << 58 | n << 50).collect();
    let readers = residents_and_readers(&directory, &residents, 9);
    let newcomers: Vec<u64> = (0..3).map(|n| n << 58 | 0xF0 << 48).collect();
    newcomers.iter().for_each(|hash| directory.insert(*hash, link(1000)));
    newcomers.iter().for_each(|hash| assert!(directory.remove(*hash, link(1000))));
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// Entries come and go where those of the same homes reach beyond their first line, some of which stay.
fn homes_that_reach_less_hide_nothing() {
    let directory = Arc::new(Directory::with_geometry(TINY, 0));
    // Three homes with ten entries, of which two are in the second line; others fill that one.
    let own = (0..10).map(|n| (n % 3) << 58 | n << 50);
    let residents: Vec<u64> = own.chain((0..6).map(|n| (8 + n) << 58 | n << 50)).collect();
    let readers = residents_and_readers(&directory, &residents, 3);
    for round in 0..2 {
        let guests: Vec<u64> = (0..4).map(|n| n << 58 | (0xF0 + round) << 48).collect();
        for (n, hash) in guests.iter().enumerate() {
            directory.insert(*hash, link(1000 + n as u64));
        }
        for (n, hash) in guests.iter().enumerate() {
            assert!(directory.lookup(*hash).iter().any(|found| found == link(1000 + n as u64)));
            assert!(directory.remove(*hash, link(1000 + n as u64)));
        }
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

fn explore(story: fn()) {
    crate::explore(story, 1500);
}

#[test]
fn interleave_lookups_beside_growth_miss_nothing() {
    explore(lookups_beside_growth);
}

#[test]
fn interleave_changes_beside_growth_lose_nothing() {
    explore(changes_beside_growth);
}

#[test]
fn interleave_growth_beside_growth_loses_nothing() {
    explore(growth_beside_growth);
}

#[test]
fn interleave_walks_beside_growth_meet_everything_once() {
    explore(walks_beside_growth);
}

#[test]
fn interleave_overflow_beside_growth_stays_visible() {
    explore(overflow_beside_growth);
}

#[test]
fn interleave_homes_that_reach_less_hide_nothing() {
    explore(homes_that_reach_less_hide_nothing);
}

#[test]
fn interleave_displacement_hides_nothing() {
    explore(displacement_hides_nothing);
}
