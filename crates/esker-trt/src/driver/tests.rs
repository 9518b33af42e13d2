//! What drivers share.

use crate::driver::uring::Uring;
use crate::driver::{ROUND_TASKS_MAX, Round, Wait, epoll, pack, unpack};
use crate::sockets::{Readiness, SocketKey};
use crate::wake::{Mailbox, Message};
use esker_base::clock::{Clock, SystemClock};
use esker_base::ids::CoreId;
use rustix::event::{EventfdFlags, eventfd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

#[test]
fn keys_survive_the_kernel() {
    let key = SocketKey { index: 0x00ab_cdef, generation: 0xfedc_ba98 };
    assert_eq!(unpack(pack(200, key)), (200, key));
}

#[test]
fn poll_bits_become_readiness() {
    let bits = |flag: i16| epoll::readiness(u32::try_from(flag).unwrap());
    let readable = Readiness { readable: true, ..Readiness::default() };
    assert_eq!(bits(libc::POLLIN), readable);
    assert_eq!(bits(libc::POLLRDHUP), Readiness { hangup: true, ..Readiness::default() });
    let all = Readiness { readable: true, writable: true, hangup: true };
    assert_eq!(bits(libc::POLLERR), all);
    assert_eq!(bits(libc::POLLHUP), all);
}

#[test]
fn rounds_are_short_only_while_requests_are_in_flight() {
    let mut round = Round::new(2);
    let lengths: Vec<usize> = [true, false, false, true, false]
        .into_iter()
        .map(|in_flight| {
            round.looked(in_flight);
            round.tasks()
        })
        .collect();
    assert_eq!(lengths, [2, 4, 8, 2, 4]);
    (0..100).for_each(|_| round.looked(false));
    assert_eq!(round.tasks(), ROUND_TASKS_MAX);
}

/// A mailbox, and a ring of one entry, which the watch of the mailbox fills; `None` where there is no io_uring.
fn full_ring() -> Option<(Mailbox, Uring)> {
    let roused = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let mailbox = Mailbox::new(CoreId(0), Some(roused));
    match Uring::new(1, &mailbox) {
        Ok(ring) => Some((mailbox, ring)),
        Err(error) => {
            crate::skipped::because(format_args!("no io_uring here: {error}"));
            None
        }
    }
}

/// How long the ring waits for at most five seconds.
fn waits(ring: &mut Uring) -> Duration {
    let before = SystemClock.monotonic();
    let end = before + Duration::from_secs(5);
    let end_ns = u64::try_from(end.as_nanos()).unwrap();
    ring.poll(Wait::Until(Some(end_ns)), &mut Vec::new()).unwrap();
    SystemClock.monotonic() - before
}

#[test]
fn mail_heard_of_while_a_full_queue_is_handed_over_ends_the_wait() {
    let Some((mailbox, mut ring)) = full_ring() else { return };
    mailbox.sleep.announce();
    mailbox.post(Message::Look);
    // The timer of the wait needs the entry; to hand the watch over tells of the mail.
    let waited = waits(&mut ring);
    assert!(waited < Duration::from_secs(1), "{waited:?}");
}

#[test]
fn a_poll_that_is_left_out_for_long_is_counted_without_end() {
    let mailbox = Mailbox::new(CoreId(0), None);
    let mut epoll = epoll::Epoll::new(&mailbox).unwrap();
    epoll.skipped_for_ever();
    assert!(epoll.poll(Wait::No, &mut Vec::new()).is_ok());
}

/// In a child process, which ends: this test binary calls itself.
#[test]
fn a_ring_that_takes_nothing_any_more_ends_the_process() {
    const CHILD: &str = "ESKER_TRT_RING";
    const NAME: &str = "driver::tests::a_ring_that_takes_nothing_any_more_ends_the_process";
    let Some((_mailbox, mut ring)) = full_ring() else { return };
    if std::env::var_os(CHILD).is_some() {
        ring.lose();
        return ring.disarm(SocketKey { index: 0, generation: 0 });
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "fails")
        .spawn()
        .unwrap();
    let ended = (0..500).find_map(|_| {
        crate::sleep(Duration::from_millis(10));
        child.try_wait().unwrap()
    });
    if ended.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(ended.map(|status| status.signal()), Some(Some(libc::SIGABRT)));
}
