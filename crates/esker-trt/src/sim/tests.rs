//! Determinism, deadlock reports, and the end of simulations.

use crate::sim::{self, SimReport, run};
use crate::sync::{Gate, Mutex, channel};
use crate::{in_task, is_cancelled, sleep, spawn, yield_now};
use esker_base::ErrorKind;
use esker_base::clock::Clock;
use std::cell::Cell;
use std::collections::HashSet;
use std::panic::panic_any;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Tasks that share a lock and a channel, sleep, and ask a simulated device.
fn busy(seed: u64) -> SimReport<Vec<u64>> {
    run(seed, || {
        let (sender, receiver) = channel(2);
        let shared = Arc::new(Mutex::new(0_u64));
        for task in 0..5_u64 {
            let (sender, shared) = (sender.clone(), Arc::clone(&shared));
            spawn(move || {
                for turn in 0..4 {
                    let mut value = shared.lock();
                    let before = *value;
                    yield_now();
                    assert_eq!(*value, before, "the lock is held over a switch");
                    *value += 1;
                    drop(value);
                    sleep(Duration::from_micros(sim::random(50).unwrap()));
                    sender.send(task * 10 + turn).unwrap();
                }
            });
        }
        drop(sender);
        let mut order = Vec::new();
        while let Ok(message) = receiver.receive() {
            sim::trace_u64(message);
            order.push(message);
        }
        assert_eq!(*shared.lock(), 20);
        order
    })
}

#[test]
fn the_same_seed_gives_the_same_run_and_others_differ() {
    let mut hashes = HashSet::new();
    let mut orders = HashSet::new();
    for seed in 0..50 {
        let (first, second) = (busy(seed), busy(seed));
        assert_eq!(first.trace_hash, second.trace_hash);
        assert_eq!((first.steps, first.time), (second.steps, second.time));
        let order = first.outcome.unwrap();
        assert_eq!(order, second.outcome.unwrap());
        assert_eq!(order.len(), 20);
        hashes.insert(first.trace_hash);
        orders.insert(order);
    }
    assert_eq!(hashes.len(), 50);
    assert!(orders.len() > 40, "only {} orders", orders.len());
}

#[test]
fn traced_events_change_the_hash_but_not_the_run() {
    let with = |event: &'static [u8]| run(1, move || sim::trace(event));
    assert_ne!(with(b"write 1").trace_hash, with(b"write 2").trace_hash);
    assert_ne!(with(b"").trace_hash, with(b"\0").trace_hash);
    assert_eq!(with(b"write 1").steps, with(b"write 2").steps);
}

#[test]
fn a_deadlock_is_an_error_that_names_the_waits() {
    let dropped = Rc::new(Cell::new(0));
    let counter = Rc::clone(&dropped);
    struct Count(Rc<Cell<u32>>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let report = run(3, move || {
        let gate = Arc::new(Gate::new());
        let other = Arc::clone(&gate);
        let counted = Count(Rc::clone(&counter));
        let task = spawn(move || {
            let _counted = counted;
            other.wait();
        });
        let _counted = Count(counter);
        task.join().unwrap();
    });
    let error = report.outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let words = error.to_string();
    assert!(words.contains("deadlock"), "{words}");
    assert!(words.contains("waits for gate") && words.contains("waits for promise"), "{words}");
    assert_eq!(dropped.get(), 2, "the tasks were unwound");
}

#[test]
fn the_others_are_cancelled_when_the_body_ends() {
    let seen = Rc::new(Cell::new(false));
    let inner = Rc::clone(&seen);
    let report = run(5, move || {
        spawn(move || {
            while !is_cancelled() {
                sleep(Duration::from_secs(1));
            }
            inner.set(true);
        });
        yield_now();
        7
    });
    assert_eq!(report.outcome.unwrap(), 7);
    assert!(seen.get());
}

#[test]
fn tasks_that_ignore_their_cancellation_do_not_hang_the_run() {
    let report = run(6, || {
        spawn(|| {
            loop {
                sleep(Duration::from_secs(1));
            }
        });
    });
    let error = report.outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[test]
fn time_jumps_and_the_clock_shows_it() {
    let report = run(7, || {
        let clock = sim::clock().unwrap();
        let (wall, before) = (clock.unix_seconds(), clock.monotonic());
        sleep(Duration::from_secs(3600));
        (clock.unix_seconds() - wall, clock.monotonic() - before)
    });
    let (wall, monotonic) = report.outcome.unwrap();
    assert!((3600..3602).contains(&wall));
    assert!(monotonic >= Duration::from_secs(3600) && monotonic < Duration::from_secs(3601));
    assert!(report.time >= Duration::from_secs(3600));
}

#[test]
fn a_loop_that_polls_the_clock_ends() {
    let report = run(8, || {
        let clock = sim::clock().unwrap();
        while clock.monotonic() < Duration::from_micros(50) {
            yield_now();
        }
    });
    report.outcome.unwrap();
    assert!(report.steps >= 500);
}

#[test]
fn a_halt_ends_the_run_like_a_crash() {
    let reached = Rc::new(Cell::new(false));
    let inner = Rc::clone(&reached);
    let report = run(9, move || {
        spawn(sim::halt);
        sleep(Duration::from_secs(1));
        inner.set(true);
    });
    assert_eq!(report.outcome.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(!reached.get());
}

#[test]
fn panics_and_nothing_else_come_out_as_panics() {
    let report = run(10, || -> u32 { panic!("broken invariant") });
    let error = report.outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Panicked);
    assert!(error.to_string().contains("broken invariant"));
    assert!(!in_task() && !sim::is_active());
    assert_eq!(sim::random(10), None);
}

#[test]
fn simulations_nest_inside_tasks_of_a_run_time() {
    let runtime = crate::Runtime::start(crate::Config::default()).unwrap();
    let hash = runtime.spawn(|| {
        let report = busy(4);
        assert!(in_task() && !sim::is_active());
        report.trace_hash
    });
    assert_eq!(hash.join().unwrap(), busy(4).trace_hash);
}

/// Panics when it is dropped, and counts that.
struct Bomb(Rc<Cell<u32>>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
        panic!("dropped");
    }
}

/// Its drop makes another one.
struct Endless;

impl Drop for Endless {
    fn drop(&mut self) {
        panic_any(Endless);
    }
}

#[test]
fn what_tasks_leave_may_panic_when_it_is_dropped_and_the_run_goes_on() {
    let dropped = Rc::new(Cell::new(0));
    let counter = Rc::clone(&dropped);
    let report = run(11, move || {
        let bomb = Bomb(counter);
        drop(spawn(move || bomb));
        let endless = spawn(|| panic_any(Endless)).join().unwrap_err();
        sleep(Duration::from_secs(1));
        endless.kind()
    });
    assert_eq!((report.outcome.unwrap(), dropped.get()), (ErrorKind::Panicked, 1));
    let error = run(12, || -> u32 { panic_any(Endless) }).outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Panicked);
}

#[test]
fn a_task_that_never_ran_drops_what_it_holds_once() {
    let dropped = Rc::new(Cell::new(0));
    let counter = Rc::clone(&dropped);
    let report = run(13, move || {
        let bomb = Bomb(counter);
        drop(spawn(move || bomb));
        sim::halt();
    });
    report.outcome.unwrap();
    assert_eq!(dropped.get(), 1);
}

#[test]
fn the_body_and_its_tasks_may_capture_a_lot() {
    let bytes = [3_u8; 4096];
    let report = run(14, move || {
        let more = [4_u8; 2048];
        spawn(move || more[7]).join().unwrap() + bytes[7]
    });
    assert_eq!(report.outcome.unwrap(), 7);
}
