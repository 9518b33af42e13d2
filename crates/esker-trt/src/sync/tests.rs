//! Every primitive between tasks of two cores and ordinary threads.

use crate::runtime::tests::each_facility;
use crate::sync::{Gate, Mutex, Semaphore, Signal, Turns, channel, promise};
use crate::{sim, sleep, spawn, yield_now};
use esker_base::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn a_gate_wakes_all_tasks_and_threads() {
    each_facility(|runtime| {
        let gate = Arc::new(Gate::new());
        let passed = Arc::new(AtomicUsize::new(0));
        let waits = || {
            let (gate, passed) = (Arc::clone(&gate), Arc::clone(&passed));
            move || {
                gate.wait();
                passed.fetch_add(1, Ordering::SeqCst);
            }
        };
        let tasks: Vec<_> = (0..128).map(|_| runtime.spawn(waits())).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(waits());
            }
            std::thread::park_timeout(Duration::from_millis(10));
            assert_eq!(passed.load(Ordering::SeqCst), 0);
            assert!(!gate.is_open());
            gate.open();
        });
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(passed.load(Ordering::SeqCst), 132);
        gate.wait();
    });
}

#[test]
fn waiting_for_a_gate_can_be_limited() {
    let gate = Arc::new(Gate::new());
    let limit = Duration::from_millis(5);
    assert_eq!(gate.wait_for(limit).unwrap_err().kind(), ErrorKind::Timeout);
    each_facility(|runtime| {
        let gate = Arc::clone(&gate);
        let limited = runtime.spawn(move || gate.wait_for(limit).unwrap_err().kind());
        assert_eq!(limited.join().unwrap(), ErrorKind::Timeout);
    });
}

#[test]
fn a_gate_can_be_waited_for_beyond_the_end_of_all_times() {
    each_facility(|runtime| {
        for limit in [Duration::from_secs(u64::MAX), Duration::MAX] {
            let gate = Arc::new(Gate::new());
            let other = Arc::clone(&gate);
            let task = runtime.spawn(move || other.wait_for(limit).is_ok());
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| gate.wait_for(limit).is_ok());
                std::thread::park_timeout(Duration::from_millis(5));
                gate.open();
                assert!(thread.join().unwrap());
            });
            assert!(task.join().unwrap());
        }
    });
}

#[test]
fn no_ring_of_a_signal_is_lost() {
    const ROUNDS: usize = 3000;
    each_facility(|runtime| {
        let bells = Arc::new([Signal::new(), Signal::new()]);
        let done = Arc::new(AtomicUsize::new(0));
        let plays = |own: usize| {
            let (bells, done) = (Arc::clone(&bells), Arc::clone(&done));
            move || {
                for _ in 0..ROUNDS {
                    bells[own].wait();
                    done.fetch_add(1, Ordering::SeqCst);
                    bells[1 - own].set();
                }
            }
        };
        let task = runtime.spawn(plays(0));
        bells[0].set();
        assert!(bells[0].is_set() || done.load(Ordering::SeqCst) > 0);
        plays(1)();
        task.join().unwrap();
        assert_eq!(done.load(Ordering::SeqCst), 2 * ROUNDS);
        // The last ring came before a wait, and so did another one: they are one.
        assert!(bells[0].is_set());
        bells[0].set();
        bells[0].wait();
        assert!(!bells[0].is_set());
    });
}

#[test]
fn a_mutex_excludes_tasks_of_two_cores_and_threads_over_suspensions() {
    each_facility(|runtime| {
        let value = Arc::new(Mutex::new((0_u32, 0_u32)));
        let adds = || {
            let value = Arc::clone(&value);
            move || {
                for _ in 0..50 {
                    let mut guard = value.lock();
                    guard.0 += 1;
                    yield_now();
                    guard.1 += 1;
                    assert_eq!(guard.0, guard.1);
                }
            }
        };
        let tasks: Vec<_> = (0..8).map(|_| runtime.spawn(adds())).collect();
        std::thread::scope(|scope| {
            scope.spawn(adds());
        });
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(*value.lock(), (450, 450));
        assert!(value.try_lock().is_some());
    });
}

#[test]
fn turns_of_one_list_exclude_each_for_itself_and_all_at_once() {
    const ROUNDS: usize = 2000;
    each_facility(|runtime| {
        let turns = Arc::new(Turns::<3>::default());
        // What each turn guards, and where all of them meet.
        let counts: Arc<[AtomicUsize; 3]> = Arc::default();
        let work = |number: usize| {
            let (turns, counts) = (Arc::clone(&turns), Arc::clone(&counts));
            move || {
                let add = |count: &AtomicUsize| {
                    let before = count.load(Ordering::Relaxed);
                    yield_now();
                    count.store(before + 1, Ordering::Relaxed);
                };
                for round in 0..ROUNDS {
                    if round % 50 == number {
                        let _all = turns.take_all();
                        counts.iter().for_each(add);
                    } else {
                        let _turn = turns.take(number);
                        add(&counts[number]);
                    }
                }
            }
        };
        let tasks: Vec<_> = (0..6).map(|task| runtime.spawn(work(task % 3))).collect();
        std::thread::scope(|scope| {
            scope.spawn(work(0));
        });
        tasks.into_iter().for_each(|task| task.join().unwrap());
        // Each adds to all where it takes all: 40 times of 2000, seven in all.
        let all = 7 * (ROUNDS / 50);
        let own = [3, 2, 2].map(|workers| workers * (ROUNDS - ROUNDS / 50) + all);
        assert_eq!(counts.each_ref().map(|count| count.load(Ordering::Relaxed)), own);
    });
}

#[test]
fn a_turn_is_free_while_others_of_its_list_are_waited_for_and_goes_on_in_the_order_of_asking() {
    let ran = sim::run(3, || {
        let turns = Arc::new(Turns::<2>::default());
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let held = turns.take(0);
        let waiters: Vec<_> = (0..3)
            .map(|number| {
                let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
                let waiter = spawn(move || {
                    let _turn = turns.take(0);
                    order.lock().push(number);
                });
                // Until it waits.
                (0..100).for_each(|_| yield_now());
                waiter
            })
            .collect();
        drop(turns.take(1));
        assert!(order.lock().is_empty());
        drop(held);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        drop(turns.take_all());
        assert_eq!(*order.lock(), [0, 1, 2]);
    });
    ran.outcome.unwrap();
}

#[test]
fn a_panic_with_the_lock_held_frees_it() {
    let report = sim::run(1, || {
        let value = Arc::new(Mutex::new(1));
        let other = Arc::clone(&value);
        let task = spawn(move || {
            let _guard = other.lock();
            panic!("with the lock");
        });
        assert_eq!(task.join().unwrap_err().kind(), ErrorKind::Panicked);
        let held = value.lock();
        assert!(value.try_lock().is_none());
        *held
    });
    assert_eq!(report.outcome.unwrap(), 1);
}

#[test]
fn a_semaphore_bounds_and_does_not_starve_large_requests() {
    for seed in 0..100 {
        let report = sim::run(seed, || {
            let permits = Arc::new(Semaphore::new(4));
            let used = Arc::new(AtomicUsize::new(0));
            let tasks: Vec<_> = (0..20_usize)
                .map(|task| {
                    let (permits, used) = (Arc::clone(&permits), Arc::clone(&used));
                    spawn(move || {
                        let count = if task % 5 == 0 { 4 } else { 1 };
                        let permit = permits.acquire(count);
                        assert!(used.fetch_add(count, Ordering::SeqCst) + count <= 4);
                        sleep(Duration::from_micros(10));
                        used.fetch_sub(count, Ordering::SeqCst);
                        drop(permit);
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            permits.free()
        });
        assert_eq!(report.outcome.unwrap(), 4);
    }
}

#[test]
fn permits_can_be_forgotten_and_brought_back() {
    let permits = Semaphore::new(2);
    permits.acquire(2).forget();
    assert!(permits.try_acquire(1).is_none());
    permits.release(1);
    assert!(permits.try_acquire(1).is_some());
    assert_eq!(permits.free(), 1);
}

#[test]
fn a_channel_carries_everything_in_order_from_each_sender() {
    each_facility(|runtime| {
        let (sender, receiver) = channel(3);
        for task in 0..4_u32 {
            let sender = sender.clone();
            runtime.spawn(move || {
                for turn in 0..100_u32 {
                    sender.send((task, turn)).unwrap();
                }
            });
        }
        let from_thread = sender.clone();
        let got = std::thread::scope(|scope| {
            scope.spawn(move || (0..100).for_each(|turn| from_thread.send((4, turn)).unwrap()));
            drop(sender);
            let receive = runtime.spawn(move || {
                let mut got = vec![Vec::new(); 5];
                loop {
                    match receiver.receive() {
                        Ok((task, turn)) => got[task as usize].push(turn),
                        Err(error) => return (got, error.kind()),
                    }
                }
            });
            receive.join().unwrap()
        });
        assert_eq!(got.1, ErrorKind::Closed);
        got.0.into_iter().for_each(|turns| assert_eq!(turns, (0..100).collect::<Vec<u32>>()));
    });
}

#[test]
fn a_channel_without_its_receiver_gives_the_message_back() {
    let (sender, receiver) = channel(1);
    sender.try_send("first").unwrap();
    let full = sender.try_send("second").unwrap_err();
    assert_eq!((full.message, full.error.kind()), ("second", ErrorKind::NoSpace));
    assert_eq!((receiver.len(), receiver.receive().unwrap()), (1, "first"));
    assert!(receiver.is_empty());
    drop(receiver);
    let closed = sender.send("third").unwrap_err();
    assert_eq!((closed.message, closed.error.kind()), ("third", ErrorKind::Closed));
}

#[test]
fn shutdown_cancels_senders_and_receivers() {
    each_facility(|runtime| {
        let (sender, receiver) = channel::<u32>(1);
        let (full, _kept) = channel::<u32>(1);
        full.try_send(1).unwrap();
        let receives = runtime.spawn(move || receiver.receive().unwrap_err().kind());
        let sends = runtime.spawn(move || full.send(2).unwrap_err().error.kind());
        std::thread::park_timeout(Duration::from_millis(5));
        runtime.shutdown().unwrap();
        assert_eq!(receives.join().unwrap(), ErrorKind::Cancelled);
        assert_eq!(sends.join().unwrap(), ErrorKind::Cancelled);
        drop(sender);
    });
}

#[test]
fn a_promise_is_kept_across_cores_or_broken() {
    each_facility(|runtime| {
        let (kept, future) = promise();
        let (broken, other) = promise::<u32>();
        let waits =
            runtime.spawn(move || (future.wait().unwrap(), other.wait().unwrap_err().kind()));
        runtime.spawn(move || {
            sleep(Duration::from_millis(2));
            kept.set("value");
            drop(broken);
        });
        assert_eq!(waits.join().unwrap(), ("value", ErrorKind::Closed));
    });
    let (kept, future) = promise();
    kept.set(1);
    assert!(future.is_ready());
    assert_eq!(future.wait().unwrap(), 1);
}
