//! Which core and which task the calling thread runs, and the one place where a task suspends.
//!
//! # Safety invariants
//! - S1: a task's yielder lies at the root of that task's stack and lives until its body returns.
//!   It is only used by code that runs on that stack: `current` names the task whose stack is in
//!   use, because the scheduler sets it before it resumes a task and clears it afterwards.
//! - S2: a task is resumed by one thread only, its core's; a thread-local address that the
//!   compiler keeps in a register over a suspension therefore stays right.
//!
//! # Concurrency
//! Thread-local; a thread that ends and has dropped it already is one without a core. The borrow of the thread-local is never held over a suspension.
#![expect(unsafe_code, reason = "uses the yielder at the root of the running task's stack")]

use crate::core::Core;
use crate::task::Task;
use corosensei::Yielder;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// Runs `f` on the core of this thread. `f` must not suspend.
pub(crate) fn with<R>(f: impl FnOnce(&Core) -> R) -> Option<R> {
    CURRENT.try_with(|core| core.borrow().as_ref().map(|core| f(core))).ok().flatten()
}

/// Runs `f` on the core and the running task of this thread. `f` must not suspend.
pub(crate) fn with_task<R>(f: impl FnOnce(&Core, &Rc<Task>) -> R) -> Option<R> {
    with(|core| core.with_current(|task| f(core, task))).flatten()
}

/// Whether somebody uses the core of this thread, so that nothing may suspend.
#[cfg(test)]
pub(crate) fn is_lent() -> bool {
    CURRENT.with(|core| core.try_borrow_mut().is_err())
}

/// Makes `core` the core of this thread until the guard goes.
pub(crate) fn enter(core: Rc<Core>) -> Entered {
    Entered { previous: CURRENT.with_borrow_mut(|current| current.replace(core)) }
}

pub(crate) struct Entered {
    previous: Option<Rc<Core>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let previous = self.previous.take();
        let left = CURRENT.with_borrow_mut(|current| std::mem::replace(current, previous));
        drop(left);
    }
}

/// Suspends the running task until it is woken or `limit` passes. False: no task runs here.
pub(crate) fn park_task(why: &'static str, limit: Option<Duration>) -> bool {
    let yielder =
        with_task(|core, task| core.prepare_park(task, why, limit).then(|| task.yielder.get()));
    let Some(yielder) = yielder else { return false };
    if let Some(yielder) = yielder {
        suspend(yielder);
        with_task(|_, task| task.unparked());
    }
    true
}

/// Suspends the running task until the completion of its disk request was delivered, and takes it.
/// `None`: no task runs here.
pub(crate) fn park_for_completion(why: &'static str) -> Option<i32> {
    loop {
        let step = with_task(|core, task| match task.io_result.take() {
            Some(result) => {
                task.unparked();
                Ok(result)
            }
            None => {
                // A left-over token must not be mistaken for the completion: look again.
                let parks = core.prepare_park(task, why, None);
                Err(if parks { task.yielder.get() } else { std::ptr::null() })
            }
        });
        match step? {
            Ok(result) => return Some(result),
            Err(yielder) => suspend(yielder),
        }
    }
}

/// Lets the other ready tasks of the core run first. False: no task runs here.
pub(crate) fn yield_task() -> bool {
    let yielder = with_task(|core, task| {
        core.prepare_yield(task);
        task.yielder.get()
    });
    let in_task = yielder.is_some();
    if let Some(yielder) = yielder {
        suspend(yielder);
    }
    in_task
}

/// Counts work of the running task, in bytes of a transfer, and suspends it if it has had its share of the core
/// since it was resumed.
pub(crate) fn work(bytes: usize) {
    if with(|core| core.worked(bytes)) != Some(true) || std::thread::panicking() {
        return;
    }
    let yielder = with_task(|core, task| {
        core.prepare_give_way(task);
        task.yielder.get()
    });
    if let Some(yielder) = yielder {
        suspend(yielder);
    }
}

/// Counts work of the running task, and leaves it running.
pub(crate) fn worked(bytes: usize) {
    with(|core| core.worked(bytes));
}

/// Switches to the scheduler. `yielder` is the running task's, or null for no switch.
fn suspend(yielder: *const Yielder<(), ()>) {
    if yielder.is_null() {
        return;
    }
    // SAFETY: the running task's own yielder, alive because its body has not returned (S1).
    let yielder = unsafe { &*yielder };
    yielder.suspend(());
}
