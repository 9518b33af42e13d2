//! io_uring: disk and sockets of one core through one ring.
//!
//! Requests gather in the submission queue while tasks run; one `io_uring_enter` a round hands
//! them over and, if the core is idle, waits for the first completion in the same call. Sockets
//! are watched by one multishot poll each. The mailbox's eventfd is one more of those.
//!
//! # Safety invariants
//! - S1: the memory a disk request names belongs to the frame of a task that is parked until the
//!   request's completion was delivered (D2 of the driver module); a core drops no such task.
//! - S2: the ring is used by the thread that made it, and only through this struct.
//! - S3: a raw descriptor given to this module is open for the length of the call, because the
//!   caller holds its owner.
//!
//! # Failure
//! A full completion queue loses nothing (`IORING_FEAT_NODROP` is required); a refused entry is
//! completed with the kernel's error.
#![expect(unsafe_code, reason = "pushes requests whose buffers the kernel will use")]

use crate::die::die;
use crate::driver::{Event, IoKind, IoRequest, Round, Wait, epoll, left_until, pack, unpack};
use crate::sockets::SocketKey;
use crate::wake::Mailbox;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

const TAG_IO: u8 = 1;
const TAG_SOCKET: u8 = 2;
const TAG_MAIL: u8 = 3;
const TAG_TIMER: u8 = 4;
const TAG_NONE: u8 = 5;
const TAG_SEND: u8 = 6;
/// A send takes what fits and says so at once: its completion is there when it was handed over.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

const ENTER_GETEVENTS: u32 = 1;

/// From this many disk requests in flight, the core offers its processor before it sleeps.
///
/// A device that cannot start a request without blocking (zram; a buffered file) has the kernel's
/// workers do it, on this very processor. A core that sleeps at once is woken by the first of them
/// that is done, for one completion; one that stays runnable lets them do all they have.
const YIELD_IN_FLIGHT_MIN: u32 = 4;

pub(crate) struct Uring {
    ring: IoUring,
    eventfd: Option<RawFd>,
    /// Entries pushed since the last `io_uring_enter`.
    unsubmitted: u32,
    /// Disk requests that have not completed.
    in_flight: u32,
    /// Sends that have not completed.
    sends: u32,
    pub(super) round: Round,
    words: &'static str,
    /// Events taken while a request was being pushed.
    early: Vec<Event>,
    /// The kernel ended the watch of the mailbox.
    mailbox_ended: bool,
    /// Since the last look began, the mailbox's eventfd has told of a message: it does not tell twice.
    mail_heard: bool,
    /// The ring as `io_uring_enter` is told of it, and the flag that says how.
    enter_as: (RawFd, u32),
    /// Timeout requests in flight, the earliest last.
    timers: Vec<Timer>,
    timer_sequence: u32,
    /// Read by the kernel when it takes the entry, which is in the call that follows.
    timer_limit: Box<types::Timespec>,
}

struct Timer {
    at_ns: u64,
    sequence: u32,
}

/// Borrows a descriptor that the caller's caller keeps open.
pub(crate) fn borrow(fd: &RawFd) -> BorrowedFd<'_> {
    // SAFETY: open for the length of the call (S3).
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

impl Uring {
    /// Makes a ring with the best flags the kernel has, on the thread that will use it.
    pub(crate) fn new(queue_depth: u32, mailbox: &Mailbox) -> io::Result<Uring> {
        let (ring, words) = build_ring(queue_depth)?;
        if !ring.params().is_feature_nodrop() {
            return Err(io::Error::other("kernel drops completions when the queue is full"));
        }
        let eventfd = mailbox.eventfd.as_ref().map(AsRawFd::as_raw_fd);
        let enter_as = register_ring(&ring);
        let mut uring = Uring {
            ring,
            enter_as,
            eventfd,
            unsubmitted: 0,
            in_flight: 0,
            sends: 0,
            round: Round::new(4),
            words,
            early: Vec::new(),
            mailbox_ended: false,
            mail_heard: false,
            timers: Vec::new(),
            timer_sequence: 0,
            timer_limit: Box::default(),
        };
        uring.arm_mailbox();
        Ok(uring)
    }

    /// The flags of the ring, in words.
    pub(crate) fn words(&self) -> &'static str {
        self.words
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: memory named by the entry outlives the request (S1).
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.unsubmitted += 1;
                return;
            }
            // The queue is full: hand it over. Completions are taken too, because a kernel that is short of room for
            // them takes no requests.
            if let Err(error) = self.enter(0) {
                die(format_args!("esker-trt: a ring takes no requests any more: {error}"));
            }
            let mut early = std::mem::take(&mut self.early);
            self.reap(&mut early);
            self.early = early;
        }
    }

    /// Sends that have not completed.
    pub(crate) fn sends(&self) -> u32 {
        self.sends
    }

    fn submit_send(&mut self, task: u32, request: &IoRequest, header: *const libc::msghdr) {
        let fd = types::Fd(request.fd);
        let entry = if header.is_null() {
            let (base, length) = single(request.vectors);
            opcode::Send::new(fd, base, length).flags(SEND_FLAGS).build()
        } else {
            let flags = u32::try_from(SEND_FLAGS).unwrap_or(0);
            opcode::SendMsg::new(fd, header).flags(flags).build()
        };
        self.sends += 1;
        self.push(&entry.user_data(u64::from(TAG_SEND) << 56 | u64::from(task)));
    }

    pub(crate) fn submit_io(&mut self, task: u32, request: IoRequest) {
        let fd = types::Fd(request.fd);
        let entry = match request.kind {
            IoKind::Send { header } => return self.submit_send(task, &request, header),
            IoKind::SyncData => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            IoKind::Read if request.vector_count == 1 => {
                let (base, length) = single(request.vectors);
                opcode::Read::new(fd, base, length).offset(request.offset).build()
            }
            IoKind::Read => opcode::Readv::new(fd, request.vectors, request.vector_count)
                .offset(request.offset)
                .build(),
            IoKind::Write { durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                if request.vector_count == 1 {
                    let (base, length) = single(request.vectors);
                    opcode::Write::new(fd, base, length)
                        .offset(request.offset)
                        .rw_flags(flags)
                        .build()
                } else {
                    opcode::Writev::new(fd, request.vectors, request.vector_count)
                        .offset(request.offset)
                        .rw_flags(flags)
                        .build()
                }
            }
        };
        self.in_flight += 1;
        self.push(&entry.user_data(u64::from(TAG_IO) << 56 | u64::from(task)));
    }

    fn push_poll(&mut self, fd: RawFd, events: i16, user_data: u64) {
        let bits = u32::try_from(events).unwrap_or(0);
        let entry = opcode::PollAdd::new(types::Fd(fd), bits).multi(true).build();
        self.push(&entry.user_data(user_data));
    }

    fn arm_mailbox(&mut self) {
        if let Some(eventfd) = self.eventfd {
            self.push_poll(eventfd, libc::POLLIN, u64::from(TAG_MAIL) << 56);
        }
    }

    pub(crate) fn arm(&mut self, key: SocketKey, fd: RawFd) {
        let events = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
        self.push_poll(fd, events, pack(TAG_SOCKET, key));
        // The poll takes its own reference to the socket when the kernel sees the entry; until
        // then the descriptor must not be closed, so the entry goes at once.
        let _ = self.enter(0);
    }

    pub(crate) fn disarm(&mut self, key: SocketKey) {
        // Not `PollRemove`: that one gives up with EALREADY when an event of the poll is just being
        // delivered, and the poll then holds the socket open for ever.
        let entry = opcode::AsyncCancel::new(pack(TAG_SOCKET, key)).build();
        self.push(&entry.user_data(u64::from(TAG_NONE) << 56));
    }

    /// Sees to it that a wait ends by the deadline.
    ///
    /// A time limit of the wait itself would be set up and torn down for every disk request; a
    /// timeout request stands until it fires, and a new one is made only for an earlier deadline.
    fn arm_timer(&mut self, at_ns: u64) {
        if self.timers.last().is_some_and(|timer| timer.at_ns <= at_ns) {
            return;
        }
        self.timer_sequence = self.timer_sequence.wrapping_add(1);
        *self.timer_limit = types::Timespec::from(left_until(at_ns));
        let entry = opcode::Timeout::new(&raw const *self.timer_limit).build();
        let sequence = self.timer_sequence;
        self.timers.push(Timer { at_ns, sequence });
        self.push(&entry.user_data(u64::from(TAG_TIMER) << 56 | u64::from(sequence)));
    }

    /// `io_uring_enter`: submits everything, runs deferred work, waits for `min_complete`.
    fn enter(&mut self, min_complete: u32) -> io::Result<()> {
        let (ring, flags) = self.enter_as;
        let nothing: *const libc::c_void = ptr::null();
        // SAFETY: our own ring, and no extended argument.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                ring,
                self.unsubmitted,
                min_complete,
                flags | ENTER_GETEVENTS,
                nothing,
                0_usize,
            )
        };
        if let Ok(submitted) = u32::try_from(result) {
            self.unsubmitted = self.unsubmitted.saturating_sub(submitted);
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // A signal; or the completion queue, or memory, is short for now: reap first.
            Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => {
                self.unsubmitted = self.pending();
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// As if the kernel had lost the ring.
    #[cfg(test)]
    pub(crate) fn lose(&mut self) {
        self.enter_as = (-1, 0);
    }

    fn pending(&mut self) -> u32 {
        u32::try_from(self.ring.submission().len()).unwrap_or(0)
    }

    pub(crate) fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        // What was heard before, the core has looked for since.
        self.mail_heard = false;
        if self.mailbox_ended {
            self.mailbox_ended = false;
            self.arm_mailbox();
        }
        match wait {
            Wait::Until(at_ns) if self.early.is_empty() && self.ring.completion().is_empty() => {
                if let Some(at_ns) = at_ns {
                    self.arm_timer(at_ns);
                }
                // To arm it may have taken room in a full queue, and with that what was done meanwhile: events, or
                // the word that there is mail, which leaves none.
                let waits = self.early.is_empty() && !self.mail_heard;
                if waits && self.in_flight >= YIELD_IN_FLIGHT_MIN {
                    self.enter(0)?;
                    std::thread::yield_now();
                }
                self.enter(u32::from(waits))?;
            }
            _ => {
                let must_enter = self.unsubmitted > 0 || {
                    let queue = self.ring.submission();
                    queue.taskrun() || queue.cq_overflow()
                };
                if must_enter {
                    self.enter(0)?;
                }
            }
        }
        events.append(&mut self.early);
        self.reap(events);
        self.round.looked(self.in_flight > 0);
        Ok(())
    }

    /// Hands over what was pushed last, and once more for the deferred work that lets go what was cancelled: the kernel
    /// takes a ring down when it likes, and a socket that it still watched would stay open until then.
    pub(crate) fn end(&mut self) {
        loop {
            let left = self.unsubmitted;
            if self.enter(0).is_err() || left == 0 {
                return;
            }
            self.reap(&mut Vec::new());
            // Nothing goes any more.
            if self.unsubmitted == left {
                return;
            }
        }
    }

    fn reap(&mut self, events: &mut Vec<Event>) {
        for completion in self.ring.completion() {
            let (tag, key) = unpack(completion.user_data());
            let result = completion.result();
            match tag {
                TAG_IO => {
                    self.in_flight = self.in_flight.saturating_sub(1);
                    events.push(Event::Io { task: key.generation, result });
                }
                TAG_SEND => {
                    self.sends = self.sends.saturating_sub(1);
                    events.push(Event::Sent { task: key.generation, result });
                }
                TAG_SOCKET => {
                    let ended = !cqueue::more(completion.flags());
                    // A poll that failed says so through the socket itself.
                    let bits =
                        u32::try_from(result).unwrap_or(u32::try_from(libc::POLLERR).unwrap_or(0));
                    let readiness = epoll::readiness(bits);
                    events.push(Event::Socket { key, readiness, ended });
                }
                TAG_TIMER => {
                    self.timers.retain(|timer| timer.sequence != key.generation);
                    events.push(Event::Timer);
                }
                TAG_MAIL => {
                    self.mail_heard = true;
                    self.mailbox_ended |= !cqueue::more(completion.flags());
                }
                _ => {}
            }
        }
    }
}

/// The header of a send of these buffers.
pub(crate) fn message_of(bufs: &[IoSlice<'_>]) -> libc::msghdr {
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = bufs.as_ptr().cast_mut().cast();
    message.msg_iovlen = bufs.len();
    message
}

fn single(vectors: *const libc::iovec) -> (*mut u8, u32) {
    // SAFETY: a request with one vector points to it (S1).
    let vector = unsafe { &*vectors };
    let length = u32::try_from(vector.iov_len).unwrap_or(IO_BYTES_MAX);
    (vector.iov_base.cast(), length.min(IO_BYTES_MAX))
}

/// The most that Linux moves in one call; more is a short transfer.
const IO_BYTES_MAX: u32 = 0x7fff_f000;

/// Has the kernel keep the ring's file at hand for this thread, which saves every call the look-up
/// of a descriptor; an older kernel refuses.
fn register_ring(ring: &IoUring) -> (RawFd, u32) {
    const REGISTER_RING_FDS: libc::c_uint = 20;
    const ENTER_REGISTERED_RING: u32 = 1 << 4;
    /// The kernel's `struct io_uring_rsrc_update`.
    #[repr(C)]
    struct Update {
        offset: u32,
        reserved: u32,
        data: u64,
    }
    let fd = ring.as_raw_fd();
    let data = u64::try_from(fd).unwrap_or(u64::MAX);
    let mut update = Update { offset: u32::MAX, reserved: 0, data };
    let arguments = &raw mut update;
    // SAFETY: one update, ours to fill, for the length of the call.
    let registered = unsafe {
        libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, arguments, 1_u32)
    };
    match i32::try_from(update.offset) {
        Ok(index) if registered == 1 => (index, ENTER_REGISTERED_RING),
        _ => (fd, 0),
    }
}

fn build_ring(queue_depth: u32) -> io::Result<(IoUring, &'static str)> {
    let mut builder = IoUring::builder();
    builder.setup_clamp().setup_cqsize(queue_depth.saturating_mul(4)).dontfork();
    let best = builder
        .clone()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(queue_depth);
    if let Ok(ring) = best {
        return Ok((ring, "single issuer, deferred task work"));
    }
    let good = builder
        .clone()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(queue_depth);
    if let Ok(ring) = good {
        return Ok((ring, "cooperative task work"));
    }
    Ok((builder.build(queue_depth)?, "plain"))
}
