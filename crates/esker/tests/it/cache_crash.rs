//! Caches whose writes are not all durable: after a crash they have nothing, rather than what clients had replaced.

use crate::client::cut;
use crate::support::{DEVICE_SIZE, get, open, options};
use esker::{Durability, ErrorKind, Options, Store};
use esker_base::Error;
use esker_media::BlockDevice;
use esker_media::sim::{Asking, Image, Initial, SimBlock, SimBlockOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PERIODIC: Durability = Durability::Periodic(Duration::from_secs(1));

fn cache_options(seed: u64, durability: Durability) -> Options {
    let mut options = options(seed);
    options.cache = true;
    options.durability = durability;
    options
}

fn device(image: Option<Image>) -> Arc<SimBlock> {
    let initial = image.map_or(Initial::Zeros, Initial::Recycled);
    Arc::new(SimBlock::new(SimBlockOptions::new(DEVICE_SIZE, 5).initial(initial)))
}

/// A cache with an old value that is durable and a new one that nobody made so, and its device.
fn with_two_values(durability: Durability) -> (Arc<SimBlock>, Store) {
    let device = device(None);
    let store = open(&device, &cache_options(1, durability)).unwrap();
    store.put(b"key", b"old").unwrap();
    store.sync().unwrap();
    store.put(b"key", b"new").unwrap();
    store.delete(b"other").unwrap();
    (device, store)
}

#[test]
fn a_crash_shows_no_older_value() {
    for durability in [Durability::None, PERIODIC, Durability::Sync] {
        for keep in [false, true] {
            let (device, store) = with_two_values(durability);
            let mut image = cut(&device, keep);
            store.forget();
            // Whoever opens it, and again after a crash right behind that.
            for (seed, next) in [(2, durability), (3, Durability::Sync), (4, Durability::None)] {
                let device = self::device(Some(image));
                let store = open(&device, &cache_options(seed, next)).unwrap();
                let kept = durability == Durability::Sync;
                let expected = kept.then(|| b"new".to_vec());
                assert_eq!(get(&store, "key"), expected, "{durability:?}, {keep}, {seed}");
                image = cut(&device, false);
                store.forget();
            }
        }
    }
}

#[test]
fn a_session_that_wrote_nothing_leaves_no_doubt() {
    for durability in [Durability::None, PERIODIC] {
        let (device, store) = with_two_values(durability);
        store.close().unwrap();
        drop(store);
        let mut image = cut(&device, true);
        // One that is read, in vain as well, and killed; and one that is read and stopped.
        for seed in 2..6 {
            let device = self::device(Some(image));
            let store = open(&device, &cache_options(seed, durability)).unwrap();
            assert_eq!(get(&store, "key"), Some(b"new".to_vec()), "{durability:?}, {seed}");
            assert!(!store.delete(b"other").unwrap());
            match seed % 2 {
                0 => drop(store.check().unwrap()),
                _ => store.close().unwrap(),
            }
            image = cut(&device, seed < 4);
            store.forget();
        }
        // One that wrote does.
        let device = self::device(Some(image));
        let store = open(&device, &cache_options(6, durability)).unwrap();
        store.put(b"key", b"newer").unwrap();
        image = cut(&device, false);
        store.forget();
        let device = self::device(Some(image));
        let store = open(&device, &cache_options(7, durability)).unwrap();
        assert_eq!(get(&store, "key"), None, "{durability:?}");
    }
}

#[test]
fn a_clean_stop_keeps_what_there_is() {
    for durability in [Durability::None, PERIODIC, Durability::Sync] {
        let (mut device, store) = with_two_values(durability);
        store.close().unwrap();
        drop(store);
        // Also one that follows a crash.
        for (seed, next) in [(2, durability), (3, Durability::Sync), (4, Durability::None)] {
            device = self::device(Some(cut(&device, false)));
            let store = open(&device, &cache_options(seed, next)).unwrap();
            assert_eq!(get(&store, "key"), Some(b"new".to_vec()), "{durability:?}, {seed}");
            store.close().unwrap();
        }
        device = self::device(Some(cut(&device, false)));
        let store = open(&device, &cache_options(5, Durability::None)).unwrap();
        store.put(b"key", b"newer").unwrap();
        let image = cut(&device, false);
        store.forget();
        let device = self::device(Some(image));
        let store = open(&device, &cache_options(6, Durability::Sync)).unwrap();
        assert_eq!(get(&store, "key"), None);
        store.put(b"key", b"after").unwrap();
        let image = cut(&device, false);
        store.forget();
        let store = open(&self::device(Some(image)), &cache_options(7, Durability::None)).unwrap();
        assert_eq!(get(&store, "key"), Some(b"after".to_vec()), "it was durable");
    }
}

/// Whatever fails, and whoever writes the end of a session that never began.
#[test]
fn an_open_that_fails_leaves_the_doubt() {
    let cache = cache_options(1, Durability::None);
    let killed = device(None);
    let store = open(&killed, &cache).unwrap();
    (0..30_u32).for_each(|n| {
        store.put(&n.to_be_bytes(), &[1; 300]).unwrap();
    });
    store.put(b"key", b"old").unwrap();
    assert!(store.checkpoint().unwrap());
    (0..8_u32).for_each(|n| {
        store.put(&n.to_be_bytes(), &[2; 300]).unwrap();
    });
    store.sync().unwrap();
    store.put(b"key", b"new").unwrap();
    let image = cut(&killed, false);
    store.forget();
    let mut failed = 0;
    for (kind, durability) in [ErrorKind::Io, ErrorKind::NoSpace]
        .into_iter()
        .flat_map(|kind| [(kind, Durability::None), (kind, Durability::Sync)])
    {
        for failing in 0.. {
            let inner = device(Some(image.clone()));
            let calls = Arc::<AtomicU64>::default();
            let counted = Arc::clone(&calls);
            let asking = Asking::new(Arc::clone(&inner), move |_| {
                let is_it = counted.fetch_add(1, Ordering::SeqCst) == failing;
                if is_it { Err(Error::new(kind, "fail a call")) } else { Ok(()) }
            });
            let options = cache_options(2, durability);
            match Store::open_on(asking as Arc<dyn BlockDevice>, &options) {
                Ok(store) => {
                    assert_eq!(get(&store, "key"), None);
                    store.forget();
                    if calls.load(Ordering::SeqCst) <= failing {
                        break;
                    }
                }
                Err(_) => failed += 1,
            }
            let store = open(&inner, &options).unwrap();
            assert_eq!(get(&store, "key"), None, "{kind:?}, {durability:?}, call {failing}");
            store.forget();
        }
    }
    assert!(failed > 20, "{failed}");
}
