//! Repair of `flat`: whatever is damaged, what can be read is there afterwards, and nothing answers with an error.

use crate::support::{Bed, DEVICE_SIZE};
use esker::{Batch, EngineKind, ErrorKind, Options, Store, repair, repair_on_memory};
use esker_base::rng::Rng;
use esker_media::Pmem;
use esker_media::sim::{Image, Initial, SimPm, SimPmOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const KEYS: u64 = 60;
const ROUNDS: u64 = 6;

fn key(number: u64) -> Vec<u8> {
    match number % 4 {
        0 => format!("long {number} {}", "x".repeat(300)).into_bytes(),
        1 => number.to_le_bytes().to_vec(),
        _ => format!("key {number}").into_bytes(),
    }
}

/// What a key has since a round: short, long, or longer than a chunk.
fn value(number: u64, round: u64) -> Vec<u8> {
    let size = match (number + round) % 7 {
        0 => 700,
        1 if number == 1 => 9000,
        _ => 24,
    };
    (number << 8 | round).to_le_bytes().iter().copied().cycle().take(size).collect()
}

/// Since which round a key has what it has; `None` if that was deleted, and the version.
type Model = BTreeMap<u64, (Option<u64>, u64)>;

fn populate(store: &Store, rng: &mut Rng) -> Model {
    let mut model = Model::new();
    for round in 0..ROUNDS {
        let mut batch = Batch::new();
        for number in 0..KEYS {
            match rng.below(8) {
                0 => drop(store.delete(&key(number)).unwrap()),
                1 | 2 => continue,
                3 => {
                    batch.put(&key(number), &value(number, round));
                }
                _ => drop(store.put(&key(number), &value(number, round)).unwrap()),
            }
            model.insert(number, (Some(round), 0));
        }
        store.write(&batch).unwrap();
        while rng.chance(1, 2) && store.clean(1).unwrap() > 0 {}
    }
    for (number, state) in &mut model {
        let found = store.get(&key(*number)).unwrap();
        let round = found.as_ref().map(|found| {
            let found = found.to_vec();
            (0..ROUNDS).find(|round| value(*number, *round) == found).unwrap()
        });
        *state = (round, found.map_or(0, |found| found.version().0));
    }
    model
}

fn options_of(engine: EngineKind, seed: u64) -> Options {
    let mut options = Bed::new(engine, seed).options(seed);
    if seed % 2 == 1 {
        // Only entries tell keys apart.
        options.testing.hash_mask = 7;
    }
    options
}

fn memory_of(image: &Image) -> Arc<SimPm> {
    let mut memory = SimPmOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image.clone()));
    memory.record = false;
    Arc::new(SimPm::new(memory))
}

/// Reads everything; how many keys have not what they should: nothing, or something older.
fn wrong(store: &Store, model: &Model, words: &str) -> u64 {
    let mut wrong = 0;
    for (number, (round, _)) in model {
        let found = store.get(&key(*number)).unwrap().map(|found| found.to_vec());
        let expected = round.map(|round| value(*number, round));
        if found == expected {
            continue;
        }
        let older = (0..ROUNDS).any(|round| found.as_ref() == Some(&value(*number, round)));
        assert!(found.is_none() || older, "{words}: key {number} has what nobody put");
        wrong += 1;
    }
    let walked = store.iter().map(|item| item.unwrap().0).filter(|key| key != b"goes on").count();
    let there = model.keys().filter(|number| store.contains(&key(**number)).unwrap()).count();
    assert_eq!(walked, there, "{words}");
    wrong
}

#[test]
fn whatever_is_damaged_what_can_be_read_is_there_after_a_repair() {
    // Damaged opens, repairs that lost something or moved something, keys that changed.
    let (mut refused, mut lost, mut moved, mut changed, mut repairs) = (0, 0, 0, 0, 0);
    // Repairs after a clean stop that lost more keys than bits were flipped.
    let mut batches = 0;
    for (engine, seed) in KINDS.into_iter().flat_map(|it| (0..6).map(move |seed| (it, seed))) {
        let options = options_of(engine, seed);
        let memory = memory_of(&Image::filled(DEVICE_SIZE, 0));
        let open = |memory: &Arc<SimPm>| {
            Store::open_on_memory(Arc::clone(memory) as Arc<dyn Pmem>, &options)
        };
        let store = open(&memory).unwrap();
        let mut rng = Rng::from_seed(seed);
        let model = populate(&store, &mut rng);
        if seed < 2 {
            store.close().unwrap();
        } else {
            store.forget();
        }
        let image = memory.image();
        for turn in 0..120 {
            // Behind the root: a bit here and there, or lines that cannot be read.
            let place = |rng: &mut Rng| (4 << 10) + rng.below(DEVICE_SIZE - (4 << 10));
            let mut damaged = image.clone();
            let flips = if turn % 3 == 2 { 0 } else { 1 + rng.below(3) };
            for _ in 0..flips {
                let at = place(&mut rng);
                // Headers, too, which are few.
                let at = if rng.chance(1, 4) { at / 4096 * 4096 + rng.below(128) } else { at };
                damaged.flip(at, u32::try_from(rng.below(8)).unwrap());
            }
            let poisoned = (place(&mut rng) / 64 * 64, (1 + rng.below(6)) * 64);
            let made = || {
                let memory = memory_of(&damaged);
                if flips == 0 {
                    memory.poison(poisoned.0, poisoned.1);
                }
                memory
            };
            let words = format!("{engine}, seed {seed}, turn {turn}");
            let memory = made();
            match open(&memory) {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "{words}: {error}");
                    refused += 1;
                }
                // What would keep a store from being opened after a crash, a check tells before.
                Ok(store) => {
                    let is_sound = store.check().unwrap().problems.is_empty();
                    store.forget();
                    let opened = open(&memory);
                    assert!(!is_sound || opened.is_ok(), "{words}: {opened:?}");
                }
            }
            // Nobody opened it: the mark of a clean stop stands.
            let memory = made();
            let dynamic = Arc::clone(&memory) as Arc<dyn Pmem>;
            let report = repair_on_memory(&dynamic, &options).unwrap_or_else(|error| {
                panic!("{words}: {error}");
            });
            repairs += 1;
            let store = open(&memory).unwrap();
            let now = wrong(&store, &model, &words);
            // After a crash, the last batch of a log may as well be torn as damaged.
            assert!(
                now == 0 || seed > 1 || report.damaged_segments + report.records_lost > 0,
                "{words}: {now} changed, {report:?}"
            );
            let problems = store.check().unwrap().problems;
            assert!(problems.is_empty(), "{words}: {problems:?}");
            let highest = model.values().map(|(_, version)| *version).max().unwrap();
            let version = store.put(b"goes on", b"v").unwrap();
            assert!(now > 0 || version.0 > highest, "{words}");
            // It is also what a crash finds.
            store.forget();
            let store = open(&memory).unwrap_or_else(|error| panic!("{words}: {error}"));
            assert_eq!(wrong(&store, &model, &words), now, "{words}");
            assert_eq!(store.get(b"goes on").unwrap().as_deref(), Some(&b"v"[..]));
            // The image of a clean stop counts, unless a bit made a key unreadable.
            batches += u64::from(seed < 2 && flips > 0 && now > flips);
            changed += now;
            lost += report.records_lost;
            moved += report.records_moved;
        }
    }
    assert!(refused > 50 && lost > 20 && moved > 500, "{refused} {lost} {moved}");
    assert!(batches < 5, "{batches} of 320 repairs after a clean stop lost whole batches");
    assert!(changed < repairs * KEYS / 20, "{changed} keys changed in {repairs} repairs");
}

#[test]
fn a_repair_of_flat_that_is_cut_off_can_be_done_again() {
    let (mut states, mut moved) = (0, 0);
    for engine in KINDS {
        let options = options_of(engine, 4);
        let memory = memory_of(&Image::filled(DEVICE_SIZE, 0));
        let open = |memory: &Arc<SimPm>| {
            Store::open_on_memory(Arc::clone(memory) as Arc<dyn Pmem>, &options).unwrap()
        };
        let repair = |memory: &Arc<SimPm>| {
            repair_on_memory(&(Arc::clone(memory) as Arc<dyn Pmem>), &options).unwrap()
        };
        let store = open(&memory);
        let mut rng = Rng::from_seed(5);
        let model = populate(&store, &mut rng);
        store.forget();
        let image = memory.image();
        for round in 0..8 {
            let mut damaged = image.clone();
            for _ in 0..4 {
                damaged.flip((4 << 10) + rng.below(DEVICE_SIZE - (4 << 10)), 1);
            }
            let with = SimPmOptions::new(DEVICE_SIZE, 2).initial(Initial::Recycled(damaged));
            let memory = Arc::new(SimPm::new(with));
            moved += repair(&memory).records_moved;
            let trace = memory.trace();
            let mut replay = trace.replay();
            let all = wrong(&open(&memory), &model, "whole");
            while replay.step() {
                if !rng.chance(1, 4) {
                    continue;
                }
                for state in replay.states(2, replay.position()) {
                    let words = format!("{engine}, round {round}, point {}", replay.position());
                    let memory = memory_of(&state.image());
                    repair(&memory);
                    let store = open(&memory);
                    assert!(wrong(&store, &model, &words) <= all, "{words}");
                    assert!(store.check().unwrap().is_sound(), "{words}");
                    states += 1;
                }
            }
        }
    }
    assert!(states > 500 && moved > 30, "{states} states, {moved} moved");
}

#[test]
fn a_sound_store_is_the_same_after_a_repair_with_its_versions() {
    for engine in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        options.engine = Some(engine);
        options.pmem_emulate = true;
        options.size_bytes = 16 << 20;
        let store = Store::open(&options).unwrap();
        let model = populate(&store, &mut Rng::from_seed(3));
        store.close().unwrap();
        drop(store);
        let mut found_there = Options::new(folder.path());
        found_there.pmem_emulate = true;
        let report = repair(&found_there).unwrap();
        assert_eq!((report.damaged_segments, report.records_lost, report.records_moved), (0, 0, 0));
        let store = Store::open(&options).unwrap();
        assert_eq!(wrong(&store, &model, "sound"), 0);
        for (number, (_, version)) in model {
            let found = store.get(&key(number)).unwrap().map_or(0, |found| found.version().0);
            assert_eq!(found, version, "{engine}");
        }
    }
}

/// A file of any name holds a store of the engine that the options say, as for an open.
#[test]
fn a_store_in_a_file_of_its_own_is_repaired_as_what_it_was_opened_as() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.img");
    std::fs::write(&path, vec![0; 16 << 20]).unwrap();
    let mut options = Options::new(&path);
    options.engine = Some(EngineKind::FlatCceh);
    options.pmem_emulate = true;
    options.size_bytes = 16 << 20;
    let store = Store::open(&options).unwrap();
    store.put(b"key", b"value").unwrap();
    store.close().unwrap();
    drop(store);
    assert_eq!(repair(&options).unwrap().records, 1);
    assert_eq!(Store::open(&options).unwrap().get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    // In a folder its files tell, and the options must agree.
    let mut options = Options::new(folder.path().join("folder"));
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 64 << 20;
    Store::open(&options).unwrap().close().unwrap();
    options.engine = Some(EngineKind::Depot);
    assert_eq!(repair(&options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    options.engine = None;
    assert_eq!(repair(&options).unwrap().damaged_segments, 0);
}
