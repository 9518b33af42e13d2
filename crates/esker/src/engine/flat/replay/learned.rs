//! What recovery learns of what the index has, chunk by chunk, while several threads enter what they read.
//!
//! # Concurrency
//! Counters are atomic; what is rare is behind a lock.

use crate::engine::flat::layout::{Layout, Place};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

/// What recovery learns of what the index has.
#[derive(Debug)]
pub(in super::super) struct Learned {
    pub(super) chunks: Box<[LearnedChunk]>,
    pub(super) tombstones: AtomicI64,
    /// By the hash of their keys: entries whose records have other keys, or none.
    pub(super) keyless: Mutex<HashMap<u64, Keyless>>,
    ends: Mutex<Vec<LogEnd>>,
}

/// Of the entries with one hash, the newest whose record has not its key.
#[derive(Debug)]
pub(super) struct Keyless {
    pub(super) version: u64,
    pub(super) offset: u64,
    /// Whether something newer was found.
    pub(super) overtaken: AtomicBool,
}

/// The end of a log that has no seal.
#[derive(Clone, Debug)]
pub(in super::super) struct LogEnd {
    pub(in super::super) chunk: u32,
    /// Where its last batch stands, which may not be durable: whoever stored it may have been killed before the fence.
    pub(in super::super) last: Range<u64>,
}

#[derive(Debug)]
pub(super) struct LearnedChunk {
    /// Entries in the index.
    pub(super) live: AtomicU32,
    /// Lowest and highest version of its entries, once all were read.
    pub(super) versions: OnceLock<(u64, u64)>,
}

impl Learned {
    pub(in super::super) fn new(layout: &Layout) -> Learned {
        let chunk = |_| LearnedChunk { live: AtomicU32::new(0), versions: OnceLock::new() };
        Learned {
            chunks: (0..layout.chunk_count).map(chunk).collect(),
            tombstones: AtomicI64::new(0),
            keyless: Mutex::default(),
            ends: Mutex::default(),
        }
    }

    /// Notes the end of a log that has no seal.
    pub(in super::super) fn note_end(&self, end: LogEnd) {
        self.ends.lock().push(end);
    }

    /// The ends of logs that have no seal.
    pub(in super::super) fn take_ends(&self) -> Vec<LogEnd> {
        std::mem::take(&mut *self.ends.lock())
    }

    /// Notes an entry at a place whose record has not the key of this hash: it must have been overtaken.
    pub(in super::super) fn note_keyless(&self, hash: u64, version: u64, offset: u64) {
        let mut keyless = self.keyless.lock();
        let found = || Keyless { version, offset, overtaken: AtomicBool::new(false) };
        let known = keyless.entry(hash).or_insert_with(found);
        if version > known.version {
            *known = found();
        }
    }

    pub(super) fn chunk(&self, number: u32) -> Option<&LearnedChunk> {
        self.chunks.get(usize::try_from(number).ok()?)
    }

    /// Counts entries of a chunk that the index has now, less those that it has no more.
    pub(in super::super) fn add(&self, number: u32, entries: i64) {
        if let Some(chunk) = self.chunk(number) {
            // What goes round comes back: the sum of all is never below 0.
            let by = i32::try_from(entries).unwrap_or(0);
            chunk.live.fetch_add(by.cast_unsigned(), Ordering::Relaxed);
        }
    }

    /// As [`Learned::add`], tombstones of any chunk.
    pub(in super::super) fn add_tombstones(&self, tombstones: i64) {
        self.tombstones.fetch_add(tombstones, Ordering::Relaxed);
    }

    /// Counts an entry that the index has now, or has no more.
    pub(in super::super) fn count(&self, layout: &Layout, place: Place, has: bool) {
        if let Some(chunk) = self.chunk(layout.chunk_of(place.offset)) {
            match has {
                true => chunk.live.fetch_add(1, Ordering::Relaxed),
                false => chunk.live.fetch_sub(1, Ordering::Relaxed),
            };
        }
        if place.kind.is_tombstone() {
            self.tombstones.fetch_add(if has { 1 } else { -1 }, Ordering::Relaxed);
        }
    }
}
