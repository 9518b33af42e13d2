//! The lazy heap of deadlines.

use crate::task::{Task, TaskId};
use crate::timer::{NEVER, Timers};
use std::rc::Rc;

fn task(index: u32) -> Rc<Task> {
    Rc::new(Task::new(TaskId { index, generation: 0 }))
}

#[test]
fn due_tasks_come_in_the_order_of_their_deadlines() {
    let (mut timers, tasks) = (Timers::default(), [task(0), task(1), task(2)]);
    for (task, at_ns) in tasks.iter().zip([30, 10, 20]) {
        timers.set(task, at_ns);
    }
    assert_eq!(timers.next_ns(), Some(10));
    assert!(timers.take_due(9).is_none());
    let order: Vec<u32> = std::iter::from_fn(|| timers.take_due(25)).map(|t| t.id.index).collect();
    assert_eq!(order, [1, 2]);
    assert_eq!(timers.next_ns(), Some(30));
}

#[test]
fn later_deadlines_of_a_busy_task_do_not_grow_the_heap() {
    let (mut timers, busy) = (Timers::default(), task(0));
    for at_ns in 100..10_000 {
        timers.set(&busy, at_ns);
    }
    assert_eq!(timers.heap.len(), 1);
    assert!(timers.take_due(9_000).is_none(), "the real deadline is later");
    assert_eq!(timers.next_ns(), Some(9_999));
    assert_eq!(timers.take_due(9_999).map(|task| task.id.index), Some(0));
    assert!(timers.is_empty());
}

#[test]
fn an_earlier_deadline_counts_and_a_cleared_one_does_not() {
    let (mut timers, task) = (Timers::default(), task(0));
    timers.set(&task, 50);
    timers.set(&task, 20);
    assert_eq!(timers.next_ns(), Some(20));
    task.deadline_ns.set(NEVER);
    assert_eq!(timers.next_ns(), None);
    timers.set(&task, 70);
    assert_eq!(timers.next_ns(), Some(70));
    drop(task);
    assert_eq!(timers.next_ns(), None);
}

#[test]
fn an_earlier_deadline_that_passes_leaves_no_entry_of_the_later_one() {
    let (mut timers, task) = (Timers::default(), task(0));
    for now in 0..10_000 {
        timers.set(&task, 1_000_000);
        timers.set(&task, now);
        assert!(timers.take_due(now).is_some());
    }
    assert!(timers.heap.len() < 200, "{}", timers.heap.len());
    timers.set(&task, 1_000_000);
    assert_eq!(timers.next_ns(), Some(1_000_000));
}
