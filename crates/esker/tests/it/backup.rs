//! Backups: whatever goes on meanwhile, what is restored is what the store held after some write,
//! with none missing that was acknowledged before; damage is named, and a backup that did not end
//! leaves the one before.

use crate::backup_room::beside;
use crate::support::{DEVICE_SIZE, End, SEGMENT_SIZE, device, flip_on, open, options};
use esker::options::Progress;
use esker::{Batch, Durability, ErrorKind, Options, Result, Store, Version, restore_on};
use esker_base::rng::Rng;
use esker_media::Archive;
use esker_media::sim::{Initial, SimArchive, SimBlock, SimBlockOptions};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;
/// Changes with their versions.
type History = BTreeMap<u64, (Vec<u8>, Option<Vec<u8>>)>;

/// A value that threads share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared<T>(Arc<Mutex<T>>);

impl<T> Shared<T> {
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }
}

pub(crate) fn held(store: &Store) -> Map {
    let items = store.iter().map(|item| item.expect("readable"));
    items.map(|(key, value)| (key, value.to_vec())).collect()
}

pub(crate) fn backup(store: &Store, archive: &dyn Archive) -> Result<esker::BackupReport> {
    store.backup_to(archive, &Progress::default())
}

/// A store from the backup in `archive`, on a device with `earlier` content.
pub(crate) fn restored_on(
    archive: &dyn Archive,
    size: u64,
    earlier: Initial,
) -> Result<(Arc<SimBlock>, Store)> {
    let device = Arc::new(SimBlock::new(SimBlockOptions::new(size, 77).initial(earlier)));
    let mut options = options(78);
    options.format = true;
    restore_on(archive, &*device, &options)?;
    options.format = false;
    let store = open(&device, &options)?;
    Ok((device, store))
}

pub(crate) fn restored(archive: &dyn Archive) -> Result<Store> {
    restored_on(archive, DEVICE_SIZE, Initial::Zeros).map(|(_, store)| store)
}

/// What a store held after all changes up to `last`.
fn prefix(history: &History, last: Version) -> Map {
    let mut map = Map::new();
    for (key, value) in history.range(..=last.0).map(|(_, change)| change) {
        match value {
            Some(value) => drop(map.insert(key.clone(), value.clone())),
            None => drop(map.remove(key)),
        }
    }
    map
}

/// Clients that write, delete and write batches on keys of their own until told to stop.
#[derive(Clone, Default)]
struct Clients {
    history: Shared<History>,
    /// Versions that one batch has.
    batches: Shared<Vec<(u64, u64)>>,
    stop: Arc<AtomicBool>,
}

impl Clients {
    fn run(&self, store: &Store, name: u64, seed: u64, most: usize) {
        let mut rng = Rng::from_seed(seed);
        let mut live: Vec<Vec<u8>> = Vec::new();
        for n in 0..most {
            if self.stop.load(Ordering::SeqCst) {
                break;
            }
            let key = format!("{name}/{}", rng.below(12)).into_bytes();
            let value = format!("{n}:").repeat(1 + rng.index(60)).into_bytes();
            match rng.below(10) {
                0..6 => {
                    // Some of them so long that they stand in extents.
                    let value = if rng.chance(1, 8) { value.repeat(8) } else { value };
                    let version = store.put(&key, &value).unwrap();
                    self.note(version.0, &key, Some(&value));
                    live.push(key);
                }
                6..8 => {
                    // A delete that is sure to write, so that its version is known.
                    let Some(key) = live.pop() else { continue };
                    live.retain(|other| *other != key);
                    let version = store.write(Batch::new().delete(&key)).unwrap();
                    self.note(version.0, &key, None);
                }
                _ => {
                    let other = format!("{name}/pair").into_bytes();
                    let mut batch = Batch::new();
                    batch.put(&key, &value).put(&other, &value);
                    let version = store.write(&batch).unwrap().0;
                    self.note(version - 1, &key, Some(&value));
                    self.note(version, &other, Some(&value));
                    self.batches.with(|batches| batches.push((version - 1, version)));
                    live.push(key);
                }
            }
        }
    }

    fn note(&self, version: u64, key: &[u8], value: Option<&[u8]>) {
        let change = (key.to_vec(), value.map(<[u8]>::to_vec));
        let twice = self.history.with(|history| history.insert(version, change));
        assert!(twice.is_none(), "version {version} was given twice");
    }

    fn acknowledged(&self) -> u64 {
        self.history.with(|history| history.keys().last().copied().unwrap_or(0))
    }

    /// The newest version below which no change is missing: others may be on their way.
    fn judge(
        &self,
        archive: &dyn Archive,
        earlier: Initial,
        report: &esker::BackupReport,
        at: &str,
    ) {
        let last = report.last_version;
        let (device, store) = restored_on(archive, DEVICE_SIZE, earlier).expect(at);
        let expected = self.history.with(|history| prefix(history, last));
        assert_eq!(held(&store), expected, "{at}: no prefix, up to {last}");
        self.batches.with(|batches| {
            assert!(batches.iter().all(|(first, _)| *first != last.0), "{at}: half a batch");
        });
        let problems = store.check().unwrap().problems;
        assert!(problems.is_empty(), "{at}: {problems:?}");
        // It goes on like any store, with newer versions.
        assert!(store.put(b"new", b"1").unwrap() > last, "{at}");
        store.close().unwrap();
        drop(store);
        let store = open(&device, &options(79)).expect(at);
        assert_eq!(held(&store).len(), expected.len() + 1, "{at}");
    }
}

/// Three clients, a cleaner and two backups to one archive in a simulation; the second may fail for
/// lack of room. Returns how many backups ended.
fn simulated(seed: u64, durability: Durability) -> u32 {
    let report = esker_trt::sim::run(seed, move || {
        let device = device(seed);
        let mut options = options(seed);
        options.durability = durability;
        let store = open(&device, &options).unwrap();
        let clients = Clients::default();
        let tasks: Vec<_> = (0..3)
            .map(|name| {
                let (clients, store) = (clients.clone(), store.clone());
                esker_trt::spawn(move || clients.run(&store, name, seed ^ name, 4000))
            })
            .collect();
        let (cleaner, stop) = (store.clone(), Arc::clone(&clients.stop));
        let cleaning = esker_trt::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                cleaner.clean(1).unwrap();
                esker_trt::sleep(std::time::Duration::from_micros(50));
            }
        });
        let archive = SimArchive::new();
        let mut done = Vec::new();
        for round in 0..4 {
            esker_trt::sleep(std::time::Duration::from_millis(3));
            let before = clients.acknowledged();
            match backup(&store, &archive) {
                Ok(report) => {
                    assert!(report.last_version.0 >= before, "seed {seed}: an acknowledged write");
                    done.push((round, report, archive.copy(), device.image()));
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "seed {seed}: {error}"),
            }
        }
        clients.stop.store(true, Ordering::SeqCst);
        tasks.into_iter().for_each(|task| task.join().unwrap());
        cleaning.join().unwrap();
        for (round, report, archive, image) in &done {
            // On blank media, and where the same store went on.
            for earlier in [Initial::Zeros, Initial::Recycled(image.clone())] {
                let at = format!("seed {seed}, {durability}, backup {round}");
                clients.judge(archive, earlier, report, &at);
            }
        }
        u32::try_from(done.len()).unwrap()
    });
    report.outcome.unwrap()
}

#[test]
fn a_backup_beside_clients_and_cleaner_is_a_prefix_of_the_writes() {
    let done: u32 = (0..40).map(|seed| simulated(seed, Durability::Sync)).sum();
    assert!(done > 80, "{done} backups ended");
}

#[test]
fn a_backup_without_flushes_is_a_prefix_of_the_writes() {
    let done: u32 = (100..130).map(|seed| simulated(seed, Durability::None)).sum();
    assert!(done > 60, "{done} backups ended");
}

#[test]
fn a_backup_of_a_file_beside_threads_is_a_prefix_of_the_writes() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let mut options = Options::new(path("data"));
    options.size_bytes = 24 << 20;
    options.testing.segment_size_bytes = Some(256 << 10);
    let store = Store::open(&options).unwrap();
    let clients = Clients::default();
    let reports = std::thread::scope(|scope| {
        let _end = End(&clients.stop);
        for name in 0..3 {
            let (clients, store) = (&clients, &store);
            scope.spawn(move || clients.run(store, name, name, 1 << 20));
        }
        let mut reports = Vec::new();
        for round in 0..4 {
            esker_trt::sleep(std::time::Duration::from_millis(80));
            let before = clients.acknowledged();
            let target = path(if round < 2 { "one" } else { "other" });
            let report = store.backup(&target).unwrap();
            assert!(report.last_version.0 >= before);
            reports.push(report);
        }
        reports
    });
    assert_eq!((reports[0].segments_reused, reports[2].segments_reused), (0, 0));
    for (name, report) in [("one", reports[1]), ("other", reports[3])] {
        let mut options = Options::new(path(&format!("restored from {name}")));
        options.size_bytes = 0;
        let restored = esker::restore(&path(name), &options).unwrap();
        assert_eq!(restored.last_version, report.last_version);
        options.create = false;
        let store = Store::open(&options).unwrap();
        let expected = clients.history.with(|history| prefix(history, report.last_version));
        assert_eq!(held(&store), expected);
        assert!(store.check().unwrap().is_sound());
        let again = esker::restore(&path(name), &Options::new(path("data"))).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Locked);
        store.close().unwrap();
        drop(store);
        let again = esker::restore(&path(name), &options).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::InvalidArgument, "{again}");
    }
}

/// Random changes, cleaning, clears and reopenings; now and then a backup, that is restored at once.
fn model(seed: u64) {
    let device = device(seed);
    let options = options(seed);
    let mut store = open(&device, &options).unwrap();
    let archive = SimArchive::new();
    let (mut rng, mut model, mut backups) = (Rng::from_seed(seed), Map::new(), 0);
    for step in 0..1500 {
        let at = format!("seed {seed}, step {step}");
        let key = format!("user{}", rng.below(20)).into_bytes();
        match rng.below(200) {
            0..110 => {
                let value = vec![u8::try_from(step % 256).unwrap(); rng.index(900)];
                store.put(&key, &value).expect(&at);
                model.insert(key, value);
            }
            110..160 => {
                assert_eq!(store.delete(&key).expect(&at), model.remove(&key).is_some(), "{at}");
            }
            160..180 => drop(store.clean(rng.index(8)).expect(&at)),
            180..182 => {
                store.clear().expect(&at);
                model.clear();
            }
            182..186 => drop(store.trim().expect(&at)),
            186..192 => {
                if rng.chance(1, 2) {
                    store.close().expect(&at);
                }
                drop(store);
                store = open(&device, &options).expect(&at);
            }
            _ => {
                backup(&store, &archive).expect(&at);
                backups += 1;
                let earlier = match rng.below(3) {
                    0 => Initial::Zeros,
                    1 => Initial::Random,
                    _ => Initial::Recycled(device.image()),
                };
                let (_, restored) = restored_on(&archive, DEVICE_SIZE, earlier).expect(&at);
                assert_eq!(held(&restored), model, "{at}");
                assert_eq!(restored.stats().items, model.len() as u64, "{at}");
                assert!(restored.check().unwrap().is_sound(), "{at}");
            }
        }
    }
    assert!(backups > 20, "{backups} backups");
}

#[test]
fn what_is_restored_agrees_with_a_map_clears_and_deletes_included() {
    (0..30).for_each(model);
}

/// A store with `count` items of half a block, which fill segments, and what it holds.
pub(crate) fn filled(seed: u64, count: u32) -> (Arc<SimBlock>, Store, Map) {
    let device = device(seed);
    let store = open(&device, &options(seed)).unwrap();
    let mut model = Map::new();
    for n in 0..count {
        let (key, value) =
            (format!("key{n}").into_bytes(), vec![u8::try_from(n % 251).unwrap(); 300]);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    (device, store, model)
}

/// Flips one bit after another under `store`: a backup is refused, and the place named, or it is what the store held.
/// Returns how often it was refused.
fn backups_beside_flips(device: &SimBlock, store: &Store, model: &Map) -> usize {
    let mut refused = 0;
    for offset in (0..DEVICE_SIZE).step_by(101) {
        flip_on(device, offset);
        let archive = SimArchive::new();
        match backup(store, &archive) {
            Ok(_) => {
                let restored = restored(&archive).unwrap();
                assert!(held(&restored) == *model, "offset {offset}: the copy is another");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "offset {offset}: {error}");
                let place = error.range().unwrap();
                assert!(place.0 / SEGMENT_SIZE <= offset / SEGMENT_SIZE + 1, "{offset}: {error}");
                refused += 1;
            }
        }
        flip_on(device, offset);
    }
    refused
}

#[test]
fn no_flipped_bit_gets_into_a_backup() {
    let (device, store, mut model) = filled(41, 100);
    for n in (0..100).filter(|n| n % 3 != 1) {
        let key = format!("key{n}").into_bytes();
        store.delete(&key).unwrap();
        model.remove(&key);
    }
    // In extents.
    store.put(b"large", &[7; 2500]).unwrap();
    model.insert(b"large".to_vec(), vec![7; 2500]);
    assert!(store.clean(5).unwrap() > 0, "some records were moved");
    let refused = backups_beside_flips(&device, &store, &model);
    assert!(refused > 200, "{refused} refused");
    // The cleaner's segments stay open, and say nowhere how far they go.
    store.close().unwrap();
    drop(store);
    let store = open(&device, &options(42)).unwrap();
    let refused = backups_beside_flips(&device, &store, &model);
    assert!(refused > 200, "{refused} refused");
}

#[test]
fn a_second_backup_copies_only_what_changed() {
    let (device, store, mut model) = filled(1, 120);
    let archive = SimArchive::new();
    let first = backup(&store, &archive).unwrap();
    assert!(first.segments_copied >= 6 && first.segments_reused == 0, "{first:?}");
    let again = backup(&store, &archive).unwrap();
    assert_eq!((again.segments_copied, again.last_version), (1, first.last_version));
    assert_eq!(again.segments_reused, first.segments_copied - 1);
    for n in 0..10 {
        store.put(&[n], &[n; 300]).unwrap();
        model.insert(vec![n], vec![n; 300]);
    }
    let before = archive.written_bytes();
    let third = backup(&store, &archive).unwrap();
    assert!(third.segments_copied <= 3, "{third:?}");
    assert!(third.segments_reused >= first.segments_copied - 1, "{third:?}");
    assert!(archive.written_bytes() - before <= 3 * SEGMENT_SIZE + 4096);
    // Also after the store was closed and opened, and nothing is left that nobody names.
    store.close().unwrap();
    drop(store);
    let store = open(&device, &options(9)).unwrap();
    let fourth = backup(&store, &archive).unwrap();
    assert!(fourth.segments_copied <= 1, "{fourth:?}");
    let files = fourth.segments_copied + fourth.segments_reused + 1;
    assert_eq!(archive.list().unwrap().len() as u64, files);
    assert_eq!(held(&restored(&archive).unwrap()), model);
    assert_eq!(fourth.last_version, third.last_version);
}

#[test]
fn a_backup_of_an_empty_store_and_of_one_without_writes_since_its_open() {
    let blank = device(3);
    let store = open(&blank, &options(3)).unwrap();
    let archive = SimArchive::new();
    assert_eq!(backup(&store, &archive).unwrap().segments_copied, 0);
    assert!(held(&restored(&archive).unwrap()).is_empty());
    let (device, store, model) = filled(4, 30);
    // Left as a crash leaves it.
    let device = Arc::new(SimBlock::new(
        SimBlockOptions::new(DEVICE_SIZE, 5).initial(Initial::Recycled(device.image())),
    ));
    drop(store);
    let store = open(&device, &options(4)).unwrap();
    let archive = SimArchive::new();
    backup(&store, &archive).unwrap();
    assert_eq!(held(&restored(&archive).unwrap()), model);
}

#[test]
fn no_damage_to_a_backup_goes_unnoticed_and_the_file_is_named() {
    let (_, store, model) = filled(5, 60);
    let archive = SimArchive::new();
    backup(&store, &archive).unwrap();
    let mut flipped = 0;
    for file in archive.list().unwrap() {
        let size = archive.size_bytes_of(&file).unwrap().unwrap();
        let step = if file == "MANIFEST" { 1 } else { 97 };
        for offset in (0..size).step_by(step) {
            let damaged = archive.copy();
            assert!(damaged.flip(&file, offset, u32::try_from(offset % 8).unwrap()));
            let error = restored(&damaged).unwrap_err();
            let of_version = file == "MANIFEST" && (8..12).contains(&offset);
            let kind = if of_version { ErrorKind::UnsupportedFormat } else { ErrorKind::Corrupted };
            assert_eq!(error.kind(), kind, "{file} at {offset}: {error}");
            assert!(error.to_string().contains(&file), "{file} at {offset}: {error}");
            flipped += 1;
        }
        let damaged = archive.copy();
        damaged.remove(&file).unwrap();
        let error = restored(&damaged).unwrap_err();
        assert!(file == "MANIFEST" || error.to_string().contains(&file), "{error}");
        let damaged = archive.copy();
        let mut bytes = vec![0; usize::try_from(size).unwrap() - 1];
        archive.read_at(&file, 0, &mut bytes).unwrap();
        damaged.create(&file).unwrap().write(&bytes).unwrap();
        assert_eq!(restored(&damaged).unwrap_err().kind(), ErrorKind::Corrupted, "{file} cut");
    }
    assert!(flipped > 800, "{flipped}");
    assert_eq!(held(&restored(&archive).unwrap()), model);
}

#[test]
fn a_backup_that_did_not_end_leaves_the_one_before() {
    let mut tried = 0;
    for n in 1.. {
        let (_, store, old) = filled(8, 60);
        let archive = SimArchive::new();
        backup(&store, &archive).unwrap();
        for n in 0..30u8 {
            store.put(format!("key{n}").as_bytes(), &[n; 250]).unwrap();
        }
        store.delete(b"key50").unwrap();
        store.clean(4).unwrap();
        let new = held(&store);
        archive.fail_from(n);
        let ended = backup(&store, &archive);
        for seed in 0..24 {
            let survived = archive.crash(seed);
            let found = held(&restored(&survived).unwrap_or_else(|error| {
                panic!("call {n}, seed {seed}: {error}: {:?}", survived.list())
            }));
            let allowed = found == new || (ended.is_err() && found == old);
            assert!(allowed, "call {n}, seed {seed}: {} items", found.len());
            // The next backup goes on from there, and cleans up.
            if seed % 8 == 0 {
                let report = backup(&store, &survived).unwrap();
                let files = report.segments_copied + report.segments_reused + 1;
                assert_eq!(survived.list().unwrap().len() as u64, files);
                assert_eq!(held(&restored(&survived).unwrap()), new);
            }
        }
        tried = n;
        if ended.is_ok() {
            break;
        }
    }
    assert!(tried > 20, "{tried} calls");
}

#[test]
fn a_second_backup_at_the_same_time_is_refused() {
    let (_, store, _) = filled(12, 20);
    let archive = SimArchive::new();
    beside(&archive, &store, |store| {
        let error = backup(store, &SimArchive::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        let words =
            "in use already, here or in another process: another backup of this store is under way";
        assert_eq!(error.to_string(), format!("back up: {words}"));
    });
    backup(&store, &archive).unwrap();
    backup(&store, &archive.copy()).unwrap();
}

#[test]
fn a_closed_store_and_a_folder_of_another_store_are_refused() {
    let (_, store, _) = filled(13, 20);
    let archive = SimArchive::new();
    backup(&store, &archive).unwrap();
    let (_, other, _) = filled(14, 20);
    let error = backup(&other, &archive).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let foreign = SimArchive::new();
    foreign.create("letter.txt").unwrap().write(b"dear").unwrap();
    assert_eq!(backup(&store, &foreign).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(restored(&SimArchive::new()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    store.close().unwrap();
    assert_eq!(backup(&store, &archive).unwrap_err().kind(), ErrorKind::Closed);
}
