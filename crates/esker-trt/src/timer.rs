//! Deadlines of parked tasks.
//!
//! A task has at most one deadline at a time, but a busy connection sets a new, later one for
//! every request. So the heap is lazy: it holds one entry a task, which is pushed back when it
//! comes up before the task's real deadline. Setting a later deadline costs nothing.
//!
//! # Invariants
//! - I1: a task with a deadline has an entry at or before it (`Task::armed_ns`); entries that do
//!   not match `armed_ns` are dead and dropped when they come up, or when they may be half of all.

use crate::task::Task;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::{Rc, Weak};

/// So many entries are no matter, dead or not.
const CLEAN_UP_MIN: usize = 64;
/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

struct Entry {
    at_ns: u64,
    sequence: u64,
    task: Weak<Task>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    /// Entries that were left after the last clean-up.
    left: usize,
}

impl Timers {
    /// Gives `task` a deadline.
    pub(crate) fn set(&mut self, task: &Rc<Task>, at_ns: u64) {
        task.deadline_ns.set(at_ns);
        if at_ns < task.armed_ns.get() {
            self.push(task, at_ns);
        }
    }

    fn push(&mut self, task: &Rc<Task>, at_ns: u64) {
        task.armed_ns.set(at_ns);
        self.sequence += 1;
        let entry = Entry { at_ns, sequence: self.sequence, task: Rc::downgrade(task) };
        self.heap.push(Reverse(entry));
        if self.heap.len() > (2 * self.left).max(CLEAN_UP_MIN) {
            // Dead entries of far deadlines would stay until then.
            let lives = |entry: &Entry| {
                entry.task.upgrade().is_some_and(|task| task.armed_ns.get() == entry.at_ns)
            };
            self.heap.retain(|Reverse(entry)| lives(entry));
            self.left = self.heap.len();
        }
    }

    /// The earliest real deadline, after dropping and pushing back what stands before it.
    pub(crate) fn next_ns(&mut self) -> Option<u64> {
        while let Some(Reverse(entry)) = self.heap.peek() {
            let at_ns = entry.at_ns;
            let live = entry.task.upgrade().filter(|task| task.armed_ns.get() == at_ns);
            match live {
                Some(task) if task.deadline_ns.get() == at_ns => return Some(at_ns),
                Some(task) => {
                    self.heap.pop();
                    let real_ns = task.deadline_ns.get();
                    task.armed_ns.set(NEVER);
                    if real_ns != NEVER {
                        self.push(&task, real_ns);
                    }
                }
                None => {
                    self.heap.pop();
                }
            }
        }
        None
    }

    /// Takes one task whose deadline has passed; its deadline is cleared.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<Rc<Task>> {
        // The first look is at the raw heap, so that a busy core pays for no push-backs.
        if self.heap.peek().is_none_or(|Reverse(entry)| entry.at_ns > now_ns) {
            return None;
        }
        let at_ns = self.next_ns()?;
        if at_ns > now_ns {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        let task = entry.task.upgrade()?;
        task.armed_ns.set(NEVER);
        task.deadline_ns.set(NEVER);
        Some(task)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests;
