//! What tasks hold that could not be started, until a thread drops it.
//!
//! A core that refuses a task which came from elsewhere has no stack for what is dropped with it, and that may wait for a task of
//! this very core. The thread starts with the first of them and ends with the last; helper threads are none for this, for the
//! task that is waited for may need one.
//!
//! # Failure
//! Where no thread can be started, what is there stays until the next one is refused, or the core goes.

use crate::task::contain;
use crate::wake::RemoteBody;
use parking_lot::Mutex as Lock;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Default)]
struct Queue {
    bodies: VecDeque<RemoteBody>,
    has_thread: bool,
}

/// What a core has refused; see the module's text.
#[derive(Default)]
pub(crate) struct Refused(Lock<Queue>);

impl Refused {
    /// Has the thread drop what a task would have run.
    pub(crate) fn add(self: &Arc<Self>, body: RemoteBody) {
        let mut queue = self.0.lock();
        queue.bodies.push_back(body);
        if !queue.has_thread {
            let refused = Arc::clone(self);
            let thread = std::thread::Builder::new().name("esker-refused".to_owned());
            queue.has_thread = thread.spawn(move || refused.run()).is_ok();
        }
    }

    fn run(&self) {
        while let Some(body) = self.next() {
            contain(|| drop(body));
        }
    }

    fn next(&self) -> Option<RemoteBody> {
        let mut queue = self.0.lock();
        let body = queue.bodies.pop_front();
        queue.has_thread = body.is_some();
        body
    }
}
