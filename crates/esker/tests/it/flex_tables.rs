//! `flex`: tables of writes and their logs, of any size: what comes alone has a place in them.

use crate::flex_whole::{bytes, held, sound};
use esker::{Durability, EngineKind, ErrorKind, Options, Store};
use std::path::Path;
use std::sync::mpsc;
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
