//! How many requests the kernel has, and what an idle core hears meanwhile.

use super::{Aio, CMD_POLL, Request};
use crate::driver::{Event, Wait};
use crate::wake::{Mailbox, Message};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Longer than a machine takes that has much else to do.
const LIMIT: Duration = Duration::from_secs(20);

fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// A request that completes when somebody writes to `fd`: a disk that does not answer, and then does.
fn stuck(task: u32, fd: &OwnedFd) -> Request {
    Request {
        data: u64::from(task),
        opcode: CMD_POLL,
        fd: u32::try_from(fd.as_raw_fd()).unwrap(),
        buffer: u64::try_from(libc::POLLIN).unwrap(),
        ..Request::default()
    }
}

/// A driver of depth 2 hears of time and of its mailbox, again and again, while 1000 requests wait for a disk.
fn hears_while_the_disk_is_stuck(mailbox: &Mailbox) {
    let disk = new_eventfd();
    let mut aio = Aio::new(2, mailbox).unwrap();
    (0..1000).for_each(|task| aio.unsubmitted.push_back(stuck(task, &disk)));
    let mut events = Vec::new();
    for round in 0..5 {
        let now = u64::try_from(SystemClock.monotonic().as_nanos()).unwrap();
        while !events.iter().any(|event| matches!(event, Event::Timer)) {
            aio.poll(Wait::Until(Some(now + 2_000_000)), &mut events).unwrap();
            assert_eq!(aio.in_flight, 2, "round {round}");
        }
        events.clear();
        // As a core does that announced its sleep: else nobody rouses it.
        mailbox.sleep.announce();
        mailbox.post(Message::Look);
        aio.poll(Wait::Until(None), &mut events).unwrap();
        assert!(mailbox.take().is_some());
        events.clear();
    }
    rustix::io::write(&disk, &1_u64.to_le_bytes()).unwrap();
    let mut completed = 0;
    while completed < 1000 {
        aio.poll(Wait::Until(None), &mut events).unwrap();
        completed += events.drain(..).filter(|event| matches!(event, Event::Io { .. })).count();
        assert!(aio.in_flight <= 2);
    }
    assert_eq!((completed, aio.in_flight), (1000, 0));
}

#[test]
fn a_disk_that_does_not_answer_leaves_the_core_its_ears() {
    let mailbox = Arc::new(Mailbox::new(CoreId(0), Some(new_eventfd())));
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().spawn(move || {
        hears_while_the_disk_is_stuck(&mailbox);
        sender.send(()).unwrap();
    });
    match receiver.recv_timeout(LIMIT) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the core hears nothing"),
        _ => thread.unwrap().join().unwrap(),
    }
}
