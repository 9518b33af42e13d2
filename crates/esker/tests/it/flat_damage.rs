//! Damaged media of `flat`: found, named, never returned as data.

use crate::support::{Bed, DEVICE_SIZE};
use esker::options::Progress;
use esker::{
    Attributes, Batch, Condition, EngineKind, ErrorKind, Options, PutOptions, Store,
    restore_on_memory,
};
use esker_base::rng::Rng;
use esker_base::{Error, Site, SiteKind};
use esker_format::flat::{CLEAR_OFFSETS, CLEAR_SIZE};
use esker_media::Pmem;
use esker_media::sim::{AskingMemory, Image, Initial, MemoryCall, SimArchive, SimPm, SimPmOptions};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const KINDS: [EngineKind; 2] = [EngineKind::FlatCceh, EngineKind::FlatMasstree];
const DAMAGE: Site = Site::new("test.damage", SiteKind::Write);

type Model = BTreeMap<Vec<u8>, Option<(Vec<u8>, u64, u32)>>;

/// What a store says of a key.
fn found(store: &Store, key: &[u8]) -> esker::Result<Option<(Vec<u8>, u64, u32)>> {
    let value = store.get(key)?;
    Ok(value.map(|it| (it.to_vec(), it.version().0, it.attributes().flags)))
}

/// Keys of 8 bytes, of others, and too long for an entry; values in the log and in records; some with attributes, some
/// deleted; a batch whose entries carry their versions; and entries that the cleaner moved.
fn populate(store: &Store, rng: &mut Rng) -> Model {
    let key = |number: u64| match number % 5 {
        0 => format!("long {number} {}", "x".repeat(300)).into_bytes(),
        1 | 2 => number.to_le_bytes().to_vec(),
        _ => format!("key {number}").into_bytes(),
    };
    for round in 0..5 {
        for number in 0..40 {
            let mut value = vec![0; if rng.chance(1, 6) { 300 } else { rng.index(40) }];
            rng.fill(&mut value);
            let flags = if rng.chance(1, 4) { 1 + round } else { 0 };
            let attributes = Attributes { flags, ..Attributes::default() };
            let options = PutOptions { attributes, condition: Condition::Always };
            store.put_with(&key(number), &value, options).unwrap();
            if rng.chance(1, 8) {
                store.delete(&key(number)).unwrap();
            }
        }
        store.clean(4).unwrap();
    }
    let mut batch = Batch::new();
    for number in 40..110 {
        batch.put(&key(number), &[number as u8; 9]);
    }
    store.write(&batch).unwrap();
    (0..112).map(|number| (key(number), found(store, &key(number)).unwrap())).collect()
}

fn options_of(bed: &Bed, colliding: bool) -> Options {
    let mut options = bed.options(7);
    if colliding {
        // Only entries tell keys apart.
        options.testing.hash_mask = 7;
    }
    options
}

/// Reads everything; every answer must be right, or say that it cannot be given. Returns the number of refusals.
fn read_all(store: &Store, model: &Model, offset: u64) -> usize {
    let mut refused = 0;
    for (key, expected) in model {
        match found(store, key) {
            Ok(found) => assert_eq!(&found, expected, "offset {offset}: a wrong answer"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "offset {offset}: {error}");
                assert!(!error.to_string().contains(" 0 bytes at"), "{error}");
                refused += 1;
            }
        }
    }
    let mut met = 0;
    for item in store.iter() {
        met += 1;
        match item {
            Ok((key, value)) => {
                let expected = model.get(&key).and_then(Option::as_ref);
                assert_eq!(expected.map(|(value, ..)| &value[..]), Some(&*value), "{offset}");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "offset {offset}: {error}")
            }
        }
    }
    let live = model.values().flatten().count();
    assert_eq!(met, live, "offset {offset}: a walk goes on behind what it cannot read");
    refused
}

/// Bytes that are damaged, one after another: as many in each run.
fn offsets(rng: &mut Rng) -> Vec<u64> {
    (0..8000).map(|_| rng.below(DEVICE_SIZE)).collect()
}

#[test]
fn damage_under_an_open_store_is_an_error_for_what_it_hit() {
    for (engine, colliding) in KINDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let bed = Bed::new(engine, 5);
        let store = bed.open(&options_of(&bed, colliding)).unwrap();
        let mut rng = Rng::from_seed(11);
        let model = populate(&store, &mut rng);
        let Bed::Memory(memory, _) = &bed else { unreachable!() };
        let mut refused = 0;
        for offset in offsets(&mut rng) {
            let mut byte = [0];
            memory.read(offset, &mut byte).unwrap();
            let damaged = byte[0] ^ u8::try_from(1 + rng.below(255)).unwrap();
            memory.store(DAMAGE, offset, &[damaged]).unwrap();
            refused += read_all(&store, &model, offset);
            memory.store(DAMAGE, offset, &byte).unwrap();
        }
        assert!(refused > 500, "{engine}: {refused} refused");
        assert_eq!(read_all(&store, &model, 0), 0);
    }
}

/// A store as an image has it, and its memory.
fn copy_of(image: &Image, options: &Options) -> (Store, Arc<SimPm>) {
    let mut memory = SimPmOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image.clone()));
    memory.record = false;
    let memory = Arc::new(SimPm::new(memory));
    (Store::open_on_memory(Arc::clone(&memory) as Arc<dyn Pmem>, options).unwrap(), memory)
}

#[test]
fn what_is_damaged_can_be_written_and_deleted_and_harms_no_other_key() {
    for (engine, colliding) in KINDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let bed = Bed::new(engine, 5);
        let options = options_of(&bed, colliding);
        let store = bed.open(&options).unwrap();
        let mut rng = Rng::from_seed(11);
        let model = populate(&store, &mut rng);
        store.close().unwrap();
        let Bed::Memory(memory, _) = &bed else { unreachable!() };
        let image = memory.image();
        let mut done = [0; 3];
        for (turn, offset) in offsets(&mut rng).into_iter().step_by(4).enumerate() {
            let (store, memory) = copy_of(&image, &options);
            let mut byte = [0];
            memory.read(offset, &mut byte).unwrap();
            let damaged = byte[0] ^ u8::try_from(1 + rng.below(255)).unwrap();
            memory.store(DAMAGE, offset, &[damaged]).unwrap();
            let (refused, right): (Vec<_>, Vec<_>) =
                model.keys().partition(|key| store.get(key).is_err());
            let mut written = Vec::new();
            for key in refused {
                let result = match turn % 3 {
                    0 => store.put(key, b"new").map(drop),
                    1 => store
                        .delete(key)
                        .map(|existed| assert!(existed || model[key].is_none(), "{offset}")),
                    _ => store.clear(),
                };
                match result {
                    Ok(()) => {
                        let expected = (turn % 3 == 0).then(|| b"new".to_vec());
                        let found = store.get(key).unwrap().map(|value| value.to_vec());
                        assert_eq!(found, expected, "offset {offset}");
                        done[turn % 3] += 1;
                        written.push(key);
                    }
                    Err(error) => panic!("offset {offset}: {error}"),
                }
                assert_eq!(store.stats().read_only, None, "offset {offset}");
            }
            // The medium shows again what it had, which is nothing of this any more.
            let mut now = [0];
            memory.read(offset, &mut now).unwrap();
            if now == [damaged] {
                memory.store(DAMAGE, offset, &byte).unwrap();
            }
            for key in written {
                let expected = (turn % 3 == 0).then(|| b"new".to_vec());
                let found = store.get(key).unwrap().map(|value| value.to_vec());
                assert_eq!(found, expected, "offset {offset}: another one than was written");
            }
            for key in right.iter().skip(turn % 7).step_by(30) {
                store.put(key, b"other").unwrap();
                assert_eq!(&*store.get(key).unwrap().unwrap(), b"other", "offset {offset}");
            }
            store.clean(8).unwrap();
            store.close().unwrap();
        }
        assert!(done.iter().all(|count| *count > 15), "{engine}: {done:?}");
    }
}

/// Bytes that are lost together.
const LOST: u64 = 256;
/// Keys that these hide, at most: with the header of a batch of copies all of its 64 entries, and the last ones of the batch before, of
/// 16 bytes each.
const HIDDEN: usize = 64 + LOST as usize / 16;

/// Memory that has lost some bytes, from here on: to read them fails.
fn losing(inner: SimPm) -> (Arc<AskingMemory>, Arc<AtomicU64>) {
    let from = Arc::new(AtomicU64::new(u64::MAX));
    let lost = Arc::clone(&from);
    let memory = AskingMemory::new(Arc::new(inner), move |call| {
        let from = lost.load(Ordering::SeqCst);
        match call {
            MemoryCall::Read(bytes)
                if bytes.start < from.saturating_add(LOST) && from < bytes.end =>
            {
                Err(Error::corrupted("read memory", "the medium lost it").at(from, LOST))
            }
            _ => Ok(()),
        }
    });
    (memory, from)
}

#[test]
fn a_place_that_cannot_be_read_stops_no_cleaning_and_no_other_key() {
    for engine in KINDS {
        let bed = Bed::new(engine, 5);
        let options = options_of(&bed, false);
        let store = bed.open(&options).unwrap();
        let model = populate(&store, &mut Rng::from_seed(11));
        store.close().unwrap();
        let Bed::Memory(memory, _) = &bed else { unreachable!() };
        let image = memory.image();
        let value = |round: u8, place: usize| {
            let mut value = vec![round; if round.is_multiple_of(3) { 300 } else { 30 }];
            value[1] = place as u8;
            value
        };
        // Returns how many keys are refused; the others have what was put last.
        let judge = |store: &Store, last: &[u8], at: &str| {
            let mut refused = 0;
            for ((place, key), round) in model.keys().enumerate().zip(last) {
                match store.get(key) {
                    Ok(found) => {
                        let is_right = found.as_deref() == Some(&value(*round, place)[..]);
                        assert!(is_right, "{at}: key {place} of round {round}: {found:?}");
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupted, "{at}: {error}");
                        refused += 1;
                    }
                }
            }
            refused
        };
        let (mut all, mut most) = (0, 0);
        for (turn, from) in (4096..DEVICE_SIZE).step_by(3 * LOST as usize).enumerate() {
            let mut memory =
                SimPmOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image.clone()));
            memory.record = false;
            let (memory, lost) = losing(SimPm::new(memory));
            let store = Store::open_on_memory(Arc::clone(&memory) as _, &options).unwrap();
            lost.store(from, Ordering::SeqCst);
            let mut last = vec![0; model.len()];
            for round in 0..12 {
                // Some stay where they are while what is beside them goes.
                let puts =
                    |place: &usize| round == 0 || !(place + usize::from(round)).is_multiple_of(3);
                for (place, key) in model.keys().enumerate().filter(|(place, _)| puts(place)) {
                    store.put(key, &value(round, place)).unwrap();
                    last[place] = round;
                }
                store.clean(3).unwrap();
                let refused = judge(&store, &last, &format!("from {from}, round {round}"));
                (all, most) = (all + refused, most.max(refused));
            }
            assert_eq!(store.stats().read_only, None, "from {from}");
            match turn % 2 {
                0 => store.close().unwrap(),
                _ => store.forget(),
            }
            // The medium shows again what it had.
            lost.store(u64::MAX, Ordering::SeqCst);
            let store = Store::open_on_memory(memory, &options).unwrap();
            assert_eq!(judge(&store, &last, &format!("from {from}, opened again")), 0);
            assert!(store.check().unwrap().is_sound(), "from {from}");
        }
        assert!(
            all > 500 && most <= HIDDEN,
            "{engine}: {all} refused, {most} of one round at most"
        );
    }
}

#[test]
fn no_damage_gets_into_a_backup() {
    for engine in KINDS {
        let bed = Bed::new(engine, 8);
        let options = bed.options(8);
        let store = bed.open(&options).unwrap();
        let mut rng = Rng::from_seed(13);
        let model = populate(&store, &mut rng);
        let Bed::Memory(memory, _) = &bed else { unreachable!() };
        let mut refused = 0;
        for offset in offsets(&mut rng).into_iter().step_by(8) {
            let mut byte = [0];
            memory.read(offset, &mut byte).unwrap();
            memory.store(DAMAGE, offset, &[byte[0] ^ 4]).unwrap();
            let archive = SimArchive::new();
            match store.backup_to(&archive, &Progress::default()) {
                Ok(_) => {
                    let memory = SimPm::new(SimPmOptions::new(DEVICE_SIZE, 1));
                    let memory = Arc::new(memory) as Arc<dyn Pmem>;
                    restore_on_memory(&archive, &*memory, &options).unwrap();
                    let restored = Store::open_on_memory(memory, &options).unwrap();
                    assert_eq!(read_all(&restored, &model, offset), 0, "offset {offset}");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "offset {offset}: {error}");
                    assert!(error.range().is_some(), "offset {offset}: {error}");
                    refused += 1;
                }
            }
            memory.store(DAMAGE, offset, &byte).unwrap();
        }
        assert!(refused > 50, "{engine}: {refused} refused");
    }
}

#[test]
fn damage_between_a_clean_stop_and_an_open_is_found() {
    for engine in KINDS {
        let bed = Bed::new(engine, 6);
        let options = bed.options(6);
        let store = bed.open(&options).unwrap();
        let mut rng = Rng::from_seed(12);
        let model = populate(&store, &mut rng);
        store.close().unwrap();
        let Bed::Memory(memory, _) = &bed else { unreachable!() };
        let image = memory.image();
        let mut refused = (0, 0);
        for offset in offsets(&mut rng).into_iter().step_by(4) {
            let mut damaged = image.clone();
            damaged.flip(offset, u32::try_from(rng.below(8)).unwrap());
            match reopened(&damaged, &options) {
                Ok(store) => refused.1 += read_all(&store, &model, offset),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "offset {offset}: {error}");
                    refused.0 += 1;
                }
            }
        }
        assert!(refused.1 > 100, "{engine}: {refused:?} refused");
    }
}

/// As after a crash: no image tells what the index had.
#[test]
fn what_was_cleared_stays_gone_whatever_bit_of_that_is_damaged() {
    for engine in KINDS {
        let bed = Bed::new(engine, 6);
        let options = bed.options(6);
        let store = bed.open(&options).unwrap();
        let Bed::Memory(memory, _) = &bed else { unreachable!() };
        let is_empty = |image: &Image| {
            let store = reopened(image, &options)?;
            let is_empty = store.iter().next().is_none();
            assert_eq!(store.check().unwrap().problems, Vec::<String>::new(), "it is mended");
            Ok::<_, Error>(is_empty)
        };
        for _ in 0..2 {
            populate(&store, &mut Rng::from_seed(12));
            store.clear().unwrap();
            let image = memory.image();
            let slots = CLEAR_OFFSETS.map(|offset| offset..offset + CLEAR_SIZE as u64);
            for offset in slots.clone().into_iter().flatten() {
                for bit in 0..8 {
                    let mut damaged = image.clone();
                    damaged.flip(offset, bit);
                    assert!(is_empty(&damaged).unwrap(), "{engine}, offset {offset}, bit {bit}");
                }
            }
            let mut damaged = image.clone();
            slots.into_iter().for_each(|slot| damaged.flip(slot.start, 1));
            let error = is_empty(&damaged).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        }
        memory.store(DAMAGE, CLEAR_OFFSETS[1], &[9]).unwrap();
        let problems = store.check().unwrap().problems;
        assert!(problems.iter().any(|it| it.contains("what was cleared")), "{problems:?}");
    }
}

fn reopened(image: &Image, options: &Options) -> esker::Result<Store> {
    let mut memory = SimPmOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image.clone()));
    memory.record = false;
    Store::open_on_memory(Arc::new(SimPm::new(memory)) as Arc<dyn Pmem>, options)
}

#[test]
fn a_store_whose_file_lost_its_end_says_so_in_every_way_and_to_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::FlatCceh);
    options.pmem_emulate = true;
    options.size_bytes = 8 << 20;
    let store = Store::open(&options).unwrap();
    store.put(b"before", b"value").unwrap();
    // In place: the mapping loses all but the first page.
    std::fs::write(folder.path().join("flat.esker"), [0; 4096]).unwrap();
    let mut refused = Vec::new();
    for _ in 0..2 {
        refused.push(store.put(b"after", &[1; 30]).unwrap_err().kind());
    }
    assert_eq!(refused, [ErrorKind::DurabilityUnknown, ErrorKind::ReadOnly]);
    assert_eq!(store.get(b"before").unwrap_err().kind(), ErrorKind::Corrupted);
    assert!(store.stats().read_only.is_some());
    for _ in 0..2 {
        assert_eq!(store.close().unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}

#[test]
fn a_free_chunk_whose_memory_went_bad_is_left_alone_and_the_store_goes_on() {
    const SIZE: u64 = 64 << 20;
    const LEFT: u64 = SIZE / 2 + 3 * 4096;
    for engine in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        options.engine = Some(engine);
        options.pmem_emulate = true;
        options.size_bytes = SIZE;
        let store = Store::open(&options).unwrap();
        let value = |number: u64| vec![number as u8; 5000];
        let put = |number: u64| store.put(&number.to_le_bytes(), &value(number));
        assert!((0..100).all(|number| put(number).is_ok()));
        // Behind what is in use: half of the chunks, and most of one more.
        let path = folder.path().join("flat.esker");
        let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty()).unwrap();
        rustix::fs::ftruncate(file, LEFT).unwrap();
        let error = (100..SIZE / 5000).find_map(|number| put(number).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(error.to_string().contains("chunks have bad memory"), "{error}");
        assert_eq!(store.stats().read_only, None);
        let items = store.stats().items;
        assert!(items * 5000 > LEFT * 7 / 10, "{items} items: what is good is used");
        // A value of several chunks finds no row there, either.
        let large = store.put(b"large", &vec![1; 20 << 20]).unwrap_err();
        assert_eq!(large.kind(), ErrorKind::NoSpace, "{large}");
        for number in 0..items {
            let found = store.get(&number.to_le_bytes()).unwrap();
            assert_eq!(found.as_deref(), Some(&value(number)[..]), "{number}");
        }
        let report = store.check().unwrap();
        assert!(!report.problems.is_empty());
        assert!(
            report.problems.iter().all(|problem| problem.contains("free, is bad")),
            "{report:?}"
        );
        assert!((0..items).all(|number| store.delete(&number.to_le_bytes()).unwrap()));
        assert!((0..100).all(|number| put(number).is_ok()));
        store.close().unwrap();
    }
}
