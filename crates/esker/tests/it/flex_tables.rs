//! `flex`: tables of writes and their logs, of any size: what comes alone has a place in them.

use crate::flex_db::Devices;
use crate::flex_whole::{bytes, held, sound};
use crate::support::folder_in_memory;
use esker::flex::SpaceFiles;
use esker::sites::flex_db as sites;
use esker::{Durability, EngineKind, ErrorKind, FlexFiles, Options, Store};
use esker_base::Error;
use esker_base::rng::Rng;
use esker_format::flex_db::Batch;
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, Call, Image};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// Keys that are as long as can be.
const LONGEST: usize = 64 << 10;
/// In this time what ends has ended.
const LONG: Duration = Duration::from_secs(120);

fn options(folder: &Path, durability: Durability, table: u64) -> Options {
    let mut options = Options::new(folder);
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 32 << 20;
    options.durability = durability;
    options.flex.memtable_size_bytes = table;
    options
}

/// Does something that must not take for ever.
#[track_caller]
fn ends(work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let works = move || {
        work();
        done.send(()).unwrap();
    };
    std::thread::Builder::new().spawn(works).unwrap();
    wait.recv_timeout(LONG).expect("it ends, and does not fail");
}

/// What was lost came to tables of the size that they had then.
#[test]
fn versions_that_were_lost_do_not_come_again_where_tables_are_smaller() {
    const PUTS: u32 = 1_200_000;
    let folder = folder_in_memory();
    let with = |table| {
        let mut options = options(folder.path(), Durability::None, table);
        options.size_bytes = 256 << 20;
        Store::open(&options).unwrap()
    };
    for commits in [false, true] {
        let store = with(64 << 20);
        if commits {
            store.put(b"key", b"value").unwrap();
            store.sync().unwrap();
        }
        for _ in 0..PUTS {
            store.put(b"key", b"value").unwrap();
        }
        let lost = store.get(b"key").unwrap().unwrap().version();
        store.forget();
        let store = with(256 << 10);
        let version = store.put(b"key", b"value").unwrap();
        assert!(version > lost, "{version} comes again: {lost} was given");
        store.forget();
    }
}

#[test]
fn a_change_that_is_longer_than_the_log_of_a_table_has_one_by_itself() {
    ends(|| {
        for table in [1, 5000, 64 << 10] {
            for durability in [Durability::Sync, Durability::None] {
                let folder = tempfile::tempdir().unwrap();
                let options = options(folder.path(), durability, table);
                let store = Store::open(&options).unwrap();
                let [low, high] = [1, 9].map(|first| vec![first; LONGEST]);
                for key in [&low, &high, &vec![5], &vec![10]] {
                    store.put(key, &bytes(1, 3000)).unwrap();
                }
                store.delete_range(&low, Some(&high)).unwrap();
                store.put(&[6], b"new").unwrap();
                let keys = |store: &Store| held(store).into_keys().collect::<Vec<_>>();
                let left = [vec![6], high.clone(), vec![10]];
                assert_eq!(keys(&store), left);
                let (mut options, again) = (options, tempfile::tempdir().unwrap());
                if durability == Durability::Sync {
                    // As a killed process leaves it.
                    store.forget();
                    for file in std::fs::read_dir(folder.path()).unwrap() {
                        let file = file.unwrap();
                        std::fs::copy(file.path(), again.path().join(file.file_name())).unwrap();
                    }
                    options.path = again.path().to_path_buf();
                } else {
                    store.close().unwrap();
                    drop(store);
                }
                let store = Store::open(&options).unwrap();
                assert_eq!(keys(&store), left, "a table of {table} bytes, {durability:?}");
                sound(&store);
            }
        }
    });
}

#[test]
fn ends_of_a_range_are_no_longer_than_keys() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(folder.path(), Durability::Sync, 64 << 10)).unwrap();
    store.put(b"key", b"value").unwrap();
    let long = vec![b'a'; LONGEST + 1];
    for (from, to) in [(&*long, None), (&b"a"[..], Some(&*long)), (&*long, Some(&b"z"[..]))] {
        let refused = store.delete_range(from, to).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
    assert!(store.contains(b"key").unwrap());
}

/// Devices of a store under `none`, from beside its work: whenever the log of a table was written, late, what they hold then.
fn late_logs(seed: u64) -> Vec<Vec<Image>> {
    let mut options = crate::flex_db::options(seed);
    options.durability = Durability::None;
    options.size_bytes = 256 << 10;
    let devices = Devices::new(seed);
    let found: Arc<Mutex<Vec<Vec<Image>>>> = Arc::default();
    let inner: Vec<_> = (0..6).map(|index| devices.shared(index)).collect();
    let device = |index: usize| {
        let (inner, found) = (inner.clone(), Arc::clone(&found));
        Asking::new(devices.shared(index), move |call| {
            // The first thing that is done behind the last flush of a log.
            if call.act == Act::Write && !["flexdb.wal.write"].contains(&call.site.name()) {
                let images: Vec<Image> = inner.iter().map(|device| device.image()).collect();
                let mut found = found.lock();
                let logs = |images: &[Image]| [images[3].to_vec(), images[4].to_vec()];
                let is_new = found.last().is_none_or(|last| logs(last) != logs(&images));
                if is_new && (3..5).any(|log| images[log].to_vec().starts_with(b"ESKW")) {
                    found.push(images);
                }
            }
            Ok(())
        }) as Arc<dyn BlockDevice>
    };
    let files = FlexFiles {
        space: SpaceFiles { data: device(0), tree: device(1), log: device(2) },
        logs: [device(3), device(4)],
        index: device(5),
    };
    let store = Store::open_flex_on(files, &options).unwrap();
    let mut rng = Rng::from_seed(seed);
    for n in 0..3000 {
        let size = if rng.chance(1, 40) { 4500 } else { rng.index(250) };
        // It is full at times.
        let _ = store.put(&[rng.index(250) as u8], &bytes(n, size));
    }
    store.forget();
    std::mem::take(&mut *found.lock())
}

/// A part of such a log would be what no beginning of the writes made.
#[test]
fn a_damaged_batch_of_a_log_that_was_written_late_is_told() {
    let (mut told, mut harmless) = (0, 0);
    for seed in [2, 3] {
        let mut options = crate::flex_db::options(seed);
        options.durability = Durability::None;
        for images in late_logs(seed).into_iter().take(20) {
            let open = |images: &[Image]| Devices::with(images.to_vec(), 7).open(&options);
            let Ok(whole) = open(&images) else { continue };
            let whole = held(&whole);
            for log in 3..5 {
                let bytes = images[log].to_vec();
                for (block, _) in (0_u64..).zip(bytes.chunks(512)).skip(1) {
                    let mut damaged = images.clone();
                    damaged[log].flip(block * 512 + 300, 1);
                    match open(&damaged) {
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                            told += 1;
                        }
                        Ok(store) => {
                            let first = Batch::peek(&bytes, 0).ok();
                            let in_first = first
                                .is_some_and(|batch| block * 512 < u64::from(batch.total_bytes));
                            // Of the first one nobody can tell that it was whole.
                            assert!(
                                in_first || held(&store) == whole,
                                "seed {seed}, log {log}, block {block}: a part of a log counts"
                            );
                            harmless += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(told > 10 && harmless > 10, "{told} told, {harmless} harmless");
}

/// Asks a store for its figures whenever something is logged, and counts failures that are told.
struct Listens(Arc<OnceLock<Store>>, Arc<AtomicU64>);

impl tracing::Subscriber for Listens {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let Listens(store, told) = self;
        if let Some(store) = store.get() {
            drop(store.stats());
            let is_failure = *event.metadata().level() == tracing::Level::ERROR;
            told.fetch_add(u64::from(is_failure), Ordering::Relaxed);
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn who_hears_that_a_late_log_failed_may_ask_the_store_something() {
    let mut options = crate::flex_db::options(2);
    options.durability = Durability::None;
    options.size_bytes = 256 << 10;
    let devices = Devices::new(2);
    let is_armed: Arc<AtomicBool> = Arc::default();
    let log = |index| {
        let is_armed = Arc::clone(&is_armed);
        let fails = move |call: &Call| match call.site == sites::WAL_WRITE
            && is_armed.load(Ordering::Relaxed)
        {
            true => Err(Error::new(ErrorKind::Io, "write")),
            false => Ok(()),
        };
        Asking::new(devices.shared(index), fails) as Arc<dyn BlockDevice>
    };
    let files = FlexFiles { logs: [log(3), log(4)], ..devices.files() };
    let shared: Arc<OnceLock<Store>> = Arc::default();
    let told: Arc<AtomicU64> = Arc::default();
    let listens = Listens(Arc::clone(&shared), Arc::clone(&told));
    ends(move || {
        let store = shared.get_or_init(|| Store::open_flex_on(files, &options).unwrap());
        is_armed.store(true, Ordering::Relaxed);
        let mut rng = Rng::from_seed(2);
        let mut put = |n| {
            let size = if rng.chance(1, 40) { 4500 } else { rng.index(250) };
            store.put(&[rng.index(250) as u8], &bytes(n, size))
        };
        // It is full at times.
        let is_lack = |error: &Error| error.kind() == ErrorKind::NoSpace;
        tracing::subscriber::with_default(listens, || {
            let failed = (0..100_000).find(|n| put(*n).is_err_and(|error| !is_lack(&error)));
            assert!(failed.is_some(), "no log is written late");
        });
        assert_eq!(told.load(Ordering::Relaxed), 1, "once");
        assert_eq!(put(0).unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(store.sync().unwrap_err().kind(), ErrorKind::ReadOnly);
    });
}
