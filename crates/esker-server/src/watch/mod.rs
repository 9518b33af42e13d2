//! Watchers: connections that are told what happens in the server, in a line for each event.
//!
//! Whoever does something makes the line of it and puts that into the queue of each watcher that asked for its kind. The
//! watcher's session (`session::watch`) takes lines from there and sends them. As in memcached, a watcher that does not take its
//! lines loses those for which there is no room, and is told how many as soon as there is.
//!
//! # Invariants
//! - H1: nobody waits for a watcher: a queue holds [`QUEUE_BYTES_MAX`] at most, and what does not fit is only counted.
//! - H2: lines come whole, in the order in which they came into the queue; before the first one behind a gap stands how many are
//!   missing.
//! - H3: there are [`WATCHERS_MAX`] watchers at most, each with [`WATCHER_BYTES`] of the memory budget.
//!
//! # Concurrency
//! While nobody watches, an event costs one relaxed load: there is no clock, no text and no lock. Else one short lock is taken
//! for each line. Nobody is woken for a line: a watcher looks by itself, so that those who serve others never pay for its task.
//! Of events of two cores the one with the lower number may come later.

mod event;

pub(crate) use event::{CloseReason, Event, Origin, StoreStatus};

use crate::clock::SteadyClock;
use crate::counters::{Counter, Shard};
use crate::protocol::WatchKinds;
use crate::shared::Shared;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Watchers at the same time, as in memcached.
pub(crate) const WATCHERS_MAX: usize = 20;
/// Lines that a watcher has not taken yet, in bytes, as in memcached.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// What a line leaves free behind it, as in memcached: room to tell a gap.
const GAP_BYTES: usize = 128;
/// Lines that are taken at once, in bytes.
const TAKEN_BYTES_MAX: usize = 16 << 10;
/// Memory of a watcher: its queue, and what it has taken from there, as lines and as what is sent.
pub(crate) const WATCHER_BYTES: u64 = (QUEUE_BYTES_MAX + 2 * TAKEN_BYTES_MAX) as u64;

/// All watchers of a server.
#[derive(Debug)]
pub(crate) struct Watchers {
    /// What somebody asked for.
    wanted: AtomicU16,
    /// The last number that an event had.
    last: AtomicU64,
    clock: Arc<SteadyClock>,
    queues: Mutex<Vec<Queue>>,
}

#[derive(Debug)]
struct Queue {
    /// That of the watcher.
    number: u64,
    kinds: WatchKinds,
    lines: VecDeque<u8>,
    /// Lines for which there was no room since the last one for which there was.
    skipped: u64,
}

impl Queue {
    /// Appends a line, if there is room; says whether.
    fn push(&mut self, line: &[u8]) -> bool {
        let free = QUEUE_BYTES_MAX.saturating_sub(self.lines.len());
        if free < line.len().saturating_add(GAP_BYTES) {
            self.skipped = self.skipped.saturating_add(1);
            return false;
        }
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 {
            self.lines.extend(format!("skipped={skipped}\n").as_bytes());
        }
        self.lines.extend(line);
        true
    }
}

impl Watchers {
    pub(crate) fn new(clock: Arc<SteadyClock>) -> Watchers {
        Watchers {
            wanted: AtomicU16::new(0),
            last: AtomicU64::new(0),
            clock,
            queues: Mutex::default(),
        }
    }

    /// What somebody watches now.
    pub(crate) fn wanted(&self) -> WatchKinds {
        WatchKinds::of_bits(self.wanted.load(Ordering::Relaxed))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.queues.lock().len()
    }

    /// Tells an event to all who asked for its kind, and counts that on `counters`.
    #[cold]
    pub(crate) fn tell(&self, event: &Event<'_>, counters: &Shard) {
        let (time, number) = (self.clock.since_1970(), self.next_number());
        // As memcached writes them: microseconds without zeros before them.
        let (seconds, micros) = (time.as_secs(), time.subsec_micros());
        let line = format!("ts={seconds}.{micros} gid={number} {event}\n");
        counters.add(Counter::LogWorkerWritten, 1);
        let (mut sent, mut skipped) = (0, 0);
        for queue in self.queues.lock().iter_mut() {
            if queue.kinds.has(event.kind()) {
                let room = queue.push(line.as_bytes());
                *(if room { &mut sent } else { &mut skipped }) += 1;
            }
        }
        counters.add(Counter::LogWatcherSent, sent);
        counters.add(Counter::LogWatcherSkipped, skipped);
    }

    fn next_number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Notes what those who are there want.
    fn note_wanted(&self, queues: &[Queue]) {
        let wanted = queues.iter().fold(WatchKinds::default(), |all, queue| all.with(queue.kinds));
        self.wanted.store(wanted.bits(), Ordering::Relaxed);
    }
}

/// A watcher is there until this is dropped.
pub(crate) struct Place {
    shared: Arc<Shared>,
    number: u64,
}

impl Place {
    /// One who wants these kinds, if there may be one more.
    pub(crate) fn take(shared: &Arc<Shared>, kinds: WatchKinds) -> Option<Place> {
        let watchers = &shared.watchers;
        let mut queues = watchers.queues.lock();
        if queues.len() >= WATCHERS_MAX {
            return None;
        }
        let number = watchers.next_number();
        // At once: a queue that grows takes up to twice what it holds.
        let lines = VecDeque::with_capacity(QUEUE_BYTES_MAX);
        queues.push(Queue { number, kinds, lines, skipped: 0 });
        watchers.note_wanted(&queues);
        Some(Place { shared: shared.clone(), number })
    }

    /// Moves lines that came to the end of `into`: some, if there are any, and not too many.
    pub(crate) fn take_lines(&self, into: &mut Vec<u8>) {
        let mut queues = self.shared.watchers.queues.lock();
        if let Some(queue) = queues.iter_mut().find(|queue| queue.number == self.number) {
            let count = queue.lines.len().min(TAKEN_BYTES_MAX);
            into.extend(queue.lines.drain(..count));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let watchers = &self.shared.watchers;
        let mut queues = watchers.queues.lock();
        queues.retain(|queue| queue.number != self.number);
        watchers.note_wanted(&queues);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue {
        let (kinds, lines) = (WatchKinds::FETCHERS, VecDeque::new());
        Queue { number: 1, kinds, lines, skipped: 0 }
    }

    #[test]
    fn lines_beyond_the_room_are_lost_whole_and_counted() {
        let (mut queue, line) = (queue(), [b'x'; 1000]);
        let mut count = 0;
        while queue.push(&line) {
            count += 1;
        }
        assert_eq!(count, (QUEUE_BYTES_MAX - GAP_BYTES) / line.len());
        assert!(!queue.push(&line) && !queue.push(&line));
        let held = queue.lines.len();
        assert_eq!((held, queue.skipped), (count * line.len(), 3));
        queue.lines.drain(..line.len());
        assert!(queue.push(b"y\n"));
        let end: Vec<u8> = queue.lines.iter().skip(held - line.len()).copied().collect();
        assert_eq!((end.as_slice(), queue.skipped), (&b"skipped=3\ny\n"[..], 0));
    }

    #[test]
    fn a_gap_has_room_to_be_told_in_however_full_the_queue_is() {
        let mut queue = queue();
        queue.skipped = u64::MAX;
        let line = vec![b'x'; QUEUE_BYTES_MAX - GAP_BYTES];
        assert!(!queue.push(&[line.as_slice(), b"x"].concat()));
        assert!(queue.push(&line) && queue.lines.len() <= QUEUE_BYTES_MAX);
    }
}
