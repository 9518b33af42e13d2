//! `flex`: large values, backups, batches, failing devices.

use crate::client::{Client, Map, cut};
use crate::flex_bounds::comes;
use crate::flex_db::{Devices, options};
use crate::support::End;
use esker::options::Progress;
use esker::{Batch, Direction, Durability, ErrorKind, Result, Store, restore_flex_on};
use esker_base::rng::Rng;
use esker_media::Archive;
use esker_media::sim::{FaultKind, FaultPlan, Image, SimArchive, Trigger};
use std::ops::Bound;

pub(crate) fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

pub(crate) fn held(store: &Store) -> Map {
    let items = store.scan(.., Direction::Forward, usize::MAX).unwrap();
    items.into_iter().map(|(key, value)| (key, value.to_vec())).collect()
}

pub(crate) fn sound(store: &Store) {
    assert_eq!(store.check().unwrap().problems, Vec::<String>::new());
}

#[test]
fn large_values_come_back_move_and_give_their_space_back() {
    let devices = Devices::new(1);
    let mut options = options(4);
    let mut store = devices.open(&options).unwrap();
    let sizes = [1000, 1001, 4000, 9000, 20_000, 40_000];
    let mut model = Map::new();
    let mut rng = Rng::from_seed(9);
    for round in 0..60_u64 {
        let key = vec![b'k', u8::try_from(rng.below(7)).unwrap()];
        match rng.below(5) {
            0 => assert_eq!(store.delete(&key).unwrap(), model.remove(&key).is_some()),
            1 => {
                // Small ones beside them make intervals grow.
                for n in 0..30_u8 {
                    let value = bytes(round, 90);
                    store.put(&[b'a', n, u8::try_from(round).unwrap()], &value).unwrap();
                    model.insert(vec![b'a', n, u8::try_from(round).unwrap()], value);
                }
            }
            _ => {
                let value = bytes(round, sizes[rng.index(sizes.len())]);
                store.put(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        assert_eq!(held(&store), model, "round {round}");
        match rng.below(6) {
            0 => sound(&store),
            1 => {
                match rng.below(3) {
                    0 => store.close().map(|()| drop(store)).unwrap(),
                    1 => drop(store),
                    _ => store.forget(),
                }
                options.testing.seed = Some(rng.next_u64());
                store = devices.open(&options).unwrap();
            }
            _ => {}
        }
        let mut read = 0;
        let longest = model.get(&[b'k', 0][..]).map_or(0, Vec::len) as u64;
        let found = store.get_with(&[b'k', 0], |bytes| {
            read = bytes;
            Ok(())
        });
        assert_eq!(found.unwrap().map_or(0, |value| value.len()) as u64, longest);
        // Short values are copied into the handle.
        assert_eq!(read, if longest > 64 { longest } else { 0 }, "memory is asked for");
        assert!(store.read_size_bytes(&[b'k', 0]) >= read);
    }
    store.clear().unwrap();
    sound(&store);
    store.put(b"x", b"y").unwrap();
    sound(&store);
    assert!(store.stats().live_bytes < 5000, "{:?}", store.stats());
}

#[test]
fn a_snapshot_keeps_the_large_values_that_it_sees() {
    let devices = Devices::new(2);
    let store = devices.open(&options(4)).unwrap();
    let (old, new) = (bytes(1, 20_000), bytes(2, 30_000));
    store.put(b"k", &old).unwrap();
    sound(&store);
    let snapshot = store.snapshot().unwrap();
    store.put(b"k", &new).unwrap();
    sound(&store);
    store.delete(b"k").unwrap();
    sound(&store);
    assert!(store.get(b"k").unwrap().is_none());
    assert_eq!(snapshot.get(b"k").unwrap().unwrap().to_vec(), old);
    let live = store.stats().live_bytes;
    drop(snapshot);
    store.put(b"other", b"").unwrap();
    sound(&store);
    assert!(store.stats().live_bytes < live - 20_000, "gone when nobody needs it");
}

#[test]
fn a_batch_is_seen_as_a_whole_by_readers_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = esker::Options::new(folder.path());
    options.engine = Some(esker::EngineKind::Flex);
    options.durability = Durability::None;
    options.size_bytes = 256 << 20;
    options.flex.memtable_size_bytes = 64 << 10;
    options.flex.large_value_size_bytes = 500;
    let store = Store::open(&options).unwrap();
    let key = |number: u64| format!("key{number:02}").into_bytes();
    let ended = std::sync::atomic::AtomicBool::new(false);
    let first = {
        let mut batch = Batch::new();
        for number in 0..20 {
            batch.put(&key(number), &0_u64.to_le_bytes());
        }
        batch
    };
    store.write(&first).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _end = End(&ended);
            for round in 1..4000_u64 {
                let mut batch = Batch::new();
                for number in 0..20 {
                    let size = if (round + number).is_multiple_of(97) { 600 } else { 0 };
                    let value = [&round.to_le_bytes()[..], &vec![7; size]].concat();
                    batch.put(&key(number), &value);
                }
                store.write(&batch).unwrap();
            }
        });
        let mut rng = Rng::from_seed(3);
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            let round = |number| {
                let value = store.get(&key(number)).unwrap().unwrap();
                u64::from_le_bytes(value[..8].try_into().unwrap())
            };
            // What one key shows, all others show from then on.
            let (a, b) = (rng.below(20), rng.below(20));
            let first = round(a);
            assert!(round(b) >= first, "part of a batch was seen");
        }
    });
    sound(&store);
}

fn restored(archive: &dyn Archive, seed: u64) -> Result<(Devices, Store)> {
    let devices = Devices::new(seed);
    let mut options = options(seed);
    options.size_bytes = 0;
    restore_flex_on(archive, devices.files(), &options)?;
    options.size_bytes = 2 << 20;
    options.create = false;
    let store = devices.open(&options)?;
    Ok((devices, store))
}

#[test]
fn a_backup_holds_one_moment_and_restores_to_it() {
    for seed in 0..6 {
        let devices = Devices::new(seed);
        let store = devices.open(&options(seed)).unwrap();
        let archive = SimArchive::default();
        let mut model = Map::new();
        let mut rng = Rng::from_seed(seed);
        let mut versions = Vec::new();
        for round in 0..4_u64 {
            for _ in 0..200 {
                let key = format!("key{:03}", rng.below(300)).into_bytes();
                if rng.chance(1, 5) {
                    store.delete(&key).unwrap();
                    model.remove(&key);
                } else {
                    let size = if rng.chance(1, 40) { 6000 } else { rng.index(300) };
                    let value = bytes(rng.next_u64(), size);
                    store.put(&key, &value).unwrap();
                    model.insert(key, value);
                }
            }
            let report = store.backup_to(&archive, &Progress::default()).unwrap();
            if round > 0 && seed % 2 == 0 {
                let again = store.backup_to(&archive, &Progress::default()).unwrap();
                assert_eq!((again.segments_copied, again.bytes_copied), (0, 0), "nothing changed");
                assert!(again.segments_reused > 0 && again.last_version == report.last_version);
            }
            versions.push(report.last_version);
            // What comes later is not in it.
            store.put(b"later", &round.to_le_bytes()).unwrap();
            let (_devices, copy) = restored(&archive, seed + 100).unwrap();
            assert_eq!(held(&copy), model, "seed {seed}, round {round}");
            sound(&copy);
            let version = copy.put(b"new", b"").unwrap();
            assert!(version > report.last_version, "versions go on");
            // A restored store goes on with backups in the same folder.
            if round == 2 {
                copy.put(b"large", &bytes(5, 7000)).unwrap();
                let other = SimArchive::default();
                copy.backup_to(&other, &Progress::default()).unwrap();
                let (_devices, second) = restored(&other, seed + 200).unwrap();
                assert_eq!(held(&second), held(&copy));
            }
            store.delete(b"later").unwrap();
        }
        assert!(versions.is_sorted());
    }
}

#[test]
fn a_damaged_backup_is_named_and_an_unfinished_restore_is_no_store() {
    let devices = Devices::new(1);
    let store = devices.open(&options(1)).unwrap();
    for n in 0..200_u8 {
        store.put(&[n], &bytes(u64::from(n), 400)).unwrap();
    }
    store.put(b"large", &bytes(9, 9000)).unwrap();
    let archive = SimArchive::default();
    store.backup_to(&archive, &Progress::default()).unwrap();
    let names = archive.list().unwrap();
    assert!(names.iter().any(|name| name.starts_with("large-")), "{names:?}");
    for name in names {
        let mut content =
            vec![0; usize::try_from(archive.size_bytes_of(&name).unwrap().unwrap()).unwrap()];
        archive.read_at(&name, 0, &mut content).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        let damaged = SimArchive::default();
        for other in archive.list().unwrap() {
            let mut bytes =
                vec![0; usize::try_from(archive.size_bytes_of(&other).unwrap().unwrap()).unwrap()];
            archive.read_at(&other, 0, &mut bytes).unwrap();
            let bytes = if other == name { &content } else { &bytes };
            let mut writer = damaged.create(&other).unwrap();
            writer.write(bytes).unwrap();
            writer.finish(esker::sites::backup::BACKUP_FILE_FLUSH).unwrap();
        }
        let error = restored(&damaged, 3).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{name}: {error}");
    }
    // Every call of a restore fails once: what is left is refused, and another restore makes it whole.
    let mut refused = 0;
    for n in 1..4000 {
        let devices = Devices::new(7);
        let mut options = options(7);
        devices.fault_all(&FaultPlan::none().with(FaultKind::AnyError, Trigger::Nth(n)));
        let done = restore_flex_on(&archive, devices.files(), &options);
        let devices = devices.again();
        options.create = false;
        if done.is_ok() {
            assert!(n > 10);
            break;
        }
        match devices.open(&options) {
            Ok(_) => panic!("call {n}: half a restore is a store"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "call {n}: {error}"),
        }
        refused += 1;
        if n % 7 == 0 {
            options.create = true;
            // A space of an identity of its own, as those are that are not made by tests.
            options.testing.seed = Some(7000 + n);
            restore_flex_on(&archive, devices.files(), &options).unwrap();
            assert_eq!(held(&devices.open(&options).unwrap()), held(&store));
        }
    }
    assert!(refused > 10, "{refused} calls could fail");
    let error = restore_flex_on(&archive, devices.files(), &options(8)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "there is a store: {error}");
}

#[test]
fn damage_that_nobody_reads_is_found_in_the_background() {
    let devices = Devices::new(4);
    let mut options = options(4);
    options.clock = std::sync::Arc::new(esker_base::clock::SystemClock);
    let store = devices.open(&options).unwrap();
    for n in 0..200_u8 {
        store.put(&[n], &bytes(u64::from(n), 200)).unwrap();
    }
    store.put(b"large", &bytes(9, 9000)).unwrap();
    store.close().unwrap();
    drop(store);
    for damage in [false, true] {
        let mut images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
        if damage {
            // Any byte of a sealed block is somebody's.
            (8..60).for_each(|block| images[0].flip(block * 512 + 100, 1));
        }
        let devices = Devices::with(images, 77);
        options.testing.background = true;
        options.testing.seed = Some(99);
        options.flex.scrub_bytes_per_second = 100 << 20;
        let store = devices.open(&options).unwrap();
        let never = |words: &str| comes(|| !store.report().contains(words));
        if damage {
            assert!(never(", 0 places damaged"), "{}", store.report());
        } else {
            assert!(never("; 0 bytes verified"), "{}", store.report());
            esker_trt::sleep(std::time::Duration::from_millis(1000));
            assert!(store.report().contains(", 0 places damaged"), "{}", store.report());
        }
    }
}

#[test]
fn a_walk_goes_on_behind_an_interval_that_cannot_be_read() {
    let devices = Devices::new(4);
    let mut options = options(4);
    let store = devices.open(&options).unwrap();
    let mut model = Map::new();
    for n in 0..200_u8 {
        let value = bytes(u64::from(n), if n % 50 == 7 { 3000 } else { 200 });
        store.put(&[n], &value).unwrap();
        model.insert(vec![n], value);
    }
    store.close().unwrap();
    drop(store);
    let mut unread = 0;
    for block in 8..90 {
        let mut images: Vec<Image> = (0..6).map(|index| devices.device(index).image()).collect();
        images[0].flip(block * 512 + 100, 1);
        let devices = Devices::with(images, 77);
        options.testing.seed = Some(block);
        let store = devices.open(&options).unwrap();
        // Of a table: met wherever it is.
        let written = [100, u8::try_from(block).unwrap()];
        store.put(&written, b"new").unwrap();
        let (met, errors): (Vec<_>, Vec<_>) = store.iter().partition(Result::is_ok);
        let met: Map =
            met.into_iter().flatten().map(|(key, value)| (key, value.to_vec())).collect();
        assert_eq!(met.get(&written[..]).map(Vec::as_slice), Some(&b"new"[..]), "block {block}");
        let missed: Vec<_> = model.keys().filter(|key| !met.contains_key(*key)).collect();
        assert_eq!(missed.is_empty(), errors.is_empty(), "block {block}: {errors:?}");
        // A block may hold parts of two, and of a large value.
        assert!(errors.len() <= 3 && missed.len() < 40, "block {block}: {missed:?}, {errors:?}");
        for (key, value) in met.iter().filter(|(key, _)| **key != written) {
            assert_eq!(model.get(key), Some(value), "block {block}");
        }
        for error in errors.into_iter().filter_map(Result::err) {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "block {block}: {error}");
            unread += 1;
        }
        if let (Some(first), Some(last)) = (missed.first(), missed.last()) {
            let between = (Bound::Included(&first[..]), Bound::Included(&last[..]));
            assert!(store.scan(between, Direction::Forward, 1000).is_err(), "block {block}");
        }
    }
    assert!(unread > 10, "{unread} intervals");
}

/// Fails the n-th call of one device for every n, once or for ever.
fn sweep(device: usize, kind: FaultKind, for_ever: bool, expected: &[ErrorKind]) -> u32 {
    let mut failed = 0;
    for n in 1..400 {
        let context = format!("device {device}: {kind:?} at call {n}, for ever: {for_ever}");
        let devices = Devices::new(5);
        let store = devices.open(&options(5)).expect(&context);
        let trigger = if for_ever { Trigger::FromNth(n) } else { Trigger::Nth(n) };
        devices.device(device).set_faults(FaultPlan::none().with(kind, trigger));
        let mut client = Client::default();
        // Over several tables, some values by themselves.
        client.work(&store, 150, 23, |n| {
            let size = if n % 29 == 7 { 5000 } else { 50 + usize::try_from(n).unwrap() * 3 };
            bytes(u64::from(n), size)
        });
        devices.fault_all(&FaultPlan::none());
        for error in &client.errors {
            assert!(expected.contains(error), "{context}: {error:?}");
        }
        if client.errors.contains(&ErrorKind::ReadOnly) {
            assert!(store.stats().read_only.is_some(), "{context}: says why");
        }
        // Reads go on.
        client.reads(&store, &context);
        for keep in [false, true] {
            let images = (0..6).map(|index| cut(devices.device(index), keep)).collect();
            let store = Devices::with(images, 6).open(&options(6)).expect(&context);
            client.check(&store, &context);
        }
        if client.errors.is_empty() {
            break;
        }
        failed += 1;
    }
    failed
}

#[test]
fn a_call_that_fails_once_or_for_ever_makes_no_false_promise() {
    let expected = [ErrorKind::DurabilityUnknown, ErrorKind::ReadOnly, ErrorKind::Io];
    let mut failed = 0;
    for device in 0..6 {
        for for_ever in [false, true] {
            failed += sweep(device, FaultKind::WriteError, for_ever, &expected);
            failed += sweep(device, FaultKind::FlushError, for_ever, &expected);
        }
    }
    assert!(failed > 100, "only {failed} calls could fail");
}

#[test]
fn a_flush_that_fails_once_is_not_taken_for_done_the_second_time() {
    let devices = Devices::new(5);
    let mut options = options(5);
    options.durability = Durability::None;
    let store = devices.open(&options).unwrap();
    store.put(b"k", b"v").unwrap();
    devices.fault_all(&FaultPlan::none().with(FaultKind::FlushError, Trigger::Nth(1)));
    let error = store.sync().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DurabilityUnknown | ErrorKind::Io), "{error}");
    assert_eq!(store.sync().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(store.put(b"k", b"w").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(store.get(b"k").unwrap().unwrap().to_vec(), b"v", "reads go on");
    assert!(store.stats().read_only.is_some());
}

#[test]
fn a_clean_stop_saves_the_index_and_a_cut_one_does_without() {
    let devices = Devices::new(8);
    let options = options(8);
    let store = devices.open(&options).unwrap();
    for n in 0..300_u16 {
        store.put(&n.to_be_bytes(), &bytes(u64::from(n), 90)).unwrap();
    }
    store.close().unwrap();
    let intervals = store.stats().index_entries;
    drop(store);
    let all = |store: &Store| store.scan(.., esker::Direction::Forward, usize::MAX).unwrap().len();
    let opened = devices.again().open(&options).unwrap();
    assert_eq!((opened.stats().index_entries, all(&opened)), (intervals, 300), "as it was saved");
    // With something behind the checkpoint it does not count.
    let again = devices.again();
    let store = again.open(&options).unwrap();
    for n in 0..200_u16 {
        store.put(&(n * 7).to_be_bytes(), &bytes(u64::from(n), 300)).unwrap();
    }
    store.check().unwrap();
    let count = all(&store);
    store.forget();
    let opened = again.again().open(&options).unwrap();
    assert_eq!(all(&opened), count, "an index of before does not count");
}

#[test]
fn a_full_device_refuses_puts_and_nothing_else() {
    for device in [0, 1, 2, 3, 4, 5] {
        let devices = Devices::new(5);
        let store = devices.open(&options(5)).unwrap();
        devices
            .device(device)
            .set_faults(FaultPlan::none().with(FaultKind::NoSpace, Trigger::FromNth(1)));
        let mut client = Client::default();
        // Over several tables, some values by themselves.
        client.work(&store, 150, 23, |n| {
            let size = if n % 29 == 7 { 5000 } else { 50 + usize::try_from(n).unwrap() * 3 };
            bytes(u64::from(n), size)
        });
        for (key, value) in &client.acknowledged {
            let found = store.get(key).unwrap().map(|value| value.to_vec());
            let (errors, key) = (&client.errors, String::from_utf8_lossy(key));
            let same = found.as_ref().map(|found| (found.len(), value.len()));
            assert!(found.as_ref() == Some(value), "device {device}: {key} {same:?} {errors:?}");
        }
        devices.fault_all(&FaultPlan::none());
        client.check(&store, &format!("device {device}"));
    }
}
