//! Keys that several write at once, each write durable: they share flushes, and nobody hears of what is not durable.

use crate::flex_bounds::{Latch, LetGo, asking, comes};
use crate::flex_db::{self, Devices};
use crate::support::{device, options};
use esker::{Attributes, Batch, ErrorKind, Outcome, Store};
use esker_base::{Error, Site, SiteKind};
use esker_media::sim::{Asking, FaultKind, FaultPlan, SimBlock, Trigger};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const WRITERS: u64 = 8;
const ROUNDS: u64 = 25;

/// A store, and the device of its log.
struct Bed {
    store: Store,
    log: Vec<Arc<SimBlock>>,
}

/// Stores of both engines that batch writes for a device; each flush of their logs asks `before`.
fn beds(before: impl Fn() + Clone + Send + Sync + 'static) -> [Bed; 2] {
    let depot = device(1);
    let asks = before.clone();
    let media = Asking::new(Arc::clone(&depot), move |call| {
        if call.site.kind() == SiteKind::Flush {
            asks();
        }
        Ok::<_, Error>(())
    });
    let depot = Bed { store: Store::open_on(media, &options(1)).unwrap(), log: vec![depot] };
    let devices = Devices::new(1);
    let files = asking(&devices, move |index, site: Site| {
        if index > 2 && site.kind() == SiteKind::Flush {
            before();
        }
    });
    let log = [3, 4].map(|index| devices.shared(index)).to_vec();
    let store = Store::open_flex_on(files, &flex_db::options(1)).unwrap();
    let flex = Bed { store, log };
    [depot, flex]
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

fn increment(store: &Store) -> esker::Result<()> {
    let changed = store.modify(b"counter", |old| {
        let next = old.map_or(0, |old| number(old)) + 1;
        Some((next.to_le_bytes().to_vec(), Attributes::default()))
    })?;
    assert!(changed.is_some());
    Ok(())
}

/// A flush takes time, and while it does all others come to stand behind it.
#[test]
fn who_writes_one_key_shares_flushes() {
    type Work = fn(&Store, u64);
    let work: [(&str, Work); 3] = [
        ("counter", |store, _| increment(store).unwrap()),
        ("put", |store, by| {
            store.put(b"key", &by.to_le_bytes()).unwrap();
        }),
        ("batch", |store, by| {
            let mut batch = Batch::new();
            batch.put(b"one", &by.to_le_bytes());
            batch.put(b"two", &by.to_le_bytes());
            store.write(&batch).unwrap();
        }),
    ];
    for (name, work) in work {
        let flushes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&flushes);
        let beds = beds(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            esker_trt::sleep(Duration::from_millis(2));
        });
        for Bed { store, .. } in &beds {
            let before = flushes.load(Ordering::SeqCst);
            std::thread::scope(|scope| {
                for by in 0..WRITERS {
                    scope.spawn(move || (0..ROUNDS).for_each(|_| work(store, by)));
                }
            });
            let flushes = flushes.load(Ordering::SeqCst) - before;
            let writes = WRITERS * ROUNDS;
            assert!(flushes < writes * 6 / 10, "{name}: {flushes} flushes for {writes} writes");
            if name == "counter" {
                let found = store.get(b"counter").unwrap().unwrap();
                assert_eq!(number(&found), writes);
            }
            if name == "batch" {
                let [one, two] = [b"one", b"two"].map(|key| store.get(key).unwrap().unwrap());
                assert_eq!(*one, *two);
            }
        }
    }
}

/// The first write of a key is on its way, for as long as the latch holds.
fn beside_a_write(test: impl Fn(&Bed, &Latch) + Copy) {
    for engine in 0..2 {
        let latch = Latch::default();
        let holder = latch.clone();
        let beds = beds(move || holder.pass());
        let bed = &beds[engine];
        latch.arm();
        std::thread::scope(|scope| {
            let _let_go = LetGo(&latch);
            let first = scope.spawn(|| bed.store.put_if_absent(b"key", b"first"));
            assert!(comes(|| latch.holds()));
            test(bed, &latch);
            latch.let_go();
            drop(first.join().unwrap());
        });
    }
}

#[test]
fn what_is_on_its_way_is_seen_by_nobody_and_decides_what_comes_behind_it() {
    beside_a_write(|Bed { store, .. }, latch| {
        assert!(store.get(b"key").unwrap().is_none());
        let pending = store.get_pending(b"key", |_| Ok(())).unwrap().unwrap();
        assert_eq!(*pending, *b"first");
        assert!(store.get_pending(b"other", |_| Ok(())).unwrap().is_none());
        // A refusal is decided on what is durable.
        let mut seen = Vec::new();
        let changed = store.modify(b"key", |old| {
            seen.push(old.map(|old| old.to_vec()));
            None
        });
        assert!(changed.unwrap().is_none());
        assert_eq!(seen, [Some(b"first".to_vec()), None]);
        std::thread::scope(|scope| {
            let _let_go = LetGo(latch);
            let refused = scope.spawn(|| store.put_if_absent(b"key", b"second").unwrap());
            let exists = scope.spawn(|| store.delete(b"key").unwrap());
            esker_trt::sleep(Duration::from_millis(50));
            assert!(!refused.is_finished() && !exists.is_finished());
            assert!(store.get(b"key").unwrap().is_none());
            latch.let_go();
            // The delete came before it or behind it.
            let refused = refused.join().unwrap();
            assert!(matches!(refused, Outcome::KeyExists | Outcome::Stored(_)), "{refused:?}");
            assert!(exists.join().unwrap());
        });
        assert!(store.get_pending(b"key", |_| Ok(())).unwrap().is_none());
    });
}

#[test]
fn who_was_refused_by_what_is_on_its_way_hears_of_its_flush() {
    beside_a_write(|Bed { store, log }, latch| {
        let plan = FaultPlan::none().with(FaultKind::FlushError, Trigger::Nth(1));
        log.iter().for_each(|device| device.set_faults(plan.clone()));
        std::thread::scope(|scope| {
            let _let_go = LetGo(latch);
            let refused = scope.spawn(|| store.put_if_absent(b"key", b"second"));
            esker_trt::sleep(Duration::from_millis(50));
            assert!(!refused.is_finished());
            latch.let_go();
            let error = refused.join().unwrap().unwrap_err();
            // On a busy machine it may come when the flush has failed.
            let kinds = [ErrorKind::DurabilityUnknown, ErrorKind::ReadOnly];
            assert!(kinds.contains(&error.kind()), "{error}");
        });
        assert_eq!(increment(store).unwrap_err().kind(), ErrorKind::ReadOnly);
        assert!(store.get_pending(b"key", |_| Ok(())).unwrap().is_none());
    });
}

/// Tables change all the time: who has a place in one waits for nobody's turn.
#[test]
fn tables_go_to_the_space_while_many_write_few_keys() {
    let devices = Devices::new(3);
    let mut options = flex_db::options(3);
    options.testing.background = true;
    let store = devices.open(&options).unwrap();
    std::thread::scope(|scope| {
        for by in 0..WRITERS {
            let store = &store;
            scope.spawn(move || {
                for round in 0..100 {
                    store.put(&[b'k', (round % 3) as u8], &vec![by as u8; 300]).unwrap();
                    increment(store).unwrap();
                    if round % 20 == by {
                        store.delete_range(b"k", Some(b"l")).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(number(&store.get(b"counter").unwrap().unwrap()), 100 * WRITERS);
    assert!(store.check().unwrap().is_sound());
}

/// A large value is deleted before its writer has heard of it, and the table of both goes to the space at once.
#[test]
fn a_large_value_that_is_deleted_while_it_is_on_its_way_leaves_no_room_taken() {
    for round in 0..4 {
        let devices = Devices::new(2);
        let latch = Latch::default();
        let holder = latch.clone();
        let files = asking(&devices, move |index, site: Site| {
            if index > 2 && site.kind() == SiteKind::Flush {
                holder.pass();
            }
        });
        let store = Store::open_flex_on(files, &flex_db::options(2)).unwrap();
        let large = vec![7; 1 << 20];
        latch.arm();
        std::thread::scope(|scope| {
            let _let_go = LetGo(&latch);
            let wait = || esker_trt::sleep(Duration::from_millis(30 + 20 * round));
            scope.spawn(|| store.put(b"other", b"value").unwrap());
            assert!(comes(|| latch.holds()));
            scope.spawn(|| store.put(b"key", &large).unwrap());
            wait();
            // On a busy machine the put may come later.
            scope.spawn(|| assert!(comes(|| store.delete(b"key").unwrap())));
            wait();
            scope.spawn(|| store.clean(1).unwrap());
            wait();
            latch.let_go();
        });
        store.put(b"other", b"again").unwrap();
        store.clean(1).unwrap();
        // There is no room for two.
        store.put(b"second", &large).unwrap();
        assert_eq!(store.get(b"second").unwrap().unwrap().len(), large.len());
        assert!(store.check().unwrap().is_sound());
    }
}

/// A delete that found a key is told so when all that the batch wrote is there that wrote it.
#[test]
fn what_comes_behind_a_batch_is_told_when_the_batch_counts() {
    const BATCHES: u64 = 400;
    for Bed { store, .. } in beds(|| esker_trt::sleep(Duration::from_micros(200))) {
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 1..=BATCHES {
                    let mut batch = Batch::new();
                    batch.put(b"first", &round.to_le_bytes());
                    for number in 0..40_u8 {
                        batch.put(&[b'k', number], b"value");
                    }
                    batch.put(b"last", &round.to_le_bytes());
                    store.write(&batch).unwrap();
                }
            });
            let mut found = 0;
            while !writer.is_finished() {
                // Each was another batch's.
                found += u64::from(store.delete(b"first").unwrap());
                let last = store.get(b"last").unwrap().map_or(0, |last| number(&last));
                assert!(last >= found, "{found} batches were told of, the last one seen is {last}");
            }
            assert!(found > 10, "{found} deletes met a batch");
        });
    }
}

/// Somebody always has the key under way, and nothing of that rests on what was there before.
#[test]
fn who_changes_a_value_gets_along_beside_those_who_put_it() {
    const CHANGES: u64 = 20;
    for Bed { store, .. } in beds(|| esker_trt::sleep(Duration::from_millis(2))) {
        let (ended, tries) = (AtomicBool::new(false), AtomicU64::new(0));
        store.put(b"key", b"value").unwrap();
        std::thread::scope(|scope| {
            for by in 0..4_u64 {
                let (store, ended) = (&store, &ended);
                scope.spawn(move || {
                    // They end by themselves where it does not get along.
                    for _ in 0..1500 {
                        if ended.load(Ordering::SeqCst) {
                            break;
                        }
                        store.put(b"key", &by.to_le_bytes()).unwrap();
                    }
                });
            }
            for _ in 0..CHANGES {
                let changed = store.modify(b"key", |old| {
                    tries.fetch_add(1, Ordering::SeqCst);
                    Some((old.unwrap().to_vec(), Attributes::default()))
                });
                assert!(changed.unwrap().is_some());
            }
            ended.store(true, Ordering::SeqCst);
        });
        let tries = tries.load(Ordering::SeqCst);
        assert!(tries < 20 * CHANGES, "{tries} tries for {CHANGES} changes");
    }
}
