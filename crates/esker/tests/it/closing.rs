//! Closing a `depot` beside what others do with it: nothing is written that the last checkpoint says is there already.

use crate::support::{device, open, options};
use esker::{ErrorKind, Options, Result, Store};
use esker_base::Error;
use esker_media::BlockDevice;
use esker_media::sim::{Act, Asking};
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
