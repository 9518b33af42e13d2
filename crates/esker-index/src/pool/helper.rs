//! The helper: one thread that allocates slots ahead and frees those that are no longer read.
//!
//! It holds the pool weakly between two pieces of work only through the desk's lock, and ends when
//! the directory does. If it cannot be started, everything is done in line.

use super::{PAGE_SLOTS, Pool, Slots};
use crate::entry::FREE;
use crate::pages::zeroed;
use esker_base::sync::atomic::Ordering;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// What the helper and the inserts exchange.
#[derive(Debug, Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Free slots with their pages touched.
    spares: Vec<Slots>,
    /// Slots that nobody reads any more.
    retired: Vec<Slots>,
    /// The lengths of slots to keep ready, and how many of each.
    lengths: [usize; 2],
    wanted: usize,
    helper: Option<JoinHandle<()>>,
    stopping: bool,
}

impl State {
    fn lacks(&self, length: usize) -> bool {
        length > 0
            && self.lengths.contains(&length)
            && self.spares.iter().filter(|slots| slots.len() == length).count() < self.wanted
    }

    /// Takes free slots, which may be wanted no more.
    fn keep(&mut self, slots: Slots) {
        let keeps = self.lengths.contains(&slots.len());
        if keeps { self.spares.push(slots) } else { self.retired.push(slots) }
    }

    /// A length of which there are too few.
    fn missing(&self) -> Option<usize> {
        self.lengths.into_iter().find(|length| self.lacks(*length))
    }
}

impl Desk {
    pub(super) fn take(&self, length: usize) -> Option<Slots> {
        let mut state = self.state.lock();
        let place = state.spares.iter().position(|slots| slots.len() == length)?;
        let slots = state.spares.swap_remove(place);
        drop(state);
        self.work.notify_one();
        Some(slots)
    }

    /// Leaves slots to the helper; gives them back if there is none.
    pub(super) fn give_back(&self, slots: Slots) -> Option<Slots> {
        let mut state = self.state.lock();
        if state.helper.is_none() || state.stopping || !state.lengths.contains(&slots.len()) {
            return Some(slots);
        }
        state.retired.push(slots);
        drop(state);
        self.work.notify_one();
        None
    }

    pub(super) fn expect(&self, pool: &Arc<Pool>, wanted: usize, lengths: [usize; 2]) {
        let mut state = self.state.lock();
        if state.stopping || (state.wanted == wanted && state.lengths == lengths) {
            return;
        }
        state.wanted = wanted;
        state.lengths = lengths;
        if state.helper.is_none() {
            let pool = Arc::clone(pool);
            state.helper =
                Builder::new().name("esker-index".to_owned()).spawn(move || pool.help()).ok();
        }
        drop(state);
        self.work.notify_one();
    }

    /// Nothing is to be kept ready from now on; what was.
    pub(super) fn keep_nothing(&self) -> Vec<Slots> {
        let mut state = self.state.lock();
        (state.wanted, state.lengths) = (0, [0; 2]);
        std::mem::take(&mut state.spares)
    }

    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        let helper = state.helper.take();
        drop(state);
        self.work.notify_one();
        if let Some(helper) = helper {
            // A helper that panicked has nothing left that anybody waits for.
            let _ = helper.join();
        }
        let mut state = self.state.lock();
        state.retired.clear();
        state.spares.clear();
    }
}

impl Pool {
    /// The life of the helper.
    fn help(&self) {
        let mut state = self.desk.state.lock();
        while !state.stopping {
            if let Some(slots) = state.retired.pop() {
                let reuse = state.lacks(slots.len());
                drop(state);
                let bytes = slots.len() * size_of::<u64>();
                if reuse {
                    slots.iter().for_each(|slot| slot.store(FREE, Ordering::Relaxed));
                    self.desk.state.lock().keep(slots);
                } else {
                    drop(slots);
                    self.uncount(bytes);
                }
                state = self.desk.state.lock();
            } else if let Some(length) = state.missing() {
                drop(state);
                let slots = zeroed(length);
                self.count(length * size_of::<u64>());
                // Writing is what makes the kernel provide the page.
                slots
                    .iter()
                    .step_by(PAGE_SLOTS)
                    .for_each(|slot| slot.store(FREE, Ordering::Relaxed));
                state = self.desk.state.lock();
                state.keep(slots);
            } else {
                self.desk.work.wait(&mut state);
            }
        }
    }
}
