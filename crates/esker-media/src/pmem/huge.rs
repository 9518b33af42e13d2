//! Huge pages for a new file in main memory, so that it has the pages of real persistent memory.
//!
//! DAX maps 2 MiB at a time; tmpfs, as it is mounted nearly everywhere, 4 KiB: then each access to another entry
//! misses the address translation, too. The kernel makes huge pages of a file when it is asked to (`MADV_COLLAPSE`,
//! Linux 6.1), whatever the mount says. It is asked while each holds a single small page, so that nothing is copied; this takes
//! less time than to allocate the small pages.
//!
//! # Safety invariants
//! 1. What is mapped here is a mapping of our own, through which nothing is read or written, and goes before the call returns.
//!
//! # Failure
//! Where the kernel cannot do that, or has no huge page left, small pages do. Nothing is reported.
#![expect(unsafe_code, reason = "maps a file to have its pages made huge")]

use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// `MADV_COLLAPSE`.
const COLLAPSE: libc::c_int = 25;
/// Bytes of a file that are mapped at once.
const PIECE: usize = 512 * HUGE_PAGE;

/// Maps `length` bytes of a file from `offset` on, both in whole pages, at a place that is a multiple of a huge page if they fill one
/// and another thread does not map something there first.
pub(super) fn map(
    fd: BorrowedFd<'_>,
    length: usize,
    offset: u64,
    flags: MapFlags,
) -> rustix::io::Result<*mut c_void> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let place = if length < HUGE_PAGE { ptr::null_mut() } else { find_place(length)? };
    // SAFETY: a new mapping at a place that the kernel chooses; nothing is replaced. It must not be `FIXED`: the kernel may free such a
    // place and then refuse the mapping, and whatever another thread maps there meanwhile would be taken for ours.
    unsafe { rustix::mm::mmap(place, length, access, flags, fd, offset) }
}

/// A place that is a multiple of a huge page and where `length` bytes were free a moment ago.
fn find_place(length: usize) -> rustix::io::Result<*mut c_void> {
    let (none, private) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    let whole = length.saturating_add(HUGE_PAGE);
    // SAFETY: as in `map`.
    let room = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), whole, none, private) }?;
    unmap(room, whole);
    Ok(room.wrapping_byte_add(room.addr().next_multiple_of(HUGE_PAGE) - room.addr()))
}

/// Unmaps what was mapped here and nobody uses.
fn unmap(start: *mut c_void, length: usize) {
    if length > 0 {
        // SAFETY: 1. A failure leaves addresses in use, no more.
        let _ = unsafe { rustix::mm::munmap(start, length) };
    }
}

/// Gives a new, empty file on a file system in main memory huge pages up to `size_bytes`, as far as there are some.
///
/// # Errors
/// `NOSPC`, and others of `fallocate`.
pub(crate) fn allocate(fd: impl AsFd, size_bytes: u64) -> rustix::io::Result<()> {
    let fd = fd.as_fd();
    let huge = HUGE_PAGE as u64;
    let end = size_bytes / huge * huge;
    rustix::fs::ftruncate(fd, size_bytes)?;
    let mut start = 0;
    while start < end {
        let length = (end - start).min(PIECE as u64);
        for page in (start..start + length).step_by(HUGE_PAGE) {
            rustix::fs::fallocate(fd, FallocateFlags::empty(), page, 1)?;
        }
        let bytes = usize::try_from(length).unwrap_or(0);
        let Ok(piece) = map(fd, bytes, start, MapFlags::SHARED) else { return Ok(()) };
        // SAFETY: 1; it changes no content.
        let made = unsafe { libc::madvise(piece, bytes, COLLAPSE) };
        unmap(piece, bytes);
        if made != 0 {
            // The rest would be no better off.
            return Ok(());
        }
        start += length;
    }
    Ok(())
}
