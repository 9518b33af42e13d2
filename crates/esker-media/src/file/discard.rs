//! `BLKDISCARD`: tells a raw device that a range is not needed.
//!
//! # Safety invariants
//! - S1: the argument of the call points to two `u64`, offset and length in bytes, as the kernel's
//!   `BLKDISCARD` reads them; it writes nothing back.
#![expect(unsafe_code, reason = "no safe wrapper for this ioctl")]

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IO(0x12, 119)` of `linux/fs.h`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Discards `length` bytes at `offset`, both multiples of the logical block size.
pub(super) fn discard_blocks(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
    let range = [offset, length];
    // SAFETY: `range` is two `u64` that outlive the call (S1); the descriptor is open.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if result == 0 {
        return Ok(());
    }
    let number = std::io::Error::last_os_error().raw_os_error();
    Err(number.map_or(Errno::IO, Errno::from_raw_os_error))
}
