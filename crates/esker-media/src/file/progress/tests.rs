//! Who waits for whom.

use super::*;
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn who_is_alone_does_not_wait() {
    let progress = Progress::default();
    progress.enter().leave_and_wait();
    drop(progress.enter());
    progress.enter().leave_and_wait();
    assert_eq!(progress.0.lock().count, 0);
}

#[test]
fn those_in_progress_are_waited_for_and_those_that_come_later_are_not() {
    let progress = Progress::default();
    let (first, mine, second) = (progress.enter(), progress.enter(), progress.enter());
    std::thread::scope(|scope| {
        let (sender, done) = mpsc::channel();
        let of = &progress;
        scope.spawn(move || {
            mine.leave_and_wait();
            sender.send(()).unwrap();
        });
        while of.0.lock().waiters.is_empty() {
            std::thread::yield_now();
        }
        let later = progress.enter();
        drop(second);
        assert!(done.recv_timeout(Duration::from_millis(50)).is_err(), "the first is in progress");
        drop(first);
        done.recv_timeout(Duration::from_secs(10)).expect("the later one is not waited for");
        drop(later);
    });
    assert!(progress.0.lock().waiters.is_empty());
}

#[test]
fn many_that_overlap_all_come_through() {
    let progress = Progress::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let entry = progress.enter();
                    std::thread::yield_now();
                    entry.leave_and_wait();
                }
            });
        }
    });
    let state = progress.0.lock();
    assert_eq!((state.next, state.count, state.waiters.len()), (8000, 0, 0));
}
