//! Export and import: equal contents in other sizes, and bytes that are no part.

use super::*;

fn exported(directory: &Directory) -> Vec<Vec<u8>> {
    let (mut parts, mut cursor) = (Vec::new(), 0);
    while let Some((part, next)) = directory.export(cursor) {
        parts.push(part);
        cursor = next;
    }
    parts
}

fn filled(geometry: Geometry, count: u64) -> (Directory, HashMap<u64, Link>) {
    let directory = Directory::with_geometry(geometry, 0);
    let mut rng = Rng::from_seed(1);
    let model: HashMap<u64, Link> = (0..count).map(|n| (rng.next_u64(), link(n))).collect();
    model.iter().for_each(|(hash, link)| directory.insert(*hash, *link));
    // Something for the overflow.
    (0..60).for_each(|n| directory.insert(99 << 50, link(1 << 30 | n)));
    (directory, model)
}

fn check_import(parts: &[Vec<u8>], into: &Directory, model: &HashMap<u64, Link>) {
    let count: u64 = parts.iter().map(|part| into.import(part, |_| true).unwrap()).sum();
    assert_eq!(count, model.len() as u64 + 60);
    assert_eq!(found(into, 99 << 50).iter().filter(|l| l.grain() > 1 << 30).count(), 60);
    for n in 0..60 {
        assert!(into.remove(99 << 50, link(1 << 30 | n)));
    }
    check_contents(into, model);
    for (hash, link) in model {
        assert!(into.remove(*hash, *link));
    }
    assert!(into.is_empty());
}

#[test]
fn parts_rebuild_equal_contents_in_any_size() {
    for from in [TINY, SMALL, GEOMETRY] {
        let (directory, model) = filled(from, 70_000);
        let mut parts = exported(&directory);
        for into in [TINY, SMALL, GEOMETRY] {
            for hint in [0, 70_000, 1_000_000] {
                parts.reverse();
                check_import(&parts, &Directory::with_geometry(into, hint), &model);
            }
        }
    }
}

#[test]
fn an_import_into_the_right_size_keeps_tags_and_takes_8_bytes_per_entry() {
    let (directory, model) = filled(GEOMETRY, 200_000);
    let parts = exported(&directory);
    let bytes: usize = parts.iter().map(Vec::len).sum();
    assert!(bytes < 83 * model.len() / 10, "{bytes} bytes");
    let again = Directory::with_capacity(directory.len());
    assert!(parts.iter().all(|part| again.import(part, |_| true).is_ok()));
    let mut rng = Rng::from_seed(2);
    let mut candidates = |directory: &Directory| -> usize {
        (0..100_000).map(|_| found(directory, rng.next_u64()).len()).sum()
    };
    let (before, after) = (candidates(&directory), candidates(&again));
    assert!(after < 2 * before + 100, "{after} false candidates after, {before} before");
}

#[test]
fn parts_taken_while_tables_grow_hold_what_stays() {
    let (directory, model) = filled(TINY, 3000);
    let parts = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::from_seed(3);
            (0..50_000).for_each(|n| directory.insert(rng.next_u64(), link(1 << 20 | n)));
        });
        (0..20).map(|_| exported(&directory)).collect::<Vec<_>>()
    });
    for parts in parts {
        let again = Directory::with_geometry(SMALL, 0);
        parts.iter().for_each(|part| assert!(again.import(part, |_| true).is_ok()));
        assert!(model.iter().all(|(hash, link)| holds(&again, *hash, *link)));
    }
}

#[test]
fn an_empty_directory_has_parts_too() {
    let parts = exported(&Directory::with_capacity(0));
    let again = Directory::with_capacity(0);
    assert!(parts.iter().all(|part| again.import(part, |_| true).unwrap() == 0));
    assert!(again.is_empty());
}

#[test]
fn bytes_that_are_no_part_are_refused_or_harmless() {
    let (directory, _) = filled(TINY, 300);
    let parts = exported(&directory);
    let target = Directory::with_geometry(TINY, 0);
    for length in 0..parts[0].len() {
        assert!(target.import(&parts[0][..length], |_| true).is_err(), "cut to {length}");
    }
    assert!(
        target.import(&[&parts[0][..], &[0; 8]].concat(), |_| true).is_err(),
        "longer than it says"
    );
    assert!(target.is_empty(), "what is refused adds nothing");
    let mut rng = Rng::from_seed(4);
    for _ in 0..30_000 {
        let mut part = parts[rng.index(parts.len())].clone();
        for _ in 0..1 + rng.index(3) {
            let reach = 64 + rng.index(part.len());
            let place = rng.index(part.len().min(reach));
            part[place] = match rng.index(4) {
                0 => 0xFF,
                1 => 0,
                2 => part[place] ^ 1 << rng.index(8),
                _ => rng.below(256).to_le_bytes()[0],
            };
        }
        let before = target.len();
        match target.import(&part, |_| true) {
            Ok(count) => assert_eq!(target.len(), before + count),
            Err(error) => {
                assert_eq!(error.kind(), esker_base::ErrorKind::Corrupted);
                assert_eq!(target.len(), before);
            }
        }
        if target.len() > 100_000 {
            target.clear();
        }
    }
    for _ in 0..10_000 {
        let mut noise = vec![0; 8 * rng.index(20)];
        rng.fill(&mut noise);
        assert!(target.import(&noise, |_| true).is_err());
    }
    let _ = walked(&target);
}

/// As a checkpoint is written while somebody clears the store.
#[test]
fn parts_taken_while_all_is_cleared_can_be_imported() {
    let (directory, _) = filled(GEOMETRY, 100_000);
    let mut cursors = vec![0];
    while let Some((_, next)) = directory.export(cursors[cursors.len() - 1]) {
        cursors.push(next);
    }
    for count in [0, 40, 3000] {
        directory.clear();
        (0..count).for_each(|n| directory.insert(n << 40, link(n)));
        for cursor in &cursors {
            let into = Directory::with_geometry(GEOMETRY, 0);
            let mut cursor = *cursor;
            while let Some((part, next)) = directory.export(cursor) {
                assert!(into.import(&part, |_| true).is_ok(), "{count} entries, from {cursor}");
                cursor = next;
            }
        }
    }
}
