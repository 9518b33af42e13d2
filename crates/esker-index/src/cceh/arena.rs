//! Memory of segments: in chunks of huge pages, never freed before the whole index is.
//!
//! A segment that splits stays as one half (see `cceh`), so none is ever freed alone. Chunks
//! double with what there is, from one segment to 32 MiB, of which the kernel provides what is touched.
//!
//! # Safety invariants
//! 1. The address in a [`Place`] or [`Located`] points to a segment of a chunk of one arena, aligned to 64 bytes,
//!    initialized; segments do not overlap, and are accessed by shared references only, all of whose
//!    fields are atomics. Only [`Arena::allocate`] makes one, and an index has one arena, which all
//!    its places belong to.
//! 2. Chunks are freed only with the arena.

#![expect(unsafe_code, reason = "segments in memory mapped by hand")]

use super::segment::{Segment, likely_offset};
use crate::locks::Mutex;
#[cfg(not(feature = "shuttle"))]
use crate::pages::{Words, zeroed};
use crate::prefetch;
use esker_base::sync::atomic::{AtomicU64, Ordering};
use std::sync::atomic::AtomicUsize;

/// Bytes of the largest chunks.
#[cfg(not(feature = "shuttle"))]
const CHUNK_MAX: usize = 32 << 20;
#[cfg(not(feature = "shuttle"))]
const LINE: usize = 64;
#[cfg(not(feature = "shuttle"))]
const HUGE_PAGE: usize = 2 << 20;
/// Bytes from which on chunks are whole huge pages.
#[cfg(not(feature = "shuttle"))]
const LARGE: usize = 8 << 20;
/// The bits of an address that are free for the depth.
const DEPTH: u64 = 63;

/// A segment's address and depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located(u64);

impl Located {
    #[inline]
    pub(super) fn depth(self) -> u32 {
        u32::try_from(self.0 & DEPTH).unwrap_or(0)
    }

    /// The same segment at another depth, which is below 64.
    pub(super) fn at_depth(self, depth: u32) -> Located {
        Located(self.0 & !DEPTH | u64::from(depth) & DEPTH)
    }

    #[inline]
    fn address(self) -> usize {
        usize::try_from(self.0 & !DEPTH).unwrap_or(0)
    }

    /// Starts to fetch the home of a hash.
    #[inline]
    pub(super) fn prefetch_home(self, hash: u64) {
        prefetch::lines(self.address() + likely_offset(hash), 0);
    }

    /// Starts to fetch the home of a hash, and the bucket after it: where one of four entries is
    /// not at home, the second line comes with the first.
    #[inline]
    pub(super) fn prefetch(self, hash: u64) {
        prefetch::lines(self.address() + likely_offset(hash), 64);
    }

    /// Starts to fetch the whole segment: locks would fetch one bucket after the other.
    pub(super) fn prefetch_whole(self) {
        prefetch::lines(self.address(), size_of::<Segment>() - 1);
    }

    #[inline]
    pub(super) fn segment(self, _arena: &Arena) -> &Segment {
        let pointer = std::ptr::with_exposed_provenance::<Segment>(self.address());
        // SAFETY: 1; by 2 it lives as long as the borrow of the arena.
        unsafe { &*pointer }
    }
}

/// A place of the directory.
#[derive(Debug)]
pub(super) struct Place(AtomicU64);

impl Place {
    pub(super) fn new(located: Located) -> Place {
        Place(AtomicU64::new(located.0))
    }

    #[inline]
    pub(super) fn load(&self) -> Located {
        Located(self.0.load(Ordering::Acquire))
    }

    pub(super) fn store(&self, located: Located) {
        self.0.store(located.0, Ordering::Release);
    }
}

/// The memory of an index.
#[derive(Debug, Default)]
pub(super) struct Arena {
    chunks: Mutex<Chunks>,
    bytes: AtomicUsize,
    segments: AtomicUsize,
}

#[derive(Debug, Default)]
struct Chunks {
    #[cfg(not(feature = "shuttle"))]
    held: Vec<Words>,
    /// Shuttle's atomics are no plain words.
    #[cfg(feature = "shuttle")]
    held: Vec<std::sync::Arc<Segment>>,
    /// The next free segment of the last chunk, and the end of it.
    #[cfg(not(feature = "shuttle"))]
    next: usize,
    #[cfg(not(feature = "shuttle"))]
    end: usize,
}

impl Arena {
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn segments(&self) -> usize {
        self.segments.load(Ordering::Relaxed)
    }

    /// Says how many segments are about to be allocated, so that they come in few chunks.
    pub(super) fn expect(&self, segments: usize) {
        #[cfg(not(feature = "shuttle"))]
        if segments > 1 {
            self.chunk(&mut self.chunks.lock(), segments * size_of::<Segment>() + LINE);
        }
        #[cfg(feature = "shuttle")]
        let _ = segments;
    }

    /// A chunk of as many segments as fit some bytes, but at least one; of whole huge pages if it is large.
    #[cfg(not(feature = "shuttle"))]
    fn chunk(&self, chunks: &mut Chunks, bytes: usize) {
        // A chunk of small memory is aligned to words only.
        let bytes = bytes.max(size_of::<Segment>() + LINE);
        let pages = bytes.next_multiple_of(HUGE_PAGE);
        let bytes = if bytes >= HUGE_PAGE { pages } else { bytes };
        let words = zeroed(bytes / size_of::<u64>());
        let start = words.as_ptr().expose_provenance().next_multiple_of(LINE);
        let count = (bytes - LINE) / size_of::<Segment>();
        (chunks.next, chunks.end) = (start, start + count * size_of::<Segment>());
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        chunks.held.push(words);
    }

    /// A new segment without entries, at depth 0.
    #[cfg(not(feature = "shuttle"))]
    pub(super) fn allocate(&self) -> Located {
        let mut chunks = self.chunks.lock();
        if chunks.next == chunks.end {
            let held = self.segments() * size_of::<Segment>();
            // As much again up to a MiB; then an eighth.
            let bytes = if held < LARGE { held.min(LARGE / 8) } else { (held / 8).min(CHUNK_MAX) };
            self.chunk(&mut chunks, bytes);
        }
        let address = chunks.next;
        chunks.next += size_of::<Segment>();
        self.segments.fetch_add(1, Ordering::Relaxed);
        Located(address as u64)
    }

    #[cfg(feature = "shuttle")]
    pub(super) fn allocate(&self) -> Located {
        let segment = std::sync::Arc::new(Segment::default());
        let address = std::sync::Arc::as_ptr(&segment).expose_provenance();
        self.chunks.lock().held.push(segment);
        self.bytes.fetch_add(size_of::<Segment>(), Ordering::Relaxed);
        self.segments.fetch_add(1, Ordering::Relaxed);
        Located(address as u64)
    }
}
