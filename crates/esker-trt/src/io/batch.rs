//! Several reads of one thread at once, through an AIO context of the thread's own.
//!
//! A thread that waits for one read after the other leaves a device idle that has room for many; here they go with one
//! system call, and another one waits for all.
//!
//! # Safety invariants
//! - S1: the memory that requests name is borrowed by the caller of [`read`], which returns, and calls what may panic, only when
//!   the kernel has told of each request that it took: what cannot be waited for ends the process.
//! - S2: the kernel copies a request during `io_submit`; ours need only live through the call.
//!
//! # Failure
//! Where the system has no context to give, or the thread ends and has dropped its own, [`read`] did nothing and says so. A file that is not open for direct I/O is
//! read inside `io_submit`: correct, but one after the other.
#![expect(unsafe_code, reason = "system calls without a safe wrapper")]

use crate::driver::aio::{Completion, Request};
use std::cell::RefCell;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Requests in flight.
const DEPTH: usize = 64;

struct Context {
    id: libc::c_ulong,
    requests: Vec<Request>,
    completed: Vec<Completion>,
}

thread_local! {
    /// Made by the first batch; `Err` if there is none to be had.
    static CONTEXT: RefCell<Option<Result<Context>>> = const { RefCell::new(None) };
}

/// What is told of each request: its number, and how it ended.
pub(super) type Done<'d> = &'d mut dyn FnMut(usize, Result<usize>);

/// Does all reads. False: none of them, one at a time is the only way.
pub(super) fn read(fd: BorrowedFd<'_>, reads: &mut [(u64, &mut [u8])], done: Done<'_>) -> bool {
    let mut ended = Vec::with_capacity(reads.len());
    let all = CONTEXT.try_with(|context| {
        let mut context = context.borrow_mut();
        let Ok(context) = context.get_or_insert_with(Context::new) else { return false };
        for (part, reads) in reads.chunks_mut(DEPTH).enumerate() {
            context
                .run(fd, reads, &mut |number, result| ended.push((part * DEPTH + number, result)));
        }
        true
    });
    // Nothing is in flight, and the context is free for who reads in turn.
    ended.into_iter().for_each(|(number, result)| done(number, result));
    all.unwrap_or(false)
}

impl Context {
    fn new() -> Result<Context> {
        let mut id: libc::c_ulong = 0;
        let depth = libc::c_long::try_from(DEPTH).unwrap_or(1);
        // SAFETY: `id` is zero, as the call requires, and ours to fill.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut id) };
        if result != 0 {
            return Err(Error::last_os_error());
        }
        let completed = vec![Completion::default(); DEPTH];
        Ok(Context { id, requests: Vec::with_capacity(DEPTH), completed })
    }

    fn run(&mut self, fd: BorrowedFd<'_>, reads: &mut [(u64, &mut [u8])], done: Done<'_>) {
        self.requests.clear();
        let fd = u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX);
        self.requests.extend(reads.iter_mut().zip(0_u64..).map(|((offset, buf), number)| {
            // One that is too large is refused by the kernel.
            Request::read(number, fd, buf, i64::try_from(*offset).unwrap_or(-1))
        }));
        let (mut next, mut in_flight) = (0, 0);
        while next < reads.len() || in_flight > 0 {
            if next < reads.len() {
                match self.submit(next) {
                    Ok(count) if count > 0 => {
                        next += count;
                        in_flight += count;
                        continue;
                    }
                    Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                    // No room, and completions to come will make some.
                    _ if in_flight > 0 => {}
                    Err(error) => {
                        done(next, Err(error));
                        next += 1;
                        continue;
                    }
                    Ok(_) => {
                        done(next, Err(std::io::ErrorKind::WouldBlock.into()));
                        next += 1;
                        continue;
                    }
                }
            }
            in_flight -= self.wait(in_flight, done);
        }
    }

    /// Gives the requests from `first` on to the kernel; how many it took.
    fn submit(&mut self, first: usize) -> Result<usize> {
        let pointers: Vec<*const Request> =
            self.requests.iter().skip(first).map(ptr::from_ref).collect();
        // SAFETY: pointers to live requests (S2) that name memory that the caller lends us (S1).
        let result = unsafe {
            libc::syscall(libc::SYS_io_submit, self.id, pointers.len(), pointers.as_ptr())
        };
        usize::try_from(result).map_err(|_| Error::last_os_error())
    }

    /// Waits for all `in_flight` requests; how many are done.
    fn wait(&mut self, in_flight: usize, done: Done<'_>) -> usize {
        let limit: *const libc::timespec = ptr::null();
        let completed = self.completed.as_mut_ptr();
        // SAFETY: room for as many completions as can be in flight, and no time limit.
        let result = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.id, in_flight, in_flight, completed, limit)
        };
        let Ok(count) = usize::try_from(result) else {
            if Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
                return 0;
            }
            // Returning would free memory that the kernel may still write to (S1).
            std::process::abort();
        };
        for completion in self.completed.iter().take(count) {
            let number = usize::try_from(completion.data).unwrap_or(usize::MAX);
            let read = usize::try_from(completion.result);
            let code = i32::try_from(-completion.result).unwrap_or(libc::EIO);
            done(number, read.map_err(|_| Error::from_raw_os_error(code)));
        }
        count
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: our own context; nothing is in flight between calls (S1).
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}
