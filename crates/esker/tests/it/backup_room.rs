//! Room beside a backup: writers, the cleaner and a cache go on while segments are copied.

use crate::backup::{Map, Shared, backup, filled, held, restored};
use crate::support::{DEVICE_SIZE, device, open, options};
use esker::{ErrorKind, Store};
use esker_base::rng::Rng;
use esker_media::sim::{Image, Initial, SimArchive, SimBlock, SimBlockOptions};
use std::sync::{Arc, Mutex};

/// Does `work` in the middle of a backup, before each file of a segment.
pub(crate) fn beside(
    archive: &SimArchive,
    store: &Store,
    work: impl Fn(&Store) + Send + Sync + 'static,
) {
    let store = store.clone();
    archive.before_create(move |file| {
        if file.starts_with("segment") {
            work(&store);
        }
    });
}

#[test]
fn writers_get_their_room_and_the_backup_says_that_it_lost_it() {
    let (_, store, old) = filled(10, 100);
    let archive = SimArchive::new();
    backup(&store, &archive).unwrap();
    // So that nothing is there already.
    for n in 0..100u32 {
        store.put(format!("key{n}").as_bytes(), &[1; 310]).unwrap();
    }
    beside(&archive, &store, |store| {
        for n in 0..100u32 {
            store.put(format!("key{n}").as_bytes(), &[2; 320]).expect("writers get their room");
        }
    });
    let error = backup(&store, &archive).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("went on without"), "{error}");
    assert_eq!(held(&restored(&archive).unwrap()), old, "the earlier backup is as it was");
    let stats = store.stats();
    assert!(stats.free_segments > 0 && stats.read_only.is_none());
    let archive = archive.copy();
    backup(&store, &archive).unwrap();
    assert_eq!(held(&restored(&archive).unwrap()), held(&store));
}

#[test]
fn what_dies_while_it_is_copied_is_in_the_backup_and_its_space_comes_back() {
    let (_, store, model) = filled(11, 60);
    let archive = SimArchive::new();
    beside(&archive, &store, |store| {
        for n in 0..60u32 {
            let _ = store.delete(format!("key{n}").as_bytes());
        }
        store.clean(2).unwrap();
    });
    backup(&store, &archive).unwrap();
    assert_eq!(held(&restored(&archive).unwrap()), model);
    assert!(held(&store).is_empty());
    store.clean(usize::MAX).unwrap();
    let stats = store.stats();
    assert!(stats.free_segments + 3 >= stats.segments, "{stats:?}");
}

#[test]
fn segments_are_reused_beside_a_backup_but_not_those_that_it_copies() {
    let (_, store, model) = filled(19, 60);
    let archive = SimArchive::new();
    beside(&archive, &store, |store| {
        for n in 0..60u32 {
            let _ = store.delete(format!("key{n}").as_bytes());
        }
        for n in 0..200u32 {
            store.put(b"filler", &[n.to_le_bytes()[0]; 900]).unwrap();
        }
    });
    backup(&store, &archive).unwrap();
    assert_eq!(held(&restored(&archive).unwrap()), model);
    assert_eq!(store.stats().items, 1);
}

/// A purge beside a backup meets a tombstone whose older record is in a segment that is free but for
/// the backup: a crash would still find it there.
#[test]
fn a_deleted_key_stays_deleted_when_a_purge_and_a_backup_meet() {
    let (device, store, _) = filled(20, 60);
    let archive = SimArchive::new();
    let images: Shared<Vec<Image>> = Shared::default();
    let (taken, sim) = (images.clone(), Arc::clone(&device));
    beside(&archive, &store, move |work| {
        // The segments of the records die; they are held, and so are not blanked.
        for n in 0..60u32 {
            let _ = work.delete(format!("key{n}").as_bytes());
        }
        for n in 0..40u32 {
            work.put(b"filler", &[n.to_le_bytes()[0]; 900]).unwrap();
        }
        work.clean(0).unwrap();
        for n in 0..150u32 {
            work.put(b"filler", &[n.to_le_bytes()[0]; 900]).unwrap();
        }
        taken.with(|images| images.push(sim.image()));
    });
    backup(&store, &archive).unwrap();
    let images = images.with(std::mem::take);
    assert!(images.len() > 2);
    for image in images {
        let survived = SimBlockOptions::new(DEVICE_SIZE, 1).initial(Initial::Recycled(image));
        let store = open(&Arc::new(SimBlock::new(survived)), &options(21)).unwrap();
        assert_eq!(held(&store).into_keys().collect::<Vec<_>>(), [b"filler".to_vec()]);
    }
}

/// Evictions change segments; those that are copied they leave alone.
#[test]
fn a_cache_that_evicts_beside_its_backup_is_restored_with_no_older_value() {
    let mut found = 0;
    for seed in 0..6_u64 {
        let device = device(seed);
        let mut cache = options(seed);
        cache.cache = true;
        let store = open(&device, &cache).unwrap();
        let mut newest = Map::new();
        let mut rng = Rng::from_seed(seed);
        for n in 0..600_u32 {
            let key = format!("key{}", rng.below(150)).into_bytes();
            if rng.chance(1, 10) {
                store.delete(&key).unwrap();
                newest.remove(&key);
                continue;
            }
            let most = if rng.chance(1, 8) { 4000 } else { 700 };
            let value = [&n.to_le_bytes()[..], &vec![7; rng.index(most)]].concat();
            store.put(&key, &value).unwrap();
            newest.insert(key, value);
        }
        assert!(store.stats().evictions > 20, "{:?}", store.stats());
        // A lead, as the background thread keeps it.
        store.evict(2).unwrap();
        let archive = SimArchive::new();
        let rng = Mutex::new(rng);
        beside(&archive, &store, move |store| {
            let mut rng = rng.lock().unwrap();
            for _ in 0..3 {
                let key = format!("key{}", rng.below(150)).into_bytes();
                store.put(&key, &vec![9; rng.index(2000)]).expect("a cache makes room");
                let _ = store.get(&key).unwrap();
            }
            store.evict(1).unwrap();
        });
        let kind = backup(&store, &archive).map_err(|error| error.kind());
        if kind == Err(ErrorKind::NoSpace) {
            continue;
        }
        kind.unwrap();
        let restored = restored(&archive).unwrap();
        assert!(restored.stats().cache);
        assert_eq!(restored.check().unwrap().problems, Vec::<String>::new());
        for (key, value) in held(&restored) {
            assert_eq!(Some(&value), newest.get(&key), "seed {seed}: {key:?}");
            found += 1;
        }
    }
    assert!(found > 100, "only {found} found");
}
