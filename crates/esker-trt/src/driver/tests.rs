//! What drivers share.

use crate::driver::{ROUND_TASKS_MAX, Round, epoll, pack, unpack};
use crate::sockets::{Readiness, SocketKey};

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
