//! Calls when there is no thread for them.

use crate::config::Facility;
use crate::io::offload;
use crate::runtime::tests::runtime;
use crate::{context, sleep};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    /// Whether a thread that this one starts is refused.
    pub(super) static NO_THREADS: Cell<bool> = const { Cell::new(false) };
}

#[test]
fn without_a_thread_a_call_runs_in_its_task_and_may_wait() {
    for facility in Facility::ALL {
        let task = runtime(facility, 1).spawn(|| {
            NO_THREADS.set(true);
            offload(|| {
                let lent = context::is_lent();
                if !lent {
                    sleep(Duration::from_millis(1));
                }
                lent
            })
        });
        assert!(!task.join().unwrap(), "{facility}: the scheduler is borrowed");
    }
}
