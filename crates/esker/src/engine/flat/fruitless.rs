//! Who finds no room in a full store is refused at once, as long as nothing changed since somebody looked for some in vain.
//!
//! To look takes several walks through all chunks, and a store that is full is asked again and again. What can make room is an entry that
//! is overtaken, a chunk that comes free, or a value that expires: as long as no version was given since somebody began to look, no chunk
//! taken or released since he ended, and the second is the same, there is no more to find for as many chunks in a row, or for more.
//!
//! # Concurrency
//! One short lock. What writers have appended, and what was cleared, is dead a moment after it was told: who looks meanwhile notes nothing.
//!
//! # Failure
//! Should something come free of which nothing here tells, puts are refused for a moment too long.

use super::Flat;
use super::chunks::For;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

/// How long nobody looks again.
const PAUSE: Duration = Duration::from_millis(250);

/// What there was when somebody began to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Versions that had been given.
    given: u64,
    unix_seconds: u64,
}

/// A look that found nothing.
#[derive(Clone, Copy, Debug)]
struct Looked {
    look: Look,
    /// When it ended.
    at: Duration,
    /// Chunks that had been taken and released then.
    moved: (u64, u64),
    /// Chunks in a row that were wanted.
    count: usize,
}

/// The last look that found nothing.
#[derive(Debug, Default)]
pub(super) struct Fruitless {
    last: Mutex<Option<Looked>>,
    /// The look before found nothing. Only then the next one goes through all chunks to say what there was.
    is_likely: AtomicBool,
}

impl Flat {
    fn look(&self) -> Look {
        Look { given: self.versions.given(), unix_seconds: self.clock.now() }
    }

    fn moved(&self) -> (u64, u64) {
        (self.chunks.taken(), self.chunks.released())
    }

    /// Whether a put would look for so many chunks in a row in vain. Deletes always look: they make room.
    pub(super) fn is_fruitless(&self, count: usize, whom: For) -> bool {
        let Some(last) = *self.fruitless.last.lock() else { return false };
        whom == For::Puts
            && count >= last.count
            && self.clock.monotonic() < last.at + PAUSE
            && self.moved() == last.moved
            && self.look() == last.look
    }

    /// Begins to look; `None` if something is under way that may make room and is not told any more, or nobody asks.
    pub(super) fn begin_look(&self) -> Option<Look> {
        if !self.fruitless.is_likely.swap(false, Ordering::Relaxed) {
            return None;
        }
        let look = self.look();
        // What has one of these versions is counted.
        fence(Ordering::Acquire);
        let mut logs = self.chunks.iter().filter(|(_, chunk)| chunk.is_log());
        let is_settled = self.unswept.load(Ordering::Relaxed) == 0
            && logs.all(|(_, chunk)| chunk.is_published());
        is_settled.then_some(look)
    }

    /// Somebody looked for so many chunks in a row, and found no room.
    pub(super) fn note_fruitless(&self, look: Option<Look>, count: usize) {
        self.fruitless.is_likely.store(true, Ordering::Relaxed);
        if let Some(look) = look {
            let (at, moved) = (self.clock.monotonic(), self.moved());
            *self.fruitless.last.lock() = Some(Looked { look, at, moved, count });
        }
    }
}
