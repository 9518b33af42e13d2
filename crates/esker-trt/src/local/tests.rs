//! The intra-core primitives, under many orders of tasks.

use crate::local::{Notify, Semaphore, promise};
use crate::{is_cancelled, sim, spawn, yield_now};
use esker_base::ErrorKind;
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn a_notification_is_remembered_once_and_wakes_in_order() {
    for seed in 0..50 {
        let report = sim::run(seed, || {
            let notify = Rc::new(Notify::new());
            notify.notify_one();
            notify.notify_one();
            notify.wait().unwrap();
            let passed = Rc::new(Cell::new(0));
            let tasks: Vec<_> = (0..3)
                .map(|_| {
                    let (notify, passed) = (Rc::clone(&notify), Rc::clone(&passed));
                    spawn(move || {
                        notify.wait().unwrap();
                        passed.set(passed.get() + 1);
                    })
                })
                .collect();
            crate::sleep(std::time::Duration::from_micros(10));
            assert_eq!(passed.get(), 0, "the second token was not kept");
            notify.notify_one();
            crate::sleep(std::time::Duration::from_micros(10));
            assert_eq!(passed.get(), 1);
            notify.notify_all();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            passed.get()
        });
        assert_eq!(report.outcome.unwrap(), 3);
    }
}

#[test]
fn the_end_of_a_run_cancels_a_wait_for_notification() {
    let kind = Rc::new(Cell::new(None));
    let inner = Rc::clone(&kind);
    let report = sim::run(1, move || {
        spawn(move || {
            let error = Notify::new().wait().unwrap_err();
            assert!(is_cancelled());
            inner.set(Some(error.kind()));
        });
        yield_now();
    });
    report.outcome.unwrap();
    assert_eq!(kind.get(), Some(ErrorKind::Cancelled));
}

#[test]
fn promises_are_kept_or_broken() {
    let report = sim::run(2, || {
        let (kept, future) = promise();
        let (broken, other) = promise::<u32>();
        spawn(move || {
            yield_now();
            kept.set(String::from("value"));
            drop(broken);
        });
        assert!(!future.is_ready());
        (future.wait().unwrap(), other.wait().unwrap_err().kind())
    });
    assert_eq!(report.outcome.unwrap(), ("value".to_owned(), ErrorKind::Closed));
}

#[test]
fn permits_are_bounded_and_in_order() {
    for seed in 0..50 {
        let report = sim::run(seed, || {
            let permits = Rc::new(Semaphore::new(2));
            let used = Rc::new(Cell::new(0));
            let tasks: Vec<_> = (0..10)
                .map(|task| {
                    let (permits, used) = (Rc::clone(&permits), Rc::clone(&used));
                    spawn(move || {
                        let count = 1 + task % 2;
                        let _permit = permits.acquire(count);
                        used.set(used.get() + count);
                        assert!(used.get() <= 2);
                        yield_now();
                        used.set(used.get() - count);
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            permits.try_acquire(2).is_some()
        });
        assert!(report.outcome.unwrap());
    }
}

#[test]
#[should_panic(expected = "outside a task")]
fn a_thread_may_not_wait_here() {
    drop(Notify::new().wait());
}
