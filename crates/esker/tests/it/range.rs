//! Iterators over the items of a range of keys.

use crate::support::folder_in_memory;
use esker::{Attributes, Direction, EngineKind, ErrorKind, Options, PutOptions, Store};
use esker_base::clock::{Clock, ManualClock};
use esker_base::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const ORDERED: [EngineKind; 2] = [EngineKind::FlatMasstree, EngineKind::Flex];

fn options(folder: &tempfile::TempDir, engine: EngineKind) -> Options {
    let mut options = Options::new(folder.path());
    options.engine = Some(engine);
    options.size_bytes = 128 << 20;
    options.pmem_emulate = true;
    options
}

/// What lies between two bounds; nothing, where they are the wrong way round.
fn between(
    model: &Model,
    (from, to): (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let is_behind = |key: &[u8]| match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let is_before = |key: &[u8]| match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    let inside = model.iter().filter(|(key, _)| is_behind(key) && is_before(key));
    let mut items: Vec<_> = inside.map(|(key, value)| (key.clone(), value.clone())).collect();
    if direction == Direction::Reverse {
        items.reverse();
    }
    items
}

fn read(range: esker::Range<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    range.map(|item| item.map(|(key, value)| (key, value.to_vec())).unwrap()).collect()
}

/// Keys of three lengths, values that fill parts of a range by their number or by their bytes.
fn fill(store: &Store, rng: &mut Rng) -> Model {
    let mut model = Model::new();
    for number in 0..3000_u64 {
        let key = [&b"key "[..], &rng.below(2000).to_be_bytes()[5..], &b"behind"[..rng.index(3)]];
        let (key, value) = (key.concat(), vec![number.to_le_bytes()[0]; rng.index(40)]);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    for number in 0..12_u8 {
        let (key, value) = (vec![b'l', number], vec![number; 300 << 10]);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    model
}

#[test]
fn a_range_gives_what_lies_between_its_bounds_in_order() {
    for engine in ORDERED {
        let folder = folder_in_memory();
        let store = Store::open(&options(&folder, engine)).unwrap();
        let mut rng = Rng::from_seed(1);
        let model = fill(&store, &mut rng);
        let keys: Vec<&Vec<u8>> = model.keys().collect();
        let mut met = 0;
        for round in 0..60 {
            let mut bound = || match rng.index(4) {
                0 => Bound::Unbounded,
                1 => Bound::Included(&keys[rng.index(keys.len())][..]),
                2 => Bound::Excluded(&keys[rng.index(keys.len())][..]),
                _ => Bound::Included(&keys[rng.index(keys.len())][..6]),
            };
            let bounds =
                if round < 2 { (Bound::Unbounded, Bound::Unbounded) } else { (bound(), bound()) };
            let direction = if round % 2 == 0 { Direction::Forward } else { Direction::Reverse };
            let found = read(store.range(bounds, direction));
            assert!(
                found == between(&model, bounds, direction),
                "{engine}, {bounds:?}, {direction:?}"
            );
            met += found.len();
        }
        assert!(met > 20_000, "{met} items");
    }
}

/// What stands is met once, whatever is written and deleted between the parts that are read; what a snapshot shows stays as it was.
#[test]
fn a_range_goes_on_beside_writes_and_one_of_a_snapshot_sees_none() {
    for engine in ORDERED {
        let folder = folder_in_memory();
        let store = Store::open(&options(&folder, engine)).unwrap();
        let key = |number: u32| number.to_be_bytes();
        // Odd numbers stand; even ones come and go.
        for number in 0..4000 {
            store.put(&key(number), b"first").unwrap();
        }
        let snapshot = (engine == EngineKind::Flex).then(|| store.snapshot().unwrap());
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut rng = Rng::from_seed(2);
            let mut found = Vec::new();
            for item in store.range(.., direction) {
                found.push(u32::from_be_bytes(item.unwrap().0.try_into().unwrap()));
                let number = 2 * u32::try_from(rng.below(2000)).unwrap();
                if rng.chance(1, 2) {
                    store.delete(&key(number)).unwrap();
                } else {
                    store.put(&key(number), b"second").unwrap();
                }
            }
            if direction == Direction::Reverse {
                found.reverse();
            }
            assert!(found.is_sorted_by(|first, second| first < second), "{engine}: in order");
            let odd = found.iter().filter(|number| **number % 2 == 1).count();
            assert_eq!(odd, 2000, "{engine}, {direction:?}");
        }
        let Some(snapshot) = snapshot else { continue };
        let kept = read(snapshot.range(.., Direction::Forward));
        let first: Vec<_> =
            (0..4000).map(|number| (key(number).to_vec(), b"first".to_vec())).collect();
        assert!(kept == first, "{} items", kept.len());
        let mut shown = 0;
        let counted = snapshot.scan_with(.., Direction::Reverse, 100, |_| shown += 1).unwrap();
        assert_eq!((counted, shown), (100, 100));
    }
}

#[test]
fn a_range_of_an_engine_without_order_is_one_error() {
    let folder = folder_in_memory();
    let store = Store::open(&options(&folder, EngineKind::FlatCceh)).unwrap();
    store.put(b"key", b"value").unwrap();
    let mut range = store.range(.., Direction::Forward);
    let error = range.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(range.next().is_none() && range.next().is_none());
}

/// An error ends a range where it is met: what comes before it is given.
#[test]
fn a_range_of_a_closed_store_gives_what_it_has_read_and_then_the_error() {
    for engine in ORDERED {
        let folder = folder_in_memory();
        let store = Store::open(&options(&folder, engine)).unwrap();
        for number in 0..100 {
            store.put(&[number], b"value").unwrap();
        }
        let mut range = store.range(.., Direction::Forward);
        assert_eq!(range.next().unwrap().unwrap().0, [0]);
        store.close().unwrap();
        let rest: Vec<_> = range.by_ref().collect();
        let (last, read) = rest.split_last().unwrap();
        assert!(read.iter().all(Result::is_ok) && read.len() < 99, "{} items", read.len());
        assert_eq!(last.as_ref().unwrap_err().kind(), ErrorKind::Closed);
        assert!(range.next().is_none());
    }
}

#[test]
fn a_touch_moves_the_time_of_expiry_and_nothing_else() {
    for engine in EngineKind::ALL {
        let folder = folder_in_memory();
        let clock = Arc::new(ManualClock::new(1_800_000_000));
        let mut options = options(&folder, engine);
        options.clock = Arc::clone(&clock) as Arc<_>;
        let store = Store::open(&options).unwrap();
        let soon = clock.unix_seconds() + 10;
        let attributes = Attributes { flags: 7, expires_at: Some(soon), ..Attributes::default() };
        let put = PutOptions { attributes, ..PutOptions::default() };
        store.put_with(b"kept", b"value", put).unwrap();
        store.put_with(b"left", b"value", put).unwrap();
        assert!(store.touch(b"kept", Some(soon + 100)).unwrap());
        assert!(!store.touch(b"none", None).unwrap());
        clock.advance(std::time::Duration::from_secs(50));
        assert!(!store.touch(b"left", None).unwrap(), "{engine}: it is gone");
        let kept = store.get(b"kept").unwrap().unwrap();
        let moved = Attributes { expires_at: Some(soon + 100), ..attributes };
        assert_eq!((&kept[..], kept.attributes()), (&b"value"[..], moved), "{engine}");
        assert!(store.touch(b"kept", None).unwrap());
        clock.advance(std::time::Duration::from_secs(500));
        assert!(store.contains(b"kept").unwrap(), "{engine}");
    }
}
