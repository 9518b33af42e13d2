//! Runs on every facility: tasks, their results, their end.

use crate::config::{Config, Facility};
use crate::context;
use crate::runtime::Runtime;
use crate::task::RemoteJoin;
use crate::wake::{Message, RemoteResult};
use crate::{in_task, is_cancelled, sleep, spawn, yield_now};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use esker_base::{Error, ErrorKind};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::panic::panic_any;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) fn runtime(facility: Facility, cores: usize) -> Runtime {
    let config = Config { cores, facilities: vec![facility], ..Config::default() };
    Runtime::start(config).expect("every facility works on the test machine")
}

pub(crate) fn each_facility(test: impl Fn(Runtime)) {
    for facility in Facility::ALL {
        let runtime = runtime(facility, 2);
        assert_eq!(runtime.facility(), facility);
        test(runtime);
    }
}

#[test]
fn a_task_returns_its_value_to_a_thread() {
    each_facility(|runtime| {
        assert!(!in_task());
        let join = runtime.spawn(|| (in_task(), crate::current_core()));
        assert_eq!(join.join().unwrap(), (true, Some(CoreId(0))));
        assert_eq!(runtime.spawn(crate::current_core).join().unwrap(), Some(CoreId(1)));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn tasks_of_one_core_take_turns() {
    each_facility(|runtime| {
        let order = runtime.spawn(|| {
            let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
            let tasks: Vec<_> = (0..3)
                .map(|task| {
                    let order = std::rc::Rc::clone(&order);
                    spawn(move || {
                        for turn in 0..3 {
                            order.borrow_mut().push((turn, task));
                            yield_now();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.join().unwrap();
            }
            order.take()
        });
        let expected: Vec<_> =
            (0..3).flat_map(|turn| (0..3).map(move |task| (turn, task))).collect();
        assert_eq!(order.join().unwrap(), expected);
    });
}

#[test]
fn a_panic_surfaces_at_the_join_and_the_core_goes_on() {
    each_facility(|runtime| {
        let error = runtime.spawn(|| panic!("no {}", "luck")).join().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert!(error.to_string().contains("no luck"), "{error}");
        let inner = runtime.spawn_on(CoreId(0), || {
            let error = spawn(|| -> u32 { panic!("inner") }).join().unwrap_err();
            error.to_string()
        });
        assert!(inner.join().unwrap().contains("inner"));
    });
}

/// Panics when it is dropped, and counts that.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
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
fn what_a_task_leaves_may_panic_when_it_is_dropped_and_the_core_goes_on() {
    each_facility(|runtime| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let bomb = || Bomb(Arc::clone(&dropped));
        let gate = Arc::new(crate::sync::Gate::new());
        let (value, inner) = (bomb(), Arc::clone(&gate));
        // Its result has nobody who waits before it is there.
        drop(runtime.spawn_on(CoreId(0), move || {
            inner.wait();
            value
        }));
        let (opener, gate) = (Arc::clone(&gate), gate);
        let bystander = runtime.spawn_on(CoreId(0), move || {
            gate.wait();
            7
        });
        let (value, payload, late) = (bomb(), bomb(), bomb());
        let kinds = runtime.spawn_on(CoreId(0), move || {
            opener.open();
            drop(spawn(move || value));
            let late = spawn(|| panic_any(late)).join().unwrap_err();
            let endless = spawn(|| panic_any(Endless)).join().unwrap_err();
            (late.kind(), endless.kind())
        });
        assert_eq!(kinds.join().unwrap(), (ErrorKind::Panicked, ErrorKind::Panicked));
        let remote = runtime.spawn_on(CoreId(0), || panic_any(payload));
        assert_eq!(remote.join().unwrap_err().kind(), ErrorKind::Panicked);
        assert_eq!(bystander.join().unwrap(), 7);
        runtime.shutdown().unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 4);
    });
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    let order_of = |runtime: &Runtime| {
        let order = runtime.spawn(|| {
            let start = SystemClock.monotonic();
            let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
            let tasks: Vec<_> = [30_u64, 10, 20]
                .into_iter()
                .map(|ms| {
                    let order = std::rc::Rc::clone(&order);
                    spawn(move || {
                        sleep(Duration::from_millis(ms));
                        order.borrow_mut().push(ms);
                    })
                })
                .collect();
            for task in tasks {
                task.join().unwrap();
            }
            (order.take(), SystemClock.monotonic() - start)
        });
        let (order, took) = order.join().unwrap();
        assert!(took >= Duration::from_millis(30));
        order
    };
    // On a busy machine one may begin late.
    each_facility(|runtime| assert!((0..10).any(|_| order_of(&runtime) == [10, 20, 30])));
}

#[test]
fn shutdown_ends_sleeping_tasks_soon() {
    each_facility(|runtime| {
        let sleeper = runtime.spawn(|| {
            let result = crate::sleep_cancellable(Duration::from_secs(100));
            (is_cancelled(), result.map_err(|error| error.kind()))
        });
        // However long the machine takes for it: it was round once.
        let round = Arc::new(crate::sync::Gate::new());
        let gate = Arc::clone(&round);
        let looper = runtime.spawn(move || {
            let mut turns = 0;
            while !is_cancelled() {
                sleep(Duration::from_millis(1));
                turns += 1;
                gate.open();
            }
            turns
        });
        round.wait();
        let start = SystemClock.monotonic();
        runtime.shutdown().unwrap();
        assert!(SystemClock.monotonic() - start < Duration::from_secs(50));
        assert_eq!(sleeper.join().unwrap(), (true, Err(ErrorKind::Cancelled)));
        assert!(looper.join().unwrap() > 0);
        let late = runtime.spawn(|| 1).join().unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Closed);
    });
}

#[test]
fn a_task_that_does_not_end_is_left_and_reported() {
    let config = Config {
        facilities: vec![Facility::Sync],
        shutdown_limit: Duration::from_millis(100),
        ..Config::default()
    };
    let runtime = Runtime::start(config).unwrap();
    let gate = Arc::new(crate::sync::Gate::new());
    let inner = Arc::clone(&gate);
    let stuck = runtime.spawn(move || inner.wait());
    let error = runtime.shutdown().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("core 0"), "{error}");
    assert_eq!(stuck.join().unwrap_err().kind(), ErrorKind::Cancelled);
    gate.open();
}

#[test]
fn results_of_a_core_that_never_comes_round_fail_when_the_shutdown_gives_up() {
    for facility in Facility::ALL {
        let config = Config {
            facilities: vec![facility],
            shutdown_limit: Duration::from_millis(100),
            ..Config::default()
        };
        let runtime = Runtime::start(config).unwrap();
        let began = Arc::new(crate::sync::Gate::new());
        let inner = Arc::clone(&began);
        let waits = runtime.spawn(|| crate::sync::Gate::new().wait());
        let blocks = runtime.spawn(move || {
            inner.open();
            loop {
                std::thread::park();
            }
        });
        began.wait();
        let in_the_mailbox = runtime.spawn(|| ());
        assert_eq!(runtime.shutdown().unwrap_err().kind(), ErrorKind::Timeout);
        let late = runtime.spawn(|| ());
        let all = [waits, blocks, in_the_mailbox, late];
        assert!(comes(|| all.iter().all(RemoteJoin::is_finished)), "{all:?}");
        let kinds = all.map(|join| join.join().unwrap_err().kind());
        let given_up = ErrorKind::Cancelled;
        assert_eq!(kinds, [given_up, given_up, given_up, ErrorKind::Closed]);
    }
}

#[test]
fn too_many_tasks_are_refused_at_their_join() {
    let config = Config { tasks_max: 2, ..Config::default() };
    let runtime = Runtime::start(config).unwrap();
    let kinds = runtime.spawn(|| {
        let first = spawn(|| 1);
        let second = spawn(|| 2);
        (first.join().unwrap(), second.join().unwrap_err().kind())
    });
    assert_eq!(kinds.join().unwrap(), (1, ErrorKind::OutOfMemory));
}

#[test]
fn a_task_may_capture_more_than_a_context_switch_carries() {
    each_facility(|runtime| {
        let sum = runtime.spawn(|| {
            let bytes = [3_u8; 4096];
            spawn(move || bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>()).join()
        });
        assert_eq!(sum.join().unwrap().unwrap(), 3 * 4096);
        runtime.shutdown().unwrap();
    });
}

/// Suspends the task that drops it.
struct Yields;

impl Drop for Yields {
    fn drop(&mut self) {
        yield_now();
    }
}

#[test]
fn what_a_refused_task_holds_may_suspend_when_it_is_dropped() {
    let runtime = Runtime::start(Config { tasks_max: 1, ..Config::default() }).unwrap();
    let kind = runtime.spawn(|| {
        let held = Yields;
        spawn(move || drop(held)).join().unwrap_err().kind()
    });
    assert_eq!(kind.join().unwrap(), ErrorKind::OutOfMemory);
}

/// Locks a mutex when it is dropped.
struct Locks(Arc<crate::sync::Mutex<u32>>);

impl Drop for Locks {
    fn drop(&mut self) {
        *self.0.lock() += 1;
    }
}

/// Waits for at most some seconds; whether it came.
fn comes(what: impl Fn() -> bool) -> bool {
    (0..500).any(|_| {
        sleep(Duration::from_millis(10));
        what()
    })
}

#[test]
fn what_a_task_refused_from_a_thread_holds_may_wait_for_a_task_when_it_is_dropped() {
    for facility in Facility::ALL {
        let config = Config {
            tasks_max: 1,
            facilities: vec![facility],
            shutdown_limit: Duration::from_secs(1),
            ..Config::default()
        };
        let runtime = Runtime::start(config).unwrap();
        let shared = Arc::new(crate::sync::Mutex::new(0));
        let (locked, refused) =
            (Arc::new(crate::sync::Gate::new()), Arc::new(crate::sync::Gate::new()));
        let (mine, tells, waits) = (Arc::clone(&shared), Arc::clone(&locked), Arc::clone(&refused));
        let holder = runtime.spawn(move || {
            let guard = mine.lock();
            tells.open();
            waits.wait();
            drop(guard);
        });
        locked.wait();
        let held = [Locks(Arc::clone(&shared)), Locks(Arc::clone(&shared))];
        let late = held.map(|held| runtime.spawn(move || drop(held)));
        assert!(comes(|| late.iter().all(RemoteJoin::is_finished)), "the core is held up");
        let kinds = late.map(|late| late.join().unwrap_err().kind());
        assert_eq!(kinds, [ErrorKind::OutOfMemory; 2]);
        refused.open();
        assert!(comes(|| holder.is_finished()), "the core waits for its own task");
        assert!(comes(|| *shared.lock() == 2), "what they held was dropped");
        runtime.shutdown().unwrap();
    }
}

#[test]
fn a_refused_facility_is_reported_and_the_next_one_serves() {
    // More AIO requests than the system allows for everyone together.
    let config = Config {
        facilities: vec![Facility::Aio, Facility::Sync],
        queue_depth: 1 << 30,
        ..Config::default()
    };
    let runtime = Runtime::start(config).unwrap();
    assert_eq!(runtime.facility(), Facility::Sync);
    assert!(runtime.report().contains("refused: aio ("), "{}", runtime.report());
    assert_eq!(runtime.spawn(|| 7).join().unwrap(), 7);
}

#[test]
fn no_facility_is_an_error_and_unknown_cores_show_at_the_join() {
    let config = Config { facilities: Vec::new(), ..Config::default() };
    assert_eq!(Runtime::start(config).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let runtime = runtime(Facility::Sync, 1);
    let error = runtime.spawn_on(CoreId(9), || ()).join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn forty_thousand_tasks_live_at_once() {
    const TASKS: usize = 40_000;
    let runtime = runtime(Facility::Uring, 1);
    let sum = runtime.spawn(|| {
        let gate = std::rc::Rc::new(crate::local::Notify::new());
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let gate = std::rc::Rc::clone(&gate);
                spawn(move || {
                    gate.wait().unwrap();
                    task
                })
            })
            .collect();
        yield_now();
        gate.notify_all();
        tasks.into_iter().map(|task| task.join().unwrap()).sum::<usize>()
    });
    assert_eq!(sum.join().unwrap(), TASKS * (TASKS - 1) / 2);
    assert!(runtime.report().contains("guard"), "{}", runtime.report());
}

#[test]
fn a_blocking_call_runs_beside_the_core() {
    each_facility(|runtime| {
        let result = runtime.spawn(|| {
            let (done, told) = std::sync::mpsc::channel();
            let counter = spawn(move || {
                for _ in 0..5 {
                    sleep(Duration::from_millis(2));
                }
                done.send(()).unwrap();
            });
            let words = String::from("borrowed");
            let words = words.as_str();
            let length = crate::io::offload(move || {
                // The core goes on meanwhile.
                told.recv_timeout(Duration::from_secs(20)).unwrap();
                assert!(!in_task());
                words.len()
            });
            counter.join().unwrap();
            length
        });
        assert_eq!(result.join().unwrap(), 8);
    });
}

#[test]
fn a_panic_of_a_blocking_call_surfaces_in_its_task() {
    let runtime = runtime(Facility::Uring, 1);
    let error = runtime.spawn(|| crate::io::offload(|| panic!("far away"))).join();
    let error = error.unwrap_err();
    assert!(error.to_string().contains("far away"), "{error}");
}

#[test]
fn limits_may_be_for_ever() {
    for facility in Facility::ALL {
        let config = Config {
            facilities: vec![facility],
            probe_limit: Duration::MAX,
            shutdown_limit: Duration::MAX,
            ..Config::default()
        };
        let runtime = Runtime::start(config).unwrap();
        assert_eq!(runtime.spawn(|| 7).join().unwrap(), 7);
        runtime.shutdown().unwrap();
    }
}

#[test]
fn an_idle_core_may_spin_for_ever() {
    for spin in [Duration::from_nanos(u64::MAX), Duration::MAX] {
        for facility in Facility::ALL {
            let config = Config { facilities: vec![facility], spin, ..Config::default() };
            let runtime = Runtime::start(config).unwrap();
            for value in 0..3 {
                sleep(Duration::from_millis(2));
                assert_eq!(runtime.spawn(move || value).join().unwrap(), value);
            }
            sleep(Duration::from_millis(50));
            let sleeps = runtime.cores.iter().any(|core| core.mailbox.sleep.must_rouse());
            assert!(!sleeps, "{facility} sleeps");
            runtime.shutdown().unwrap();
        }
    }
}

/// Panics on the stack of the scheduler that refuses its task.
struct PanicsWhenRefused;

impl RemoteResult for PanicsWhenRefused {
    fn refuse(&self, _: Error) {
        panic!("refused");
    }
}

/// A task waits in a call of a helper, and the scheduler panics meanwhile.
fn panic_of_a_scheduler() {
    // Until nobody can read what is said here.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let facilities = vec![Facility::Sync];
    let runtime = Runtime::start(Config { tasks_max: 2, facilities, ..Config::default() }).unwrap();
    let (held, dropped) = std::sync::mpsc::channel::<()>();
    drop(runtime.spawn(move || {
        let (called, calls) = std::sync::mpsc::channel();
        let _caller = spawn(move || {
            let _held = held;
            crate::io::offload(move || {
                called.send(()).unwrap();
                loop {
                    std::thread::park();
                }
            });
        });
        while calls.try_recv().is_err() {
            yield_now();
        }
        let one_too_many =
            Message::Spawn { body: Box::new(|| ()), result: Arc::new(PanicsWhenRefused) };
        context::with(|core| core.mailbox().post(one_too_many));
        // It still is one of the two when the mailbox is looked at.
        loop {
            yield_now();
        }
    }));
    // Ends when the frame of the task that waits was dropped, which must not be: nothing is ever sent.
    let _ = dropped.recv();
    std::process::exit(0);
}

#[test]
fn a_scheduler_that_panics_ends_the_process_when_nobody_reads_what_it_says() {
    const NAME: &str =
        "runtime::tests::a_scheduler_that_panics_ends_the_process_when_nobody_reads_what_it_says";
    const CHILD: &str = "ESKER_TRT_SCHEDULER";
    if std::env::var_os(CHILD).is_some() {
        return panic_of_a_scheduler();
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "panics")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGABRT));
}
