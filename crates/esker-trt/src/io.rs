//! Disk I/O for tasks and threads.
//!
//! Inside a task a call gives the request to the core's driver and suspends the task until the
//! completion; on an ordinary thread it is the plain system call (uDepot §3, §4.6), and so is a short one in a
//! task whose disk answers at once (`Facility::Inline`). A transfer may be short in all; the caller resumes it.
//!
//! # Safety invariants
//! - S1: a function of this module that gave buffers to the kernel returns only after the
//!   completion was delivered. It neither unwinds nor is its frame dropped before: waiting is not
//!   cancellable, and a core never drops a suspended task. Safe callers can lend buffers because
//!   of this.
//! - S2: `IoSlice` and `IoSliceMut` have the layout of `iovec`, as std documents.
//!
//! # Failure
//! Errors are the kernel's own. After a failed write or sync the caller must assume nothing about
//! what is on the medium. A device that never answers keeps its task for ever; shutdown leaves such
//! a task, with its core, to the process.

mod batch;

use crate::context;
use crate::core::Core;
use crate::driver::uring::message_of;
use crate::driver::{IoKind, IoRequest};
use crate::offload;
use crate::sockets::SocketKey;
use std::io::{Error, IoSlice, IoSliceMut, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

pub use crate::offload::offload;

/// What a write promises when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// The kernel has the bytes; a flush makes them durable.
    Plain,
    /// The bytes, and what is needed to find them, are durable (`RWF_DSYNC`).
    Durable,
}

/// Linux takes so many vectors in one call; more is a short transfer.
const VECTORS_MAX: usize = 1024;
/// The kernel's own limit; what lies beyond means the position of the file to a ring.
const OFFSET_MAX: u64 = i64::MAX.cast_unsigned();
/// The longest transfer that a task makes itself, in bytes: others of its core wait meanwhile.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// Reads once at `offset`; returns the bytes read, which may be fewer than asked for.
///
/// # Errors
/// The kernel's, unchanged.
pub fn read_vectored_at(
    fd: BorrowedFd<'_>,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
) -> Result<usize> {
    let bytes = bufs.iter().map(|buf| buf.len()).sum();
    let request = IoRequest {
        kind: IoKind::Read,
        fd: fd.as_raw_fd(),
        vectors: bufs.as_mut_ptr().cast(),
        vector_count: count(bufs.len()),
        offset,
    };
    transfer(request, bytes)
}

/// Reads once at `offset` into one buffer; as [`read_vectored_at`].
///
/// # Errors
/// The kernel's, unchanged.
pub fn read_at(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<usize> {
    read_vectored_at(fd, &mut [IoSliceMut::new(buf)], offset)
}

/// Reads once at each of these offsets, on an ordinary thread with all of them in flight at once; tells `done` of each, by
/// its number, how many bytes it read or why none. In a task, one after the other.
pub fn read_many_at(
    fd: BorrowedFd<'_>,
    reads: &mut [(u64, &mut [u8])],
    mut done: impl FnMut(usize, Result<usize>),
) {
    let together = reads.len() > 1 && !crate::in_task() && !std::thread::panicking();
    if together && batch::read(fd, reads, &mut done) {
        return;
    }
    for (number, (offset, buf)) in reads.iter_mut().enumerate() {
        done(number, read_at(fd, buf, *offset));
    }
}

/// Writes once at `offset`; returns the bytes written, which may be fewer than asked for.
///
/// # Errors
/// The kernel's, unchanged.
pub fn write_vectored_at(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    offset: u64,
    mode: WriteMode,
) -> Result<usize> {
    let bytes = bufs.iter().map(|buf| buf.len()).sum();
    let request = IoRequest {
        kind: IoKind::Write { durable: mode == WriteMode::Durable },
        fd: fd.as_raw_fd(),
        vectors: bufs.as_ptr().cast(),
        vector_count: count(bufs.len()),
        offset,
    };
    transfer(request, bytes)
}

/// `fdatasync`: what was written, by calls that have returned, is durable afterwards. It says
/// nothing about writes that are still under way.
///
/// # Errors
/// The kernel's, unchanged. A second try that succeeds does not mean that the first one's data are
/// there.
pub fn sync_data(fd: BorrowedFd<'_>) -> Result<()> {
    let request = IoRequest {
        kind: IoKind::SyncData,
        fd: fd.as_raw_fd(),
        vectors: std::ptr::null(),
        vector_count: 0,
        offset: 0,
    };
    transfer(request, usize::MAX).map(drop)
}

fn count(vectors: usize) -> u32 {
    u32::try_from(vectors.min(VECTORS_MAX)).unwrap_or(0)
}

/// Sends what fits of `bufs` together with what other tasks of this core send in this round: one call for all,
/// so that who receives it is woken once. `None`: there is nobody to go with, or no way to; nothing happened.
///
/// `key` is the socket's if it is watched; that it would block is noted with it.
pub(crate) fn send_together(
    fd: BorrowedFd<'_>,
    key: Option<SocketKey>,
    bufs: &[IoSlice<'_>],
) -> Option<Result<usize>> {
    if context::with(Core::sends_together) != Some(true) || std::thread::panicking() {
        return None;
    }
    let message = message_of(bufs.get(..VECTORS_MAX).unwrap_or(bufs));
    let header = if bufs.len() == 1 { std::ptr::null() } else { &raw const message };
    let request = IoRequest {
        kind: IoKind::Send { header },
        fd: fd.as_raw_fd(),
        vectors: bufs.as_ptr().cast(),
        vector_count: count(bufs.len()),
        offset: 0,
    };
    let submitted = context::with_task(|core, task| {
        task.sends_to.set(key);
        core.submit_io(task, request)
    });
    match submitted {
        Some(None) => Some(transferred(wait_for_completion("send"))),
        _ => None,
    }
}

/// Runs one request of so many bytes to its end. The memory it names outlives the call (S1).
fn transfer(request: IoRequest, bytes: usize) -> Result<usize> {
    if request.offset > OFFSET_MAX {
        return Err(Error::from_raw_os_error(libc::EINVAL));
    }
    let inline = bytes <= INLINE_BYTES_MAX && context::with(Core::is_inline) == Some(true);
    if inline {
        return transferred(run_inline(&request));
    }
    // Work left to do while a panic unwinds must not let other tasks run in between.
    let submitted = if std::thread::panicking() {
        None
    } else {
        context::with_task(|core, task| core.sim().is_none().then(|| core.submit_io(task, request)))
    };
    let result = match submitted.flatten() {
        Some(None) => wait_for_completion("disk I/O"),
        Some(Some(request)) if offload::post_disk(request) => wait_for_completion("disk I/O"),
        _ => offload::run_disk(&request),
    };
    transferred(result)
}

fn transferred(result: i32) -> Result<usize> {
    usize::try_from(result).map_err(|_| Error::from_raw_os_error(-result))
}

/// Makes the call here and now, and gives way to other tasks when it is their turn.
fn run_inline(request: &IoRequest) -> i32 {
    let result = offload::run_disk(request);
    if context::with(Core::ran_inline) == Some(true) && !std::thread::panicking() {
        context::yield_task();
    }
    result
}

/// Suspends the running task until the completion of its request was delivered (S1).
pub(crate) fn wait_for_completion(why: &'static str) -> i32 {
    // Only called by the task whose request was taken. Returning, or unwinding, without the
    // completion would free memory that the kernel may still write to.
    context::park_for_completion(why).unwrap_or_else(|| std::process::abort())
}

#[cfg(test)]
mod tests;
