//! What drivers share.

use crate::driver::{epoll, pack, unpack};
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
