//! A store over several devices: the same calls, more room, and power cuts that each device survives
//! in its own way.

use crate::support::{SEGMENT_SIZE, options};
use esker::options::Progress;
use esker::{Batch, Durability, ErrorKind, Options, Result, Store, restore_on};
use esker_base::rng::Rng;
use esker_media::sim::{
    FaultKind, FaultPlan, Image, Initial, SimArchive, SimBlock, SimBlockOptions, SimDevices,
    Trigger,
};
use esker_media::{BlockDevice, NewSet, StripedDevice};
use std::collections::BTreeMap;
use std::sync::Arc;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Bytes of a member: headers, lead, and six segments.
const MEMBER_SIZE: u64 = 2 * 8192 + 6 * SEGMENT_SIZE;

fn sims(count: usize, seed: u64, initial: &Initial) -> SimDevices {
    SimDevices::new(count, |index| {
        SimBlockOptions::new(MEMBER_SIZE, seed + index as u64).initial(initial.clone())
    })
}

fn attach(images: &[Image]) -> SimDevices {
    SimDevices::attach(images, |index| SimBlockOptions::new(MEMBER_SIZE, index as u64))
}

/// The device over `sims`: a unit is a segment, and the first begins where a unit does.
fn striped(sims: &SimDevices, create: bool, replace: bool) -> Result<Arc<StripedDevice>> {
    let new =
        NewSet { lead_size_bytes: 8192, unit_size_bytes: SEGMENT_SIZE, set_id: [5; 16], replace };
    let members =
        sims.devices().iter().map(|device| Arc::clone(device) as Arc<dyn BlockDevice>).collect();
    StripedDevice::open(members, (create || replace).then_some(&new)).map(Arc::new)
}

fn open(device: &Arc<StripedDevice>, options: &Options) -> Result<Store> {
    Store::open_on(Arc::clone(device) as Arc<dyn BlockDevice>, options)
}

fn held(store: &Store) -> Map {
    let items = store.iter().map(|item| item.expect("readable"));
    items.map(|(key, value)| (key, value.to_vec())).collect()
}

#[test]
fn every_member_gets_its_share_and_segments_never_cross() {
    let sims = sims(3, 1, &Initial::Zeros);
    let device = striped(&sims, true, false).unwrap();
    let store = open(&device, &options(1)).unwrap();
    assert_eq!(store.stats().segments, 18, "six of each member");
    for n in 0..100u32 {
        store.put(format!("key{n}").as_bytes(), &[7; 700]).unwrap();
    }
    let written: Vec<u64> = sims.devices().iter().map(|sim| sim.counters().write_bytes).collect();
    assert!(written.iter().all(|bytes| *bytes > 2 * SEGMENT_SIZE), "{written:?}");
    assert_eq!(store.stats().device.write_bytes, written.iter().sum());
    // One durable write of one member for each put: none was split.
    let before = device.counters();
    store.put(b"one more", b"value").unwrap();
    let put = device.counters() - before;
    assert_eq!((put.writes, put.flushes), (1, 0));
    assert!(store.check().unwrap().is_sound());
}

/// One client on a striped store, and power cuts at every point, which each member survives in its
/// own way. Returns how many states were judged.
fn cut_everywhere(seed: u64, count: usize, durability: Durability, earlier: &Initial) -> usize {
    let sims = sims(count, seed, earlier);
    let mut options = options(seed);
    options.durability = durability;
    options.format = true;
    let device = striped(&sims, true, true).unwrap();
    let store = open(&device, &options).unwrap();
    options.format = false;
    let begun = sims.position();
    let (mut rng, mut model) = (Rng::from_seed(seed), Map::new());
    let mut history = vec![(begun, model.clone())];
    // Power cuts from a position on leave at least so many of the writes.
    let mut promised = vec![(begun, 0)];
    for n in 0..70u8 {
        let key = format!("key{}", rng.below(6)).into_bytes();
        let value = vec![n; rng.index(1500)];
        match rng.below(10) {
            0..2 => {
                store.delete(&key).unwrap();
                model.remove(&key);
            }
            2 => {
                let mut batch = Batch::new();
                batch.put(&key, &value).put(b"pair", &value);
                store.write(&batch).unwrap();
                model.insert(key, value.clone());
                model.insert(b"pair".to_vec(), value);
            }
            _ => {
                store.put(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        history.push((sims.position(), model.clone()));
        if durability == Durability::Sync {
            promised.push((sims.position(), history.len() - 1));
        }
        if rng.chance(1, 8) {
            store.clean(rng.index(3)).unwrap();
        }
        if rng.chance(1, 12) {
            store.sync().unwrap();
            promised.push((sims.position(), history.len() - 1));
        }
    }
    let traces = sims.traces();
    let mut judged = 0;
    for point in begun..=sims.position() {
        let kept = promised.iter().rfind(|(at, _)| *at <= point).map_or(0, |(_, kept)| *kept);
        let done = history.iter().take_while(|(at, _)| *at <= point).count();
        let allowed = &history[kept..(done + 1).min(history.len())];
        for cut in 0..3 {
            let images = SimDevices::cut(&traces, point, seed ^ (point * 8 + cut));
            let at = format!("seed {seed}, {durability}, point {point}, cut {cut}");
            let device = striped(&attach(&images), false, false).expect(&at);
            let store = open(&device, &options).expect(&at);
            let found = held(&store);
            assert!(allowed.iter().any(|(_, map)| *map == found), "{at}: no prefix");
            judged += 1;
        }
    }
    judged
}

#[test]
fn a_cut_that_members_survive_differently_loses_nothing_acknowledged() {
    let mut judged = 0;
    for seed in 0..4 {
        judged += cut_everywhere(seed, 2 + seed as usize % 2, Durability::Sync, &Initial::Zeros);
    }
    assert!(judged > 3000, "{judged} states");
}

#[test]
fn a_cut_that_members_survive_differently_keeps_the_order_without_flushes() {
    let mut judged = 0;
    for seed in 100..104 {
        judged += cut_everywhere(seed, 2 + seed as usize % 2, Durability::None, &Initial::Random);
    }
    assert!(judged > 2000, "{judged} states");
}

#[test]
fn a_member_that_fails_makes_the_store_read_only_and_reads_go_on() {
    for kind in [FaultKind::WriteError, FaultKind::FlushError] {
        let sims = sims(2, 7, &Initial::Zeros);
        let device = striped(&sims, true, false).unwrap();
        let mut options = options(7);
        options.durability = Durability::None;
        let store = open(&device, &options).unwrap();
        store.put(b"k", b"v").unwrap();
        store.sync().unwrap();
        for sim in sims.devices() {
            sim.set_faults(FaultPlan::none().with(kind, Trigger::Nth(1)));
        }
        store.put(b"k", b"w").unwrap();
        assert_eq!(store.sync().unwrap_err().kind(), ErrorKind::DurabilityUnknown, "{kind:?}");
        let error = store.put(b"k", b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{kind:?}");
        assert!(error.to_string().contains("sim"), "names the member: {error}");
        assert!(store.get(b"k").unwrap().is_some(), "{kind:?}");
    }
}

#[test]
fn a_backup_goes_from_one_device_to_several_and_back() {
    let single = Arc::new(SimBlock::new(SimBlockOptions::new(crate::support::DEVICE_SIZE, 1)));
    let store = crate::support::open(&single, &options(1)).unwrap();
    for n in 0..60u32 {
        store.put(format!("key{n}").as_bytes(), &n.to_le_bytes()).unwrap();
    }
    let archive = SimArchive::new();
    store.backup_to(&archive, &Progress::default()).unwrap();
    let device = striped(&sims(3, 2, &Initial::Zeros), true, false).unwrap();
    restore_on(&archive, &*device, &options(2)).unwrap();
    let several = open(&device, &options(2)).unwrap();
    assert_eq!(held(&several), held(&store));
    several.put(b"more", b"1").unwrap();
    let archive = SimArchive::new();
    several.backup_to(&archive, &Progress::default()).unwrap();
    let single = Arc::new(SimBlock::new(SimBlockOptions::new(2 * crate::support::DEVICE_SIZE, 1)));
    restore_on(&archive, &*single, &options(3)).unwrap();
    let back = crate::support::open(&single, &options(3)).unwrap();
    assert_eq!(held(&back), held(&several));
}

fn file_options(scratch: &tempfile::TempDir, names: &[&str]) -> Options {
    let paths: Vec<_> = names.iter().map(|name| scratch.path().join(name)).collect();
    let mut options = Options::new(&paths[0]);
    options.devices = paths[1..].to_vec();
    options.size_bytes = 48 << 20;
    options
}

#[test]
fn files_are_opened_in_any_order_and_refused_when_one_is_missing() {
    let scratch = tempfile::tempdir().unwrap();
    let store = Store::open(&file_options(&scratch, &["a", "b", "c"])).unwrap();
    let stats = store.stats();
    assert!(stats.capacity_bytes >= (48 << 20) - (1 << 20), "{stats:?}");
    assert!(store.report().starts_with("striped over 3 members"), "{}", store.report());
    for n in 0..200u32 {
        store.put(&n.to_le_bytes(), &[3; 40_000]).unwrap();
    }
    store.close().unwrap();
    drop(store);
    for names in [["c", "a", "b"], ["b", "c", "a"]] {
        let store = Store::open(&file_options(&scratch, &names)).unwrap();
        assert_eq!(store.stats().items, 200);
        assert!(store.check().unwrap().is_sound());
        store.close().unwrap();
    }
    let refused = |names: &[&str]| {
        let error = Store::open(&file_options(&scratch, names)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        error.to_string()
    };
    assert!(refused(&["a", "b"]).contains("missing: 2"));
    assert!(refused(&["a", "b", "new"]).contains("new"));
    assert!(!scratch.path().join("new/depot.esker").exists(), "nothing was made");
    assert!(refused(&["b"]).contains("member 1 of a store over 3 devices"));
    drop(Store::open(&file_options(&scratch, &["other"])).unwrap());
    assert!(refused(&["a", "b", "other"]).contains("other"));
    assert!(refused(&["a", "b", "a"]).contains("named twice"));
    std::os::unix::fs::symlink(scratch.path().join("b"), scratch.path().join("link")).unwrap();
    assert!(refused(&["a", "b", "link"]).contains("named twice"));
    let mut options = file_options(&scratch, &["x", "y"]);
    options.create = false;
    assert_eq!(Store::open(&options).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_set_that_could_not_be_made_takes_no_room() {
    let scratch = tempfile::tempdir().unwrap();
    let options = file_options(&scratch, &["a", "b", "c"]);
    let file = |name: &str| scratch.path().join(name).join("depot.esker");
    for name in ["a", "b"] {
        std::fs::create_dir(scratch.path().join(name)).unwrap();
    }
    // One is there, empty; of one the file cannot be made.
    std::fs::write(file("a"), b"").unwrap();
    std::os::unix::fs::symlink(scratch.path().join("nowhere/file"), file("b")).unwrap();
    Store::open(&options).map(drop).unwrap_err();
    assert_eq!(std::fs::metadata(file("a")).unwrap().len(), 0);
    std::fs::remove_file(file("b")).unwrap();
    std::fs::remove_file(file("a")).unwrap();
    std::os::unix::fs::symlink(scratch.path().join("nowhere/file"), file("b")).unwrap();
    Store::open(&options).map(drop).unwrap_err();
    assert!(!file("a").exists() && !file("c").exists());
    // So that a smaller one can be made, and is smaller.
    std::fs::remove_file(file("b")).unwrap();
    let smaller = Options { size_bytes: 24 << 20, ..options };
    drop(Store::open(&smaller).unwrap());
    assert!(std::fs::metadata(file("a")).unwrap().len() < 16 << 20);
}

#[test]
fn threads_on_a_striped_store_share_flushes_and_lose_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let options = file_options(&scratch, &["a", "b"]);
    let store = Store::open(&options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6u32 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..150u32 {
                    let key = format!("{thread}/{}", n % 30);
                    let value = [n.to_le_bytes()[0]; 9000];
                    store.put(key.as_bytes(), &value).unwrap();
                    assert!(*store.get(key.as_bytes()).unwrap().unwrap() == value, "{key}, {n}");
                }
            });
        }
    });
    drop(store);
    let store = Store::open(&options).unwrap();
    let last = |thread: u32, n: u8| (format!("{thread}/{n}").into_bytes(), vec![120 + n; 9000]);
    let all: Map = (0..6).flat_map(|thread| (0..30).map(move |n| last(thread, n))).collect();
    assert!(held(&store) == all, "the last value of each key");
    assert_eq!(store.stats().items, 180);
    assert!(store.check().unwrap().is_sound());
    store.backup(&scratch.path().join("copy")).unwrap();
    let mut target = file_options(&scratch, &["r", "s", "t"]);
    target.size_bytes = 0;
    esker::restore(&scratch.path().join("copy"), &target).unwrap();
    let restored = Store::open(&target).unwrap();
    assert_eq!(held(&restored), held(&store));
}

#[test]
fn a_member_with_blocks_over_4_kib_is_refused() {
    let inner = SimBlockOptions { block_size_bytes: 16_384, ..SimBlockOptions::new(1 << 20, 1) };
    let member = Arc::new(SimBlock::new(inner)) as Arc<dyn BlockDevice>;
    let new = NewSet {
        lead_size_bytes: 16_384,
        unit_size_bytes: 65_536,
        set_id: [5; 16],
        replace: false,
    };
    let refused = StripedDevice::open(vec![member], Some(&new)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("at most 4096"), "{refused}");
}

/// What is on the devices of a set goes for a backup that is sound, and no other.
#[test]
fn a_set_is_not_replaced_by_a_backup_that_cannot_be_restored() {
    let scratch = tempfile::tempdir().unwrap();
    let options = file_options(&scratch, &["a", "b", "c"]);
    let store = Store::open(&options).unwrap();
    for n in 0..200u32 {
        store.put(&n.to_le_bytes(), &[3; 40_000]).unwrap();
    }
    let source = scratch.path().join("backup");
    store.backup(&source).unwrap();
    store.put(b"later", b"value").unwrap();
    let held_before = held(&store);
    store.close().unwrap();
    drop(store);
    let segments = || {
        let files = std::fs::read_dir(&source).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.file_name().unwrap().to_str().unwrap().starts_with("segment"))
    };
    let damaged = segments().max().unwrap();
    let sound = std::fs::read(&damaged).unwrap();
    let mut bytes = sound.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    let over = Options { format: true, size_bytes: 0, ..options.clone() };
    let refused = esker::restore(&source, &over).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupted, "{refused}");
    let store = Store::open(&options).unwrap();
    assert_eq!(held(&store), held_before);
    store.close().unwrap();
    drop(store);
    std::fs::write(&damaged, &sound).unwrap();
    esker::restore(&source, &over).unwrap();
    let store = Store::open(&options).unwrap();
    assert!(store.get(b"later").unwrap().is_none());
    assert_eq!(store.stats().items, 200);
}
