//! Calls when there is no thread for them.

use crate::config::Facility;
use crate::io::offload;
use crate::runtime::tests::runtime;
use crate::sync::Gate;
use crate::{context, sleep};
use std::cell::Cell;
use std::sync::{Arc, mpsc};
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

/// Tells when its thread ends.
struct Tells(Cell<Option<mpsc::Sender<()>>>);

impl Drop for Tells {
    fn drop(&mut self) {
        if let Some(ended) = self.0.take() {
            ended.send(()).unwrap();
        }
    }
}

thread_local! {
    static TELLS: Tells = const { Tells(Cell::new(None)) };
}

#[test]
fn helpers_end_when_the_last_handle_of_their_run_time_goes_in_one_of_its_tasks() {
    let runtime = Arc::new(runtime(Facility::Sync, 2));
    let (sender, ended) = mpsc::channel();
    let (handle, gate) = (Arc::clone(&runtime), Arc::new(Gate::new()));
    let inner = Arc::clone(&gate);
    let task = runtime.spawn(move || {
        offload(|| TELLS.with(|tells| tells.0.set(Some(sender))));
        inner.wait();
        drop(handle);
    });
    drop(runtime);
    gate.open();
    task.join().unwrap();
    assert_eq!(ended.recv_timeout(Duration::from_secs(5)), Ok(()));
}
