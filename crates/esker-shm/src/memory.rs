//! Memory that is shared with another process, as atomic words.
//!
//! # Safety invariants
//! - M1: `base..base + words * 8` is mapped readable and writable until `Drop`; the words that are handed
//!   out borrow the `Memory`.
//! - M2: the file is at least as long as the mapping and sealed against shrinking, so that no access faults for want of a
//!   file. It is no file of huge pages, which can be taken out of a sealed file, and not be there when they are wanted again.
//!   Who makes the memory takes all of its pages first, so that no access faults for want of memory either. What is left: no seal
//!   keeps the other side from punching holes. The pages come back, zero, at the next access, unless there is no memory
//!   for them: then `SIGBUS` ends the process. So it is, too, for whoever opens a file whose maker took no pages.
//! - M3: a mapping begins at a page, so every word is aligned; nobody accesses it but as `AtomicU64`, so what
//!   another process does to it at the same time is a race of atomics.
#![expect(unsafe_code, reason = "maps memory that another process maps, too")]

use esker_base::{Error, ErrorKind, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU64;

/// What the kernel calls a file of its ordinary memory (`TMPFS_MAGIC`).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

const WORD: usize = size_of::<AtomicU64>();

/// A mapping of words.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: nothing but words that are accessed atomically (M3).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory of `words` words, all zero, and the file that it lies in, to be passed on.
    pub(crate) fn create(words: usize) -> Result<(Memory, OwnedFd)> {
        let failed = |errno: rustix::io::Errno| Error::io("make shared memory", errno.into());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("esker-shm", flags).map_err(failed)?;
        let bytes = (words * WORD) as u64;
        rustix::fs::ftruncate(&file, bytes).map_err(failed)?;
        // M2: what there is no memory for is an error here and no signal later.
        let take = || rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes);
        rustix::io::retry_on_intr(take).map_err(failed)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
        Ok((Memory::map(file.as_fd(), words)?, file))
    }

    /// The memory in `file`, which the other side made.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not sealed, too short, or of huge pages: those can be taken away all the same.
    pub(crate) fn open(file: BorrowedFd<'_>, words: usize) -> Result<Memory> {
        let wrong = |words: &str| Error::invalid("open shared memory", words);
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| wrong("it cannot be sealed"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(wrong("it may shrink"));
        }
        let failed = |errno: rustix::io::Errno| Error::io("open shared memory", errno.into());
        if rustix::fs::fstatfs(file).map_err(failed)?.f_type != TMPFS {
            return Err(wrong("it is no ordinary memory"));
        }
        let stat = rustix::fs::fstat(file).map_err(failed)?;
        if u64::try_from(stat.st_size).unwrap_or(0) < (words * WORD) as u64 {
            return Err(wrong("it is shorter than was said"));
        }
        Memory::map(file, words)
    }

    fn map(file: BorrowedFd<'_>, words: usize) -> Result<Memory> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (length, flags) = (words * WORD, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses; nothing is replaced.
        let mapped =
            unsafe { rustix::mm::mmap(ptr::null_mut(), length, protection, flags, file, 0) };
        let base = mapped.map_err(|errno| Error::io("map shared memory", errno.into()))?;
        let base = NonNull::new(base.cast::<AtomicU64>());
        let unmapped = || Error::new(ErrorKind::OutOfMemory, "map shared memory");
        Ok(Memory { base: base.ok_or_else(unmapped)?, words })
    }

    /// The words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped while `self` is borrowed (M1), backed by the file (M2), aligned and atomic (M3).
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` and unmapped only here (M1); no borrow is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * WORD) };
    }
}
