//! The sleep cell: with `--cfg loom` under every interleaving, else in plain runs.

use crate::wake::SleepCell;

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
