//! Which engine opens what is there.

use esker::{Batch, Durability, EngineKind, ErrorKind, Options, Progress, Store, restore};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn options(folder: &tempfile::TempDir, engine: Option<EngineKind>) -> Options {
    let mut options = Options::new(folder.path().join("store"));
    options.size_bytes = 64 << 20;
    options.engine = engine;
    options.pmem_emulate = true;
    options
}

#[test]
fn a_store_is_opened_with_its_engine_and_no_other() {
    for made in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder, Some(made))).unwrap();
        store.put(b"who", made.name().as_bytes()).unwrap();
        store.close().unwrap();
        drop(store);
        for wanted in EngineKind::ALL.into_iter().filter(|wanted| *wanted != made) {
            let refused = Store::open(&options(&folder, Some(wanted))).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{made}, {wanted}: {refused}");
        }
        let store = Store::open(&options(&folder, None)).unwrap();
        assert_eq!(store.engine(), made);
        assert_eq!(store.get(b"who").unwrap().as_deref(), Some(made.name().as_bytes()));
    }
}

#[test]
fn a_walk_asks_before_it_reads_a_large_value_and_goes_on_where_it_may_not() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder, Some(kind))).unwrap();
        let (large, small) = (vec![7; 4 << 20], [8; 100]);
        for (key, value) in [(b"a", &small[..]), (b"b", &large[..]), (b"c", &small[..])] {
            store.put(key, value).unwrap();
        }
        let (mut asked, mut walk, mut met, mut errors) = (0, store.iter(), Vec::new(), Vec::new());
        while let Some(item) = walk.next_with(|bytes| {
            asked = asked.max(bytes);
            match bytes < 1 << 20 {
                true => Ok(()),
                false => Err(esker::Error::new(ErrorKind::OutOfMemory, "admit")),
            }
        }) {
            match item {
                Ok((key, value)) => met.push((key, value.to_vec())),
                Err(error) => errors.push(error.kind()),
            }
        }
        met.sort();
        assert!(asked >= 4 << 20, "{kind}: {asked}");
        assert_eq!(errors, [ErrorKind::OutOfMemory], "{kind}");
        let expected = [b"a", b"c"].map(|key| (key.to_vec(), small.to_vec()));
        assert!(met == expected, "{kind}: {} items", met.len());
        assert_eq!(store.iter().filter(Result::is_ok).count(), 3, "{kind}");
    }
}

/// Two would be there then, and the next open finds one of them: perhaps not the one that was made last.
#[test]
fn no_store_is_made_or_restored_beside_that_of_another_engine() {
    let others = |made: EngineKind| {
        let files = |kind: EngineKind| kind.name().split(':').next().unwrap().to_owned();
        EngineKind::ALL.into_iter().filter(move |other| files(*other) != files(made))
    };
    for made in EngineKind::ALL {
        let [folder, source] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let store = Store::open(&options(&folder, Some(made))).unwrap();
        store.put(b"who", made.name().as_bytes()).unwrap();
        store.backup(source.path()).unwrap();
        store.close().unwrap();
        drop(store);
        for there in others(made) {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(&options(&folder, Some(there))).unwrap();
            store.put(b"who", there.name().as_bytes()).unwrap();
            store.close().unwrap();
            drop(store);
            for (format, engine) in [(false, None), (true, None), (true, Some(made))] {
                let options = Options { format, ..options(&folder, engine) };
                let refused = restore(source.path(), &options).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
            }
            let options_of_new = Options { format: true, ..options(&folder, Some(made)) };
            let refused = Store::open(&options_of_new).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
            assert!(refused.to_string().contains("removed"), "{refused}");
            let store = Store::open(&options(&folder, None)).unwrap();
            assert_eq!(store.get(b"who").unwrap().as_deref(), Some(there.name().as_bytes()));
        }
        // In place of itself it is made, also unnamed.
        let anew = Options { format: true, ..options(&folder, None) };
        let store = Store::open(&anew).unwrap();
        assert!(store.get(b"who").unwrap().is_none(), "{made}");
    }
}

#[test]
fn every_call_on_a_closed_store_says_so() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder, Some(kind))).unwrap();
        store.put(b"key", b"value").unwrap();
        let other = store.clone();
        store.close().unwrap();
        store.close().unwrap();
        let answers = [
            ("get", other.get(b"key").map(drop)),
            ("multi_get", other.multi_get(&[b"key", b"other"]).map(drop)),
            ("put", other.put(b"key", b"other").map(drop)),
            ("checkpoint", other.checkpoint().map(drop)),
            ("delete", other.delete(b"key").map(drop)),
            ("write", other.write(Batch::new().put(b"key", b"other")).map(drop)),
            ("write nothing", other.write(&Batch::new()).map(drop)),
            ("modify", other.modify(b"key", |_| None).map(drop)),
            ("get_pending", other.get_pending(b"key", |_| Ok(())).map(drop)),
            ("iter", other.iter().next().expect("an answer").map(drop)),
            ("sync", other.sync()),
            ("clean", other.clean(1).map(drop)),
            ("trim", other.trim().map(drop)),
            ("clear", other.clear()),
            ("check", other.check().map(drop)),
            ("backup", other.backup(&folder.path().join("backup")).map(drop)),
        ];
        for (call, answer) in answers {
            assert_eq!(
                answer.map_err(|error| error.kind()),
                Err(ErrorKind::Closed),
                "{kind}, {call}"
            );
        }
        if kind == EngineKind::Flex {
            assert_eq!(other.clear().unwrap_err().operation(), "clear", "no range of the caller's");
        }
    }
}

/// A store has a backup from before `later` was put; another one is ended when it was asked `asked` times. Says whether it was.
fn backup_ended_after(kind: EngineKind, asked: u32) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let unsynced = Options { durability: Durability::None, ..options(&folder, Some(kind)) };
    let store = Store::open(&unsynced).unwrap();
    store.put(b"early", b"value").unwrap();
    let target = folder.path().join("backup");
    store.backup(&target).unwrap();
    for n in 0..200_u32 {
        store.put(&n.to_be_bytes(), &[n as u8; 20_000]).unwrap();
    }
    // One that stands by itself in every engine.
    store.put(b"later", &vec![7; 6 << 20]).unwrap();
    let left = Arc::new(AtomicU32::new(asked));
    let progress = Progress::default().until(move || {
        let before =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        before.is_err()
    });
    let restored = |name: &str| {
        let mut options = options(&folder, None);
        options.path = folder.path().join(name);
        options.size_bytes = 0;
        esker::restore(&target, &options).unwrap();
        Store::open(&Options { size_bytes: 64 << 20, ..options }).unwrap()
    };
    let ended = match store.backup_with(&target, &progress) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{kind}, {asked}: {error}");
            let copy = restored("earlier");
            assert_eq!(copy.get(b"early").unwrap().as_deref(), Some(&b"value"[..]));
            assert!(copy.get(b"later").unwrap().is_none(), "{kind}, {asked}: the earlier one");
            true
        }
    };
    // Nothing of it is in the way of the next one.
    store.backup(&target).unwrap();
    let copy = restored("whole");
    assert!(copy.get(b"later").unwrap().is_some_and(|value| value.len() == 6 << 20));
    assert!(copy.check().unwrap().is_sound(), "{kind}, {asked}");
    ended
}

#[test]
fn a_backup_that_is_ended_leaves_the_one_before_and_room_for_the_next() {
    for kind in EngineKind::ALL {
        for asked in [0, 1, 4] {
            assert!(backup_ended_after(kind, asked), "{kind}, {asked}");
        }
        assert!(!backup_ended_after(kind, u32::MAX), "{kind}");
    }
}

/// Each is ended when some of it is copied, and all is written anew before the next one.
#[test]
fn what_backups_leave_that_were_ended_does_not_pile_up() {
    const ASKED: u32 = 6;
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { durability: Durability::None, ..options(&folder, Some(kind)) };
        let store = Store::open(&options).unwrap();
        let target = folder.path().join("backup");
        let files = || std::fs::read_dir(&target).unwrap().count();
        store.put(b"early", b"value").unwrap();
        store.backup(&target).unwrap();
        let (before, mut most) = (files(), 0);
        for round in 0..8_u8 {
            for n in 0..400_u32 {
                store.put(&n.to_be_bytes(), &[round; 20_000]).unwrap();
            }
            let left = AtomicU32::new(ASKED);
            let progress = Progress::default().until(move || {
                left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_err()
            });
            let error = store.backup_with(&target, &progress).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{kind}: {error}");
            most = most.max(files() - before);
        }
        assert!(most <= ASKED as usize + 1, "{kind}: {most} files are left");
    }
}

#[test]
fn a_folder_with_backups_of_another_engine_is_refused_and_not_called_damaged() {
    let made = EngineKind::ALL.map(|kind| {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder, Some(kind))).unwrap();
        store.put(b"who", kind.name().as_bytes()).unwrap();
        store.backup(&folder.path().join("backup")).unwrap();
        (kind, folder, store)
    });
    for (kind, _, store) in &made {
        for (other, folder, _) in made.iter().filter(|(other, ..)| other != kind) {
            let target = folder.path().join("backup");
            let error = store.backup(&target).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{kind}, {other}: {error}");
        }
    }
    for (kind, folder, store) in made {
        let report = store.backup(&folder.path().join("backup")).unwrap();
        assert!(report.segments_copied + report.segments_reused > 0, "{kind}: as it was");
    }
}

#[test]
fn an_engine_that_never_evicts_makes_no_cache() {
    for kind in EngineKind::ALL.into_iter().filter(|kind| *kind != EngineKind::Depot) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Options { cache: true, ..options(&folder, Some(kind)) };
        assert_eq!(Store::open(&cache).unwrap_err().kind(), ErrorKind::Unsupported, "{kind}");
        drop(Store::open(&options(&folder, Some(kind))).unwrap());
        let cache = Options { engine: None, ..cache };
        assert_eq!(Store::open(&cache).unwrap_err().kind(), ErrorKind::Unsupported, "{kind}");
    }
}

#[test]
fn without_a_store_and_a_name_it_is_depot() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(Store::open(&options(&folder, None)).unwrap().engine(), EngineKind::Depot);
}

#[test]
fn an_empty_file_is_no_store_unless_one_may_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder, None);
    std::fs::create_dir(&options.path).unwrap();
    let file = options.path.join("depot.esker");
    std::fs::write(&file, b"").unwrap();
    options.create = false;
    let error = Store::open(&options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
}

#[test]
fn flex_says_that_it_wants_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder, Some(EngineKind::Flex));
    std::fs::write(&options.path, [0; 4096]).unwrap();
    for create in [true, false] {
        options.create = create;
        let error = Store::open(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("folder"), "{error}");
    }
    assert_eq!(std::fs::read(&options.path).unwrap(), [0; 4096]);
}

#[test]
fn a_size_in_which_nothing_fits_is_refused_before_there_is_a_file() {
    for engine in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(&folder, Some(engine));
        let mut refused = 0;
        for exponent in 12..=26 {
            options.size_bytes = 1 << exponent;
            let store = match Store::open(&options) {
                Ok(store) => store,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{engine}: {error}");
                    let files = std::fs::read_dir(&options.path).map_or(0, Iterator::count);
                    assert_eq!(files, 0, "{engine}");
                    refused += 1;
                    continue;
                }
            };
            let stored = store.put(b"key", b"value");
            stored.unwrap_or_else(|error| panic!("{engine}, 2^{exponent} bytes: {error}"));
            break;
        }
        assert!((1..15).contains(&refused), "{engine}: {refused}");
    }
}

#[test]
fn a_store_without_one_of_its_files_is_damaged_and_no_place_for_a_new_one() {
    for lost in ["space.tree", "space.log", "space.data", "flex.wal.0", "flex.wal.1"] {
        for empty in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let at = format!("{lost}, {empty}");
            let store = Store::open(&options(&folder, Some(EngineKind::Flex))).unwrap();
            store.put(b"key", b"value").unwrap();
            store.sync().unwrap();
            // As after a kill: what was acknowledged is in the log.
            store.forget();
            let path = folder.path().join("store").join(lost);
            match empty {
                true => std::fs::write(&path, b"").unwrap(),
                false => std::fs::remove_file(&path).unwrap(),
            }
            for engine in [None, Some(EngineKind::Flex)] {
                let refused = Store::open(&options(&folder, engine)).expect_err(&at);
                assert_eq!(refused.kind(), ErrorKind::Corrupted, "{at}: {refused}");
                assert!(refused.to_string().contains(lost), "{at}: {refused}");
            }
            let refused = Store::open(&options(&folder, Some(EngineKind::Depot))).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{at}: {refused}");
            let mut anew = options(&folder, Some(EngineKind::Flex));
            anew.format = true;
            assert!(Store::open(&anew).unwrap().get(b"key").unwrap().is_none(), "{at}");
        }
    }
    // The saved index can be missing: it is made of the rest.
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder, Some(EngineKind::Flex))).unwrap();
    store.put(b"key", b"value").unwrap();
    store.close().unwrap();
    drop(store);
    std::fs::remove_file(folder.path().join("store/flex.index")).unwrap();
    let store = Store::open(&options(&folder, None)).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn an_index_has_room_from_the_start_for_no_more_than_the_store_can_hold() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(&folder, Some(kind));
        options.index_entries = Some(u64::MAX);
        let store = Store::open(&options).unwrap();
        store.put(b"key", b"value").unwrap();
        assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]), "{kind}");
    }
}

#[test]
fn a_walk_ends_where_the_store_is_closed() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { durability: Durability::None, ..options(&folder, Some(kind)) };
        let store = Store::open(&options).unwrap();
        for number in 0..2000_u32 {
            store.put(&number.to_be_bytes(), &[7; 600]).unwrap();
        }
        let mut walk = store.iter();
        walk.next().unwrap().unwrap();
        store.close().unwrap();
        let errors: Vec<_> = walk.filter_map(Result::err).map(|error| error.kind()).collect();
        assert_eq!(errors, [ErrorKind::Closed], "{kind}");
    }
}

#[test]
fn a_window_of_zero_and_a_record_cache_beyond_any_memory_are_refused() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let good = options(&folder, Some(kind));
        let window = Options { durability: Durability::Periodic(Duration::ZERO), ..good.clone() };
        let cache = Options { record_cache_bytes: 1 << 60, ..good.clone() };
        for wrong in [window, cache] {
            assert_eq!(wrong.check().unwrap_err().kind(), ErrorKind::InvalidArgument, "{kind}");
            let refused = Store::open(&wrong).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{kind}: {refused}");
        }
        assert!(!good.path.exists(), "{kind}: nothing was made");
    }
}

/// A restore makes no store that its options do not open.
#[test]
fn a_backup_is_not_restored_with_options_that_no_open_takes() {
    use EngineKind::{Depot, FlatCceh, FlatMasstree, Flex};
    for (made, engine, cache) in [
        (FlatCceh, Some(FlatMasstree), false),
        (FlatMasstree, Some(FlatCceh), false),
        (Depot, None, true),
        (FlatCceh, None, true),
        (Flex, None, true),
    ] {
        let [folder, source] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let store = Store::open(&options(&source, Some(made))).unwrap();
        store.put(b"who", b"backup").unwrap();
        let backup = source.path().join("backup");
        store.backup(&backup).unwrap();
        let own = options(&folder, engine.or(Some(made)));
        let store = Store::open(&own).unwrap();
        store.put(b"who", b"there").unwrap();
        drop(store);
        let over = Options { engine, cache, format: true, ..own.clone() };
        let refused = esker::restore(&backup, &over).unwrap_err();
        let kinds = [ErrorKind::InvalidArgument, ErrorKind::Unsupported];
        assert!(kinds.contains(&refused.kind()), "{made}: {refused}");
        let store = Store::open(&own).unwrap();
        assert_eq!(store.get(b"who").unwrap().as_deref(), Some(&b"there"[..]), "{made}");
    }
}

#[test]
fn a_store_that_a_panic_drops_keeps_what_was_acknowledged() {
    for (kind, durability) in EngineKind::ALL.into_iter().flat_map(|kind| {
        [Durability::None, Durability::Periodic(Duration::from_secs(3600)), Durability::Sync]
            .map(|durability| (kind, durability))
    }) {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { durability, ..options(&folder, Some(kind)) };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let store = Store::open(&options).unwrap();
            store.put(b"key", b"value").unwrap();
            std::panic::resume_unwind(Box::new("not caught within"));
        }));
        assert!(panicked.is_err());
        let store = Store::open(&options).unwrap();
        let found = store.get(b"key").unwrap();
        assert_eq!(found.as_deref(), Some(&b"value"[..]), "{kind}, {durability}");
    }
}

/// The room of what it read is given back as well.
#[test]
fn a_backup_whose_progress_panics_leaves_nothing_held() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder, Some(kind))).unwrap();
        store.put(b"early", b"value").unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let progress = Progress::new(|_, _| std::panic::resume_unwind(Box::new("progress")));
            store.backup_with(&folder.path().join("backup"), &progress)
        }));
        assert!(panicked.is_err(), "{kind}");
        for round in 0..100_u8 {
            let put = store.put(b"key", &vec![round; 2 << 20]);
            put.unwrap_or_else(|error| panic!("{kind}, {round}: {error}"));
        }
        store.backup(&folder.path().join("backup")).unwrap();
    }
}

#[test]
fn a_backup_in_one_file_is_one_of_a_folder_packed() {
    for kind in EngineKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&options(&folder, Some(kind))).unwrap();
        for n in 0..300_u32 {
            store.put(&n.to_be_bytes(), &[n as u8; 20_000]).unwrap();
        }
        store.put(b"large", &vec![7; 6 << 20]).unwrap();
        let file = folder.path().join("backup.tar");
        store.backup_file(&file).unwrap();
        let before = std::fs::read(&file).unwrap();
        // One that is ended leaves the earlier one, and nothing else.
        store.put(b"later", b"value").unwrap();
        let ended = store.backup_file_with(&file, &Progress::default().until(|| true));
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled, "{kind}");
        assert!(std::fs::read(&file).unwrap() == before, "{kind}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "{kind}");
        let restored = |source: &std::path::Path, name: &str| {
            let mut options = options(&folder, None);
            options.path = folder.path().join(name);
            options.size_bytes = 0;
            esker::restore(source, &options)?;
            Store::open(&Options { size_bytes: 64 << 20, ..options })
        };
        let copy = restored(&file, "copy").unwrap();
        assert_eq!(copy.get(&7_u32.to_be_bytes()).unwrap().as_deref(), Some(&[7; 20_000][..]));
        assert!(copy.get(b"large").unwrap().is_some_and(|value| value.len() == 6 << 20));
        assert!(copy.get(b"later").unwrap().is_none() && copy.check().unwrap().is_sound());
        store.backup_file(&file).unwrap();
        let copy = restored(&file, "later").unwrap();
        assert_eq!(copy.get(b"later").unwrap().as_deref(), Some(&b"value"[..]), "{kind}");
        // Damage, and an end that is missing, are told.
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        let error = restored(&file, "damaged").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{kind}: {error}");
        std::fs::write(&file, &bytes[..middle]).unwrap();
        restored(&file, "short").unwrap_err();
    }
}
