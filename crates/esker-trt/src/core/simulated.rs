//! The loop of a simulation: one ready task at a time, chosen by the seed; time jumps to the next
//! deadline when nothing is ready.

use super::Core;
use crate::sim::Ending;
use crate::task::{Task, TaskState};
use std::rc::Rc;

/// Steps that tasks may take after the body has returned, before they count as stuck.
const STEPS_AFTER_END_MAX: u64 = 1_000_000;

impl Core {
    /// Runs tasks until none is left, none can go on, or the simulation is halted.
    pub(crate) fn run_simulated(&self, body_ended: &dyn Fn() -> bool) -> Ending {
        let Some(sim) = self.sim() else { return Ending::Finished };
        let mut cancelled_at = None;
        loop {
            self.drain_mailbox();
            self.fire_timers();
            if sim.borrow().halted() {
                return Ending::Halted;
            }
            if self.live() == 0 {
                return Ending::Finished;
            }
            let steps = sim.borrow().steps();
            if cancelled_at.is_none() && body_ended() {
                cancelled_at = Some(steps);
                self.cancel();
            }
            if cancelled_at.is_some_and(|start| steps - start > STEPS_AFTER_END_MAX) {
                return Ending::Stuck(self.waiting("still runs: "));
            }
            let chosen = {
                let mut ready = self.ready.borrow_mut();
                let index = sim.borrow_mut().choose(ready.len());
                ready.swap_remove_back(index)
            };
            match chosen {
                Some(index) => {
                    sim.borrow_mut().step(index);
                    self.run_task(index);
                }
                None => {
                    let Some(at_ns) = self.timers.borrow_mut().next_ns() else {
                        return Ending::Stuck(self.waiting(""));
                    };
                    sim.borrow_mut().advance_to(at_ns);
                }
            }
        }
    }

    /// What every live task waits for, in words.
    fn waiting(&self, prefix: &str) -> String {
        const SHOWN: usize = 32;
        let tasks = self.tasks.borrow();
        let live = tasks.slots.iter().filter_map(|slot| slot.task.as_ref());
        let mut words: Vec<String> = live
            .clone()
            .take(SHOWN)
            .map(|task| match task.state.get() {
                TaskState::Parked => {
                    format!("{prefix}task {} waits for {}", task.id.index, task.waits_for.get())
                }
                _ => format!("{prefix}task {} is ready", task.id.index),
            })
            .collect();
        if tasks.live > SHOWN {
            words.push(format!("and {} more", tasks.live - SHOWN));
        }
        words.join(", ")
    }

    /// Unwinds the tasks that are left, so that what they own is dropped. Only a simulation may:
    /// none of its tasks has lent memory to the kernel.
    pub(crate) fn unwind_all(&self) {
        if self.sim().is_none() {
            return;
        }
        self.unwinding.set(true);
        loop {
            let next = {
                let tasks = self.tasks.borrow();
                tasks.slots.iter().find_map(|slot| slot.task.as_ref().map(Rc::clone))
            };
            let Some(task) = next else { break };
            self.unwind(&task);
            self.drain_mailbox();
        }
        self.ready.borrow_mut().clear();
        self.unwinding.set(false);
    }

    fn unwind(&self, task: &Rc<Task>) {
        task.state.set(TaskState::Running);
        self.current.replace(Some(Rc::clone(task)));
        if let Some(coroutine) = task.coroutine.borrow_mut().as_mut() {
            coroutine.force_unwind();
        }
        self.current.take();
        self.retire(task);
    }
}
