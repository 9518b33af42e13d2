//! Files, devices and folders that are locked for as long as they are open.
//!
//! The kernel keeps a `flock` while any copy of the descriptor is open, and a process that another
//! thread starts has copies of all of them until it runs its program. A lock that ends with the
//! descriptor would then refuse whoever opens the same file next; so it is given back by word, by the process that took it:
//! one that was forked off has it for longer.
//!
//! # Failure
//! The kernel gives the lock back when the last process that has a copy ends, however that happens.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An open file; drop closes it, and gives back its lock if it has one.
#[derive(Debug)]
pub(crate) struct LockedFile {
    fd: OwnedFd,
    locked_by: Option<Pid>,
}

impl LockedFile {
    /// Locks `fd`, for itself alone or beside others that share it; `None` if somebody else has it.
    pub(crate) fn lock(fd: OwnedFd, shared: bool) -> Result<Option<LockedFile>, Errno> {
        let operation = if shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        match rustix::fs::flock(&fd, operation) {
            Ok(()) => Ok(Some(LockedFile { fd, locked_by: Some(getpid()) })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Takes `fd` as it is, beside whoever else has it.
    pub(crate) fn without_lock(fd: OwnedFd) -> LockedFile {
        LockedFile { fd, locked_by: None }
    }
}

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if self.locked_by == Some(getpid()) {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}
