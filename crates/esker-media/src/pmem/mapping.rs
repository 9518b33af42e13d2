//! A shared mapping of a file, and the only code that touches its bytes.
//!
//! Bytes go in and out as atomic words and bytes: other threads, and devices, may change them at
//! any time, so no reference to plain data in the mapping ever exists.
//!
//! # Safety invariants
//! - S1: `base..base + length` is mapped readable and writable until `Drop`; every access borrows
//!   the `Mapping`.
//! - S2: callers pass ranges inside `length` (asserted at each entry).
//! - S3: `base` is aligned to a page, so an offset that is a multiple of 8 is an aligned word.
//! - S4: mapped bytes are only accessed as `AtomicU64`, `AtomicU8` or by streaming stores of aligned
//!   words; the same bytes also in both sizes at once, which processors take and a reader then sees a mix of.
#![expect(unsafe_code, reason = "maps persistent memory")]

use super::LINE_SIZE_BYTES;
use super::cpu::{self, FlushInstruction};
use super::fault::Registration;
use super::huge;
use esker_base::{Error, Result};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = 8;

/// Bytes of a range before its first aligned word.
#[inline]
fn head(offset: usize, length: usize) -> usize {
    (offset.wrapping_neg() % WORD).min(length)
}

/// Where stores to a mapping go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// To the medium, with nothing but the caches of the processor between (`MAP_SYNC`), which only real persistent memory grants.
    Synchronous,
    /// To the file.
    Shared,
    /// Nowhere: to pages that are this mapping's own.
    Private,
}

/// A mapped file.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    /// Dropped before the bytes are unmapped.
    registration: Option<Registration>,
}

// SAFETY: the bytes are shared memory that is only accessed atomically (S4).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `fd`. `None` where it is refused to be [`Sharing::Synchronous`].
    pub(super) fn new(fd: BorrowedFd<'_>, length: usize, sharing: Sharing) -> Result<Option<Self>> {
        let flags = match sharing {
            Sharing::Synchronous => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            Sharing::Shared => MapFlags::SHARED,
            // Few of its pages will be written.
            Sharing::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
        let base = match huge::map(fd, length, 0, flags) {
            Ok(base) => base,
            Err(Errno::OPNOTSUPP | Errno::INVAL) if sharing == Sharing::Synchronous => {
                return Ok(None);
            }
            Err(errno) => return Err(Error::io("map persistent memory", errno.into())),
        };
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(Error::invalid("map persistent memory", "mapped at address 0"));
        };
        let mut mapping = Mapping { base, length, registration: None };
        let page_bytes = rustix::param::page_size();
        mapping.registration = Some(Registration::new(base.as_ptr().addr(), length, page_bytes)?);
        Ok(Some(mapping))
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        assert!(inside, "range outside the mapping");
    }

    #[inline]
    fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: at most one past the end of the mapping (S1, S2).
        unsafe { self.base.add(offset) }.as_ptr()
    }

    /// `count` bytes.
    #[inline]
    fn bytes(&self, offset: usize, count: usize) -> &[AtomicU8] {
        self.check(offset, count);
        // SAFETY: mapped while `self` is borrowed (S1), inside, only ever atomic (S4).
        unsafe { slice::from_raw_parts(self.at(offset).cast::<AtomicU8>(), count) }
    }

    /// `count` words from an aligned place on.
    #[inline]
    fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        self.check(offset, count * WORD);
        assert!(offset.is_multiple_of(WORD), "aligned");
        // SAFETY: mapped while `self` is borrowed (S1), inside, aligned (S3), only ever atomic (S4).
        unsafe { slice::from_raw_parts(self.at(offset).cast::<AtomicU64>(), count) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: mapped (S1), inside (S2), aligned (S3), only ever atomic (S4).
        unsafe { AtomicU64::from_ptr(self.at(offset).cast::<u64>()) }
    }

    /// Copies bytes out, in whole words of `buf`: who reads words at the same places there need not wait until they are in
    /// the cache. Fastest if `buf` has whole words.
    #[inline]
    pub(super) fn read(&self, offset: usize, buf: &mut [u8]) {
        let (words, last) = buf.as_chunks_mut::<WORD>();
        let count = words.len();
        let apart = offset % WORD;
        let load = |from: &AtomicU64| u64::from_le(from.load(Ordering::Relaxed));
        if apart == 0 {
            for (word, from) in words.iter_mut().zip(self.words(offset, count)) {
                *word = load(from).to_le_bytes();
            }
        } else if let Some((first, mapped)) = self.words(offset - apart, count + 1).split_first()
            && count > 0
        {
            // Each word is put together from two. All are of the mapping, which is whole pages.
            let shift = 8 * apart;
            let mut low = load(first);
            for (word, from) in words.iter_mut().zip(mapped) {
                let high = load(from);
                *word = (low >> shift | high << (64 - shift)).to_le_bytes();
                low = high;
            }
        }
        let mapped = self.bytes(offset + count * WORD, last.len());
        for (byte, from) in last.iter_mut().zip(mapped) {
            *byte = from.load(Ordering::Relaxed);
        }
    }

    /// Copies bytes in.
    pub(super) fn store(&self, offset: usize, bytes: &[u8]) {
        let head = head(offset, bytes.len());
        let (first, rest) = bytes.split_at(head);
        for (byte, to) in first.iter().zip(self.bytes(offset, head)) {
            to.store(*byte, Ordering::Relaxed);
        }
        let (words, last) = rest.as_chunks::<WORD>();
        let at = offset + head;
        for (word, to) in words.iter().zip(self.words_if_any(at, words.len())) {
            to.store(u64::from_le_bytes(*word).to_le(), Ordering::Relaxed);
        }
        let at = at + words.len() * WORD;
        for (byte, to) in last.iter().zip(self.bytes(at, last.len())) {
            to.store(*byte, Ordering::Relaxed);
        }
    }

    /// As [`Mapping::words`]; without any, `offset` may be what it wants.
    #[inline]
    fn words_if_any(&self, offset: usize, count: usize) -> &[AtomicU64] {
        if count == 0 { &[] } else { self.words(offset, count) }
    }

    /// Reads an aligned word; acquires.
    pub(super) fn load_u64(&self, offset: usize) -> u64 {
        self.check(offset, WORD);
        assert!(offset.is_multiple_of(WORD), "aligned");
        u64::from_le(self.word(offset).load(Ordering::Acquire))
    }

    /// Stores an aligned word in one piece; releases.
    pub(super) fn store_u64(&self, offset: usize, value: u64) {
        self.check(offset, WORD);
        assert!(offset.is_multiple_of(WORD), "aligned");
        self.word(offset).store(value.to_le(), Ordering::Release);
    }

    /// Copies aligned words past the caches, before whatever the thread does next.
    pub(super) fn ntstore(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        let (words, rest) = bytes.as_chunks::<WORD>();
        assert!(offset.is_multiple_of(WORD) && rest.is_empty(), "aligned");
        for (word, at) in words.iter().zip((offset..).step_by(WORD)) {
            let to = self.at(at).cast::<u64>();
            // SAFETY: aligned (S3) and inside the live mapping (S1, S2).
            unsafe { cpu::stream(to, u64::from_le_bytes(*word).to_le()) }
        }
        // The processor orders such stores with no others by itself, also not with those that release.
        cpu::fence();
    }

    /// Starts to write back each line of the range.
    pub(super) fn write_back(&self, instruction: FlushInstruction, offset: usize, length: usize) {
        self.check(offset, length);
        let line = usize::try_from(LINE_SIZE_BYTES).unwrap_or(64);
        let first = offset - offset % line;
        for at in (first..offset + length).step_by(line) {
            cpu::write_back(instruction, self.at(at));
        }
    }

    /// Starts to fetch each line of the range.
    #[inline]
    pub(super) fn prefetch(&self, offset: usize, length: usize) {
        self.check(offset, length);
        let line = usize::try_from(LINE_SIZE_BYTES).unwrap_or(64);
        let first = offset - offset % line;
        for at in (first..offset + length).step_by(line) {
            cpu::prefetch(self.at(at));
        }
    }

    /// Makes whole pages durable through the operating system.
    pub(super) fn sync(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        let start = self.at(offset).cast();
        // SAFETY: a page-aligned part of the mapping (S1, S2); its bytes do not change.
        unsafe { rustix::mm::msync(start, length, MsyncFlags::SYNC) }
    }

    /// Offset of a page in the range that lost its content.
    pub(super) fn damaged(&self, offset: usize, length: usize) -> Option<usize> {
        self.registration.as_ref()?.damage().find(offset, length)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.registration = None;
        // SAFETY: mapped by `new` and unmapped only here (S1); no borrow is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
