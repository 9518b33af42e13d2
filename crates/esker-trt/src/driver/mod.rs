//! Drivers: what a core's loop asks of the kernel, by the facility that was found.
//!
//! A driver takes disk requests and standing watches of sockets, and turns completions into
//! [`Event`]s. It never runs tasks and never blocks unless told to wait.
//!
//! # Invariants
//! - D1: every disk request that a driver took yields exactly one `Event::Io`.
//! - D2: the memory of a request stays valid until its `Event::Io` was delivered: it belongs to
//!   the frame of a task that is parked until then (see `io`).
//!
//! Non-goals: a driver for user-space NVMe; it would be one more variant here.

pub(crate) mod aio;
pub(crate) mod epoll;
pub(crate) mod uring;

use crate::config::{Config, Facility};
use crate::sockets::{Readiness, SocketKey};
use crate::wake::Mailbox;
use esker_base::clock::{Clock, SystemClock};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// What a disk request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoKind {
    Read,
    Write {
        durable: bool,
    },
    SyncData,
    /// To a socket, as much as fits at once; with a header if there are several vectors.
    Send {
        header: *const libc::msghdr,
    },
}

/// One disk request, or a send that never waits. The pointers are good until its completion (D2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoRequest {
    pub(crate) kind: IoKind,
    pub(crate) fd: RawFd,
    pub(crate) vectors: *const libc::iovec,
    pub(crate) vector_count: u32,
    pub(crate) offset: u64,
}

/// Something that has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The disk request of a task has completed: bytes, or a negated error number.
    Io { task: u32, result: i32 },
    /// The send of a task has completed: bytes, or a negated error number.
    Sent { task: u32, result: i32 },
    /// A deadline may have passed.
    Timer,
    /// A socket became ready. `ended`: the watch is over and must be set again.
    Socket { key: SocketKey, readiness: Readiness, ended: bool },
}

/// Whether a poll may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    /// Until an event, a post to the mailbox, or the time on the system's monotonic clock.
    Until(Option<u64>),
}

/// How long it is until a time on the system's monotonic clock.
fn left_until(at_ns: u64) -> Duration {
    Duration::from_nanos(at_ns).saturating_sub(SystemClock.monotonic())
}

/// The driver of one core.
pub(crate) enum Driver {
    Uring(Box<uring::Uring>),
    Aio(Box<aio::Aio>),
    Sync(Box<epoll::Epoll>),
    /// A simulation has no kernel to talk to.
    None,
}

impl Driver {
    /// Builds the driver of a core, on that core's thread.
    pub(crate) fn build(
        facility: Facility,
        config: &Config,
        mailbox: &Mailbox,
    ) -> io::Result<Driver> {
        Ok(match facility {
            Facility::Uring | Facility::Inline => {
                Driver::Uring(Box::new(uring::Uring::new(config.queue_depth, mailbox)?))
            }
            Facility::Aio => Driver::Aio(Box::new(aio::Aio::new(config.queue_depth, mailbox)?)),
            Facility::Sync => Driver::Sync(Box::new(epoll::Epoll::new(mailbox)?)),
        })
    }

    /// Tasks run between two looks at the kernel, the clock and the mailbox.
    pub(crate) fn round_tasks(&self) -> usize {
        match self {
            Driver::Uring(driver) => driver.round.tasks(),
            Driver::Aio(driver) => driver.round.tasks(),
            // A look is a system call, and disk requests go to helper threads at once.
            Driver::Sync(_) | Driver::None => ROUND_TASKS_MAX,
        }
    }

    /// Takes a disk request, or gives it back when helper threads must do it.
    pub(crate) fn submit_io(&mut self, task: u32, request: IoRequest) -> Option<IoRequest> {
        match self {
            Driver::Uring(driver) => {
                driver.submit_io(task, request);
                None
            }
            Driver::Aio(driver) => driver.submit_io(task, request),
            Driver::Sync(_) | Driver::None => Some(request),
        }
    }

    /// Whether sends can be handed over as requests are, many with one call.
    pub(crate) fn sends_together(&self) -> bool {
        matches!(self, Driver::Uring(_))
    }

    /// Sends that were taken and not handed over yet.
    pub(crate) fn sends(&self) -> u32 {
        match self {
            Driver::Uring(driver) => driver.sends(),
            Driver::Aio(_) | Driver::Sync(_) | Driver::None => 0,
        }
    }

    /// Watches a socket until it is disarmed.
    pub(crate) fn arm(&mut self, key: SocketKey, fd: RawFd) -> io::Result<()> {
        match self {
            Driver::Uring(driver) => {
                driver.arm(key, fd);
                Ok(())
            }
            Driver::Aio(driver) => driver.epoll().arm(key, fd),
            Driver::Sync(driver) => driver.arm(key, fd),
            Driver::None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(crate) fn disarm(&mut self, key: SocketKey, fd: RawFd) {
        match self {
            Driver::Uring(driver) => driver.disarm(key),
            Driver::Aio(driver) => driver.epoll().disarm(fd),
            Driver::Sync(driver) => driver.disarm(fd),
            Driver::None => {}
        }
    }

    /// The next poll asks the kernel for events of sockets, whatever thrift says.
    pub(crate) fn look_next(&mut self) {
        match self {
            Driver::Sync(driver) => driver.look_next(),
            // These see in memory they share with the kernel whether there is something.
            Driver::Uring(_) | Driver::Aio(_) | Driver::None => {}
        }
    }

    /// After the last poll: what tasks disarmed last is closed when this returns.
    pub(crate) fn end(&mut self) {
        match self {
            Driver::Uring(driver) => driver.end(),
            Driver::Aio(_) | Driver::Sync(_) | Driver::None => {}
        }
    }

    /// Submits what was taken, and collects what has happened.
    pub(crate) fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        match self {
            Driver::Uring(driver) => driver.poll(wait, events),
            Driver::Aio(driver) => driver.poll(wait, events),
            Driver::Sync(driver) => driver.poll(wait, events),
            Driver::None => Ok(()),
        }
    }
}

/// The most tasks of a round.
const ROUND_TASKS_MAX: usize = 64;

/// How many tasks a core runs between two looks at the kernel.
///
/// A device often completes many requests at once. If all their tasks ran before the next requests were
/// handed over, the device would stand still meanwhile (a tenth of the rate on a virtual disk at depth
/// 32). But where nothing is in flight any more once the requests were handed over, because the
/// device works while the kernel takes them (compressed memory) or because only sockets are in use, nobody
/// waits for the next look, and system calls are what counts.
#[derive(Clone, Copy, Debug)]
struct Round {
    least: usize,
    tasks: usize,
}

impl Round {
    fn new(least: usize) -> Round {
        Round { least, tasks: least }
    }

    fn tasks(self) -> usize {
        self.tasks
    }

    /// Learns from a look: whether it left disk requests in flight.
    fn looked(&mut self, in_flight: bool) {
        self.tasks = if in_flight { self.least } else { (self.tasks * 2).min(ROUND_TASKS_MAX) };
    }
}

/// Packs a socket key into the 56 bits below a tag.
pub(crate) fn pack(tag: u8, key: SocketKey) -> u64 {
    u64::from(tag) << 56 | u64::from(key.index & 0x00ff_ffff) << 32 | u64::from(key.generation)
}

/// The tag and the key of [`pack`].
pub(crate) fn unpack(word: u64) -> (u8, SocketKey) {
    let low = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or(0);
    let tag = u8::try_from(word >> 56).unwrap_or(0);
    (tag, SocketKey { index: low(word >> 32) & 0x00ff_ffff, generation: low(word) })
}

#[cfg(test)]
mod tests;
