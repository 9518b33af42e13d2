//! The engine `flex` against a map, with scans and range deletes, on tiny devices.

use crate::support::{End, START};
use esker::flex::{SpaceFiles, SpaceOptions};
use esker::{
    Attributes, Batch, Condition, Direction, FlexFiles, Options, Outcome, PutOptions, Store,
};
use esker_base::clock::ManualClock;
use esker_base::rng::Rng;
use esker_format::flex::SpaceShape;
use esker_media::BlockDevice;
use esker_media::sim::{FaultPlan, Image, Initial, SimBlock, SimBlockOptions};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Data, tree and log of the space, two logs, and the saved index.
pub(crate) struct Devices(Vec<Arc<SimBlock>>);

pub(crate) const SIZES: [(u64, u64); 6] = [
    (4096, 2 << 20),
    (8192, 4 << 20),
    (4096, 256 << 10),
    (4096, 128 << 10),
    (4096, 128 << 10),
    (4096, 256 << 10),
];

impl Devices {
    pub(crate) fn new(seed: u64) -> Self {
        let device = |(first, most): (u64, u64)| {
            let mut options = SimBlockOptions::new(first, seed);
            options.size_bytes_max = most;
            Arc::new(SimBlock::new(options))
        };
        Devices(SIZES.map(device).to_vec())
    }

    pub(crate) fn files(&self) -> FlexFiles {
        files_of(&self.0)
    }

    /// Devices with these contents.
    pub(crate) fn with(images: Vec<Image>, seed: u64) -> Self {
        let device = |(image, (_, most)): (Image, (u64, u64))| {
            let options = SimBlockOptions::new(image.size_bytes(), seed);
            let mut options = options.initial(Initial::Recycled(image));
            options.size_bytes_max = most;
            Arc::new(SimBlock::new(options))
        };
        Devices(images.into_iter().zip(SIZES).map(device).collect())
    }

    /// Others with the same contents.
    pub(crate) fn again(&self) -> Self {
        Devices::with(self.0.iter().map(|device| device.image()).collect(), 77)
    }

    pub(crate) fn into_devices(self) -> Vec<Arc<SimBlock>> {
        self.0
    }

    pub(crate) fn device(&self, index: usize) -> &SimBlock {
        &self.0[index]
    }

    pub(crate) fn shared(&self, index: usize) -> Arc<SimBlock> {
        Arc::clone(&self.0[index])
    }

    pub(crate) fn fault_all(&self, plan: &FaultPlan) {
        self.0.iter().for_each(|device| device.set_faults(plan.clone()));
    }

    pub(crate) fn open(&self, options: &Options) -> esker::Result<Store> {
        Store::open_flex_on(self.files(), options)
    }
}

pub(crate) fn files_of(devices: &[Arc<SimBlock>]) -> FlexFiles {
    let device = |index: usize| Arc::clone(&devices[index]) as Arc<dyn BlockDevice>;
    FlexFiles {
        space: SpaceFiles { data: device(0), tree: device(1), log: device(2) },
        logs: [device(3), device(4)],
        index: device(5),
    }
}

pub(crate) fn options(seed: u64) -> Options {
    let mut options = Options::new("");
    options.clock = Arc::new(ManualClock::new(START));
    options.testing.seed = Some(seed);
    options.testing.background = false;
    options.size_bytes = 2 << 20;
    options.flex.memtable_size_bytes = 8 << 10;
    options.flex.interval_pairs_max = 4;
    options.flex.interval_size_bytes_max = 1 << 10;
    options.flex.rebuild_step_bytes = 600;
    options.flex.large_value_size_bytes = 1000 + 3000 * (seed % 2);
    options.flex.rebuild_threads = 1 + usize::try_from(seed % 3).unwrap();
    options.flex.cache_size_bytes = [0, 6 << 10, 1 << 20][usize::try_from(seed % 3).unwrap()];
    let mut space = SpaceOptions::new("").testing;
    space.shape = SpaceShape {
        segment_size_bytes: 8 << 10,
        block_size_bytes: 512,
        node_size_bytes: 512,
        leaf_capacity: 4,
        children_max: 4,
        extent_size_bytes_max: 508,
        log_block_size_bytes: 512,
    };
    space.records_max = 40;
    options.flex.space = Some(space);
    options
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn value(rng: &mut Rng) -> Vec<u8> {
    const SIZES: [usize; 13] = [0, 1, 7, 8, 63, 64, 65, 120, 130, 250, 400, 1500, 5000];
    let mut value = vec![0; SIZES[rng.index(SIZES.len())]];
    rng.fill(&mut value);
    value
}

/// Keys with long shared beginnings, some of them the beginning of others.
fn key(rng: &mut Rng, keys: u64) -> Vec<u8> {
    let number = rng.below(keys);
    match number % 7 {
        0 => format!("user{number}").into_bytes(),
        1 => vec![b'u'; 1 + usize::try_from(number % 40).unwrap()],
        2 => [&[0xFF; 3][..], &number.to_be_bytes()].concat(),
        3 => [&[0][..], &number.to_be_bytes()].concat(),
        _ => format!("user/with/a/long/beginning/{number:05}").into_bytes(),
    }
}

fn plain(items: Vec<(Vec<u8>, esker::Value)>) -> Vec<(Vec<u8>, Vec<u8>)> {
    items.into_iter().map(|(key, value)| (key, value.to_vec())).collect()
}

fn bound(rng: &mut Rng, keys: u64) -> Bound<Vec<u8>> {
    match rng.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key(rng, keys)),
        _ => Bound::Excluded(key(rng, keys)),
    }
}

fn expected(
    map: &Map,
    from: &Bound<Vec<u8>>,
    to: &Bound<Vec<u8>>,
    direction: Direction,
    limit: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let inside = |key: &Vec<u8>| {
        let after = match from {
            Bound::Unbounded => true,
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
        };
        after
            && match to {
                Bound::Unbounded => true,
                Bound::Included(to) => key <= to,
                Bound::Excluded(to) => key < to,
            }
    };
    let all = map.iter().filter(|(key, _)| inside(key)).map(|(k, v)| (k.clone(), v.clone()));
    match direction {
        Direction::Forward => all.take(limit).collect(),
        Direction::Reverse => {
            let mut all: Vec<_> = all.collect();
            all.reverse();
            all.truncate(limit);
            all
        }
    }
}

fn run(seed: u64, steps: u64, keys: u64, hash_mask: u64) {
    let devices = Devices::new(seed);
    let mut options = options(seed);
    options.testing.hash_mask = hash_mask;
    let mut store = devices.open(&options).unwrap();
    let mut model = Map::new();
    let mut snapshots = Vec::new();
    let mut rng = Rng::from_seed(seed);
    for step in 0..steps {
        let context = format!("seed {seed}, step {step}");
        let name = key(&mut rng, keys);
        match rng.below(100) {
            0..40 => {
                let value = value(&mut rng);
                store.put(&name, &value).expect(&context);
                model.insert(name, value);
            }
            40..50 => {
                let existed = store.delete(&name).expect(&context);
                assert_eq!(existed, model.remove(&name).is_some(), "{context}");
            }
            50..53 => {
                let value = value(&mut rng);
                let outcome = store.put_if_absent(&name, &value).expect(&context);
                assert_eq!(outcome == Outcome::KeyExists, model.contains_key(&name), "{context}");
                model.entry(name).or_insert(value);
            }
            53..56 => {
                let mut batch = Batch::new();
                for _ in 0..rng.below(6) {
                    let name = key(&mut rng, keys);
                    if rng.chance(1, 3) {
                        batch.delete(&name);
                        model.remove(&name);
                    } else {
                        let mut value = value(&mut rng);
                        // A batch has up to a quarter of a log.
                        value.truncate(400);
                        batch.put(&name, &value);
                        model.insert(name, value);
                    }
                }
                store.write(&batch).expect(&context);
            }
            56..76 => {
                let found = store.get(&name).expect(&context).map(|value| value.to_vec());
                assert_eq!(found.as_ref(), model.get(&name), "{context}");
            }
            76..88 => {
                let (from, to) = (bound(&mut rng, keys), bound(&mut rng, keys));
                let limit = rng.index(30);
                for direction in [Direction::Forward, Direction::Reverse] {
                    let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                    let found = store.scan(range, direction, limit).expect(&context);
                    let wanted = expected(&model, &from, &to, direction, limit);
                    assert_eq!(plain(found), wanted, "{context}: {from:?} {to:?} {direction:?}");
                }
            }
            88 | 89 => {
                let (mut from, mut to) = (name, key(&mut rng, keys));
                if from > to && rng.chance(3, 4) {
                    std::mem::swap(&mut from, &mut to);
                }
                let to = if rng.chance(1, 6) { None } else { Some(to) };
                store.delete_range(&from, to.as_deref()).expect(&context);
                model.retain(|key, _| *key < from || to.as_ref().is_some_and(|to| key >= to));
            }
            90..93 => {
                if snapshots.len() < 3 {
                    snapshots.push((store.snapshot().expect(&context), model.clone()));
                }
            }
            93..96 => {
                if !snapshots.is_empty() {
                    let (snapshot, map) = snapshots.swap_remove(rng.index(snapshots.len()));
                    let all =
                        plain(snapshot.scan(.., Direction::Forward, usize::MAX).expect(&context));
                    let wanted: Vec<_> = map.clone().into_iter().collect();
                    assert_eq!(all, wanted, "{context}: a snapshot");
                    let found = snapshot.get(&name).expect(&context).map(|value| value.to_vec());
                    assert_eq!(found.as_ref(), map.get(&name), "{context}: a snapshot");
                }
            }
            96 => {
                if rng.chance(1, 10) {
                    store.clear().expect(&context);
                    model.clear();
                } else {
                    store.clean(2).expect(&context);
                }
            }
            97 => {
                let report = store.check().expect(&context);
                assert!(report.is_sound(), "{context}: {:?}", report.problems);
                assert_eq!(report.records, model.len() as u64, "{context}");
            }
            _ => {
                snapshots.clear();
                match rng.below(3) {
                    0 => store.close().map(|()| drop(store)).expect(&context),
                    1 => drop(store),
                    _ => store.forget(),
                }
                // Another seed: salts never come again.
                options.testing.seed = Some(rng.next_u64());
                store = devices.open(&options).expect(&context);
            }
        }
    }
    snapshots.clear();
    let items: Vec<_> =
        store.iter().map(Result::unwrap).map(|(key, value)| (key, value.to_vec())).collect();
    assert_eq!(items, model.into_iter().collect::<Vec<_>>(), "seed {seed}: a walk");
    let report = store.check().unwrap();
    assert!(report.is_sound(), "seed {seed}: {:?}", report.problems);
}

#[test]
fn agrees_with_a_map_over_few_keys() {
    (0..12).for_each(|seed| run(seed, 2500, 60, u64::MAX));
}

#[test]
fn agrees_with_a_map_over_many_keys() {
    (100..106).for_each(|seed| run(seed, 6000, 900, u64::MAX));
}

#[test]
fn agrees_with_a_map_when_all_fingerprints_are_the_same() {
    (200..204).for_each(|seed| run(seed, 2500, 100, 0));
}

#[test]
fn conditions_attributes_and_expiry_go_through_the_space() {
    let devices = Devices::new(1);
    let clock = Arc::new(ManualClock::new(START));
    let mut options = options(1);
    options.clock = Arc::clone(&clock) as _;
    let store = devices.open(&options).unwrap();
    let attributes = Attributes { flags: 42, expires_at: Some(START + 10), state: 9 };
    let put = PutOptions { attributes, condition: Condition::Always };
    let Outcome::Stored(first) = store.put_with(b"k", b"v", put).unwrap() else { panic!() };
    store.put(b"stays", b"").unwrap();
    assert!(store.check().unwrap().is_sound(), "everything is in the space");
    let value = store.get(b"k").unwrap().unwrap();
    assert_eq!((value.attributes(), value.version()), (attributes, first));
    assert_eq!(
        store.compare_and_put(b"k", esker::Version(first.0 + 7), b"w").unwrap(),
        Outcome::VersionDiffers
    );
    clock.set_unix_seconds(START + 10);
    assert_eq!(store.get(b"k").unwrap().map(|value| value.to_vec()), None);
    assert_eq!(store.scan(.., Direction::Forward, 9).unwrap().len(), 1);
    assert_eq!(store.put_if_present(b"k", b"w").unwrap(), Outcome::KeyMissing);
    assert!(!store.delete(b"k").unwrap());
    clock.set_unix_seconds(START);
    assert!(store.get(b"k").unwrap().is_none(), "a clock that jumps back brings nothing back");
    assert_eq!(
        store.get(b"stays").unwrap().as_deref(),
        Some(&b""[..]),
        "an empty value is a value"
    );
}

#[test]
fn splices_move_bytes_and_marks_as_in_a_list() {
    for seed in 0..30 {
        let devices = Devices::new(seed);
        let files = devices.files().space;
        let mut with = SpaceOptions::new("");
        with.testing = options(seed).flex.space.unwrap();
        with.testing.seed = Some(seed);
        with.log_size_bytes_max = 3 << 10;
        with.tree_size_bytes_max = 2 << 10;
        with.data_size_bytes_max = Some(1 << 20);
        let mut space = esker::flex::Space::open_on(files.clone(), &with).unwrap();
        let mut model: Vec<(u8, bool)> = Vec::new();
        let mut rng = Rng::from_seed(seed);
        for step in 0..800 {
            let context = format!("seed {seed}, step {step}");
            let at = rng.index(model.len() + 1);
            let remove = rng.index(400).min(model.len() - at);
            let most = if model.len() > 20_000 { 50 } else { 1200 };
            let mut data = vec![0; rng.index(most)];
            rng.fill(&mut data);
            let mut marks: Vec<usize> = Vec::new();
            let mut next = rng.index(3) * 17;
            while next < data.len() {
                marks.push(next);
                next += 1 + rng.index(500);
            }
            let splice = esker::flex::Splice {
                offset: at as u64,
                remove: remove as u64,
                data: &data,
                marks: &marks,
            };
            let mut told = 0;
            space.splice(&splice, &mut || told += 1).expect(&context);
            assert_eq!(told, 1);
            let new = data.iter().enumerate().map(|(at, byte)| (*byte, marks.contains(&at)));
            model.splice(at..at + remove, new.collect::<Vec<_>>());
            match rng.below(30) {
                0 => space.sync().unwrap(),
                1 => space.checkpoint().unwrap(),
                2 => drop(space.collect(2).unwrap()),
                3 => drop(space.defrag(rng.below(model.len() as u64 + 1), 3000).unwrap()),
                4 => {
                    space.sync().unwrap();
                    drop(space);
                    with.testing.seed = Some(rng.next_u64());
                    space = esker::flex::Space::open_on(files.clone(), &with).unwrap();
                }
                _ => {}
            }
            let mut bytes = Vec::new();
            let start = rng.index(model.len() + 1);
            let length = rng.index(5000).min(model.len() - start);
            space.read_where(&mut || Some((start as u64, length)), &mut bytes).unwrap();
            let wanted: Vec<u8> =
                model[start..start + length].iter().map(|(byte, _)| *byte).collect();
            assert_eq!(
                bytes,
                wanted,
                "{context}: bytes {at} {remove} {} {marks:?} read {start}",
                data.len()
            );
            let mark = (start..model.len()).find(|at| model[*at].1).map(|at| at as u64);
            assert_eq!(
                space.next_mark(start as u64).unwrap(),
                mark,
                "{context}: the first mark from {start} on"
            );
        }
        assert_eq!(space.check().unwrap().problems, Vec::<String>::new());
    }
}

#[test]
fn a_close_brings_the_table_to_the_space_that_its_thread_did_not_come_to() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.engine = Some(esker::EngineKind::Flex);
    options.durability = esker::Durability::None;
    options.size_bytes = 64 << 20;
    options.flex.memtable_size_bytes = 4 << 10;
    // With one of these numbers the last put seals a table, and the thread hears of the end before it hears of that.
    for puts in 1..60_u8 {
        let store = std::sync::Arc::new(Store::open(&options).unwrap());
        for number in 0..puts {
            store.put(&[number], &[puts; 100]).unwrap();
        }
        let (send, receive) = std::sync::mpsc::channel();
        let closing = std::sync::Arc::clone(&store);
        let close = move || send.send(closing.close()).unwrap();
        std::thread::Builder::new().spawn(close).unwrap();
        let closed = receive.recv_timeout(std::time::Duration::from_secs(60));
        closed.unwrap_or_else(|_| panic!("a close behind {puts} puts hangs")).unwrap();
        drop(store);
    }
    let store = Store::open(&options).unwrap();
    assert_eq!(store.get(&[58]).unwrap().as_deref(), Some(&[59; 100][..]));
}

#[test]
fn gets_read_no_more_right_after_a_clean_stop_than_later() {
    let devices = Devices::new(12);
    let options = options(12);
    assert_eq!(options.flex.cache_size_bytes, 0, "gets read");
    let mut store = devices.open(&options).unwrap();
    let key = |number: u32| format!("key/{number:03}").into_bytes();
    for round in 0..3_u8 {
        for number in (0..200).filter(|number| number % 3 >= u32::from(round)) {
            let _version = store.put(&key(number), &[round; 90]).unwrap();
        }
        store.clean(0).unwrap();
    }
    let read_by_gets = |store: &Store| {
        let before = devices.device(0).counters().read_bytes;
        for number in 0..200 {
            let value = store.get(&key(number)).unwrap().unwrap();
            assert_eq!(*value, [u8::try_from(number % 3).unwrap(); 90], "{number}");
        }
        devices.device(0).counters().read_bytes - before
    };
    store.close().unwrap();
    store = devices.open(&options).unwrap();
    let first = read_by_gets(&store);
    let later = read_by_gets(&store);
    assert!(first <= later, "{first} bytes, then {later}");
    store.close().unwrap();
}

#[test]
fn a_table_that_two_threads_bring_to_the_space_takes_no_other_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.engine = Some(esker::EngineKind::Flex);
    options.durability = esker::Durability::None;
    options.flex.memtable_size_bytes = 16 << 10;
    let store = Store::open(&options).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _end = End(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over() {
                    store.sync().unwrap();
                }
            });
        }
        let lost = (0..30_000_u32).find(|number| {
            store.put(&number.to_be_bytes(), &[1; 50]).unwrap();
            let earlier = number.saturating_sub(number % 700);
            !store.contains(&earlier.to_be_bytes()).unwrap()
        });
        assert_eq!(lost, None);
    });
    let items = store.scan(.., Direction::Forward, usize::MAX).unwrap();
    assert_eq!(items.len(), 30_000);
}

#[test]
fn writers_readers_and_the_committer_work_at_the_same_time() {
    const KEYS: u64 = 3000;
    const ROUNDS: u64 = 12;
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.engine = Some(esker::EngineKind::Flex);
    options.durability = esker::Durability::None;
    options.size_bytes = 256 << 20;
    options.flex.memtable_size_bytes = 256 << 10;
    options.flex.cache_size_bytes = 128 << 10;
    options.flex.rebuild_step_bytes = 16 << 10;
    let store = Store::open(&options).unwrap();
    let name =
        |writer: u64, number: u64| format!("{:05}/{writer}", number * 7919 % KEYS).into_bytes();
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&ended);
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        for number in 0..KEYS {
                            let value = [&round.to_le_bytes()[..], &[7; 90]].concat();
                            store.put(&name(writer, number), &value).unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            // What was read once is never older afterwards, and a snapshot stands still.
            let mut seen = vec![0_u64; usize::try_from(KEYS).unwrap()];
            let mut rng = Rng::from_seed(5);
            let round = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().unwrap());
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                let number = rng.below(KEYS);
                if let Some(value) = store.get(&name(0, number)).unwrap() {
                    let index = usize::try_from(number).unwrap();
                    assert!(round(&value) >= seen[index], "a read went back");
                    seen[index] = round(&value);
                }
                if rng.chance(1, 200) {
                    let snapshot = store.snapshot().unwrap();
                    let first = plain(snapshot.scan(.., Direction::Forward, usize::MAX).unwrap());
                    let mut second =
                        plain(snapshot.scan(.., Direction::Reverse, usize::MAX).unwrap());
                    second.reverse();
                    assert!(first == second, "a snapshot moved");
                }
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    let verify = |store: &Store| {
        let items = plain(store.scan(.., Direction::Forward, usize::MAX).unwrap());
        assert_eq!(items.len() as u64, 2 * KEYS);
        assert!(items.iter().all(|(_, value)| value[..8] == (ROUNDS - 1).to_le_bytes()));
        for (key, value) in items.iter().chain(items.iter().step_by(3)) {
            assert_eq!(store.get(key).unwrap().as_deref(), Some(&**value), "one by one");
        }
        assert!(items.is_sorted());
        assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
    };
    verify(&store);
    store.close().unwrap();
    drop(store);
    // Nobody says which engine: the one that is there.
    verify(&Store::open(&Options { engine: None, ..options }).unwrap());
}
