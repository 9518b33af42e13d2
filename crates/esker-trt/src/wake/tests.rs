//! The sleep cell: with `--cfg loom` under every interleaving, else in plain runs.

use crate::wake::SleepCell;
#[cfg(not(loom))]
use crate::wake::{Mailbox, Message, Waker, park};
#[cfg(not(loom))]
use esker_base::{ErrorKind, Result, ids::CoreId};

#[cfg(loom)]
#[test]
fn no_post_is_lost_under_any_interleaving() {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    loom::model(|| {
        struct Shared {
            cell: SleepCell,
            posts: [AtomicBool; 2],
            roused: AtomicU32,
        }
        let shared = Arc::new(Shared {
            cell: SleepCell::new(),
            posts: [AtomicBool::new(false), AtomicBool::new(false)],
            roused: AtomicU32::new(0),
        });
        let posters: Vec<_> = (0..2)
            .map(|poster| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    shared.posts[poster].store(true, Ordering::Release);
                    if shared.cell.must_rouse() {
                        shared.roused.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        shared.cell.announce();
        let seen = shared.posts.iter().filter(|post| post.load(Ordering::Acquire)).count();
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        let roused = shared.roused.load(Ordering::SeqCst);
        // A core that saw no post blocks: then somebody must have roused it, and once.
        assert!(seen > 0 || roused == 1, "saw {seen}, roused {roused}");
        assert!(roused <= 1);
    });
}

#[cfg(not(loom))]
#[test]
fn one_poster_rouses_a_sleeping_core_and_none_a_running_one() {
    let cell = SleepCell::new();
    assert!(!cell.must_rouse());
    cell.announce();
    assert!(cell.must_rouse());
    assert!(!cell.must_rouse());
    cell.announce();
    cell.awake();
    assert!(!cell.must_rouse());
}

/// Waits when all else of its thread is gone, as a store may that closes.
#[cfg(not(loom))]
struct WaitsLast;

#[cfg(not(loom))]
impl Drop for WaitsLast {
    fn drop(&mut self) {
        let waker = Waker::current();
        assert!(waker.is_same(&Waker::current()));
        let other = waker.clone();
        let thread = std::thread::Builder::new().spawn(move || other.wake());
        park("the other thread");
        thread.unwrap().join().unwrap();
    }
}

/// In a child process, which a panic there would end: this test binary calls itself.
#[cfg(not(loom))]
#[test]
fn a_destructor_of_a_thread_that_ends_may_wait() {
    const CHILD: &str = "ESKER_TRT_THREAD_ENDS";
    const NAME: &str = "wake::tests::a_destructor_of_a_thread_that_ends_may_wait";
    thread_local! { static LAST: WaitsLast = const { WaitsLast }; }
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let thread = std::thread::Builder::new().spawn(|| {
        // What comes first goes last.
        LAST.with(|_| ());
        drop(Waker::current());
    });
    thread.unwrap().join().unwrap();
}

/// Waits for the result of another task and panics when it is dropped.
#[cfg(not(loom))]
struct WaitsAndPanics(Option<crate::sync::Future<Result<()>>>);

#[cfg(not(loom))]
impl Drop for WaitsAndPanics {
    fn drop(&mut self) {
        let waits = self.0.take().unwrap();
        assert_eq!(waits.wait().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        panic!("dropped");
    }
}

#[cfg(not(loom))]
#[test]
fn what_is_in_a_mailbox_that_closes_may_wait_for_what_stands_behind_it_and_panic() {
    let mailbox = Mailbox::new(CoreId(0), None);
    let (first, first_ends) = crate::sync::promise::<Result<()>>();
    let (second, second_ends) = crate::sync::promise::<Result<()>>();
    let (cells, held) =
        ([first.result_cell(), second.result_cell()], WaitsAndPanics(Some(second_ends)));
    let [cell, cell_behind] = cells;
    let body = Box::new(move || drop((held, first)));
    mailbox.post(Message::Spawn { body, result: cell });
    mailbox.post(Message::Spawn { body: Box::new(move || drop(second)), result: cell_behind });
    mailbox.close();
    assert_eq!(first_ends.wait().unwrap().unwrap_err().kind(), ErrorKind::Closed);
}
