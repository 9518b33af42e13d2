//! Many threads on one store, on a real file.

use esker::{Options, Outcome, Store};
use std::sync::atomic::{AtomicU64, Ordering};

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
        esker_trt::sleep(std::time::Duration::from_millis(300));
        drop(store);
        let opened = second.join().unwrap();
        assert!(opened.is_ok(), "it came free in time: {opened:?}");
    });
}
