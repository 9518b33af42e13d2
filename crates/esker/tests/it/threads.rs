//! Many threads on one store, on a real file.

use crate::support::{device, open, options};
use esker::{Batch, Durability, EngineKind, ErrorKind, Options, Outcome, Store};
use esker_base::Error;
use esker_media::sim::{Asking, SimBlock, SimBlockOptions};
use esker_media::{FileDevice, OpenOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

fn store(folder: &tempfile::TempDir) -> Store {
    let mut options = Options::new(folder.path());
    options.size_bytes = 64 << 20;
    Store::open(&options).unwrap()
}

#[test]
fn threads_that_write_and_read_their_own_keys_see_what_they_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let store = store.clone();
            scope.spawn(move || {
                for n in 0..200u32 {
                    let key = format!("{thread}/{}", n % 20);
                    store.put(key.as_bytes(), &n.to_le_bytes()).unwrap();
                    let found = store.get(key.as_bytes()).unwrap().unwrap();
                    assert_eq!(*found, n.to_le_bytes());
                }
            });
        }
    });
    assert_eq!(store.stats().items, 160);
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn threads_that_increment_one_counter_lose_no_increment() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let retries = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    loop {
                        let old = store.get(b"n").unwrap();
                        let next = old
                            .as_ref()
                            .map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()))
                            + 1;
                        let outcome = match old {
                            None => store.put_if_absent(b"n", &next.to_le_bytes()),
                            Some(old) => {
                                store.compare_and_put(b"n", old.version(), &next.to_le_bytes())
                            }
                        };
                        if matches!(outcome.unwrap(), Outcome::Stored(_)) {
                            break;
                        }
                        retries.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let found = store.get(b"n").unwrap().unwrap();
    assert_eq!(u64::from_le_bytes(found[..].try_into().unwrap()), 400);
}

#[test]
fn writers_share_flushes() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let before = store.stats().device;
    std::thread::scope(|scope| {
        for thread in 0..32u32 {
            let store = store.clone();
            scope.spawn(move || {
                for n in 0..50u32 {
                    store.put(format!("{thread}/{n}").as_bytes(), &[1; 100]).unwrap();
                }
            });
        }
    });
    let writes = store.stats().device.writes - before.writes;
    assert!(writes < 1600 / 3, "{writes} device writes for 1600 puts");
}

#[test]
fn a_second_opener_is_refused_until_the_first_one_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let first = store(&folder);
    first.put(b"k", b"v").unwrap();
    let mut options = Options::new(folder.path());
    options.create = false;
    assert_eq!(Store::open(&options).unwrap_err().kind(), esker::ErrorKind::Locked);
    first.close().unwrap();
    drop(first);
    let again = Store::open(&options).unwrap();
    assert_eq!(again.get(b"k").unwrap().unwrap().to_vec(), b"v");
}

#[test]
fn an_open_waits_for_a_process_that_is_about_to_let_go() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.size_bytes = 64 << 20;
    let store = Store::open(&options).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| Store::open(&options).map(drop));
        esker_trt::sleep(std::time::Duration::from_millis(50));
        drop(store);
        let opened = second.join().unwrap();
        assert!(opened.is_ok(), "it came free in time: {opened:?}");
    });
}

#[test]
fn an_open_waits_for_each_file_that_a_killed_process_still_holds() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.size_bytes = 64 << 20;
    options.engine = Some(esker::EngineKind::Flex);
    drop(Store::open(&options).unwrap());
    for name in ["space.tree", "space.data", "flex.wal.1", "flex.index"] {
        let held = FileDevice::open(&folder.path().join(name), OpenOptions::default()).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Store::open(&options).map(drop));
            esker_trt::sleep(std::time::Duration::from_millis(50));
            drop(held);
            let opened = second.join().unwrap();
            assert!(opened.is_ok(), "{name} came free in time: {opened:?}");
        });
    }
}

#[test]
fn several_keys_are_read_in_their_order_by_tasks_and_by_threads() {
    let store = open(&device(40), &options(40)).unwrap();
    for n in 0..150u8 {
        store.put(&[n], &[n; 40]).unwrap();
    }
    let names: Vec<[u8; 1]> = (0..200u8).rev().map(|n| [n]).collect();
    let check = move |store: &esker::Store| {
        let keys: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
        let found = store.multi_get(&keys).unwrap();
        assert_eq!(found.len(), keys.len());
        for (key, value) in keys.iter().zip(found) {
            let expected = (key[0] < 150).then(|| vec![key[0]; 40]);
            assert_eq!(value.map(|value| value.to_vec()), expected);
        }
    };
    check(&store);
    let runtime = esker_trt::Runtime::start(esker_trt::Config::default()).unwrap();
    runtime.spawn(move || check(&store)).join().unwrap();
    runtime.shutdown().unwrap();
}

/// Bytes that a file takes on its file system.
fn allocated(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn space_goes_back_to_the_file_system_on_request_and_while_nobody_writes() {
    for idle in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        options.size_bytes = 64 << 20;
        options.trim_idle = idle;
        let store = Store::open(&options).unwrap();
        for n in 0..30_u8 {
            store.put(&[n], &vec![n; 1 << 20]).unwrap();
        }
        let path = folder.path().join("depot.esker");
        let full = allocated(&path);
        for n in 1..30_u8 {
            store.delete(&[n]).unwrap();
        }
        store.clean(usize::MAX).unwrap();
        if idle {
            let mut left = 200;
            while allocated(&path) > full / 4 * 3 && left > 0 {
                esker_trt::sleep(std::time::Duration::from_millis(100));
                left -= 1;
            }
            assert!(allocated(&path) <= full / 4 * 3, "{} of {full} bytes", allocated(&path));
        } else {
            // The thread may ready segments meanwhile.
            let mut bytes = 0;
            let gave = (0..10).any(|_| {
                bytes += store.trim().unwrap();
                allocated(&path) < full / 4
            });
            assert!(gave, "{} of {full} bytes", allocated(&path));
            assert!(bytes > full / 2, "{bytes} bytes given back");
            // And stays there.
            esker_trt::sleep(std::time::Duration::from_millis(1500));
            assert!(allocated(&path) < full / 4, "{} of {full} bytes", allocated(&path));
        }
        // What is there stays, and there is room again.
        assert_eq!(store.get(&[0]).unwrap().map(|value| value.len()), Some(1 << 20));
        for n in 1..30_u8 {
            store.put(&[n], &vec![n; 1 << 20]).unwrap();
        }
    }
}

/// Most of a store is deleted, here and there, and nobody asks for anything then.
#[test]
fn space_comes_back_after_mass_deletes_though_nobody_cleans() {
    const KEYS: u32 = 9000;
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.size_bytes = 64 << 20;
    options.durability = Durability::None;
    options.trim_idle = true;
    let store = Store::open(&options).unwrap();
    let value = |key: u32| key.to_be_bytes().repeat(1200);
    for key in 0..KEYS {
        store.put(&key.to_be_bytes(), &value(key)).unwrap();
    }
    let path = folder.path().join("depot.esker");
    let is_kept = |key: u32| key.is_multiple_of(10);
    for key in (0..KEYS).filter(|key| !is_kept(*key)) {
        assert!(store.delete(&key.to_be_bytes()).unwrap());
    }
    store.sync().unwrap();
    let full = allocated(&path);
    assert!(full > 40 << 20, "{full} bytes");
    let mut left = 300;
    // What is live, what is kept ready for writes, and as much as is not worth it.
    while allocated(&path) > full / 2 && left > 0 {
        esker_trt::sleep(std::time::Duration::from_millis(100));
        left -= 1;
    }
    assert!(allocated(&path) <= full / 2, "{} of {full} bytes", allocated(&path));
    for key in 0..KEYS {
        let found = store.get(&key.to_be_bytes()).unwrap();
        assert_eq!(found.as_deref(), is_kept(key).then(|| value(key)).as_deref(), "{key}");
    }
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn a_get_whose_record_dies_while_it_waits_and_whose_segment_is_given_back_finds_it_or_none() {
    // What is given back becomes zeros or stays, by chance.
    for seed in 0..8 {
        let mut options = options(seed);
        options.testing.segment_size_bytes = Some(32 << 10);
        let store = Arc::new(OnceLock::<Store>::new());
        let (dying, armed) = (Arc::clone(&store), Arc::new(AtomicBool::new(false)));
        let dies = Arc::clone(&armed);
        let media = Arc::new(SimBlock::new(SimBlockOptions::new(1 << 20, seed)));
        let device = Asking::new(media, move |call| {
            if call.site.name() == "depot.record.read" && dies.swap(false, Ordering::Relaxed) {
                let store = dying.get().unwrap();
                // They fill more than a segment, and to delete them takes little of one: none is taken anew.
                let mut batch = Batch::new();
                for n in 0..12 {
                    batch.delete(&[n]);
                }
                store.write(&batch)?;
                assert!(store.trim()? > 0, "nothing is given back");
            }
            Ok(())
        });
        let store = store.get_or_init(|| Store::open_on(device, &options).unwrap());
        for n in 0..12 {
            store.put(&[n], &[n; 1500]).unwrap();
        }
        armed.store(true, Ordering::Relaxed);
        let value = store.get(&[0]).unwrap();
        assert!(value.is_none_or(|value| *value == [0; 1500]));
        assert!(!armed.load(Ordering::Relaxed), "nothing was read");
        assert!(store.check().unwrap().is_sound());
    }
}

/// While a record is read others are written, so many that the log goes on in another segment.
#[test]
fn who_reads_does_not_start_over_for_each_segment_that_is_reused_meanwhile() {
    const TRIES: u64 = 50;
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let store = Arc::new(OnceLock::<Store>::new());
    let (beside, reads) = (Arc::clone(&store), Arc::new(AtomicU64::new(TRIES)));
    let (counter, is_within) = (Arc::clone(&reads), AtomicBool::new(false));
    let media = Arc::new(SimBlock::new(SimBlockOptions::new(4 << 20, 3)));
    let device = Asking::new(media, move |call| {
        let count = counter.load(Ordering::SeqCst);
        let is_read = call.site.name() == "depot.record.read" && count < TRIES;
        // The others may read as well, what looks like their keys.
        if is_read && !is_within.swap(true, Ordering::SeqCst) {
            counter.store(count + 1, Ordering::SeqCst);
            for half in [0, 1] {
                let key = [&count.to_le_bytes()[..], &[half]].concat();
                beside.get().unwrap().put(&key, &[1; 5000])?;
            }
            is_within.store(false, Ordering::SeqCst);
            if failing.load(Ordering::SeqCst) {
                return Err(Error::new(ErrorKind::Io, "read sector"));
            }
        }
        Ok(())
    });
    let store = store.get_or_init(|| Store::open_on(device, &options(3)).unwrap());
    store.put(b"key", &[7; 500]).unwrap();
    type Work = fn(&Store);
    let fail = |store: &Store| {
        let failed = [store.get(b"key").err(), store.put(b"key", b"value").err()];
        for error in failed {
            assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Io));
        }
    };
    fails.store(true, Ordering::SeqCst);
    reads.store(0, Ordering::SeqCst);
    fail(store);
    let count = reads.swap(TRIES, Ordering::SeqCst);
    assert!(count <= 8, "{count} reads of what cannot be read");
    fails.store(false, Ordering::SeqCst);
    let work: [(&str, Work); 4] = [
        ("get", |store| assert_eq!(*store.get(b"key").unwrap().unwrap(), [7; 500])),
        ("gets", |store| assert_eq!(store.multi_get(&[b"key"]).unwrap().len(), 1)),
        ("put", |store| assert!(store.put(b"key", &[7; 500]).is_ok())),
        ("delete", |store| assert!(store.delete(b"key").unwrap())),
    ];
    for (name, work) in work {
        reads.store(0, Ordering::SeqCst);
        work(store);
        let reads = reads.swap(TRIES, Ordering::SeqCst);
        assert!((1..=3).contains(&reads), "{name}: {reads} reads");
    }
    assert!(store.check().unwrap().is_sound());
}

/// A store that a thread has to its end, and that is used, and closed, when all that the thread had is gone.
struct UntilTheEnd(Option<Store>);

impl Drop for UntilTheEnd {
    fn drop(&mut self) {
        let Some(store) = self.0.take() else { return };
        assert_eq!(store.get(b"one").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(store.multi_get(&[b"one", b"two"]).unwrap().len(), 2);
        store.put(b"last", b"3").unwrap();
    }
}

thread_local! {
    static STORE: std::cell::RefCell<UntilTheEnd> = const { std::cell::RefCell::new(UntilTheEnd(None)) };
}

/// In a child process, which a panic there would end: this test binary calls itself.
#[test]
fn a_thread_that_ends_may_use_its_store_to_the_last() {
    const CHILD: &str = "ESKER_TEST_THREAD_ENDS";
    const NAME: &str = "threads::a_thread_that_ends_may_use_its_store_to_the_last";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    for engine in [EngineKind::Depot, EngineKind::Flex, EngineKind::FlatMasstree] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(folder.path());
        options.engine = Some(engine);
        options.size_bytes = 64 << 20;
        options.pmem_emulate = true;
        let of_thread = options.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            // First of all: what comes first goes last.
            STORE.with_borrow_mut(|last| {
                let store = Store::open(&of_thread).unwrap();
                store.put(b"one", b"1").unwrap();
                store.put(b"two", b"2").unwrap();
                store.multi_get(&[b"one", b"two"]).unwrap();
                last.0 = Some(store);
            });
        });
        thread.unwrap().join().unwrap();
        let store = Store::open(&options).unwrap();
        assert_eq!(store.get(b"last").unwrap().as_deref(), Some(&b"3"[..]), "{engine:?}");
    }
}
