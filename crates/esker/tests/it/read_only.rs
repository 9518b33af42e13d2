//! Stores that are opened to be read: they show what is there, and change nothing of it.

use crate::support::{SEGMENT_SIZE, device};
use esker::flex::{Space, SpaceOptions};
use esker::{Batch, Condition, Direction, EngineKind, ErrorKind, Options, PutOptions, Store};
use esker_media::BlockDevice;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Items = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

/// A store that its test makes: an engine, over so many devices.
#[derive(Clone, Copy, Debug)]
struct Kind(EngineKind, usize);

const KINDS: [Kind; 5] = [
    Kind(EngineKind::Depot, 1),
    Kind(EngineKind::Depot, 3),
    Kind(EngineKind::FlatCceh, 1),
    Kind(EngineKind::FlatMasstree, 1),
    Kind(EngineKind::Flex, 1),
];

fn options(folder: &Path, Kind(engine, devices): Kind) -> Options {
    let mut options = Options::new(folder.join("store"));
    options.devices = (1..devices).map(|n| folder.join(format!("other{n}"))).collect();
    options.size_bytes = 32 << 20;
    options.engine = Some(engine);
    options.pmem_emulate = true;
    options
}

fn to_read(options: &Options) -> Options {
    // As for a file that is no persistent memory and was not said to be any.
    Options { read_only: true, pmem_emulate: false, engine: None, ..options.clone() }
}

/// All files below a folder, with their bytes and the time of their last change.
fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let mut sum = DefaultHasher::new();
            sum.write(&std::fs::read(&path).unwrap());
            let changed = std::fs::metadata(&path).unwrap().modified().unwrap();
            found.insert(path, (sum.finish(), changed));
        }
    }
    found
}

fn items(store: &Store) -> Items {
    let item = |(key, value): (Vec<u8>, esker::Value)| (key, (value.to_vec(), value.version().0));
    store.iter().map(|found| item(found.unwrap())).collect()
}

/// Puts, overwrites and deletes keys, also with values that stand by themselves.
fn fill(store: &Store) {
    for n in 0..3000_u32 {
        store.put(format!("key {:04}", n % 1000).as_bytes(), &[n as u8; 700]).unwrap();
    }
    for n in (0..1000).step_by(7) {
        assert!(store.delete(format!("key {n:04}").as_bytes()).unwrap());
    }
    store.put(b"large", &vec![3; 5 << 20]).unwrap();
}

#[test]
fn it_shows_what_is_there_and_changes_nothing() {
    for (kind, clean) in KINDS.into_iter().flat_map(|kind| [true, false].map(|way| (kind, way))) {
        let at = format!("{kind:?}, {clean}");
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path(), kind);
        let store = Store::open(&options).unwrap();
        fill(&store);
        let wanted = items(&store);
        if clean {
            store.close().unwrap();
            drop(store);
        } else {
            store.sync().unwrap();
            // As after a kill.
            store.forget();
        }
        let before = files(folder.path());
        // Several at once, and each sees all of it.
        let readers = [(); 3].map(|()| Store::open(&to_read(&options)).expect(&at));
        for store in &readers {
            assert_eq!(items(store), wanted, "{at}");
            assert_eq!(store.get(b"key 0001").unwrap().unwrap().len(), 700, "{at}");
            assert!(store.get(b"key 0000").unwrap().is_none(), "{at}");
            assert!(store.check().unwrap().is_sound(), "{at}");
            if store.is_ordered() {
                let found = store.scan(.., Direction::Reverse, usize::MAX).unwrap();
                assert_eq!(found.len(), wanted.len(), "{at}");
            }
            store.sync().unwrap();
        }
        let writer = Store::open(&Options { create: false, ..options.clone() });
        assert_eq!(writer.unwrap_err().kind(), ErrorKind::Locked, "{at}");
        let [one, two, three] = readers;
        one.close().unwrap();
        assert_eq!(items(&two), wanted, "{at}");
        drop((one, two, three));
        assert_eq!(files(folder.path()), before, "{at}");
        let store = Store::open(&options).unwrap();
        assert_eq!(items(&store), wanted, "{at}");
        let reader = Store::open(&to_read(&options));
        assert_eq!(reader.unwrap_err().kind(), ErrorKind::Locked, "{at}");
        store.put(b"key 0000", b"again").unwrap();
    }
}

#[test]
fn every_call_that_would_change_something_is_refused_and_every_call_once_it_is_closed() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path(), kind);
        let store = Store::open(&options).unwrap();
        store.put(b"key", b"value").unwrap();
        store.close().unwrap();
        drop(store);
        let store = Store::open(&to_read(&options)).unwrap();
        let absent = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
        let changes = || {
            [
                ("put", store.put(b"key", b"other").map(drop)),
                ("put if absent", store.put_with(b"key", b"other", absent).map(drop)),
                ("delete", store.delete(b"key").map(drop)),
                ("delete none", store.delete(b"no key").map(drop)),
                ("write", store.write(Batch::new().put(b"key", b"other")).map(drop)),
                ("modify", store.modify(b"key", |_| Some((vec![1], Default::default()))).map(drop)),
                ("touch", store.touch(b"key", Some(u64::MAX)).map(drop)),
                ("delete range", store.delete_range(b"a", None)),
                ("clear", store.clear()),
                ("checkpoint", store.checkpoint().map(drop)),
                ("clean", store.clean(1).map(drop)),
                ("evict", store.evict(1).map(drop)),
                ("trim", store.trim().map(drop)),
            ]
        };
        for (call, answer) in changes() {
            let refused = answer.expect_err(call);
            assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{kind:?}, {call}: {refused}");
            assert!(refused.to_string().contains("opened to be read"), "{call}: {refused}");
        }
        let backup = folder.path().join("backup");
        let refused = store.backup(&backup).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{kind:?}: {refused}");
        assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        let other = store.clone();
        other.close().unwrap();
        let reads = [
            ("get", store.get(b"key").map(drop)),
            ("multi_get", store.multi_get(&[b"key", b"other"]).map(drop)),
            ("iter", store.iter().next().expect("an answer").map(drop)),
            ("scan", store.scan(.., Direction::Forward, 1).map(drop)),
            ("snapshot", store.snapshot().map(drop)),
            ("check", store.check().map(drop)),
            ("sync", store.sync()),
            ("backup", store.backup(&backup).map(drop)),
        ];
        for (call, answer) in reads.into_iter().chain(changes()) {
            assert_eq!(answer.expect_err(call).kind(), ErrorKind::Closed, "{kind:?}, {call}");
        }
    }
}

#[test]
fn a_snapshot_of_it_is_read_as_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), Kind(EngineKind::Flex, 1));
    let store = Store::open(&options).unwrap();
    fill(&store);
    let wanted = items(&store);
    drop(store);
    let snapshot = Store::open(&to_read(&options)).unwrap().snapshot().unwrap();
    let found: Items = snapshot
        .scan(.., Direction::Forward, usize::MAX)
        .unwrap()
        .into_iter()
        .map(|(key, value)| (key, (value.to_vec(), value.version().0)))
        .collect();
    assert_eq!(found, wanted);
}

#[test]
fn nothing_is_made_where_nothing_is() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path(), kind);
        for options in [to_read(&options), Options { engine: Some(kind.0), ..to_read(&options) }] {
            let refused = Store::open(&options).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{kind:?}: {refused}");
        }
        assert!(files(folder.path()).is_empty(), "{kind:?}");
        let store = Store::open(&options).unwrap();
        store.put(b"key", b"value").unwrap();
        let source = folder.path().join("source");
        store.backup(&source).unwrap();
        drop(store);
        let before = files(folder.path());
        let format = Options { format: true, ..to_read(&options) };
        let refusals = [
            Store::open(&format).map(drop),
            Store::open(&Options { engine: Some(kind.0), ..format.clone() }).map(drop),
            esker::restore(&source, &format).map(drop),
            esker::restore(&source, &to_read(&options)).map(drop),
        ];
        for refused in refusals {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument, "{kind:?}");
        }
        assert_eq!(files(folder.path()), before, "{kind:?}");
    }
}

/// Damages the first place in a file where these bytes stand, if there is one.
fn damage(file: &Path, needle: &[u8]) -> bool {
    let mut bytes = std::fs::read(file).unwrap();
    let Some(at) = bytes.windows(needle.len()).position(|bytes| bytes == needle) else {
        return false;
    };
    bytes[at + needle.len() / 2] ^= 1;
    std::fs::write(file, &bytes).unwrap();
    true
}

/// What a repair would do is what it does then.
#[test]
fn a_repair_that_only_reads_says_what_it_would_do() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path(), kind);
        let store = Store::open(&options).unwrap();
        fill(&store);
        let value: Vec<u8> = (0..=255).rev().collect();
        store.put(b"needle", &value.repeat(3)).unwrap();
        store.close().unwrap();
        drop(store);
        // Also in a log, which does not count any more.
        let damages = files(folder.path()).keys().filter(|file| damage(file, &value)).count();
        assert!(damages >= 1, "{kind:?}");
        let before = files(folder.path());
        let told = esker::repair(&to_read(&options)).unwrap();
        assert!(told.records_lost > 0 || told.damaged_segments > 0, "{kind:?}: {told:?}");
        assert_eq!(files(folder.path()), before, "{kind:?}");
        // The end of a log is not opened over damage.
        let is_sound = Store::open(&to_read(&options)).and_then(|store| store.check());
        assert!(!is_sound.is_ok_and(|report| report.is_sound()), "{kind:?}");
        let done = esker::repair(&options).unwrap();
        assert_eq!(done, told, "{kind:?}");
        assert_ne!(files(folder.path()), before, "{kind:?}");
        assert!(Store::open(&to_read(&options)).unwrap().check().unwrap().is_sound(), "{kind:?}");
    }
}

#[test]
fn of_a_device_that_the_caller_opened_nothing_is_changed_either() {
    let device = device(1);
    let mut options = Options::new("");
    options.testing.segment_size_bytes = Some(SEGMENT_SIZE);
    options.testing.seed = Some(1);
    let open = |read_only| {
        let device = Arc::clone(&device) as Arc<dyn BlockDevice>;
        Store::open_on(device, &Options { read_only, ..options.clone() })
    };
    let store = open(false).unwrap();
    store.put(b"key", b"value").unwrap();
    store.forget();
    let (before, position) = (device.image(), device.position());
    let store = open(true).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    store.close().unwrap();
    drop(store);
    assert_eq!(device.image(), before);
    assert_eq!(device.position(), position, "nothing was even tried");
}

#[test]
fn a_space_is_read_by_several_and_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = SpaceOptions::new(folder.path().join("space"));
    let space = Space::open(&options).unwrap();
    space.append(b"one three").unwrap();
    space.insert_range(4, b"two ").unwrap();
    space.sync().unwrap();
    // As after a kill: the last operations are in the log.
    drop(space);
    let before = files(folder.path());
    options.read_only = true;
    let spaces = [(); 2].map(|()| Space::open(&options).unwrap());
    for space in &spaces {
        let mut bytes = [0; 20];
        assert_eq!(space.read(0, &mut bytes).unwrap(), 13);
        assert_eq!(&bytes[..13], b"one two three");
        let refusals = [
            space.write(0, b"x"),
            space.insert_range(0, b"x"),
            space.insert_hole(0, 5),
            space.collapse_range(0, 1),
            space.append(b"x").map(drop),
            space.sync(),
            space.checkpoint(),
            space.collect(1).map(drop),
            space.trim().map(drop),
            space.compact().map(drop),
            space.defrag(0, 5).map(drop),
        ];
        for (call, refused) in refusals.into_iter().enumerate() {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly, "call {call}");
        }
        assert!(space.check().unwrap().problems.is_empty());
    }
    // There is nothing to store.
    spaces.into_iter().for_each(|space| space.close().unwrap());
    assert_eq!(files(folder.path()), before);
    options.path = folder.path().join("none");
    assert_eq!(Space::open(&options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(files(folder.path()), before);
}
