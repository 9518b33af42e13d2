//! Tables in memory, on their own.

use super::*;
use esker_format::flex_db::Extra;

#[test]
fn every_number_has_a_place_of_its_own() {
    let mut before = None;
    for number in CHUNK..CHUNK * 300 {
        let (row, chunk, place) = Slots::place(number);
        assert!(chunk < 1 << row && place < usize::try_from(CHUNK).unwrap(), "{number}");
        assert!(before < Some((row, chunk, place)), "{number}");
        before = Some((row, chunk, place));
    }
    let (row, chunk, _) = Slots::place(Word::END - 1);
    assert!(row < 64 && chunk < 1 << row);
}

#[test]
fn what_a_batch_changes_counts_when_its_gate_opens() {
    let table = MemTable::new(1, 1, 1 << 10, false);
    let put = |key: &[u8], version, gate: &BatchGate| {
        let content = Content::Put(Extra::default(), b"");
        table.insert((key, 7), (version, content), gate.clone(), |_, _| false);
    };
    let version = |key: &[u8], at| table.get(key, 7, at, |version, _| version);
    put(b"a", 1, &None);
    let gate = Arc::new(AtomicBool::new(false));
    put(b"a", 2, &Some(Arc::clone(&gate)));
    put(b"b", 3, &Some(Arc::clone(&gate)));
    assert_eq!((version(b"a", u64::MAX), version(b"b", u64::MAX)), (Some(1), None));
    gate.store(true, Ordering::Release);
    assert_eq!((version(b"a", u64::MAX), version(b"b", u64::MAX)), (Some(2), Some(3)));
    assert_eq!(version(b"a", 1), Some(1), "as of before");
}

#[test]
fn a_key_of_every_batch_has_no_more_than_what_counts_and_what_is_about_to() {
    let table = MemTable::new(1, 1, 1 << 20, false);
    let put = |(key, hash): (&[u8], u64), version, gate: &BatchGate| {
        let content = Content::Put(Extra::default(), &[7; 100]);
        table.insert((key, hash), (version, content), gate.clone(), |_, _| false);
    };
    let versions = |key: &[u8]| {
        let slot = table.slots.get(table.tree.get(key).unwrap()).unwrap();
        slot.lock().iter().count()
    };
    for number in 0..20_000_u64 {
        let gate = Arc::new(AtomicBool::new(false));
        let other = number.to_be_bytes();
        put((&other, number), 2 * number + 2, &Some(Arc::clone(&gate)));
        let before = table.bytes();
        put((b"hot", 7), 2 * number + 1, &Some(Arc::clone(&gate)));
        assert_eq!(versions(b"hot"), usize::from(number > 0) + 1);
        assert!(number < 2 || table.bytes() == before, "it takes no more");
        gate.store(true, Ordering::Release);
    }
    put((b"hot", 7), 50_000, &None);
    assert_eq!(versions(b"hot"), 1);
}

#[test]
fn versions_agree_with_a_list() {
    let mut rng = esker_base::rng::Rng::from_seed(8);
    for _ in 0..2000 {
        let mut versions = Versions::default();
        let mut model: Vec<(u64, u8)> = Vec::new();
        let mut bytes = 0;
        for number in 1..12_u64 {
            // Mostly rising; now and then one that comes late.
            let version = number * 4 - if rng.chance(1, 4) { 6.min(number * 4 - 1) } else { 0 };
            if model.iter().any(|(other, _)| *other == version) {
                continue;
            }
            let value = u8::try_from(number).unwrap();
            let keeps = rng.chance(1, 2);
            let gate = rng.chance(1, 3).then(|| Arc::new(AtomicBool::new(false)));
            let waits = gate.is_some();
            let content = Content::Put(Extra::default(), &[value]);
            let (more, less) = versions.push(version, &content, gate.clone(), |_, _| keeps);
            bytes = bytes + more - less;
            let at = model.partition_point(|(other, _)| *other > version);
            model.insert(at, (version, value));
            // One that is behind what counts is there only if somebody else needs it.
            let first = usize::from(waits && at == 0);
            if !keeps {
                model.truncate(first + 1);
            }
            let all: Vec<(u64, u8)> = versions
                .iter()
                .map(|(version, content)| match content {
                    Content::Put(_, &[value]) => (version, value),
                    _ => unreachable!(),
                })
                .collect();
            assert_eq!(all, model);
            assert_eq!(bytes, versions.size_bytes());
            assert_eq!(versions.only().is_some(), model.len() == 1);
            let found = versions.at(u64::MAX).map(|(version, _)| version);
            assert_eq!(found, model.get(first).map(|found| found.0));
            // A writer of the key has its turn when the one before has ended.
            gate.into_iter().for_each(|gate| gate.store(true, Ordering::Release));
            let at = rng.below(50);
            let expected = model.iter().find(|(version, _)| *version <= at);
            assert_eq!(versions.at(at).map(|(version, _)| version), expected.map(|x| x.0));
        }
    }
}

/// Pairs of keys with much in common: the tree has a node for each eight bytes of that.
#[test]
fn a_table_is_full_when_its_tree_is() {
    const SIZE: u64 = 4 << 20;
    let table = MemTable::new(1, 1, SIZE, false);
    let content = || (1, Content::Put(Extra::default(), b"value"));
    for number in (0..u64::MAX).take_while(|_| !table.has_grown(1)) {
        for last in [0, 1] {
            let key = [&number.to_be_bytes()[..], &[7; 4000], &[last]].concat();
            table.insert((&key, number), content(), None, |_, _| false);
        }
    }
    let tree = table.tree.memory_bytes() as u64;
    assert!(tree < 2 * SIZE, "{tree} bytes");
    assert!(table.bytes() < SIZE && !table.has_grown(2));
}

#[test]
fn large_values_of_any_length_are_summed_up() {
    let table = MemTable::new(1, 1, 1 << 10, false);
    let extra = Extra { expires_at: 6, ..Extra::default() };
    let large = Content::Large(extra, 1, u64::MAX);
    table.insert((b"key", 7), (1, large), None, |_, _| false);
    assert_eq!((table.expired_bytes(4), table.expired_bytes(5)), (0, u64::MAX));
}

/// What has no log yet has no less room than it takes there.
#[test]
fn keys_of_all_versions_and_ends_of_ranges_count() {
    const LENGTH: usize = 10_000;
    let table = MemTable::new(1, 1, 1 << 20, false);
    let key = [7; LENGTH];
    for version in 1..=10 {
        let content = Content::Put(Extra::default(), b"value");
        table.insert((&key, 7), (version, content), None, |_, _| true);
        assert!(table.bytes() >= version * LENGTH as u64, "{} of {version}", table.bytes());
    }
    // The last one alone is needed.
    let content = Content::Put(Extra::default(), b"value");
    table.insert((&key, 7), (11, content), None, |_, _| false);
    let before = table.bytes();
    assert!(before < 2 * LENGTH as u64, "{before}");
    table.delete_range(RangeDelete { from: key.to_vec(), to: Some(key.to_vec()), version: 12 });
    assert!(table.bytes() >= before + 2 * LENGTH as u64);
}
