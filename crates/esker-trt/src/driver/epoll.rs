//! epoll: sockets and the mailbox, for cores whose disk requests go elsewhere.
//!
//! # Invariants
//! - I1: the mailbox's eventfd is watched edge-triggered: every write is one event, so it is never
//!   read.

use crate::driver::{Event, Wait, left_until, pack, unpack};
use crate::sockets::{Readiness, SocketKey};
use crate::wake::Mailbox;
use rustix::event::{Timespec, epoll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

const TAG_SOCKET: u8 = 1;
const TAG_MAIL: u8 = 2;
const TAG_TIMER: u8 = 3;
const EVENTS_MAX: usize = 256;
/// A busy core asks epoll once in so many rounds: the call costs as much as several tasks.
const BUSY_ROUNDS: u32 = 4;

pub(crate) struct Epoll {
    epoll: OwnedFd,
    buffer: Vec<epoll::Event>,
    skipped: u32,
    watched: usize,
}

impl Epoll {
    pub(crate) fn new(mailbox: &Mailbox) -> io::Result<Epoll> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let buffer = Vec::with_capacity(EVENTS_MAX);
        let epoll = Epoll { epoll, buffer, skipped: 0, watched: 0 };
        if let Some(eventfd) = &mailbox.eventfd {
            epoll.watch(eventfd.as_fd(), TAG_MAIL)?;
        }
        Ok(epoll)
    }

    /// Reports `Event::Timer` when `timer` fires.
    pub(crate) fn watch_timer(&self, timer: BorrowedFd<'_>) -> io::Result<()> {
        self.watch(timer, TAG_TIMER)
    }

    fn watch(&self, fd: BorrowedFd<'_>, tag: u8) -> io::Result<()> {
        let data = epoll::EventData::new_u64(u64::from(tag) << 56);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(crate) fn arm(&mut self, key: SocketKey, fd: RawFd) -> io::Result<()> {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(pack(TAG_SOCKET, key));
        let fd = super::uring::borrow(&fd);
        match epoll::add(&self.epoll, fd, data, flags) {
            // A stream that was here before: what is watched is known by file and number, and this core got a duplicate with
            // another number to stop watching it.
            Err(rustix::io::Errno::EXIST) => epoll::modify(&self.epoll, fd, data, flags)?,
            added => added?,
        }
        self.watched += 1;
        Ok(())
    }

    pub(crate) fn disarm(&mut self, fd: RawFd) {
        // Fails for a duplicate, of a stream that went to another core: see `arm`. What it announces until then has a key
        // that nobody has any more.
        let _ = epoll::delete(&self.epoll, super::uring::borrow(&fd));
        self.watched = self.watched.saturating_sub(1);
    }

    /// The next poll is not one of those that are left out.
    pub(crate) fn look_next(&mut self) {
        self.skipped = BUSY_ROUNDS;
    }

    /// As after as many polls as can be counted.
    #[cfg(test)]
    pub(crate) fn skipped_for_ever(&mut self) {
        self.skipped = u32::MAX;
    }

    pub(crate) fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        let timeout = match wait {
            Wait::No => {
                self.skipped = self.skipped.saturating_add(1);
                if self.watched == 0 || self.skipped < BUSY_ROUNDS {
                    return Ok(());
                }
                Some(Timespec::default())
            }
            Wait::Until(at_ns) => {
                // The wait may end by the time, which is no event of epoll.
                events.extend(at_ns.map(|_| Event::Timer));
                at_ns.map(|at_ns| {
                    Timespec::try_from(left_until(at_ns))
                        .unwrap_or(Timespec { tv_sec: i64::from(u32::MAX), tv_nsec: 0 })
                })
            }
        };
        self.take(timeout.as_ref(), events)
    }

    /// One `epoll_wait`, without thrift.
    pub(crate) fn take(
        &mut self,
        timeout: Option<&Timespec>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        self.skipped = 0;
        self.buffer.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.buffer);
        match epoll::wait(&self.epoll, spare, timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.buffer {
            let flags = event.flags;
            let (tag, key) = unpack(event.data.u64());
            if tag == TAG_SOCKET {
                let bits = flags.bits();
                events.push(Event::Socket { key, readiness: readiness(bits), ended: false });
            } else if tag == TAG_TIMER {
                events.push(Event::Timer);
            }
        }
        Ok(())
    }
}

/// Readiness from the bits of poll or epoll, which agree.
pub(crate) fn readiness(bits: u32) -> Readiness {
    let has = |flag: i16| bits & u32::try_from(flag).unwrap_or(0) != 0;
    let broken = has(libc::POLLHUP) || has(libc::POLLERR);
    Readiness {
        readable: has(libc::POLLIN) || broken,
        writable: has(libc::POLLOUT) || broken,
        hangup: broken || has(libc::POLLRDHUP),
    }
}
