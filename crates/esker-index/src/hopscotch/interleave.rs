//! Displacement under random interleavings (`cargo xtask interleave`): an entry that moves is never
//! invisible to a lookup.
//!
//! One thread changes the table, so that its locks are never waited for; the others only look up.

use super::*;
use shuttle::sync::Arc;

/// Hashes that fill one neighbourhood and its successor, so that one more entry must move others.
fn crowded(table: &Hopscotch) -> Vec<(u64, Link)> {
    (0..NEIGHBOURHOOD as u64 + 8)
        .map(|n| {
            let hash = (n % 24) | n << 56;
            let link = Link::record(n + 1, 1).unwrap();
            table.insert(hash, link);
            (hash, link)
        })
        .collect()
}

fn displacement_hides_nothing() {
    let table = Arc::new(Hopscotch::with_capacity(64));
    let residents = crowded(&table);
    let readers: Vec<_> = (0..2)
        .map(|reader| {
            let (table, residents) = (Arc::clone(&table), residents.clone());
            shuttle::thread::spawn(move || {
                for (hash, link) in residents.iter().skip(reader).step_by(9) {
                    assert!(table.lookup(*hash).iter().any(|found| found == *link));
                }
            })
        })
        .collect();
    let newcomers: Vec<_> =
        (0..3).map(|n| (n | 0xF0 << 56, Link::record(1000 + n, 1).unwrap())).collect();
    for (hash, link) in &newcomers {
        table.insert(*hash, *link);
    }
    for (hash, link) in &newcomers {
        assert!(table.remove(*hash, *link));
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn interleave_displacement_hides_nothing_at_random() {
    shuttle::check_random(displacement_hides_nothing, 3000);
}

#[test]
fn interleave_displacement_hides_nothing_with_few_preemptions() {
    shuttle::check_pct(displacement_hides_nothing, 3000, 3);
}
