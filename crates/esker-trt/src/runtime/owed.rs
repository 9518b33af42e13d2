//! The results that tasks of one core owe to others, for a shutdown that gives them up.
//!
//! # Invariants
//! - I1: once the results were given up none is added, so that nobody waits for a core that does not come round.
//!
//! # Concurrency
//! Any thread may add. No lock is held while a result fails, which wakes who waits for it.

use crate::task::contain;
use crate::wake::RemoteResult;
use esker_base::{Error, ErrorKind};
use parking_lot::Mutex as Lock;
use std::sync::{Arc, Weak};

/// So many are kept before the first look at which are over.
const LOOK_MIN: usize = 64;

#[derive(Default)]
struct List {
    results: Vec<Weak<dyn RemoteResult>>,
    /// At this length those that are over are taken out: twice what was left the last time, so that a spawn looks at two.
    look_at: usize,
    given_up: bool,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Owed(Lock<List>);

impl Owed {
    /// Notes the result of a task that is about to be posted. False: those of this core were given up.
    pub(super) fn add(&self, result: &Arc<dyn RemoteResult>) -> bool {
        let mut list = self.0.lock();
        if list.given_up {
            return false;
        }
        if list.results.len() >= list.look_at {
            list.results.retain(|result| result.strong_count() > 0);
            list.look_at = (list.results.len() * 2).max(LOOK_MIN);
        }
        list.results.push(Arc::downgrade(result));
        true
    }

    /// Fails those that are not there yet with `Cancelled`.
    pub(super) fn give_up(&self) {
        let results = {
            let mut list = self.0.lock();
            list.given_up = true;
            std::mem::take(&mut list.results)
        };
        for result in results.iter().filter_map(Weak::upgrade) {
            let error = Error::new(ErrorKind::Cancelled, "run task");
            result.refuse(error.context("not ended when the shutdown's time was over"));
            // It may have come meanwhile, and be nobody else's any more.
            contain(|| drop(result));
        }
    }
}
