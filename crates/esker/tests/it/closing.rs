//! Closing a `depot` beside what others do with it: nothing is written that the last checkpoint says is there already, and who closes it, too,
//! is told what came of it.

use crate::support::{device, open, options};
use esker::{ErrorKind, Options, Result, Store};
use esker_base::Error;
use esker_base::clock::Clock;
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking, FaultKind, FaultPlan, Trigger};
use esker_trt::{sim, spawn, yield_now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `late` has found the store open and waits for the cleaner, which is at work; meanwhile the store is closed.
fn closed_beside<T: 'static>(options: &Options, late: fn(&Store) -> Result<T>) -> Result<T> {
    let armed = Arc::new(AtomicBool::new(false));
    let is_due = Arc::clone(&armed);
    let inner = device(3);
    let asking = Asking::new(Arc::clone(&inner), move |call| {
        if call.act == Act::Flush && is_due.swap(false, Ordering::SeqCst) {
            esker_trt::sleep(Duration::from_secs(10));
        }
        Ok(())
    });
    let store = Store::open_on(asking as Arc<dyn BlockDevice>, options)?;
    for number in 0..40_u8 {
        store.put(&[number % 10], &[number; 500])?;
    }
    armed.store(true, Ordering::SeqCst);
    let working = store.clone();
    let first = spawn(move || working.trim());
    while armed.load(Ordering::SeqCst) {
        yield_now();
    }
    let waiting = store.clone();
    let second = spawn(move || late(&waiting));
    for _ in 0..10 {
        yield_now();
    }
    store.close()?;
    let failed = |_| Error::new(ErrorKind::Corrupted, "a task panicked");
    first.join().map_err(failed)??;
    let outcome = second.join().map_err(failed)?;
    let store = open(&inner, options)?;
    for number in 30..40_u8 {
        assert_eq!(store.get(&[number % 10])?.as_deref(), Some(&[number; 500][..]));
    }
    assert_eq!(store.check()?.problems, Vec::<String>::new());
    outcome
}

#[test]
fn who_waits_for_the_cleaner_while_the_store_is_closed_is_refused() {
    let run = |cache: bool, late: fn(&Store) -> Result<()>| {
        let outcome = sim::run(3, move || {
            let mut options = options(3);
            options.cache = cache;
            closed_beside(&options, late).map_err(|error| error.kind())
        });
        outcome.outcome.unwrap()
    };
    let closed = Err(ErrorKind::Closed);
    assert_eq!(run(false, |store| store.clean(9).map(drop)), closed);
    assert_eq!(run(false, |store| store.trim().map(drop)), closed);
    assert_eq!(run(true, |store| store.evict(9).map(drop)), closed);
}

#[test]
fn a_store_that_could_not_be_closed_says_so_again() {
    let mut failed = 0;
    for kind in [FaultKind::WriteError, FaultKind::FlushError] {
        for nth in 1..20 {
            let device = device(4);
            let store = open(&device, &options(4)).unwrap();
            store.put(b"key", &[1; 500]).unwrap();
            device.set_faults(FaultPlan::none().with(kind, Trigger::Nth(nth)));
            let told = |closed: Result<()>| closed.map_err(|error| error.to_string());
            let first = told(store.close());
            failed += u32::from(first.is_err());
            assert_eq!(told(store.close()), first, "{kind:?} {nth}");
        }
    }
    assert!(failed > 2, "{failed} times");
}

#[test]
fn who_closes_a_store_beside_somebody_else_is_told_what_came_of_it() {
    let run = sim::run(3, || {
        let armed = Arc::new(AtomicBool::new(false));
        let is_due = Arc::clone(&armed);
        let asking = Asking::new(device(4), move |call| {
            let is_last = call.site == esker::sites::depot::CLOSE_FLUSH;
            if is_last && is_due.swap(false, Ordering::SeqCst) {
                esker_trt::sleep(Duration::from_secs(10));
                return Err(Error::new(ErrorKind::Io, "flush"));
            }
            Ok(())
        });
        let store = Store::open_on(asking as Arc<dyn BlockDevice>, &options(4)).unwrap();
        store.put(b"key", &[1; 500]).unwrap();
        armed.store(true, Ordering::SeqCst);
        let closing = store.clone();
        let first = spawn(move || closing.close());
        while armed.load(Ordering::SeqCst) {
            yield_now();
        }
        let second = store.close().map_err(|error| error.kind());
        (first.join().unwrap().map_err(|error| error.kind()), second)
    });
    let (first, second) = run.outcome.unwrap();
    assert!(first.is_err());
    assert_eq!(first, second);
}

/// A purge reads the summaries of all segments, twice: who closes the store waits for one of them.
#[test]
fn who_closes_a_store_does_not_wait_for_a_purge() {
    let run = sim::run(3, || {
        let is_slow = Arc::new(AtomicBool::new(false));
        let slow = Arc::clone(&is_slow);
        let asking = Asking::new(device(5), move |call| {
            if call.act == Act::Read && slow.load(Ordering::SeqCst) {
                esker_trt::sleep(Duration::from_secs(10));
            }
            Ok(())
        });
        let store = Store::open_on(asking as Arc<dyn BlockDevice>, &options(5)).unwrap();
        for number in 0..20_u8 {
            store.put(&[number], &[number; 900]).unwrap();
        }
        (0..10).for_each(|number| assert!(store.delete(&[number]).unwrap()));
        // So that the tombstones' segment is full.
        for number in 20..40_u8 {
            store.put(&[number], &[number; 900]).unwrap();
        }
        is_slow.store(true, Ordering::SeqCst);
        let working = store.clone();
        let purging = spawn(move || working.clean(1));
        esker_trt::sleep(Duration::from_secs(25));
        let now = || sim::clock().unwrap().monotonic();
        let began = now();
        store.close().unwrap();
        let waited = now().saturating_sub(began);
        purging.join().unwrap().unwrap();
        waited
    });
    let waited = run.outcome.unwrap();
    assert!(waited < Duration::from_secs(60), "{waited:?}");
}
