//! Disk I/O for tasks and threads.

use std::io::{IoSlice, IoSliceMut, Result};
use std::os::fd::BorrowedFd;

/// What a write promises when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// The kernel has the bytes; a flush makes them durable.
    Plain,
    /// The bytes, and what is needed to find them, are durable (`RWF_DSYNC`).
    Durable,
}

/// Reads once at `offset`; returns the bytes read, which may be fewer than asked for.
pub fn read_vectored_at(fd: BorrowedFd<'_>, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
    Ok(rustix::io::preadv(fd, bufs, offset)?)
}

/// Writes once at `offset`; returns the bytes written, which may be fewer than asked for.
pub fn write_vectored_at(fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>], offset: u64, mode: WriteMode) -> Result<usize> {
    let flags = match mode {
        WriteMode::Plain => rustix::io::ReadWriteFlags::empty(),
        WriteMode::Durable => rustix::io::ReadWriteFlags::DSYNC,
    };
    Ok(rustix::io::pwritev2(fd, bufs, offset, flags)?)
}

/// `fdatasync`.
pub fn sync_data(fd: BorrowedFd<'_>) -> Result<()> {
    Ok(rustix::fs::fdatasync(fd)?)
}
