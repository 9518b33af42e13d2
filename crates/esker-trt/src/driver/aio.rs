//! Linux AIO: disk requests of one core, completions reaped from the kernel's ring in user space.
//!
//! Requests gather while tasks run and go with one `io_submit` a round. Completions are read from
//! the ring that the kernel maps into the process, without a system call; only an idle core calls
//! `io_getevents`, to wait. Sockets and the mailbox stay with epoll, and one AIO poll request on
//! the epoll descriptor turns their events into completions, so that an idle core waits in one
//! place for everything (uDepot §3, §5.2).
//!
//! # Invariants
//! - I1: an idle core hears its epoll descriptor, however many disk requests do not come back: of the places in the
//!   context, one more than disk requests may be in flight, the last is for the poll request, which goes first.
//!
//! # Layout of the ring (the kernel's `struct aio_ring`, unchanged since 2002)
//! ```text
//! id u32 | count u32 | head u32 | tail u32 | magic u32 | compat u32 | incompat u32 | header u32
//! event[count]: data u64 | request u64 | result i64 | result2 i64
//! ```
//!
//! # Safety invariants
//! - S1: the memory a request names belongs to the frame of a task that is parked until its
//!   completion was delivered (D2 of the driver module); a core drops no such task.
//! - S2: the kernel copies a request during `io_submit`; ours need only live through the call.
//! - S3: `ring` is the mapping that `io_setup` made, until `io_destroy` in `Drop`. Its size was
//!   checked against `magic` and `header`. We alone move `head`; the kernel moves `tail`.
//!
//! # Failure
//! AIO on a file that is not opened with `O_DIRECT` completes inside `io_submit`: correct, but it
//! blocks the core meanwhile.
#![expect(unsafe_code, reason = "system calls without a safe wrapper, and the kernel's ring")]

use crate::driver::epoll::Epoll;
use crate::driver::{Event, IoKind, IoRequest, Round, Wait, left_until};
use crate::wake::Mailbox;
use rustix::event::Timespec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

const CMD_PREAD: u16 = 0;
const CMD_PWRITE: u16 = 1;
const CMD_FDSYNC: u16 = 3;
const CMD_POLL: u16 = 5;
/// So far behind the two for one buffer are those for several.
const CMD_VECTORS: u16 = 7;
const RING_MAGIC: u32 = 0xa10a_10a1;
/// `data` of the poll request on the epoll descriptor; tasks have smaller numbers.
const DATA_EPOLL: u64 = u64::MAX;

/// The kernel's `struct iocb` on a little-endian machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}
const _: () = assert!(size_of::<Request>() == 64);
const _: () = assert!(cfg!(target_endian = "little"));

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) data: u64,
    request: u64,
    pub(crate) result: i64,
    result2: i64,
}

#[repr(C)]
struct RingHeader {
    id: u32,
    count: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compat: u32,
    incompat: u32,
    header_length: u32,
}
const _: () = assert!(size_of::<RingHeader>() == 32);

pub(crate) struct Aio {
    context: libc::c_ulong,
    ring: *const RingHeader,
    epoll: Epoll,
    timer: OwnedFd,
    /// What the timer is set to.
    timer_ns: u64,
    /// What the kernel has not taken yet. The poll request is the first of them, if it is there (I1).
    unsubmitted: VecDeque<Request>,
    pointers: Vec<*const Request>,
    /// Disk requests in flight, up to `queue_depth`; the poll request does not count.
    in_flight: usize,
    queue_depth: usize,
    pub(super) round: Round,
    epoll_fired: bool,
    waited: Vec<Completion>,
}

impl Aio {
    pub(crate) fn new(queue_depth: u32, mailbox: &Mailbox) -> io::Result<Aio> {
        let epoll = Epoll::new(mailbox)?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: takes no memory.
        let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if timer < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let timer = unsafe { OwnedFd::from_raw_fd(timer) };
        epoll.watch_timer(timer.as_fd())?;
        let mut context: libc::c_ulong = 0;
        let queue_depth = queue_depth.max(1);
        let depth = libc::c_long::from(queue_depth) + 1;
        // SAFETY: `context` is zero, as the call requires, and ours to fill.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut aio = Aio {
            context,
            ring: context as *const RingHeader,
            epoll,
            timer,
            timer_ns: u64::MAX,
            unsubmitted: VecDeque::new(),
            pointers: Vec::new(),
            in_flight: 0,
            queue_depth: usize::try_from(queue_depth).unwrap_or(usize::MAX),
            // The kernel holds back batches that are longer than two to merge them.
            round: Round::new(2),
            epoll_fired: false,
            waited: vec![Completion::default(); 64],
        };
        let header = aio.header();
        if header.magic != RING_MAGIC || header.header_length != 32 || header.incompat != 0 {
            return Err(io::Error::other("the ring has an unknown layout"));
        }
        aio.arm_epoll();
        aio.submit(&mut Vec::new())
            .map_err(|error| io::Error::other(format!("no poll requests: {error}")))?;
        Ok(aio)
    }

    pub(crate) fn epoll(&mut self) -> &mut Epoll {
        &mut self.epoll
    }

    fn header(&self) -> &RingHeader {
        // SAFETY: the kernel's mapping, alive until `Drop` (S3); head and tail are atomics.
        unsafe { &*self.ring }
    }

    /// Takes a request; `fdatasync` too, which the kernel runs on a thread of its own.
    pub(crate) fn submit_io(&mut self, task: u32, request: IoRequest) -> Option<IoRequest> {
        let (opcode, rw_flags) = match request.kind {
            IoKind::Read => (CMD_PREAD, 0),
            IoKind::Write { durable: false } => (CMD_PWRITE, 0),
            IoKind::Write { durable: true } => (CMD_PWRITE, libc::RWF_DSYNC),
            IoKind::SyncData => (CMD_FDSYNC, 0),
            IoKind::Send { .. } => return Some(request),
        };
        let Ok(offset) = i64::try_from(request.offset) else { return Some(request) };
        let (opcode, buffer, bytes) = match (request.kind, request.vector_count) {
            (IoKind::SyncData, _) => (opcode, 0, 0),
            // The kernel need not look for the vector then.
            (_, 1) => {
                // SAFETY: a request with one vector points to it (S1).
                let vector = unsafe { &*request.vectors };
                (opcode, vector.iov_base as u64, vector.iov_len as u64)
            }
            (_, count) => (opcode + CMD_VECTORS, request.vectors as u64, u64::from(count)),
        };
        self.unsubmitted.push_back(Request {
            data: u64::from(task),
            rw_flags: u32::try_from(rw_flags).unwrap_or(0),
            opcode,
            fd: u32::try_from(request.fd).unwrap_or(u32::MAX),
            buffer,
            bytes,
            offset: if request.kind == IoKind::SyncData { 0 } else { offset },
            ..Request::default()
        });
        None
    }

    fn arm_epoll(&mut self) {
        if self.is_deaf() {
            return;
        }
        self.unsubmitted.push_front(Request {
            data: DATA_EPOLL,
            opcode: CMD_POLL,
            fd: u32::try_from(self.epoll.as_fd().as_raw_fd()).unwrap_or(u32::MAX),
            buffer: u64::try_from(libc::POLLIN).unwrap_or(0),
            ..Request::default()
        });
    }

    /// Whether the kernel has not taken the poll request yet.
    fn is_deaf(&self) -> bool {
        self.unsubmitted.front().is_some_and(|request| request.data == DATA_EPOLL)
    }

    /// One `io_submit` for all that may be in flight; the rest stays for the next round.
    fn submit(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        loop {
            let room = self.queue_depth.saturating_sub(self.in_flight);
            let room = room.saturating_add(usize::from(self.is_deaf()));
            self.pointers.clear();
            self.pointers.extend(self.unsubmitted.iter().take(room).map(ptr::from_ref));
            let count = self.pointers.len();
            if count == 0 {
                return Ok(());
            }
            let pointers = self.pointers.as_ptr();
            // SAFETY: pointers to live requests (S2) that name memory of parked tasks (S1).
            let result =
                unsafe { libc::syscall(libc::SYS_io_submit, self.context, count, pointers) };
            if let Ok(submitted) = usize::try_from(result) {
                let taken = self.unsubmitted.drain(..submitted.min(count));
                self.in_flight += taken.filter(|request| request.data != DATA_EPOLL).count();
                if submitted == 0 {
                    return Ok(());
                }
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // No room, and completions to come will make some.
                Some(libc::EAGAIN) if self.in_flight > 0 => return Ok(()),
                Some(libc::EINTR) => {}
                // The first request is at fault: it fails, the others go on.
                Some(number) => {
                    let refused = self.unsubmitted.pop_front().unwrap_or_default();
                    match u32::try_from(refused.data) {
                        Ok(task) => events.push(Event::Io { task, result: -number }),
                        Err(_) => return Err(error),
                    }
                }
                None => return Err(error),
            }
        }
    }

    pub(crate) fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.submit(events)?;
        self.reap(events);
        self.round.looked(self.in_flight > 0);
        // Whom the kernel did not hear looks for itself.
        self.epoll_fired |= self.is_deaf();
        if let Wait::Until(at_ns) = wait
            && events.is_empty()
            && !self.epoll_fired
        {
            if self.arm_timer(at_ns)? {
                self.wait(events)?;
            } else {
                events.push(Event::Timer);
            }
        }
        if self.epoll_fired {
            self.epoll_fired = false;
            self.epoll.take(Some(&Timespec::default()), events)?;
            if events.iter().any(|event| matches!(event, Event::Timer)) {
                self.timer_ns = u64::MAX;
            }
            self.arm_epoll();
        }
        Ok(())
    }

    /// Takes completions out of the kernel's ring without a system call.
    fn reap(&mut self, events: &mut Vec<Event>) {
        let header = self.header();
        let count = header.count;
        let mut head = header.head.load(Ordering::Relaxed);
        // Pairs with the kernel's release of the tail after it wrote the events.
        let tail = header.tail.load(Ordering::Acquire);
        if head == tail {
            return;
        }
        while head != tail {
            // SAFETY: one header's length is 32 bytes, checked at the start; events follow (S3).
            let first = unsafe { self.ring.add(1) }.cast::<Completion>();
            // SAFETY: `head` is below `count`, the number of events in the mapping (S3).
            let slot = unsafe { first.add(head as usize) };
            // SAFETY: written by the kernel before it moved the tail past it.
            let completion = unsafe { slot.read() };
            self.note(completion, events);
            head += 1;
            if head >= count {
                head = 0;
            }
        }
        // The kernel may write over what we have read from here on.
        self.header().head.store(head, Ordering::Release);
    }

    fn note(&mut self, completion: Completion, events: &mut Vec<Event>) {
        match u32::try_from(completion.data) {
            Ok(task) => {
                self.in_flight = self.in_flight.saturating_sub(1);
                let result = i32::try_from(completion.result).unwrap_or(i32::MAX);
                events.push(Event::Io { task, result });
            }
            Err(_) => self.epoll_fired = true,
        }
    }

    /// Sees to it that a wait ends by the deadline. False: it has passed.
    ///
    /// A time limit of the wait itself would be set up and torn down for every disk request; this
    /// timer is only touched when the next deadline is earlier than the last one asked for.
    fn arm_timer(&mut self, at_ns: Option<u64>) -> io::Result<bool> {
        if let Some(at_ns) = at_ns
            && at_ns < self.timer_ns
        {
            let left = left_until(at_ns);
            if left.is_zero() {
                return Ok(false);
            }
            let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let value = libc::timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let setting = libc::itimerspec { it_interval: once, it_value: value };
            let timer = self.timer.as_raw_fd();
            // SAFETY: our own timer, and a setting that lives through the call.
            let result =
                unsafe { libc::timerfd_settime(timer, 0, &raw const setting, ptr::null_mut()) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
            self.timer_ns = at_ns;
        }
        Ok(true)
    }

    /// Blocks in `io_getevents` until a completion.
    fn wait(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let limit: *const libc::timespec = ptr::null();
        let most = self.waited.len();
        let waited = self.waited.as_mut_ptr();
        // SAFETY: room for `most` completions in `waited`, and no time limit.
        let result = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, 1_usize, most, waited, limit)
        };
        let Ok(count) = usize::try_from(result) else {
            let error = io::Error::last_os_error();
            let interrupted = error.raw_os_error() == Some(libc::EINTR);
            return if interrupted { Ok(()) } else { Err(error) };
        };
        for index in 0..count {
            if let Some(completion) = self.waited.get(index).copied() {
                self.note(completion, events);
            }
        }
        Ok(())
    }
}

impl Request {
    /// A plain read into one buffer.
    pub(crate) fn read(data: u64, fd: u32, buf: &mut [u8], offset: i64) -> Request {
        let (buffer, bytes) = (buf.as_mut_ptr() as u64, buf.len() as u64);
        Request { data, opcode: CMD_PREAD, fd, buffer, bytes, offset, ..Request::default() }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: our context; no disk request is in flight when a core ends (S1).
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests;
