//! A ring of bytes in shared memory, with one writer and one reader.
//!
//! # Layout
//! | bytes | holds | written by |
//! |---|---|---|
//! | 0 to 8 | bytes written since the beginning | the writer |
//! | 128 to 136 | bytes read since the beginning | the reader |
//! | 256 to 264 | 1 while the reader sleeps | the reader; the writer takes it back and rings |
//! | 384 on | the bytes, a power of two | the writer |
//!
//! # Invariants
//! - R1: each side keeps its own counter to itself and only publishes it.
//! - R2: of the other side's counter one load is used for one call, and only if it is within the ring: otherwise the call
//!   fails, and so does every later one of an honest owner, who ends the stream.
//! - R3: a reader announces its sleep and looks again; a writer publishes and looks for a sleeper. Both put a full fence
//!   in between, so that one of them sees the other.

use crate::memory::Memory;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

const WORD: usize = 8;
const TAIL: usize = 0;
const HEAD: usize = 128 / WORD;
const SLEEPS: usize = 256 / WORD;
const DATA: usize = 384 / WORD;

/// Words of a ring for `capacity` bytes.
pub(crate) const fn words(capacity: usize) -> usize {
    DATA + capacity / WORD
}

/// Where a ring is.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    memory: Arc<Memory>,
    start: usize,
    capacity: usize,
}

impl Ring {
    /// The ring of `capacity` bytes, a power of two, that begins with the word `start`; `None` outside the memory.
    pub(crate) fn new(memory: &Arc<Memory>, start: usize, capacity: usize) -> Option<Ring> {
        let inside = memory.words().len() >= start.checked_add(words(capacity))?;
        let fits = capacity.is_power_of_two() && capacity >= WORD;
        (inside && fits).then(|| Ring { memory: Arc::clone(memory), start, capacity })
    }

    #[expect(clippy::indexing_slicing, reason = "`new` has seen that all words are there")]
    fn word(&self, number: usize) -> &AtomicU64 {
        &self.memory.words()[self.start + number]
    }

    /// The word that holds the byte `position` of the stream, and where in it.
    fn place(&self, position: u64) -> (&AtomicU64, usize) {
        let offset = usize::try_from(position % self.capacity as u64).unwrap_or(0);
        (self.word(DATA + offset / WORD), offset % WORD)
    }

    /// Writes over word `number` of the ring, counters first: what a hostile side may do at any time.
    fn forge(&self, number: usize, value: u64) {
        self.word(number % words(self.capacity)).store(value, Ordering::Release);
    }

    /// How far `tail` is before `head`, if that can be (R2).
    fn filled(&self, tail: u64, head: u64) -> Result<usize> {
        usize::try_from(tail.wrapping_sub(head))
            .ok()
            .filter(|filled| *filled <= self.capacity)
            .ok_or_else(|| Error::new(ErrorKind::InvalidData, "a counter outside its ring"))
    }
}

/// The side of a ring that writes.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    tail: AtomicU64,
}

impl Writer {
    pub(crate) fn new(ring: Ring) -> Writer {
        Writer { ring, tail: AtomicU64::new(0) }
    }

    /// Writes as much of `bytes` as there is room for. One thread at a time.
    ///
    /// # Errors
    /// `InvalidData` if the other side breaks the rules.
    pub fn write(&self, bytes: &[u8]) -> Result<usize> {
        let tail = self.tail.load(Ordering::Relaxed);
        let head = self.ring.word(HEAD).load(Ordering::Acquire);
        let room = self.ring.capacity - self.ring.filled(tail, head)?;
        let mut rest = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        let end = tail.wrapping_add(rest.len() as u64);
        let mut position = tail;
        while !rest.is_empty() {
            let (word, within) = self.ring.place(position);
            let (now, later) = rest.split_at((WORD - within).min(rest.len()));
            let mut value = match now.len() {
                WORD => [0; WORD],
                _ => word.load(Ordering::Relaxed).to_le_bytes(),
            };
            value.iter_mut().skip(within).zip(now).for_each(|(to, from)| *to = *from);
            word.store(u64::from_le_bytes(value), Ordering::Relaxed);
            position = position.wrapping_add(now.len() as u64);
            rest = later;
        }
        self.tail.store(end, Ordering::Relaxed);
        self.ring.word(TAIL).store(end, Ordering::Release);
        Ok(usize::try_from(end.wrapping_sub(tail)).unwrap_or(0))
    }

    /// For tests of the other side: writes over a word of the ring.
    #[doc(hidden)]
    pub fn forge(&self, number: usize, value: u64) {
        self.ring.forge(number, value);
    }

    /// Whether the reader sleeps, so that the caller, who has written, must ring. Once for each sleep.
    #[must_use]
    pub fn must_ring(&self) -> bool {
        // R3.
        fence(Ordering::SeqCst);
        let sleeps = self.ring.word(SLEEPS);
        sleeps.load(Ordering::Relaxed) == 1 && sleeps.swap(0, Ordering::AcqRel) == 1
    }
}

/// The side of a ring that reads.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    head: AtomicU64,
}

impl Reader {
    pub(crate) fn new(ring: Ring) -> Reader {
        Reader { ring, head: AtomicU64::new(0) }
    }

    /// As [`Writer::forge`].
    #[doc(hidden)]
    pub fn forge(&self, number: usize, value: u64) {
        self.ring.forge(number, value);
    }

    fn available(&self) -> Result<usize> {
        let tail = self.ring.word(TAIL).load(Ordering::Acquire);
        self.ring.filled(tail, self.head.load(Ordering::Relaxed))
    }

    /// Copies out what is there, as far as it fits; 0 if nothing is. One thread at a time.
    ///
    /// # Errors
    /// `InvalidData` if the other side breaks the rules.
    pub fn read(&self, into: &mut [u8]) -> Result<usize> {
        let head = self.head.load(Ordering::Relaxed);
        let count = self.available()?.min(into.len());
        if count == 0 {
            // Whoever polls leaves the writer its line.
            return Ok(0);
        }
        let mut position = head;
        let mut rest = into.get_mut(..count).unwrap_or_default();
        while !rest.is_empty() {
            let (word, within) = self.ring.place(position);
            let (now, later) = rest.split_at_mut((WORD - within).min(rest.len()));
            let value = word.load(Ordering::Relaxed).to_le_bytes();
            now.iter_mut().zip(value.iter().skip(within)).for_each(|(to, from)| *to = *from);
            position = position.wrapping_add(now.len() as u64);
            rest = later;
        }
        self.head.store(position, Ordering::Relaxed);
        self.ring.word(HEAD).store(position, Ordering::Release);
        Ok(count)
    }

    /// Says that this side sleeps. False: something has come, or the other side breaks the rules; it stays awake.
    #[must_use]
    pub fn announce_sleep(&self) -> bool {
        self.ring.word(SLEEPS).store(1, Ordering::Relaxed);
        // R3.
        fence(Ordering::SeqCst);
        let sleeps = self.available().is_ok_and(|count| count == 0);
        if !sleeps {
            self.awake();
        }
        sleeps
    }

    /// Says that this side is awake.
    pub fn awake(&self) {
        self.ring.word(SLEEPS).store(0, Ordering::Relaxed);
    }
}
