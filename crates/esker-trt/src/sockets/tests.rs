//! Flags and waiters of watched sockets.

use crate::sockets::{Interest, Readiness, Sockets};
use crate::task::TaskId;

const TASK: TaskId = TaskId { index: 7, generation: 1 };

#[test]
fn an_event_wakes_those_who_wait_for_it_only() {
    let mut sockets = Sockets::default();
    let key = sockets.insert(3);
    sockets.add_waiter(key, Interest::Read, TASK);
    let mut woken = Vec::new();
    let writable = Readiness { writable: true, ..Readiness::default() };
    assert_eq!(sockets.report(key, writable, |task| woken.push(task)), Some(3));
    assert!(woken.is_empty() && sockets.is_ready(key, Interest::Write));
    let readable = Readiness { readable: true, ..Readiness::default() };
    sockets.report(key, readable, |task| woken.push(task));
    assert_eq!(woken, [TASK]);
}

#[test]
fn the_peers_end_is_not_forgotten_by_a_short_read() {
    let mut sockets = Sockets::default();
    let key = sockets.insert(3);
    let ended = Readiness { readable: true, writable: false, hangup: true };
    sockets.report(key, ended, |_| ());
    sockets.drained(key, Interest::Read, false);
    assert!(sockets.is_ready(key, Interest::Read));
    assert!(!sockets.is_ready(key, Interest::Write), "writing to a half-closed peer may wait");
    sockets.drained(key, Interest::Read, true);
    assert!(!sockets.is_ready(key, Interest::Read));
}

#[test]
fn events_of_an_earlier_socket_in_the_same_place_are_ignored() {
    let mut sockets = Sockets::default();
    let old = sockets.insert(3);
    sockets.remove(old);
    let new = sockets.insert(4);
    assert_eq!(old.index, new.index);
    let all = Readiness { readable: true, writable: true, hangup: true };
    assert_eq!(sockets.report(old, all, |_| ()), None);
    assert!(!sockets.is_ready(new, Interest::Read));
}
